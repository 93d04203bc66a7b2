/// \file
/// Counts of a key-value server, and times of its operations.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)

namespace verbena::kv {

/// Kinds of operation that a server counts separately. Large ones have a value of kEagerBytes or more. Arithmetic on
/// cells does not count, because the server does not see it.
enum class OperationKind : std::uint8_t {
  kGet,       ///< Includes gets that find nothing.
  kGetLarge,  ///< The server tells where the value lies; the client reads it.
  kPut,
  kPutLarge,  ///< Timed from its first bytes to the reply, so most of it is the transfer.
  kCas,
  kCasLarge,
  kErase,
  kCell,  ///< Opening a cell.
  kRead,  ///< Gets that clients did by READs, without the server. They found their key. Never timed.
          ///< The server counts what clients tell, and cannot check it: a client tells every 4096 of them, before it
          ///< asks for statistics, and at its end. Not in ServerStatistics::gets.
};
/// How many kinds there are.
inline constexpr std::size_t kOperations = 9;
/// "get", "large get". \thread any  \alloc none
[[nodiscard]] constexpr const char* to_string(OperationKind operation) noexcept {
  constexpr std::array<const char*, kOperations> kNames{"get",       "large get", "put",  "large put", "cas",
                                                        "large cas", "erase",     "cell", "read"};
  const auto at = static_cast<std::size_t>(operation);
  return at < kOperations ? kNames[at] : "unknown";
}

/// Buckets for numbers: one for each below 2^kBits, and above that as many for each power of two, so that a bucket is
/// no wider than that share of its numbers. \thread any  \alloc none
template <unsigned kBits>
struct LogBuckets {
  /// Buckets of one power of two.
  static constexpr std::size_t kEach = std::size_t{1} << kBits;
  /// The bucket of a number.
  [[nodiscard]] static constexpr std::size_t of(std::uint64_t number) noexcept {
    if (number < kEach) return static_cast<std::size_t>(number);
    const unsigned shift = static_cast<unsigned>(std::bit_width(number)) - kBits - 1;
    // number >> shift is kEach to 2 * kEach - 1, so the range of each shift begins where the one before ends.
    return kEach * shift + static_cast<std::size_t>(number >> shift);
  }
  /// The smallest number of a bucket, and the end of the one before it.
  [[nodiscard]] static constexpr std::uint64_t lowest(std::size_t bucket) noexcept {
    if (bucket < 2 * kEach) return bucket;
    const std::size_t shift = bucket / kEach - 1;
    return std::uint64_t{bucket - kEach * shift} << shift;
  }
};
/// The place, from 1 on, of the number that `percent` (0 to 100) of `count` numbers do not exceed, in their order.
/// \thread any  \alloc none
[[nodiscard]] inline std::uint64_t rank_of(double percent, std::uint64_t count) noexcept {
  const double share = std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(count);
  // The small subtraction undoes rounding: 99.9 % of 1000 is 999, not 999.0000000001.
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(share * (1 - 1e-12))));
}

/// Counts of times in ns. Below 16 ns every time has its own bucket; above, each power of two has 8, so a bucket's
/// width is an eighth of its times. The last bucket has all times of 2^36 ns (69 s) and more. \thread one  \alloc none
struct LatencyHistogram {
  /// Binary logarithm of the number of buckets per power of two.
  static constexpr unsigned kPrecisionBits = 3;
  /// One linear range of 0 to 7 ns, then one for each leading bit from 3 to 35.
  static constexpr std::size_t kBuckets = LogBuckets<kPrecisionBits>::kEach * (36 - kPrecisionBits + 1);

  std::array<std::uint64_t, kBuckets> counts{};  ///< Number of times in each bucket.
  std::uint64_t sum_ns = 0;                      ///< Sum of all times.

  /// The bucket of a time.
  [[nodiscard]] static constexpr std::size_t bucket_of(std::uint64_t ns) noexcept {
    return std::min(kBuckets - 1, LogBuckets<kPrecisionBits>::of(ns));
  }
  /// The shortest time of a bucket, and the end of the one before it.
  [[nodiscard]] static constexpr std::uint64_t lowest_ns(std::size_t bucket) noexcept {
    return LogBuckets<kPrecisionBits>::lowest(bucket);
  }

  /// Number of all times.
  [[nodiscard]] constexpr std::uint64_t count() const noexcept {
    std::uint64_t sum = 0;
    for (const std::uint64_t some : counts) sum += some;
    return sum;
  }
  /// The time that `percent` (0 to 100) of the times do not exceed, to within a sixteenth: the middle of its bucket.
  /// 0 while there are none.
  [[nodiscard]] double percentile_ns(double percent) const noexcept {
    const std::uint64_t all = count();
    if (all == 0) return 0;
    const std::uint64_t rank = rank_of(percent, all);
    std::size_t at = 0;
    for (std::uint64_t seen = counts[0]; seen < rank && at + 1 < kBuckets; seen += counts[at]) ++at;
    return static_cast<double>(lowest_ns(at)) + static_cast<double>(lowest_ns(at + 1) - lowest_ns(at) - 1) / 2;
  }
  /// Mean of all times; 0 while there are none.
  [[nodiscard]] double mean_ns() const noexcept {
    const std::uint64_t all = count();
    return all == 0 ? 0 : static_cast<double>(sum_ns) / static_cast<double>(all);
  }
};
static_assert(LatencyHistogram::bucket_of((std::uint64_t{1} << 36) - 1) == LatencyHistogram::kBuckets - 1);

