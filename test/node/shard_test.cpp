// Threads that poll a loop, and carry out the calls of others.
#include "../channel/fixture.hpp"
#include "fixture.hpp"

#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

namespace verbena::node {
namespace {

using namespace node::test;
using channel::test::pattern;
using channel::test::Recorder;
using channel::test::Side;

/// Nothing to do but to poll; counts.
struct Idle final : engine::Duty {
  Deadline before_wait() noexcept override {
    ++before;
    return wakes ? Deadline::after(1ms) : Deadline::never();
  }
  void after_wait(unsigned /*handled*/) noexcept override { ++after; }
  void before_end() noexcept override { ++ends; }
  std::atomic<int> before = 0, after = 0, ends = 0;
  bool wakes = false;
};

struct ShardTest : testing::Test {
  void SetUp() override { make({}); }
  void make(const ShardOptions& options) {
    auto made = Shard::create(device, options);
    ASSERT_OK(made);
    shard = std::move(*made);
  }
  template <class Task>
  [[nodiscard]] Status call(const Task& task) {
    return shard->loop().call(task, node::test::patience());
  }
  std::shared_ptr<Device> device = open_device();
  Idle duty;
  std::unique_ptr<Shard> shard;
};

TEST_F(ShardTest, CarriesOutCallsInItsThread) {
  EXPECT_EQ(call([] { FAIL(); }), Status::kClosed) << "not started";
  ASSERT_OK(shard->start(duty));
  EXPECT_STATUS(shard->start(duty), Status::kBusy);
  EXPECT_FALSE(shard->loop().is_owner());
  std::thread::id id;
  bool is_nested = false;
  EXPECT_EQ(call([&] {
              id = std::this_thread::get_id();
              EXPECT_TRUE(shard->loop().is_owner());
              EXPECT_EQ(shard->loop().call([&] { is_nested = true; }, Deadline::now()), Status::kOk);
            }),
            Status::kOk);
  EXPECT_NE(id, std::thread::id{});
  EXPECT_NE(id, std::this_thread::get_id());
  EXPECT_TRUE(is_nested);
  shard->stop();
  EXPECT_EQ(call([] { FAIL(); }), Status::kClosed);
  shard->stop();
  ASSERT_OK(shard->start(duty));
  int count = 0;
  EXPECT_EQ(call([&] { ++count; }), Status::kOk);
  EXPECT_EQ(count, 1);
}

/// Sends back what comes.
class Echo final : public channel::Handler {
 public:
  void on_message(channel::Connection& connection, std::span<const std::byte> body) noexcept override {
    ++count;
    EXPECT_EQ(connection.send(body), Status::kOk);
  }
  void on_complete(channel::Connection&, const channel::Completion&) noexcept override {}
  void on_end(channel::Connection&, Status) noexcept override {}
  std::atomic<std::uint64_t> count = 0;
};

TEST_F(ShardTest, IsSharedByConnectionsOfSeveralThreads) {
  ASSERT_OK(shard->start(duty));
  Echo echo;
  constexpr std::uint64_t kClients = 4;
  std::vector<std::unique_ptr<channel::Connection>> ends(kClients);
  const std::uint64_t turns = verbena::test::rounds(device->nic(), 500);
  std::vector<std::thread> clients;
  for (std::uint64_t i = 0; i < kClients; ++i)
    clients.emplace_back([&, i] {
      Side side;
      auto here = side.make({}, side.recorder);
      auto there = channel::Connection::create(shard->loop(), shard->memory(), {}, echo);
      ASSERT_OK(here);
      ASSERT_OK(there);
      ends[i] = std::move(*there);
      ASSERT_NO_FATAL_FAILURE(channel::test::join(*ends[i], **here));
      for (std::uint64_t k = 0; k < turns; ++k) {
        ASSERT_EQ((*here)->send(pattern(16, k)), Status::kOk);
        ASSERT_EQ(side.loop->wait_until([&] { return side.recorder.message_count > k; }, node::test::patience()),
                  Status::kOk);
        ASSERT_EQ(side.recorder.messages.back(), pattern(16, k));
      }
    });
  for (auto& client : clients) client.join();
  EXPECT_EQ(echo.count, kClients * turns);
  // Ended where they are polled.
  EXPECT_EQ(call([&] { ends.clear(); }), Status::kOk);
}

TEST_F(ShardTest, LeavesWhatIsPendingToWhoeverStoppedIt) {
  ASSERT_OK(shard->start(duty));
  Side side;
  Recorder recorder;
  auto here = channel::Connection::create(shard->loop(), shard->memory(), {}, recorder);
  auto there = side.make({}, side.recorder);
  ASSERT_OK(here);
  ASSERT_OK(there);
  ASSERT_NO_FATAL_FAILURE(channel::test::join(**here, **there));
  side.loop->poll();
  EXPECT_EQ(call([&] { EXPECT_EQ((*here)->send(pattern(8, 1)), Status::kOk); }), Status::kOk);
  shard->stop();
  // This thread owns the loop now. Under chaos, the message arrives only while its sender polls.
  EXPECT_TRUE(
      verbena::test::poll_until({&shard->loop(), side.loop.get()}, [&] { return side.recorder.message_count == 1; }));
  ASSERT_EQ((*there)->send(pattern(8, 2)), Status::kOk);
  EXPECT_TRUE(recorder.messages.empty());
  EXPECT_TRUE(
      verbena::test::poll_until({&shard->loop(), side.loop.get()}, [&] { return recorder.message_count == 1; }));
  here->reset();
}

TEST_F(ShardTest, DoesItsDutyBetweenWaitsAndOnceAtItsEnd) {
  duty.wakes = true;
  ASSERT_OK(shard->start(duty));
  const Deadline deadline = node::test::patience();
  while (duty.after < 5 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(duty.ends, 0);
  shard->stop();
  EXPECT_GE(duty.after, 5);
  EXPECT_EQ(duty.before, duty.after);
  EXPECT_EQ(duty.ends, 1);
}

TEST_F(ShardTest, IsPinnedWhereItIsAsked) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  unsigned last = 0;
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) last = cpu;
  make({.cpu = last});
  ASSERT_OK(shard->start(duty));
  cpu_set_t got;
  CPU_ZERO(&got);
  EXPECT_EQ(call([&] { EXPECT_EQ(sched_getaffinity(0, sizeof got, &got), 0); }), Status::kOk);
  EXPECT_EQ(CPU_COUNT(&got), 1);
  EXPECT_TRUE(CPU_ISSET(last, &got));
}

TEST_F(ShardTest, RefusesOptionsThatCannotWork) {
  EXPECT_STATUS(Shard::create(device, {.loop = {.max_connections = 0}}), Status::kBadArgument);
  EXPECT_STATUS(Shard::create(device, {.loop = {.cqe = ~0u}}), Status::kLimit);
}

}  // namespace
}  // namespace verbena::node
