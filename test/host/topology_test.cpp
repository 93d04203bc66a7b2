#include "host/topology.hpp"

#include "child.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <tuple>

namespace verbena::host {
namespace {

std::set<unsigned> allowed() {
  cpu_set_t mask;
  std::set<unsigned> cpus;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0)
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask)) cpus.insert(cpu);
  return cpus;
}

TEST(Topology, NamesAllowedCpusOnceInOrder) {
  const auto topology = Topology::read();
  ASSERT_OK(topology);
  const auto cores = topology->cores();
  ASSERT_FALSE(cores.empty());
  EXPECT_GE(topology->node_count(), 1U);
  const auto may = allowed();
  std::set<unsigned> seen;
  for (const Core& core : cores) {
    EXPECT_TRUE(may.contains(core.cpu)) << core.cpu;
    EXPECT_TRUE(seen.insert(core.cpu).second) << core.cpu;
  }
  for (std::size_t i = 1; i < cores.size(); ++i) {
    EXPECT_LT(std::tuple(cores[i - 1].node, cores[i - 1].package, cores[i - 1].cpu),
              std::tuple(cores[i].node, cores[i].package, cores[i].cpu));
  }
}

TEST(Topology, PollersGoFromTheLastCoreDownAndWrap) {
  const auto topology = Topology::read();
  ASSERT_OK(topology);
  const auto cores = topology->cores();
  const auto count = static_cast<unsigned>(cores.size());
  for (unsigned n = 0; n < 3 * count; ++n)
    EXPECT_EQ(topology->core_for_poller(n).cpu, cores[count - 1 - n % count].cpu) << n;
  (void)topology->core_for_poller(~0U);
}

TEST(Topology, SeesARestrictedMask) {
  for (const unsigned cpu : allowed()) {
    EXPECT_TRUE(test::in_child([cpu]() -> std::string {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      if (sched_setaffinity(0, sizeof one, &one) != 0) return "sched_setaffinity failed";
      const auto topology = Topology::read();
      if (!topology) return topology.error().text();
      if (topology->cores().size() != 1) return std::to_string(topology->cores().size()) + " cores in a mask of one";
      if (topology->cores()[0].cpu != cpu) return "another cpu than the one in the mask";
      if (topology->core_for_poller(7).cpu != cpu) return "a poller outside the mask";
      return "";
    }));
  }
}

TEST(Topology, FallsBackOnTheMaskWhenHwlocDescribesAnotherMachine) {
  EXPECT_TRUE(test::in_child([]() -> std::string {
    setenv("HWLOC_SYNTHETIC", "package:2 core:4 pu:2", 1);
    unsetenv("HWLOC_THISSYSTEM");
    const auto topology = Topology::read();
    if (!topology) return topology.error().text();
    std::set<unsigned> cpus;
    for (const Core& core : topology->cores()) cpus.insert(core.cpu);
    return cpus == allowed() ? "" : "not the cpus of the mask";
  }));
}

TEST(Pin, MovesTheThreadAndOnlyThere) {
  const unsigned target = *allowed().rbegin();
  std::thread([target] {
    ASSERT_OK(pin_this_thread(target));
    EXPECT_EQ(allowed(), std::set<unsigned>{target});
    EXPECT_EQ(sched_getcpu(), static_cast<int>(target));
  }).join();
}

TEST(Pin, RefusesCpusThatAreNotThere) {
  const auto before = allowed();
  for (const unsigned cpu : {*before.rbegin() + 1, 1023U, 1024U, 5'000'000U, ~0U}) {
    const auto result = pin_this_thread(cpu);
    EXPECT_STATUS(result, Status::kBadArgument) << cpu;
  }
  EXPECT_EQ(allowed(), before);
}

TEST(Pin, RefusesCpusOutsideTheMask) {
  const auto may = allowed();
  if (may.size() < 2) GTEST_SKIP() << "this process may use one cpu only";
  std::thread([&may] {
    ASSERT_OK(pin_this_thread(*may.begin()));
    EXPECT_STATUS(pin_this_thread(*may.rbegin()), Status::kBadArgument);
  }).join();
}

TEST(Thread, NameIsCutAtFifteen) {
  std::thread([] {
    char name[32] = "";
    name_this_thread("verbena-kv-0");
    ASSERT_EQ(pthread_getname_np(pthread_self(), name, sizeof name), 0);
    EXPECT_STREQ(name, "verbena-kv-0");
    name_this_thread("a-name-that-is-longer-than-that");
    ASSERT_EQ(pthread_getname_np(pthread_self(), name, sizeof name), 0);
    EXPECT_STREQ(name, "a-name-that-is-");
    name_this_thread("");
    ASSERT_EQ(pthread_getname_np(pthread_self(), name, sizeof name), 0);
    EXPECT_STREQ(name, "");
  }).join();
}

TEST(Thread, BlocksAllSignals) {
  std::thread([] {
    block_signals_in_this_thread();
    sigset_t mask;
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, nullptr, &mask), 0);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGPIPE, SIGALRM, SIGRTMIN, SIGRTMAX})
      EXPECT_EQ(sigismember(&mask, signal), 1) << signal;
  }).join();
}

}  // namespace
}  // namespace verbena::host
