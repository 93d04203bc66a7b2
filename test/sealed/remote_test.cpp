// One-sided access, sealed.
#include "../remote/fixture.hpp"
#include "remote/physical.hpp"
#include "sealed.hpp"

#include <array>
#include <memory>
#include <vector>

namespace verbena::remote {
namespace {

using namespace remote::test;

class SealedLink : public LinkPair {
 protected:
  static constexpr std::size_t kBytes = 64 * 1024;

  // A call that slept would make system calls by right.
  SealedLink() : LinkPair({.wait = engine::WaitPolicy::kSpin}) {}
  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    LinkPair::SetUp();
  }
};

TEST_F(SealedLink, RegisteredMemory) {
  for (const std::size_t length : {std::size_t{1}, std::size_t{8}, std::size_t{300}, std::size_t{5000}, kBytes}) {
    SCOPED_TRACE(length);
    expect_sealed("read", a.rounds(200), [&] {
      return link->read(local->local(0, length), target->remote(0, length), patience()) == Status::kOk;
    });
    expect_sealed("write", a.rounds(200), [&] {
      return link->write(local->local(0, length), target->remote(0, length), patience()) == Status::kOk;
    });
  }
}

TEST_F(SealedLink, BounceBuffers) {
  std::vector<std::byte> mine(kBytes);
  for (const std::size_t length : {std::size_t{1}, std::size_t{8}, std::size_t{300}, std::size_t{4096}, kBytes}) {
    SCOPED_TRACE(length);
    const std::span<std::byte> part(mine.data(), length);
    expect_sealed("read", a.rounds(200),
                  [&] { return link->read(part, target->remote(0, length), patience()) == Status::kOk; });
    expect_sealed("write", a.rounds(200), [&] {
      return link->write(std::span<const std::byte>(part), target->remote(0, length), patience()) == Status::kOk;
    });
  }
}

TEST_F(SealedLink, Atomics) {
  std::uint64_t old = 0;
  expect_sealed("fetch_add", a.rounds(1000),
                [&] { return link->fetch_add(word(0), 1, old, patience()) == Status::kOk; });
  expect_sealed("compare_swap", a.rounds(1000),
                [&] { return link->compare_swap(word(0), old, old + 1, old, patience()) == Status::kOk; });
}

TEST_F(SealedLink, PhysicalAddresses) {
  // Two halves of the region, as if the border of two runs were between them.
  const nic::Window window = target->window();
  const std::uint64_t at = window.address;
  auto table = PhysicalTable::make({{at, 1000, window.rkey}, {at + 1000, kBytes - 1000, window.rkey}},
                                   PhysicalTable::kRights, window.memory_id);
  ASSERT_OK(table);
  const auto map = PhysicalMap::create(*link, std::move(*table), patience());
  ASSERT_OK(map);
  std::uint64_t old = 0;
  std::array<std::byte, 64> mine{};
  expect_sealed("within a run and across", a.rounds(200), [&] {
    return (*map)->read(local->local(0, 8), at, patience()) == Status::kOk &&
           (*map)->write(local->local(0, 4096), at + 500, patience()) == Status::kOk &&
           (*map)->read(std::span(mine), at + 990, patience()) == Status::kOk &&
           (*map)->write(std::span<const std::byte>(mine), at + 1000, patience()) == Status::kOk &&
           (*map)->fetch_add(at, 1, old, patience()) == Status::kOk;
  });
}

TEST_F(SealedLink, RefusalsToo) {
  expect_sealed("beyond the window", 100, [&] {
    return link->read(local->local(0, 16), target->remote(kBytes - 8, 16), patience()) == Status::kOutOfRange;
  });
  expect_sealed("no window", 100, [&] {
    return link->read(local->local(0, 8), {.address = 0, .length = 8, .rkey = 1}, patience()) == Status::kNotFound;
  });
}

/// Counts what it is told, and answers nothing.
class Counter final : public Handler {
 public:
  void on_complete(Link&, const Completion& completion) noexcept override {
    complete += completion.status == Status::kOk ? 1 : 0;
  }
  void on_immediate(Link&, std::uint32_t, std::uint32_t) noexcept override { ++immediates; }
  std::uint64_t complete = 0;
  std::uint64_t immediates = 0;
};

class SealedStarted : public SealedLink {
 protected:
  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    open({.handler = &mine}, {.receives = 64, .handler = &theirs});
  }
  template <class Done>
  [[nodiscard]] bool until(Done&& done) {
    return poll_until({a.loop.get(), b.loop.get()}, std::forward<Done>(done));
  }
  /// 32 of them, each by its number, until all are complete.
  template <class Start>
  [[nodiscard]] bool batch(Start&& start) {
    const std::uint64_t before = mine.complete;
    for (std::uint64_t i = 0; i < 32; ++i) {
      Status status = Status::kAgain;
      if (!until([&] { return (status = start(i)) != Status::kAgain; }) || status != Status::kOk) return false;
    }
    return until([&] { return mine.complete == before + 32; });
  }
  Counter mine;
  Counter theirs;
};

