// Operations on queue pairs of both types: what they move, what they refuse, and that each gives its segments back.
#include "queue_pair_fixture.hpp"

#include <atomic>
#include <thread>
#include <tuple>

namespace verbena::typed {
namespace {

struct Header {
  std::uint32_t kind = 0;
  std::uint32_t count = 0;
};

template <class Type>
class QueuePairOfType : public PairTest<Type> {
 protected:
  /// What was posted before has arrived, or is lost: by a message behind it.
  void settle() {
    auto received = this->pair.b.post_receive(this->taken(this->mine, this->kCount - 1, 1));
    auto sent = this->pair.a.post_send(this->taken(this->mine, this->kCount - 2, 1));
    ASSERT_EQ(sent.wait(patience()), Status::kOk) << error_detail();
    ASSERT_EQ(received.wait(patience()), Status::kOk) << error_detail();
  }
};
using BothTypes = testing::Types<Rc, Uc>;
TYPED_TEST_SUITE(QueuePairOfType, BothTypes);

TYPED_TEST(QueuePairOfType, AWriteArrivesAndGivesItsSegmentBack) {
  for (const std::size_t count : {1UZ, 8UZ, 9UZ, 1000UZ, 4000UZ}) {
    SCOPED_TRACE(count);
    auto written = this->pair.a.post_write(this->counting(this->mine, 0, count, count), this->there);
    EXPECT_EQ(this->mine.take().error(), Status::kBusy) << "the operation has it";
    auto [status, back] = std::move(written).finish(patience());
    ASSERT_EQ(status, Status::kOk) << error_detail();
    EXPECT_EQ(back.size(), count);
    back = {};
    ASSERT_NO_FATAL_FAILURE(this->settle());
    EXPECT_TRUE(this->counts_up(this->taken(this->theirs, 0, count), count));
  }
  EXPECT_EQ(this->mine.held(), 0u);
}

TYPED_TEST(QueuePairOfType, FrozenSegmentsAreWrittenBySeveralOperations) {
  const auto frozen = this->counting(this->mine, 0, 100, 5).freeze();
  auto first = this->pair.a.post_write(frozen, this->there);
  auto second = this->pair.a.post_write(*frozen.part(50), *this->there.part(200));
  ASSERT_EQ(first.wait(patience()), Status::kOk);
  ASSERT_EQ(second.wait(patience()), Status::kOk);
  ASSERT_NO_FATAL_FAILURE(this->settle());
  EXPECT_TRUE(this->counts_up(this->taken(this->theirs, 0, 100), 5));
  EXPECT_TRUE(this->counts_up(this->taken(this->theirs, 200, 50), 55));
}

TYPED_TEST(QueuePairOfType, ListsAreGatheredAndScattered) {
  std::array<Words, 3> from{this->counting(this->mine, 0, 10, 0), this->counting(this->mine, 100, 20, 10),
                            this->counting(this->mine, 50, 5, 30)};
  auto written = this->pair.a.post_write(std::move(from), this->there);
  ASSERT_EQ(written.wait(patience()), Status::kOk) << error_detail();
  auto back = written.take();
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ((*back)[1].size(), 20u);
  ASSERT_NO_FATAL_FAILURE(this->settle());
  EXPECT_TRUE(this->counts_up(this->taken(this->theirs, 0, 35), 0));

  std::array<Words, 2> to{this->taken(this->theirs, 200, 3), this->taken(this->theirs, 300, 32)};
  auto received = this->pair.b.post_receive(std::move(to));
  auto sent = this->pair.a.post_send(std::move(*back));
  ASSERT_EQ(sent.wait(patience()), Status::kOk);
  const auto [status, arrival, segments] = std::move(received).finish(patience());
  ASSERT_EQ(status, Status::kOk);
  EXPECT_EQ(arrival.bytes, 35 * sizeof(std::uint64_t));
  EXPECT_TRUE(this->counts_up(segments[0], 0));
  EXPECT_TRUE(this->counts_up(segments[1], 3));
}

TYPED_TEST(QueuePairOfType, AHeaderAndItsWordsAreOneMessage) {
  auto headers = this->template region_of<Header>(2);
  Segment<Header> header = this->taken(headers, 0, 1);
  ASSERT_EQ(header.set(0, {7, 9}), Status::kOk);
  auto received = this->pair.b.post_receive(std::tuple(this->taken(headers, 1, 1), this->taken(this->theirs, 0, 100)));
  auto sent = this->pair.a.post_send_with_immediate(
      std::tuple(std::move(header).freeze(), this->counting(this->mine, 0, 9, 70)), 0x01020304);
  ASSERT_EQ(sent.wait(patience()), Status::kOk) << error_detail();
  ASSERT_EQ(received.wait(patience()), Status::kOk);
  const auto arrival = received.arrival();
  ASSERT_TRUE(arrival.has_value());
  EXPECT_EQ(arrival->bytes, sizeof(Header) + 9 * sizeof(std::uint64_t));
  EXPECT_EQ(arrival->immediate, 0x01020304u);
  EXPECT_EQ(arrival->kind, rdma::Message::Kind::kSent);
  auto [seen, words] = std::move(*received.take());
  EXPECT_EQ(seen.get(0)->count, 9u);
  EXPECT_EQ(words.get(8), 78u);
}

TYPED_TEST(QueuePairOfType, AWriteWithImmediateTakesAReceive) {
  auto received = this->pair.b.post_receive(this->taken(this->mine, 1000, 1));
  auto written = this->pair.a.post_write_with_immediate(this->counting(this->mine, 0, 50, 3), this->there, 77);
  ASSERT_EQ(written.wait(patience()), Status::kOk) << error_detail();
  const auto [status, arrival, segment] = std::move(received).finish(patience());
  ASSERT_EQ(status, Status::kOk);
  EXPECT_EQ(arrival.kind, rdma::Message::Kind::kWritten);
  EXPECT_EQ(arrival.immediate, 77u);
  EXPECT_EQ(arrival.bytes, 400u);
  EXPECT_TRUE(this->counts_up(this->taken(this->theirs, 0, 50), 3));
}

// Bytes and elements are not mixed up, also where the peer does.
TYPED_TEST(QueuePairOfType, AMessageOfNoWholeElementsIsTold) {
  auto bytes = this->template region_of<std::uint8_t>(100);
  auto received = this->pair.b.post_receive(this->taken(this->theirs, 0, 10));
  auto sent = this->pair.a.post_send(this->taken(bytes, 0, 13));
  ASSERT_EQ(sent.wait(patience()), Status::kOk);
  const auto [status, arrival, segment] = std::move(received).finish(patience());
  EXPECT_EQ(status, Status::kBadArgument);
  EXPECT_EQ(segment.size(), 10u);
}

TYPED_TEST(QueuePairOfType, WhatCannotWorkIsRefusedAndTheQueuePairLives) {
  Ready<TypeParam>& a = this->pair.a;
  auto other = this->template region_of<std::uint64_t>(8);
  const auto refused = [&](Words words, const RemoteSegment<std::uint64_t>& to) {
    const std::size_t count = words.size();
    auto written = a.post_write(std::move(words), to);
    EXPECT_FALSE(written.is_under_way());
    EXPECT_EQ(written.take()->size(), count) << "it is given back";
    return written.status();
  };
  EXPECT_EQ(refused({}, this->there), Status::kBadArgument) << "no elements";
  EXPECT_EQ(refused(this->taken(this->mine, 0, 9), *this->there.part(0, 8)), Status::kBadArgument) << "too short";
  EXPECT_EQ(refused(this->taken(this->mine, 0, 1), {}), Status::kBadArgument) << "no target";
  const auto unopened = RemoteSegment<std::uint64_t>::of(other.window());
  EXPECT_EQ(refused(this->taken(this->mine, 0, 1), *unopened), Status::kNotFound) << "a window that was not opened";
  rdma::Window forged = this->theirs.window();
  forged.length += 4096;
  const auto beyond = RemoteSegment<std::uint64_t>::of(forged, TestFixture::kCount, 1);
  EXPECT_EQ(refused(this->taken(this->mine, 0, 1), *beyond), Status::kOutOfRange) << "a forged length";
  std::array<Words, 5> many;
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = this->taken(this->mine, i, 1);
  EXPECT_EQ(a.post_write(std::move(many), this->there).status(), Status::kBadArgument) << "more than max_sge";
  EXPECT_EQ(a.max_sge(), 4u);

  EXPECT_EQ(a.failure(), Status::kOk);
  EXPECT_EQ(this->mine.held(), 0u);
  ASSERT_NO_FATAL_FAILURE(this->settle());
}

TYPED_TEST(QueuePairOfType, MemoryOfAnotherNodeIsRefused) {
  std::unique_ptr<rdma::Node> second;
  ASSERT_NO_FATAL_FAILURE(this->open(second));
  auto foreign = MemoryRegion<std::uint64_t>::allocate(*second, 8);
  ASSERT_OK(foreign);
  EXPECT_EQ(this->pair.a.post_write(std::move(*foreign->take()), this->there).status(), Status::kLocalAccess);
  EXPECT_EQ(this->pair.a.post_receive(std::move(*foreign->take())).status(), Status::kLocalAccess);
  EXPECT_EQ(this->pair.a.failure(), Status::kOk);
}

TYPED_TEST(QueuePairOfType, AWindowToReadIsNotWritten) {
  std::vector<std::uint64_t> memory(8);
  auto readable = MemoryRegion<std::uint64_t>::unsafe_register(*this->node, memory, rdma::Access::kRead);
  ASSERT_OK(readable);
  EXPECT_STATUS(this->pair.a.template open<std::uint64_t>(readable->window()), Status::kRemoteAccess);
  rdma::Window forged = readable->window();
  ASSERT_OK(this->pair.a.template open<const std::uint64_t>(readable->window(), patience()));
  forged.access = rdma::Access::kAll;
  const auto writable = RemoteSegment<std::uint64_t>::of(forged);
  EXPECT_EQ(this->pair.a.post_write(this->taken(this->mine, 0, 1), *writable).status(), Status::kRemoteAccess);
  EXPECT_EQ(this->pair.a.failure(), Status::kOk);
}

TYPED_TEST(QueuePairOfType, UnsignaledPostsNeverOverflowTheQueue) {
  const Words words = this->counting(this->mine, 0, 64, 4);
  const Deadline limit = patience();
  for (int i = 0; i < 5000; ++i) {
    Status posted = this->pair.a.unsafe_post_write(words, this->there);
    while (posted == Status::kAgain && !limit.passed()) posted = this->pair.a.unsafe_post_write(words, this->there);
    ASSERT_EQ(posted, Status::kOk) << error_detail();
  }
  auto last = this->pair.a.post_write(this->counting(this->mine, 64, 1, 68), *this->there.part(64));
  ASSERT_EQ(last.wait(patience()), Status::kOk);
  ASSERT_NO_FATAL_FAILURE(this->settle());
  EXPECT_TRUE(this->counts_up(this->taken(this->theirs, 0, 65), 4));
}

TYPED_TEST(QueuePairOfType, QueuesHaveTheDepthThatWasAsked) {
  Pair<TypeParam> shallow;
  ASSERT_NO_FATAL_FAILURE(
      this->connect(shallow, QueuePairBuilder<TypeParam>().send_depth(3).receive_depth(2).max_sge(1).max_inline(0)));
  EXPECT_EQ(shallow.a.room(), 3u);
  EXPECT_EQ(shallow.a.max_inline(), 0u);
  auto first = shallow.b.post_receive(this->taken(this->theirs, 0, 1));
  auto second = shallow.b.post_receive(this->taken(this->theirs, 1, 1));
  EXPECT_EQ(shallow.b.post_receive(this->taken(this->theirs, 2, 1)).status(), Status::kAgain);
  for (int i = 0; i < 2; ++i) {
    auto sent = shallow.a.post_send(this->taken(this->mine, 0, 1));
    ASSERT_EQ(sent.wait(patience()), Status::kOk);
  }
  ASSERT_EQ(first.wait(patience()), Status::kOk);
  ASSERT_EQ(second.wait(patience()), Status::kOk);
  EXPECT_TRUE(shallow.b.post_receive(this->taken(this->theirs, 2, 1)).is_under_way());
}

// --- quarantine ---------------------------------------------------------------------------------------------------

TYPED_TEST(QueuePairOfType, ADroppedReceiveKeepsItsSegmentUntilAMessageHasCome) {
  { const auto dropped = this->pair.b.post_receive(this->taken(this->theirs, 0, 8)); }
  EXPECT_EQ(this->pair.b.quarantined(), 1u);
  EXPECT_EQ(this->theirs.take(0, 8).error(), Status::kBusy);
  EXPECT_EQ(this->pair.b.settle(Deadline::after(std::chrono::milliseconds{10})), Status::kTimedOut);
  auto sent = this->pair.a.post_send(this->counting(this->mine, 0, 8, 40));
  ASSERT_EQ(sent.wait(patience()), Status::kOk);
  ASSERT_EQ(this->pair.b.settle(patience()), Status::kOk);
  EXPECT_TRUE(this->counts_up(this->taken(this->theirs, 0, 8), 40)) << "it landed in memory that nobody had";
}

TYPED_TEST(QueuePairOfType, ADroppedListIsInQuarantineAsAWhole) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  HeldPair held(this->pair.a);
  {
    std::array<Words, 3> from{this->taken(this->mine, 0, 100), this->taken(this->mine, 200, 100),
                              this->taken(this->mine, 400, 100)};
    const auto dropped = this->pair.a.post_write(std::move(from), this->there);
    ASSERT_TRUE(dropped.is_under_way()) << error_detail();
  }
  EXPECT_EQ(this->mine.held(), 3u);
  EXPECT_EQ(this->mine.take(450, 10).error(), Status::kBusy);
  held.release();
  ASSERT_EQ(this->pair.a.settle(patience()), Status::kOk);
  EXPECT_EQ(this->mine.held(), 0u);
}

TYPED_TEST(QueuePairOfType, AHeldOperationTimesOutAndTheQueuePairLives) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  HeldPair held(this->pair.a);
  auto written = this->pair.a.post_write(this->counting(this->mine, 0, 100, 1), this->there);
  EXPECT_EQ(written.wait(Deadline::after(std::chrono::milliseconds{10})), Status::kTimedOut);
  EXPECT_EQ(written.take().error(), Status::kBusy);
  held.release();
  EXPECT_EQ(written.wait(patience()), Status::kOk);
}

