// From the builder to ready: settings, hostile endpoints, and ends in every state.
#include "queue_pair_fixture.hpp"

#include <cstring>

namespace verbena::typed {
namespace {

template <class Type>
class BringUpOfType : public QueuePairTest {};
using EachType = testing::Types<Rc, Uc>;
TYPED_TEST_SUITE(BringUpOfType, EachType);

TYPED_TEST(BringUpOfType, EverySettingIsTaken) {
  QueuePairBuilder<TypeParam> builder;
  builder.send_depth(7)
      .receive_depth(5)
      .max_sge(2)
      .max_inline(16)
      .access(rdma::Access::kWrite)
      .mtu(Mtu::k512)
      .psn(0x123456);
  builder.traffic_class(8).wait_timeout(std::chrono::milliseconds{700}).wait_policy(WaitPolicy::kEvent);
  if constexpr (std::same_as<TypeParam, Rc>)
    builder.max_reads(1).ack_timeout(15).retry_count(3).rnr_retry(2).min_rnr_timer(5);
  auto prepared = builder.on(*this->node).prepare();
  ASSERT_OK(prepared);
  const QueuePairEndpoint told = prepared->describe();
  EXPECT_EQ(told, prepared->describe()) << "the same each time";
  EXPECT_EQ(told.mtu, 2);
  EXPECT_EQ(told.psn, 0x123456u);
  EXPECT_EQ(told.max_reads, (std::same_as<TypeParam, Rc> ? 1 : 0));
  EXPECT_EQ(told.type, (std::same_as<TypeParam, Rc> ? 1 : 2));
  Pair<TypeParam> pair;
  auto other = builder.on(*this->node).prepare();
  ASSERT_OK(other);
  ASSERT_NO_FATAL_FAILURE(connect_both(std::move(*prepared), std::move(*other), pair));
  EXPECT_EQ(pair.a.room(), 7u);
  EXPECT_EQ(pair.a.max_sge(), 2u);
  EXPECT_EQ(pair.a.max_inline(), 16u);
  auto region = this->template region_of<std::uint64_t>(8);
  auto waiting = pair.a.post_receive(this->taken(region));
  const Deadline soon = Deadline::after(std::chrono::milliseconds{600});
  EXPECT_EQ(waiting.wait(), Status::kTimedOut) << "by wait_timeout";
  EXPECT_TRUE(soon.passed());
}

TYPED_TEST(BringUpOfType, SettingsOutOfRangeAreRefused) {
  const auto refused = [&](const QueuePairBuilder<TypeParam>& builder) {
    const auto prepared = builder.on(*this->node).prepare();
    return prepared ? Status::kOk : prepared.error().status();
  };
  using Builder = QueuePairBuilder<TypeParam>;
  EXPECT_EQ(refused(Builder().send_depth(0)), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().send_depth(16001)), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().receive_depth(0)), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().receive_depth(~0U)), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().max_sge(0)), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().max_sge(10'000)), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().max_inline(1 << 20)), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().mtu(static_cast<Mtu>(0))), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().mtu(static_cast<Mtu>(6))), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().psn(0x1000000)), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().traffic_class(256)), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().access(static_cast<rdma::Access>(8))), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().wait_timeout(std::chrono::milliseconds{0})), Status::kBadArgument);
  EXPECT_EQ(refused(Builder().wait_timeout(std::chrono::milliseconds{-1})), Status::kBadArgument);
  if constexpr (std::same_as<TypeParam, Rc>) {
    EXPECT_EQ(refused(Builder().ack_timeout(32)), Status::kBadArgument);
    EXPECT_EQ(refused(Builder().retry_count(8)), Status::kBadArgument);
    EXPECT_EQ(refused(Builder().rnr_retry(8)), Status::kBadArgument);
    EXPECT_EQ(refused(Builder().min_rnr_timer(32)), Status::kBadArgument);
    EXPECT_EQ(refused(Builder().max_reads(256)), Status::kBadArgument);
  }
  EXPECT_EQ(refused(Builder().max_sge(1).send_depth(1).receive_depth(1)), Status::kOk);
}

// What comes back is whatever somebody has made of it: refused, or taken for what it says, and never more.
TYPED_TEST(BringUpOfType, HostileEndpointsAreRefusedAndItIsPreparedStill) {
  auto made = QueuePairBuilder<TypeParam>().on(*this->node).prepare();
  ASSERT_OK(made);
  Prepared<TypeParam> prepared = std::move(*made);
  auto peer = QueuePairBuilder<TypeParam>().on(*this->node).prepare();
  ASSERT_OK(peer);
  const QueuePairEndpoint good = peer->describe();
  const auto refused = [&](const auto& change) {
    QueuePairEndpoint bad = good;
    change(bad);
    const auto begun = std::move(prepared).begin(bad);
    return begun ? Status::kOk : begun.error().status();
  };
  EXPECT_EQ(refused([](auto& bad) { bad = {}; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { std::memset(static_cast<void*>(&bad), 0xff, sizeof bad); }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.magic = __builtin_bswap32(bad.magic); }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.reserved = 1; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.type = 0; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.type = 3; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.type = static_cast<std::uint8_t>(3 - bad.type); }), Status::kRejected);
  EXPECT_EQ(refused([](auto& bad) { bad.nic = 0; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.nic = 9; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.network = 200; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.mtu = 0; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.mtu = 6; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.number = 0; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) { bad.psn = 0x1000000; }), Status::kProtocol);
  EXPECT_EQ(refused([](auto& bad) {
              bad.nic = static_cast<std::uint8_t>(3 - bad.nic);
              bad.network = bad.nic == 1 ? 0 : 4;
            }),
            Status::kRejected);
  if (!test::is_soft_under_test()) {
    EXPECT_EQ(refused([](auto& bad) { bad.number = 0x1000000; }), Status::kProtocol);
  }
  // After all of that it connects.
  Pair<TypeParam> pair;
  ASSERT_NO_FATAL_FAILURE(connect_both(std::move(prepared), std::move(*peer), pair));
}

