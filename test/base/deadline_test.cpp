#include <verbena/deadline.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace verbena {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

TEST(Deadline, NowHasPassed) {
  EXPECT_TRUE(Deadline::now().passed());
  EXPECT_FALSE(Deadline::now().is_never());
  EXPECT_EQ(Deadline::now().left(), 0ns);
  EXPECT_EQ(Deadline::now().left_ms(), 0);
}

TEST(Deadline, NeverDoesNotPass) {
  EXPECT_FALSE(Deadline::never().passed());
  EXPECT_TRUE(Deadline::never().is_never());
  EXPECT_EQ(Deadline::never().left(), nanoseconds::max());
  EXPECT_EQ(Deadline::never().left_ms(), -1);
  EXPECT_TRUE(Deadline::after(nanoseconds::max()).is_never());
}

TEST(Deadline, OfNoOrNegativeTimeHasPassed) {
  for (const nanoseconds in : {0ns, -1ns, nanoseconds(-1h), nanoseconds::min()}) {
    EXPECT_TRUE(Deadline::after(in).passed()) << in.count();
    EXPECT_EQ(Deadline::after(in).left(), 0ns);
    EXPECT_EQ(Deadline::after(in).left_ms(), 0);
  }
}

TEST(Deadline, FarAwayDoesNotWrap) {
  for (const nanoseconds in : {nanoseconds(24h * 365 * 100), nanoseconds::max() / 2, nanoseconds::max() - 1ns}) {
    const Deadline deadline = Deadline::after(in);
    EXPECT_FALSE(deadline.passed()) << in.count();
    EXPECT_FALSE(deadline.is_never());
    EXPECT_GT(deadline.left(), nanoseconds(24h * 365));
    // Ticks and nanoseconds are turned into each other by doubles, each time rounded to 53 bits.
    EXPECT_LE(static_cast<double>(deadline.left().count()), static_cast<double>(in.count()) * (1 + 0x1p-50));
    EXPECT_EQ(deadline.left_ms(), 1'000'000'000);
  }
}

TEST(Deadline, CountsDownFromWhatWasAskedFor) {
  const Deadline deadline = Deadline::after(1h);
  EXPECT_FALSE(deadline.passed());
  const nanoseconds first = deadline.left();
  const nanoseconds second = deadline.left();
  EXPECT_LE(first, 1h + 1us);  // The conversion to ticks and back is in doubles.
  EXPECT_GT(first, 30min);
  EXPECT_LE(second, first);
  EXPECT_GT(deadline.left_ms(), 1'800'000);
  EXPECT_LE(deadline.left_ms(), 3'600'001);
}

TEST(Deadline, LeftInMillisecondsIsRoundedUp) {
  // Rounded down, a poll(2) of the last part of a millisecond would spin.
  const auto ticks = static_cast<std::uint64_t>(ticks_per_us() * 1e6);
  const Deadline deadline = Deadline::at_ticks(ticks_now() + ticks);
  const int ms = deadline.left_ms();
  const nanoseconds left = deadline.left();
  EXPECT_GE(nanoseconds(std::chrono::milliseconds(ms)), left);
}

TEST(Deadline, PassesWhenItsTickHasCome) {
  const std::uint64_t at = ticks_now();
  EXPECT_TRUE(Deadline::at_ticks(at).passed());
  EXPECT_EQ(Deadline::at_ticks(at).left(), 0ns);
  EXPECT_EQ(Deadline::at_ticks(at).ticks(), at);
  const Deadline soon = Deadline::after(1us);
  // Bounded: ten thousand million ticks are seconds on any machine.
  const std::uint64_t give_up = ticks_now() + 10'000'000'000U;
  while (!soon.passed() && ticks_now() < give_up) {}
  EXPECT_TRUE(soon.passed());
}

TEST(Deadline, EarlierOrdersNowAndNever) {
  const Deadline hour = Deadline::after(1h);
  EXPECT_EQ(earlier(hour, Deadline::never()).ticks(), hour.ticks());
  EXPECT_EQ(earlier(Deadline::never(), hour).ticks(), hour.ticks());
  EXPECT_EQ(earlier(hour, Deadline::now()).ticks(), Deadline::now().ticks());
  EXPECT_TRUE(earlier(Deadline::never(), Deadline::never()).is_never());
}

TEST(Ticks, GoOnAndHaveARate) {
  const std::uint64_t first = ticks_now();
  EXPECT_LE(first, ticks_now());
  EXPECT_TRUE(std::isfinite(ticks_per_us()));
  EXPECT_GT(ticks_per_us(), 1.0);
  EXPECT_EQ(ticks_per_us(), ticks_per_us());
}

static_assert(sizeof(Deadline) == 8);

}  // namespace
}  // namespace verbena
