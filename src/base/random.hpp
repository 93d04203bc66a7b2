// Random words: whoever needs some draws them here.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena {

/// Bytes that nobody guesses. Errors: kSystem, kPermission (a sandbox forbids getrandom). \thread any  \alloc none
[[nodiscard]] Result<void> fill_random(std::span<std::byte> bytes) noexcept;
/// Tells things apart: names, generations, seeds. Never 0. Nobody guesses it, either, unless a sandbox forbids
/// getrandom; then it differs from all others of this host, which is enough. \thread any  \alloc none
[[nodiscard]] std::uint64_t random_word() noexcept;
/// Zeros that no compiler leaves out, where a secret was. \thread any  \alloc none
void wipe(std::span<std::byte> bytes) noexcept;

}  // namespace verbena
