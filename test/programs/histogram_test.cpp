#include "programs/histogram.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace verbena::programs {
namespace {

TEST(Histogram, IsEmptyAtFirst) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0U);
  EXPECT_EQ(histogram.min(), 0U);
  EXPECT_EQ(histogram.max(), 0U);
  EXPECT_EQ(histogram.percentile(50), 0U);
  EXPECT_EQ(histogram.mean(), 0.0);
}

TEST(Histogram, BucketsAreContiguousAndOrdered) {
  for (std::size_t bucket = 0; bucket + 1 < Histogram::kBuckets; ++bucket) {
    const std::uint64_t lowest = Histogram::Buckets::lowest(bucket), next = Histogram::Buckets::lowest(bucket + 1);
    ASSERT_LT(lowest, next) << bucket;
    ASSERT_EQ(Histogram::Buckets::of(lowest), bucket);
    ASSERT_EQ(Histogram::Buckets::of(next - 1), bucket);
    // Less than one percent of the value.
    ASSERT_LE((next - lowest - 1) * 100, lowest) << bucket;
  }
  EXPECT_EQ(Histogram::Buckets::of(std::numeric_limits<std::uint64_t>::max()), Histogram::kBuckets - 1);
}

TEST(Histogram, SmallValuesAreExact) {
  Histogram histogram;
  for (std::uint64_t value = 1; value <= 100; ++value) histogram.record(value);
  EXPECT_EQ(histogram.percentile(0), 1U);
  EXPECT_EQ(histogram.percentile(50), 50U);
  EXPECT_EQ(histogram.percentile(99), 99U);
  EXPECT_EQ(histogram.percentile(100), 100U);
  EXPECT_DOUBLE_EQ(histogram.mean(), 50.5);
}

TEST(Histogram, CountsAValueAsOftenAsItIsTold) {
  Histogram histogram;
  histogram.record(10, 3);
  histogram.record(100);
  histogram.record(1000, 0);
  EXPECT_EQ(histogram.count(), 4U);
  EXPECT_EQ(histogram.percentile(75), 10U);
  EXPECT_EQ(histogram.max(), 100U);
  EXPECT_DOUBLE_EQ(histogram.mean(), 32.5);
}

TEST(Histogram, PercentileOfThousandIsNotRoundedUp) {
  Histogram histogram;
  for (int i = 0; i < 999; ++i) histogram.record(10);
  histogram.record(100'000);
  EXPECT_EQ(histogram.percentile(99.9), 10U);
  EXPECT_EQ(histogram.percentile(100), 100'000U);
  EXPECT_EQ(histogram.max(), 100'000U);
}

TEST(Histogram, AgreesWithSortedValuesWithinAPercent) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> latency(7, 2);
  std::vector<std::uint64_t> values;
  Histogram histogram;
  for (int i = 0; i < 50'000; ++i) {
    values.push_back(static_cast<std::uint64_t>(latency(random)));
    histogram.record(values.back());
  }
  std::ranges::sort(values);
  for (const double percent : {1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99}) {
    const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * 50'000 - 1e-6));
    const auto exact = static_cast<double>(values[rank - 1]);
    EXPECT_NEAR(static_cast<double>(histogram.percentile(percent)), exact, exact * 0.01 + 0.5) << percent;
  }
  EXPECT_EQ(histogram.min(), values.front());
  EXPECT_EQ(histogram.max(), values.back());
}

TEST(Histogram, ExtremesFit) {
  Histogram histogram;
  histogram.record(0);
  histogram.record(std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(histogram.percentile(50), 0U);
  EXPECT_EQ(histogram.percentile(100), std::numeric_limits<std::uint64_t>::max());
}

TEST(Histogram, MergeEqualsRecordingAll) {
  Histogram all, even, odd;
  for (std::uint64_t value = 0; value < 10'000; ++value) {
    all.record(value * value);
    (value % 2 == 0 ? even : odd).record(value * value);
  }
  even.merge(odd);
  EXPECT_EQ(even.count(), all.count());
  EXPECT_EQ(even.min(), all.min());
  EXPECT_EQ(even.max(), all.max());
  for (const double percent : {5.0, 50.0, 95.0}) EXPECT_EQ(even.percentile(percent), all.percentile(percent));
  even.clear();
  EXPECT_EQ(even.count(), 0U);
  EXPECT_EQ(even.percentile(50), 0U);
}

}  // namespace
}  // namespace verbena::programs
