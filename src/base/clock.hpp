// The processor's counter as a clock: checks at the start, and as long as it is used, whether it can serve as one.
#pragma once

#include <verbena/deadline.hpp>

#include <atomic>
#include <cstdint>

namespace verbena {

/// Compares the processor's counter with the system's clock (CLOCK_MONOTONIC), and goes on without the counter once the
/// two disagree. The counter may stop, jump or go back when a virtual machine moves to another host or the machine is
/// suspended.
class CounterWatch {
 public:
  /// Both clocks at one moment.
  struct Reading {
    std::uint64_t counter;
    std::uint64_t ns;
  };
  /// Two clocks agree when they differ by no more than this, or by no more than this part of the time since the last
  /// comparison. The system's clock is slewed by NTP (0.05 %), and the counter was measured for 2 ms.
  static constexpr std::uint64_t kToleranceNs = 20'000'000;
  static constexpr std::uint64_t kTolerancePart = 100;

  /// Starts to compare from `reading` on. \thread setup
  void begin(const Reading& reading, double ticks_per_us) noexcept;
  /// Whether the counter has kept pace with the system's clock since the last call. \thread one at a time
  [[nodiscard]] bool agrees(const Reading& reading) noexcept;
  /// Converts a time of the system's clock to ticks, counted from the last reading that agreed and never below it.
  /// \thread any, once a reading did not agree
  [[nodiscard]] std::uint64_t ticks_at(std::uint64_t ns) const noexcept;
  /// Whether to compare again: the last reading was long ago by the counter, or the counter is behind it. \thread any
  [[nodiscard]] bool is_due(std::uint64_t counter) const noexcept {
    return counter - counter_.load(std::memory_order_relaxed) > interval_.load(std::memory_order_relaxed);
  }

 private:
  /// The least distance between readings that agree.
  static constexpr double kIntervalUs = 100'000;

  double ticks_per_us_ = 1;
  std::atomic<std::uint64_t> counter_{0};  ///< The last reading that agreed.
  std::atomic<std::uint64_t> ns_{0};
  std::atomic<std::uint64_t> interval_{0};  ///< Ticks.
};

/// Compares the counter, which reads `now`, with the system's clock if the last comparison was at least 0.1 s ago by
/// the counter. Call it wherever a wait looks at the clock, so that no wait lasts longer than its deadline. \thread any
/// \alloc none
void look_at_clock(std::uint64_t now) noexcept;

/// Ticks for which this thread has had a processor. \thread any  \alloc none
[[nodiscard]] std::uint64_t processor_ticks() noexcept;

/// The time of day: ns since 1970. It may be set back, so no wait uses it. \thread any  \alloc none
[[nodiscard]] std::uint64_t unix_time_ns() noexcept;

}  // namespace verbena
