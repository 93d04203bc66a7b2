// Cores claimed by real processes: this program once more, as peers that race, are killed, and let go.
#include "child.hpp"
#include "deny.hpp"
#include "host/placement.hpp"
#include "machines.hpp"
#include "peer.hpp"
#include "process.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::host {
namespace {

using test::Peer;

constexpr int kNoCore = 9999;

/// Of this test only, so that neither other tests nor servers on this machine are met.
std::string scope_of(std::string_view name) { return std::string(name) + "-" + std::to_string(getpid()); }

TEST(CoreClaim, IsExclusiveAndEndsWithItsOwner) {
  const std::string scope = scope_of("exclusive");
  EXPECT_FALSE(CoreClaim::is_taken(3, scope));
  {
    auto claim = CoreClaim::take(3, scope);
    ASSERT_OK(claim);
    EXPECT_EQ(claim->core(), 3U);
    EXPECT_TRUE(CoreClaim::is_taken(3, scope));
    EXPECT_FALSE(CoreClaim::is_taken(30, scope)) << "another core";
    EXPECT_FALSE(CoreClaim::is_taken(3, scope + "x")) << "another scope";
    EXPECT_STATUS(CoreClaim::take(3, scope), Status::kBusy);
    const CoreClaim moved = std::move(*claim);
    EXPECT_STATUS(CoreClaim::take(3, scope), Status::kBusy);
    EXPECT_OK(CoreClaim::take(4, scope));
  }
  EXPECT_OK(CoreClaim::take(3, scope));
}

TEST(CoreClaim, AskingTakesNothing) {
  const std::string scope = scope_of("asking");
  const std::size_t before = test::open_descriptors();
  auto claim = CoreClaim::take(0, scope);
  ASSERT_OK(claim);
  // More often than a listening socket's queue is long.
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(CoreClaim::is_taken(0, scope)) << i;
  EXPECT_EQ(test::open_descriptors(), before + 1);
}

TEST(CoreClaim, LongScopesAreRefused) {
  EXPECT_STATUS(CoreClaim::take(0, std::string(65, 'x')), Status::kBadArgument);
  EXPECT_OK(CoreClaim::take(~0U, std::string(64, 'x')));
}

TEST(CoreClaim, IsFreeWhenItsProcessIsKilled) {
  const std::string scope = scope_of("killed");
  for (int round = 0; round < 20; ++round) {
    Peer holder({"hold", scope, "5"});
    ASSERT_EQ(holder.read_number(), 5);
    EXPECT_STATUS(CoreClaim::take(5, scope), Status::kBusy);
    // Stopped, it still has it.
    holder.pause();
    EXPECT_TRUE(CoreClaim::is_taken(5, scope));
    holder.kill();
    EXPECT_FALSE(CoreClaim::is_taken(5, scope));
    EXPECT_OK(CoreClaim::take(5, scope));
  }
}

/// Peers that all wait for the gate, then place themselves; the cores that they got.
struct Race {
  Race(const std::string& scope, int ranks, const std::string& cores, const std::string& pollers) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    // The peers inherit the reading end only: they go on when the writing end is closed here.
    EXPECT_EQ(fcntl(ends[1], F_SETFD, FD_CLOEXEC), 0);
    for (int i = 0; i < ranks; ++i) {
      peers.push_back(
          std::make_unique<Peer>(std::vector<std::string>{"place", scope, std::to_string(ends[0]), cores, pollers}));
    }
    for (auto& peer : peers) EXPECT_EQ(peer->read_number(), 0) << "did not start";
    close(ends[1]);
    close(ends[0]);
    const int each = std::atoi(pollers.c_str());
    for (auto& peer : peers) {
      std::set<int> own;
      for (int i = 0; i < each; ++i) {
        const int core = peer->read_number();
        EXPECT_GE(core, 0) << "ended";
        if (core == kNoCore) continue;
        EXPECT_TRUE(taken.insert(core).second) << "core " << core << " twice";
        own.insert(core);
      }
      cores_of.push_back(std::move(own));
    }
  }
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<std::set<int>> cores_of;
  std::set<int> taken;
};

TEST(CoreClaim, RanksNeverStackWhileCoresAreFree) {
  for (int round = 0; round < 5; ++round) {
    const std::string scope = scope_of("ranks" + std::to_string(round));
    const Race race(scope, 8, "8", "1");
    EXPECT_EQ(race.taken.size(), 8U) << "as many ranks as cores: each has one";
  }
}

