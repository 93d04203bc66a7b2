// Maps watched connections to the queue pairs that go to error when the peer leaves.
#pragma once

#include "base/threads.hpp"
#include "nic/nic.hpp"

#include <mutex>
#include <unordered_map>

namespace verbena::link {

/// \thread any  \alloc setup
template <class Key>
class Watches {
 public:
  void enter(Key key) {
    const std::lock_guard lock(mutex_);
    watches_.try_emplace(key);
  }
  /// Ends a watch: afterwards nothing touches its queue pair.
  void leave(Key key) noexcept {
    const std::lock_guard lock(mutex_);
    watches_.erase(key);
  }
  /// Sets the queue pair of a key that was entered before. The peer may have gone already.
  void watch(Key key, nic::Nic& nic, const ibv_qp* qp) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = watches_.find(key);
    if (at == watches_.end()) return;
    at->second.nic = &nic;
    at->second.qp = qp;
    if (at->second.is_gone) nic.lose_peer(qp);
  }
  void gone(Key key) noexcept {
    const std::lock_guard lock(mutex_);
    const auto at = watches_.find(key);
    if (at == watches_.end()) return;
    at->second.is_gone = true;
    // Under the lock, because a thread that destroys the queue pair calls `leave` first.
    if (at->second.nic != nullptr) at->second.nic->lose_peer(at->second.qp);
  }

 private:
  struct Watch {
    nic::Nic* nic = nullptr;  // Null until `watch`.
    const ibv_qp* qp = nullptr;
    bool is_gone = false;
  };
  Mutex mutex_;
  std::unordered_map<Key, Watch> watches_;
};

}  // namespace verbena::link
