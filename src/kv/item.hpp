// Items: a key and a value as they lie in a worker's arena, and the conclusions that a reader may draw from such bytes.
// Server, client, fuzz target and tests share this.
#pragma once

#include <verbena/kv.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::kv {

/// Front of an item, at a multiple of 64 bytes; the key follows, padded with zeros to a multiple of 8. A value below
/// kEagerBytes follows the key, after the time at which the item expires if it does (by the server's clock, in ns); a
/// larger one has a block of its own (so that a READ of all of an item is short), and a ValuePlace follows the key.
/// Once published, an item changes in its first two words only, and only the server's CPU stores them.
///
/// The version is in the state word and seeds the checksum. So if the bytes of one READ show {live, version v}, the
/// expected key and the right checksum for v, they are the whole item of version v, which was live during the READ: in
/// whatever order they were fetched, and even if the block was reused meanwhile.
struct ItemHeader {
  std::uint64_t state = 0;     ///< Low byte an ItemState, above it the version. Outside the checksum.
  std::uint64_t server = 0;    ///< The server's own notes: see store.cpp. Outside the checksum; readers ignore it.
  std::uint64_t checksum = 0;  ///< XXH3 of everything after it, to the item's end; seeded by the version.
  std::uint64_t shape = 0;     ///< An ItemShape.
};
static_assert(sizeof(ItemHeader) == 32);

/// The place of a value of kEagerBytes or more; after the key.
struct ValuePlace {
  std::uint64_t offset = 0;    ///< From the start of the worker's window; a multiple of 64.
  std::uint64_t checksum = 0;  ///< checksum_of_value, with kHasValueChecksum; otherwise 0.
};
static_assert(sizeof(ValuePlace) == 16);

enum class ItemState : std::uint8_t {
  kBuilding = 0,  ///< Allocated but not published: no reader may take it.
  kLive = 1,
  kSuperseded = 2,  ///< Replaced or erased. Stored before the change is acknowledged.
};

/// The largest version: 56 bits, from 1. The server then ends with kLimit.
inline constexpr std::uint64_t kMaxVersion = (std::uint64_t{1} << 56) - 1;

[[nodiscard]] constexpr std::uint64_t state_word(ItemState state, std::uint64_t version) noexcept {
  return static_cast<std::uint64_t>(state) | version << 8;
}
/// Whether a state word, loaded or READ, says that `version` is the key's current version.
[[nodiscard]] constexpr bool is_live(std::uint64_t state, std::uint64_t version) noexcept {
  return state == state_word(ItemState::kLive, version);
}
[[nodiscard]] constexpr ItemState state_of(std::uint64_t state) noexcept {
  return static_cast<ItemState>(state & 0xff);
}
[[nodiscard]] constexpr std::uint64_t version_of(std::uint64_t state) noexcept { return state >> 8; }

/// \name Flags of an item
/// @{
inline constexpr unsigned kCell = 1;              ///< A cell: see docs/kv.md. Not for GET, PUT, CAS, DELETE.
inline constexpr unsigned kHasValueChecksum = 2;  ///< A large value whose ValuePlace has a checksum.
inline constexpr unsigned kExpires = 8;  ///< The time at which it expires follows the key: 8 bytes, as says the flag.
inline constexpr unsigned kItemFlags = 11;  ///< All defined flags.
/// @}

/// The fourth word: value length 48 bits, key length 12, flags 4.
struct ItemShape {
  std::uint64_t value_length = 0;
  std::size_t key_length = 0;
  unsigned flags = 0;

  [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
    return value_length | std::uint64_t{key_length} << 48 | std::uint64_t{flags} << 60;
  }
  [[nodiscard]] static constexpr ItemShape unpack(std::uint64_t word) noexcept {
    return {word & ((std::uint64_t{1} << 48) - 1), static_cast<std::size_t>(word >> 48 & 0xfff),
            static_cast<unsigned>(word >> 60)};
  }

  /// Whether the value is in the header's block.
  [[nodiscard]] constexpr bool is_inline() const noexcept { return value_length < kEagerBytes; }
  /// Offset of the part after the key, and after the time with kExpires: an inline value, or a ValuePlace.
  [[nodiscard]] constexpr std::size_t tail_offset() const noexcept {
    return sizeof(ItemHeader) + ((key_length + 7) & ~std::size_t{7}) + (flags & kExpires);
  }
  /// Bytes in the header's block.
  [[nodiscard]] constexpr std::size_t bytes() const noexcept {
    return tail_offset() + (is_inline() ? static_cast<std::size_t>(value_length) : sizeof(ValuePlace));
  }
  /// The same in cache lines: READ so many to get the whole item.
  [[nodiscard]] constexpr unsigned lines() const noexcept { return static_cast<unsigned>((bytes() + 63) / 64); }
};
/// Size of the largest item: the longest key, the longest inline value, and a time to expire.
inline constexpr std::size_t kMaxItemBytes =
    ItemShape{.value_length = kEagerBytes - 1, .key_length = kMaxKeyBytes, .flags = kExpires}.bytes();

/// Judgement on the bytes of a READ.
enum class Verdict : std::uint8_t {
  kWhole,     ///< A live item of this key, complete, as it was at some time during the READ.
  kNotLive,   ///< Superseded, or not published: the key's value, if any, is elsewhere.
  kOtherKey,  ///< Not an item of this key: one with the same tag, or the block was reused.
  kTorn,      ///< Changed during the READ, or not an item: READ again, or ask the server.
};

/// The contents of a whole item.
struct ItemView {
  std::uint64_t version = 0;
  std::uint64_t value_length = 0;
  unsigned flags = 0;
  std::uint64_t until_ns = 0;        ///< With kExpires: when it expires, by the server's clock.
  std::span<const std::byte> value;  ///< If inline: inside the judged bytes.
  ValuePlace place;                  ///< If not inline; all of the value is inside the window.
};

/// Judges the bytes of a READ from an item's start, which may be anything. They must be private memory that nothing
/// changes meanwhile. `window_bytes` is the length of the worker's window; a large value must be inside it. Sets `view`
/// with kWhole only. Does not cover a large value's own bytes: READ them, then the item's first word again (is_live).
/// \thread any  \alloc none
[[nodiscard]] Verdict judge(std::span<const std::byte> bytes, Key key, std::uint64_t window_bytes,
                            ItemView& view) noexcept;

/// The checksum for the item at `item`, whose bytes() are `bytes`. \thread any  \alloc none
[[nodiscard]] std::uint64_t checksum_of(const std::byte* item, std::size_t bytes, std::uint64_t version) noexcept;

/// The checksum of a large value, for ValuePlace::checksum and wire::Location::checksum; never 0. \thread any
/// \alloc none
[[nodiscard]] std::uint64_t checksum_of_value(std::span<const std::byte> value) noexcept;

/// A key's only hash: it gives the worker, both buckets and the tag (index.hpp). The server chooses `seed`, so nobody
/// can choose colliding keys without asking it. \thread any  \alloc none
[[nodiscard]] std::uint64_t hash_of(Key key, std::uint64_t seed) noexcept;

}  // namespace verbena::kv
