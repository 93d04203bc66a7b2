/// \file
/// Deadlines: every wait has one. They count ticks of the time-stamp counter.
#pragma once

#include <verbena/status.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

#pragma GCC visibility push(default)

namespace verbena {

namespace detail {
/// Whether the processor's counter is in use. False until the first call of ticks_now has looked at it.
extern constinit std::atomic<bool> counter_serves;
[[nodiscard]] std::uint64_t ticks_without_counter() noexcept;
}  // namespace detail

/// The processor's counter as it is (x86-64: the time-stamp counter; AArch64: the virtual counter). clock_description
/// tells whether it serves as a clock. \thread any  \alloc none
[[nodiscard]] inline std::uint64_t counter_now() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return 0;
#endif
}

/// The clock of deadlines: the processor's counter, about 9 ns a call, or CLOCK_MONOTONIC, some 30 ns, where the
/// counter cannot serve as a clock. It never goes back by an amount that threads on two cores could notice. \thread any
/// \alloc none
[[nodiscard]] inline std::uint64_t ticks_now() noexcept {
  if (detail::counter_serves.load(std::memory_order_relaxed)) [[likely]]
    return counter_now();
  return detail::ticks_without_counter();
}

/// Ticks per microsecond. It never changes; the first use of the clock takes 2 ms to measure it.
/// \thread any  \alloc none
[[nodiscard]] double ticks_per_us() noexcept;
/// Which clock is in use, and why. Static storage. \thread any  \alloc none
[[nodiscard]] const char* clock_description() noexcept;

/// A point in time after which a wait gives up. Copyable, 8 bytes.
class Deadline {
 public:
  /// `in` from now. Negative durations have passed already. \thread any  \alloc none
  [[nodiscard]] static Deadline after(std::chrono::nanoseconds in) noexcept;
  /// A deadline that has passed already: the call polls once.
  [[nodiscard]] static constexpr Deadline now() noexcept { return Deadline{0}; }
  /// Never passes. Only for calls that document it.
  [[nodiscard]] static constexpr Deadline never() noexcept {
    return Deadline{std::numeric_limits<std::uint64_t>::max()};
  }
  /// Passes at an absolute tick count, as `ticks_now` counts.
  [[nodiscard]] static constexpr Deadline at_ticks(std::uint64_t ticks) noexcept { return Deadline{ticks}; }

  /// Whether waiting is over. Reads the clock. \thread any  \alloc none
  [[nodiscard]] bool passed() const noexcept { return ticks_ == 0 || (!is_never() && ticks_now() >= ticks_); }
  /// Whether it is `never()`.
  [[nodiscard]] constexpr bool is_never() const noexcept { return ticks_ == std::numeric_limits<std::uint64_t>::max(); }
  /// Time left, 0 when passed; nanoseconds::max() for never.
  [[nodiscard]] std::chrono::nanoseconds left() const noexcept;
  /// Time left in whole milliseconds, rounded up, as poll(2) takes it: -1 for never.
  [[nodiscard]] int left_ms() const noexcept;
  /// The tick count at which it passes, as `ticks_now` counts; 0 when it has passed from the start.
  [[nodiscard]] constexpr std::uint64_t ticks() const noexcept { return ticks_; }
  /// The one that passes first.
  [[nodiscard]] friend constexpr Deadline earlier(Deadline a, Deadline b) noexcept {
    return a.ticks_ < b.ticks_ ? a : b;
  }

 private:
  constexpr explicit Deadline(std::uint64_t ticks) noexcept : ticks_(ticks) {}
  std::uint64_t ticks_;
};

}  // namespace verbena

#pragma GCC visibility pop
