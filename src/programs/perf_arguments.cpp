#include "programs/line.hpp"
#include "programs/perf.hpp"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <bit>

namespace verbena::programs {

std::vector<std::uint64_t> parse_sweep(const std::string& text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return {};
  std::uint64_t first = 0, last = 0;
  const auto parse = [](std::string number, std::uint64_t& bytes) {
    return CLI::AsSizeValue(false)(number).empty() && CLI::detail::lexical_cast(number, bytes);
  };
  try {
    if (!parse(text.substr(0, dots), first) || !parse(text.substr(dots + 2), last)) return {};
  } catch (const CLI::ValidationError&) {
    return {};
  }
  if (first == 0 || first > last) return {};
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t bytes = first; bytes < last && bytes != 0; bytes = std::bit_floor(bytes) << 1)
    sizes.push_back(bytes);
  sizes.push_back(last);
  return sizes;
}

std::string check_perf_arguments(const PerfArguments& a) {
  const PerfTestFacts& facts = facts_of(a.test);
  if (a.all_connections() > perf_wire::kMaxConnections)
    return fmt::format("--threads {} of {} connections: {} connections at most", a.threads, a.connections,
                       perf_wire::kMaxConnections);
  if (a.sizes.empty()) return "--sweep: takes FIRST..LAST, such as 1..1M";
  if (a.clock_every != 1 && a.idle_us != 0) return "--clock-every: not with --idle-us";
  for (const std::uint64_t bytes : a.sizes) {
    if (bytes < 1 || bytes > facts.most_bytes)
      return fmt::format("--size {}: takes 1 to {} for this test", bytes, facts.most_bytes);
    constexpr std::uint64_t kMaxMemory = std::uint64_t{1} << 30;
    if (a.all_connections() * bytes > kMaxMemory)
      return fmt::format("--size {} on {} connections: {} B at each end at most", bytes, a.all_connections(),
                         kMaxMemory);
  }
  return {};
}

std::vector<unsigned> perf_cpus(std::optional<unsigned> first, unsigned threads) {
  if (!first) return {};
  std::vector<unsigned> allowed = allowed_cpus();
  // One that is not allowed is for the thread to complain of.
  if (std::ranges::find(allowed, *first) == allowed.end()) allowed.insert(allowed.begin(), *first);
  std::ranges::rotate(allowed, std::ranges::find(allowed, *first));
  std::vector<unsigned> cpus;
  cpus.reserve(threads);
  for (unsigned i = 0; i < threads; ++i) cpus.push_back(allowed[i % allowed.size()]);
  return cpus;
}

}  // namespace verbena::programs
