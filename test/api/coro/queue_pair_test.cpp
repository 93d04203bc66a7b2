// Awaited operations of queue pairs of both types, which the loop polls.
#include "fixture.hpp"

#include "queue_pair_fixture.hpp"

#include <verbena/coroutines_queue_pair.hpp>

#include <array>
#include <optional>
#include <thread>
#include <utility>

namespace verbena::coroutine {
namespace {

using typed::HeldPair;
using typed::Rc;
using typed::ReceiveOutcome;
using typed::Uc;
using typed::Words;
using There = typed::RemoteSegment<std::uint64_t>;

template <class Type>
class AwaitedPair : public typed::PairTest<Type> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(typed::PairTest<Type>::SetUp());
    loop = loop_of({.frames = {.frames = 64, .frame_bytes = 4096}});
    ASSERT_NE(loop, nullptr);
  }
  void TearDown() override {
    if (loop == nullptr) return;
    EXPECT_EQ(loop->frames().counts().in_use, 0u);
    EXPECT_EQ(loop->waiting(), 0u);
  }
  template <class T>
  [[nodiscard]] T wait_for(Task<T> task) {
    return sync_wait(*loop, std::move(task), soon());
  }

  std::unique_ptr<Loop> loop;
};
using AwaitedTypes = testing::Types<Rc, Uc>;
TYPED_TEST_SUITE(AwaitedPair, AwaitedTypes);

template <class Type>
Task<typed::Outcome<Words>> write_words(Loop& /*loop*/, typed::Ready<Type>& pair, Words from, There to,
                                        std::optional<Deadline> until = {}) {
  co_return co_await write(pair, std::move(from), to, until);
}
template <class Type>
Task<typed::Outcome<Words>> send_words(Loop& /*loop*/, typed::Ready<Type>& pair, Words from) {
  co_return co_await send(pair, std::move(from));
}
template <class Type>
Task<ReceiveOutcome<Words>> receive_words(Loop& /*loop*/, typed::Ready<Type>& pair, Words to,
                                          std::optional<Deadline> until = {}) {
  co_return co_await receive(pair, std::move(to), until);
}
template <class Type>
Task<Status> status_of_write(Loop& loop, typed::Ready<Type>& pair, Words from, There to, Status& into) {
  const auto written = co_await write_words(loop, pair, std::move(from), to);
  into = written.status;
  co_return into;
}

template <class Type>
Task<Status> write_and_tell(Loop& of, typed::Pair<Type>& pair, Words mine, Words room, There there) {
  auto written = co_await write(pair.a, std::move(mine), there);
  if (written.status != Status::kOk || written.segment.size() != 10) co_return Status::kSystem;
  auto [received, sent] =
      co_await when_all(receive_words(of, pair.b, std::move(room)), send_words(of, pair.a, std::move(written.segment)));
  if (received.status != Status::kOk || sent.status != Status::kOk) co_return Status::kProtocol;
  if (received.arrival.bytes != 80 || received.segment.get(9) != 14u) co_return Status::kRejected;
  auto receiving = pair.b.post_receive(std::move(received.segment));
  sent = co_await write_with_immediate(pair.a, std::move(sent.segment), there, 6);
  if (sent.status != Status::kOk) co_return sent.status;
  auto told = co_await finish(std::move(receiving));
  if (told.status != Status::kOk || told.arrival.immediate != 6u) co_return Status::kProtocol;
  if (told.arrival.kind != rdma::Message::Kind::kWritten) co_return Status::kRejected;
  receiving = pair.b.post_receive(std::move(told.segment));
  sent = co_await send_with_immediate(pair.a, std::move(sent.segment), 7);
  told = co_await finish(std::move(receiving));
  if (sent.status != Status::kOk || told.arrival.immediate != 7u) co_return Status::kRejected;
  co_return told.status;
}

using Two = std::array<Words, 2>;
template <class Type>
Task<Status> gather_and_scatter(Loop& /*loop*/, typed::Pair<Type>& pair, Two from, Two to) {
  auto receiving = pair.b.post_receive(std::move(to));
  auto sent = co_await send(pair.a, std::move(from));
  if (sent.status != Status::kOk) co_return sent.status;
  const auto received = co_await finish(std::move(receiving));
  co_return received.segment[1].get(0) == 107u && received.arrival.bytes == 160 ? received.status : Status::kProtocol;
}

