// Scans of a store that changes between their steps.
#include "store_fixture.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;

class StoreScan : public StoreFixture {
 protected:
  struct Seen {
    std::map<std::string, unsigned> keys;  ///< How often each came.
    unsigned steps = 0;
  };
  /// Lists all keys; calls `between` after each step but the last.
  template <class Between>
  Seen list(std::string_view prefix, Between&& between, std::size_t room = KeyPage::kBytes) {
    Seen seen;
    std::vector<std::byte> out(room);
    for (Store::ScanPlace at; seen.steps < 100'000;) {
      EXPECT_TRUE(store_->has(at));
      const Store::Scanned done = store_->list(as_key(prefix), at, out);
      ++seen.steps;
      std::uint32_t count = 0;
      for (const Key key : keys_in(std::span(out).first(done.bytes))) {
        ++seen.keys[text_of(key)];
        ++count;
      }
      EXPECT_EQ(count, done.keys);
      if (done.is_over) return seen;
      at = done.next;
      between();
    }
    ADD_FAILURE() << "the scan does not end";
    return seen;
  }
  static std::ranges::subrange<KeyIterator> keys_in(std::span<const std::byte> bytes) {
    return {KeyIterator(bytes), KeyIterator()};
  }
  static std::string name(std::string_view front, std::size_t number) {
    return std::string(front) + std::to_string(number);
  }
  void fill(std::string_view front, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(put(name(front, i), "v").status, Status::kOk) << i;
  }
};

TEST_F(StoreScan, ListsEachKeyOnceWhenNothingChanges) {
  make(std::size_t{8} << 20, 10'000);
  fill("k/", 9000);
  fill("other/", 500);
  const Seen seen = list("k/", [] {});
  EXPECT_EQ(seen.keys.size(), 9000u);
  EXPECT_TRUE(std::ranges::all_of(seen.keys, [](const auto& each) { return each.second == 1; }));
  EXPECT_GE(seen.steps, 9500 / Store::kMostScanned) << "a step's work has a bound";
  EXPECT_EQ(list("", [] {}).keys.size(), 9500u);
  EXPECT_TRUE(list("k/1000000", [] {}).keys.empty());
  EXPECT_EQ(list("k/899", [] {}).keys.size(), 11u) << "k/899 and k/8990 to k/8999";
}

TEST_F(StoreScan, StepsOfAnEmptyStoreAreFew) {
  make(std::size_t{64} << 20, std::size_t{1} << 20);
  EXPECT_LE(list("", [] {}).steps, store_->index_buckets() * kBucketEntries / Store::kMostPlaces + 1);
}

TEST_F(StoreScan, KeysOfEveryLengthAndByte) {
  make(std::size_t{8} << 20, 5000);
  std::set<std::string> all;
  for (std::size_t length = 1; length <= kMaxKeyBytes; ++length) {
    std::string key(length, '\xff');
    std::memcpy(key.data(), &length, std::min<std::size_t>(length, 2));
    ASSERT_EQ(put(key, "v").status, Status::kOk);
    all.insert(key);
  }
  const Seen seen = list("", [] {}, kMaxKeyBytes + 2);
  EXPECT_EQ(seen.keys.size(), all.size());
  for (const std::string& key : all) EXPECT_TRUE(seen.keys.contains(key)) << key.size();
}

// A table so full that insertions move others all the time: each step, many of them, and some more than are kept.
TEST_F(StoreScan, SeesEveryKeyThatStaysWhateverMoves) {
  constexpr std::size_t kStay = 4000, kChange = 4900;
  for (const std::size_t changes : {50u, 500u, 20'000u}) {
    SCOPED_TRACE(changes);
    make(std::size_t{16} << 20, 9000);
    fill("stays", kStay);
    fill("goes", kChange);
    std::size_t first = 0, bursts = 0;
    const Seen seen = list(
        "stays",
        [&] {
          // The burst of moves that nothing can follow comes once: a scan has to end.
          if (changes > Store::kMovesKept && bursts++ != 3) return;
          for (std::size_t i = 0; i < changes; ++i, ++first) {
            ASSERT_EQ(store_->erase(as_key(name("goes", first))).status, Status::kOk);
            ASSERT_EQ(put(name("goes", first + kChange), "v").status, Status::kOk);
          }
          // A replaced value stays under its key.
          for (std::size_t i = 0; i < 50; ++i)
            ASSERT_EQ(put(name("stays", (first + i) % kStay), "w").status, Status::kOk);
        },
        2000);
    for (std::size_t i = 0; i < kStay; ++i) ASSERT_TRUE(seen.keys.contains(name("stays", i))) << i;
    EXPECT_EQ(seen.keys.size(), kStay);
    const auto twice = std::ranges::count_if(seen.keys, [](const auto& each) { return each.second > 1; });
    EXPECT_NE(twice, 0) << "nothing has moved across the scan";
  }
}

TEST_F(StoreScan, FlushErasesWhatBeginsWithItsPrefixAndNoCell) {
  make(std::size_t{8} << 20, 10'000);
  fill("a/", 3000);
  fill("b/", 1000);
  ASSERT_EQ(put("a/large", std::string(100'000, 'l')).status, Status::kOk);
  const std::array<std::byte, 8> place{};
  ASSERT_EQ(store_->put_cell(as_key("a/cell"), place).status, Status::kOk);
  std::uint64_t erased = 0;
  const auto flush = [&](std::string_view prefix) {
    erased = 0;
    for (Store::ScanPlace at;;) {
      const Store::Scanned done = store_->flush(as_key(prefix), at);
      EXPECT_LE(done.keys, Store::kMostScanned);
      erased += done.keys;
      if (done.is_over) break;
      at = done.next;
    }
  };
  flush("a/");
  EXPECT_EQ(erased, 3001u);
  EXPECT_EQ(get("a/0"), "not found");
  EXPECT_EQ(get("a/cell"), "wrong kind");
  EXPECT_EQ(get("b/999"), "v");
  EXPECT_EQ(store_->statistics().items, 1001u);
  flush("");
  EXPECT_EQ(erased, 1000u);
  EXPECT_EQ(store_->statistics().items, 1u);
  settle();
  EXPECT_LE(store_->statistics().used_bytes, 128u) << "the cell's item";
}

TEST_F(StoreScan, PlacesThatCannotBeAreToldApart) {
  make(std::size_t{1} << 20, 1000);
  const std::uint64_t places = store_->index_buckets() * kBucketEntries;
  EXPECT_TRUE(store_->has({.place = places - 1}));
  EXPECT_FALSE(store_->has({.place = places}));
  EXPECT_FALSE(store_->has({.place = ~std::uint64_t{0}}));
  EXPECT_FALSE(store_->has({.place = 0, .moves = 1})) << "nothing has moved yet";
}

}  // namespace
}  // namespace verbena::kv
