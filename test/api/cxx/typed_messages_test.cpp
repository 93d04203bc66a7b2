// Messages that are started: they leave and arrive in the order of the calls, and their segments come back.
#include "typed_fixture.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace verbena::typed {
namespace {

using Words = Segment<std::uint64_t>;

/// Memory for messages of 512 KiB, of which the peer's inbox holds one, and a part of the next.
class TypedMessages : public TypedTest {
 protected:
  static constexpr std::size_t kLong = 64 * 1024;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TypedTest::SetUp());
    region = region_of<std::uint64_t>(16 * kLong);
  }
  /// Elements that count up from `first`, at a place of the test's choice.
  [[nodiscard]] Words numbers(std::size_t at, std::size_t count, std::uint64_t first) {
    Words words = taken(region, at, count);
    count_up(words, first);
    return words;
  }
  /// Sends two messages of kLong elements: the peer's inbox has room for one, and with the heads of its pieces not
  /// for all of the other. The first begins with 0, the second with 1.
  [[nodiscard]] Operation<Words> fill_inbox(Link& from) {
    auto first = from.start_send(numbers(0, kLong, 0));
    EXPECT_EQ(first.wait(patience()), Status::kOk) << error_detail();
    auto second = from.start_send(numbers(kLong, kLong, 1));
    EXPECT_TRUE(second.is_under_way());
    return second;
  }
  /// Polls both until both are complete: each of them may need the other's end.
  template <class One, class Other>
  static void complete(One& one, Other& other) {
    const Deadline limit = patience();
    for (bool is_over = false; !is_over && !limit.passed();) {
      is_over = one.poll();
      is_over = other.poll() && is_over;
    }
    EXPECT_EQ(one.status(), Status::kOk);
    EXPECT_EQ(other.status(), Status::kOk);
  }
  void expect_next(Link& at, Words& into, std::uint64_t first, std::size_t count = kLong) {
    const auto received = at.receive(into, patience());
    ASSERT_TRUE(received.has_value()) << to_string(received.error());
    ASSERT_EQ(received->count, count);
    EXPECT_EQ(into.get(0).value(), first);
    EXPECT_EQ(into.get(count - 1).value(), first + count - 1);
  }

  MemoryRegion<std::uint64_t> region;
};

/// What holds for both ends: the client's, which its caller drives, and the listener's, which a thread drives.
class TypedMessagesOfBoth : public TypedMessages, public testing::WithParamInterface<bool> {
 protected:
  [[nodiscard]] Link& one() { return GetParam() ? link : peer; }
  [[nodiscard]] Link& other() { return GetParam() ? peer : link; }
};
INSTANTIATE_TEST_SUITE_P(Ends, TypedMessagesOfBoth, testing::Bool(),
                         [](const auto& each) { return each.param ? "Client" : "Listener"; });

TEST_P(TypedMessagesOfBoth, ASendIsStartedAndItsSegmentComesBack) {
  auto [status, segment] = one().start_send(numbers(0, 10, 5)).finish(patience());
  ASSERT_EQ(status, Status::kOk) << error_detail();
  EXPECT_TRUE(counts_up(segment, 5));
  auto shared = std::move(segment).freeze();
  auto told = one().start_send_with_immediate(shared, 77);
  ASSERT_EQ(told.wait(patience()), Status::kOk) << error_detail();
  EXPECT_EQ(told.take()->size(), 10u);
  auto once_more = one().start_send_with_immediate(numbers(10, 3, 50), 78).finish(patience());
  ASSERT_EQ(once_more.status, Status::kOk) << error_detail();
  ASSERT_EQ(one().start_send(shared).finish(patience()).status, Status::kOk);
  Words into = taken(region, kLong, 100);
  for (const std::optional<std::uint32_t> immediate : {std::optional<std::uint32_t>{}, {77}, {78}, {}}) {
    const auto received = other().receive(into, patience());
    ASSERT_TRUE(received.has_value()) << error_detail();
    EXPECT_EQ(received->immediate, immediate);
    EXPECT_EQ(received->count, immediate == 78 ? 3u : 10u);
    EXPECT_EQ(into.get(0).value(), immediate == 78 ? 50u : 5u);
  }
}

