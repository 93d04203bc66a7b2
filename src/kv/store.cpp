#include "kv/store.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/fences.hpp"
#include "base/simulation.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace verbena::kv {
namespace {

// The second word of a large item. While live: when its location was last sent to a client, in units of 2^kStampShift
// ticks and rounded up, so never too early; 0: never. Once superseded: the next item of its epoch's chain.
constexpr unsigned kStampShift = 16;

constexpr std::uint64_t stamp(std::uint64_t ticks) noexcept { return (ticks >> kStampShift) + 1; }

// Orders the owner's earlier stores before this one, for READs by clients' NICs.
void store_word(std::uint64_t& word, std::uint64_t value) noexcept {
  std::atomic_ref(word).store(value, std::memory_order_release);
  simulation::step();
}

bool is_good(Key key) noexcept { return !key.empty() && key.size() <= kMaxKeyBytes; }

static_assert(host::BlockSizes::kUnit == kLineBytes, "an entry names a block by its line");
static_assert((kMaxItemBytes + kLineBytes - 1) / kLineBytes < 1u << Entry::kLinesBits);

}  // namespace

Result<std::unique_ptr<Store>> Store::create(const StoreOptions& options) {
  VERBENA_CHECK(options.max_items != 0 && options.max_items <= kMaxItems);
  const std::size_t index = index_bytes(buckets_for(options.max_items));
  VERBENA_CHECK(options.window.size() > index && options.window.size() <= kMaxWindowBytes);
  VERBENA_ASSIGN(auto pool, host::BlockPool::create(options.window.subspan(index)));
  return std::unique_ptr<Store>(new Store(options, std::move(pool)));
}

host::Footprint Store::footprint(std::size_t memory_bytes, Owners owners) {
  host::Footprint pools;
  pools.add({.name = "store", .bytes_each = sizeof(Store)});
  pools.add({.name = "block pool's bookkeeping", .bytes_each = host::BlockPool::bookkeeping_bytes(memory_bytes)});
  if (owners == Owners::kYes)
    pools.add({.name = "owners of items", .count = memory_bytes / kLineBytes, .bytes_each = sizeof(Owner)});
  return pools;
}

Store::Store(const StoreOptions& options, host::BlockPool pool) noexcept
    : options_(options),
      index_(reinterpret_cast<Bucket*>(options.window.data()), buckets_for(options.max_items)),
      items_at_(index_bytes(index_.size())),
      pool_(std::move(pool)),
      owners_(options.accounts.empty() ? 0 : (options.window.size() - items_at_) / kLineBytes, kNoOwner) {
  std::ranges::fill(index_, Bucket{});
}

// --- items, by their offset in the pool

ItemHeader& Store::header(std::uint64_t item) const noexcept { return *reinterpret_cast<ItemHeader*>(pool_.at(item)); }

ItemShape Store::shape(std::uint64_t item) const noexcept { return ItemShape::unpack(header(item).shape); }

ValuePlace& Store::place_of(std::uint64_t item) const noexcept {
  return *reinterpret_cast<ValuePlace*>(pool_.at(item) + shape(item).tail_offset());
}

std::uint64_t Store::value_block(std::uint64_t item) const noexcept { return place_of(item).offset - items_at_; }

Key Store::key_at(std::uint64_t item) const noexcept {
  return {pool_.at(item) + sizeof(ItemHeader), shape(item).key_length};
}

std::uint64_t Store::entry_for(std::uint64_t item, std::uint64_t hash) const noexcept {
  return Entry{.tag = tag_of(hash), .lines = shape(item).lines(), .line = (items_at_ + item) / kLineBytes}.pack();
}

std::uint64_t Store::item_of(std::uint64_t entry) const noexcept { return Entry::unpack(entry).offset() - items_at_; }

std::uint64_t& Store::until_of(std::uint64_t item) const noexcept {
  return *reinterpret_cast<std::uint64_t*>(pool_.at(item) + shape(item).tail_offset() - sizeof(std::uint64_t));
}

bool Store::has_expired(std::uint64_t item) const noexcept {
  if ((shape(item).flags & kExpires) == 0) [[likely]]
    return false;
  return until_of(item) <= clock_ns();
}

// --- index

std::uint64_t* Store::locate(Key key, std::uint64_t hash) const noexcept {
  const std::uint32_t tag = tag_of(hash);
  const std::uint64_t first = first_bucket(hash, index_.size());
  const std::uint64_t second = other_bucket(first, tag, index_.size());
  __builtin_prefetch(&index_[second]);
  for (const std::uint64_t bucket : {first, second}) {
    for (std::uint64_t& word : index_[bucket]) {
      if (tag_of_entry(word) != tag || word == 0) continue;
      const Key found = key_at(item_of(word));
      if (found.size() == key.size() && std::memcmp(found.data(), key.data(), key.size()) == 0) return &word;
    }
  }
  return nullptr;
}

