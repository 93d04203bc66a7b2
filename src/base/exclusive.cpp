#include "base/exclusive.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace verbena {
namespace {

[[nodiscard]] bool membarrier(int command) noexcept { return ::syscall(SYS_membarrier, command, 0, 0) == 0; }

/// Registers once per process.
[[nodiscard]] bool has_membarrier() noexcept {
  static const bool is_registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return is_registered;
}

}  // namespace

Exclusive::Exclusive() noexcept : has_barrier_(has_membarrier()) {}

Exclusive::Mark& Exclusive::mark_of(std::uintptr_t me) noexcept {
  if (!has_barrier_) return shared_;
  for (Mark& mark : marks_) {
    const std::uintptr_t thread = mark.thread.load(std::memory_order_relaxed);
    if (thread == 0) mark.thread.store(me, std::memory_order_relaxed);
    if (thread == 0 || thread == me) return mark;
  }
  return shared_;
}

Exclusive::Mark* Exclusive::enter_as_another(std::uintptr_t me) noexcept {
  const std::lock_guard lock(mutex_);
  Mark* const last = last_.exchange(&nobody_, std::memory_order_relaxed);
  // A seccomp filter may refuse membarrier from now on. A thread that cannot call it does not enter.
  const bool is_known = last == &shared_ || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  if (!is_known || last->is_inside.load(std::memory_order_acquire)) {
    last_.store(last, std::memory_order_relaxed);
    return nullptr;
  }
  Mark& mine = mark_of(me);
  mine.is_inside.store(true, std::memory_order_relaxed);
  last_.store(&mine, std::memory_order_relaxed);
  return &mine;
}

}  // namespace verbena
