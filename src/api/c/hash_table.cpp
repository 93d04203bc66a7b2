// The functions of verbena/compat/hash_table.h, over one store in memory of a pool.
#include <verbena/compat/hash_table.h>

#include "api/c/arguments.hpp"
#include "api/c/kv.hpp"
#include "api/c/memory_pool.hpp"
#include "base/random.hpp"
#include "base/threads.hpp"
#include "base/ticks.hpp"
#include "kv/item.hpp"
#include "kv/store.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>

/// Any thread: each call holds the mutex while it runs.
struct verbena_hash_table {
  verbena::Mutex mutex;
  memory_pool_t* pool = nullptr;
  std::span<std::byte> block;  ///< A piece of the pool.
  std::uint64_t seed = verbena::random_word();
  std::atomic<std::uint64_t> versions{1};
  std::unique_ptr<verbena::kv::Store> store;
  std::uint64_t gets = 0, puts = 0, deletes = 0, compare_and_swaps = 0;
};

namespace verbena::api::c {
namespace {

/// Bytes of the version in front of each value.
constexpr std::size_t kCountBytes = 8;
constexpr std::size_t kLeastTableBytes = std::size_t{1} << 20;
/// The store has nothing that waits out a grace period: readers look at an item's state again.
constexpr std::chrono::milliseconds kGrace{1};

/// A value, and the version in front of it.
struct Counted {
  Status status = Status::kNotFound;
  std::uint64_t count = 0;
  std::uint64_t version = 0;  ///< The store's own.
  std::span<const std::byte> value;
};

Counted find(const verbena_hash_table& table, kv::Key key) noexcept {
  const kv::Store::Found found = table.store->find(key);
  if (found.status != Status::kOk) return {.status = found.status};
  Counted counted{.status = Status::kOk, .version = found.version, .value = found.value.subspan(kCountBytes)};
  std::memcpy(&counted.count, found.value.data(), kCountBytes);
  return counted;
}

/// Stores the value with the next count. The mutex is held.
kv_result_t store(verbena_hash_table& table, const char* call, kv::Key key, const Counted& old,
                  std::span<const std::byte> value) noexcept {
  const bool is_new = old.status != Status::kOk;
  const std::uint64_t count = is_new ? 1 : old.count + 1, expected = is_new ? 0 : old.version;
  table.store->set_now(ticks_now());
  kv::Store::Pending pending;
  kv::Store::Change change = table.store->reserve(key, kCountBytes + value.size(), expected, pending);
  if (change.status == Status::kOk) {
    std::memcpy(pending.value.data(), &count, kCountBytes);
    std::ranges::copy(value, pending.value.begin() + kCountBytes);
    change = table.store->commit(pending, expected);
  }
  if (change.status != Status::kOk) return {.status = tell(change.status, call)};
  return {.status = KV_OK, .version = count};
}

/// The largest piece that a new table may take: half of the largest free one, so that others fit beside it. Allocates
/// that for a moment, because only an allocation merges free pieces.
std::span<std::byte> take_half(SlabManager& slabs) noexcept {
  for (unsigned slab_class = slabs.classes(0); slab_class-- > 1;) {
    const std::span<std::byte> largest = slabs.allocate_class(0, slab_class);
    if (largest.empty()) continue;
    (void)slabs.free(0, largest.data());
    return slabs.allocate_class(0, slab_class - 1);
  }
  return {};
}

Result<void> set_up(verbena_hash_table& table, std::size_t keys) {
  table.block = take_half(table.pool->slabs);
  const std::size_t items = std::max(keys, table.block.size() / 128);
  const bool is_possible = table.block.size() >= kLeastTableBytes && items <= kv::kMaxItems;
  const std::size_t index = is_possible ? kv::index_bytes(kv::buckets_for(items)) : 0;
  if (!is_possible || index > table.block.size() / 2)
    return fail(Status::kNoMemory, "", 0,
                "the pool has no free piece of {} bytes for a table of {} keys: half of the largest has {}",
                std::max(2 * index, kLeastTableBytes), items, table.block.size());
  VERBENA_ASSIGN(table.store,
                 kv::Store::create({.window = table.block,
                                    .max_items = items,
                                    .max_value_bytes = kv::Store::longest_value(table.block.size() - index),
                                    .grace_ticks = ticks_in(kGrace),
                                    .hash_seed = table.seed,
                                    .versions = &table.versions,
                                    .accounts = {}}));
  return {};
}

kv_result_t refused() noexcept { return {.status = KV_ERR_BAD_ARGUMENT}; }

/// Copies a value to a caller, and tells its length. kBufferTooSmall.
Status give(std::span<const std::byte> value, void* buf, std::size_t* len) noexcept {
  const std::size_t capacity = std::exchange(*len, value.size());
  if (value.size() > capacity) return Status::kBufferTooSmall;
  std::ranges::copy(value, static_cast<std::byte*>(buf));
  return Status::kOk;
}

/// One get by READs. Everything that they bring is copied out of the scratch memory before it is looked at, because a
/// peer might write that.
class RemoteGet {
 public:
  RemoteGet(RdmaConn* conn, const hash_table_place_t& place, std::uint32_t rkey, const RdmaMemory& scratch, kv::Key key)
      : conn_(conn), place_(place), rkey_(rkey), scratch_(scratch), key_(key) {}

