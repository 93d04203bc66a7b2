// Each side is its own thread's: both stream at once.
#include "fixture.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

namespace verbena::nic::conformance {
namespace {

constexpr std::size_t kLargest = 65536;
constexpr std::uint32_t kQueueDepth = 16;

class Threads : public Bare {
 protected:
  void SetUp() override {
    VERBENA_SKIP_IN_SIMULATION();
    Bare::SetUp();
  }
  /// Polls a side until the condition holds, for 60 s at most: each wait has its own deadline, however many rounds
  /// there are. Gives the core away after a while, since the other side's thread may have none.
  template <class Condition>
  static bool poll_until(Side& side, Condition condition) {
    constexpr unsigned kPolls = 100;
    const Deadline deadline = Deadline::after(60s);
    for (unsigned polls = 0; !condition(); ++polls) {
      if (deadline.passed()) return false;
      if (polls >= kPolls) std::this_thread::yield();
      side.poll();
    }
    return true;
  }
  /// Runs one function a side, each in its own thread; both have to return true.
  template <class Work>
  void run_both(Work work) {
    bool well_b = false;
    std::thread other([&] { well_b = work(b, a); });
    const bool well_a = work(a, b);
    other.join();
    EXPECT_TRUE(well_a);
    EXPECT_TRUE(well_b);
  }
};
VERBENA_FOR_EVERY_NIC(Threads);

TEST_P(Threads, MessagesBothWays) {
  const std::uint64_t count = rounds(20000);
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = kQueueDepth, .recv_depth = kQueueDepth}));
  const auto size_of = [](std::uint64_t i) -> std::size_t {
    constexpr std::array<std::size_t, 8> kSizes = {8, 40, 64, 300, 0, 4096, 17, 1000};
    return i % 1000 == 999 ? kLargest : kSizes[i * 5 % kSizes.size()];
  };
  run_both([&](Side& side, Side&) {
    const std::uint64_t seed = &side == &a ? 0 : 1U << 20;
    const std::uint64_t other_seed = &side == &a ? 1U << 20 : 0;
    std::uint64_t posted = 0, retired = 0, arrived = 0, receives = 0;
    while (arrived < count || retired < count) {
      for (; receives < count && receives - arrived < kQueueDepth; ++receives)
        if (side.post_recv(receives, side.sge(kTarget + receives % kQueueDepth * kLargest, kLargest)) != 0)
          return false;
      for (; posted < count && posted - retired < kQueueDepth; ++posted) {
        const std::size_t offset = posted % kQueueDepth * kLargest;
        test::fill(side.bytes(offset, size_of(posted)), seed + posted);
        if (Request(IBV_WR_SEND, posted).gather(side.sge(offset, size_of(posted))).post(side) != 0) return false;
      }
      if (!poll_until(side, [&] { return !side.sent.empty() || !side.received.empty(); })) return false;
      for (; !side.sent.empty(); side.sent.pop_front(), ++retired)
        if (!succeeded(side.sent.front(), retired, IBV_WC_SEND)) return false;
      for (; !side.received.empty(); side.received.pop_front(), ++arrived) {
        const ibv_wc& wc = side.received.front();
        const auto bytes = side.bytes(kTarget + arrived % kQueueDepth * kLargest, size_of(arrived));
        if (!succeeded(wc, arrived, IBV_WC_RECV) || wc.byte_len != bytes.size() ||
            !test::matches(bytes, other_seed + arrived))
          return false;
      }
    }
    return true;
  });
}

// Data by WRITE, the news of it by an immediate; the answer allows the next.
TEST_P(Threads, WritesWithImmediateBothWays) {
  const std::uint64_t count = rounds(10000);
  ASSERT_NO_FATAL_FAILURE(make_pair({.send_depth = kQueueDepth, .recv_depth = kQueueDepth}));
  run_both([&](Side& side, Side& other) {
    const std::uint64_t seed = &side == &a ? 0 : 1U << 20;
    const std::uint64_t other_seed = &side == &a ? 1U << 20 : 0;
    const auto size_of = [](std::uint64_t i) { return 8 + i * 37 % 3000; };
    for (std::uint64_t i = 0; i < kQueueDepth; ++i)
      if (side.post_recv(i, {}) != 0) return false;
    for (std::uint64_t round = 0; round < count; ++round) {
      const std::size_t slot = round % 2 * kLargest;
      test::fill(side.bytes(slot, size_of(round)), seed + round);
      if (Request(IBV_WR_RDMA_WRITE_WITH_IMM, round)
              .gather(side.sge(slot, size_of(round)))
              .remote(other, kTarget + slot)
              .immediate(static_cast<std::uint32_t>(round))
              .post(side) != 0)
        return false;
      if (!poll_until(side, [&] { return !side.sent.empty() && !side.received.empty(); })) return false;
      const ibv_wc in = side.received.front();
      if (!succeeded(side.sent.front(), round, IBV_WC_RDMA_WRITE) || in.opcode != IBV_WC_RECV_RDMA_WITH_IMM ||
          in.imm_data != round || in.byte_len != size_of(round) ||
          !test::matches(side.bytes(kTarget + slot, size_of(round)), other_seed + round))
        return false;
      side.sent.pop_front();
      side.received.pop_front();
      if (side.post_recv(round, {}) != 0) return false;
    }
    return true;
  });
}

