// The faults that the soft NIC makes on purpose: each kind is seen, ends as verbs says, and repeats with its seed.
#include "nic/soft/chaos.hpp"

#include "../conformance/fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace verbena::nic {
namespace {

using conformance::Bare;
using conformance::Case;
using conformance::failed;
using conformance::Layout;
using Post = conformance::Request;
using conformance::succeeded;
using soft::Dice;
using soft::parse_chaos;
using soft::Pieces;

// --- the parts

TEST(ChaosOptions, AreReadFromText) {
  const auto read = parse_chaos("delay=0.25,pieces=1,hold=0.5,rnr=0,retry=0.125,fatal=1e-3,death=0.0,seed=77");
  ASSERT_OK(read);
  EXPECT_EQ(read->seed, 77u);
  EXPECT_EQ(read->delay, 0.25);
  EXPECT_EQ(read->pieces, 1);
  EXPECT_EQ(read->hold, 0.5);
  EXPECT_EQ(read->retry, 0.125);
  EXPECT_EQ(read->fatal, 1e-3);
  ASSERT_OK(parse_chaos(""));
  EXPECT_EQ(parse_chaos("")->delay, 0);
}

TEST(ChaosOptions, ThatMakeNoSenseAreRefused) {
  for (const char* wrong : {"delay", "delay=", "delay=x", "delay=0.5x", "delay=-0.1", "hold=1.5", "hold=nan", "seed=-1",
                            "seed=0.5", "speed=1", "=1", ",", "delay=0.1;hold=0.1"}) {
    EXPECT_STATUS(parse_chaos(wrong), Status::kBadArgument) << wrong;
  }
  EXPECT_STATUS(open_soft({.chaos = ChaosOptions{.rnr = 2}}), Status::kBadArgument);
}

TEST(ChaosOptions, ComeFromTheEnvironment) {
  ::setenv("VERBENA_CHAOS", "nonsense", 1);
  const auto refused = open_soft({});
  ::setenv("VERBENA_CHAOS", "delay=0.5", 1);
  ::setenv("VERBENA_CHAOS_SEED", "9", 1);
  const auto read = soft::chaos_of_environment();
  ::setenv("VERBENA_CHAOS_SEED", "nine", 1);
  const auto wrong_seed = soft::chaos_of_environment();
  ::unsetenv("VERBENA_CHAOS");
  ::unsetenv("VERBENA_CHAOS_SEED");
  EXPECT_STATUS(refused, Status::kBadArgument);
  EXPECT_STATUS(wrong_seed, Status::kBadArgument);
  ASSERT_OK(read);
  ASSERT_TRUE(read->has_value());
  EXPECT_EQ((*read)->seed, 9u);
  EXPECT_EQ((*read)->delay, 0.5);
  EXPECT_FALSE(soft::chaos_of_environment()->has_value());
}

TEST(Pieces, CoverEveryByteOnceInWholeLines) {
  Dice dice(3);
  bool is_shuffled = false;
  for (const std::uint64_t bytes : {1ULL, 63ULL, 64ULL, 65ULL, 200ULL, 4096ULL, 64ULL * Pieces::kMost, 1'000'003ULL}) {
    for (const std::uint64_t address : {0ULL, 1ULL, 60ULL, 63ULL, 12345ULL}) {
      Pieces pieces;
      pieces.begin(address, bytes, dice);
      ASSERT_LE(pieces.count(), Pieces::kMost);
      std::vector<bool> seen(bytes);
      std::uint64_t last = 0;
      while (!pieces.done()) {
        const Pieces::Piece piece = pieces.take();
        ASSERT_GT(piece.bytes, 0u);
        ASSERT_LE(piece.offset + piece.bytes, bytes);
        ASSERT_TRUE(piece.offset == 0 || (address + piece.offset) % 64 == 0);
        for (std::uint64_t i = piece.offset; i < piece.offset + piece.bytes; ++i) {
          ASSERT_FALSE(seen[i]);
          seen[i] = true;
        }
        is_shuffled |= piece.offset < last;
        last = piece.offset;
      }
      EXPECT_EQ(std::ranges::count(seen, true), static_cast<std::ptrdiff_t>(bytes));
    }
  }
  EXPECT_TRUE(is_shuffled);
}

// --- the NIC

ChaosOptions chosen;
Result<std::unique_ptr<Nic>> open_chosen() { return open_soft({.chaos = chosen}); }

class Chaos : public Bare {
 protected:
  void SetUp() override {}
  void begin(const ChaosOptions& options, const conformance::SideOptions& sides = {}) {
    chosen = options;
    Bare::SetUp();
    make_pair(sides);
  }
  /// Polls until `side` has `count` send completions, or gives up; how many polls that took.
  std::size_t polls_for(conformance::Side& side, std::size_t count) {
    std::size_t polls = 0;
    while (side.sent.size() < count && polls < 100'000) {
      poll_both();
      ++polls;
    }
    EXPECT_EQ(side.sent.size(), count);
    return polls;
  }
  /// What a fixed program meets: polls until each of its completions. Reads, writes and sends of several sizes.
  std::vector<std::size_t> trace() {
    std::vector<std::size_t> polls;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const std::size_t bytes = 1 + (i * 397) % 3000;
      if (i % 3 == 0) {
        EXPECT_EQ(b.post_recv(1000 + i, b.sge(0, 4096)), 0);
      }
      const ibv_wr_opcode opcode = i % 3 == 0 ? IBV_WR_SEND : i % 3 == 1 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
      Post request(opcode, i);
      request.gather(a.sge(8192, bytes));
      if (opcode != IBV_WR_SEND) request.remote(b, 16384);
      EXPECT_EQ(request.post(a), 0);
      polls.push_back(polls_for(a, 1));
      a.sent.clear();
    }
    return polls;
  }
};

