// Operations that are started and completed later: order, limits, batches, handlers, immediates, failures.
#include "fixture.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

namespace verbena::remote {
namespace {

using namespace remote::test;

/// Writes down every call.
class Recorder final : public Handler {
 public:
  void on_complete(Link& link, const Completion& completion) noexcept override {
    EXPECT_TRUE(failures.empty()) << "completed after on_failure";
    completions.push_back(completion);
    if (when_complete) when_complete(link, completion);
  }
  void on_immediate(Link& link, std::uint32_t immediate, std::uint32_t bytes) noexcept override {
    immediates.emplace_back(immediate, bytes);
    if (when_immediate) when_immediate(link, immediate);
  }
  void on_failure(Link& link, Status reason) noexcept override {
    failures.push_back(reason);
    if (when_failure) when_failure(link);
  }
  std::vector<Completion> completions;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> immediates;
  std::vector<Status> failures;
  std::function<void(Link&, const Completion&)> when_complete;
  std::function<void(Link&, std::uint32_t)> when_immediate;
  std::function<void(Link&)> when_failure;
};

class Started : public LinkPair {
 protected:
  void SetUp() override {}
  void open(LinkOptions options = {}, LinkOptions peer_options = {}) {
    options.handler = &mine;
    peer_options.handler = &theirs;
    LinkPair::open(options, peer_options);
  }
  template <class Done>
  [[nodiscard]] bool until(Done&& done) {
    return poll_until({a.loop.get(), b.loop.get()}, std::forward<Done>(done));
  }
  [[nodiscard]] Status write(std::uint32_t i) {
    return link->start_write(local->local(i * 8, 8), target->remote(i * 8, 8), i);
  }
  Recorder mine;
  Recorder theirs;
};

TEST_F(Started, CompleteInTheOrderOfTheirStartsWithWhatTheyFound) {
  open();
  fill(local->bytes(), 1);
  fill(target->bytes().subspan(8192, 4096), 2);
  EXPECT_EQ(link->start_write(local->local(0, 4096), target->remote(0, 4096), 10), Status::kOk);
  EXPECT_EQ(link->start_read(local->local(8192, 4096), target->remote(8192, 4096), 11), Status::kOk);
  EXPECT_EQ(link->start_fetch_add(word(20000), 5, 12), Status::kOk);
  EXPECT_EQ(link->start_compare_swap(word(20000), 5, 9, 13), Status::kOk);
  EXPECT_EQ(link->start_fetch_add(word(20000), 0, 14), Status::kOk);
  EXPECT_EQ(link->under_way(), 5u);
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
  EXPECT_EQ(link->under_way(), 0u);
}

TEST_F(Started, WithoutAHandlerCompletionsAreTaken) {
  LinkPair::open({.max_operations = 4});
  std::array<Completion, 3> taken;
  EXPECT_EQ(link->take(taken), 0u);
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_EQ(write(i), Status::kOk);
  ASSERT_TRUE(until([&] { return link->under_way() == 0; }));
  EXPECT_EQ(write(9), Status::kAgain) << "four are complete and not taken";
  EXPECT_EQ(link->take(taken), 3u);
  EXPECT_EQ(taken[2].token, 2u);
  EXPECT_EQ(write(9), Status::kOk);
  ASSERT_TRUE(until([&] { return link->under_way() == 0; }));
  EXPECT_EQ(link->take(taken), 2u);
  EXPECT_EQ(taken[0].token, 3u);
  EXPECT_EQ(taken[1].token, 9u);
  EXPECT_EQ(link->take(taken), 0u);
}

TEST_F(Started, BeyondALimitIsAgainAndStartsNothing) {
  open({.max_operations = 6, .max_reads = 2});
  std::uint32_t started = 0;
  engine::Batch batch(*link);
  EXPECT_EQ(link->start_read(local->local(0, 8), target->remote(0, 8), 0), Status::kOk);
  EXPECT_EQ(link->start_fetch_add(word(64), 1, 1), Status::kOk);
  EXPECT_EQ(link->start_read(local->local(0, 8), target->remote(0, 8), 2), Status::kAgain) << "two READs";
  EXPECT_EQ(link->start_fetch_add(word(64), 1, 2), Status::kAgain);
  for (started = 2; write(started) == Status::kOk; ++started) ASSERT_LT(started, 100u);
  EXPECT_EQ(started, 6u);
  EXPECT_EQ(write(started), Status::kAgain);
  EXPECT_EQ(a.loop->counters().work_requests, 6u);
  ASSERT_TRUE(until([&] { return mine.completions.size() == started; }));
  EXPECT_EQ(link->start_read(local->local(0, 8), target->remote(0, 8), 7), Status::kOk);
  EXPECT_EQ(link->start_read(local->local(0, 8), target->remote(0, 9), 7), Status::kBadArgument);
  EXPECT_EQ(link->start_fetch_add({word(64).address + 4, word(64).rkey}, 1, 7), Status::kBadArgument);
  EXPECT_EQ(link->start_write(local->local(0, 8), target->remote(65536, 8), 7), Status::kOutOfRange);
  EXPECT_EQ(link->under_way(), 1u);
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
    ASSERT_TRUE(until([&] { return link->under_way() == 0; }));
    const Counters before = a.loop->counters();
    {
      const engine::Batch batch(*link);
      for (std::uint32_t k = 0; k < 10; ++k) ASSERT_EQ(write(k), Status::kOk);
      EXPECT_EQ(a.loop->counters().doorbells, before.doorbells);
    }
    ASSERT_TRUE(until([&] { return link->under_way() == 0; }));
    const Counters after = a.loop->counters();
    EXPECT_EQ(after.work_requests - before.work_requests, 10u);
    EXPECT_EQ(after.doorbells - before.doorbells, 1u);
    EXPECT_LE(after.completions - before.completions, 2u) << "the last, and one that was due to retire the others";
  }
  const Counters before = a.loop->counters();
  {
    const engine::Batch batch(*link);
    for (std::uint32_t k = 0; k < 40; ++k) ASSERT_EQ(write(k), Status::kOk);
    EXPECT_EQ(a.loop->counters().doorbells - before.doorbells, 1u) << "32 have gone out";
    {
      const engine::Batch inner(*link);
      ASSERT_EQ(write(40), Status::kOk);
    }
    EXPECT_EQ(a.loop->counters().doorbells - before.doorbells, 1u) << "the outer batch goes on";
    link->flush();
    EXPECT_EQ(a.loop->counters().doorbells - before.doorbells, 2u);
    ASSERT_EQ(write(41), Status::kOk);
    ASSERT_TRUE(until([&] { return link->under_way() == 0; })) << "a poll rings the doorbell too";
  }
}

TEST_F(Started, InlineBytesOfABatchAreTheCallersAgain) {
  open();
  const auto before = static_cast<std::byte>(1);
  {
    const engine::Batch batch(*link);
    for (std::uint32_t i = 0; i < 4; ++i) {
      for (std::size_t length : {1u, 8u, 200u, 256u}) {
        std::ranges::fill(local->bytes().first(length), before);
        ASSERT_EQ(link->start_write(local->local(0, length), target->remote(i * 1024, length), length), Status::kOk);
        if (length <= a.nic->limits().max_inline) std::ranges::fill(local->bytes().first(length), std::byte{2});
      }
    }
  }
  ASSERT_TRUE(until([&] { return link->under_way() == 0; }));
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto there = target->bytes().subspan(i * 1024, 256);
    EXPECT_TRUE(std::ranges::all_of(there, [&](std::byte byte) { return byte == before; }));
  }
}

