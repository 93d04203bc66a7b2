#include "programs/perf.hpp"
#include "programs/perf_connection.hpp"
#include "programs/values.hpp"

#include <verbena/deadline.hpp>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace verbena::programs {
namespace {

const char* meaning(const PerfTestFacts& facts) noexcept {
  if (facts.test == PerfTest::kWake) return "from the signal until the sleeper is awake";
  switch (facts.pace) {
    case PerfPace::kCall: return "from call to return";
    case PerfPace::kPingPong: return "one way, half of a round trip";
    case PerfPace::kPipelined: return "from start to completion, of one in 32";
  }
  return "";
}

/// Counts of work for each operation: what a figure is made of.
std::string work_text(const PerfResult& result) {
  const engine::Counters& w = result.work;
  const auto each = [&](std::uint64_t count) {
    return static_cast<double>(count) / static_cast<double>(result.operations);
  };
  return fmt::format(
      "{:.2f} work requests ({:.2f} inline, {:.2f} direct), {:.2f} doorbells, {:.2f} completions, {:.2f} empty polls, "
      "{} sleeps",
      each(w.work_requests), each(w.inline_sends), each(w.direct), each(w.doorbells), each(w.completions),
      each(w.empty_polls), w.sleeps);
}

std::string latency_text(const PerfResult& result) {
  std::string text = fmt::format("  latency ({}): median {}, mean {}", meaning(result.facts()),
                                 human_time(result.percentile_ns(50)), human_time(result.ns(result.ticks.mean())));
  for (const double percent : {90.0, 99.0, 99.9})
    text += fmt::format(", {:g} % {}", percent, human_time(result.percentile_ns(percent)));
  return text + fmt::format(", max {}\n", human_time(result.ns(static_cast<double>(result.ticks.max()))));
}

/// Latencies in lines of equal ratio, from the least to the 99.9th percentile; what is above that is the last one's.
std::string histogram_text(const PerfResult& result) {
  constexpr std::size_t kLines = 12;
  constexpr int kColumns = 50;
  const Histogram& ticks = result.ticks;
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
        "  {:>9} |{:<{}}| {:6.2f} %\n", human_time(result.ns(least * std::pow(step, static_cast<double>(i)))),
        std::string(static_cast<std::size_t>(bar), '#'), kColumns, count / static_cast<double>(ticks.count()) * 100);
  }
  return text;
}

std::string rate_text(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  std::string text = fmt::format("  bandwidth: {}/s, {:.0f} operations/s", human_bytes(result.bytes_per_s()),
                                 result.operations_per_s());
  if (result.facts().pipelined()) text += fmt::format(", {} in flight, {} a doorbell", a.depth, a.batch);
  if (result.memory_bytes_per_s > 0)
    text += fmt::format("; through memory {}/s", human_bytes(result.memory_bytes_per_s));
  return text + '\n';
}

std::string idle_text(const PerfIdle& idle) {
  return fmt::format(
      "  waking the receiver: {} of a round trip more than with one that spins ({} to {}; 99 %: {}); one "
      "to which nothing comes uses {:.2f} % of a core, its process {:.2f} %\n",
      human_time(idle.added_ns()), human_time(idle.reference_ns), human_time(idle.round_trip_ns),
      human_time(idle.p99_added_ns), idle.thread_percent, idle.process_percent);
}

std::string cpus_text(const PerfResult& result) {
  return result.cpus.empty() ? "on any cpu" : fmt::format("on cpu {}", fmt::join(result.cpus, ", "));
}

}  // namespace

double PerfResult::ns(double recorded) const noexcept {
  return recorded / kPerfTick / ticks_per_us() * 1e3 / (facts().ping_pong() ? 2 : 1);
}
double PerfResult::percentile_ns(double percent) const noexcept {
  return ns(static_cast<double>(ticks.percentile(percent)));
}
double PerfResult::operations_per_s() const noexcept {
  return static_cast<double>(operations) / std::max(seconds, 1e-9);
}
double PerfResult::bytes_per_s() const noexcept { return operations_per_s() * static_cast<double>(bytes); }

