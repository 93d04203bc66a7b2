// Batches: made once, posted often, and owners of their segments throughout.
#include "queue_pair_fixture.hpp"

namespace verbena::typed {
namespace {

template <class Type>
class BatchOfType : public PairTest<Type> {
 protected:
  /// A batch of `count` writes of 16 words each, one after the other.
  [[nodiscard]] std::optional<Batch<Type, std::uint64_t>> writes(std::size_t count) {
    auto made = this->pair.a.template batch<std::uint64_t>(count);
    EXPECT_OK(made);
    if (!made) return std::nullopt;
    for (std::size_t i = 0; i < count; ++i)
      EXPECT_EQ(made->add_write(this->counting(this->mine, i * 16, 16, i * 16), *this->there.part(i * 16, 16)),
                Status::kOk)
          << error_detail();
    return std::move(*made);
  }
};
using OfEachType = testing::Types<Rc, Uc>;
TYPED_TEST_SUITE(BatchOfType, OfEachType);

TYPED_TEST(BatchOfType, IsPostedAgainAndAgain) {
  auto batch = this->writes(32);
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->size(), 32u);
  EXPECT_EQ(batch->status(), Status::kOk);
  for (std::uint64_t round = 0; round < 50; ++round) {
    ASSERT_EQ(batch->use(3, [&](std::span<std::uint64_t> all) { all[0] = round; }), Status::kOk);
    ASSERT_EQ(batch->post(), Status::kOk) << error_detail();
    ASSERT_EQ(batch->wait(patience()), Status::kOk) << error_detail();
    auto received = this->pair.b.post_receive(this->taken(this->mine, 1000, 1));
    ASSERT_EQ(this->pair.a.post_send(this->taken(this->mine, 1001, 1)).wait(patience()), Status::kOk);
    ASSERT_EQ(received.wait(patience()), Status::kOk);
    const auto seen = this->taken(this->theirs);
    ASSERT_EQ(seen.get(48), round);
    ASSERT_EQ(seen.get(49), 49u);
    ASSERT_EQ(seen.get(511), 511u);
  }
}

TYPED_TEST(BatchOfType, HasItsSegmentsToItselfWhileItIsUnderWay) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  auto batch = this->writes(4);
  ASSERT_TRUE(batch);
  HeldPair held(this->pair.a);
  ASSERT_EQ(batch->post(), Status::kOk);
  EXPECT_TRUE(batch->is_under_way());
  EXPECT_EQ(batch->post(), Status::kBusy);
  EXPECT_EQ(batch->use(0, [](std::span<std::uint64_t>) {}), Status::kBusy);
  EXPECT_EQ(batch->take_last().error(), Status::kBusy);
  EXPECT_EQ(batch->add_send(this->taken(this->mine, 900, 1)), Status::kBusy);
  EXPECT_EQ(batch->wait(Deadline::after(std::chrono::milliseconds{5})), Status::kTimedOut);
  held.release();
  EXPECT_EQ(batch->wait(patience()), Status::kOk);
  EXPECT_EQ(batch->take_last()->size(), 16u);
  EXPECT_EQ(batch->size(), 3u);
  EXPECT_EQ(batch->post(), Status::kOk);
  EXPECT_EQ(batch->wait(patience()), Status::kOk);
}

TYPED_TEST(BatchOfType, DroppedItIsInQuarantine) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  HeldPair held(this->pair.a);
  {
    auto batch = this->writes(4);
    ASSERT_TRUE(batch);
    ASSERT_EQ(batch->post(), Status::kOk);
  }
  EXPECT_EQ(this->pair.a.quarantined(), 1u);
  EXPECT_EQ(this->mine.held(), 4u);
  held.release();
  ASSERT_EQ(this->pair.a.settle(patience()), Status::kOk);
  EXPECT_EQ(this->mine.held(), 0u);
  EXPECT_TRUE(this->counts_up(this->taken(this->theirs, 0, 64), 0)) << "it went on";
}

TYPED_TEST(BatchOfType, OutlivesItsQueuePair) {
  auto batch = this->writes(4);
  ASSERT_TRUE(batch);
  if (test::is_soft_under_test()) {
    HeldPair held(this->pair.a);
    ASSERT_EQ(batch->post(), Status::kOk);
    this->pair.a.close();
    held.forget();
    EXPECT_EQ(batch->wait(patience()), Status::kClosed);
  }
  this->pair.a.close();
  EXPECT_EQ(batch->post(), Status::kClosed);
  this->pair = {};
  this->node.reset();
  auto last = batch->take_last();
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(this->counts_up(*last, 48));
  batch.reset();
  EXPECT_TRUE(this->counts_up(*last, 48));
}