TYPED_TEST(QueuePairOfType, TheSendQueueIsFullUntilSomethingIsComplete) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  Pair<TypeParam> shallow;
  ASSERT_NO_FATAL_FAILURE(this->connect(shallow, QueuePairBuilder<TypeParam>().send_depth(2)));
  const auto target = this->template opened<std::uint64_t>(shallow.a, this->theirs.window());
  HeldPair held(shallow.a);
  auto first = shallow.a.post_write(this->taken(this->mine, 0, 1), target);
  auto second = shallow.a.post_write(this->taken(this->mine, 1, 1), target);
  EXPECT_EQ(shallow.a.post_write(this->taken(this->mine, 2, 1), target).status(), Status::kAgain);
  const Words words = this->taken(this->mine, 3, 1);
  EXPECT_EQ(shallow.a.unsafe_post_write(words, target), Status::kAgain);
  held.release();
  EXPECT_EQ(first.wait(patience()), Status::kOk);
  EXPECT_EQ(second.wait(patience()), Status::kOk);
  EXPECT_EQ(shallow.a.room(), 2u);
}

TYPED_TEST(QueuePairOfType, AClosedQueuePairGivesEverythingBack) {
  auto kept = this->pair.b.post_receive(this->taken(this->theirs, 0, 8));
  { const auto dropped = this->pair.b.post_receive(this->taken(this->theirs, 8, 8)); }
  this->pair.b.close();
  EXPECT_EQ(this->theirs.held(), 1u) << "what was in quarantine is the region's";
  EXPECT_TRUE(kept.poll());
  EXPECT_EQ(kept.status(), Status::kClosed);
  EXPECT_EQ(kept.arrival().error(), Status::kClosed);
  EXPECT_EQ(kept.take()->size(), 8u);
  EXPECT_EQ(this->pair.b.failure(), Status::kClosed);
  EXPECT_EQ(this->pair.b.post_send(this->taken(this->theirs, 0, 8)).status(), Status::kClosed);
  EXPECT_EQ(this->pair.b.post_receive(this->taken(this->theirs, 0, 8)).status(), Status::kClosed);
  EXPECT_EQ(this->pair.b.settle(Deadline::now()), Status::kOk);
  EXPECT_STATUS(this->pair.b.template batch<std::uint64_t>(3), Status::kClosed);
  EXPECT_STATUS(this->pair.b.template open<std::uint64_t>(this->theirs.window()), Status::kClosed);
}

