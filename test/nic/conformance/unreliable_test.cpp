// Unreliable connections: in order and whole, but what the responder does not take is lost without a word.
#include "fixture.hpp"

#include <cerrno>
#include <cstring>

namespace verbena::nic::conformance {
namespace {

using test::all_are;
using test::fill;
using test::matches;

class Unreliable : public Bare {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Bare::SetUp());
    SideOptions options;
    options.type = IBV_QPT_UC;
    options.qp_access = IBV_ACCESS_REMOTE_WRITE;
    ASSERT_NO_FATAL_FAILURE(make_pair(options));
    std::memset(b.at(kTarget), std::to_integer<int>(kCanary), 65536);
  }
  /// A SEND that arrives: everything before it has arrived or is lost.
  void settle(std::uint64_t wr_id) {
    ASSERT_EQ(b.post_recv(wr_id, b.sge(0, 64)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, wr_id).gather(a.sge(0, 64)).post(a), 0);
    EXPECT_TRUE(succeeded(received(b), wr_id, IBV_WC_RECV));
    EXPECT_TRUE(succeeded(sent(a), wr_id, IBV_WC_SEND));
  }
};
VERBENA_FOR_EVERY_NIC(Unreliable);

TEST_P(Unreliable, SendsArriveInOrder) {
  for (const std::size_t size : {0UZ, 1UZ, 48UZ, 100UZ, 1024UZ, 4096UZ, 100000UZ}) {
    SCOPED_TRACE(size);
    fill(a.bytes(0, size), size);
    ASSERT_EQ(b.post_recv(1, b.sge(0, size)), 0);
    ASSERT_EQ(b.post_recv(2, b.sge(200000, size)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, 11).gather(a.sge(0, size)).post(a), 0);
    ASSERT_EQ(Request(IBV_WR_SEND_WITH_IMM, 12).gather(a.sge(0, size)).immediate(7).post(a), 0);
    const auto in = received(b, 2);
    EXPECT_TRUE(succeeded(in[0], 1, IBV_WC_RECV));
    EXPECT_TRUE(succeeded(in[1], 2, IBV_WC_RECV));
    EXPECT_EQ(in[0].byte_len, size);
    EXPECT_EQ(in[1].wc_flags & IBV_WC_WITH_IMM, unsigned{IBV_WC_WITH_IMM});
    EXPECT_EQ(in[1].imm_data, 7U);
    EXPECT_TRUE(matches(b.bytes(0, size), size));
    EXPECT_TRUE(matches(b.bytes(200000, size), size));
    const auto out = sent(a, 2);
    EXPECT_TRUE(succeeded(out[0], 11, IBV_WC_SEND));
    EXPECT_TRUE(succeeded(out[1], 12, IBV_WC_SEND));
  }
}

TEST_P(Unreliable, WritesArrive) {
  fill(a.bytes(0, 9000), 5);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 9000)).remote(b, kTarget).post(a), 0);
  ASSERT_EQ(b.post_recv(3, b.sge(0, 0)), 0);
  ASSERT_EQ(
      Request(IBV_WR_RDMA_WRITE_WITH_IMM, 2).gather(a.sge(0, 500)).remote(b, kTarget + 16384).immediate(9).post(a), 0);
  const ibv_wc in = received(b);
  EXPECT_TRUE(succeeded(in, 3, IBV_WC_RECV_RDMA_WITH_IMM));
  EXPECT_EQ(in.imm_data, 9U);
  EXPECT_TRUE(matches(b.bytes(kTarget, 9000), 5));
  EXPECT_TRUE(matches(b.bytes(kTarget + 16384, 500), 5));
  const auto out = sent(a, 2);
  EXPECT_TRUE(succeeded(out[0], 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(succeeded(out[1], 2, IBV_WC_RDMA_WRITE));
}

TEST_P(Unreliable, ASendWithoutAReceiveIsLost) {
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, i * 3000)).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), i, IBV_WC_SEND));
  }
  expect_quiet(20ms);  // On a wire, they are on their way until then.
  ASSERT_NO_FATAL_FAILURE(settle(9));
  expect_quiet(2ms);
  EXPECT_EQ(a.state(), IBV_QPS_RTS);
  EXPECT_EQ(b.state(), IBV_QPS_RTS);
}

