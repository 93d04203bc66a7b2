#include "kv/statistics.hpp"

#include "base/ticks.hpp"

#include <cstring>

namespace verbena::kv {
namespace {

/// Calls `visit` with each word of a part, in order: the one place that defines the words.
template <class Statistics, class Visit>
void for_each_word(Statistics& s, StatisticsPart part, Visit&& visit) noexcept {
  if (part == StatisticsPart::kTotals) {
    for (auto* const word : {&s.items,         &s.used_bytes,   &s.capacity_bytes,  &s.resting_bytes,
                             &s.clients,       &s.clients_lost, &s.clients_refused, &s.puts,
                             &s.gets,          &s.hits,         &s.erases,          &s.compare_and_swaps,
                             &s.failures,      &s.last_version, &s.workers,         &s.max_items,
                             &s.index_entries, &s.sessions,     &s.leases,          &s.lease_bytes,
                             &s.cells,         &s.adoptions,    &s.refusals.denied, &s.refusals.over_quota,
                             &s.expired,       &s.evicted})
      visit(*word);
  } else if (part == StatisticsPart::kMemory) {
    for (auto& of : s.memory) {
      visit(of.used);
      visit(of.used_bytes);
      visit(of.free);
      visit(of.free_bytes);
    }
  } else if (const std::size_t kind = kind_of(part); kind < kOperations) {
    auto& of = s.operations[kind];
    visit(of.requests);
    visit(of.latency.sum_ns);
    for (auto& count : of.latency.counts) visit(count);
  }
}

}  // namespace

std::size_t put_words(const ServerStatistics& from, StatisticsPart part, StatisticsWords& out) noexcept {
  std::size_t count = 0;
  for_each_word(from, part, [&](std::uint64_t word) { out[count++] = word; });
  return count;
}

void take_words(std::span<const std::byte> words, StatisticsPart part, ServerStatistics& out) noexcept {
  for_each_word(out, part, [&](std::uint64_t& word) {
    word = 0;
    if (words.size() < sizeof word) return;
    std::memcpy(&word, words.data(), sizeof word);
    words = words.subspan(sizeof word);
  });
}

void Counters::record_ticks(OperationKind operation, std::uint64_t ticks) noexcept {
  // Two cores' counters may differ a little: counts 0 then, not a huge wrapped-around time.
  const bool is_backwards = static_cast<std::int64_t>(ticks) < 0;
  const auto ns = is_backwards ? 0 : ns_in(ticks);
  OfOperation& counts = of(operation);
  ++counts.latencies[LatencyHistogram::bucket_of(ns)];
  counts.sum_ns += ns;
}

std::uint8_t Counters::next_distance() noexcept {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 17;
  random_ ^= random_ << 5;
  return static_cast<std::uint8_t>(1 + random_ % 31);
}

void Counters::add_totals(ServerStatistics& sum) const noexcept {
  const auto requests = [&](OperationKind small, OperationKind large) {
    return of(small).requests + of(large).requests;
  };
  sum.workers += 1;
  sum.items += items;
  sum.used_bytes += used_bytes;
  sum.resting_bytes += resting_bytes;
  sum.capacity_bytes += capacity_bytes;
  sum.puts += requests(OperationKind::kPut, OperationKind::kPutLarge);
  sum.gets += requests(OperationKind::kGet, OperationKind::kGetLarge);
  sum.compare_and_swaps += requests(OperationKind::kCas, OperationKind::kCasLarge);
  sum.erases += of(OperationKind::kErase).requests;
  sum.hits += hits;
  sum.failures += failures;
  sum.max_items += max_items;
  sum.index_entries += index_entries;
  sum.sessions += sessions;
  sum.cells += cells;
  sum.refusals.denied += denied;
  sum.refusals.over_quota += over_quota;
  sum.expired += expired;
  sum.evicted += evicted;
}

void Counters::add_operation(OperationKind operation, ServerStatistics& sum) const noexcept {
  const OfOperation& from = of(operation);
  OperationStatistics& to = sum.operations[static_cast<std::size_t>(operation)];
  to.requests = saturating_sum(to.requests, from.requests);
  to.latency.sum_ns += from.sum_ns;
  for (std::size_t i = 0; i < LatencyHistogram::kBuckets; ++i) to.latency.counts[i] += from.latencies[i];
}

}  // namespace verbena::kv
