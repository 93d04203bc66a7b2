// Typed lanes of a mesh: operations with a peer keep their order, a flush waits for those before it and for no others,
// and a receive that nobody waits for takes no message.
#include "../../mesh/typed_lanes.hpp"

#include <hold.hpp>
#include <transport.hpp>

#include <verbena/typed_mesh.hpp>

#include <array>
#include <utility>
#include <vector>

namespace verbena::typed {
namespace {

using LaneCells = Segment<std::uint64_t>;
using LaneOperation = Operation<LaneCells>;

/// Two processes, of which the first has the window of all cells of the second.
class TypedMesh : public mesh::test::TypedLanes {
 protected:
  static constexpr unsigned kDepth = 32;
  static constexpr unsigned kOperations = 64;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_lanes(kCells, [](mesh::Options& options) {
      options.depth = kDepth;
      options.operations = kOperations;
    }));
  }
  [[nodiscard]] LaneCells cells(unsigned id, std::size_t first, std::size_t count, std::uint64_t value = 0) {
    auto taken = regions.at(id).take(first, count);
    EXPECT_TRUE(taken.has_value()) << error_detail();
    if (!taken) return {};
    taken->fill(value);
    return std::move(*taken);
  }
  /// The queue of all completions of the first process's lane, which each of its connections has.
  [[nodiscard]] ibv_cq* first_queue() {
    const auto made = first_lane().make_peer();
    EXPECT_OK(made);
    return made ? (*made)->connection().queue_pair()->send_cq : nullptr;
  }
  [[nodiscard]] mesh::LaneOfMesh& first_lane() { return static_cast<mesh::LaneOfMesh&>(lane(0)); }
};

// The second process polls nothing, so no credit comes back, and a WRITE needs none.
TEST_F(TypedMesh, NothingOvertakesASendThatWaitsForCredit) {
  constexpr std::size_t kSends = 2 * kDepth;
  constexpr std::size_t kTarget = 500;
  LaneCells target = cells(1, kTarget, 1);
  std::vector<LaneOperation> sends;
  for (std::size_t i = 0; i < kSends; ++i) sends.push_back(ends[0].start_send(1, cells(0, i, 1, i)));
  auto write = ends[0].start_write(cells(0, kSends, 1, 77), *there.part(kTarget, 1), 5);
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(write.poll()) << "the sends before it wait for credit";
  EXPECT_FALSE(sends.back().poll());
  EXPECT_EQ(target.get(0).value(), 0u);
  auto room = cells(1, 0, 1);
  for (std::size_t i = 0; i < kSends; ++i) {
    auto receiving = ends[1].start_receive(0, std::move(room));
    ASSERT_TRUE(polled([&] { return receiving.poll(); }));
    ASSERT_EQ(receiving.status(), Status::kOk) << error_detail();
    room = *receiving.take();
    ASSERT_EQ(room.get(0).value(), i);
  }
  auto told = ends[1].start_receive(0, std::move(room));
  ASSERT_TRUE(polled([&] { return told.poll() && write.poll(); }));
  EXPECT_EQ(told.received()->immediate, 5u);
  EXPECT_EQ(write.status(), Status::kOk);
  EXPECT_EQ(target.get(0).value(), 77u);
}

// More READs than the NIC may have in flight, and messages behind them that need not wait for these: so operations that
// were started after the flush end before some that were started ahead of it.
TEST_F(TypedMesh, AFlushIsNotEndedByWhatWasStartedLater) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  constexpr std::size_t kReads = 24;
  constexpr std::size_t kSends = 20;
  ibv_cq* const queue = first_queue();
  ASSERT_NE(queue, nullptr);
  test::hold_completions(queue, true);
  // In quarantine nothing but the READs: it is empty when the last of them is complete.
  for (std::size_t i = 0; i < kReads; ++i) {
    const auto dropped = ends[0].start_read(cells(0, i, 1), *there.part(i, 1));
    ASSERT_TRUE(dropped.is_under_way()) << error_detail();
  }
  auto flush = ends[0].start_flush(1);
  std::vector<LaneOperation> sends;
  for (std::size_t i = 0; i < kSends; ++i) sends.push_back(ends[0].start_send(1, cells(0, 100 + i, 1, i)));
  EXPECT_EQ(ends[0].quarantined(), kReads);
  // Completions come in small portions, with a look at the flush after each.
  for (const Deadline limit = mesh::test::patience(); !limit.passed();) {
    test::hold_completions(queue, false);
    first_lane().turn();
    test::hold_completions(queue, true);
    if (flush.poll()) break;
  }
  EXPECT_EQ(flush.status(), Status::kOk);
  EXPECT_EQ(ends[0].quarantined(), 0u) << "READs from before the flush";
  test::hold_completions(queue, false);
  ASSERT_TRUE(polled([&] {
    bool is_sent = true;
    for (auto& each : sends) is_sent = each.poll() && is_sent;
    return is_sent;
  }));
}

// The flush need not wait for later operations either: these cannot end without the second process.
TEST_F(TypedMesh, AFlushDoesNotWaitForWhatWasStartedLater) {
  auto write = ends[0].start_write(cells(0, 0, 1, 9), *there.part(0, 1));
  auto flush = ends[0].start_flush(1);
  std::vector<LaneOperation> sends;
  for (std::size_t i = 0; i < 2 * kDepth; ++i) sends.push_back(ends[0].start_send(1, cells(0, 1 + i, 1, i)));
  EXPECT_EQ(flush.wait(mesh::test::patience()), Status::kOk) << error_detail();
  EXPECT_TRUE(write.poll());
  EXPECT_FALSE(sends.back().poll()) << "it waits for credit";
  auto later = ends[0].start_flush(1);
  EXPECT_FALSE(later.poll());
}

// The message has arrived, and the lane has not looked at it when the receive goes.
TEST_F(TypedMesh, ADroppedReceiveLeavesTheMessageToTheNext) {
  {
    const auto dropped = ends[1].start_receive(0, cells(1, 0, 4));
    auto sending = ends[0].start_send(1, cells(0, 0, 4, 6));
    ASSERT_EQ(sending.wait(mesh::test::patience()), Status::kOk) << error_detail();
  }
  EXPECT_EQ(ends[1].quarantined(), 1u);
  auto receiving = ends[1].start_receive(0, cells(1, 8, 4));
  ASSERT_TRUE(polled([&] { return receiving.poll(); }));
  EXPECT_EQ(receiving.status(), Status::kOk);
  EXPECT_EQ(receiving.take()->get(3).value(), 6u);
  EXPECT_EQ(ends[1].quarantined(), 0u);
  EXPECT_EQ(regions[1].take(0, 4)->get(0).value(), 0u) << "nothing came into the dropped one's cells";
}

}  // namespace
}  // namespace verbena::typed
