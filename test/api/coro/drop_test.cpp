// Coroutines that are dropped, cancelled or timed out at every point where they wait, with the NIC held and without:
// nobody gets memory before the NIC is done with it, and all of it comes back.
#include "fixture.hpp"

#include "typed_fixture.hpp"

#include "channel/connection.hpp"
#include "session/session.hpp"

#include <hold.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

namespace verbena::coroutine {
namespace {

using Numbers = typed::Segment<std::uint64_t>;
using Remote = typed::RemoteSegment<std::uint64_t>;
using typed::Link;

constexpr std::size_t kCount = 256;

/// Keeps the soft NIC from executing what a link posts; another thread polls the queue of one that is not `link`.
class HeldNic {
 public:
  explicit HeldNic(const Link& link)
      : session_(*typed::detail::Inside::session(link.unsafe_connection())),
        pair_(session_.connection()->queue_pair()) {
    test::hold_execution(pair_, true);
  }
  ~HeldNic() { release(); }
  HeldNic(const HeldNic&) = delete;
  HeldNic& operator=(const HeldNic&) = delete;
  void release() {
    ibv_qp* const pair = std::exchange(pair_, nullptr);
    if (pair == nullptr) return;
    test::hold_execution(pair, false);
    session_.home().loop().wake();  // Nothing else tells a thread that sleeps.
  }
  /// The queue pair has gone.
  void forget() { pair_ = nullptr; }

 private:
  session::Session& session_;
  ibv_qp* pair_;
};

/// Everything that a link can be awaited for, with a step of the loop before each; counts what was answered.
Task<Status> everything(Loop& /*loop*/, Link& link, Link& other, Numbers mine, Numbers room, Remote there,
                        int& answers) {
  const auto is_over = [&answers](Status status) { return ++answers, status != Status::kOk; };
  if (const Status stepped = co_await yield(); is_over(stepped)) co_return stepped;
  auto done = co_await read(link, std::move(mine), there, soon());
  if (is_over(done.status)) co_return done.status;
  done = co_await write(link, std::move(done.segment), there, soon());
  if (is_over(done.status)) co_return done.status;
  auto started = link.start_read(std::move(done.segment), there);
  if (const Status stepped = co_await yield(); is_over(stepped)) co_return stepped;
  done = co_await finish(std::move(started), soon());
  if (is_over(done.status)) co_return done.status;
  if (const auto old = co_await fetch_add(link, there, 0, soon()); is_over(old ? Status::kOk : old.error()))
    co_return old.error();
  done = co_await send(link, std::move(done.segment), soon());
  if (is_over(done.status)) co_return done.status;
  done = co_await write_with_immediate(link, std::move(done.segment), there, 5, soon());
  if (is_over(done.status)) co_return done.status;
  for (int i = 0; i < 2; ++i) {
    auto arrived = co_await receive(other, std::move(room), soon());
    if (is_over(arrived.status)) co_return arrived.status;
    room = std::move(arrived.segment);
  }
  // Nothing comes: it waits until it is given up.
  co_return (co_await receive(other, std::move(room), soon())).status;
}
constexpr int kAnswers = 10;

enum class End : std::uint8_t { kDrop, kCancel, kTimeLimit, kClose };

class CoroutineDrops : public typed::TypedTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TypedTest::SetUp());
    loop = loop_of({.frames = {.frames = 64, .frame_bytes = 8192}});
    ASSERT_NE(loop, nullptr);
    region = region_of<std::uint64_t>(2 * kCount);
  }
  [[nodiscard]] Remote there(const Link& each) const { return remote_of<std::uint64_t>(each.peer_window(), 0, kCount); }
  [[nodiscard]] Task<Status> all_of(Link& each, int& answers) {
    Link& other = &each == &link ? peer : link;
    return everything(*loop, each, other, taken(region, 0, kCount), taken(region, kCount, kCount), there(each),
                      answers);
  }
  /// Until all of the region is its own again.
  void settle(Link& each) {
    const Deadline limit = soon();
    // For short times: who sleeps is not woken when the NIC goes on.
    while ((region.held() != 0 || each.quarantined() != 0) && !limit.passed()) (void)each.settle(in_ms(1));
    EXPECT_EQ(region.held(), 0u);
    EXPECT_EQ(each.quarantined(), 0u);
  }
  void drain_messages() {
    for (Link* each : {&link, &peer}) {
      auto room = taken(region);
      while (each->receive(room, in_ms(1))) {}
    }
  }
  void expect_nothing_left() {
    EXPECT_EQ(loop->frames().counts().in_use, 0u);
    EXPECT_EQ(loop->waiting(), 0u);
    EXPECT_EQ(loop->spawned(), 0u);
  }
  /// Runs `turns` turns of everything, then ends it so. Returns the answers before that.
  int run(Link& each, int turns, End end, bool holds);

  std::unique_ptr<Loop> loop;
  typed::MemoryRegion<std::uint64_t> region;
};