TYPED_TEST(BatchOfType, WhatCannotWorkIsRefused) {
  EXPECT_STATUS(this->pair.a.template batch<std::uint64_t>(0), Status::kBadArgument);
  EXPECT_STATUS(this->pair.a.template batch<std::uint64_t>(129), Status::kBadArgument);
  auto batch = this->pair.a.template batch<std::uint64_t>(2);
  ASSERT_OK(batch);
  EXPECT_EQ(batch->post(), Status::kBadArgument) << "it is empty";
  EXPECT_EQ(batch->take_last().error(), Status::kNotFound);
  Words words = this->taken(this->mine, 0, 8);
  EXPECT_EQ(batch->add_write(std::move(words), *this->there.part(0, 7)), Status::kBadArgument);
  // NOLINTNEXTLINE(bugprone-use-after-move): what is refused stays with the caller.
  EXPECT_EQ(words.size(), 8u);
  EXPECT_EQ(batch->add_write(std::move(words), this->there), Status::kOk);
  EXPECT_EQ(batch->add_send({}), Status::kBadArgument);
  EXPECT_EQ(batch->use(1, [](std::span<std::uint64_t>) {}), Status::kOutOfRange);
  EXPECT_EQ(batch->add_write_with_immediate(this->taken(this->mine, 8, 8), this->there, 6), Status::kOk);
  EXPECT_EQ(batch->add_write(this->taken(this->mine, 16, 8), this->there), Status::kLimit);
  auto received = this->pair.b.post_receive(this->taken(this->mine, 1000, 1));
  EXPECT_EQ(batch->post(), Status::kOk);
  EXPECT_EQ(batch->wait(patience()), Status::kOk);
  ASSERT_EQ(received.wait(patience()), Status::kOk);
  EXPECT_EQ(received.arrival()->immediate, 6u);
}

TYPED_TEST(BatchOfType, WaitsForRoom) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  Pair<TypeParam> shallow;
  ASSERT_NO_FATAL_FAILURE(this->connect(shallow, QueuePairBuilder<TypeParam>().send_depth(4)));
  const auto target = this->template opened<std::uint64_t>(shallow.a, this->theirs.window());
  auto batch = shallow.a.template batch<std::uint64_t>(3);
  ASSERT_OK(batch);
  for (std::size_t i = 0; i < 3; ++i) ASSERT_EQ(batch->add_write(this->taken(this->mine, i, 1), target), Status::kOk);
  HeldPair held(shallow.a);
  auto first = shallow.a.post_write(this->taken(this->mine, 10, 1), target);
  auto second = shallow.a.post_write(this->taken(this->mine, 11, 1), target);
  EXPECT_EQ(batch->post(), Status::kAgain);
  held.release();
  ASSERT_EQ(second.wait(patience()), Status::kOk);
  EXPECT_EQ(batch->post(), Status::kOk);
  EXPECT_EQ(batch->wait(patience()), Status::kOk);
}

using BatchRc = BatchOfType<Rc>;

TEST_F(BatchRc, Reads) {
  { const auto filled = counting(theirs, 0, 64, 500); }
  auto batch = pair.a.batch<std::uint64_t>(4);
  ASSERT_OK(batch);
  for (std::size_t i = 0; i < 4; ++i)
    ASSERT_EQ(batch->add_read(taken(mine, i * 16, 16), *there.part(i * 16, 16)), Status::kOk);
  ASSERT_EQ(batch->post(), Status::kOk);
  ASSERT_EQ(batch->wait(patience()), Status::kOk);
  for (std::uint64_t i = 4; i-- > 0;) EXPECT_TRUE(counts_up(*batch->take_last(), 500 + i * 16));
}

// One in the middle fails: the batch ends with its reason, after the last of it.
TEST_F(BatchRc, AFailureInTheMiddleIsItsStatus) {
  std::optional<MemoryRegion<std::uint64_t>> gone = region_of<std::uint64_t>(64);
  const auto target = opened<std::uint64_t>(pair.a, gone->window());
  auto batch = pair.a.batch<std::uint64_t>(3);
  ASSERT_OK(batch);
  ASSERT_EQ(batch->add_write(counting(mine, 0, 16, 0), there), Status::kOk);
  ASSERT_EQ(batch->add_write(taken(mine, 16, 16), target), Status::kOk);
  ASSERT_EQ(batch->add_write(taken(mine, 32, 16), there), Status::kOk);
  gone.reset();
  ASSERT_EQ(batch->post(), Status::kOk);
  EXPECT_EQ(batch->wait(patience()), Status::kRemoteAccess);
  EXPECT_EQ(pair.a.failure(), Status::kRemoteAccess);
  EXPECT_EQ(batch->post(), Status::kRemoteAccess);
  EXPECT_TRUE(counts_up(taken(theirs, 0, 16), 0));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(batch->take_last()->size(), 16u);
  EXPECT_EQ(mine.held(), 0u);
}

}  // namespace
}  // namespace verbena::typed
