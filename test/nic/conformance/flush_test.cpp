// Queue pairs that leave RTS, and peers that are not there.
#include "fixture.hpp"

#include <cerrno>

namespace verbena::nic::conformance {
namespace {

class Flush : public Pair {};
VERBENA_FOR_EVERY_NIC(Flush);

TEST_P(Flush, EverythingPostedIsFlushedInOrder) {
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_EQ(a.post_recv(300 + i, a.sge(0, 64)), 0);
  for (std::uint64_t i = 0; i < 30; ++i) {  // The first finds no receive; the rest wait behind it.
    const bool is_send = i % 3 == 0;
    Request request(is_send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, 100 + i);
    request.gather(a.sge(0, i * 100)).flags(i % 2 == 0 ? 0 : IBV_SEND_SIGNALED);
    if (!is_send) request.remote(b, kTarget);
    ASSERT_EQ(request.post(a), 0);
  }
  expect_quiet(2ms);
  ASSERT_OK(to_error(*a.nic, a.qp.get()));
  EXPECT_EQ(a.state(), IBV_QPS_ERR);
  const auto out = sent(a, 30);
  for (std::uint64_t i = 0; i < 30; ++i) {
    EXPECT_TRUE(failed(out[i], 100 + i, IBV_WC_WR_FLUSH_ERR));
    EXPECT_EQ(out[i].qp_num, a.qp->qp_num);
  }
  const auto in = received(a, 20);
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(failed(in[i], 300 + i, IBV_WC_WR_FLUSH_ERR));
    EXPECT_EQ(in[i].qp_num, a.qp->qp_num);
  }
  expect_quiet(2ms);
}

TEST_P(Flush, PostingInErrorFlushes) {
  ASSERT_OK(to_error(*a.nic, a.qp.get()));
  for (std::uint64_t i = 0; i < 200; ++i) {  // More than the queues hold at once.
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, i).gather(a.sge(0, 8)).remote(b, kTarget).post(a), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, 8)).flags(0).post(a), 0);
    const auto out = sent(a, 2);
    EXPECT_TRUE(failed(out[0], i, IBV_WC_WR_FLUSH_ERR));
    EXPECT_TRUE(failed(out[1], i, IBV_WC_WR_FLUSH_ERR));
    if (is_soft_roce()) continue;  // Its kernel is not told of a receive, and in error it does not look.
    ASSERT_EQ(a.post_recv(i, a.sge(0, 8)), 0);
    EXPECT_TRUE(failed(received(a), i, IBV_WC_WR_FLUSH_ERR));
  }
}

// Going to error with a list: flushed whole, and the queue's limit holds there too.
TEST_P(Flush, QueueLimitInError) {
  ASSERT_OK(to_error(*a.nic, a.qp.get()));
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < a.qp_options.max_send_wr; ++i)
    requests.emplace_back(IBV_WR_SEND, i).gather(a.sge(0, 8));
  std::size_t bad = 0;
  ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
  const auto out = sent(a, requests.size());
  for (std::uint64_t i = 0; i < out.size(); ++i) EXPECT_TRUE(failed(out[i], i, IBV_WC_WR_FLUSH_ERR));
}

// RESET forgets what was posted and what was completed of it; the QP then works as a new one.
TEST_P(Flush, ResetClears) {
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    for (std::uint64_t i = 0; i < 10; ++i) {
      ASSERT_EQ(a.post_recv(300 + i, a.sge(0, 64)), 0);
      ASSERT_EQ(Request(IBV_WR_SEND, 100 + i).gather(a.sge(0, 64)).post(a), 0);
    }
    if (round % 2 == 0) {
      ASSERT_OK(to_error(*a.nic, a.qp.get()));
    }
    ASSERT_NO_FATAL_FAILURE(reconnect());
    EXPECT_EQ(a.state(), IBV_QPS_RTS);
    EXPECT_EQ(a.nic->qp_failure(a.qp.get()), Status::kOk);
    expect_quiet(1ms);
    // The whole depth is free, and only what is posted now is received.
    for (std::uint64_t i = 0; i < b.qp_options.max_recv_wr; ++i) ASSERT_EQ(b.post_recv(i, b.sge(i * 64, 64)), 0);
    for (std::uint64_t i = 0; i < a.qp_options.max_send_wr; ++i)
      ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, i)).post(a), 0);
    const auto out = sent(a, a.qp_options.max_send_wr);
    const auto in = received(b, a.qp_options.max_send_wr);
    for (std::uint64_t i = 0; i < out.size(); ++i) {
      EXPECT_TRUE(succeeded(out[i], i, IBV_WC_SEND));
      EXPECT_TRUE(succeeded(in[i], i, IBV_WC_RECV));
      EXPECT_EQ(in[i].byte_len, i);
    }
  }
}