TEST(CoreClaim, MoreRanksThanCoresWaitForEvents) {
  const std::string scope = scope_of("more");
  const Race race(scope, 12, "5", "1");
  EXPECT_EQ(race.taken.size(), 5U);
  std::size_t without = 0;
  for (const auto& own : race.cores_of) without += own.empty();
  EXPECT_EQ(without, 7U);
  // The eighth comes late, and its plan says why it has none.
  const auto topology = test::machine("core:5 pu:1", test::cpus(0, 4));
  ASSERT_OK(topology);
  const auto late = claim_placement(*topology, {}, scope);
  ASSERT_OK(late);
  EXPECT_EQ(late->plan.pollers[0].wait, WaitPolicy::kEvent);
  EXPECT_TRUE(late->claims.empty());
  EXPECT_NE(late->plan.why_no_core.find("no core of its own is left"), std::string::npos) << late->plan.why_no_core;
}

TEST(CoreClaim, SeveralPollersOfSeveralRanksNeverMeet) {
  const std::string scope = scope_of("several");
  Race race(scope, 4, "16", "3");
  EXPECT_EQ(race.taken.size(), 12U);
  // One dies: what it had is free for the next.
  const std::set<int> dead = race.cores_of[1];
  race.peers[1]->kill();
  const auto topology = test::machine("core:16 pu:1", test::cpus(0, 15));
  ASSERT_OK(topology);
  const auto next = claim_placement(*topology, {.pollers = 7}, scope);
  ASSERT_OK(next);
  EXPECT_EQ(next->claims.size(), 6U) << "four that nobody had and three of the dead, less the application's";
  for (const CoreClaim& claim : next->claims) {
    const auto core = static_cast<int>(claim.core());
    EXPECT_TRUE(dead.contains(core) || !race.taken.contains(core)) << core;
  }
}

TEST(CoreClaim, ClaimsAreThePlansCoresAndNoOthers) {
  const std::string scope = scope_of("plan");
  const auto topology = test::machine("core:6 pu:1", test::cpus(0, 5));
  ASSERT_OK(topology);
  const std::vector<unsigned> others{5};
  auto held = claim_placement(*topology, {.pollers = 3, .claimed = others}, scope);
  ASSERT_OK(held);
  ASSERT_EQ(held->claims.size(), 3U);
  EXPECT_EQ(held->plan.cores(), 3U);
  EXPECT_EQ(claimed_cores(*topology, scope), (std::vector<unsigned>{2, 3, 4}));
  held->claims.clear();
  EXPECT_TRUE(claimed_cores(*topology, scope).empty());
}

TEST(CoreClaim, WhereItIsDeniedThePlanGoesWithoutAndKeepsItsReasons) {
  EXPECT_TRUE(test::in_child([]() -> std::string {
    // Its third argument is 0, the protocol.
    if (!test::deny(SYS_socket, 0, EPERM)) return "no seccomp";
    const auto topology = test::machine("core:2 pu:1", test::cpus(0, 1));
    if (!topology) return topology.error().text();
    const auto held = claim_placement(*topology, {.pollers = 2}, "denied");
    if (!held) return held.error().text();
    if (!held->claims.empty() || held->plan.cores() != 1) return "not the plan that was expected";
    std::string words;
    for (const std::string& sentence : held->plan.words) words += sentence + "\n";
    if (words.find("is not claimed, so others may poll there too") == std::string::npos ||
        words.find("run as the user") != std::string::npos)
      return words;
    return held->plan.why_no_core.starts_with("Poller 1 waits by the policy `event`: no core") ? "" : words;
  }));
}

int place(const char* scope, int gate, unsigned cores, unsigned pollers) {
  const std::string synthetic = "core:" + std::to_string(cores) + " pu:1";
  const auto topology = test::machine(synthetic, test::cpus(0, cores - 1));
  if (!topology) return 1;
  std::puts("0");
  std::fflush(stdout);
  char byte = 0;
  if (read(gate, &byte, 1) != 0) return 1;
  const auto held = claim_placement(*topology, {.pollers = pollers}, scope);
  if (!held) return 1;
  for (const PlacedPoller& poller : held->plan.pollers)
    std::printf("%d\n", poller.core ? static_cast<int>(poller.core->id) : kNoCore);
  std::fflush(stdout);
  for (;;) pause();  // Until the test kills it.
}

int hold(const char* scope, unsigned core) {
  const auto claim = CoreClaim::take(core, scope);
  std::printf("%d\n", claim ? static_cast<int>(core) : kNoCore);
  std::fflush(stdout);
  for (;;) pause();
}

int peer_main(int argc, char** argv) {
  const auto number = [&](int i) { return static_cast<unsigned>(std::strtoul(argv[i], nullptr, 10)); };
  if (argc == 5 && std::string_view(argv[2]) == "hold") return hold(argv[3], number(4));
  if (argc == 7 && std::string_view(argv[2]) == "place")
    return place(argv[3], static_cast<int>(number(4)), number(5), number(6));
  return 2;
}

}  // namespace
}  // namespace verbena::host

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc <= 1 || std::string_view(argv[1]) != "peer") return RUN_ALL_TESTS();
  verbena::test::die_with_the_test();
  return verbena::host::peer_main(argc, argv);
}
