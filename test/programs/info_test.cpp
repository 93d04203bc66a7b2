#include "base/error.hpp"
#include "info_host.hpp"
#include "kv_process.hpp"
#include "paths.hpp"
#include "process.hpp"
#include "shell.hpp"
#include "transport.hpp"

#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

namespace verbena::programs {
namespace {

using test::count_of;
using test::FakeHost;
using test::fix_of;
using test::from_json;
using test::have_python;
using test::run;
using test::ShellRan;
using Kind = Finding::Kind;
using namespace std::string_view_literals;

const std::string kEmptyGid = "0000:0000:0000:0000:0000:0000:0000:0000";
const std::string kLinkLocal = "fe80:0000:0000:0000:526b:4bff:fea0:1234";
const std::string kIpv4 = "0000:0000:0000:0000:0000:ffff:0a00:0001";

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A RoCE device as mlx5 shows it, in good order: v1 and v2 of a link-local and of an IPv4 address.
void put_roce(const FakeHost& host) {
  host.device("mlx5_0", "1", "uverbs0");
  host.port("mlx5_0", 1, "Ethernet", "4: ACTIVE", "5: LinkUp");
  host.netdev("ens1", "0x1003", "up");
  host.gid("mlx5_0", 1, 0, kLinkLocal, "IB/RoCE v1", "ens1");
  host.gid("mlx5_0", 1, 1, kLinkLocal, "RoCE v2", "ens1");
  host.gid("mlx5_0", 1, 2, kIpv4, "IB/RoCE v1", "ens1");
  host.gid("mlx5_0", 1, 3, kIpv4, "RoCE v2", "ens1");
  // The kernel has files for all of the table, and refuses to read the types of empty entries.
  for (unsigned index = 4; index < 16; ++index) host.gid("mlx5_0", 1, index, kEmptyGid, "", "");
}

TEST(InfoHost, EmptyTreeHasNoDeviceAndNoProblem) {
  const FakeHost host;
  const HostFacts facts = host.facts();
  EXPECT_TRUE(facts.devices.empty());
  EXPECT_FALSE(facts.memory.has_numa);
  EXPECT_FALSE(facts.limits.open_files.is_known);
  EXPECT_TRUE(find_problems(facts).empty());
  const std::string text = info_text(facts, {});
  EXPECT_TRUE(has(text, "no driver has registered one")) << text;
  EXPECT_TRUE(has(text, "No problems")) << text;
}

TEST(InfoHost, DirectoryThatIsNotThereIsAnEmptyHost) {
  const SystemFiles files("/nonexistent-verbena");
  EXPECT_TRUE(read_devices(files).empty());
  EXPECT_FALSE(read_memory(files).headroom_bytes.has_value());
  EXPECT_FALSE(read_limits(files).locked_memory.is_known);
}

TEST(InfoNic, IsWhatAProgramWithoutOptionsTakes) {
  const NicChoice choice = choose_nic();
  EXPECT_EQ(choice.name, test::is_soft_under_test() ? "soft" : test::device_under_test());
  EXPECT_TRUE(has(choice.reason, "RDMA CM")) << choice.reason;
}

TEST(InfoDevices, RoceDeviceInGoodOrder) {
  const FakeHost host;
  put_roce(host);
  const HostFacts facts = host.facts();
  ASSERT_EQ(facts.devices.size(), 1U);
  const DeviceFacts& device = facts.devices[0];
  EXPECT_EQ(device.name, "mlx5_0");
  EXPECT_EQ(device.kind, "CA");
  EXPECT_EQ(device.firmware, "20.31.1014");
  EXPECT_EQ(device.numa_node, 1U);
  EXPECT_EQ(device.char_device, "/dev/infiniband/uverbs0");
  EXPECT_TRUE(device.may_open);
  ASSERT_EQ(device.ports.size(), 1U);
  const PortFacts& port = device.ports[0];
  EXPECT_EQ(port.state, "ACTIVE");
  EXPECT_EQ(port.physical, "LinkUp");
  ASSERT_EQ(port.netdevs.size(), 1U);
  EXPECT_EQ(port.netdevs[0].name, "ens1");
  EXPECT_TRUE(port.netdevs[0].is_up);
  EXPECT_EQ(port.netdevs[0].mtu, 9000U);
  ASSERT_EQ(port.gids.size(), 4U);
  EXPECT_EQ(port.gids[0].type, "RoCE v1");
  EXPECT_EQ(port.gids[3].type, "RoCE v2");
  EXPECT_EQ(port.gids[3].address, "10.0.0.1");
  EXPECT_EQ(port.gid_index, 3U);
  for (const GidFacts& gid : port.gids) EXPECT_FALSE(gid.verdict.empty()) << gid.index;
  EXPECT_TRUE(find_problems(facts).empty());
  const std::string text = info_text(facts, {});
  EXPECT_TRUE(has(text, "* GID 3")) << text;
  EXPECT_FALSE(has(text, "* GID 0")) << text;
}

TEST(InfoDevices, TwoPortsHaveTheirOwnInterfaces) {
  const FakeHost host;
  host.device("mlx4_0", "-1", "uverbs0");
  for (const unsigned port : {1U, 2U}) {
    host.port("mlx4_0", port, "Ethernet", port == 1 ? "4: ACTIVE" : "1: DOWN", port == 1 ? "5: LinkUp" : "3: Disabled");
    const std::string netdev = fmt::format("eth{}", port);
    host.netdev(netdev, port == 1 ? "0x1003" : "0x1002", port == 1 ? "up" : "down");
    host.put(fmt::format("sys/class/infiniband/mlx4_0/device/net/{}/dev_port", netdev), fmt::format("{}", port - 1));
  }
  host.gid("mlx4_0", 1, 0, kIpv4, "RoCE v2", "eth1");
  const HostFacts facts = host.facts();
  ASSERT_EQ(facts.devices.size(), 1U);
  EXPECT_FALSE(facts.devices[0].numa_node.has_value());
  ASSERT_EQ(facts.devices[0].ports.size(), 2U);
  const PortFacts& second = facts.devices[0].ports[1];
  ASSERT_EQ(second.netdevs.size(), 1U);
  EXPECT_EQ(second.netdevs[0].name, "eth2");
  EXPECT_FALSE(second.gid_index.has_value());
  EXPECT_EQ(fix_of(facts, "mlx4_0 port 2: its network interface eth2 is down"), "ip link set eth2 up");
  EXPECT_EQ(count_of(facts, Kind::kProblem), 1);
}

TEST(InfoDevices, PortsAndGidsAreInNumericOrder) {
  const FakeHost host;
  put_roce(host);
  host.gid("mlx5_0", 1, 10, "0000:0000:0000:0000:0000:ffff:0a00:0002", "RoCE v2", "ens1");
  const auto devices = read_devices(host.files());
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0].ports[0].gids.back().index, 10U);
  EXPECT_EQ(devices[0].ports[0].gids[2].index, 2U);
}

