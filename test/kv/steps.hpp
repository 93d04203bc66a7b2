// Steps between any two of the writer's stores: Meson puts steps::Ref in the place of std::atomic_ref into sources of
// src/kv, and links them ahead of the archive. Nothing of it is in the archive.
#pragma once

#include <atomic>
#include <functional>

namespace verbena::kv::steps {

/// Called after each store, in the writer's thread: the writer goes on when it returns.
inline std::function<void()> on_store;

/// In the place of std::atomic_ref.
template <class T>
class Ref {
 public:
  explicit Ref(T& word) : word_(word) {}
  void store(T value, std::memory_order order) const {
    word_.store(value, order);
    step();
  }
  T exchange(T value, std::memory_order order) const {
    const T before = word_.exchange(value, order);
    step();
    return before;
  }

 private:
  static void step() {
    if (on_store) on_store();
  }
  std::atomic_ref<T> word_;
};

}  // namespace verbena::kv::steps
