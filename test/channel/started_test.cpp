// Operations that are started and completed later: order, limits, batches, handlers, failures.
#include "fixture.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace verbena::channel::test {
namespace {

class Started : public MemoryPair {
 protected:
  // Counted, so that a test can wait for the end of all.
  [[nodiscard]] Status counted(Status status) {
    begun_ += status == Status::kOk ? 1 : 0;
    return status;
  }
  [[nodiscard]] Status start_write(LocalSpan from, RemoteSpan to, std::uint64_t token) {
    return counted(here().start_write(from, to, token));
  }
  [[nodiscard]] Status start_read(LocalSpan to, RemoteSpan from, std::uint64_t token) {
    return counted(here().start_read(to, from, token));
  }
  [[nodiscard]] Status start_fetch_add(RemoteSpan at, std::uint64_t delta, std::uint64_t token) {
    return counted(here().start_change({.compare_add = delta}, at, token));
  }
  [[nodiscard]] Status start_compare_swap(RemoteSpan at, std::uint64_t expected, std::uint64_t desired,
                                          std::uint64_t token) {
    return counted(here().start_change(swap_of(expected, desired), at, token));
  }
  [[nodiscard]] Status write(std::uint32_t i) {
    return start_write(local->local(i * 8, 8), target->remote(i * 8, 8), i);
  }
  [[nodiscard]] std::uint64_t under_way() const { return begun_ - mine.completions.size(); }
  [[nodiscard]] bool until_quiet() {
    return until([&] { return under_way() == 0; });
  }

  Recorder& mine = a.recorder;
  Recorder& theirs = b.recorder;

