// Regions, segments and remote segments: who has which elements, and what is refused.
#include "typed_fixture.hpp"

#include <thread>

namespace verbena::typed {
namespace {

class TypedMemory : public TypedTest {};

// --- regions

TEST_F(TypedMemory, ARegionIsZeroedAndCountedInElements) {
  auto region = region_of<Cell>(1000);
  EXPECT_EQ(region.size(), 1000u);
  EXPECT_EQ(region.window().length, 1000 * sizeof(Cell));
  const Segment<Cell> all = taken(region);
  EXPECT_EQ(all.size(), 1000u);
  EXPECT_TRUE(all.use([](std::span<const Cell> cells) {
    return cells.size() == 1000 && std::ranges::all_of(cells, [](const Cell& cell) { return cell == Cell{}; });
  }));
}

TEST_F(TypedMemory, WrongLimitsAreRefused) {
  const auto status_of = [this](std::size_t count, std::uint32_t max) {
    const auto made = MemoryRegion<Cell>::allocate(*node, count, {.max_segments = max});
    return made ? Status::kOk : made.error().status();
  };
  EXPECT_EQ(status_of(0, 1), Status::kBadArgument);
  EXPECT_EQ(status_of(~std::size_t{0}, 1), Status::kBadArgument);
  EXPECT_EQ(status_of(~std::size_t{0} / sizeof(Cell) + 2, 1), Status::kBadArgument);  // A few bytes, in 64 bits.
  EXPECT_EQ(status_of(1, 0), Status::kBadArgument);
  EXPECT_EQ(status_of(1, 65537), Status::kBadArgument);
  EXPECT_EQ(status_of(1, 65536), Status::kOk);
}

TEST_F(TypedMemory, AnEmptyRegionHasNothing) {
  MemoryRegion<int> none;
  EXPECT_EQ(none.size(), 0u);
  EXPECT_EQ(none.take().error(), Status::kBadArgument);
  EXPECT_EQ(none.take(1).error(), Status::kOutOfRange);
  EXPECT_EQ(none.window().length, 0u);
  EXPECT_FALSE(none.publish("nothing").has_value());
  EXPECT_FALSE(none.unpublish("nothing").has_value());
}

TEST_F(TypedMemory, MemoryOfTheUsersOwnIsUsedAsItIs) {
  std::vector<std::uint64_t> own(512, 7);
  auto region = MemoryRegion<std::uint64_t>::unsafe_register(*node, own);
  ASSERT_OK(region);
  EXPECT_EQ(region->window().length, 0u) << "a peer has no right to it";
  Segment<std::uint64_t> segment = taken(*region, 500);
  EXPECT_EQ(segment.get(11).value(), 7u);
  EXPECT_EQ(segment.set(11, 8), Status::kOk);
  EXPECT_EQ(own.back(), 8u);
  auto* const crooked = reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::byte*>(own.data()) + 4);
  const auto refused = MemoryRegion<std::uint64_t>::unsafe_register(*node, {crooked, 4});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().status(), Status::kBadArgument);
  EXPECT_FALSE(MemoryRegion<std::uint64_t>::unsafe_register(*node, {}).has_value());
}

// --- exclusive segments

TEST_F(TypedMemory, NoTwoSegmentsOverlap) {
  auto region = region_of<std::uint64_t>(100);
  const auto middle = taken(region, 40, 20);
  EXPECT_EQ(region.take().error(), Status::kBusy);
  EXPECT_EQ(region.take(0, 41).error(), Status::kBusy);
  EXPECT_EQ(region.take(59, 1).error(), Status::kBusy);
  EXPECT_EQ(region.take(59, 100).error(), Status::kOutOfRange);
  EXPECT_EQ(region.take(101, 1).error(), Status::kOutOfRange);
  EXPECT_EQ(region.take(1, rdma::kRest - 1).error(), Status::kOutOfRange);
  EXPECT_EQ(region.take(100).error(), Status::kBadArgument);
  const auto front = taken(region, 0, 40);
  const auto back = taken(region, 60);
  EXPECT_EQ(back.size(), 40u);
  EXPECT_EQ(region.held(), 3u);
}

