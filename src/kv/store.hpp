// One worker's store: an index over items in an arena, without a lock, for a single owner.
#pragma once

#include "base/ticks.hpp"
#include "host/block_pool.hpp"
#include "host/footprint.hpp"
#include "kv/access.hpp"
#include "kv/index.hpp"
#include "kv/item.hpp"

#include <verbena/error.hpp>
#include <verbena/kv_statistics.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace verbena::kv {

struct StoreOptions {
  /// The memory that clients READ: Store::window_bytes, at a page's start, with the index in front of the items. It
  /// belongs to the store's owner and must outlive the store.
  std::span<std::byte> window;
  std::size_t max_items = 0;  ///< 1 to kMaxItems.
  std::size_t max_value_bytes = 0;
  bool checksum_large_values = false;
  std::uint64_t grace_ticks = 0;  ///< How long a freed block waits before it is used again.
  std::uint64_t hash_seed = 0;
  std::atomic<std::uint64_t>* versions = nullptr;  ///< The next version; shared by all stores of a server.
  /// The clock of times to live: `ticks` since `begin_ticks`. Read when an operation meets an item that expires.
  std::uint64_t begin_ticks = 0;
  std::uint64_t (*ticks)() noexcept = [] noexcept { return ticks_now(); };
  /// mark_bytes, which clients may write at any time, outside of the window; it must outlive the store. Empty: no item
  /// is evicted.
  std::span<std::byte> marks{};
  Accounts accounts{};  ///< Whose items are charged; shared as well. Empty: items have no owners.
};

/// Whether a change failed for want of memory.
[[nodiscard]] constexpr bool is_for_memory(Status status) noexcept {
  return status == Status::kStoreFull || status == Status::kAgain;
}

struct StoreStatistics {
  std::uint64_t items = 0;
  std::uint64_t used_bytes = 0;     ///< Blocks of live and half-built items.
  std::uint64_t resting_bytes = 0;  ///< Blocks of superseded items in their grace period.
  std::uint64_t capacity_bytes = 0;
  std::uint64_t max_items = 0;
  std::uint64_t index_entries = 0;  ///< Places of the index; `items` of them are taken.
  std::uint64_t expired = 0;        ///< Items removed because their time was over.
  std::uint64_t evicted = 0;        ///< Items removed to make room for others.
};

/// \thread owner  \alloc setup (create); none afterwards
///
/// Memory is blocks of size classes and spans of pages (host::BlockPool). Where one class has far more memory than its
/// items need and another has none, the items of a slab move to others of their class, versions and all: to a reader
/// the old place is superseded. A put that finds no memory beside the old value takes that one's blocks, if it has the
/// whole value at hand and it fits.
///
/// The index is a cuckoo table of buckets (index.hpp). A new key whose buckets are full gets a place by moving others,
/// one after the other, along the shortest way that a search of at most kMostVisited buckets finds.
///
/// An item with a time to live is absent once that is over: whoever meets it then removes it. `sweep` finds the ones
/// that nobody meets: it walks the index, and only when the earliest time that it knows of is over.
///
/// With marks, a change that finds no memory or no place for its key evicts items, by a clock: a hand goes through the
/// index, removes whoever has no mark, and takes the marks of the others. Cells stay, and so do large values whose
/// location was told within the grace period, because their memory would not be free.
///
/// Blocks are free as soon as their item is superseded: state word, version and checksum tell a client that READs one
/// that it has changed. The exception are large values whose location was sent by message: for the client's READ only
/// time counts. Such an item's blocks wait out the grace period, in epochs of a sixteenth of it, chained through the
/// items' second words: the epoch's end, plus the grace period, frees all of it. Each operation frees at most
/// kReclaimPerOperation items, which is more than it can add; one that finds no memory, kMostReclaimed for each block
/// that it needs, and then it is kAgain. So overwriting at any speed works as long as the values at hand and those that
/// were told lately fit; otherwise kStoreFull, and the old value stays.
class Store {
 public:
  static constexpr std::uint64_t kAnyVersion = ~std::uint64_t{0};
  static constexpr unsigned kReclaimPerOperation = 4;
  /// Freeing one item takes two cold blocks, some 100 ns. This many make all other clients of the worker wait 0.1 ms
  /// longer; all that a large store may have would delay them for seconds.
  static constexpr unsigned kMostReclaimed = 1024;
  /// Slabs that are cleared for one block, or tried, with up to 64 items each to be moved: some 10 us.
  static constexpr unsigned kMostCleared = 8;
  /// Buckets that an operation without memory looks through for items whose time is over: some 50 us.
  static constexpr unsigned kMostSwept = 64;
  /// Items that the hand passes to evict one, and buckets: some 100 us.
  static constexpr unsigned kMostPassed = 512;
  static constexpr unsigned kMostBucketsPassed = 2048;
  /// Items evicted for one allocation: this many, and as many more as small items fit into it.
  static constexpr unsigned kMostEvicted = 64;
  static constexpr std::size_t kEvictedBytes = 512;
  /// Evicted before a slab is cleared, and before the next one is.
  static constexpr unsigned kEvictedPerSlab = 8;
  /// For a slab that is cleared: below the length of any value that has a block of its own.
  static constexpr std::size_t kMostMovedBytes = kEagerBytes - 1;
  /// Buckets that an insertion looks at. Nine tenths full, three of four insertions need no move, and one in a million
  /// looks at more than a hundred; this many are for keys that somebody chose to collide.
  static constexpr unsigned kMostVisited = 512;

