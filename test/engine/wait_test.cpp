// How a loop waits, and that no wake-up is lost; pollers that connections share.
#include "../message/fixture.hpp"
#include "engine/poller.hpp"

#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <thread>

namespace verbena::engine {
namespace {

using namespace message::test;
using message::Channel;
using namespace std::chrono_literals;

TEST(WaitPolicy, SpinNeverSleepsAndEventHardlyPolls) {
  Node spins({.wait = WaitPolicy::kSpin, .spin = 0ns});
  EXPECT_EQ(spins.loop->wait(Deadline::after(5ms)), 0u);
  EXPECT_EQ(spins.loop->counters().sleeps, 0u);
  Node sleeps({.wait = WaitPolicy::kEvent, .spin = 1h});
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
      ASSERT_EQ(side.loop->wait_until([&] { return (sent = side.channel->send(body)) != Status::kAgain; },
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

struct PollerTest : testing::Test {
  void SetUp() override { make({}); }
  void make(PollerOptions options) {
    auto made = Poller::create(*node.nic, std::move(options));
    ASSERT_OK(made);
    poller = std::move(*made);
  }
  Node node;
  std::unique_ptr<Poller> poller;
};

TEST_F(PollerTest, CarriesOutTasksInItsThread) {
  EXPECT_EQ(poller->run([] { FAIL(); }, patience()), Status::kClosed) << "not started";
  ASSERT_OK(poller->start());
  EXPECT_STATUS(poller->start(), Status::kBusy);
  EXPECT_FALSE(poller->is_this_thread());
  std::thread::id id;
  bool nested = false;
  EXPECT_EQ(poller->run(
                [&] {
                  id = std::this_thread::get_id();
                  EXPECT_TRUE(poller->is_this_thread());
                  EXPECT_EQ(poller->run([&] { nested = true; }, Deadline::now()), Status::kOk);
                },
                patience()),
            Status::kOk);
  EXPECT_NE(id, std::thread::id{});
  EXPECT_NE(id, std::this_thread::get_id());
  EXPECT_TRUE(nested);
  std::atomic<int> count = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int k = 0; k < 500; ++k) EXPECT_EQ(poller->run([&] { ++count; }, patience()), Status::kOk);
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(count, 2000);
  poller->stop();
  EXPECT_EQ(poller->run([] { FAIL(); }, patience()), Status::kClosed);
  poller->stop();
  ASSERT_OK(poller->start());
  EXPECT_EQ(poller->run([&] { ++count; }, patience()), Status::kOk);
}

TEST_F(PollerTest, TasksThatDoNotBeginInTimeAreTakenBack) {
  make({.max_tasks = 1});
  ASSERT_OK(poller->start());
  std::atomic<bool> is_running = false;
  std::atomic<bool> may_end = false;
  std::thread blocker([&] {
    EXPECT_EQ(poller->run(
                  [&] {
                    is_running = true;
                    while (!may_end) std::this_thread::yield();
                  },
                  patience()),
              Status::kOk)
        << "what runs is waited for";
  });
  const Deadline deadline = patience();
  while (!is_running && !deadline.passed()) std::this_thread::yield();
  EXPECT_TRUE(is_running);
  if (is_running) {
    EXPECT_EQ(poller->run([] { FAIL(); }, Deadline::after(2ms)), Status::kTimedOut);
    std::thread waiting([&] {
      Status status = Status::kAgain;
      while (status == Status::kAgain) status = poller->run([] {}, patience());
      EXPECT_EQ(status, Status::kOk);
    });
    Status second = Status::kOk;
    // No place is taken while this thread sleeps: on one cpu the other would never find it free.
    while (second != Status::kAgain && !deadline.passed()) {
      second = poller->run([] {}, Deadline::now());
      std::this_thread::yield();
    }
    EXPECT_EQ(second, Status::kAgain) << "one task at a time";
    std::thread ender([&] {
      std::this_thread::sleep_for(5ms);
      may_end = true;
    });
    EXPECT_EQ(poller->run([] {}, Deadline::never()), Status::kOk) << "it waits for its place";
    ender.join();
    waiting.join();
  }
  may_end = true;
  blocker.join();
}

TEST_F(PollerTest, StopRefusesWhatDidNotBegin) {
  ASSERT_OK(poller->start());
  for (int i = 0; i < 200; ++i) {
    std::atomic<int> calls = 0;
    Status status = Status::kOk;
    std::thread caller([&] { status = poller->run([&] { ++calls; }, patience()); });
    poller->stop();
    caller.join();
    EXPECT_EQ(calls, status == Status::kOk ? 1 : 0);
    EXPECT_TRUE(status == Status::kOk || status == Status::kClosed) << to_string(status);
    ASSERT_OK(poller->start());
  }
}

/// Sends back what comes.
class Echo final : public message::Handler {
 public:
  void on_message(Channel& channel, std::span<const std::byte> body) noexcept override {
    ++count;
    EXPECT_EQ(channel.send(body), Status::kOk);
  }
  void on_fragment(Channel&, const message::Fragment&) noexcept override {}
  void on_complete(Channel&, std::uint64_t, Status) noexcept override {}
  void on_failure(Channel&, Status) noexcept override { ++failures; }
  std::atomic<std::uint64_t> count = 0;
  std::atomic<std::uint64_t> failures = 0;
};

TEST_F(PollerTest, IsSharedByConnectionsOfSeveralThreads) {
  ASSERT_OK(poller->start());
  Echo echo;
  constexpr std::uint64_t kClients = 4;
  std::vector<std::unique_ptr<Channel>> ends(kClients);
  const std::uint64_t turns = node.rounds(500);
  std::vector<std::thread> clients;
  for (std::uint64_t i = 0; i < kClients; ++i)
    clients.emplace_back([&, i] {
      Side side;
      auto here = Channel::create(*side.loop, side.pd.get(), {}, side.recorder);
      auto there = Channel::create(poller->loop(), node.pd.get(), {}, echo);
      ASSERT_OK(here);
      ASSERT_OK(there);
      ends[i] = std::move(*there);
      const auto end_here = (*here)->local_endpoint({});
      const auto end_there = ends[i]->local_endpoint({});
      ASSERT_OK(end_here);
      ASSERT_OK(end_there);
      ASSERT_OK(ends[i]->connect(*end_there, *end_here, patience()));
      ASSERT_OK((*here)->connect(*end_here, *end_there, patience()));
      for (std::uint64_t k = 0; k < turns; ++k) {
        ASSERT_EQ((*here)->send(pattern(16, k)), Status::kOk);
        ASSERT_EQ(side.loop->wait_until([&] { return side.recorder.message_count > k; }, patience()), Status::kOk);
        ASSERT_EQ(side.recorder.messages.back(), pattern(16, k));
      }
    });
  for (auto& client : clients) client.join();
  EXPECT_EQ(echo.count, kClients * turns);
  // Ended where they are polled.
  EXPECT_EQ(poller->run([&] { ends.clear(); }, patience()), Status::kOk);
}

TEST_F(PollerTest, LeavesWhatIsPendingToWhoeverStoppedIt) {
  ASSERT_OK(poller->start());
  Side side;
  Recorder recorder;
  auto here = Channel::create(poller->loop(), node.pd.get(), {}, recorder);
  auto there = Channel::create(*side.loop, side.pd.get(), {}, side.recorder);
  ASSERT_OK(here);
  ASSERT_OK(there);
  const auto end_here = (*here)->local_endpoint({});
  const auto end_there = (*there)->local_endpoint({});
  ASSERT_OK((*there)->connect(*end_there, *end_here, patience()));
  ASSERT_OK((*here)->connect(*end_here, *end_there, patience()));
  side.loop->poll();
  EXPECT_EQ(poller->run([&] { EXPECT_EQ((*here)->send(pattern(8, 1)), Status::kOk); }, patience()), Status::kOk);
  poller->stop();
  ASSERT_EQ(side.loop->wait_until([&] { return side.recorder.message_count == 1; }, patience()), Status::kOk);
  ASSERT_EQ((*there)->send(pattern(8, 2)), Status::kOk);
  EXPECT_TRUE(recorder.messages.empty());
  // This thread owns the loop now.
  EXPECT_TRUE(poll_until({&poller->loop(), side.loop.get()}, [&] { return recorder.message_count == 1; }));
  here->reset();
}

TEST_F(PollerTest, RunsItsDutyBetweenWaitsAndOnceAtItsEnd) {
  struct Counting final : Duty {
    Deadline before_wait() noexcept override {
      ++before;
      return Deadline::after(1ms);
    }
    void after_wait(unsigned) noexcept override { ++after; }
    void before_end() noexcept override { ++ends; }
    std::atomic<int> before = 0, after = 0, ends = 0;
  } duty;
  auto made = Poller::create(*node.nic, {.name = "test-poller"}, &duty);
  ASSERT_OK(made);
  ASSERT_OK((*made)->start());
  const Deadline deadline = patience();
  while (duty.after < 5 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(duty.ends, 0);
  (*made)->stop();
  EXPECT_GE(duty.after, 5);
  EXPECT_EQ(duty.before, duty.after);
  EXPECT_EQ(duty.ends, 1);
}

TEST_F(PollerTest, IsPinnedWhereItIsAsked) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  unsigned last = 0;
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) last = cpu;
  make({.cpu = last});
  ASSERT_OK(poller->start());
  cpu_set_t got;
  CPU_ZERO(&got);
  EXPECT_EQ(poller->run([&] { EXPECT_EQ(sched_getaffinity(0, sizeof got, &got), 0); }, patience()), Status::kOk);
  EXPECT_EQ(CPU_COUNT(&got), 1);
  EXPECT_TRUE(CPU_ISSET(last, &got));
}

TEST_F(PollerTest, RefusesOptionsThatCannotWork) {
  EXPECT_STATUS(Poller::create(*node.nic, {.max_tasks = 0}), Status::kBadArgument);
  EXPECT_STATUS(Poller::create(*node.nic, {.loop = {.max_connections = 0}}), Status::kBadArgument);
  EXPECT_STATUS(CompletionLoop::create(*node.nic, {.spin = -1ns}), Status::kBadArgument);
  EXPECT_STATUS(CompletionLoop::create(*node.nic, {.cqe = ~0u}), Status::kLimit);
}

}  // namespace
}  // namespace verbena::engine
