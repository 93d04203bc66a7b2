// Operations on segments: elements arrive, segments come back, and what cannot be is refused.
#include "typed_fixture.hpp"

#include <thread>

namespace verbena::typed {
namespace {

/// A region of 1000 numbers at each end, which the test has all of.
class TypedLink : public TypedTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TypedTest::SetUp());
    ASSERT_NO_FATAL_FAILURE(take_both());
  }
  void take_both() {
    mine_region = region_of<std::uint64_t>(1000);
    theirs_region = region_of<std::uint64_t>(1000);
    mine = taken(mine_region);
    theirs = taken(theirs_region);
    count_up(mine, 1'000'000);
    count_up(theirs, 0);
  }
  [[nodiscard]] RemoteSegment<std::uint64_t> there(std::size_t first = 0, std::size_t count = rdma::kRest) const {
    return remote_of<std::uint64_t>(theirs_region.window(), first, count);
  }

  MemoryRegion<std::uint64_t> mine_region;
  MemoryRegion<std::uint64_t> theirs_region;
  Segment<std::uint64_t> mine;
  Segment<std::uint64_t> theirs;
};

// --- blocking

TEST_F(TypedLink, ReadsAndWritesElements) {
  ASSERT_EQ(link.read(mine, there()), Status::kOk) << error_detail();
  EXPECT_TRUE(counts_up(mine, 0));
  count_up(mine, 5000);
  ASSERT_EQ(link.write(mine, there(), patience()), Status::kOk) << error_detail();
  EXPECT_TRUE(counts_up(theirs, 5000));
  // A part: into the front of what is there.
  ASSERT_EQ(link.read(mine, there(900, 10)), Status::kOk);
  EXPECT_EQ(mine.get(9).value(), 5909u);
  EXPECT_EQ(mine.get(10).value(), 5010u);
  const ConstSegment<std::uint64_t> frozen = std::move(mine).freeze();
  ASSERT_EQ(link.write(frozen, there()), Status::kOk);
  EXPECT_TRUE(counts_up(*frozen.part(10), 5010));
  EXPECT_EQ(theirs.get(9).value(), 5909u);
}

TEST_F(TypedLink, ElementsOfAnySizeAreCountedAsElements) {
  auto source = region_of<Cell>(100);
  auto target = region_of<Cell>(100);
  Segment<Cell> from = taken(source, 10, 50);
  from.use([](std::span<Cell> cells) {
    for (std::uint32_t i = 0; i < cells.size(); ++i) cells[i] = {i, i + 1, i + 2};
  });
  ASSERT_EQ(link.write(from, remote_of<Cell>(target.window(), 20, 50)), Status::kOk);
  const Segment<Cell> to = taken(target);
  for (std::uint32_t i = 0; i < 100; ++i) {
    const Cell expected = i < 20 || i >= 70 ? Cell{} : Cell{i - 20, i - 19, i - 18};
    ASSERT_EQ(to.get(i).value(), expected) << i;
  }
}

TEST_F(TypedLink, WhatDoesNotFitIsRefusedAndNothingIsDone) {
  auto part = mine.split_at(500);
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(link.read(mine, there(0, 501)), Status::kBadArgument);
  EXPECT_EQ(link.write(mine, there(0, 499)), Status::kBadArgument);
  EXPECT_TRUE(counts_up(mine, 1'000'000));
  EXPECT_TRUE(counts_up(theirs, 0));
  Segment<std::uint64_t> gone = std::move(*part);
  EXPECT_EQ(link.read(*part, there(0, 1)), Status::kBadArgument) << "a segment that was moved from";
  EXPECT_EQ(link.write(*part, there()), Status::kBadArgument);
  EXPECT_EQ(link.read(mine, RemoteSegment<const std::uint64_t>()), Status::kRemoteAccess);
  EXPECT_EQ(link.failure(), Status::kOk);
}

TEST_F(TypedLink, WhatThePeerDoesNotAllowIsRefused) {
  rdma::Window window = theirs_region.window();
  window.access = rdma::Access::kWrite;
  const auto written_only = remote_of<std::uint64_t>(window);
  EXPECT_EQ(link.read(mine, written_only), Status::kRemoteAccess);
  EXPECT_NE(std::string(error_detail()).find("reading"), std::string::npos) << error_detail();
  EXPECT_EQ(link.fetch_add(written_only, 1).error(), Status::kRemoteAccess);
  EXPECT_EQ(link.compare_swap(written_only, 0, 1).error(), Status::kRemoteAccess);
  EXPECT_EQ(link.start_read(std::move(mine), written_only).status(), Status::kRemoteAccess);
  EXPECT_EQ(link.start_fetch_add(written_only, 1).status(), Status::kRemoteAccess);
  EXPECT_EQ(link.failure(), Status::kOk);
}