TEST_P(TypedMessagesOfBoth, AReceiveIsStartedBeforeItsMessageComes) {
  auto receiving = other().start_receive(taken(region, kLong, 100));
  EXPECT_TRUE(receiving.is_under_way());
  EXPECT_EQ(receiving.received().error(), Status::kAgain);
  EXPECT_EQ(receiving.take().error(), Status::kBusy);
  EXPECT_EQ(region.take(kLong, 1).error(), Status::kBusy) << "nobody else may write there";
  EXPECT_FALSE(receiving.poll());
  Words words = numbers(0, 10, 9);
  ASSERT_EQ(one().send_with_immediate(words, 3, patience()), Status::kOk);
  auto outcome = std::move(receiving).finish(patience());
  ASSERT_EQ(outcome.status, Status::kOk) << error_detail();
  EXPECT_EQ(outcome.received.count, 10u);
  EXPECT_EQ(outcome.received.immediate, 3u);
  EXPECT_EQ(outcome.segment.size(), 100u);
  EXPECT_EQ(outcome.segment.get(9).value(), 18u);
  // What is there already is taken at once, where this end is looked at by a thread; else when it is polled.
  ASSERT_EQ(one().send(words, patience()), Status::kOk);
  auto next = other().start_receive(std::move(outcome.segment));
  ASSERT_EQ(next.wait(patience()), Status::kOk) << error_detail();
  EXPECT_EQ(next.received()->count, 10u);
  EXPECT_EQ(next.received()->immediate, std::nullopt);
  EXPECT_EQ(next.take()->get(0).value(), 9u);
}

TEST_P(TypedMessagesOfBoth, WithoutRoomSendsWaitTheirTurn) {
  auto waiting = fill_inbox(one());
  // Behind the one that waits: a short one, for which there might be room, and a call that gives up.
  auto last = one().start_send(numbers(15 * kLong, 2, 1000));
  EXPECT_TRUE(last.is_under_way());
  const Words never = numbers(14 * kLong, 1, 2000);
  EXPECT_EQ(one().send(never, Deadline::after(std::chrono::milliseconds{20})), Status::kTimedOut);
  EXPECT_FALSE(waiting.poll());
  EXPECT_EQ(waiting.wait(Deadline::now()), Status::kTimedOut);
  EXPECT_EQ(waiting.take().error(), Status::kBusy);
  EXPECT_FALSE(last.poll());
  Words into = taken(region, 8 * kLong, kLong);
  expect_next(other(), into, 0);
  auto receiving = other().start_receive(std::move(into));
  complete(waiting, receiving);
  EXPECT_EQ(receiving.received()->count, kLong);
  into = *receiving.take();
  EXPECT_TRUE(counts_up(into, 1));
  EXPECT_EQ(last.wait(patience()), Status::kOk);
  expect_next(other(), into, 1000, 2);
  EXPECT_EQ(other().receive(into, Deadline::now()).error(), Status::kTimedOut) << "the one that timed out";
}

// In the listener's thread. A client's second thread would be refused, as for every call.
TEST_F(TypedMessages, ABlockingSendLeavesBehindTheStartedOnes) {
  auto waiting = fill_inbox(peer);
  const Words tail = numbers(15 * kLong, 2, 1000);
  std::atomic<Status> sent{Status::kAgain};
  std::jthread blocking([&] { sent = peer.send(tail, patience()); });
  Words into = taken(region, 8 * kLong, kLong);
  for (const std::uint64_t first : {0u, 1u}) expect_next(link, into, first);
  expect_next(link, into, 1000, 2);
  blocking.join();
  EXPECT_EQ(sent, Status::kOk);
  EXPECT_EQ(waiting.wait(patience()), Status::kOk);
}

TEST_P(TypedMessagesOfBoth, ReceivesAreServedInTheirOrder) {
  auto first = other().start_receive(taken(region, 0, 10));
  auto dropped = std::optional(other().start_receive(taken(region, 10, 10)));
  auto third = other().start_receive(taken(region, 20, 10));
  dropped.reset();
  EXPECT_EQ(other().quarantined(), 1u);
  Words words = numbers(100, 5, 0);
  for (std::uint64_t i = 0; i < 3; ++i) {
    count_up(words, i * 10);
    ASSERT_EQ(one().send(words, patience()), Status::kOk);
  }
  // A blocking call comes behind the receives that were started before it.
  Words into = taken(region, 30, 10);
  expect_next(other(), into, 20, 5);
  ASSERT_EQ(third.wait(patience()), Status::kOk);
  ASSERT_TRUE(first.poll()) << "it came before";
  EXPECT_EQ(first.take()->get(0).value(), 0u);
  EXPECT_EQ(third.take()->get(0).value(), 10u);
  ASSERT_EQ(other().settle(patience()), Status::kOk);
  EXPECT_EQ(region.held(), 2u) << "words, into";
}