// The specification has it lost; the receive stays for the next.
TEST_P(Unreliable, ASendLongerThanItsReceiveIsLost) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE takes the receive for it";
  ASSERT_EQ(b.post_recv(1, b.sge(0, 100)), 0);
  ASSERT_EQ(Request(IBV_WR_SEND, 1).gather(a.sge(0, 101)).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_SEND));
  fill(a.bytes(0, 100), 4);
  ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(0, 100)).post(a), 0);
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
  EXPECT_TRUE(matches(b.bytes(0, 100), 4));
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
}

TEST_P(Unreliable, ARefusedWriteIsLost) {
  const Mr readable = b.reg(kTarget, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  try_import(a, b, readable.get());
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 64)).remote(b.address(kTarget), readable->rkey).post(a), 0);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2)
                .gather(a.sge(0, 64))
                .remote(b.address(0) + b.arena.size(), b.rkey())  // One byte past the end, and on.
                .post(a),
            0);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 3).gather(a.sge(0, 64)).remote(b.address(kTarget), 0x12345678).post(a), 0);
  const auto out = sent(a, 3);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(succeeded(out[i], i + 1, IBV_WC_RDMA_WRITE));
  ASSERT_NO_FATAL_FAILURE(settle(9));
  EXPECT_TRUE(all_are(b.bytes(kTarget, 4096), kCanary));
  EXPECT_EQ(b.state(), IBV_QPS_RTS);
}

TEST_P(Unreliable, ALostWriteTakesItsImmediateAlong) {
  ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE_WITH_IMM, 1).gather(a.sge(0, 64)).remote(b.address(kTarget), 0x12345678).post(a),
            0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  expect_quiet(20ms);
  ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(0, 64)).post(a), 0);
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
}

TEST_P(Unreliable, ReadsAndAtomicsAreRefused) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    SCOPED_TRACE(testing::Message() << "opcode " << opcode);
    Request request(opcode, 1);
    request.gather(a.sge(0, 8));
    if (opcode == IBV_WR_RDMA_READ) {
      request.remote(b, kTarget);
    } else {
      request.atomic(b.address(kTarget), b.rkey(), 1);
    }
    if (is_soft_roce()) {  // Which refuses when it executes.
      ASSERT_EQ(request.post(a), 0);
      EXPECT_NE(sent(a).status, IBV_WC_SUCCESS);
      reconnect();
    } else {
      EXPECT_EQ(request.post(a), EINVAL);
    }
  }
  EXPECT_TRUE(all_are(b.bytes(kTarget, 64), kCanary));
  ASSERT_NO_FATAL_FAILURE(settle(9));
}

TEST_P(Unreliable, NobodyThereIsNoError) {
  ASSERT_OK(to_reset(*b.nic, b.qp.get()));
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, 64)).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), i, IBV_WC_SEND));
  }
  expect_quiet(5ms);
  EXPECT_EQ(a.state(), IBV_QPS_RTS);
}

TEST_P(Unreliable, NobodyThereHidesNoLocalError) {
  ASSERT_OK(to_reset(*b.nic, b.qp.get()));
  ASSERT_EQ(Request(IBV_WR_SEND, 1).gather({a.address(0), 64, ~a.mr->lkey}).post(a), 0);
  EXPECT_TRUE(failed_as(sent(a), 1, IBV_WC_LOC_PROT_ERR));
  EXPECT_EQ(a.state(), IBV_QPS_ERR);
}

TEST_P(Unreliable, FlushesInError) {
  ASSERT_EQ(a.post_recv(1, a.sge(0, 64)), 0);
  ASSERT_OK(to_error(*a.nic, a.qp.get()));
  ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(0, 64)).post(a), 0);
  EXPECT_TRUE(failed(received(a), 1, IBV_WC_WR_FLUSH_ERR));
  EXPECT_TRUE(failed(sent(a), 2, IBV_WC_WR_FLUSH_ERR));
}

