// How a loop waits, and that no wake-up is lost.
#include "fixture.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace verbena::channel::test {
namespace {

using engine::LoopOptions;
using engine::WaitPolicy;
using namespace std::chrono_literals;

TEST(WaitPolicy, SpinNeverSleepsAndEventHardlyPolls) {
  LoopSide spins({.wait = WaitPolicy::kSpin, .spin = 0ns});
  EXPECT_EQ(spins.loop->wait(Deadline::after(5ms)), 0u);
  EXPECT_EQ(spins.loop->counters().sleeps, 0u);
  LoopSide sleeps({.wait = WaitPolicy::kEvent, .spin = 1h});
  EXPECT_EQ(sleeps.loop->wait(Deadline::after(5ms)), 0u);
  EXPECT_GE(sleeps.loop->counters().sleeps, 1u);
  EXPECT_LE(sleeps.loop->counters().empty_polls, 3 * sleeps.loop->counters().sleeps + 1);
}

TEST(WaitPolicy, HasNames) {
  EXPECT_STREQ(to_string(WaitPolicy::kSpin), "spin");
  EXPECT_STREQ(to_string(WaitPolicy::kAdaptive), "adaptive");
  EXPECT_STREQ(to_string(WaitPolicy::kEvent), "event");
}

/// Two threads with a loop each, which play a message to and fro.
class PingPong : public testing::TestWithParam<WaitPolicy> {};

// A side that sleeps when it should not waits for its deadline, which is over long before the other's patience is: the
// sides' loops have no keepalive that would wake them by chance.
TEST_P(PingPong, LosesNoWakeUp) {
  const LoopOptions options{.wait = GetParam(), .spin = 1us, .keepalive = 0ns};
  Side a(options);
  Side b(options);
  ASSERT_NO_FATAL_FAILURE(connect(a, b, {}, {}));
  a.recorder.keep = b.recorder.keep = false;
  const std::uint64_t turns = a.rounds(20'000);
  std::atomic<bool> failed = false;
  std::atomic<unsigned> over = 0;
  const auto play = [&](Side& side, std::uint64_t ahead) {
    const Bytes body = pattern(8, 1);
    for (std::uint64_t i = 0; i < turns && !failed; ++i) {
      if (ahead != 0) {
        ASSERT_EQ(side.loop->wait_until([&] { return side.recorder.message_count > i; }, Deadline::after(10s)),
                  Status::kOk)
            << (failed = true, "turn ") << i;
      }
      // From nothing to some microseconds: the answer comes while the other side is on its way to sleep.
      for (std::uint64_t pause = i % 97 * 13; pause != 0; --pause) asm volatile("" ::: "memory");
      Status sent = Status::kAgain;
      ASSERT_EQ(side.loop->wait_until([&] { return (sent = side.connection->send(body)) != Status::kAgain; },
                                      Deadline::after(10s)),
                Status::kOk)
          << (failed = true, "");
      ASSERT_EQ(sent, Status::kOk) << (failed = true, "");
      if (ahead == 0) {
        ASSERT_EQ(side.loop->wait_until([&] { return side.recorder.message_count > i; }, Deadline::after(10s)),
                  Status::kOk)
            << (failed = true, "turn ") << i;
      }
    }
    // Under chaos the last message is carried out some polls after it was sent.
    for (++over; over != 2 && !failed;) side.loop->poll();
  };
  std::thread other([&] { play(b, 1); });
  play(a, 0);
  other.join();
  EXPECT_FALSE(failed);
  if (GetParam() == WaitPolicy::kEvent) {
    EXPECT_GT(b.loop->counters().sleeps, 0u);
  }
}
INSTANTIATE_TEST_SUITE_P(Policies, PingPong, testing::Values(WaitPolicy::kAdaptive, WaitPolicy::kEvent),
                         [](const auto& given) { return to_string(given.param); });

}  // namespace
}  // namespace verbena::channel::test
