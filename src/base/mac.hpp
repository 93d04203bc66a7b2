// Message authentication codes: HMAC-SHA-256 by libsodium. A build without libsodium has none, and says so.
#pragma once

#include <verbena/error.hpp>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

namespace verbena {

inline constexpr std::size_t kMacBytes = 32;
using Mac = std::array<std::byte, kMacBytes>;

/// Call it before any of the others. Errors: kUnsupported (this build has no libsodium), kSystem (the library does not
/// start). \thread any
[[nodiscard]] Result<void> check_mac() noexcept;
/// Authenticates the parts one after another. The caller makes sure that no two lists of parts have the same bytes.
/// Zeros in a build without libsodium. \thread any  \alloc none
[[nodiscard]] Mac mac_of(std::span<const std::byte> secret,
                         std::initializer_list<std::span<const std::byte>> parts) noexcept;
/// Compares in constant time, wherever they differ. False in a build without libsodium. \thread any  \alloc none
[[nodiscard]] bool is_same(const Mac& a, const Mac& b) noexcept;

}  // namespace verbena