TEST_F(Started, BlockingCallsStandInTheSameOrder) {
  open();
  engine::Batch batch(*link);
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(link->start_fetch_add(word(0), 1, i), Status::kOk);
    std::uint64_t old = 0;
    ASSERT_EQ(link->fetch_add(word(0), 1, old, patience()), Status::kOk) << "though a batch is open";
    EXPECT_EQ(old, 2 * i + 1);
    ASSERT_EQ(mine.completions.size(), i + 1) << "what was started before is complete";
    EXPECT_EQ(mine.completions[i].old, 2 * i);
  }
}

TEST_F(Started, AHandlerStartsMore) {
  open({.max_operations = 4});
  int left = 1000;
  mine.when_complete = [&](Link& same, const Completion&) {
    // Its own operation is complete, so there is room.
    if (left-- > 0) {
      ASSERT_EQ(same.start_write(local->local(0, 8), target->remote(0, 8), 0), Status::kOk);
    }
  };
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_EQ(write(i), Status::kOk);
  ASSERT_TRUE(until([&] { return mine.completions.size() == 1004; }));
  EXPECT_EQ(link->under_way(), 0u);
}

TEST_F(Started, AHandlerMustNotWait) {
  open();
  Status read = Status::kOk;
  Status added = Status::kOk;
  mine.when_complete = [&](Link& same, const Completion&) {
    std::uint64_t old = 0;
    read = same.read(local->local(0, 8), target->remote(0, 8), patience());
    added = same.fetch_add(word(0), 1, old, patience());
  };
  ASSERT_EQ(write(0), Status::kOk);
  ASSERT_TRUE(until([&] { return !mine.completions.empty(); }));
  EXPECT_EQ(read, Status::kBadArgument);
  EXPECT_EQ(added, Status::kBadArgument);
  EXPECT_TRUE(link->alive());
}