std::uint64_t* Store::locate_live(Key key, std::uint64_t hash) noexcept {
  std::uint64_t* const entry = locate(key, hash);
  if (entry == nullptr || !has_expired(item_of(*entry))) [[likely]]
    return entry;
  expire(*entry);
  return nullptr;
}

void Store::remove(std::uint64_t& entry) noexcept {
  retire(item_of(entry));
  store_word(entry, 0);
  fences::unindexed_before_reuse();
  --items_;
}

void Store::expire(std::uint64_t& entry) noexcept {
  remove(entry);
  ++expired_;
}

// --- eviction

void Store::mark(std::uint64_t hash) noexcept {
  if (options_.marks.empty()) [[likely]]
    return;
  const std::uint64_t at = mark_of(first_bucket(hash, index_.size()), tag_of(hash), index_.size());
  std::atomic_ref(reinterpret_cast<std::uint8_t&>(options_.marks[at])).store(1, std::memory_order_relaxed);
}

bool Store::may_evict(std::uint64_t item) const noexcept {
  const ItemShape there = shape(item);
  return (there.flags & kCell) == 0 && (there.is_inline() || !is_lent(header(item)));
}

// A mark that a client sets while it is taken is lost, or stays for the next round: no matter which.
bool Store::evict() noexcept {
  unsigned passed = 0;
  for (unsigned buckets = 0; can_evict() && buckets < kMostBucketsPassed && passed < kMostPassed;) {
    std::uint64_t& word = index_[hand_.bucket][hand_.slot];
    const std::uint64_t at = mark_of(hand_.bucket, tag_of_entry(word), index_.size());
    if (++hand_.slot == kBucketEntries) {
      hand_ = {.bucket = (hand_.bucket + 1) % index_.size(), .slot = 0, .idle = hand_.idle + 1};
      ++buckets;
    }
    if (word == 0) continue;
    ++passed;
    std::atomic_ref<std::uint8_t> mark(reinterpret_cast<std::uint8_t&>(options_.marks[at]));
    if (mark.load(std::memory_order_relaxed) != 0) {
      mark.store(0, std::memory_order_relaxed);
      hand_.idle = 0;
      continue;
    }
    if (!may_evict(item_of(word))) continue;
    hand_.idle = 0;
    ++evicted_;
    remove(word);
    // Who is next went cold.
    if (const std::uint64_t next = index_[hand_.bucket][hand_.slot]; next != 0)
      __builtin_prefetch(pool_.at(item_of(next)), 1);
    return true;
  }
  return false;
}

// --- places in the index

std::uint64_t* Store::empty_in(std::uint64_t bucket) const noexcept {
  for (std::uint64_t& word : index_[bucket])
    if (word == 0) return &word;
  return nullptr;
}

// An empty place for a key with this hash, or null.
std::uint64_t* Store::place_for(std::uint64_t hash) noexcept {
  const std::uint64_t first = first_bucket(hash, index_.size());
  const std::uint64_t second = other_bucket(first, tag_of(hash), index_.size());
  // Prefers the first bucket: a lookup that goes from bucket to bucket ends there.
  if (std::uint64_t* const empty = empty_in(first)) return empty;
  if (std::uint64_t* const empty = empty_in(second)) return empty;
  return make_way(first, second);
}

// Breadth first: the path is the shortest, so few entries move, and it has no bucket twice (the search saw what a
// bucket leads to at its first visit). So each entry is still where the search saw it when its turn comes.
std::uint64_t* Store::make_way(std::uint64_t first, std::uint64_t second) noexcept {
  constexpr unsigned kRoot = ~0u;
  struct Node {
    std::uint64_t bucket;
    unsigned parent;
    unsigned slot;  // In the parent's bucket: the entry that would move here.
  };
  std::array<Node, kMostVisited> nodes;
  nodes[0] = {first, kRoot, 0};
  nodes[1] = {second, kRoot, 0};
  unsigned count = 2;
  // Stores the copy before the next move overwrites the original: a reader that looks at both buckets once the copy is
  // stored finds the entry.
  const auto move_along = [&](unsigned at, unsigned slot, std::uint64_t* empty) {
    for (; at != kRoot; slot = nodes[at].slot, at = nodes[at].parent) {
      std::uint64_t& moved = index_[nodes[at].bucket][slot];
      store_word(*empty, moved);
      note_move(empty);
      empty = &moved;
    }
    store_word(*empty, 0);
    sweep_.has_moved = true;
    return empty;
  };
  for (unsigned at = 0; at < count; ++at) {
    for (unsigned slot = 0; slot < kBucketEntries; ++slot) {
      const std::uint64_t from = nodes[at].bucket;
      const std::uint64_t to = other_bucket(from, tag_of_entry(index_[from][slot]), index_.size());
      if (std::uint64_t* const empty = empty_in(to)) return move_along(at, slot, empty);
      if (count < kMostVisited) nodes[count++] = {to, at, slot};
    }
  }
  return nullptr;
}

