// Runs simulations of whole systems by seed: see docs/simulation.md.
#include "mutants.hpp"
#include "runner.hpp"
#include "scenario.hpp"
#include "tally.hpp"

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

using namespace verbena::sim;

namespace {

using Clock = std::chrono::steady_clock;

/// Failing seeds whose faults are cut down, and the time for each.
constexpr std::size_t kMostShrunk = 5;
constexpr std::chrono::seconds kShrinkTime{60};
/// From so many runs on the coverage is worth a table.
constexpr std::uint64_t kManyRuns = 100;
/// Of few runs each gets a line.
constexpr std::uint64_t kFewRuns = 20;

struct Settings {
  std::vector<std::string> scenarios;
  std::string kept;
  std::optional<std::uint64_t> seed;
  std::uint64_t from = 1;
  std::uint64_t seeds = 1;
  unsigned seconds = 0;
  unsigned jobs = 1;
  unsigned limit = 60;
  unsigned twice = 0;
  std::vector<std::size_t> without;
  bool traces = false;
  bool shrinks = true;
  bool has_coverage = false;
};

struct Seed {
  const Scenario* scenario = nullptr;
  std::uint64_t number = 0;
};

struct Failure {
  Job job;
  RunResult result;
};

/// Probably run by nobody before; short, since people type it again.
std::uint64_t fresh_seed() {
  std::uint32_t word = 0;
  if (::getrandom(&word, sizeof word, GRND_NONBLOCK) != sizeof word)
    word = static_cast<std::uint32_t>(Clock::now().time_since_epoch().count());
  return word;
}

/// Lines of a scenario, a seed, and why it is kept; empty where one of them is wrong, which has been said.
std::vector<Seed> read_kept(const std::string& path) {
  std::vector<Seed> kept;
  std::ifstream file(path);
  if (!file) fmt::print(stderr, "verbena-simulate: cannot read {}\n", path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string name;
    Seed seed;
    words >> name >> seed.number;
    seed.scenario = find_scenario(name);
    if (words.fail() || seed.scenario == nullptr) {
      fmt::print(stderr, "verbena-simulate: {} says \"{}\": that is no scenario and seed\n", path, line);
      return {};
    }
    kept.push_back(seed);
  }
  return kept;
}

std::string command_for(const Job& job, const std::vector<std::size_t>& without) {
  return fmt::format("verbena-simulate --scenario {} --seed {}{}{} --trace", job.scenario->name, job.options.seed,
                     without.empty() ? "" : " --without ", fmt::join(without, ","));
}

/// All runs of one call of the program.
class Simulation {
 public:
  explicit Simulation(Settings settings) : settings_(std::move(settings)) {}
  /// The exit code.
  int run();

 private:
  bool plan();
  std::optional<Job> next();
  void take(const Job& job, RunResult result);
  void shrink_failures() const;
  void print_summary() const;
  [[nodiscard]] Limits limits() const noexcept {
    return {.jobs = settings_.jobs, .each = std::chrono::seconds(settings_.limit)};
  }

