// Bytes that tell which message they are of and where in it they belong.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::test {

/// Byte `index` of the pattern `seed`. Neighbouring indices and seeds differ in most bytes.
[[nodiscard]] inline std::byte pattern_byte(std::uint64_t seed, std::size_t index) noexcept {
  const std::uint64_t mixed = (index + 1) * 0x9E3779B97F4A7C15U + (seed + 1) * 0xBF58476D1CE4E5B9U;
  return static_cast<std::byte>((mixed ^ (mixed >> 29)) >> 52);
}

void fill(std::span<std::byte> bytes, std::uint64_t seed) noexcept;

/// Whether `bytes` are the pattern `seed` from its byte `first` on.
[[nodiscard]] testing::AssertionResult matches(std::span<const std::byte> bytes, std::uint64_t seed,
                                               std::size_t first = 0);

/// Whether every byte is `value`: canaries around what was written.
[[nodiscard]] testing::AssertionResult all_are(std::span<const std::byte> bytes, std::byte value);

}  // namespace verbena::test
