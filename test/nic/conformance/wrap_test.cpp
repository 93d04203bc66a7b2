// Long runs through small queues: every ring and every counter wraps many times, every byte is looked at.
#include "fixture.hpp"

#include <algorithm>
#include <array>
#include <random>

namespace verbena::nic::conformance {
namespace {

class Wrap : public Bare {
 protected:
  static std::size_t size_of(std::uint64_t i) {
    constexpr std::array<std::size_t, 16> kSizes = {0,  1,   8,    47,  48,  49,   100,  64,
                                                    65, 200, 1000, 111, 127, 4096, 4097, 9000};
    return kSizes[(i * 7 + i / 16) % kSizes.size()];
  }
  /// Sends `full_count` messages of mixed sizes and kinds from one side to the other, as many at a time as fit the
  /// queues.
  void stream(Side& from, Side& to, std::uint64_t full_count, std::uint64_t signal_every) {
    const std::uint64_t count = rounds(full_count);
    constexpr std::size_t kStride = 9216;
    const std::uint64_t send_depth = from.qp_options.max_send_wr;
    const std::uint64_t recv_depth = to.qp_options.max_recv_wr;
    ASSERT_LE(std::max(send_depth, recv_depth) * kStride, kTarget);
    std::uint64_t posted = 0, retired = 0, arrived = 0, receives = 0;
    const auto immediate_of = [](std::uint64_t i) { return static_cast<std::uint32_t>(i * 2654435761U); };
    const Deadline deadline = Deadline::after(60s);
    while ((arrived < count || retired < count) && !deadline.passed()) {
      while (receives < count && receives - arrived < recv_depth) {
        ASSERT_EQ(to.post_recv(receives, to.sge(kTarget + receives % recv_depth * kStride, kStride)), 0);
        ++receives;
      }
      while (posted < count && posted - retired < send_depth) {
        const std::size_t offset = posted % send_depth * kStride;
        const std::size_t size = size_of(posted);
        test::fill(from.bytes(offset, size), posted);
        const bool is_signaled = (posted + 1) % signal_every == 0 || posted + 1 == count;
        Request request(posted % 3 == 0 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, posted);
        request.gather(from.sge(offset, size)).immediate(immediate_of(posted));
        request.flags(is_signaled ? IBV_SEND_SIGNALED : 0);
        ASSERT_EQ(request.post(from), 0) << "message " << posted;
        ++posted;
      }
      poll_both();
      for (; !from.sent.empty(); from.sent.pop_front()) {
        ASSERT_EQ(from.sent.front().status, IBV_WC_SUCCESS);
        ASSERT_EQ(from.sent.front().wr_id, std::min((retired / signal_every + 1) * signal_every, count) - 1);
        retired = from.sent.front().wr_id + 1;
      }
      for (; !to.received.empty(); to.received.pop_front()) {
        const ibv_wc& wc = to.received.front();
        ASSERT_TRUE(succeeded(wc, arrived, IBV_WC_RECV));
        ASSERT_EQ(wc.byte_len, size_of(arrived));
        ASSERT_EQ((wc.wc_flags & IBV_WC_WITH_IMM) != 0, arrived % 3 == 0);
        if (arrived % 3 == 0) {
          ASSERT_EQ(wc.imm_data, immediate_of(arrived));
        }
        ASSERT_TRUE(test::matches(to.bytes(kTarget + arrived % recv_depth * kStride, wc.byte_len), arrived));
        ++arrived;
      }
    }
    ASSERT_EQ(arrived, count);
    ASSERT_EQ(retired, count);
  }
};
VERBENA_FOR_EVERY_NIC(Wrap);

TEST_P(Wrap, QueuesOfFour) {
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = 4, .recv_depth = 4}));
  ASSERT_NO_FATAL_FAILURE(stream(a, b, 20000, 1));
}

TEST_P(Wrap, QueuesOfSixteenSignaledNowAndThen) {
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = 16, .recv_depth = 16}));
  ASSERT_NO_FATAL_FAILURE(stream(a, b, 20000, 5));
}

TEST_P(Wrap, UnequalQueues) {
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = 64, .recv_depth = 3}, {.send_depth = 3, .recv_depth = 64}));
  ASSERT_NO_FATAL_FAILURE(stream(a, b, 5000, 3));
  ASSERT_NO_FATAL_FAILURE(stream(b, a, 5000, 1));
}

TEST_P(Wrap, QueuesOfOne) {
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = 1, .recv_depth = 1}));
  ASSERT_NO_FATAL_FAILURE(stream(a, b, 3000, 1));
  ASSERT_NO_FATAL_FAILURE(stream(b, a, 3000, 1));
}