Task<Status> limited(Loop& /*loop*/, Deadline deadline, Task<Status> task) {
  co_return co_await within(deadline, std::move(task));
}
Task<Status> guarded(Loop& /*loop*/, CancelSource& source, Task<Status> task, Status& into) {
  into = co_await cancellable(source, std::move(task));
  co_return into;
}

int CoroutineDrops::run(Link& each, int turns, End end, bool holds) {
  CancelSource source;
  int answers = 0;
  Status status = Status::kOk;
  std::optional<HeldNic> held;
  if (holds) held.emplace(each);
  const Deadline limit = end == End::kTimeLimit ? in_ms(1) : soon();
  EXPECT_EQ(loop->spawn(guarded(*loop, source, limited(*loop, limit, all_of(each, answers)), status)), Status::kOk);
  // A turn resumes somebody. Nothing comes where the NIC is held, or once all is answered.
  const Deadline patience = holds ? in_ms(2) : soon();
  for (int i = 0; i < turns; ++i)
    while (!loop->poll() && answers < kAnswers && loop->spawned() != 0 && !patience.passed()) {}
  const int before = answers;
  switch (end) {
    case End::kDrop: loop->drop_all(); break;
    case End::kCancel: source.cancel(); break;
    case End::kTimeLimit: break;
    case End::kClose:
      link.close();
      if (held && &each == &link) held->forget();
      break;
  }
  if (end != End::kDrop) {
    EXPECT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
    const Status right = end == End::kCancel ? Status::kCancelled : Status::kTimedOut;
    EXPECT_TRUE(end == End::kClose ? status != Status::kOk : status == right) << to_string(status);
  }
  expect_nothing_left();
  if (held) held->release();
  return before;
}

TEST_F(CoroutineDrops, DroppedAfterEachTurn) {
  for (Link* each : {&link, &peer}) {
    int most = 0;
    for (int turns = 0; turns < 400 && most < kAnswers; ++turns) {
      most = std::max(most, run(*each, turns, End::kDrop, false));
      ASSERT_NO_FATAL_FAILURE(settle(*each));
      drain_messages();
    }
    EXPECT_EQ(most, kAnswers) << "each of its waits was reached";
  }
}

TEST_F(CoroutineDrops, CancelledAfterEachTurn) {
  for (Link* each : {&link, &peer}) {
    int most = 0;
    for (int turns = 0; turns < 400 && most < kAnswers; ++turns) {
      most = std::max(most, run(*each, turns, End::kCancel, false));
      ASSERT_NO_FATAL_FAILURE(settle(*each));
      drain_messages();
    }
    EXPECT_EQ(most, kAnswers) << "each of its waits was reached";
  }
}

TEST_F(CoroutineDrops, TimedOutAfterEachTurn) {
  for (Link* each : {&link, &peer})
    for (int turns = 0; turns < 12; ++turns) {
      (void)run(*each, turns, End::kTimeLimit, false);
      ASSERT_NO_FATAL_FAILURE(settle(*each));
      drain_messages();
    }
}

TEST_F(CoroutineDrops, ClosedAfterEachTurn) {
  for (const bool is_peers : {false, true})
    for (int turns = 0; turns < 12; ++turns) {
      (void)run(is_peers ? peer : link, turns, End::kClose, false);
      link.close();
      peer.close();
      EXPECT_EQ(region.held(), 0u);
      ASSERT_NO_FATAL_FAILURE(connect());
    }
}

/// Reads of a link into all of the region, while the NIC does not get to them.
class CoroutineHeld : public CoroutineDrops {
 protected:
  void SetUp() override {
    if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
    ASSERT_NO_FATAL_FAILURE(CoroutineDrops::SetUp());
  }
};

/// Reads by the queue, which can be held: an awaited read would go past it.
Task<Status> read_queued(Loop& /*loop*/, Link& link, Numbers to, Remote from, std::optional<Deadline> until,
                         typed::Outcome<Numbers>* into) {
  auto started = link.start_read(std::move(to), from);
  auto done = co_await finish(std::move(started), until);
  const Status status = done.status;
  if (into != nullptr) *into = std::move(done);
  co_return status;
}

