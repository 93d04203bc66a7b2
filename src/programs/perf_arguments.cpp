#include "programs/perf.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <charconv>

namespace verbena::programs {
namespace {

constexpr std::uint64_t kMaxIterations = std::uint64_t{1} << 40;
constexpr std::uint64_t kMaxClockEvery = 1000;
constexpr std::uint64_t kMaxIdleUs = 1'000'000;

/// A number with its limits: "--batch 0: takes 1 to 32".
struct Limit {
  const char* option;
  std::uint64_t value, least, most;
};

std::string first_beyond(std::initializer_list<Limit> limits) {
  for (const Limit& limit : limits) {
    if (limit.value >= limit.least && limit.value <= limit.most) continue;
    if (limit.least == limit.most)
      return fmt::format("{} {}: takes {} for this test", limit.option, limit.value, limit.most);
    return fmt::format("{} {}: takes {} to {} for this test", limit.option, limit.value, limit.least, limit.most);
  }
  return {};
}

std::string check_sizes(const PerfArguments& a, const PerfTestFacts& facts) {
  if (a.sizes.empty()) return "--sweep: takes FIRST..LAST, such as 1..1M";
  const std::uint64_t least = facts.has_size() ? 1 : facts.bytes;
  for (const std::uint64_t bytes : a.sizes) {
    if (std::string wrong = first_beyond({{"--size", bytes, least, facts.most_bytes}}); !wrong.empty()) return wrong;
    if (facts.by == PerfBy::kNothing) continue;
    const std::uint64_t memory = perf_wire::memory_needed(run_of(a, bytes));
    if (memory > perf_wire::kMaxMemory)
      return fmt::format(
          "a run of {} B with {} threads, {} connections and depth {} needs {} B of memory at each end; "
          "{} at most",
          bytes, a.threads, a.connections, a.depth, memory, perf_wire::kMaxMemory);
  }
  return {};
}

std::string check_combinations(const PerfArguments& a, const PerfTestFacts& facts) {
  if (std::uint64_t{a.depth} * a.connections > perf_wire::kMaxInFlight)
    return fmt::format("--depth {} on {} connections: {} in flight at most", a.depth, a.connections,
                       perf_wire::kMaxInFlight);
  if (a.test == PerfTest::kPingPong && a.wait != engine::WaitPolicy::kSpin)
    return fmt::format("--wait {}: pingpong polls memory, which is spinning", to_string(a.wait));
  if (a.idle_us != 0 && a.threads != 1) return "--idle-us: takes one thread";
  const auto silence_ms = std::max<std::uint64_t>(a.idle_us / 1000, kPerfIdleInterval.count());
  if (a.idle_us != 0 && facts.by != PerfBy::kNothing && silence_ms * 2 >= a.where.timeout_ms)
    return fmt::format("--idle-us {}: the server takes long silence for a dead client; raise --timeout-ms above {}",
                       a.idle_us, silence_ms * 2);
  if (a.clock_every != 1 && (facts.pipelined() || a.idle_us != 0))
    return "--clock-every: only where operations follow each other one at a time";
  return {};
}

std::string check_counts(const PerfArguments& a, const PerfTestFacts& facts) {
  const bool is_bare = facts.by == PerfBy::kNothing;
  const bool has_idle = a.test == PerfTest::kMessage || a.test == PerfTest::kWake;
  return first_beyond({{"--iterations", a.iterations, 1, kMaxIterations},
                       {"--warm-up", a.warm_up, 0, kMaxIterations},
                       {"--depth", a.depth, 1, facts.pipelined() ? perf_wire::kMaxDepth : 1},
                       {"--batch", a.batch, 1, a.depth},
                       {"--threads", a.threads, 1, is_bare ? 1 : perf_wire::kMaxThreads},
                       {"--connections", a.connections, 1, facts.pipelined() ? perf_wire::kMaxConnections : 1},
                       {"--clock-every", a.clock_every, 1, kMaxClockEvery},
                       {"--idle-us", a.idle_us, a.test == PerfTest::kWake ? 1U : 0U, has_idle ? kMaxIdleUs : 0}});
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) noexcept {
  constexpr std::string_view kUnits = "KMG";
  unsigned shift = 0;
  if (!text.empty()) {
    const std::size_t unit = kUnits.find(text.back());
    if (unit != std::string_view::npos) {
      shift = 10 * (static_cast<unsigned>(unit) + 1);
      text.remove_suffix(1);
    }
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (value > ~std::uint64_t{0} >> shift) return std::nullopt;
  return value << shift;
}

std::vector<std::uint64_t> parse_sweep(std::string_view text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return {};
  const auto first = parse_bytes(text.substr(0, dots));
  const auto last = parse_bytes(text.substr(dots + 2));
  if (!first || !last || *first == 0 || *first > *last) return {};
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t bytes = *first; bytes < *last && bytes != 0; bytes = std::bit_floor(bytes) << 1)
    sizes.push_back(bytes);
  sizes.push_back(*last);
  return sizes;
}

std::string check_perf_arguments(const PerfArguments& a) {
  const PerfTestFacts& facts = facts_of(a.test);
  for (const auto check : {check_counts, check_combinations, check_sizes}) {
    if (std::string wrong = check(a, facts); !wrong.empty()) return wrong;
  }
  return {};
}

perf_wire::RunHello run_of(const PerfArguments& a, std::uint64_t bytes) noexcept {
  return {.test = a.test,
          .wait = a.wait,
          .depth = static_cast<std::uint16_t>(a.depth),
          .bytes = static_cast<std::uint32_t>(bytes),
          .connections = static_cast<std::uint16_t>(a.connections),
          .threads = static_cast<std::uint8_t>(a.threads)};
}

}  // namespace verbena::programs
