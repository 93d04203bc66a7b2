// Awaited operations of links, over a connection that this thread drives and over one that a thread of the library
// does.
#include "fixture.hpp"

#include "typed_fixture.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <vector>

namespace verbena::coroutine {
namespace {

using Numbers = typed::Segment<std::uint64_t>;
using Remote = typed::RemoteSegment<std::uint64_t>;
using typed::Link;
using typed::MemoryRegion;

class CoroutineLinks : public typed::TypedTest {
 protected:
  static constexpr std::size_t kCount = 512;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TypedTest::SetUp());
    loop = loop_of({.frames = {.frames = 64, .frame_bytes = 4096}});
    ASSERT_NE(loop, nullptr);
    region = region_of<std::uint64_t>(kCount);
    meet();
  }
  /// The windows of both ends count up from 0.
  void meet() {
    for (Link* each : {&link, &peer}) count(theirs(*each), 0);
  }
  static void count(std::span<std::uint64_t> all, std::uint64_t first) { std::iota(all.begin(), all.end(), first); }
  /// What a link reads and writes: the other end's window.
  [[nodiscard]] Remote there(const Link& each, std::size_t first = 0, std::size_t count = kCount) const {
    return remote_of<std::uint64_t>(each.peer_window(), first, count);
  }
  [[nodiscard]] std::span<std::uint64_t> theirs(const Link& each) const {
    const Link& other = &each == &link ? peer : link;
    const std::span<std::byte> window = other.unsafe_connection().window();
    return {reinterpret_cast<std::uint64_t*>(window.data()), kCount};
  }
  [[nodiscard]] static bool counts_from(std::span<const std::uint64_t> all, std::uint64_t first) {
    return std::ranges::all_of(all, [&](std::uint64_t number) { return number == first++; });
  }
  void TearDown() override {
    if (loop == nullptr) return;
    EXPECT_EQ(loop->frames().counts().in_use, 0u);
    EXPECT_EQ(region.held(), 0u);
  }
  template <class T>
  [[nodiscard]] T wait_for(Task<T> task) {
    return sync_wait(*loop, std::move(task), soon());
  }

  std::unique_ptr<Loop> loop;
  MemoryRegion<std::uint64_t> region;
};

Task<typed::Outcome<Numbers>> read_all(Loop& /*loop*/, Link& link, Numbers to, Remote from) {
  co_return co_await read(link, std::move(to), from);
}
Task<typed::Outcome<Numbers>> write_all(Loop& /*loop*/, Link& link, Numbers from, Remote to) {
  co_return co_await write(link, std::move(from), to);
}
Task<Arrived<std::uint64_t>> receive_one(Loop& /*loop*/, Link& link, Numbers to, std::optional<Deadline> until) {
  co_return co_await receive(link, std::move(to), until);
}
Task<typed::Outcome<Numbers>> send_one(Loop& /*loop*/, Link& link, Numbers from) {
  co_return co_await send(link, std::move(from));
}
Task<std::expected<std::uint64_t, Status>> add_one(Loop& /*loop*/, Link& link, Remote word) {
  co_return co_await fetch_add(link, word, 1);
}

TEST_F(CoroutineLinks, ReadsAndWrites) {
  for (Link* each : {&link, &peer}) {
    auto read = wait_for(read_all(*loop, *each, taken(region), there(*each)));
    ASSERT_EQ(read.status, Status::kOk) << error_detail();
    EXPECT_TRUE(counts_up(read.segment, 0));
    count_up(read.segment, 7000);
    auto written = wait_for(write_all(*loop, *each, std::move(read.segment), there(*each)));
    ASSERT_EQ(written.status, Status::kOk) << error_detail();
    EXPECT_EQ(written.segment.size(), kCount);
    EXPECT_TRUE(counts_from(theirs(*each), 7000));
  }
}

TEST_F(CoroutineLinks, ManyReadsAtATime) {
  for (Link* each : {&link, &peer}) {
    std::size_t done = 0;
    const auto body = [](Loop& /*of*/, Link& over, Numbers to, Remote from, std::size_t& count) -> Task<Status> {
      for (int i = 0; i < 20; ++i) {
        auto read = co_await coroutine::read(over, std::move(to), from);
        if (read.status != Status::kOk) co_return read.status;
        to = std::move(read.segment);
      }
      ++count;
      co_return Status::kOk;
    };
    for (std::size_t i = 0; i < 32; ++i)
      ASSERT_EQ(loop->spawn(body(*loop, *each, taken(region, i * 16, 16), there(*each, i * 16, 16), done)),
                Status::kOk);
    ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
    EXPECT_EQ(done, 32u);
    EXPECT_EQ(loop->failed(), 0u);
  }
}

