// The index by itself, and as a client sees it.
#include "store_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;

TEST(Index, EntriesComeBack) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t word = random();
    EXPECT_EQ(Entry::unpack(word).pack(), word);
  }
  const Entry most{.tag = (1u << 23) - 1, .lines = 127, .line = (std::uint64_t{1} << 34) - 1};
  EXPECT_EQ(most.pack(), ~std::uint64_t{0});
  const Entry least{.tag = 0, .lines = 1, .line = 0};
  EXPECT_NE(least.pack(), 0u);
  EXPECT_EQ(tag_of_entry(most.pack()), most.tag);
}

TEST(Index, EntriesAreInsideTheirWindow) {
  EXPECT_TRUE((Entry{.lines = 2, .line = 6}.is_inside(512)));
  EXPECT_FALSE((Entry{.lines = 2, .line = 6}.is_inside(511)));
  EXPECT_FALSE((Entry{.lines = 2, .line = 7}.is_inside(512)));
  EXPECT_FALSE((Entry{.lines = 0, .line = 0}.is_inside(512)));
  EXPECT_FALSE((Entry{.lines = 127, .line = (std::uint64_t{1} << 34) - 1}.is_inside(kMaxWindowBytes)));
  EXPECT_FALSE((Entry{.lines = 1, .line = 0}.is_inside(0)));
}

TEST(Index, BucketsAreTwoAndKnowEachOther) {
  std::mt19937_64 random(2);
  for (const std::uint64_t items : {std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{10'000'000}, kMaxItems}) {
    const std::uint64_t buckets = buckets_for(items);
    ASSERT_EQ(buckets % 2, 0u);
    ASSERT_GE(buckets * kBucketEntries * 9 / 10, items);
    for (int i = 0; i < 10'000; ++i) {
      const std::uint64_t hash = random();
      const std::uint64_t first = first_bucket(hash, buckets);
      const std::uint64_t second = other_bucket(first, tag_of(hash), buckets);
      ASSERT_LT(first, buckets);
      ASSERT_LT(second, buckets);
      ASSERT_NE(first, second);
      ASSERT_EQ(other_bucket(second, tag_of(hash), buckets), first);
    }
  }
}

// Worker, bucket and tag come out of one hash: none of them may say much about the others.
TEST(Index, PartsOfAHashAreIndependent) {
  constexpr unsigned kWorkers = 3;
  constexpr std::uint64_t kBuckets = 64;
  std::vector<unsigned> count(kWorkers * kBuckets * 4);
  constexpr unsigned kKeys = 400'000;
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::uint64_t hash = hash_of(std::as_bytes(std::span(&i, 1)), kSeed);
    const std::uint64_t second = other_bucket(first_bucket(hash, kBuckets), tag_of(hash), kBuckets);
    const std::uint64_t tag = tag_of(hash) >> 21;
    ++count[(worker_of(hash, kWorkers) * kBuckets + (i % 2 == 0 ? second : first_bucket(hash, kBuckets))) * 4 + tag];
  }
  const double mean = static_cast<double>(kKeys) / static_cast<double>(count.size());
  for (const unsigned each : count) EXPECT_NEAR(each, mean, mean / 4);
}

class IndexTest : public StoreFixture {
 protected:
  enum class Keys : std::uint8_t { kCounted, kPadded, kRandom };
  static std::string name(Keys kind, std::uint64_t i) {
    switch (kind) {
      case Keys::kCounted: return std::to_string(i);
      case Keys::kPadded: return std::string(i % 9, '\0') + std::to_string(i) + std::string(20, 'x');
      case Keys::kRandom: break;
    }
    const std::uint64_t mixed = i * 0x9e37'79b9'7f4a'7c15;
    return {reinterpret_cast<const char*>(&mixed), sizeof mixed};
  }
};

