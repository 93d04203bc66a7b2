#include "programs/statistics.hpp"

#include "programs/environment.hpp"
#include "programs/json.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace verbena::programs {
namespace {

using kv::OperationKind;

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string store_text(const kv::ServerStatistics& s) {
  std::string text = fmt::format("items {}, of {} at most, index {:.1f} % full, last version {}\n", s.items,
                                 s.max_items, 100 * share(s.items, s.index_entries), s.last_version);
  text += fmt::format("memory {} used of {}, {} in a grace period\n", human_bytes(s.used_bytes),
                      human_bytes(s.capacity_bytes), human_bytes(s.resting_bytes));
  return text + fmt::format("clients {} now, {} lost, {} refused; {} session{} at {} worker{}\n", s.clients,
                            s.clients_lost, s.clients_refused, s.sessions, s.sessions == 1 ? "" : "s", s.workers,
                            s.workers == 1 ? "" : "s");
}

/// One line for each kind of operation that occurred; `rate` heads the second column.
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
    text += fmt::format("  {:10}{:>14}{:>14}{:>11}{:>14}\n", human_bytes(kv::block_bytes_of(i)), blocks.used,
                        human_bytes(blocks.used_bytes), blocks.free, human_bytes(blocks.free_bytes));
  }
  return text;
}

Json operation_json(const kv::OperationStatistics& operation) {
  const kv::LatencyHistogram& times = operation.latency;
  const auto percentile = [&](double percent) { return Fixed{times.percentile_ns(percent), 1}; };
  return json_object("requests", operation.requests, "timed", times.count(), "p50_ns", percentile(50), "p99_ns",
                     percentile(99), "p99_9_ns", percentile(99.9), "mean_ns", Fixed{times.mean_ns(), 1});
}

// --- for Prometheus

/// The kind as a label's value, such as "large_get", which queries name.
std::string label_of(OperationKind kind) {
  std::string label = to_string(kind);
  std::ranges::replace(label, ' ', '_');
  return label;
}

class Exposition {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    append(text_, "# HELP verbena_kv_{} {}\n# TYPE verbena_kv_{} {}\n", name, help, name, type);
  }
  void sample(std::uint64_t value, std::string_view labels = {}) {
    labels.empty() ? append(text_, "verbena_kv_{} {}\n", name_, value)
                   : append(text_, "verbena_kv_{}{{{}}} {}\n", name_, labels, value);
  }
  void single(std::string_view name, std::string_view type, std::string_view help, std::uint64_t value) {
    family(name, type, help);
    sample(value);
  }
  void histogram(const kv::LatencyHistogram& times, std::string_view label);
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string_view name_;
};

/// Buckets end at powers of two of ns, like ours: 128 ns to 17 s. A time equal to a bound is in the next bucket.
constexpr unsigned kFirstBound = 7, kLastBound = 34;

void Exposition::histogram(const kv::LatencyHistogram& times, std::string_view label) {
  std::uint64_t below = 0;
  std::size_t bucket = 0;
  for (unsigned bound = kFirstBound; bound <= kLastBound; ++bound) {
    const std::uint64_t end = std::uint64_t{1} << bound;
    for (; bucket < kv::LatencyHistogram::kBuckets && kv::LatencyHistogram::lowest_ns(bucket) < end; ++bucket)
      below += times.counts[bucket];
    append(text_, "verbena_kv_{}_bucket{{{},le=\"{}\"}} {}\n", name_, label, static_cast<double>(end) / 1e9, below);
  }
  const std::uint64_t all = times.count();
  append(text_, "verbena_kv_{}_bucket{{{},le=\"+Inf\"}} {}\n", name_, label, all);
  append(text_, "verbena_kv_{}_sum{{{}}} {}\n", name_, label, static_cast<double>(times.sum_ns) / 1e9);
  append(text_, "verbena_kv_{}_count{{{}}} {}\n", name_, label, all);
}

void add_requests(Exposition& out, const std::vector<kv::ServerStatistics>& workers) {
  out.family("requests_total", "counter", "Requests by kind of operation and worker, including failed ones.");
  for (std::size_t kind = 0; kind < kv::kOperations; ++kind) {
    for (std::size_t worker = 0; worker < workers.size(); ++worker) {
      out.sample(workers[worker].operations[kind].requests,
                 fmt::format("operation=\"{}\",worker=\"{}\"", label_of(static_cast<OperationKind>(kind)), worker));
    }
  }
}

void add_times(Exposition& out, const kv::ServerStatistics& all) {
  out.family(
      "service_seconds", "histogram",
      "Time from a request's arrival at its worker to its reply, for about one request in 16 and every large put.");
  for (std::size_t kind = 0; kind < kv::kOperations; ++kind) {
    out.histogram(all.operations[kind].latency,
                  fmt::format("operation=\"{}\"", label_of(static_cast<OperationKind>(kind))));
  }
}

