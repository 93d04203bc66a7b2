// Random programs of work requests run on the simulated NIC and on the soft NIC, and on the device that VERBENA_NIC
// names. Both tell the same completions and leave the same memory, wherever the specification decides.
//
// VERBENA_SEEDS: programs (120). One again: `test_sim_differential --seed N`, with `--trace` for its story.
#include "program.hpp"
#include "sim_nic.hpp"
#include "stage.hpp"

#include "device.hpp"
#include "environment.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace verbena::sim {
namespace {

std::optional<std::uint64_t> only_seed;
bool is_told = false;

constexpr Nanoseconds kSettled = 20'000'000;  // Longer than all retries of a request.

struct Simulated {
  Outcome outcome;
  std::uint64_t hash = 0;
  std::uint64_t events = 0;
};

/// `world` is the seed of all that the specification leaves open.
Simulated run_simulated(const Program& program, Mutant mutant, std::uint64_t world) {
  Network network({.seed = world, .story = is_told ? stderr : nullptr, .mutant = mutant, .polls_pass_time = false});
  SimNic first(network.add_process("Ada"));
  SimNic second(network.add_process("Bob"));
  Stage stage(first, second, program);
  Simulated run;
  run.outcome = stage.run([&](Stage& one, std::size_t) {
    network.world().run_for(kSettled);
    while (one.collect()) {}
  });
  run.hash = network.world().hash();
  run.events = network.world().events();
  return run;
}

/// On NICs in real time: until there are as many completions as there should be, and a little longer for more.
Outcome run_in_real_time(nic::Nic& first, nic::Nic& second, const Program& program, const Outcome& expected) {
  constexpr int kLonger = 64;
  Stage stage(first, second, program);
  return stage.run([&](Stage& one, std::size_t phase) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(3));
    const auto is_complete = [&] {
      const auto counts = one.counts();
      for (const auto& [queue, count] : expected.counts[phase]) {
        const auto at = counts.find(queue);
        if (count != 0 && (at == counts.end() || at->second < count)) return false;
      }
      return true;
    };
    while (!is_complete() && !deadline.passed()) (void)one.collect();
    for (int i = 0; i < kLonger; ++i) (void)one.collect();
  });
}

/// The first difference, in words; empty: there is none.
std::string difference(const Program& program, const Outcome& one, const Outcome& other) {
  for (std::uint32_t side = 0; side < 2; ++side) {
    for (std::uint32_t pair = 0; pair < program.pairs.size(); ++pair) {
      for (const bool is_send : {true, false}) {
        const auto list = [&](const Outcome& outcome) {
          const auto at = outcome.told.find({side, pair, is_send});
          return at == outcome.told.end() ? std::vector<std::string>() : at->second;
        };
        const auto first = list(one), second = list(other);
        for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
          const std::string a = i < first.size() ? first[i] : "nothing";
          const std::string b = i < second.size() ? second[i] : "nothing";
          if (a != b)
            return fmt::format("side {}, pair {}, {}: \"{}\" and \"{}\"", side, pair, is_send ? "sends" : "receives", a,
                               b);
        }
      }
    }
  }
  auto memory = one.memory, others = other.memory;
  for (const auto& [side, range] : open_ranges(program, one)) {
    const std::size_t end = std::min(range.offset + range.length, memory[side].size());
    for (std::size_t i = range.offset; i < end; ++i) memory[side][i] = others[side][i] = std::byte{0};
  }
  for (std::uint32_t side = 0; side < 2; ++side) {
    for (std::size_t i = 0; i < memory[side].size(); ++i) {
      if (memory[side][i] != others[side][i]) return fmt::format("byte {} of side {}", i, side);
    }
  }
  return {};
}

std::uint64_t seeds() { return test::number_in("VERBENA_SEEDS", 1) * 120; }

template <class Check>
void for_each_seed(Check check) {
  if (only_seed) return check(*only_seed);
  for (std::uint64_t seed = 1; seed <= seeds() && !testing::Test::HasFailure(); ++seed) check(seed);
}

