// Shared receive queues: receives that go to whichever queue pair has a message.
#include "fixture.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <thread>

namespace verbena::nic::conformance {
namespace {

using test::fill;
using test::matches;

constexpr std::size_t kBuffers = std::size_t{1} << 20;  // Of receives in b's arena.
constexpr std::size_t kBufferBytes = 16384;
constexpr std::size_t kPairs = 3;
constexpr std::uint32_t kSrqDepth = 32;

/// Three queue pairs of `a`, each connected to one of `b`; those of `b` share a receive queue.
class SharedReceives : public Bare {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Bare::SetUp());
    ASSERT_NO_FATAL_FAILURE(make_all());
  }
  void TearDown() override {
    b_qps_.clear();
    a_qps_.clear();
    srq_.reset();
    Bare::TearDown();
  }
  void make_all() {
    SideOptions options;
    options.rnr_retry = rnr_retry_;
    ASSERT_NO_FATAL_FAILURE(make(a, options));
    ASSERT_NO_FATAL_FAILURE(make(b, options));
    const auto srq = b.nic->create_srq(b.pd.get(), kSrqDepth, 4);
    ASSERT_OK(srq);
    srq_ = Srq(*b.nic, *srq);
    for (std::size_t i = 0; i < kPairs; ++i) ASSERT_NO_FATAL_FAILURE(add_pair());
  }
  void add_pair() {
    QpOptions b_options = b.qp_options;
    b_options.srq = srq_.get();
    b_options.max_recv_wr = 0;
    a_qps_.push_back(make_qp(a, a.qp_options));
    b_qps_.push_back(make_qp(b, b_options));
    ASSERT_TRUE(a_qps_.back() && b_qps_.back());
    ASSERT_NO_FATAL_FAILURE(connect(a, a_qps_.back().get(), b, b_qps_.back().get()));
    ASSERT_OK(a.nic->import_window(a_qps_.back().get(), b.nic->window_of(b.mr.get()), soon()));
  }
  [[nodiscard]] static std::size_t buffer(std::uint64_t number) {
    return kBuffers + static_cast<std::size_t>(number % 64) * kBufferBytes;
  }
  /// The receive with that number, into its buffer; 0 or the errno.
  int post(std::uint64_t number, std::size_t length = kBufferBytes) {
    return post_sge(number, b.sge(buffer(number), length));
  }
  int post_sge(std::uint64_t number, ibv_sge sge) {
    ibv_recv_wr wr{};
    wr.wr_id = number;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    const int refused = ibv_post_srq_recv(srq_.get(), &wr, &bad);
    if (refused != 0) {
      EXPECT_EQ(bad, &wr);
    }
    return refused;
  }
  /// A signaled SEND of `length` patterned bytes over one of the pairs.
  int send(std::size_t pair, std::uint64_t wr_id, std::size_t length) {
    const std::size_t from = static_cast<std::size_t>(wr_id % 64) * kBufferBytes;
    fill(a.bytes(from, length), wr_id);
    return Request(IBV_WR_SEND, wr_id).gather(a.sge(from, length)).post(a_qps_[pair].get());
  }
  void expect_arrived(const ibv_wc& wc, std::size_t pair, std::uint64_t number, std::uint64_t pattern,
                      std::size_t length) const {
    EXPECT_TRUE(succeeded(wc, number, IBV_WC_RECV));
    EXPECT_EQ(wc.qp_num, b_qps_[pair]->qp_num);
    EXPECT_EQ(wc.byte_len, length);
    EXPECT_TRUE(matches(b.bytes(buffer(number), length), pattern));
  }

  std::uint8_t rnr_retry_ = 7;  ///< For ever.
  Srq srq_;
  std::vector<Qp> a_qps_;
  std::vector<Qp> b_qps_;
};
VERBENA_FOR_EVERY_NIC(SharedReceives);

TEST_P(SharedReceives, TheLastReceiveServesWhoeverSends) {
  for (std::uint64_t i = 0; i < 12; ++i) {
    SCOPED_TRACE(i);
    const std::size_t pair = i * 7 % kPairs;
    const std::size_t length = i % 2 == 0 ? 40 : 10000;
    ASSERT_EQ(post(i), 0);
    ASSERT_EQ(send(pair, 100 + i, length), 0);
    expect_arrived(received(b), pair, i, 100 + i, length);
    EXPECT_TRUE(succeeded(sent(a), 100 + i, IBV_WC_SEND));
  }
}

