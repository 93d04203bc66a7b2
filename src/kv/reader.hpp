// One-sided reads: finds a key's item by a table of known locations or by the index, and READs it in the calling
// thread, where a software NIC allows that. On other NICs the client uses its queues (gets.cpp) and shares all
// of this but the READs.
#pragma once

#include "base/count.hpp"
#include "base/ticks.hpp"
#include "channel/connection.hpp"
#include "kv/index.hpp"
#include "kv/item.hpp"
#include "nic/nic.hpp"

#include <verbena/kv.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace verbena::kv {

/// Index entries of keys that this client has seen, by their hash. Each set of four is one cache line and replaces its
/// oldest entry. An entry may be out of date; the READ detects that. \thread owner
class Locations {
 public:
  /// `entries` is 0, or a power of two that is at least kWays. \alloc setup
  explicit Locations(std::size_t entries) : sets_(entries / kWays) {}
  static constexpr std::size_t kWays = 4;
  [[nodiscard]] static constexpr std::size_t bytes(std::size_t entries) noexcept {
    return entries / kWays * sizeof(Set);
  }

  void prefetch(std::uint64_t hash) const noexcept {
    if (!sets_.empty()) __builtin_prefetch(&set_of(hash));
  }
  /// The entry's word, or 0.
  [[nodiscard]] std::uint64_t find(std::uint64_t hash) const noexcept {
    if (sets_.empty()) return 0;
    const Set& set = set_of(hash);
    for (std::size_t i = 0; i < kWays; ++i)
      if (set.hashes[i] == hash) return set.entries[i];
    return 0;
  }
  /// Remembers `entry`; 0 forgets.
  void note(std::uint64_t hash, std::uint64_t entry) noexcept;
  void forget(std::uint64_t hash) noexcept { note(hash, 0); }

 private:
  struct alignas(64) Set {
    std::array<std::uint64_t, kWays> hashes{};
    std::array<std::uint64_t, kWays> entries{};  ///< 0: none.
  };
  static_assert(sizeof(Set) == 64);
  // Bits other than the leading ones, which choose the bucket and the worker.
  [[nodiscard]] std::size_t at(std::uint64_t hash) const noexcept { return (hash >> 8) & (sets_.size() - 1); }
  [[nodiscard]] const Set& set_of(std::uint64_t hash) const noexcept { return sets_[at(hash)]; }

  std::vector<Set> sets_;
};

/// A worker's exported memory: the index, then the items.
struct Part {
  channel::Connection* channel = nullptr;
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint32_t rkey = 0;
  std::uint64_t buckets = 0;
  std::uint64_t marks = 0;  ///< Address; 0: there are none.
  std::uint32_t marks_rkey = 0;

  /// Where the key's mark is.
  [[nodiscard]] channel::RemoteSpan mark(std::uint64_t hash) const noexcept {
    const std::uint64_t at = mark_of(first_bucket(hash, buckets), tag_of(hash), buckets);
    return {.address = marks + at, .length = 1, .rkey = marks_rkey};
  }
  [[nodiscard]] channel::RemoteSpan bucket(std::uint64_t number) const noexcept {
    return {.address = address + number * sizeof(Bucket), .length = sizeof(Bucket), .rkey = rkey};
  }
  /// The item of an entry; an empty span for an entry that no server creates.
  [[nodiscard]] channel::RemoteSpan item(std::uint64_t word) const noexcept {
    const Entry entry = Entry::unpack(word);
    const bool can_be = entry.is_inside(length) && entry.bytes() <= kMostItemBytes;
    return {.address = address + entry.offset(), .length = can_be ? entry.bytes() : 0, .rkey = rkey};
  }
  /// The longest item, in whole cache lines.
  static constexpr std::size_t kMostItemBytes = (kMaxItemBytes + kLineBytes - 1) / kLineBytes * kLineBytes;
};

/// One bit for each entry of the bucket that may be the key's. Branch-free: the outcome cannot be predicted.
[[nodiscard]] constexpr unsigned matches(const Bucket& bucket, std::uint32_t tag) noexcept {
  unsigned found = 0;
  for (unsigned i = 0; i < kBucketEntries; ++i)
    found |= static_cast<unsigned>(bucket[i] != 0 && tag_of_entry(bucket[i]) == tag) << i;
  return found;
}

