// A store that makes room by itself: which items go, which stay, and when there is nothing left to remove.
#include "store_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;

class StoreEviction : public StoreFixture {
 protected:
  StoreEviction() { evicts_ = true; }
  /// As a client does, who asks again while it is told that more is to be removed.
  Status put_until_it_fits(std::string_view key, std::string_view value, int most_tries = 1000) {
    Status status = Status::kAgain;
    for (int tries = 0; status == Status::kAgain && tries < most_tries; ++tries) status = put(key, value).status;
    return status;
  }
  unsigned fill(const std::string& value, const std::string& prefix = "k") {
    unsigned count = 0;
    for (; store_->statistics().evicted == 0; ++count)
      EXPECT_EQ(put(prefix + std::to_string(count), value).status, Status::kOk);
    return count;
  }
  void mark_remotely(std::string_view key) {
    const std::uint64_t hash = hash_of(as_key(key), kSeed);
    marks_[mark_of(first_bucket(hash, store_->index_buckets()), tag_of(hash), store_->index_buckets())] = std::byte{1};
  }
};

TEST(Marks, AreOfBothBucketsAndOfAll) {
  std::mt19937_64 random(3);
  constexpr std::uint64_t kBuckets = 1000;
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t hash = random();
    const std::uint64_t first = first_bucket(hash, kBuckets);
    const std::uint64_t mark = mark_of(first, tag_of(hash), kBuckets);
    ASSERT_LT(mark, mark_bytes(kBuckets));
    ASSERT_EQ(mark, mark_of(other_bucket(first, tag_of(hash), kBuckets), tag_of(hash), kBuckets));
    seen.insert(mark);
  }
  EXPECT_GT(seen.size(), mark_bytes(kBuckets) * 99 / 100) << "they are spread";
}

