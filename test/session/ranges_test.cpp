// Ranges against a plain model of who holds which element, and by several threads.
#include "session/ranges.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

namespace verbena::session {
namespace {

using Span = Ranges::Span;

class RangesTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kLength = 40;
  static constexpr std::uint32_t kMax = 8;

  [[nodiscard]] Status take(std::uint64_t begin, std::uint64_t end) { return ranges.take({begin, end}, taken); }

  Ranges ranges{kLength, kMax};
  std::uint32_t taken = Ranges::kNone;
};

TEST_F(RangesTest, TakesWhatIsInsideAndFree) {
  EXPECT_EQ(take(0, kLength + 1), Status::kOutOfRange);
  EXPECT_EQ(take(~std::uint64_t{0}, 3), Status::kOutOfRange);
  EXPECT_EQ(take(5, 5), Status::kBadArgument);
  ASSERT_EQ(take(10, 20), Status::kOk);
  const std::uint32_t middle = taken;
  EXPECT_EQ(take(0, 11), Status::kBusy);
  EXPECT_EQ(take(19, 30), Status::kBusy);
  EXPECT_EQ(take(12, 13), Status::kBusy);
  EXPECT_EQ(take(0, kLength), Status::kBusy);
  EXPECT_EQ(take(0, 10), Status::kOk);
  EXPECT_EQ(take(20, kLength), Status::kOk);
  EXPECT_EQ(ranges.held(), 3u);
  EXPECT_FALSE(ranges.drop(middle));
  EXPECT_EQ(take(10, 20), Status::kOk);
}

TEST_F(RangesTest, SplitsAndJoins) {
  ASSERT_EQ(take(0, 30), Status::kOk);
  const std::uint32_t front = taken;
  std::uint32_t back = Ranges::kNone;
  EXPECT_EQ(ranges.split(front, 0, back), Status::kOutOfRange);
  EXPECT_EQ(ranges.split(front, 30, back), Status::kOutOfRange);
  ASSERT_EQ(ranges.split(front, 12, back), Status::kOk);
  EXPECT_EQ(ranges.span(front).end, 12u);
  EXPECT_EQ(ranges.span(back).begin, 12u);
  EXPECT_EQ(ranges.span(back).end, 30u);
  EXPECT_EQ(ranges.join(back, front), Status::kBadArgument);
  ASSERT_EQ(ranges.join(front, back), Status::kOk);
  EXPECT_EQ(ranges.span(front).end, 30u);
  EXPECT_EQ(ranges.held(), 1u);
}

TEST_F(RangesTest, HasNoMoreThanItsLimit) {
  std::vector<std::uint32_t> held;
  for (std::uint64_t i = 0; i < kMax; ++i) {
    ASSERT_EQ(take(2 * i, 2 * i + 2), Status::kOk);
    held.push_back(taken);
  }
  EXPECT_EQ(take(30, 31), Status::kLimit);
  std::uint32_t rest = Ranges::kNone;
  EXPECT_EQ(ranges.split(held[0], 1, rest), Status::kLimit);
  EXPECT_EQ(ranges.span(held[0]).end, 2u);
  EXPECT_FALSE(ranges.drop(held[3]));
  EXPECT_EQ(ranges.split(held[0], 1, rest), Status::kOk);
}

TEST_F(RangesTest, IsFreeWhenTheLastHolderIsGone) {
  ASSERT_EQ(take(3, 9), Status::kOk);
  const std::uint32_t shared = taken;
  ranges.share(shared);
  ranges.share(shared);
  EXPECT_FALSE(ranges.is_sole(shared));
  EXPECT_FALSE(ranges.drop(shared));
  EXPECT_FALSE(ranges.drop(shared));
  EXPECT_TRUE(ranges.is_sole(shared));
  EXPECT_EQ(take(8, 9), Status::kBusy);
  EXPECT_FALSE(ranges.drop(shared));
  EXPECT_EQ(take(8, 9), Status::kOk);
}

TEST_F(RangesTest, SaysOnceThatTheRegionIsOver) {
  ASSERT_EQ(take(0, 1), Status::kOk);
  const std::uint32_t first = taken;
  ASSERT_EQ(take(1, 2), Status::kOk);
  EXPECT_FALSE(ranges.close());
  EXPECT_FALSE(ranges.drop(first));
  EXPECT_TRUE(ranges.drop(taken));
  Ranges empty(1, 1);
  EXPECT_TRUE(empty.close());
}

/// Who holds each element; 0: nobody.
class RangesModel {
 public:
  RangesModel(std::uint64_t length, std::uint32_t max) : holder_(length, 0), ranges_(length, max), max_(max) {}

  void step(std::mt19937_64& random) {
    const auto pick = [&](std::uint64_t below) { return random() % below; };
    switch (held_.empty() ? 0 : pick(4)) {
      case 0: return take(pick(holder_.size() + 1), pick(holder_.size() + 1));
      case 1: return split(pick(held_.size()), pick(6));
      case 2: return join(pick(held_.size()), pick(held_.size()));
      default: return drop(pick(held_.size()));
    }
  }
  void check() const {
    ASSERT_EQ(ranges_.held(), held_.size());
    for (const Held& held : held_) {
      const Span span = ranges_.span(held.range);
      for (std::uint64_t at = 0; at < holder_.size(); ++at)
        ASSERT_EQ(holder_[at] == held.name, span.begin <= at && at < span.end) << at;
    }
  }

