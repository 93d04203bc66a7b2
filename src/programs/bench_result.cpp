#include "programs/bench_result.hpp"

#include "programs/environment.hpp"
#include "programs/json.hpp"

#include <verbena/deadline.hpp>

#include <fmt/core.h>

namespace verbena::programs {
namespace {

double ns_of(std::uint64_t ticks) noexcept { return static_cast<double>(ticks) / ticks_per_us() * 1e3; }
double ratio(double a, double b) noexcept { return b > 0 ? a / b : 0; }

template <class Of>
double median_of(const BenchResult& result, Of&& of) {
  std::vector<double> values;
  for (const BenchRound& round : result.rounds) {
    if (const double value = of(round); value > 0) values.push_back(value);
  }
  return median(std::move(values));
}

std::string latency_text(const char* name, const Histogram& histogram, double lines) {
  std::string text =
      fmt::format("  {}  {} operations, p50 {}", name, histogram.count(), human_time(ns_of(histogram.percentile(50))));
  if (lines > 0) text += fmt::format(" ({:.1f} cache-line transfers)", lines);
  return text + fmt::format(", p99 {}, p99.9 {}, max {}\n", human_time(ns_of(histogram.percentile(99))),
                            human_time(ns_of(histogram.percentile(99.9))), human_time(ns_of(histogram.max())));
}

std::string failures_text(const BenchResult& result) {
  std::string text;
  for (std::size_t i = 0; i < result.failures.size(); ++i) {
    if (result.failures[i] == 0) continue;
    text += fmt::format("  failed: {} operations with \"{}\"\n", result.failures[i], to_string(static_cast<Status>(i)));
  }
  return text;
}

std::string memcpy_text(const BenchSummary& summary) {
  if (summary.memcpy_cached <= 0) return {};
  std::string text = fmt::format("  memcpy of such blocks {}/s in caches, {}/s through memory",
                                 human_bytes(summary.memcpy_cached), human_bytes(summary.memcpy_memory));
  const auto beside = [&](const char* name, double rate) {
    if (rate <= 0) return;
    text += fmt::format("; {} {}/s, {:.2f} and {:.2f} of it", name, human_bytes(rate),
                        ratio(rate, summary.memcpy_cached), ratio(rate, summary.memcpy_memory));
  };
  beside("get", summary.get_bytes_per_s);
  beside("put", summary.put_bytes_per_s);
  return text + '\n';
}

std::string line_text(const BenchResult& result, const BenchSummary& summary) {
  if (!result.line) return fmt::format("  cache-line transfer: not measured: {}\n", result.line_problem);
  return fmt::format(
      "  cache-line transfer: {:.1f} ns one way between cpu {} and cpu {}, measured before and after each of {} "
      "rounds\n",
      summary.line_ns, result.line->first_cpu, result.line->second_cpu, result.rounds.size());
}

Json latency_json(const Histogram& histogram, double lines, double bytes_per_s) {
  const auto percentile = [&](double percent) { return Fixed{ns_of(histogram.percentile(percent)), 1}; };
  return json_object("count", histogram.count(), "p50_ns", percentile(50), "p99_ns", percentile(99), "p99_9_ns",
                     percentile(99.9), "max_ns", percentile(100), "mean_ns",
                     Fixed{histogram.mean() / ticks_per_us() * 1e3, 1}, "p50_lines", Fixed{lines, 3}, "bytes_per_s",
                     Fixed{bytes_per_s, 0});
}

Json failures_json(const BenchResult& result) {
  Json failures = Json::object();
  for (std::size_t i = 0; i < result.failures.size(); ++i) {
    if (result.failures[i] != 0) failures[to_string(static_cast<Status>(i))] = result.failures[i];
  }
  return failures;
}

}  // namespace

BenchSummary summarize(const BenchResult& result) {
  BenchSummary summary;
  summary.line_ns = median_of(result, [](const BenchRound& r) { return r.line_ns; });
  summary.operations_per_s = median_of(result, [](const BenchRound& r) { return r.operations_per_s; });
  summary.bytes_per_s = summary.operations_per_s * static_cast<double>(result.arguments.value_bytes);
  summary.get_lines = median_of(result, [](const BenchRound& r) { return ratio(r.get_p50_ns, r.line_ns); });
  summary.put_lines = median_of(result, [](const BenchRound& r) { return ratio(r.put_p50_ns, r.line_ns); });
  summary.memcpy_cached = median_of(result, [](const BenchRound& r) { return r.memcpy_cached; });
  summary.memcpy_memory = median_of(result, [](const BenchRound& r) { return r.memcpy_memory; });
  summary.memcpy_get = median_of(result, [](const BenchRound& r) { return r.memcpy_get; });
  summary.memcpy_put = median_of(result, [](const BenchRound& r) { return r.memcpy_put; });
  if (result.arguments.depth == 1) {
    const auto rate = [&](const Histogram& histogram) {
      // By the median, like memcpy's: on a shared machine a mean shows what else was running.
      return ratio(static_cast<double>(result.arguments.value_bytes) * 1e9, ns_of(histogram.percentile(50)));
    };
    summary.get_bytes_per_s = rate(result.gets);
    summary.put_bytes_per_s = rate(result.puts);
  }
  return summary;
}

std::string bench_text(const BenchResult& result) {
  const BenchArguments& a = result.arguments;
  const BenchSummary summary = summarize(result);
  std::string text = fmt::format(
      "bench of {}: {} keys of {} B, values of {} B, {} % reads, depth {}, wait {}, {} rounds\n", result.endpoint,
      a.keys, a.key_bytes, a.value_bytes, a.read_percent, a.depth, to_string(result.wait), result.rounds.size());
  text += fmt::format("  all  {} operations in {}, {:.0f} ops/s, {}/s\n", result.operations(),
                      human_time(result.seconds * 1e9), summary.operations_per_s, human_bytes(summary.bytes_per_s));
  if (a.batch > 1) text += fmt::format("  {} keys in a call\n", a.batch);
  if (a.clock_every > 1) text += fmt::format("  the clock is read every {} operations\n", a.clock_every);
  if (result.gets.count() != 0) {
    text += latency_text("get", result.gets, summary.get_lines);
    text +=
        fmt::format("  lookups {}: {} by known locations, {} through the index, {} by message\n", to_string(a.lookup),
                    result.lookups.by_location, result.lookups.by_index, result.lookups.by_message);
  }
  if (result.puts.count() != 0) text += latency_text("put", result.puts, summary.put_lines);
  if (result.item_bytes > 0) {
    text += fmt::format("  memory of the server: {:.1f} B an item, {:.1f} of them besides key and value\n",
                        result.item_bytes, result.overhead_bytes());
  }
  text += failures_text(result) + line_text(result, summary) + memcpy_text(summary);
  text += fmt::format("  {}\n", environment_text(result.environment));
  return text + fmt::format("  server: {}\n", result.server);
}

std::string bench_json(const BenchResult& result) {
  const BenchArguments& a = result.arguments;
  const BenchSummary s = summarize(result);
  const kv::LookupCounters& lookups = result.lookups;
  Json line, memcpy;
  if (result.line) {
    const Json cpus = Json::array({result.line->first_cpu, result.line->second_cpu});
    line = json_object("one_way_ns", Fixed{s.line_ns, 2}, "cpus", cpus);
  }
  if (s.memcpy_cached > 0) {
    memcpy =
        json_object("cached_bytes_per_s", Fixed{s.memcpy_cached, 0}, "memory_bytes_per_s", Fixed{s.memcpy_memory, 0},
                    "get_bytes_per_s", Fixed{s.memcpy_get, 0}, "put_bytes_per_s", Fixed{s.memcpy_put, 0});
  }
  const auto of_an_item = [&](double bytes) {
    return result.item_bytes > 0 ? std::optional(Fixed{bytes, 2}) : std::nullopt;
  };
  Json environment = environment_json(result.environment);
  environment["server"] = result.server;
  return json_line("endpoint", result.endpoint, "keys", a.keys, "key_bytes", a.key_bytes, "value_bytes", a.value_bytes,
                   "read_percent", a.read_percent, "depth", a.depth, "batch", a.batch, "lookup", to_string(a.lookup),
                   "clock_every", a.clock_every, "wait", to_string(result.wait), "rounds", result.rounds.size(),
                   "seconds", Fixed{result.seconds, 6}, "operations", result.operations(), "ops_per_s",
                   Fixed{s.operations_per_s, 1}, "bytes_per_s", Fixed{s.bytes_per_s, 0}, "failures",
                   failures_json(result), "get", latency_json(result.gets, s.get_lines, s.get_bytes_per_s), "put",
                   latency_json(result.puts, s.put_lines, s.put_bytes_per_s), "lookups",
                   json_object("by_location", lookups.by_location, "by_index", lookups.by_index, "by_message",
                               lookups.by_message, "stale", lookups.stale, "retries", lookups.retries),
                   "line", line, "memcpy", memcpy, "item_bytes", of_an_item(result.item_bytes), "overhead_bytes",
                   of_an_item(result.overhead_bytes()), "environment", environment);
}

}  // namespace verbena::programs
