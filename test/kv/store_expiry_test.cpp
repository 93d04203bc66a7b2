// Values with a time to live in a store, by a clock that the test moves.
#include "store_fixture.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace verbena::kv {
namespace {

using namespace testing_support;

constexpr std::uint64_t kTtl = 1'000'000;  // ns

class StoreExpiry : public StoreFixture {
 protected:
  StoreExpiry() {
    ticks_ = [] noexcept { return clock_ticks; };
    clock_ticks = 0;
  }
  /// A little more than `ns`: ticks are whole.
  static void pass(std::uint64_t ns) {
    clock_ticks += static_cast<std::uint64_t>(std::ceil(static_cast<double>(ns) / 1000.0 * ticks_per_us())) + 1;
  }
  Store::Change put_for(std::string_view key, std::string_view value, std::uint64_t ttl_ns,
                        std::uint64_t expected = kAny) {
    return store_->put(as_key(key), std::as_bytes(std::span(value)), expected, kNoOwner, ttl_ns);
  }

  static inline std::uint64_t clock_ticks = 0;
};

TEST_F(StoreExpiry, AnExpiredKeyIsAbsentForEveryCall) {
  make(1 << 20, 100);
  for (const std::size_t length : {std::size_t{0}, std::size_t{100}, std::size_t{10'000}}) {
    const std::string value(length, 'v');
    const auto stored = put_for("k", value, kTtl);
    ASSERT_EQ(stored.status, Status::kOk);
    const auto found = store_->find(as_key("k"));
    EXPECT_EQ(text_of(found.value), value);
    EXPECT_EQ(found.until_ns, store_->clock_ns() + kTtl);
    pass(kTtl / 2);
    EXPECT_EQ(get("k"), value);
    pass(kTtl);
    EXPECT_EQ(put("k", "x", stored.version).status, Status::kNotFound) << "cas finds no version";
    EXPECT_EQ(put_for("k", value, kTtl).status, Status::kOk);
    pass(kTtl);
    EXPECT_EQ(get("k"), "not found");
    EXPECT_EQ(put_for("k", value, kTtl).status, Status::kOk);
    pass(kTtl);
    EXPECT_EQ(store_->erase(as_key("k")).status, Status::kNotFound);
    EXPECT_EQ(put_for("k", value, kTtl).status, Status::kOk);
    pass(kTtl);
    EXPECT_EQ(put("k", "new", 0).status, Status::kOk) << "expected 0: there is no such key";
    EXPECT_EQ(get("k"), "new");
    ASSERT_EQ(store_->erase(as_key("k")).status, Status::kOk);
  }
  settle();
  EXPECT_EQ(store_->statistics().expired, 3u * 4);
  EXPECT_EQ(store_->statistics().items, 0u);
  EXPECT_EQ(store_->statistics().used_bytes, 0u);
}

TEST_F(StoreExpiry, APutTakesTheTimeAway) {
  make(1 << 20, 100);
  ASSERT_EQ(put_for("k", "short", kTtl).status, Status::kOk);
  ASSERT_EQ(put("k", "long").status, Status::kOk);
  pass(10 * kTtl);
  EXPECT_EQ(get("k"), "long");
  EXPECT_EQ(store_->find(as_key("k")).until_ns, 0u);
}

TEST_F(StoreExpiry, ReadersFindTheTimeInTheItem) {
  make(1 << 20, 100, 1 << 20, true);
  for (const std::size_t key_length : {1u, 7u, 8u, 9u, 1024u})
    for (const std::size_t length : {0u, 1u, 4095u, 4096u, 20'000u}) {
      const std::string key(key_length, 'k');
      ASSERT_EQ(put_for(key, std::string(length, 'v'), kTtl).status, Status::kOk);
      ItemView view;
      ASSERT_TRUE(find_remotely(key, view)) << key_length << ' ' << length;
      EXPECT_EQ(view.until_ns, store_->clock_ns() + kTtl);
      EXPECT_EQ(view.value_length, length);
      // It is below the checksum.
      const auto block = block_of(store_->find(as_key(key)));
      const std::size_t at = ItemShape{.key_length = key_length, .flags = kExpires}.tail_offset() - 1;
      block[at] ^= std::byte{1};
      EXPECT_FALSE(find_remotely(key, view));
      block[at] ^= std::byte{1};
    }
}

TEST_F(StoreExpiry, OnlyThoseThatExpireAreLonger) {
  constexpr ItemShape stays{.value_length = 100, .key_length = 5};
  constexpr ItemShape expires{.value_length = 100, .key_length = 5, .flags = kExpires};
  EXPECT_EQ(stays.bytes(), 32u + 8 + 100);
  EXPECT_EQ(expires.bytes(), stays.bytes() + 8);
}

TEST_F(StoreExpiry, ASweepFindsWhatNobodyMeets) {
  make(1 << 20, 1000);
  for (int i = 0; i < 900; ++i) {
    const std::string key = "k" + std::to_string(i);
    const auto stored = i % 3 == 0 ? put_for(key, "v", kTtl) : i % 3 == 1 ? put_for(key, "v", 5 * kTtl) : put(key, "v");
    ASSERT_EQ(stored.status, Status::kOk);
  }
  EXPECT_FALSE(store_->sweep(~0u)) << "nothing is over, so nothing is looked at";
  pass(kTtl);
  EXPECT_TRUE(store_->sweep(8));
  EXPECT_LT(store_->statistics().expired, 300u) << "no more than was asked for";
  for (int steps = 0; store_->sweep(8); ++steps) ASSERT_LT(steps, 1000) << "it does not end";
  EXPECT_EQ(store_->statistics().expired, 300u);
  EXPECT_EQ(store_->statistics().items, 600u);
  pass(4 * kTtl);
  while (store_->sweep(8)) {}
  EXPECT_EQ(store_->statistics().items, 300u);
  EXPECT_FALSE(store_->sweep(8)) << "no more can expire";
}

TEST_F(StoreExpiry, ASweepGoesOnWithWhatMovesAndComesMeanwhile) {
  make(1 << 20, 2000);
  // Nearly full, so that entries move.
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(put_for("a" + std::to_string(i), "v", kTtl).status, Status::kOk);
  pass(kTtl);
  EXPECT_TRUE(store_->sweep(100));
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(put_for("b" + std::to_string(i), "v", kTtl).status, Status::kOk);
  pass(kTtl);
  for (int steps = 0; store_->sweep(16); ++steps) ASSERT_LT(steps, 10'000);
  EXPECT_EQ(store_->statistics().items, 0u);
  EXPECT_EQ(store_->statistics().expired, 2000u);
}

TEST_F(StoreExpiry, WhatIsOverMakesRoom) {
  make(1 << 20, 100'000);
  const std::string value(1000, 'v');
  unsigned stored = 0;
  while (put_for("k" + std::to_string(stored), value, kTtl).status == Status::kOk) ++stored;
  ASSERT_GT(stored, 500u);
  EXPECT_EQ(put("new", value).status, Status::kStoreFull) << "nothing is over yet";
  pass(kTtl);
  // One that is not found at once is found by the next tries.
  for (unsigned i = 0; i < stored; ++i) {
    Status status = Status::kAgain;
    for (int tries = 0; status == Status::kAgain; ++tries) {
      ASSERT_LT(tries, 10'000);
      status = put("n" + std::to_string(i), value).status;
    }
    ASSERT_EQ(status, Status::kOk) << i;
  }
}

TEST_F(StoreExpiry, WhatIsOverMakesRoomForKeys) {
  make(1 << 20, 64);
  for (int i = 0; i < 64; ++i) ASSERT_EQ(put_for("k" + std::to_string(i), "v", kTtl).status, Status::kOk);
  EXPECT_EQ(put("new", "v").status, Status::kIndexFull);
  pass(kTtl);
  EXPECT_EQ(put("new", "v").status, Status::kOk);
}

TEST_F(StoreExpiry, APutInAFullStoreOverWhatIsOver) {
  make(1 << 20, 100'000);
  const std::string value(1000, 'v');
  ASSERT_EQ(put_for("mine", value, kTtl).status, Status::kOk);
  for (unsigned i = 0; put("k" + std::to_string(i), value).status == Status::kOk; ++i) {}
  pass(kTtl);
  EXPECT_EQ(put("mine", value, 7).status, Status::kNotFound);
  EXPECT_EQ(put("mine", value, 0).status, Status::kOk);
}

TEST_F(StoreExpiry, TimeBeginsWhenTheValueIsThere) {
  make(1 << 20, 100);
  Store::Pending pending;
  ASSERT_EQ(store_->reserve(as_key("k"), 8000, kAny, pending, kNoOwner, kTtl).status, Status::kOk);
  pass(100 * kTtl);
  ASSERT_EQ(store_->commit(pending, kAny).status, Status::kOk);
  pass(kTtl / 2);
  EXPECT_EQ(store_->find(as_key("k")).status, Status::kOk);
  pass(kTtl / 2);
  EXPECT_EQ(store_->find(as_key("k")).status, Status::kNotFound);
}

TEST_F(StoreExpiry, WhatWasLentRestsStill) {
  make(1 << 20, 100);
  ASSERT_EQ(put_for("k", std::string(8000, 'v'), kTtl).status, Status::kOk);
  store_->lend(store_->find(as_key("k")), now_);
  pass(kTtl);
  EXPECT_TRUE(store_->sweep(~0u));
  EXPECT_EQ(store_->statistics().items, 0u);
  EXPECT_GE(store_->statistics().resting_bytes, 8000u);
  settle();
  EXPECT_EQ(store_->statistics().resting_bytes, 0u);
}

}  // namespace
}  // namespace verbena::kv
