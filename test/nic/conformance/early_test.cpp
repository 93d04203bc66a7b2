// SENDs larger than the ring, within posted receives, to an owner that computes and does not poll.
#include "fixture.hpp"

#include <cstring>

namespace verbena::nic::conformance {
namespace {

using test::fill;
using test::matches;

constexpr std::size_t kMessage = std::size_t{1} << 20;  // The ring has 256 KiB.

class Computing : public Pair {
 protected:
  void SetUp() override {
    if (test::in_chaos()) GTEST_SKIP() << "one side does not poll here, and chaos is counted in polls";
    ASSERT_NO_FATAL_FAILURE(Pair::SetUp());
    fill(a.bytes(0, kMessage), 1);
    fill(a.bytes(kMessage, kMessage), 2);
    b.poll();  // Learns that it is connected.
  }
  void post_messages() {
    for (std::uint64_t i = 0; i < 2; ++i) {
      ASSERT_EQ(b.post_recv(10 + i, b.sge(i * kMessage, kMessage)), 0);
      ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(i * kMessage, kMessage)).post(a), 0);
    }
    ASSERT_EQ(b.post_recv(12, b.sge(2 * kMessage, 64)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND_WITH_IMM, 2).gather(a.sge(0, 64)).immediate(5).post(a), 0);
  }
  void expect_sent() {
    ASSERT_EQ(a.sent.size(), 3U);
    for (std::uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(succeeded(a.sent[i], i, IBV_WC_SEND));
  }
  void expect_received() {
    const auto in = received(b, 3);
    for (std::uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(succeeded(in[i], 10 + i, IBV_WC_RECV));
    EXPECT_EQ(in[0].byte_len, kMessage);
    EXPECT_EQ(in[2].imm_data, 5U);
    EXPECT_TRUE(matches(b.bytes(0, kMessage), 1));
    EXPECT_TRUE(matches(b.bytes(kMessage, kMessage), 2));
    EXPECT_TRUE(matches(b.bytes(2 * kMessage, 64), 1));
  }
};
VERBENA_FOR_EVERY_NIC(Computing);

TEST_P(Computing, SendsComplete) {
  ASSERT_NO_FATAL_FAILURE(post_messages());
  const Deadline deadline = soon();
  while (a.sent.size() < 3 && !deadline.passed()) a.poll();
  ASSERT_NO_FATAL_FAILURE(expect_sent());
  ASSERT_NO_FATAL_FAILURE(expect_received());
}

TEST_P(Computing, SendersSleepOverIt) {
  ASSERT_NO_FATAL_FAILURE(post_messages());
  const Deadline deadline = soon();
  while (a.sent.size() < 3) {
    ASSERT_EQ(ibv_req_notify_cq(a.send_cq.get(), 0), 0);
    a.poll();
    if (a.sent.size() == 3) break;
    ASSERT_OK(a.nic->wait(a.channel.get(), deadline));
    a.poll();
  }
  ASSERT_NO_FATAL_FAILURE(expect_sent());
  ASSERT_NO_FATAL_FAILURE(expect_received());
}

// The owner takes part again in the middle, and its own completions stay in order.
TEST_P(Computing, TheOwnerComesBack) {
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(post_messages());
    const Deadline computing = Deadline::after(std::chrono::microseconds{round * 400});
    while (!computing.passed()) a.poll();
    ASSERT_NO_FATAL_FAILURE(expect_received());
    EXPECT_EQ(sent(a, 3).back().wr_id, 2U);
    std::memset(b.at(0), 0, 2 * kMessage);
  }
}

// The completions that wait for the owner come before the flushes.
TEST_P(Computing, FlushesComeBehind) {
  ASSERT_NO_FATAL_FAILURE(post_messages());
  ASSERT_EQ(b.post_recv(13, b.sge(0, 64)), 0);
  const Deadline deadline = soon();
  while (a.sent.size() < 3 && !deadline.passed()) a.poll();
  ASSERT_NO_FATAL_FAILURE(expect_sent());
  ASSERT_OK(to_error(*b.nic, b.qp.get()));
  const auto in = received(b, 4);
  EXPECT_TRUE(succeeded(in[0], 10, IBV_WC_RECV));
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(in[i].wr_id, 10 + i);
  EXPECT_TRUE(failed(in[3], 13, IBV_WC_WR_FLUSH_ERR));
}

}  // namespace
}  // namespace verbena::nic::conformance
