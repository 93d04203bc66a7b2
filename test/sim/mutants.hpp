// How many seeds the simulation needs to find each of the mistakes of mutate.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace verbena::sim {

/// From now on that mistake is made. False: there is none of that name.
[[nodiscard]] bool plant(std::string_view name) noexcept;

struct Hunt {
  std::string only{};  ///< This mistake; empty: each in its turn.
  std::uint64_t from = 1;
  std::uint64_t most_seeds = 2000;
  unsigned starts = 1;  ///< Counts of each mistake. Each begins `most_seeds` behind the one before.
};
/// Each run is in a process of its own, so that a crash is found as well. The seed that finds a mistake is run again
/// without it, and must be well then. Prints a line for each mistake. \return exit code: whether one was not found
[[nodiscard]] int hunt_mutants(const Hunt& hunt);

}  // namespace verbena::sim