TYPED_TEST(QueuePairOfType, OperationsOutliveEverything) {
  auto kept = std::make_optional(this->pair.b.post_receive(this->taken(this->theirs, 0, 8)));
  this->theirs = {};
  this->pair = {};
  this->mine = {};
  this->node.reset();
  EXPECT_EQ(kept->wait(patience()), Status::kClosed);
  auto segment = kept->take();
  kept.reset();
  ASSERT_TRUE(segment.has_value());
  segment->fill(9);
  EXPECT_EQ(segment->get(7), 9u);
}

TYPED_TEST(QueuePairOfType, AnOperationMayEndInAnotherThread) {
  for (int round = 0; round < 50; ++round) {
    auto written = this->pair.a.post_write(this->taken(this->mine, 0, 8), this->there);
    std::jthread other([operation = std::move(written)]() mutable { const auto dropped = std::move(operation); });
    (void)this->pair.a.settle(Deadline::now());
    other.join();
    ASSERT_EQ(this->pair.a.settle(patience()), Status::kOk) << error_detail();
    ASSERT_EQ(this->mine.held(), 0u);
  }
}

// --- threads ------------------------------------------------------------------------------------------------------

// Who sleeps wakes for each message, whenever it comes.
TYPED_TEST(QueuePairOfType, WakeUpsAreNotLost) {
  constexpr std::uint64_t kMessages = 300;
  Pair<TypeParam> sleepy;
  ASSERT_NO_FATAL_FAILURE(this->connect(sleepy, QueuePairBuilder<TypeParam>().wait_policy(WaitPolicy::kEvent)));
  std::atomic<std::uint64_t> posted{0};
  std::uint64_t arrived = 0;
  std::jthread receiver([&] {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      auto received = sleepy.b.post_receive(this->taken(this->theirs, 0, 1));
      posted.store(i + 1, std::memory_order_release);
      auto [status, arrival, segment] = std::move(received).finish(patience());
      if (status != Status::kOk) return;
      arrived += segment.get(0) == i;
    }
  });
  const Deadline limit = patience();
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    while (posted.load(std::memory_order_acquire) <= i && !limit.passed()) std::this_thread::yield();
    // Sometimes it sleeps by now, and sometimes it is about to.
    for (std::uint64_t spins = 0; spins < i % 7 * 100; ++spins) std::atomic_signal_fence(std::memory_order_seq_cst);
    auto sent = sleepy.a.post_send(this->counting(this->mine, 0, 1, i));
    ASSERT_EQ(sent.wait(patience()), Status::kOk) << error_detail();
  }
  receiver.join();
  EXPECT_EQ(arrived, kMessages);
}