// Receives flush also in a QP that never got beyond INIT.
TEST_P(Flush, FromInit) {
  ASSERT_OK(to_reset(*a.nic, a.qp.get()));
  ASSERT_OK(to_init(*a.nic, a.qp.get(), a.options));
  ASSERT_EQ(a.post_recv(1, a.sge(0, 64)), 0);
  ASSERT_OK(to_error(*a.nic, a.qp.get()));
  EXPECT_TRUE(failed(received(a), 1, IBV_WC_WR_FLUSH_ERR));
}

// Completions from before the error stay in the queue, before those of the flush.
TEST_P(Flush, EarlierCompletionsStay) {
  for (std::uint64_t i = 0; i < 5; ++i)
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, i).gather(a.sge(0, 8)).remote(b, kTarget).post(a), 0);
  const auto before = sent(a, 1);
  EXPECT_TRUE(succeeded(before[0], 0, IBV_WC_RDMA_WRITE));
  const Deadline deadline = soon();
  while (a.sent.size() < 4 && !deadline.passed()) a.poll();
  ASSERT_EQ(Request(IBV_WR_SEND, 5).gather(a.sge(0, 8)).post(a), 0);
  ASSERT_OK(to_error(*a.nic, a.qp.get()));
  const auto out = sent(a, 5);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(succeeded(out[i], i + 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(failed(out[4], 5, IBV_WC_WR_FLUSH_ERR));
}

// --- peers that do not answer -----------------------------------------------------------------------------------

class Peers : public Bare {
 protected:
  /// Everything posted on a fails: the first with `status`, the rest flushed.
  void expect_no_answer() {
    ASSERT_EQ(a.post_recv(300, a.sge(0, 64)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, 100).gather(a.sge(0, 8)).post(a), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, 101).gather(a.sge(0, 8)).flags(0).post(a), 0);
    const auto out = sent(a, 2);
    EXPECT_TRUE(failed(out[0], 100, IBV_WC_RETRY_EXC_ERR));
    EXPECT_TRUE(failed(out[1], 101, IBV_WC_WR_FLUSH_ERR));
    EXPECT_TRUE(failed(received(a), 300, IBV_WC_WR_FLUSH_ERR));
    EXPECT_EQ(a.state(), IBV_QPS_ERR);
    EXPECT_NE(a.nic->qp_failure(a.qp.get()), Status::kOk);
  }
};
VERBENA_FOR_EVERY_NIC(Peers);

TEST_P(Peers, NotReady) {
  ASSERT_NO_FATAL_FAILURE(make(a, {}));
  ASSERT_NO_FATAL_FAILURE(make(b, {}));
  ASSERT_OK(to_init(*a.nic, a.qp.get(), a.options));
  ASSERT_OK(to_init(*b.nic, b.qp.get(), b.options));
  ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
  ASSERT_OK(to_rtr(*a.nic, a.qp.get(), b.nic->address_of(b.qp.get()), GetParam().sgid_index, a.options));
  ASSERT_OK(to_rts(*a.nic, a.qp.get(), a.options));
  expect_no_answer();
}