TEST_F(StoreEviction, AFullStoreTakesWhatComes) {
  make(1 << 20, 100'000);
  const std::string value(1000, 'v');
  const unsigned count = fill(value);
  ASSERT_GT(count, 500u);
  for (int i = 0; i < 5000; ++i) {
    const std::string key = "n" + std::to_string(i);
    ASSERT_EQ(put(key, value).status, Status::kOk) << "one that goes makes room for one that comes";
    ASSERT_EQ(get(key), value);
  }
  const StoreStatistics now = store_->statistics();
  EXPECT_EQ(now.evicted, 5001u);
  EXPECT_EQ(now.items + now.evicted, count + 5000u);
}

TEST_F(StoreEviction, WhatIsUsedStays) {
  make(1 << 20, 100'000);
  const std::string value(1000, 'v');
  const unsigned count = fill(value);
  std::vector<std::string> hot, read;
  for (unsigned i = 0; i < count && hot.size() < 50; ++i)
    if (const std::string key = "k" + std::to_string(i); get(key) == value) hot.push_back(key);
  for (unsigned i = 100; i < count && read.size() < 50; ++i)
    if (const std::string key = "k" + std::to_string(i); get(key) == value) read.push_back(key);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(put("n" + std::to_string(i), value).status, Status::kOk);
    // One by messages, the others by marks that their readers leave.
    ASSERT_EQ(get(hot[static_cast<std::size_t>(i) % hot.size()]), value);
    mark_remotely(read[static_cast<std::size_t>(i) % read.size()]);
  }
  EXPECT_EQ(std::ranges::count_if(hot, [&](const auto& key) { return get(key) == value; }), 50);
  EXPECT_EQ(std::ranges::count_if(read, [&](const auto& key) { return get(key) == value; }), 50);
}

TEST_F(StoreEviction, AnyMarksAreGoodEnough) {
  make(1 << 20, 100'000);
  const std::string value(1000, 'v');
  (void)fill(value);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    // A client that writes what it likes, and where.
    const int kind = i % 3;
    for (std::byte& mark : marks_)
      if (kind != 0) mark = kind == 1 ? std::byte{0xff} : static_cast<std::byte>(random());
    ASSERT_EQ(put_until_it_fits("n" + std::to_string(i), value), Status::kOk) << i;
  }
}

TEST_F(StoreEviction, AllSizesFit) {
  make(4 << 20, 100'000);
  std::mt19937_64 random(5);
  constexpr std::array<std::size_t, 7> kSizes{10, 100, 1000, 4000, 5000, 60'000, 500'000};
  for (int i = 0; i < 3000; ++i) {
    const std::string value(kSizes[random() % kSizes.size()], static_cast<char>('a' + i % 26));
    const std::string key = "k" + std::to_string(random() % 2000);
    ASSERT_EQ(put_until_it_fits(key, value), Status::kOk) << i << ": " << value.size();
    ASSERT_EQ(get(key), value);
  }
  EXPECT_GT(store_->statistics().evicted, 100u);
}

TEST_F(StoreEviction, AnIndexThatIsFullTakesNewKeys) {
  make(1 << 20, 64);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(put_until_it_fits("k" + std::to_string(i), "v"), Status::kOk);
  EXPECT_EQ(store_->statistics().items, 64u);
  EXPECT_EQ(store_->statistics().evicted, 1000u - 64);
}

TEST_F(StoreEviction, CellsStay) {
  make(1 << 20, 1000);
  ASSERT_EQ(store_->put_cell(as_key("cell"), std::as_bytes(std::span("1234567", 8))).status, Status::kOk);
  for (int i = 0; i < 3000; ++i)
    ASSERT_EQ(put_until_it_fits("k" + std::to_string(i), std::string(2000, 'v')), Status::kOk);
  EXPECT_EQ(store_->find(as_key("cell")).status, Status::kWrongKind);
}

TEST_F(StoreEviction, ValuesThatReadersMayStillReadStay) {
  make(1 << 20, 1000);
  const std::string large(100'000, 'l');
  ASSERT_EQ(put("lent", large).status, Status::kOk);
  const auto found = store_->find(as_key("lent"));
  store_->lend(found, now_);
  const std::string_view bytes(reinterpret_cast<const char*>(found.value.data()), found.value.size());
  for (int i = 0; i < 3000; ++i)
    ASSERT_EQ(put_until_it_fits("k" + std::to_string(i), std::string(2000, 'v')), Status::kOk);
  EXPECT_EQ(bytes, large);
  // After the grace period it is as good as others.
  advance(kGrace + (1 << 20));
  for (int i = 0; i < 3000; ++i)
    ASSERT_EQ(put_until_it_fits("n" + std::to_string(i), std::string(2000, 'v')), Status::kOk);
  EXPECT_EQ(get("lent"), "not found");
}

TEST_F(StoreEviction, NothingToRemoveIsAFullStore) {
  make(1 << 20, 20'000);
  // Cells of three quarters: no more than the rest can ever be free.
  for (int i = 0; i < 12'288; ++i)
    ASSERT_EQ(store_->put_cell(as_key("c" + std::to_string(i)), std::as_bytes(std::span("1234567", 8))).status,
              Status::kOk);
  ASSERT_EQ(put("stays", "v").status, Status::kOk);
  EXPECT_EQ(put("k", std::string(300 << 10, 'v')).status, Status::kStoreFull) << "at once";
  EXPECT_EQ(get("stays"), "v") << "and nothing was removed for it";
  EXPECT_EQ(store_->statistics().evicted, 0u);
}

TEST_F(StoreEviction, CellsOnlyAreAFullIndex) {
  make(1 << 20, 16);
  for (int i = 0; i < 16; ++i)
    ASSERT_EQ(store_->put_cell(as_key("c" + std::to_string(i)), std::as_bytes(std::span("1234567", 8))).status,
              Status::kOk);
  EXPECT_EQ(put_until_it_fits("k", "v"), Status::kIndexFull);
}

TEST_F(StoreEviction, WithoutMarksNothingIsRemoved) {
  evicts_ = false;
  make(1 << 20, 100'000);
  unsigned count = 0;
  while (put("k" + std::to_string(count), std::string(1000, 'v')).status == Status::kOk) ++count;
  EXPECT_EQ(put("n", std::string(1000, 'v')).status, Status::kStoreFull);
  EXPECT_EQ(store_->statistics().items, count);
  EXPECT_EQ(store_->statistics().evicted, 0u);
}

}  // namespace
}  // namespace verbena::kv
