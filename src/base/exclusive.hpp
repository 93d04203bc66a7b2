// What one thread uses at a time, without a read-modify-write for the thread that has used it last.
#pragma once

#include "base/fences.hpp"
#include "base/threads.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena {

/// A thread that enters again stores its own mark, and looks whether it is still the last one. Another one that enters
/// takes that from it, and calls membarrier (some microseconds): then either the mark is seen there, or the loss here.
/// Marks are of one thread for good: a mark that is set late, by a thread that has lost, is in nobody's way. Threads
/// beyond kMarks, and all where the kernel has no membarrier, share one that is set under the lock.
/// \thread any  \alloc none
class Exclusive {
 public:
  static constexpr std::size_t kMarks = 8;
  struct Mark {
    std::atomic<std::uintptr_t> thread{0};
    std::atomic<bool> is_inside{false};
  };

  Exclusive() noexcept;
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

  /// What `leave` takes; null: another thread is inside, or this one is.
  [[nodiscard]] Mark* enter() noexcept {
    const std::uintptr_t me = this_thread();
    Mark* const last = last_.load(std::memory_order_relaxed);
    if (last->thread.load(std::memory_order_relaxed) == me) [[likely]] {
      if (last->is_inside.load(std::memory_order_relaxed)) return nullptr;
      last->is_inside.store(true, std::memory_order_relaxed);
      fences::mark_before_last();
      if (last_.load(std::memory_order_relaxed) == last) [[likely]]
        return last;
      last->is_inside.store(false, std::memory_order_release);
    }
    return enter_as_another(me);
  }
  static void leave(Mark* mark) noexcept { mark->is_inside.store(false, std::memory_order_release); }

 private:
  [[nodiscard]] Mark* enter_as_another(std::uintptr_t me) noexcept;
  [[nodiscard]] Mark& mark_of(std::uintptr_t me) noexcept;

  std::atomic<Mark*> last_{&shared_};
  const bool has_barrier_;
  Mutex mutex_;  ///< Of who makes itself the last.
  Mark nobody_;  ///< The last while somebody does.
  Mark shared_;
  std::array<Mark, kMarks> marks_;
};

}  // namespace verbena
