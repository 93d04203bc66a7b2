// Durations in ticks of the time-stamp counter.
#pragma once

#include <verbena/deadline.hpp>

namespace verbena {

/// Ticks that pass in `time`. \thread any  \alloc none
[[nodiscard]] inline std::uint64_t ticks_in(std::chrono::nanoseconds time) noexcept {
  return static_cast<std::uint64_t>(static_cast<double>(time.count()) / 1000.0 * ticks_per_us());
}

/// Nanoseconds that `ticks` are. \thread any  \alloc none
[[nodiscard]] inline std::uint64_t ns_in(std::uint64_t ticks) noexcept {
  return static_cast<std::uint64_t>(static_cast<double>(ticks) * 1000.0 / ticks_per_us());
}

}  // namespace verbena
