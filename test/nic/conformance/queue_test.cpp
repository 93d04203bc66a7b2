// Limits of queues, requests that ibv_post_* refuses, and QP states.
#include "fixture.hpp"

#include <cerrno>

namespace verbena::nic::conformance {
namespace {

/// Libraries differ between the two for a request that does not fit the queue's layout.
testing::AssertionResult is_refusal(int refused) {
  if (refused == EINVAL || refused == ENOMEM || refused == EOPNOTSUPP) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "ibv_post_* returned " << refused;
}

class Queues : public Bare {};
VERBENA_FOR_EVERY_NIC(Queues);

TEST_P(Queues, SendQueueFull) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: a queue takes more than ibv_create_qp said that it has";
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = 8}));
  const std::uint32_t depth = a.qp_options.max_send_wr;
  ASSERT_GE(depth, 8U);
  const auto write = [&](std::uint64_t wr_id, unsigned flags) {
    return Request(IBV_WR_RDMA_WRITE, wr_id).gather(a.sge(0, 8)).remote(b, kTarget).flags(flags).post(a);
  };
  for (int round = 0; round < 5; ++round) {
    SCOPED_TRACE(round);
    for (std::uint64_t i = 0; i < depth; ++i) ASSERT_EQ(write(i, i + 1 == depth ? IBV_SEND_SIGNALED : 0), 0);
    EXPECT_EQ(write(1000, IBV_SEND_SIGNALED), ENOMEM);
    // Done or not: the slots come back with the completion only.
    const Deadline deadline = Deadline::after(5ms);
    while (!deadline.passed()) b.poll();
    EXPECT_EQ(write(1001, IBV_SEND_SIGNALED), ENOMEM);
    EXPECT_TRUE(succeeded(sent(a), depth - 1, IBV_WC_RDMA_WRITE));
  }
  expect_quiet(2ms);
}

TEST_P(Queues, SlotsComeBackUpToTheSignaledRequest) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: a queue takes more than ibv_create_qp said that it has";
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = 16}));
  const std::uint32_t depth = a.qp_options.max_send_wr;
  const auto write = [&](std::uint64_t wr_id, unsigned flags) {
    return Request(IBV_WR_RDMA_WRITE, wr_id).gather(a.sge(0, 8)).remote(b, kTarget).flags(flags).post(a);
  };
  for (std::uint64_t i = 0; i < depth; ++i) ASSERT_EQ(write(i, i == 4 ? IBV_SEND_SIGNALED : 0), 0);
  EXPECT_EQ(write(1000, 0), ENOMEM);
  EXPECT_TRUE(succeeded(sent(a), 4, IBV_WC_RDMA_WRITE));
  for (std::uint64_t i = 0; i < 5; ++i) ASSERT_EQ(write(i, i == 4 ? IBV_SEND_SIGNALED : 0), 0);
  EXPECT_EQ(write(1001, 0), ENOMEM);
  EXPECT_TRUE(succeeded(sent(a), 4, IBV_WC_RDMA_WRITE));
  for (std::uint64_t i = 0; i < depth; ++i)  // All are back.
    ASSERT_EQ(write(i, i + 1 == depth ? IBV_SEND_SIGNALED : 0), 0);
  EXPECT_TRUE(succeeded(sent(a), depth - 1, IBV_WC_RDMA_WRITE));
}

// A list is posted up to the one that does not fit, and that one is named.
TEST_P(Queues, ListLongerThanTheSendQueue) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: a queue takes more than ibv_create_qp said that it has";
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = 8}));
  const std::uint32_t depth = a.qp_options.max_send_wr;
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < depth + 3; ++i)
    requests.emplace_back(IBV_WR_RDMA_WRITE, i).gather(a.sge(0, 8)).remote(b, kTarget);
  std::size_t bad = 0;
  EXPECT_EQ(post_list(a.qp.get(), requests, bad), ENOMEM);
  EXPECT_EQ(bad, depth);
  const auto out = sent(a, depth);
  for (std::uint64_t i = 0; i < depth; ++i) EXPECT_TRUE(succeeded(out[i], i, IBV_WC_RDMA_WRITE));
  expect_quiet(2ms);
}

