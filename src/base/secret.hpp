// What secrets are made of, and how they go.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <span>

namespace verbena {

/// Bytes that nobody guesses. Errors: kSystem, kPermission (a sandbox forbids getrandom). \thread any  \alloc none
[[nodiscard]] Result<void> fill_random(std::span<std::byte> bytes) noexcept;
/// Zeros that no compiler leaves out. \thread any  \alloc none
void wipe(std::span<std::byte> bytes) noexcept;

}  // namespace verbena
