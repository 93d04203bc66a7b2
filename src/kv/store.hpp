// The store of one worker: an index over items in an arena, without a lock, for a single owner.
#pragma once

#include "host/footprint.hpp"
#include "host/huge_page_allocator.hpp"
#include "host/slab_pool.hpp"
#include "kv/item.hpp"

#include <verbena/error.hpp>
#include <verbena/kv_statistics.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace verbena::kv {

struct StoreOptions {
  std::span<std::byte> memory;  ///< 64-byte aligned; of the owner until the store is gone.
  std::size_t max_items = 0;    ///< 1 and up.
  std::size_t max_value_bytes = 0;
  std::uint64_t grace_ticks = 0;  ///< How long a freed block rests.
  std::uint64_t hash_seed = 0;
  std::atomic<std::uint64_t>* versions = nullptr;  ///< The next version; shared by all stores of a server.
};

struct StoreStatistics {
  std::uint64_t items = 0;
  std::uint64_t used_bytes = 0;     ///< Blocks of live and half-built items.
  std::uint64_t resting_bytes = 0;  ///< Blocks of superseded items that are not free yet.
  std::uint64_t capacity_bytes = 0;
  std::uint64_t max_items = 0;
  std::uint64_t index_entries = 0;
};

/// \thread owner  \alloc setup (create); none afterwards
///
/// Blocks rest. A client that was told where a large value lies may READ it up to the grace period later, so the block
/// of a superseded item is not used again before that. Items rest in epochs of a sixteenth of the grace period, chained
/// through their state words: the epoch's end, plus the grace period, frees all of it. Each operation frees at most
/// kReclaimPerOperation items, which is more than it can add. Items whose location nobody was told within the grace
/// period cannot be read by anyone: large ones are free at once, small ones when memory is short, oldest first. So
/// overwriting at any speed works as long as the values at hand and those that were read lately fit; otherwise
/// kStoreFull, and the old value stays.
class Store {
 public:
  static constexpr std::uint64_t kAnyVersion = ~std::uint64_t{0};
  static constexpr unsigned kReclaimPerOperation = 4;

  /// Errors: kBadArgument, kNoMemory.
  [[nodiscard]] static Result<std::unique_ptr<Store>> create(const StoreOptions& options);

  /// What `create` allocates, over memory of `memory_bytes`. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(std::size_t memory_bytes, std::size_t max_items);

  /// Tells the time, in ticks that never go back. Once for each batch of operations, before it; operations of a batch
  /// may take place later than this, never earlier.
  void set_now(std::uint64_t ticks) noexcept;

  struct Found {
    Status status = Status::kNotFound;
    std::uint64_t version = 0;
    std::span<const std::byte> value;  ///< Valid until the next change of the store.
    std::uint64_t item = 0;            ///< Offset of the item.
  };
  [[nodiscard]] Found find(Key key) const noexcept;
  /// Notes that a client is being told where this item lies. `now` must be read after the request came.
  void lend(const Found& found, std::uint64_t now) noexcept;

  struct Change {
    Status status = Status::kOk;
    std::uint64_t version = 0;  ///< The new one; the current one with kVersionMismatch.
  };
  /// Stores the value if the key's version is `expected` (0: no such key; kAnyVersion: always). kNotFound for an
  /// expected version of a key that is not there; kBadKey, kTooLong, kStoreFull: nothing has changed.
  [[nodiscard]] Change put(Key key, std::span<const std::byte> value, std::uint64_t expected) noexcept;
  [[nodiscard]] Change erase(Key key) noexcept;

  /// A block that is handed out and not visible. Ends in `commit` or `abandon`.
  struct Pending {
    std::uint64_t item = host::SlabPool::kNoOffset;
    std::span<std::byte> value;  ///< Fill this.
    [[nodiscard]] explicit operator bool() const noexcept { return item != host::SlabPool::kNoOffset; }
  };
  /// Takes the memory for a value. The expected version is looked at already, so that a lost race costs no transfer;
  /// what counts is `commit`.
  [[nodiscard]] Change reserve(Key key, std::uint64_t value_length, std::uint64_t expected, Pending& pending) noexcept;
  /// Publishes; on any failure the block is free again. `pending` is empty afterwards.
  [[nodiscard]] Change commit(Pending& pending, std::uint64_t expected) noexcept;
  void abandon(Pending& pending) noexcept;

