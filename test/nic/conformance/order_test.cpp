// The order of one reliable connection.
#include "fixture.hpp"

#include <array>
#include <cstring>

namespace verbena::nic::conformance {
namespace {

using test::fill;
using test::matches;

class Order : public Pair {};
VERBENA_FOR_EVERY_NIC(Order);

TEST_P(Order, CompletionsComeInPostingOrder) {
  constexpr std::uint64_t kCount = 60;
  constexpr std::array<ibv_wr_opcode, 6> kOpcodes = {IBV_WR_RDMA_READ,           IBV_WR_SEND,
                                                     IBV_WR_RDMA_WRITE,          IBV_WR_ATOMIC_FETCH_AND_ADD,
                                                     IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND_WITH_IMM};
  std::vector<Request> requests;
  std::uint64_t receives = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const ibv_wr_opcode opcode = kOpcodes[i * 7 % kOpcodes.size()];
    const bool is_atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    const std::size_t size = is_atomic ? 8 : i * i * 37 % 20000;
    Request request(opcode, i);
    request.gather(a.sge(0, size)).immediate(static_cast<std::uint32_t>(i));
    if (is_atomic)
      request.atomic(b.address(kTarget), b.rkey(), 1);
    else if (opcode != IBV_WR_SEND && opcode != IBV_WR_SEND_WITH_IMM)
      request.remote(b, kTarget);
    if (opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
      ASSERT_EQ(b.post_recv(receives, b.sge(0, 20000)), 0);
      ++receives;
    }
    requests.push_back(request);
  }
  std::size_t bad = 0;
  ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
  const auto out = sent(a, kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(out[i].wr_id, i);
    EXPECT_EQ(out[i].status, IBV_WC_SUCCESS);
  }
  const auto in = received(b, receives);
  for (std::uint64_t i = 0; i < receives; ++i) {
    EXPECT_EQ(in[i].wr_id, i);
    EXPECT_EQ(in[i].status, IBV_WC_SUCCESS);
  }
}

// What was written before a SEND is there when its receive completes.
TEST_P(Order, WriteIsThereWhenALaterSendArrives) {
  for (std::uint64_t round = 0; round < 200; ++round) {
    const std::size_t size = 1 + round * round * 25 % (1 << 20);
    fill(a.bytes(0, size), round);
    ASSERT_EQ(b.post_recv(round, b.sge(0, 16)), 0);
    std::array<Request, 2> requests = {Request(IBV_WR_RDMA_WRITE, 1), Request(IBV_WR_SEND, 2)};
    requests[0].gather(a.sge(0, size)).remote(b, kTarget).flags(0);
    requests[1].gather(a.sge(0, 1)).flags(IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    std::size_t bad = 0;
    ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
    ASSERT_TRUE(succeeded(received(b), round, IBV_WC_RECV));
    ASSERT_TRUE(matches(b.bytes(kTarget, size), round));
    ASSERT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  }
}

TEST_P(Order, ReadSeesAnEarlierWrite) {
  for (std::uint64_t round = 0; round < 200; ++round) {
    const std::size_t size = 1 + round * round * 25 % (1 << 20);
    fill(a.bytes(0, size), round);
    std::array<Request, 2> requests = {Request(IBV_WR_RDMA_WRITE, 1), Request(IBV_WR_RDMA_READ, 2)};
    requests[0].gather(a.sge(0, size)).remote(b, kTarget).flags(0);
    requests[1].gather(a.sge(kTarget, size)).remote(b, kTarget);
    std::size_t bad = 0;
    ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
    ASSERT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_READ));
    ASSERT_TRUE(matches(a.bytes(kTarget, size), round));
  }
}

// With a fence, what a READ brought is there to be sent on.
TEST_P(Order, FencedSendCarriesWhatAReadBrought) {
  for (std::uint64_t round = 0; round < 100; ++round) {
    const std::size_t size = 1 + round * 97 % 9000;
    fill(b.bytes(0, size), round);
    ASSERT_EQ(b.post_recv(1, b.sge(kTarget, size)), 0);
    std::array<Request, 2> requests = {Request(IBV_WR_RDMA_READ, 1), Request(IBV_WR_SEND, 2)};
    requests[0].gather(a.sge(0, size)).remote(b, 0).flags(0);
    requests[1].gather(a.sge(0, size)).flags(IBV_SEND_SIGNALED | IBV_SEND_FENCE);
    std::size_t bad = 0;
    ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
    ASSERT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
    ASSERT_TRUE(matches(b.bytes(kTarget, size), round));
    ASSERT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  }
}