/// Memory of the peer's own, with the right to read: the library refuses a write also where the numbers were forged.
TEST_F(TypedLink, AForgedRightIsRefusedAllTheSame) {
  std::vector<std::uint64_t> own(100, 1);
  auto region = MemoryRegion<std::uint64_t>::unsafe_register(*node, own, rdma::Access::kRead);
  ASSERT_OK(region);
  EXPECT_EQ(RemoteSegment<std::uint64_t>::of(region->window()).error(), Status::kRemoteAccess);
  ASSERT_EQ(link.read(mine, remote_of<const std::uint64_t>(region->window())), Status::kOk);
  rdma::Window forged = region->window();
  forged.access = rdma::Access::kAll;
  const auto part = mine.split_at(100);
  EXPECT_EQ(link.write(mine, remote_of<std::uint64_t>(forged)), Status::kRemoteAccess);
  forged.length += 8;
  EXPECT_EQ(link.read(mine, remote_of<const std::uint64_t>(forged, 1, 100)), Status::kOutOfRange);
  EXPECT_EQ(link.failure(), Status::kOk);
}

TEST_F(TypedLink, AtomicsChangeOneWord) {
  const auto word = there(10, 1);
  const auto old = link.fetch_add(word, 5);
  if (!old && old.error() == Status::kUnsupported) GTEST_SKIP() << "the device has no atomics";
  EXPECT_EQ(old.value(), 10u);
  EXPECT_EQ(link.compare_swap(word, 15, 70).value(), 15u);
  EXPECT_EQ(link.compare_swap(word, 15, 71).value(), 70u);
  EXPECT_EQ(theirs.get(10).value(), 70u);
  EXPECT_EQ(theirs.get(11).value(), 11u);
  AtomicOperation added = link.start_fetch_add(word, 1);
  EXPECT_EQ(added.old().error(), Status::kAgain);
  AtomicOperation swapped = link.start_compare_swap(word, 71, 80);
  ASSERT_EQ(swapped.wait(patience()), Status::kOk) << error_detail();
  EXPECT_EQ(swapped.old().value(), 71u);
  ASSERT_TRUE(added.poll()) << "they complete in their order";
  EXPECT_EQ(added.old().value(), 70u);
  EXPECT_EQ(link.fetch_add(RemoteSegment<std::uint64_t>(), 1).error(), Status::kRemoteAccess);
}

// --- messages

TEST_F(TypedLink, MessagesCarryElements) {
  auto few = mine.split_at(10);
  ASSERT_TRUE(few.has_value());
  ASSERT_EQ(link.send(mine), Status::kOk);
  ASSERT_EQ(link.send_with_immediate(std::move(mine).freeze(), 77), Status::kOk);
  auto received = peer.receive(theirs, patience());
  ASSERT_TRUE(received.has_value()) << error_detail();
  EXPECT_EQ(received->count, 10u);
  EXPECT_EQ(received->immediate, std::nullopt);
  EXPECT_EQ(theirs.get(9).value(), 1'000'009u);
  EXPECT_EQ(theirs.get(10).value(), 10u);
  received = peer.receive(theirs, patience());
  ASSERT_TRUE(received.has_value()) << error_detail();
  EXPECT_EQ(received->immediate, 77u);
  EXPECT_EQ(received->kind, rdma::Message::Kind::kSent);
  EXPECT_EQ(link.send(mine), Status::kBadArgument) << "it is frozen, and so empty";
  EXPECT_EQ(link.send_with_immediate(mine, 1), Status::kBadArgument);
}