TYPED_TEST(QueuePairOfType, ASecondThreadIsRefused) {
  auto received = this->pair.b.post_receive(this->taken(this->theirs, 0, 1));
  const Deadline limit = patience();
  std::jthread other([&] {
    do (void)received.wait(Deadline::after(std::chrono::milliseconds{20}));
    while (received.is_under_way() && !limit.passed());
  });
  // What is refused for its length is not posted, and says whether the other thread waits.
  Status refused = Status::kOk;
  while (refused != Status::kBusy && !limit.passed()) refused = this->pair.b.post_send(Words()).status();
  EXPECT_EQ(refused, Status::kBusy);
  auto sent = this->pair.a.post_send(this->taken(this->mine, 0, 1));
  ASSERT_EQ(sent.wait(patience()), Status::kOk);
  other.join();
  EXPECT_EQ(received.status(), Status::kOk);
}

// --- what one type has --------------------------------------------------------------------------------------------

using QueuePairRc = QueuePairOfType<Rc>;
using QueuePairUc = QueuePairOfType<Uc>;

TEST_F(QueuePairRc, ReadsScatter) {
  { const auto filled = counting(theirs, 0, 100, 1000); }
  std::array<Words, 2> to{taken(mine, 10, 30), taken(mine, 100, 70)};
  auto [status, read] = pair.a.post_read(std::move(to), there).finish(patience());
  ASSERT_EQ(status, Status::kOk) << error_detail();
  EXPECT_TRUE(counts_up(read[0], 1000));
  EXPECT_TRUE(counts_up(read[1], 1030));
  ASSERT_EQ(pair.a.unsafe_post_read(read[0], *there.part(50, 30)), Status::kOk);
  auto behind = pair.a.post_read(std::move(read[1]), there);
  ASSERT_EQ(behind.wait(patience()), Status::kOk);
  EXPECT_TRUE(counts_up(read[0], 1050));
}