// Numbers of nobody, one byte after the other changed: no crash, and no queue pair that is ready for another's.
TYPED_TEST(BringUpOfType, ChangedEndpointsLeadNowhere) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "a device is ready whoever the peer is";
  auto peer = QueuePairBuilder<TypeParam>().on(*this->node).prepare();
  ASSERT_OK(peer);
  const QueuePairEndpoint good = peer->describe();
  for (std::size_t byte = 8; byte < 24; ++byte) {
    SCOPED_TRACE(byte);
    QueuePairEndpoint bad = good;
    bad.gid[byte - 8] ^= 0x40;
    auto prepared = QueuePairBuilder<TypeParam>().on(*this->node).prepare();
    ASSERT_OK(prepared);
    EXPECT_FALSE(std::move(*prepared).connect(bad, Deadline::after(std::chrono::milliseconds{200})).has_value());
  }
}

TYPED_TEST(BringUpOfType, APeerThatDoesNotComeIsNotWaitedForWithoutEnd) {
  auto peer = QueuePairBuilder<TypeParam>().on(*this->node).prepare();
  ASSERT_OK(peer);
  const QueuePairEndpoint gone = peer->describe();
  { const auto destroyed = std::move(*peer); }
  auto region = this->template region_of<std::uint64_t>(8);
  auto prepared = QueuePairBuilder<TypeParam>().on(*this->node).prepare();
  ASSERT_OK(prepared);
  auto received = prepared->post_receive(this->taken(region));
  EXPECT_EQ(received.wait(patience()), Status::kAgain) << "not connected yet";
  auto connected = std::move(*prepared).connect(gone, Deadline::after(std::chrono::milliseconds{100}));
  if (connected) return;  // It is ready for whom nobody is.
  EXPECT_EQ(received.wait(patience()), Status::kClosed);
  EXPECT_EQ(received.take()->size(), 8u);
}

TYPED_TEST(BringUpOfType, AReceiveThatWasPostedBeforeTakesTheFirstMessage) {
  auto region = this->template region_of<std::uint64_t>(64);
  const auto builder = QueuePairBuilder<TypeParam>().on(*this->node);
  auto left = builder.prepare();
  ASSERT_OK(left);
  auto right = builder.prepare();
  ASSERT_OK(right);
  auto received = right->post_receive(this->taken(region, 0, 8));
  ASSERT_TRUE(received.is_under_way()) << error_detail();
  EXPECT_FALSE(received.poll());
  Pair<TypeParam> pair;
  ASSERT_NO_FATAL_FAILURE(connect_both(std::move(*left), std::move(*right), pair));
  auto sent = pair.a.post_send(this->counting(region, 8, 8, 77));
  ASSERT_EQ(sent.wait(patience()), Status::kOk);
  ASSERT_EQ(received.wait(patience()), Status::kOk);
  EXPECT_TRUE(this->counts_up(*received.take(), 77));
}

TYPED_TEST(BringUpOfType, ItEndsInEveryState) {
  auto region = this->template region_of<std::uint64_t>(64);
  const auto builder = QueuePairBuilder<TypeParam>().on(*this->node);
  {
    auto prepared = builder.prepare();
    ASSERT_OK(prepared);
    { const auto dropped = prepared->post_receive(this->taken(region, 0, 8)); }
    EXPECT_EQ(prepared->quarantined(), 1u);
  }
  EXPECT_EQ(region.held(), 0u);
  for (int steps = 0; steps < 3; ++steps) {
    auto left = builder.prepare();
    auto right = builder.prepare();
    ASSERT_OK(left);
    ASSERT_OK(right);
    auto begun = std::move(*left).begin(right->describe());
    ASSERT_OK(begun);
    for (int i = 0; i < steps; ++i) (void)begun->step();
    // NOLINTNEXTLINE(bugprone-use-after-move): that a moved one is empty is the point.
    EXPECT_EQ(left->failure(), Status::kClosed);
  }
  Pair<TypeParam> pair;
  ASSERT_NO_FATAL_FAILURE(this->connect(pair));
  pair.a = std::move(pair.b);
  EXPECT_EQ(pair.b.failure(), Status::kClosed);
  EXPECT_EQ(pair.a.failure(), Status::kOk);
  pair.a = {};
  EXPECT_EQ(pair.a.failure(), Status::kClosed);
}

TYPED_TEST(BringUpOfType, ItOutlivesItsNode) {
  Pair<TypeParam> pair;
  auto region = this->template region_of<std::uint64_t>(64);
  ASSERT_NO_FATAL_FAILURE(this->connect(pair));
  this->node.reset();
  auto received = pair.b.post_receive(this->taken(region, 0, 8));
  auto sent = pair.a.post_send(this->counting(region, 8, 8, 5));
  ASSERT_EQ(sent.wait(patience()), Status::kOk);
  ASSERT_EQ(received.wait(patience()), Status::kOk);
  EXPECT_TRUE(this->counts_up(*received.take(), 5));
}

}  // namespace
}  // namespace verbena::typed