TEST(InfoDevices, InfinibandPort) {
  const FakeHost host;
  host.device("ibp1", "0", "uverbs3");
  host.port("ibp1", 1, "InfiniBand", "4: ACTIVE", "5: LinkUp");
  host.gid("ibp1", 1, 0, kLinkLocal, "IB/RoCE v1", "");
  const HostFacts facts = host.facts();
  ASSERT_EQ(facts.devices.size(), 1U);
  EXPECT_EQ(facts.devices[0].char_device, "/dev/infiniband/uverbs3");
  const PortFacts& port = facts.devices[0].ports.at(0);
  ASSERT_EQ(port.gids.size(), 1U);
  EXPECT_EQ(port.gids[0].type, "InfiniBand");
  EXPECT_EQ(port.gid_index, 0U);
  EXPECT_EQ(port.lid, "0x1b");
  EXPECT_TRUE(find_problems(facts).empty());
}

TEST(InfoDevices, InfinibandPortsThatAreNotActive) {
  const FakeHost host;
  host.device("ibp1", "0", "uverbs0");
  host.port("ibp1", 1, "InfiniBand", "2: INIT", "5: LinkUp");
  host.port("ibp1", 2, "InfiniBand", "1: DOWN", "2: Polling");
  host.port("ibp1", 3, "InfiniBand", "1: DOWN", "3: Disabled");
  const HostFacts facts = host.facts();
  EXPECT_TRUE(has(fix_of(facts, "ibp1 port 1 has a link, but is INIT"), "opensm"));
  EXPECT_TRUE(has(fix_of(facts, "ibp1 port 2 has no link (Polling)"), "ibstat ibp1 2"));
  EXPECT_EQ(fix_of(facts, "ibp1 port 3 is disabled"), "ibportstate -C ibp1 -P 3 -D 0 3 enable");
  EXPECT_EQ(count_of(facts, Kind::kProblem), 3);
}

TEST(InfoDevices, InterfaceWithoutCarrier) {
  const FakeHost host;
  put_roce(host);
  host.port("mlx5_0", 1, "Ethernet", "1: DOWN", "3: Disabled");
  host.netdev("ens1", "0x1003", "down");
  EXPECT_TRUE(has(fix_of(host.facts(), "ens1 is up, but has no carrier"), "ethtool ens1"));
}

