// Receiver not ready: a SEND that finds no receive waits, and everything behind it waits too.
#include "fixture.hpp"

#include <cstring>

namespace verbena::nic::conformance {
namespace {

using test::all_are;
using test::fill;
using test::matches;

class Rnr : public Bare {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Bare::SetUp());
    ASSERT_NO_FATAL_FAILURE(make(a, {}));
    ASSERT_NO_FATAL_FAILURE(make(b, {}));
    std::memset(b.at(kTarget), std::to_integer<int>(kCanary), 65536);
  }
  void connect_with(std::uint8_t rnr_retry) {
    a.options.rnr_retry = rnr_retry;
    ASSERT_NO_FATAL_FAILURE(connect());
  }
};
VERBENA_FOR_EVERY_NIC(Rnr);

TEST_P(Rnr, RetriesRunOut) {
  for (const std::uint8_t retries : {std::uint8_t{0}, std::uint8_t{1}, std::uint8_t{6}}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{1000}, std::size_t{100000}}) {
      SCOPED_TRACE(testing::Message() << int{retries} << " retries, " << size << " bytes");
      ASSERT_NO_FATAL_FAILURE(connect_with(retries));
      ASSERT_EQ(a.post_recv(300, a.sge(0, 64)), 0);
      ASSERT_EQ(Request(IBV_WR_SEND, 1).gather(a.sge(0, size)).flags(0).post(a), 0);
      ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(0, 64)).remote(b, kTarget).post(a), 0);
      const auto out = sent(a, 2);
      EXPECT_TRUE(failed(out[0], 1, IBV_WC_RNR_RETRY_EXC_ERR));
      EXPECT_TRUE(failed(out[1], 2, IBV_WC_WR_FLUSH_ERR));
      EXPECT_TRUE(failed(received(a), 300, IBV_WC_WR_FLUSH_ERR));
      EXPECT_EQ(a.state(), IBV_QPS_ERR);
      // The responder has done nothing wrong.
      expect_quiet(2ms);
      EXPECT_EQ(b.state(), IBV_QPS_RTS);
      EXPECT_TRUE(all_are(b.bytes(kTarget, 64), kCanary));
      ASSERT_OK(to_reset(*a.nic, a.qp.get()));
      ASSERT_OK(to_reset(*b.nic, b.qp.get()));
    }
  }
}

TEST_P(Rnr, SevenWaitsForAReceive) {
  ASSERT_NO_FATAL_FAILURE(connect_with(7));
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{1000}, std::size_t{100000}}) {
    SCOPED_TRACE(size);
    fill(a.bytes(0, size), size);
    ASSERT_EQ(Request(IBV_WR_SEND, 1).gather(a.sge(0, size)).post(a), 0);
    expect_quiet(20ms);
    ASSERT_EQ(b.post_recv(2, b.sge(0, size)), 0);
    EXPECT_TRUE(succeeded(received(b), 2, IBV_WC_RECV));
    EXPECT_TRUE(matches(b.bytes(0, size), size));
    EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_SEND));
  }
}