TEST_F(QueuePairRc, AtomicsReturnTheValueBefore) {
  auto added = pair.a.post_fetch_add(*there.part(3), 5);
  if (added.status() == Status::kUnsupported) GTEST_SKIP() << "the device has no atomics";
  ASSERT_EQ(added.wait(patience()), Status::kOk) << error_detail();
  EXPECT_EQ(added.old(), 0u);
  auto missed = pair.a.post_compare_swap(*there.part(3), 4, 9);
  auto swapped = pair.a.post_compare_swap(*there.part(3), 5, 11);
  auto last = pair.a.post_fetch_add(*there.part(3), 0);
  ASSERT_EQ(last.wait(patience()), Status::kOk);
  EXPECT_EQ(missed.wait(patience()), Status::kOk);
  EXPECT_EQ(swapped.wait(patience()), Status::kOk);
  EXPECT_EQ(missed.old(), 5u);
  EXPECT_EQ(swapped.old(), 5u);
  EXPECT_EQ(last.old(), 11u);
  EXPECT_EQ(pair.a.post_fetch_add(RemoteSegment<std::uint64_t>(), 1).status(), Status::kBadArgument);
  { const auto dropped = pair.a.post_fetch_add(there, 1); }
  EXPECT_EQ(pair.a.settle(patience()), Status::kOk);
}