TEST_F(SealedStarted, Transfers) {
  for (const std::size_t length : {std::size_t{8}, std::size_t{2048}}) {
    SCOPED_TRACE(length);
    const auto here = [&](std::uint64_t i) { return local->local(i * 2048, length); };
    const auto there = [&](std::uint64_t i) { return target->remote(i * 2048, length); };
    expect_sealed("writes", a.rounds(200),
                  [&] { return batch([&](std::uint64_t i) { return link->start_write(here(i), there(i), i); }); });
    expect_sealed("reads", a.rounds(200),
                  [&] { return batch([&](std::uint64_t i) { return link->start_read(here(i), there(i), i); }); });
    expect_sealed("writes of one doorbell", a.rounds(200), [&] {
      const engine::Batch held(*link);
      return batch([&](std::uint64_t i) { return link->start_write(here(i), there(i), i); });
    });
    expect_sealed("writes with immediate", a.rounds(200), [&] {
      const std::uint64_t before = theirs.immediates;
      return batch([&](std::uint64_t i) { return link->start_write_imm(here(i), there(i), 1, i); }) &&
             until([&] { return theirs.immediates == before + 32; });
    });
  }
}

TEST_F(SealedStarted, Atomics) {
  expect_sealed("fetch_add", a.rounds(200),
                [&] { return batch([&](std::uint64_t i) { return link->start_fetch_add(word(0), 1, i); }); });
  expect_sealed("compare_swap", a.rounds(200),
                [&] { return batch([&](std::uint64_t i) { return link->start_compare_swap(word(8), i, i, i); }); });
}

TEST_F(SealedLink, CompletionsThatAreTaken) {
  std::array<Completion, 64> taken;
  expect_sealed("20 writes", a.rounds(200), [&] {
    for (std::uint64_t i = 0; i < 20; ++i)
      if (link->start_write(local->local(0, 8), target->remote(0, 8), i) != Status::kOk) return false;
    std::size_t count = 0;
    return poll_until({a.loop.get()}, [&] { return (count += link->take(taken)) == 20; });
  });
}

// The exception: memory that no peer could map goes through the kernel, once for each piece.
TEST_F(SealedLink, MemoryOutsideArenasCostsItsSystemCallAlone) {
  VERBENA_SKIP_ON_A_DEVICE("it is memory as any other there");
  alignas(4096) static std::array<std::byte, 8192> outside{};
  auto registered = b.nic->reg_mr(b.pd.get(), outside.data(), outside.size(),
                                  reinterpret_cast<std::uintptr_t>(outside.data()), Region::kAll);
  ASSERT_OK(registered);
  const nic::Mr mr(*b.nic, *registered);
  const nic::Window window = b.nic->window_of(mr.get());
  ASSERT_OK(link->import_window(window, patience()));
  const engine::RemoteSpan there{.address = window.address, .length = 64, .rkey = window.rkey};
  const auto read = [&] { return link->read(local->local(0, 64), there, patience()) == Status::kOk; };
  ASSERT_TRUE(read());
  Cost cost;
  for (int i = 0; i < 4 && cost.calls != 100; ++i) cost = cost_of(100, read);  // As in expect_sealed.
  EXPECT_EQ(cost.allocations, Allocations{});
  if (!no_calls_are_due()) return;
  EXPECT_EQ(cost.calls, 100u) << testing::PrintToString(SystemCallSection::calls());
}

}  // namespace
}  // namespace verbena::remote