TEST_F(CoroutineLinks, ConstSegmentsAreWrittenAndSent) {
  auto mine = taken(region);
  count_up(mine, 50);
  const typed::ConstSegment<std::uint64_t> shared = std::move(mine).freeze();
  const auto body = [](Loop& /*of*/, Link& over, typed::ConstSegment<std::uint64_t> from, Remote to) -> Task<Status> {
    auto written = co_await write(over, from, to);
    if (written.status != Status::kOk) co_return written.status;
    co_return (co_await send(over, from)).status;
  };
  EXPECT_EQ(wait_for(body(*loop, link, shared, there(link))), Status::kOk);
  EXPECT_TRUE(counts_from(theirs(link), 50));
  auto other = region_of<std::uint64_t>(kCount);
  const auto arrived = wait_for(receive_one(*loop, peer, taken(other), {}));
  EXPECT_EQ(arrived.status, Status::kOk);
  EXPECT_TRUE(counts_up(arrived.segment, 50));
}

TEST_F(CoroutineLinks, Atomics) {
  if (!link.fetch_add(there(link), 0)) GTEST_SKIP() << "the device has no atomics";
  for (Link* each : {&link, &peer}) {
    std::uint64_t expected = 0;
    EXPECT_EQ(wait_for(add_one(*loop, *each, there(*each))).value(), expected++);
    const auto swap = [](Loop& /*of*/, Link& over, Remote word,
                         std::uint64_t from) -> Task<std::expected<std::uint64_t, Status>> {
      co_return co_await compare_swap(over, word, from, from + 1);
    };
    EXPECT_EQ(wait_for(swap(*loop, *each, there(*each), expected)).value(), expected);
    ++expected;
    EXPECT_EQ(wait_for(swap(*loop, *each, there(*each), 0)).value(), expected) << "nothing was swapped";
    EXPECT_EQ(theirs(*each).front(), expected);
  }
}

TEST_F(CoroutineLinks, MessagesBothWays) {
  for (int round = 0; round < 2; ++round) {
    Link& from = round == 0 ? link : peer;
    Link& to = round == 0 ? peer : link;
    const auto both = [](Loop& of, Link& out, Link& in, Numbers mine, Numbers room) -> Task<Status> {
      auto [arrived, sent] =
          co_await when_all(receive_one(of, in, std::move(room), {}), send_one(of, out, std::move(mine)));
      if (arrived.status != Status::kOk || sent.status != Status::kOk) co_return Status::kSystem;
      const bool is_right = arrived.received.count == sent.segment.size() &&
                            arrived.segment.get(3) == sent.segment.get(3) && !arrived.received.immediate;
      co_return is_right ? Status::kOk : Status::kProtocol;
    };
    auto mine = taken(region, 0, 100);
    count_up(mine, 9);
    EXPECT_EQ(wait_for(both(*loop, from, to, std::move(mine), taken(region, 100, 200))), Status::kOk);
  }
}

TEST_F(CoroutineLinks, ImmediatesArriveWithSendsAndWrites) {
  const auto body = [](Loop& /*of*/, Link& over, Numbers from, Remote window) -> Task<Status> {
    auto sent = co_await send_with_immediate(over, std::move(from), 17);
    if (sent.status != Status::kOk) co_return sent.status;
    auto written = co_await write_with_immediate(over, std::move(sent.segment), window.unsafe_part(8, 100), 18);
    co_return written.segment.size() == 100 ? written.status : Status::kSystem;
  };
  for (int round = 0; round < 2; ++round) {
    Link& from = round == 0 ? link : peer;
    Link& to = round == 0 ? peer : link;
    auto mine = taken(region, 0, 100);
    count_up(mine, 5);
    const auto window = remote_of<std::uint64_t>(from.peer_window());
    ASSERT_EQ(wait_for(body(*loop, from, std::move(mine), window)), Status::kOk) << error_detail();
    auto first = wait_for(receive_one(*loop, to, taken(region), {}));
    ASSERT_EQ(first.status, Status::kOk);
    EXPECT_EQ(first.received.immediate, 17u);
    auto second = wait_for(receive_one(*loop, to, std::move(first.segment), {}));
    ASSERT_EQ(second.status, Status::kOk);
    EXPECT_EQ(second.received.immediate, 18u);
    EXPECT_EQ(second.received.kind, rdma::Message::Kind::kWritten);
    EXPECT_EQ(second.received.first, 8u);
    EXPECT_EQ(second.received.count, 100u);
  }
}

