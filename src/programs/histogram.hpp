// Latencies in fixed memory: a histogram whose buckets keep a relative error below one percent.
#pragma once

#include <verbena/kv_statistics.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace verbena::programs {

/// Counts of 64-bit values, in 128 buckets for each power of two.
/// \alloc none
/// \thread one; or one per histogram, and `merge` afterwards
class Histogram {
 public:
  static constexpr unsigned kPrecisionBits = 7;
  using Buckets = kv::LogBuckets<kPrecisionBits>;
  /// One linear range of 0 to 127, then one range for each of the 57 leading-bit positions 7 to 63.
  static constexpr std::size_t kBuckets = Buckets::kEach * (64 - kPrecisionBits + 1);

  /// \param times how often `value` was measured
  void record(std::uint64_t value, std::uint64_t times = 1) noexcept {
    if (times == 0) return;
    counts_[Buckets::of(value)] += times;
    count_ += times;
    sum_ += static_cast<double>(value) * static_cast<double>(times);
    min_ = std::min(min_, value);
    max_ = std::max(max_, value);
  }

  void merge(const Histogram& other) noexcept {
    for (std::size_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    min_ = std::min(min_, other.min_);
    max_ = std::max(max_, other.max_);
  }

  void clear() noexcept { *this = Histogram{}; }

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// 0 while nothing is recorded; the same holds for the others.
  [[nodiscard]] std::uint64_t min() const noexcept { return count_ == 0 ? 0 : min_; }
  [[nodiscard]] std::uint64_t max() const noexcept { return max_; }
  [[nodiscard]] double mean() const noexcept { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

  /// The value that `percent` of the recorded values do not exceed: the middle of its bucket, but within the recorded
  /// range. `percent` is 0 to 100.
  [[nodiscard]] std::uint64_t percentile(double percent) const noexcept {
    if (count_ == 0) return 0;
    const std::uint64_t rank = kv::rank_of(percent, count_);
    if (rank >= count_) return max_;
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      seen += counts_[i];
      if (seen >= rank) return std::clamp(middle_of(i), min_, max_);
    }
    return max_;
  }

  /// Calls `visit(value, count)` for each bucket with values, smallest first; `value` is as for percentiles.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = 0; i < kBuckets; ++i) {
      if (counts_[i] != 0) visit(std::clamp(middle_of(i), min_, max_), counts_[i]);
    }
  }

 private:
  [[nodiscard]] static constexpr std::uint64_t middle_of(std::size_t bucket) noexcept {
    return Buckets::lowest(bucket) + (Buckets::lowest(bucket + 1) - Buckets::lowest(bucket)) / 2;
  }

  std::array<std::uint64_t, kBuckets> counts_{};
  std::uint64_t count_ = 0;
  double sum_ = 0;
  std::uint64_t min_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t max_ = 0;
};

static_assert(Histogram::Buckets::of(std::numeric_limits<std::uint64_t>::max()) == Histogram::kBuckets - 1);

}  // namespace verbena::programs