TEST(InfoDevices, NoInterfaceInThisNamespace) {
  const FakeHost host;
  host.device("mlx5_0", "0", "uverbs0");
  host.port("mlx5_0", 1, "Ethernet", "4: ACTIVE", "5: LinkUp");
  host.gid("mlx5_0", 1, 0, kIpv4, "RoCE v2", "");
  const HostFacts facts = host.facts();
  EXPECT_TRUE(facts.devices.at(0).ports.at(0).netdevs.empty());
  EXPECT_FALSE(facts.devices[0].ports[0].gid_index.has_value());
  EXPECT_TRUE(has(fix_of(facts, "no network interface in this network namespace"), "netns"));
  EXPECT_TRUE(has(info_text(facts, {}), "no GID"));
}

TEST(InfoDevices, LinkLocalAddressesAndSmallPacketsAreAdvice) {
  const FakeHost host;
  host.device("mlx5_0", "0", "uverbs0");
  host.port("mlx5_0", 1, "Ethernet", "4: ACTIVE", "5: LinkUp");
  host.netdev("ens1", "0x1003", "up", 1500);
  host.gid("mlx5_0", 1, 1, kLinkLocal, "RoCE v2", "ens1");
  const HostFacts facts = host.facts();
  EXPECT_EQ(count_of(facts, Kind::kProblem), 0);
  EXPECT_EQ(fix_of(facts, "link-local addresses only"), "ip address add ADDRESS/24 dev ens1");
  EXPECT_TRUE(has(fix_of(facts, "MTU of 1500"), "ip link set ens1 mtu 4200"));
}

TEST(InfoDevices, SoftwareDeviceIsOnItsParent) {
  const FakeHost host;
  host.device("rxe0", "-1", "uverbs0");
  host.put("sys/class/infiniband/rxe0/parent", "eth0");
  host.port("rxe0", 1, "Ethernet", "1: DOWN", "3: Disabled");
  host.netdev("eth0", "0x1002", "down");
  EXPECT_EQ(fix_of(host.facts(), "eth0 is down"), "ip link set eth0 up");
}

TEST(InfoDevices, MissingModulesAndFiles) {
  const FakeHost host;
  put_roce(host);
  std::filesystem::remove_all(host.path() / "sys/module");
  std::filesystem::remove_all(host.path() / "sys/class/infiniband_verbs");
  const HostFacts without = host.facts();
  EXPECT_EQ(fix_of(without, "ib_uverbs is not loaded"), "modprobe ib_uverbs");
  EXPECT_EQ(fix_of(without, "rdma_ucm is not loaded"), "modprobe rdma_ucm");
  EXPECT_EQ(count_of(without, Kind::kProblem), 2);

  const FakeHost container;
  put_roce(container);
  std::filesystem::remove_all(container.path() / "dev");
  EXPECT_FALSE(container.facts().devices.at(0).may_open);
  EXPECT_TRUE(has(fix_of(container.facts(), "/dev/infiniband/uverbs0 is not in this container"), "--device"));
}

TEST(InfoDevices, FileThatMayNotBeOpened) {
  const FakeHost host;
  put_roce(host);
  HostFacts facts = host.facts();
  // Root may open every file, and suites run as root too.
  facts.devices.at(0).may_open = false;
  EXPECT_TRUE(has(fix_of(facts, "may not open"), "chmod a+rw /dev/infiniband/uverbs0"));
}

/// A PCI configuration space of 256 bytes with its PCI Express capability at 0x60, behind another one at 0x40.
std::string pci_config(char device_control) {
  std::string config(256, '\0');
  config[0x06] = 0x10;
  config[0x34] = 0x40;
  config[0x40] = 0x01;
  config[0x41] = 0x60;
  config[0x60] = 0x10;
  config[0x68] = device_control;
  return config;
}

TEST(InfoDevices, RelaxedOrderingFromThePciConfiguration) {
  const FakeHost host;
  put_roce(host);
  const std::string config = "sys/class/infiniband/mlx5_0/device/config";
  const auto relaxed = [&] { return read_devices(host.files()).at(0).relaxed_ordering; };
  EXPECT_EQ(relaxed(), "unknown: no PCI configuration");
  host.put_raw(config, pci_config(0x10));
  EXPECT_EQ(relaxed(), "allowed by the PCI Express device control");
  host.put_raw(config, pci_config(0x0f));
  EXPECT_EQ(relaxed(), "forbidden by the PCI Express device control");
  host.put_raw(config, pci_config(0x10).substr(0, 64));
  EXPECT_EQ(relaxed(), "unknown: only root may read the whole PCI configuration");
  // A chain of capabilities that bites its tail, and one that leads out of the file.
  std::string loop = pci_config(0x10);
  loop[0x60] = 0x05;
  loop[0x61] = 0x40;
  host.put_raw(config, loop);
  EXPECT_EQ(relaxed(), "unknown: not a PCI Express device");
  host.put_raw(config, pci_config(0x10).substr(0, 0x68));
  EXPECT_EQ(relaxed(), "unknown: not a PCI Express device");
}