// Nothing overtakes a SEND that waits: neither its effect nor its completion.
TEST_P(Rnr, NothingOvertakes) {
  ASSERT_NO_FATAL_FAILURE(connect_with(7));
  fill(a.bytes(0, 4096), 1);
  fill(b.bytes(8192, 64), 2);
  std::memset(a.at(kTarget), std::to_integer<int>(kCanary), 64);
  b.word(kTarget + 4096) = 5;
  ASSERT_EQ(Request(IBV_WR_SEND, 1).gather(a.sge(0, 64)).post(a), 0);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(0, 4096)).remote(b, kTarget).post(a), 0);
  ASSERT_EQ(Request(IBV_WR_RDMA_READ, 3).gather(a.sge(kTarget, 64)).remote(b, 8192).post(a), 0);
  ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, 4)
                .gather(a.sge(kTarget + 128, 8))
                .atomic(b.address(kTarget + 4096), b.rkey(), 1)
                .post(a),
            0);
  ASSERT_EQ(Request(IBV_WR_SEND, 5).gather(a.sge(0, 32)).post(a), 0);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 6)
                .gather({a.address(0), 8, a.mr->lkey})
                .remote(b, kTarget + 8192)
                .flags(IBV_SEND_SIGNALED | IBV_SEND_INLINE)
                .post(a),
            0);
  expect_quiet(20ms);
  EXPECT_TRUE(all_are(b.bytes(kTarget, 4096), kCanary));
  EXPECT_TRUE(all_are(a.bytes(kTarget, 64), kCanary));
  EXPECT_EQ(b.word(kTarget + 4096), 5U);

  ASSERT_EQ(b.post_recv(11, b.sge(0, 64)), 0);
  const auto first = sent(a, 4);
  EXPECT_TRUE(succeeded(first[0], 1, IBV_WC_SEND));
  EXPECT_TRUE(succeeded(first[1], 2, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(succeeded(first[2], 3, IBV_WC_RDMA_READ));
  EXPECT_TRUE(succeeded(first[3], 4, IBV_WC_FETCH_ADD));
  EXPECT_TRUE(succeeded(received(b), 11, IBV_WC_RECV));
  EXPECT_TRUE(matches(b.bytes(kTarget, 4096), 1));
  EXPECT_TRUE(matches(a.bytes(kTarget, 64), 2));
  EXPECT_EQ(b.word(kTarget + 4096), 6U);

  expect_quiet(20ms);  // The second SEND waits as the first did.
  EXPECT_TRUE(all_are(b.bytes(kTarget + 8192, 8), kCanary));
  ASSERT_EQ(b.post_recv(12, b.sge(0, 64)), 0);
  const auto second = sent(a, 2);
  EXPECT_TRUE(succeeded(second[0], 5, IBV_WC_SEND));
  EXPECT_TRUE(succeeded(second[1], 6, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(succeeded(received(b), 12, IBV_WC_RECV));
  EXPECT_TRUE(matches(b.bytes(kTarget + 8192, 8), 1));
}

// Whether the data of such a WRITE is there already is open; its completions are not.
TEST_P(Rnr, WriteWithImmediateWaitsToo) {
  ASSERT_NO_FATAL_FAILURE(connect_with(7));
  fill(a.bytes(0, 256), 3);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE_WITH_IMM, 1).gather(a.sge(0, 256)).remote(b, kTarget).immediate(99).post(a), 0);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(0, 64)).remote(b, kTarget + 4096).post(a), 0);
  expect_quiet(20ms);
  EXPECT_TRUE(all_are(b.bytes(kTarget + 4096, 64), kCanary));
  ASSERT_EQ(b.post_recv(11, {}), 0);
  const ibv_wc in = received(b);
  EXPECT_TRUE(succeeded(in, 11, IBV_WC_RECV_RDMA_WITH_IMM));
  EXPECT_EQ(in.imm_data, 99U);
  EXPECT_TRUE(matches(b.bytes(kTarget, 256), 3));
  const auto out = sent(a, 2);
  EXPECT_TRUE(succeeded(out[0], 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(succeeded(out[1], 2, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(matches(b.bytes(kTarget + 4096, 64), 3));
}

TEST_P(Rnr, WriteWithImmediateRunsOutOfRetries) {
  ASSERT_NO_FATAL_FAILURE(connect_with(2));
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE_WITH_IMM, 1).gather(a.sge(0, 8)).remote(b, kTarget).post(a), 0);
  EXPECT_TRUE(failed(sent(a), 1, IBV_WC_RNR_RETRY_EXC_ERR));
  EXPECT_EQ(a.state(), IBV_QPS_ERR);
  EXPECT_EQ(b.state(), IBV_QPS_RTS);
}

// The count of posted receives is used up exactly.
TEST_P(Rnr, AsManySendsAsReceives) {
  ASSERT_NO_FATAL_FAILURE(connect_with(7));
  std::uint64_t expected = 0;
  for (std::uint64_t round = 1; round <= 20; ++round) {
    for (std::uint64_t i = 0; i < round; ++i) ASSERT_EQ(b.post_recv(expected + i, b.sge(i * 64, 64)), 0);
    for (std::uint64_t i = 0; i <= round; ++i)  // One too many.
      ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, i)).post(a), 0);
    (void)sent(a, round);
    const auto in = received(b, round);
    for (std::uint64_t i = 0; i < round; ++i) {
      EXPECT_TRUE(succeeded(in[i], expected + i, IBV_WC_RECV));
      EXPECT_EQ(in[i].byte_len, i);
    }
    expect_quiet(1ms);
    expected += round;
    ASSERT_EQ(b.post_recv(expected, b.sge(0, 64)), 0);
    EXPECT_TRUE(succeeded(received(b), expected, IBV_WC_RECV));
    EXPECT_TRUE(succeeded(sent(a), round, IBV_WC_SEND));
    ++expected;
  }
}

// Both sides wait for each other's receives.
TEST_P(Rnr, BothSidesAtOnce) {
  ASSERT_NO_FATAL_FAILURE(connect_with(7));
  for (Side* side : {&a, &b})
    for (std::uint64_t i = 0; i < 10; ++i) ASSERT_EQ(Request(IBV_WR_SEND, i).gather(side->sge(0, i)).post(*side), 0);
  expect_quiet(5ms);
  for (Side* side : {&a, &b})
    for (std::uint64_t i = 0; i < 10; ++i) ASSERT_EQ(side->post_recv(i, side->sge(4096, 64)), 0);
  for (Side* side : {&a, &b}) {
    const auto out = sent(*side, 10);
    const auto in = received(*side, 10);
    for (std::uint64_t i = 0; i < 10; ++i) {
      EXPECT_TRUE(succeeded(out[i], i, IBV_WC_SEND));
      EXPECT_TRUE(succeeded(in[i], i, IBV_WC_RECV));
      EXPECT_EQ(in[i].byte_len, i);
    }
  }
}

}  // namespace
}  // namespace verbena::nic::conformance