// A connection needs fewer attributes, and the others are not known to it.
TEST_P(Unreliable, AttributesAreItsOwn) {
  const Qp fresh = make_qp(a, a.qp_options);
  ASSERT_OK(to_init(*a.nic, fresh.get(), a.options));
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = b.qp->qp_num;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = b.nic->gid();
  constexpr int kMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  EXPECT_STATUS(a.nic->modify_qp(fresh.get(), attr, kMask | IBV_QP_MIN_RNR_TIMER, soon()), Status::kBadArgument);
  EXPECT_STATUS(a.nic->modify_qp(fresh.get(), attr, kMask & ~IBV_QP_RQ_PSN, soon()), Status::kBadArgument);
  ASSERT_OK(a.nic->modify_qp(fresh.get(), attr, kMask, soon()));
  attr.qp_state = IBV_QPS_RTS;
  EXPECT_STATUS(a.nic->modify_qp(fresh.get(), attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT, soon()),
                Status::kBadArgument);
  ASSERT_OK(a.nic->modify_qp(fresh.get(), attr, IBV_QP_STATE | IBV_QP_SQ_PSN, soon()));
}

// With a shared receive queue there is an answer to wait for: lost only when that is no.
TEST_P(Unreliable, SharedReceivesAreTaken) {
  const auto made = b.nic->create_srq(b.pd.get(), 16, 1);
  ASSERT_OK(made);
  const Srq srq(*b.nic, *made);
  QpOptions options = b.qp_options;
  options.srq = srq.get();
  const Qp to = make_qp(b, options);
  const Qp from = make_qp(a, a.qp_options);
  ASSERT_TRUE(to && from);
  ASSERT_NO_FATAL_FAILURE(connect(a, from.get(), b, to.get()));
  for (std::uint64_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, 64)).post(from.get()), 0);
    EXPECT_TRUE(succeeded(sent(a), i, IBV_WC_SEND));
    expect_quiet(10ms);  // Lost.
    ibv_sge sge = b.sge(0, 64);
    ibv_recv_wr wr{};
    wr.wr_id = i;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_srq_recv(srq.get(), &wr, &bad), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, 10 + i).gather(a.sge(0, 64)).post(from.get()), 0);
    EXPECT_TRUE(succeeded(received(b), i, IBV_WC_RECV));
    EXPECT_TRUE(succeeded(sent(a), 10 + i, IBV_WC_SEND));
  }
}

// --- the soft NIC -----------------------------------------------------------------------------------------------

class SoftUnreliable : public Unreliable {};
VERBENA_FOR_TWO_SOFT_NICS(SoftUnreliable);

// A queue pair of the other type is not there: nothing of it is taken.
TEST_P(SoftUnreliable, TypesDoNotMix) {
  QpOptions reliable = b.qp_options;
  reliable.type = IBV_QPT_RC;
  const Qp to = make_qp(b, reliable);
  const Qp from = make_qp(a, a.qp_options);
  ASSERT_TRUE(to && from);
  ASSERT_NO_FATAL_FAILURE(connect(a, from.get(), b, to.get()));
  ibv_sge sge = b.sge(0, 64);
  ibv_recv_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(to.get(), &wr, &bad), 0);
  ASSERT_EQ(Request(IBV_WR_SEND, 1).gather(a.sge(0, 64)).post(from.get()), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_SEND));
  expect_quiet(5ms);
}

// Unlike on a wire, the peer's end is seen.
TEST_P(SoftUnreliable, ThePeersEndIsSeen) {
  b.close();
  nic_b_.reset();
  EXPECT_TRUE(reaches(a, IBV_QPS_ERR));
  EXPECT_EQ(a.nic->qp_failure(a.qp.get()), Status::kPeerLost);
}

}  // namespace
}  // namespace verbena::nic::conformance
