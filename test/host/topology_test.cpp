#include "host/topology.hpp"

#include "child.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

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
      if (topology->counts().usable != 1) return "counts another number of cpus";
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

/// Kernel files of a test, beside this machine's own.
class TopologyFiles : public testing::Test {
 protected:
  TopologyFiles() : root_(testing::TempDir() + "verbena-topology-" + std::to_string(getpid())) {}
  ~TopologyFiles() override { std::filesystem::remove_all(root_); }
  void put(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  [[nodiscard]] Topology read() const {
    const std::string proc = root_ + "/proc", cgroup = root_ + "/cgroup", infiniband = root_ + "/infiniband";
    auto topology = Topology::read({.proc = proc.c_str(), .cgroup = cgroup.c_str(), .infiniband = infiniband.c_str()});
    EXPECT_OK(topology);
    return std::move(*topology);
  }
  std::string root_;
};

TEST_F(TopologyFiles, DevicesAreWhereTheirCpusAre) {
  const Topology machine = read();
  std::string all;
  for (const Core& core : machine.cores()) {
    put("infiniband/near_" + std::to_string(core.cpu) + "/device/local_cpulist", std::to_string(core.cpu));
    all += std::to_string(core.cpu) + ",";
  }
  put("infiniband/everywhere/device/local_cpulist", all + "70000-4000000000");
  put("infiniband/virtual/node_type", "1: CA");
  put("infiniband/nonsense/device/local_cpulist", "-,x,3-1,");
  const Topology topology = read();
  for (const Core& core : topology.cores()) {
    // Where there is one node, everything is near it, and that says nothing.
    std::vector<unsigned> nodes;
    if (topology.node_count() > 1) nodes.push_back(core.node);
    EXPECT_EQ(topology.locality_of("near_" + std::to_string(core.cpu)).nodes, nodes) << core.cpu;
  }
  for (const char* name : {"everywhere", "virtual", "nonsense", "missing"}) {
    EXPECT_TRUE(topology.locality_of(name).nodes.empty()) << name;
    EXPECT_EQ(topology.locality_of(name).device, name);
  }
}

TEST_F(TopologyFiles, TightestProcessorQuotaCounts) {
  EXPECT_FALSE(read().quota_percent());
  put("proc/self/cgroup", "0::/a/b");
  put("cgroup/a/b/cpu.max", "max 100000");
  EXPECT_FALSE(read().quota_percent());
  put("cgroup/a/b/cpu.max", "450000 100000");
  EXPECT_EQ(read().quota_percent(), 450U);
  put("cgroup/a/b/cpu.max", "450000" + std::string(5000, ' ') + "100000");
  EXPECT_EQ(read().quota_percent(), 450U) << "the end of a long line is cut off";
  put("cgroup/a/cpu.max", "50000 200000");
  EXPECT_EQ(read().quota_percent(), 25U);
}

TEST_F(TopologyFiles, ProcessorQuotaOfVersionOne) {
  put("proc/self/cgroup", "7:cpuset:/wrong\n3:cpu,cpuacct:/job");
  put("cgroup/cpu/wrong/cpu.cfs_quota_us", "1000");
  put("cgroup/cpu/wrong/cpu.cfs_period_us", "100000");
  put("cgroup/cpu/job/cpu.cfs_quota_us", "-1");
  put("cgroup/cpu/job/cpu.cfs_period_us", "100000");
  EXPECT_FALSE(read().quota_percent());
  put("cgroup/cpu/job/cpu.cfs_quota_us", "300000");
  EXPECT_EQ(read().quota_percent(), 300U);
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
