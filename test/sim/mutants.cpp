#include "mutants.hpp"

#include "planted.hpp"
#include "runner.hpp"
#include "scenario.hpp"

#include "base/check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace verbena::sim {

namespace {

struct Known {
  std::string_view name;
  std::string_view scenario;  ///< That has to find it.
};
constexpr auto kKnown = std::to_array<Known>({
#include "mutant_names.inc"
});

constexpr bool are_told_apart() {
  const auto number = [](const Known& known) { return number_of(known.name); };
  for (const Known& one : kKnown)
    if (number(one) == 0 || std::ranges::count(kKnown, number(one), number) != 1) return false;
  return true;
}
static_assert(are_told_apart());

/// What is wrong with a seed; empty: nothing.
std::string wrong_with(const Scenario* scenario, std::uint64_t seed) {
  return run_job({}, {.scenario = scenario, .options = {.seed = seed}}).wrong;
}

struct Find {
  std::uint64_t seeds = 0;
  std::string why;
};

/// The first seed that finds what is planted, and is well without it; nothing: none does.
std::optional<Find> find(const Scenario* scenario, std::uint64_t from, std::uint64_t most) {
  for (std::uint64_t seeds = 1; seeds <= most; ++seeds) {
    const std::uint64_t seed = from + seeds - 1;
    const std::string wrong = wrong_with(scenario, seed);
    if (wrong.empty()) continue;
    const std::uint64_t mistake = std::exchange(planted, 0);
    const std::string without = wrong_with(scenario, seed);
    planted = mistake;
    if (without.empty()) return Find{seeds, fmt::format("seed {}: {}", seed, wrong)};
    fmt::print("seed {} fails without a mistake: {}\n", seed, without);
  }
  return std::nullopt;
}

bool hunt_one(const Known& known, const Hunt& hunt) {
  VERBENA_CHECK(plant(known.name));
  const Scenario* const scenario = find_scenario(known.scenario);
  VERBENA_CHECK(scenario != nullptr);
  std::vector<std::uint64_t> seeds;
  std::string why;
  for (unsigned start = 0; start < hunt.starts; ++start) {
    const std::uint64_t from = hunt.from + start * hunt.most_seeds;
    const auto found = find(scenario, from, hunt.most_seeds);
    if (!found) {
      fmt::print("{:28} NOT FOUND in {} seeds from {} on\n", known.name, hunt.most_seeds, from);
      return false;
    }
    seeds.push_back(found->seeds);
    if (why.empty()) why = found->why.substr(0, found->why.find('\n')).substr(0, 160);
  }
  std::ranges::sort(seeds);
  fmt::print("{:28} median {:4}, most {:4}; {}\n", known.name, seeds[seeds.size() / 2], seeds.back(), why);
  return true;
}

}  // namespace

bool plant(std::string_view name) noexcept {
  if (std::ranges::find(kKnown, name, &Known::name) == kKnown.end()) return false;
  planted = number_of(name);
  return true;
}

int hunt_mutants(const Hunt& hunt) {
  bool are_all = true;
  for (const Known& known : kKnown)
    if (hunt.only.empty() || hunt.only == known.name) are_all &= hunt_one(known, hunt);
  return are_all ? 0 : 1;
}

}  // namespace verbena::sim
