// A store over memory of its own, with a clock that the test moves.
#pragma once

#include "host/arena.hpp"
#include "kv/store.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace verbena::kv::testing_support {

inline constexpr std::uint64_t kGrace = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kAny = Store::kAnyVersion;
inline constexpr std::uint64_t kSeed = 7;

inline Key as_key(std::string_view text) { return std::as_bytes(std::span(text)); }

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class StoreFixture : public testing::Test {
 protected:
  void make(std::size_t bytes, std::size_t max_items, std::size_t max_value = 1 << 20,
            bool checksum_large_values = false) {
    store_.reset();
    const std::size_t window = Store::window_bytes(bytes, max_items);
    auto arena = host::Arena::create({.size_bytes = window, .name = "store-test"});
    ASSERT_TRUE(arena) << arena.error().text();
    arena_ = std::move(*arena);
    marks_.assign(evicts_ ? mark_bytes(buckets_for(max_items)) : 0, std::byte{0});
    auto store = Store::create({.window = arena_.bytes().first(window),
                                .max_items = max_items,
                                .max_value_bytes = max_value,
                                .checksum_large_values = checksum_large_values,
                                .grace_ticks = kGrace,
                                .hash_seed = kSeed,
                                .versions = &versions_,
                                .ticks = ticks_,
                                .marks = marks_,
                                .accounts = accounts_});
    ASSERT_TRUE(store) << store.error().text();
    store_ = std::move(*store);
    advance(kGrace);
  }
  void advance(std::uint64_t ticks) { store_->set_now(now_ += ticks); }
  Store::Change put(std::string_view key, std::string_view value, std::uint64_t expected = kAny) {
    return store_->put(as_key(key), std::as_bytes(std::span(value)), expected);
  }
  std::string get(std::string_view key) {
    const auto found = store_->find(as_key(key));
    return found.status == Status::kOk ? text_of(found.value) : std::string(to_string(found.status));
  }
  /// Lets everything rest and frees it.
  void settle() {
    for (int i = 0; i < 3; ++i) advance(kGrace + 1);
    store_->reclaim(~0u);
  }
  /// The item's bytes, which are the store's.
  std::span<std::byte> block_of(const Store::Found& found) {
    const Entry entry = Entry::unpack(found.entry);
    return arena_.bytes().subspan(entry.offset(), entry.bytes());
  }
  static std::uint64_t load_state(const std::byte* item) {
    std::uint64_t state = 0;
    std::memcpy(&state, item, sizeof state);
    return state;
  }
  /// What a client makes of the item that an entry names.
  Verdict judge_at(std::uint64_t word, Key key, ItemView& view) {
    const Entry entry = Entry::unpack(word);
    if (!entry.is_inside(store_->window().size())) return Verdict::kTorn;
    return judge(store_->window().subspan(entry.offset(), entry.bytes()), key, store_->window().size(), view);
  }
  Verdict judge_key(std::string_view key) {
    ItemView view;
    return judge_at(store_->find(as_key(key)).entry, as_key(key), view);
  }
  /// A key's item as a client finds it: by nothing but the window and the hello's numbers.
  bool find_remotely(std::string_view text, ItemView& view) {
    const Key key = as_key(text);
    const std::uint64_t hash = hash_of(key, kSeed);
    const std::uint64_t first = first_bucket(hash, store_->index_buckets());
    for (const std::uint64_t at : {first, other_bucket(first, tag_of(hash), store_->index_buckets())}) {
      Bucket bucket;
      std::memcpy(&bucket, store_->window().data() + at * sizeof bucket, sizeof bucket);
      for (const std::uint64_t word : bucket)
        if (word != 0 && tag_of_entry(word) == tag_of(hash) && judge_at(word, key, view) == Verdict::kWhole)
          return true;
    }
    return false;
  }

  host::Arena arena_;
  std::atomic<std::uint64_t> versions_{1};
  Accounts accounts_{};  ///< Outlive the store.
  /// The clock of times to live.
  std::uint64_t (*ticks_)() noexcept = [] noexcept { return ticks_now(); };
  bool evicts_ = false;
  std::vector<std::byte> marks_;
  std::uint64_t now_ = 1000;
  std::unique_ptr<Store> store_;
};

}  // namespace verbena::kv::testing_support
