// What becomes of runs that fail, crash, do not end or differ from themselves.
#include "runner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::sim {
namespace {

constexpr std::size_t kFaults = 6;

/// A run with six faults of which the last does not happen. `fails` is asked with those that do.
template <class Fails>
RunResult run_with_faults(const RunOptions& options, const Fails& fails) {
  RunResult result{.hash = options.seed, .events = 7};
  std::vector<std::size_t> happened;
  for (std::size_t i = 0; i < kFaults; ++i) {
    Fault fault{.kind = static_cast<Fault::Kind>(i), .process = static_cast<unsigned>(i), .at = 10 * i, .time = i};
    const bool is_left_out = std::ranges::find(options.without, i) != options.without.end();
    if (i + 1 != kFaults && !is_left_out) {
      fault.state = "in a state of two words";
      happened.push_back(i);
    }
    if (options.on_fault) options.on_fault(i, fault);
    result.faults.push_back(std::move(fault));
  }
  if (fails(happened)) result.wrong = "it went wrong,\nand that takes two lines";
  return result;
}
bool has(const std::vector<std::size_t>& happened, std::size_t place) {
  return std::ranges::find(happened, place) != happened.end();
}

RunResult run_well(const RunOptions& options) {
  return run_with_faults(options, [](const auto&) { return false; });
}
/// The seed says how.
RunResult run_badly(const RunOptions& options) {
  return run_with_faults(options, [&](const auto& happened) {
    if (options.seed == 3 && has(happened, 2)) std::abort();
    return has(happened, 1) && has(happened, 4);
  });
}
RunResult run_for_ever(const RunOptions&) {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds{1});
}
RunResult run_otherwise(const RunOptions& options) {
  static unsigned runs = 0;
  RunResult result = run_well(options);
  result.events += ++runs;
  return result;
}

const Scenario kWell{.name = "well", .about = "", .run = run_well, .states = {}};
const Scenario kBadly{.name = "badly", .about = "", .run = run_badly, .states = {}};
const Scenario kEndless{.name = "for ever", .about = "", .run = run_for_ever, .states = {}};
const Scenario kOtherwise{.name = "otherwise", .about = "", .run = run_otherwise, .states = {}};
constexpr Limits kLimits{.jobs = 2, .each = std::chrono::seconds{60}};

TEST(Runner, ResultsComeWhole) {
  const RunResult result = run_job(kLimits, {.scenario = &kBadly, .options = {.seed = 12}});
  EXPECT_EQ(result.wrong, "it went wrong,\nand that takes two lines");
  EXPECT_EQ(result.hash, 12U);
  EXPECT_EQ(result.events, 7U);
  ASSERT_EQ(result.faults.size(), kFaults);
  EXPECT_EQ(result.faults[3].kind, Fault::Kind::kCutFrom);
  EXPECT_EQ(result.faults[3].process, 3U);
  EXPECT_EQ(result.faults[3].at, 30U);
  EXPECT_EQ(result.faults[3].time, 3U);
  EXPECT_EQ(result.faults[3].state, "in a state of two words");
  EXPECT_EQ(result.faults[5].state, "");
}

TEST(Runner, ACrashIsTheFailureOfItsSeedAndTheRestGoesOn) {
  std::uint64_t seed = 0;
  std::vector<std::uint64_t> crashed, others;
  run_jobs(
      kLimits,
      [&]() -> std::optional<Job> {
        if (seed == 6) return std::nullopt;
        return Job{.scenario = &kBadly, .options = {.seed = ++seed, .without = {1}}};
      },
      [&](const Job& job, const RunResult& result) {
        (result.wrong.starts_with("the run crashed with signal 6") ? crashed : others).push_back(job.options.seed);
        EXPECT_EQ(result.faults.size(), kFaults);
      });
  EXPECT_EQ(crashed, std::vector<std::uint64_t>{3});
  EXPECT_EQ(others.size(), 5U);
}

TEST(Runner, ARunWithoutAnEndIsEnded) {
  const Limits limits{.jobs = 1, .each = std::chrono::seconds{1}};
  EXPECT_EQ(run_job(limits, {.scenario = &kEndless}).wrong, "the run did not end in the time that it may take");
}

TEST(Runner, ARunThatDiffersFromItselfIsWrong) {
  EXPECT_EQ(run_job(kLimits, {.scenario = &kWell, .options = {.seed = 5}, .is_twice = true}).wrong, "");
  EXPECT_EQ(run_job(kLimits, {.scenario = &kOtherwise, .options = {.seed = 5}}).wrong, "");
  EXPECT_TRUE(run_job(kLimits, {.scenario = &kOtherwise, .options = {.seed = 5}, .is_twice = true})
                  .wrong.starts_with("seed 5 does not repeat: 8 events"));
}

TEST(Runner, FaultsThatAFailureDoesNotNeedAreLeftOut) {
  const Job job{.scenario = &kBadly, .options = {.seed = 12}};
  Shrunk shrunk = shrink(kLimits, job, run_job(kLimits, job), std::chrono::seconds{60});
  std::ranges::sort(shrunk.without);
  EXPECT_EQ(shrunk.without, (std::vector<std::size_t>{0, 2, 3, 5}));
  EXPECT_TRUE(shrunk.is_least);
  EXPECT_FALSE(shrunk.result.wrong.empty());
}

TEST(Runner, FaultsOfACrashAreLeftOutToo) {
  const Job job{.scenario = &kBadly, .options = {.seed = 3, .without = {0, 4}}};
  Shrunk shrunk = shrink(kLimits, job, run_job(kLimits, job), std::chrono::seconds{60});
  std::ranges::sort(shrunk.without);
  EXPECT_EQ(shrunk.without, (std::vector<std::size_t>{0, 1, 3, 4, 5}));
  EXPECT_NE(shrunk.result.wrong.find("signal 6"), std::string::npos);
}

}  // namespace
}  // namespace verbena::sim