TEST_P(TypedMessagesOfBoth, ADroppedReceiveLeavesTheMessageToTheNext) {
  { const auto dropped = other().start_receive(taken(region, 0, 10)); }
  EXPECT_EQ(region.take(0, 10).error(), Status::kBusy) << "in quarantine";
  Words words = numbers(100, 5, 7);
  ASSERT_EQ(one().send(words, patience()), Status::kOk);
  Words into = taken(region, 30, 10);
  expect_next(other(), into, 7, 5);
  ASSERT_EQ(other().settle(patience()), Status::kOk) << error_detail();
  EXPECT_EQ(other().quarantined(), 0u);
  // Without any message it is over just so.
  { const auto dropped = other().start_receive(taken(region, 0, 10)); }
  ASSERT_EQ(other().settle(patience()), Status::kOk) << error_detail();
  EXPECT_TRUE(region.take(0, 10).has_value());
}

TEST_P(TypedMessagesOfBoth, ADroppedReceiveKeepsTheFrontThatItHas) {
  constexpr std::size_t kCount = 5 * kLong;
  auto receiving = std::optional(other().start_receive(taken(region, kCount, kCount)));
  auto sending = one().start_send(numbers(0, kCount, 1));
  // A part of it has come: it is more than an inbox holds.
  if (receiving->poll()) {
    ASSERT_EQ(sending.wait(patience()), Status::kOk);
    GTEST_SKIP() << "the other end's thread was as fast as this one: all of the message has come";
  }
  receiving.reset();
  auto again = other().start_receive(taken(region, 2 * kCount, kCount));
  complete(sending, again);
  EXPECT_EQ(again.received()->count, kCount);
  EXPECT_TRUE(counts_up(*again.take(), 1));
}

TEST_P(TypedMessagesOfBoth, ADroppedSendGoesOn) {
  { const auto dropped = fill_inbox(one()); }
  EXPECT_EQ(one().quarantined(), 1u);
  EXPECT_EQ(region.take(kLong, 1).error(), Status::kBusy);
  EXPECT_EQ(one().settle(Deadline::now()), Status::kTimedOut);
  Words into = taken(region, 8 * kLong, kLong);
  expect_next(other(), into, 0);
  auto receiving = other().start_receive(std::move(into));
  const Deadline limit = patience();
  while (!receiving.poll() && !limit.passed()) (void)one().settle(Deadline::now());
  ASSERT_EQ(receiving.status(), Status::kOk);
  EXPECT_TRUE(counts_up(*receiving.take(), 1));
  ASSERT_EQ(one().settle(patience()), Status::kOk) << error_detail();
  EXPECT_EQ(region.held(), 0u);
}

TEST_P(TypedMessagesOfBoth, WhatDoesNotFitIsRefusedAndWaits) {
  auto small = other().start_receive(taken(region, 0, 4));
  Words words = numbers(100, 5, 7);
  ASSERT_EQ(one().send(words, patience()), Status::kOk);
  const std::array<std::byte, 13> crooked{};
  ASSERT_EQ(one().unsafe_connection().send(crooked, patience()), Status::kOk);
  const auto outcome = std::move(small).finish(patience());
  EXPECT_EQ(outcome.status, Status::kBufferTooSmall);
  EXPECT_EQ(outcome.received.count, 0u);
  EXPECT_EQ(other().waiting<std::uint64_t>(), 5u);
  EXPECT_EQ(outcome.segment.size(), 4u);
  Words into = taken(region, 30, 10);
  expect_next(other(), into, 7, 5);
  auto odd = other().start_receive(std::move(into));
  EXPECT_EQ(odd.wait(patience()), Status::kBadArgument);
  EXPECT_NE(std::string(error_detail()).find("13 bytes"), std::string::npos) << error_detail();
  EXPECT_EQ(odd.received().error(), Status::kBadArgument);
  EXPECT_EQ(odd.take()->size(), 10u);
}