template <class Type>
Task<Status> cancellable_write(Loop& of, CancelSource& by, typed::Ready<Type>& pair, Words from, There to,
                               Status& into) {
  co_return co_await cancellable(by, status_of_write(of, pair, std::move(from), to, into));
}
template <class Type>
Task<Status> receive_to(Loop& of, typed::Ready<Type>& pair, Words to, std::optional<ReceiveOutcome<Words>>& into) {
  into = co_await receive_words(of, pair, std::move(to));
  co_return into->status;
}
/// Awaits in another thread than the loop's: `into` is the status, where the segment has come back.
template <class Type>
Task<Status> write_elsewhere(Loop& of, Loop& other, typed::Ready<Type>& pair, Words from, There to, Status& into) {
  co_await resume_on(other);
  std::optional<typed::Outcome<Words>> written = co_await write(pair, std::move(from), to);
  into = written->segment.empty() ? Status::kSystem : written->status;
  written.reset();
  co_await resume_on(of);
  co_return into;
}

TYPED_TEST(AwaitedPair, WritesAndMessages) {
  EXPECT_EQ(this->wait_for(write_and_tell(*this->loop, this->pair, this->counting(this->mine, 0, 10, 5),
                                          this->taken(this->mine, 100, 20), this->there)),
            Status::kOk)
      << error_detail();
  EXPECT_TRUE(this->counts_up(this->taken(this->theirs, 0, 10), 5));
  EXPECT_EQ(this->mine.held(), 0u);
}

TYPED_TEST(AwaitedPair, ListsAreGatheredAndScattered) {
  Two from{this->counting(this->mine, 0, 10, 0), this->counting(this->mine, 50, 10, 100)};
  Two to{this->taken(this->theirs, 0, 17), this->taken(this->theirs, 50, 3)};
  EXPECT_EQ(this->wait_for(gather_and_scatter(*this->loop, this->pair, std::move(from), std::move(to))), Status::kOk);
}

Task<ReceiveOutcome<Words>> await_posted(Loop& /*loop*/, typed::ReceiveOperation<Words> receiving) {
  co_return co_await finish(std::move(receiving), soon());
}

TYPED_TEST(AwaitedPair, ALoopSleepsOnTheOnlyOne) {
  const auto sleepy = loop_of({.spin = std::chrono::microseconds{0}});
  for (int round = 0; round < 20; ++round) {
    // Before the message leaves: Uc would lose it.
    auto receiving = this->pair.b.post_receive(this->taken(this->theirs));
    std::jthread sender(
        [&] { EXPECT_EQ(this->pair.a.post_send(this->taken(this->mine, 0, 1)).wait(soon()), Status::kOk); });
    ASSERT_EQ(sync_wait(*sleepy, await_posted(*sleepy, std::move(receiving)), soon()).status, Status::kOk);
  }
}

TYPED_TEST(AwaitedPair, AReceiveThatTimesOutStaysPosted) {
  auto none = this->wait_for(receive_words(*this->loop, this->pair.b, this->taken(this->theirs, 0, 8), in_ms(2)));
  EXPECT_EQ(none.status, Status::kTimedOut);
  EXPECT_TRUE(none.segment.empty());
  EXPECT_EQ(this->pair.b.quarantined(), 1u);
  EXPECT_EQ(this->wait_for(send_words(*this->loop, this->pair.a, this->taken(this->mine, 0, 8))).status, Status::kOk);
  EXPECT_EQ(this->pair.b.settle(soon()), Status::kOk);
  EXPECT_EQ(this->theirs.held(), 0u);
}