TEST_F(QueuePairRc, WithoutReadsTheyAreRefused) {
  Pair<Rc> without;
  ASSERT_NO_FATAL_FAILURE(connect(without, QueuePairBuilder<Rc>().max_reads(0)));
  const auto target = opened<std::uint64_t>(without.a, theirs.window());
  EXPECT_EQ(without.a.post_read(taken(mine, 0, 1), target).status(), Status::kUnsupported);
  EXPECT_EQ(without.a.post_fetch_add(target, 1).status(), Status::kUnsupported);
  EXPECT_EQ(without.a.post_write(taken(mine, 0, 1), target).wait(patience()), Status::kOk);
}

// The peer takes the right back that the window had: its NIC refuses, and everything is given back.
TEST_F(QueuePairRc, AFailureGivesEverythingBack) {
  std::optional<MemoryRegion<std::uint64_t>> gone = region_of<std::uint64_t>(64);
  const auto target = opened<std::uint64_t>(pair.a, gone->window());
  auto waiting = pair.a.post_receive(taken(mine, 0, 8));
  gone.reset();
  auto failed = pair.a.post_write(taken(mine, 100, 20), target);
  auto behind = pair.a.post_write(taken(mine, 200, 20), there);
  { const auto dropped = pair.a.post_receive(taken(mine, 8, 8)); }
  EXPECT_EQ(failed.wait(patience()), Status::kRemoteAccess) << error_detail();
  EXPECT_EQ(waiting.wait(patience()), Status::kFlushed);
  EXPECT_EQ(behind.wait(patience()), Status::kFlushed);
  EXPECT_EQ(failed.take()->size(), 20u);
  EXPECT_EQ(behind.take()->size(), 20u);
  EXPECT_EQ(pair.a.settle(patience()), Status::kOk);
  EXPECT_EQ(pair.a.failure(), Status::kRemoteAccess);
  EXPECT_EQ(mine.held(), 1u) << "the receive's, which nobody has taken";
  EXPECT_EQ(waiting.take()->size(), 8u);
  EXPECT_EQ(pair.a.post_write(taken(mine, 0, 1), there).status(), Status::kRemoteAccess);
  EXPECT_EQ(pair.a.post_receive(taken(mine, 0, 1)).status(), Status::kRemoteAccess);
  EXPECT_STATUS(pair.a.open<std::uint64_t>(theirs.window()), Status::kRemoteAccess);
}

