// The processor's counter as a clock: whether it serves as one, at the start and as long as it is used.
#pragma once

#include <verbena/deadline.hpp>

#include <atomic>
#include <cstdint>

namespace verbena {

/// Follows the processor's counter by the system's clock (CLOCK_MONOTONIC), and goes on without the counter once the
/// two disagree: when a virtual machine moved to another host, or the machine was suspended, the counter may have
/// stopped, jumped, or gone back.
class CounterWatch {
 public:
  /// Both clocks at one moment.
  struct Reading {
    std::uint64_t counter;
    std::uint64_t ns;
  };
  /// Two clocks agree that differ by no more than this, or by this part of the time since they were last compared. The
  /// system's clock is slewed by NTP (0.05 %), and the counter was measured for 2 ms.
  static constexpr std::uint64_t kToleranceNs = 20'000'000;
  static constexpr std::uint64_t kTolerancePart = 100;

  /// From now on. \thread setup
  void begin(const Reading& reading, double ticks_per_us) noexcept;
  /// Whether the counter has gone with the system's clock since the last call. \thread one at a time
  [[nodiscard]] bool agrees(const Reading& reading) noexcept;
  /// Ticks at a time of the system's clock, counted from the last reading that agreed. Never less than there.
  /// \thread any, once a reading did not agree
  [[nodiscard]] std::uint64_t ticks_at(std::uint64_t ns) const noexcept;
  /// Whether the last reading was long ago by the counter, or the counter is behind it. \thread any
  [[nodiscard]] bool is_due(std::uint64_t counter) const noexcept {
    return counter - counter_.load(std::memory_order_relaxed) > interval_.load(std::memory_order_relaxed);
  }

 private:
  /// Readings that agree are this far apart at least.
  static constexpr double kIntervalUs = 100'000;

  double ticks_per_us_ = 1;
  std::atomic<std::uint64_t> counter_{0};  ///< The last reading that agreed.
  std::atomic<std::uint64_t> ns_{0};
  std::atomic<std::uint64_t> interval_{0};  ///< Ticks.
};

/// Compares the counter with the system's clock if that was 0.1 s ago or longer, by the counter, which reads `now`.
/// Call it wherever a wait looks at the clock, so that no wait lasts longer than its deadline. \thread any  \alloc none
void look_at_clock(std::uint64_t now) noexcept;

/// The time of day: ns since 1970. It may be set back; nothing that waits goes by it. \thread any  \alloc none
[[nodiscard]] std::uint64_t unix_time_ns() noexcept;

}  // namespace verbena