TEST_F(CoroutineLinks, WhatIsWrongIsToldWithTheSegment) {
  const auto outside = [](Loop& /*of*/, Link& over, Numbers from, Remote to) -> Task<typed::Outcome<Numbers>> {
    co_return co_await write_with_immediate(over, std::move(from), to, 1);
  };
  const auto source = region_of<std::uint64_t>(kCount);
  auto refused = wait_for(outside(*loop, link, taken(region), remote_of<std::uint64_t>(source.window())));
  EXPECT_EQ(refused.status, Status::kOutOfRange);
  EXPECT_EQ(refused.segment.size(), kCount);
  refused = wait_for(read_all(*loop, link, std::move(refused.segment), Remote()));
  EXPECT_EQ(refused.status, Status::kRemoteAccess);
  EXPECT_EQ(refused.segment.size(), kCount);
  Numbers half = std::move(refused.segment);
  auto rest = half.split_at(kCount / 2);
  refused = wait_for(read_all(*loop, link, std::move(half), there(link)));
  EXPECT_EQ(refused.status, Status::kBadArgument);
  EXPECT_EQ(refused.segment.size(), kCount / 2);
  const auto empty = wait_for(send_one(*loop, link, Numbers()));
  EXPECT_EQ(empty.status, Status::kBadArgument);
}

TEST_F(CoroutineLinks, AMessageThatHasNoRoomWaitsOn) {
  auto mine = taken(region, 0, 100);
  ASSERT_EQ(link.send(mine), Status::kOk);
  auto small = wait_for(receive_one(*loop, peer, taken(region, 100, 10), {}));
  EXPECT_EQ(small.status, Status::kBufferTooSmall);
  EXPECT_EQ(small.waiting, 100u);
  small = {};
  EXPECT_EQ(wait_for(receive_one(*loop, peer, taken(region, 100, 100), {})).received.count, 100u);
}

TEST_F(CoroutineLinks, AReceiveTimesOutAndTheNextOneGetsTheMessage) {
  for (Link* each : {&link, &peer}) {
    auto none = wait_for(receive_one(*loop, *each, taken(region), in_ms(2)));
    EXPECT_EQ(none.status, Status::kTimedOut);
    EXPECT_EQ(none.segment.size(), kCount) << "the segment comes back";
    Link& other = each == &link ? peer : link;
    auto mine = region_of<std::uint64_t>(4);
    ASSERT_EQ(other.send(taken(mine)), Status::kOk);
    EXPECT_EQ(wait_for(receive_one(*loop, *each, std::move(none.segment), {})).received.count, 4u);
  }
}

TEST_F(CoroutineLinks, StartedOperationsAreAwaited) {
  const auto body = [](Loop& /*of*/, typed::Operation<Numbers> operation) -> Task<typed::Outcome<Numbers>> {
    co_return co_await finish(std::move(operation));
  };
  for (Link* each : {&link, &peer}) {
    const auto read = wait_for(body(*loop, each->start_read(taken(region), there(*each))));
    ASSERT_EQ(read.status, Status::kOk) << error_detail();
    EXPECT_TRUE(counts_up(read.segment, 0));
  }
}

// The thread that drives the connection tells of the end by itself: nobody asks it.
TEST_F(CoroutineLinks, WhatIsAwaitedOrStartedIsHandedOverOnce) {
  const engine::CompletionLoop& driver = typed::detail::Inside::session(peer.unsafe_connection())->home().loop();
  const auto handed_over = [&](auto&& operation) {
    const std::uint32_t before = driver.ended_calls();
    EXPECT_EQ(operation(), Status::kOk) << error_detail();
    return driver.ended_calls() - before;
  };
  ASSERT_EQ(wait_for(read_all(*loop, peer, taken(region), there(peer))).status, Status::kOk) << "the window is known";
  EXPECT_EQ(handed_over([&] { return wait_for(read_all(*loop, peer, taken(region), there(peer))).status; }), 1u);
  EXPECT_EQ(handed_over([&] { return wait_for(write_all(*loop, peer, taken(region), there(peer))).status; }), 1u);
  EXPECT_EQ(handed_over([&] { return wait_for(send_one(*loop, peer, taken(region))).status; }), 1u);
  EXPECT_EQ(handed_over([&] {
              const auto old = wait_for(add_one(*loop, peer, there(peer, 0, 1)));
              return old ? Status::kOk : old.error();
            }),
            1u);
  EXPECT_EQ(handed_over([&] { return peer.start_read(taken(region), there(peer)).wait(soon()); }), 1u);
}

