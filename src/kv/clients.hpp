// A server's clients: one entry per client, with the workers that it has a channel to.
#pragma once

#include "base/error.hpp"
#include "base/threads.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace verbena::kv {

/// \thread any  \alloc setup
class Clients {
 public:
  /// Allows `limit` clients in all, and `limit_of_a_stranger` for each user other than this process's own.
  Clients(unsigned limit, unsigned limit_of_a_stranger) : limit_(limit), limit_of_a_stranger_(limit_of_a_stranger) {
    clients_.reserve(limit);
  }

  /// Registers a channel of `client` to `worker` that is about to be made; `uid` is its user, if known. Errors: kLimit
  /// (as many clients as allowed), kProtocol (the channel exists already, or the id is another user's).
  [[nodiscard]] Result<void> enter(std::uint64_t client, unsigned worker, std::optional<uid_t> uid) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t bit = std::uint64_t{1} << worker;
    const auto known = clients_.find(client);
    if (known == clients_.end()) VERBENA_TRY(check_room(uid));
    if (known != clients_.end() && known->second.uid != uid)
      return fail(Status::kProtocol, "connect", 0, "another user has a client with this id");
    Entry& entry = clients_[client];
    if ((entry.workers & bit) != 0)
      return fail(Status::kProtocol, "connect", 0, "this client already has a channel to worker {}", worker);
    entry.workers |= bit;
    entry.uid = uid;
    count_.store(clients_.size(), std::memory_order_relaxed);
    return {};
  }

  /// Removes a channel of `client` that ended or was not made. True: it was the client's last.
  bool leave(std::uint64_t client, unsigned worker) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = clients_.find(client);
    if (at == clients_.end()) return false;
    at->second.workers &= ~(std::uint64_t{1} << worker);
    if (at->second.workers != 0) return false;
    clients_.erase(at);
    count_.store(clients_.size(), std::memory_order_relaxed);
    return true;
  }

  /// Takes no lock: workers report it, and must not wait for a thread that makes a connection.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    std::uint64_t workers = 0;  ///< One bit per worker.
    std::optional<uid_t> uid;
  };

  [[nodiscard]] Result<void> check_room(std::optional<uid_t> uid) const {
    if (clients_.size() == limit_)
      return fail(Status::kLimit, "connect", 0,
                  "the server serves {} clients already, its limit: end one, or start it with a higher max_clients",
                  limit_);
    if (!uid || *uid == ::geteuid()) return {};
    const auto count = std::ranges::count_if(clients_, [&](const auto& entry) { return entry.second.uid == uid; });
    if (static_cast<std::size_t>(count) < limit_of_a_stranger_) return {};
    return fail(Status::kLimit, "connect", 0,
                "the server serves {} clients of uid {} already, its limit for one user: end one, or start it with a "
                "higher max_clients_per_user",
                count, *uid);
  }

  const std::size_t limit_;
  const std::size_t limit_of_a_stranger_;
  Mutex mutex_;
  std::unordered_map<std::uint64_t, Entry> clients_;
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace verbena::kv