TEST_F(TypedLink, AMessageThatDoesNotFitWaits) {
  ASSERT_EQ(link.send(mine), Status::kOk);
  auto rest = theirs.split_at(500);
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(peer.receive(theirs, patience()).error(), Status::kBufferTooSmall);
  EXPECT_EQ(peer.waiting<std::uint64_t>(), 1000u);
  EXPECT_EQ(peer.waiting<Cell>(), 667u) << "rounded up";
  EXPECT_TRUE(counts_up(theirs, 0));
  ASSERT_EQ(theirs.join(std::move(*rest)), Status::kOk);
  const auto received = peer.receive(theirs, patience());
  ASSERT_TRUE(received.has_value()) << error_detail();
  EXPECT_TRUE(counts_up(theirs, 1'000'000));
  EXPECT_EQ(peer.receive(theirs, Deadline::now()).error(), Status::kTimedOut);
}

// Lengths from the wire are not trusted.
TEST_F(TypedLink, AMessageOfNoWholeElementsIsRefused) {
  const std::array<std::byte, 13> crooked{};
  ASSERT_EQ(link.unsafe_connection().send(crooked), Status::kOk);
  ASSERT_EQ(link.send(mine), Status::kOk);
  EXPECT_EQ(peer.receive(theirs, patience()).error(), Status::kBadArgument);
  EXPECT_NE(std::string(error_detail()).find("13 bytes"), std::string::npos) << error_detail();
  const auto next = peer.receive(theirs, patience());
  ASSERT_TRUE(next.has_value()) << "the next one comes";
  EXPECT_EQ(next->count, 1000u);
}

TEST_F(TypedLink, WritesWithImmediatesGoIntoThePeersWindow) {
  const auto window = remote_of<std::uint64_t>(link.peer_window());
  auto rest = mine.split_at(20);
  ASSERT_EQ(link.write_with_immediate(mine, *window.part(100), 5), Status::kOk) << error_detail();
  auto received = peer.receive(theirs, patience());
  ASSERT_TRUE(received.has_value()) << error_detail();
  EXPECT_EQ(received->kind, rdma::Message::Kind::kWritten);
  EXPECT_EQ(received->immediate, 5u);
  EXPECT_EQ(received->first, 100u);
  EXPECT_EQ(received->count, 20u);
  EXPECT_TRUE(counts_up(theirs, 0)) << "it came into the window";
  std::uint64_t number = 0;
  std::memcpy(&number, peer.unsafe_connection().window().data() + 119 * sizeof number, sizeof number);
  EXPECT_EQ(number, 1'000'019u);
  EXPECT_EQ(link.write_with_immediate(mine, there(), 5), Status::kOutOfRange) << "another window";
  EXPECT_EQ(link.write_with_immediate(mine, *window.part(0, 19), 5), Status::kOutOfRange);
  EXPECT_EQ(link.write_with_immediate(mine, *window.part(window.size() - 19), 5), Status::kOutOfRange);
  EXPECT_EQ(link.write_with_immediate(Segment<std::uint64_t>(), window, 5), Status::kBadArgument);
  // The same elements, where they are none of the receiver's.
  ASSERT_EQ(link.write_with_immediate(mine, *window.part(1), 6), Status::kOk);
  auto cells = region_of<Cell>(100);
  Segment<Cell> into = taken(cells);
  EXPECT_EQ(peer.receive(into, patience()).error(), Status::kBadArgument);
}

/// Its addresses are in the peer's window, but its key is that of other memory: it is another region.
TEST_F(TypedLink, AWriteWithImmediateNeedsTheKeyOfThePeersWindow) {
  rdma::Window other = link.peer_window();
  other.rkey = theirs_region.window().rkey;
  ASSERT_NE(other.rkey, link.peer_window().rkey);
  const auto target = remote_of<std::uint64_t>(other);
  auto rest = mine.split_at(20);
  EXPECT_EQ(link.write_with_immediate(mine, target, 5, patience()), Status::kOutOfRange);
  auto started = link.start_write_with_immediate(std::move(mine), target, 6);
  EXPECT_EQ(started.status(), Status::kOutOfRange);
  EXPECT_EQ(started.take()->size(), 20u);
  ASSERT_EQ(link.send(*rest), Status::kOk);
  const auto received = peer.receive(theirs, patience());
  ASSERT_TRUE(received.has_value()) << error_detail();
  EXPECT_EQ(received->kind, rdma::Message::Kind::kSent) << "the peer is told of nothing";
}

