// Polls of the soft NIC that give a short message instead of a completion: which messages, and that the receives stay
// as if the queues had taken it and the owner had posted again.
#include "fixture.hpp"

#include <chaos.hpp>

#include <array>
#include <optional>
#include <random>
#include <set>

namespace verbena::nic::conformance {
namespace {

using test::fill;

class Take : public Pair {
 protected:
  /// What a poll gives: a message, or a completion.
  struct Given {
    std::vector<std::byte> message;
    std::optional<ibv_wc> completion;
  };
  Given poll_until_given() {
    const Deadline deadline = soon();
    while (!deadline.passed()) {
      a.poll();
      Given given;
      ibv_wc wc{};
      std::array<std::byte, Direct::kMostTaken> message{};
      std::uint32_t bytes = 77;
      const int count = b.nic->direct()->poll(b.recv_cq.get(), 1, &wc, b.qp.get(), message.data(), bytes);
      EXPECT_GE(count, 0);
      EXPECT_LE(bytes, message.size());
      EXPECT_TRUE(count == 0 || bytes == 0) << "both";
      if (bytes != 0) given.message.assign(message.begin(), message.begin() + bytes);
      if (count == 1) given.completion = wc;
      if (bytes != 0 || count == 1) return given;
    }
    ADD_FAILURE() << "nothing came";
    return {};
  }
  /// Sends the first `length` bytes of a's memory.
  void send(std::size_t length, ibv_wr_opcode opcode = IBV_WR_SEND, unsigned flags = IBV_SEND_SIGNALED) {
    ASSERT_EQ(Request(opcode, 1).gather(a.sge(0, length)).flags(flags).post(a), 0);
    // Only this side polls: a poll of the other would be an ordinary one.
    const Deadline deadline = soon();
    while (a.sent.empty() && !deadline.passed()) a.poll();
    ASSERT_FALSE(a.sent.empty());
    EXPECT_EQ(a.sent.front().status, IBV_WC_SUCCESS);
    a.sent.clear();
  }
  void expect_completion(std::uint64_t wr_id, std::uint32_t length, ibv_wc_status status = IBV_WC_SUCCESS) {
    const Given given = poll_until_given();
    ASSERT_TRUE(given.completion) << "it was taken";
    EXPECT_EQ(given.completion->wr_id, wr_id);
    EXPECT_EQ(given.completion->status, status);
    if (status == IBV_WC_SUCCESS) {
      EXPECT_EQ(given.completion->byte_len, length);
    }
  }
  /// Posts a receive of `length` bytes at kTarget + wr_id pages.
  void post(std::uint64_t wr_id, std::size_t length = 4096) {
    ASSERT_EQ(b.post_recv(wr_id, b.sge(place(wr_id), length)), 0);
  }
  static std::size_t place(std::uint64_t wr_id) { return kTarget + wr_id * 4096; }
};
VERBENA_FOR_THE_SOFT_NIC(Take);

TEST_P(Take, OneShortMessage) {
  if (test::in_chaos()) GTEST_SKIP() << "under chaos all messages go through the queues";
  for (std::uint64_t i = 0; i < 4; ++i) post(i);
  fill(a.bytes(0, 4096), 5);
  for (const std::size_t length : {8U, 1U, 64U, 112U}) {
    send(length);
    const Given given = poll_until_given();
    ASSERT_FALSE(given.completion);
    EXPECT_TRUE(std::ranges::equal(given.message, a.bytes(0, length)));
  }
  // Every receive was the oldest once, and is there again.
  for (std::uint64_t i = 0; i < 4; ++i) {
    send(2000);
    expect_completion(i, 2000);
    EXPECT_TRUE(std::ranges::equal(b.bytes(place(i), 2000), a.bytes(0, 2000)));
  }
}

TEST_P(Take, LeavesOthersToTheQueue) {
  std::uint64_t next = 0;
  const auto expect_queued = [&](std::uint32_t length) {
    expect_completion(next, length);
    post(next++);
  };
  for (std::uint64_t i = 0; i < 10; ++i) post(i);
  send(0);
  expect_queued(0);
  send(113);
  expect_queued(113);
  send(8, IBV_WR_SEND_WITH_IMM);
  expect_queued(8);
  send(8, IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
  expect_queued(8);
  // Of several that wait, none: the queues are quicker then.
  send(8);
  send(9);
  expect_queued(8);
  // A poll has put this one into the queue with the first.
  expect_queued(9);
}

TEST_P(Take, NothingWithoutAReceiveOfThatLength) {
  post(0, 32);
  ASSERT_EQ(Request(IBV_WR_SEND, 1).gather(a.sge(0, 64)).post(a), 0);
  const Given given = poll_until_given();
  ASSERT_TRUE(given.completion);
  EXPECT_EQ(given.completion->wr_id, 0U);
  EXPECT_EQ(given.completion->status, IBV_WC_LOC_LEN_ERR);
}

TEST_P(Take, NothingIntoMemoryThatIsNoLongerRegistered) {
  Mr region = b.reg(kTarget, 4096, kAllAccess);
  const ibv_sge sge{b.address(kTarget), 4096, region->lkey};
  ASSERT_EQ(b.post_recv(7, sge), 0);
  send(8);
  region.reset();
  const Given given = poll_until_given();
  ASSERT_TRUE(given.completion);
  EXPECT_EQ(given.completion->wr_id, 7U);
  EXPECT_EQ(given.completion->status, IBV_WC_LOC_PROT_ERR);
}

// Random messages against a model of the receive queue, whose owner posts each receive again when it completes.
TEST_P(Take, KeepsTheOrderOfReceives) {
  constexpr std::uint64_t kReceives = 7;
  std::deque<std::uint64_t> queue;
  for (std::uint64_t i = 0; i < kReceives; ++i) {
    post(i);
    queue.push_back(i);
  }
  std::mt19937 random(3);
  std::uint64_t taken = 0;
  for (std::uint64_t i = 0; i < rounds(600); ++i) {
    const std::size_t length = random() % 3 == 0 ? 100 + random() % 3000 : 1 + random() % 112;
    fill(a.bytes(0, length), i);
    send(length);
    const Given given = poll_until_given();
    const std::uint64_t oldest = queue.front();
    queue.pop_front();
    queue.push_back(oldest);
    if (!given.completion) {
      ++taken;
      ASSERT_TRUE(std::ranges::equal(given.message, a.bytes(0, length)));
      continue;
    }
    ASSERT_EQ(given.completion->wr_id, oldest);
    ASSERT_EQ(given.completion->byte_len, length);
    ASSERT_TRUE(std::ranges::equal(b.bytes(place(oldest), length), a.bytes(0, length)));
    post(oldest);
  }
  EXPECT_EQ(taken != 0, !test::in_chaos());
  // Each receive is there once.
  ASSERT_OK(to_error(*b.nic, b.qp.get()));
  for (const ibv_wc& wc : received(b, kReceives)) {
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, queue.front());
    queue.pop_front();
  }
  expect_quiet();
}

}  // namespace
}  // namespace verbena::nic::conformance