  /// What one attempt came to; kAgain: a change overtook it.
  [[nodiscard]] int attempt(void* buf, std::size_t* len, std::uint64_t* version) noexcept {
    const std::uint64_t hash = kv::hash_of(key_, place_.seed);
    const std::uint64_t first = kv::first_bucket(hash, place_.buckets);
    const std::uint64_t second = kv::other_bucket(first, kv::tag_of(hash), place_.buckets);
    // Twice, because an insertion may have moved the entry from the bucket that comes second to the first.
    for (const std::uint64_t bucket : {first, second, first, second}) {
      kv::Bucket words;
      if (const int code = read(bucket * sizeof words, std::as_writable_bytes(std::span(words))); code != RDMA_OK)
        return code;
      for (std::size_t slot = 0; slot < words.size(); ++slot) {
        const std::uint64_t word = words[slot];
        if (word == 0 || kv::tag_of_entry(word) != kv::tag_of(hash)) continue;
        const kv::Entry entry = kv::Entry::unpack(word);
        int code = take(entry, buf, len, version);
        if (code == kOtherKey) code = confirm(bucket * sizeof words + slot * sizeof word, word, entry);
        if (code != kOtherKey) return code;
      }
    }
    return KV_ERR_NOT_FOUND;
  }

 private:
  static constexpr int kOtherKey = 1;

  /// READs `to` from the table, as far as it is inside.
  [[nodiscard]] int read(std::uint64_t offset, std::span<std::byte> to) noexcept {
    for (std::size_t done = 0; done < to.size();) {
      const std::size_t bytes = std::min<std::size_t>(to.size() - done, HASH_TABLE_SCRATCH_BYTES);
      const int code = rdmaSyncReadSignaled(conn_, reinterpret_cast<std::uintptr_t>(scratch_.addr), scratch_.lkey,
                                            place_.address + offset + done, rkey_, static_cast<std::uint32_t>(bytes));
      if (code != RDMA_OK) return code;
      std::memcpy(to.data() + done, scratch_.addr, bytes);
      done += bytes;
    }
    return RDMA_OK;
  }

  [[nodiscard]] int take(const kv::Entry& entry, void* buf, std::size_t* len, std::uint64_t* version) noexcept {
    std::array<std::byte, kv::kMaxItemBytes + kv::kLineBytes> item;
    if (!entry.is_inside(place_.bytes) || entry.bytes() > item.size()) return KV_ERR_PROTOCOL;
    const std::span<std::byte> bytes = std::span(item).first(entry.bytes());
    if (const int code = read(entry.offset(), bytes); code != RDMA_OK) return code;
    kv::ItemView view;
    std::memcpy(&state_, bytes.data(), sizeof state_);
    switch (kv::judge(bytes, key_, place_.bytes, view)) {
      case kv::Verdict::kOtherKey: return kOtherKey;
      case kv::Verdict::kNotLive:
      case kv::Verdict::kTorn: return KV_ERR_AGAIN;
      case kv::Verdict::kWhole: break;
    }
    if (view.value_length < kCountBytes) return KV_ERR_PROTOCOL;
    return view.value_length < kv::kEagerBytes ? give_small(view.value, buf, len, version)
                                               : give_large(entry.offset(), view, buf, len, version);
  }

  /// Whether the entry at `offset` is really another key's: kOtherKey, or KV_ERR_AGAIN. The owner may have replaced the
  /// entry, and given the item's memory to another key, between the two READs. The entry is still there, and the item
  /// is the one that `take` saw, after it as well as before: so the entry was that item's.
  [[nodiscard]] int confirm(std::uint64_t offset, std::uint64_t word, const kv::Entry& entry) noexcept {
    std::uint64_t now = 0;
    if (const int code = read(offset, std::as_writable_bytes(std::span(&now, 1))); code != RDMA_OK) return code;
    if (now != word) return KV_ERR_AGAIN;
    if (const int code = read(entry.offset(), std::as_writable_bytes(std::span(&now, 1))); code != RDMA_OK) return code;
    return now == state_ ? kOtherKey : KV_ERR_AGAIN;
  }

  [[nodiscard]] int give_small(std::span<const std::byte> value, void* buf, std::size_t* len,
                               std::uint64_t* version) noexcept {
    const Status given = give(value.subspan(kCountBytes), buf, len);
    if (given == Status::kOk && version != nullptr) std::memcpy(version, value.data(), kCountBytes);
    return code_of(given);
  }