TEST_P(TypedMessagesOfBoth, AClosedLinkEndsItsMessages) {
  auto waiting = fill_inbox(one());
  auto kept = one().start_receive(taken(region, 8 * kLong, 10));
  { const auto dropped = one().start_receive(taken(region, 9 * kLong, 10)); }
  { const auto dropped = one().start_send(taken(region, 10 * kLong, 10)); }
  one().close();
  EXPECT_TRUE(region.take(9 * kLong).has_value()) << "what was in quarantine is the region's";
  EXPECT_TRUE(waiting.poll());
  EXPECT_EQ(waiting.status(), Status::kClosed);
  EXPECT_EQ(waiting.take()->size(), kLong);
  EXPECT_EQ(kept.wait(patience()), Status::kClosed);
  EXPECT_EQ(kept.take()->size(), 10u);
}

TEST_P(TypedMessagesOfBoth, APeerThatLeavesEndsThem) {
  auto waiting = fill_inbox(one());
  auto kept = one().start_receive(taken(region, 8 * kLong, 10));
  { const auto dropped = one().start_receive(taken(region, 9 * kLong, 10)); }
  Words words = numbers(10 * kLong, 5, 3);
  ASSERT_EQ(other().send(words, patience()), Status::kOk);
  ASSERT_EQ(other().send(words, patience()), Status::kOk);
  other().close();
  EXPECT_EQ(kept.wait(patience()), Status::kOk) << "what has arrived before is received";
  EXPECT_EQ(kept.received()->count, 5u);
  auto after = one().start_receive(taken(region, 11 * kLong, 10));
  EXPECT_EQ(after.wait(patience()), Status::kOk) << error_detail();
  const Status status = waiting.wait(patience());
  EXPECT_FALSE(waiting.is_under_way());
  EXPECT_TRUE(status == Status::kClosed || status == Status::kPeerLost) << to_string(status);
  EXPECT_EQ(one().start_receive(taken(region, 12 * kLong, 1)).wait(patience()), status);
  EXPECT_EQ(one().start_send(taken(region, 12 * kLong, 1)).status(), status);
  ASSERT_EQ(one().settle(patience()), Status::kOk);
}

TEST_P(TypedMessagesOfBoth, TheOperationsOfALinkAreLimited) {
  std::vector<MessageOperation<std::uint64_t>> receives;
  for (std::size_t i = 0; i < Link::kMaxOperations; ++i) {
    receives.push_back(one().start_receive(taken(region, i, 1)));
    ASSERT_TRUE(receives.back().is_under_way()) << i;
  }
  auto beyond = one().start_receive(taken(region, 100, 1));
  EXPECT_EQ(beyond.status(), Status::kAgain);
  EXPECT_EQ(beyond.take()->size(), 1u);
  EXPECT_EQ(one().start_send(taken(region, 100, 1)).status(), Status::kAgain);
  Words word = numbers(200, 1, 5);
  ASSERT_EQ(other().send(word, patience()), Status::kOk);
  ASSERT_EQ(receives.front().wait(patience()), Status::kOk);
  EXPECT_TRUE(one().start_receive(taken(region, 100, 1)).is_under_way());
  receives.clear();
  ASSERT_EQ(one().settle(patience()), Status::kOk);
  EXPECT_EQ(region.held(), 1u);
}

TEST_P(TypedMessagesOfBoth, MessagesAndTransfersAreUnderWayTogether) {
  const auto window = remote_of<std::uint64_t>(one().peer_window(), 0, 100);
  auto receiving = one().start_receive(taken(region, 0, 100));
  auto write = one().start_write(numbers(100, 100, 4), window);
  auto send = one().start_send(numbers(200, 100, 5));
  auto read = one().start_read(taken(region, 300, 100), window);
  ASSERT_EQ(read.wait(patience()), Status::kOk) << error_detail();
  EXPECT_TRUE(counts_up(*read.take(), 4));
  EXPECT_TRUE(write.poll());
  EXPECT_TRUE(receiving.is_under_way());
  EXPECT_EQ(send.wait(patience()), Status::kOk);
  Words words = taken(region, 1000, 100);
  expect_next(other(), words, 5, 100);
  ASSERT_EQ(other().send(words, patience()), Status::kOk);
  ASSERT_EQ(receiving.wait(patience()), Status::kOk);
  EXPECT_TRUE(counts_up(*receiving.take(), 5));
}

