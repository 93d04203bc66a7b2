// Which clients a server has: one entry for each, with the workers that it has a channel to.
#pragma once

#include "base/error.hpp"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace verbena::kv {

/// \thread any  \alloc setup
class Clients {
 public:
  explicit Clients(unsigned limit) : limit_(limit) { clients_.reserve(limit); }

  /// A channel of `client` to `worker` is about to be made. kLimit when there are as many clients as there may be;
  /// kProtocol when that channel is there already.
  [[nodiscard]] Result<void> enter(std::uint64_t client, unsigned worker) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t bit = std::uint64_t{1} << worker;
    if (!clients_.contains(client) && clients_.size() == limit_)
      return fail(Status::kLimit, "connect", 0,
                  "the server serves {} clients already, its limit: end one, or start it with a higher max_clients",
                  limit_);
    std::uint64_t& workers = clients_[client];
    if ((workers & bit) != 0)
      return fail(Status::kProtocol, "connect", 0, "this client has a channel to worker {} already", worker);
    workers |= bit;
    count_.store(clients_.size(), std::memory_order_relaxed);
    return {};
  }

  /// A channel of `client` ended or was not made. True when it was the client's last.
  bool leave(std::uint64_t client, unsigned worker) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = clients_.find(client);
    if (at == clients_.end()) return false;
    at->second &= ~(std::uint64_t{1} << worker);
    if (at->second != 0) return false;
    clients_.erase(at);
    count_.store(clients_.size(), std::memory_order_relaxed);
    return true;
  }

  /// Without the lock: workers tell it, and none of them may wait for a thread that makes a connection.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  const std::size_t limit_;
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::uint64_t> clients_;
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace verbena::kv
