#include "programs/perf_latency.hpp"

#include "programs/environment.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace verbena::programs {
namespace {

/// Latencies in lines of equal ratio, from the least to the 99.9th percentile; the last line includes everything above.
std::string histogram_text(const PerfLatency& latency) {
  constexpr std::size_t kLines = 12;
  constexpr int kColumns = 50;
  const Histogram& ticks = latency.ticks;
  const auto least = static_cast<double>(std::max<std::uint64_t>(1, ticks.min()));
  const double most = std::max(static_cast<double>(ticks.percentile(99.9)), least * 1.1);
  const double step = std::pow(most / least, 1.0 / kLines);
  std::array<std::uint64_t, kLines> counts{};
  ticks.for_each([&](std::uint64_t value, std::uint64_t count) {
    const double line = std::log(std::max(static_cast<double>(value), least) / least) / std::log(step);
    counts[std::min(static_cast<std::size_t>(line), kLines - 1)] += count;
  });
  const auto highest = static_cast<double>(std::max<std::uint64_t>(1, *std::ranges::max_element(counts)));
  std::string text;
  for (std::size_t i = 0; i < kLines; ++i) {
    const auto count = static_cast<double>(counts[i]);
    const int bar = static_cast<int>(std::ceil(count / highest * kColumns));
    text += fmt::format(
        "  {:>9} |{:<{}}| {:6.2f} %\n", human_time(latency.ns(least * std::pow(step, static_cast<double>(i)))),
        std::string(static_cast<std::size_t>(bar), '#'), kColumns, count / static_cast<double>(ticks.count()) * 100);
  }
  return text;
}

}  // namespace

double PerfLatency::ns(double recorded) const noexcept {
  return recorded / kPerfTick / ticks_per_us() * 1e3 / (one_way ? 2 : 1);
}
double PerfLatency::percentile_ns(double percent) const noexcept {
  return ns(static_cast<double>(ticks.percentile(percent)));
}

std::string latency_text(const PerfLatency& latency, const char* meaning) {
  std::string text = fmt::format("  latency ({}): median {}, mean {}", meaning, human_time(latency.percentile_ns(50)),
                                 human_time(latency.ns(latency.ticks.mean())));
  for (const double percent : {90.0, 99.0, 99.9})
    text += fmt::format(", {:g} % {}", percent, human_time(latency.percentile_ns(percent)));
  text += fmt::format(", max {}\n", human_time(latency.ns(static_cast<double>(latency.ticks.max()))));
  return text + histogram_text(latency);
}

Json latency_json(const PerfLatency& latency) {
  if (latency.ticks.count() == 0) return {};
  Json histogram = Json::array();
  latency.ticks.for_each([&](std::uint64_t value, std::uint64_t count) {
    histogram.push_back(Json::array({json_of(Fixed{latency.ns(static_cast<double>(value)), 1}), count}));
  });
  const auto percentile = [&](double percent) { return Fixed{latency.percentile_ns(percent), 1}; };
  return json_object("one_way", latency.one_way, "samples", latency.ticks.count(), "min_ns", percentile(0), "median_ns",
                     percentile(50), "mean_ns", Fixed{latency.ns(latency.ticks.mean()), 1}, "p90_ns", percentile(90),
                     "p99_ns", percentile(99), "p99_9_ns", percentile(99.9), "max_ns", percentile(100), "histogram",
                     histogram);
}

double clock_reading_ns() noexcept {
  constexpr int kReadings = 1000;
  const std::uint64_t begin = ticks_now();
  std::uint64_t now = begin;
  for (int i = 0; i < kReadings; ++i) now = ticks_now();
  return static_cast<double>(now - begin) / kReadings / ticks_per_us() * 1e3;
}

std::string clock_text(std::uint64_t clock_every) {
  return clock_every == 1 ? "each latency" : fmt::format("{} latencies together", clock_every);
}

}  // namespace verbena::programs