TEST_P(SharedReceives, EachReceiveTakesOneMessage) {
  const std::uint64_t count = rounds(2000);
  std::uint64_t posted = 0;
  for (; posted < kSrqDepth; ++posted) ASSERT_EQ(post(posted), 0);
  std::map<std::uint32_t, std::uint64_t> last;  // By queue pair: messages of one come in their order.
  std::set<std::uint64_t> free;
  std::uint64_t sending = 0, done = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    for (; sending < count && sending < done + 20; ++sending) {
      const std::uint32_t number = static_cast<std::uint32_t>(sending);
      Request request(IBV_WR_SEND_WITH_IMM, sending);
      request.immediate(number).gather(a.sge(0, 16));
      const Deadline deadline = soon();
      while (sending - a.sent.size() >= 60 && !deadline.passed()) poll_both();  // Completions may be late.
      ASSERT_EQ(request.post(a_qps_[sending * sending % kPairs].get()), 0);
    }
    const ibv_wc wc = received(b);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_LT(wc.wr_id, posted);
    ASSERT_TRUE(free.insert(wc.wr_id).second) << wc.wr_id << " came twice";
    const auto [at, is_first] = last.try_emplace(wc.qp_num, wc.imm_data);
    EXPECT_TRUE(is_first || wc.imm_data > at->second);
    at->second = wc.imm_data;
    ASSERT_EQ(post(posted++), 0);
    ++done;
  }
  for (const ibv_wc& wc : sent(a, count)) ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
}

TEST_P(SharedReceives, SendersWaitForReceives) {
  for (std::size_t pair = 0; pair < kPairs; ++pair) ASSERT_EQ(send(pair, pair, 64), 0);
  expect_quiet(20ms);
  for (std::uint64_t i = 0; i < kPairs; ++i) {
    ASSERT_EQ(post(i), 0);
    EXPECT_TRUE(succeeded(received(b), i, IBV_WC_RECV));
    EXPECT_EQ(sent(a).status, IBV_WC_SUCCESS);
  }
  expect_quiet(2ms);
}

TEST_P(SharedReceives, WriteWithImmediateTakesOne) {
  ASSERT_EQ(post(5), 0);
  fill(a.bytes(0, 300), 8);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE_WITH_IMM, 1)
                .gather(a.sge(0, 300))
                .remote(b, buffer(9))
                .immediate(77)
                .post(a_qps_[1].get()),
            0);
  const ibv_wc wc = received(b);
  EXPECT_TRUE(succeeded(wc, 5, IBV_WC_RECV_RDMA_WITH_IMM));
  EXPECT_EQ(wc.imm_data, 77U);
  EXPECT_EQ(wc.qp_num, b_qps_[1]->qp_num);
  EXPECT_TRUE(matches(b.bytes(buffer(9), 300), 8));
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
}

// What is posted belongs to the queue, not to the queue pair that fails: the others take it.
TEST_P(SharedReceives, AFailedQueuePairLeavesThem) {
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_EQ(post(i), 0);
  ASSERT_EQ(send(0, 1, 64), 0);
  EXPECT_TRUE(succeeded(received(b), 0, IBV_WC_RECV));
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_SEND));
  ASSERT_OK(to_error(*b.nic, b_qps_[0].get()));
  expect_quiet(5ms);
  for (std::uint64_t i = 1; i < 4; ++i) {
    ASSERT_EQ(send(1 + i % 2, 10 + i, 64), 0);
    expect_arrived(received(b), 1 + i % 2, i, 10 + i, 64);
    EXPECT_TRUE(succeeded(sent(a), 10 + i, IBV_WC_SEND));
  }
}

TEST_P(SharedReceives, TooLongFailsOneQueuePair) {
  ASSERT_EQ(post(0, 100), 0);
  ASSERT_EQ(send(0, 1, 101), 0);
  EXPECT_TRUE(failed_as(sent(a), 1, IBV_WC_REM_INV_REQ_ERR));
  EXPECT_TRUE(failed_as(received(b), 0, IBV_WC_LOC_LEN_ERR));
  ASSERT_EQ(post(1, 100), 0);
  ASSERT_EQ(send(1, 2, 100), 0);
  expect_arrived(received(b), 1, 1, 2, 100);
}