TEST_F(CoroutineHeld, ADroppedWaitLeavesItsSegmentInQuarantine) {
  for (Link* each : {&link, &peer}) {
    HeldNic held(*each);
    ASSERT_EQ(loop->spawn(read_queued(*loop, *each, taken(region, 0, kCount), there(*each), soon(), nullptr)),
              Status::kOk);
    (void)loop->poll();
    EXPECT_EQ(loop->waiting(), 1u);
    loop->drop_all();
    expect_nothing_left();
    EXPECT_EQ(each->quarantined(), 1u);
    EXPECT_EQ(region.take().error(), Status::kBusy);
    held.release();
    settle(*each);
  }
}

TEST_F(CoroutineHeld, ACancelledWaitLeavesItsSegmentInQuarantine) {
  for (Link* each : {&link, &peer}) {
    HeldNic held(*each);
    CancelSource source;
    Status status = Status::kOk;
    typed::Outcome<Numbers> outcome;
    ASSERT_EQ(loop->spawn(guarded(*loop, source,
                                  read_queued(*loop, *each, taken(region, 0, kCount), there(*each), soon(), &outcome),
                                  status)),
              Status::kOk);
    (void)loop->poll();
    source.cancel();
    ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
    EXPECT_EQ(status, Status::kCancelled);
    EXPECT_TRUE(outcome.segment.empty());
    EXPECT_EQ(region.take().error(), Status::kBusy);
    EXPECT_TRUE(each->is_connected());
    held.release();
    settle(*each);
  }
}

TEST_F(CoroutineHeld, ATimeoutLeavesTheLinkAlive) {
  for (Link* each : {&link, &peer}) {
    HeldNic held(*each);
    EXPECT_EQ(
        sync_wait(*loop, read_queued(*loop, *each, taken(region, 0, kCount), there(*each), in_ms(5), nullptr), soon()),
        Status::kTimedOut);
    EXPECT_EQ(each->quarantined(), 1u);
    EXPECT_TRUE(each->is_connected());
    held.release();
    settle(*each);
    EXPECT_EQ(
        sync_wait(*loop, read_queued(*loop, *each, taken(region, 0, kCount), there(*each), soon(), nullptr), soon()),
        Status::kOk);
  }
}

TEST_F(CoroutineHeld, TheLoserOfAnyIsInQuarantine) {
  for (Link* each : {&link, &peer}) {
    HeldNic held(*each);
    const auto race = [](Loop& /*of*/, Task<Status> reads, Task<Status> naps) -> Task<Status> {
      const auto first = co_await when_any(std::move(reads), std::move(naps));
      co_return first.index == 1 ? first.result : Status::kSystem;
    };
    const auto nap = [](Loop& /*of*/) -> Task<Status> { co_return co_await reached(in_ms(2)); };
    EXPECT_EQ(sync_wait(*loop,
                        race(*loop, read_queued(*loop, *each, taken(region, 0, kCount), there(*each), soon(), nullptr),
                             nap(*loop)),
                        soon()),
              Status::kOk);
    EXPECT_EQ(each->quarantined(), 1u);
    held.release();
    settle(*each);
  }
}

TEST_F(CoroutineHeld, AClosedLinkEndsWhatIsAwaited) {
  HeldNic held(link);
  typed::Outcome<Numbers> outcome;
  ASSERT_EQ(loop->spawn(read_queued(*loop, link, taken(region, 0, kCount), there(link), soon(), &outcome)),
            Status::kOk);
  (void)loop->poll();
  link.close();
  held.forget();
  ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(outcome.status, Status::kClosed);
  EXPECT_EQ(outcome.segment.size(), kCount) << "the NIC is done";
}

TEST_F(CoroutineHeld, AWaitThatIsDroppedAfterItsLinkWasClosed) {
  HeldNic held(link);
  ASSERT_EQ(loop->spawn(read_queued(*loop, link, taken(region, 0, kCount), there(link), soon(), nullptr)), Status::kOk);
  (void)loop->poll();
  link.close();
  held.forget();
  loop->drop_all();
  expect_nothing_left();
  EXPECT_EQ(region.held(), 0u);
}

TEST_F(CoroutineHeld, EverythingHeldIsDroppedAndCancelledAfterEachTurn) {
  for (Link* each : {&link, &peer})
    for (const End end : {End::kDrop, End::kCancel, End::kTimeLimit})
      for (int turns = 0; turns < 8; ++turns) {
        (void)run(*each, turns, end, true);
        ASSERT_NO_FATAL_FAILURE(settle(*each));
        drain_messages();
      }
}

