#include "programs/bench_result.hpp"
#include "programs/bench_keys.hpp"

#include <verbena/deadline.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

namespace verbena::programs {
namespace {

std::uint64_t ticks_of_ns(double ns) { return static_cast<std::uint64_t>(ns * ticks_per_us() / 1e3); }

BenchResult example() {
  BenchResult result;
  result.arguments.value_bytes = 1 << 20;
  result.endpoint = "127.0.0.1:7470";
  result.server = "a \"server\"";
  result.line = Line{.first_cpu = 0, .second_cpu = 1, .one_way_ns = 50};
  for (int i = 0; i < 100; ++i) result.gets.record(ticks_of_ns(400'000));
  result.seconds = 1;
  result.rounds = {
      {.line_ns = 50, .get_p50_ns = 400, .operations_per_s = 100, .memcpy_cached = 8e9, .memcpy_memory = 4e9},
      {.line_ns = 200, .get_p50_ns = 1000, .operations_per_s = 300, .memcpy_cached = 8e9, .memcpy_memory = 4e9},
      {.line_ns = 50, .get_p50_ns = 350, .operations_per_s = 200, .memcpy_cached = 9e9, .memcpy_memory = 4e9}};
  return result;
}

TEST(BenchSummary, TakesRatiosWithinRoundsAndThenTheirMedian) {
  const BenchSummary summary = summarize(example());
  // 8, 5 and 7 lines; the median of the latencies over the median of the lines would be 8.
  EXPECT_DOUBLE_EQ(summary.get_lines, 7);
  EXPECT_DOUBLE_EQ(summary.put_lines, 0);
  EXPECT_DOUBLE_EQ(summary.operations_per_s, 200);
  EXPECT_DOUBLE_EQ(summary.memcpy_cached, 8e9);
  EXPECT_NEAR(summary.get_bytes_per_s, 1048576 / 400e-6, 1e8);
}

TEST(BenchSummary, WithoutALineThereAreNoLines) {
  BenchResult result = example();
  result.line.reset();
  for (BenchRound& round : result.rounds) round.line_ns = 0;
  EXPECT_DOUBLE_EQ(summarize(result).get_lines, 0);
  EXPECT_NE(bench_json(result).find("\"line\":null"), std::string::npos);
  EXPECT_NE(bench_text(result).find("not measured"), std::string::npos);
}

TEST(BenchText, HasFiguresConfigurationAndEnvironment) {
  const std::string text = bench_text(example());
  for (const char* part :
       {"depth 1", "get  100 operations", "7.0 cache-line transfers", "p99.9", "memcpy", "127.0.0.1:7470"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
  }
}

TEST(BenchJson, IsOneLineWithFailuresByName) {
  BenchResult result = example();
  result.failures[static_cast<std::size_t>(Status::kStoreFull)] = 3;
  const std::string json = bench_json(result);
  EXPECT_EQ(json.find('\n'), json.size() - 1);
  EXPECT_NE(json.find(R"("failures":{"store full":3})"), std::string::npos);
  EXPECT_NE(json.find(R"("server":"a \"server\"")"), std::string::npos);
  EXPECT_NE(json.find(R"("p50_lines":7.0)"), std::string::npos);
  EXPECT_NE(json.find(R"("overhead_bytes":null)"), std::string::npos);
}

TEST(BenchJson, HasWhatAnItemTakesBesidesKeyAndValue) {
  BenchResult result = example();
  result.item_bytes = 1024.0 * 1024 + 16 + 40;
  EXPECT_NE(bench_json(result).find(R"("overhead_bytes":40.0)"), std::string::npos);
  EXPECT_NE(bench_text(result).find("40.0 of them besides key and value"), std::string::npos);
}

TEST(BenchKeys, AreHexadecimalNumbersOfTheirLength) {
  const auto key = [](std::size_t bytes, std::size_t index) {
    const BenchKeys keys(bytes);
    std::string text = keys.blank();
    keys.write(index, text.data());
    return text;
  };
  EXPECT_EQ(key(16, 0), "0000000000000000");
  EXPECT_EQ(key(16, 0x0123456789abcdef), "0123456789abcdef");
  EXPECT_EQ(key(16, 0xfedcba9876543210), "fedcba9876543210");
  EXPECT_EQ(key(20, 0xa0), "kkkk00000000000000a0");
  EXPECT_EQ(key(3, 0x1ff), "1ff");
  EXPECT_EQ(key(1, 0xf), "f");
}

TEST(BenchRandom, StaysBelowItsBoundAndReachesAllOfIt) {
  Random random;
  std::array<int, 5> seen{};
  for (int i = 0; i < 1000; ++i) ++seen.at(random.below(seen.size()));
  for (const int times : seen) EXPECT_GT(times, 100);
  EXPECT_EQ(random.below(1), 0U);
  // Bounds whose product with a number takes more than 64 bits.
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  std::size_t highest = 0;
  for (int i = 0; i < 64; ++i) highest = std::max(highest, random.below(kMost));
  EXPECT_GT(highest, kMost / 2);
}

}  // namespace
}  // namespace verbena::programs
