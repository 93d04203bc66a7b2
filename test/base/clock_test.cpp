// The processor's counter as a clock, by readings of invented machines, and on this one.
#include "base/clock.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace verbena {
namespace {

constexpr double kTicksPerUs = 2500;
constexpr std::uint64_t kMs = 1'000'000;  ///< In nanoseconds.
constexpr std::uint64_t kSecond = 1000 * kMs;
constexpr std::uint64_t kHour = 3600 * kSecond;

/// A machine whose two clocks the test sets forward.
class Machine {
 public:
  explicit Machine(double ticks_per_us = kTicksPerUs) { watch.begin(at, ticks_per_us); }
  /// The counter may run at another rate than was measured.
  [[nodiscard]] bool agrees_after(std::uint64_t ns, double rate = 1) {
    at.ns += ns;
    at.counter += static_cast<std::uint64_t>(static_cast<double>(ns) * 1e-3 * kTicksPerUs * rate);
    return watch.agrees(at);
  }
  CounterWatch watch;
  CounterWatch::Reading at{.counter = std::uint64_t{1} << 50, .ns = kHour};
};

TEST(Clock, TheCounterMayDriftAsTheSystemsClockIsSlewed) {
  for (const double rate : {1.0, 1.0005, 0.9995}) {
    Machine machine;
    for (int hour = 0; hour < 24 * 30; ++hour) ASSERT_TRUE(machine.agrees_after(kHour, rate)) << hour << " " << rate;
    for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(machine.agrees_after(100 * kMs, rate)) << i << " " << rate;
    ASSERT_TRUE(machine.agrees_after(300 * 24 * kHour, rate)) << rate;
  }
}

TEST(Clock, ACounterThatHasJumpedIsGivenUp) {
  struct Jump {
    const char* what;
    std::int64_t by_ns;
  };
  const std::vector<Jump> jumps = {{"forward, a little", 25 * static_cast<std::int64_t>(kMs)},
                                   {"back, a little", -25 * static_cast<std::int64_t>(kMs)},
                                   {"forward, a day", 24 * static_cast<std::int64_t>(kHour)},
                                   {"back, a day", -24 * static_cast<std::int64_t>(kHour)}};
  for (const Jump& jump : jumps) {
    Machine machine;
    ASSERT_TRUE(machine.agrees_after(kSecond));
    const std::uint64_t before = machine.at.counter;
    machine.at.counter +=
        static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<double>(jump.by_ns) * 1e-3 * kTicksPerUs));
    EXPECT_FALSE(machine.agrees_after(100 * kMs)) << jump.what;
    // Time goes on where it was, at the same rate: deadlines are neither late nor early.
    const double passed_us = static_cast<double>(machine.watch.ticks_at(machine.at.ns) - before) / kTicksPerUs;
    EXPECT_NEAR(passed_us, 100'000, 1) << jump.what;
    const double second_us =
        static_cast<double>(machine.watch.ticks_at(machine.at.ns + kSecond) - machine.watch.ticks_at(machine.at.ns)) /
        kTicksPerUs;
    EXPECT_NEAR(second_us, 1e6, 1) << jump.what;
  }
}

TEST(Clock, ACounterFromZeroIsGivenUp) {
  Machine machine;
  machine.at = {.counter = 1000, .ns = machine.at.ns + kSecond};  // As after a machine was suspended to memory.
  EXPECT_TRUE(machine.watch.is_due(machine.at.counter));
  EXPECT_FALSE(machine.watch.agrees(machine.at));
}

TEST(Clock, ACounterOfAnotherRateIsGivenUp) {
  for (const double rate : {0.5, 0.97, 1.03, 2.0}) {
    Machine machine;
    bool agrees = true;
    for (int i = 0; agrees && i < 100; ++i) agrees = machine.agrees_after(2 * kSecond, rate);
    EXPECT_FALSE(agrees) << rate;
  }
}

TEST(Clock, AMachineThatWasSuspendedGoesOn) {
  Machine machine;
  ASSERT_TRUE(machine.agrees_after(kSecond));
  machine.at.counter += static_cast<std::uint64_t>(8 * 3600e6 * kTicksPerUs);  // CLOCK_MONOTONIC stood still.
  EXPECT_FALSE(machine.agrees_after(kMs));
  EXPECT_NEAR(
      static_cast<double>(machine.watch.ticks_at(machine.at.ns + kSecond) - machine.watch.ticks_at(machine.at.ns)),
      1e6 * kTicksPerUs, kTicksPerUs);
}

TEST(Clock, ReadingsAreDueNowAndThenAndWhenTheCounterIsBehind) {
  Machine machine;
  const std::uint64_t at = machine.at.counter;
  EXPECT_FALSE(machine.watch.is_due(at));
  EXPECT_FALSE(machine.watch.is_due(at + static_cast<std::uint64_t>(99'000 * kTicksPerUs)));
  EXPECT_TRUE(machine.watch.is_due(at + static_cast<std::uint64_t>(101'000 * kTicksPerUs)));
  EXPECT_TRUE(machine.watch.is_due(at - 1));
}

TEST(Clock, ThisMachinesIsDescribed) {
  const std::uint64_t first = ticks_now();
  EXPECT_LE(first, ticks_now());
  const bool is_counter = std::strstr(clock_description(), "counter, which is invariant") != nullptr;
  EXPECT_TRUE(is_counter || std::strncmp(clock_description(), "CLOCK_MONOTONIC (slower)", 24) == 0)
      << clock_description();
  if (!is_counter) {
    EXPECT_EQ(ticks_per_us(), 1000.0);
  }
}

}  // namespace
}  // namespace verbena