  /// Frees up to `blocks` items that have rested long enough. For idle times.
  void reclaim(unsigned blocks) noexcept;

  [[nodiscard]] StoreStatistics statistics() const noexcept;
  /// Adds the blocks of each class. \thread any
  void add_memory(ServerStatistics& sum) const noexcept;
  /// The item's block, for tests and checks.
  [[nodiscard]] std::span<std::byte> block_of(const Found& found) const noexcept;

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint64_t item = kEmpty;
  };
  static_assert(sizeof(Entry) == 16);
  static constexpr std::uint64_t kEmpty = host::SlabPool::kNoOffset;
  static constexpr std::uint64_t kNone = ~std::uint64_t{0} >> 8;  // The end of a chain, as it fits a state word.

  struct Epoch {
    std::uint64_t closed_ticks = 0;
    std::uint64_t lent = kNone;  // Chains of items / 64: read lately by a client, and not.
    std::uint64_t private_ = kNone;
    [[nodiscard]] bool empty() const noexcept { return lent == kNone && private_ == kNone; }
  };
  static_assert(sizeof(Epoch) == 24);
  // 16 closed epochs are within the grace period; the rest are being freed.
  static constexpr std::size_t kEpochs = 32;
  static constexpr std::uint64_t kEpochsPerGrace = 16;

  using Index = std::vector<Entry, host::HugePageAllocator<Entry>>;

  Store(const StoreOptions& options, host::SlabPool pool, Index index) noexcept;
  [[nodiscard]] ItemHeader& header(std::uint64_t item) const noexcept;
  [[nodiscard]] Key key_at(std::uint64_t item) const noexcept;
  [[nodiscard]] std::size_t home_of(std::uint64_t hash) const noexcept;
  [[nodiscard]] std::size_t next_of(std::size_t slot) const noexcept {
    return slot + 1 == index_.size() ? 0 : slot + 1;
  }
  [[nodiscard]] std::size_t distance(std::size_t slot) const noexcept;
  [[nodiscard]] std::size_t locate(Key key, std::uint64_t hash) const noexcept;
  void insert(std::uint64_t hash, std::uint64_t item) noexcept;
  void remove(std::size_t slot) noexcept;
  [[nodiscard]] Change check(std::size_t slot, std::uint64_t expected) const noexcept;
  [[nodiscard]] bool build(Key key, std::uint64_t value_length, Pending& pending) noexcept;
  [[nodiscard]] Change publish(Pending& pending, std::size_t slot, std::uint64_t hash) noexcept;
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes) noexcept;
  [[nodiscard]] bool make_room() noexcept;
  void retire(std::uint64_t item) noexcept;
  void release(std::uint64_t item) noexcept;
  void pop(std::uint64_t& chain) noexcept;
  [[nodiscard]] Epoch* oldest() noexcept;
  [[nodiscard]] bool has_rested(const Epoch& epoch) const noexcept;

  static constexpr std::size_t kNoSlot = ~std::size_t{0};

  host::SlabPool pool_;
  Index index_;
  std::size_t items_ = 0;
  std::size_t max_items_;
  std::size_t max_value_bytes_;
  std::uint64_t grace_ticks_;
  std::uint64_t hash_seed_;
  std::atomic<std::uint64_t>* versions_;
  std::uint64_t now_ = 0;
  std::array<Epoch, kEpochs> epochs_{};  // Ring: first_epoch_ is the oldest, open_epoch_ takes what is freed now.
  std::size_t first_epoch_ = 0;
  std::size_t open_epoch_ = 0;
  std::uint64_t opened_ticks_ = 0;
  std::uint64_t resting_bytes_ = 0;
  std::uint64_t private_blocks_ = 0;
};

}  // namespace verbena::kv