TEST(InfoDevices, AtomicsAreWhatTheOpenedDeviceSays) {
  const FakeHost host;
  put_roce(host);
  std::vector<DeviceFacts> devices = read_devices(host.files());
  ASSERT_EQ(devices.size(), 1u);
  const auto said = [&](const Result<std::vector<nic::DeviceSummary>>& opened) {
    explain_atomics(devices, opened);
    return devices.front().atomic;
  };
  const auto of = [&](ibv_atomic_cap atomics) {
    return said(std::vector<nic::DeviceSummary>{
        {.device = "mlx5_1", .atomics = IBV_ATOMIC_NONE, .max_rd_atomic = 1},
        {.device = "mlx5_0", .port = 1, .atomics = atomics, .max_rd_atomic = 16},
        {.device = "mlx5_0", .port = 2, .atomics = atomics, .max_rd_atomic = 8},
    });
  };
  EXPECT_EQ(of(IBV_ATOMIC_NONE), "none: the device has no atomic operations");
  EXPECT_TRUE(of(IBV_ATOMIC_HCA).starts_with("among this device's own operations, not with the CPU's"));
  EXPECT_TRUE(has(of(IBV_ATOMIC_HCA), "; 16 READs and atomics in flight on a queue pair"));
  EXPECT_TRUE(of(IBV_ATOMIC_GLOB).starts_with("with every access to the memory, the CPU's"));

  // What could not be opened, and why.
  EXPECT_EQ(said(std::vector<nic::DeviceSummary>{}),
            "unknown: the device cannot be opened; ibv_devinfo and dmesg say more");
  devices.front().may_open = false;
  EXPECT_EQ(said(std::vector<nic::DeviceSummary>{}), "unknown: this user cannot open /dev/infiniband/uverbs0");
  devices.front().char_device.clear();
  EXPECT_TRUE(has(said(std::vector<nic::DeviceSummary>{}), "no file under /dev/infiniband"));
  EXPECT_EQ(said(fail(Status::kUnsupported, "list_devices", 0, "this build has no RDMA devices")),
            "unknown: this build has no RDMA devices");
}

TEST(InfoMemory, TwoNodesWithDistancesAndTwoSizes) {
  const FakeHost host;
  host.node(0, "0-3", "10 21");
  host.node(2, "4-7", "21 10");
  host.hugepages(FakeHost::node_pools(0), 2048, 512, 500);
  host.hugepages(FakeHost::node_pools(0), 1048576, 4, 2);
  host.hugepages(FakeHost::node_pools(2), 2048, 8, 0);
  host.hugepages(FakeHost::node_pools(2), 1048576, 0, 0);
  put_roce(host);
  host.put("sys/class/infiniband/mlx5_0/device/numa_node", "2");
  const HostFacts facts = host.facts();
  ASSERT_EQ(facts.memory.nodes.size(), 2U);
  const NodeFacts& second = facts.memory.nodes[1];
  EXPECT_EQ(second.id, 2U);
  EXPECT_EQ(second.cpus, "4-7");
  EXPECT_EQ(second.memory_bytes, 65536000ULL * 1024);
  EXPECT_EQ(second.distances, (std::vector<std::pair<unsigned, std::uint64_t>>{{0, 21}, {2, 10}}));
  const auto& pools = facts.memory.nodes[0].hugepages;
  ASSERT_EQ(pools.size(), 2U);
  EXPECT_EQ(pools[0].page_bytes, 2048ULL * 1024);
  EXPECT_EQ(pools[0].free, 500U);
  EXPECT_EQ(pools[1].page_bytes, 1ULL << 30);
  EXPECT_EQ(pools[1].total, 4U);
  // Only the node without; its eight stay, and another GiB comes.
  EXPECT_TRUE(
      has(fix_of(facts, "node 2 has no free hugepage"), "echo 520 > /sys/devices/system/node/node2/hugepages/"));
  EXPECT_EQ(count_of(facts, Kind::kAdvice), 1);
  EXPECT_TRUE(has(info_text(facts, {}), "NUMA      node 2; distance to node 0: 21, node 2: 10"))
      << info_text(facts, {});
}

TEST(InfoMemory, DistancesThatDoNotFitTheNodesAreLeftOut) {
  const FakeHost host;
  host.node(0, "0", "10 21 31");
  host.node(1, "1", "x 10");
  const auto memory = read_memory(host.files());
  ASSERT_EQ(memory.nodes.size(), 2U);
  EXPECT_TRUE(memory.nodes[0].distances.empty());
  EXPECT_EQ(memory.nodes[1].distances.size(), 1U);
}

