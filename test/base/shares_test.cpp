// Shares of a thread's time, in ticks that the test makes up.
#include "base/shares.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace verbena {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kParts = 4;
constexpr Asker kFlooder{.uid = 1000, .pid = 7};
constexpr Asker kHonest{.uid = 65534};

// Requests of 0.1 ms without a pause, for ten seconds; whoever is put off comes again after 5 ms.
TEST(Shares, AFloodGetsItsPart) {
  Shares shares(kParts);
  const std::uint64_t request = ticks_in(100us);
  const std::uint64_t begun = 1'000'000;
  const std::uint64_t end = begun + ticks_in(10s);
  for (std::uint64_t now = begun; now < end;) {
    if (shares.is_used_up(kFlooder, now)) {
      now += ticks_in(5ms);
      continue;
    }
    now += request;
    shares.charge(kFlooder, request, now);
    EXPECT_FALSE(shares.is_used_up(kHonest, now));
  }
  const Shares::Use use = shares.use_of(kFlooder);
  EXPECT_LE(use.ticks, (end - begun) / kParts + ticks_in(Shares::kBurst) + 2 * request);
  EXPECT_GE(use.ticks, (end - begun) / kParts - ticks_in(5ms)) << "it got less than its part";
  EXPECT_GT(use.put_off, 1000U);
}

TEST(Shares, APauseMakesUpForWhatWasUsed) {
  Shares shares(kParts);
  const std::uint64_t used = ticks_in(Shares::kBurst) + ticks_in(1ms);
  std::uint64_t now = 1'000'000 + used;
  shares.charge(kFlooder, used, now);
  EXPECT_TRUE(shares.is_used_up(kFlooder, now));
  EXPECT_TRUE(shares.is_used_up(kFlooder, now + ticks_in(3ms)));
  EXPECT_FALSE(shares.is_used_up(kFlooder, now + ticks_in(5ms)));
  now += kParts * used;
  shares.charge(kFlooder, ticks_in(Shares::kBurst) / 2, now);
  EXPECT_FALSE(shares.is_used_up(kFlooder, now));
}

TEST(Shares, ALargerBurstIsUsedAtOnce) {
  Shares shares(kParts, 20ms);
  const std::uint64_t now = 1'000'000 + ticks_in(20ms);
  shares.charge(kFlooder, ticks_in(19ms), now);
  EXPECT_FALSE(shares.is_used_up(kFlooder, now));
  shares.charge(kFlooder, ticks_in(2ms), now);
  EXPECT_TRUE(shares.is_used_up(kFlooder, now));
  shares.charge(kHonest, ticks_in(1ms), now, true);
  EXPECT_FALSE(shares.is_used_up(kHonest, now)) << "in vain, but only 16 ms";
}

// There are fewer buckets than processes: new ones push out those that have used least.
TEST(Shares, NewAskersForgiveNobody) {
  Shares shares(kParts);
  const std::uint64_t now = 1'000'000 + ticks_in(20ms);
  shares.charge(kFlooder, ticks_in(20ms), now);
  ASSERT_TRUE(shares.is_used_up(kFlooder, now));
  for (pid_t pid = 1000; pid < 2000; ++pid) shares.charge({.uid = 1000, .pid = pid}, 100, now);
  EXPECT_TRUE(shares.is_used_up(kFlooder, now));
}

}  // namespace
}  // namespace verbena