// --- operations

Store::Found Store::find(Key key) noexcept {
  const std::uint64_t hash = hash_of(key, options_.hash_seed);
  const std::uint64_t* const entry = locate_live(key, hash);
  if (entry == nullptr) return {};
  mark(hash);
  const std::uint64_t item = item_of(*entry);
  const ItemShape found = shape(item);
  const auto length = static_cast<std::size_t>(found.value_length);
  const Status status = (found.flags & kCell) != 0 ? Status::kWrongKind : Status::kOk;
  const std::uint64_t until = (found.flags & kExpires) != 0 ? until_of(item) : 0;
  if (found.is_inline())
    return {status, version_at(item), {pool_.at(item) + found.tail_offset(), length}, *entry, 0, until};
  const ValuePlace& place = place_of(item);
  return {status, version_at(item), {options_.window.data() + place.offset, length}, *entry, place.checksum, until};
}

void Store::lend(const Found& found, std::uint64_t now) noexcept {
  std::uint64_t& lent = header(item_of(found.entry)).server;
  if (lent != stamp(now)) std::atomic_ref(lent).store(stamp(now), std::memory_order_relaxed);
}

Store::Change Store::check(const std::uint64_t* entry, std::uint64_t expected) const noexcept {
  if (entry == nullptr) return {expected == 0 || expected == kAnyVersion ? Status::kOk : Status::kNotFound, 0, 0};
  const std::uint64_t item = item_of(*entry);
  if ((shape(item).flags & kCell) != 0) return {Status::kWrongKind, 0, 0};
  if (expected == kAnyVersion) return {};
  const std::uint64_t version = version_at(item);
  return {version == expected ? Status::kOk : Status::kVersionMismatch, version, 0};
}

Store::Change Store::put(Key key, std::span<const std::byte> value, std::uint64_t expected, unsigned flags, Owner owner,
                         std::uint64_t ttl_ns) noexcept {
  Pending pending;
  const Change reserved = reserve(key, value.size(), expected, pending, flags, owner, ttl_ns);
  if (is_for_memory(reserved.status)) [[unlikely]]
    return overwrite(key, value, expected, owner, ttl_ns, reserved);
  if (reserved.status != Status::kOk) return reserved;
  if (!value.empty()) std::memcpy(pending.value.data(), value.data(), value.size());
  return commit(pending, expected);
}

// Makes the checks that need no value. Hashes the key.
Store::Change Store::look(Key key, std::uint64_t value_length, std::uint64_t expected, Pending& pending) noexcept {
  if (!is_good(key)) return {Status::kBadKey, 0, 0};
  if (value_length > options_.max_value_bytes) return {Status::kTooLong, 0, 0};
  reclaim(kReclaimPerOperation);
  pending.hash = hash_of(key, options_.hash_seed);
  if (items_ == options_.max_items) [[unlikely]]
    (void)sweep(kMostSwept);
  const bool is_full = items_ == options_.max_items;
  if (expected == kAnyVersion && !is_full) {
    __builtin_prefetch(&index_[first_bucket(pending.hash, index_.size())]);  // `publish` looks there.
    return {};
  }
  const std::uint64_t* const entry = locate_live(key, pending.hash);
  const Change checked = check(entry, expected);
  if (checked.status == Status::kOk && entry == nullptr && is_full && !evict())
    return {can_evict() ? Status::kAgain : Status::kIndexFull, 0, 0};
  return {checked.status, checked.status == Status::kOk ? 0 : checked.version, 0};
}

Store::Change Store::reserve(Key key, std::uint64_t value_length, std::uint64_t expected, Pending& pending,
                             unsigned flags, Owner owner, std::uint64_t ttl_ns) noexcept {
  const Change looked = look(key, value_length, expected, pending);
  if (looked.status != Status::kOk) return looked;
  // Before the store is asked for memory: a request beyond its quota must evict nothing.
  if (owner != kNoOwner && is_beyond_quota(key, pending.hash, owner, value_length)) [[unlikely]]
    return {Status::kOverQuota, 0, 0, Quota::kMemory};
  const ItemShape made{.value_length = value_length, .key_length = key.size(), .flags = flags};
  std::uint64_t block = host::BlockPool::kNoOffset;
  if (!made.is_inline()) {
    block = allocate(value_length);
    if (block == host::BlockPool::kNoOffset) return no_memory(static_cast<std::size_t>(value_length));
  }
  if (!build(key, made, block, ttl_ns, pending)) {
    if (!made.is_inline()) VERBENA_CHECK(pool_.free(block) == Status::kOk);
    return no_memory(made.bytes());
  }
  if (owner == kNoOwner) [[likely]]
    return {};
  const Quota quota = charge(pending, owner);
  if (quota == Quota::kNone) return {};
  abandon(pending);
  return {Status::kOverQuota, 0, 0, quota};
}

