#include "base/exclusive.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace verbena {
namespace {

TEST(Exclusive, OneThreadEntersAgainAndAgainAndNeverTwice) {
  Exclusive exclusive;
  for (int i = 0; i < 1000; ++i) {
    Exclusive::Mark* const mark = exclusive.enter();
    ASSERT_NE(mark, nullptr);
    ASSERT_EQ(exclusive.enter(), nullptr);
    Exclusive::leave(mark);
  }
}

// More of them than have marks of their own.
TEST(Exclusive, AnotherThreadEntersOnlyWhileNobodyIsInside) {
  Exclusive exclusive;
  for (std::size_t i = 0; i < 3 * Exclusive::kMarks; ++i) {
    Exclusive::Mark* const mine = exclusive.enter();
    ASSERT_NE(mine, nullptr);
    std::thread([&] { EXPECT_EQ(exclusive.enter(), nullptr); }).join();
    Exclusive::leave(mine);
    Exclusive::Mark* others = nullptr;
    std::thread([&] { others = exclusive.enter(); }).join();
    ASSERT_NE(others, nullptr);
    EXPECT_EQ(exclusive.enter(), nullptr);
    Exclusive::leave(others);
  }
}

// One enters all the time, and another now and then: what it meets is the first one's short way.
TEST(Exclusive, ThreadsAreNeverInsideTogether) {
  Exclusive exclusive;
  constexpr int kRounds = 1'000'000;
  // Plain: a race of two is lost counts, and ThreadSanitizer's to find.
  std::uint64_t inside = 0;
  std::uint64_t seldom = 0;
  std::uint64_t often = 0;
  std::atomic<bool> is_running{false};
  std::atomic<bool> is_over{false};
  const auto use = [&](std::uint64_t& mine) {
    Exclusive::Mark* const mark = exclusive.enter();
    if (mark == nullptr) return;
    inside = inside + 1;
    ++mine;
    Exclusive::leave(mark);
  };
  std::thread steady([&] {
    is_running = true;
    is_running.notify_one();
    while (!is_over.load(std::memory_order_relaxed)) use(often);
  });
  is_running.wait(false);
  for (int i = 0; i < kRounds; ++i) {
    use(seldom);
    for (int spin = i % 64; spin != 0; --spin) asm volatile("");
  }
  is_over = true;
  steady.join();
  EXPECT_EQ(inside, often + seldom);
  EXPECT_GT(seldom, 0u);
}

}  // namespace
}  // namespace verbena