// More small messages than a 16-bit counter counts.
TEST_P(Wrap, MoreMessagesThanSixteenBits) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: so many requests take minutes";
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = 32, .recv_depth = 32}));
  constexpr std::uint64_t kCount = 70000;
  std::uint64_t posted = 0, retired = 0, arrived = 0, receives = 0;
  const Deadline deadline = Deadline::after(60s);
  while ((arrived < kCount || retired < kCount) && !deadline.passed()) {
    for (; receives < kCount && receives - arrived < 32; ++receives)
      ASSERT_EQ(b.post_recv(receives, b.sge(kTarget + receives % 32 * 64, 64)), 0);
    for (; posted < kCount && posted - retired < 32; ++posted) {
      a.word(0) = posted;
      const unsigned signaled = posted % 8 == 7 ? unsigned{IBV_SEND_SIGNALED} : 0U;
      ASSERT_EQ(Request(IBV_WR_SEND, posted).gather(a.sge(0, 8)).flags(signaled | IBV_SEND_INLINE).post(a), 0);
    }
    poll_both();
    for (; !a.sent.empty(); a.sent.pop_front()) {
      ASSERT_TRUE(succeeded(a.sent.front(), retired + 7, IBV_WC_SEND));
      retired += 8;
    }
    for (; !b.received.empty(); b.received.pop_front()) {
      ASSERT_TRUE(succeeded(b.received.front(), arrived, IBV_WC_RECV));
      ASSERT_EQ(b.word(kTarget + arrived % 32 * 64), arrived);
      ++arrived;
    }
  }
  EXPECT_EQ(arrived, kCount);
  EXPECT_EQ(retired, kCount);
}

TEST_P(Wrap, MoreWritesThanSixteenBits) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: so many requests take minutes";
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = 32}));
  constexpr std::uint64_t kBatches = 2200;
  for (std::uint64_t batch = 0; batch < kBatches; ++batch) {
    for (std::uint64_t i = 0; i < 32; ++i) {
      a.word(i * 8) = batch * 32 + i;
      ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, i)
                    .gather(a.sge(i * 8, 8))
                    .remote(b, kTarget + i * 8)
                    .flags(i == 31 ? IBV_SEND_SIGNALED : 0)
                    .post(a),
                0);
    }
    ASSERT_TRUE(succeeded(sent(a), 31, IBV_WC_RDMA_WRITE));
    for (std::uint64_t i = 0; i < 32; ++i) ASSERT_EQ(b.word(kTarget + i * 8), batch * 32 + i);
  }
}

// A completion queue of exactly the size that is needed, used to the brim each time.
TEST_P(Wrap, CompletionQueueOfExactlyTheSizeNeeded) {
  constexpr std::uint32_t kDepth = 5;
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = kDepth, .recv_depth = kDepth, .cqe = kDepth}));
  for (std::uint64_t round = 0; round < 500; ++round) {
    for (std::uint64_t i = 0; i < kDepth; ++i) ASSERT_EQ(b.post_recv(round * 10 + i, b.sge(i * 64, 64)), 0);
    for (std::uint64_t i = 0; i < kDepth; ++i) ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, i)).post(a), 0);
    const auto out = sent(a, kDepth);
    const auto in = received(b, kDepth);
    for (std::uint64_t i = 0; i < kDepth; ++i) {
      ASSERT_TRUE(succeeded(out[i], i, IBV_WC_SEND));
      ASSERT_TRUE(succeeded(in[i], round * 10 + i, IBV_WC_RECV));
    }
  }
}

// One queue for both directions' completions, taken one at a time.
TEST_P(Wrap, OneQueueForBothDirections) {
  ASSERT_NO_FATAL_FAILURE(make(a, {}));
  ASSERT_NO_FATAL_FAILURE(make(b, {}));
  const auto made = a.nic->create_cq(32, nullptr);
  ASSERT_OK(made);
  const Cq cq(*a.nic, *made);
  QpOptions options = a.qp_options;
  options.send_cq = options.recv_cq = *made;
  options.max_send_wr = options.max_recv_wr = 16;
  const Qp here = make_qp(a, options);
  ASSERT_TRUE(here);
  ASSERT_NO_FATAL_FAILURE(connect(a, here.get(), b, b.qp.get()));
  for (std::uint64_t round = 0; round < 300; ++round) {
    ibv_recv_wr receive{};
    ibv_sge sge = a.sge(4096, 64);
    receive.wr_id = 1000 + round;
    receive.sg_list = &sge;
    receive.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(here.get(), &receive, &bad), 0);
    ASSERT_EQ(b.post_recv(round, b.sge(0, 64)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, round).gather(a.sge(0, 8)).post(here.get()), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, round).gather(b.sge(64, 8)).post(b), 0);
    bool send_seen = false, receive_seen = false;
    const Deadline deadline = soon();
    while (!(send_seen && receive_seen) && !deadline.passed()) {
      b.poll();
      ibv_wc wc{};
      if (ibv_poll_cq(*made, 1, &wc) != 1) continue;
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.wr_id, wc.opcode == IBV_WC_RECV ? 1000 + round : round);
      (wc.opcode == IBV_WC_RECV ? receive_seen : send_seen) = true;
    }
    ASSERT_TRUE(send_seen && receive_seen);
    ASSERT_TRUE(succeeded(sent(b), round, IBV_WC_SEND));
    ASSERT_TRUE(succeeded(received(b), round, IBV_WC_RECV));
  }
}