// READs and atomics from both sides while the other side is busy with its own.
TEST_P(Threads, ReadsAndAtomicsBothWays) {
  const std::uint64_t count = rounds(5000);
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  for (Side* side : {&a, &b}) {
    test::fill(side->bytes(0, 4096), side == &a ? 1 : 2);
    side->word(kTarget) = 0;
  }
  run_both([&](Side& side, Side& other) {
    const auto wait = [&](std::uint64_t wr_id) {
      if (!poll_until(side, [&] { return !side.sent.empty(); })) return false;
      const bool well = side.sent.front().status == IBV_WC_SUCCESS && side.sent.front().wr_id == wr_id;
      side.sent.pop_front();
      return well;
    };
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::size_t size = 1 + i % 4096;
      if (Request(IBV_WR_RDMA_READ, i).gather(side.sge(8192, size)).remote(other, 0).post(side) != 0 || !wait(i) ||
          !test::matches(side.bytes(8192, size), &side == &a ? 2 : 1))
        return false;
      if (Request(IBV_WR_ATOMIC_FETCH_AND_ADD, i)
                  .gather(side.sge(16384, 8))
                  .atomic(other.address(kTarget), other.rkey(), 1)
                  .post(side) != 0 ||
          !wait(i) || side.word(16384) != i)
        return false;
    }
    return true;
  });
  EXPECT_EQ(a.word(kTarget), count);
  EXPECT_EQ(b.word(kTarget), count);
}

// Two initiators, in their own threads, on one word of b: nothing is lost, and no value is seen twice.
TEST_P(Threads, AtomicsOnOneWord) {
  const std::uint64_t count = rounds(5000);
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  Side c;  // A second initiator beside a, with queues of its own.
  c.nic = a.nic;
  ASSERT_NO_FATAL_FAILURE(make(c, {}));
  const Qp target = make_qp(b, b.qp_options);
  ASSERT_TRUE(target);
  ASSERT_NO_FATAL_FAILURE(connect(c, c.qp.get(), b, target.get()));
  ASSERT_NO_FATAL_FAILURE(import(c, b, b.mr.get()));
  b.word(kTarget) = 0;
  const auto add = [&](Side& side, std::vector<std::uint64_t>& seen) {
    for (std::uint64_t i = 0; i < count; ++i) {
      if (Request(IBV_WR_ATOMIC_FETCH_AND_ADD, i)
              .gather(side.sge(0, 8))
              .atomic(b.address(kTarget), b.rkey(), 1)
              .post(side) != 0)
        return;
      if (!poll_until(side, [&] { return !side.sent.empty(); })) return;
      if (side.sent.front().status != IBV_WC_SUCCESS) return;
      side.sent.pop_front();
      seen.push_back(side.word(0));
    }
  };
  std::vector<std::uint64_t> seen_a, seen_c;
  std::thread other([&] { add(c, seen_c); });
  add(a, seen_a);
  other.join();
  EXPECT_EQ(b.word(kTarget), 2 * count);
  EXPECT_TRUE(std::is_sorted(seen_a.begin(), seen_a.end()));
  EXPECT_TRUE(std::is_sorted(seen_c.begin(), seen_c.end()));
  std::vector<std::uint64_t> all(seen_a);
  all.insert(all.end(), seen_c.begin(), seen_c.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), 2 * count);
  for (std::uint64_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i);
  c.close();
}

// A request may fail while it is posted, which changes the lists of its completion queue. Another thread makes and
// destroys queue pairs of the same completion queues meanwhile, as one does that accepts connections. TSan is the
// judge.
TEST_P(Threads, RequestsFailWhileQueuePairsAreMade) {
  const std::uint64_t count = rounds(100);
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  std::atomic<bool> has_begun = false;
  const std::jthread maker([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const Qp first = make_qp(a, a.qp_options), second = make_qp(a, a.qp_options);
      has_begun = true;
      has_begun.notify_one();
      if (!first || !second) return;
    }
  });
  has_begun.wait(false);
  for (std::uint64_t i = 0; i < count && !HasFatalFailure(); ++i) {
    const Qp one = make_qp(a, a.qp_options), other = make_qp(b, b.qp_options);
    connect(a, one.get(), b, other.get());
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, i).gather(a.sge(0, 8)).remote(b.address(kTarget), 0).post(one.get()), 0);
    const auto completions = sent(a, 1);
    EXPECT_TRUE(failed_as(completions[0], i, IBV_WC_REM_ACCESS_ERR));
  }
}

// The target polls its memory, as many codes do, instead of a queue: the last word is there last.
TEST_P(Threads, PolledMemory) {
  const std::uint64_t count = rounds(3000);
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  for (Side* side : {&a, &b}) side->word(kTarget) = 0;
  const auto arrives = [](Side& side, std::uint64_t value) {
    return poll_until(side,
                      [&] { return std::atomic_ref(side.word(kTarget)).load(std::memory_order_acquire) == value; });
  };
  run_both([&](Side& side, Side& other) {
    for (std::uint64_t round = 1; round <= count; ++round) {
      if (&side == &b && !arrives(side, round)) return false;
      if (Request(IBV_WR_ATOMIC_FETCH_AND_ADD, round)
              .gather(side.sge(0, 8))
              .atomic(other.address(kTarget), other.rkey(), 1)
              .post(side) != 0)
        return false;
      if (!poll_until(side, [&] { return !side.sent.empty(); })) return false;
      if (side.sent.front().status != IBV_WC_SUCCESS) return false;
      side.sent.pop_front();
      if (&side == &a && !arrives(side, round)) return false;
    }
    return true;
  });
}

}  // namespace
}  // namespace verbena::nic::conformance
