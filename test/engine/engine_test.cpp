// The parts of the engine that need no traffic; the rest is exercised through connections.
#include "engine/mailbox.hpp"
#include "engine/queue_pair.hpp"
#include "side.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace verbena::engine {
namespace {

using namespace verbena::test;

TEST(WindowTable, ChecksKeyRangeAndRight) {
  WindowTable table;
  const nic::Window window{.address = 1000, .length = 100, .rkey = 5, .access = IBV_ACCESS_REMOTE_READ};
  EXPECT_EQ(table.check({1000, 1, 5}, 0), Status::kNotFound);
  ASSERT_EQ(table.add(window), Status::kOk);
  ASSERT_EQ(table.add({.address = 0, .length = 10, .rkey = 6, .access = 0}), Status::kOk);
  EXPECT_EQ(table.add({.address = ~std::uint64_t{0}, .length = 2, .rkey = 7}), Status::kBadArgument);
  for (int i = 0; i < 2; ++i) {  // The second time from the remembered entry.
    EXPECT_EQ(table.check({1000, 100, 5}, IBV_ACCESS_REMOTE_READ), Status::kOk);
    EXPECT_EQ(table.check({1100, 0, 5}, IBV_ACCESS_REMOTE_READ), Status::kOk);
    EXPECT_EQ(table.check({1000, 101, 5}, IBV_ACCESS_REMOTE_READ), Status::kOutOfRange);
    EXPECT_EQ(table.check({999, 1, 5}, IBV_ACCESS_REMOTE_READ), Status::kOutOfRange);
    EXPECT_EQ(table.check({1101, 0, 5}, IBV_ACCESS_REMOTE_READ), Status::kOutOfRange);
    EXPECT_EQ(table.check({1050, ~std::uint64_t{0}, 5}, IBV_ACCESS_REMOTE_READ), Status::kOutOfRange);
    EXPECT_EQ(table.check({1000, 1, 5}, IBV_ACCESS_REMOTE_WRITE), Status::kRemoteAccess);
  }
  EXPECT_EQ(table.remove(window), Status::kOk);
  EXPECT_EQ(table.remove(window), Status::kNotFound);
  EXPECT_EQ(table.check({1000, 1, 5}, 0), Status::kNotFound);
  for (std::size_t i = 1; i < WindowTable::kCapacity; ++i)
    ASSERT_EQ(table.add({.address = 0, .length = 1, .rkey = 100 + static_cast<std::uint32_t>(i)}), Status::kOk);
  EXPECT_EQ(table.add(window), Status::kLimit);
}

TEST(WindowTable, PartsOfOneMemoryHaveOneKey) {
  WindowTable table;
  const nic::Window first{.address = 1000, .length = 8, .rkey = 5, .access = IBV_ACCESS_REMOTE_READ};
  const nic::Window longer{.address = 1000, .length = 16, .rkey = 5, .access = 0};
  const nic::Window second{.address = 2000, .length = 8, .rkey = 5, .access = IBV_ACCESS_REMOTE_READ};
  for (const nic::Window& window : {first, longer, second}) ASSERT_EQ(table.add(window), Status::kOk);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(table.check({2000, 8, 5}, IBV_ACCESS_REMOTE_READ), Status::kOk);
    EXPECT_EQ(table.check({1000, 8, 5}, IBV_ACCESS_REMOTE_READ), Status::kOk);
    EXPECT_EQ(table.check({1000, 16, 5}, 0), Status::kOk);
    EXPECT_EQ(table.check({1000, 16, 5}, IBV_ACCESS_REMOTE_READ), Status::kRemoteAccess) << "inside, without the right";
    EXPECT_EQ(table.check({1000, 17, 5}, IBV_ACCESS_REMOTE_READ), Status::kOutOfRange);
    EXPECT_EQ(table.check({1500, 8, 5}, IBV_ACCESS_REMOTE_READ), Status::kOutOfRange);
  }
  EXPECT_EQ(table.remove(longer), Status::kOk);
  EXPECT_EQ(table.check({1000, 8, 5}, IBV_ACCESS_REMOTE_READ), Status::kOk);
  EXPECT_EQ(table.check({1000, 16, 5}, 0), Status::kOutOfRange);
  EXPECT_EQ(table.remove(longer), Status::kNotFound);
}