TEST(InfoMemory, KernelWithoutNuma) {
  const FakeHost host;
  host.put("proc/meminfo", "MemTotal: 4096000 kB\nMemFree: 409600 kB\nMemAvailable: 2048000 kB\nHugepagesize: 2048 kB");
  host.hugepages("sys/kernel/mm/hugepages", 2048, 3, 0);
  host.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
  const HostFacts facts = host.facts();
  EXPECT_FALSE(facts.memory.has_numa);
  ASSERT_EQ(facts.memory.nodes.size(), 1U);
  EXPECT_EQ(facts.memory.transparent, "madvise");
  EXPECT_EQ(facts.memory.transparent_memfd, "unknown");
  EXPECT_EQ(facts.memory.headroom_bytes, 2048000ULL * 1024);
  // Half of what is free: 100 pages of 2 MiB, besides the three there are.
  EXPECT_TRUE(fix_of(facts, "no hugepage is free: all are in use").starts_with("sysctl vm.nr_hugepages=103 "));
}

TEST(InfoMemory, SysctlIsNotForPagesOfAnotherDefaultSize) {
  const FakeHost host;
  host.put("proc/meminfo", "MemTotal: 4096000 kB\nMemFree: 4096000 kB\nHugepagesize: 1048576 kB");
  host.hugepages("sys/kernel/mm/hugepages", 2048, 0, 0);
  host.hugepages("sys/kernel/mm/hugepages", 1048576, 0, 0);
  EXPECT_TRUE(
      fix_of(host.facts(), "no hugepage is free").starts_with("echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB"));
}

TEST(InfoMemory, LittleMemoryIsAdvice) {
  const FakeHost host;
  host.put("proc/meminfo", "MemAvailable: 409600 kB");
  EXPECT_EQ(fix_of(host.facts(), "of memory is available"), "verbena-kv serve -m 200");
}

TEST(InfoLimits, AreReadAndJudged) {
  const FakeHost host;
  host.limits("65536 unlimited", "256 4096");
  const HostFacts alone = host.facts();
  EXPECT_TRUE(alone.limits.locked_memory.is_known);
  EXPECT_EQ(alone.limits.locked_memory.soft, 65536U);
  EXPECT_FALSE(alone.limits.locked_memory.hard.has_value());
  EXPECT_EQ(alone.limits.open_files.hard, 4096U);
  // The soft NIC pins nothing: without a device the limit of locked memory hurts nobody.
  EXPECT_EQ(fix_of(alone, "locked memory"), "");
  EXPECT_EQ(fix_of(alone, "256 open files are few"), "ulimit -n 1024");

  put_roce(host);
  EXPECT_TRUE(fix_of(host.facts(), "is limited to 64.00 KiB (locked memory)").starts_with("ulimit -l unlimited  # "));
  host.limits("65536 65536");
  EXPECT_TRUE(fix_of(host.facts(), "(locked memory)").starts_with("echo '* - memlock unlimited'"));
  host.limits("4294967296 4294967296");
  EXPECT_EQ(fix_of(host.facts(), "(locked memory)"), "");
  host.limits("unlimited unlimited");
  EXPECT_EQ(fix_of(host.facts(), "(locked memory)"), "");
  host.limits("65536 65536");
  host.put("proc/self/status", "Name: x\nCapEff:\t0000000000004000");
  EXPECT_TRUE(host.facts().limits.may_lock_all);
  EXPECT_EQ(fix_of(host.facts(), "(locked memory)"), "");
}

TEST(InfoPermissions, WhatTheSoftNicNeedsIsAProblemWithoutIt) {
  const FakeHost host;
  HostFacts facts = host.facts();
  facts.permissions.membarrier = {.name = "membarrier", .works = false, .detail = "Operation not permitted"};
  facts.permissions.soft_nic = {.name = "soft NIC", .works = false, .detail = "needs membarrier"};
  EXPECT_TRUE(has(fix_of(facts, "membarrier: Operation not permitted"), "seccomp"));
  EXPECT_EQ(count_of(facts, Kind::kProblem), 1);  // The soft NIC's own failure follows from it.
  facts.permissions.membarrier.works = true;
  EXPECT_TRUE(fix_of(facts, "the soft NIC does not open").starts_with("strace"));
  facts.limits.file_size.soft = 1024;
  EXPECT_TRUE(fix_of(facts, "the soft NIC does not open").starts_with("ulimit -f unlimited"));
}