TEST_F(TypedMemory, RangesAreTheRegionsWhenTheirSegmentsGo) {
  auto region = region_of<std::uint64_t>(100);
  for (int round = 0; round < 1000; ++round) {
    auto segment = taken(region, 10, 50);
    if (round % 2 == 0) segment = {};
    const auto rest = region.take(60, 40);
    ASSERT_TRUE(rest.has_value());
  }
  EXPECT_EQ(region.held(), 0u);
  EXPECT_EQ(taken(region).size(), 100u);
}

TEST_F(TypedMemory, AMovedSegmentIsElsewhereAndNowhereElse) {
  auto region = region_of<std::uint64_t>(10);
  Segment<std::uint64_t> first = taken(region);
  const Segment<std::uint64_t> second = std::move(first);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): the promise.
  EXPECT_EQ(first.get(0).error(), Status::kOutOfRange);
  EXPECT_EQ(first.set(0, 1), Status::kOutOfRange);
  EXPECT_FALSE(first.split_at(1).has_value());
  EXPECT_EQ(second.size(), 10u);
  EXPECT_EQ(region.held(), 1u);
}

TEST_F(TypedMemory, PartsOfASplitAreEachTheirOwn) {
  auto region = region_of<std::uint64_t>(100);
  auto front = taken(region);
  count_up(front, 0);
  auto back = front.split_at(30);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(front.size(), 30u);
  EXPECT_EQ(back->size(), 70u);
  EXPECT_TRUE(counts_up(front, 0));
  EXPECT_TRUE(counts_up(*back, 30));
  EXPECT_EQ(front.get(30).error(), Status::kOutOfRange) << "an element of the other part";
  // One of them goes, and the other stays.
  front = {};
  EXPECT_EQ(region.take(29, 2).error(), Status::kBusy);
  EXPECT_EQ(taken(region, 0, 30).size(), 30u);
}

TEST_F(TypedMemory, ASplitThatCannotBeChangesNothing) {
  auto region = region_of<std::uint64_t>(100, {.max_segments = 2});
  auto segment = taken(region);
  EXPECT_EQ(segment.split_at(0).error(), Status::kOutOfRange);
  EXPECT_EQ(segment.split_at(100).error(), Status::kOutOfRange);
  EXPECT_EQ(segment.split_at(101).error(), Status::kOutOfRange);
  const auto back = segment.split_at(50);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(segment.split_at(20).error(), Status::kLimit);
  EXPECT_NE(std::string(error_detail()).find("max_segments"), std::string::npos) << error_detail();
  EXPECT_EQ(segment.size(), 50u);
}

TEST_F(TypedMemory, NeighboursAreJoined) {
  auto region = region_of<std::uint64_t>(100);
  auto other_region = region_of<std::uint64_t>(100);
  auto front = taken(region);
  count_up(front, 5);
  auto back = front.split_at(30);
  ASSERT_TRUE(back.has_value());
  auto stranger = taken(other_region, 30, 70);
  EXPECT_EQ(front.join(std::move(stranger)), Status::kBadArgument);
  EXPECT_EQ(stranger.size(), 70u);  // NOLINT(bugprone-use-after-move): it was refused.
  EXPECT_EQ(back->join(std::move(front)), Status::kBadArgument) << "the wrong way round";
  // NOLINTNEXTLINE(bugprone-use-after-move): a join that is refused changes nothing.
  ASSERT_EQ(front.join(std::move(*back)), Status::kOk);
  EXPECT_TRUE(back->empty());
  EXPECT_EQ(front.size(), 100u);
  EXPECT_TRUE(counts_up(front, 5));
  EXPECT_EQ(region.held(), 1u);
  EXPECT_EQ(front.join({}), Status::kBadArgument);
  Segment<std::uint64_t> none;
  EXPECT_EQ(none.join(std::move(front)), Status::kBadArgument);
}