bool Store::build(Key key, ItemShape made, std::uint64_t value_block, std::uint64_t ttl_ns, Pending& pending) noexcept {
  if (!made.is_inline() && options_.checksum_large_values) made.flags |= kHasValueChecksum;
  const std::uint64_t item = allocate(made.bytes());
  if (item == host::BlockPool::kNoOffset) return false;
  ItemHeader& header_made = header(item);
  store_word(header_made.state, state_word(ItemState::kBuilding, 0));
  header_made.server = 0;
  header_made.shape = made.pack();
  pending.item = item;
  std::byte* const at = pool_.at(item);
  // The end of the key's last word.
  std::memset(at + made.tail_offset() - (made.flags & kExpires) - 8, 0, 8);
  std::memcpy(at + sizeof(ItemHeader), key.data(), key.size());
  if ((made.flags & kExpires) != 0) [[unlikely]]
    until_of(item) = ttl_ns;
  simulation::step();
  const auto length = static_cast<std::size_t>(made.value_length);
  if (made.is_inline()) {
    pending.value = {at + made.tail_offset(), length};
  } else {
    place_of(item) = {.offset = items_at_ + value_block, .checksum = 0};
    pending.value = {pool_.at(value_block), length};
  }
  return true;
}

Store::Change Store::commit(Pending& pending, std::uint64_t expected) noexcept {
  VERBENA_DCHECK(pending);
  const Change change = publish(pending, expected);
  if (change.status == Status::kOk) {
    pending = Pending{};
  } else {
    abandon(pending);
  }
  return change;
}

// The only place where a value becomes a key's. On failure the item stays as it was.
Store::Change Store::publish(const Pending& pending, std::uint64_t expected) noexcept {
  const std::uint64_t item = pending.item;
  std::uint64_t* entry = locate_live(key_at(item), pending.hash);
  if (const Change checked = check(entry, expected); checked.status != Status::kOk) return checked;
  const bool is_new = entry == nullptr;
  if (is_new && (items_ == options_.max_items || (entry = place_for(pending.hash)) == nullptr))
    return {Status::kIndexFull, 0, 0};
  const std::uint64_t version = draw_version();
  if (version == 0) return {Status::kLimit, 0, 0};
  return make_live(pending, entry, is_new, version);
}

Store::Change Store::make_live(const Pending& pending, std::uint64_t* entry, bool is_new,
                               std::uint64_t version) noexcept {
  const std::uint64_t item = pending.item;
  seal(item, version);
  const std::uint64_t word = entry_for(item, pending.hash);
  // Supersedes the old item before the new one is live. Otherwise a reader that remembers the new item's block could
  // take the new value there while another reader still takes the old value elsewhere. Both stores come before the
  // index changes and before the client gets its reply: nobody takes the old value after an acknowledged change.
  if (!is_new) retire(item_of(*entry));
  store_word(header(item).state, state_word(ItemState::kLive, version));
  store_word(*entry, word);
  if (!is_new) fences::unindexed_before_reuse();
  items_ += is_new ? 1u : 0u;
  // A new key has to be used again to be worth as much as those that were.
  if (!is_new) mark(pending.hash);
  if ((shape(item).flags & kCell) != 0) [[unlikely]]
    pinned_bytes_ += bytes_of(item);
  return {Status::kOk, version, word};
}

