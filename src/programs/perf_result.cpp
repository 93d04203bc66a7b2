#include "programs/environment.hpp"
#include "programs/files.hpp"
#include "programs/json.hpp"
#include "programs/perf.hpp"

#include <verbena/deadline.hpp>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>

namespace verbena::programs {
namespace {

const char* meaning(const PerfResult& result) noexcept {
  if (result.arguments.test == PerfTest::kWake) return "from the signal until the sleeper is awake";
  switch (result.facts().pace) {
    case PerfPace::kCall: return "from call to return";
    case PerfPace::kPingPong: return "one way, half of a round trip";
    case PerfPace::kPipelined: return "from start to completion, one in 32";
    case PerfPace::kStream: return "not measured: nothing tells when each has arrived";
  }
  return "";
}

std::string rate_text(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  std::string text = fmt::format("  bandwidth: {}/s, {:.0f} operations/s", human_bytes(result.bytes_per_s()),
                                 result.operations_per_s());
  if (result.facts().pipelined()) text += fmt::format(", {} in flight", a.depth);
  if (result.memory_bytes_per_s > 0)
    text += fmt::format("; through memory {}/s", human_bytes(result.memory_bytes_per_s));
  return text + '\n';
}

std::string cpus_text(const PerfResult& result) {
  return result.cpus.empty() ? "on any cpu" : fmt::format("on cpu {}", fmt::join(result.cpus, ", "));
}

}  // namespace

double PerfResult::operations_per_s() const noexcept {
  return static_cast<double>(operations) / std::max(seconds, 1e-9);
}
double PerfResult::bytes_per_s() const noexcept { return operations_per_s() * static_cast<double>(bytes); }

const char* explain(perf_wire::Serving serving) noexcept {
  return serving == perf_wire::Serving::kThread ? "a thread for each connection receives and answers"
                                                : "a handler answers, in the listener's thread";
}

// --- text

std::string perf_announcement(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  std::string text = fmt::format("verbena-perf: {} of {} B", result.facts().name, a.sizes.front());
  if (a.sizes.size() > 1) text += fmt::format(" to {} B", a.sizes.back());
  text += fmt::format(", {} iterations after {} to warm up", a.iterations, a.warm_up);
  if (result.facts().pipelined()) text += fmt::format(", depth {}", a.depth);
  if (a.all_connections() > 1) text += fmt::format(", {} threads of {} connections", a.threads, a.connections);
  if (a.idle_us != 0) text += fmt::format(", after {} us of silence each", a.idle_us);
  if (!result.facts().has_peer()) return text + '\n';
  return text + fmt::format(", to {} by {}\n", endpoint(a.where.address, a.where.port), result.nic);
}

std::string perf_configuration(const PerfResult& result) {
  std::string text = result.facts().has_peer() ? fmt::format("  by {}: ", result.nic) : "  ";
  text += fmt::format("{}, {}", result.path, cpus_text(result));
  if (result.facts().keeps_server_busy()) text += fmt::format("; {}", explain(result.serving));
  return text + fmt::format("; reading the clock is {:.0f} ns, in {}\n  {}\n", result.clock_ns,
                            clock_text(result.arguments.clock_every), environment_text(result.environment));
}

std::string perf_text(const PerfResult& result) {
  std::string text;
  if (result.ticks.count() != 0) text += latency_text(result.latency(), meaning(result));
  if (!result.facts().ping_pong()) text += rate_text(result);
  if (result.facts().has_peer()) text += fmt::format("  server: {:.2f} % of a core\n", result.server_percent);
  if (result.other_runs != 0)
    text +=
        fmt::format("  the server served {} other runs meanwhile, which these figures include\n", result.other_runs);
  return text + perf_configuration(result);
}

std::string perf_table_head(const PerfResult& result) {
  return fmt::format("  latency is {}\n  {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>14} {:>12}\n", meaning(result),
                     "bytes", "median", "90 %", "99 %", "99.9 %", "max", "operations/s", "bandwidth");
}

std::string perf_table_row(const PerfResult& result) {
  std::string text = fmt::format("  {:>10}", result.bytes);
  for (const double percent : {50.0, 90.0, 99.0, 99.9, 100.0})
    text +=
        fmt::format(" {:>10}", result.ticks.count() == 0 ? "-" : human_time(result.latency().percentile_ns(percent)));
  return text + fmt::format(" {:>14.0f} {:>10}/s\n", result.operations_per_s(), human_bytes(result.bytes_per_s()));
}

// --- JSON

std::string perf_json(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  return json_line("test", result.facts().name, "endpoint", endpoint(a.where.address, a.where.port), "bytes",
                   result.bytes, "iterations", a.iterations, "warm_up", a.warm_up, "in_flight", a.depth, "threads",
                   a.threads, "connections", a.connections, "idle_us", a.idle_us, "clock_every", a.clock_every,
                   "served_by", to_string(result.serving), "nic", result.nic, "path", result.path, "cpu", a.cpu, "cpus",
                   json_array(result.cpus, std::identity()), "latency", latency_json(result.latency()), "clock_ns",
                   Fixed{result.clock_ns, 1}, "seconds", Fixed{result.seconds, 6}, "operations", result.operations,
                   "operations_per_s", Fixed{result.operations_per_s(), 1}, "bytes_per_s",
                   Fixed{result.bytes_per_s(), 0}, "memory_bytes_per_s", Fixed{result.memory_bytes_per_s, 0},
                   "server_percent", Fixed{result.server_percent, 3}, "other_runs", result.other_runs, "environment",
                   environment_json(result.environment));
}

}  // namespace verbena::programs
