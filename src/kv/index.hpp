// The index at the front of a worker's window: buckets of one cache line, which clients READ. Defines the layout, and
// the place of a key by its hash; server and client share it.
//
// Every key has two buckets. One bucket and the tag, which the entry holds, give the other, so an entry moves without
// access to its item. A move stores the copy before it clears the original. A reader that does not find a key asks by
// message, so a lookup during a move is never wrong.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::kv {

/// Items start and end at multiples of this, the unit of an entry's offset.
inline constexpr std::size_t kLineBytes = 64;
inline constexpr unsigned kBucketEntries = 8;
/// A bucket in memory; 0 is an empty entry.
using Bucket = std::array<std::uint64_t, kBucketEntries>;
static_assert(sizeof(Bucket) == kLineBytes);

/// One entry: tag 23 bits, cache lines 7, place 34. A packed entry is never 0, because an item has at least one line.
struct Entry {
  std::uint32_t tag = 0;
  unsigned lines = 0;      ///< Lines of the item: READ so many to get all of it.
  std::uint64_t line = 0;  ///< The item's first line, from the start of the window.

  static constexpr unsigned kTagBits = 23;
  static constexpr unsigned kLinesBits = 7;
  static constexpr unsigned kLineBits = 34;
  static_assert(kTagBits + kLinesBits + kLineBits == 64);

  [[nodiscard]] constexpr std::uint64_t pack() const noexcept {
    return std::uint64_t{tag} << (kLinesBits + kLineBits) | std::uint64_t{lines} << kLineBits | line;
  }
  [[nodiscard]] static constexpr Entry unpack(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> (kLinesBits + kLineBits)),
            static_cast<unsigned>(word >> kLineBits & ((1u << kLinesBits) - 1)),
            word & ((std::uint64_t{1} << kLineBits) - 1)};
  }

  [[nodiscard]] constexpr std::uint64_t offset() const noexcept { return line * kLineBytes; }
  [[nodiscard]] constexpr std::size_t bytes() const noexcept { return lines * kLineBytes; }
  /// Whether an item at this entry fits a window of `window_bytes`: readers check the entries that they receive.
  [[nodiscard]] constexpr bool is_inside(std::uint64_t window_bytes) const noexcept {
    return lines != 0 && bytes() <= window_bytes && offset() <= window_bytes - bytes();
  }
};
[[nodiscard]] constexpr std::uint32_t tag_of_entry(std::uint64_t word) noexcept { return Entry::unpack(word).tag; }

/// Limit of any window, index included.
inline constexpr std::uint64_t kMaxWindowBytes = kLineBytes << Entry::kLineBits;

/// \name Fields of a key's hash. The upper half gives the worker, the lower the first bucket, the middle the tag.
/// @{
[[nodiscard]] constexpr unsigned worker_of(std::uint64_t hash, unsigned workers) noexcept {
  return static_cast<unsigned>((hash >> 32) * workers >> 32);
}
[[nodiscard]] constexpr std::uint32_t tag_of(std::uint64_t hash) noexcept {
  return static_cast<std::uint32_t>(hash >> 32) & ((1u << Entry::kTagBits) - 1);
}
/// `buckets` is even, up to 2^32.
[[nodiscard]] constexpr std::uint64_t first_bucket(std::uint64_t hash, std::uint64_t buckets) noexcept {
  return (hash & 0xffff'ffff) * buckets >> 32;
}
/// The other bucket of an entry with this tag: other_bucket(other_bucket(b)) is b. Their sum is odd, so they always
/// differ.
[[nodiscard]] constexpr std::uint64_t other_bucket(std::uint64_t bucket, std::uint32_t tag,
                                                   std::uint64_t buckets) noexcept {
  const std::uint64_t mixed = (tag + 1) * std::uint64_t{0x9e37'79b9'7f4a'7c15} >> 32;
  const std::uint64_t sum = (mixed * buckets >> 32) | 1;
  return sum >= bucket ? sum - bucket : sum + buckets - bucket;
}
/// @}

/// Marks of keys that were used lately, in a server that evicts: a byte each, not 0 if marked, one for each entry of
/// the index. Several keys may share one. The number of a key's mark is the same by both buckets (one is even and one
/// odd).
[[nodiscard]] constexpr std::uint64_t mark_of(std::uint64_t bucket, std::uint32_t tag, std::uint64_t buckets) noexcept {
  const bool is_this = (bucket & 1) == (tag >> 3 & 1);
  return (is_this ? bucket : other_bucket(bucket, tag, buckets)) * kBucketEntries + tag % kBucketEntries;
}
[[nodiscard]] constexpr std::uint64_t mark_bytes(std::uint64_t buckets) noexcept { return buckets * kBucketEntries; }

/// Buckets for `items` keys (1 to 2^34), even. At most 9 of 10 entries are used; small tables get a few more, because
/// chance fills them less evenly.
[[nodiscard]] constexpr std::uint64_t buckets_for(std::uint64_t items) noexcept {
  const std::uint64_t full = (items * 10 + 9 * kBucketEntries - 1) / (9 * kBucketEntries);
  return (full + 16 + 1) / 2 * 2;
}
inline constexpr std::uint64_t kMaxItems = std::uint64_t{1} << 34;
static_assert(buckets_for(kMaxItems) < std::uint64_t{1} << 32);

/// Bytes of the index in front of the items, in whole pages, so that large values start at a page's start.
[[nodiscard]] constexpr std::uint64_t index_bytes(std::uint64_t buckets) noexcept {
  return (buckets * sizeof(Bucket) + 4095) / 4096 * 4096;
}

}  // namespace verbena::kv