// Nine tenths full by its own count, up to the last item and on and on as keys come and go, for every size.
TEST_F(IndexTest, HoldsAllItsItemsWhateverTheyAre) {
  for (const std::size_t items : {1u, 2u, 7u, 50u, 100u, 1000u, 10'000u, 200'000u}) {
    for (const Keys kind : {Keys::kCounted, Keys::kPadded, Keys::kRandom}) {
      SCOPED_TRACE(std::to_string(items) + " of kind " + std::to_string(static_cast<int>(kind)));
      make(items * 128 + 4 * 4096, items);  // Keys of up to three sizes, each with pages of its own.
      for (std::uint64_t i = 0; i < items; ++i) ASSERT_EQ(put(name(kind, i), "v").status, Status::kOk) << i;
      ASSERT_EQ(put("one more", "v").status, Status::kIndexFull);
      std::uint64_t first = 0;
      for (std::uint64_t i = items; i < items + std::min<std::uint64_t>(items * 2, 100'000); ++i, ++first) {
        ASSERT_EQ(store_->erase(as_key(name(kind, first))).status, Status::kOk);
        ASSERT_EQ(put(name(kind, i), "w").status, Status::kOk) << i;
      }
      ASSERT_EQ(store_->statistics().items, items);
      ItemView view;
      for (std::uint64_t i = first; i < first + items; ++i) ASSERT_TRUE(find_remotely(name(kind, i), view)) << i;
      for (std::uint64_t i = 0; i < std::min<std::uint64_t>(first, 1000); ++i)
        ASSERT_FALSE(find_remotely(name(kind, i), view)) << i;
    }
  }
}

TEST_F(IndexTest, HoldsAMillion) {
  constexpr std::size_t kItems = 1'000'000;
  make(kItems * 64, kItems);
  for (std::uint64_t i = 0; i < kItems; ++i) ASSERT_EQ(put(name(Keys::kRandom, i), "v").status, Status::kOk) << i;
  EXPECT_GE(static_cast<double>(kItems) / static_cast<double>(store_->statistics().index_entries), 0.899);
  ItemView view;
  for (std::uint64_t i = 0; i < kItems; ++i) ASSERT_TRUE(find_remotely(name(Keys::kRandom, i), view)) << i;
}

// Keys that somebody has chosen to meet in two buckets: those hold sixteen. The next is refused, after a bounded
// search, and nobody else is hurt.
TEST_F(IndexTest, ChosenCollisionsHurtThemselvesOnly) {
  constexpr std::size_t kItems = 2000;
  make(1 << 20, kItems);
  const std::uint64_t buckets = store_->index_buckets();
  std::vector<std::string> chosen;
  for (std::uint64_t i = 0; chosen.size() < 20; ++i) {
    const std::string key = name(Keys::kCounted, i);
    const std::uint64_t hash = hash_of(as_key(key), kSeed);
    const std::uint64_t first = first_bucket(hash, buckets);
    const std::uint64_t second = other_bucket(first, tag_of(hash), buckets);
    if (std::min(first, second) == 10 && std::max(first, second) == 21) chosen.push_back(key);
  }
  for (std::size_t i = 0; i < 16; ++i) ASSERT_EQ(put(chosen[i], "v").status, Status::kOk) << i;
  const auto before = store_->statistics().used_bytes;
  for (std::size_t i = 16; i < 20; ++i) EXPECT_EQ(put(chosen[i], "v").status, Status::kIndexFull) << i;
  EXPECT_EQ(store_->statistics().used_bytes, before) << "a refused item's block is free";
  EXPECT_EQ(put(chosen[3], "w").status, Status::kOk) << "replacing needs no place";
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(get(chosen[i]), i == 3 ? "w" : "v");
  unsigned others = 0;
  for (std::uint64_t i = 0; i < 1500; ++i)
    others += put("other" + std::to_string(i), "v").status == Status::kOk ? 1u : 0u;
  EXPECT_EQ(others, 1500u);
  ASSERT_EQ(store_->erase(as_key(chosen[5])).status, Status::kOk);
  EXPECT_EQ(put(chosen[16], "v").status, Status::kOk);
  EXPECT_EQ(get(chosen[16]), "v");
}

// Moves are for nothing when no version is left. They leave nothing behind: an entry that stood in both of its buckets
// would outlive its item.
TEST_F(IndexTest, FailureAfterMovesLeavesEachEntryOnce) {
  constexpr std::size_t kItems = 20'000;
  make(kItems * 64 + 4096, kItems);
  for (std::uint64_t i = 0; i + 1 < kItems; ++i) ASSERT_EQ(put(name(Keys::kCounted, i), "v").status, Status::kOk);
  versions_ = kMaxVersion + 1;
  for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(put("new" + std::to_string(i), "v").status, Status::kLimit);
  for (std::uint64_t i = 0; i + 1 < kItems; ++i)
    ASSERT_EQ(store_->erase(as_key(name(Keys::kCounted, i))).status, Status::kOk);
  const auto index = store_->window().first(store_->index_buckets() * sizeof(Bucket));
  EXPECT_EQ(std::ranges::count(index, std::byte{0}), static_cast<long>(index.size()));
}

TEST_F(IndexTest, TheLastPlaceIsForOneOfTwoThatWereReserved) {
  make(1 << 20, 3);
  ASSERT_EQ(put("a", "v").status, Status::kOk);
  ASSERT_EQ(put("b", "v").status, Status::kOk);
  Store::Pending one, two;
  ASSERT_EQ(store_->reserve(as_key("one"), 5000, kAny, one).status, Status::kOk);
  ASSERT_EQ(store_->reserve(as_key("two"), 5000, kAny, two).status, Status::kOk);
  EXPECT_EQ(store_->commit(two, kAny).status, Status::kOk);
  EXPECT_EQ(store_->commit(one, kAny).status, Status::kIndexFull);
  EXPECT_FALSE(one);
  EXPECT_EQ(get("one"), "not found");
  EXPECT_EQ(store_->statistics().used_bytes, 64u + 64 + 64 + 5120);
}

TEST_F(IndexTest, ChangesTellTheEntryOfTheirItem) {
  make(1 << 20, 100);
  for (const std::size_t length : {std::size_t{10}, std::size_t{5000}}) {
    const auto made = put("k", std::string(length, 'v'));
    EXPECT_EQ(made.entry, store_->find(as_key("k")).entry);
    ItemView view;
    EXPECT_EQ(judge_at(made.entry, as_key("k"), view), Verdict::kWhole);
    EXPECT_EQ(view.version, made.version);
    EXPECT_EQ(put("k", "x", 1000).entry, 0u);
  }
  EXPECT_EQ(store_->erase(as_key("k")).entry, 0u);
  EXPECT_EQ(store_->find(as_key("k")).entry, 0u);
}

// The promise of docs/kv.md, of keys of 16 bytes and values of 64: memory and index, all of it used.
TEST_F(IndexTest, SmallItemsCostLittle) {
  constexpr std::size_t kItems = 100'000;
  constexpr std::size_t kPayload = 16 + 64;
  make(kItems * 128, kItems);
  const auto key = [](std::size_t i) {
    const std::string digits = std::to_string(i);
    return std::string(16 - digits.size(), '0') + digits;
  };
  for (std::size_t i = 0; i < kItems; ++i) ASSERT_EQ(put(key(i), std::string(64, 'v')).status, Status::kOk);
  const auto statistics = store_->statistics();
  const auto bytes =
      static_cast<double>(store_->window().size() + Store::footprint(kItems * 128, Store::Owners::kNo).bytes());
  EXPECT_EQ(statistics.used_bytes, kItems * 128);
  EXPECT_LE(bytes / kItems - kPayload, 60.0);
}

}  // namespace
}  // namespace verbena::kv
