// The results of a bench, and how they are printed.
#pragma once

#include "programs/commands.hpp"
#include "programs/environment.hpp"
#include "programs/histogram.hpp"
#include "programs/line.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace verbena::programs {

/// Figures of one round, between two measurements of the cache-line ping-pong.
struct BenchRound {
  double line_ns = 0;  ///< Mean ping-pong time before and after the round; 0 if it could not be measured.
  double get_p50_ns = 0, put_p50_ns = 0;
  double operations_per_s = 0;
  // Bytes per second; 0 for small values. memcpy_cached copies one block, memcpy_memory many; memcpy_get copies from as
  // many blocks as there are keys to one, memcpy_put the other way.
  double memcpy_cached = 0, memcpy_memory = 0, memcpy_get = 0, memcpy_put = 0;
};

struct BenchResult {
  BenchArguments arguments;                 ///< With the defaults filled in.
  WaitPolicy wait = WaitPolicy::kAdaptive;  ///< The client's.
  std::string endpoint, server;
  Environment environment;
  std::optional<Line> line;
  std::string line_problem;                   ///< Why `line` is empty.
  Histogram gets, puts;                       ///< In ticks.
  std::array<std::uint64_t, 256> failures{};  ///< Indexed by status.
  kv::LookupCounters lookups;                 ///< How gets found their items.
  double item_bytes = 0;                      ///< Server memory per key; 0: unknown.
  double seconds = 0;                         ///< Length of the rounds, without the measurements between them.
  std::vector<BenchRound> rounds;

  [[nodiscard]] std::uint64_t operations() const noexcept { return gets.count() + puts.count(); }
  /// The part of item_bytes that is neither key nor value.
  [[nodiscard]] double overhead_bytes() const noexcept {
    return item_bytes - static_cast<double>(arguments.key_bytes + arguments.value_bytes);
  }
};

/// Medians over the rounds; 0 if there is nothing to divide.
struct BenchSummary {
  double line_ns = 0, operations_per_s = 0, bytes_per_s = 0;
  double get_lines = 0, put_lines = 0;
  double memcpy_cached = 0, memcpy_memory = 0, memcpy_get = 0, memcpy_put = 0;
  double get_bytes_per_s = 0, put_bytes_per_s = 0;  ///< Value bytes by median latency; at depth 1 only.
};
[[nodiscard]] BenchSummary summarize(const BenchResult& result);

/// Several lines for people.
[[nodiscard]] std::string bench_text(const BenchResult& result);
/// One JSON object on one line.
[[nodiscard]] std::string bench_json(const BenchResult& result);

}  // namespace verbena::programs