  [[nodiscard]] int give_large(std::uint64_t item, const kv::ItemView& view, void* buf, std::size_t* len,
                               std::uint64_t* version) noexcept {
    const auto length = static_cast<std::size_t>(view.value_length) - kCountBytes;
    const std::size_t capacity = std::exchange(*len, length);
    if (length > capacity) return KV_ERR_BUFFER_TOO_SMALL;
    std::uint64_t count = 0, state = 0;
    const std::uint64_t at = view.place.offset;
    if (const int code = read(at, std::as_writable_bytes(std::span(&count, 1))); code != RDMA_OK) return code;
    if (const int code = read(at + kCountBytes, {static_cast<std::byte*>(buf), length}); code != RDMA_OK) return code;
    // Live before and after: no other item had its memory in between.
    if (const int code = read(item, std::as_writable_bytes(std::span(&state, 1))); code != RDMA_OK) return code;
    if (!kv::is_live(state, view.version)) {
      *len = capacity;
      return KV_ERR_AGAIN;
    }
    if (version != nullptr) *version = count;
    return KV_OK;
  }

  RdmaConn* conn_;
  hash_table_place_t place_;
  std::uint32_t rkey_;
  const RdmaMemory& scratch_;
  kv::Key key_;
  std::uint64_t state_ = 0;  ///< First word of the item that `take` saw last.
};

/// Attempts that changes may overtake.
constexpr int kMostAttempts = 64;

/// Whether the numbers that came from the owner can be a table's.
bool is_table(const hash_table_place_t& place) noexcept {
  return place.bytes <= kv::kMaxWindowBytes && place.buckets != 0 && place.buckets % 2 == 0 &&
         place.buckets <= place.bytes / sizeof(kv::Bucket);
}

}  // namespace
}  // namespace verbena::api::c

using namespace verbena::api::c;
using verbena::Result;
using verbena::Status;

hash_table_t* hash_table_create(size_t initial_size, memory_pool_t* mem_pool) {
  hash_table_t* made = nullptr;
  const int code = told(__func__, [&]() -> Result<void> {
    VERBENA_TRY(verbena::api::check_given("mem_pool", mem_pool));
    made = new verbena_hash_table;
    made->pool = mem_pool;
    return set_up(*made, initial_size);
  });
  if (code == KV_OK) return made;
  hash_table_destroy(made);
  return nullptr;
}

void hash_table_destroy(hash_table_t* table) {
  if (table == nullptr) return;
  table->store.reset();
  if (!table->block.empty()) (void)table->pool->slabs.free(0, table->block.data());
  delete table;
}

kv_result_t hash_table_get(hash_table_t* table, const char* key, size_t key_len) {
  if (!is_given(__func__, {"table", table}) || !is_given(__func__, {"key", key, "key_len", key_len})) return refused();
  const std::lock_guard lock(table->mutex);
  ++table->gets;
  const Counted found = find(*table, bytes_at(key, key_len));
  if (found.status != Status::kOk) return {.status = tell(found.status, __func__)};
  // rdma_kv's struct is not const; the memory is the pool's.
  return {.status = KV_OK,
          .version = found.count,
          .value = const_cast<std::byte*>(found.value.data()),
          .value_len = found.value.size()};
}

int hash_table_copy(hash_table_t* table, const char* key, size_t key_len, void* buf, size_t* len, uint64_t* version) {
  clear(version);
  if (!is_given(__func__, {"table", table}) || !is_given(__func__, {"key", key, "key_len", key_len}) ||
      !is_given(__func__, {"len", len}) || !is_given(__func__, {"buf", buf, "*len", *len}))
    return KV_ERR_BAD_ARGUMENT;
  const std::lock_guard lock(table->mutex);
  ++table->gets;
  const Counted found = find(*table, bytes_at(key, key_len));
  const Status status = found.status == Status::kOk ? give(found.value, buf, len) : found.status;
  if (status == Status::kOk && version != nullptr) *version = found.count;
  return tell(status, __func__);
}

kv_result_t hash_table_put(hash_table_t* table, const char* key, size_t key_len, const void* value, size_t value_len) {
  if (!is_given(__func__, {"table", table}) || !is_given(__func__, {"key", key, "key_len", key_len}) ||
      !is_given(__func__, {"value", value, "value_len", value_len}))
    return refused();
  const std::lock_guard lock(table->mutex);
  ++table->puts;
  const verbena::kv::Key name = bytes_at(key, key_len);
  return store(*table, __func__, name, find(*table, name), bytes_at(value, value_len));
}