// --- text

std::string perf_announcement(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  std::string text = fmt::format("verbena-perf: {} of {} B", to_string(a.test), a.sizes.front());
  if (a.sizes.size() > 1) text += fmt::format(" to {} B", a.sizes.back());
  text += fmt::format(", {} iterations after {} to warm up", a.iterations, a.warm_up);
  if (result.facts().pipelined()) text += fmt::format(", depth {}, batches of {}", a.depth, a.batch);
  if (a.threads * a.connections > 1) text += fmt::format(", {} threads of {} connections", a.threads, a.connections);
  if (a.idle_us != 0) text += fmt::format(", after {} us of silence each", a.idle_us);
  if (result.facts().by == PerfBy::kNothing) return text + '\n';
  return text + fmt::format(", to {} by {}\n", endpoint(a.where.address, a.where.port), result.nic);
}

std::string perf_configuration(const PerfResult& result) {
  std::string text;
  if (result.facts().by == PerfBy::kNothing) {
    text = fmt::format("  {}, {}", result.path, cpus_text(result));
  } else {
    text = fmt::format("  by {}: {}; {}, {}", result.nic, result.path, to_string(result.arguments.wait),
                       cpus_text(result));
  }
  return text + fmt::format("; reading the clock is {:.0f} ns, in {}\n  {}\n", result.clock_ns,
                            result.arguments.clock_every == 1
                                ? std::string("each latency")
                                : fmt::format("{} latencies together", result.arguments.clock_every),
                            environment_text(result.environment));
}

std::string perf_text(const PerfResult& result) {
  std::string text;
  if (result.ticks.count() != 0) text += latency_text(result) + histogram_text(result);
  if (result.facts().pipelined() || result.facts().pace == PerfPace::kCall) text += rate_text(result);
  if (result.idle) text += idle_text(*result.idle);
  if (result.facts().by != PerfBy::kNothing) text += fmt::format("  each operation: {}\n", work_text(result));
  return text + perf_configuration(result);
}

std::string perf_table_head(const PerfTestFacts& facts) {
  return fmt::format("  latency is {}\n  {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>14} {:>12}\n", meaning(facts),
                     "bytes", "median", "90 %", "99 %", "99.9 %", "max", "operations/s", "bandwidth");
}

std::string perf_table_row(const PerfResult& result) {
  std::string text = fmt::format("  {:>10}", result.bytes);
  for (const double percent : {50.0, 90.0, 99.0, 99.9, 100.0})
    text += fmt::format(" {:>10}", result.ticks.count() == 0 ? "-" : human_time(result.percentile_ns(percent)));
  return text + fmt::format(" {:>14.0f} {:>10}/s\n", result.operations_per_s(), human_bytes(result.bytes_per_s()));
}

// --- JSON

namespace {

std::string latency_json(const PerfResult& result) {
  if (result.ticks.count() == 0) return "null";
  std::string text =
      fmt::format(R"({{"one_way":{},"samples":{},"min_ns":{:.1f},"median_ns":{:.1f},"mean_ns":{:.1f},"p90_ns":{:.1f},)"
                  R"("p99_ns":{:.1f},"p99_9_ns":{:.1f},"max_ns":{:.1f},"histogram":[)",
                  result.facts().ping_pong(), result.ticks.count(), result.percentile_ns(0), result.percentile_ns(50),
                  result.ns(result.ticks.mean()), result.percentile_ns(90), result.percentile_ns(99),
                  result.percentile_ns(99.9), result.ns(static_cast<double>(result.ticks.max())));
  const char* separator = "";
  result.ticks.for_each([&](std::uint64_t value, std::uint64_t count) {
    text += fmt::format("{}[{:.1f},{}]", separator, result.ns(static_cast<double>(value)), count);
    separator = ",";
  });
  return text + "]}";
}

std::string idle_json(const PerfResult& result) {
  if (!result.idle) return "null";
  const PerfIdle& idle = *result.idle;
  return fmt::format(R"({{"idle_us":{},"reference_ns":{:.1f},"round_trip_ns":{:.1f},"added_ns":{:.1f},)"
                     R"("added_p99_ns":{:.1f},"thread_percent":{:.3f},"process_percent":{:.3f},"sleeps":{},)"
                     R"("interval_ms":{}}})",
                     result.arguments.idle_us, idle.reference_ns, idle.round_trip_ns, idle.added_ns(),
                     idle.p99_added_ns, idle.thread_percent, idle.process_percent, idle.sleeps, idle.interval.count());
}

}  // namespace

