// Latencies of verbena-perf: how they are measured and printed.
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

/// A view of recorded latencies and their kind.
struct PerfLatency {
  const Histogram& ticks;  ///< In units of kPerfTick.
  bool one_way = false;    ///< Round trips were recorded; prints half of each.
  [[nodiscard]] double ns(double recorded) const noexcept;
  [[nodiscard]] double percentile_ns(double percent) const noexcept;
};

/// One line of percentiles, and a histogram. `meaning` says from when until when the latency runs.
[[nodiscard]] std::string latency_text(const PerfLatency& latency, const char* meaning);
/// null if nothing was recorded.
[[nodiscard]] Json latency_json(const PerfLatency& latency);
/// Time for one reading of the clock. \thread any
[[nodiscard]] double clock_reading_ns() noexcept;
/// "each latency", or how many latencies share one reading of the clock.
[[nodiscard]] std::string clock_text(std::uint64_t clock_every);

/// Calls `call` `count` times and records how long it takes. The clock is read once per group of `clock_every` calls; a
/// reading ends one group and begins the next. Times are noted first and recorded some groups later, outside the timed
/// part: a store to an uncached bucket would delay the next call's stores, which other cores see in order. `before` is
/// called before each group, untimed; true: it took time. Ends early when a call does not return kOk.
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
    if (left < group) {  // The last group.
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