TEST_F(TypedMemory, ChunksCoverAllOnce) {
  auto region = region_of<std::uint64_t>(100);
  auto all = taken(region);
  count_up(all, 0);
  auto chunks = std::move(all).chunks(30);
  std::vector<Segment<std::uint64_t>> pieces;
  while (auto piece = chunks.next()) pieces.push_back(std::move(*piece));
  EXPECT_EQ(chunks.next().error(), Status::kNotFound);
  ASSERT_EQ(pieces.size(), 4u);
  std::uint64_t first = 0;
  for (const auto& piece : pieces) {
    EXPECT_TRUE(counts_up(piece, first));
    first += piece.size();
  }
  EXPECT_EQ(first, 100u);
  EXPECT_EQ(pieces.back().size(), 10u);
  // Each is free to go first.
  pieces.erase(pieces.begin() + 1);
  EXPECT_EQ(taken(region, 30, 30).size(), 30u);
}

TEST_F(TypedMemory, ChunksThatEndEarlyLeaveTheRest) {
  auto region = region_of<std::uint64_t>(100, {.max_segments = 3});
  {
    auto chunks = taken(region).chunks(10);
    const auto first = chunks.next();
    const auto second = chunks.next();
    ASSERT_TRUE(first.has_value() && second.has_value());
    EXPECT_EQ(chunks.next().error(), Status::kLimit);
    EXPECT_EQ(chunks.left(), 80u);
  }
  EXPECT_EQ(region.held(), 0u);
  EXPECT_EQ(taken(region).chunks(0).next().error(), Status::kBadArgument);
  EXPECT_EQ(taken(region).chunks(1000).next()->size(), 100u);
}

TEST_F(TypedMemory, ElementsAreCopiedWithinBounds) {
  auto region = region_of<Cell>(4);
  auto cells = taken(region);
  const std::array<Cell, 3> some{{{1, 2}, {3, 4}, {5, 6}}};
  EXPECT_EQ(cells.copy_from(some), Status::kOk);
  std::array<Cell, 5> back{};
  EXPECT_EQ(cells.copy_to(back), Status::kOutOfRange);
  EXPECT_EQ(back[0], Cell{}) << "nothing is copied";
  EXPECT_EQ(cells.copy_to(std::span(back).first(4)), Status::kOk);
  EXPECT_EQ(back[2], some[2]);
  EXPECT_EQ(back[3], Cell{});
  EXPECT_EQ(cells.copy_from(back), Status::kOutOfRange);
  EXPECT_EQ(cells.get(2).value(), some[2]);
  EXPECT_EQ(cells.get(4).error(), Status::kOutOfRange);
  EXPECT_EQ(cells.set(4, {}), Status::kOutOfRange);
  cells.fill({9, 9});
  EXPECT_EQ(cells.unsafe_get(3), (Cell{9, 9}));
  EXPECT_EQ(cells.unsafe_local(1, 2).size(), 2 * sizeof(Cell));
}

TEST_F(TypedMemory, AnExceptionInUseLeavesTheSegment) {
  auto region = region_of<int>(4);
  auto segment = taken(region);
  EXPECT_THROW(segment.use([](std::span<int>) { throw std::runtime_error("the user's"); }), std::runtime_error);
  EXPECT_EQ(segment.size(), 4u);
}

// --- shared segments

