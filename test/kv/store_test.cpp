#include "store_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;

class StoreTest : public StoreFixture {};

TEST_F(StoreTest, StoresReplacesAndErases) {
  make(1 << 20, 100);
  EXPECT_EQ(get("a"), "not found");
  EXPECT_EQ(put("a", "one").version, 1u);
  EXPECT_EQ(get("a"), "one");
  EXPECT_EQ(put("a", "two").version, 2u);
  EXPECT_EQ(get("a"), "two");
  EXPECT_EQ(put("b", "").version, 3u);
  EXPECT_EQ(get("b"), "");
  EXPECT_EQ(store_->erase(as_key("a")).status, Status::kOk);
  EXPECT_EQ(store_->erase(as_key("a")).status, Status::kNotFound);
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
  EXPECT_EQ(store_->erase(as_key("")).status, Status::kBadKey);
}

TEST_F(StoreTest, FillsItsIndexAndFindsEverything) {
  constexpr unsigned kItems = 5000;
  make(std::size_t{4} << 20, kItems);
  for (unsigned i = 0; i < kItems; ++i)
    ASSERT_EQ(put("key" + std::to_string(i), std::to_string(i)).status, Status::kOk) << i;
  EXPECT_EQ(put("one more", "x").status, Status::kIndexFull);
  EXPECT_EQ(put("one more", "x", 0).status, Status::kIndexFull);
  EXPECT_EQ(put("one more", "x", 5).status, Status::kNotFound);
  EXPECT_EQ(put("key7", "seven").status, Status::kOk) << "replacing needs no item";
  for (unsigned i = 0; i < kItems; ++i) ASSERT_EQ(get("key" + std::to_string(i)), i == 7 ? "seven" : std::to_string(i));
  for (unsigned i = 0; i < kItems; i += 2)
    ASSERT_EQ(store_->erase(as_key("key" + std::to_string(i))).status, Status::kOk);
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
    ASSERT_EQ(store_->erase(as_key("fill" + std::to_string(i))).status, Status::kOk);
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
  const auto found = store_->find(as_key("k"));
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
  store_->lend(store_->find(as_key("k")), now_);
  ASSERT_EQ(store_->erase(as_key("k")).status, Status::kOk);
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
  store_->lend(store_->find(as_key("k")), now_);
  ASSERT_EQ(put("k", std::string(300'000, 'c')).status, Status::kOk);
  EXPECT_GE(store_->statistics().resting_bytes, 300'000u);
}

TEST_F(StoreTest, LentLongAgoCountsAsPrivate) {
  make(2 << 20, 100);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(put("k", std::string(400'000, 'v')).status, Status::kOk) << i;
    store_->lend(store_->find(as_key("k")), now_);
    advance(kGrace + (1 << 18));
  }
}

TEST_F(StoreTest, ReservedIsInvisibleUntilCommitted) {
  make(1 << 20, 100);
  ASSERT_EQ(put("k", "old").status, Status::kOk);
  const auto before = store_->statistics();
  Store::Pending pending;
  ASSERT_EQ(store_->reserve(as_key("k"), 100'000, kAny, pending).status, Status::kOk);
  EXPECT_EQ(pending.value.size(), 100'000u);
  std::ranges::fill(pending.value, std::byte{'n'});
  EXPECT_EQ(get("k"), "old");
  store_->abandon(pending);
  EXPECT_FALSE(pending);
  EXPECT_EQ(get("k"), "old");
  EXPECT_EQ(store_->statistics().used_bytes, before.used_bytes);

  ASSERT_EQ(store_->reserve(as_key("k"), 100'000, kAny, pending).status, Status::kOk);
  std::ranges::fill(pending.value, std::byte{'n'});
  EXPECT_EQ(store_->commit(pending, kAny).status, Status::kOk);
  EXPECT_EQ(get("k"), std::string(100'000, 'n'));
}

TEST_F(StoreTest, CommitLooksAtTheVersionAgain) {
  make(1 << 20, 100);
  const auto first = put("k", "1");
  Store::Pending pending;
  ASSERT_EQ(store_->reserve(as_key("k"), 8192, first.version, pending).status, Status::kOk);
  const auto second = put("k", "2");
  const auto lost = store_->commit(pending, first.version);
  EXPECT_EQ(lost.status, Status::kVersionMismatch);
  EXPECT_EQ(lost.version, second.version);
  EXPECT_EQ(get("k"), "2");
  settle();
  EXPECT_EQ(store_->statistics().items, 1u);
  ASSERT_EQ(store_->erase(as_key("k")).status, Status::kOk);
  settle();
  EXPECT_EQ(store_->statistics().used_bytes, 0u);
}

TEST_F(StoreTest, ItemsAreWholeAndDamageShows) {
  make(1 << 20, 100);
  for (const std::size_t length : {0u, 1u, 7u, 100u, 4095u, 4096u, 9000u}) {
    const std::string key(1 + length % 13, 'k');
    const auto put_at = put(key, std::string(length, 'v'));
    ASSERT_EQ(put_at.status, Status::kOk);
    const auto block = block_of(store_->find(as_key(key)));
    const ItemShape shape{.value_length = length, .key_length = key.size()};
    const auto verdict = [&](std::span<const std::byte> bytes, std::string_view expected) {
      ItemView view;
      return judge(bytes, as_key(expected), store_->window().size(), view);
    };
    ItemView view;
    ASSERT_EQ(judge_at(put_at.entry, as_key(key), view), Verdict::kWhole) << length;
    EXPECT_EQ(view.version, put_at.version);
    EXPECT_EQ(view.value_length, length);
    EXPECT_EQ(text_of(length < kEagerBytes ? view.value : store_->window().subspan(view.place.offset, length)),
              std::string(length, 'v'));
    EXPECT_EQ(verdict(block, std::string(key.size(), 'x')), Verdict::kOtherKey);
    EXPECT_EQ(verdict(block, key + "k"), Verdict::kOtherKey);
    for (std::size_t bytes = 0; bytes < shape.bytes(); ++bytes)
      ASSERT_NE(verdict(std::vector(block.begin(), block.begin() + static_cast<long>(bytes)), key), Verdict::kWhole);
    for (std::size_t i = 0; i < shape.bytes(); ++i) {
      const bool is_ignored = i >= offsetof(ItemHeader, server) && i < offsetof(ItemHeader, checksum);
      block[i] ^= std::byte{0x10};
      ASSERT_EQ(verdict(block, key) == Verdict::kWhole, is_ignored) << "byte " << i << " of a value of " << length;
      block[i] ^= std::byte{0x10};
    }
    ASSERT_EQ(verdict(block, key), Verdict::kWhole);
  }
}

// What keeps small items from needing grace: bytes of one version under another version's state word are not whole.
TEST_F(StoreTest, AnItemIsOfItsVersionOnly) {
  make(1 << 20, 100);
  const std::uint64_t first = put("k", "one").version;
  const auto entry = Entry::unpack(store_->find(as_key("k")).entry);
  std::vector<std::byte> old(store_->window().begin() + static_cast<long>(entry.offset()),
                             store_->window().begin() + static_cast<long>(entry.offset() + entry.bytes()));
  const auto verdict = [&](std::uint64_t state) {
    std::memcpy(old.data(), &state, sizeof state);
    ItemView view;
    return judge(old, as_key("k"), store_->window().size(), view);
  };
  EXPECT_EQ(verdict(state_word(ItemState::kLive, first)), Verdict::kWhole);
  EXPECT_EQ(verdict(state_word(ItemState::kLive, first + 1)), Verdict::kTorn);
  EXPECT_EQ(verdict(state_word(ItemState::kLive, 0)), Verdict::kNotLive);
  EXPECT_EQ(verdict(state_word(ItemState::kSuperseded, first)), Verdict::kNotLive);
  EXPECT_EQ(verdict(state_word(ItemState::kBuilding, first)), Verdict::kNotLive);
  EXPECT_TRUE(is_live(state_word(ItemState::kLive, first), first));
  EXPECT_FALSE(is_live(state_word(ItemState::kLive, first), first + 1));
  EXPECT_FALSE(is_live(state_word(ItemState::kSuperseded, first), first));
}

TEST_F(StoreTest, HostileItemsAreRefused) {
  // Right checksums over lengths, flags and places that lie.
  const auto verdict = [](ItemShape claimed, std::size_t bytes, ValuePlace place) {
    std::vector<std::byte> item(bytes);
    ItemHeader header{.state = state_word(ItemState::kLive, 9), .shape = claimed.pack()};
    std::memcpy(item.data(), &header, sizeof header);
    std::memcpy(item.data() + sizeof header, "key", 3);
    if (!claimed.is_inline() && claimed.bytes() <= bytes)
      std::memcpy(item.data() + claimed.tail_offset(), &place, sizeof place);
    header.checksum = checksum_of(item.data(), std::min(claimed.bytes(), bytes), 9);
    std::memcpy(item.data(), &header, sizeof header);
    ItemView view;
    return judge(item, as_key("key"), 1 << 20, view);
  };
  EXPECT_EQ(verdict({.value_length = 24, .key_length = 3}, 64, {}), Verdict::kWhole);
  EXPECT_EQ(verdict({.value_length = 25, .key_length = 3}, 64, {}), Verdict::kTorn);
  EXPECT_EQ(verdict({.value_length = 24, .key_length = 3, .flags = 4}, 64, {}), Verdict::kTorn);
  EXPECT_EQ(verdict({.value_length = 24, .key_length = 0xfff}, 64, {}), Verdict::kOtherKey);
  EXPECT_EQ(verdict({.value_length = 1 << 19, .key_length = 3}, 64, {.offset = 1 << 19}), Verdict::kWhole);
  EXPECT_EQ(verdict({.value_length = 1 << 19, .key_length = 3}, 64, {.offset = (1 << 19) + 1}), Verdict::kTorn);
  EXPECT_EQ(verdict({.value_length = 1 << 19, .key_length = 3}, 64, {.offset = ~std::uint64_t{0}}), Verdict::kTorn);
  EXPECT_EQ(verdict({.value_length = (std::uint64_t{1} << 48) - 1, .key_length = 3}, 64, {}), Verdict::kTorn);
}

TEST_F(StoreTest, StateWordTellsSuperseded) {
  make(1 << 20, 100);
  for (const std::size_t length : {std::size_t{1}, std::size_t{5000}}) {
    const std::uint64_t version = put("k", std::string(length, '1')).version;
    const auto found = store_->find(as_key("k"));
    const auto block = block_of(found);
    EXPECT_EQ(load_state(block.data()), state_word(ItemState::kLive, version));
    if (length > 1) store_->lend(found, now_);
    EXPECT_EQ(judge_key("k"), Verdict::kWhole) << "what the server notes is outside the checksum";
    std::vector<std::byte> before(block.begin() + sizeof(std::uint64_t) * 2, block.end());
    ASSERT_EQ(put("k", "2").status, Status::kOk);
    EXPECT_EQ(load_state(block.data()), state_word(ItemState::kSuperseded, version));
    EXPECT_EQ(std::memcmp(before.data(), block.data() + sizeof(std::uint64_t) * 2, before.size()), 0)
        << "nothing else of a published item changes";
  }
  const auto block = block_of(store_->find(as_key("k")));
  ASSERT_EQ(store_->erase(as_key("k")).status, Status::kOk);
  EXPECT_EQ(state_of(load_state(block.data())), ItemState::kSuperseded);
}

TEST_F(StoreTest, VersionsEndAtTheirLimit) {
  make(1 << 20, 100);
  ASSERT_EQ(put("old", "value").status, Status::kOk);
  versions_ = kMaxVersion;
  const auto last = put("k", std::string(5000, 'l'));
  ASSERT_EQ(last.status, Status::kOk);
  EXPECT_EQ(last.version, kMaxVersion);
  EXPECT_EQ(judge_key("k"), Verdict::kWhole);
  const auto used = store_->statistics().used_bytes;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(put("k", "more").status, Status::kLimit);
    EXPECT_EQ(put("new", std::string(5000, 'n')).status, Status::kLimit);
    EXPECT_EQ(put("k", "more", kMaxVersion).status, Status::kLimit);
  }
  EXPECT_EQ(store_->statistics().used_bytes, used) << "what is not published is free";
  EXPECT_EQ(versions_.load(), kMaxVersion + 1) << "or it would come round in the end";
  EXPECT_EQ(get("k"), std::string(5000, 'l'));
  EXPECT_EQ(get("old"), "value");
  EXPECT_EQ(store_->find(as_key("k")).version, kMaxVersion);
  EXPECT_EQ(store_->erase(as_key("k")).status, Status::kOk);
}

TEST_F(StoreTest, LargeValuesHaveChecksumsWhenAsked) {
  make(1 << 20, 100, 1 << 20, true);
  const std::string value(10'000, 'v');
  ASSERT_EQ(put("k", value).status, Status::kOk);
  const auto found = store_->find(as_key("k"));
  EXPECT_EQ(found.checksum, checksum_of_value(std::as_bytes(std::span(value))));
  ItemView view;
  ASSERT_EQ(judge_at(found.entry, as_key("k"), view), Verdict::kWhole);
  EXPECT_EQ(view.flags, kHasValueChecksum);
  EXPECT_EQ(view.place.checksum, found.checksum);
  ASSERT_EQ(put("small", "v").status, Status::kOk);
  EXPECT_EQ(store_->find(as_key("small")).checksum, 0u);
  make(1 << 20, 100);
  ASSERT_EQ(put("k", value).status, Status::kOk);
  EXPECT_EQ(store_->find(as_key("k")).checksum, 0u);
}

TEST_F(StoreTest, CellsAreNoValues) {
  make(1 << 20, 100);
  const std::uint64_t word = 0x1234;
  const auto made = store_->put_cell(as_key("cell"), std::as_bytes(std::span(&word, 1)));
  ASSERT_EQ(made.status, Status::kOk);
  EXPECT_EQ(store_->put_cell(as_key("cell"), {}).status, Status::kWrongKind);
  EXPECT_EQ(put("cell", "x").status, Status::kWrongKind);
  EXPECT_EQ(put("cell", "x", 0).status, Status::kWrongKind);
  EXPECT_EQ(put("cell", "x", made.version).status, Status::kWrongKind);
  EXPECT_EQ(put("cell", std::string(5000, 'x')).status, Status::kWrongKind);
  EXPECT_EQ(store_->erase(as_key("cell")).status, Status::kWrongKind);
  const auto found = store_->find(as_key("cell"));
  EXPECT_EQ(found.status, Status::kWrongKind);
  ASSERT_EQ(found.value.size(), sizeof word);
  EXPECT_EQ(std::memcmp(found.value.data(), &word, sizeof word), 0);
  ItemView view;
  ASSERT_EQ(judge_at(found.entry, as_key("cell"), view), Verdict::kWhole);
  EXPECT_EQ(view.flags, kCell);
  ASSERT_EQ(put("value", "v").status, Status::kOk);
  EXPECT_EQ(store_->put_cell(as_key("value"), {}).status, Status::kVersionMismatch);
  EXPECT_EQ(get("value"), "v");
}

// Sizes around the limits, often the same keys, sometimes a full store, with the clock moving: against std::map.
std::string random_value(std::mt19937_64& random) {
  constexpr std::size_t kSizes[] = {0, 1, 63, 64, 65, 1000, 4095, 4096, 4097, 20'000, 65'536, 200'000};
  const std::size_t size = kSizes[random() % std::size(kSizes)];
  return std::string(size, static_cast<char>('a' + random() % 26));
}

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
    for (int step = 0; step < 20'000; ++step) {
      const std::string key(1 + random() % 40, static_cast<char>('a' + random() % 12));
      const auto known = model.find(key);
      switch (random() % 8) {
        case 0: {
          const auto erased = store_->erase(as_key(key));
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
          const std::string value = random_value(random);
          const auto change = put(key, value, expected);
          if (change.status == Status::kStoreFull || change.status == Status::kIndexFull) {
            full += change.status == Status::kStoreFull ? 1u : 0u;
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
          const auto found = store_->find(as_key(key));
          ASSERT_EQ(found.status, known == model.end() ? Status::kNotFound : Status::kOk);
          if (known == model.end()) break;
          ASSERT_EQ(text_of(found.value), known->second.value);
          ASSERT_EQ(found.version, known->second.version);
          ItemView view;
          ASSERT_TRUE(find_remotely(key, view));
          ASSERT_EQ(view.version, found.version);
          ASSERT_EQ(view.value_length, found.value.size());
          if (found.value.size() >= kEagerBytes && random() % 4 == 0) store_->lend(found, now_);
        }
      }
      ASSERT_EQ(store_->statistics().items, model.size());
    }
    EXPECT_GT(full, 0u) << "the test is meant to run into a full store";
    for (const auto& [key, expected] : model) {
      ASSERT_EQ(get(key), expected.value);
      ASSERT_EQ(store_->erase(as_key(key)).status, Status::kOk);
    }
    settle();
    EXPECT_EQ(store_->statistics().used_bytes, 0u) << "something leaked";
    EXPECT_EQ(store_->statistics().resting_bytes, 0u);
  }
}

TEST_F(StoreTest, WorkIsBounded) {
  make(std::size_t{4} << 20, 10'000);
  const std::string large(kEagerBytes, 'l');
  for (int i = 0; i < 400; ++i) {
    const std::string key = "k" + std::to_string(i);
    ASSERT_EQ(put(key, large).status, Status::kOk);
    store_->lend(store_->find(as_key(key)), now_);
    ASSERT_EQ(store_->erase(as_key(key)).status, Status::kOk);
  }
  for (int i = 0; i < 3; ++i) advance(kGrace + 1);
  const auto before = store_->statistics().resting_bytes;
  ASSERT_EQ(put("k", "v").status, Status::kOk);
  const auto freed = before - store_->statistics().resting_bytes;
  EXPECT_EQ(freed, Store::kReclaimPerOperation * std::uint64_t{kEagerBytes + 64});
}

// Thousands of small blocks have rested, and a large value needs them all in one piece: no operation frees more than
// its share, and those that come back find the memory.
TEST_F(StoreTest, FullStoreFreesItsShareAndNoMore) {
  constexpr std::uint64_t kItem = kEagerBytes + 64;
  constexpr int kItems = 3800;
  make(std::size_t{16} << 20, 10'000, std::size_t{8} << 20);
  const std::string large(kEagerBytes, 'l');
  for (int i = 0; i < kItems; ++i) ASSERT_EQ(put("k" + std::to_string(i), large).status, Status::kOk) << i;
  for (int i = 0; i < kItems; ++i) {
    const std::string key = "k" + std::to_string(i);
    store_->lend(store_->find(as_key(key)), now_);
    ASSERT_EQ(store_->erase(as_key(key)).status, Status::kOk);
  }
  ASSERT_EQ(store_->statistics().resting_bytes, kItems * kItem);
  const std::string huge(std::size_t{8} << 20, 'h');
  EXPECT_EQ(put("huge", huge).status, Status::kStoreFull) << "nothing has rested";
  EXPECT_EQ(store_->statistics().resting_bytes, kItems * kItem);
  for (int i = 0; i < 3; ++i) advance(kGrace + 1);
  Status status = Status::kAgain;
  int tries = 0;
  // All of them in less than four shares.
  for (; status == Status::kAgain && tries < 4; ++tries) {
    const auto before = store_->statistics().resting_bytes;
    status = put("huge", huge).status;
    const auto freed = before - store_->statistics().resting_bytes;
    ASSERT_LE(freed, (Store::kMostReclaimed + Store::kReclaimPerOperation) * kItem) << tries;
    EXPECT_EQ(status == Status::kAgain, freed == (Store::kMostReclaimed + Store::kReclaimPerOperation) * kItem);
  }
  EXPECT_EQ(status, Status::kOk);
  EXPECT_GT(tries, 1) << "there was memory anyway";
  EXPECT_EQ(get("huge"), huge);
}

// Through the ring of epochs many times over, with gaps, and with more epochs than it has: nothing is free before its
// time, and everything after it.
TEST_F(StoreTest, EpochsGoRoundAndRound) {
  make(std::size_t{64} << 20, 10'000);
  std::mt19937_64 random(3);
  struct Resting {
    std::uint64_t since;
    std::uint64_t bytes;
  };
  std::deque<Resting> resting;
  const std::string large(8192, 'l');
  std::uint64_t sum = 0;
  for (int step = 0; step < 3000; ++step) {
    ASSERT_EQ(put("k", large).status, Status::kOk);
    store_->lend(store_->find(as_key("k")), now_);
    const auto before = store_->statistics().resting_bytes;
    ASSERT_EQ(store_->erase(as_key("k")).status, Status::kOk);
    ASSERT_LE(store_->statistics().resting_bytes, before + 8192 + 64);
    resting.push_back({now_, 8192 + 64});
    sum += 8192 + 64;
    constexpr std::uint64_t kEpoch = kGrace / 16;
    advance(step % 100 == 99 ? kGrace * 3 : step % 2 == 0 ? kEpoch / 3 : random() % (kEpoch * 2));
    while (!resting.empty() && now_ - resting.front().since >= kGrace) {
      sum -= resting.front().bytes;
      resting.pop_front();
    }
    ASSERT_GE(store_->statistics().resting_bytes, sum) << "free before its time, at step " << step;
    if (step % 7 == 0) store_->reclaim(~0u);
    ASSERT_GE(store_->statistics().resting_bytes, sum) << "free before its time, at step " << step;
  }
  settle();
  EXPECT_EQ(store_->statistics().resting_bytes, 0u);
}

}  // namespace
}  // namespace verbena::kv