TYPED_TEST(AwaitedPair, WhatIsRefusedComesBack) {
  Loop& of = *this->loop;
  Status status = Status::kOk;
  auto refused = this->wait_for(write_words(of, this->pair.a, this->taken(this->mine, 0, 5), *this->there.part(0, 4)));
  EXPECT_EQ(refused.status, Status::kBadArgument);
  EXPECT_EQ(refused.segment.size(), 5u);
  const auto other = loop_of();
  ASSERT_EQ(of.spawn(write_elsewhere(of, *other, this->pair.a, std::move(refused.segment), this->there, status)),
            Status::kOk);
  std::jthread([&] { EXPECT_TRUE(other->run_until([&] { return other->poll(); }, soon()) == Status::kOk); }).join();
  EXPECT_EQ(of.run_until([&] { return of.spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(status, Status::kBusy);
  this->pair.a.close();
  EXPECT_EQ(this->wait_for(write_words(of, this->pair.a, this->taken(this->mine, 0, 5), this->there)).status,
            Status::kClosed);
  EXPECT_EQ(this->mine.held(), 0u);
}

TYPED_TEST(AwaitedPair, NoMoreWaitThanTheLoopHasPlacesFor) {
  const auto small = loop_of({.waits = 1});
  std::optional<ReceiveOutcome<Words>> never;
  ASSERT_EQ(small->spawn(receive_to(*small, this->pair.b, this->taken(this->theirs, 0, 1), never)), Status::kOk);
  auto refused = sync_wait(*small, receive_words(*small, this->pair.b, this->taken(this->theirs, 1, 1)), soon());
  EXPECT_EQ(refused.status, Status::kLimit);
  EXPECT_EQ(refused.segment.size(), 1u);
  refused = {};
  small->drop_all();
  EXPECT_EQ(this->pair.b.quarantined(), 1u);
  this->pair = {};
  EXPECT_EQ(this->theirs.held(), 0u) << error_detail();
}

TYPED_TEST(AwaitedPair, WhatIsGivenUpIsInQuarantine) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  Loop& of = *this->loop;
  for (const bool is_cancelled : {false, true}) {
    HeldPair held(this->pair.a);
    CancelSource source;
    Status status = Status::kOk;
    ASSERT_EQ(
        of.spawn(cancellable_write(of, source, this->pair.a, this->taken(this->mine, 0, 100), this->there, status)),
        Status::kOk);
    (void)of.poll();
    EXPECT_EQ(of.waiting(), 1u);
    if (is_cancelled) {
      source.cancel();
      EXPECT_EQ(of.run_until([&] { return of.spawned() == 0; }, soon()), Status::kOk);
      EXPECT_EQ(status, Status::kCancelled);
    } else {
      of.drop_all();
    }
    EXPECT_EQ(of.waiting(), 0u);
    EXPECT_EQ(this->pair.a.quarantined(), 1u);
    EXPECT_EQ(this->mine.take(0, 1).error(), Status::kBusy);
    held.release();
    EXPECT_EQ(this->pair.a.settle(soon()), Status::kOk);
    EXPECT_EQ(this->mine.held(), 0u);
    EXPECT_EQ(this->pair.a.failure(), Status::kOk) << "the queue pair lives";
  }
}

TYPED_TEST(AwaitedPair, AClosedOneEndsWhatIsAwaited) {
  Loop& of = *this->loop;
  std::optional<ReceiveOutcome<Words>> outcome;
  ASSERT_EQ(of.spawn(receive_to(of, this->pair.b, this->taken(this->theirs, 0, 9), outcome)), Status::kOk);
  (void)of.poll();
  this->pair.b.close();
  ASSERT_EQ(of.run_until([&] { return of.spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(outcome->status, Status::kClosed);
  EXPECT_EQ(outcome->segment.size(), 9u);
}

/// Counts an answer: whether it is the last one.
[[nodiscard]] bool ends(Status status, int& answers) { return ++answers, status != Status::kOk; }

/// Awaits all that both types have, and counts the answers.
template <class Type>
Task<Status> everything_of(Loop& /*loop*/, typed::Pair<Type>& pair, Words mine, Words room, There there, int& answers) {
  if (const Status stepped = co_await yield(); ends(stepped, answers)) co_return stepped;
  auto done = co_await write(pair.a, std::move(mine), there, soon());
  if (ends(done.status, answers)) co_return done.status;
  auto receiving = pair.b.post_receive(std::move(room));
  if (const Status stepped = co_await yield(); ends(stepped, answers)) co_return stepped;
  done = co_await send(pair.a, std::move(done.segment), soon());
  if (ends(done.status, answers)) co_return done.status;
  auto received = co_await finish(std::move(receiving), soon());
  if (ends(received.status, answers)) co_return received.status;
  // Nothing comes: it waits until it is given up.
  received = co_await receive(pair.b, std::move(received.segment), soon());
  co_return received.status;
}
constexpr int kAllTransfers = 5;

TYPED_TEST(AwaitedPair, DroppedAfterEachTurn) {
  for (const bool is_held : {false, true}) {
    if (is_held && !test::is_soft_under_test()) break;
    int most = 0;
    for (int turns = 0; turns < 20; ++turns) {
      std::optional<HeldPair> held;
      if (is_held) held.emplace(this->pair.a);
      int answers = 0;
      ASSERT_EQ(this->loop->spawn(everything_of(*this->loop, this->pair, this->counting(this->mine, 0, 16, 3),
                                                this->taken(this->theirs, 100, 16), this->there, answers)),
                Status::kOk);
      for (int i = 0; i < turns; ++i) (void)this->loop->poll();
      most = std::max(most, answers);
      this->loop->drop_all();
      EXPECT_EQ(this->loop->waiting(), 0u);
      held.reset();
      // A receive that was dropped takes one message more. The software NIC moves on by the polls of both ends.
      const Deadline limit = soon();
      const auto settle = [&] {
        (void)this->pair.b.settle(Deadline::now());
        return this->pair.a.settle(Deadline::now()) == Status::kOk;
      };
      // Chaos may hold a message back after its completion; a WRITE behind it is executed after it. Another message
      // would find no receive, and wait for one.
      const auto flush = [&] {
        auto behind = this->pair.a.post_write(this->taken(this->mine, 20, 1), this->there);
        while (!behind.poll() && !limit.passed()) (void)settle();
        for (int polls = 0; polls < 1000 && this->theirs.held() != 0; ++polls) (void)settle();
      };
      while (!settle() && !limit.passed()) {}
      EXPECT_EQ(this->mine.held(), 0u);
      flush();
      while (this->theirs.held() != 0 && !limit.passed()) {
        auto more = this->pair.a.post_send(this->taken(this->mine, 0, 1));
        while (!more.poll() && !limit.passed()) (void)settle();
        flush();
      }
      ASSERT_EQ(this->theirs.held(), 0u);
    }
    EXPECT_EQ(most == kAllTransfers, !is_held) << most;
  }
}

using AwaitedRc = AwaitedPair<Rc>;

TEST_F(AwaitedRc, ReadsAndAtomics) {
  { const auto filled = counting(theirs, 0, 64, 500); }
  const auto body = [](Loop& /*of*/, typed::Ready<Rc>& over, Words to, There from) -> Task<typed::Outcome<Words>> {
    co_return co_await read(over, std::move(to), from);
  };
  auto done = wait_for(body(*loop, pair.a, taken(mine, 0, 64), there));
  ASSERT_EQ(done.status, Status::kOk) << error_detail();
  EXPECT_TRUE(counts_up(done.segment, 500));
  const auto atomics = [](Loop& /*of*/, typed::Ready<Rc>& over, There word) -> Task<Status> {
    const auto before = co_await fetch_add(over, word, 2);
    if (!before) co_return before.error();
    const auto swapped = co_await compare_swap(over, word, *before + 2, 9);
    if (!swapped) co_return swapped.error();
    co_return *before == 500 && *swapped == 502 ? Status::kOk : Status::kProtocol;
  };
  const Status changed = wait_for(atomics(*loop, pair.a, there));
  if (changed == Status::kUnsupported) GTEST_SKIP() << "the device has no atomics";
  EXPECT_EQ(changed, Status::kOk) << error_detail();
  EXPECT_EQ(taken(theirs, 0, 1).get(0), 9u);
}

TEST_F(AwaitedRc, AReceiveIsAwaitedBeforeItIsReady) {
  const auto made = typed::QueuePairBuilder<Rc>().on(*node);
  auto left = made.prepare();
  ASSERT_OK(left);
  auto right = made.prepare();
  ASSERT_OK(right);
  std::optional<ReceiveOutcome<Words>> outcome;
  const auto body = [](Loop& of, typed::ReceiveOperation<Words> receiving,
                       std::optional<ReceiveOutcome<Words>>& into) -> Task<Status> {
    into = co_await await_posted(of, std::move(receiving));
    co_return into->status;
  };
  ASSERT_EQ(loop->spawn(body(*loop, right->post_receive(taken(theirs, 0, 4)), outcome)), Status::kOk);
  (void)loop->poll();
  EXPECT_FALSE(outcome.has_value());
  typed::Pair<Rc> later;
  ASSERT_NO_FATAL_FAILURE(typed::connect_both(std::move(*left), std::move(*right), later));
  auto sent = later.a.post_send(counting(mine, 0, 4, 77));
  // Chaos may hold the message back until its sender polls.
  const auto is_over = [&] {
    (void)sent.poll();
    return loop->spawned() == 0;
  };
  ASSERT_EQ(loop->run_until(is_over, soon()), Status::kOk);
  EXPECT_EQ(outcome->status, Status::kOk);
  EXPECT_TRUE(counts_up(outcome->segment, 77));
  EXPECT_EQ(sent.wait(soon()), Status::kOk);
}

}  // namespace
}  // namespace verbena::coroutine