// Blocking calls and awaits of one thread, in turn.
TEST_F(CoroutineLinks, BlockingCallsBesideAwaits) {
  for (Link* each : {&link, &peer}) {
    std::size_t ended = 0;
    const auto body = [](Loop& /*of*/, Link& over, Numbers to, Remote from, std::size_t& count) -> Task<Status> {
      auto operation = over.start_read(std::move(to), from);
      (void)co_await yield();
      auto read = co_await finish(std::move(operation));
      ++count;
      co_return read.status;
    };
    for (std::size_t i = 0; i < 4; ++i)
      ASSERT_EQ(loop->spawn(body(*loop, *each, taken(region, i, 1), there(*each, i, 1), ended)), Status::kOk);
    (void)loop->poll();
    auto blocking = each->start_read(taken(region, 10, 1), there(*each, 10, 1));
    ASSERT_EQ(blocking.wait(soon()), Status::kOk) << error_detail();
    ASSERT_EQ(loop->run_until([&] { return ended == 4; }, soon()), Status::kOk);
    EXPECT_EQ(loop->failed(), 0u);
    (void)loop->poll();
  }
}

TEST_F(CoroutineLinks, AClosedLinkRefuses) {
  link.close();
  auto refused = wait_for(read_all(*loop, link, taken(region), Remote()));
  EXPECT_EQ(refused.status, Status::kClosed);
  EXPECT_EQ(wait_for(send_one(*loop, link, std::move(refused.segment))).status, Status::kClosed);
  EXPECT_EQ(wait_for(receive_one(*loop, link, taken(region), {})).status, Status::kClosed);
  EXPECT_EQ(wait_for(add_one(*loop, link, Remote())).error(), Status::kClosed);
}

TEST_F(CoroutineLinks, ClientsAreAwaited) {
  int served = 0;
  const auto one = [](Loop& /*of*/, rdma::Listener& at, Deadline until, int& count) -> Task<Status> {
    const auto connection = co_await accept(at, until);
    if (!connection) co_return connection.error();
    ++count;
    co_return Status::kOk;
  };
  EXPECT_EQ(sync_wait(*loop, one(*loop, *listener, in_ms(1), served), soon()), Status::kTimedOut);
  ASSERT_EQ(loop->spawn(one(*loop, *listener, soon(), served)), Status::kOk);
  EXPECT_EQ(sync_wait(*loop, one(*loop, *listener, soon(), served), soon()), Status::kBusy);
  const std::unique_ptr<rdma::Connection> client = dial();
  ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(served, 1);
  ASSERT_EQ(loop->spawn(one(*loop, *listener, soon(), served)), Status::kOk);
  loop->drop_all();
  ASSERT_EQ(loop->spawn(one(*loop, *listener, soon(), served)), Status::kOk);
  const std::uint64_t failed = loop->failed();
  listener->stop();
  ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(loop->failed(), failed + 1) << "the listener was stopped";
}

TEST_F(CoroutineLinks, APeerThatLeavesEndsAWait) {
  for (int round = 0; round < 2; ++round) {
    Link& stays = round == 0 ? link : peer;
    Link& leaves = round == 0 ? peer : link;
    Status status = Status::kOk;
    const auto body = [](Loop& /*of*/, Link& over, Numbers to, Status& into) -> Task<Status> {
      into = (co_await receive(over, std::move(to), soon())).status;
      co_return into;
    };
    ASSERT_EQ(loop->spawn(body(*loop, stays, taken(region), status)), Status::kOk);
    leaves.close();
    ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
    EXPECT_TRUE(status == Status::kClosed || status == Status::kPeerLost) << to_string(status);
    if (round != 0) break;
    ASSERT_NO_FATAL_FAILURE(connect());
  }
}

}  // namespace
}  // namespace verbena::coroutine