// Both post by the request that the link has built once.
TEST_F(Started, AHandlersOperationsDoNotTouchTheBlockingCallAroundThem) {
  open({.bounce_bytes = 4096, .max_operations = 8});
  fill(target->bytes(), 1);
  fill(local->bytes(), 2);
  std::vector<std::byte> out(40'960);
  int left = 0;
  const auto go_on = [&](Link& same, const Completion& ended) {
    if (ended.token != 1 || left-- <= 0) return;  // The later one of a pair starts the next.
    ASSERT_EQ(same.start_write(local->local(60'000, 1024), target->remote(60'000, 1024), 0), Status::kOk);
    ASSERT_EQ(same.start_compare_swap(word(50'000), 77, 78, 1), Status::kOk);
  };
  mine.when_complete = go_on;
  for (const bool writes : {false, true}) {
    left = 30;
    go_on(*link, {.token = 1});
    if (writes) {
      fill(out, 3);
      ASSERT_EQ(link->write(std::span<const std::byte>(out), target->remote(0, out.size()), patience()), Status::kOk);
      EXPECT_TRUE(matches(target->bytes().first(out.size()), 3));
    } else {
      ASSERT_EQ(link->read(std::span(out), target->remote(0, out.size()), patience()), Status::kOk);
      Region all(*a.nic, a.pd.get(), target->bytes().size());
      fill(all.bytes(), 1);
      EXPECT_TRUE(std::ranges::equal(out, all.bytes().first(out.size())));
    }
    ASSERT_TRUE(until([&] { return link->under_way() == 0; }));
  }
  std::memset(target->bytes().data() + 50'000, 0, 8);
  for (std::uint64_t i = 0; i < 20; ++i) {
    left = 2;
    go_on(*link, {.token = 1});
    std::uint64_t old = 99;
    ASSERT_EQ(link->fetch_add(word(50'000), 1, old, patience()), Status::kOk);
    ASSERT_EQ(old, i);
    ASSERT_TRUE(until([&] { return link->under_way() == 0; }));
  }
}

// Nothing completes when nothing is in flight: the drain itself wakes who waits for it.
TEST_F(Started, TheEndOfADrainWakesWhoWaitsForIt) {
  for (const engine::WaitPolicy wait : {engine::WaitPolicy::kSpin, engine::WaitPolicy::kEvent}) {
    Node here({.wait = wait, .keepalive = std::chrono::nanoseconds{0}});
    auto made = Link::create(*here.loop, here.pd.get(), {});
    auto other = Link::create(*b.loop, b.pd.get(), {});
    ASSERT_OK(made);
    ASSERT_OK(other);
    ASSERT_NO_FATAL_FAILURE(connect(**made, **other));
    here.loop->poll();
    (*made)->fail(Status::kClosed);
    EXPECT_EQ(here.loop->wait_until([&] { return (*made)->drained(); }, Deadline::never()), Status::kOk);
  }
}

TEST_F(Started, AHandlerDisposesOfTheLinkThatABlockingCallIsOn) {
  open();
  auto gone = std::make_unique<Region>(*b.nic, b.pd.get(), 4096);
  ASSERT_OK(link->import_window(gone->window(), patience()));
  const auto there = gone->remote(0, 8);
  gone.reset();
  mine.when_failure = [&](Link&) { a.loop->dispose(std::move(link)); };
  Link& called = *link;
  EXPECT_EQ(called.read(local->local(0, 8), there, patience()), Status::kRemoteAccess);
  EXPECT_EQ(link, nullptr);
  EXPECT_EQ(a.nic->objects().qps, 1u) << "the call was on it";
  a.loop->poll();
  EXPECT_EQ(a.nic->objects().qps, 0u);
}

TEST_F(Started, AHandlerDisposesOfItsLink) {
  open();
  int calls = 0;
  mine.when_complete = [&](Link&, const Completion&) {
    ++calls;
    a.loop->dispose(std::move(link));
  };
  {
    const engine::Batch batch(*link);
    for (std::uint32_t i = 0; i < 8; ++i) ASSERT_EQ(write(i), Status::kOk);
  }
  ASSERT_TRUE(until([&] { return calls != 0; }));
  for (int i = 0; i < 100; ++i) a.loop->poll();
  EXPECT_EQ(calls, 1) << "nothing is called any more";
  EXPECT_TRUE(mine.failures.empty());
  EXPECT_EQ(a.nic->objects().qps, 0u) << "it is gone";
  // Outside of a handler it goes at once.
  LinkPair::open({});
  a.loop->dispose(std::move(link));
  EXPECT_EQ(a.nic->objects().qps, 0u);
}

TEST_F(Started, AHandlerDisposesOfALinkThatFailed) {
  open();
  bool called = false;
  mine.when_failure = [&](Link&) {
    called = true;
    a.loop->dispose(std::move(link));
  };
  link->fail(Status::kClosed);
  ASSERT_TRUE(until([&] { return called; }));
  EXPECT_EQ(a.nic->objects().qps, 0u);
}

TEST_F(Started, ImmediatesFollowTheirData) {
  open({.max_operations = 8}, {.receives = 8});
  std::uint32_t wrong = 0;
  theirs.when_immediate = [&](Link&, std::uint32_t immediate) {
    std::uint32_t seen = 0;
    std::memcpy(&seen, target->bytes().data() + immediate % 8 * 64, sizeof seen);
    // A later one may have landed in the same place; an earlier one not.
    if (seen < immediate) ++wrong;
  };
  for (std::uint32_t i = 1; i <= 1000; ++i) {
    std::memcpy(local->bytes().data(), &i, sizeof i);
    Status status = Status::kAgain;
    ASSERT_TRUE(until([&] {
      status = link->start_write_imm(local->local(0, 4), target->remote(i % 8 * 64, 4), i, i);
      return status != Status::kAgain;
    }));
    ASSERT_EQ(status, Status::kOk);
    // Not inline on every device: the memory is the NIC's until it is complete.
    ASSERT_TRUE(until([&] { return link->under_way() == 0; }));
  }
  ASSERT_TRUE(until([&] { return theirs.immediates.size() == 1000; }));
  for (std::uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(theirs.immediates[i], (std::pair{i + 1, 4u}));
  EXPECT_EQ(wrong, 0u);
  EXPECT_LE(b.loop->counters().receive_refills, 1000u / 2 + 1) << "in batches";
}

TEST_F(Started, ImmediatesWithoutReceivesWaitForAsLongAsThePathSays) {
  how.rnr_retry = 2;
  open();
  ASSERT_EQ(link->start_write_imm(local->local(0, 4), target->remote(0, 4), 1, 7), Status::kOk);
  ASSERT_TRUE(until([&] { return !mine.failures.empty(); }));
  ASSERT_EQ(mine.completions.size(), 1u);
  EXPECT_EQ(mine.completions[0].status, Status::kRnrExceeded);
  EXPECT_EQ(mine.failures[0], Status::kRnrExceeded);
}

TEST_F(Started, WhatIsBeforeTheRefusedOneIsOkAndWhatIsBehindHasTheReason) {
  open();
  auto gone = std::make_unique<Region>(*b.nic, b.pd.get(), 4096);
  ASSERT_OK(link->import_window(gone->window(), patience()));
  const auto there = gone->remote(0, 8);
  gone.reset();
  {
    const engine::Batch batch(*link);
    ASSERT_EQ(write(0), Status::kOk);
    ASSERT_EQ(write(1), Status::kOk);
    ASSERT_EQ(link->start_write(local->local(0, 8), there, 2), Status::kOk);
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

TEST_F(Started, WhatWaitsForItsDoorbellEndsWithTheLink) {
  open();
  engine::Batch batch(*link);
  ASSERT_EQ(write(0), Status::kOk);
  ASSERT_EQ(write(1), Status::kOk);
  link->fail(Status::kClosed);
  link->flush();
  EXPECT_EQ(a.loop->counters().doorbells, 0u);
  ASSERT_TRUE(until([&] { return !mine.failures.empty(); }));
  ASSERT_EQ(mine.completions.size(), 2u);
  EXPECT_EQ(mine.completions[0].status, Status::kClosed);
  EXPECT_EQ(mine.completions[1].status, Status::kClosed);
}

TEST_F(Started, DestroyingALinkCallsNobodyAndNothingLandsLate) {
  open();
  fill(local->bytes(), 8);
  fill(target->bytes(), 9);
  hold();
  ASSERT_EQ(link->start_read(local->local(0, 4096), target->remote(0, 4096), 0), Status::kOk);
  {
    const engine::Batch batch(*link);
    ASSERT_EQ(link->start_read(local->local(4096, 4096), target->remote(0, 4096), 1), Status::kOk);
  }
  link.reset();
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
  Region here(*a.nic, a.pd.get(), bytes);
  ASSERT_OK(link->import_window(there.window(), patience()));
  fill(here.bytes(), 1);
  ASSERT_EQ(link->start_write(here.local(0, bytes), there.remote(0, bytes), 1), Status::kOk);
  ASSERT_TRUE(until([&] { return mine.completions.size() == 1; }));
  EXPECT_TRUE(matches(there.bytes(), 1));
  EXPECT_EQ(link->start_write_imm(here.local(0, bytes), there.remote(0, bytes), 1, 2), Status::kTooLong);
}

TEST(LinkOptions, AreRefusedOutOfTheirRanges) {
  Node node;
  Recorder handler;
  const auto made = [&](const LinkOptions& options) { return Link::create(*node.loop, node.pd.get(), options); };
  EXPECT_STATUS(made({.max_operations = 0}), Status::kBadArgument);
  EXPECT_STATUS(made({.max_operations = 8193}), Status::kBadArgument);
  EXPECT_STATUS(made({.max_reads = 0}), Status::kBadArgument);
  EXPECT_STATUS(made({.receives = 4097, .handler = &handler}), Status::kBadArgument);
  EXPECT_STATUS(made({.receives = 1}), Status::kBadArgument) << "no handler";
  for (const std::uint32_t bytes : {0u, 63u, 100u, (16u << 20) + 64, ~0u})
    EXPECT_STATUS(made({.bounce_bytes = bytes}), Status::kBadArgument) << bytes;
  EXPECT_STATUS(made({.bounce_buffers = 1025}), Status::kBadArgument);
  EXPECT_STATUS(made({.max_reads = 8193}), Status::kBadArgument);
  // Each fits, and together they do not: of the loop's queue, each link takes a part.
  EXPECT_STATUS(made({.bounce_buffers = 1024, .max_operations = 8192}), Status::kLimit);
  EXPECT_STATUS(made({.bounce_buffers = 0}), Status::kBadArgument);
  EXPECT_EQ(node.nic->objects().qps, 0u);
}

}  // namespace
}  // namespace verbena::remote