TEST(InfoPermissions, AreReallyTried) {
  const FakeHost host;
  host.put("proc/sys/kernel/yama/ptrace_scope", "1");
  const std::size_t before = test::open_descriptors();
  const Permissions permissions = probe_permissions(host.files());
  EXPECT_EQ(test::open_descriptors(), before);
  EXPECT_EQ(permissions.ptrace_scope, 1);
  // Suites of the soft NIC run here, so it opens.
  EXPECT_TRUE(permissions.soft_nic.works) << permissions.soft_nic.detail;
  EXPECT_TRUE(permissions.membarrier.works) << permissions.membarrier.detail;
  EXPECT_TRUE(permissions.sealed_memfd.works) << permissions.sealed_memfd.detail;
  EXPECT_TRUE(permissions.pidfd.works) << permissions.pidfd.detail;
  // Whoever may read any peer may read a child.
  EXPECT_TRUE(permissions.read_child.works || !permissions.read_peer.works) << permissions.read_child.detail;
  for (const Probe* probe : {&permissions.read_child, &permissions.read_peer, &permissions.frames}) {
    EXPECT_FALSE(probe->name.empty());
    EXPECT_FALSE(probe->detail.empty()) << probe->name;
  }
}

TEST(InfoHostile, FilesAreBoundedPrintableAndNeverWaitedFor) {
  const FakeHost host;
  host.put_raw("huge", std::string(1 << 20, 'x'));
  host.put_raw("binary", "a\x1b[31m\0b\xff\n second"sv);
  host.put_raw("plain", "12");
  host.put_raw("number", "99999999999999999999\n");
  ASSERT_EQ(::mkfifo((host.path() / "pipe").c_str(), 0600), 0);
  const SystemFiles files = host.files();
  EXPECT_EQ(files.text("huge")->size(), 65536U);
  EXPECT_EQ(files.line("huge").size(), 160U);
  EXPECT_EQ(files.line("binary"), "a?[31m?b?");
  EXPECT_EQ(files.number("plain"), 12);
  EXPECT_FALSE(files.number("number").has_value());
  EXPECT_FALSE(files.number("binary").has_value());
  EXPECT_FALSE(files.text("pipe").has_value());
  EXPECT_FALSE(files.text("").has_value());  // A directory.
  EXPECT_EQ(files.line("missing"), "");
}

/// Every file of a good host, replaced by `bytes`.
void spoil(const FakeHost& host, std::string_view bytes) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(host.path())) {
    if (entry.is_regular_file()) paths.push_back(entry.path().lexically_relative(host.path()));
  }
  ASSERT_GT(paths.size(), 50U);
  for (const std::string& path : paths) host.put_raw(path, bytes);
}

