// Clients of a listener, taken by a blocking call as accept(2) takes them.
#pragma once

#include "base/cancellation.hpp"
#include "base/threads.hpp"

#include <verbena/rdma.h>
#include <verbena/deadline.hpp>

#include <deque>
#include <mutex>
#include <new>

namespace verbena::api::c {

/// A listener of this process, and its clients that nobody has taken yet.
class Entrance {
 public:
  ~Entrance() {
    rdmaServerRelease(listener_);  // First: until then its thread may add a client.
    for (RdmaConn* conn : waiting_) rdmaConnClose(conn);
  }
  /// On `address`, or this host's if that is null. \thread setup
  [[nodiscard]] int open(const char* address, int port, const RdmaOptions& options) noexcept {
    const auto accepted = [](RdmaConn* conn, void* user) { static_cast<Entrance*>(user)->add(conn); };
    int code = rdmaServer(&listener_, address, port);
    if (code == RDMA_OK) code = rdmaServerSetOptions(listener_, &options);
    if (code == RDMA_OK) code = rdmaServerOnAccept(listener_, accepted, this);
    return code == RDMA_OK ? rdmaServerStart(listener_) : code;
  }
  /// The next client, which is the caller's then; null once the deadline has passed. \thread any
  [[nodiscard]] RdmaConn* next(Deadline deadline) {
    const CancellationHeld held;
    std::unique_lock lock(mutex_);
    const auto is_there = [this] { return !waiting_.empty(); };
    if (deadline.is_never()) {
      arrived_.wait(lock, is_there);
    } else if (!arrived_.wait_for(lock, deadline.left(), is_there)) {
      return nullptr;
    }
    RdmaConn* const conn = waiting_.front();
    waiting_.pop_front();
    return conn;
  }
  /// The port that it listens on. \thread any
  [[nodiscard]] int port() const noexcept { return rdmaServerPort(listener_); }

 private:
  void add(RdmaConn* conn) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      waiting_.push_back(conn);
    } catch (const std::bad_alloc&) {
      return rdmaConnClose(conn);
    }
    (void)rdmaConnKeep(conn);  // Allowed in an accept callback.
    arrived_.notify_one();
  }
  RdmaListener* listener_ = nullptr;
  Mutex mutex_;
  Condition arrived_;
  std::deque<RdmaConn*> waiting_;
};

}  // namespace verbena::api::c