TEST_P(Queues, ReceiveQueueFull) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: a queue takes more than ibv_create_qp said that it has";
  ASSERT_NO_FATAL_FAILURE(make_pair({.recv_depth = 8}));
  const std::uint32_t depth = b.qp_options.max_recv_wr;
  ASSERT_GE(depth, 8U);
  for (std::uint64_t i = 0; i < depth; ++i) ASSERT_EQ(b.post_recv(i, b.sge(0, 64)), 0);
  EXPECT_EQ(b.post_recv(1000, b.sge(0, 64)), ENOMEM);
  for (std::uint64_t i = 0; i < 3 * depth; ++i) {
    ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, 8)).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), i, IBV_WC_SEND));
    EXPECT_TRUE(succeeded(received(b), i, IBV_WC_RECV));
    ASSERT_EQ(b.post_recv(i + depth, b.sge(0, 64)), 0);
    EXPECT_EQ(b.post_recv(1000, b.sge(0, 64)), ENOMEM);
  }
}

TEST_P(Queues, ListLongerThanTheReceiveQueue) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: a queue takes more than ibv_create_qp said that it has";
  ASSERT_NO_FATAL_FAILURE(make_pair({.recv_depth = 8}));
  const std::uint32_t depth = b.qp_options.max_recv_wr;
  ibv_sge sge = b.sge(0, 64);
  std::vector<ibv_recv_wr> list(depth + 2);
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i] = {};
    list[i].wr_id = i;
    list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
    list[i].sg_list = &sge;
    list[i].num_sge = 1;
  }
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(b.qp.get(), list.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &list[depth]);
  for (std::uint64_t i = 0; i < depth; ++i) {
    ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, 8)).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), i, IBV_WC_SEND));
    EXPECT_TRUE(succeeded(received(b), i, IBV_WC_RECV));
  }
}

// Every refusal leaves the QP as it was, and requests before it in the list are done.
TEST_P(Queues, RequestsThatCannotBePosted) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: its library posts opcodes that the queue pair's type has not";
  ASSERT_NO_FATAL_FAILURE(make_pair({.max_sge = 2, .max_inline = 32}));
  const auto max_sge = a.qp_options.max_send_sge;
  const auto max_inline = a.qp_options.max_inline;
  const auto refuse = [&](const char* what, const Request& request) {
    SCOPED_TRACE(what);
    std::vector<Request> list;
    list.emplace_back(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(b, kTarget);
    list.push_back(request);
    list.emplace_back(IBV_WR_RDMA_WRITE, 3).gather(a.sge(0, 8)).remote(b, kTarget);
    std::size_t bad = 0;
    EXPECT_TRUE(is_refusal(post_list(a.qp.get(), list, bad)));
    EXPECT_EQ(bad, 1U);
    EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
    expect_quiet(1ms);
    EXPECT_EQ(a.state(), IBV_QPS_RTS);
  };
  refuse("an opcode of datagrams", Request(IBV_WR_TSO, 2).gather(a.sge(0, 8)));
  Request many(IBV_WR_RDMA_WRITE, 2);
  many.remote(b, kTarget);
  for (std::uint32_t i = 0; i <= max_sge; ++i) many.gather(a.sge(i * 8, 8));
  refuse("too many segments", many);
  refuse("too much inline data", Request(IBV_WR_RDMA_WRITE, 2)
                                     .gather(a.sge(0, max_inline))
                                     .gather(a.sge(0, 1))
                                     .remote(b, kTarget)
                                     .flags(IBV_SEND_SIGNALED | IBV_SEND_INLINE));

  std::vector<ibv_sge> sges(b.qp_options.max_recv_sge + 1, b.sge(0, 8));
  ibv_recv_wr wr{};
  wr.sg_list = sges.data();
  wr.num_sge = static_cast<int>(sges.size());
  ibv_recv_wr* bad = nullptr;
  EXPECT_TRUE(is_refusal(ibv_post_recv(b.qp.get(), &wr, &bad)));
  EXPECT_EQ(bad, &wr);
}

