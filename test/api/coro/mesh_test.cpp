// Awaited operations of lanes: of two processes whose lanes one loop polls, and of one that sleeps on its own.
#include "../../mesh/fixture.hpp"

#include "fixture.hpp"

#include <verbena/coroutines_mesh.hpp>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

namespace verbena::coroutine {
namespace {

using Cells = typed::Segment<std::uint64_t>;
using Inbound = typed::MessageOutcome<std::uint64_t>;
using PeerCells = typed::PeerSegment<std::uint64_t>;
using typed::MeshLane;

class AwaitedMesh : public mesh::test::Meshes {
 protected:
  static constexpr std::size_t kCells = 256;

  void SetUp() override { ASSERT_NO_FATAL_FAILURE(open({})); }
  void open(const std::function<void(mesh::Options&)>& change) {
    loop = loop_of({.frames = {.frames = 64, .frame_bytes = 4096}});
    ASSERT_NE(loop, nullptr);
    ASSERT_NO_FATAL_FAILURE(start(2, change));
    for (unsigned id = 0; id < 2; ++id) {
      auto made = MeshLane::over(lane(id));
      ASSERT_OK(made);
      ends.at(id) = std::move(*made);
      auto allocated = typed::MemoryRegion<std::uint64_t>::allocate(*meshes[id], kCells);
      ASSERT_OK(allocated);
      regions.at(id) = std::move(*allocated);
    }
    ASSERT_OK(ends[1].publish("cells", regions[1]));
    window = found(0, 1, "cells");
    const auto all = PeerCells::of(window);
    ASSERT_TRUE(all.has_value()) << error_detail();
    there = *all;
  }
  void TearDown() override {
    if (loop == nullptr) return;
    EXPECT_EQ(loop->frames().counts().in_use, 0u);
    EXPECT_EQ(loop->waiting(), 0u);
  }
  void close_all() {
    ends = {};
    meshes.clear();
  }
  [[nodiscard]] Cells cells(unsigned id, std::size_t first, std::size_t count, std::uint64_t value = 0) {
    auto taken = regions.at(id).take(first, count);
    EXPECT_TRUE(taken.has_value()) << error_detail();
    if (!taken) return {};
    taken->use([value](std::span<std::uint64_t> all) { std::iota(all.begin(), all.end(), value); });
    return std::move(*taken);
  }
  [[nodiscard]] static bool counts_from(const Cells& all, std::size_t count, std::uint64_t value) {
    return all.size() >= count && all.use([&](std::span<const std::uint64_t> elements) {
      return std::ranges::all_of(elements.first(count), [&](std::uint64_t each) { return each == value++; });
    });
  }
  /// Runs it; the loop polls a lane only while somebody awaits something of it.
  template <class T>
  [[nodiscard]] T wait_for(Task<T> task) {
    std::optional<T> result;
    const auto body = [](Loop& /*of*/, Task<T> of, std::optional<T>& into) -> Task<Status> {
      into = co_await std::move(of);
      co_return Status::kOk;
    };
    EXPECT_EQ(loop->spawn(body(*loop, std::move(task), result)), Status::kOk);
    finish_all();
    return result ? std::move(*result) : Refusal<T>::of(Status::kTimedOut);
  }
  void finish_all() {
    const Deadline limit = soon();
    while (loop->spawned() != 0 && !limit.passed()) {
      (void)loop->poll();
      look();
    }
    EXPECT_EQ(loop->spawned(), 0u);
  }
  /// Has both lanes looked at, without a coroutine.
  void look() {
    for (MeshLane& each : ends) (void)each.start_flush(1 - static_cast<unsigned>(&each - ends.data())).poll();
  }
  void settle() {
    const Deadline limit = soon();
    while ((regions[0].held() != 0 || regions[1].held() != 0) && !limit.passed())
      for (MeshLane& each : ends) (void)each.settle(Deadline::now());
    for (unsigned id = 0; id < 2; ++id) {
      EXPECT_EQ(regions.at(id).held(), 0u);
      EXPECT_EQ(ends.at(id).quarantined(), 0u);
    }
  }

