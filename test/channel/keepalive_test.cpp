// Idle connections ask whether the peer is there: on devices by default, here on every NIC.
#include "fixture.hpp"

#include <gtest/gtest.h>

namespace verbena::channel::test {
namespace {

using engine::KeepaliveOn;
using namespace std::chrono_literals;

constexpr engine::LoopOptions kOften{.spin = 1us, .keepalive = 1ms, .keepalive_on = KeepaliveOn::kEveryNic};

/// Waits in `side`, whose peer nobody polls, until it has sent some more keepalives.
[[nodiscard]] bool keeps_alive(Side& side) {
  const std::uint64_t enough = side.loop->counters().keepalives + 3;
  return side.loop->wait_until([&] { return side.loop->counters().keepalives >= enough; }, patience()) == Status::kOk;
}

/// Polls longer than many intervals of kOften; how many keepalives that made.
[[nodiscard]] std::uint64_t keepalives_of_a_while(Side& side) {
  const std::uint64_t before = side.loop->counters().keepalives;
  const Deadline end = Deadline::after(20ms);
  while (!end.passed()) side.loop->wait(end);
  return side.loop->counters().keepalives - before;
}

TEST(Keepalive, IdleLoopSleepsAndSendsThem) {
  Side a(kOften);
  Side b({.keepalive = 0ns});
  connect(a, b, {}, {});
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  const engine::Counters before = a.loop->counters();
  ASSERT_TRUE(keeps_alive(a));
  const engine::Counters after = a.loop->counters();
  EXPECT_EQ(after.work_requests - before.work_requests, after.keepalives - before.keepalives);
  EXPECT_GT(after.sleeps, before.sleeps);
  EXPECT_TRUE(a.connection->alive());
  // The peer sees nothing of them.
  b.loop->poll();
  EXPECT_EQ(b.loop->counters().completions, 0u);
  ASSERT_EQ(a.connection->send(pattern(8, 1)), Status::kOk);
  ASSERT_TRUE(poll_until({a.loop.get(), b.loop.get()}, [&] { return b.recorder.messages.size() == 1; }));
}

// A message is signaled once in a while: it may have been answered long ago, and its completion tells nothing.
TEST(Keepalive, GoesBehindAMessageThatIsNotSignaled) {
  Side a(kOften);
  Side b;
  connect(a, b, {}, {});
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  b.loop->poll();
  ASSERT_EQ(a.connection->send(pattern(8, 1)), Status::kOk);
  const std::uint64_t completions = a.loop->counters().completions;
  ASSERT_TRUE(keeps_alive(a));
  EXPECT_GT(a.loop->counters().completions, completions) << "they are signaled";
  EXPECT_TRUE(a.connection->alive());
}

// Sends on one connection make every poll find something, so that the loop never comes to wait.
TEST(Keepalive, BusyLoopSendsThemOnIdleConnections) {
  Side a(kOften);
  Side b;
  connect(a, b, {}, {});
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  Recorder busy_at_a, busy_at_b;
  busy_at_a.keep = busy_at_b.keep = false;
  auto made_a = a.make({}, busy_at_a);
  auto made_b = b.make({}, busy_at_b);
  ASSERT_OK(made_a);
  ASSERT_OK(made_b);
  ASSERT_NO_FATAL_FAILURE(join(**made_a, **made_b));
  const Deadline deadline = patience();
  ASSERT_TRUE(poll_until({a.loop.get(), b.loop.get()}, [&] {
    while ((*made_b)->send(pattern(8, 1)) == Status::kOk) {}
    return a.loop->counters().keepalives >= 2 || deadline.passed();
  }));
  EXPECT_GE(a.loop->counters().keepalives, 2u);
  EXPECT_EQ(a.loop->counters().sleeps, 0u);
  EXPECT_TRUE(a.connection->alive());
  EXPECT_TRUE((*made_a)->alive());
}

TEST(Keepalive, SpinningLoopSendsThem) {
  engine::LoopOptions spinning = kOften;
  spinning.spin = 1h;
  Side a(spinning);
  Side b;
  connect(a, b, {}, {});
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  ASSERT_TRUE(keeps_alive(a));
  EXPECT_EQ(a.loop->counters().sleeps, 0u);
}

TEST(Keepalive, OneAtATime) {
  Side a(kOften);
  Side b({.keepalive = 0ns});
  connect(a, b, {}, {});
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  // b's loop is not polled, so that it posts no receive: the message waits for one, and the keepalive behind it.
  ASSERT_EQ(a.connection->send(pattern(8, 1)), Status::kOk);
  const Deadline deadline = patience();
  while (a.loop->counters().keepalives == 0 && !deadline.passed()) a.loop->wait(Deadline::after(1ms));
  EXPECT_EQ(keepalives_of_a_while(a), 0u);
  EXPECT_EQ(a.loop->counters().keepalives, 1u);
  EXPECT_TRUE(a.connection->alive());
}

TEST(Keepalive, CanBeTurnedOff) {
  engine::LoopOptions off = kOften;
  off.keepalive = 0ns;
  Side a(off);
  Side b(off);
  connect(a, b, {}, {});
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  EXPECT_EQ(keepalives_of_a_while(a), 0u);
}

TEST(Keepalive, ByDefaultOnDevicesOnly) {
  engine::LoopOptions usual = kOften;
  usual.keepalive_on = engine::LoopOptions{}.keepalive_on;
  Side a(usual);
  Side b(usual);
  connect(a, b, {}, {});
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  if (device_under_test() != nullptr) {
    EXPECT_TRUE(keeps_alive(a));
  } else {
    EXPECT_EQ(keepalives_of_a_while(a), 0u);
  }
}

}  // namespace
}  // namespace verbena::channel::test