TEST_F(QueuePairRc, APeerWithoutReceivesIsAnErrorAfterTheRetries) {
  Pair<Rc> hasty;
  ASSERT_NO_FATAL_FAILURE(connect(hasty, QueuePairBuilder<Rc>().rnr_retry(1).min_rnr_timer(1)));
  auto sent = hasty.a.post_send(taken(mine, 0, 1));
  EXPECT_EQ(sent.wait(patience()), Status::kRnrExceeded);
  EXPECT_EQ(hasty.a.failure(), Status::kRnrExceeded);
}

TEST_F(QueuePairRc, AMessageLongerThanItsReceiveFailsBothSides) {
  auto received = pair.b.post_receive(taken(theirs, 0, 1));
  auto sent = pair.a.post_send(taken(mine, 0, 2));
  EXPECT_EQ(sent.wait(patience()), Status::kRemoteInvalid);
  EXPECT_NE(received.wait(patience()), Status::kOk);
  EXPECT_EQ(received.take()->size(), 1u);
}

TEST_F(QueuePairRc, APeerThatLeavesEndsWhatIsUnderWay) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "a device hears of it by its retries";
  auto waiting = pair.a.post_receive(taken(mine, 0, 8));
  pair.b.close();
  auto sent = pair.a.post_send(taken(mine, 8, 8));
  const Status status = sent.wait(patience());
  EXPECT_TRUE(status == Status::kPeerLost || status == Status::kRetryExceeded) << to_string(status);
  EXPECT_EQ(waiting.wait(patience()), Status::kFlushed);
}

TEST_F(QueuePairUc, WhatHasNoReceiveIsLostWithoutAWord) {
  for (int i = 0; i < 5; ++i) {
    auto lost = pair.a.post_send(counting(mine, 0, 8, 1));
    EXPECT_EQ(lost.wait(patience()), Status::kOk);
  }
  if (test::is_soft_under_test()) {
    ASSERT_NO_FATAL_FAILURE(settle());
  }
  EXPECT_EQ(pair.a.failure(), Status::kOk);
  EXPECT_EQ(pair.b.failure(), Status::kOk);
}

TEST_F(QueuePairUc, ARefusedWriteIsLostWithoutAWord) {
  std::optional<MemoryRegion<std::uint64_t>> gone = region_of<std::uint64_t>(64);
  const auto target = opened<std::uint64_t>(pair.a, gone->window());
  gone.reset();
  auto lost = pair.a.post_write(taken(mine, 0, 20), target);
  EXPECT_EQ(lost.wait(patience()), Status::kOk);
  ASSERT_NO_FATAL_FAILURE(settle());
  EXPECT_EQ(pair.a.failure(), Status::kOk);
}

TEST_F(QueuePairUc, ALocalErrorIsAnError) {
  const Words words = taken(mine, 0, 100);
  detail::Piece piece = detail::piece_of(words);
  piece.lkey ^= 0x5a5a5a00;
  const std::array pieces{piece};
  ASSERT_EQ((pair.a.*&Peek::Opened<Uc>::pair_)
                .post_unsignaled({.call = "test", .verb = detail::Verb::kSend, .pieces = pieces}),
            Status::kOk);
  auto behind = pair.a.post_send(taken(mine, 200, 100));
  EXPECT_NE(behind.wait(patience()), Status::kOk);
  // Soft-RoCE says that the queue pair was in the wrong.
  EXPECT_EQ(pair.a.failure(), test::is_soft_under_test() ? Status::kLocalAccess : Status::kDevice);
}

}  // namespace
}  // namespace verbena::typed
