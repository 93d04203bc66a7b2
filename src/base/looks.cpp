#include "base/relax.hpp"
#include "base/ticks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

namespace verbena {
namespace {

/// A longer pause makes messages slower. One of 24 ns (AMD family 26) is 3 to 9 % better than nops where a cache line
/// goes there and back in 75 to 300 ns, and up to 7 % worse above that; two are 3 to 10 % worse.
constexpr double kLongestPauseNs = 35;

/// The shortest of several rounds: in the others the thread may have lost its core.
double measure_pause_ns() noexcept {
  constexpr unsigned kRounds = 8, kPauses = 64;
  std::uint64_t shortest = std::numeric_limits<std::uint64_t>::max();
  for (unsigned round = 0; round < kRounds; ++round) {
    const std::uint64_t begin = ticks_now();
    for (unsigned i = 0; i < kPauses; ++i) detail::pause();
    shortest = std::min(shortest, ticks_now() - begin);
  }
  return static_cast<double>(shortest) * 1000.0 / ticks_per_us() / kPauses;
}

Looks choose() noexcept {
  const char* const wanted = std::getenv("VERBENA_PAUSES");
  const Looks looks = looks_for(measure_pause_ns(), wanted == nullptr ? std::string_view() : wanted);
  detail::pauses.store(looks.pauses, std::memory_order_relaxed);
  return looks;
}

}  // namespace

const Looks& choose_looks() noexcept {
  static const Looks chosen = choose();
  return chosen;
}

Looks looks_for(double pause_ns, std::string_view wanted) noexcept {
  std::uint32_t pauses = 0;
  const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), pauses);
  if (!wanted.empty() && error == std::errc() && end == wanted.data() + wanted.size() && pauses <= kMostPauses)
    return {.pauses = pauses, .pause_ns = pause_ns, .is_set = true};
  return {.pauses = pause_ns <= kLongestPauseNs ? 1U : 0U, .pause_ns = pause_ns};
}

std::string describe(const Looks& looks) {
  const std::string how = looks.pauses == 0   ? std::string("96 nops")
                          : looks.pauses == 1 ? std::string("one pause")
                                              : fmt::format("{} pauses", looks.pauses);
  return fmt::format("{} between two looks{}; a pause takes {:.0f} ns", how,
                     looks.is_set ? ", as VERBENA_PAUSES in the environment asks" : "", looks.pause_ns);
}

}  // namespace verbena
