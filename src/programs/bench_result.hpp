// What a bench measured, and how it is printed.
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

/// Figures of one round, which lies between two measurements of the line.
struct BenchRound {
  double line_ns = 0;  ///< Mean of the line before and after; 0 when it could not be measured.
  double get_p50_ns = 0, put_p50_ns = 0;
  double operations_per_s = 0;
  // Bytes a second; 0 for small values. Of one block; of many; from as many as there are keys to one; and back.
  double memcpy_cached = 0, memcpy_memory = 0, memcpy_get = 0, memcpy_put = 0;
};

struct BenchResult {
  BenchArguments arguments;                 ///< With the defaults filled in.
  WaitPolicy wait = WaitPolicy::kAdaptive;  ///< The client's.
  std::string endpoint, server;
  Environment environment;
  std::optional<Line> line;
  std::string line_problem;                   ///< Why there is no line.
  Histogram gets, puts;                       ///< In ticks.
  std::array<std::uint64_t, 256> failures{};  ///< By status.
  kv::LookupCounters lookups;                 ///< How gets came by their items.
  double item_bytes = 0;                      ///< Of the server's memory that each key took; 0: unknown.
  double seconds = 0;                         ///< Of the rounds, without the measurements between them.
  std::vector<BenchRound> rounds;

  [[nodiscard]] std::uint64_t operations() const noexcept { return gets.count() + puts.count(); }
  /// Of item_bytes, what is neither key nor value.
  [[nodiscard]] double overhead_bytes() const noexcept {
    return item_bytes - static_cast<double>(arguments.key_bytes + arguments.value_bytes);
  }
};

/// Medians over the rounds; 0 where there is nothing to divide.
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