TEST_P(TypedMessagesOfBoth, OperationsOutliveTheirLink) {
  auto kept = std::optional(one().start_receive(taken(region, 15 * kLong, 10)));
  auto waiting = fill_inbox(one());
  { const Link gone = std::move(one()); }
  { const Link gone = std::move(other()); }
  region = {};
  listener.reset();
  node.reset();
  EXPECT_EQ(kept->wait(patience()), Status::kClosed);
  EXPECT_EQ(waiting.wait(patience()), Status::kClosed);
  EXPECT_EQ(waiting.take()->size(), kLong);
  auto segment = kept->take();
  kept.reset();
  ASSERT_TRUE(segment.has_value());
  EXPECT_EQ(segment->set(0, 1), Status::kOk);
}

TEST_P(TypedMessagesOfBoth, AnOperationMayEndInAnotherThread) {
  for (int round = 0; round < 50; ++round) {
    auto receiving = one().start_receive(taken(region, 0, 10));
    std::jthread away([mine = std::move(receiving)]() mutable { const auto dropped = std::move(mine); });
    (void)one().settle(Deadline::now());
    away.join();
    ASSERT_EQ(one().settle(patience()), Status::kOk) << error_detail();
    ASSERT_EQ(region.held(), 0u);
  }
}

// A wait begins at any moment before, while and after its message comes. A wake-up that got lost would let it sleep
// until the deadline of all.
TEST_F(TypedMessages, NoWakeUpIsLost) {
  constexpr int kRounds = 400;
  const Deadline limit = Deadline::after(std::chrono::seconds{60});
  std::atomic<int> round{0};
  const Words word = numbers(0, 1, 5);
  std::jthread sender([&] {
    for (int sent = 0; sent < kRounds && !limit.passed();) {
      if (round.load(std::memory_order_acquire) == sent) continue;
      // From nothing up to what a thread needs to fall asleep.
      for (volatile int spin = 0; spin < sent * 100;) spin = spin + 1;
      EXPECT_EQ(link.send(word, limit), Status::kOk);
      ++sent;
    }
  });
  for (int i = 0; i < kRounds && !limit.passed(); ++i) {
    auto receiving = peer.start_receive(taken(region, 100, 10));
    round.store(i + 1, std::memory_order_release);
    ASSERT_EQ(receiving.wait(limit), Status::kOk) << error_detail();
  }
  EXPECT_FALSE(limit.passed());
}

TEST_P(TypedMessagesOfBoth, AWriteWithImmediateIsStarted) {
  const auto window = remote_of<std::uint64_t>(one().peer_window(), 8, 100);
  auto writing = one().start_write_with_immediate(numbers(0, 100, 7), window, 5);
  EXPECT_EQ(region.take(0, 1).error(), Status::kBusy) << "the operation has it";
  auto [status, back] = std::move(writing).finish(patience());
  ASSERT_EQ(status, Status::kOk) << error_detail();
  EXPECT_TRUE(counts_up(back, 7));
  const auto shared = std::move(back).freeze();
  auto again = one().start_write_with_immediate(shared, remote_of<std::uint64_t>(one().peer_window(), 200, 100), 6);
  ASSERT_EQ(again.wait(patience()), Status::kOk) << error_detail();
  EXPECT_EQ(again.take()->size(), 100u);
  Words into = taken(region, kLong, 1);
  for (const std::uint32_t immediate : {5u, 6u}) {
    const auto received = other().receive(into, patience());
    ASSERT_TRUE(received.has_value()) << error_detail();
    EXPECT_EQ(received->kind, rdma::Message::Kind::kWritten);
    EXPECT_EQ(received->immediate, immediate);
    EXPECT_EQ(received->count, 100u);
    ASSERT_EQ(received->first, immediate == 5 ? 8u : 200u);
    std::uint64_t last = 0;
    std::memcpy(&last, other().unsafe_connection().window().data() + (received->first + 99) * sizeof last, sizeof last);
    EXPECT_EQ(last, 106u) << "the elements were there before the message";
  }
}

