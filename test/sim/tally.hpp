// What many runs come to: counts, and which faults met what.
#pragma once

#include "scenario.hpp"

#include <array>
#include <map>
#include <string>

namespace verbena::sim {

/// Of the runs of one scenario.
class Tally {
 public:
  void add(const RunResult& result);
  [[nodiscard]] std::uint64_t runs() const noexcept { return runs_; }
  [[nodiscard]] std::uint64_t failed() const noexcept { return failed_; }
  /// One line, which scripts/run_tests.py reads.
  void print_summary(const Scenario& scenario) const;
  /// How often each fault met a process in each state that the scenario knows; what never met is shown as well.
  void print_coverage(const Scenario& scenario) const;

 private:
  using Counts = std::array<std::uint64_t, Fault::kKinds>;

  std::uint64_t runs_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t undecided_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t overlapping_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t kills_ = 0;
  std::uint64_t restarts_ = 0;
  std::map<std::string, Counts, std::less<>> met_;  // By state.
};

}  // namespace verbena::sim
