#include "range.hpp"
#include "result.hpp"
#include "sanitized.hpp"

#include <verbena/slab_manager.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <ostream>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace verbena {
namespace {

using host::Range;
using test::unsanitized;
using Sharing = SlabManager::Sharing;
constexpr std::size_t kUnit = SlabManager::kMinItemBytes;

/// Memory between bytes that nobody may touch.
class Fenced {
 public:
  explicit Fenced(std::size_t bytes) : range_(bytes + 2 * kFence) {
    std::ranges::fill(range_.span(), kUntouched);
    memory_ = range_.span().subspan(kFence, bytes);
  }
  ~Fenced() {
    const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
    EXPECT_TRUE(std::ranges::all_of(range_.span().first(kFence), is_untouched)) << "written in front of the memory";
    EXPECT_TRUE(std::ranges::all_of(range_.span().last(kFence), is_untouched)) << "written behind the memory";
  }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  [[nodiscard]] std::span<std::byte> span() const { return memory_; }

 private:
  static constexpr std::size_t kFence = 4096;
  static constexpr std::byte kUntouched{0xA5};
  Range range_;
  std::span<std::byte> memory_;
};

[[nodiscard]] SlabManager made(std::span<std::byte> memory, unsigned partitions,
                               Sharing sharing = Sharing::kOneThread) {
  auto manager = SlabManager::create(memory, {.partitions = partitions, .sharing = sharing});
  EXPECT_OK(manager);
  return std::move(*manager);
}

TEST(SlabManager, RefusesWhatCannotBeDivided) {
  const Range range(1 << 20);
  const auto refuses = [](std::span<std::byte> memory, SlabManager::Options options) {
    EXPECT_STATUS(SlabManager::create(memory, options), Status::kBadArgument);
  };
  refuses(range.span(), {.partitions = 0});
  refuses(range.span(), {.partitions = SlabManager::kMaxPartitions + 1});
  refuses(range.span(), {.sharing = static_cast<Sharing>(2)});
  refuses(range.span().subspan(8), {});
  refuses(range.span().first(63), {});
  refuses({}, {});
  refuses(range.span().first(3 * kUnit - 1), {.partitions = 3});
  EXPECT_OK(SlabManager::create(range.span().first(3 * kUnit), {.partitions = 3}));
  EXPECT_OK(SlabManager::create(range.span(), {.partitions = SlabManager::kMaxPartitions}));
}

struct Division {
  std::size_t bytes;
  unsigned partitions;
};
void PrintTo(const Division& one, std::ostream* out) { *out << one.bytes << " bytes in " << one.partitions; }

class SlabManagerDivision : public testing::TestWithParam<Division> {};

// Each 64 B of the memory once, and those of a partition apart from all others.
TEST_P(SlabManagerDivision, HandsOutAllMemoryAndNoMore) {
  const auto [bytes, partitions] = GetParam();
  const Fenced memory(bytes);
  SlabManager manager = made(memory.span(), partitions);
  ASSERT_EQ(manager.partitions(), partitions);
  std::vector<bool> seen(bytes / kUnit);
  std::size_t all = 0, least = bytes, most = 0;
  const std::byte* end_of_last = memory.span().data();
  for (unsigned key = 0; key < partitions; ++key) {
    const std::size_t capacity = manager.capacity_bytes(key);
    least = std::min(least, capacity);
    most = std::max(most, capacity);
    const std::byte* const begin = end_of_last;
    end_of_last += capacity;
    std::vector<std::byte*> items;
    for (std::span<std::byte> item; !(item = manager.allocate(key, 1)).empty(); items.push_back(item.data())) {
      ASSERT_EQ(item.size(), kUnit);
      ASSERT_TRUE(begin <= item.data() && item.data() + item.size() <= end_of_last) << "partition " << key;
      const auto unit = static_cast<std::size_t>(item.data() - memory.span().data()) / kUnit;
      ASSERT_FALSE(seen[unit]);
      seen[unit] = true;
      std::ranges::fill(item, std::byte{1});
    }
    EXPECT_EQ(items.size(), capacity / kUnit);
    EXPECT_EQ(manager.used_bytes(key), capacity);
    all += capacity;
    for (std::byte* const item : items) ASSERT_EQ(manager.free(key, item), Status::kOk);
    EXPECT_EQ(manager.used_bytes(key), 0U);
    EXPECT_EQ(manager.allocate(key, std::bit_floor(capacity)).size(), std::bit_floor(capacity)) << "they are one again";
  }
  EXPECT_EQ(all, bytes / kUnit * kUnit);
  EXPECT_TRUE(std::ranges::find(seen, false) == seen.end());
  EXPECT_LE(most - least, bytes / partitions >= 4096 ? 2 * 4096 : 2 * kUnit) << "they are nearly equal";
}

INSTANTIATE_TEST_SUITE_P(Divisions, SlabManagerDivision,
                         testing::Values(Division{64, 1}, Division{127, 1}, Division{192, 2}, Division{4096, 3},
                                         Division{100'000, 7}, Division{1 << 20, 4}, Division{(1 << 20) + 4095, 3},
                                         Division{1'000'000, 64}, Division{64 * 4096, 4096}));

TEST(SlabManager, AKeyHasOnePartition) {
  const Range range(1 << 16);
  SlabManager manager = made(range.span(), 4);
  while (!manager.allocate(1, 4096).empty()) {}
  EXPECT_TRUE(manager.allocate(~std::uint64_t{0} - 2, 4096).empty()) << "2^64 - 3 is 1 modulo 4";
  for (const std::uint64_t key : {0U, 2U, 3U}) EXPECT_EQ(manager.allocate(key, 4096).size(), 4096U);
  const std::span<std::byte> item = manager.allocate(6, 100);
  EXPECT_EQ(item.size(), 128U);
  for (const std::uint64_t key : {0U, 1U, 3U}) {
    EXPECT_EQ(manager.item_bytes(key, item.data()), 0U);
    EXPECT_EQ(manager.free(key, item.data()), Status::kBadArgument);
  }
  EXPECT_EQ(manager.item_bytes(2, item.data()), 128U);
  EXPECT_EQ(manager.free(10, item.data()), Status::kOk);
}

TEST(SlabManager, SizesAndAlignment) {
  const Range range(1 << 20);
  SlabManager manager = made(range.span(), 2);
  struct Size {
    std::size_t bytes, item;
  };
  for (const auto [bytes, item] : {Size{1, 64}, Size{65, 128}, Size{129, 192}, Size{1000, 1024}, Size{1200, 1216},
                                   Size{8128, 8128}, Size{8129, 8192}, Size{8193, 16384}}) {
    for (const std::uint64_t key : {0U, 1U}) {
      const std::span<std::byte> found = manager.allocate(key, bytes);
      EXPECT_EQ(found.size(), item);
      const auto address = reinterpret_cast<std::uintptr_t>(found.data());
      EXPECT_EQ(address % std::min<std::size_t>(std::bit_ceil(bytes), 4096), 0U) << bytes;
      EXPECT_EQ(address % kUnit, 0U);
    }
  }
  EXPECT_TRUE(manager.allocate(0, 0).empty());
  EXPECT_TRUE(manager.allocate(0, (1 << 20) + 1).empty());
  EXPECT_TRUE(manager.allocate(0, ~std::size_t{0}).empty());
}

TEST(SlabManager, ClassesArePowersOfTwo) {
  const Range range(1 << 20);
  SlabManager manager = made(range.span(), 4);
  EXPECT_EQ(SlabManager::class_for(0), 0U);
  EXPECT_EQ(SlabManager::class_for(64), 0U);
  EXPECT_EQ(SlabManager::class_for(65), 1U);
  EXPECT_EQ(SlabManager::class_for(1 << 18), 12U);
  EXPECT_EQ(SlabManager::class_for((1 << 18) + 1), 13U);
  EXPECT_EQ(SlabManager::class_for(~std::size_t{0}), 58U);
  ASSERT_EQ(manager.classes(0), 13U);
  for (unsigned slab_class = 0; slab_class < 13; ++slab_class) {
    const std::span<std::byte> item = manager.allocate_class(3, slab_class);
    ASSERT_EQ(item.size(), kUnit << slab_class);
    EXPECT_EQ(manager.class_of(3, slab_class).block_bytes, item.size());
    EXPECT_EQ(manager.class_of(3, slab_class).used, 1U);
    EXPECT_EQ(manager.class_of(3, slab_class).used_bytes, item.size());
    EXPECT_EQ(manager.used_bytes(3), item.size());
    EXPECT_EQ(manager.used_bytes(0), 0U);
    std::size_t free = 0;
    for (unsigned other = 0; other < 13; ++other) free += manager.class_of(3, other).free_bytes;
    EXPECT_EQ(free + item.size(), manager.capacity_bytes(3));
    EXPECT_EQ(manager.free(3, item.data()), Status::kOk);
  }
  for (const unsigned none : {13U, 58U, 64U, ~0U}) {
    EXPECT_TRUE(manager.allocate_class(3, none).empty());
    EXPECT_EQ(manager.class_of(3, none).block_bytes, 0U);
  }
}

TEST(SlabManager, FindsWrongFreesAndStaysAsItWas) {
  const Range range(1 << 16);
  SlabManager manager = made(range.span().first(1 << 15), 2);
  const std::span<std::byte> item = manager.allocate(0, 1000);
  int foreign = 0;
  const std::vector<const void*> wrong{nullptr,
                                       &foreign,
                                       item.data() + 1,
                                       item.data() + 64,
                                       item.data() + item.size(),
                                       range.span().data() + (1 << 15),
                                       range.span().data() + (1 << 14),
                                       range.span().data() + range.size};
  for (const void* const address : wrong) {
    EXPECT_EQ(manager.free(0, address), Status::kBadArgument);
    EXPECT_EQ(manager.item_bytes(0, address), 0U);
  }
  EXPECT_EQ(manager.free(1, item.data()), Status::kBadArgument);
  EXPECT_EQ(manager.used_bytes(0), 1024U);
  EXPECT_EQ(manager.free(0, item.data()), Status::kOk);
  EXPECT_EQ(manager.free(0, item.data()), Status::kBadArgument);
  EXPECT_EQ(manager.used_bytes(0), 0U);
}

// Each item holds its own mark from end to end until it is given back: another one over it would show.
TEST(SlabManager, AgreesWithAModel) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto partitions = static_cast<unsigned>(1 + random() % 5);
    const Fenced memory(kUnit * (partitions + random() % 10'000));
    SlabManager manager = made(memory.span(), partitions);
    struct Item {
      std::span<std::byte> bytes;
      std::uint64_t key;
      std::byte mark;
    };
    std::vector<Item> items;
    std::map<unsigned, std::size_t> used;
    for (int step = 0; step < unsanitized(20'000); ++step) {
      const bool is_filling = step / 2000 % 2 == 0;
      if (items.empty() || random() % 10 < (is_filling ? 7U : 3U)) {
        const std::uint64_t key = random();
        const std::size_t bytes = 1 + random() % (kUnit << random() % 10);
        const std::span<std::byte> item = random() % 2 == 0
                                              ? manager.allocate(key, bytes)
                                              : manager.allocate_class(key, SlabManager::class_for(bytes));
        if (item.empty()) continue;
        ASSERT_GE(item.size(), bytes);
        const auto mark = static_cast<std::byte>(random());
        std::ranges::fill(item, mark);
        items.push_back({item, key, mark});
        used[static_cast<unsigned>(key % partitions)] += item.size();
      } else {
        std::swap(items[random() % items.size()], items.back());
        const Item item = items.back();
        items.pop_back();
        ASSERT_TRUE(std::ranges::all_of(item.bytes, [&](std::byte byte) { return byte == item.mark; }));
        ASSERT_EQ(manager.item_bytes(item.key, item.bytes.data()), item.bytes.size());
        ASSERT_EQ(manager.free(item.key, item.bytes.data()), Status::kOk);
        used[static_cast<unsigned>(item.key % partitions)] -= item.bytes.size();
      }
    }
    for (unsigned key = 0; key < partitions; ++key) EXPECT_EQ(manager.used_bytes(key), used[key]);
    for (const Item& item : items) ASSERT_EQ(manager.free(item.key, item.bytes.data()), Status::kOk);
    for (unsigned key = 0; key < partitions; ++key) {
      const std::size_t whole = std::bit_floor(manager.capacity_bytes(key));
      EXPECT_EQ(manager.allocate(key, whole).size(), whole);
    }
  }
}

/// Takes and gives back items of a key, each with the thread's mark while it has it. False: another thread wrote there.
bool churn(SlabManager& manager, std::uint64_t key, std::byte mark) {
  std::mt19937_64 random(static_cast<std::uint64_t>(mark));
  std::vector<std::span<std::byte>> items;
  bool is_sound = true;
  for (int round = 0; round < unsanitized(20'000); ++round) {
    if (items.size() < 16) {
      const std::span<std::byte> item = manager.allocate(key, 1 + random() % 500);
      std::ranges::fill(item, mark);
      if (!item.empty()) items.push_back(item);
    } else {
      std::swap(items[random() % items.size()], items.back());
      is_sound &= std::ranges::all_of(items.back(), [&](std::byte byte) { return byte == mark; });
      is_sound &= manager.free(key, items.back().data()) == Status::kOk;
      items.pop_back();
    }
  }
  for (const auto& item : items) is_sound &= manager.free(key, item.data()) == Status::kOk;
  return is_sound;
}

/// Threads that have a key each, while this one reads statistics.
void churn_with(SlabManager& manager, const std::vector<std::uint64_t>& keys) {
  std::vector<std::uint8_t> is_sound(keys.size());
  std::atomic<std::size_t> ended{0};
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < keys.size(); ++i)
    threads.emplace_back([&, i] {
      is_sound[i] = churn(manager, keys[i], static_cast<std::byte>(i + 1)) ? 1 : 0;
      ++ended;
    });
  while (ended != keys.size()) {
    // Each number was true some time; their sum need not have been.
    for (const std::uint64_t key : keys)
      for (unsigned i = 0; i < manager.classes(key); ++i)
        EXPECT_LE(manager.class_of(key, i).used_bytes, manager.capacity_bytes(key));
    std::this_thread::yield();
  }
  threads.clear();
  EXPECT_EQ(std::ranges::count(is_sound, 1), static_cast<std::ptrdiff_t>(keys.size()));
  for (const std::uint64_t key : keys) EXPECT_EQ(manager.used_bytes(key), 0U);
}

TEST(SlabManager, ThreadsWithPartitionsOfTheirOwnNeedNoLock) {
  const Fenced memory(1 << 18);
  SlabManager manager = made(memory.span(), 4);
  churn_with(manager, {0, 1, 2, 3});
}

TEST(SlabManager, AnyThreadMayUseASharedPartition) {
  const Fenced memory(1 << 14);
  SlabManager manager = made(memory.span(), 2, Sharing::kAnyThread);
  churn_with(manager, {0, 0, 1, 1});
}

TEST(SlabManager, MovesWithItsItems) {
  const Range range(1 << 16);
  SlabManager first = made(range.span(), 2);
  const std::span<std::byte> item = first.allocate(1, 64);
  SlabManager second = std::move(first);
  EXPECT_EQ(second.item_bytes(1, item.data()), 64U);
  first = std::move(second);
  EXPECT_EQ(first.free(1, item.data()), Status::kOk);
}

}  // namespace
}  // namespace verbena