// In a full store: the new value in the blocks of the old one. Between the two nobody finds either. Who looks then asks
// by message, and is answered after this. `without` is what there is to say if it does not go.
[[gnu::cold]] Store::Change Store::overwrite(Key key, std::span<const std::byte> value, std::uint64_t expected,
                                             Owner owner, std::uint64_t ttl_ns, const Change& without) noexcept {
  Pending pending;
  pending.hash = hash_of(key, options_.hash_seed);
  std::uint64_t* const entry = locate(key, pending.hash);
  if (entry != nullptr && has_expired(item_of(*entry))) {  // Its memory is free then, and the key is not there.
    expire(*entry);
    return put(key, value, expected, owner, ttl_ns);
  }
  const ItemShape made{.value_length = value.size(), .key_length = key.size(), .flags = flags_for(ttl_ns)};
  if (entry == nullptr || !fits_over(item_of(*entry), made)) return without;
  if (const Change checked = check(entry, expected); checked.status != Status::kOk) return checked;
  const std::uint64_t bytes = host::BlockSizes::block_bytes_for(made.bytes()) +
                              (made.is_inline() ? 0 : host::BlockSizes::block_bytes_for(value.size()));
  const Quota quota = owner == kNoOwner ? Quota::kNone : charge(owner, bytes, entry);
  if (quota != Quota::kNone) return {Status::kOverQuota, 0, 0, quota};
  // Before the old value goes: with none left it stays.
  const std::uint64_t version = draw_version();
  if (version == 0) {
    if (owner != kNoOwner) options_.accounts[owner - 1].give_back({.bytes = bytes, .items = 1});
    return {Status::kLimit, 0, 0};
  }
  remove(*entry);
  const std::uint64_t block =
      made.is_inline() ? host::BlockPool::kNoOffset : pool_.allocate(static_cast<std::size_t>(value.size()));
  VERBENA_CHECK(made.is_inline() || block != host::BlockPool::kNoOffset);
  VERBENA_CHECK(build(key, made, block, ttl_ns, pending));
  if (owner != kNoOwner) owner_of(pending.item) = owner;
  if (!value.empty()) std::memcpy(pending.value.data(), value.data(), value.size());
  return make_live(pending, entry, true, version);
}

// Whether the item's blocks, once they are free, are enough for another one, wherever else there is memory.
bool Store::fits_over(std::uint64_t item, ItemShape made) const noexcept {
  using host::BlockSizes;
  const ItemShape old = shape(item);
  if (old.is_inline() != made.is_inline() || BlockSizes::block_bytes_for(made.bytes()) != pool_.block_bytes(item))
    return false;
  if (made.is_inline()) return true;
  const std::uint64_t had = pool_.block_bytes(value_block(item));
  const std::uint64_t needed = BlockSizes::block_bytes_for(made.value_length);
  const bool has_pages = had > BlockSizes::kMostSlabUnits * BlockSizes::kUnit;
  return !is_lent(header(item)) && (has_pages ? needed <= had : needed == had);
}

// 0: there is none left. The counter stops short of where it would come back to 1.
std::uint64_t Store::draw_version() noexcept {
  if (options_.versions->load(std::memory_order_relaxed) > kMaxVersion) return 0;
  const std::uint64_t version = options_.versions->fetch_add(1, std::memory_order_relaxed);
  return version <= kMaxVersion ? version : 0;
}

void Store::seal(std::uint64_t item, std::uint64_t version) noexcept {
  const ItemShape made = shape(item);
  if ((made.flags & kExpires) != 0) [[unlikely]] {
    std::uint64_t& until = until_of(item);
    until += clock_ns();
    earliest_ns_ = std::min(earliest_ns_, until);
    sweep_.earliest_ns = std::min(sweep_.earliest_ns, until);
  }
  if ((made.flags & kHasValueChecksum) != 0) {
    ValuePlace& place = place_of(item);
    place.checksum =
        checksum_of_value({options_.window.data() + place.offset, static_cast<std::size_t>(made.value_length)});
  }
  ItemHeader& sealed = header(item);
  sealed.checksum = checksum_of(pool_.at(item), made.bytes(), version);
  simulation::step();
}

void Store::abandon(Pending& pending) noexcept {
  if (!pending) return;
  // It was never published, so nobody knows of it, and it needs no grace period.
  if (!owners_.empty()) [[unlikely]]
    discharge(pending.item);
  release(std::exchange(pending, Pending{}).item);
}

Store::Change Store::erase(Key key) noexcept {
  if (!is_good(key)) return {Status::kBadKey, 0, 0};
  reclaim(kReclaimPerOperation);
  std::uint64_t* const entry = locate_live(key, hash_of(key, options_.hash_seed));
  if (entry == nullptr) return {Status::kNotFound, 0, 0};
  if (const Change checked = check(entry, kAnyVersion); checked.status != Status::kOk) return checked;
  const std::uint64_t version = version_at(item_of(*entry));
  remove(*entry);
  return {Status::kOk, version, 0};
}

// --- owners

// The value that the key has now is given back when this replaces it, if it is the owner's own: so an item may be
// replaced by one as long where the quota is used up.
Quota Store::charge(const Pending& pending, Owner owner) noexcept {
  const Quota quota = charge(owner, bytes_of(pending.item), locate(key_at(pending.item), pending.hash));
  if (quota == Quota::kNone) owner_of(pending.item) = owner;
  return quota;
}

