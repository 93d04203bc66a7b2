// Runs of scenarios, each in a child process of its own: one that crashes, or does not end, is a failure like any
// other.
#pragma once

#include "scenario.hpp"

#include <chrono>
#include <functional>
#include <optional>

namespace verbena::sim {

struct Job {
  const Scenario* scenario = nullptr;
  RunOptions options{};
  /// Run it a second time in the same process. A run that differs from itself is wrong.
  bool is_twice = false;
};

struct Limits {
  unsigned jobs = 1;              ///< Children at a time.
  std::chrono::seconds each{60};  ///< Real time that one child may take.
};

/// Runs what `next` gives until it gives nothing more. `done` is told of each, in the order in which they end.
void run_jobs(const Limits& limits, const std::function<std::optional<Job>()>& next,
              const std::function<void(const Job& job, RunResult result)>& done);

[[nodiscard]] RunResult run_job(const Limits& limits, const Job& job);

/// Which faults a failing run needs.
struct Shrunk {
  std::vector<std::size_t> without;  ///< All others.
  RunResult result;                  ///< Of the run with those that it needs.
  unsigned runs = 0;
  bool is_least = true;  ///< False: the time was over before everything had been tried.
};
/// Leaves out faults of a failing run one by one, as long as it fails without them.
[[nodiscard]] Shrunk shrink(const Limits& limits, const Job& job, const RunResult& failed, std::chrono::seconds most);

}  // namespace verbena::sim
