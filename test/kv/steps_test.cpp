// The store's protections, one step after the other: the writer stops after each of its stores, and what readers may
// find in its window then is looked at, whatever they READ before and after other stores. Readers of large values have
// the memory changed between two of their READs. Nothing here depends on how threads meet. The simulation takes the
// same protections out one at a time, and finds that: test/sim/mutate.py.
#include "steps.hpp"
#include "chaos.hpp"
#include "fake_server.hpp"
#include "kv/reader.hpp"
#include "model.hpp"
#include "recorder.hpp"
#include "store_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace verbena::kv {
namespace {

/// Called with what was judged to be whole, before the reader goes on.
std::function<void(const ItemView&)> on_whole;

}  // namespace

// Every reader judges each item that it has READ; the linker puts this in between.
Verdict real_judge(std::span<const std::byte> bytes, Key key, std::uint64_t window_bytes, ItemView& view) noexcept
    asm("__real_" VERBENA_JUDGE);
Verdict stepped_judge(std::span<const std::byte> bytes, Key key, std::uint64_t window_bytes, ItemView& view) noexcept
    asm("__wrap_" VERBENA_JUDGE);
Verdict stepped_judge(std::span<const std::byte> bytes, Key key, std::uint64_t window_bytes, ItemView& view) noexcept {
  const Verdict verdict = real_judge(bytes, key, window_bytes, view);
  if (verdict == Verdict::kWhole && on_whole) on_whole(view);
  return verdict;
}

namespace {

using namespace testing_support;

constexpr std::string_view kKey = "key";

/// The window between two stores, and what was so before.
struct Moment {
  std::vector<std::uint64_t> words;
  std::uint64_t least = 0;  ///< The version that whoever begins to read now must find, or a later one.
};

/// A READ, or several, of one item: begun at one moment, ended at another or the same.
struct Taken {
  std::size_t begun = 0;
  std::size_t ended = 0;
  std::uint64_t entry = 0;
  std::uint64_t version = 0;
};

class KvSteps : public StoreFixture {
 protected:
  void SetUp() override { make(std::size_t{1} << 18, 100); }
  void TearDown() override { steps::on_store = nullptr; }

  /// All changes of the key from here on leave moments.
  void watch() {
    moments_.clear();
    steps::on_store = [this] { keep_moment(); };
  }
  void keep_moment() {
    Moment& now = moments_.emplace_back();
    now.words.resize(kWords);
    std::memcpy(now.words.data(), store_->window().data(), kWords * sizeof(std::uint64_t));
    now.least = least_;
    if (const std::uint64_t entry = look_up(now); entry != 0) known_.insert(entry);
  }
  void put(std::uint32_t length) {
    std::vector<std::byte> value(length);
    history::fill_value(value, history::name_of(length, 1, ++number_));
    Store::Pending pending;
    ASSERT_EQ(store_->reserve(as_key(kKey), length, kAny, pending).status, Status::kOk);
    // The bytes come as they come.
    const std::size_t half = length / 16 * 8;
    std::memcpy(pending.value.data() + half, value.data() + half, length - half);
    keep_moment();
    std::memcpy(pending.value.data(), value.data(), half);
    const Store::Change change = store_->commit(pending, kAny);
    ASSERT_EQ(change.status, Status::kOk);
    names_[change.version] = history::name_of(length, 1, number_);
    known_.insert(change.entry);
    least_ = change.version;
    keep_moment();
  }
  void erase() {
    ASSERT_EQ(store_->erase(as_key(kKey)).status, Status::kOk);
    ++least_;
    keep_moment();
  }

  /// The entry that the index has for the key; 0: none.
  [[nodiscard]] std::uint64_t look_up(const Moment& moment) const {
    const std::uint64_t hash = hash_of(as_key(kKey), kSeed);
    const std::uint64_t first = first_bucket(hash, store_->index_buckets());
    for (const std::uint64_t bucket : {first, other_bucket(first, tag_of(hash), store_->index_buckets())})
      for (std::size_t i = 0; i < kBucketEntries; ++i) {
        const std::uint64_t word = moment.words[bucket * kBucketEntries + i];
        if (word != 0 && tag_of_entry(word) == tag_of(hash)) return word;
      }
    return 0;
  }
  [[nodiscard]] Verdict judge_words(std::span<const std::uint64_t> words, ItemView& view) const {
    return judge(std::as_bytes(words), as_key(kKey), store_->window().size(), view);
  }
  [[nodiscard]] static std::span<const std::uint64_t> words_at(const Moment& moment, std::uint64_t offset,
                                                               std::size_t bytes) {
    return std::span(moment.words).subspan(offset / 8, (bytes + 7) / 8);
  }