TEST_F(TypedMemory, FrozenElementsAreSharedAndComeBack) {
  auto region = region_of<std::uint64_t>(100);
  auto written = taken(region);
  count_up(written, 1);
  ConstSegment<std::uint64_t> shared = std::move(written).freeze();
  EXPECT_TRUE(written.empty());  // NOLINT(bugprone-use-after-move): the promise.
  {
    const ConstSegment<std::uint64_t> copy = shared;
    const auto part = shared.part(40, 10);
    ASSERT_TRUE(part.has_value());
    EXPECT_TRUE(counts_up(copy, 1));
    EXPECT_TRUE(counts_up(*part, 41));
    EXPECT_EQ(region.held(), 1u);
    EXPECT_EQ(std::move(shared).thaw().error(), Status::kBusy);
    // NOLINTNEXTLINE(bugprone-use-after-move): a thaw that is refused changes nothing.
    EXPECT_EQ(shared.size(), 100u) << "a refused thaw changes nothing";
  }
  EXPECT_EQ(shared.part(90, 11).error(), Status::kOutOfRange);
  EXPECT_EQ(region.take(0, 1).error(), Status::kBusy);
  auto thawed = std::move(shared).thaw();
  ASSERT_TRUE(thawed.has_value());
  EXPECT_EQ(thawed->set(0, 7), Status::kOk);
  // NOLINTNEXTLINE(bugprone-use-after-move): the promise.
  EXPECT_EQ(std::move(shared).thaw().error(), Status::kBadArgument) << "it is empty now";
}

TEST_F(TypedMemory, TheLastReaderOfAPartGetsAllThatWasFrozen) {
  auto region = region_of<std::uint64_t>(100);
  auto all = taken(region, 20, 60);
  count_up(all, 0);
  auto part = std::move(all).freeze().part(30, 3);
  ASSERT_TRUE(part.has_value());
  auto thawed = std::move(*part).thaw();
  ASSERT_TRUE(thawed.has_value());
  EXPECT_EQ(thawed->size(), 60u);
  EXPECT_TRUE(counts_up(*thawed, 0));
}

TEST_F(TypedMemory, TheRangeGoesWithTheLastReader) {
  auto region = region_of<std::uint64_t>(10);
  std::optional<ConstSegment<std::uint64_t>> first = taken(region).freeze();
  std::optional<ConstSegment<std::uint64_t>> second = first;
  ConstSegment<std::uint64_t> third;
  third = *second;
  first.reset();
  third = {};
  EXPECT_EQ(region.take().error(), Status::kBusy);
  second.reset();
  EXPECT_TRUE(region.take().has_value());
}

TEST_F(TypedMemory, ManyReadersInManyThreads) {
  auto region = region_of<std::uint64_t>(1000);
  auto written = taken(region);
  count_up(written, 3);
  ConstSegment<std::uint64_t> shared = std::move(written).freeze();
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([mine = shared, &wrong] {
        for (int round = 0; round < 200; ++round) {
          // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): another holder is what is tested.
          const ConstSegment<std::uint64_t> copy = mine;
          const auto part = copy.part(500);
          if (!part || !counts_up(*part, 503)) ++wrong;
        }
      });
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(std::move(shared).thaw().has_value());
}

// Threads split what they were given, and write all of it; TSan sees any element that two of them have.
TEST_F(TypedMemory, PiecesAreWrittenByTheirThreads) {
  auto region = region_of<std::uint64_t>(4000);
  {
    auto chunks = taken(region).chunks(1000);
    std::vector<std::jthread> threads;
    while (auto piece = chunks.next())
      threads.emplace_back([mine = std::move(*piece)]() mutable {
        for (int round = 0; round < 100; ++round) {
          auto rest = mine.split_at(600);
          if (!rest) return;
          mine.fill(1);
          rest->fill(2);
          if (mine.join(std::move(*rest)) != Status::kOk) return;
        }
      });
  }
  EXPECT_EQ(region.held(), 0u);
  EXPECT_EQ(taken(region).use([](std::span<const std::uint64_t> all) {
    return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
  }),
            4 * (600 + 2 * 400));
}

// --- lives