// A peer that becomes ready within the retries is answered to.
TEST_P(Peers, ReadyLate) {
  const SideOptions patient{.timeout = 16, .retry_count = 7};
  ASSERT_NO_FATAL_FAILURE(make(a, patient));
  ASSERT_NO_FATAL_FAILURE(make(b, patient));
  const auto sgid = GetParam().sgid_index;
  ASSERT_OK(to_init(*a.nic, a.qp.get(), a.options));
  ASSERT_OK(to_init(*b.nic, b.qp.get(), b.options));
  ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
  ASSERT_OK(to_rtr(*a.nic, a.qp.get(), b.nic->address_of(b.qp.get()), sgid, a.options));
  ASSERT_OK(to_rts(*a.nic, a.qp.get(), a.options));
  test::fill(a.bytes(0, 64), 1);
  ASSERT_EQ(Request(IBV_WR_SEND, 100).gather(a.sge(0, 64)).post(a), 0);
  expect_quiet(10ms);
  ASSERT_OK(to_rtr(*b.nic, b.qp.get(), a.nic->address_of(a.qp.get()), sgid, b.options));
  EXPECT_TRUE(succeeded(sent(a), 100, IBV_WC_SEND));
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
  EXPECT_TRUE(test::matches(b.bytes(0, 64), 1));
}

TEST_P(Peers, QpDestroyed) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  b.qp.reset();
  expect_no_answer();
}

TEST_P(Peers, QpInError) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
  ASSERT_OK(to_error(*b.nic, b.qp.get()));
  EXPECT_TRUE(failed(received(b), 1, IBV_WC_WR_FLUSH_ERR));
  expect_no_answer();
}

TEST_P(Peers, QpReset) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  ASSERT_OK(to_reset(*b.nic, b.qp.get()));
  expect_no_answer();
}

TEST_P(Peers, OneSidedToAPeerInError) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    ASSERT_OK(to_error(*b.nic, b.qp.get()));
    b.word(kTarget) = 17;
    a.word(0) = 18;
    ASSERT_EQ(Request(opcode, 100).gather(a.sge(0, 8)).remote(b, kTarget).post(a), 0);
    EXPECT_TRUE(failed(sent(a), 100, IBV_WC_RETRY_EXC_ERR));
    EXPECT_EQ(b.word(kTarget), 17U);
    EXPECT_EQ(a.word(0), 18U);
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
}

// A requester finds its own mistakes before it sends, whoever listens.
TEST_P(Peers, LocalErrorsComeFirst) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    SCOPED_TRACE(testing::Message() << "opcode " << opcode);
    // Soft-RoCE looks at where a READ's bytes go when they come.
    if (is_soft_roce() && opcode == IBV_WR_RDMA_READ) continue;
    ASSERT_OK(to_error(*b.nic, b.qp.get()));
    Request request(opcode, 100);
    request.gather({a.address(0), 8, ~a.mr->lkey});
    if (opcode != IBV_WR_SEND) request.remote(b, kTarget);
    ASSERT_EQ(request.post(a), 0);
    EXPECT_TRUE(failed_as(sent(a), 100, IBV_WC_LOC_PROT_ERR));
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
}

// The peer goes while a SEND waits for its receive.
TEST_P(Peers, QpDestroyedDuringRnr) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  ASSERT_EQ(Request(IBV_WR_SEND, 100).gather(a.sge(0, 8)).post(a), 0);
  expect_quiet(2ms);
  b.qp.reset();
  EXPECT_TRUE(failed(sent(a), 100, IBV_WC_RETRY_EXC_ERR));
  EXPECT_EQ(a.state(), IBV_QPS_ERR);
}

// A new QP of the peer gets nothing that was meant for the old one.
TEST_P(Peers, ReplacedQpGetsNothing) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  const std::uint32_t old_number = b.qp->qp_num;
  b.qp.reset();
  b.qp = make_qp(b, b.qp_options);
  ASSERT_TRUE(b.qp);
  const Qp third = make_qp(a, a.qp_options);
  ASSERT_TRUE(third);
  ASSERT_NO_FATAL_FAILURE(connect(a, third.get(), b, b.qp.get()));
  ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
  // On a wire, a number that was given out again may take packets of before.
  if (b.qp->qp_num != old_number || a.nic->kind() == Kind::kSoft) {
    expect_no_answer();
    expect_quiet(2ms);
  }
  ASSERT_EQ(Request(IBV_WR_SEND, 5).gather(a.sge(0, 8)).post(third.get()), 0);
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
  EXPECT_TRUE(succeeded(sent(a), 5, IBV_WC_SEND));
}