/// READs of values in place are split into pieces of this size, with a look at the deadline in between.
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

/// Like kv::LookupCounters, but changed by the client's thread only.
using Lookups = BasicLookupCounters<Count>;

/// The server's clock as a client knows it: from a reply, and by its own clock since then. Both may go wrong by 1 %
/// (see CounterWatch). \thread owner  \alloc none
class ServerClock {
 public:
  /// `clock_ns` is from the reply to a request that was sent after `sent_ticks`.
  void set(std::uint64_t clock_ns, std::uint64_t sent_ticks) noexcept {
    clock_ns_ = clock_ns;
    ticks_ = sent_ticks;
    is_known_ = true;
  }
  /// No less than the server's clock shows now, so that nobody takes a value whose time is over.
  [[nodiscard]] std::uint64_t latest_ns() const noexcept {
    if (!is_known_) return ~std::uint64_t{0};
    const std::uint64_t since = ns_in(ticks_now() - ticks_);
    return clock_ns_ + since + since / kDriftPart;
  }

 private:
  static constexpr std::uint64_t kDriftPart = 32;
  std::uint64_t clock_ns_ = 0;
  std::uint64_t ticks_ = 0;
  bool is_known_ = false;
};

/// READs that the calling thread carries out itself. \thread owner  \alloc setup (constructor); none
class Reader {
 public:
  /// Lookups through the index before the key is asked for by message.
  static constexpr unsigned kMostLookups = 3;

  explicit Reader(Lookups& counts) noexcept : counts_(counts) {}

  void know(std::size_t locations) { locations_ = Locations(locations); }
  /// Remembers no locations and trusts the index alone: see wire::kGuarded.
  void guard() {
    is_guarded_ = true;
    know(0);
  }
  void set_hash_seed(std::uint64_t seed) noexcept { seed_ = seed; }
  void add(const Part& part) { parts_.push_back(part); }
  /// Whether a get without the server's CPU shall mark its key: one in 8, at distances that no pattern of keys meets.
  [[nodiscard]] bool is_mark_due(const Part& part) noexcept {
    if (part.marks == 0 || --until_mark_ != 0) [[likely]]
      return false;
    random_ = random_ * 0x5851'f42d'4c95'7f2d + 0x1405'7b7e'f767'814f;
    until_mark_ = 1 + static_cast<unsigned>(random_ >> 60);
    return true;
  }
  /// Forgets a location that was out of date.
  void drop(std::uint64_t hash) noexcept;

  [[nodiscard]] std::uint64_t hash(Key key) const noexcept { return hash_of(key, seed_); }
  [[nodiscard]] Locations& locations() noexcept { return locations_; }
  [[nodiscard]] ServerClock& clock() noexcept { return clock_; }
  [[nodiscard]] const Part& part(unsigned worker) const noexcept { return parts_[worker]; }
  [[nodiscard]] unsigned worker(std::uint64_t hash) const noexcept {
    return worker_of(hash, static_cast<unsigned>(parts_.size()));
  }

  /// Outcome of a read.
  enum class Read : std::uint8_t {
    kDone,       ///< The outcome is set.
    kLarge,      ///< The outcome is set, but the value is still to be READ.
    kOtherKey,   ///< Not this key's item.
    kOvertaken,  ///< Replaced, erased or moved meanwhile.
    kOtherKind,  ///< A cell, or a value whose time may be over: ask the server.
    kNoWay,      ///< No READ can be carried out now.
  };
  /// GETs one key. kDone: finished; kNoWay: no READ can be carried out now; anything else: READs did not settle it.
  [[nodiscard]] Read get(Key key, std::span<std::byte> out, Deadline deadline, Outcome& outcome) noexcept;
  /// GETs up to kMostAtOnce keys and overlaps their cache misses. Returns a bit for each key that is not done.
  struct Left {
    std::uint32_t by_message = 0;
    std::uint32_t by_queue = 0;
  };
  static constexpr std::size_t kMostAtOnce = nic::Direct::kMaxList;
  [[nodiscard]] Left get_some(std::span<GetRequest> requests, Deadline deadline) noexcept;

