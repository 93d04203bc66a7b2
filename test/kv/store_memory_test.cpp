// What of the store's memory holds items, and what is done when it is all used.
#include "store_fixture.hpp"

#include "host/block_pool.hpp"

#include <map>
#include <random>
#include <vector>

namespace verbena::kv {
namespace {

using testing_support::as_key;
using testing_support::kAny;
using testing_support::kGrace;
using testing_support::StoreFixture;
using testing_support::text_of;

class StoreMemory : public StoreFixture {
 protected:
  static std::string key_of(std::size_t i) {
    const std::string digits = std::to_string(i);
    return std::string(16 - digits.size(), 'k') + digits;
  }
  /// Puts values of one length until one is refused. How many there are.
  std::size_t fill(std::size_t length, char what = 'f') {
    std::size_t count = 0;
    while (put(key_of(count), std::string(length, what)).status == Status::kOk) ++count;
    return count;
  }
};

// Headers and whole lines are what is left; those of small items are known (docs/benchmarks/store-memory.md).
TEST_F(StoreMemory, OneSizeTakesAllOfIt) {
  constexpr std::size_t kBytes = 16 << 20;
  for (const std::size_t length : {0u, 1u, 64u, 100u, 300u, 500u, 1000u, 2000u, 4000u, 4096u, 5000u, 9000u, 20'000u,
                                   40'000u, 70'000u, 200'000u, 1u << 20, 1'700'000u}) {
    SCOPED_TRACE(length);
    make(kBytes, kBytes / 64, kBytes / 2);
    const std::size_t count = fill(length);
    const ItemShape shape{.value_length = length, .key_length = 16};
    const std::size_t block = host::BlockSizes::block_bytes_for(shape.bytes()) +
                              (shape.is_inline() ? 0 : host::BlockSizes::block_bytes_for(length));
    EXPECT_GE(count * block, kBytes * 89 / 100);
    if (length >= 300) {
      EXPECT_GE(count * (length + 16), kBytes * 78 / 100);
    }
    if (length >= 9000) {
      EXPECT_GE(count * (length + 16), kBytes * 88 / 100);
    }
  }
}

TEST_F(StoreMemory, TheLongestValueCanBeReplaced) {
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{5} << 20, (std::size_t{5} << 20) + 4096}) {
    const std::size_t longest = Store::longest_value(bytes);
    make(bytes, 100, longest);
    const std::string key(kMaxKeyBytes, 'k');
    for (char what = 'a'; what < 'f'; ++what) {
      ASSERT_EQ(put(key, std::string(longest, what)).status, Status::kOk) << what;
      ASSERT_EQ(get(key), std::string(longest, what));
    }
    ASSERT_EQ(put(key, std::string(longest + 1, 'x')).status, Status::kTooLong);
    // Streamed: both copies are there at one time.
    Store::Pending pending;
    ASSERT_EQ(store_->reserve(as_key(key), longest, kAny, pending).status, Status::kOk);
    ASSERT_EQ(store_->commit(pending, kAny).status, Status::kOk);
  }
}

TEST_F(StoreMemory, AFullStoreReplacesWhatItHas) {
  for (const std::size_t length : {20u, 1000u, 4095u, 4096u, 20'000u, 100'000u}) {
    SCOPED_TRACE(length);
    make(2 << 20, 40'000);
    const std::size_t count = fill(length, 'o');
    ASSERT_GT(count, 10u);
    const std::uint64_t used = store_->statistics().used_bytes;
    for (std::size_t i = 0; i < count; ++i) {
      const Store::Found old = store_->find(as_key(key_of(i)));
      ASSERT_EQ(put(key_of(i), std::string(length, 'n'), old.version + 1).status, Status::kVersionMismatch);
      const Store::Change changed = put(key_of(i), std::string(length, 'n'), i % 2 == 0 ? old.version : kAny);
      ASSERT_EQ(changed.status, Status::kOk) << i;
      ASSERT_GT(changed.version, old.version);
      ItemView view;
      ASSERT_EQ(judge_at(changed.entry, as_key(key_of(i)), view), Verdict::kWhole);
      ASSERT_EQ(view.version, changed.version);
      ASSERT_TRUE(find_remotely(key_of(i), view));
    }
    EXPECT_EQ(store_->statistics().used_bytes, used);
    EXPECT_EQ(store_->statistics().items, count);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(get(key_of(i)), std::string(length, 'n'));
    EXPECT_EQ(put(key_of(0), std::string(2 * length + 200, 'l')).status, Status::kStoreFull);
    EXPECT_EQ(put("a new key", std::string(length, 'l')).status, Status::kStoreFull);
    EXPECT_EQ(get(key_of(0)), std::string(length, 'n')) << "what cannot be replaced stays";
  }
}

TEST_F(StoreMemory, AFullStoreReplacesLongValuesByShorterOnes) {
  make(2 << 20, 1000);
  const std::size_t count = fill(100'000);
  for (const std::size_t length : {90'000u, 60'000u, 30'000u, 9000u}) {
    while (put("filler" + std::to_string(store_->statistics().items), std::string(4096, 'x')).status == Status::kOk) {}
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(put(key_of(i), std::string(length, 's')).status, Status::kOk) << i << " of " << length;
  }
}

TEST_F(StoreMemory, AFullStoreDoesNotReplaceWhatIsBeingRead) {
  make(2 << 20, 1000);
  fill(100'000, 'o');
  store_->lend(store_->find(as_key(key_of(3))), now_);
  EXPECT_EQ(put(key_of(3), std::string(100'000, 'n')).status, Status::kStoreFull);
  EXPECT_EQ(get(key_of(3)), std::string(100'000, 'o'));
  advance(2 * kGrace);
  EXPECT_EQ(put(key_of(3), std::string(100'000, 'n')).status, Status::kOk);
  EXPECT_EQ(get(key_of(3)), std::string(100'000, 'n'));
}

TEST_F(StoreMemory, TheLastVersionDoesNotCostTheOldValue) {
  make(1 << 20, 20'000);
  fill(1000, 'o');
  versions_ = kMaxVersion + 1;
  EXPECT_EQ(put(key_of(3), std::string(1000, 'n')).status, Status::kLimit);
  EXPECT_EQ(get(key_of(3)), std::string(1000, 'o'));
}

// Three quarters of many small items go, at random, and larger ones come: the rest moves together.
TEST_F(StoreMemory, ItemsMoveForThoseOfAnotherSize) {
  make(4 << 20, 100'000);
  const std::size_t count = fill(10);
  std::mt19937_64 random(5);
  std::map<std::size_t, std::uint64_t> left;  // To the entry.
  std::map<std::size_t, std::uint64_t> versions;
  for (std::size_t i = 0; i < count; ++i) {
    const Store::Found found = store_->find(as_key(key_of(i)));
    if (random() % 4 != 0) {
      ASSERT_EQ(store_->erase(as_key(key_of(i))).status, Status::kOk);
    } else {
      left[i] = found.entry;
      versions[i] = found.version;
    }
  }
  std::size_t larger = 0;
  while (put("larger" + std::to_string(larger), std::string(900, 'l')).status == Status::kOk) ++larger;
  EXPECT_GE(larger * 960 + left.size() * 64, (4u << 20) * 94 / 100) << larger << " larger ones";
  std::size_t moved = 0;
  for (const auto& [i, entry] : left) {
    const Store::Found found = store_->find(as_key(key_of(i)));
    ASSERT_EQ(text_of(found.value), std::string(10, 'f')) << i;
    ASSERT_EQ(found.version, versions[i]) << "it is the same value";
    ItemView view;
    ASSERT_TRUE(find_remotely(key_of(i), view));
    ASSERT_EQ(view.version, versions[i]);
    if (found.entry == entry) continue;
    ++moved;
    ASSERT_NE(judge_at(entry, as_key(key_of(i)), view), Verdict::kWhole) << "who remembers the old place asks again";
  }
  EXPECT_GT(moved, left.size() / 4);
  EXPECT_EQ(store_->statistics().items, larger + left.size());
  for (const auto& [i, entry] : left) ASSERT_EQ(store_->erase(as_key(key_of(i))).status, Status::kOk);
  while (larger-- != 0) ASSERT_EQ(store_->erase(as_key("larger" + std::to_string(larger))).status, Status::kOk);
  EXPECT_EQ(store_->statistics().used_bytes, 0u);
}

// Half-built items, and those at rest, are known by their place to somebody.
TEST_F(StoreMemory, WhatIsNotLiveDoesNotMove) {
  make(1 << 20, 40'000);
  std::vector<Store::Pending> pending(40);
  std::size_t count = 0;
  for (Store::Pending& one : pending) {
    for (int i = 0; i < 200; ++i, ++count) ASSERT_EQ(put(key_of(count), "v").status, Status::kOk);
    ASSERT_EQ(store_->reserve(as_key("pending"), 5, kAny, one).status, Status::kOk);
    std::memcpy(one.value.data(), "bytes", 5);
  }
  while (put(key_of(count), "v").status == Status::kOk) ++count;
  for (std::size_t i = 0; i < count; ++i)
    if (i % 16 != 0) {
      ASSERT_EQ(store_->erase(as_key(key_of(i))).status, Status::kOk);
    }
  std::size_t larger = 0;
  while (put("larger" + std::to_string(larger), std::string(1000, 'l')).status == Status::kOk) ++larger;
  EXPECT_GT(larger, 500u);
  for (Store::Pending& one : pending) {
    ASSERT_EQ(text_of(one.value), "bytes");
    ASSERT_EQ(store_->commit(one, kAny).status, Status::kOk);
    ASSERT_EQ(get("pending"), "bytes");
  }
  for (std::size_t i = 0; i < count; i += 16) ASSERT_EQ(get(key_of(i)), "v");
}

// A mix of sizes that changes all the time, in a store that is always full.
TEST_F(StoreMemory, AChangingMixLosesNothing) {
  make(1 << 20, 20'000);
  std::mt19937_64 random(11);
  std::map<std::string, std::string> model;
  for (int step = 0; step < 60'000; ++step) {
    const std::size_t scale = std::size_t{16} << step / 6000 % 10;
    const std::string key = "k" + std::to_string(random() % 4000);
    if (random() % 8 == 0) {
      ASSERT_EQ(store_->erase(as_key(key)).status == Status::kOk, model.erase(key) == 1);
      continue;
    }
    const std::string value(random() % (2 * scale), static_cast<char>('a' + random() % 26));
    const Store::Change change = put(key, value);
    ASSERT_TRUE(change.status == Status::kOk || is_for_memory(change.status)) << to_string(change.status);
    if (change.status == Status::kOk) {
      model[key] = value;
    } else if (!model.empty()) {
      const auto other = model.lower_bound("k" + std::to_string(random() % 4000));
      const auto victim = other == model.end() ? model.begin() : other;
      ASSERT_EQ(store_->erase(as_key(victim->first)).status, Status::kOk);
      model.erase(victim);
    }
    if (random() % 16 == 0 && !model.empty()) store_->lend(store_->find(as_key(model.begin()->first)), now_);
    if (step % 100 == 0) advance(kGrace / 10);
    if (step % 1000 != 0) continue;
    for (const auto& [each, expected] : model) ASSERT_EQ(get(each), expected) << step;
  }
  for (const auto& [key, value] : model) ASSERT_EQ(get(key), value);
  for (const auto& [key, value] : model) ASSERT_EQ(store_->erase(as_key(key)).status, Status::kOk);
  settle();
  EXPECT_EQ(store_->statistics().used_bytes, 0u);
  EXPECT_EQ(store_->statistics().resting_bytes, 0u);
}

TEST_F(StoreMemory, OwnersKeepWhatIsMovedAndReplaced) {
  std::vector<Account> accounts(2);
  accounts_ = accounts;
  make(1 << 20, 40'000);
  const auto put_of = [&](std::size_t i, std::size_t length, Owner owner) {
    const std::string value(length, 'v');
    return store_->put(as_key(key_of(i)), std::as_bytes(std::span(value)), kAny, owner).status;
  };
  std::size_t count = 0;
  while (put_of(count, 10, static_cast<Owner>(1 + count % 2)) == Status::kOk) ++count;
  EXPECT_EQ(accounts[0].used().items + accounts[1].used().items, count);
  const std::uint64_t before = accounts[0].used().bytes;
  EXPECT_EQ(put_of(0, 10, 1), Status::kOk) << "over itself, in a full store";
  EXPECT_EQ(accounts[0].used().bytes, before);
  EXPECT_EQ(put_of(0, 10, 2), Status::kOk) << "somebody else's";
  EXPECT_EQ(accounts[0].used().bytes, before - 64);
  accounts[1].limit({.bytes = accounts[1].used().bytes, .items = Account::kUnlimited});
  EXPECT_EQ(put_of(2, 10, 2), Status::kOverQuota);
  EXPECT_EQ(get(key_of(2)), std::string(10, 'v'));
  EXPECT_EQ(accounts[1].used().bytes, accounts[1].most().bytes);
  for (std::size_t i = 0; i < count; ++i)
    if (i % 5 != 0) {
      ASSERT_EQ(store_->erase(as_key(key_of(i))).status, Status::kOk);
    }
  const std::uint64_t first = accounts[0].used().items;
  std::size_t larger = 0;
  while (put("larger" + std::to_string(larger), std::string(1000, 'l')).status == Status::kOk) ++larger;
  EXPECT_EQ(accounts[0].used().items, first);
  EXPECT_EQ(accounts[0].used().bytes, first * 64);
  for (std::size_t i = 0; i < count; i += 5) ASSERT_EQ(store_->erase(as_key(key_of(i))).status, Status::kOk);
  for (const Account& account : accounts) {
    EXPECT_EQ(account.used().items, 0u);
    EXPECT_EQ(account.used().bytes, 0u);
  }
}

}  // namespace
}  // namespace verbena::kv
