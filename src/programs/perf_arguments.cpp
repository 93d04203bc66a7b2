#include "programs/line.hpp"
#include "programs/options.hpp"
#include "programs/perf.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

namespace verbena::programs {

std::vector<std::uint64_t> parse_sweep(const std::string& text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return {};
  const auto first = parse_bytes(text.substr(0, dots)), last = parse_bytes(text.substr(dots + 2));
  if (!first || !last || *first == 0 || *first > *last) return {};
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t bytes = *first; bytes < *last && bytes != 0; bytes = std::bit_floor(bytes) << 1)
    sizes.push_back(bytes);
  sizes.push_back(*last);
  return sizes;
}

std::string check_perf_arguments(const PerfArguments& a) {
  const unsigned connections = a.all_connections();
  if (connections > perf_wire::kMaxConnections)
    return fmt::format("--threads {} with --connections {} are {} connections, and {} are the most", a.threads,
                       a.connections, connections, perf_wire::kMaxConnections);
  if (a.clock_every != 1 && a.idle_us != 0)
    return fmt::format("--clock-every {} does not go with --idle-us {}", a.clock_every, a.idle_us);
  constexpr std::uint64_t kMaxMemory = std::uint64_t{1} << 30;
  if (const std::uint64_t bytes = std::ranges::max(a.sizes); connections * bytes > kMaxMemory)
    return fmt::format(
        "--threads {} of {} connections with {} bytes of --size or --sweep on each take {} bytes at each "
        "end, and {} are the most",
        a.threads, a.connections, bytes, connections * bytes, kMaxMemory);
  const std::vector<unsigned> allowed = allowed_cpus();
  if (a.cpu && std::ranges::find(allowed, *a.cpu) == allowed.end()) {
    const auto [least, most] = std::ranges::minmax(allowed);
    return fmt::format("--cpu {} is none of the {} cpus that this process may use, which are among {} to {}", *a.cpu,
                       allowed.size(), least, most);
  }
  return {};
}

std::vector<unsigned> perf_cpus(std::optional<unsigned> first, unsigned threads) {
  if (!first) return {};
  std::vector<unsigned> allowed = allowed_cpus();
  std::ranges::rotate(allowed, std::ranges::find(allowed, *first));
  std::vector<unsigned> cpus;
  cpus.reserve(threads);
  for (unsigned i = 0; i < threads; ++i) cpus.push_back(allowed[i % allowed.size()]);
  return cpus;
}

}  // namespace verbena::programs