Quota Store::charge(Owner owner, std::uint64_t bytes, const std::uint64_t* replaced) noexcept {
  Account::Amount known;
  if (replaced != nullptr && owner_of(item_of(*replaced)) == owner)
    known = {.bytes = bytes_of(item_of(*replaced)), .items = 1};
  return options_.accounts[owner - 1].charge({.bytes = bytes, .items = 1}, known);
}

bool Store::is_beyond_quota(Key key, std::uint64_t hash, Owner owner, std::uint64_t value_length) noexcept {
  const Account& account = options_.accounts[owner - 1];
  const std::uint64_t* const entry = locate(key, hash);
  const bool is_own = entry != nullptr && owner_of(item_of(*entry)) == owner;
  const std::uint64_t replaced = is_own ? bytes_of(item_of(*entry)) : 0;
  const std::uint64_t all = account.used().bytes + value_length;
  return all > replaced && all - replaced > account.most().bytes;
}

// Call once, before the item's blocks are freed or wait out their grace period: blocks in it belong to nobody.
void Store::discharge(std::uint64_t item) noexcept {
  const Owner owner = std::exchange(owner_of(item), kNoOwner);
  if (owner != kNoOwner) options_.accounts[owner - 1].give_back({.bytes = bytes_of(item), .items = 1});
}

// --- memory: grace period, reclaiming

void Store::set_now(std::uint64_t ticks) noexcept {
  now_ = std::max(now_, ticks);
  Epoch& open = epochs_[open_epoch_];
  if (open.empty()) {
    opened_ticks_ = now_;
    return;
  }
  if (now_ - opened_ticks_ < options_.grace_ticks / kEpochsPerGrace) return;
  const std::size_t next = (open_epoch_ + 1) % kEpochs;
  (void)oldest();  // Drops empty ones.
  // If all epochs are in use (freeing is too slow) the open one stays open: its blocks wait longer, never less.
  if (next == first_epoch_) return;
  open.closed_ticks = now_;  // Everything in it was freed before this reading of the clock.
  open_epoch_ = next;
  opened_ticks_ = now_;
}

// The oldest epoch with items in it; drops empty ones before it. At last the open one.
Store::Epoch* Store::oldest() noexcept {
  while (first_epoch_ != open_epoch_ && epochs_[first_epoch_].empty()) first_epoch_ = (first_epoch_ + 1) % kEpochs;
  return &epochs_[first_epoch_];
}

bool Store::has_rested(const Epoch& epoch) const noexcept {
  return &epoch != &epochs_[open_epoch_] && now_ - epoch.closed_ticks >= options_.grace_ticks;
}

// Whether somebody may be READing the value, by what a message told him. now_ is not later than the true time: an item
// counts as lent for longer, never shorter.
bool Store::is_lent(const ItemHeader& old) const noexcept {
  return old.server != 0 && stamp(now_) <= old.server + (options_.grace_ticks >> kStampShift) + 1;
}

// Stores that an item is its key's no more, and frees its blocks: at once, when nobody can READ them by a location that
// he was told by message.
void Store::retire(std::uint64_t item) noexcept {
  if (!owners_.empty()) [[unlikely]]
    discharge(item);
  ItemHeader& old = header(item);
  const std::uint64_t superseded = state_word(ItemState::kSuperseded, version_at(item));
  // The block is still in this core's cache, and the next value goes there. A reader of it then finds another state, or
  // bytes that do not match the version's checksum.
  if (shape(item).is_inline()) {
    store_word(old.state, superseded);
    return release(item);
  }
  const bool may_be_read = is_lent(old);
  // A reader looks at this word again after it has the value. So it has to be there before anything is stored into the
  // value's block: on x86-64 by non-temporal stores too, which pass others, hence a locked instruction; elsewhere by
  // the fence.
  (void)std::atomic_ref(old.state).exchange(superseded, std::memory_order_seq_cst);
  simulation::step();
  fences::superseded_before_reuse();
  if (!may_be_read) return release(item);
  Epoch& open = epochs_[open_epoch_];
  std::atomic_ref(old.server).store(open.chain, std::memory_order_relaxed);
  open.chain = item / kLineBytes;
  resting_bytes_ += bytes_of(item);
}

void Store::release(std::uint64_t item) noexcept {
  if (!shape(item).is_inline()) VERBENA_CHECK(pool_.free(value_block(item)) == Status::kOk);
  VERBENA_CHECK(pool_.free(item) == Status::kOk);
}

// Bytes of all its blocks.
std::uint64_t Store::bytes_of(std::uint64_t item) const noexcept {
  return pool_.block_bytes(item) + (shape(item).is_inline() ? 0 : pool_.block_bytes(value_block(item)));
}