TEST_P(SharedReceives, TheQueueIsFullAtSomePoint) {
  std::uint64_t posted = 0;
  int refused = 0;
  for (; refused == 0 && posted < 16 * kSrqDepth; ++posted) refused = post(posted);
  EXPECT_EQ(refused, ENOMEM);
  EXPECT_GT(posted, kSrqDepth);  // The last one was refused.
  if (!is_soft_roce()) {         // Which rounds up.
    EXPECT_EQ(posted, kSrqDepth + 1);
  }
  ASSERT_EQ(send(2, 1, 8), 0);
  EXPECT_TRUE(succeeded(received(b), 0, IBV_WC_RECV));
  EXPECT_EQ(post(1000), 0);
}

TEST_P(SharedReceives, IsBusyWhileUsed) {
  EXPECT_EQ(b.nic->objects().srqs, 1U);
  EXPECT_STATUS(b.nic->destroy_srq(srq_.get()), Status::kBusy);
  EXPECT_STATUS(b.nic->create_srq(b.pd.get(), b.nic->limits().max_srq_wr + 1, 1), Status::kBadArgument);
}

// The receiver sleeps until a message comes, the sender until it is received; every receive is posted late.
TEST_P(SharedReceives, SleepersAreWoken) {
  VERBENA_SKIP_IN_SIMULATION();
  const std::uint64_t count = rounds(300);
  const auto next = [](Side& side, const Cq& cq, std::deque<ibv_wc>& queue) {
    const Deadline deadline = soon();
    while (queue.empty()) {
      EXPECT_EQ(ibv_req_notify_cq(cq.get(), 0), 0);
      side.poll();
      if (!queue.empty()) break;
      const auto event = side.nic->wait(side.channel.get(), deadline);
      EXPECT_OK(event);
      if (!event) return false;
      side.poll();
    }
    EXPECT_EQ(queue.front().status, IBV_WC_SUCCESS);
    queue.pop_front();
    return true;
  };
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < count; ++i) {
      EXPECT_EQ(Request(IBV_WR_SEND, i).gather(a.sge(0, 32)).post(a_qps_[i % kPairs].get()), 0);
      if (!next(a, a.send_cq, a.sent)) return;
    }
  });
  for (std::uint64_t i = 0; i < count; ++i) {
    b.poll();
    EXPECT_EQ(post(i), 0);
    if (!next(b, b.recv_cq, b.received)) break;
  }
  sender.join();
}

// Its owner has looked in vain and sleeps when another thread posts.
TEST_P(SharedReceives, PostingFromAnotherThreadWakesTheOwner) {
  VERBENA_SKIP_IN_SIMULATION();
  ASSERT_EQ(send(1, 1, 100), 0);
  expect_quiet(5ms);
  std::thread poster([&] {
    std::this_thread::sleep_for(10ms);  // Likely asleep by then; if not, the test is easier to pass.
    EXPECT_EQ(post(3), 0);
  });
  const Deadline deadline = soon();
  while (b.received.empty() && !deadline.passed()) {
    a.poll();
    ASSERT_EQ(ibv_req_notify_cq(b.recv_cq.get(), 0), 0);
    b.poll();
    a.poll();
    if (!b.received.empty()) break;
    const auto event = b.nic->wait(b.channel.get(), deadline);
    EXPECT_OK(event);
    b.poll();
  }
  poster.join();
  expect_arrived(received(b), 1, 3, 1, 100);
}

class SharedReceivesRnr : public SharedReceives {
 protected:
  SharedReceivesRnr() { rnr_retry_ = 0; }
};
VERBENA_FOR_EVERY_NIC(SharedReceivesRnr);

TEST_P(SharedReceivesRnr, EmptyIsNotReady) {
  if (test::in_chaos()) GTEST_SKIP() << "chaos has RNR of its own, and no retry is left for it";
  ASSERT_EQ(send(0, 1, 64), 0);
  EXPECT_TRUE(failed(sent(a), 1, IBV_WC_RNR_RETRY_EXC_ERR));
  ASSERT_EQ(post(0), 0);
  ASSERT_EQ(send(1, 2, 64), 0);
  expect_arrived(received(b), 1, 0, 2, 64);
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  ASSERT_EQ(send(1, 3, 64), 0);
  EXPECT_TRUE(failed(sent(a), 3, IBV_WC_RNR_RETRY_EXC_ERR));
}

// --- the soft NIC -----------------------------------------------------------------------------------------------

class SoftSharedReceives : public SharedReceives {};
VERBENA_FOR_THE_SOFT_NIC(SoftSharedReceives);

