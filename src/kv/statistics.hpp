// A worker's counters, and the timing of its operations.
#pragma once

#include "base/count.hpp"

#include <verbena/deadline.hpp>
#include <verbena/kv_statistics.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::kv {

/// Statistics travel in parts, each with a request and a reply of its own: a sequence of u64 that may grow at its end.
/// New parts may be added. The reader ignores words that it does not know; missing words, and all words of a part that
/// the server does not know, are 0.
enum class StatisticsPart : std::uint64_t {
  kTotals = 0,  ///< Everything but the parts below, in the order of `ServerStatistics`.
  kMemory = 1,  ///< Per class: used blocks and their bytes, free blocks and their bytes.
  kOperation =
      2,  ///< The first kind of operation; 3 is the second, and so on: requests, sum in ns, counts of the buckets.
};
inline constexpr std::uint64_t kStatisticsParts = static_cast<std::uint64_t>(StatisticsPart::kOperation) + kOperations;
/// The kind of operation that a part is for; kOperations and more: none.
[[nodiscard]] constexpr std::size_t kind_of(StatisticsPart part) noexcept {
  return static_cast<std::size_t>(static_cast<std::uint64_t>(part) -
                                  static_cast<std::uint64_t>(StatisticsPart::kOperation));
}
/// Words of the longest part.
inline constexpr std::size_t kMostStatisticsWords = 2 + LatencyHistogram::kBuckets;
using StatisticsWords = std::array<std::uint64_t, kMostStatisticsWords>;

/// Writes the words of a part. Returns their number; 0 for an unknown part. \thread any  \alloc none
[[nodiscard]] std::size_t put_words(const ServerStatistics& from, StatisticsPart part, StatisticsWords& out) noexcept;
/// Reads the words of a part; ignores an unknown one. \thread any  \alloc none
void take_words(std::span<const std::byte> words, StatisticsPart part, ServerStatistics& out) noexcept;

/// The sum, or the largest number if it is larger than that.
[[nodiscard]] constexpr std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) noexcept {
  return a + b < a ? ~std::uint64_t{0} : a + b;
}

/// Written by the worker, read by anyone, without locks, locked instructions or waits.
class Counters {
 public:
  struct OfOperation {
    Count requests, sum_ns;
    std::array<Count, LatencyHistogram::kBuckets> latencies;
  };

  Count hits, failures;
  Count items, used_bytes, resting_bytes, capacity_bytes;
  Count max_items, index_entries, sessions;
  Count cells;
  Count denied, over_quota;
  Count expired, evicted;
  std::array<OfOperation, kOperations> operations;

  void count_request(OperationKind operation) noexcept { ++of(operation).requests; }
  void count_outcome(Status status) noexcept {
    if (status != Status::kOk && status != Status::kNotFound && status != Status::kVersionMismatch) [[unlikely]]
      ++failures;
  }
  /// Counts gets that a client says it did by READs. Whatever it says, the sum never wraps around. \thread the worker's
  void count_reads(std::uint64_t more) noexcept {
    Count& reads = of(OperationKind::kRead).requests;
    reads = saturating_sum(reads, more);
  }
  /// \thread the worker's
  void record_ticks(OperationKind operation, std::uint64_t ticks) noexcept;

  /// Adds these counters to `sum`: `add_totals` all but the operations and the memory's classes, `add_operation` one
  /// operation. \thread any  \alloc none
  void add_totals(ServerStatistics& sum) const noexcept;
  void add_operation(OperationKind operation, ServerStatistics& sum) const noexcept;

  /// Whether to time a request that begins now: the first of its kind, then one in 16 on average, at random distances
  /// that no client's pattern can match. \thread the worker's
  [[nodiscard]] bool is_due(OperationKind operation) noexcept {
    std::uint8_t& left = left_[static_cast<std::size_t>(operation)];
    if (--left != 0) [[likely]]
      return false;
    left = next_distance();
    return true;
  }

 private:
  [[nodiscard]] const OfOperation& of(OperationKind operation) const noexcept {
    return operations[static_cast<std::size_t>(operation)];
  }
  [[nodiscard]] OfOperation& of(OperationKind operation) noexcept {
    return operations[static_cast<std::size_t>(operation)];
  }
  /// A distance, 1 to 31.
  [[nodiscard]] std::uint8_t next_distance() noexcept;

  // Used by the worker only.
  std::array<std::uint8_t, kOperations> left_ = [] {
    std::array<std::uint8_t, kOperations> first;
    first.fill(1);
    return first;
  }();
  std::uint32_t random_ = 0x9e3779b9;
};

/// One request while the worker handles it. It is counted before its reply, so a client with the reply finds it
/// counted. If it is timed, the time runs until this object is destroyed, when the reply is posted. \thread the
/// worker's  \alloc none
class Service {
 public:
  /// Starts as the kind of operation that the request looks like.
  Service(Counters& counters, OperationKind operation) noexcept
      : counters_(counters), began_ticks_(counters.is_due(operation) ? ticks_now() : 0), operation_(operation) {}
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  ~Service() {
    if (began_ticks_ != 0) [[unlikely]]
      counters_.record_ticks(operation_, ticks_now() - began_ticks_);
  }
  /// Sets the kind once it is known.
  void count_as(OperationKind operation) noexcept {
    operation_ = operation;
    counters_.count_request(operation);
  }

 private:
  Counters& counters_;
  const std::uint64_t began_ticks_;  ///< 0 for a request that is not timed, as most are.
  OperationKind operation_;
};

}  // namespace verbena::kv
