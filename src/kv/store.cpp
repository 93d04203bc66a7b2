#include "kv/store.hpp"

#include "base/check.hpp"
#include "base/error.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::kv {
namespace {

// The state word above its low byte. Live: when the item's location was last told to a client, in units of
// 2^kStampShift ticks and rounded up, so never earlier than it was; 0 for never. Superseded: the next item of its
// epoch's chain.
constexpr unsigned kStampShift = 16;

constexpr std::uint64_t word(ItemState state, std::uint64_t above) noexcept {
  return static_cast<std::uint64_t>(state) | above << 8;
}

constexpr std::uint64_t stamp(std::uint64_t ticks) noexcept { return (ticks >> kStampShift) + 1; }

__extension__ using Wide = unsigned __int128;

// Load factor of a full index: 9 in 10.
constexpr std::size_t slots_for(std::size_t items) noexcept { return items + items / 9 + 8; }

}  // namespace

std::uint64_t checksum_of(const std::byte* item, std::size_t bytes) noexcept {
  constexpr std::size_t kFrom = offsetof(ItemHeader, version);
  return XXH3_64bits(item + kFrom, bytes - kFrom);
}

bool is_intact(std::span<const std::byte> block, Key key) noexcept {
  if (block.size() < sizeof(ItemHeader)) return false;
  ItemHeader header;
  std::memcpy(&header, block.data(), sizeof header);
  const std::size_t bytes = item_bytes(header.key_length, header.value_length);
  if (header.key_length != key.size() || bytes > block.size()) return false;
  return std::memcmp(block.data() + sizeof header, key.data(), key.size()) == 0 &&
         checksum_of(block.data(), bytes) == header.checksum;
}

std::uint64_t hash_of(Key key, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(key.data(), key.size(), seed);
}

unsigned worker_of(Key key, unsigned workers) noexcept {
  if (workers == 1) return 0;
  return static_cast<unsigned>((XXH3_64bits(key.data(), key.size()) >> 32) * workers >> 32);
}

Result<std::unique_ptr<Store>> Store::create(const StoreOptions& options) {
  if (options.max_items == 0 || options.max_items > (std::size_t{1} << 40) || options.versions == nullptr)
    return fail(Status::kBadArgument, "Store::create", 0,
                "a store needs room for 1 to 2^40 items and a version counter");
  VERBENA_ASSIGN(auto pool, host::SlabPool::create(options.memory));
  try {
    Index index(slots_for(options.max_items));
    return std::unique_ptr<Store>(new Store(options, std::move(pool), std::move(index)));
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "Store::create", 0,
                "an index for {} items takes {} MiB, which cannot be had: lower max_items", options.max_items,
                slots_for(options.max_items) * sizeof(Entry) >> 20);
  }
}

host::Footprint Store::footprint(std::size_t memory_bytes, std::size_t max_items) {
  host::Footprint pools;
  pools.add({.name = "store", .bytes_each = sizeof(Store)});
  pools.add({.name = "index", .count = slots_for(max_items), .bytes_each = sizeof(Entry)});
  pools.add({.name = "slab pool's bookkeeping", .bytes_each = host::SlabPool::bookkeeping_bytes(memory_bytes)});
  return pools;
}

Store::Store(const StoreOptions& options, host::SlabPool pool, Index index) noexcept
    : pool_(std::move(pool)),
      index_(std::move(index)),
      max_items_(options.max_items),
      max_value_bytes_(options.max_value_bytes),
      grace_ticks_(options.grace_ticks),
      hash_seed_(options.hash_seed),
      versions_(options.versions) {}

ItemHeader& Store::header(std::uint64_t item) const noexcept { return *reinterpret_cast<ItemHeader*>(pool_.at(item)); }

Key Store::key_at(std::uint64_t item) const noexcept {
  return {pool_.at(item) + sizeof(ItemHeader), header(item).key_length};
}

// --- index: robin hood hashing; removal shifts back, so there are no tombstones

std::size_t Store::home_of(std::uint64_t hash) const noexcept {
  return static_cast<std::size_t>(static_cast<Wide>(hash) * index_.size() >> 64);
}

std::size_t Store::distance(std::size_t slot) const noexcept {
  const std::size_t home = home_of(index_[slot].hash);
  return slot >= home ? slot - home : slot + index_.size() - home;
}