TEST_F(TypedLink, WindowsAreFoundByName) {
  ASSERT_OK(theirs_region.publish("numbers", 100, 50));
  const auto found = link.find<const std::uint64_t>("numbers", patience());
  ASSERT_OK(found);
  EXPECT_EQ(found->size(), 50u);
  ASSERT_EQ(link.read(mine, *found), Status::kOk);
  EXPECT_EQ(mine.get(49).value(), 149u);
  ASSERT_OK(theirs_region.unpublish("numbers"));
  EXPECT_FALSE(theirs_region.publish("numbers", 990, 11).has_value());
  EXPECT_FALSE(theirs_region.publish("numbers", 1000).has_value());
}

// --- started

TEST_F(TypedLink, AnOperationHasItsSegmentUntilItIsComplete) {
  Operation<Segment<std::uint64_t>> read = link.start_read(std::move(mine), there());
  EXPECT_TRUE(mine.empty());  // NOLINT(bugprone-use-after-move): the promise.
  EXPECT_TRUE(read.is_under_way());
  EXPECT_EQ(read.status(), Status::kAgain);
  EXPECT_EQ(read.take().error(), Status::kBusy);
  EXPECT_EQ(mine_region.take(999, 1).error(), Status::kBusy) << "nobody else may write there";
  ASSERT_EQ(read.wait(patience()), Status::kOk) << error_detail();
  EXPECT_EQ(read.status(), Status::kOk);
  auto back = read.take();
  ASSERT_TRUE(back.has_value());
  EXPECT_TRUE(counts_up(*back, 0));
  EXPECT_TRUE(read.take()->empty()) << "once";
}

TEST_F(TypedLink, SeveralAreUnderWayAndCompleteInAnyOrderOfWaits) {
  auto chunks = std::move(mine).chunks(100);
  std::vector<Operation<Segment<std::uint64_t>>> reads;
  for (std::size_t i = 0; i < 10; ++i) reads.push_back(link.start_read(*chunks.next(), there(i * 100, 100)));
  for (std::size_t i = 10; i-- != 0;) {
    auto [status, segment] = std::move(reads[i]).finish(patience());
    ASSERT_EQ(status, Status::kOk) << i << ": " << error_detail();
    EXPECT_TRUE(counts_up(segment, i * 100));
  }
  EXPECT_EQ(mine_region.held(), 0u);
}

TEST_F(TypedLink, AFrozenSegmentIsReadWhileItIsWritten) {
  ConstSegment<std::uint64_t> frozen = std::move(mine).freeze();
  auto write = link.start_write(frozen, there());
  EXPECT_TRUE(counts_up(frozen, 1'000'000));
  EXPECT_EQ(std::move(frozen).thaw().error(), Status::kBusy) << "the NIC is a reader";
  ASSERT_EQ(write.wait(patience()), Status::kOk);
  EXPECT_TRUE(counts_up(theirs, 1'000'000));
  // NOLINTNEXTLINE(bugprone-use-after-move): a thaw that is refused changes nothing.
  EXPECT_EQ(std::move(frozen).thaw().error(), Status::kBusy) << "the operation has it still";
  EXPECT_TRUE(write.take().has_value());
  // NOLINTNEXTLINE(bugprone-use-after-move): a thaw that is refused changes nothing.
  EXPECT_TRUE(std::move(frozen).thaw().has_value());
}

TEST_F(TypedLink, WhatIsRefusedGivesTheSegmentBackAtOnce) {
  auto read = link.start_read(std::move(mine), RemoteSegment<std::uint64_t>(there()).unsafe_part(0, 1001));
  EXPECT_FALSE(read.is_under_way());
  EXPECT_EQ(read.status(), Status::kBadArgument);
  EXPECT_EQ(read.wait(), Status::kBadArgument);
  EXPECT_TRUE(read.poll());
  auto [status, segment] = std::move(read).finish();
  EXPECT_EQ(status, Status::kBadArgument);
  EXPECT_EQ(segment.size(), 1000u);
}

TEST_F(TypedLink, TheOperationsOfALinkAreLimited) {
  auto chunks = std::move(mine).chunks(1);
  std::vector<Operation<Segment<std::uint64_t>>> writes;
  for (std::size_t i = 0; i < Link::kMaxOperations; ++i) {
    writes.push_back(link.start_write(*chunks.next(), there(i, 1)));
    ASSERT_TRUE(writes.back().is_under_way()) << i;
  }
  auto beyond = link.start_write(*chunks.next(), there(0, 1));
  EXPECT_EQ(beyond.status(), Status::kAgain);
  EXPECT_EQ(beyond.take()->size(), 1u);
  ASSERT_EQ(writes.front().wait(patience()), Status::kOk);
  EXPECT_TRUE(link.start_write(*chunks.next(), there(0, 1)).is_under_way());
  for (auto& write : writes) EXPECT_EQ(write.wait(patience()), Status::kOk);
}

