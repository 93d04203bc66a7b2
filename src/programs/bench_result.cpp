#include "programs/bench_result.hpp"

#include <verbena/deadline.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

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
  if (lines > 0) text += fmt::format(" ({:.1f} lines)", lines);
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
  if (!result.line) return fmt::format("  line: not measured: {}\n", result.line_problem);
  return fmt::format(
      "  line: {:.1f} ns one way between cpu {} and cpu {}, measured before and after each of {} rounds\n",
      summary.line_ns, result.line->first_cpu, result.line->second_cpu, result.rounds.size());
}

std::string latency_json(const Histogram& histogram, double lines, double bytes_per_s) {
  return fmt::format(
      R"({{"count":{},"p50_ns":{:.1f},"p99_ns":{:.1f},"p99_9_ns":{:.1f},"max_ns":{:.1f},"mean_ns":{:.1f},)"
      R"("p50_lines":{:.3f},"bytes_per_s":{:.0f}}})",
      histogram.count(), ns_of(histogram.percentile(50)), ns_of(histogram.percentile(99)),
      ns_of(histogram.percentile(99.9)), ns_of(histogram.max()), histogram.mean() / ticks_per_us() * 1e3, lines,
      bytes_per_s);
}

std::string failures_json(const BenchResult& result) {
  std::string text;
  for (std::size_t i = 0; i < result.failures.size(); ++i) {
    if (result.failures[i] == 0) continue;
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", json_string(to_string(static_cast<Status>(i))),
                        result.failures[i]);
  }
  return text;
}

std::string environment_json(const BenchResult& result) {
  return fmt::format(R"({{{},"server":{}}})", environment_members(result.environment), json_string(result.server));
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
      // By the median, as memcpy's: on a shared machine means tell what else was running.
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
  std::string text = fmt::format(
      R"({{"endpoint":{},"keys":{},"key_bytes":{},"value_bytes":{},"read_percent":{},"depth":{},"batch":{},)"
      R"("lookup":{},"clock_every":{},"wait":{},"rounds":{},)"
      R"("seconds":{:.6f},"operations":{},"ops_per_s":{:.1f},"bytes_per_s":{:.0f},"failures":{{{}}},)",
      json_string(result.endpoint), a.keys, a.key_bytes, a.value_bytes, a.read_percent, a.depth, a.batch,
      json_string(to_string(a.lookup)), a.clock_every, json_string(to_string(result.wait)), result.rounds.size(),
      result.seconds, result.operations(), s.operations_per_s, s.bytes_per_s, failures_json(result));
  text += fmt::format(R"("get":{},"put":{},)", latency_json(result.gets, s.get_lines, s.get_bytes_per_s),
                      latency_json(result.puts, s.put_lines, s.put_bytes_per_s));
  text += fmt::format(R"("lookups":{{"by_location":{},"by_index":{},"by_message":{},"stale":{},"retries":{}}},)",
                      result.lookups.by_location, result.lookups.by_index, result.lookups.by_message,
                      result.lookups.stale, result.lookups.retries);
  text += result.line ? fmt::format(R"("line":{{"one_way_ns":{:.2f},"cpus":[{},{}]}},)", s.line_ns,
                                    result.line->first_cpu, result.line->second_cpu)
                      : R"("line":null,)";
  text += s.memcpy_cached > 0 ? fmt::format(R"("memcpy":{{"cached_bytes_per_s":{:.0f},"memory_bytes_per_s":{:.0f},)"
                                            R"("get_bytes_per_s":{:.0f},"put_bytes_per_s":{:.0f}}},)",
                                            s.memcpy_cached, s.memcpy_memory, s.memcpy_get, s.memcpy_put)
                              : R"("memcpy":null,)";
  text += result.item_bytes > 0 ? fmt::format(R"("item_bytes":{:.2f},"overhead_bytes":{:.2f},)", result.item_bytes,
                                              result.overhead_bytes())
                                : R"("item_bytes":null,"overhead_bytes":null,)";
  return text + fmt::format("\"environment\":{}}}\n", environment_json(result));
}

}  // namespace verbena::programs