// Bounded: a full index still has an empty slot in ten.
std::size_t Store::locate(Key key, std::uint64_t hash) const noexcept {
  std::size_t slot = home_of(hash);
  for (std::size_t travelled = 0; index_[slot].item != kEmpty && distance(slot) >= travelled; ++travelled) {
    if (index_[slot].hash == hash) {
      const Key found = key_at(index_[slot].item);
      if (found.size() == key.size() && std::memcmp(found.data(), key.data(), key.size()) == 0) return slot;
    }
    slot = next_of(slot);
  }
  return kNoSlot;
}

void Store::insert(std::uint64_t hash, std::uint64_t item) noexcept {
  Entry carried{hash, item};
  std::size_t slot = home_of(hash);
  for (std::size_t travelled = 0; index_[slot].item != kEmpty; ++travelled) {
    const std::size_t there = distance(slot);
    if (there < travelled) {
      std::swap(carried, index_[slot]);
      travelled = there;
    }
    slot = next_of(slot);
  }
  index_[slot] = carried;
  ++items_;
}

void Store::remove(std::size_t slot) noexcept {
  for (std::size_t next = next_of(slot); index_[next].item != kEmpty && distance(next) > 0; next = next_of(next)) {
    index_[slot] = index_[next];
    slot = next;
  }
  index_[slot] = Entry{};
  --items_;
}

// --- operations

Store::Found Store::find(Key key) const noexcept {
  const std::size_t slot = locate(key, hash_of(key, hash_seed_));
  if (slot == kNoSlot) return {};
  const std::uint64_t item = index_[slot].item;
  const ItemHeader& found = header(item);
  return {Status::kOk, found.version, {pool_.at(found.value_offset), found.value_length}, item};
}

void Store::lend(const Found& found, std::uint64_t now) noexcept {
  const std::uint64_t lent = word(ItemState::kLive, stamp(now));
  ItemHeader& item = header(found.item);
  if (item.state != lent) std::atomic_ref(item.state).store(lent, std::memory_order_relaxed);
}

std::span<std::byte> Store::block_of(const Found& found) const noexcept {
  return {pool_.at(found.item), pool_.block_bytes(found.item)};
}

Store::Change Store::check(std::size_t slot, std::uint64_t expected) const noexcept {
  if (expected == kAnyVersion) return {};
  if (slot == kNoSlot) return {expected == 0 ? Status::kOk : Status::kNotFound, 0};
  const std::uint64_t version = header(index_[slot].item).version;
  return {version == expected ? Status::kOk : Status::kVersionMismatch, version};
}

Store::Change Store::put(Key key, std::span<const std::byte> value, std::uint64_t expected) noexcept {
  Pending pending;
  const Change reserved = reserve(key, value.size(), expected, pending);
  if (reserved.status != Status::kOk) return reserved;
  if (!value.empty()) std::memcpy(pending.value.data(), value.data(), value.size());
  return commit(pending, expected);
}

Store::Change Store::reserve(Key key, std::uint64_t value_length, std::uint64_t expected, Pending& pending) noexcept {
  if (key.empty() || key.size() > kMaxKeyBytes) return {Status::kBadKey, 0};
  if (value_length > max_value_bytes_) return {Status::kTooLong, 0};
  reclaim(kReclaimPerOperation);
  if (expected != kAnyVersion) {
    const Change checked = check(locate(key, hash_of(key, hash_seed_)), expected);
    if (checked.status != Status::kOk) return checked;
  }
  return {build(key, value_length, pending) ? Status::kOk : Status::kStoreFull, 0};
}

