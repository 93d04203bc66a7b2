#include "host/placement.hpp"

#include "host/arena.hpp"
#include "machines.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace verbena::host {
namespace {

using test::cpus;
using test::machine;

std::string words_of(const Placement& plan) {
  std::string text;
  for (const std::string& sentence : plan.words) text += sentence + "\n";
  return text;
}

bool says(const Placement& plan, const std::string& part) { return words_of(plan).find(part) != std::string::npos; }

/// What every plan keeps to, whatever it was made for.
void check_rules(const Topology& topology, const PlacementRequest& request, const Placement& plan) {
  ASSERT_EQ(plan.pollers.size(), request.pollers);
  std::set<unsigned> ids;
  for (const PlacedPoller& poller : plan.pollers) {
    if (!poller.core) {
      EXPECT_NE(poller.wait, WaitPolicy::kSpin) << "without a core";
      continue;
    }
    EXPECT_TRUE(ids.insert(poller.core->id).second) << "two pollers on core " << poller.core->id;
    EXPECT_EQ(std::ranges::count(request.claimed, poller.core->id), 0) << poller.core->id;
    EXPECT_EQ(poller.wait, request.wait);
    if (topology.node_count() > 1 && poller.node) {
      EXPECT_EQ(*poller.node, poller.core->node);
    }
  }
  std::size_t free = 0;
  for (const Core& core : topology.cores()) free += std::ranges::count(request.claimed, core.id) == 0;
  if (free >= 2 && request.leave_a_core) {
    EXPECT_LT(ids.size(), free) << "no core is left to the application";
  }
  for (const std::string& sentence : plan.words) EXPECT_TRUE(sentence.ends_with('.')) << sentence;
}

Placement planned(const Topology& topology, const PlacementRequest& request) {
  auto plan = plan_placement(topology, request);
  EXPECT_OK(plan);
  if (!plan) return {};
  check_rules(topology, request, *plan);
  return std::move(*plan);
}

std::vector<unsigned> cpus_of(const Placement& plan) {
  std::vector<unsigned> at;
  for (const PlacedPoller& poller : plan.pollers)
    if (poller.core) at.push_back(poller.core->cpu);
  return at;
}

using Cpus = std::vector<unsigned>;

TEST(Placement, FastCoresOfAHybridProcessorComeFirst) {
  const auto topology = test::describe({.xml = test::hybrid_machine(), .mask = cpus(0, 7)});
  ASSERT_OK(topology);
  ASSERT_EQ(topology->cores().size(), 6U);
  // One thread of each fast core, then the others from the last one down; one is the application's.
  const Placement plan = planned(*topology, {.pollers = 6});
  EXPECT_EQ(cpus_of(plan), (Cpus{2, 0, 7, 6, 5}));
  EXPECT_TRUE(says(plan, "Cores are of several kinds: pollers take the fastest first.")) << words_of(plan);
  // Those are claimed, or outside the mask.
  EXPECT_EQ(cpus_of(planned(*topology, {.pollers = 1, .claimed = std::array{0U, 2U}})), Cpus{7});
  const auto frugal = test::describe({.xml = test::hybrid_machine(), .mask = cpus(4, 7)});
  ASSERT_OK(frugal);
  const Placement alike = planned(*frugal, {.pollers = 2});
  EXPECT_EQ(cpus_of(alike), (Cpus{7, 6}));
  EXPECT_FALSE(says(alike, "kinds")) << words_of(alike);
}

TEST(Placement, TwoSocketsFillTheDevicesNodeFirst) {
  const auto topology = machine(test::kTwoPlainSockets, cpus(0, 7));
  ASSERT_OK(topology);
  const Placement plan = planned(*topology, {.pollers = 6, .device = {.device = "mlx5_0", .nodes = {0}}});
  EXPECT_EQ(cpus_of(plan), (Cpus{3, 2, 1, 0, 7, 6}));
  EXPECT_EQ(plan.pollers[0].node, 0U);
  EXPECT_EQ(plan.pollers[5].node, 1U);
  EXPECT_TRUE(says(plan, "mlx5_0 is near NUMA node 0.")) << words_of(plan);
  EXPECT_TRUE(says(plan, "Poller 0 has the core of cpu 3 to itself, on node 0 near the device"));
  EXPECT_TRUE(says(plan, "Poller 4 has the core of cpu 7 to itself, on node 1 far from the device"));
}

TEST(Placement, DeviceOnTheSecondNode) {
  const auto topology = machine(test::kTwoPlainSockets, cpus(0, 7));
  ASSERT_OK(topology);
  const Placement plan = planned(*topology, {.pollers = 2, .device = {.device = "mlx5_1", .nodes = {1}}});
  EXPECT_EQ(cpus_of(plan), (Cpus{7, 6}));
  EXPECT_EQ(plan.pollers[0].node, 1U);
  // Without a core near it, memory is still there, for what waits by events.
  const Cpus claimed = cpus(0, 7);
  const Placement late =
      planned(*topology, {.pollers = 1, .device = {.device = "mlx5_1", .nodes = {1}}, .claimed = claimed});
  EXPECT_FALSE(late.pollers[0].core);
  EXPECT_EQ(late.pollers[0].node, 1U);
}

TEST(Placement, SubNumaClustersGoFromTheDevicesToItsSocketAndOn) {
  const auto topology = machine(test::kSubNuma, cpus(0, 7));
  ASSERT_OK(topology);
  ASSERT_EQ(topology->node_count(), 4U);
  const Placement plan = planned(*topology, {.pollers = 7, .device = {.device = "mlx5_0", .nodes = {1}}});
  EXPECT_EQ(cpus_of(plan), (Cpus{3, 2, 1, 0, 7, 6, 5}));
  EXPECT_TRUE(says(plan, "on node 1 near the device")) << words_of(plan);
  EXPECT_TRUE(says(plan, "on node 0 on the device's socket"));
  EXPECT_TRUE(says(plan, "on node 3 far from the device"));
}

TEST(Placement, SiblingsNeverPollBesideEachOther) {
  const auto topology = machine(test::kTwoSockets, cpus(0, 15));
  ASSERT_OK(topology);
  ASSERT_EQ(topology->cores().size(), 8U);
  EXPECT_EQ(topology->cores()[0].threads_there, 2U);
  const Placement plan = planned(*topology, {.pollers = 7});
  EXPECT_EQ(plan.cores(), 7U);
  EXPECT_TRUE(says(plan, "one thread of a core polls")) << words_of(plan);
}

TEST(Placement, SiblingsOfTwoProcessesAreOneCore) {
  // Two ranks, each bound to one of the two threads of the same cores.
  constexpr std::string_view kThreads = "core:4 pu:2(indexes=0,8,1,9,2,10,3,11)";
  const Cpus first{0, 1, 2, 3}, second{8, 9, 10, 11};
  const auto one = machine(kThreads, first);
  const auto two = machine(kThreads, second);
  ASSERT_OK(one);
  ASSERT_OK(two);
  const Placement plan = planned(*one, {});
  ASSERT_TRUE(plan.pollers[0].core);
  EXPECT_EQ(plan.pollers[0].core->cpu, 3U);
  const Cpus claimed{plan.pollers[0].core->id};
  const Placement other = planned(*two, {.claimed = claimed});
  ASSERT_TRUE(other.pollers[0].core);
  EXPECT_EQ(other.pollers[0].core->cpu, 10U) << "not 11, the sibling of 3";
}

TEST(Placement, OneCpuWaitsForEvents) {
  for (const Pin pin : {Pin::kYes, Pin::kNo}) {
    const auto topology = machine("core:1 pu:2", {0});
    ASSERT_OK(topology);
    for (const WaitPolicy wait : {WaitPolicy::kSpin, WaitPolicy::kAdaptive, WaitPolicy::kEvent}) {
      const Placement plan = planned(*topology, {.pollers = 3, .wait = wait, .pin = pin});
      EXPECT_EQ(plan.cores(), 0U);
      for (const PlacedPoller& poller : plan.pollers) EXPECT_EQ(poller.wait, WaitPolicy::kEvent);
      EXPECT_TRUE(plan.why_no_core.starts_with("Pollers 0 to 2 wait by the policy `event`: there is one cpu"))
          << words_of(plan);
    }
  }
}

TEST(Placement, OfOneCoreWithTwoHyperThreadsOnePolls) {
  const auto topology = machine("core:1 pu:2", cpus(0, 1));
  ASSERT_OK(topology);
  const Placement plan = planned(*topology, {.pollers = 2});
  EXPECT_EQ(cpus_of(plan), (Cpus{0}));
  EXPECT_EQ(plan.pollers[0].wait, WaitPolicy::kAdaptive);
  EXPECT_EQ(plan.pollers[1].wait, WaitPolicy::kEvent);
  EXPECT_TRUE(plan.why_no_core.starts_with("Poller 1 waits by the policy `event`: no core of its own is left"))
      << words_of(plan);
  EXPECT_EQ(planned(*topology, {.wait = WaitPolicy::kAdaptive, .pin = Pin::kNo}).pollers[0].wait,
            WaitPolicy::kAdaptive);
}

TEST(Placement, NoCoreIsLeftToPollersThatAreTheApplication) {
  const auto topology = machine("core:4 pu:1", cpus(0, 3));
  ASSERT_OK(topology);
  const Placement all = planned(*topology, {.pollers = 4, .leave_a_core = false});
  EXPECT_EQ(cpus_of(all), (Cpus{3, 2, 1, 0}));
  EXPECT_EQ(all.why_no_core, "");
  EXPECT_FALSE(says(all, "left to the application")) << words_of(all);
  const Placement more = planned(*topology, {.pollers = 5, .leave_a_core = false});
  EXPECT_EQ(more.cores(), 4U);
  EXPECT_TRUE(more.why_no_core.starts_with("Poller 4 waits by the policy `event`: no core of its own is left"))
      << words_of(more);
}

TEST(Placement, TooManyPollersWaitForEventsAndOneCoreIsLeft) {
  const auto topology = machine("core:4 pu:1", cpus(0, 3));
  ASSERT_OK(topology);
  const Placement plan = planned(*topology, {.pollers = 9, .wait = WaitPolicy::kSpin});
  EXPECT_EQ(cpus_of(plan), (Cpus{3, 2, 1}));
  EXPECT_EQ(plan.pollers[3].wait, WaitPolicy::kEvent);
  EXPECT_TRUE(says(plan, "One core is left to the application.")) << words_of(plan);
  EXPECT_TRUE(says(plan, "Pollers 3 to 8 wait by the policy `event`: no core of its own is left"));
}

TEST(Placement, TheLastFreeCoreIsTakenWhenOthersHaveTheRest) {
  const auto topology = machine("core:3 pu:1", cpus(0, 2));
  ASSERT_OK(topology);
  const Cpus two{1, 2};
  const Placement last = planned(*topology, {.claimed = two});
  EXPECT_EQ(cpus_of(last), (Cpus{0}));
  EXPECT_TRUE(says(last, "Cores of cpus 1 and 2 are claimed already.")) << words_of(last);
  const Cpus all{0, 1, 2};
  const Placement none = planned(*topology, {.claimed = all});
  EXPECT_EQ(none.pollers[0].wait, WaitPolicy::kEvent);
  EXPECT_TRUE(says(none, "Poller 0 waits by the policy `event`: no core of its own is left")) << words_of(none);
}

TEST(Placement, RestrictedMasksAndCpusetsAreObeyedAndSaid) {
  const Cpus mask{1, 4, 5, 6};
  const auto topology = machine(test::kTwoPlainSockets, mask);
  ASSERT_OK(topology);
  const Placement plan = planned(*topology, {.pollers = 3, .device = {.device = "mlx5_0", .nodes = {0}}});
  EXPECT_EQ(cpus_of(plan), (Cpus{1, 6, 5}));
  EXPECT_TRUE(says(plan, "The machine has 8 cpus, 4 outside the affinity mask; this process may use 4"))
      << words_of(plan);
}

TEST(Placement, OfflineCoresAndCpusetsFromXml) {
  const std::string xml = test::xml_machine();
  const Cpus mask = cpus(0, 7);
  const auto topology = test::describe({.xml = xml, .mask = mask});
  ASSERT_OK(topology);
  EXPECT_EQ(topology->counts().there, 8U);
  EXPECT_EQ(topology->counts().online, 6U);
  EXPECT_EQ(topology->counts().allowed, 4U);
  EXPECT_EQ(topology->counts().usable, 4U);
  ASSERT_EQ(topology->cores().size(), 4U);
  const Placement plan = planned(*topology, {.pollers = 3, .device = {.device = "mlx5_7", .nodes = {1}}});
  EXPECT_EQ(cpus_of(plan), (Cpus{3, 2, 1}));
  EXPECT_TRUE(says(plan, "8 cpus, 2 of them offline, 2 kept by the cgroup's cpuset; this process may use 4: 4 cores"))
      << words_of(plan);
}

TEST(Placement, WithoutHwlocTheMaskIsTheMachine) {
  const Cpus mask{2, 5};
  const auto topology = test::describe({.mask = mask});
  ASSERT_OK(topology);
  const Placement plan = planned(*topology, {.pollers = 2});
  EXPECT_EQ(cpus_of(plan), (Cpus{5}));
  EXPECT_FALSE(plan.pollers[0].node);
}

TEST(Placement, MaskOfForeignCpusIsBelieved) {
  const Cpus mask{40, 41, 42};
  const auto topology = machine("core:4 pu:1", mask);
  ASSERT_OK(topology);
  EXPECT_EQ(cpus_of(planned(*topology, {})), (Cpus{42}));
}

TEST(Placement, NoCpuAtAllAndNoPollersAreErrors) {
  EXPECT_STATUS(test::describe({}), Status::kSystem);
  EXPECT_STATUS(machine("core:4 pu:1", {}), Status::kSystem);
  const Cpus mask{0};
  const auto topology = machine("core:4 pu:1", mask);
  ASSERT_OK(topology);
  EXPECT_STATUS(plan_placement(*topology, {.pollers = 0}), Status::kBadArgument);
  EXPECT_STATUS(plan_placement(*topology, {.pollers = 1025}), Status::kBadArgument);
}

TEST(Placement, ProcessorTimeOfACgroupBounds) {
  const Cpus mask = cpus(0, 15);
  const auto cores = [&](unsigned quota_percent, unsigned pollers) {
    const auto topology = test::describe({.synthetic = "core:16 pu:1", .mask = mask, .quota_percent = quota_percent});
    EXPECT_OK(topology);
    return topology ? planned(*topology, {.pollers = pollers}).cores() : ~0U;
  };
  EXPECT_EQ(cores(450, 8), 3U) << "four cpus' time, one of them the application's";
  EXPECT_EQ(cores(200, 8), 1U);
  EXPECT_EQ(cores(199, 8), 0U) << "a poller would use up what the application needs";
  EXPECT_EQ(cores(1600, 4), 4U);
  const auto topology = test::describe({.synthetic = "core:16 pu:1", .mask = mask, .quota_percent = 250});
  ASSERT_OK(topology);
  const Placement plan = planned(*topology, {.pollers = 2, .leave_a_core = false});
  EXPECT_EQ(plan.cores(), 1U) << "the quota is the whole process's, whoever the application is";
  EXPECT_EQ(plan.why_no_core,
            "Poller 1 waits by the policy `event`: the cgroup grants the time of 2.50 cpus, one of which is left for "
            "everything else.");
  EXPECT_EQ(planned(*topology, {}).why_no_core, "");
}

TEST(Placement, WithoutPinningNothingIsTakenAndThePolicyStays) {
  const auto topology = machine(test::kTwoPlainSockets, cpus(0, 7));
  ASSERT_OK(topology);
  const Placement plan = planned(*topology, {.pollers = 2, .pin = Pin::kNo});
  EXPECT_EQ(plan.cores(), 0U);
  EXPECT_EQ(plan.pollers[1].wait, WaitPolicy::kAdaptive);
  EXPECT_TRUE(says(plan, "pinning is off")) << words_of(plan);
  // Nor is memory bound, on one cpu either.
  for (const Cpus& mask : {cpus(0, 7), Cpus{6}}) {
    const auto some = machine(test::kTwoPlainSockets, mask);
    ASSERT_OK(some);
    const Placement loose =
        planned(*some, {.pollers = 2, .pin = Pin::kNo, .device = {.device = "mlx5_0", .nodes = {0}}});
    for (const PlacedPoller& poller : loose.pollers) EXPECT_FALSE(poller.node) << words_of(loose);
  }
  const Placement event = planned(*topology, {.wait = WaitPolicy::kEvent});
  EXPECT_EQ(event.cores(), 0U);
  EXPECT_TRUE(says(event, "as asked for")) << words_of(event);
}

TEST(Placement, NodesWithoutMemoryAreNotBoundTo) {
  const std::string xml = test::xml_machine(0);
  const Cpus mask = cpus(0, 7);
  const auto topology = test::describe({.xml = xml, .mask = mask});
  ASSERT_OK(topology);
  const Placement plan = planned(*topology, {});
  EXPECT_FALSE(plan.pollers[0].node);
  EXPECT_TRUE(says(plan, "NUMA node 1 has no memory for this process")) << words_of(plan);
}

TEST(Placement, WhereMemoryCannotBeBoundNoNodeIsChosen) {
  const Cpus mask = cpus(0, 7);
  const auto topology = test::describe({.synthetic = test::kTwoPlainSockets, .mask = mask, .can_bind_memory = false});
  ASSERT_OK(topology);
  const Placement plan =
      planned(*topology, {.pollers = 20, .leave_a_core = false, .device = {.device = "mlx5_0", .nodes = {1}}});
  EXPECT_EQ(cpus_of(plan), (Cpus{7, 6, 5, 4, 3, 2, 1, 0})) << "cores can still be had";
  for (const PlacedPoller& poller : plan.pollers) EXPECT_FALSE(poller.node);
  EXPECT_TRUE(says(plan, "Memory cannot be bound to a NUMA node")) << words_of(plan);
  EXPECT_FALSE(says(plan, "Its arenas")) << words_of(plan);
}

/// The rules, over machines, masks and claims of every kind.
TEST(Placement, KeepsItsRulesEverywhere) {
  for (const char* synthetic : {"core:1 pu:1", "core:2 pu:1", "core:1 pu:4", "package:2 node:1 core:3 pu:2",
                                "package:2 group:2 node:1 core:2 pu:2", "node:4 core:2 pu:1", "pu:8"}) {
    for (const unsigned mask_bits : {0x1U, 0x3U, 0x5U, 0xf0U, 0xffU, 0xa5a5U, 0xffffU}) {
      Cpus mask;
      for (unsigned cpu = 0; cpu < 16; ++cpu)
        if ((mask_bits >> cpu & 1) != 0) mask.push_back(cpu);
      const auto topology = machine(synthetic, mask);
      ASSERT_OK(topology);
      for (unsigned claimed_bits = 0; claimed_bits < 0x100; claimed_bits += 0x15) {
        Cpus claimed;
        for (unsigned core = 0; core < 8; ++core)
          if ((claimed_bits >> core & 1) != 0) claimed.push_back(core);
        for (const unsigned pollers : {1U, 2U, 5U, 40U}) {
          SCOPED_TRACE(std::string(synthetic) + " mask " + std::to_string(mask_bits) + " claimed " +
                       std::to_string(claimed_bits));
          (void)planned(*topology, {.pollers = pollers, .device = {.device = "d", .nodes = {1}}, .claimed = claimed});
        }
      }
    }
  }
}

/// Pages of the arena on `node`, and on others, as the kernel counts them.
struct PagesOn {
  std::uint64_t node = 0, elsewhere = 0;
};

PagesOn pages_on(const Arena& arena, unsigned node) {
  PagesOn pages;
  std::ifstream maps("/proc/self/numa_maps");
  char begin[32];
  std::snprintf(begin, sizeof begin, "%zx ", reinterpret_cast<std::uintptr_t>(arena.data()));
  for (std::string line; std::getline(maps, line);) {
    if (!line.starts_with(begin)) continue;
    unsigned on = 0;
    unsigned long long count = 0;
    for (std::size_t at = 0; (at = line.find(" N", at)) != std::string::npos; ++at) {
      if (std::sscanf(line.c_str() + at, " N%u=%llu", &on, &count) == 2)
        (on == node ? pages.node : pages.elsewhere) += count;
    }
  }
  return pages;
}

TEST(Placement, ArenasLandOnThePlannedNodes) {
  const auto topology = Topology::read();
  ASSERT_OK(topology);
  if (topology->node_count() < 2) GTEST_SKIP() << "this machine has one NUMA node";
  if (!topology->can_bind_memory()) GTEST_SKIP() << "memory cannot be bound here";
  // As if a device were there: so both nodes are planned for, whatever the number of cores.
  for (const Node& node : topology->nodes()) {
    if (!node.has_memory()) continue;
    const Placement plan = planned(*topology, {.device = {.device = "device", .nodes = {node.id}}});
    ASSERT_EQ(plan.pollers.size(), 1U);
    ASSERT_EQ(plan.pollers[0].node, node.id) << words_of(plan);
    for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{4} << 20}) {
      const auto arena = Arena::create({.size_bytes = bytes, .node = plan.pollers[0].node});
      ASSERT_OK(arena);
      const PagesOn pages = pages_on(*arena, node.id);
      EXPECT_GT(pages.node, 0U) << "node " << node.id;
      EXPECT_EQ(pages.elsewhere, 0U) << "node " << node.id;
    }
  }
}

}  // namespace
}  // namespace verbena::host