TEST_P(Queues, PostingInStatesThatForbidIt) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: the refused request is not named (bad_wr is not set)";
  ASSERT_NO_FATAL_FAILURE(make(a, {}));
  ASSERT_NO_FATAL_FAILURE(make(b, {}));
  const auto send = [&] { return Request(IBV_WR_SEND, 1).gather(a.sge(0, 8)).post(a); };
  ASSERT_EQ(a.state(), IBV_QPS_RESET);
  EXPECT_EQ(send(), EINVAL);
  EXPECT_EQ(a.post_recv(1, a.sge(0, 8)), EINVAL);
  ASSERT_OK(to_init(*a.nic, a.qp.get(), a.options));
  ASSERT_EQ(a.state(), IBV_QPS_INIT);
  EXPECT_EQ(send(), EINVAL);
  EXPECT_EQ(a.post_recv(2, a.sge(4096, 64)), 0);  // Receives may be posted from here on.
  ASSERT_OK(to_init(*b.nic, b.qp.get(), b.options));
  const auto sgid = GetParam().sgid_index;
  ASSERT_OK(to_rtr(*a.nic, a.qp.get(), b.nic->address_of(b.qp.get()), sgid, a.options));
  ASSERT_EQ(a.state(), IBV_QPS_RTR);
  EXPECT_EQ(send(), EINVAL);
  EXPECT_EQ(a.post_recv(3, a.sge(8192, 64)), 0);
  ASSERT_OK(to_rtr(*b.nic, b.qp.get(), a.nic->address_of(a.qp.get()), sgid, b.options));
  ASSERT_OK(to_rts(*b.nic, b.qp.get(), b.options));
  // A QP in RTR receives, into what was posted in INIT too.
  for (std::uint64_t i = 0; i < 2; ++i) {
    test::fill(b.bytes(0, 64), i);
    ASSERT_EQ(Request(IBV_WR_SEND, i).gather(b.sge(0, 64)).post(b), 0);
    EXPECT_TRUE(succeeded(received(a), 2 + i, IBV_WC_RECV));
    EXPECT_TRUE(test::matches(a.bytes(4096 * (i + 1), 64), i));
    EXPECT_TRUE(succeeded(sent(b), i, IBV_WC_SEND));
  }
  ASSERT_OK(to_rts(*a.nic, a.qp.get(), a.options));
  ASSERT_EQ(b.post_recv(4, b.sge(0, 64)), 0);
  EXPECT_EQ(send(), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_SEND));
  EXPECT_TRUE(succeeded(received(b), 4, IBV_WC_RECV));
}

TEST_P(Queues, StatesInTheWrongOrder) {
  ASSERT_NO_FATAL_FAILURE(make(a, {}));
  ASSERT_NO_FATAL_FAILURE(make(b, {}));
  Nic& nic = *a.nic;
  ibv_qp* qp = a.qp.get();
  const QpAddress peer = b.nic->address_of(b.qp.get());
  const auto sgid = GetParam().sgid_index;
  EXPECT_STATUS(to_rtr(nic, qp, peer, sgid, a.options), Status::kBadArgument);
  EXPECT_STATUS(to_rts(nic, qp, a.options), Status::kBadArgument);
  EXPECT_EQ(a.state(), IBV_QPS_RESET);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  // Attributes that the transition needs are missing; then one that it does not take.
  EXPECT_STATUS(nic.modify_qp(qp, attr, IBV_QP_STATE | IBV_QP_PORT, soon()), Status::kBadArgument);
  EXPECT_STATUS(
      nic.modify_qp(qp, attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_RETRY_CNT,
                    soon()),
      Status::kBadArgument);
  EXPECT_EQ(a.state(), IBV_QPS_RESET);
  ASSERT_OK(to_init(nic, qp, a.options));
  EXPECT_STATUS(to_rts(nic, qp, a.options), Status::kBadArgument);
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  EXPECT_STATUS(nic.modify_qp(qp, attr, IBV_QP_STATE, soon()), Status::kBadArgument);
  EXPECT_EQ(a.state(), IBV_QPS_INIT);
  ASSERT_OK(to_init(nic, qp, a.options));  // INIT to INIT is allowed.
  ASSERT_OK(to_init(*b.nic, b.qp.get(), b.options));
  ASSERT_OK(to_rtr(nic, qp, peer, sgid, a.options));
  EXPECT_STATUS(to_init(nic, qp, a.options), Status::kBadArgument);
  EXPECT_EQ(a.state(), IBV_QPS_RTR);
  ASSERT_OK(to_error(nic, qp));
  EXPECT_STATUS(to_rts(nic, qp, a.options), Status::kBadArgument);
  ASSERT_OK(to_reset(nic, qp));
  EXPECT_EQ(a.state(), IBV_QPS_RESET);
}