bool Store::build(Key key, std::uint64_t value_length, Pending& pending) noexcept {
  const std::uint64_t item = allocate(item_bytes(key.size(), value_length));
  if (item == host::SlabPool::kNoOffset) return false;
  std::uint64_t value_offset = item + sizeof(ItemHeader) + padded_key_bytes(key.size());
  if (!is_inline(value_length)) {
    value_offset = allocate(value_length);
    if (value_offset == host::SlabPool::kNoOffset) {
      VERBENA_CHECK(pool_.free(item) == Status::kOk);
      return false;
    }
  }
  ItemHeader& made = header(item);
  std::atomic_ref(made.state).store(word(ItemState::kBuilding, 0), std::memory_order_release);
  made.value_length = value_length;
  made.value_offset = value_offset;
  made.key_length = static_cast<std::uint16_t>(key.size());
  made.flags = 0;
  made.reserved = 0;
  std::byte* at = pool_.at(item) + sizeof(ItemHeader);
  std::memset(at + padded_key_bytes(key.size()) - 8, 0, 8);
  std::memcpy(at, key.data(), key.size());
  pending = {item, {pool_.at(value_offset), static_cast<std::size_t>(value_length)}};
  return true;
}

Store::Change Store::commit(Pending& pending, std::uint64_t expected) noexcept {
  VERBENA_DCHECK(pending);
  const Key key = key_at(pending.item);
  const std::uint64_t hash = hash_of(key, hash_seed_);
  const std::size_t slot = locate(key, hash);
  Change change = check(slot, expected);
  if (change.status == Status::kOk && slot == kNoSlot && items_ == max_items_) change = {Status::kStoreFull, 0};
  if (change.status == Status::kOk) return publish(pending, slot, hash);
  abandon(pending);
  return change;
}

Store::Change Store::publish(Pending& pending, std::size_t slot, std::uint64_t hash) noexcept {
  const std::uint64_t item = std::exchange(pending, Pending{}).item;
  ItemHeader& made = header(item);
  made.version = versions_->fetch_add(1, std::memory_order_relaxed);
  made.checksum = checksum_of(pool_.at(item), item_bytes(made.key_length, made.value_length));
  // Orders the item's bytes before its state, for READs by clients' NICs.
  std::atomic_ref(made.state).store(word(ItemState::kLive, 0), std::memory_order_release);
  if (slot == kNoSlot) {
    insert(hash, item);
  } else {
    // Superseded before the index changes, and both before the client is told: a reader that remembers the old
    // location cannot take the old value after an acknowledged change.
    retire(index_[slot].item);
    index_[slot].item = item;
  }
  return {Status::kOk, made.version};
}

void Store::abandon(Pending& pending) noexcept {
  if (!pending) return;
  // Never published, so nobody was told of it: it need not rest.
  release(std::exchange(pending, Pending{}).item);
}

Store::Change Store::erase(Key key) noexcept {
  if (key.empty() || key.size() > kMaxKeyBytes) return {Status::kBadKey, 0};
  reclaim(kReclaimPerOperation);
  const std::size_t slot = locate(key, hash_of(key, hash_seed_));
  if (slot == kNoSlot) return {Status::kNotFound, 0};
  const std::uint64_t version = header(index_[slot].item).version;
  retire(index_[slot].item);
  remove(slot);
  return {Status::kOk, version};
}

// --- memory: resting, reclaiming

void Store::set_now(std::uint64_t ticks) noexcept {
  now_ = std::max(now_, ticks);
  Epoch& open = epochs_[open_epoch_];
  if (open.empty()) {
    opened_ticks_ = now_;
    return;
  }
  if (now_ - opened_ticks_ < grace_ticks_ / kEpochsPerGrace) return;
  const std::size_t next = (open_epoch_ + 1) % kEpochs;
  (void)oldest();  // Drops empty ones.
  // With all epochs taken (what has rested is freed too slowly) the open one stays open: it rests longer, never less.
  if (next == first_epoch_) return;
  open.closed_ticks = now_;  // Everything in it was freed before this reading of the clock.
  open_epoch_ = next;
  opened_ticks_ = now_;
}

// The oldest epoch with items in it, dropping empty ones before it; the open one at last.
Store::Epoch* Store::oldest() noexcept {
  while (first_epoch_ != open_epoch_ && epochs_[first_epoch_].empty()) first_epoch_ = (first_epoch_ + 1) % kEpochs;
  return &epochs_[first_epoch_];
}

bool Store::has_rested(const Epoch& epoch) const noexcept {
  return &epoch != &epochs_[open_epoch_] && now_ - epoch.closed_ticks >= grace_ticks_;
}

