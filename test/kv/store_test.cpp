#include "kv/store.hpp"

#include "host/arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace verbena::kv {
namespace {

constexpr std::uint64_t kGrace = std::uint64_t{1} << 30;
constexpr std::uint64_t kAny = Store::kAnyVersion;

Key key_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A store over memory of its own, with a clock that the test moves.
class StoreTest : public testing::Test {
 protected:
  void make(std::size_t bytes, std::size_t max_items, std::size_t max_value = 1 << 20) {
    store_.reset();
    auto arena = host::Arena::create({.size_bytes = bytes, .name = "store-test"});
    ASSERT_TRUE(arena) << arena.error().text();
    arena_ = std::move(*arena);
    auto store = Store::create({.memory = arena_.bytes().first(bytes),
                                .max_items = max_items,
                                .max_value_bytes = max_value,
                                .grace_ticks = kGrace,
                                .hash_seed = 7,
                                .versions = &versions_});
    ASSERT_TRUE(store) << store.error().text();
    store_ = std::move(*store);
    advance(kGrace);
  }
  void advance(std::uint64_t ticks) { store_->set_now(now_ += ticks); }
  Store::Change put(std::string_view key, std::string_view value, std::uint64_t expected = kAny) {
    return store_->put(key_of(key), std::as_bytes(std::span(value)), expected);
  }
  std::string get(std::string_view key) {
    const auto found = store_->find(key_of(key));
    return found.status == Status::kOk ? text_of(found.value) : std::string(to_string(found.status));
  }
  /// Lets everything rest and frees it.
  void settle() {
    for (int i = 0; i < 3; ++i) advance(kGrace + 1);
    store_->reclaim(~0u);
  }