  /// Errors: those of BlockPool::create.
  [[nodiscard]] static Result<std::unique_ptr<Store>> create(const StoreOptions& options);

  /// Bytes of the window for items of `memory_bytes`, index included. \thread any  \alloc none
  [[nodiscard]] static constexpr std::size_t window_bytes(std::size_t memory_bytes, std::size_t max_items) noexcept {
    return index_bytes(buckets_for(max_items)) + memory_bytes;
  }
  /// The longest value of which an otherwise empty store of `memory_bytes` has room for two, with the items that name
  /// them: so whatever can be put can be replaced. \thread any  \alloc none
  [[nodiscard]] static constexpr std::size_t longest_value(std::size_t memory_bytes) noexcept {
    const std::size_t pages = memory_bytes / host::BlockSizes::kPage;
    // A slab of items with the longest keys: it has no more of a small pool.
    const std::size_t of_items = std::clamp<std::size_t>(pages / 64, 1, 16);
    return pages < 3 ? 0 : (pages - of_items) / 2 * host::BlockSizes::kPage;
  }
  /// Whether items have owners.
  enum class Owners : bool { kNo, kYes };
  /// The memory that `create` allocates besides the window, for `memory_bytes` of items. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(std::size_t memory_bytes, Owners owners);

  /// Sets the time, in ticks that never go back. Call it once before each batch of operations; they may take place
  /// later than this, never earlier.
  void set_now(std::uint64_t ticks) noexcept;

  struct Found {
    Status status = Status::kNotFound;  ///< kWrongKind for a cell; everything is then set too.
    std::uint64_t version = 0;
    std::span<const std::byte> value;  ///< Valid until the next change of the store.
    std::uint64_t entry = 0;           ///< The item's entry in the index.
    std::uint64_t checksum = 0;        ///< For a large value, with `checksum_large_values`.
    std::uint64_t until_ns = 0;        ///< When it expires, by clock_ns; 0: never.
  };
  [[nodiscard]] Found find(Key key) noexcept;
  /// The clock of times to live, in ns. \thread any
  [[nodiscard]] std::uint64_t clock_ns() const noexcept { return ns_in(options_.ticks() - options_.begin_ticks); }
  /// Call when a client is sent this large value's location. Read `now` after the request came.
  void lend(const Found& found, std::uint64_t now) noexcept;