  std::unique_ptr<Loop> loop;
  std::array<typed::MemoryRegion<std::uint64_t>, 2> regions;
  std::array<MeshLane, 2> ends;
  mesh::Window window;
  PeerCells there;  ///< All of the second process's, for the first.
};

Task<typed::Outcome<Cells>> send_cells(Loop& /*loop*/, MeshLane& lane, unsigned peer, Cells from,
                                       std::optional<Deadline> until = {}) {
  co_return co_await send(lane, peer, std::move(from), until);
}
Task<Inbound> receive_cells(Loop& /*loop*/, MeshLane& lane, unsigned peer, Cells to,
                            std::optional<Deadline> until = {}) {
  co_return co_await receive(lane, peer, std::move(to), until);
}

TEST_F(AwaitedMesh, MessagesBothWays) {
  const auto body = [](Loop& of, MeshLane& from, MeshLane& to, unsigned target, Cells mine,
                       Cells room) -> Task<Status> {
    auto [sent, received] = co_await when_all(send_cells(of, from, target, std::move(mine)),
                                              receive_cells(of, to, 1 - target, std::move(room)));
    if (sent.status != Status::kOk || received.status != Status::kOk) co_return Status::kSystem;
    if (!counts_from(received.segment, 10, 7) || received.received.count != 10) co_return Status::kProtocol;
    auto told = co_await send_with_immediate(from, target, std::move(sent.segment), 55);
    if (told.status != Status::kOk || told.segment.size() != 10) co_return Status::kProtocol;
    received = co_await receive(to, 1 - target, std::move(received.segment));
    co_return received.received.immediate == 55u ? received.status : Status::kRejected;
  };
  for (unsigned target = 0; target < 2; ++target)
    EXPECT_EQ(wait_for(body(*loop, ends.at(1 - target), ends.at(target), target, cells(1 - target, 0, 10, 7),
                            cells(target, 0, 20))),
              Status::kOk)
        << error_detail();
  settle();
}

TEST_F(AwaitedMesh, SendsWaitForCreditInTheirOrder) {
  constexpr std::size_t kSends = 30;
  std::size_t sent = 0;
  const auto sender = [](Loop& /*of*/, MeshLane& from, Cells mine, std::size_t& count) -> Task<Status> {
    const auto done = co_await send(from, 1, std::move(mine), soon());
    ++count;
    co_return done.status;
  };
  for (std::size_t i = 0; i < kSends; ++i)
    ASSERT_EQ(loop->spawn(sender(*loop, ends[0], cells(0, i, 1, i), sent)), Status::kOk);
  for (int i = 0; i < 2000; ++i) {
    (void)loop->poll();
    look();
  }
  EXPECT_LT(sent, kSends) << "there is no credit for all";
  const auto receiver = [](Loop& /*of*/, MeshLane& to, Cells room) -> Task<Status> {
    for (std::size_t i = 0; i < kSends; ++i) {
      auto received = co_await receive(to, 0, std::move(room), soon());
      if (received.status != Status::kOk) co_return received.status;
      if (received.segment.get(0) != i) co_return Status::kProtocol;
      room = std::move(received.segment);
    }
    co_return Status::kOk;
  };
  ASSERT_EQ(loop->spawn(receiver(*loop, ends[1], cells(1, 0, 1))), Status::kOk);
  finish_all();
  EXPECT_EQ(loop->failed(), 0u);
  EXPECT_EQ(sent, kSends);
  settle();
}

TEST_F(AwaitedMesh, OneSidedAccess) {
  const auto body = [](Loop& /*of*/, MeshLane& from, MeshLane& other, PeerCells at, Cells mine,
                       Cells room) -> Task<Status> {
    auto done = co_await write(from, std::move(mine), at);
    if (done.status != Status::kOk) co_return done.status;
    done.segment.fill(0);
    done = co_await read(from, std::move(done.segment), *at.part(0, 16));
    if (done.status != Status::kOk || !counts_from(done.segment, 16, 40)) co_return Status::kProtocol;
    done = co_await write_with_immediate(from, std::move(done.segment), *at.part(32, 16), 9);
    if (done.status != Status::kOk) co_return done.status;
    const auto told = co_await receive(other, 0, std::move(room));
    if (told.status != Status::kOk) co_return told.status;
    const bool is_right = told.received.kind == rdma::Message::Kind::kWritten && told.received.first == 32 &&
                          told.received.count == 16 && told.received.immediate == 9u;
    co_return is_right ? Status::kOk : Status::kRejected;
  };
  EXPECT_EQ(wait_for(body(*loop, ends[0], ends[1], there, cells(0, 0, 16, 40), cells(1, 100, 1))), Status::kOk)
      << error_detail();
  EXPECT_TRUE(counts_from(*regions[1].take(32, 16), 16, 40));
  const auto atomics = [](Loop& /*of*/, MeshLane& from, PeerCells word) -> Task<Status> {
    const auto before = co_await fetch_add(from, word, 2);
    if (!before) co_return before.error();
    const auto swapped = co_await compare_swap(from, word, *before + 2, 1000);
    if (!swapped) co_return swapped.error();
    co_return *before == 40 && *swapped == 42 ? Status::kOk : Status::kProtocol;
  };
  const Status changed = wait_for(atomics(*loop, ends[0], there));
  EXPECT_TRUE(changed == Status::kOk || changed == Status::kUnsupported) << error_detail();
  settle();
}

TEST_F(AwaitedMesh, AFlushWaitsForWhatWasStartedBefore) {
  const auto body = [](Loop& /*of*/, MeshLane& from, Cells one, Cells two, PeerCells at) -> Task<Status> {
    auto first = from.start_write(std::move(one), at);
    auto second = from.start_read(std::move(two), *at.part(0, 8));
    const auto flushed = co_await flush(from, 1, soon());
    co_return first.is_under_way() && !first.poll() ? Status::kBusy
    : second.is_under_way() && !second.poll()       ? Status::kBusy
                                                    : flushed.status;
  };
  EXPECT_EQ(wait_for(body(*loop, ends[0], cells(0, 0, 64, 1), cells(0, 64, 8), there)), Status::kOk);
  EXPECT_EQ(wait_for([](Loop& /*of*/, MeshLane& from) -> Task<Status> {
              const auto flushed = co_await flush(from, 1);
              co_return flushed.status;
            }(*loop, ends[0])),
            Status::kOk)
      << "nothing is under way";
  settle();
}

TEST_F(AwaitedMesh, AReceiveTimesOutAndTheNextOneGetsTheMessage) {
  const auto none = wait_for(receive_cells(*loop, ends[1], 0, cells(1, 0, 8), in_ms(2)));
  EXPECT_EQ(none.status, Status::kTimedOut);
  EXPECT_TRUE(none.segment.empty());
  settle();
  EXPECT_EQ(wait_for(send_cells(*loop, ends[0], 1, cells(0, 0, 8, 3))).status, Status::kOk);
  auto small = wait_for(receive_cells(*loop, ends[1], 0, cells(1, 0, 4)));
  EXPECT_EQ(small.status, Status::kBufferTooSmall);
  EXPECT_EQ(small.segment.size(), 4u);
  const auto all = wait_for(receive_cells(*loop, ends[1], 0, cells(1, 8, 8)));
  EXPECT_EQ(all.status, Status::kOk);
  EXPECT_TRUE(counts_from(all.segment, 8, 3));
}

TEST_F(AwaitedMesh, WhatIsRefusedComesBack) {
  for (const unsigned peer : {0u, 2u}) {
    const auto refused = wait_for(send_cells(*loop, ends[0], peer, cells(0, 0, 5)));
    EXPECT_EQ(refused.status, Status::kBadArgument);
    EXPECT_EQ(refused.segment.size(), 5u);
  }
  EXPECT_EQ(wait_for(send_cells(*loop, ends[0], 1, Cells())).status, Status::kBadArgument);
  EXPECT_EQ(wait_for(send_cells(*loop, ends[0], 1, cells(0, 0, 200))).status, Status::kTooLong);
  EXPECT_EQ(ends[0].start_write(cells(0, 0, 5), *there.part(0, 4)).status(), Status::kBadArgument);
  EXPECT_EQ(ends[0].start_read(cells(0, 0, 5), *there.part(0, 6)).status(), Status::kBadArgument);
  EXPECT_EQ(ends[0].start_fetch_add(PeerCells(), 1).status(), Status::kBadArgument);
  mesh::Window readable = window;
  readable.memory.access = rdma::Access::kRead;
  const auto only_read = typed::PeerSegment<const std::uint64_t>::of(readable);
  ASSERT_TRUE(only_read.has_value());
  EXPECT_EQ(PeerCells::of(readable).error(), Status::kRemoteAccess);
  mesh::Window earlier = window;
  ++earlier.incarnation;
  EXPECT_EQ(ends[0].start_write(cells(0, 0, 5), *PeerCells::of(earlier)).status(), Status::kPeerLost);
  EXPECT_STATUS(MeshLane::over(lane(0)), Status::kBusy);
  EXPECT_STATUS(MeshLane::over(lane(0), {.operations = 0}), Status::kBadArgument);
  EXPECT_STATUS(ends[0].publish("more", regions[0], 1, kCells), Status::kOutOfRange);
  EXPECT_STATUS(ends[0].publish("more", regions[1]), Status::kOutOfRange);
  EXPECT_STATUS(regions[0].publish("more"), Status::kUnsupported);
  settle();
  ends[0].close();
  EXPECT_EQ(wait_for(send_cells(*loop, ends[0], 1, cells(0, 0, 5))).status, Status::kClosed);
  auto again = MeshLane::over(lane(0));
  ASSERT_OK(again);
}

TEST_F(AwaitedMesh, APeerThatLeavesEndsWhatIsAwaited) {
  Status received = Status::kOk;
  const auto body = [](Loop& of, MeshLane& at, Cells room, Status& into) -> Task<Status> {
    const auto done = co_await receive_cells(of, at, 1, std::move(room), soon());
    into = done.segment.size() == 4 ? done.status : Status::kSystem;
    co_return into;
  };
  ASSERT_EQ(loop->spawn(body(*loop, ends[0], cells(0, 0, 4), received)), Status::kOk);
  (void)loop->poll();
  ends[1].close();
  meshes[1].reset();
  ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
  EXPECT_EQ(received, Status::kClosed);
  const auto refused = ends[0].start_receive(1, cells(0, 0, 4));
  EXPECT_EQ(refused.status(), Status::kClosed);
  EXPECT_EQ(ends[0].start_send(1, cells(0, 8, 4)).status(), Status::kClosed);
}

TEST_F(AwaitedMesh, SegmentsAndOperationsOutliveTheMesh) {
  auto receiving = ends[0].start_receive(1, cells(0, 0, 4, 9));
  auto left = cells(0, 8, 4, 70);
  close_all();
  EXPECT_EQ(receiving.wait(soon()), Status::kClosed);
  EXPECT_TRUE(counts_from(*receiving.take(), 4, 9));
  regions = {};
  EXPECT_TRUE(counts_from(left, 4, 70));
}

TEST_F(AwaitedMesh, ALoopSleepsOnTheOnlyLane) {
  const auto sleepy = loop_of({.spin = std::chrono::microseconds{0}});
  std::atomic<bool> is_done{false};
  std::jthread other([&] {
    for (const Deadline limit = soon(); !is_done && !limit.passed();) {
      auto sending = ends[1].start_send(0, cells(1, 0, 4, 5));
      EXPECT_EQ(sending.wait(soon()), Status::kOk);
      auto answer = ends[1].start_receive(0, cells(1, 4, 4));
      if (answer.wait(in_ms(50)) == Status::kOk) break;
    }
  });
  const auto body = [](Loop& /*of*/, MeshLane& at, Cells room) -> Task<Status> {
    auto done = co_await receive(at, 1, std::move(room), soon());
    if (done.status != Status::kOk) co_return done.status;
    const auto sent = co_await send(at, 1, std::move(done.segment), soon());
    co_return sent.status;
  };
  EXPECT_EQ(sync_wait(*sleepy, body(*sleepy, ends[0], cells(0, 0, 4)), soon()), Status::kOk);
  is_done = true;
}

/// Awaits all that a lane has, and counts the answers.
Task<Status> everything_of_lanes(Loop& /*loop*/, MeshLane& lane, MeshLane& other, Cells mine, Cells room, PeerCells at,
                                 int& answers) {
  const auto is_over = [&answers](Status status) { return ++answers, status != Status::kOk; };
  auto done = co_await write(lane, std::move(mine), at, soon());
  if (is_over(done.status)) co_return done.status;
  done = co_await read(lane, std::move(done.segment), *at.part(0, 8), soon());
  if (is_over(done.status)) co_return done.status;
  done = co_await send(lane, 1, std::move(done.segment), soon());
  if (is_over(done.status)) co_return done.status;
  auto received = co_await receive(other, 0, std::move(room), soon());
  if (is_over(received.status)) co_return received.status;
  const auto flushed = co_await flush(lane, 1, soon());
  if (is_over(flushed.status)) co_return flushed.status;
  // Nothing comes: it waits until it is given up.
  received = co_await receive(other, 0, std::move(received.segment), soon());
  co_return received.status;
}
constexpr int kLaneAnswers = 5;

TEST_F(AwaitedMesh, DroppedAndCancelledAfterEachTurn) {
  const auto cancelled = [](Loop& /*of*/, CancelSource& source, Task<Status> task, Status& into) -> Task<Status> {
    into = co_await cancellable(source, std::move(task));
    co_return into;
  };
  for (const bool is_cancelled : {false, true}) {
    int most = 0;
    for (int turns = 0; turns < 300 && most < kLaneAnswers; ++turns) {
      CancelSource source;
      Status status = Status::kOk;
      int answers = 0;
      ASSERT_EQ(loop->spawn(cancelled(*loop, source,
                                      everything_of_lanes(*loop, ends[0], ends[1], cells(0, 0, 8, 3), cells(1, 200, 8),
                                                          *there.part(0, 8), answers),
                                      status)),
                Status::kOk);
      for (int i = 0; i < turns; ++i) {
        (void)loop->poll();
        look();
      }
      most = std::max(most, answers);
      if (is_cancelled) {
        source.cancel();
        ASSERT_EQ(loop->run_until([&] { return loop->spawned() == 0; }, soon()), Status::kOk);
        EXPECT_EQ(status, Status::kCancelled);
      } else {
        loop->drop_all();
      }
      EXPECT_EQ(loop->waiting(), 0u);
      ASSERT_NO_FATAL_FAILURE(settle());
      // What was sent and not received waits for somebody.
      while (wait_for(receive_cells(*loop, ends[1], 0, cells(1, 0, 8), in_ms(1))).status == Status::kOk) {}
      settle();
    }
    EXPECT_EQ(most, kLaneAnswers);
  }
}

}  // namespace
}  // namespace verbena::coroutine