kv_result_t hash_table_delete(hash_table_t* table, const char* key, size_t key_len) {
  if (!is_given(__func__, {"table", table}) || !is_given(__func__, {"key", key, "key_len", key_len})) return refused();
  const std::lock_guard lock(table->mutex);
  ++table->deletes;
  const verbena::kv::Key name = bytes_at(key, key_len);
  const Counted old = find(*table, name);
  table->store->set_now(verbena::ticks_now());
  const Status status = table->store->erase(name).status;
  return {.status = tell(status, __func__), .version = old.count};
}

kv_result_t hash_table_cas(hash_table_t* table, const char* key, size_t key_len, uint64_t expected_version,
                           const void* new_value, size_t new_value_len) {
  if (!is_given(__func__, {"table", table}) || !is_given(__func__, {"key", key, "key_len", key_len}) ||
      !is_given(__func__, {"new_value", new_value, "new_value_len", new_value_len}))
    return refused();
  const std::lock_guard lock(table->mutex);
  ++table->compare_and_swaps;
  const verbena::kv::Key name = bytes_at(key, key_len);
  const Counted old = find(*table, name);
  if (old.status != Status::kOk) return {.status = tell(old.status, __func__)};
  if (old.count != expected_version) return {.status = tell(Status::kVersionMismatch, __func__), .version = old.count};
  return store(*table, __func__, name, old, bytes_at(new_value, new_value_len));
}

int hash_table_get_entry_addr(hash_table_t* table, const char* key, size_t key_len, uint64_t* addr, size_t* size) {
  clear(addr, size);
  if (!is_given(__func__, {"addr", addr}) || !is_given(__func__, {"size", size})) return KV_ERR_BAD_ARGUMENT;
  const kv_result_t found = hash_table_get(table, key, key_len);
  if (found.status != KV_OK) return found.status;
  *addr = reinterpret_cast<std::uintptr_t>(found.value);
  *size = found.value_len;
  return KV_OK;
}

int hash_table_get_place(hash_table_t* table, hash_table_place_t* place) {
  clear(place);
  if (!is_given(__func__, {"table", table}) || !is_given(__func__, {"place", place})) return KV_ERR_BAD_ARGUMENT;
  *place = {.address = reinterpret_cast<std::uintptr_t>(table->block.data()),
            .bytes = table->block.size(),
            .buckets = table->store->index_buckets(),
            .seed = table->seed};
  return KV_OK;
}

int hash_table_remote_get(RdmaConn* conn, const hash_table_place_t* place, uint32_t rkey, const RdmaMemory* scratch,
                          const char* key, size_t key_len, void* buf, size_t* len, uint64_t* version) {
  clear(version);
  if (!is_given(__func__, {"conn", conn}) || !is_given(__func__, {"place", place}) ||
      !is_given(__func__, {"scratch", scratch}) || !is_given(__func__, {"key", key, "key_len", key_len}) ||
      !is_given(__func__, {"len", len}) || !is_given(__func__, {"buf", buf, "*len", *len}))
    return KV_ERR_BAD_ARGUMENT;
  if (key_len == 0 || key_len > KV_MAX_KEY_BYTES) return tell(Status::kBadKey, __func__);
  if (scratch->length < HASH_TABLE_SCRATCH_BYTES)
    return refuse(__func__, "scratch must have {} bytes; it has {}", +HASH_TABLE_SCRATCH_BYTES, scratch->length);
  if (!is_table(*place)) return refuse(__func__, "place must be as hash_table_get_place returned it");
  RemoteGet get(conn, *place, rkey, *scratch, bytes_at(key, key_len));
  int code = KV_ERR_AGAIN;
  for (int i = 0; i < kMostAttempts && code == KV_ERR_AGAIN; ++i) code = get.attempt(buf, len, version);
  // A failed READ has told its cause already.
  const bool is_own =
      code == KV_ERR_AGAIN || code == KV_ERR_NOT_FOUND || code == KV_ERR_BUFFER_TOO_SMALL || code == KV_ERR_PROTOCOL;
  return is_own ? tell(status_of(code), __func__) : code;
}

void hash_table_print_stats(hash_table_t* table) {
  if (table == nullptr) return;
  const std::lock_guard lock(table->mutex);
  const verbena::kv::StoreStatistics s = table->store->statistics();
  const auto number = [](std::uint64_t count) { return std::uintmax_t{count}; };
  (void)std::printf("\n=== Hash Table Statistics ===\nNumber of buckets: %ju\nNumber of entries: %ju\n",
                    number(table->store->index_buckets()), number(s.items));
  (void)std::printf("Load factor: %.2f%%\n",
                    100.0 * static_cast<double>(s.items) / static_cast<double>(s.index_entries));
  (void)std::printf("GET operations: %ju\nPUT operations: %ju\nDELETE operations: %ju\nCAS operations: %ju\n",
                    number(table->gets), number(table->puts), number(table->deletes), number(table->compare_and_swaps));
  (void)std::printf("=============================\n\n");
}