TEST_P(Chaos, RepeatsWithItsSeed) {
  const ChaosOptions options{.seed = 5, .delay = 0.3, .pieces = 0.5, .hold = 0.3, .rnr = 0.3};
  std::vector<std::vector<std::size_t>> traces;
  for (const std::uint64_t seed : {5U, 5U, 6U}) {
    begin({.seed = seed, .delay = options.delay, .pieces = options.pieces, .hold = options.hold, .rnr = options.rnr});
    traces.push_back(trace());
    TearDown();
  }
  EXPECT_EQ(traces[0], traces[1]);
  EXPECT_NE(traces[0], traces[2]);
  EXPECT_GT(*std::ranges::max_element(traces[0]), 2u);
}

TEST_P(Chaos, PiecesLandOverSeveralPolls) {
  begin({.pieces = 1});
  constexpr std::size_t kBytes = 4096;
  std::ranges::fill(a.bytes(0, kBytes), std::byte{7});
  ASSERT_EQ(Post(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, kBytes)).remote(b, 0).post(a), 0);
  bool was_torn = false;
  for (int i = 0; i < 10'000 && a.sent.empty(); ++i) {
    const auto landed = std::ranges::count(b.bytes(0, kBytes), std::byte{7});
    was_torn |= landed != 0 && landed != kBytes;
    EXPECT_EQ(landed % 64, 0);
    poll_both();
  }
  EXPECT_TRUE(was_torn);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  EXPECT_EQ(std::ranges::count(b.bytes(0, kBytes), std::byte{7}), static_cast<std::ptrdiff_t>(kBytes));
  // And the other way, into two segments that do not end on a line.
  ASSERT_EQ(
      Post(IBV_WR_RDMA_READ, 2).gather(a.sge(10'001, 1000)).gather(a.sge(20'003, kBytes - 1000)).remote(b, 0).post(a),
      0);
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_READ));
  EXPECT_EQ(std::ranges::count(a.bytes(10'001, 1000), std::byte{7}), 1000);
  EXPECT_EQ(std::ranges::count(a.bytes(20'003, kBytes - 1000), std::byte{7}), 3096);
}

TEST_P(Chaos, ImmediateComesAfterItsPieces) {
  begin({.delay = 0.5, .pieces = 1, .hold = 0.5});
  constexpr std::size_t kBytes = 2048;
  for (std::uint8_t round = 1; round <= 20; ++round) {
    ASSERT_EQ(b.post_recv(round, b.sge(100'000, 64)), 0);
    std::ranges::fill(a.bytes(0, kBytes), std::byte{round});
    ASSERT_EQ(Post(IBV_WR_RDMA_WRITE_WITH_IMM, round).gather(a.sge(0, kBytes)).remote(b, 0).immediate(round).post(a),
              0);
    EXPECT_TRUE(succeeded(received(b), round, IBV_WC_RECV_RDMA_WITH_IMM));
    EXPECT_EQ(std::ranges::count(b.bytes(0, kBytes), std::byte{round}), static_cast<std::ptrdiff_t>(kBytes));
    EXPECT_TRUE(succeeded(sent(a), round, IBV_WC_RDMA_WRITE));
  }
}

TEST_P(Chaos, SleepersAreWokenAllTheSame) {
  begin({.delay = 0.7, .pieces = 0.5, .hold = 0.7, .rnr = 0.5});
  for (std::uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(b.post_recv(i, b.sge(0, 4096)), 0);
    ASSERT_EQ(Post(IBV_WR_SEND, i).gather(a.sge(0, 1000)).post(a), 0);
    ASSERT_NO_FATAL_FAILURE(a.sleep_until_sent());
    EXPECT_TRUE(succeeded(a.sent.front(), i, IBV_WC_SEND));
    a.sent.clear();
    EXPECT_TRUE(succeeded(received(b), i, IBV_WC_RECV));
  }
}

TEST_P(Chaos, RetryExceededMayHaveBeenExecuted) {
  int executed = 0, not_executed = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    begin({.seed = seed, .retry = 1});
    std::ranges::fill(a.bytes(0, 200), std::byte{9});
    ASSERT_EQ(Post(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 200)).remote(b, 0).post(a), 0);
    EXPECT_TRUE(failed(sent(a), 1, IBV_WC_RETRY_EXC_ERR));
    EXPECT_EQ(a.state(), IBV_QPS_ERR);
    EXPECT_EQ(a.nic->qp_failure(a.qp.get()), Status::kRetryExceeded);
    const auto landed = std::ranges::count(b.bytes(0, 200), std::byte{9});
    ++(landed == 0 ? not_executed : executed);
    EXPECT_TRUE(landed == 0 || landed == 200) << landed;
    TearDown();
  }
  EXPECT_GT(executed, 0);
  EXPECT_GT(not_executed, 0);
}

TEST_P(Chaos, RnrCountsAgainstItsRetries) {
  begin({.rnr = 1}, {.rnr_retry = 0});
  ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
  ASSERT_EQ(Post(IBV_WR_SEND, 1).gather(a.sge(0, 64)).post(a), 0);
  EXPECT_TRUE(failed(sent(a), 1, IBV_WC_RNR_RETRY_EXC_ERR));
  EXPECT_EQ(a.nic->qp_failure(a.qp.get()), Status::kRnrExceeded);
  TearDown();
  begin({.rnr = 1}, {.rnr_retry = 7});
  ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
  ASSERT_EQ(Post(IBV_WR_SEND, 1).gather(a.sge(0, 64)).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_SEND));
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
}

TEST_P(Chaos, FatalErrorAndDeathFlushWhatIsBehind) {
  struct Ending {
    ChaosOptions chaos;
    ibv_wc_status status;
    Status failure;
  };
  for (const Ending& ending : {Ending{{.fatal = 1}, IBV_WC_FATAL_ERR, Status::kDevice},
                               Ending{{.death = 1}, IBV_WC_RETRY_EXC_ERR, Status::kPeerLost}}) {
    begin(ending.chaos);
    for (std::uint64_t i = 1; i <= 3; ++i) {
      ASSERT_EQ(Post(IBV_WR_RDMA_WRITE, i).gather(a.sge(0, 8)).remote(b, 0).post(a), 0);
    }
    const std::vector<ibv_wc> ends = sent(a, 3);
    EXPECT_TRUE(failed(ends[0], 1, ending.status));
    EXPECT_TRUE(failed(ends[1], 2, IBV_WC_WR_FLUSH_ERR));
    EXPECT_TRUE(failed(ends[2], 3, IBV_WC_WR_FLUSH_ERR));
    EXPECT_EQ(a.nic->qp_failure(a.qp.get()), ending.failure);
    TearDown();
  }
}

INSTANTIATE_TEST_SUITE_P(Nics, Chaos,
                         testing::Values(Case{"soft", Layout::kTwoNics, open_chosen, 0},
                                         Case{"soft", Layout::kOneNic, open_chosen, 0}),
                         conformance::name_of);

}  // namespace
}  // namespace verbena::nic