class PeerNic : public Peers {
 protected:
  /// b, its process as it were, goes.
  void lose_b() {
    b.close();
    nic_b_.reset();
  }
};
VERBENA_FOR_TWO_NICS(PeerNic);

TEST_P(PeerNic, Closed) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  lose_b();
  expect_no_answer();
}

TEST_P(PeerNic, ClosedDuringRnr) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  ASSERT_EQ(a.post_recv(300, a.sge(0, 64)), 0);
  ASSERT_EQ(Request(IBV_WR_SEND, 100).gather(a.sge(0, 8)).post(a), 0);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 101).gather(a.sge(0, 8)).remote(0, 1).post(a), 0);
  lose_b();
  const auto out = sent(a, 2);
  EXPECT_TRUE(failed(out[0], 100, IBV_WC_RETRY_EXC_ERR));
  EXPECT_TRUE(failed(out[1], 101, IBV_WC_WR_FLUSH_ERR));
  EXPECT_TRUE(failed(received(a), 300, IBV_WC_WR_FLUSH_ERR));
}

/// What the soft NIC adds: it tells of a lost peer although nothing is sent.
class SoftPeerNic : public PeerNic {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(PeerNic::SetUp());
    // The retries alone would take minutes.
    ASSERT_NO_FATAL_FAILURE(make_pair({.timeout = 22, .retry_count = 7}));
  }
};
VERBENA_FOR_TWO_SOFT_NICS(SoftPeerNic);

TEST_P(SoftPeerNic, ReceivesOfAnIdleSideAreFlushed) {
  for (std::uint64_t i = 0; i < 5; ++i) ASSERT_EQ(a.post_recv(i, a.sge(0, 64)), 0);
  lose_b();
  const auto in = received(a, 5);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(failed(in[i], i, IBV_WC_WR_FLUSH_ERR));
  EXPECT_EQ(a.state(), IBV_QPS_ERR);
  EXPECT_EQ(a.nic->qp_failure(a.qp.get()), Status::kPeerLost);
}

TEST_P(SoftPeerNic, SleepersAreWoken) {
  ASSERT_EQ(a.post_recv(1, a.sge(0, 64)), 0);
  ASSERT_EQ(ibv_req_notify_cq(a.recv_cq.get(), 0), 0);
  a.poll();
  ASSERT_TRUE(a.received.empty());
  lose_b();
  const Deadline deadline = soon();
  while (a.received.empty() && !deadline.passed()) {
    const auto event = a.nic->wait(a.channel.get(), deadline);
    ASSERT_OK(event);
    ASSERT_EQ(ibv_req_notify_cq(a.recv_cq.get(), 0), 0);
    a.poll();
  }
  EXPECT_TRUE(failed(received(a), 1, IBV_WC_WR_FLUSH_ERR));
  EXPECT_EQ(a.nic->qp_failure(a.qp.get()), Status::kPeerLost);
}

TEST_P(SoftPeerNic, SendsFailAtOnce) {
  ASSERT_EQ(Request(IBV_WR_SEND, 100).gather(a.sge(0, 8)).post(a), 0);
  lose_b();
  EXPECT_TRUE(failed(sent(a), 100, IBV_WC_RETRY_EXC_ERR));
  EXPECT_EQ(a.nic->qp_failure(a.qp.get()), Status::kPeerLost);
}

TEST_P(SoftPeerNic, ConnectingToAClosedNic) {
  const QpAddress gone = b.nic->address_of(b.qp.get());
  lose_b();
  const Qp qp = make_qp(a, a.qp_options);
  ASSERT_TRUE(qp);
  ASSERT_OK(to_init(*a.nic, qp.get(), a.options));
  EXPECT_STATUS(to_rtr(*a.nic, qp.get(), gone, 0, a.options), Status::kPeerLost);
}

}  // namespace
}  // namespace verbena::nic::conformance