void compare_with(Result<std::unique_ptr<nic::Nic>> (*open)(), const char* name) {
  auto first = open(), second = open();
  ASSERT_OK(first);
  ASSERT_OK(second);
  for_each_seed([&](std::uint64_t seed) {
    const Program program = make_program(seed);
    const Outcome expected = run_simulated(program, Mutant::kNone, program.seed).outcome;
    const Outcome found = run_in_real_time(**first, **second, program, expected);
    EXPECT_EQ(difference(program, expected, found), "")
        << "between the simulated NIC and the " << name << " one; again with: test_sim_differential --trace --seed "
        << seed;
  });
}

TEST(Differential, SoftNic) {
  compare_with([] { return nic::open_soft({}); }, "soft");
}

TEST(Differential, Device) {
  if (test::device_under_test() == nullptr) GTEST_SKIP() << "VERBENA_NIC names no RDMA device";
  compare_with(test::open_device_under_test, test::device_under_test());
}

// --- the simulation itself

// What a program leaves to chance would be a difference between NICs, and none of their faults.
TEST(Programs, LeaveNothingOpen) {
  for_each_seed([](std::uint64_t seed) {
    const Program program = make_program(seed);
    const Outcome once = run_simulated(program, Mutant::kNone, seed).outcome;
    for (std::uint64_t world = 1; world <= 3; ++world) {
      const Outcome other = run_simulated(program, Mutant::kNone, seed + world * 1000000).outcome;
      EXPECT_EQ(difference(program, once, other), "") << "seed " << seed << ", world " << world;
    }
  });
}

TEST(Determinism, ASeedRepeatsItsRun) {
  std::uint64_t events = 0;
  std::set<std::uint64_t> hashes;
  std::uint64_t runs = 0;
  for_each_seed([&](std::uint64_t seed) {
    const Program program = make_program(seed);
    const Simulated once = run_simulated(program, Mutant::kNone, program.seed);
    const Simulated again = run_simulated(program, Mutant::kNone, program.seed);
    EXPECT_EQ(once.hash, again.hash) << "seed " << seed;
    EXPECT_EQ(difference(program, once.outcome, again.outcome), "") << "seed " << seed;
    hashes.insert(once.hash);
    events += once.events;
    ++runs;
  });
  EXPECT_EQ(hashes.size(), runs) << "two seeds have the same run";
  fmt::print("{} runs, {} events\n", runs, events);
}

class Mutants : public testing::TestWithParam<Mutant> {};

// The programs would find a NIC that is wrong: each planted mistake shows within a few of them.
TEST_P(Mutants, AreFound) {
  constexpr std::uint64_t kMostSeeds = 400;
  for (std::uint64_t seed = 1; seed <= kMostSeeds; ++seed) {
    const Program program = make_program(seed);
    const Outcome right = run_simulated(program, Mutant::kNone, program.seed).outcome;
    const Outcome wrong = run_simulated(program, GetParam(), program.seed).outcome;
    const std::string found = difference(program, right, wrong);
    if (found.empty()) continue;
    fmt::print("{}: found by seed {}: {}\n", to_string(GetParam()), seed, found);
    return;
  }
  ADD_FAILURE() << to_string(GetParam()) << " is not found by " << kMostSeeds << " seeds";
}
INSTANTIATE_TEST_SUITE_P(Each, Mutants,
                         testing::Values(Mutant::kWriteBehind, Mutant::kNoAccessCheck, Mutant::kFlushBackwards,
                                         Mutant::kRnrCounted, Mutant::kKeyNotRotated),
                         [](const auto& each) { return std::string(to_string(each.param)); });

}  // namespace
}  // namespace verbena::sim

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--trace") verbena::sim::is_told = true;
    if (std::string_view(argv[i]) == "--seed" && i + 1 < argc) {
      verbena::sim::only_seed = std::strtoull(argv[++i], nullptr, 10);
    }
  }
  return RUN_ALL_TESTS();
}
