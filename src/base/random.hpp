// Random words: the one source of them.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena {

/// Fills `bytes` with values that nobody can guess. Errors: kSystem, kPermission (a sandbox forbids getrandom). \thread
/// any  \alloc none
[[nodiscard]] Result<void> fill_random(std::span<std::byte> bytes) noexcept;
/// A word that tells things apart: names, generations, seeds. Never 0. Nobody can guess it, unless a sandbox forbids
/// getrandom; then it still differs from all others of this host, which is enough. \thread any  \alloc none
[[nodiscard]] std::uint64_t random_word() noexcept;
/// Overwrites a secret with zeros; the compiler cannot leave that out. \thread any  \alloc none
void wipe(std::span<std::byte> bytes) noexcept;

}  // namespace verbena
