#include "host/hot_pool.hpp"

#include "range.hpp"
#include "result.hpp"

#include <pattern.hpp>
#include <sanitized.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace verbena::host {
namespace {

using Guards = HotPoolOptions::Guards;
constexpr std::size_t kMebi = std::size_t{1} << 20;

/// Caches of 64-byte blocks to 512-byte ones.
constexpr HotPoolOptions kSmall{.max_threads = 4, .cache_bytes = 1024, .guards = Guards::kOff};

TEST(HotPool, RefusesLimitsThatCannotWork) {
  Range range(kMebi);
  struct Case {
    const char* what;
    HotPoolOptions options;
    std::size_t bytes;
    const char* text;
  };
  const Case cases[] = {
      {"no threads", {.max_threads = 0}, kMebi, "max_threads must be 1 to 1024; got 0"},
      {"absurd threads", {.max_threads = 1025}, kMebi, "max_threads"},
      {"no cache", {.cache_bytes = 0}, kMebi, "cache_bytes must be 128 to 1048576; got 0"},
      {"less than two blocks", {.cache_bytes = 127}, kMebi, "cache_bytes"},
      {"absurd cache", {.cache_bytes = (1 << 20) + 1}, kMebi, "cache_bytes"},
      {"no memory", {.max_threads = 1, .cache_bytes = 128}, 0, "more than half of the pool's 0 bytes"},
      {"caches that hold it all",
       {.max_threads = 16},
       kMebi,
       "16 threads may hold 110592 bytes each, 1769472 together"},
      {"one byte too little", {.max_threads = 1, .cache_bytes = 128}, 255, "128 bytes each, 128 together"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.what);
    const auto pool = HotPool::create(range.span().first(bad.bytes), bad.options);
    ASSERT_TRUE(test::has_status(pool, Status::kBadArgument));
    EXPECT_NE(std::string(pool.error().text()).find(bad.text), std::string::npos) << pool.error().text();
  }
  EXPECT_STATUS(HotPool::create(range.span().subspan(8), kSmall), Status::kBadArgument);
  EXPECT_STATUS(HotPool::create({range.span().data(), HotPool::kMaxRangeBytes + 1}, kSmall), Status::kBadArgument);
  EXPECT_OK(HotPool::create(range.span().first(256), {.max_threads = 1, .cache_bytes = 128}));
}

TEST(HotPool, RoundsToClassesAndAligns) {
  Range range(kMebi);
  auto pool = HotPool::create(range.span(), kSmall);
  ASSERT_OK(pool);
  for (const std::size_t bytes : {1UL, 64UL, 65UL, 128UL, 129UL, 1000UL, 4096UL, 4097UL, 100'000UL}) {
    const auto offset = pool->allocate(bytes);
    ASSERT_NE(offset, HotPool::kNoOffset) << bytes;
    const std::size_t block = std::max(HotPool::kMinBlockBytes, std::bit_ceil(bytes));
    EXPECT_EQ(pool->block_bytes(offset), block);
    EXPECT_EQ(offset % std::min<std::size_t>(block, 4096), 0U) << bytes;
    EXPECT_EQ(pool->offset_of(pool->at(offset)), offset);
    EXPECT_EQ(pool->free(offset), Status::kOk);
    EXPECT_EQ(pool->block_bytes(offset), 0U);
  }
  for (const std::size_t bytes : {std::size_t{0}, kMebi + 1, std::size_t{1} << 40, ~std::size_t{0}})
    EXPECT_EQ(pool->allocate(bytes), HotPool::kNoOffset) << bytes;
  EXPECT_EQ(pool->statistics().failures, 4U);
  EXPECT_EQ(pool->statistics().allocations, 9U);
  EXPECT_EQ(pool->statistics().used_bytes, 0U);
  EXPECT_EQ(pool->offset_of(nullptr), HotPool::kNoOffset);
  EXPECT_EQ(pool->offset_of(range.span().data() + kMebi), HotPool::kNoOffset);
}

TEST(HotPool, FindsWrongFreesAndStaysAsItWas) {
  Range range(kMebi);
  auto pool = HotPool::create(range.span(), kSmall);
  ASSERT_OK(pool);
  for (const std::size_t bytes : {100UL, 5000UL}) {  // Cached, and not.
    const auto offset = pool->allocate(bytes);
    const HotPoolStatistics before = pool->statistics();
    for (const std::uint64_t wrong :
         {offset + 1, offset + 64, std::uint64_t{kMebi}, std::uint64_t{kMebi + 64}, HotPool::kNoOffset})
      EXPECT_EQ(pool->free(wrong), Status::kBadArgument) << wrong;
    EXPECT_EQ(pool->statistics().used_bytes, before.used_bytes);
    EXPECT_EQ(pool->free(offset), Status::kOk);
    EXPECT_EQ(pool->free(offset), Status::kBadArgument) << "a double free";
    EXPECT_EQ(pool->statistics().frees, before.frees + 1);
    EXPECT_EQ(pool->statistics().used_bytes, 0U);
  }
}

TEST(HotPool, CacheSparesTheLock) {
  Range range(kMebi);
  auto pool = HotPool::create(range.span(), kSmall);
  ASSERT_OK(pool);
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(pool->free(pool->allocate(64)), Status::kOk);
  EXPECT_EQ(pool->statistics().batches, 1U);
  // 16 blocks of 64 B are cached: batches of 8.
  std::vector<std::uint64_t> blocks(1000);
  for (auto& block : blocks) block = pool->allocate(64);
  for (const auto block : blocks) ASSERT_EQ(pool->free(block), Status::kOk);
  EXPECT_LE(pool->statistics().batches, 2U + 2 * 1000 / 8);
  EXPECT_EQ(pool->statistics().uncached, 0U);
  EXPECT_LE(pool->statistics().cached_bytes, HotPool::max_cached_bytes(kSmall) + 4 * 2 * 8 * 64);
}

// Nothing is lost in the caches of this thread or in the centre: all of the memory comes out, in any class.
TEST(HotPool, GivesOutEverythingAndMergesItAgain) {
  Range range(kMebi);
  auto pool = HotPool::create(range.span(), kSmall);
  ASSERT_OK(pool);
  std::mt19937_64 random(1);
  for (const std::size_t bytes : {64UL, 256UL, 64UL, 4096UL, kMebi, 512UL}) {
    std::vector<std::uint64_t> blocks;
    for (std::uint64_t block; (block = pool->allocate(bytes)) != HotPool::kNoOffset;) blocks.push_back(block);
    EXPECT_EQ(blocks.size(), kMebi / bytes) << bytes;
    EXPECT_EQ(pool->statistics().used_bytes, kMebi);
    std::ranges::shuffle(blocks, random);
    for (const auto block : blocks) ASSERT_EQ(pool->free(block), Status::kOk);
    EXPECT_EQ(pool->statistics().used_bytes, 0U);
    std::ranges::sort(blocks);
    EXPECT_EQ(std::ranges::adjacent_find(blocks), blocks.end()) << "handed out twice";
  }
}

TEST(HotPool, FreesWhatAnotherThreadAllocated) {
  Range range(kMebi);
  auto pool = HotPool::create(range.span(), kSmall);
  ASSERT_OK(pool);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::uint64_t> blocks(2000);
    for (auto& block : blocks) ASSERT_NE(block = pool->allocate(64), HotPool::kNoOffset);
    std::thread other([&] {
      for (const auto block : blocks) EXPECT_EQ(pool->free(block), Status::kOk);
      EXPECT_EQ(pool->statistics().caches, 2U);
    });
    other.join();
    EXPECT_EQ(pool->statistics().caches, 1U) << "the other thread's was returned";
    EXPECT_EQ(pool->statistics().used_bytes, 0U);
  }
  EXPECT_EQ(pool->statistics().allocations, 40'000U);
  EXPECT_EQ(pool->statistics().frees, 40'000U);
  EXPECT_NE(pool->allocate(kMebi), HotPool::kNoOffset) << "what the threads cached is there";
}

TEST(HotPool, ServesMoreThreadsThanItHasCaches) {
  Range range(kMebi);
  auto pool = HotPool::create(range.span(), {.max_threads = 1, .cache_bytes = 1024, .guards = Guards::kOff});
  ASSERT_OK(pool);
  const auto mine = pool->allocate(64);
  std::thread other([&] {
    const auto offset = pool->allocate(64);
    EXPECT_NE(offset, HotPool::kNoOffset);
    EXPECT_NE(offset, mine);
    EXPECT_EQ(pool->free(offset), Status::kOk);
    EXPECT_EQ(pool->statistics().uncached, 2U);
    EXPECT_EQ(pool->statistics().caches, 1U);
  });
  other.join();
  EXPECT_EQ(pool->free(mine), Status::kOk);
  EXPECT_EQ(pool->statistics().uncached, 2U);
}

TEST(HotPool, ThreadUsesMorePoolsThanItRemembers) {
  constexpr std::size_t kPools = 12;
  std::vector<Range> ranges;
  std::vector<HotPool> pools;
  for (std::size_t i = 0; i < kPools; ++i) {
    auto pool = HotPool::create(ranges.emplace_back(64 * 1024).span(), {.max_threads = 1, .cache_bytes = 1024});
    ASSERT_OK(pool);
    pools.push_back(std::move(*pool));
  }
  std::array<std::uint64_t, kPools> last;
  last.fill(HotPool::kNoOffset);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < kPools; ++i) {
      ASSERT_TRUE(last[i] == HotPool::kNoOffset || pools[i].free(last[i]) == Status::kOk);
      last[i] = pools[i].allocate(64);
      ASSERT_NE(last[i], HotPool::kNoOffset);
      EXPECT_EQ(pools[i].statistics().caches, 1U);
      EXPECT_EQ(pools[i].statistics().uncached, 0U);
    }
  }
}

TEST(HotPool, MayEndBeforeTheThreadsThatUsedIt) {
  Range range(kMebi);
  std::barrier meet(2);
  std::thread user;
  {
    auto pool = HotPool::create(range.span(), kSmall);
    ASSERT_OK(pool);
    user = std::thread([&meet, &pool] {
      EXPECT_EQ(pool->free(pool->allocate(64)), Status::kOk);
      meet.arrive_and_wait();  // The pool ends,
      meet.arrive_and_wait();  // then this thread.
    });
    meet.arrive_and_wait();
  }
  meet.arrive_and_wait();
  user.join();
  // Another in the same place is another.
  auto pool = HotPool::create(range.span(), kSmall);
  ASSERT_OK(pool);
  EXPECT_EQ(pool->statistics().caches, 0U);
  EXPECT_NE(pool->allocate(64), HotPool::kNoOffset);
}

/// Threads that allocate, keep, free and pass blocks on, against a map of what is handed out. Threads come and go.
class Stress {
 public:
  Stress(std::size_t bytes, const HotPoolOptions& options) : range_(bytes), taken_(bytes / 64) {
    auto made = HotPool::create(range_.span(), options);
    EXPECT_OK(made);
    pool_ = std::make_unique<HotPool>(std::move(*made));
    for (auto& box : boxes_) box = HotPool::kNoOffset;
  }

