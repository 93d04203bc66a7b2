#include "host/block_pool.hpp"

#include "range.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace verbena::host {
namespace {

constexpr auto kNoBlock = BlockPool::kNoOffset;

BlockPool pool_over(const Range& range) {
  auto pool = BlockPool::create(range.span());
  EXPECT_OK(pool);
  return std::move(*pool);
}

/// Used and free bytes of all classes come to the capacity.
void expect_sums(const BlockPool& pool) {
  std::size_t used = 0, free = 0;
  for (unsigned i = 0; i < pool.classes(); ++i) {
    EXPECT_EQ(pool.class_of(i).block_bytes, std::size_t{64} << i);
    used += pool.class_of(i).used_bytes;
    free += pool.class_of(i).free_bytes;
  }
  EXPECT_EQ(used, pool.used_bytes());
  EXPECT_EQ(used + free, pool.capacity_bytes());
}

/// All pages are one span again: it can be had whole.
void expect_whole(BlockPool& pool) {
  EXPECT_EQ(pool.used_bytes(), 0U);
  const auto whole = pool.allocate(pool.capacity_bytes());
  ASSERT_NE(whole, kNoBlock) << "freed blocks are not pages again";
  EXPECT_EQ(pool.free(whole), Status::kOk);
}

TEST(BlockPool, RefusesRangesThatCannotHoldAPage) {
  const Range range(8192);
  EXPECT_STATUS(BlockPool::create({}), Status::kBadArgument);
  EXPECT_STATUS(BlockPool::create(range.span().first(4095)), Status::kBadArgument);
  EXPECT_STATUS(BlockPool::create(range.span().subspan(8)), Status::kBadArgument);
  auto pool = BlockPool::create(range.span().first(8191));
  ASSERT_OK(pool);
  EXPECT_EQ(pool->capacity_bytes(), 4096U);
}

TEST(BlockPool, WastesAtMostAnEighth) {
  const Range range(4 << 20);
  BlockPool pool = pool_over(range);
  for (std::size_t bytes = 1; bytes <= 200'000; bytes += bytes < 33'000 ? 1 : 997) {
    const std::size_t block = BlockSizes::block_bytes_for(bytes);
    ASSERT_GE(block, bytes);
    ASSERT_EQ(block % 64, 0U);
    if (bytes <= 512) {
      ASSERT_EQ(block, (bytes + 63) / 64 * 64);
    } else {
      ASSERT_LE((block - bytes) * 8, block) << bytes;
    }
    const auto offset = pool.allocate(bytes);
    ASSERT_NE(offset, kNoBlock);
    ASSERT_EQ(pool.block_bytes(offset), block);
    ASSERT_EQ(offset % (bytes > 28 * 1024 ? 4096 : 64), 0U);
    ASSERT_EQ(pool.offset_of(pool.at(offset)), offset);
    ASSERT_EQ(pool.free(offset), Status::kOk);
  }
  expect_whole(pool);
}

TEST(BlockPool, RefusesAbsurdSizes) {
  const Range range(1 << 16);
  BlockPool pool = pool_over(range);
  EXPECT_EQ(pool.allocate(0), kNoBlock);
  EXPECT_EQ(pool.allocate((1 << 16) + 1), kNoBlock);
  for (unsigned shift = 17; shift < 64; ++shift) EXPECT_EQ(pool.allocate(std::size_t{1} << shift), kNoBlock);
  for (std::size_t less = 0; less < 200; ++less) EXPECT_EQ(pool.allocate(~less), kNoBlock);
  expect_whole(pool);
}

TEST(BlockPool, FindsWrongFreesAndStaysAsItWas) {
  const Range range(1 << 20);
  BlockPool pool = pool_over(range);
  const auto small = pool.allocate(1000);
  const auto large = pool.allocate(100'000);
  ASSERT_NE(small, kNoBlock);
  ASSERT_NE(large, kNoBlock);
  const std::size_t used = pool.used_bytes();
  for (const std::uint64_t wrong :
       {small + 1, small + 64, small + 1024, large + 64, large + 4096, large + 98'304, std::uint64_t{1 << 20},
        std::uint64_t{(1 << 20) + 64}, kNoBlock, ~std::uint64_t{63}}) {
    EXPECT_EQ(pool.free(wrong), Status::kBadArgument) << wrong;
    EXPECT_EQ(pool.block_bytes(wrong), 0U) << wrong;
  }
  EXPECT_EQ(pool.used_bytes(), used);
  for (const auto offset : {small, large}) {
    EXPECT_EQ(pool.free(offset), Status::kOk);
    EXPECT_EQ(pool.free(offset), Status::kBadArgument) << "freed last";
    EXPECT_EQ(pool.block_bytes(offset), 0U);
  }
  // Others of their sizes: they are not the ones that were freed last any more.
  const auto other_small = pool.allocate(1000), more = pool.allocate(1000), other_large = pool.allocate(100'000);
  EXPECT_EQ(other_small, small) << "the block freed last is given out first";
  EXPECT_EQ(other_large, large);
  for (const auto offset : {more, other_small, other_large}) EXPECT_EQ(pool.free(offset), Status::kOk);
  for (const auto offset : {more, other_small, other_large}) EXPECT_EQ(pool.free(offset), Status::kBadArgument);
  int foreign = 0;
  EXPECT_EQ(pool.offset_of(&foreign), kNoBlock);
  EXPECT_EQ(pool.offset_of(nullptr), kNoBlock);
  EXPECT_EQ(pool.offset_of(range.span().data() + range.size), kNoBlock);
  expect_whole(pool);
}

TEST(BlockPool, MovesWithItsBlocks) {
  const Range range(8192);
  BlockPool first = pool_over(range);
  const auto offset = first.allocate(64);
  BlockPool second = std::move(first);
  EXPECT_EQ(second.block_bytes(offset), 64U);
  EXPECT_EQ(second.free(offset), Status::kOk);
}

/// Blocks of one size take nearly all of the memory, in every order of frees, and again.
class BlockPoolOneSize : public testing::TestWithParam<std::size_t> {};

TEST_P(BlockPoolOneSize, FillsTheMemory) {
  constexpr std::size_t kBytes = 16 << 20;
  const Range range(kBytes);
  BlockPool pool = pool_over(range);
  const std::size_t size = GetParam();
  const std::size_t block = BlockSizes::block_bytes_for(size);
  std::mt19937_64 random(size);
  std::vector<std::uint64_t> live;
  const auto fill = [&] {
    for (std::uint64_t offset; (offset = pool.allocate(size)) != kNoBlock;) live.push_back(offset);
    EXPECT_GE(live.size() * block, std::min(kBytes * 98 / 100, kBytes / block * block)) << live.size();
    EXPECT_EQ(std::set(live.begin(), live.end()).size(), live.size());
    EXPECT_EQ(pool.used_bytes(), live.size() * block);
    expect_sums(pool);
  };
  for (int round = 0; round < 3; ++round) {
    fill();
    std::shuffle(live.begin(), live.end(), random);
    for (std::size_t left = live.size() / 2; live.size() > left; live.pop_back())
      ASSERT_EQ(pool.free(live.back()), Status::kOk);
    expect_sums(pool);
  }
  for (const auto offset : live) ASSERT_EQ(pool.free(offset), Status::kOk);
  expect_whole(pool);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BlockPoolOneSize,
                         testing::Values(1, 64, 65, 128, 192, 200, 320, 448, 512, 1000, 1024, 1025, 1100, 2000, 2048,
                                         3000, 4033, 4096, 5000, 8192, 10'000, 20'000, 28'672, 28'673, 50'000, 70'000,
                                         1 << 20, 1'100'000, 3 << 20, 4 << 20));

/// What the pool has given out, by offset.
class Model {
 public:
  explicit Model(BlockPool& pool) : pool_(pool) {}

  void add(std::uint64_t offset, std::size_t bytes) {
    const std::size_t block = BlockSizes::block_bytes_for(bytes);
    const auto [at, is_new] = live_.emplace(offset, block);
    ASSERT_TRUE(is_new);
    ASSERT_LE(offset + block, pool_.capacity_bytes());
    ASSERT_TRUE(at == live_.begin() || std::prev(at)->first + std::prev(at)->second <= offset);
    ASSERT_TRUE(std::next(at) == live_.end() || offset + block <= std::next(at)->first);
    used_ += block;
  }
  void remove_near(std::uint64_t where) {
    auto at = live_.lower_bound(where);
    if (at == live_.end()) at = live_.begin();
    ASSERT_EQ(pool_.block_bytes(at->first), at->second);
    ASSERT_EQ(pool_.free(at->first), Status::kOk);
    used_ -= at->second;
    live_.erase(at);
  }
  void move(std::uint64_t from, std::uint64_t to) {
    const auto block = live_.extract(from);
    ASSERT_FALSE(block.empty());
    used_ -= block.mapped();
    add(to, static_cast<std::size_t>(block.mapped()));
    ASSERT_EQ(pool_.free(from), Status::kOk);
  }
  void probe(std::uint64_t offset) {
    ASSERT_TRUE(live_.contains(offset) || pool_.free(offset) == Status::kBadArgument);
  }
  void check() const {
    ASSERT_EQ(pool_.used_bytes(), used_);
    std::uint64_t blocks = 0;
    for (unsigned i = 0; i < pool_.classes(); ++i) blocks += pool_.class_of(i).used;
    ASSERT_EQ(blocks, live_.size());
  }
  [[nodiscard]] bool empty() const { return live_.empty(); }

 private:
  BlockPool& pool_;
  std::map<std::uint64_t, std::size_t> live_;
  std::size_t used_ = 0;
};

/// Empties a slab as its owner does. Whether there was one.
bool clear_one(BlockPool& pool, Model& model) {
  const auto clearing = pool.begin_clearing(3840);
  if (!clearing) return false;
  for (unsigned i = 0; i < 64; ++i) {
    if ((clearing->live >> i & 1) == 0) continue;
    const std::uint64_t from = clearing->offset + i * clearing->block_bytes;
    const std::size_t used = pool.used_bytes();
    const auto to = pool.allocate(clearing->block_bytes);
    EXPECT_NE(to, kNoBlock) << "the others of its class have room";
    EXPECT_EQ(pool.used_bytes(), used + clearing->block_bytes);
    model.move(from, to);
  }
  EXPECT_TRUE(pool.end_clearing(*clearing));
  return true;
}

TEST(BlockPool, AgreesWithAModel) {
  unsigned cleared = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Range range(4096 * (1 + random() % (seed < 4 ? 40 : 2000)));
    BlockPool pool = pool_over(range);
    Model model(pool);
    for (int step = 0; step < 40'000; ++step) {
      const bool is_filling = step / 4000 % 2 == 0;
      const std::uint64_t most = std::uint64_t{64} << random() % (step % 3 == 0 ? 13 : 7);
      if (model.empty() || random() % 10 < (is_filling ? 7U : 3U)) {
        const std::size_t bytes = 1 + random() % most;
        const auto offset = pool.allocate(bytes);
        if (offset != kNoBlock) model.add(offset, bytes);
        if (offset == kNoBlock && clear_one(pool, model)) ++cleared;
      } else if (random() % 8 == 0) {
        model.probe(random() % (range.size / 64 + 2) * 64 + (random() % 4 == 0 ? random() % 64 : 0));
      } else {
        model.remove_near(random() % range.size);
      }
      if (testing::Test::HasFatalFailure()) return;
      if (step % 64 == 0) model.check();
    }
    model.check();
    expect_sums(pool);
    while (!model.empty()) model.remove_near(random() % range.size);
    expect_whole(pool);
  }
  EXPECT_GT(cleared, 20U) << "the test is too gentle";
}

TEST(BlockPool, ClearsWhatOneClassHasTooMuchOf) {
  const Range range(4 << 20);
  BlockPool pool = pool_over(range);
  Model model(pool);
  std::mt19937_64 random(3);
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t offset; (offset = pool.allocate(64)) != kNoBlock; offsets.push_back(offset)) model.add(offset, 64);
  EXPECT_FALSE(pool.begin_clearing(4096)) << "no slab has room";
  std::ranges::sort(offsets);
  for (std::size_t i = 0; i < offsets.size(); ++i)
    if (random() % 4 != 0 && i % 64 != 0) model.remove_near(offsets[i]);
  EXPECT_EQ(pool.allocate(1000), kNoBlock) << "each slab has something";
  EXPECT_FALSE(pool.begin_clearing(63)) << "only shorter ones than this class";
  std::size_t taken = 0;
  for (;; taken += 1024) {
    auto offset = pool.allocate(1000);
    while (offset == kNoBlock && clear_one(pool, model)) offset = pool.allocate(1000);
    if (offset == kNoBlock) break;
    model.add(offset, 1000);
  }
  EXPECT_GE(pool.used_bytes(), pool.capacity_bytes() * 98 / 100);
  EXPECT_GE(taken, pool.capacity_bytes() * 70 / 100);
  model.check();
}

TEST(BlockPool, AClearingThatIsGivenUpLeavesASlab) {
  const Range range(1 << 20);
  BlockPool pool = pool_over(range);
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t offset; (offset = pool.allocate(64)) != kNoBlock;) offsets.push_back(offset);
  for (std::size_t i = 0; i < offsets.size(); ++i) ASSERT_TRUE(i % 4 == 0 || pool.free(offsets[i]) == Status::kOk);
  const auto first = pool.begin_clearing(64);
  ASSERT_TRUE(first);
  EXPECT_FALSE(pool.end_clearing(*first)) << "it has blocks";
  const auto second = pool.begin_clearing(64);
  ASSERT_TRUE(second);
  EXPECT_NE(second->offset, first->offset) << "the next one is another";
  EXPECT_FALSE(pool.end_clearing(*second));
  std::size_t more = 0;
  while (pool.allocate(64) != kNoBlock) ++more;
  EXPECT_EQ(more, offsets.size() - offsets.size() / 4) << "all blocks can be had again";
}

}  // namespace
}  // namespace verbena::host