  /// One GET.
  struct Call {
    Key key;
    std::uint64_t hash;
    std::span<std::byte> out;
    Deadline deadline;
    Outcome& outcome;
  };
  /// Judges the bytes of an item for a GET; sets `item` with kDone and kLarge.
  [[nodiscard]] Read take(std::span<const std::byte> bytes, const Part& part, const Call& call,
                          ItemView& item) const noexcept;

 private:
  enum class Which : std::uint8_t { kFirst, kSecond };

  /// One GET of several.
  struct Sought {
    std::uint64_t hash = 0;
    std::uint64_t entry = 0;  ///< 0: not found.
    GetRequest* request = nullptr;
    std::uint32_t bit = 0;
    unsigned worker = 0;
    bool is_known = false;  ///< Found by a known location.
    [[nodiscard]] Call call(Deadline deadline) const noexcept {
      return {request->key, hash, request->out, deadline, request->outcome};
    }
  };

  [[nodiscard]] Read look_up(const Part& part, const Call& call) noexcept;
  [[nodiscard]] Read look_up_once(const Part& part, const Call& call) noexcept;
  [[nodiscard]] Read read_item(const Part& part, std::uint64_t entry, const Call& call) noexcept;
  [[nodiscard]] Read take(const Part& part, std::uint64_t address, std::span<const std::byte> item,
                          const Call& call) noexcept;
  [[nodiscard]] Read read_value(const Part& part, std::uint64_t address, const ItemView& item,
                                const Call& call) noexcept;

  void mark(const Part& part, std::uint64_t hash) noexcept;
  void get_of_part(const Part& part, std::span<Sought> sought, Deadline deadline, Left& left) noexcept;
  [[nodiscard]] bool read_buckets(const Part& part, std::span<Sought> sought, Which which) noexcept;
  [[nodiscard]] std::uint32_t take_items(const Part& part, std::span<const Sought> sought, Deadline deadline,
                                         Left& left) noexcept;

  [[nodiscard]] static bool is_still_there(const Part& part, std::uint64_t bucket, unsigned slot,
                                           std::uint64_t entry) noexcept;

  bool is_guarded_ = false;
  std::uint64_t seed_ = 0;
  std::vector<Part> parts_;
  Locations locations_{0};
  ServerClock clock_;
  unsigned until_mark_ = 1;
  std::uint64_t random_ = 1;
  Lookups& counts_;
  /// Private memory: READ bytes are judged here, where nothing changes them.
  static constexpr std::size_t kScratchBytes = std::size_t{16} << 10;
  static_assert(kScratchBytes >= Part::kMostItemBytes && kScratchBytes >= kMostAtOnce * sizeof(Bucket));
  alignas(64) std::array<std::byte, kScratchBytes> scratch_;
};

// Inline: a get of one key spends most of its instructions here.
inline Reader::Read Reader::take(std::span<const std::byte> bytes, const Part& part, const Call& call,
                                 ItemView& item) const noexcept {
  switch (judge(bytes, call.key, part.length, item)) {
    case Verdict::kWhole: break;
    case Verdict::kOtherKey: return Read::kOtherKey;
    case Verdict::kNotLive:
    case Verdict::kTorn: return Read::kOvertaken;
  }
  const auto length = static_cast<std::size_t>(item.value_length);
  call.outcome = {Status::kOk, item.version, length};
  if ((item.flags & (kCell | kExpires)) != 0) [[unlikely]] {
    // After the READ, so it was not over during that.
    const std::uint64_t now_ns = clock_.latest_ns();
    if ((item.flags & kCell) != 0 || item.until_ns <= now_ns) return Read::kOtherKind;
    call.outcome.time_left = std::chrono::nanoseconds(static_cast<std::int64_t>(item.until_ns - now_ns));
  }
  if (length > call.out.size()) {
    call.outcome.status = Status::kBufferTooSmall;
    return Read::kDone;
  }
  if (length >= kEagerBytes) return Read::kLarge;
  if (length != 0) std::memcpy(call.out.data(), item.value.data(), length);
  return Read::kDone;
}

}  // namespace verbena::kv