TEST(InfoHostile, NoFileCanMakeItFail) {
  const std::string huge(200'000, '9');
  const std::string_view all[] = {"",    "\n",         "\0\0\0\0"sv, "\xff\xfe\x80 \x1b]0;x\x07", huge,
                                  "-1",  "4294967296", "0x",         "18446744073709551616",      ": : :",
                                  "[[]", "\"\\\n",     "10 20 30",   "../../../../etc/passwd",    "/"};
  std::string objects;
  for (const std::string_view bytes : all) {
    const FakeHost host;
    put_roce(host);
    host.node(0, "0-3", "10 21");
    host.node(1, "4-7", "21 10");
    host.hugepages(FakeHost::node_pools(0), 2048, 512, 500);
    host.limits("65536 65536");
    host.put("proc/meminfo", "MemAvailable: 409600 kB");
    host.put("proc/self/status", "CapEff: 0");
    host.put("proc/self/cgroup", "0::/");
    spoil(host, bytes);
    const HostFacts facts = host.facts();
    const auto findings = find_problems(facts);
    ASSERT_EQ(facts.devices.size(), 1U);
    EXPECT_EQ(facts.devices[0].ports.size(), 1U);
    for (const char c : info_text(facts, findings)) {
      ASSERT_TRUE(c == '\n' || (c >= 0x20 && c <= 0x7e)) << static_cast<int>(c) << " from " << bytes.substr(0, 40);
    }
    objects += (objects.empty() ? "" : ",") + info_json(facts, findings);
  }
  if (!have_python()) GTEST_SKIP() << "python3 is not there: JSON is not looked at";
  EXPECT_EQ(from_json("[" + objects + "]", "len(data), {h[\"devices\"][0][\"name\"] for h in data}"),
            fmt::format("{} {{'mlx5_0'}}", std::size(all)));
}

TEST(InfoHostile, NamesThatAreNoNumbersOrNotPrintable) {
  const FakeHost host;
  put_roce(host);
  host.put("sys/class/infiniband/mlx5_0/ports/x/state", "4: ACTIVE");
  host.put("sys/class/infiniband/mlx5_0/ports/-1/state", "4: ACTIVE");
  host.put("sys/class/infiniband/mlx5_0/ports/256/state", "4: ACTIVE");
  host.put("sys/class/infiniband/evil\x1b[31m/node_type", "1: CA");
  host.put("sys/devices/system/node/nodex/cpulist", "0");
  host.put("sys/devices/system/node/node99999999999999999999/cpulist", "0");
  const HostFacts facts = host.facts();
  ASSERT_EQ(facts.devices.size(), 1U);
  EXPECT_EQ(facts.devices[0].ports.size(), 1U);
  EXPECT_FALSE(facts.memory.has_numa);
}

TEST(InfoJson, HasTheFactsOfTheText) {
  if (!have_python()) GTEST_SKIP() << "python3 is not there to parse JSON";
  const FakeHost host;
  put_roce(host);
  host.node(0, "0-3", "10 21");
  host.node(1, "4-7", "21 10");
  host.limits("65536 unlimited");
  const HostFacts facts = host.facts();
  const std::string json = info_json(facts, find_problems(facts));
  const std::string all =
      from_json(json,
                "[p[\"gid_index\"] for d in data[\"devices\"] for p in d[\"ports\"]],"
                "[g[\"index\"] for g in data[\"devices\"][0][\"ports\"][0][\"gids\"] if g[\"chosen\"]],"
                "[d[\"distance\"] for d in data[\"devices\"][0][\"distances\"]],"
                "data[\"limits\"][\"locked_memory_bytes\"],"
                "[f[\"kind\"] for f in data[\"findings\"]],"
                "len(data[\"memory\"][\"nodes\"])");
  EXPECT_EQ(all, "[3] [3] [21, 10] {'soft': 65536, 'hard': None} ['problem'] 2");
}

// The real program, on this machine.

TEST(InfoProgram, TextAndJson) {
  const ShellRan text = run(test::tested_program());
  EXPECT_EQ(text.exit, 0);
  for (const char* section : {"NIC  ", "RDMA devices\n", "Memory\n", "Limits\n", "Permissions (tried)\n"}) {
    EXPECT_TRUE(has(text.out, section)) << section << " in\n" << text.out;
  }
  EXPECT_TRUE(has(text.out, "NIC             soft: ")) << text.out;

  const ShellRan json = run(test::tested_program() + " --json");
  EXPECT_EQ(json.exit, 0);
  if (have_python()) {
    EXPECT_EQ(from_json(json.out, "data[\"nic\"][\"name\"]"), "soft");
    EXPECT_EQ(from_json(json.out, "data[\"permissions\"][\"membarrier\"][\"works\"]"), "True");
  }

  // The kernel ends a process whose memfd grows past this limit, unless it ignores that signal.
  const ShellRan limited = run("ulimit -f 8; " + test::tested_program());
  EXPECT_EQ(limited.exit, 0);
  EXPECT_TRUE(has(limited.out, "NIC             none: ")) << limited.out;
  EXPECT_TRUE(has(limited.out, "      ulimit -f unlimited  # ")) << limited.out;

  EXPECT_TRUE(has(run(test::tested_program() + " --version").out, "verbena-info 0"));
}

TEST(InfoProgram, PlansAServer) {
  const std::string plan = test::tested_program() + " --plan -d soft -m 64 -w 3 --max-clients 5 --lease-kib 128";
  const ShellRan text = run(plan);
  EXPECT_EQ(text.exit, 0);
  for (const char* part : {"NIC           soft: ", "Placement\n  The machine has ", "Pools of the server", ": items ",
                           "sessions: channel: lease ", "Pools of one client", "  sum: "}) {
    EXPECT_TRUE(has(text.out, part)) << part << " in\n" << text.out;
  }
  EXPECT_FALSE(has(text.out, "Refused")) << text.out;

  // One cpu: nobody polls, and it says why.
  const ShellRan one = run("taskset -c $(taskset -cp $$ | sed 's/.*[^0-9]//') " + plan);
  EXPECT_EQ(one.exit, 0);
  EXPECT_TRUE(has(one.out, "Pollers 0 to 2 wait by the policy `event`: there is one cpu")) << one.out;

  // As asked for, where nothing is in its way.
  const ShellRan event = run(plan + " --wait event");
  EXPECT_TRUE(has(event.out, "Pollers 0 to 2 wait by the policy `event`") &&
              (has(event.out, "as asked for") || has(event.out, "there is one cpu")))
      << event.out;

  const ShellRan json = run(plan + " --json");
  EXPECT_EQ(json.exit, 0);
  if (!have_python()) GTEST_SKIP() << "python3 is not there: JSON is not looked at";
  EXPECT_EQ(from_json(json.out, "len(data[\"placement\"][\"workers\"])"), "3");
  EXPECT_EQ(from_json(json.out, "data[\"refused\"]"), "None");
  EXPECT_EQ(from_json(json.out,
                      "all(p[\"bytes\"] == p[\"count\"] * p[\"bytes_each\"] for p in "
                      "data[\"server\"][\"pools\"])"),
            "True");
  EXPECT_EQ(from_json(json.out,
                      "sum(p[\"bytes\"] for p in data[\"server\"][\"pools\"] if p[\"memory\"] == "
                      "\"registered\") == data[\"server\"][\"registered_bytes\"]"),
            "True");
}

TEST(InfoProgram, PlansSayWhatWouldBeRefused) {
  const ShellRan large = run(test::tested_program() + " --plan -d soft -m 900000");
  EXPECT_EQ(large.exit, 0);
  EXPECT_TRUE(has(large.out, "Refused\n  the pools at the start and of one client take ")) << large.out;
  EXPECT_TRUE(has(large.out, ", most of it worker 0: items (900000 MiB), and ")) << large.out;
  const ShellRan many =
      run(test::tested_program() + " --plan -d soft -m 64 --depth 1 --max-clients 1024 --lease-kib 1048576");
  EXPECT_TRUE(has(many.out, "With all 1024 clients the pools take ")) << many.out;
  const ShellRan deep = run(test::tested_program() + " --plan -d soft --depth 1024 --max-clients 1024");
  EXPECT_TRUE(has(deep.out, " completion entries of one worker are needed")) << deep.out;
}

TEST(InfoUsage, NumbersThatAreNoneOrOutOfRangeAreTold) {
  const test::Arguments plan{"--plan", "-d", "soft"};
  test::expect_refused(test::wrong_numbers({
      {plan, "-m", "--memory", 1, 1048576},
      {plan, "-w", "--workers", 1, 64},
      {plan, "--max-clients", "--max-clients", 1, 1024},
      {plan, "--max-clients-per-user", "--max-clients-per-user", 1, 1024},
      {plan, "--max-value-mib", "--max-value-mib", 1, 1048576},
      {plan, "--lease-kib", "--lease-kib", 64, 1048576},
      {plan, "--max-items", "--max-items", 0, 17179869184},
      {plan, "--max-cells", "--max-cells", 0, 17179869184},
      {plan, "--grace-ms", "--grace-ms", 1, 60000},
      {plan, "--depth", "--depth", 1, 1024},
      {plan, "--gid-index", "--gid-index", 0, 255},
      {plan, "--allow-uid", "--allow-uid", 0, 4294967294},
  }));
}

TEST(InfoUsage, WrongCommandLinesSayWhatIsWrong) {
  test::expect_refused({
      {{"--jsn"}, {"unknown argument \"--jsn\"; did you mean --json?"}},
      {{"more"}, {"unknown argument \"more\""}},
      {{"--plan", "-p", "70000"}, {"unknown argument \"-p\""}},
      {{"--json=x"}, {"--json", "takes no value"}},
      {{"--plan=no"}, {"--plan", "takes no value"}},
      {{"--plan", "--hugepages=2"}, {"--hugepages", "takes no value"}},
      {{"--plan", "-a"}, {"--address", "takes NAME or ADDRESS", "its value is missing"}},
      {{"--plan", "-d"}, {"--device", "takes soft or DEVICE", "its value is missing"}},
      {{"--plan", "-d", "soft:2"}, {"device \"soft:2\"", "soft, a device such as mlx5_0"}},
      {{"--plan", "-d", "mlx5_0:x"}, {"device \"mlx5_0:x\"", "soft, a device such as mlx5_0"}},
      {{"--plan", "--wait"}, {"--wait", "takes spin, adaptive or event", "its value is missing"}},
      {{"--plan", "--wait", "hard"}, {"--wait", "takes spin, adaptive or event, not \"hard\""}},
      {{"--plan", "--wait", "\n"}, {"--wait", "takes spin, adaptive or event, not \"\\x0a\""}},
      {{"--plan", "-m", "5", "-m", "6"}, {"--memory", "takes one value, not 5 and 6"}},
      // Of a server, and none is planned.
      {{"-w", "2"}, {"--workers requires --plan"}},
      {{"-S"}, {"--socket requires --plan"}},
      {{"-a", "::1", "--json"}, {"--address requires --plan"}},
      {{"--allow-uid", "5"}, {"--allow-uid requires --plan"}},
      // Together.
      {{"--plan", "-d", "soft", "--trusted-clients"}, {"--trusted-clients was removed in 0.1"}},
      {{"--plan", "-d", "soft", "-m", "1", "--max-value-mib", "4"},
       {"--max-value-mib is 4 (4194304 bytes)", "1 to 516096"}},
      {{"--plan", "-d", "soft", "-m", "1", "--max-items", "1000000"}, {"--max-items is 1000000", "--memory is 1 MiB"}},
      {{"--plan", "-d", "soft", "-m", "1", "--max-cells", "1000000"},
       {"--max-cells is 1000000", "--max-items is 8192"}},
  });
  EXPECT_EQ(test::run_kv({"--plan", "-d", "nope"}).exit, 3);
}

}  // namespace
}  // namespace verbena::programs
