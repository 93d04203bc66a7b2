#include "host/slab_pool.hpp"

#include "range.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <random>
#include <vector>

namespace verbena::host {
namespace {

std::size_t class_of(std::size_t bytes) { return std::max(SlabPool::kMinBlockBytes, std::bit_ceil(bytes)); }
std::size_t exact_class_of(std::size_t bytes) { return bytes <= 127 * 64 ? (bytes + 63) / 64 * 64 : class_of(bytes); }

TEST(SlabPool, RefusesRangesThatCannotHoldABlock) {
  Range range(4096);
  EXPECT_STATUS(SlabPool::create(range.span().first(63)), Status::kBadArgument);
  EXPECT_STATUS(SlabPool::create({}), Status::kBadArgument);
  EXPECT_STATUS(SlabPool::create(range.span().subspan(8)), Status::kBadArgument);
  EXPECT_OK(SlabPool::create(range.span().first(64)));
}

TEST(SlabPool, RoundsToClassesAndAligns) {
  Range range(1 << 20);
  auto pool = SlabPool::create(range.span());
  ASSERT_OK(pool);
  for (const std::size_t bytes : {1UL, 64UL, 65UL, 128UL, 129UL, 1000UL, 4096UL, 4097UL, 100'000UL}) {
    const auto offset = pool->allocate(bytes);
    ASSERT_NE(offset, SlabPool::kNoOffset) << bytes;
    EXPECT_EQ(pool->block_bytes(offset), class_of(bytes));
    EXPECT_EQ(offset % std::min<std::size_t>(class_of(bytes), 4096), 0U) << bytes;
    EXPECT_EQ(pool->offset_of(pool->at(offset)), offset);
  }
}

TEST(SlabPool, CountsBlocksByClass) {
  Range range((1 << 16) + 3 * 64);  // 64 KiB, and a tail of one block of 128 B and one of 64.
  auto pool = SlabPool::create(range.span());
  ASSERT_OK(pool);
  ASSERT_EQ(pool->classes(), 11U);
  const auto expect = [&](unsigned index, std::uint64_t used, std::uint64_t free) {
    EXPECT_EQ(pool->class_of(index).block_bytes, std::size_t{64} << index);
    EXPECT_EQ(pool->class_of(index).used, used) << index;
    EXPECT_EQ(pool->class_of(index).free, free) << index;
  };
  const auto expect_all = [&] {
    std::size_t used = 0, free = 0;
    for (unsigned i = 0; i < pool->classes(); ++i) {
      used += pool->class_of(i).used_bytes;
      free += pool->class_of(i).free_bytes;
    }
    EXPECT_EQ(used, pool->statistics().used_bytes);
    EXPECT_EQ(used + free, pool->statistics().capacity_bytes);
  };
  expect(0, 0, 1);
  expect(1, 0, 1);
  expect(10, 0, 1);
  const auto first = pool->allocate(64);
  const auto second = pool->allocate(64);  // Splits the 128 B.
  expect(0, 2, 1);
  expect(1, 0, 0);
  const auto third = pool->allocate(100);  // Splits the 64 KiB.
  expect(1, 1, 1);
  for (unsigned i = 2; i < 10; ++i) expect(i, 0, 1);
  expect(10, 0, 0);
  expect_all();
  // Freed last, taken again at once, freed again, and merged by the next.
  EXPECT_EQ(pool->free(third), Status::kOk);
  expect(1, 0, 2);
  EXPECT_EQ(pool->allocate(100), third);
  expect(1, 1, 1);
  EXPECT_EQ(pool->free(third), Status::kOk);
  EXPECT_EQ(pool->free(first), Status::kOk);
  expect_all();
  EXPECT_EQ(pool->free(second), Status::kOk);
  expect(10, 0, 1);
  expect_all();
  // Three units of a block of four; the rest is spare at once.
  const auto exact = pool->allocate_exact(150);
  expect(2, 1, 1);
  EXPECT_EQ(pool->class_of(2).used_bytes, 192U);
  EXPECT_EQ(pool->class_of(0).free, 2U);
  expect_all();
  EXPECT_EQ(pool->free(exact), Status::kOk);
  expect_all();
  EXPECT_EQ(pool->allocate_exact(150), exact);
  expect_all();
  EXPECT_EQ(pool->free(exact), Status::kOk);
  EXPECT_NE(pool->allocate(1 << 16), SlabPool::kNoOffset);
  expect_all();
}

TEST(SlabPool, GivesBackWhatExactBlocksDoNotNeed) {
  Range range(1 << 16);
  auto pool = SlabPool::create(range.span());
  ASSERT_OK(pool);
  for (const std::size_t bytes : {1UL, 64UL, 65UL, 129UL, 192UL, 193UL, 320UL, 1000UL, 8128UL, 8129UL}) {
    const auto offset = pool->allocate_exact(bytes);
    ASSERT_NE(offset, SlabPool::kNoOffset) << bytes;
    EXPECT_EQ(pool->block_bytes(offset), exact_class_of(bytes));
    EXPECT_EQ(offset % std::min<std::size_t>(class_of(bytes), 4096), 0U) << bytes;
    EXPECT_EQ(pool->free(offset), Status::kOk);
  }
  // Three of four units each, and the fourths for whoever wants one.
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t offset; (offset = pool->allocate_exact(192)) != SlabPool::kNoOffset;) offsets.push_back(offset);
  EXPECT_EQ(offsets.size(), 256U);
  for (std::uint64_t offset; (offset = pool->allocate_exact(64)) != SlabPool::kNoOffset;) offsets.push_back(offset);
  EXPECT_EQ(offsets.size(), 512U);
  EXPECT_EQ(pool->statistics().used_bytes, range.size);
  for (const auto offset : offsets) ASSERT_EQ(pool->free(offset), Status::kOk);
  EXPECT_EQ(pool->allocate(1 << 16), 0U) << "freed blocks were not merged";
}

TEST(SlabPool, RefusesAbsurdSizes) {
  Range range(1 << 16);
  auto pool = SlabPool::create(range.span());
  ASSERT_OK(pool);
  EXPECT_EQ(pool->allocate(0), SlabPool::kNoOffset);
  EXPECT_EQ(pool->allocate((1 << 16) + 1), SlabPool::kNoOffset);
  for (unsigned shift = 17; shift < 64; ++shift)
    EXPECT_EQ(pool->allocate(std::size_t{1} << shift), SlabPool::kNoOffset);
  EXPECT_EQ(pool->allocate(~std::size_t{0}), SlabPool::kNoOffset);
  EXPECT_EQ(pool->statistics().used_bytes, 0U);
  EXPECT_EQ(pool->allocate(1 << 16), 0U);
}

TEST(SlabPool, FindsWrongFreesAndStaysAsItWas) {
  Range range(1 << 16);
  auto pool = SlabPool::create(range.span());
  ASSERT_OK(pool);
  const auto offset = pool->allocate(1000);
  ASSERT_NE(offset, SlabPool::kNoOffset);
  const std::uint64_t past_the_end = 1 << 16;
  for (const std::uint64_t wrong : {offset + 1, offset + 64, offset + 512, offset + 1024, past_the_end,
                                    past_the_end + 64, SlabPool::kNoOffset, ~std::uint64_t{63}}) {
    EXPECT_EQ(pool->free(wrong), Status::kBadArgument) << wrong;
    EXPECT_EQ(pool->block_bytes(wrong), 0U) << wrong;
  }
  EXPECT_EQ(pool->statistics().used_bytes, 1024U);
  EXPECT_EQ(pool->free(offset), Status::kOk);
  EXPECT_EQ(pool->free(offset), Status::kBadArgument);
  const auto other = pool->allocate(64);
  EXPECT_EQ(pool->free(other), Status::kOk);
  EXPECT_EQ(pool->free(offset), Status::kBadArgument);
  EXPECT_EQ(pool->statistics().used_bytes, 0U);
}

TEST(SlabPool, OffsetOfForeignAddressIsNone) {
  Range range(4096);
  auto pool = SlabPool::create(range.span());
  ASSERT_OK(pool);
  int foreign = 0;
  EXPECT_EQ(pool->offset_of(&foreign), SlabPool::kNoOffset);
  EXPECT_EQ(pool->offset_of(nullptr), SlabPool::kNoOffset);
  EXPECT_EQ(pool->offset_of(range.span().data() + 4096), SlabPool::kNoOffset);
  EXPECT_EQ(pool->offset_of(range.span().data() + 4095), 4095U);
}

TEST(SlabPool, MovesWithItsBlocks) {
  Range range(4096);
  auto first = SlabPool::create(range.span());
  ASSERT_OK(first);
  const auto offset = first->allocate(64);
  SlabPool second = std::move(*first);
  EXPECT_EQ(second.block_bytes(offset), 64U);
  EXPECT_EQ(second.free(offset), Status::kOk);
}

/// All blocks of the smallest class come to the whole range, none overlaps, and freed in any order they are one again.
class SlabPoolSizes : public testing::TestWithParam<std::size_t> {};

TEST_P(SlabPoolSizes, GivesOutEverythingAndMergesItAgain) {
  Range range(GetParam());
  auto pool = SlabPool::create(range.span());
  ASSERT_OK(pool);
  const std::size_t units = GetParam() / 64;
  EXPECT_EQ(pool->statistics().capacity_bytes, units * 64);
  const std::size_t largest = std::bit_floor(units) * 64;
  std::mt19937_64 random(units);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::uint64_t> offsets;
    std::vector<bool> seen(units);
    for (std::uint64_t offset; (offset = pool->allocate(64)) != SlabPool::kNoOffset;) {
      ASSERT_LT(offset / 64, units);
      ASSERT_FALSE(seen[offset / 64]) << "handed out twice";
      seen[offset / 64] = true;
      offsets.push_back(offset);
    }
    EXPECT_EQ(offsets.size(), units);
    EXPECT_EQ(pool->statistics().used_bytes, units * 64);
    std::shuffle(offsets.begin(), offsets.end(), random);
    for (const auto offset : offsets) ASSERT_EQ(pool->free(offset), Status::kOk);
    EXPECT_EQ(pool->statistics().used_bytes, 0U);
    const auto whole = pool->allocate(largest);
    ASSERT_NE(whole, SlabPool::kNoOffset) << "freed blocks were not merged";
    EXPECT_EQ(pool->block_bytes(whole), largest);
    ASSERT_EQ(pool->free(whole), Status::kOk);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranges, SlabPoolSizes,
                         testing::Values(64, 65, 127, 128, 192, 4096, 4096 + 64, 64 * 63, 64 * 64, 64 * 65, 100'000,
                                         64 * 4095, 64 * 4096, 64 * 4097, 1'000'000, (1 << 20) - 64));

TEST(SlabPool, AgreesWithAModel) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Range range(64 * (1 + random() % 20'000));
    auto pool = SlabPool::create(range.span());
    ASSERT_OK(pool);
    std::map<std::uint64_t, std::size_t> live;  // Offset to class.
    std::size_t used = 0;
    for (int step = 0; step < 20'000; ++step) {
      const bool filling = step / 2000 % 2 == 0;
      if (live.empty() || random() % 10 < (filling ? 7U : 3U)) {
        const std::size_t bytes = 1 + (random() & ((std::uint64_t{64} << random() % 12) - 1));
        const bool is_exact = random() % 2 == 0;
        const auto offset = is_exact ? pool->allocate_exact(bytes) : pool->allocate(bytes);
        if (offset == SlabPool::kNoOffset) {
          // The check is exact: a buddy system fails only when no aligned block of the class is free.
          const std::size_t block = class_of(bytes);
          for (std::uint64_t at = 0; at + block <= range.size; at += block) {
            const auto after = live.lower_bound(at + block);
            const bool taken = after != live.begin() && std::prev(after)->first + std::prev(after)->second > at;
            ASSERT_TRUE(taken) << bytes << " bytes refused, but " << at << " is free";
          }
          continue;
        }
        const auto [position, fresh] = live.emplace(offset, is_exact ? exact_class_of(bytes) : class_of(bytes));
        ASSERT_TRUE(fresh);
        ASSERT_LE(offset + position->second, range.size);
        const auto before = position == live.begin() ? position : std::prev(position);
        ASSERT_TRUE(before == position || before->first + before->second <= offset) << "overlaps the block before";
        const auto after = std::next(position);
        ASSERT_TRUE(after == live.end() || offset + position->second <= after->first) << "overlaps the block after";
        used += position->second;
      } else if (random() % 8 == 0) {
        const std::uint64_t any = random() % (range.size + 64);
        if (live.contains(any)) continue;
        ASSERT_EQ(pool->free(any), Status::kBadArgument);
      } else {
        auto victim = live.lower_bound(random() % range.size);
        if (victim == live.end()) victim = live.begin();
        ASSERT_EQ(pool->block_bytes(victim->first), victim->second);
        ASSERT_EQ(pool->free(victim->first), Status::kOk);
        used -= victim->second;
        live.erase(victim);
      }
      ASSERT_EQ(pool->statistics().used_bytes, used);
    }
    std::uint64_t blocks = 0;
    for (unsigned i = 0; i < pool->classes(); ++i) blocks += pool->class_of(i).used;
    EXPECT_EQ(blocks, live.size());
    for (const auto& [offset, block] : live) ASSERT_EQ(pool->free(offset), Status::kOk);
    EXPECT_NE(pool->allocate(std::bit_floor(range.size)), SlabPool::kNoOffset);
  }
}

}  // namespace
}  // namespace verbena::host