void Store::retire(std::uint64_t item) noexcept {
  ItemHeader& old = header(item);
  const std::uint64_t lent = old.state >> 8;
  // now_ is not later than the true time: an item counts as lent for longer, never shorter.
  const bool is_lent = lent != 0 && stamp(now_) <= lent + (grace_ticks_ >> kStampShift) + 1;
  if (!is_lent && !is_inline(old.value_length)) {
    // Nobody holds its location, and its block is still in this core's cache: the next value goes there at once.
    std::atomic_ref(old.state).store(word(ItemState::kSuperseded, 0), std::memory_order_release);
    return release(item);
  }
  Epoch& open = epochs_[open_epoch_];
  std::uint64_t& chain = is_lent ? open.lent : open.private_;
  std::atomic_ref(old.state).store(word(ItemState::kSuperseded, chain), std::memory_order_release);
  chain = item / host::SlabPool::kMinBlockBytes;
  private_blocks_ += is_lent ? 0 : 1;
  resting_bytes_ += pool_.block_bytes(item) + (is_inline(old.value_length) ? 0 : pool_.block_bytes(old.value_offset));
}

void Store::release(std::uint64_t item) noexcept {
  const ItemHeader& gone = header(item);
  if (!is_inline(gone.value_length)) VERBENA_CHECK(pool_.free(gone.value_offset) == Status::kOk);
  VERBENA_CHECK(pool_.free(item) == Status::kOk);
}

// Frees the front of a chain that is not empty.
void Store::pop(std::uint64_t& chain) noexcept {
  const std::uint64_t item = chain * host::SlabPool::kMinBlockBytes;
  const ItemHeader& gone = header(item);
  chain = gone.state >> 8;
  // The next one that is freed here went cold while it rested, and is likely to be written as soon as it is free.
  if (chain != kNone) {
    const std::byte* const next = pool_.at(chain * host::SlabPool::kMinBlockBytes);
    __builtin_prefetch(next, 1);
    __builtin_prefetch(next + host::SlabPool::kMinBlockBytes, 1);
  }
  resting_bytes_ -= pool_.block_bytes(item) + (is_inline(gone.value_length) ? 0 : pool_.block_bytes(gone.value_offset));
  release(item);
}

void Store::reclaim(unsigned blocks) noexcept {
  for (; blocks != 0 && resting_bytes_ != 0; --blocks) {
    Epoch* epoch = oldest();
    if (!has_rested(*epoch) || epoch->empty()) return;
    if (epoch->private_ != kNone) {
      pop(epoch->private_);
      --private_blocks_;
    } else {
      pop(epoch->lent);
    }
  }
}

// Frees a batch of what may be freed now: what has rested, else the oldest that nobody can be reading.
bool Store::make_room() noexcept {
  constexpr unsigned kBatch = 64;
  const std::uint64_t before = resting_bytes_;
  reclaim(kBatch);
  if (resting_bytes_ != before) return true;
  unsigned left = kBatch;
  for (std::size_t at = first_epoch_; private_blocks_ != 0 && left != 0; at = (at + 1) % kEpochs) {
    for (; epochs_[at].private_ != kNone && left != 0; --left) {
      pop(epochs_[at].private_);
      --private_blocks_;
    }
    if (at == open_epoch_) break;
  }
  return resting_bytes_ != before;
}

std::uint64_t Store::allocate(std::size_t bytes) noexcept {
  for (;;) {  // Bounded: each round frees at least one resting item.
    const std::uint64_t offset = pool_.allocate(bytes);
    if (offset != host::SlabPool::kNoOffset || !make_room()) return offset;
  }
}

StoreStatistics Store::statistics() const noexcept {
  const host::SlabStatistics pool = pool_.statistics();
  return {.items = items_,
          .used_bytes = pool.used_bytes - resting_bytes_,
          .resting_bytes = resting_bytes_,
          .capacity_bytes = pool.capacity_bytes,
          .max_items = max_items_,
          .index_entries = index_.size()};
}

void Store::add_memory(ServerStatistics& sum) const noexcept {
  const std::size_t classes = std::min<std::size_t>(pool_.classes(), kMemoryClasses);
  for (unsigned i = 0; i < classes; ++i) {
    const host::SlabClass blocks = pool_.class_of(i);
    sum.memory[i].used += blocks.used;
    sum.memory[i].free += blocks.free;
  }
}

}  // namespace verbena::kv
