// Which queue pair goes to error when a peer leaves.
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
  /// Afterwards nothing touches what was watched.
  void leave(Key key) noexcept {
    const std::lock_guard lock(mutex_);
    watches_.erase(key);
  }
  /// Of a key that was entered. The peer may have gone before.
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
    // Under the lock: who destroys the queue pair leaves before.
    if (at->second.nic != nullptr) at->second.nic->lose_peer(at->second.qp);
  }

 private:
  struct Watch {
    nic::Nic* nic = nullptr;  // Null until somebody says what to do.
    const ibv_qp* qp = nullptr;
    bool is_gone = false;
  };
  Mutex mutex_;
  std::unordered_map<Key, Watch> watches_;
};

}  // namespace verbena::link
