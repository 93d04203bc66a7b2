#include "kv/item.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace verbena::kv {

Verdict judge(std::span<const std::byte> bytes, Key key, std::uint64_t window_bytes, ItemView& view) noexcept {
  if (bytes.size() < sizeof(ItemHeader)) return Verdict::kTorn;
  ItemHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::uint64_t version = version_of(header.state);
  if (state_of(header.state) != ItemState::kLive || version == 0) return Verdict::kNotLive;
  const ItemShape shape = ItemShape::unpack(header.shape);
  // Compares the key first: it differs if a remembered place holds another item now.
  if (shape.key_length != key.size() || shape.tail_offset() > bytes.size()) return Verdict::kOtherKey;
  if (std::memcmp(bytes.data() + sizeof header, key.data(), key.size()) != 0) return Verdict::kOtherKey;
  if (shape.bytes() > bytes.size() || (shape.flags & ~kItemFlags) != 0) return Verdict::kTorn;
  if (checksum_of(bytes.data(), shape.bytes(), version) != header.checksum) return Verdict::kTorn;
  ItemView whole{
      .version = version, .value_length = shape.value_length, .flags = shape.flags, .value = {}, .place = {}};
  if ((shape.flags & kExpires) != 0) [[unlikely]]
    std::memcpy(&whole.until_ns, bytes.data() + shape.tail_offset() - sizeof whole.until_ns, sizeof whole.until_ns);
  if (shape.is_inline()) {
    whole.value = bytes.subspan(shape.tail_offset(), static_cast<std::size_t>(shape.value_length));
  } else {
    std::memcpy(&whole.place, bytes.data() + shape.tail_offset(), sizeof whole.place);
    if (whole.place.offset > window_bytes || shape.value_length > window_bytes - whole.place.offset)
      return Verdict::kTorn;
  }
  view = whole;
  return Verdict::kWhole;
}

std::uint64_t checksum_of(const std::byte* item, std::size_t bytes, std::uint64_t version) noexcept {
  constexpr std::size_t kFrom = offsetof(ItemHeader, shape);
  return XXH3_64bits_withSeed(item + kFrom, bytes - kFrom, version);
}

std::uint64_t checksum_of_value(std::span<const std::byte> value) noexcept {
  return std::max<std::uint64_t>(XXH3_64bits(value.data(), value.size()), 1);
}

std::uint64_t hash_of(Key key, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(key.data(), key.size(), seed);
}

}  // namespace verbena::kv