// A wait is told by the thread that drives the connection while this one drops it.
TEST_F(CoroutineHeld, WaitsThatAreDroppedWhileTheyAreTold) {
  for (int round = 0; round < 300; ++round) {
    ASSERT_EQ(loop->spawn(read_queued(*loop, peer, taken(region, 0, kCount), there(peer), soon(), nullptr)),
              Status::kOk);
    for (int spin = 0; spin < round % 40; ++spin) (void)loop->poll();
    loop->drop_all();
    expect_nothing_left();
    settle(peer);
    if (HasFailure()) break;
  }
}

TEST_F(CoroutineHeld, ReceivesThatAreDroppedWhileAMessageComes) {
  const auto one = [](Loop& /*of*/, Link& over, Numbers to, int& count) -> Task<Status> {
    const auto arrived = co_await receive(over, std::move(to), soon());
    if (arrived.status == Status::kOk) ++count;
    co_return arrived.status;
  };
  int received = 0;
  auto mine = taken(region, 0, 4);
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_EQ(loop->spawn(one(*loop, peer, taken(region, kCount, kCount), received)), Status::kOk);
    ASSERT_EQ(link.send(mine), Status::kOk);
    for (int spin = 0; spin < round % 20; ++spin) (void)loop->poll();
    loop->drop_all();
    expect_nothing_left();
    ASSERT_EQ(region.held(), 1u);
  }
  EXPECT_LE(received, kRounds);
  EXPECT_TRUE(peer.is_connected());
}

Task<Status> read_once(Loop& /*loop*/, Link& link, Numbers to, Remote from) {
  co_return (co_await read(link, std::move(to), from, soon())).status;
}

// Completions go to the coroutine, and there is none yet: nothing but the look moves the connection on.
TEST_F(CoroutineDrops, ADroppedReceiveIsWithdrawnWhileATransferIsAwaited) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  for (Link* each : {&link, &peer}) {
    HeldNic held(*each);
    ASSERT_EQ(loop->spawn(read_once(*loop, *each, taken(region, 0, kCount), there(*each))), Status::kOk);
    { const auto dropped = each->start_receive(taken(region, kCount, 10)); }
    EXPECT_EQ(each->quarantined(), 1u);
    for (const Deadline limit = soon(); each->quarantined() != 0 && !limit.passed();)
      (void)each->settle(Deadline::now());
    EXPECT_EQ(each->quarantined(), 0u);
    held.release();
    // A message wakes the thread that polls, where one does. The dropped receive does not take it.
    auto words = taken(region, kCount, 10);
    words.fill(each == &link ? 5 : 6);
    ASSERT_EQ((each == &link ? peer : link).send(words, soon()), Status::kOk);
    words.fill(0);
    ASSERT_TRUE(each->receive(words, soon()).has_value()) << error_detail();
    EXPECT_EQ(words.get(9).value(), each == &link ? 5u : 6u);
    ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
    EXPECT_EQ(loop->failed(), 0u);
  }
}

// The thread takes completions for its own wait, and afterwards they are the coroutine's again.
TEST_F(CoroutineDrops, AWaitOfTheThreadLeavesLaterCompletionsToTheCoroutine) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  for (Link* each : {&link, &peer}) {
    HeldNic held(*each);
    ASSERT_EQ(loop->spawn(read_once(*loop, *each, taken(region, 0, kCount), there(*each))), Status::kOk);
    auto other = each->start_read(taken(region, kCount, kCount), there(*each));
    EXPECT_EQ(other.wait(in_ms(1)), Status::kTimedOut);
    held.release();
    // A message wakes the thread that polls, where one does.
    const std::array<std::byte, 8> word{};
    ASSERT_EQ((each == &link ? peer : link).unsafe_connection().send(word, soon()), Status::kOk);
    ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
    EXPECT_EQ(loop->failed(), 0u) << "the coroutine was not told";
    EXPECT_EQ(other.wait(soon()), Status::kOk);
  }
}

// The note has left and counts as sent; the NIC still reads what is written. Awaited in the same turn, and later.
TEST_F(CoroutineDrops, AnAwaitedWriteWithImmediateEndsWithItsWrite) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  const auto body = [](Loop& /*of*/, Link& over, Numbers from, Remote to) -> Task<Status> {
    co_return (co_await write_with_immediate(over, std::move(from), to, 5, soon())).status;
  };
  HeldNic held(peer);
  ASSERT_EQ(loop->spawn(body(*loop, peer, taken(region, 0, kCount), there(peer))), Status::kOk);
  for (int i = 0; i < 100; ++i) (void)loop->poll();
  EXPECT_EQ(loop->spawned(), 1u) << "it is with the NIC";
  held.release();
  const std::array<std::byte, 8> word{};
  ASSERT_EQ(link.unsafe_connection().send(word, soon()), Status::kOk);
  ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(loop->failed(), 0u);
}

}  // namespace
}  // namespace verbena::coroutine
