// What mutate.py puts into sources of src/kv: steps between any two of the writer's stores, and mutations that are
// planted when the tests run. Nothing of it is in the archive.
#pragma once

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string_view>

namespace verbena::kv::steps {

/// Called after each store, in the writer's thread: the writer goes on when it returns.
inline std::function<void()> on_store;

/// Whether VERBENA_MUTANT names this mutant.
[[nodiscard]] inline bool is_planted(std::string_view name) {
  static const char* const planted = std::getenv("VERBENA_MUTANT");
  return planted != nullptr && name == planted;
}

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