std::string perf_json(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  const engine::Counters& w = result.work;
  std::string text = fmt::format(
      R"({{"test":"{}","endpoint":{},"bytes":{},"iterations":{},"warm_up":{},"in_flight":{},"batch":{},"threads":{},)"
      R"("connections":{},"wait":"{}","clock_every":{},"nic":{},"path":{},"cpu":{},"cpus":[{}],)",
      to_string(a.test), json_string(endpoint(a.where.address, a.where.port)), result.bytes, a.iterations, a.warm_up,
      a.depth, a.batch, a.threads, a.connections, to_string(a.wait), a.clock_every, json_string(result.nic),
      json_string(result.path), a.where.cpu ? std::to_string(*a.where.cpu) : "null", fmt::join(result.cpus, ","));
  text += fmt::format(R"("latency":{},"idle":{},"clock_ns":{:.1f},"seconds":{:.6f},"operations":{},)",
                      latency_json(result), idle_json(result), result.clock_ns, result.seconds, result.operations);
  text += fmt::format(R"("operations_per_s":{:.1f},"bytes_per_s":{:.0f},"memory_bytes_per_s":{:.0f},)",
                      result.operations_per_s(), result.bytes_per_s(), result.memory_bytes_per_s);
  text +=
      fmt::format(R"("work":{{"requests":{},"direct":{},"doorbells":{},"inline":{},"completions":{},"empty_polls":{},)"
                  R"("sleeps":{}}},)",
                  w.work_requests, w.direct, w.doorbells, w.inline_sends, w.completions, w.empty_polls, w.sleeps);
  return text + fmt::format("\"environment\":{{{}}}}}\n", environment_members(result.environment));
}

// --- CSV

namespace {

/// In double quotes, with those inside doubled.
std::string csv_field(std::string_view text) {
  std::string field = "\"";
  for (const char c : text) {
    if (c == '"') field += '"';
    field += c;
  }
  return field + '"';
}

}  // namespace

std::string perf_csv_head() {
  return "test,bytes,iterations,warm_up,in_flight,batch,threads,connections,wait,one_way,samples,median_ns,mean_ns,"
         "p90_ns,p99_ns,p99_9_ns,max_ns,clock_ns,seconds,operations_per_s,bytes_per_s,nic,path,cores,cpu_model,kernel,"
         "build\n";
}

std::string perf_csv_row(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  std::string text = fmt::format("{},{},{},{},{},{},{},{},{},{},{}", to_string(a.test), result.bytes, a.iterations,
                                 a.warm_up, a.depth, a.batch, a.threads, a.connections, to_string(a.wait),
                                 result.facts().ping_pong(), result.ticks.count());
  const bool has_latency = result.ticks.count() != 0;
  const auto add_ns = [&](double ns) { text += has_latency ? fmt::format(",{:.1f}", ns) : ","; };
  add_ns(result.percentile_ns(50));
  add_ns(result.ns(result.ticks.mean()));
  for (const double percent : {90.0, 99.0, 99.9, 100.0}) add_ns(result.percentile_ns(percent));
  const Environment& e = result.environment;
  return text + fmt::format(",{:.1f},{:.6f},{:.1f},{:.0f},{},{},{},{},{},{}\n", result.clock_ns, result.seconds,
                            result.operations_per_s(), result.bytes_per_s(), csv_field(result.nic),
                            csv_field(result.path), e.cores_online, csv_field(e.cpu_model), csv_field(e.kernel),
                            csv_field(e.build));
}

}  // namespace verbena::programs
