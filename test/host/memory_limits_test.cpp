#include "host/memory_limits.hpp"
#include "base/units.hpp"
#include "child.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

namespace verbena::host {
namespace {

/// A tree of files like the kernel's.
class MemoryHeadroom : public testing::Test {
 protected:
  MemoryHeadroom() : root_(testing::TempDir() + "verbena-limits-" + std::to_string(getpid())) {
    put("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable:    8192000 kB\nSwapFree:   1024000 kB\n");
  }
  ~MemoryHeadroom() override { std::filesystem::remove_all(root_); }

  void put(const std::string& name, const std::string& text) {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  [[nodiscard]] std::optional<Headroom> read(std::optional<unsigned> node = std::nullopt) const {
    const std::string proc = root_ + "/proc";
    const std::string cgroup = root_ + "/cgroup";
    const std::string nodes = root_ + "/node";
    const std::string hugepages = root_ + "/hugepages";
    return memory_headroom(
        node, {.proc = proc.c_str(), .cgroup = cgroup.c_str(), .nodes = nodes.c_str(), .hugepages = hugepages.c_str()});
  }
  std::string root_;
};

TEST_F(MemoryHeadroom, CountsFreeHugepagesApart) {
  const auto without = read();
  ASSERT_TRUE(without);
  EXPECT_EQ(without->hugepage_bytes, 0u);
  put("hugepages/hugepages-2048kB/free_hugepages", "3\n");
  put("hugepages/hugepages-1048576kB/free_hugepages", "1\n");
  const auto with = read();
  ASSERT_TRUE(with);
  EXPECT_EQ(with->hugepage_bytes, (std::size_t{1} << 30) + (std::size_t{6} << 20));
  EXPECT_EQ(with->bytes, without->bytes);
}

TEST_F(MemoryHeadroom, OfTheMachineCountsSwap) {
  const auto headroom = read();
  ASSERT_TRUE(headroom);
  EXPECT_EQ(headroom->bytes, std::size_t{8192000 + 1024000} * 1024);
  EXPECT_NE(std::string(headroom->limit).find("MemAvailable"), std::string::npos);
}

TEST_F(MemoryHeadroom, IsUnknownWithoutFiles) {
  std::filesystem::remove_all(root_);
  EXPECT_FALSE(read());
}

TEST_F(MemoryHeadroom, OfAGroupCountsCachesAsFree) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("cgroup/a/b/memory.max", std::to_string(100 * kMebi) + "\n");
  put("cgroup/a/b/memory.current", std::to_string(70 * kMebi) + "\n");
  put("cgroup/a/b/memory.stat", "anon 5\ninactive_file " + std::to_string(20 * kMebi) + "\nactive_file 1048576\n");
  const auto headroom = read();
  ASSERT_TRUE(headroom);
  EXPECT_EQ(headroom->bytes, (100 - (70 - 21)) * kMebi);
  EXPECT_NE(std::string(headroom->limit).find("100 MiB in " + root_ + "/cgroup/a/b/memory.max"), std::string::npos)
      << headroom->limit;
  put("cgroup/a/b/memory.swap.max", std::to_string(8 * kMebi));
  put("cgroup/a/b/memory.swap.current", std::to_string(3 * kMebi));
  EXPECT_EQ(read()->bytes, (100 - (70 - 21) + 5) * kMebi);
}

TEST_F(MemoryHeadroom, OfAnAncestorBinds) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("cgroup/a/b/memory.max", "max\n");
  put("cgroup/a/b/memory.current", "0\n");
  put("cgroup/a/memory.max", std::to_string(10 * kMebi));
  put("cgroup/a/memory.current", std::to_string(12 * kMebi));
  const auto headroom = read();
  ASSERT_TRUE(headroom);
  EXPECT_EQ(headroom->bytes, 0U) << "usage above the limit leaves nothing, not 2^64";
}

TEST_F(MemoryHeadroom, InAContainerIsThatOfTheMount) {
  put("proc/self/cgroup", "0::/../elsewhere/not/here\n");
  put("cgroup/memory.max", std::to_string(10 * kMebi));
  put("cgroup/memory.current", std::to_string(4 * kMebi));
  EXPECT_EQ(read()->bytes, 6 * kMebi);
}

TEST_F(MemoryHeadroom, KnowsVersionOne) {
  put("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a\n0::/\ngarbage\n");
  put("cgroup/memory/a/memory.limit_in_bytes", std::to_string(50 * kMebi));
  put("cgroup/memory/a/memory.usage_in_bytes", std::to_string(30 * kMebi));
  put("cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file " + std::to_string(10 * kMebi) + "\n");
  EXPECT_EQ(read()->bytes, 30 * kMebi);
}

TEST_F(MemoryHeadroom, OfANodeBindsWhereThereAreSeveral) {
  put("node/node1/meminfo", "Node 1 MemTotal: 900 kB\nNode 1 MemFree:   512 kB\nNode 1 Inactive(file): 512 kB\n");
  put("node/has_memory", "1\n");
  EXPECT_EQ(read(1)->bytes, read()->bytes);
  put("node/has_memory", "0-1\n");
  EXPECT_EQ(read(1)->bytes, kMebi);
  EXPECT_EQ(read()->bytes, std::size_t{8192000 + 1024000} * 1024);
}

TEST_F(MemoryHeadroom, OfPinnedMemoryIsWhatTheLimitLeaves) {
  const std::string proc = root_ + "/proc";
  const auto refusal = [&](std::size_t bytes, const char* pinned, const char* capabilities) -> std::string {
    put("proc/self/status",
        std::string("VmLck:\t    4000 kB\nVmPin:\t") + pinned + "\nCapEff:\t" + capabilities + "\n");
    const auto checked = check_pinning(bytes, {.proc = proc.c_str()});
    if (checked) return "";
    return checked.error().status() == Status::kLimit ? checked.error().text() : "another status";
  };
  EXPECT_TRUE(test::in_child([&]() -> std::string {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "no limit can be read";
    limit.rlim_cur = kMebi;
    if (limit.rlim_max < kMebi || setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "no limit can be set";
    constexpr const char* kNone = "0000000000000000";
    if (!refusal(kMebi / 2, "    512 kB", kNone).empty()) return "what fits was refused";
    const std::string sum = refusal(kMebi / 2 + 4096, "    512 kB", kNone);
    if (!sum.starts_with("516 KiB more would be pinned, 512 KiB are pinned already, and RLIMIT_MEMLOCK is 1024 KiB"))
      return "not the sum: " + sum;
    if (refusal(1, "   2048 kB", kNone).empty()) return "past the limit already, and more was let through";
    if (refusal(2 * kMebi, "0 kB", "000001ffffffbfff").empty()) return "every capability but CAP_IPC_LOCK was enough";
    return refusal(2 * kMebi, "0 kB", "0000000000004000");
  }));
}

TEST(MemoryLimits, RefuseWhatCannotBeThere) {
  EXPECT_TRUE(check_memory(1, std::nullopt));
  const auto refused = check_memory(std::size_t{1} << 50, std::nullopt);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status(), Status::kNoMemory);
}

}  // namespace
}  // namespace verbena::host
