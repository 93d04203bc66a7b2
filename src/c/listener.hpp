// A listener of the C API: the thread that answers clients, and the runtime of their connections.
#pragma once

#include "c/conn.hpp"
#include "c/runtime.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace verbena::c {

/// \thread any, one at a time, except where said
class Listener {
 public:
  Listener(std::string address, std::uint16_t port) : address_(std::move(address)), port_(port) {}
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  Settings settings;    ///< Before `start`, as what follows.
  Callbacks callbacks;  ///< Of new connections.

  /// Returns once clients can connect.
  [[nodiscard]] Result<void> start();
  /// \thread any
  [[nodiscard]] bool is_running() const noexcept { return is_running_.load(std::memory_order_acquire); }
  /// Whether the calling thread is the one that calls back. \thread any
  [[nodiscard]] bool is_in_callback() const noexcept {
    // Another thread may be stopping it.
    const std::shared_ptr<Runtime> runtime = [this] {
      const std::lock_guard lock(mutex_);
      return runtime_;
    }();
    return runtime != nullptr && runtime->poller().is_this_thread();
  }
  /// Null unless it runs.
  [[nodiscard]] Runtime* runtime() const noexcept { return is_running() ? runtime_.get() : nullptr; }
  /// 0 unless it runs.
  [[nodiscard]] std::uint16_t port() const noexcept { return link_ ? link_->port() : std::uint16_t{0}; }
  /// Until some thread has stopped it. \thread any
  void wait() noexcept { is_running_.wait(true, std::memory_order_acquire); }
  void stop() noexcept;

 protected:
  ~Listener() { stop(); }

 private:
  void accept_clients() noexcept;
  [[nodiscard]] Result<void> serve(link::Incoming& incoming);

  const std::string address_;
  const std::uint16_t port_;
  mutable std::mutex mutex_;          ///< Of runtime_, which changes in start and stop only.
  std::shared_ptr<Runtime> runtime_;  ///< Null unless it runs.
  std::unique_ptr<link::Listener> link_;
  std::thread thread_;
  std::atomic<bool> is_running_{false};
};

}  // namespace verbena::c

/// What users hold.
struct verbena_RdmaListener final : verbena::c::Listener {
  using Listener::Listener;
  ~verbena_RdmaListener() = default;
};