// Frees the front of a chain, which must not be empty.
void Store::pop(std::uint64_t& chain) noexcept {
  const std::uint64_t item = chain * kLineBytes;
  chain = header(item).server;
  // The next one to be freed went cold while it waited, and is likely to be written as soon as it is free.
  if (chain != kNone) {
    const std::byte* const next = pool_.at(chain * kLineBytes);
    __builtin_prefetch(next, 1);
    __builtin_prefetch(next + kLineBytes, 1);
  }
  resting_bytes_ -= bytes_of(item);
  release(item);
}

void Store::reclaim(unsigned blocks) noexcept {
  for (; blocks != 0 && resting_bytes_ != 0; --blocks) {
    Epoch* epoch = oldest();
    if (!has_rested(*epoch) || epoch->empty()) return;
    pop(epoch->chain);
  }
}

std::uint64_t Store::allocate(std::size_t bytes) noexcept {
  constexpr unsigned kBatch = 64;
  constexpr unsigned kSweptAtOnce = 8;
  unsigned cleared = 0, swept = 0;
  std::size_t evicted = 0;
  for (unsigned freed = 0;;) {
    const std::uint64_t offset = pool_.allocate(bytes);
    if (offset != host::BlockPool::kNoOffset) [[likely]]
      return offset;
    if (freed != kMostReclaimed) {
      const std::uint64_t before = resting_bytes_;
      reclaim(kBatch);
      freed = resting_bytes_ == before ? kMostReclaimed : freed + kBatch;
      continue;
    }
    if (swept != kMostSwept && sweep(kSweptAtOnce)) {
      swept += kSweptAtOnce;
      continue;
    }
    const auto evicts = [&] {
      const bool is_over = evicted == kMostEvicted + bytes / kEvictedBytes;
      return !is_over && evicting_helps(bytes) && evict() && ++evicted != 0;
    };
    const bool may_clear = cleared != kMostCleared && pool_.capacity_bytes() - pool_.used_bytes() >= bytes;
    // A slab is cleared after some evictions only: where sizes are alike, the first one is enough.
    if ((!may_clear || evicted < kEvictedPerSlab * (cleared + 1)) && evicts()) continue;
    if (may_clear && clear_slab()) {
      ++cleared;
      continue;
    }
    if (!evicts()) return offset;
  }
  static_assert(kMostReclaimed % kBatch == 0 && kMostSwept % kSweptAtOnce == 0);
}

bool Store::sweep(unsigned buckets) noexcept {
  if (earliest_ns_ == kNever || earliest_ns_ > clock_ns()) return false;
  for (; buckets != 0; --buckets) {
    for (std::uint64_t& word : index_[sweep_.bucket]) {
      if (word == 0 || (shape(item_of(word)).flags & kExpires) == 0) continue;
      if (has_expired(item_of(word))) {
        expire(word);
      } else {
        sweep_.earliest_ns = std::min(sweep_.earliest_ns, until_of(item_of(word)));
      }
    }
    if (++sweep_.bucket != index_.size()) continue;
    const Sweep ended = std::exchange(sweep_, {});
    earliest_ns_ = ended.has_moved ? 0 : ended.earliest_ns;
    return true;
  }
  return true;
}

// Frees the pages of a slab whose class has others with room for its items. It stays where the place of an item is
// known to somebody else than the index; the next try is at another one. False: there is none.
bool Store::clear_slab() noexcept {
  const auto clearing = pool_.begin_clearing(kMostMovedBytes);
  if (!clearing) return false;
  for (std::uint64_t left = clearing->live; left != 0; left &= left - 1) {
    const auto block = static_cast<unsigned>(std::countr_zero(left));
    if (!move(clearing->offset + block * clearing->block_bytes)) break;
  }
  (void)pool_.end_clearing(*clearing);
  return true;
}

// Gives an item another block of its class. The version stays, so the two are never live at one time; and the value of
// a large one stays where it is.
bool Store::move(std::uint64_t item) noexcept {
  ItemHeader& old = header(item);
  if (state_of(old.state) != ItemState::kLive) return false;
  const std::uint64_t hash = hash_of(key_at(item), options_.hash_seed);
  std::uint64_t* const entry = locate(key_at(item), hash);
  if (entry == nullptr || item_of(*entry) != item) return false;
  const std::size_t bytes = shape(item).bytes();
  const std::uint64_t to = pool_.allocate(pool_.block_bytes(item));
  if (to == host::BlockPool::kNoOffset) return false;
  const std::uint64_t version = version_at(item);
  store_word(header(to).state, state_word(ItemState::kBuilding, 0));
  constexpr std::size_t kFrom = sizeof(std::uint64_t);
  std::memcpy(pool_.at(to) + kFrom, pool_.at(item) + kFrom, bytes - kFrom);
  simulation::step();
  if (!owners_.empty()) owner_of(to) = std::exchange(owner_of(item), kNoOwner);
  store_word(old.state, state_word(ItemState::kSuperseded, version));
  store_word(header(to).state, state_word(ItemState::kLive, version));
  store_word(*entry, entry_for(to, hash));
  fences::unindexed_before_reuse();
  VERBENA_CHECK(pool_.free(item) == Status::kOk);
  return true;
}

