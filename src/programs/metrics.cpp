#include "programs/metrics.hpp"

#include <fmt/core.h>

#include <iterator>
#include <string_view>
#include <vector>

namespace verbena::programs {
namespace {

using kv::OperationKind;

/// "large_get": a label's value, which queries are written with.
std::string label_of(OperationKind kind) {
  std::string label = to_string(kind);
  for (char& c : label) {
    if (c == ' ') c = '_';
  }
  return label;
}

class Exposition {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    add("# HELP verbena_kv_{} {}\n# TYPE verbena_kv_{} {}\n", name, help, name, type);
  }
  void sample(std::uint64_t value, std::string_view labels = {}) {
    labels.empty() ? add("verbena_kv_{} {}\n", name_, value) : add("verbena_kv_{}{{{}}} {}\n", name_, labels, value);
  }
  void single(std::string_view name, std::string_view type, std::string_view help, std::uint64_t value) {
    family(name, type, help);
    sample(value);
  }
  void histogram(const kv::LatencyHistogram& times, std::string_view label);
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  std::string text_;
  std::string_view name_;
};

/// Buckets end at powers of two of ns, where ours end too: 128 ns to 17 s. A time on the very bound is in the next one.
constexpr unsigned kFirstBound = 7, kLastBound = 34;

void Exposition::histogram(const kv::LatencyHistogram& times, std::string_view label) {
  std::uint64_t below = 0;
  std::size_t bucket = 0;
  for (unsigned bound = kFirstBound; bound <= kLastBound; ++bound) {
    const std::uint64_t end = std::uint64_t{1} << bound;
    for (; bucket < kv::LatencyHistogram::kBuckets && kv::LatencyHistogram::lowest_ns(bucket) < end; ++bucket)
      below += times.counts[bucket];
    add("verbena_kv_{}_bucket{{{},le=\"{}\"}} {}\n", name_, label, static_cast<double>(end) / 1e9, below);
  }
  const std::uint64_t all = times.count();
  add("verbena_kv_{}_bucket{{{},le=\"+Inf\"}} {}\n", name_, label, all);
  add("verbena_kv_{}_sum{{{}}} {}\n", name_, label, static_cast<double>(times.sum_ns) / 1e9);
  add("verbena_kv_{}_count{{{}}} {}\n", name_, label, all);
}

void add_requests(Exposition& out, const std::vector<kv::ServerStatistics>& workers) {
  out.family("requests_total", "counter", "Requests by kind of operation and worker, those that failed included.");
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
      "Time from a request's arrival at its worker to its reply, of about one request in 16; of every large put.");
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
             "Blocks of item memory of up to so many bytes, and of more than half; free ones serve other sizes too.");
  by_class("used", &kv::MemoryClass::used);
  by_class("free", &kv::MemoryClass::free);
  out.family("memory_class_bytes", "gauge", "Bytes of these blocks.");
  by_class("used", &kv::MemoryClass::used_bytes);
  by_class("free", &kv::MemoryClass::free_bytes);
}

}  // namespace

std::string metrics_text(const kv::Server& server, unsigned workers) {
  const kv::ServerStatistics all = server.statistics();
  std::vector<kv::ServerStatistics> each;
  each.reserve(workers);
  for (unsigned i = 0; i < workers; ++i) each.push_back(server.worker_statistics(i));
  Exposition out;
  out.single("workers", "gauge", "Polling threads.", all.workers);
  out.single("items", "gauge", "Keys there are.", all.items);
  out.single("cells", "gauge", "Of the items, those that are cells.", all.cells);
  out.single("max_items", "gauge", "Keys there can be.", all.max_items);
  out.single("index_entries", "gauge", "Places of the index; as many are taken as there are items.", all.index_entries);
  add_memory(out, all);
  out.single("leases", "gauge", "Blocks that trusted clients may write their next large values into.", all.leases);
  out.single("lease_bytes", "gauge", "Item memory of these blocks.", all.lease_bytes);
  out.single("adoptions_total", "counter", "Values that were written where they stay.", all.adoptions);
  out.single("clients", "gauge", "Clients connected.", all.clients);
  out.single("sessions", "gauge", "Channels of clients to workers.", all.sessions);
  out.single("clients_lost_total", "counter", "Clients that were gone without closing.", all.clients_lost);
  out.single("clients_refused_total", "counter", "Clients that were turned away.", all.clients_refused);
  add_requests(out, each);
  out.single("hits_total", "counter", "Requests to get that found their key.", all.hits);
  out.single("failures_total", "counter", "Requests that failed; a missing key or another version is no failure.",
             all.failures);
  out.single("last_version", "gauge", "Version given to an item last.", all.last_version);
  add_times(out, all);
  return out.take();
}

}  // namespace verbena::programs
