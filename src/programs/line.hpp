// Reference figures for latencies and bandwidths: the bare cache-line ping-pong, and memcpy.
#pragma once

#include <verbena/error.hpp>

#include <chrono>
#include <cstddef>
#include <vector>

namespace verbena::programs {

/// The cpus that this process may use: one per physical core first, then their siblings. Never empty.
[[nodiscard]] std::vector<unsigned> allowed_cpus();

/// Time of one cache-line transfer between two cores.
struct Line {
  unsigned first_cpu = 0, second_cpu = 0;
  double one_way_ns = 0;           ///< Median of many short batches.
  std::vector<double> batches_ns;  ///< Time of one way in each batch, in order.
};
/// Round trips per batch: so few that an interrupted batch does not reach the median.
inline constexpr std::size_t kLineTurnsPerBatch = 64;

/// Two threads pinned to two cpus bounce a counter in one cache line for about `span`, or for `most_batches`; they
/// space their polls as the library does (`relax`). Errors: kUnsupported if the process has a single cpu. \thread any
[[nodiscard]] Result<Line> measure_line(unsigned first_cpu, unsigned second_cpu, std::chrono::milliseconds span,
                                        std::size_t most_batches = 4096);

/// Numbers of source and target blocks, used in turn: one of each measures the caches, many measure memory.
struct CopyBlocks {
  std::size_t sources = 1, targets = 1;
};
/// Bytes per second of memcpy in blocks of `block_bytes`, measured for about `span`. \alloc setup
[[nodiscard]] double measure_memcpy(std::size_t block_bytes, CopyBlocks blocks, std::chrono::milliseconds span);

/// The middle value (the lower one for an even count); 0 for no values.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace verbena::programs