/// Counts and times of one kind of operation.
struct OperationStatistics {
  std::uint64_t requests = 0;  ///< All requests, failed ones included.
  /// Times from a request's arrival at its worker to its reply. About one request in 16 with a small value is timed,
  /// the first one included, and every large put. So this counts fewer than `requests`.
  LatencyHistogram latency{};
};

/// Blocks of item memory of about one size: at most `block_bytes_of` the class, and more than half of that. Free blocks
/// of up to 28 KiB are for items of their size, until others of it make room; free memory beyond those is counted as
/// spans, by the power of two that fits into them, and serves all sizes.
struct MemoryClass {
  std::uint64_t used = 0;        ///< Blocks in use: items, values, and blocks in their grace period.
  std::uint64_t used_bytes = 0;  ///< Bytes in use.
  std::uint64_t free = 0;        ///< Free blocks.
  std::uint64_t free_bytes = 0;  ///< Free bytes.
};
/// Classes of 64 B, 128 B, ... to 1 TiB.
inline constexpr std::size_t kMemoryClasses = 35;
/// The largest block of a class, in bytes. \thread any  \alloc none
[[nodiscard]] constexpr std::uint64_t block_bytes_of(std::size_t memory_class) noexcept {
  return std::uint64_t{64} << memory_class;
}

/// Requests that the server refused because of the client's user.
struct RefusalCounts {
  std::uint64_t denied = 0;      ///< The user had no right to do it.
  std::uint64_t over_quota = 0;  ///< The user's quota was used up.
};

/// Counts of a server, or of one worker of it, since its start, or as they are now.
struct ServerStatistics {
  std::uint64_t items = 0;              ///< Keys in the store.
  std::uint64_t used_bytes = 0;         ///< Item memory taken by live items, and by those still being written.
  std::uint64_t capacity_bytes = 0;     ///< Item memory in all.
  std::uint64_t resting_bytes = 0;      ///< Item memory of replaced and erased items that readers may still look at.
  std::uint64_t clients = 0;            ///< Connected now.
  std::uint64_t clients_lost = 0;       ///< Gone without closing.
  std::uint64_t clients_refused = 0;    ///< Refused: the server was full, the user not allowed, and the like.
  std::uint64_t puts = 0;               ///< Requests to put, failed ones included.
  std::uint64_t gets = 0;               ///< Requests to get.
  std::uint64_t hits = 0;               ///< Gets that found their key.
  std::uint64_t erases = 0;             ///< Requests to erase.
  std::uint64_t compare_and_swaps = 0;  ///< Requests to compare and swap.
  std::uint64_t failures = 0;           ///< Failed requests; a missing key or another version does not count.
  std::uint64_t last_version = 0;       ///< The latest version of an item; 0 before the first.
  std::uint64_t workers = 0;            ///< Number of workers in these counts.
  std::uint64_t max_items = 0;          ///< Most keys of the store.
  std::uint64_t index_entries = 0;      ///< Entries of the indexes; `items` of them are taken.
  std::uint64_t sessions = 0;           ///< Channels of clients to workers, now. Each client has one to each worker.
  std::uint64_t leases = 0;             ///< Always 0 since 0.1.
  std::uint64_t lease_bytes = 0;        ///< Always 0 since 0.1.
  std::uint64_t cells = 0;              ///< Cells, each under its own key; the number never falls.
  std::uint64_t adoptions = 0;          ///< Always 0 since 0.1.
  RefusalCounts refusals{};             ///< Part of `failures`: refused by rights and quotas.
  std::uint64_t expired = 0;            ///< Items removed because their time to live was over.
  std::uint64_t evicted = 0;            ///< Items removed to make room for others: see ServerOptions::evict.
  std::array<OperationStatistics, kOperations> operations{};  ///< By `OperationKind`.
  std::array<MemoryClass, kMemoryClasses> memory{};           ///< By class.

  /// The share of gets that found their key, 0 to 1, those by READs included; 0 before the first.
  [[nodiscard]] double hit_rate() const noexcept {
    const auto reads = static_cast<double>(of(OperationKind::kRead).requests);
    const double all = static_cast<double>(gets) + reads;
    return all == 0 ? 0 : (static_cast<double>(hits) + reads) / all;
  }
  /// Statistics of one kind.
  [[nodiscard]] const OperationStatistics& of(OperationKind operation) const noexcept {
    return operations[static_cast<std::size_t>(operation)];
  }
};

}  // namespace verbena::kv

#pragma GCC visibility pop
