// nova::NovaMemManager: what it hands out lies in its pool, each item once, and wrong calls are refused.
#include "servers.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <set>

namespace verbena::test {
namespace {

using Memory = std::vector<std::byte>;

TEST(NovaMemManager, ItemsOfAClassLieInThePool) {
  Memory memory((1 << 20) + 100);
  // Not on a multiple of 64, as malloc's.
  const std::span<std::byte> pool = std::span(memory).subspan(17, 1 << 20);
  NovaMemManager items(pool, 4, 1 << 16);
  EXPECT_EQ(items.slabclassid(0, 1), 0U);
  EXPECT_EQ(items.slabclassid(0, 64), 0U);
  EXPECT_EQ(items.slabclassid(9, 65), 1U);
  const std::uint32_t scid = items.slabclassid(0, 1200);
  std::set<char*> seen;
  std::size_t all = 0;
  for (std::uint64_t key = 0; key < 4; ++key) {
    for (char* item = nullptr; (item = items.ItemAlloc(key, scid)) != nullptr; ++all) {
      const auto* const begin = reinterpret_cast<std::byte*>(item);
      ASSERT_TRUE(begin >= pool.data() && begin + 2048 <= pool.data() + pool.size());
      ASSERT_TRUE(seen.insert(item).second);
      std::memset(item, static_cast<int>(key), 2048);
    }
    EXPECT_EQ(items.manager().class_of(key, scid).free, 0U);
  }
  EXPECT_GE(all, (pool.size() - 64) / 2048 - 4) << "but for what each partition has over";
  char* end_of_last = nullptr;
  for (char* const item : seen) {
    ASSERT_LE(end_of_last, item);
    end_of_last = item + 2048;
  }
}

TEST(NovaMemManager, RefusesWrongFreesAndStaysAsItWas) {
  Memory memory(1 << 20);
  NovaMemManager items(memory, 2, 1 << 16);
  const std::uint32_t scid = items.slabclassid(1, 100);
  char* const item = items.ItemAlloc(1, scid);
  ASSERT_NE(item, nullptr);
  const auto frees = [&](std::uint64_t key, char* buf, std::uint32_t slab_class) {
    return status_of([&] { items.FreeItem(key, buf, slab_class); });
  };
  EXPECT_EQ(frees(0, item, scid), Status::kBadArgument) << "another partition's";
  EXPECT_EQ(frees(1, item, scid + 1), Status::kBadArgument) << "another class's";
  EXPECT_EQ(frees(1, item + 64, scid), Status::kBadArgument) << "its middle";
  EXPECT_EQ(frees(1, nullptr, scid), Status::kBadArgument);
  EXPECT_EQ(frees(1, item, 64), Status::kBadArgument);
  EXPECT_EQ(items.manager().used_bytes(1), 128U);
  EXPECT_EQ(frees(1, item, scid), Status::kOk);
  EXPECT_EQ(frees(1, item, scid), Status::kBadArgument) << "twice";

  std::vector<char*> several;
  for (int i = 0; i < 10; ++i) several.push_back(items.ItemAlloc(1, scid));
  items.FreeItems(1, several, scid);
  EXPECT_EQ(items.manager().used_bytes(1), 0U);
  items.FreeItems(1, {}, scid);
}

TEST(NovaMemManager, RefusesWhatNoPoolHas) {
  Memory memory(1 << 16);
  NovaMemManager items(memory, 1, 1 << 12);
  const auto class_of = [&](std::uint64_t size) { return status_of([&] { (void)items.slabclassid(0, size); }); };
  EXPECT_EQ(class_of(0), Status::kBadArgument);
  EXPECT_EQ(class_of(1 << 12), Status::kOk);
  EXPECT_EQ(class_of((1 << 12) + 1), Status::kBadArgument);
  EXPECT_EQ(class_of(~std::uint64_t{0}), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { (void)items.ItemAlloc(0, items.slabclassid(0, 1 << 12) + 1); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { const NovaMemManager none(std::span<std::byte>{}, 1, 1 << 12); }), Status::kBadArgument);
  EXPECT_EQ(status_of([&] { const NovaMemManager none(memory, 0, 1 << 12); }), Status::kBadArgument);
  char* const buf = reinterpret_cast<char*>(memory.data());
  for (const auto [partitions, gb, mb] :
       std::vector<std::array<std::uint32_t, 3>>{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {1, 1U << 21, 1}, {1, 1, 1U << 21}})
    EXPECT_EQ(status_of([&] { const NovaMemManager none(buf, partitions, gb, mb); }), Status::kBadArgument);
}

// As RDMALib's README does it.
TEST(NovaMemManager, APoolOfGibibytes) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  // calloc's pages come when they are touched.
  const std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::calloc(kBytes, 1)), &std::free);
  ASSERT_NE(memory, nullptr);
  NovaMemManager items(memory.get(), 2, 1, 1);
  const std::uint32_t scid = items.slabclassid(0, 1 << 20);
  std::size_t count = 0;
  for (const std::uint64_t key : {0U, 1U})
    for (char* item = nullptr; (item = items.ItemAlloc(key, scid)) != nullptr; ++count)
      ASSERT_TRUE(item >= memory.get() && item + (1 << 20) <= memory.get() + kBytes);
  EXPECT_GE(count, 1022U) << "but for what each partition has over";
  EXPECT_EQ(status_of([&] { (void)items.slabclassid(0, (1 << 20) + 1); }), Status::kBadArgument);
}

}  // namespace
}  // namespace verbena::test
