// One-sided access, sealed.
#include "../channel/fixture.hpp"
#include "sealed.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace verbena::channel::test {
namespace {

class SealedTransfers : public MemoryPair {
 protected:
  // A call that slept would make system calls by right.
  SealedTransfers() : MemoryPair({.wait = engine::WaitPolicy::kSpin}) {}
  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    open();
  }
};

TEST_F(SealedTransfers, RegisteredMemory) {
  for (const std::size_t length : {std::size_t{1}, std::size_t{8}, std::size_t{300}, std::size_t{5000}, kBytes}) {
    SCOPED_TRACE(length);
    expect_sealed("read", a.rounds(200), [&] {
      return here().read(local->local(0, length), target->remote(0, length), patience()) == Status::kOk;
    });
    expect_sealed("write", a.rounds(200), [&] {
      return here().write(local->local(0, length), target->remote(0, length), patience()) == Status::kOk;
    });
  }
}

TEST_F(SealedTransfers, AnyMemory) {
  std::vector<std::byte> mine(kBytes);
  for (const std::size_t length : {std::size_t{1}, std::size_t{8}, std::size_t{300}, std::size_t{4096}, kBytes}) {
    SCOPED_TRACE(length);
    const std::span<std::byte> part(mine.data(), length);
    expect_sealed("read", a.rounds(200),
                  [&] { return here().read(part, target->remote(0, length), patience()) == Status::kOk; });
    expect_sealed("write", a.rounds(200), [&] {
      return here().write(std::span<const std::byte>(part), target->remote(0, length), patience()) == Status::kOk;
    });
  }
}

TEST_F(SealedTransfers, Atomics) {
  std::uint64_t old = 0;
  expect_sealed("fetch_add", a.rounds(1000), [&] { return fetch_add(word(0), 1, old, patience()) == Status::kOk; });
  expect_sealed("compare_swap", a.rounds(1000),
                [&] { return compare_swap(word(0), old, old + 1, old, patience()) == Status::kOk; });
}

TEST_F(SealedTransfers, RefusalsToo) {
  expect_sealed("beyond the window", 100, [&] {
    return here().read(local->local(0, 16), target->remote(kBytes - 8, 16), patience()) == Status::kOutOfRange;
  });
  expect_sealed("no window", 100, [&] {
    return here().read(local->local(0, 8), {.address = 0, .length = 8, .rkey = 1}, patience()) == Status::kNotFound;
  });
}

class SealedStarted : public SealedTransfers {
 protected:
  void SetUp() override {
    SealedTransfers::SetUp();
    a.recorder.keep = b.recorder.keep = false;
  }
  /// 32 of them, each by its number, until all are complete.
  template <class Start>
  [[nodiscard]] bool batch(Start&& start) {
    const std::uint64_t before = a.recorder.completion_count;
    for (std::uint64_t i = 0; i < 32; ++i) {
      Status status = Status::kAgain;
      if (!until([&] { return (status = start(i)) != Status::kAgain; }) || status != Status::kOk) return false;
    }
    return until([&] { return a.recorder.completion_count == before + 32; });
  }
};

TEST_F(SealedStarted, Transfers) {
  for (const std::size_t length : {std::size_t{8}, std::size_t{2048}}) {
    SCOPED_TRACE(length);
    const auto mine = [&](std::uint64_t i) { return local->local(i * 2048, length); };
    const auto there = [&](std::uint64_t i) { return target->remote(i * 2048, length); };
    expect_sealed("writes", a.rounds(200),
                  [&] { return batch([&](std::uint64_t i) { return here().start_write(mine(i), there(i), i); }); });
    expect_sealed("reads", a.rounds(200),
                  [&] { return batch([&](std::uint64_t i) { return here().start_read(mine(i), there(i), i); }); });
    expect_sealed("writes of one doorbell", a.rounds(200), [&] {
      const engine::Batch held(here());
      return batch([&](std::uint64_t i) { return here().start_write(mine(i), there(i), i); });
    });
  }
}

TEST_F(SealedStarted, Atomics) {
  expect_sealed("fetch_add", a.rounds(200), [&] {
    return batch([&](std::uint64_t i) { return here().start_change({.compare_add = 1}, word(0), i); });
  });
  expect_sealed("compare_swap", a.rounds(200),
                [&] { return batch([&](std::uint64_t i) { return here().start_change(swap_of(i, i), word(8), i); }); });
}

// The exception: memory that no peer could map goes through the kernel, once for each piece, by a thread that may have
// to be woken.
TEST_F(SealedTransfers, MemoryOutsideArenasIsCopiedOnce) {
  VERBENA_SKIP_ON_A_DEVICE("it is memory as any other there");
  alignas(4096) static std::array<std::byte, 8192> outside{};
  auto registered = b.nic->reg_mr(b.pd.get(), outside.data(), outside.size(),
                                  reinterpret_cast<std::uintptr_t>(outside.data()), Region::kAll);
  ASSERT_OK(registered);
  const nic::Mr mr(*b.nic, *registered);
  const nic::Window window = b.nic->window_of(mr.get());
  ASSERT_OK(here().import_window(window, patience()));
  const RemoteSpan there{.address = window.address, .length = 64, .rkey = window.rkey};
  const auto read = [&] { return here().read(local->local(0, 64), there, patience()) == Status::kOk; };
  ASSERT_TRUE(read());
  constexpr std::ptrdiff_t kReads = 20;
  const Cost cost = settled_cost_of(kReads, read, [](const Cost& now) { return now.allocations == Allocations{}; });
  EXPECT_EQ(cost.allocations, Allocations{});
  if (!no_calls_are_due()) return;
  const std::vector<SystemCall> calls = SystemCallSection::calls();
  ASSERT_EQ(calls.size(), cost.calls);
  EXPECT_EQ(std::ranges::count(calls, SYS_process_vm_readv, &SystemCall::number), kReads);
  constexpr std::array kOfThreads{SYS_process_vm_readv, SYS_futex, SYS_sched_yield, SYS_sched_setaffinity};
  for (const SystemCall& call : calls) EXPECT_NE(std::ranges::find(kOfThreads, call.number), kOfThreads.end()) << call;
}

}  // namespace
}  // namespace verbena::channel::test
