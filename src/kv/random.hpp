// Numbers that nobody guesses: names of servers and clients, seeds.
#pragma once

#include <verbena/deadline.hpp>

#include <sys/random.h>

#include <cstdint>

namespace verbena::kv {

/// Never 0. \thread any  \alloc none
[[nodiscard]] inline std::uint64_t random_word() noexcept {
  std::uint64_t word = 0;
  // Of this size it cannot be cut short, and only before the machine's first entropy could it fail.
  if (getrandom(&word, sizeof word, 0) != sizeof word) word = ticks_now();
  return word | 1;
}

}  // namespace verbena::kv