  struct Change {
    Status status = Status::kOk;
    std::uint64_t version = 0;   ///< The new one; the current one with kVersionMismatch.
    std::uint64_t entry = 0;     ///< The new item's entry in the index.
    Quota quota = Quota::kNone;  ///< The exceeded one, with kOverQuota.
  };
  /// Stores the value if the key's version is `expected` (0: no such key; kAnyVersion: always). kNotFound for an
  /// expected version of a key that is not there; kBadKey, kTooLong, kStoreFull (memory), kAgain (memory whose
  /// grace period is over is there, and takes more than one operation to free), kIndexFull (keys), kLimit (no version
  /// is left), kWrongKind (a cell), kOverQuota (of `owner`): nothing has changed. The item is `owner`'s until it is
  /// replaced. In a full store the value takes the place of the key's old one, if it is not longer, and nobody was told
  /// of that within the grace period. `ttl_ns` begins when the value is published; 0: it does not expire.
  [[nodiscard]] Change put(Key key, std::span<const std::byte> value, std::uint64_t expected, Owner owner = kNoOwner,
                           std::uint64_t ttl_ns = 0) noexcept {
    return put(key, value, expected, flags_for(ttl_ns), owner, ttl_ns);
  }
  [[nodiscard]] Change erase(Key key) noexcept;
  /// Makes the key a cell, for good; `value` is the inline value of its item. kVersionMismatch: the key exists.
  [[nodiscard]] Change put_cell(Key key, std::span<const std::byte> value, Owner owner = kNoOwner) noexcept {
    return put(key, value, 0, kCell, owner, 0);
  }

  /// A block that is allocated and not visible. Ends in `commit` or `abandon`.
  struct Pending {
    std::uint64_t item = host::BlockPool::kNoOffset;
    std::span<std::byte> value;  ///< Fill this.
    std::uint64_t hash = 0;
    [[nodiscard]] explicit operator bool() const noexcept { return item != host::BlockPool::kNoOffset; }
  };
  /// Allocates memory for a value. Already checks the expected version, so that a lost race costs no transfer; the
  /// check in `commit` decides.
  [[nodiscard]] Change reserve(Key key, std::uint64_t value_length, std::uint64_t expected, Pending& pending,
                               Owner owner = kNoOwner, std::uint64_t ttl_ns = 0) noexcept {
    return reserve(key, value_length, expected, pending, flags_for(ttl_ns), owner, ttl_ns);
  }
  /// Publishes; on any failure the block is free again. `pending` is empty afterwards.
  [[nodiscard]] Change commit(Pending& pending, std::uint64_t expected) noexcept;
  void abandon(Pending& pending) noexcept;

  /// Removes items whose time is over in the next `buckets` of the index. False: there are none to be found.
  bool sweep(unsigned buckets) noexcept;
  /// Frees up to `blocks` items whose grace period is over.
  void reclaim(unsigned blocks) noexcept;

  /// \name Scans of all keys, step by step
  ///
  /// A scan goes through the places of the index in order. An insertion may move an entry from a place ahead of the
  /// scan to one behind it, so the store keeps the last kMovesKept moves, and a step first looks where entries went
  /// since the step before. If more have moved since, the scan begins again. So a scan sees every key that is there
  /// from its first step to its last at least once, whatever changes meanwhile; it may see one twice.
  /// @{

  /// Where a scan is; the store keeps nothing of it.
  struct ScanPlace {
    std::uint64_t place = 0;  ///< The next place of the index.
    std::uint64_t moves = 0;  ///< Moves that the scan knows of.
  };
  /// One step: as many items as kMostScanned at most, and as many places as kMostPlaces.
  struct Scanned {
    ScanPlace next;
    bool is_over = false;
    std::uint32_t keys = 0;  ///< Listed, or erased.
    std::size_t bytes = 0;   ///< Used of `out`.
  };
  /// Each item costs a cold cache line, some 100 ns, for which other clients of the worker wait.
  static constexpr unsigned kMostScanned = 512;
  static constexpr std::uint64_t kMostPlaces = std::uint64_t{1} << 15;
  static constexpr std::size_t kMovesKept = 4096;
  /// Whether a scan of this store can be there.
  [[nodiscard]] bool has(const ScanPlace& at) const noexcept {
    return at.place < index_.size() * kBucketEntries && at.moves <= moves_;
  }
  /// Writes the keys that begin with `prefix` to `out`, each behind its length as u16, as many as it has room for.
  /// `out` must have room for the longest key. Requires has(from).
  [[nodiscard]] Scanned list(Key prefix, ScanPlace from, std::span<std::byte> out) const noexcept;
  /// Erases such keys, but no cells. Requires has(from).
  [[nodiscard]] Scanned flush(Key prefix, ScanPlace from) noexcept;
  /// @}