// Why `allocate` found none: there is none, or the memory whose grace period was over was not enough, or there may be
// more items whose time is over, or to be evicted.
Store::Change Store::no_memory(std::size_t bytes) noexcept {
  const Epoch& epoch = *oldest();
  const bool has_more = (has_rested(epoch) && !epoch.empty()) || sweep(0) || evicting_helps(bytes);
  return {has_more ? Status::kAgain : Status::kStoreFull, 0, 0};
}

StoreStatistics Store::statistics() const noexcept {
  return {.items = items_,
          .used_bytes = pool_.used_bytes() - resting_bytes_,
          .resting_bytes = resting_bytes_,
          .capacity_bytes = pool_.capacity_bytes(),
          .max_items = options_.max_items,
          .index_entries = index_.size() * kBucketEntries,
          .expired = expired_,
          .evicted = evicted_};
}

void Store::add_memory(ServerStatistics& sum) const noexcept {
  const std::size_t classes = std::min<std::size_t>(pool_.classes(), kMemoryClasses);
  for (unsigned i = 0; i < classes; ++i) {
    const SlabClass blocks = pool_.class_of(i);
    sum.memory[i].used += blocks.used;
    sum.memory[i].used_bytes += blocks.used_bytes;
    sum.memory[i].free += blocks.free;
    sum.memory[i].free_bytes += blocks.free_bytes;
  }
}

// --- scans, step by step

template <class Visit>
Store::Scanned Store::step(Key prefix, ScanPlace from, Visit&& visit) const noexcept {
  Scanned done{.next = from};
  ScanPlace& next = done.next;
  // At the start there is nothing behind it that an entry could move to.
  if (next.place == 0 || moves_ - next.moves > kMovesKept) next = {.place = 0, .moves = moves_};
  unsigned looked = 0;
  const auto look = [&](std::uint64_t place) {
    std::uint64_t& word = word_at(place);
    if (word == 0) return true;
    ++looked;
    if (has_expired(item_of(word))) return true;
    const Key key = key_at(item_of(word));
    const bool begins = key.size() >= prefix.size() && std::ranges::equal(key.first(prefix.size()), prefix);
    return !begins || visit(word, key);
  };
  // Wherever the entry came from. One that moved twice is found in its last place.
  for (; next.moves != moves_; ++next.moves) {
    const std::uint64_t place = moved_to_[next.moves % kMovesKept];
    if (looked == kMostScanned || (place < next.place && !look(place))) return done;
  }
  const std::uint64_t places = index_.size() * kBucketEntries;
  const std::uint64_t end = std::min(next.place + kMostPlaces, places);
  for (; next.place != end && looked != kMostScanned; ++next.place)
    if (!look(next.place)) return done;
  done.is_over = next.place == places;
  return done;
}

Store::Scanned Store::list(Key prefix, ScanPlace from, std::span<std::byte> out) const noexcept {
  std::uint32_t keys = 0;
  std::size_t used = 0;
  Scanned done = step(prefix, from, [&](std::uint64_t, Key key) {
    const auto length = static_cast<std::uint16_t>(key.size());
    if (sizeof length + key.size() > out.size() - used) return false;
    std::memcpy(out.data() + used, &length, sizeof length);
    std::memcpy(out.data() + used + sizeof length, key.data(), key.size());
    used += sizeof length + key.size();
    ++keys;
    return true;
  });
  done.keys = keys;
  done.bytes = used;
  return done;
}

Store::Scanned Store::flush(Key prefix, ScanPlace from) noexcept {
  std::uint32_t keys = 0;
  Scanned done = step(prefix, from, [&](std::uint64_t& word, Key) {
    if ((shape(item_of(word)).flags & kCell) != 0) return true;
    remove(word);
    ++keys;
    return true;
  });
  done.keys = keys;
  return done;
}

// Call when an entry's copy is in its new place.
void Store::note_move(const std::uint64_t* to) noexcept {
  moved_to_[moves_++ % kMovesKept] = static_cast<std::uint64_t>(to - index_.data()->data());
}

}  // namespace verbena::kv
