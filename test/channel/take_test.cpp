// Messages that a connection takes past the queues, among those that go through them.
#include "fixture.hpp"

#include <chaos.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace verbena::channel::test {
namespace {

class Taking : public ConnectionPair {
 protected:
  /// Whether short messages can go past the queues at all.
  [[nodiscard]] bool is_possible() const { return b.nic->direct() != nullptr && !verbena::test::in_chaos(); }
};

TEST_F(Taking, NeedsNoReceiveForAShortMessage) {
  open();
  constexpr std::uint64_t kMessages = 500;
  const std::uint64_t before = b.loop->counters().receive_refills;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(a.connection->send(pattern(8, i)), Status::kOk);
    ASSERT_TRUE(until([&] { return b.recorder.message_count == i + 1; }));
    EXPECT_EQ(b.recorder.messages[i], pattern(8, i));
    // An answer, so that the credits go back with it.
    if (i % 8 == 0) {
      ASSERT_EQ(b.connection->send(pattern(3, i)), Status::kOk);
    }
  }
  const std::uint64_t refills = b.loop->counters().receive_refills - before;
  // One poll in 16 looks at the queues.
  if (is_possible()) {
    EXPECT_LE(refills, kMessages / 16 / 16 + 1);
  } else {
    EXPECT_GE(refills, kMessages / 32);
  }
  EXPECT_GE(b.loop->counters().completions, kMessages) << "a message that was taken counts as a completion";
}

TEST_F(Taking, LeavesReceivesAloneThatAHandlerKeeps) {
  open({}, {.keeps_messages = true});
  const std::uint64_t before = b.loop->counters().receive_refills;
  for (std::uint64_t i = 0; i < 300; ++i) {
    send(*a.connection, pattern(8, i));
    ASSERT_TRUE(until([&] { return b.recorder.message_count == i + 1; }));
  }
  EXPECT_GT(b.loop->counters().receive_refills, before);
}

// Counters wrap, credits come and go both ways, and nothing is lost, doubled or out of order.
TEST_F(Taking, KeepsOrderAmongMessagesOfAllLengths) {
  constexpr std::uint32_t kNearWrap = std::numeric_limits<std::uint32_t>::max() - 500;
  open({.depth = 8, .first_count = kNearWrap}, {.depth = 12, .first_count = kNearWrap});
  std::mt19937 random(11);
  std::uint64_t there = 0, back = 0;
  for (int round = 0; round < 1500; ++round) {
    const std::uint64_t there_before = there, back_before = back;
    for (unsigned n = random() % 4; n > 0; --n) {
      const std::size_t length = random() % 4 == 0 ? 1 + random() % 5000 : 1 + random() % 112;
      send(*a.connection, pattern(length, ++there));
      if (random() % 3 == 0) b.loop->poll();
    }
    for (unsigned n = random() % 4; n > 0; --n) send(*b.connection, pattern(1 + random() % 130, ++back));
    ASSERT_TRUE(until([&] { return b.recorder.message_count == there && a.recorder.message_count == back; }));
    for (std::uint64_t i = there_before; i < there; ++i)
      ASSERT_EQ(b.recorder.messages[i], pattern(b.recorder.messages[i].size(), i + 1)) << "message " << i;
    for (std::uint64_t i = back_before; i < back; ++i)
      ASSERT_EQ(a.recorder.messages[i], pattern(a.recorder.messages[i].size(), i + 1)) << "answer " << i;
  }
  EXPECT_TRUE(a.connection->alive() && b.connection->alive());
}

// A connection whose messages come one by one does not keep a poll from the others of its loop.
TEST_F(Taking, LeavesTurnsToOtherConnections) {
  open();
  Side c;
  Recorder other;
  auto made = c.make({}, c.recorder);
  auto second = b.make({}, other);
  ASSERT_OK(made);
  ASSERT_OK(second);
  c.connection = std::move(*made);
  ASSERT_NO_FATAL_FAILURE(join(*c.connection, **second));
  b.loop->poll();
  c.loop->poll();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(a.connection->send(pattern(8, 1)), Status::kOk);
    ASSERT_TRUE(until([&] { return b.recorder.message_count == static_cast<std::uint64_t>(i) + 1; }));
  }
  ASSERT_EQ(c.connection->send(pattern(8, 2)), Status::kOk);
  int polls = 0;
  for (; other.message_count == 0 && polls < 64; ++polls) {
    ASSERT_EQ(a.connection->send(pattern(8, 3)), Status::kOk);
    b.loop->poll();
    a.loop->poll();
    c.loop->poll();
  }
  if (is_possible()) {
    EXPECT_LE(polls, 17);
  }
  EXPECT_TRUE(poll_until({a.loop.get(), b.loop.get(), c.loop.get()}, [&] { return other.message_count == 1; }));
  c.connection.reset();
  second->reset();
}

TEST_F(Taking, AHandlerMayEndTheConnection) {
  open();
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(a.connection->send(pattern(8, i)), Status::kOk);
    ASSERT_TRUE(until([&] { return b.recorder.message_count == i + 1; }));
  }
  b.recorder.when_message = [&](Connection& connection, std::span<const std::byte>) {
    connection.fail(Status::kClosed);
  };
  ASSERT_EQ(a.connection->send(pattern(8, 9)), Status::kOk);
  ASSERT_TRUE(until([&] { return !b.recorder.failures.empty(); }));
  EXPECT_EQ(b.recorder.message_count, 6U);
  EXPECT_EQ(b.recorder.failures.front(), Status::kClosed);
}

}  // namespace
}  // namespace verbena::channel::test