TEST_F(TypedMemory, SegmentsOutliveTheirRegionAndItsNode) {
  std::optional<Segment<std::uint64_t>> segment;
  ConstSegment<std::uint64_t> shared;
  {
    auto region = region_of<std::uint64_t>(1000);
    segment = taken(region, 0, 500);
    shared = taken(region, 500).freeze();
  }
  link.close();
  peer.close();
  listener.reset();
  node.reset();
  count_up(*segment, 1);
  EXPECT_TRUE(counts_up(*segment, 1));
  EXPECT_EQ(shared.get(499).value(), 0u);
  auto half = segment->split_at(250);
  ASSERT_TRUE(half.has_value());
  segment.reset();
  EXPECT_TRUE(counts_up(*half, 251));
}

TEST_F(TypedMemory, ARegionThatIsMovedKeepsItsSegments) {
  auto first = region_of<int>(10);
  const auto segment = taken(first, 0, 5);
  auto second = std::move(first);
  EXPECT_EQ(first.size(), 0u);  // NOLINT(bugprone-use-after-move): the promise.
  EXPECT_EQ(second.held(), 1u);
  second = region_of<int>(3);
  EXPECT_EQ(segment.size(), 5u);
  EXPECT_EQ(segment.get(4).value(), 0);
}

// --- remote segments

TEST_F(TypedMemory, RemoteSegmentsAreInsideTheirWindow) {
  const rdma::Window window{.address = 4096, .length = 100, .rkey = 7, .access = rdma::Access::kAll};
  EXPECT_EQ(RemoteSegment<std::uint64_t>::of(window)->size(), 12u) << "whole elements only";
  EXPECT_EQ(RemoteSegment<std::uint64_t>::of(window, 12)->size(), 0u);
  EXPECT_EQ(RemoteSegment<std::uint64_t>::of(window, 13).error(), Status::kOutOfRange);
  EXPECT_EQ(RemoteSegment<std::uint64_t>::of(window, 0, 13).error(), Status::kOutOfRange);
  EXPECT_EQ(RemoteSegment<std::uint64_t>::of(window, 1, ~std::size_t{0} / 8).error(), Status::kOutOfRange);
  rdma::Window crooked = window;
  crooked.address = 4098;
  EXPECT_EQ(RemoteSegment<std::uint32_t>::of(crooked).error(), Status::kBadArgument);
  EXPECT_TRUE(RemoteSegment<std::uint16_t>::of(crooked).has_value());
  const auto some = remote_of<std::uint64_t>(window, 2, 8);
  EXPECT_EQ(some.remote().address, 4096u + 16);
  EXPECT_EQ(some.remote().length, 64u);
  EXPECT_EQ(some.part(3, 2)->remote().address, 4096u + 40);
  EXPECT_EQ(some.part(3)->size(), 5u);
  EXPECT_EQ(some.part(3, 6).error(), Status::kOutOfRange);
  EXPECT_EQ(some.part(9).error(), Status::kOutOfRange);
}

TEST_F(TypedMemory, RemoteSegmentsHaveTheRightsOfTheirWindow) {
  rdma::Window window{.address = 4096, .length = 100, .rkey = 7, .access = rdma::Access::kRead};
  EXPECT_EQ(RemoteSegment<int>::of(window).error(), Status::kRemoteAccess);
  EXPECT_NE(std::string(error_detail()).find("writing"), std::string::npos) << error_detail();
  EXPECT_TRUE(RemoteSegment<const int>::of(window).has_value());
  window.access = rdma::Access::kWrite;
  EXPECT_EQ(RemoteSegment<const int>::of(window).error(), Status::kRemoteAccess);
  const auto writable = remote_of<int>(window);
  const RemoteSegment<const int> readable = writable;
  EXPECT_EQ(readable.size(), 25u);
  EXPECT_EQ(readable.access(), rdma::Access::kWrite) << "the rights stay the peer's";
}

}  // namespace
}  // namespace verbena::typed
