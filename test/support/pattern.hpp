// Bytes that tell which message they are of and where in it they belong.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::test {

/// Byte `index` of the pattern `seed`. Neighbouring indices and seeds differ in most bytes.
[[nodiscard]] inline std::byte pattern_byte(std::uint64_t seed, std::size_t index) noexcept {
  const std::uint64_t mixed = (index + 1) * 0x9E3779B97F4A7C15U + (seed + 1) * 0xBF58476D1CE4E5B9U;
  return static_cast<std::byte>((mixed ^ (mixed >> 29)) >> 52);
}

inline void fill(std::span<std::byte> bytes, std::uint64_t seed) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern_byte(seed, i);
}

/// Whether `bytes` are the pattern `seed` from its byte `first` on.
[[nodiscard]] inline testing::AssertionResult matches(std::span<const std::byte> bytes, std::uint64_t seed,
                                                      std::size_t first = 0) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == pattern_byte(seed, first + i)) continue;
    return testing::AssertionFailure() << "byte " << i << " of " << bytes.size() << " is "
                                       << std::to_integer<int>(bytes[i]) << ", not "
                                       << std::to_integer<int>(pattern_byte(seed, first + i)) << " (pattern " << seed
                                       << ")";
  }
  return testing::AssertionSuccess();
}

/// Whether every byte is `value`: canaries around what was written.
[[nodiscard]] inline testing::AssertionResult all_are(std::span<const std::byte> bytes, std::byte value) {
  const auto other = std::find_if(bytes.begin(), bytes.end(), [&](std::byte b) { return b != value; });
  if (other == bytes.end()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "byte " << (other - bytes.begin()) << " of " << bytes.size() << " is "
                                     << std::to_integer<int>(*other) << ", not " << std::to_integer<int>(value);
}

}  // namespace verbena::test