  host::Arena arena_;
  std::atomic<std::uint64_t> versions_{1};
  std::uint64_t now_ = 1000;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, StoresReplacesAndErases) {
  make(1 << 20, 100);
  EXPECT_EQ(get("a"), "not found");
  EXPECT_EQ(put("a", "one").version, 1u);
  EXPECT_EQ(get("a"), "one");
  EXPECT_EQ(put("a", "two").version, 2u);
  EXPECT_EQ(get("a"), "two");
  EXPECT_EQ(put("b", "").version, 3u);
  EXPECT_EQ(get("b"), "");
  EXPECT_EQ(store_->erase(key_of("a")).status, Status::kOk);
  EXPECT_EQ(store_->erase(key_of("a")).status, Status::kNotFound);
  EXPECT_EQ(get("a"), "not found");
  EXPECT_EQ(put("a", "three").version, 4u) << "versions are never used twice, also not after an erase";
}

TEST_F(StoreTest, ComparesVersions) {
  make(1 << 20, 100);
  EXPECT_EQ(put("k", "x", 5).status, Status::kNotFound);
  const auto made = put("k", "x", 0);
  ASSERT_EQ(made.status, Status::kOk);
  const auto again = put("k", "y", 0);
  EXPECT_EQ(again.status, Status::kVersionMismatch);
  EXPECT_EQ(again.version, made.version);
  EXPECT_EQ(get("k"), "x");
  EXPECT_EQ(put("k", "y", made.version).status, Status::kOk);
  EXPECT_EQ(put("k", "z", made.version).status, Status::kVersionMismatch);
  EXPECT_EQ(get("k"), "y");
}

TEST_F(StoreTest, RefusesBadKeysAndLongValues) {
  make(1 << 20, 100, 5000);
  EXPECT_EQ(put("", "x").status, Status::kBadKey);
  EXPECT_EQ(put(std::string(kMaxKeyBytes + 1, 'k'), "x").status, Status::kBadKey);
  EXPECT_EQ(put(std::string(kMaxKeyBytes, 'k'), "x").status, Status::kOk);
  EXPECT_EQ(get(std::string(kMaxKeyBytes, 'k')), "x");
  EXPECT_EQ(put("k", std::string(5001, 'v')).status, Status::kTooLong);
  EXPECT_EQ(put("k", std::string(5000, 'v')).status, Status::kOk);
  EXPECT_EQ(store_->erase(key_of("")).status, Status::kBadKey);
}

TEST_F(StoreTest, FillsItsIndexAndFindsEverything) {
  constexpr unsigned kItems = 5000;
  make(std::size_t{4} << 20, kItems);
  for (unsigned i = 0; i < kItems; ++i)
    ASSERT_EQ(put("key" + std::to_string(i), std::to_string(i)).status, Status::kOk) << i;
  EXPECT_EQ(put("one more", "x").status, Status::kStoreFull);
  EXPECT_EQ(put("key7", "seven").status, Status::kOk) << "replacing needs no item";
  for (unsigned i = 0; i < kItems; ++i) ASSERT_EQ(get("key" + std::to_string(i)), i == 7 ? "seven" : std::to_string(i));
  for (unsigned i = 0; i < kItems; i += 2)
    ASSERT_EQ(store_->erase(key_of("key" + std::to_string(i))).status, Status::kOk);
  for (unsigned i = 0; i < kItems; ++i)
    ASSERT_EQ(get("key" + std::to_string(i)), i % 2 == 0 ? "not found" : i == 7 ? "seven" : std::to_string(i));
  EXPECT_EQ(put("one more", "x").status, Status::kOk);
}

TEST_F(StoreTest, FullLeavesTheOldValue) {
  make(1 << 20, 1000);
  ASSERT_EQ(put("old", std::string(200'000, 'o')).status, Status::kOk);
  unsigned filled = 0;
  while (put("fill" + std::to_string(filled), std::string(65536, 'f')).status == Status::kOk) ++filled;
  EXPECT_GT(filled, 4u);
  const auto full = put("old", std::string(300'000, 'n'));
  EXPECT_EQ(full.status, Status::kStoreFull);
  EXPECT_EQ(get("old"), std::string(200'000, 'o'));
  for (unsigned i = 0; i < filled; ++i)
    ASSERT_EQ(store_->erase(key_of("fill" + std::to_string(i))).status, Status::kOk);
  EXPECT_EQ(put("old", std::string(300'000, 'n')).status, Status::kOk);
  EXPECT_EQ(get("old"), std::string(300'000, 'n'));
}

TEST_F(StoreTest, PowersOfTwoWasteNothing) {
  make(std::size_t{8} << 20, 1000);
  unsigned stored = 0;
  while (put("v" + std::to_string(stored), std::string(1 << 20, 'v')).status == Status::kOk) ++stored;
  EXPECT_EQ(stored, 7u) << "seven values of 1 MiB, and their headers in the eighth";
}

TEST_F(StoreTest, LentBlocksRestForTheWholeGracePeriod) {
  make(1 << 20, 100);
  const std::string large(400'000, 'l');
  ASSERT_EQ(put("k", large).status, Status::kOk);
  const auto found = store_->find(key_of("k"));
  const std::byte* where = found.value.data();
  store_->lend(found, now_);
  ASSERT_EQ(put("k", "small").status, Status::kOk);
  EXPECT_GE(store_->statistics().resting_bytes, large.size());
  // Until the grace period has passed, whatever is stored goes elsewhere, and the old bytes stay as they were.
  const auto same = [&] {
    return std::all_of(where, where + large.size(), [](std::byte b) { return b == std::byte{'l'}; });
  };
  for (int i = 0; i < 8; ++i) {
    (void)put("other", std::string(200'000, 'x'));
    (void)put("big" + std::to_string(i), std::string(400'000, 'y'));
    ASSERT_TRUE(same()) << i;
    advance(kGrace / 8 - 1);
  }
  EXPECT_EQ(put("last", std::string(400'000, 'y')).status, Status::kStoreFull);
  settle();
  EXPECT_EQ(store_->statistics().resting_bytes, 0u);
  EXPECT_EQ(put("last", std::string(400'000, 'y')).status, Status::kOk);
  EXPECT_FALSE(same());
}

TEST_F(StoreTest, GraceCountsFromTheEndOfTheBatch) {
  make(1 << 20, 100);
  ASSERT_EQ(put("k", std::string(400'000, 'l')).status, Status::kOk);
  store_->lend(store_->find(key_of("k")), now_);
  ASSERT_EQ(store_->erase(key_of("k")).status, Status::kOk);
  // The batch that erased lasted for long; its end is the first that is known of the time of the erase.
  advance(10 * kGrace);
  store_->reclaim(~0u);
  EXPECT_GE(store_->statistics().resting_bytes, 400'000u);
  advance(kGrace - 1);
  store_->reclaim(~0u);
  EXPECT_GE(store_->statistics().resting_bytes, 400'000u);
  advance(1);
  store_->reclaim(~0u);
  EXPECT_EQ(store_->statistics().resting_bytes, 0u);
}

TEST_F(StoreTest, OverwritesWithoutEndWhenNobodyReads) {
  make(2 << 20, 100);
  for (int i = 0; i < 500; ++i)
    ASSERT_EQ(put("k", std::string(300'000, static_cast<char>('a' + i % 26))).status, Status::kOk) << i;
  EXPECT_EQ(get("k"), std::string(300'000, static_cast<char>('a' + 499 % 26)));
  for (int i = 0; i < 20000; ++i)
    ASSERT_EQ(put("s" + std::to_string(i % 50), std::to_string(i)).status, Status::kOk) << i;
}

TEST_F(StoreTest, LargeValueThatNobodyReadsIsFreeAtOnce) {
  make(2 << 20, 100);
  ASSERT_EQ(put("k", std::string(300'000, 'a')).status, Status::kOk);
  const auto used = store_->statistics().used_bytes;
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(put("k", std::string(300'000, 'b')).status, Status::kOk);
    EXPECT_EQ(store_->statistics().resting_bytes, 0u);
    EXPECT_EQ(store_->statistics().used_bytes, used);
  }
  store_->lend(store_->find(key_of("k")), now_);
  ASSERT_EQ(put("k", std::string(300'000, 'c')).status, Status::kOk);
  EXPECT_GE(store_->statistics().resting_bytes, 300'000u);
}

TEST_F(StoreTest, LentLongAgoCountsAsPrivate) {
  make(2 << 20, 100);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(put("k", std::string(400'000, 'v')).status, Status::kOk) << i;
    store_->lend(store_->find(key_of("k")), now_);
    advance(kGrace + (1 << 18));
  }
}

TEST_F(StoreTest, ReservedIsInvisibleUntilCommitted) {
  make(1 << 20, 100);
  ASSERT_EQ(put("k", "old").status, Status::kOk);
  const auto before = store_->statistics();
  Store::Pending pending;
  ASSERT_EQ(store_->reserve(key_of("k"), 100'000, kAny, pending).status, Status::kOk);
  EXPECT_EQ(pending.value.size(), 100'000u);
  std::ranges::fill(pending.value, std::byte{'n'});
  EXPECT_EQ(get("k"), "old");
  store_->abandon(pending);
  EXPECT_FALSE(pending);
  EXPECT_EQ(get("k"), "old");
  EXPECT_EQ(store_->statistics().used_bytes, before.used_bytes);

  ASSERT_EQ(store_->reserve(key_of("k"), 100'000, kAny, pending).status, Status::kOk);
  std::ranges::fill(pending.value, std::byte{'n'});
  EXPECT_EQ(store_->commit(pending, kAny).status, Status::kOk);
  EXPECT_EQ(get("k"), std::string(100'000, 'n'));
}

TEST_F(StoreTest, CommitLooksAtTheVersionAgain) {
  make(1 << 20, 100);
  const auto first = put("k", "1");
  Store::Pending pending;
  ASSERT_EQ(store_->reserve(key_of("k"), 8192, first.version, pending).status, Status::kOk);
  const auto second = put("k", "2");
  const auto lost = store_->commit(pending, first.version);
  EXPECT_EQ(lost.status, Status::kVersionMismatch);
  EXPECT_EQ(lost.version, second.version);
  EXPECT_EQ(get("k"), "2");
  settle();
  EXPECT_EQ(store_->statistics().items, 1u);
  ASSERT_EQ(store_->erase(key_of("k")).status, Status::kOk);
  settle();
  EXPECT_EQ(store_->statistics().used_bytes, 0u);
}

TEST_F(StoreTest, ItemsAreIntactAndDamageShows) {
  make(1 << 20, 100);
  for (const std::size_t length : {0u, 1u, 7u, 100u, 4095u, 4096u, 9000u}) {
    const std::string key(1 + length % 13, 'k');
    ASSERT_EQ(put(key, std::string(length, 'v')).status, Status::kOk);
    const auto block = store_->block_of(store_->find(key_of(key)));
    ASSERT_TRUE(is_intact(block, key_of(key))) << length;
    EXPECT_FALSE(is_intact(block, key_of(std::string(key.size(), 'x'))));
    EXPECT_FALSE(is_intact(block, key_of(key + "k")));
    EXPECT_FALSE(is_intact(block.first(item_bytes(key.size(), length) - 1), key_of(key)));
    for (std::size_t i = sizeof(std::uint64_t); i < item_bytes(key.size(), length); ++i) {
      block[i] ^= std::byte{0x10};
      ASSERT_FALSE(is_intact(block, key_of(key))) << "byte " << i << " of a value of " << length;
      block[i] ^= std::byte{0x10};
    }
    ASSERT_TRUE(is_intact(block, key_of(key)));
  }
}

TEST_F(StoreTest, StateWordTellsSuperseded) {
  make(1 << 20, 100);
  ASSERT_EQ(put("k", "1").status, Status::kOk);
  const auto block = store_->block_of(store_->find(key_of("k")));
  auto& header = *reinterpret_cast<ItemHeader*>(block.data());
  EXPECT_EQ(state_of(header), ItemState::kLive);
  store_->lend(store_->find(key_of("k")), now_);
  EXPECT_EQ(state_of(header), ItemState::kLive);
  EXPECT_TRUE(is_intact(block, key_of("k"))) << "the state word is outside the checksum";
  ASSERT_EQ(put("k", "2").status, Status::kOk);
  EXPECT_EQ(state_of(header), ItemState::kSuperseded);
  EXPECT_TRUE(is_intact(block, key_of("k"))) << "nothing else of a published item changes";
}

// Sizes around the limits, often the same keys, sometimes a full store, with the clock moving: against std::map.
TEST_F(StoreTest, BehavesLikeAMap) {
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    make(std::size_t{2} << 20, 300, 300'000);
    std::mt19937_64 random(seed);
    struct Expected {
      std::string value;
      std::uint64_t version;
    };
    std::map<std::string, Expected> model;
    std::set<std::uint64_t> versions;
    unsigned full = 0;
    const auto random_value = [&] {
      constexpr std::size_t kSizes[] = {0, 1, 63, 64, 65, 1000, 4095, 4096, 4097, 20'000, 65'536, 200'000};
      const std::size_t size = kSizes[random() % std::size(kSizes)];
      return std::string(size, static_cast<char>('a' + random() % 26));
    };
    for (int step = 0; step < 20'000; ++step) {
      const std::string key(1 + random() % 40, static_cast<char>('a' + random() % 12));
      const auto known = model.find(key);
      switch (random() % 8) {
        case 0: {
          const auto erased = store_->erase(key_of(key));
          ASSERT_EQ(erased.status, known == model.end() ? Status::kNotFound : Status::kOk);
          if (known != model.end()) model.erase(known);
          break;
        }
        case 1:
        case 2:
        case 3: {
          const bool compares = random() % 2 == 0;
          const std::uint64_t current = known == model.end() ? 0 : known->second.version;
          const std::uint64_t expected = !compares ? kAny : random() % 4 == 0 ? random() % 50 : current;
          const std::string value = random_value();
          const auto change = put(key, value, expected);
          if (change.status == Status::kStoreFull) {
            ++full;
          } else if (compares && expected != current) {
            ASSERT_EQ(change.status, current == 0 ? Status::kNotFound : Status::kVersionMismatch);
            ASSERT_EQ(change.version, current);
          } else {
            ASSERT_EQ(change.status, Status::kOk);
            ASSERT_TRUE(versions.insert(change.version).second) << "version used twice";
            model[key] = {value, change.version};
          }
          break;
        }
        case 4: advance(random() % (kGrace / 4)); break;
        default: {
          const auto found = store_->find(key_of(key));
          ASSERT_EQ(found.status, known == model.end() ? Status::kNotFound : Status::kOk);
          if (known == model.end()) break;
          ASSERT_EQ(text_of(found.value), known->second.value);
          ASSERT_EQ(found.version, known->second.version);
          ASSERT_TRUE(is_intact(store_->block_of(found), key_of(key)));
          if (random() % 4 == 0) store_->lend(found, now_);
        }
      }
      ASSERT_EQ(store_->statistics().items, model.size());
    }
    EXPECT_GT(full, 0u) << "the test is meant to run into a full store";
    for (const auto& [key, expected] : model) {
      ASSERT_EQ(get(key), expected.value);
      ASSERT_EQ(store_->erase(key_of(key)).status, Status::kOk);
    }
    settle();
    EXPECT_EQ(store_->statistics().used_bytes, 0u) << "something leaked";
    EXPECT_EQ(store_->statistics().resting_bytes, 0u);
  }
}

TEST_F(StoreTest, WorkIsBounded) {
  make(std::size_t{4} << 20, 10'000);
  for (int i = 0; i < 4000; ++i) ASSERT_EQ(put("k" + std::to_string(i), "v").status, Status::kOk);
  for (int i = 0; i < 4000; ++i) ASSERT_EQ(store_->erase(key_of("k" + std::to_string(i))).status, Status::kOk);
  for (int i = 0; i < 3; ++i) advance(kGrace + 1);
  const auto before = store_->statistics().resting_bytes;
  ASSERT_EQ(put("k", "v").status, Status::kOk);
  const auto freed = before - store_->statistics().resting_bytes;
  EXPECT_EQ(freed, Store::kReclaimPerOperation * std::uint64_t{64});
}

}  // namespace
}  // namespace verbena::kv
