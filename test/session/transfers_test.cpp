// Transfers of a session over a connection: given up at any time, and late completions of those that are gone.
#include "session/transfers.hpp"
#include "../channel/fixture.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace verbena::session {
namespace {

using Kind = Transfer::Kind;

class TransfersTest : public channel::test::MemoryPair {
 protected:
  static constexpr std::size_t kLength = 64;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(open());
    a.recorder.when_complete = [this](channel::Connection&, const channel::Completion& completion) {
      transfers.on_part(completion);
    };
  }
  [[nodiscard]] Transfer bounced(Kind kind, std::span<std::byte> bytes) const {
    const auto there = target->remote(0, bytes.size());
    return {.kind = kind, .local = LocalSpan::bounced(bytes), .place = {.span = there}};
  }
  void start(TransferCall& call) {
    transfers.push(call);
    transfers.progress(here());
    EXPECT_EQ(call.parts, 1u);
  }
  [[nodiscard]] channel::Completion last() const { return a.recorder.completions.back(); }

  PhysicalPeer physical;
  Transfers transfers{physical};
};

TEST_F(TransfersTest, ACancelledTransferGivesItsPlaceBack) {
  channel::test::Bytes bytes(kLength);
  for (std::uint32_t i = 0; i < 2 * Transfers::kParts; ++i) {
    TransferCall call(bounced(Kind::kWrite, bytes));
    start(call);
    ASSERT_TRUE(transfers.cancel(call, here()));
    EXPECT_EQ(call.status, Status::kTimedOut);
    ASSERT_TRUE(transfers.is_quiet()) << "after " << i;
    settle();
  }
  TransferCall call(bounced(Kind::kWrite, bytes));
  start(call);
  EXPECT_TRUE(until([&] { return call.done(); }));
  EXPECT_EQ(call.status, Status::kOk);
}

TEST_F(TransfersTest, NothingLandsInTheMemoryOfACancelledRead) {
  if (test::device_under_test() != nullptr) GTEST_SKIP() << "only the soft NIC can be held";
  test::fill(target->bytes().first(kLength), 3);
  channel::test::Bytes bytes(kLength);
  test::hold_execution(here().queue_pair(), true);
  TransferCall call(bounced(Kind::kRead, bytes));
  start(call);
  ASSERT_TRUE(transfers.cancel(call, here()));
  test::hold_execution(here().queue_pair(), false);
  settle();
  EXPECT_EQ(bytes, channel::test::Bytes(kLength)) << "its caller has gone";
  EXPECT_TRUE(a.recorder.completions.empty());
}

TEST_F(TransfersTest, ALateCompletionDoesNotEndTheNextTransferInItsSlot) {
  channel::test::Bytes bytes(kLength);
  TransferCall first(bounced(Kind::kWrite, bytes));
  start(first);
  ASSERT_TRUE(until([&] { return first.done(); }));
  const channel::Completion late = last();
  TransferCall second(bounced(Kind::kWrite, bytes));
  start(second);
  transfers.on_part(late);
  EXPECT_FALSE(second.done()) << "it is the completion of the one before";
  EXPECT_FALSE(transfers.is_quiet());
  ASSERT_TRUE(until([&] { return second.done(); }));
  EXPECT_EQ(second.status, Status::kOk);
  EXPECT_TRUE(transfers.is_quiet());
}

TEST_F(TransfersTest, StartedTransfersAreTakenInTheOrderOfTheirEnds) {
  std::vector<TakeCall> takers(3);
  for (std::uint64_t i = 0; i < 2; ++i) {
    const Transfer write{.kind = Kind::kWrite,
                         .local = local->local(i * kLength, kLength),
                         .place = {.span = target->remote(i * kLength, kLength)},
                         .cookie = i + 1};
    ASSERT_EQ(transfers.start(write, here()), Status::kOk);
  }
  for (TakeCall& taker : takers) transfers.push(taker);
  transfers.feed_takers();
  EXPECT_FALSE(takers[2].done()) << "two are under way";
  ASSERT_TRUE(until([&] { return takers[1].done(); }));
  EXPECT_EQ(takers[0].completion.cookie, 1u);
  EXPECT_EQ(takers[1].completion.cookie, 2u);
  transfers.feed_takers();
  ASSERT_TRUE(takers[2].done());
  EXPECT_EQ(takers[2].status, Status::kNotFound) << "nothing is under way";
}

}  // namespace
}  // namespace verbena::session