void add_memory(Exposition& out, const kv::ServerStatistics& all) {
  out.single("memory_capacity_bytes", "gauge", "Item memory in all.", all.capacity_bytes);
  out.single("memory_used_bytes", "gauge", "Item memory of live items, and of those still being written.",
             all.used_bytes);
  out.single("memory_resting_bytes", "gauge",
             "Item memory of replaced and erased items that readers may still look at.", all.resting_bytes);
  const auto by_class = [&](const char* state, auto word) {
    for (std::size_t i = 0; i < kv::kMemoryClasses && kv::block_bytes_of(i) <= all.capacity_bytes; ++i)
      out.sample(all.memory[i].*word, fmt::format("block_bytes=\"{}\",state=\"{}\"", kv::block_bytes_of(i), state));
  };
  out.family("memory_blocks", "gauge",
             "Blocks of item memory of over half of block_bytes up to block_bytes; free ones serve other sizes too.");
  by_class("used", &kv::MemoryClass::used);
  by_class("free", &kv::MemoryClass::free);
  out.family("memory_class_bytes", "gauge", "Bytes of these blocks.");
  by_class("used", &kv::MemoryClass::used_bytes);
  by_class("free", &kv::MemoryClass::free_bytes);
}

/// For a server with grants.
std::string refusals_text(const kv::ServerStatistics& s) {
  if ((s.refusals.denied | s.refusals.over_quota) == 0) return "";
  return fmt::format(" ({} denied, {} over quota)", s.refusals.denied, s.refusals.over_quota);
}

/// For a server whose items expire, or are evicted.
std::string removals_text(const kv::ServerStatistics& s) {
  if ((s.expired | s.evicted) == 0) return "";
  return fmt::format("removed: {} expired, {} evicted\n", s.expired, s.evicted);
}

}  // namespace

std::string statistics_text(const kv::ServerStatistics& s) {
  return store_text(s) +
         fmt::format("operations: {} put, {} get by READ, {} get by message ({} hits), {} cas, {} del, {} failed{}\n",
                     s.puts, s.of(OperationKind::kRead).requests, s.gets, s.hits, s.compare_and_swaps, s.erases,
                     s.failures, refusals_text(s)) +
         fmt::format("hit rate {:.1f} %\n", 100 * s.hit_rate()) + removals_text(s) +
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
  Json operations = Json::object();
  Json memory = Json::array();
  for (std::size_t kind = 0; kind < kv::kOperations; ++kind)
    operations[to_string(static_cast<OperationKind>(kind))] = operation_json(s.operations[kind]);
  for (std::size_t i = 0; i < kv::kMemoryClasses; ++i) {
    const kv::MemoryClass& blocks = s.memory[i];
    if ((blocks.used | blocks.free) == 0) continue;
    memory.push_back(json_object("block_bytes", kv::block_bytes_of(i), "used", blocks.used, "used_bytes",
                                 blocks.used_bytes, "free", blocks.free, "free_bytes", blocks.free_bytes));
  }
  return json_line("items", s.items, "cells", s.cells, "max_items", s.max_items, "index_entries", s.index_entries,
                   "last_version", s.last_version, "used_bytes", s.used_bytes, "capacity_bytes", s.capacity_bytes,
                   "resting_bytes", s.resting_bytes, "clients", s.clients, "clients_lost", s.clients_lost,
                   "clients_refused", s.clients_refused, "sessions", s.sessions, "workers", s.workers, "puts", s.puts,
                   "gets", s.gets, "hits", s.hits, "reads", s.of(OperationKind::kRead).requests, "hit_rate",
                   Fixed{s.hit_rate(), 4}, "erases", s.erases, "compare_and_swaps", s.compare_and_swaps, "failures",
                   s.failures, "denied", s.refusals.denied, "over_quota", s.refusals.over_quota, "expired", s.expired,
                   "evicted", s.evicted, "operations", operations, "memory", memory);
}

std::string metrics_text(const kv::Server& server, unsigned workers) {
  const kv::ServerStatistics all = server.statistics();
  std::vector<kv::ServerStatistics> each;
  each.reserve(workers);
  for (unsigned i = 0; i < workers; ++i) each.push_back(server.worker_statistics(i));
  Exposition out;
  out.single("workers", "gauge", "Polling threads.", all.workers);
  out.single("items", "gauge", "Keys in the store.", all.items);
  out.single("cells", "gauge", "Items that are cells.", all.cells);
  out.single("max_items", "gauge", "Keys that the store can hold.", all.max_items);
  out.single("index_entries", "gauge", "Places of the index; as many are taken as there are items.", all.index_entries);
  add_memory(out, all);
  out.single("leases", "gauge", "Always 0 since 0.1.", all.leases);
  out.single("lease_bytes", "gauge", "Always 0 since 0.1.", all.lease_bytes);
  out.single("adoptions_total", "counter", "Always 0 since 0.1.", all.adoptions);
  out.single("clients", "gauge", "Clients connected.", all.clients);
  out.single("sessions", "gauge", "Channels of clients to workers.", all.sessions);
  out.single("clients_lost_total", "counter", "Clients that disappeared without closing.", all.clients_lost);
  out.single("clients_refused_total", "counter", "Clients that were refused.", all.clients_refused);
  add_requests(out, each);
  out.single("hits_total", "counter", "Gets that found their key.", all.hits);
  out.single("failures_total", "counter", "Requests that failed; a missing key or another version is not a failure.",
             all.failures);
  out.single("denied_total", "counter", "Failed requests for which the user had no right.", all.refusals.denied);
  out.single("over_quota_total", "counter", "Failed requests that a quota refused.", all.refusals.over_quota);
  out.single("expired_total", "counter", "Items removed because their time to live was over.", all.expired);
  out.single("evicted_total", "counter", "Items removed to make room for others.", all.evicted);
  out.single("last_version", "gauge", "Version last given to an item.", all.last_version);
  add_times(out, all);
  return out.take();
}

}  // namespace verbena::programs