 private:
  std::uint64_t begun_ = 0;
};

TEST_F(Started, CompleteInTheOrderOfTheirStartsWithWhatTheyFound) {
  open();
  fill(local->bytes(), 1);
  fill(target->bytes().subspan(8192, 4096), 2);
  EXPECT_EQ(start_write(local->local(0, 4096), target->remote(0, 4096), 10), Status::kOk);
  EXPECT_EQ(start_read(local->local(8192, 4096), target->remote(8192, 4096), 11), Status::kOk);
  EXPECT_EQ(start_fetch_add(word(20000), 5, 12), Status::kOk);
  EXPECT_EQ(start_compare_swap(word(20000), 5, 9, 13), Status::kOk);
  EXPECT_EQ(start_fetch_add(word(20000), 0, 14), Status::kOk);
  EXPECT_EQ(under_way(), 5u);
  ASSERT_TRUE(until([&] { return mine.completions.size() == 5; }));
  for (std::uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(mine.completions[i].token, 10 + i);
    EXPECT_EQ(mine.completions[i].status, Status::kOk);
  }
  EXPECT_EQ(mine.completions[2].old, 0u);
  EXPECT_EQ(mine.completions[3].old, 5u);
  EXPECT_EQ(mine.completions[4].old, 9u);
  EXPECT_TRUE(matches(target->bytes().first(4096), 1));
  EXPECT_TRUE(matches(local->bytes().subspan(8192, 4096), 2));
  EXPECT_EQ(under_way(), 0u);
}

TEST_F(Started, BeyondALimitIsAgainAndStartsNothing) {
  open({.max_reads = 2, .max_operations = 6});
  {
    const engine::Batch batch(here());
    EXPECT_EQ(start_read(local->local(0, 8), target->remote(0, 8), 0), Status::kOk);
    EXPECT_EQ(start_fetch_add(word(64), 1, 1), Status::kOk);
    EXPECT_EQ(start_read(local->local(0, 8), target->remote(0, 8), 2), Status::kOk) << "waits for one of two";
    for (std::uint32_t i = 3; i < 6; ++i) EXPECT_EQ(write(i), Status::kOk) << "waits behind it";
    EXPECT_EQ(write(6), Status::kAgain);
    EXPECT_EQ(start_fetch_add(word(64), 1, 6), Status::kAgain);
    EXPECT_EQ(a.loop->counters().work_requests, 2u);
    ASSERT_TRUE(until_quiet());
  }
  for (std::uint64_t i = 0; i < 6; ++i) EXPECT_TRUE(mine.completed(i, i)) << i;
  EXPECT_EQ(start_read(local->local(0, 8), target->remote(0, 8), 7), Status::kOk);
  EXPECT_EQ(start_read(local->local(0, 8), target->remote(0, 9), 7), Status::kBadArgument);
  EXPECT_EQ(start_fetch_add(target->remote(68, 8), 1, 7), Status::kBadArgument);
  EXPECT_EQ(start_write(local->local(0, 8), target->remote(65536, 8), 7), Status::kOutOfRange);
  EXPECT_EQ(under_way(), 1u);
}

TEST_F(Started, AFullSendQueueIsAgainUntilItIsPolled) {
  open({.max_operations = 2048});
  std::uint64_t refused = 0;
  for (std::uint32_t i = 0; i < 40'000; ++i) {
    Status status = Status::kAgain;
    while ((status = write(i % 1000)) == Status::kAgain) {
      ++refused;
      a.loop->poll();
    }
    ASSERT_EQ(status, Status::kOk);
  }
  ASSERT_TRUE(until([&] { return mine.completions.size() == 40'000; }));
  EXPECT_GT(refused, 0u);
  for (std::uint32_t i = 0; i < 40'000; ++i) ASSERT_EQ(mine.completions[i].token, i % 1000);
}

TEST_F(Started, ABatchIsOneDoorbellAndOneCompletion) {
  open();
  for (std::uint32_t i = 0; i < 10; ++i) {  // Whatever went before.
    for (std::uint32_t k = 0; k < i; ++k) ASSERT_EQ(write(k), Status::kOk);
    ASSERT_TRUE(until_quiet());
    const Counters before = a.loop->counters();
    {
      const engine::Batch batch(here());
      for (std::uint32_t k = 0; k < 10; ++k) ASSERT_EQ(write(k), Status::kOk);
      EXPECT_EQ(a.loop->counters().doorbells, before.doorbells);
    }
    ASSERT_TRUE(until_quiet());
    const Counters after = a.loop->counters();
    EXPECT_EQ(after.work_requests - before.work_requests, 10u);
    EXPECT_EQ(after.doorbells - before.doorbells, 1u);
    EXPECT_LE(after.completions - before.completions, 2u) << "the last, and one that was due to retire the others";
  }
  const Counters before = a.loop->counters();
  {
    const engine::Batch batch(here());
    for (std::uint32_t k = 0; k < 40; ++k) ASSERT_EQ(write(k), Status::kOk);
    EXPECT_EQ(a.loop->counters().doorbells - before.doorbells, 1u) << "32 have gone out";
    {
      const engine::Batch inner(here());
      ASSERT_EQ(write(40), Status::kOk);
    }
    EXPECT_EQ(a.loop->counters().doorbells - before.doorbells, 1u) << "the outer batch goes on";
    here().flush();
    EXPECT_EQ(a.loop->counters().doorbells - before.doorbells, 2u);
    ASSERT_EQ(write(41), Status::kOk);
    ASSERT_TRUE(until_quiet()) << "a poll rings the doorbell too";
  }
}

TEST_F(Started, InlineBytesOfABatchAreTheCallersAgain) {
  open();
  const auto before = static_cast<std::byte>(1);
  {
    const engine::Batch batch(here());
    for (std::uint32_t i = 0; i < 4; ++i) {
      for (std::size_t length : {1u, 8u, 200u, 256u}) {
        std::ranges::fill(local->bytes().first(length), before);
        ASSERT_EQ(start_write(local->local(0, length), target->remote(i * 1024, length), length), Status::kOk);
        if (length <= a.nic->limits().max_inline) std::ranges::fill(local->bytes().first(length), std::byte{2});
      }
    }
  }
  ASSERT_TRUE(until_quiet());
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto there = target->bytes().subspan(i * 1024, 256);
    EXPECT_TRUE(std::ranges::all_of(there, [&](std::byte byte) { return byte == before; }));
  }
}

TEST_F(Started, BlockingCallsStandInTheSameOrder) {
  open();
  engine::Batch batch(here());
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(start_fetch_add(word(0), 1, i), Status::kOk);
    std::uint64_t old = 0;
    ASSERT_EQ(fetch_add(word(0), 1, old, patience()), Status::kOk) << "though a batch is open";
    EXPECT_EQ(old, 2 * i + 1);
    ASSERT_EQ(mine.completions.size(), i + 1) << "what was started before is complete";
    EXPECT_EQ(mine.completions[i].old, 2 * i);
  }
}

TEST_F(Started, AHandlerStartsMore) {
  open({.max_operations = 4});
  int left = 1000;
  mine.when_complete = [&](Connection& same, const Completion&) {
    // Its own operation is complete, so there is room.
    if (left-- > 0) {
      ASSERT_EQ(counted(same.start_write(local->local(0, 8), target->remote(0, 8), 0)), Status::kOk);
    }
  };
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_EQ(write(i), Status::kOk);
  ASSERT_TRUE(until([&] { return mine.completions.size() == 1004; }));
  EXPECT_EQ(under_way(), 0u);
}

TEST_F(Started, AHandlerMustNotWait) {
  open();
  Status read = Status::kOk;
  Status added = Status::kOk;
  mine.when_complete = [&](Connection& same, const Completion&) {
    std::uint64_t old = 0;
    read = same.read(local->local(0, 8), target->remote(0, 8), patience());
    added = same.change({.compare_add = 1}, word(0), old, patience());
  };
  ASSERT_EQ(write(0), Status::kOk);
  ASSERT_TRUE(until([&] { return !mine.completions.empty(); }));
  EXPECT_EQ(read, Status::kAgain);
  EXPECT_EQ(added, Status::kAgain);
  EXPECT_TRUE(here().alive());
}

// Both post by the request that the connection has built once.
TEST_F(Started, AHandlersOperationsDoNotTouchTheBlockingCallAroundThem) {
  open({.max_operations = 8});
  fill(target->bytes(), 1);
  fill(local->bytes(), 2);
  std::vector<std::byte> out(40'960);
  int left = 0;
  const auto go_on = [&](Connection& same, const Completion& ended) {
    if (ended.token != 1 || left-- <= 0) return;  // The later one of a pair starts the next.
    ASSERT_EQ(counted(same.start_write(local->local(60'000, 1024), target->remote(60'000, 1024), 0)), Status::kOk);
    ASSERT_EQ(counted(same.start_change(swap_of(77, 78), word(50'000), 1)), Status::kOk);
  };
  mine.when_complete = go_on;
  for (const bool writes : {false, true}) {
    left = 30;
    go_on(here(), {.token = 1});
    if (writes) {
      fill(out, 3);
      ASSERT_EQ(here().write(std::span<const std::byte>(out), target->remote(0, out.size()), patience()), Status::kOk);
      EXPECT_TRUE(matches(target->bytes().first(out.size()), 3));
    } else {
      ASSERT_EQ(here().read(std::span(out), target->remote(0, out.size()), patience()), Status::kOk);
      Region all(*a.nic, a.pd.get(), target->bytes().size());
      fill(all.bytes(), 1);
      EXPECT_TRUE(std::ranges::equal(out, all.bytes().first(out.size())));
    }
    ASSERT_TRUE(until_quiet());
  }
  std::memset(target->bytes().data() + 50'000, 0, 8);
  for (std::uint64_t i = 0; i < 20; ++i) {
    left = 2;
    go_on(here(), {.token = 1});
    std::uint64_t old = 99;
    ASSERT_EQ(fetch_add(word(50'000), 1, old, patience()), Status::kOk);
    ASSERT_EQ(old, i);
    ASSERT_TRUE(until_quiet());
  }
}

// Nothing completes when nothing is in flight: the drain itself wakes who waits for it.
TEST_F(Started, TheEndOfADrainWakesWhoWaitsForIt) {
  for (const engine::WaitPolicy wait : {engine::WaitPolicy::kSpin, engine::WaitPolicy::kEvent}) {
    Side one({.wait = wait, .keepalive = std::chrono::nanoseconds{0}});
    Side other;
    ASSERT_NO_FATAL_FAILURE(connect(one, other, {}, {}));
    one.loop->poll();
    one.connection->fail(Status::kClosed);
    EXPECT_EQ(one.loop->wait_until([&] { return one.connection->drained(); }, Deadline::never()), Status::kOk);
  }
}

TEST_F(Started, MessagesFollowTheData) {
  open({.max_operations = 8});
  std::uint32_t wrong = 0;
  theirs.when_message = [&](Connection&, std::span<const std::byte> body) {
    std::uint32_t told = 0;
    std::uint32_t seen = 0;
    std::memcpy(&told, body.data(), sizeof told);
    std::memcpy(&seen, target->bytes().data() + told % 8 * 64, sizeof seen);
    // A later one may have landed in the same place; an earlier one not.
    if (seen < told) ++wrong;
  };
  for (std::uint32_t i = 1; i <= 1000; ++i) {
    std::memcpy(local->bytes().data(), &i, sizeof i);
    Status status = Status::kAgain;
    ASSERT_TRUE(until([&] {
      status = counted(here().start_write(local->local(0, 4), target->remote(i % 8 * 64, 4), i));
      return status != Status::kAgain;
    }));
    ASSERT_EQ(status, Status::kOk);
    ASSERT_TRUE(until([&] {
      status = here().send(std::as_bytes(std::span(&i, 1)));
      return status != Status::kAgain;
    }));
    ASSERT_EQ(status, Status::kOk);
    // Not inline on every device: the memory is the NIC's until it is complete.
    ASSERT_TRUE(until_quiet());
  }
  ASSERT_TRUE(until([&] { return theirs.message_count == 1000; }));
  EXPECT_EQ(wrong, 0u);
  EXPECT_LE(b.loop->counters().receive_refills, 1000u / 2 + 1) << "in batches";
}

TEST_F(Started, WhatIsBeforeTheRefusedOneIsOkAndWhatIsBehindHasTheReason) {
  open();
  auto gone = std::make_unique<Region>(*b.nic, b.pd.get(), 4096);
  ASSERT_OK(here().import_window(gone->window(), patience()));
  const auto there = gone->remote(0, 8);
  gone.reset();
  {
    const engine::Batch batch(here());
    ASSERT_EQ(write(0), Status::kOk);
    ASSERT_EQ(write(1), Status::kOk);
    ASSERT_EQ(start_write(local->local(0, 8), there, 2), Status::kOk);
    ASSERT_EQ(write(3), Status::kOk);
  }
  ASSERT_TRUE(until([&] { return !mine.failures.empty(); }));
  ASSERT_EQ(mine.completions.size(), 4u);
  EXPECT_EQ(mine.completions[0].status, Status::kOk);
  EXPECT_EQ(mine.completions[1].status, Status::kOk);
  EXPECT_EQ(mine.completions[2].status, Status::kRemoteAccess);
  EXPECT_EQ(mine.completions[3].status, Status::kRemoteAccess);
  EXPECT_EQ(mine.failures[0], Status::kRemoteAccess);
  EXPECT_EQ(write(4), Status::kRemoteAccess);
}

TEST_F(Started, WhatWaitsForItsDoorbellEndsWithTheConnection) {
  open();
  engine::Batch batch(here());
  ASSERT_EQ(write(0), Status::kOk);
  ASSERT_EQ(write(1), Status::kOk);
  here().fail(Status::kClosed);
  here().flush();
  EXPECT_EQ(a.loop->counters().doorbells, 0u);
  ASSERT_TRUE(until([&] { return !mine.failures.empty(); }));
  ASSERT_EQ(mine.completions.size(), 2u);
  EXPECT_EQ(mine.completions[0].status, Status::kClosed);
  EXPECT_EQ(mine.completions[1].status, Status::kClosed);
}

TEST_F(Started, DestroyingAConnectionCallsNobodyAndNothingLandsLate) {
  open();
  fill(local->bytes(), 8);
  fill(target->bytes(), 9);
  hold();
  ASSERT_EQ(start_read(local->local(0, 4096), target->remote(0, 4096), 0), Status::kOk);
  {
    const engine::Batch batch(here());
    ASSERT_EQ(start_read(local->local(4096, 4096), target->remote(0, 4096), 1), Status::kOk);
  }
  a.connection.reset();
  for (int i = 0; i < 100; ++i) a.loop->poll();
  EXPECT_TRUE(mine.completions.empty());
  EXPECT_TRUE(mine.failures.empty());
  EXPECT_TRUE(matches(local->bytes(), 8));
}

TEST_F(Started, TransfersMoreThanTheNicTakesAtOnceInPieces) {
  const std::size_t bytes = std::size_t{a.nic->limits().max_message} + 4096;
  if (bytes > (64u << 20)) GTEST_SKIP() << "this NIC takes " << bytes << " bytes at once";
  open();
  Region there(*b.nic, b.pd.get(), bytes);
  Region from(*a.nic, a.pd.get(), bytes);
  ASSERT_OK(here().import_window(there.window(), patience()));
  fill(from.bytes(), 1);
  ASSERT_EQ(start_write(from.local(0, bytes), there.remote(0, bytes), 1), Status::kOk);
  ASSERT_TRUE(until([&] { return mine.completions.size() == 1; }));
  EXPECT_TRUE(matches(there.bytes(), 1));
}

}  // namespace
}  // namespace verbena::channel::test
