// Points in time that every wait carries, counted in ticks of the time-stamp counter.
#pragma once

#include <verbena/status.hpp>

#include <chrono>
#include <cstdint>
#include <limits>

namespace verbena {

/// Ticks of the CPU's time-stamp counter (CLOCK_MONOTONIC in nanoseconds where there is none). About 9 ns a call.
/// \thread any  \alloc none
[[nodiscard]] inline std::uint64_t ticks_now() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds{1});
#endif
}

/// Ticks a microsecond, measured once a process against CLOCK_MONOTONIC_RAW (about 2 ms at first use).
/// \thread any  \alloc none
[[nodiscard]] double ticks_per_us() noexcept;

/// A point in time after which a wait gives up. Copyable, 8 bytes.
class Deadline {
 public:
  /// `in` from now. Negative durations have passed already. \thread any  \alloc none
  [[nodiscard]] static Deadline after(std::chrono::nanoseconds in) noexcept;
  /// Has passed already: a poll.
  [[nodiscard]] static constexpr Deadline now() noexcept { return Deadline{0}; }
  /// Never passes. Only for calls that document it.
  [[nodiscard]] static constexpr Deadline never() noexcept {
    return Deadline{std::numeric_limits<std::uint64_t>::max()};
  }
  /// At an absolute tick count, as `ticks_now` counts.
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
