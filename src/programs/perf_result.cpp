#include "programs/perf.hpp"
#include "programs/values.hpp"

#include <verbena/deadline.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace verbena::programs {
namespace {

/// One way where the test is a ping-pong: half of the round trip.
double ns_of(const PerfResult& result, double ticks) noexcept {
  return ticks / ticks_per_us() * 1e3 / (is_ping_pong(result.arguments.test) ? 2 : 1);
}
double percentile_ns(const PerfResult& result, double percent) noexcept {
  return ns_of(result, static_cast<double>(result.ticks.percentile(percent)));
}
double operations_per_s(const PerfResult& result) noexcept {
  return static_cast<double>(result.arguments.iterations) / std::max(result.seconds, 1e-9);
}
double bytes_per_s(const PerfResult& result) noexcept {
  return operations_per_s(result) * static_cast<double>(result.arguments.bytes);
}

const char* meaning(PerfTest test) noexcept {
  if (is_ping_pong(test)) return "one way, half of a round trip";
  return test == PerfTest::kWriteBw ? "from start to completion" : "from call to return";
}

/// Counts of work for each operation: what a figure is made of.
std::string work_text(const PerfResult& result) {
  const engine::Counters& w = result.work;
  const auto each = [&](std::uint64_t count) {
    return static_cast<double>(count) / static_cast<double>(result.arguments.iterations);
  };
  return fmt::format("{:.2f} work requests ({:.2f} inline), {:.2f} completions, {:.2f} empty polls, {} sleeps",
                     each(w.work_requests), each(w.inline_sends), each(w.completions), each(w.empty_polls), w.sleeps);
}

}  // namespace

std::string perf_text(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  std::string text = fmt::format("  latency ({}): median {}, mean {}, 99 % {}, max {}\n", meaning(a.test),
                                 human_time(percentile_ns(result, 50)), human_time(ns_of(result, result.ticks.mean())),
                                 human_time(percentile_ns(result, 99)),
                                 human_time(ns_of(result, static_cast<double>(result.ticks.max()))));
  if (a.test == PerfTest::kWriteBw)
    text += fmt::format("  bandwidth: {}/s, {:.0f} operations/s, {} in flight\n", human_bytes(bytes_per_s(result)),
                        operations_per_s(result), a.in_flight);
  text += fmt::format("  each operation: {}\n", work_text(result));
  text += fmt::format("  by {}: {}; busy polling{}; reading the clock is {:.0f} ns of each latency\n", result.nic,
                      result.path, a.where.cpu ? fmt::format(" on cpu {}", *a.where.cpu) : std::string(", on any cpu"),
                      result.clock_ns);
  return text + fmt::format("  {}\n", environment_text(result.environment));
}

std::string perf_json(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  const engine::Counters& w = result.work;
  std::string text = fmt::format(
      R"({{"test":"{}","endpoint":{},"bytes":{},"iterations":{},"warm_up":{},"in_flight":{},"nic":{},"path":{},)"
      R"("cpu":{},)",
      to_string(a.test), json_string(endpoint(a.where.address, a.where.port)), a.bytes, a.iterations, a.warm_up,
      a.test == PerfTest::kWriteBw ? a.in_flight : 1, json_string(result.nic), json_string(result.path),
      a.where.cpu ? std::to_string(*a.where.cpu) : "null");
  text +=
      fmt::format(R"("latency":{{"one_way":{},"median_ns":{:.1f},"mean_ns":{:.1f},"p99_ns":{:.1f},"max_ns":{:.1f}}},)",
                  is_ping_pong(a.test), percentile_ns(result, 50), ns_of(result, result.ticks.mean()),
                  percentile_ns(result, 99), ns_of(result, static_cast<double>(result.ticks.max())));
  text += fmt::format(R"("clock_ns":{:.1f},"seconds":{:.6f},"operations_per_s":{:.1f},"bytes_per_s":{:.0f},)",
                      result.clock_ns, result.seconds, operations_per_s(result), bytes_per_s(result));
  text += fmt::format(
      R"("work":{{"requests":{},"doorbells":{},"inline":{},"completions":{},"empty_polls":{},"sleeps":{}}},)",
      w.work_requests, w.doorbells, w.inline_sends, w.completions, w.empty_polls, w.sleeps);
  return text + fmt::format("\"environment\":{{{}}}}}\n", environment_members(result.environment));
}

}  // namespace verbena::programs
