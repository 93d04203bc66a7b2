// Mutual exclusion without a read-modify-write for the thread that entered last.
#pragma once

#include "base/fences.hpp"
#include "base/threads.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena {

/// A thread that enters again stores its own mark and checks whether it is still the last one. Another thread that
/// enters takes that place and calls membarrier (some microseconds): then either it sees the first thread's mark, or
/// the first thread sees its loss. A mark belongs to one thread for good, so a mark that a losing thread sets late
/// disturbs nobody. Threads beyond kMarks, and all threads where the kernel has no membarrier, share one mark that is
/// set under the lock.
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

  /// Returns the mark to give to `leave`; null if another thread, or this one, is inside.
  [[nodiscard, gnu::always_inline]] Mark* enter() noexcept {
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
  Mutex mutex_;  ///< Held by a thread that makes itself the last one.
  Mark nobody_;  ///< `last_` points here while a thread makes itself the last one.
  Mark shared_;
  std::array<Mark, kMarks> marks_;
};

}  // namespace verbena
