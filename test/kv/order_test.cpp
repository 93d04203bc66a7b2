// The order of the store's own stores, seen by readers that look at its window between any two of them: the index, the
// state word and the bytes of items, without a NIC in between.
#include "recorder.hpp"
#include "store_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;

/// A window as a NIC reads it: words, in any order.
class Watcher {
 public:
  Watcher(const Store& store, std::string_view key, std::uint64_t seed)
      : window_(store.window()), buckets_(store.index_buckets()), key_(key), random_(seed) {}

  struct Seen {
    std::uint64_t version = 0;  ///< 0: no item, or not all of it.
    bool is_torn = false;       ///< An item that was taken, and is none.
  };
  /// The entry that the index has for the key; 0: none.
  [[nodiscard]] std::uint64_t look_up() const {
    const std::uint64_t hash = hash_of(key(), kSeed);
    const std::uint64_t first = first_bucket(hash, buckets_);
    for (const std::uint64_t at : {first, other_bucket(first, tag_of(hash), buckets_)}) {
      for (std::size_t i = 0; i < kBucketEntries; ++i) {
        const std::uint64_t word = load(at * sizeof(Bucket) + i * 8);
        if (word != 0 && tag_of_entry(word) == tag_of(hash)) return word;
      }
    }
    return 0;
  }
  [[nodiscard]] Seen read(std::uint64_t entry) {
    const Entry at = Entry::unpack(entry);
    const std::size_t words = at.bytes() / 8;
    copy_.resize(words);
    // From a line in the middle on and around, or backwards: READs come as they come.
    const std::size_t first = random_() % words;
    const bool is_backward = random_() % 2 == 0;
    for (std::size_t i = 0; i < words; ++i) {
      const std::size_t word = (is_backward ? first + words - i : first + i) % words;
      copy_[word] = load(at.offset() + word * 8);
    }
    ItemView view;
    if (judge(std::as_bytes(std::span(copy_)), key(), window_.size(), view) != Verdict::kWhole) return {};
    return {view.version, !history::read_value(view.value).has_value()};
  }

 private:
  [[nodiscard]] Key key() const { return as_key(key_); }
  [[nodiscard]] std::uint64_t load(std::uint64_t offset) const {
    auto* const word = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(window_.data() + offset));
    return std::atomic_ref(*word).load(std::memory_order_acquire);
  }

  std::span<const std::byte> window_;
  std::uint64_t buckets_;
  std::string key_;
  std::mt19937_64 random_;
  std::vector<std::uint64_t> copy_;
};

class KvOrder : public StoreFixture {};

// One writer on one key, without a pause. What a reader takes is whole, and never older than what was acknowledged
// before it looked, or than what anybody had found before: through the index, and where the item was before.
TEST_F(KvOrder, ReadersBetweenTheStepsOfAWriter) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "reading what is being written is a race by design: what is wrong shows in the checksum";
#endif
  constexpr std::uint64_t kPuts = 60'000;
  constexpr std::uint64_t kLooksAtLeast = 2'000;
  constexpr std::array<std::uint32_t, 4> kSizes{8, 40, 200, 1000};
  make(std::size_t{1} << 20, 100);
  std::atomic<std::uint64_t> acknowledged{0}, found{0}, looks{0};
  std::atomic<bool> is_over{false};
  const auto watch = [&](std::uint64_t seed) {
    Watcher watcher(*store_, "key", seed);
    std::uint64_t known = 0;
    while (!is_over) {
      const std::uint64_t least = std::max(acknowledged.load(), found.load());
      const std::uint64_t entry = watcher.look_up();
      ASSERT_NE(entry, 0u) << "the key was there all the time";
      const std::uint64_t where = known != 0 && looks % 2 == 0 ? known : entry;
      const Watcher::Seen seen = watcher.read(where);
      ++looks;
      if (seen.version == 0) continue;
      ASSERT_FALSE(seen.is_torn) << "torn value of version " << seen.version;
      ASSERT_GE(seen.version, least) << "stale value " << (where == entry ? "through the index" : "of a known place");
      std::uint64_t before = found.load();
      while (before < seen.version && !found.compare_exchange_weak(before, seen.version)) continue;
      known = where;
    }
  };
  std::vector<std::byte> bytes(kSizes.back());
  std::mt19937_64 random(5);
  const auto put_one = [&](std::uint64_t number) {
    const std::uint32_t length = kSizes[random() % kSizes.size()];
    const std::span value = std::span(bytes).first(length);
    history::fill_value(value, history::name_of(length, 1, number));
    const Store::Change change = store_->put(as_key("key"), value, kAny);
    ASSERT_EQ(change.status, Status::kOk);
    acknowledged = change.version;
  };
  put_one(0);
  {
    const std::jthread first([&] { watch(1); }), second([&] { watch(2); });
    for (std::uint64_t i = 1; (i < kPuts || looks < kLooksAtLeast) && !HasFailure(); ++i) put_one(i & 0xffffff);
    is_over = true;
  }
  EXPECT_GE(looks, kLooksAtLeast);
}

}  // namespace
}  // namespace verbena::kv