 private:
  struct Held {
    std::uint32_t range;
    std::uint64_t name;
  };
  void mark(Span span, std::uint64_t name) {
    for (std::uint64_t at = span.begin; at < span.end; ++at) holder_[at] = name;
  }
  void take(std::uint64_t begin, std::uint64_t end) {
    bool is_free = true;
    for (std::uint64_t at = begin; at < end; ++at) is_free &= holder_[at] == 0;
    const Status expected = begin > end            ? Status::kOutOfRange
                            : begin == end         ? Status::kBadArgument
                            : !is_free             ? Status::kBusy
                            : held_.size() == max_ ? Status::kLimit
                                                   : Status::kOk;
    std::uint32_t range = 0;
    ASSERT_EQ(ranges_.take({begin, end}, range), expected) << begin << " to " << end;
    if (expected != Status::kOk) return;
    held_.push_back({range, ++names_});
    mark({begin, end}, names_);
  }
  void split(std::size_t which, std::uint64_t front) {
    const Span span = ranges_.span(held_[which].range);
    const bool is_inside = front != 0 && front < span.end - span.begin;
    const Status expected = !is_inside ? Status::kOutOfRange : held_.size() == max_ ? Status::kLimit : Status::kOk;
    std::uint32_t rest = 0;
    ASSERT_EQ(ranges_.split(held_[which].range, front, rest), expected);
    if (expected != Status::kOk) return;
    held_.push_back({rest, ++names_});
    mark({span.begin + front, span.end}, names_);
  }
  void join(std::size_t which, std::size_t next) {
    const Span back = ranges_.span(held_[next].range);
    const bool is_next = back.begin == ranges_.span(held_[which].range).end;
    ASSERT_EQ(ranges_.join(held_[which].range, held_[next].range), is_next ? Status::kOk : Status::kBadArgument);
    if (!is_next) return;
    mark(back, held_[which].name);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(next));
  }
  void drop(std::size_t which) {
    mark(ranges_.span(held_[which].range), 0);
    ASSERT_FALSE(ranges_.drop(held_[which].range));
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  std::vector<std::uint64_t> holder_;
  std::vector<Held> held_;
  Ranges ranges_;
  const std::uint32_t max_;
  std::uint64_t names_ = 0;
};

TEST(RangesAgainstAModel, EveryStepOfManyHistories) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    RangesModel model(24, 6);
    for (int step = 0; step < 100; ++step) {
      model.step(random);
      model.check();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Two threads never hold the same element: each marks what it took, and finds its marks when it gives it back.
TEST(RangesByThreads, NeverOverlap) {
  constexpr std::uint64_t kLength = 16;
  constexpr int kThreads = 4;
  Ranges ranges(kLength, 8);
  std::vector<std::atomic<int>> marks(kLength);
  std::atomic<int> overlaps{0};
  std::atomic<int> successes{0};
  const auto work = [&](int me) {
    std::mt19937_64 random(static_cast<std::uint64_t>(me));
    for (int round = 0; round < 2000; ++round) {
      const std::uint64_t begin = random() % kLength;
      const Span wanted{begin, begin + 1 + random() % (kLength - begin)};
      std::uint32_t range = 0;
      if (ranges.take(wanted, range) != Status::kOk) continue;
      ++successes;
      for (std::uint64_t at = wanted.begin; at < wanted.end; ++at) overlaps += marks[at].exchange(me) != 0 ? 1 : 0;
      std::uint32_t rest = Ranges::kNone;
      const bool is_split = ranges.split(range, 1, rest) == Status::kOk;
      for (std::uint64_t at = wanted.begin; at < wanted.end; ++at) overlaps += marks[at].exchange(0) != me ? 1 : 0;
      (void)ranges.drop(range);
      if (is_split) (void)ranges.drop(rest);
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i <= kThreads; ++i) threads.emplace_back(work, i);
  threads.clear();
  EXPECT_EQ(overlaps, 0);
  EXPECT_GT(successes, 0);
  EXPECT_TRUE(ranges.close());
}

// What two threads do to a range whose holder both of them use.
TEST_F(RangesTest, ARangeThatIsSharedOrFreeIsNeitherCutNorFreed) {
#ifdef NDEBUG
  GTEST_SKIP() << "release builds check nothing here";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ASSERT_EQ(take(0, 10), Status::kOk);
  std::uint32_t rest = Ranges::kNone;
  EXPECT_DEATH(
      {
        ranges.share(taken);
        (void)ranges.split(taken, 5, rest);
      },
      "is_sole");
  EXPECT_FALSE(ranges.drop(taken));
  EXPECT_DEATH((void)ranges.drop(taken), "holders");
  EXPECT_DEATH(ranges.share(taken), "before != 0");
#endif
}

}  // namespace
}  // namespace verbena::session