  const Settings settings_;
  const Clock::time_point begin_ = Clock::now();
  std::vector<const Scenario*> scenarios_;
  std::vector<Seed> kept_;
  std::uint64_t first_ = 0;
  std::uint64_t given_ = 0;  ///< Runs that have been begun.
  bool tells_each_ = false;
  std::map<std::string_view, Tally> tallies_;
  std::vector<Failure> failures_;
};

bool Simulation::plan() {
  if (settings_.scenarios.empty())
    for (const Scenario& scenario : scenarios()) scenarios_.push_back(&scenario);
  for (const std::string& name : settings_.scenarios) scenarios_.push_back(find_scenario(name));
  first_ = settings_.seed.value_or(settings_.from);
  if (!settings_.kept.empty()) {
    kept_ = read_kept(settings_.kept);
    tells_each_ = true;
    return !kept_.empty();
  }
  if (settings_.seconds != 0) {
    first_ = fresh_seed();
    fmt::print("fresh seeds from {} on, for {} s\n", first_, settings_.seconds);
    return true;
  }
  if (!settings_.seed) fmt::print("seeds from {} on, {} of each scenario\n", first_, settings_.seeds);
  tells_each_ = settings_.seed || settings_.seeds <= kFewRuns;
  return true;
}

/// Each seed runs in every scenario before the next seed does.
std::optional<Job> Simulation::next() {
  const std::uint64_t index = given_ / scenarios_.size();
  Seed seed{.scenario = scenarios_[given_ % scenarios_.size()], .number = first_ + index};
  if (!settings_.kept.empty()) {
    if (given_ == kept_.size()) return std::nullopt;
    seed = kept_[given_];
  } else if (settings_.seconds != 0) {
    if (Clock::now() - begin_ >= std::chrono::seconds(settings_.seconds)) return std::nullopt;
  } else if (index == (settings_.seed ? 1 : settings_.seeds)) {
    return std::nullopt;
  }
  ++given_;
  return Job{
      .scenario = seed.scenario,
      .options = {.seed = seed.number, .story = settings_.traces ? stdout : nullptr, .without = settings_.without},
      .is_twice = settings_.twice != 0 && index % settings_.twice == 0};
}

void Simulation::take(const Job& job, RunResult result) {
  tallies_[job.scenario->name].add(result);
  if (tells_each_)
    fmt::print("{} seed {}: {} calls, {} overlapping, {} events, {:.3f} ms, hash {:016x}\n", job.scenario->name,
               job.options.seed, result.calls, result.overlapping, result.events,
               static_cast<double>(result.time) / 1e6, result.hash);
  if (result.wrong.empty()) return;
  fmt::print("FAILED  {} seed {}: {}\n  again: {}\n", job.scenario->name, job.options.seed, result.wrong,
             command_for(job, job.options.without));
  failures_.push_back({.job = job, .result = std::move(result)});
}

void Simulation::shrink_failures() const {
  for (std::size_t i = 0; i < std::min(failures_.size(), kMostShrunk); ++i) {
    const auto& [job, result] = failures_[i];
    Shrunk shrunk = shrink(limits(), job, result, kShrinkTime);
    std::ranges::sort(shrunk.without);
    fmt::print("{} seed {}: ", job.scenario->name, job.options.seed);
    if (shrunk.without.size() >= result.faults.size()) {
      fmt::print("it fails without any fault\n");
    } else {
      fmt::print("it still fails with these faults alone{}:\n",
                 shrunk.is_least ? "" : " (there was no time to leave out more)");
    }
    for (std::size_t place = 0; place < shrunk.result.faults.size(); ++place)
      if (!std::ranges::binary_search(shrunk.without, place))
        fmt::print("    {}\n", to_text(shrunk.result.faults[place]));
    fmt::print("  and says: {}\n  again: {}\n", shrunk.result.wrong, command_for(job, shrunk.without));
  }
  if (failures_.size() > kMostShrunk) fmt::print("only the first {} failing seeds were looked into\n", kMostShrunk);
}

void Simulation::print_summary() const {
  for (const auto& [name, tally] : tallies_)
    if (settings_.has_coverage || tally.runs() > kManyRuns) tally.print_coverage(*find_scenario(name));
  for (const auto& [name, tally] : tallies_) tally.print_summary(*find_scenario(name));
  if (!failures_.empty()) {
    fmt::print("failed:\n");
    for (const Failure& failure : failures_)
      fmt::print("  {}\n", command_for(failure.job, failure.job.options.without));
  }
  fmt::print("{} runs, {} failed, {:.1f} s\n", given_, failures_.size(),
             std::chrono::duration<double>(Clock::now() - begin_).count());
}

int Simulation::run() {
  if (!plan()) return 2;
  run_jobs(
      limits(), [this] { return next(); }, [this](const Job& job, RunResult result) { take(job, std::move(result)); });
  if (settings_.shrinks) shrink_failures();
  print_summary();
  return failures_.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("Runs whole systems in one thread each, by seed, with faults");
  Settings settings;
  std::vector<std::string> names;
  std::string footer = "Scenarios:\n";
  for (const Scenario& scenario : scenarios()) {
    names.emplace_back(scenario.name);
    footer += fmt::format("  {}: {}\n", scenario.name, scenario.about);
  }
  app.footer(footer);
  app.add_option("--scenario", settings.scenarios, "Only these (default: all in turn)")->check(CLI::IsMember(names));
  auto* const one = app.add_option("--seed", settings.seed, "This seed");
  auto* const from = app.add_option("--from", settings.from, "First seed")->excludes(one)->capture_default_str();
  auto* const seeds =
      app.add_option("--seeds", settings.seeds, "How many, in each scenario")->excludes(one)->capture_default_str();
  auto* const seconds = app.add_option("--seconds", settings.seconds, "Fresh seeds until so many seconds are over");
  seconds->excludes(one)->excludes(from)->excludes(seeds);
  auto* const kept = app.add_option("--kept", settings.kept, "The seeds of a file, as test/sim/seeds.txt");
  kept->excludes(one)->excludes(from)->excludes(seeds)->excludes(seconds);
  app.add_option("--jobs", settings.jobs, "Runs at a time")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--limit", settings.limit, "Real seconds that a run may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--twice", settings.twice, "Run each seed, or one in N, twice: both runs must be the same")
      ->expected(0, 1)
      ->default_str("1")
      ->type_name("[N]");
  app.add_option("--without", settings.without, "Leave out these faults of the seed, by their places")->delimiter(',');
  app.add_flag("--trace", settings.traces, "Tell the story of each run, in plain words; leaves no faults out");
  app.add_flag("--shrink,!--no-shrink", settings.shrinks, "Find the faults that a failing seed needs")
      ->default_str("true");
  app.add_flag("--coverage", settings.has_coverage, "Show which faults met what, even after few runs");
  std::string mutant;
  app.add_option("--mutant", mutant, "Make this mistake of mutate.py in each run");
  Hunt hunt;
  bool is_hunt = false;
  app.add_flag("--mutants", is_hunt, "Count the seeds, from --from on, until each mistake of mutate.py is found");
  app.add_option("--most-seeds", hunt.most_seeds, "How many seeds it may take")->capture_default_str();
  app.add_option("--starts", hunt.starts, "Count so often, each time from other seeds on")->capture_default_str();
  CLI11_PARSE(app, count, arguments);
  if (settings.traces) {
    settings.jobs = 1;  // One story at a time.
    settings.shrinks = false;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!mutant.empty() && !plant(mutant)) {
    fmt::print(stderr, "verbena-simulate: mutate.py has no mistake {}\n", mutant);
    return 2;
  }
  if (is_hunt) {
    hunt.only = mutant;
    hunt.from = settings.from;
    return hunt_mutants(hunt);
  }
  return Simulation(std::move(settings)).run();
}