TEST_P(Order, WritesToOnePlaceLandInOrder) {
  constexpr std::uint64_t kCount = 50;
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    fill(a.bytes(i * 4096, 4096), i);
    requests.emplace_back(IBV_WR_RDMA_WRITE, i)
        .gather(a.sge(i * 4096, 4096))
        .remote(b, kTarget)
        .flags(i + 1 == kCount ? IBV_SEND_SIGNALED : 0);
  }
  std::size_t bad = 0;
  ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
  EXPECT_TRUE(succeeded(sent(a), kCount - 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(matches(b.bytes(kTarget, 4096), kCount - 1));
}

TEST_P(Order, AtomicsOfOneQpSerialise) {
  constexpr std::uint64_t kCount = 640;
  constexpr std::uint64_t kBatch = 32;
  b.word(kTarget) = 0;
  for (std::uint64_t first = 0; first < kCount; first += kBatch) {
    for (std::uint64_t i = first; i < first + kBatch; ++i)
      ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, i)
                    .gather(a.sge(i * 8, 8))
                    .atomic(b.address(kTarget), b.rkey(), 1)
                    .post(a),
                0);
    (void)sent(a, kBatch);
  }
  for (std::uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(a.word(i * 8), i);
  EXPECT_EQ(b.word(kTarget), kCount);
}

// Atomics of several QPs on one word, and both kinds mixed.
TEST_P(Order, AtomicsOfSeveralQpsSerialise) {
  constexpr std::size_t kQps = 4;
  constexpr std::uint64_t kRounds = 100;
  std::vector<std::pair<Qp, Qp>> pairs;
  for (std::size_t i = 0; i < kQps; ++i) {
    pairs.emplace_back(make_qp(a, a.qp_options), make_qp(b, b.qp_options));
    ASSERT_TRUE(pairs.back().first && pairs.back().second);
    ASSERT_NO_FATAL_FAILURE(connect(a, pairs[i].first.get(), b, pairs[i].second.get()));
    ASSERT_OK(a.nic->import_window(pairs[i].first.get(), b.nic->window_of(b.mr.get()), soon()));
  }
  b.word(kTarget) = 0;
  std::vector<bool> seen(kQps * kRounds, false);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kQps; ++i)
      ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, i)
                    .gather(a.sge(i * 8, 8))
                    .atomic(b.address(kTarget), b.rkey(), 1)
                    .post(pairs[i].first.get()),
                0);
    (void)sent(a, kQps);
    for (std::size_t i = 0; i < kQps; ++i) {
      const std::uint64_t before = a.word(i * 8);
      ASSERT_LT(before, seen.size());
      EXPECT_FALSE(seen[before]);
      seen[before] = true;
    }
  }
  EXPECT_EQ(b.word(kTarget), kQps * kRounds);
}

// A target that posts receives and does nothing more does not hold its peer up.
TEST_P(Order, TargetThatNeverPolls) {
  constexpr std::uint64_t kReceives = 64;
  constexpr std::size_t kStride = 4096;
  const auto size_of = [](std::uint64_t i) { return i * 61 % (kStride + 1); };
  for (std::uint64_t i = 0; i < kReceives; ++i) ASSERT_EQ(b.post_recv(i, b.sge(i * kStride, kStride)), 0);
  for (std::uint64_t i = 0; i < kReceives; ++i) {
    fill(a.bytes(0, size_of(i)), i);
    ASSERT_EQ(Request(i % 2 == 0 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM, i)
                  .gather(a.sge(0, size_of(i)))
                  .immediate(static_cast<std::uint32_t>(i))
                  .post(a),
              0);
    const Deadline deadline = soon();
    while (a.sent.empty() && !deadline.passed()) a.poll();  // Not b.
    ASSERT_FALSE(a.sent.empty());
    ASSERT_TRUE(succeeded(a.sent.front(), i, IBV_WC_SEND));
    a.sent.pop_front();
  }
  // It polls for the first time: everything is there, in order.
  const auto completions = received(b, kReceives);
  for (std::uint64_t i = 0; i < kReceives; ++i) {
    EXPECT_TRUE(succeeded(completions[i], i, IBV_WC_RECV));
    EXPECT_EQ(completions[i].byte_len, size_of(i));
    EXPECT_EQ((completions[i].wc_flags & IBV_WC_WITH_IMM) != 0, i % 2 != 0);
    EXPECT_TRUE(matches(b.bytes(i * kStride, size_of(i)), i));
  }
}

// The same when the requests are posted at once, with WRITEs and WRITEs with immediate between them.
TEST_P(Order, TargetThatNeverPollsAMixedList) {
  constexpr std::uint64_t kReceives = 40;
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < kReceives; ++i) {
    ASSERT_EQ(b.post_recv(i, b.sge(i * 256, 256)), 0);
    fill(a.bytes(i * 256, 256), i);
    Request request(i % 2 == 0 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, i);
    request.gather(a.sge(i * 256, 256)).immediate(static_cast<std::uint32_t>(i));
    if (i % 2 != 0) request.remote(b, kTarget + i * 256);
    requests.push_back(request);
  }
  std::size_t bad = 0;
  ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
  const Deadline deadline = soon();
  while (a.sent.size() < kReceives && !deadline.passed()) a.poll();
  ASSERT_EQ(a.sent.size(), kReceives);
  const auto in = received(b, kReceives);
  for (std::uint64_t i = 0; i < kReceives; ++i) {
    EXPECT_TRUE(succeeded(in[i], i, i % 2 == 0 ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM));
    EXPECT_EQ(in[i].byte_len, 256U);
    EXPECT_TRUE(matches(b.bytes((i % 2 == 0 ? 0 : kTarget) + i * 256, 256), i));
  }
}

}  // namespace
}  // namespace verbena::nic::conformance