TEST(WindowTable, ALentWindowHoldsUntilAnotherIsUsed) {
  WindowTable table;
  EXPECT_EQ(table.check({0, 0, 0}, 0), Status::kNotFound) << "no window is lent yet";
  const nic::Window own{.address = 1000, .length = 100, .rkey = 5, .access = IBV_ACCESS_REMOTE_READ};
  ASSERT_EQ(table.add(own), Status::kOk);
  table.lend({.address = 5000, .length = 10, .rkey = 9, .access = IBV_ACCESS_REMOTE_READ});
  EXPECT_EQ(table.check({5000, 10, 9}, IBV_ACCESS_REMOTE_READ), Status::kOk);
  EXPECT_EQ(table.check({5000, 11, 9}, IBV_ACCESS_REMOTE_READ), Status::kOutOfRange);
  EXPECT_EQ(table.check({5000, 10, 9}, IBV_ACCESS_REMOTE_WRITE), Status::kRemoteAccess);
  EXPECT_EQ(table.check({1000, 10, 5}, IBV_ACCESS_REMOTE_READ), Status::kOk);
  EXPECT_EQ(table.check({5000, 10, 9}, IBV_ACCESS_REMOTE_READ), Status::kNotFound);
  EXPECT_EQ(table.remove({.address = 5000, .length = 10, .rkey = 9}), Status::kNotFound);
  EXPECT_EQ(table.remove(own), Status::kOk);
}

TEST(StatusOf, NamesTheReason) {
  EXPECT_EQ(status_of(IBV_WC_RETRY_EXC_ERR, Status::kPeerLost, Heard::kNever), Status::kPeerLost);
  EXPECT_EQ(status_of(IBV_WC_RETRY_EXC_ERR, Status::kOk, Heard::kNever), Status::kRetryExceeded);
  EXPECT_EQ(status_of(IBV_WC_RETRY_EXC_ERR, Status::kOk, Heard::kBefore), Status::kPeerLost);
  EXPECT_EQ(status_of(IBV_WC_RETRY_EXC_ERR, Status::kFlushed, Heard::kBefore), Status::kPeerLost);
  EXPECT_EQ(status_of(IBV_WC_RETRY_EXC_ERR, Status::kFlushed, Heard::kNever), Status::kRetryExceeded);
  EXPECT_EQ(status_of(IBV_WC_RETRY_EXC_ERR, Status::kRetryExceeded, Heard::kBefore), Status::kRetryExceeded);
  for (const Heard heard : {Heard::kNever, Heard::kBefore}) {
    EXPECT_EQ(status_of(IBV_WC_RNR_RETRY_EXC_ERR, Status::kOk, heard), Status::kRnrExceeded);
    EXPECT_EQ(status_of(IBV_WC_REM_ACCESS_ERR, Status::kOk, heard), Status::kRemoteAccess);
    EXPECT_EQ(status_of(IBV_WC_REM_INV_REQ_ERR, Status::kOk, heard), Status::kRemoteInvalid);
    EXPECT_EQ(status_of(IBV_WC_LOC_PROT_ERR, Status::kOk, heard), Status::kLocalAccess);
    EXPECT_EQ(status_of(IBV_WC_WR_FLUSH_ERR, Status::kPeerLost, heard), Status::kPeerLost);
    EXPECT_EQ(status_of(IBV_WC_WR_FLUSH_ERR, Status::kOk, heard), Status::kFlushed);
    EXPECT_EQ(status_of(IBV_WC_LOC_QP_OP_ERR, Status::kOk, heard), Status::kDevice);
    EXPECT_EQ(status_of(IBV_WC_LOC_QP_OP_ERR, Status::kFlushed, heard), Status::kDevice) << "a device without an event";
    EXPECT_EQ(status_of(IBV_WC_LOC_QP_OP_ERR, Status::kPeerLost, heard), Status::kPeerLost);
  }
}

