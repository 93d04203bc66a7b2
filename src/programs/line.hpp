// The yardsticks beside which latencies and bandwidths are printed: the bare cache-line ping-pong, and memcpy.
#pragma once

#include <verbena/error.hpp>

#include <chrono>
#include <cstddef>
#include <vector>

namespace verbena::programs {

/// The cpus that this process may run on, one a physical core first, then their siblings. Never empty.
[[nodiscard]] std::vector<unsigned> allowed_cpus();

/// Time that a cache line takes from one core to another.
struct Line {
  unsigned first_cpu = 0, second_cpu = 0;
  double one_way_ns = 0;           ///< Median of many short batches.
  std::vector<double> batches_ns;  ///< Of each, in order, the time of one way.
};
/// Round trips in a batch: so short that one that was interrupted does not reach the median.
inline constexpr std::size_t kLineTurnsPerBatch = 64;

/// Two threads pinned to two cpus bounce a counter in one cache line for about `span`, or `most_batches`; polls are
/// spaced as the library spaces its own (`relax`). kUnsupported where the process has a single cpu. \thread any
[[nodiscard]] Result<Line> measure_line(unsigned first_cpu, unsigned second_cpu, std::chrono::milliseconds span,
                                        std::size_t most_batches = 4096);

/// Blocks that a copy goes to and fro between, in turn: one of each measures the caches, many measure memory.
struct CopyBlocks {
  std::size_t sources = 1, targets = 1;
};
/// Bytes a second of memcpy in blocks of `block_bytes`, for about `span`. \alloc setup
[[nodiscard]] double measure_memcpy(std::size_t block_bytes, CopyBlocks blocks, std::chrono::milliseconds span);

/// The middle value (of the lower half for an even count); 0 of none.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace verbena::programs