  [[nodiscard]] StoreStatistics statistics() const noexcept;
  /// Adds the blocks of each class. \thread any
  void add_memory(ServerStatistics& sum) const noexcept;
  /// At the window's start. \thread any
  [[nodiscard]] std::uint64_t index_buckets() const noexcept { return index_.size(); }
  [[nodiscard]] std::span<const std::byte> window() const noexcept { return options_.window; }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};  // The end of a chain.
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  struct Epoch {
    std::uint64_t closed_ticks = 0;
    std::uint64_t chain = kNone;  // The items that were lent.
    [[nodiscard]] bool empty() const noexcept { return chain == kNone; }
  };
  static_assert(sizeof(Epoch) == 16);
  // 16 closed epochs are within the grace period; the rest are being freed.
  static constexpr std::size_t kEpochs = 32;
  static constexpr std::uint64_t kEpochsPerGrace = 16;

  Store(const StoreOptions& options, host::BlockPool pool) noexcept;
  // Items are known by their offset in the pool, inside; in the window they lie behind the index.
  [[nodiscard]] ItemHeader& header(std::uint64_t item) const noexcept;
  [[nodiscard]] ItemShape shape(std::uint64_t item) const noexcept;
  [[nodiscard]] ValuePlace& place_of(std::uint64_t item) const noexcept;
  [[nodiscard]] std::uint64_t value_block(std::uint64_t item) const noexcept;
  [[nodiscard]] std::uint64_t version_at(std::uint64_t item) const noexcept { return version_of(header(item).state); }
  [[nodiscard]] Key key_at(std::uint64_t item) const noexcept;
  [[nodiscard]] std::uint64_t entry_for(std::uint64_t item, std::uint64_t hash) const noexcept;
  [[nodiscard]] std::uint64_t item_of(std::uint64_t entry) const noexcept;

  [[nodiscard]] static constexpr unsigned flags_for(std::uint64_t ttl_ns) noexcept {
    return ttl_ns != 0 ? kExpires : 0;
  }
  /// With kExpires, and nothing else: when it expires. Until it is published, its time to live.
  [[nodiscard]] std::uint64_t& until_of(std::uint64_t item) const noexcept;
  [[nodiscard]] bool has_expired(std::uint64_t item) const noexcept;

  /// The key's entry, whether its time is over or not; null: there is none.
  [[nodiscard]] std::uint64_t* locate(Key key, std::uint64_t hash) const noexcept;
  /// The same, but an item whose time is over is removed.
  [[nodiscard]] std::uint64_t* locate_live(Key key, std::uint64_t hash) noexcept;
  void remove(std::uint64_t& entry) noexcept;
  /// For a server that evicts: notes that the key was used.
  void mark(std::uint64_t hash) noexcept;
  /// Evicts one item. False: there is none among the next ones.
  bool evict() noexcept;
  [[nodiscard]] bool may_evict(std::uint64_t item) const noexcept;
  /// Whether the hand may find something to evict when it goes on.
  [[nodiscard]] bool can_evict() const noexcept { return !options_.marks.empty() && hand_.idle < index_.size(); }
  /// Whether evicting can make room for `bytes`.
  [[nodiscard]] bool evicting_helps(std::size_t bytes) const noexcept {
    return can_evict() && bytes <= pool_.capacity_bytes() - pinned_bytes_;
  }
  void expire(std::uint64_t& entry) noexcept;
  [[nodiscard]] std::uint64_t* empty_in(std::uint64_t bucket) const noexcept;
  [[nodiscard]] std::uint64_t* place_for(std::uint64_t hash) noexcept;
  [[nodiscard]] std::uint64_t* make_way(std::uint64_t first, std::uint64_t second) noexcept;

  [[nodiscard]] Change put(Key key, std::span<const std::byte> value, std::uint64_t expected, unsigned flags,
                           Owner owner, std::uint64_t ttl_ns) noexcept;
  [[nodiscard]] Change reserve(Key key, std::uint64_t value_length, std::uint64_t expected, Pending& pending,
                               unsigned flags, Owner owner, std::uint64_t ttl_ns) noexcept;
  [[nodiscard]] Change check(const std::uint64_t* entry, std::uint64_t expected) const noexcept;
  [[nodiscard]] Change look(Key key, std::uint64_t value_length, std::uint64_t expected, Pending& pending) noexcept;
  [[nodiscard]] bool build(Key key, ItemShape made, std::uint64_t value_block, std::uint64_t ttl_ns,
                           Pending& pending) noexcept;
  [[nodiscard]] Change publish(const Pending& pending, std::uint64_t expected) noexcept;
  [[nodiscard]] Change make_live(const Pending& pending, std::uint64_t* entry, bool is_new,
                                 std::uint64_t version) noexcept;
  [[nodiscard]] Change overwrite(Key key, std::span<const std::byte> value, std::uint64_t expected, Owner owner,
                                 std::uint64_t ttl_ns, const Change& without) noexcept;
  [[nodiscard]] bool fits_over(std::uint64_t item, ItemShape made) const noexcept;
  void seal(std::uint64_t item, std::uint64_t version) noexcept;
  [[nodiscard]] std::uint64_t draw_version() noexcept;
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes) noexcept;
  [[nodiscard]] Change no_memory(std::size_t bytes) noexcept;
  [[nodiscard]] Quota charge(const Pending& pending, Owner owner) noexcept;
  [[nodiscard]] Quota charge(Owner owner, std::uint64_t bytes, const std::uint64_t* replaced) noexcept;
  /// Whether the value alone would be more than `owner` may have, whatever else its item takes.
  [[nodiscard]] bool is_beyond_quota(Key key, std::uint64_t hash, Owner owner, std::uint64_t value_length) noexcept;
  void discharge(std::uint64_t item) noexcept;
  [[nodiscard]] Owner& owner_of(std::uint64_t item) noexcept { return owners_[item / kLineBytes]; }
  [[nodiscard]] bool is_lent(const ItemHeader& item) const noexcept;
  void retire(std::uint64_t item) noexcept;
  /// Calls `visit` with the items of one step whose keys begin with `prefix`; it returns false when it has no room.
  template <class Visit>
  [[nodiscard]] Scanned step(Key prefix, ScanPlace from, Visit&& visit) const noexcept;
  [[nodiscard]] std::uint64_t& word_at(std::uint64_t place) const noexcept {
    return index_[place / kBucketEntries][place % kBucketEntries];
  }
  void note_move(const std::uint64_t* to) noexcept;
  [[nodiscard]] bool clear_slab() noexcept;
  [[nodiscard]] bool move(std::uint64_t item) noexcept;
  void release(std::uint64_t item) noexcept;
  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t item) const noexcept;
  void pop(std::uint64_t& chain) noexcept;
  [[nodiscard]] Epoch* oldest() noexcept;
  [[nodiscard]] bool has_rested(const Epoch& epoch) const noexcept;

  const StoreOptions options_;
  std::span<Bucket> index_;
  std::uint64_t items_at_;  // In the window.
  host::BlockPool pool_;
  /// By the item's first line. Private: who wrote what is nobody's business. Empty when items have no owners.
  std::vector<Owner> owners_;
  std::size_t items_ = 0;
  std::uint64_t now_ = 0;
  std::array<Epoch, kEpochs> epochs_{};  // A ring: first_epoch_ is the oldest, open_epoch_ takes blocks freed now.
  std::size_t first_epoch_ = 0;
  std::size_t open_epoch_ = 0;
  std::uint64_t opened_ticks_ = 0;
  std::uint64_t resting_bytes_ = 0;
  std::uint64_t moves_ = 0;                           // Entries that have moved so far,
  std::array<std::uint64_t, kMovesKept> moved_to_{};  // and where the last of them went: a ring.
  std::uint64_t expired_ = 0;
  std::uint64_t evicted_ = 0;
  std::uint64_t pinned_bytes_ = 0;  ///< Blocks that nothing evicts: those of cells.
  /// The clock's hand.
  struct Hand {
    std::uint64_t bucket = 0;
    unsigned slot = 0;
    std::uint64_t idle = 0;  ///< Buckets passed since it evicted an item, or took a mark.
  } hand_;
  /// No item expires before this, by clock_ns.
  std::uint64_t earliest_ns_ = kNever;
  /// The walk through the index that begins when earliest_ns_ is over.
  struct Sweep {
    std::uint64_t bucket = 0;
    std::uint64_t earliest_ns = kNever;  ///< The earliest of those seen and left, and of those that came meanwhile.
    bool has_moved = false;              ///< An entry has moved, maybe from before it to behind it.
  } sweep_;
};

}  // namespace verbena::kv