  /// Takes the item of an entry whose words were READ at two moments, in any order: the first ones at one of them, the
  /// rest at the other.
  void take_in_two(std::size_t begun, std::size_t ended, std::uint64_t entry) {
    const Entry at = Entry::unpack(entry);
    const std::span before = words_at(moments_[begun], at.offset(), at.bytes());
    const std::span after = words_at(moments_[ended], at.offset(), at.bytes());
    for (const bool is_backward : {false, true}) {
      const std::span front = is_backward ? after : before;
      const std::span back = is_backward ? before : after;
      std::vector<std::uint64_t> copy(back.begin(), back.end());
      take(begun, ended, entry, copy);
      for (std::size_t i = 0; i < copy.size(); ++i) {
        if (copy[i] == front[i]) continue;
        copy[i] = front[i];
        take(begun, ended, entry, copy);
      }
    }
  }
  void take(std::size_t begun, std::size_t ended, std::uint64_t entry, std::span<const std::uint64_t> words) {
    ItemView view;
    const Verdict verdict = judge_words(words, view);
    ++verdicts_[verdict];
    if (verdict != Verdict::kWhole) return;
    const std::optional<std::uint64_t> name = history::read_value(view.value);
    // What is about to be acknowledged has no name yet.
    const auto known = names_.find(view.version);
    if (!name || known == names_.end() || known->second != *name) torn_ = view.version;
    taken_.push_back({begun, ended, entry, view.version});
  }
  /// Nobody takes what is torn, nor a version older than what was acknowledged before he began, or than what somebody
  /// had taken before that.
  void expect_order() {
    ASSERT_FALSE(torn_) << "torn value of version " << *torn_;
    std::vector<std::uint64_t> found(moments_.size());
    for (const Taken& one : taken_) found[one.ended] = std::max(found[one.ended], one.version);
    for (std::size_t i = 1; i < found.size(); ++i) found[i] = std::max(found[i], found[i - 1]);
    for (const Taken& one : taken_) {
      ASSERT_GE(one.version, std::max(moments_[one.begun].least, found[one.begun]))
          << "stale value of version " << one.version << ' '
          << (look_up(moments_[one.begun]) == one.entry ? "through the index" : "at a known place")
          << ", begun at step " << one.begun << " and ended at step " << one.ended;
    }
  }

  static constexpr std::size_t kWords = 128 * 1024 / 8;  // Of the window's front: what these tests use of it.
  std::vector<Moment> moments_;
  std::set<std::uint64_t> known_;  // Entries that a reader may remember.
  std::map<std::uint64_t, std::uint64_t> names_;
  std::uint64_t least_ = 0;
  std::uint64_t number_ = 0;
  std::vector<Taken> taken_;
  std::optional<std::uint64_t> torn_;
  std::map<Verdict, std::uint64_t> verdicts_;
};

TEST_F(KvSteps, SmallValuesAreWholeAndInOrder) {
  // Blocks are used again at once, by items of the same size and by others.
  watch();
  for (const std::uint32_t length : {8u, 8u, 8u, 40u, 8u, 40u, 200u, 40u, 200u, 8u})
    ASSERT_NO_FATAL_FAILURE(put(length));
  ASSERT_NO_FATAL_FAILURE(erase());
  for (const std::uint32_t length : {8u, 200u, 8u}) ASSERT_NO_FATAL_FAILURE(put(length));
  EXPECT_GE(moments_.size(), 60u) << "not each store is a step";
  for (std::size_t begun = 0; begun < moments_.size(); ++begun)
    for (std::size_t ended = begun; ended < moments_.size(); ++ended)
      for (const std::uint64_t entry : known_) take_in_two(begun, ended, entry);
  expect_order();
  EXPECT_GT(verdicts_[Verdict::kTorn], 0u) << "no block was used again while it was read";
  EXPECT_GT(verdicts_[Verdict::kNotLive], 0u);
}

// The item, then its value in two parts, then the item's first word again: each at a time of its own.
TEST_F(KvSteps, LargeValuesAreWholeAndInOrder) {
  watch();
  for (const std::uint32_t length : {4096u, 4096u, 5000u, 4096u, 5000u, 4096u}) ASSERT_NO_FATAL_FAILURE(put(length));
  std::uint64_t overtaken = 0;
  const auto read = [&](std::size_t first, std::size_t second, std::size_t third, std::uint64_t entry) {
    const Entry at = Entry::unpack(entry);
    ItemView item;
    if (judge_words(words_at(moments_[first], at.offset(), at.bytes()), item) != Verdict::kWhole) return;
    for (const std::size_t part : {std::size_t{0}, std::size_t{8}, std::size_t{2048}}) {
      const std::span front = words_at(moments_[second], item.place.offset, item.value_length);
      const std::span back = words_at(moments_[third], item.place.offset, item.value_length);
      std::vector<std::uint64_t> value(back.begin(), back.end());
      std::copy_n(front.begin(), part / 8, value.begin());
      if (!is_live(words_at(moments_[third], at.offset(), 8)[0], item.version)) {
        ++overtaken;
        continue;
      }
      const auto name = history::read_value(std::as_bytes(std::span(value)).first(item.value_length));
      if (!name || names_[item.version] != *name) torn_ = item.version;
      taken_.push_back({first, third, entry, item.version});
    }
  };
  for (std::size_t first = 0; first < moments_.size(); ++first)
    for (std::size_t second = first; second < moments_.size(); ++second)
      for (std::size_t third = second; third < moments_.size(); ++third)
        for (const std::uint64_t entry : known_) read(first, second, third, entry);
  expect_order();
  EXPECT_GT(overtaken, 0u);
  EXPECT_FALSE(taken_.empty());
}

// A location that was told by message is good for a grace period, and nothing is looked at again.
TEST_F(KvSteps, LentValuesStayForTheirGracePeriod) {
  ASSERT_NO_FATAL_FAILURE(put(5000));
  const Store::Found lent = store_->find(as_key(kKey));
  store_->lend(lent, now_);
  watch();
  for (int i = 0; i < 6; ++i) {
    ASSERT_NO_FATAL_FAILURE(put(5000));
    advance(kGrace / 8);
  }
  const auto offset = static_cast<std::size_t>(lent.value.data() - store_->window().data());
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    const std::span words = words_at(moments_[i], offset, lent.value.size());
    ASSERT_EQ(history::read_value(std::as_bytes(words).first(lent.value.size())), names_[lent.version])
        << "overwritten within its grace period, at step " << i;
  }
  EXPECT_GE(store_->statistics().resting_bytes, 5000u);
  settle();
  EXPECT_EQ(store_->statistics().resting_bytes, 0u);
}