TEST_F(TypedLink, TheListenersSideHasOperationsToo) {
  // The client answers only in its calls: its window is known from the start.
  const auto window = remote_of<std::uint64_t>(peer.peer_window(), 0, 1000);
  auto written = peer.start_write(std::move(theirs), window).finish(patience());
  ASSERT_EQ(written.status, Status::kOk) << error_detail();
  theirs = std::move(written.segment);
  theirs.fill(0);
  auto read = peer.start_read(std::move(theirs), window).finish(patience());
  ASSERT_EQ(read.status, Status::kOk) << error_detail();
  EXPECT_TRUE(counts_up(read.segment, 0));
}

// An error completion is an error, and the segment is there all the same.
TEST_F(TypedLink, AFailedOperationGivesTheSegmentBack) {
  ASSERT_EQ(link.read(mine, there()), Status::kOk) << "the window is known";
  const auto target = there();
  theirs = {};
  theirs_region = {};
  auto [status, segment] = link.start_write(std::move(mine), target).finish(patience());
  EXPECT_NE(status, Status::kOk);
  EXPECT_EQ(damage_of(status), Damage::kConnection) << to_string(status);
  EXPECT_EQ(segment.size(), 1000u);
  EXPECT_FALSE(link.is_connected());
}

TEST_F(TypedLink, MemoryOfAnotherNodeIsRefused) {
  auto other = rdma::Node::open(
      {.transport = test::transport_under_test(), .address = test::is_soft_under_test() ? "127.0.0.1" : ""});
  ASSERT_OK(other);
  auto region = MemoryRegion<std::uint64_t>::allocate(**other, 10);
  ASSERT_OK(region);
  auto segment = taken(*region);
  EXPECT_EQ(link.read(segment, there(0, 10)), Status::kLocalAccess);
  auto [status, back] = link.start_read(std::move(segment), there(0, 10)).finish();
  EXPECT_EQ(status, Status::kLocalAccess);
  EXPECT_EQ(back.size(), 10u);
}

// --- links

TEST_F(TypedLink, WithoutAConnectionEverythingIsClosed) {
  Link none;
  EXPECT_EQ(none.failure(), Status::kClosed);
  EXPECT_FALSE(none.is_connected());
  EXPECT_EQ(none.read(mine, there()), Status::kClosed);
  EXPECT_EQ(none.write(mine, there()), Status::kClosed);
  EXPECT_EQ(none.write_with_immediate(mine, there(), 1), Status::kClosed);
  EXPECT_EQ(none.fetch_add(there(), 1).error(), Status::kClosed);
  EXPECT_EQ(none.compare_swap(there(), 1, 2).error(), Status::kClosed);
  EXPECT_EQ(none.send(mine), Status::kClosed);
  EXPECT_EQ(none.send_with_immediate(mine, 1), Status::kClosed);
  EXPECT_EQ(none.receive(mine).error(), Status::kClosed);
  EXPECT_EQ(none.find<int>("x").error().status(), Status::kClosed);
  EXPECT_EQ(none.peer_window().length, 0u);
  EXPECT_EQ(none.quarantined(), 0u);
  EXPECT_EQ(none.settle(Deadline::now()), Status::kOk);
  auto [status, segment] = none.start_read(std::move(mine), there()).finish();
  EXPECT_EQ(status, Status::kClosed);
  EXPECT_EQ(segment.size(), 1000u);
  EXPECT_EQ(none.start_fetch_add(there(), 1).status(), Status::kClosed);
  EXPECT_FALSE(Link::over(nullptr).has_value());
}

TEST_F(TypedLink, AMovedLinkTakesItsOperationsAlong) {
  auto read = link.start_read(std::move(mine), there());
  Link other = std::move(link);
  EXPECT_EQ(link.failure(), Status::kClosed);  // NOLINT(bugprone-use-after-move): the promise.
  EXPECT_TRUE(other.is_connected());
  EXPECT_EQ(read.wait(patience()), Status::kOk);
  other = std::move(peer);
  EXPECT_EQ(peer.failure(), Status::kClosed);  // NOLINT(bugprone-use-after-move): the promise.
}

}  // namespace
}  // namespace verbena::typed
