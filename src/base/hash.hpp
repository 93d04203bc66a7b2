// The one hash and checksum below the store: XXH3 64, from the xxHash library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena {

/// XXH3_64bits_withSeed of the bytes (xxHash 0.8, whose values are fixed for ever). \thread any  \alloc none
[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;

}  // namespace verbena
