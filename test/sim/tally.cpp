#include "tally.hpp"

#include <algorithm>
#include <numeric>

namespace verbena::sim {

void Tally::add(const RunResult& result) {
  ++runs_;
  failed_ += result.wrong.empty() ? 0 : 1;
  undecided_ += result.undecided != 0 ? 1 : 0;
  calls_ += result.calls;
  overlapping_ += result.overlapping;
  events_ += result.events;
  restarts_ += result.restarts;
  for (const Fault& fault : result.faults) {
    if (fault.state.empty()) continue;  // It did not happen: its process was gone, say.
    ++met_[fault.state][static_cast<std::size_t>(fault.kind)];
    kills_ += fault.kind == Fault::Kind::kKill ? 1 : 0;
  }
}

void Tally::print_summary(const Scenario& scenario) const {
  fmt::print("{}: {} runs, {} failed, {} undecided, {} calls, {} overlapping, {} events, {} kills, {} restarts\n",
             scenario.name, runs_, failed_, undecided_, calls_, overlapping_, events_, kills_, restarts_);
}

void Tally::print_coverage(const Scenario& scenario) const {
  std::map<std::string, Counts, std::less<>> rows = met_;
  std::size_t width = 0, blind = 0;
  const auto print_row = [&](std::string_view state, const Counts& counts) {
    fmt::print("  {:<{}}", state, width);
    for (const std::uint64_t count : counts) fmt::print("{:>15}", count);
    fmt::print("\n");
    blind += static_cast<std::size_t>(std::ranges::count(counts, std::uint64_t{0}));
  };
  for (const std::string_view state : scenario.states) width = std::max(width, state.size());
  for (const auto& [state, counts] : rows) width = std::max(width, state.size());
  fmt::print("{}: what a process was doing when a fault happened\n  {:<{}}", scenario.name, "", width);
  for (std::size_t kind = 0; kind < Fault::kKinds; ++kind)
    fmt::print("{:>15}", to_string(static_cast<Fault::Kind>(kind)));
  fmt::print("\n");
  for (const std::string_view state : scenario.states) {
    const auto at = rows.find(state);
    print_row(state, at == rows.end() ? Counts{} : at->second);
    if (at != rows.end()) rows.erase(at);
  }
  // States that the scenario has not named.
  for (const auto& [state, counts] : rows) print_row(state, counts);
  fmt::print("  {} of them never met\n", blind);
}

}  // namespace verbena::sim