TEST(CompletionLoop, RefusesLimitsThatCannotWork) {
  LoopSide side;
  struct Case {
    LoopOptions options;
    Status status;
    const char* text;
  };
  const Case cases[] = {
      {{.max_connections = 0}, Status::kBadArgument, "got 0 and 4096"},
      {{.max_connections = (1u << 20) + 1}, Status::kBadArgument, "1 to 1048576 connections"},
      {{.cqe = 0}, Status::kBadArgument, "got 64 and 0"},
      {{.cqe = ~0u}, Status::kLimit, "4294967295 completion entries are asked for"},
      {{.max_connections = 64, .cqe = 191}, Status::kBadArgument, "at least 3 completion entries each, 192 together"},
      {{.max_connections = 1 << 20}, Status::kBadArgument, "3145728 together, and cqe is 4096"},
      {{.spin = std::chrono::nanoseconds{-1}}, Status::kBadArgument, "got -1 and"},
      {{.spin = std::chrono::nanoseconds::max()}, Status::kBadArgument, "0 to a year"},
      {{.keepalive = std::chrono::nanoseconds{-1}}, Status::kBadArgument, "and -1 ns"},
      {{.keepalive = std::chrono::nanoseconds::max()}, Status::kBadArgument, "0 to a year"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.text);
    const auto loop = CompletionLoop::create(*side.nic, bad.options);
    ASSERT_TRUE(has_status(loop, bad.status));
    EXPECT_NE(std::string(loop.error().text()).find(bad.text), std::string::npos) << loop.error().text();
  }
  EXPECT_OK(CompletionLoop::create(*side.nic, {.max_connections = 64, .cqe = 192}));
}

// Parts of a call wait one after the other.
TEST(Patience, IsOneDeadlineForAllPartsOfACall) {
  const LoopSide side({.spin = std::chrono::microseconds{1}});
  const Patience patience(std::chrono::milliseconds{2});
  const auto never = [] { return false; };
  EXPECT_EQ(side.loop->wait_patiently(never, patience), Status::kTimedOut);
  const Deadline first = patience.begin();
  EXPECT_TRUE(first.passed());
  EXPECT_EQ(side.loop->wait_patiently(never, patience), Status::kTimedOut);
  EXPECT_EQ(patience.begin().ticks(), first.ticks());
  EXPECT_TRUE(Patience(Deadline::never()).begin().is_never());
}

TEST(CompletionLoop, WaitEndsAtItsDeadlineAndAtAWake) {
  LoopSide side({.spin = std::chrono::microseconds{1}});
  EXPECT_EQ(side.loop->wait(Deadline::now()), 0u);
  // The time of a short wait may be over before it comes to sleep, where the machine is slow.
  for (auto time = std::chrono::milliseconds{2}; side.loop->counters().sleeps == 0; time *= 2) {
    ASSERT_LT(time, std::chrono::minutes{1}) << "a wait that never sleeps";
    EXPECT_EQ(side.loop->wait(Deadline::after(time)), 0u);
  }
  EXPECT_EQ(side.loop->wait_until([] { return false; }, Deadline::after(std::chrono::milliseconds{2})),
            Status::kTimedOut);
  EXPECT_EQ(side.loop->wait_until([] { return true; }, Deadline::now()), Status::kOk);
  side.loop->wake();
  EXPECT_EQ(side.loop->wait(Deadline::never()), 0u) << "a wake before the wait counts";
  for (int i = 0; i < 200; ++i) {
    std::thread waker([&] { side.loop->wake(); });
    EXPECT_EQ(side.loop->wait(patience()), 0u);
    waker.join();
  }
}

}  // namespace
}  // namespace verbena::engine