  void run(unsigned threads, int generations, int steps) {
    for (int generation = 0; generation < generations; ++generation) {
      std::vector<std::thread> running;
      for (unsigned i = 0; i < threads; ++i)
        running.emplace_back([this, seed = static_cast<unsigned>(generation) * 100 + i, steps] { work(seed, steps); });
      for (auto& thread : running) thread.join();
    }
    for (auto& box : boxes_) give(box.exchange(HotPool::kNoOffset));
    const HotPoolStatistics now = pool_->statistics();
    EXPECT_EQ(now.allocations, now.frees);
    EXPECT_EQ(now.used_bytes, 0U);
    EXPECT_LE(now.caches, 1U);
    EXPECT_NE(pool_->allocate(std::bit_floor(range_.size) / 2), HotPool::kNoOffset);
  }

 private:
  void work(unsigned seed, int steps) {
    std::mt19937_64 random(seed);
    std::vector<std::uint64_t> mine;
    for (int step = 0; step < steps; ++step) {
      switch (random() % 4) {
        case 0:
        case 1:
          if (const auto offset = take(1 + (random() & ((std::uint64_t{64} << random() % 8) - 1)));
              offset != HotPool::kNoOffset)
            mine.push_back(offset);
          break;
        case 2: {  // To whoever looks into the box next, for what was there.
          if (mine.empty()) break;
          mine.back() = boxes_[random() % boxes_.size()].exchange(mine.back());
          if (mine.back() == HotPool::kNoOffset) mine.pop_back();
          break;
        }
        default:
          if (mine.empty()) break;
          std::swap(mine[random() % mine.size()], mine.back());
          give(mine.back());
          mine.pop_back();
      }
      while (mine.size() > 200) {
        give(mine.back());
        mine.pop_back();
      }
    }
    for (const auto offset : mine) give(offset);
  }
  [[nodiscard]] std::uint64_t take(std::size_t bytes) {
    const std::uint64_t offset = pool_->allocate(bytes);
    if (offset == HotPool::kNoOffset) return offset;
    const std::size_t usable = pool_->block_bytes(offset);
    EXPECT_GE(usable, bytes);
    EXPECT_LE(offset + usable, range_.size);
    for (std::size_t unit = offset / 64; unit < (offset + usable + 63) / 64; ++unit)
      EXPECT_FALSE(taken_[unit].exchange(true)) << "unit " << unit << " is handed out twice";
    std::memset(pool_->at(offset), static_cast<int>(offset / 64 & 0xff), usable);
    return offset;
  }
  void give(std::uint64_t offset) {
    if (offset == HotPool::kNoOffset) return;
    const std::size_t usable = pool_->block_bytes(offset);
    const std::span<const std::byte> bytes(pool_->at(offset), usable);
    EXPECT_TRUE(test::all_are(bytes, static_cast<std::byte>(offset / 64)));
    for (std::size_t unit = offset / 64; unit < (offset + usable + 63) / 64; ++unit)
      EXPECT_TRUE(taken_[unit].exchange(false));
    EXPECT_EQ(pool_->free(offset), Status::kOk);
  }

