// Blocking one-sided access: results, checks, budgets, deadlines, quarantine.
#include "fixture.hpp"

#include <chaos.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace verbena::channel::test {
namespace {

class TransferTest : public MemoryPair {
 protected:
  void SetUp() override { open(); }
};

TEST_F(TransferTest, ReadsAndWritesRegisteredMemory) {
  fill(target->bytes(), 1);
  EXPECT_EQ(here().read(local->local(0, 65536), target->remote(0, 65536), patience()), Status::kOk);
  EXPECT_TRUE(matches(local->bytes(), 1));
  for (const std::size_t length : {1U, 8U, 256U, 257U, 5000U, 65536U}) {
    fill(local->bytes(), length);
    EXPECT_EQ(here().write(local->local(0, length), target->remote(0, length), patience()), Status::kOk);
    EXPECT_TRUE(matches(target->bytes().first(length), length));
  }
  EXPECT_EQ(here().read(local->local(0, 0), target->remote(0, 0), patience()), Status::kBadArgument);
}

TEST_F(TransferTest, ReadsAndWritesAnyMemoryThroughBounceBuffers) {
  std::vector<std::byte> mine(50'000);
  fill(mine, 5);
  EXPECT_EQ(here().write(std::span<const std::byte>(mine), target->remote(100, 60'000), patience()), Status::kOk);
  EXPECT_TRUE(matches(target->bytes().subspan(100, 50'000), 5));
  std::ranges::fill(mine, std::byte{0});
  EXPECT_EQ(here().read(std::span(mine), target->remote(100, 50'000), patience()), Status::kOk);
  EXPECT_TRUE(matches(mine, 5));
}

TEST_F(TransferTest, AtomicsReturnWhatWasThere) {
  std::uint64_t old = 99;
  EXPECT_EQ(fetch_add(word(64), 5, old, patience()), Status::kOk);
  EXPECT_EQ(old, 0u);
  EXPECT_EQ(fetch_add(word(64), 7, old, patience()), Status::kOk);
  EXPECT_EQ(old, 5u);
  EXPECT_EQ(compare_swap(word(64), 11, 1, old, patience()), Status::kOk);
  EXPECT_EQ(old, 12u);
  EXPECT_EQ(compare_swap(word(64), 12, 1, old, patience()), Status::kOk);
  EXPECT_EQ(fetch_add(word(64), 0, old, patience()), Status::kOk);
  EXPECT_EQ(old, 1u);
  EXPECT_EQ(fetch_add(word(65), 0, old, patience()), Status::kBadArgument);
}

TEST_F(TransferTest, ChecksBeforeAnythingIsPosted) {
  Region read_only(*b.nic, b.pd.get(), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  const std::uint64_t before = a.loop->counters().work_requests;
  std::uint64_t old = 0;
  EXPECT_EQ(here().read(local->local(0, 8), read_only.remote(0, 8), patience()), Status::kNotFound);
  ASSERT_OK(here().import_window(read_only.window(), patience()));
  EXPECT_EQ(here().write(local->local(0, 8), read_only.remote(0, 8), patience()), Status::kRemoteAccess);
  EXPECT_EQ(fetch_add(read_only.remote(0, 8), 1, old, patience()), Status::kRemoteAccess);
  EXPECT_EQ(here().read(local->local(0, 7), target->remote(0, 8), patience()), Status::kBadArgument);
  EXPECT_EQ(here().write(local->local(0, 8), target->remote(0, 7), patience()), Status::kBadArgument);
  EXPECT_EQ(here().read(local->local(0, 8), target->remote(65536 - 7, 8), patience()), Status::kOutOfRange);
  EXPECT_EQ(here().read(local->local(0, 8), target->remote(~std::size_t{7}, 8), patience()), Status::kOutOfRange);
  EXPECT_EQ(a.loop->counters().work_requests, before);
  ASSERT_OK(here().release_window(read_only.window()));
  EXPECT_EQ(here().read(local->local(0, 8), read_only.remote(0, 8), patience()), Status::kNotFound);
  EXPECT_TRUE(here().alive());
}

TEST_F(TransferTest, EachCallIsOneRequestOneDoorbellOneCompletion) {
  std::uint64_t old = 0;
  std::byte mine[64]{};
  const auto once = [&] {
    return here().read(local->local(0, 8), target->remote(0, 8), patience()) == Status::kOk &&
           here().write(local->local(0, 4096), target->remote(0, 4096), patience()) == Status::kOk &&
           here().read(std::span(mine), target->remote(0, 64), patience()) == Status::kOk &&
           here().write(std::span<const std::byte>(mine), target->remote(0, 64), patience()) == Status::kOk &&
           fetch_add(word(0), 1, old, patience()) == Status::kOk;
  };
  ASSERT_TRUE(once());
  const engine::Counters before = a.loop->counters();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(once());
  const engine::Counters after = a.loop->counters();
  EXPECT_EQ(after.work_requests - before.work_requests, 1000u);
  // What the software NIC does at once needs neither.
  const std::uint64_t direct = after.direct - before.direct;
  EXPECT_EQ(after.doorbells - before.doorbells, 1000u - direct);
  EXPECT_EQ(after.completions - before.completions, 1000u - direct);
  EXPECT_EQ(direct, a.nic->direct() != nullptr && !verbena::test::in_chaos() ? 1000u : 0u);
  EXPECT_EQ(after.sleeps, before.sleeps);
  EXPECT_EQ(after.quarantined, 0u);
}

TEST_F(TransferTest, WhoOnlyCallsBlockingPollsAllTheSame) {
  const engine::Counters before = a.loop->counters();
  for (int i = 0; i < 64; ++i) {
    ASSERT_EQ(here().read(local->local(0, 8), target->remote(0, 8), patience()), Status::kOk);
  }
  const engine::Counters after = a.loop->counters();
  EXPECT_GE(after.empty_polls + after.completions - before.empty_polls - before.completions, 4u);
}

TEST_F(TransferTest, ABlockingCallComesAfterWhatWasStarted) {
  fill(local->bytes(), 5);
  ASSERT_EQ(here().start_write(local->local(0, 8), target->remote(0, 8), 7), Status::kOk);
  ASSERT_EQ(here().read(local->local(32, 8), target->remote(0, 8), patience()), Status::kOk);
  EXPECT_EQ(std::memcmp(local->bytes().data() + 32, local->bytes().data(), 8), 0);
  // A batch that waits for its doorbell is ahead too.
  here().hold();
  ASSERT_EQ(here().start_write(local->local(8, 8), target->remote(0, 8), 8), Status::kOk);
  ASSERT_EQ(here().read(local->local(64, 8), target->remote(0, 8), patience()), Status::kOk);
  here().release();
  EXPECT_EQ(std::memcmp(local->bytes().data() + 64, local->bytes().data() + 8, 8), 0);
  ASSERT_TRUE(until([&] { return a.recorder.completions.size() == 2; }));
  EXPECT_TRUE(a.recorder.completed(0, 7));
  EXPECT_TRUE(a.recorder.completed(1, 8));
}

TEST_F(TransferTest, HeldCompletionsHoldBlockingCallsToo) {
  VERBENA_SKIP_ON_A_DEVICE("completions cannot be held");
  std::byte mine[64]{};
  test::hold_completions(here().queue_pair()->send_cq, true);
  EXPECT_EQ(here().read(std::span(mine), target->remote(0, 64), Deadline::after(std::chrono::milliseconds{5})),
            Status::kTimedOut);
  test::hold_completions(here().queue_pair()->send_cq, false);
  EXPECT_EQ(here().read(std::span(mine), target->remote(0, 64), patience()), Status::kOk);
}

TEST_F(TransferTest, RefusesAKeyThatIsNotOurs) {
  engine::LocalSpan wrong = local->local(0, 16384);
  wrong.lkey = target->window().rkey;
  const Status status = here().write(wrong, target->remote(0, 16384), patience());
  // Soft-RoCE completes it as an error of the queue pair.
  EXPECT_EQ(status, device_under_test() == nullptr ? Status::kLocalAccess : Status::kDevice);
  EXPECT_FALSE(here().alive());
}

TEST_F(TransferTest, RefusesToReadWithAKeyThatIsNotOurs) {
  engine::LocalSpan wrong = local->local(0, 8);
  wrong.lkey = target->window().rkey;
  EXPECT_EQ(here().read(wrong, target->remote(0, 8), patience()), Status::kLocalAccess);
  EXPECT_FALSE(here().alive());
}

TEST_F(TransferTest, OurMemoryGoesToQuarantineUntilTheNicIsDoneWithIt) {
  VERBENA_SKIP_ON_A_DEVICE("the execution of posted requests cannot be held");
  const auto soon = [] { return Deadline::after(std::chrono::milliseconds{5}); };
  std::byte mine[64]{};
  std::uint64_t old = 77;
  fill(target->bytes(), 3);
  test::hold_execution(here().queue_pair(), true);
  EXPECT_EQ(here().read(std::span(mine), target->remote(0, 64), soon()), Status::kTimedOut);
  EXPECT_EQ(fetch_add(word(128), 1, old, soon()), Status::kTimedOut);
  EXPECT_EQ(old, 77u);
  EXPECT_EQ(a.loop->counters().quarantined, 2u);
  EXPECT_TRUE(here().alive());
  // All chunks are in quarantine: nothing is posted into them.
  for (std::uint32_t i = 1; i < Bounce::kChunks; ++i)
    EXPECT_EQ(here().read(std::span(mine), target->remote(0, 64), soon()), Status::kTimedOut);
  EXPECT_EQ(a.loop->counters().quarantined, 1 + Bounce::kChunks);
  const std::uint64_t posted = a.loop->counters().work_requests;
  EXPECT_EQ(here().read(std::span(mine), target->remote(0, 64), soon()), Status::kTimedOut);
  EXPECT_EQ(a.loop->counters().work_requests, posted);
  test::hold_execution(here().queue_pair(), false);
  EXPECT_EQ(here().read(std::span(mine), target->remote(0, 64), patience()), Status::kOk);
  EXPECT_TRUE(matches(mine, 3));
  EXPECT_EQ(a.loop->wait_until([&] { return a.loop->counters().quarantined == 0; }, patience()), Status::kOk);
  EXPECT_TRUE(here().alive());
}

TEST_F(TransferTest, QuarantineEndsWithTheConnection) {
  std::byte mine[64]{};
  hold();
  EXPECT_EQ(here().read(std::span(mine), target->remote(0, 64), Deadline::after(std::chrono::milliseconds{5})),
            Status::kTimedOut);
  EXPECT_EQ(a.loop->counters().quarantined, 1u);
  a.connection.reset();
  EXPECT_EQ(a.loop->counters().quarantined, 0u);
}

TEST_F(TransferTest, CallersMemoryIsDrainedBeforeACallThatTimesOutReturns) {
  fill(local->bytes(), 8);
  fill(target->bytes(), 9);
  hold();
  EXPECT_EQ(here().read(local->local(0, 4096), target->remote(0, 4096), Deadline::after(std::chrono::milliseconds{5})),
            Status::kTimedOut);
  EXPECT_TRUE(here().drained());
  EXPECT_EQ(here().failure(), Status::kTimedOut);
  if (device_under_test() == nullptr && here().queue_pair() != nullptr)
    test::hold_execution(here().queue_pair(), false);
  for (int i = 0; i < 100; ++i) a.loop->poll();
  EXPECT_TRUE(matches(local->bytes(), 8)) << "nothing lands late";
  EXPECT_EQ(here().read(local->local(0, 8), target->remote(0, 8), patience()), Status::kTimedOut);
  EXPECT_EQ(a.loop->counters().quarantined, 0u);
}

TEST_F(TransferTest, DeathInACallLeavesNothingInQuarantine) {
  const auto gone = target->remote(0, 64);
  target.reset();
  std::byte mine[64]{};
  EXPECT_EQ(here().read(std::span(mine), gone, patience()), Status::kRemoteAccess);
  EXPECT_EQ(a.loop->wait_until([&] { return here().drained(); }, patience()), Status::kOk);
  EXPECT_EQ(a.loop->counters().quarantined, 0u);
}

// A device takes less in one request than a connection moves in one call: Soft-RoCE 8 MiB.
TEST_F(TransferTest, TransfersMoreThanTheNicTakesAtOnce) {
  constexpr std::size_t kMoreThanOneRequest = (9u << 20) + 100;
  Region there(*b.nic, b.pd.get(), kMoreThanOneRequest);
  Region mine(*a.nic, a.pd.get(), kMoreThanOneRequest);
  ASSERT_OK(here().import_window(there.window(), patience()));
  fill(mine.bytes(), 1);
  ASSERT_EQ(here().write(mine.local(0, kMoreThanOneRequest), there.remote(0, kMoreThanOneRequest), patience()),
            Status::kOk);
  EXPECT_TRUE(matches(there.bytes(), 1));
  fill(there.bytes(), 2);
  ASSERT_EQ(here().read(mine.local(0, kMoreThanOneRequest), there.remote(0, kMoreThanOneRequest), patience()),
            Status::kOk);
  EXPECT_TRUE(matches(mine.bytes(), 2));
}

TEST_F(TransferTest, LeavesNothingBehind) {
  a.connection.reset();
  b.connection.reset();
  target.reset();
  local.reset();
  for (Side* side : {&a, &b}) {
    side->close();
    // The soft NIC hears from the other side's when a peer is no more.
    const Deadline deadline = patience();
    while (side->nic->objects() != nic::Nic::Objects{} && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(side->nic->objects(), nic::Nic::Objects{});
  }
}

TEST_F(TransferTest, RefusalOfThePeersNicKillsTheConnectionWithItsReason) {
  const auto gone = target->remote(0, 8);
  target.reset();
  EXPECT_EQ(here().read(local->local(0, 8), gone, patience()), Status::kRemoteAccess);
  EXPECT_FALSE(here().alive());
  EXPECT_TRUE(here().drained()) << "the caller's memory was in flight";
  EXPECT_EQ(here().read(local->local(0, 8), gone, patience()), Status::kRemoteAccess);
}

// A full queue is waited for, and not for longer than the caller says.
TEST_F(TransferTest, AFullSendQueueIsWaitedForUntilTheDeadline) {
  VERBENA_SKIP_ON_A_DEVICE("what is posted there completes with an error, in half a second");
  fill(local->bytes(), 1);
  hold();
  const auto write = [&](std::size_t page, Deadline deadline) {
    return here().write(local->local(page * 8, 8), target->remote(page * 8, 8), deadline);
  };
  const auto posted = [&] { return a.loop->counters().work_requests; };
  // Inline, so that giving up leaves the connection alive.
  std::size_t writes = 0;
  for (std::uint64_t before = ~std::uint64_t{0}; posted() != before; ++writes) {
    ASSERT_LT(writes, 1000u);
    before = posted();
    ASSERT_EQ(write(writes, Deadline::now()), Status::kTimedOut);
  }
  const std::uint64_t full = posted();
  EXPECT_GE(full, 64u);
  const Deadline deadline = Deadline::after(std::chrono::milliseconds{5});
  EXPECT_EQ(write(0, deadline), Status::kTimedOut);
  EXPECT_TRUE(deadline.passed());
  EXPECT_EQ(here().start_write(local->local(0, 8), target->remote(0, 8), 0), Status::kAgain);
  EXPECT_EQ(here().read(local->local(0, 8), target->remote(0, 8), Deadline::now()), Status::kTimedOut);
  EXPECT_EQ(posted(), full) << "there is no room";
  EXPECT_TRUE(here().alive());
  test::hold_execution(here().queue_pair(), false);
  ASSERT_EQ(write(writes, patience()), Status::kOk);
  EXPECT_TRUE(matches(target->bytes().first(full * 8), 1)) << "what was given up was posted, and is done in order";
}

/// Two sides whose NICs are late, and a connection between them.
struct LatePair {
  static constexpr std::size_t kPage = 1024;
  static constexpr std::size_t kPages = 16;
  explicit LatePair(std::uint64_t seed) {
    const LateNics late(seed);
    a = std::make_unique<Side>();
    b = std::make_unique<Side>();
    target = std::make_unique<Region>(*b->nic, b->pd.get(), kPage * kPages);
    connect(*a, *b, {}, {});
    EXPECT_OK(here().import_window(target->window(), patience()));
    for (std::size_t page = 0; page < kPages; ++page) fill_page(page, page);
  }
  [[nodiscard]] Connection& here() const { return *a->connection; }
  void fill_page(std::size_t page, std::uint64_t seed) const { fill(bytes(page), seed); }
  [[nodiscard]] std::span<std::byte> bytes(std::size_t page) const {
    return target->bytes().subspan(page * kPage, kPage);
  }
  /// Through a bounce buffer, waited for: what is staged must arrive.
  [[nodiscard]] testing::AssertionResult write(std::size_t page, std::uint64_t seed) {
    std::array<std::byte, kPage> mine{};
    fill(mine, seed);
    const Status status =
        here().write(std::span<const std::byte>(mine), target->remote(page * kPage, kPage), patience());
    if (status != Status::kOk) return testing::AssertionFailure() << to_string(status);
    return matches(bytes(page), seed);
  }
  /// Soon over, and differently soon.
  [[nodiscard]] static Deadline soon(std::uint64_t i) { return Deadline::after(std::chrono::nanoseconds(i % 7 * 300)); }

  std::unique_ptr<Side> a, b;
  std::unique_ptr<Region> target;
};

// Under chaos completions come late, in pieces, and out of proportion to deadlines: calls give up by the hundred, and
// the next one must not stage its bytes where the data of the last one is still to land.
TEST(LateData, NeverTouchesMemoryThatWasHandedOutAgain) {
  if (device_under_test() != nullptr) GTEST_SKIP() << "on an RDMA device: chaos is the soft NIC's";
  std::uint64_t timeouts = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    LatePair late(seed);
    if (HasFailure()) return;
    std::array<std::byte, LatePair::kPage> mine{};
    std::array<std::uint64_t, LatePair::kPages> holds{};
    std::iota(holds.begin(), holds.end(), 0);
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const std::size_t page = i * 7 % LatePair::kPages;
      const engine::RemoteSpan there = late.target->remote(page * LatePair::kPage, LatePair::kPage);
      const Status status = late.here().read(std::span(mine), there, LatePair::soon(i));
      timeouts += status == Status::kTimedOut ? 1 : 0;
      if (status == Status::kOk) {
        ASSERT_TRUE(matches(mine, holds[page])) << "read " << i;
      }
      const std::size_t other = i * 5 % LatePair::kPages;
      ASSERT_TRUE(late.write(other, holds[other] = 1000 + i)) << "write " << i;
    }
    EXPECT_TRUE(late.here().alive());
  }
  EXPECT_GT(timeouts, 100u);
}

// What an atomic finds lands in a buffer of ours, too. Those given up happen nevertheless, once each and in order.
TEST(LateData, OfAtomicsNeverTouchesMemoryThatWasHandedOutAgain) {
  if (device_under_test() != nullptr) GTEST_SKIP() << "on an RDMA device: chaos is the soft NIC's";
  std::uint64_t timeouts = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    LatePair late(seed);
    if (HasFailure()) return;
    const RemoteSpan word = late.target->remote(0, 8);
    std::memset(late.bytes(0).data(), 0, 8);
    constexpr std::uint64_t kAtomics = 1000;
    for (std::uint64_t i = 0; i < kAtomics; ++i) {
      std::uint64_t old = ~std::uint64_t{0};
      const Status status =
          late.here().change(i % 2 == 0 ? Change{.compare_add = 1} : swap_of(i, i + 1), word, old, LatePair::soon(i));
      timeouts += status == Status::kTimedOut ? 1 : 0;
      ASSERT_TRUE(status == Status::kOk || status == Status::kTimedOut) << to_string(status);
      ASSERT_EQ(old, status == Status::kOk ? i : ~std::uint64_t{0});
      ASSERT_TRUE(late.write(1 + i % (LatePair::kPages - 1), 1000 + i)) << "write " << i;
    }
    std::uint64_t old = 0;
    EXPECT_EQ(late.here().change({.compare_add = 0}, word, old, patience()), Status::kOk);
    EXPECT_EQ(old, kAtomics);
  }
  EXPECT_GT(timeouts, 100u);
}

}  // namespace
}  // namespace verbena::channel::test
