// Items: a key and a value as they lie in a worker's arena, and the hashes and checksums over them.
#pragma once

#include <verbena/kv.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::kv {

/// Front of an item, at a multiple of 64 bytes; the key follows. A value below kEagerBytes follows the key at the next
/// multiple of 8; a larger one has a block of its own, so that a value of 1 MiB takes 1 MiB of a buddy pool and not 2.
/// Once published, nothing of an item changes but its state word, which only the server's CPU stores.
struct ItemHeader {
  std::uint64_t state;     ///< Low byte is an ItemState; above it, see store.cpp. Outside the checksum.
  std::uint64_t checksum;  ///< XXH3 of what follows: header, key, padding, and the value if it is here.
  std::uint64_t version;
  std::uint64_t value_length;
  std::uint64_t value_offset;  ///< From the start of the arena.
  std::uint16_t key_length;
  std::uint16_t flags;     ///< 0
  std::uint32_t reserved;  ///< 0
};
static_assert(sizeof(ItemHeader) == 48);

enum class ItemState : std::uint8_t {
  kBuilding = 0,  ///< Handed out, not published: no reader may take it.
  kLive = 1,
  kSuperseded = 2,  ///< Replaced or erased. Stored before the change is acknowledged.
};

[[nodiscard]] constexpr std::size_t padded_key_bytes(std::size_t key_bytes) noexcept {
  return (key_bytes + 7) & ~std::size_t{7};
}

/// Whether an item keeps its value in the block of its header.
[[nodiscard]] constexpr bool is_inline(std::uint64_t value_length) noexcept { return value_length < kEagerBytes; }

/// Bytes of the block that holds header, key and an inline value.
[[nodiscard]] constexpr std::size_t item_bytes(std::size_t key_bytes, std::uint64_t value_length) noexcept {
  return sizeof(ItemHeader) + padded_key_bytes(key_bytes) + (is_inline(value_length) ? value_length : 0);
}

/// The state word of an item, which readers in other processes may load while the server stores it.
[[nodiscard]] inline ItemState state_of(ItemHeader& header) noexcept {
  return static_cast<ItemState>(std::atomic_ref(header.state).load(std::memory_order_acquire) & 0xff);
}

/// The checksum that belongs into the item at `item`, of `bytes` bytes as item_bytes counts. \thread any
[[nodiscard]] std::uint64_t checksum_of(const std::byte* item, std::size_t bytes) noexcept;

/// Whether the bytes at the front of `block` (a copy: nothing is read twice) are a whole item with this key: lengths
/// fit the block and the checksum is right. A large value's own bytes are not covered: time protects them. \thread any
[[nodiscard]] bool is_intact(std::span<const std::byte> block, Key key) noexcept;

/// Hash of a key; `seed` keeps strangers from choosing keys that collide in an index. \thread any
[[nodiscard]] std::uint64_t hash_of(Key key, std::uint64_t seed) noexcept;

/// Which of `workers` workers has the key. Client and server must agree, so there is no seed. \thread any
[[nodiscard]] unsigned worker_of(Key key, unsigned workers) noexcept;

}  // namespace verbena::kv
