// One-sided access, sealed.
#include "remote/remote.hpp"
#include "../engine/node.hpp"
#include "sealed.hpp"

#include <array>
#include <memory>
#include <vector>

namespace verbena::remote {
namespace {

using namespace verbena::test;

class SealedLink : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 256 * 1024;

  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    auto first = Link::create(*a.loop, a.pd.get(), {.bounce_bytes = 4096, .bounce_buffers = 2});
    auto second = Link::create(*b.loop, b.pd.get(), {});
    ASSERT_OK(first);
    ASSERT_OK(second);
    link = std::move(*first);
    peer = std::move(*second);
    const auto end_a = link->local_endpoint({});
    const auto end_b = peer->local_endpoint({});
    ASSERT_OK(end_a);
    ASSERT_OK(end_b);
    ASSERT_OK(link->connect(*end_a, *end_b, patience()));
    ASSERT_OK(peer->connect(*end_b, *end_a, patience()));
    target = std::make_unique<Region>(*b.nic, b.pd.get(), kBytes);
    local = std::make_unique<Region>(*a.nic, a.pd.get(), kBytes);
    ASSERT_OK(link->import_window(target->window(), patience()));
    b.loop->poll();
  }

  [[nodiscard]] RemoteWord word() const { return {target->remote(0, 8).address, target->remote(0, 8).rkey}; }

  // Of the longest wait: a call that slept would have made system calls by right.
  Node a{{.spin = kPatience}};
  Node b{{.spin = kPatience}};
  std::unique_ptr<Region> target;
  std::unique_ptr<Region> local;
  std::unique_ptr<Link> link;
  std::unique_ptr<Link> peer;
};

TEST_F(SealedLink, RegisteredMemory) {
  for (const std::size_t length : {std::size_t{1}, std::size_t{8}, std::size_t{300}, std::size_t{65536}, kBytes}) {
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
                [&] { return link->fetch_add(word(), 1, old, patience()) == Status::kOk; });
  expect_sealed("compare_swap", a.rounds(1000),
                [&] { return link->compare_swap(word(), old, old + 1, old, patience()) == Status::kOk; });
}

TEST_F(SealedLink, RefusalsToo) {
  expect_sealed("beyond the window", 100, [&] {
    return link->read(local->local(0, 16), target->remote(kBytes - 8, 16), patience()) == Status::kOutOfRange;
  });
  expect_sealed("no window", 100, [&] {
    return link->read(local->local(0, 8), {.address = 0, .length = 8, .rkey = 1}, patience()) == Status::kNotFound;
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
