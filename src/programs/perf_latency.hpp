// Latencies as verbena-perf measures and prints them.
#pragma once

#include "programs/histogram.hpp"
#include "programs/json.hpp"

#include <verbena/deadline.hpp>
#include <verbena/status.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace verbena::programs {

/// A latency is recorded in sixteenths of a tick: some operations take few ticks.
inline constexpr std::uint64_t kPerfTick = 16;

/// What was recorded, and what of. A view.
struct PerfLatency {
  const Histogram& ticks;  ///< In units of kPerfTick.
  bool one_way = false;    ///< What was recorded are round trips, and what is told is half of each.
  [[nodiscard]] double ns(double recorded) const noexcept;
  [[nodiscard]] double percentile_ns(double percent) const noexcept;
};

/// One line of percentiles, and a histogram. `meaning`: from when until when.
[[nodiscard]] std::string latency_text(const PerfLatency& latency, const char* meaning);
/// null when nothing was recorded.
[[nodiscard]] Json latency_json(const PerfLatency& latency);
/// What reading the clock takes. \thread any
[[nodiscard]] double clock_reading_ns() noexcept;
/// "each latency", or in how many together the reading of the clock is.
[[nodiscard]] std::string clock_text(std::uint64_t clock_every);

/// Calls `call` so many times, and records how long: one reading of the clock a group of `clock_every` calls, which
/// ends one and begins the next. What it came to is noted, and recorded some groups later, outside of what is timed: a
/// store to a bucket that is not in the cache would delay the next call's stores, which other cores see in order.
/// `before` is called before each group, untimed; true: it took time. Ends early with what is not kOk.
template <class Before, class Call>
[[nodiscard]] Status time_calls(Histogram& ticks, std::uint64_t count, std::uint64_t clock_every, Before&& before,
                                Call&& call) noexcept {
  std::array<std::uint64_t, 64> noted;
  std::size_t notes = 0;
  std::uint64_t group = clock_every;
  const auto record_noted = [&]() noexcept {
    for (std::size_t i = 0; i < notes; ++i) ticks.record(noted[i] * kPerfTick / group);
    notes = 0;
  };
  std::uint64_t start = ticks_now();
  for (std::uint64_t left = count; left != 0; left -= group) {
    if (left < group) {  // The last.
      record_noted();
      group = left;
      start = ticks_now();
    }
    if (before()) start = ticks_now();
    for (std::uint64_t i = 0; i < group; ++i)
      if (const Status status = call(); status != Status::kOk) return status;
    const std::uint64_t now = ticks_now();
    noted[notes++] = now - start;
    start = now;
    if (notes == noted.size()) {
      record_noted();
      start = ticks_now();
    }
  }
  record_noted();
  return Status::kOk;
}

}  // namespace verbena::programs
