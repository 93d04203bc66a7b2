#include "programs/statistics.hpp"

#include "programs/environment.hpp"

#include <fmt/core.h>

#include <string_view>

namespace verbena::programs {
namespace {

using kv::OperationKind;

std::string bytes(std::uint64_t n) { return human_bytes(static_cast<double>(n)); }

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string store_text(const kv::ServerStatistics& s) {
  std::string text = fmt::format("items {}, of {} at most, index {:.1f} % full, last version {}\n", s.items,
                                 s.max_items, 100 * share(s.items, s.index_entries), s.last_version);
  text += fmt::format("memory {} used of {}, {} resting, {} in {} leases\n", bytes(s.used_bytes),
                      bytes(s.capacity_bytes), bytes(s.resting_bytes), bytes(s.lease_bytes), s.leases);
  return text + fmt::format("clients {} now, {} lost, {} refused; {} session{} at {} worker{}\n", s.clients,
                            s.clients_lost, s.clients_refused, s.sessions, s.sessions == 1 ? "" : "s", s.workers,
                            s.workers == 1 ? "" : "s");
}

/// A line for each kind of operation that there was; `rate` heads the second column.
template <class Of>
std::string times_text(const kv::ServerStatistics& s, std::string_view rate, Of&& of) {
  std::string text =
      fmt::format("{:12}{:>14}{:>11}{:>11}{:>11}{:>11}{:>11}\n", "times", rate, "timed", "p50", "p99", "p99.9", "mean");
  const std::size_t head = text.size();
  for (std::size_t kind = 0; kind < kv::kOperations; ++kind) {
    const kv::OperationStatistics& operation = s.operations[kind];
    if (operation.requests == 0) continue;
    const kv::LatencyHistogram& times = operation.latency;
    const auto time = [&](double ns) { return times.count() == 0 ? "-" : human_time(ns); };
    text += fmt::format("  {:10}{:>14}{:>11}{:>11}{:>11}{:>11}{:>11}\n", to_string(static_cast<OperationKind>(kind)),
                        of(operation.requests), times.count(), time(times.percentile_ns(50)),
                        time(times.percentile_ns(99)), time(times.percentile_ns(99.9)), time(times.mean_ns()));
  }
  return text.size() == head ? std::string() : text;
}

std::string classes_text(const kv::ServerStatistics& s) {
  std::string text =
      fmt::format("{:12}{:>14}{:>14}{:>11}{:>14}\n", "blocks to", "used", "of bytes", "free", "of bytes");
  for (std::size_t i = 0; i < kv::kMemoryClasses; ++i) {
    if ((s.memory[i].used | s.memory[i].free) == 0) continue;
    const kv::MemoryClass& blocks = s.memory[i];
    text += fmt::format("  {:10}{:>14}{:>14}{:>11}{:>14}\n", bytes(kv::block_bytes_of(i)), blocks.used,
                        bytes(blocks.used_bytes), blocks.free, bytes(blocks.free_bytes));
  }
  return text;
}

std::string operation_json(OperationKind kind, const kv::OperationStatistics& operation) {
  const kv::LatencyHistogram& times = operation.latency;
  return fmt::format(R"({}:{{"requests":{},"timed":{},"p50_ns":{:.1f},"p99_ns":{:.1f},"p99_9_ns":{:.1f},)"
                     R"("mean_ns":{:.1f}}})",
                     json_string(to_string(kind)), operation.requests, times.count(), times.percentile_ns(50),
                     times.percentile_ns(99), times.percentile_ns(99.9), times.mean_ns());
}

}  // namespace

std::string statistics_text(const kv::ServerStatistics& s) {
  return store_text(s) +
         fmt::format("operations: {} put, {} get ({} hits), {} cas, {} del, {} failed\n", s.puts, s.gets, s.hits,
                     s.compare_and_swaps, s.erases, s.failures) +
         times_text(s, "requests", [](std::uint64_t requests) { return fmt::format("{}", requests); }) +
         classes_text(s);
}

std::string interval_text(const kv::ServerStatistics& before, const kv::ServerStatistics& after, double seconds) {
  kv::ServerStatistics between = after;
  for (std::size_t kind = 0; kind < kv::kOperations; ++kind) {
    kv::OperationStatistics& to = between.operations[kind];
    const kv::OperationStatistics& from = before.operations[kind];
    to.requests -= from.requests;
    to.latency.sum_ns -= from.latency.sum_ns;
    for (std::size_t i = 0; i < kv::LatencyHistogram::kBuckets; ++i) to.latency.counts[i] -= from.latency.counts[i];
  }
  return store_text(after) + times_text(between, "per second", [&](std::uint64_t requests) {
           return fmt::format("{:.0f}", static_cast<double>(requests) / seconds);
         });
}

std::string statistics_json(const kv::ServerStatistics& s) {
  std::string text = fmt::format(
      R"({{"items":{},"cells":{},"max_items":{},"index_entries":{},"last_version":{},"used_bytes":{},)"
      R"("capacity_bytes":{},)"
      R"("resting_bytes":{},"leases":{},"lease_bytes":{},"adoptions":{},"clients":{},"clients_lost":{},)"
      R"("clients_refused":{},)"
      R"("sessions":{},"workers":{},"puts":{},"gets":{},"hits":{},"erases":{},"compare_and_swaps":{},"failures":{},)",
      s.items, s.cells, s.max_items, s.index_entries, s.last_version, s.used_bytes, s.capacity_bytes, s.resting_bytes,
      s.leases, s.lease_bytes, s.adoptions, s.clients, s.clients_lost, s.clients_refused, s.sessions, s.workers, s.puts,
      s.gets, s.hits, s.erases, s.compare_and_swaps, s.failures);
  text += "\"operations\":{";
  for (std::size_t kind = 0; kind < kv::kOperations; ++kind)
    text += (kind == 0 ? "" : ",") + operation_json(static_cast<OperationKind>(kind), s.operations[kind]);
  text += "},\"memory\":[";
  bool is_first = true;
  for (std::size_t i = 0; i < kv::kMemoryClasses; ++i) {
    if ((s.memory[i].used | s.memory[i].free) == 0) continue;
    const kv::MemoryClass& blocks = s.memory[i];
    text += fmt::format(R"({}{{"block_bytes":{},"used":{},"used_bytes":{},"free":{},"free_bytes":{}}})",
                        is_first ? "" : ",", kv::block_bytes_of(i), blocks.used, blocks.used_bytes, blocks.free,
                        blocks.free_bytes);
    is_first = false;
  }
  return text + "]}\n";
}

}  // namespace verbena::programs
