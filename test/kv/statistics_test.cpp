// What workers count, how they time, and how it travels; without a server.
#include "kv/statistics.hpp"
#include "kv/wire.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace verbena::kv {
namespace {

using Buckets = LatencyHistogram;

TEST(Latencies, EachTimeHasItsBucket) {
  EXPECT_EQ(Buckets::lowest_ns(0), 0u);
  for (std::size_t bucket = 0; bucket < Buckets::kBuckets; ++bucket) {
    const std::uint64_t lowest = Buckets::lowest_ns(bucket);
    const std::uint64_t end = Buckets::lowest_ns(bucket + 1);
    ASSERT_LT(lowest, end);
    ASSERT_EQ(Buckets::bucket_of(lowest), bucket);
    ASSERT_EQ(Buckets::bucket_of(end - 1), bucket);
    ASSERT_TRUE(end - lowest == 1 || (end - lowest) * 8 <= lowest) << "wider than an eighth: " << lowest;
  }
  EXPECT_EQ(Buckets::lowest_ns(Buckets::kBuckets), std::uint64_t{1} << 36);
  EXPECT_EQ(Buckets::bucket_of(~std::uint64_t{0}), Buckets::kBuckets - 1);
}

TEST(Latencies, PercentilesAreOfWhatWasRecorded) {
  Buckets histogram;
  EXPECT_EQ(histogram.percentile_ns(50), 0);
  EXPECT_EQ(histogram.mean_ns(), 0);
  const auto record = [&](std::uint64_t ns, std::uint64_t times) {
    histogram.counts[Buckets::bucket_of(ns)] += times;
    histogram.sum_ns += ns * times;
  };
  record(10, 900);
  record(1000, 90);
  record(1'000'000, 9);
  record(~std::uint64_t{0} >> 20, 1);
  EXPECT_EQ(histogram.count(), 1000u);
  EXPECT_EQ(histogram.percentile_ns(0), 10);
  EXPECT_EQ(histogram.percentile_ns(90), 10);
  EXPECT_NEAR(histogram.percentile_ns(90.1), 1000, 1000.0 / 16);
  EXPECT_NEAR(histogram.percentile_ns(99), 1000, 1000.0 / 16);
  EXPECT_NEAR(histogram.percentile_ns(99.9), 1e6, 1e6 / 16);
  EXPECT_GT(histogram.percentile_ns(100), 6e10) << "the last bucket";
  EXPECT_NEAR(histogram.mean_ns(), (10.0 * 900 + 1000.0 * 90 + 1e6 * 9 + 0x1p44) / 1000, 1);
}

TEST(Sampling, TimesTheFirstOfEachKindAndOneInSixteen) {
  Counters counters;
  constexpr int kRequests = 160'000;
  for (std::size_t kind = 0; kind < kOperations; ++kind) {
    int due = 0, since = 0;
    bool is_early = false, is_late = false;
    for (int i = 0; i < kRequests; ++i) {
      const bool is_timed = counters.is_due(static_cast<OperationKind>(kind));
      ASSERT_TRUE(i != 0 || is_timed);
      if (is_timed) {
        is_early |= since == 1;
        is_late |= since == 31;
        ASSERT_LE(since, 31);
        due += 1;
        since = 0;
      }
      ++since;
    }
    EXPECT_NEAR(due, kRequests / 16.0, kRequests / 160.0);
    EXPECT_TRUE(is_early && is_late) << "at all distances: a client's own rhythm must not fall in with it";
  }
}

TEST(Sampling, CountsBeforeTheReplyAndTimesUntilAfterIt) {
  Counters counters;
  const auto seen = [&] {
    auto sum = std::make_unique<ServerStatistics>();
    counters.add_totals(*sum);
    for (std::size_t kind = 0; kind < kOperations; ++kind)
      counters.add_operation(static_cast<OperationKind>(kind), *sum);
    return sum;
  };
  {
    Service service(counters, OperationKind::kGet);
    EXPECT_EQ(seen()->gets, 0u);
    service.count_as(OperationKind::kGetLarge);
    EXPECT_EQ(seen()->gets, 1u);
    EXPECT_EQ(seen()->of(OperationKind::kGetLarge).requests, 1u);
    EXPECT_EQ(seen()->of(OperationKind::kGetLarge).latency.count(), 0u);
  }
  EXPECT_EQ(seen()->of(OperationKind::kGetLarge).latency.count(), 1u);
  EXPECT_EQ(seen()->of(OperationKind::kGet).requests, 0u);

  counters.record_ticks(OperationKind::kErase, static_cast<std::uint64_t>(100 * ticks_per_us()));
  EXPECT_NEAR(seen()->of(OperationKind::kErase).latency.percentile_ns(50), 100e3, 100e3 / 16);
  EXPECT_NEAR(static_cast<double>(seen()->of(OperationKind::kErase).latency.sum_ns), 100e3, 2);
  counters.record_ticks(OperationKind::kErase, static_cast<std::uint64_t>(-5));
  EXPECT_EQ(seen()->of(OperationKind::kErase).latency.counts[0], 1u) << "a clock that ran back";

  counters.count_request(OperationKind::kPut);
  counters.count_request(OperationKind::kPutLarge);
  counters.count_request(OperationKind::kCas);
  counters.count_request(OperationKind::kCasLarge);
  counters.count_request(OperationKind::kErase);
  EXPECT_EQ(seen()->puts, 2u);
  EXPECT_EQ(seen()->compare_and_swaps, 2u);
  EXPECT_EQ(seen()->erases, 1u);
}

std::span<const std::byte> told(const StatisticsWords& words, std::size_t count) {
  return std::as_bytes(std::span(words).first(count));
}

TEST(StatisticsParts, ComeBackWordByWord) {
  std::uint64_t next = 1;
  for (std::uint64_t number = 0; number < kStatisticsParts; ++number) {
    const auto part = static_cast<StatisticsPart>(number);
    StatisticsWords words;
    for (auto& word : words) word = next++;
    const auto in = std::make_unique<ServerStatistics>();
    take_words(std::as_bytes(std::span(words)), part, *in);
    StatisticsWords again;
    const std::size_t count = put_words(*in, part, again);
    ASSERT_GE(count, 14u);
    ASSERT_LE(count * sizeof(std::uint64_t), kEagerBytes);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(again[i], words[i]) << "part " << number << ", word " << i;
    // Of an older server: what it does not tell is 0. A newer one's words were there above, and did no harm.
    for (std::size_t length = 0; length < count; ++length) {
      take_words(told(words, length), part, *in);
      (void)put_words(*in, part, again);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(again[i], i < length ? words[i] : 0);
    }
  }
}

TEST(StatisticsParts, UnknownOnesAreEmpty) {
  const auto statistics = std::make_unique<ServerStatistics>();
  statistics->items = 7;
  StatisticsWords words{};
  for (const std::uint64_t part : {kStatisticsParts, std::uint64_t{1} << 32, ~std::uint64_t{0} - 1}) {
    EXPECT_EQ(put_words(*statistics, static_cast<StatisticsPart>(part), words), 0u);
    take_words(told(words, 20), static_cast<StatisticsPart>(part), *statistics);
  }
  EXPECT_EQ(statistics->items, 7u);
}

TEST(StatisticsParts, TravelInFramesThatAreChecked) {
  std::array<std::byte, 24> room;
  ASSERT_EQ(wire::encode_head({.op = wire::Op::kStatistics, .id = 3}, 5, room), 16u);
  const std::span head = std::span(room).first<16>();
  wire::Request request;
  ASSERT_EQ(wire::decode_request(head, request), Status::kOk);
  EXPECT_EQ(request.expected, 5u);
  EXPECT_EQ(wire::decode_request(head.first(15), request), Status::kProtocol);
  EXPECT_EQ(wire::decode_request(head.first(8), request), Status::kProtocol);

  const auto decode = [](std::size_t words_bytes, Status status) {
    const wire::ReplyHead front{.status = status, .kind = wire::ReplyKind::kStatistics};
    std::vector<std::byte> frame(sizeof front + words_bytes);
    std::ranges::copy(wire::bytes_of(front), frame.begin());
    wire::Reply reply;
    const Status decoded = wire::decode_reply(frame, reply);
    EXPECT_TRUE(decoded != Status::kOk || reply.value.size() == words_bytes);
    return decoded;
  };
  EXPECT_EQ(decode(0, Status::kOk), Status::kOk);
  EXPECT_EQ(decode(8, Status::kOk), Status::kOk);
  EXPECT_EQ(decode(9, Status::kOk), Status::kProtocol);
  EXPECT_EQ(decode(kEagerBytes, Status::kOk), Status::kOk);
  EXPECT_EQ(decode(kEagerBytes + 8, Status::kOk), Status::kProtocol);
  EXPECT_EQ(decode(8, Status::kNotFound), Status::kProtocol);
}

}  // namespace
}  // namespace verbena::kv