// A receive that was given to a queue pair whose peer then goes is the others' again.
TEST_P(SoftSharedReceives, APeerThatGoesLeavesThem) {
  ASSERT_EQ(post(0), 0);
  ASSERT_EQ(send(0, 1, 64), 0);  // Asks.
  a.poll();                      // Under chaos it may take more than one poll to ask.
  for (int i = 0; i < 3; ++i) b.poll();
  ASSERT_OK(to_error(*a.nic, a_qps_[0].get()));
  EXPECT_EQ(sent(a).wr_id, 1U);
  if (!b.received.empty()) GTEST_SKIP() << "chaos let it come to more than asking";
  ASSERT_EQ(send(1, 2, 64), 0);
  expect_arrived(received(b), 1, 0, 2, 64);
}

TEST_P(SoftSharedReceives, ADestroyedQueuePairLeavesThem) {
  ASSERT_EQ(post(0), 0);
  ASSERT_EQ(send(0, 1, 64), 0);
  a.poll();
  b.poll();
  b_qps_.erase(b_qps_.begin());
  ASSERT_NO_FATAL_FAILURE(add_pair());
  ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(0, 8)).post(a_qps_.back().get()), 0);
  EXPECT_TRUE(succeeded(received(b), 0, IBV_WC_RECV));
}

// What one peer asks for and does not use is not kept from the others: it is given few at a time.
TEST_P(SoftSharedReceives, OnePeerIsGivenFew) {
  for (std::uint64_t i = 0; i < kSrqDepth; ++i) ASSERT_EQ(post(i), 0);
  for (std::uint64_t i = 0; i < kSrqDepth; ++i) ASSERT_EQ(send(0, i, 8), 0);
  b.poll();  // Gives; and the sender does not poll.
  for (std::uint64_t i = 0; i < kSrqDepth / 2; ++i) ASSERT_EQ(send(1, 100 + i, 8), 0);
  Deadline deadline = soon();
  std::uint64_t of_the_other = 0;
  while (of_the_other < kSrqDepth / 2 && !deadline.passed()) {
    // Only the second queue pair goes on: posting on it executes what waits there.
    b.poll();
    poll_both();
    of_the_other = static_cast<std::uint64_t>(std::count_if(
        b.received.begin(), b.received.end(), [&](const ibv_wc& wc) { return wc.qp_num == b_qps_[1]->qp_num; }));
    if (b.received.size() == kSrqDepth) break;
  }
  EXPECT_GE(of_the_other, 1U);
}

TEST_P(SoftSharedReceives, ArgumentsAreChecked) {
  EXPECT_STATUS(b.nic->create_srq(b.pd.get(), 0, 1), Status::kBadArgument);
  EXPECT_STATUS(b.nic->create_srq(b.pd.get(), 1, b.nic->limits().max_sge + 1), Status::kBadArgument);
  ibv_recv_wr wr{};
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(b_qps_[0].get(), &wr, &bad), EINVAL) << "its receives are the shared queue's";
  wr.num_sge = 5;
  EXPECT_EQ(ibv_post_srq_recv(srq_.get(), &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
}

// The keys of receives are of the queue's protection domain, not of the queue pair's.
TEST_P(SoftSharedReceives, KeysAreOfItsProtectionDomain) {
  const auto other = b.nic->alloc_pd();
  ASSERT_OK(other);
  const Pd pd(*b.nic, *other);
  const Mr region = b.reg(pd, 0, 65536, IBV_ACCESS_LOCAL_WRITE);
  const auto made = b.nic->create_srq(pd.get(), 4, 1);
  ASSERT_OK(made);
  b_qps_.clear();
  a_qps_.clear();
  srq_ = Srq(*b.nic, *made);
  EXPECT_STATUS(b.nic->dealloc_pd(pd.get()), Status::kBusy);
  ASSERT_NO_FATAL_FAILURE(add_pair());
  ASSERT_EQ(post_sge(1, {b.address(0), 4096, region->lkey}), 0);
  ASSERT_EQ(send(0, 1, 200), 0);
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
  EXPECT_TRUE(matches(b.bytes(0, 200), 1));
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_SEND));
  ASSERT_EQ(post_sge(2, {b.address(0), 4096, b.mr->lkey}), 0);
  ASSERT_EQ(send(0, 2, 200), 0);
  EXPECT_TRUE(failed(received(b), 2, IBV_WC_LOC_PROT_ERR));
  EXPECT_TRUE(failed(sent(a), 2, IBV_WC_REM_OP_ERR));
  b_qps_.clear();
  srq_.reset();
}

}  // namespace
}  // namespace verbena::nic::conformance