  Range range_;
  std::unique_ptr<HotPool> pool_;
  std::vector<std::atomic<bool>> taken_;
  std::array<std::atomic<std::uint64_t>, 64> boxes_;
};

TEST(HotPool, ThreadsAgreeWithAModel) { Stress(4 * kMebi, kSmall).run(4, 4, test::unsanitized(20'000)); }

TEST(HotPool, ThreadsAgreeWithAModelWithGuards) {
  HotPoolOptions options = kSmall;
  options.guards = Guards::kOn;
  Stress(4 * kMebi, options).run(4, 2, 10'000);
}

// Most allocations merge what there is first, and some fail.
TEST(HotPool, ThreadsAgreeWithAModelWhereMemoryIsShort) { Stress(64 * 1024, kSmall).run(4, 4, 10'000); }

TEST(HotPool, ThreadsAgreeWithAModelWhereCachesAreShort) {
  Stress(kMebi, {.max_threads = 2, .cache_bytes = 1024, .guards = Guards::kOff}).run(4, 2, 10'000);
}

// ---- Guards

class HotPoolDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    auto made = HotPool::create(range.span(), {.max_threads = 1, .cache_bytes = 1024, .guards = Guards::kOn});
    ASSERT_OK(made);
    pool = std::make_unique<HotPool>(std::move(*made));
  }
  Range range{kMebi};
  std::unique_ptr<HotPool> pool;
};

TEST_F(HotPoolDeathTest, UsableBytesAreThoseAskedFor) {
  for (const std::size_t bytes : {1UL, 63UL, 64UL, 1000UL, 100'000UL}) {
    const auto offset = pool->allocate(bytes);
    EXPECT_EQ(pool->block_bytes(offset), bytes);
    std::memset(pool->at(offset), 1, bytes);
    EXPECT_EQ(pool->free(offset), Status::kOk);
  }
}

TEST_F(HotPoolDeathTest, DoubleFree) {
  const auto cached = pool->allocate(64);
  (void)pool->free(cached);
  EXPECT_DEATH((void)pool->free(cached), "a block was freed twice, at offset");
  const auto large = pool->allocate(100'000);
  (void)pool->free(large);
  EXPECT_DEATH((void)pool->free(large), "was freed before, at offset");
}

TEST_F(HotPoolDeathTest, ForeignOffset) {
  int foreign = 0;
  EXPECT_DEATH((void)pool->free(pool->offset_of(&foreign)), "not of this pool");
  EXPECT_DEATH((void)pool->free(kMebi), "not of this pool");
  const auto offset = pool->allocate(1000);
  EXPECT_DEATH((void)pool->free(offset + 64), "not the start of a block");
  EXPECT_DEATH((void)pool->free(offset + 1), "not the start of a block");
}

TEST_F(HotPoolDeathTest, Overrun) {
  for (const std::size_t bytes : {1UL, 48UL, 64UL, 1000UL, 100'000UL}) {
    const auto offset = pool->allocate(bytes);
    const std::byte kept = pool->at(offset)[bytes];
    pool->at(offset)[bytes] = std::byte{0};
    EXPECT_DEATH((void)pool->free(offset), "past the end of a block, at offset") << bytes;
    pool->at(offset)[bytes] = kept;
    EXPECT_EQ(pool->free(offset), Status::kOk);
  }
}

TEST_F(HotPoolDeathTest, WriteAfterFree) {
  const auto offset = pool->allocate(64);
  (void)pool->free(offset);
  pool->at(offset)[10] = std::byte{0};
  EXPECT_DEATH((void)pool->allocate(64), "wrote into a block after it was freed");
}

TEST(HotPoolGuards, FollowTheBuild) {
  Range range(kMebi);
  auto pool = HotPool::create(range.span(), {.max_threads = 1});
  ASSERT_OK(pool);
#ifdef NDEBUG
  EXPECT_EQ(pool->block_bytes(pool->allocate(1)), 64U);
#else
  EXPECT_EQ(pool->block_bytes(pool->allocate(1)), 1U);
#endif
}

}  // namespace
}  // namespace verbena::host