// Many QPs on one completion queue, senders at random: each message once, in order on its QP.
struct Link {
  Qp from, to;
  std::uint64_t posted = 0, retired = 0, arrived = 0, receives = 0;
};

int post_receive(ibv_qp* qp, std::uint64_t id, ibv_sge sge) {
  ibv_recv_wr wr{};
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, &wr, &bad);
}

TEST_P(Wrap, ManyQpsOnOneQueue) {
  constexpr std::size_t kQps = 300;
  constexpr std::uint32_t kDepth = 4;
  const std::uint64_t messages = rounds(20000);
  const SideOptions options{.cqe = kQps * kDepth};
  ASSERT_NO_FATAL_FAILURE(make(a, options));
  ASSERT_NO_FATAL_FAILURE(make(b, options));
  std::vector<Link> links(kQps);
  std::vector<std::pair<std::uint32_t, std::size_t>> by_number;
  for (std::size_t i = 0; i < kQps; ++i) {
    QpOptions small_a = a.qp_options, small_b = b.qp_options;
    small_a.max_send_wr = small_a.max_recv_wr = small_b.max_send_wr = small_b.max_recv_wr = kDepth;
    links[i].from = make_qp(a, small_a);
    links[i].to = make_qp(b, small_b);
    ASSERT_TRUE(links[i].from && links[i].to);
    ASSERT_NO_FATAL_FAILURE(connect(a, links[i].from.get(), b, links[i].to.get()));
    by_number.emplace_back(links[i].to->qp_num, i);
  }
  std::sort(by_number.begin(), by_number.end());
  const auto slot = [](std::size_t qp, std::uint64_t i) { return (qp * kDepth + i % kDepth) * 64; };
  const auto refill = [&](std::size_t i) {
    Link& link = links[i];
    for (; link.receives - link.arrived < kDepth; ++link.receives) {
      const ibv_sge sge = b.sge(kTarget + slot(i, link.receives), 64);
      ASSERT_EQ(post_receive(link.to.get(), i << 32 | (link.receives & 0xFFFFFFFF), sge), 0);
    }
  };
  for (std::size_t i = 0; i < kQps; ++i) refill(i);
  std::mt19937_64 random(42);
  std::uint64_t posted = 0, arrived = 0;
  const Deadline deadline = Deadline::after(60s);
  while (arrived < messages && !deadline.passed()) {
    for (int burst = 0; burst < 40 && posted < messages; ++burst) {
      // Some QPs are busy, most are idle, as it is in life.
      const std::size_t i = random() % (random() % 2 == 0 ? kQps : 10);
      Link& link = links[i];
      if (link.posted - link.retired == kDepth) continue;
      a.word(slot(i, link.posted)) = i;
      a.word(slot(i, link.posted) + 8) = link.posted;
      ASSERT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(slot(i, link.posted), 16)).post(link.from.get()), 0);
      ++link.posted;
      ++posted;
    }
    poll_both();
    for (; !a.sent.empty(); a.sent.pop_front()) {
      ASSERT_EQ(a.sent.front().status, IBV_WC_SUCCESS);
      ASSERT_EQ(a.sent.front().qp_num, links[a.sent.front().wr_id].from->qp_num);
      ++links[a.sent.front().wr_id].retired;
    }
    for (; !b.received.empty(); b.received.pop_front()) {
      const ibv_wc& wc = b.received.front();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      const std::size_t i = wc.wr_id >> 32;
      ASSERT_LT(i, kQps);
      Link& link = links[i];
      ASSERT_EQ(wc.wr_id & 0xFFFFFFFF, link.arrived);
      const auto found =
          std::lower_bound(by_number.begin(), by_number.end(), std::pair<std::uint32_t, std::size_t>(wc.qp_num, 0));
      ASSERT_NE(found, by_number.end());
      ASSERT_EQ(found->second, i);
      ASSERT_EQ(b.word(kTarget + slot(i, link.arrived)), i);
      ASSERT_EQ(b.word(kTarget + slot(i, link.arrived) + 8), link.arrived);
      ++link.arrived;
      ++arrived;
      ASSERT_NO_FATAL_FAILURE(refill(i));
    }
  }
  EXPECT_EQ(arrived, messages);
  for (const Link& link : links) EXPECT_EQ(link.arrived, link.posted);
}

}  // namespace
}  // namespace verbena::nic::conformance