TEST_P(Queues, ObjectsThatCannotBeMade) {
  ASSERT_NO_FATAL_FAILURE(make(a, {}));
  Nic& nic = *a.nic;
  const auto before = nic.objects();
  const auto refused = [&](auto change) {
    QpOptions options = a.qp_options;
    change(options);
    const auto qp = nic.create_qp(a.pd.get(), options);
    if (qp) (void)nic.destroy_qp(*qp);
    return !qp.has_value();
  };
  const Limits& limits = nic.limits();
  EXPECT_TRUE(refused([&](QpOptions& options) { options.max_send_wr = limits.max_qp_wr + 1; }));
  EXPECT_TRUE(refused([&](QpOptions& options) { options.max_recv_wr = limits.max_qp_wr + 1; }));
  EXPECT_TRUE(refused([&](QpOptions& options) { options.max_send_sge = limits.max_sge + 1; }));
  EXPECT_TRUE(refused([&](QpOptions& options) { options.max_recv_sge = limits.max_sge + 1; }));
  EXPECT_TRUE(refused([](QpOptions& options) { options.max_inline = 1U << 30; }));
  EXPECT_TRUE(refused([](QpOptions& options) { options.send_cq = nullptr; }));
  EXPECT_TRUE(refused([](QpOptions& options) { options.recv_cq = nullptr; }));
  EXPECT_FALSE(nic.create_cq(0, nullptr).has_value());
  EXPECT_FALSE(nic.create_cq(limits.max_cqe + 1, nullptr).has_value());
  const auto reg = [&](int access) { return nic.reg_mr(a.pd.get(), a.at(0), 4096, a.address(0), access).has_value(); };
  // Remote writers need the right to write locally (ibv_reg_mr(3)).
  EXPECT_FALSE(reg(IBV_ACCESS_REMOTE_WRITE));
  EXPECT_FALSE(reg(IBV_ACCESS_REMOTE_ATOMIC));
  EXPECT_EQ(nic.objects(), before);
}

TEST_P(Queues, LimitsAreThere) {
  const Limits& limits = nic_a_->limits();
  EXPECT_GE(limits.max_qp, 64U);
  EXPECT_GE(limits.max_cq, 64U);
  EXPECT_GE(limits.max_mr, 64U);
  EXPECT_GE(limits.max_pd, 2U);
  EXPECT_GE(limits.max_qp_wr, 1024U);
  EXPECT_GE(limits.max_cqe, 4096U);
  EXPECT_GE(limits.max_sge, 4U);
  EXPECT_GE(limits.max_inline, 32U);
  EXPECT_GE(limits.max_rd_atomic, 1U);
  EXPECT_GE(limits.max_message, 1U << 20);
  EXPECT_NE(nic_a_->context(), nullptr);
  EXPECT_STRNE(nic_a_->name(), "");
}

}  // namespace
}  // namespace verbena::nic::conformance
