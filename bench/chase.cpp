// What reads that depend on each other take, each of another cache line of BYTES in all, at random: the yardstick
// beside the cost of a store whose items take as much memory. usage: chase BYTES SECONDS          prints one JSON
// object
#include <verbena/deadline.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

struct alignas(64) Line {
  std::uint64_t next = 0;
};

/// One cycle through all lines in no order that a processor could foresee: a full-period generator of the next power of
/// two, whose steps beyond the last line are left out.
std::vector<Line> cycle_of(std::size_t count) {
  std::vector<Line> lines(count);
  const std::uint64_t mask = std::bit_ceil(count) - 1;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t next = at;
    // More than half of all steps lead to a line.
    do next = (next * 6364136223846793005U + 1442695040888963407U) & mask;
    while (next >= count);
    lines[at].next = next;
    at = next;
  }
  return lines;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t bytes = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const double seconds = argc == 3 ? std::strtod(argv[2], nullptr) : 0;
  if (bytes == 0 || bytes > std::size_t{1} << 40 || !(seconds > 0) || seconds > 3600) {
    fmt::print(stderr, "usage: chase BYTES SECONDS\n");
    return 2;
  }
  const std::vector<Line> lines = cycle_of(std::max<std::size_t>(2, bytes / sizeof(Line)));
  constexpr std::size_t kBatch = 1024;  // Reads between two readings of the clock.
  const std::uint64_t begin = verbena::ticks_now();
  const std::uint64_t end = begin + static_cast<std::uint64_t>(seconds * 1e6 * verbena::ticks_per_us());
  std::uint64_t now = begin, reads = 0, at = 0;
  for (; now < end; now = verbena::ticks_now()) {
    for (std::size_t i = 0; i < kBatch; ++i) at = lines[at].next;
    asm volatile("" : : "r"(at));  // The reads are not dead code.
    reads += kBatch;
  }
  const double ns = static_cast<double>(now - begin) / verbena::ticks_per_us() * 1e3 / static_cast<double>(reads);
  fmt::print("{{\"bytes\":{},\"reads\":{},\"ns\":{:.3f}}}\n", lines.size() * sizeof(Line), reads, ns);
  return 0;
}