TEST_P(TypedMessagesOfBoth, AWriteWithImmediateTakesItsTurnAmongMessages) {
  const auto window = remote_of<std::uint64_t>(one().peer_window(), 0, 10);
  auto waiting = fill_inbox(one());
  auto writing = one().start_write_with_immediate(numbers(15 * kLong, 10, 70), window, 5);
  EXPECT_TRUE(writing.is_under_way()) << "the message before it has no room";
  EXPECT_EQ(writing.wait(Deadline::after(std::chrono::milliseconds{5})), Status::kTimedOut);
  auto last = one().start_send(numbers(15 * kLong + 10, 2, 1000));
  { const auto dropped = one().start_write_with_immediate(numbers(15 * kLong + 20, 10, 90), window, 6); }
  EXPECT_EQ(one().quarantined(), 1u);
  EXPECT_EQ(region.take(15 * kLong + 20, 1).error(), Status::kBusy);
  Words into = taken(region, 8 * kLong, kLong);
  expect_next(other(), into, 0);
  auto receiving = other().start_receive(std::move(into));
  complete(waiting, receiving);
  into = *receiving.take();
  EXPECT_EQ(writing.wait(patience()), Status::kOk) << error_detail();
  // A client moves on in its own calls only, and chaos may hold back what it has sent.
  Words any = taken(region, 14 * kLong, 10);
  const auto next = [&] {
    auto told = other().start_receive(std::move(into));
    for (const Deadline limit = patience(); !told.poll() && !limit.passed();)
      EXPECT_EQ(one().read(any, window, patience()), Status::kOk);
    const auto received = told.received();
    EXPECT_TRUE(received.has_value());
    if (received) into = *told.take();
    return received.value_or(Received{});
  };
  EXPECT_EQ(next().immediate, 5u);
  EXPECT_EQ(last.wait(patience()), Status::kOk);
  EXPECT_EQ(next().count, 2u);
  EXPECT_EQ(into.get(0).value(), 1000u);
  EXPECT_EQ(one().settle(patience()), Status::kOk);
  EXPECT_EQ(next().immediate, 6u) << "it went on";
  EXPECT_TRUE(region.take(15 * kLong + 20, 1).has_value());
}

TEST_P(TypedMessagesOfBoth, AWriteWithImmediateThatCannotBeIsRefused) {
  const rdma::Window peers = one().peer_window();
  const auto window = remote_of<std::uint64_t>(peers, 0, 10);
  const auto refused = [this](Words words, const RemoteSegment<std::uint64_t>& to) {
    const std::size_t size = words.size();
    auto operation = one().start_write_with_immediate(std::move(words), to, 5);
    EXPECT_FALSE(operation.is_under_way());
    EXPECT_EQ(operation.take()->size(), size) << "the segment comes back";
    return operation.status();
  };
  EXPECT_EQ(refused(numbers(0, 11, 0), window), Status::kOutOfRange);
  EXPECT_EQ(refused(Words(), window), Status::kBadArgument);
  EXPECT_EQ(refused(numbers(0, 10, 0), remote_of<std::uint64_t>(region.window(), 0, 10)), Status::kOutOfRange);
  auto waiting = fill_inbox(one());
  auto writing = one().start_write_with_immediate(numbers(15 * kLong, 10, 70), window, 5);
  one().close();
  EXPECT_EQ(writing.wait(patience()), Status::kClosed);
  EXPECT_EQ(writing.take()->size(), 10u);
  EXPECT_EQ(refused(numbers(0, 10, 0), window), Status::kClosed);
}

TEST_F(TypedMessages, WhatCannotBeIsRefused) {
  EXPECT_EQ(link.start_send(Words()).status(), Status::kBadArgument);
  EXPECT_EQ(link.start_send_with_immediate(ConstSegment<std::uint64_t>(), 1).status(), Status::kBadArgument);
  Link none;
  auto [status, segment] = none.start_send(taken(region, 0, 10)).finish();
  EXPECT_EQ(status, Status::kClosed);
  EXPECT_EQ(segment.size(), 10u);
  EXPECT_EQ(none.start_receive(std::move(segment)).status(), Status::kClosed);
}

}  // namespace
}  // namespace verbena::typed