/// Reads a large value, the memory of which is another version's as soon as its item has been read: the first `times`
/// times.
class Overwritten {
 public:
  explicit Overwritten(unsigned times) : left_(times) {
    server_.first(key())[0] = publish();
    on_whole = [this](const ItemView& view) {
      if (view.version != version_ || left_ == 0) return;
      --left_;
      (void)publish();
    };
  }
  ~Overwritten() { on_whole = nullptr; }
  Overwritten(const Overwritten&) = delete;
  Overwritten& operator=(const Overwritten&) = delete;

  void connect() {
    ClientOptions options = client_options(server_.port());
    options.lookup = Lookup::kOneSided;
    client_ = testing_support::connect(options);
    ASSERT_TRUE(client_);
  }
  [[nodiscard]] Client& client() { return *client_; }
  void get() {
    out_.resize(kLength);
    outcome_ = client_->get(key(), out_);
  }
  /// What was read is one version's, or what the server says by message.
  void expect_one_version() {
    ASSERT_EQ(outcome_.status, Status::kOk);
    EXPECT_EQ(left_, 0u) << "the memory was not overwritten as often as it should be";
    if (outcome_.version == FakeServer::kVersion) return;
    ASSERT_EQ(outcome_.length, kLength);
    const auto first = static_cast<char>(out_.front());
    ASSERT_EQ(first, letter_of(outcome_.version)) << "one value of two versions";
  }
  [[nodiscard]] const Outcome& outcome() const { return outcome_; }
  [[nodiscard]] std::uint64_t newest() const { return version_; }

 private:
  static constexpr std::size_t kLength = 50'000;
  [[nodiscard]] static Key key() { return key_of(kKey); }
  [[nodiscard]] static char letter_of(std::uint64_t version) { return static_cast<char>('a' + version % 26); }
  [[nodiscard]] std::uint64_t publish() {
    ++version_;
    return server_.make(64, key(), std::string(kLength, letter_of(version_)), version_, 0, {.offset = 65536});
  }

  FakeServer server_;
  std::unique_ptr<Client> client_;
  std::vector<std::byte> out_;
  Outcome outcome_;
  std::uint64_t version_ = 1000;
  unsigned left_;
};

// Once or twice: the next look finds what is there now. More often: the server is asked. By READs that the calling
// thread carries out, and through the queues, as on a device and on NICs that are late.
TEST_F(KvSteps, AValueOverwrittenWhileItIsReadIsReadAgain) {
  for (const unsigned times : {1u, 2u, Reader::kMostLookups}) {
    for (const bool is_late : {false, true}) {
      SCOPED_TRACE(std::to_string(times) + (is_late ? " times, through the queues" : " times"));
      std::optional<test::LateNics> late;
      if (is_late) late.emplace(times);
      Overwritten value(times);
      ASSERT_NO_FATAL_FAILURE(value.connect());
      value.get();
      ASSERT_NO_FATAL_FAILURE(value.expect_one_version());
      const std::uint64_t expected = times == Reader::kMostLookups ? FakeServer::kVersion : value.newest();
      EXPECT_EQ(value.outcome().version, expected);
      EXPECT_EQ(value.client().lookups().retries, std::min(times, Reader::kMostLookups - 1));
    }
  }
}

}  // namespace
}  // namespace verbena::kv
