// Problems, and the command that fixes each. From the facts alone.
#include "base/units.hpp"
#include "programs/environment.hpp"
#include "programs/info.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace verbena::programs {
namespace {

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
/// A server's default memory.
constexpr std::uint64_t kServer = kGib;

struct Findings {
  std::vector<Finding> all;  ///< Problems first.
  std::size_t problems = 0;
  void problem(std::string what, std::string fix) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(problems++);
    all.insert(at, {.kind = Finding::Kind::kProblem, .what = std::move(what), .fix = std::move(fix)});
  }
  void advice(std::string what, std::string fix) {
    all.push_back({.kind = Finding::Kind::kAdvice, .what = std::move(what), .fix = std::move(fix)});
  }
};

/// Ports that wait for a cable, a switch or an administrator, on Ethernet.
void check_netdev(const NetdevFacts& netdev, const std::string& port, Findings& findings) {
  if (!netdev.is_up) {
    findings.problem(fmt::format("{}: its network interface {} is down", port, netdev.name),
                     fmt::format("ip link set {} up", netdev.name));
    return;
  }
  findings.problem(fmt::format("{}: {} is up, but has no carrier ({})", port, netdev.name, netdev.state),
                   fmt::format("ethtool {}  # then mend its cable or the switch port", netdev.name));
}

void check_state(const DeviceFacts& device, const PortFacts& port, const std::string& name, Findings& findings) {
  if (port.is_ethernet()) {
    if (!port.netdevs.empty()) return check_netdev(port.netdevs.front(), name, findings);
    findings.problem(fmt::format("{} is {}", name, port.state),
                     fmt::format("rdma link show {}/{}  # names its interface, which is not in this network namespace",
                                 device.name, port.number));
  } else if (port.physical == "Disabled") {
    findings.problem(fmt::format("{} is disabled", name),
                     fmt::format("ibportstate -C {} -P {} -D 0 {} enable", device.name, port.number, port.number));
  } else if (port.physical == "LinkUp") {
    findings.problem(fmt::format("{} has a link, but is {}: no subnet manager has set it up", name, port.state),
                     "systemctl start opensm  # on one host of the fabric, or on a managed switch");
  } else {
    findings.problem(fmt::format("{} has no link ({})", name, port.physical),
                     fmt::format("ibstat {} {}  # then mend its cable or the switch port", device.name, port.number));
  }
}

/// Checks what an Ethernet port needs besides a link.
void check_roce(const PortFacts& port, const std::string& name, Findings& findings) {
  if (port.netdevs.empty()) {
    findings.problem(
        fmt::format("{} has no network interface in this network namespace: none of its GIDs can be used", name),
        "docker run --network=host IMAGE  # or, from the host: ip link set INTERFACE netns PID");
    return;
  }
  const NetdevFacts& netdev = port.netdevs.front();
  const auto chosen = std::ranges::find_if(port.gids, [&](const GidFacts& gid) { return gid.index == port.gid_index; });
  if (chosen == port.gids.end()) {
    findings.problem(fmt::format("{}: {}", name, port.gid_reason),
                     fmt::format("ip address add ADDRESS/24 dev {}", netdev.name));
  } else if (chosen->address.starts_with("fe80:") || chosen->address.starts_with("169.254.")) {
    findings.advice(fmt::format("{} has link-local addresses only, which no router passes on", name),
                    fmt::format("ip address add ADDRESS/24 dev {}", netdev.name));
  } else if (chosen->type != "RoCE v2") {
    findings.advice(
        fmt::format("{} has GIDs of RoCE v1 only, which no router passes on", name),
        fmt::format("ethtool -i {}  # then update that firmware and driver to ones with RoCE v2", netdev.name));
  }
  // A RoCE MTU of 4096 with its headers; the next smaller MTUs are 2048 and 1024.
  constexpr std::uint64_t kWanted = 4200;
  if (netdev.mtu && *netdev.mtu < kWanted && netdev.name != "lo") {
    findings.advice(
        fmt::format("{}: {} has an MTU of {}, so RDMA packets are shorter than the 4096 bytes that they could "
                    "have",
                    name, netdev.name, *netdev.mtu),
        fmt::format("ip link set {} mtu {}  # the switches must take it too", netdev.name, kWanted));
  }
}

void check_port(const DeviceFacts& device, const PortFacts& port, Findings& findings) {
  const std::string name = fmt::format("{} port {}", device.name, port.number);
  if (port.state.empty()) return;
  if (!port.is_active()) {
    check_state(device, port, name, findings);
  } else if (port.is_ethernet()) {
    check_roce(port, name, findings);
  } else if (!port.gid_index) {
    findings.problem(fmt::format("{}: {}", name, port.gid_reason), "systemctl restart opensm  # where it runs");
  }
}

void check_device(const DeviceFacts& device, const HostFacts& facts, Findings& findings) {
  if (device.char_device.empty()) {
    // Without the module no device has one; that is a single problem, reported once.
    if (facts.modules.uverbs) {
      findings.problem(
          fmt::format("{} cannot be opened by programs: its driver gives it no uverbs device", device.name),
          "dmesg | grep -i -e uverbs -e rdma  # then mend its driver");
    }
  } else if (!device.char_device_there) {
    findings.problem(
        fmt::format("{} cannot be opened: {} is not in this container", device.name, device.char_device),
        "docker run --device=/dev/infiniband --ulimit memlock=-1 IMAGE  # outside of containers: udevadm trigger");
  } else if (!device.may_open) {
    findings.problem(
        fmt::format("{} cannot be opened: this user may not open {}", device.name, device.char_device),
        fmt::format(
            "chmod a+rw {}  # as root, until the next boot; for good: install rdma-core, whose udev rules do it",
            device.char_device));
  }
  for (const PortFacts& port : device.ports) check_port(device, port, findings);
}

/// Registered memory is pinned, and counts against the limit. If the limit is below a server's default, users will hit
/// it.
void check_locked_memory(const HostFacts& facts, Findings& findings) {
  const LimitFacts& limit = facts.limits.locked_memory;
  if (!limit.is_known || !limit.soft || *limit.soft >= 2 * kServer || facts.limits.may_lock_all) return;
  constexpr const char* kForever = "echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf";
  findings.problem(
      fmt::format("memory registered with {} is limited to {} (locked memory)", facts.devices.front().name,
                  human_bytes(*limit.soft)),
      limit.hard ? fmt::format("{}  # as root; log in again; in a container: docker run --ulimit memlock=-1", kForever)
                 : fmt::format("ulimit -l unlimited  # for good, as root: {}", kForever));
}

void check_devices(const HostFacts& facts, Findings& findings) {
  if (facts.devices.empty()) return;
  if (!facts.modules.uverbs) {
    findings.problem("no program can open an RDMA device: the module ib_uverbs is not loaded", "modprobe ib_uverbs");
  }
  if (!facts.modules.rdma_ucm) {
    findings.problem("no program can connect by rdma_cm: the module rdma_ucm is not loaded", "modprobe rdma_ucm");
  }
  for (const DeviceFacts& device : facts.devices) check_device(device, facts, findings);
  check_locked_memory(facts, findings);
}

void check_permissions(const HostFacts& facts, Findings& findings) {
  const Permissions& permissions = facts.permissions;
  bool some_refused = false;
  const auto need = [&](const Probe& probe, const char* since) {
    if (probe.works) return;
    some_refused = true;
    findings.problem(
        fmt::format("{}: {}", probe.name, probe.detail),
        fmt::format("docker run --security-opt seccomp=unconfined IMAGE  # or a profile that allows it; outside of "
                    "containers: Linux {} or later",
                    since));
  };
  need(permissions.membarrier, "4.16");
  need(permissions.sealed_memfd, "5.1");
  need(permissions.pidfd, "5.3");
  if (!some_refused && !permissions.soft_nic.works) {
    // The error's own sentence says more.
    findings.problem(fmt::format("the soft NIC does not open: {}", permissions.soft_nic.detail),
                     facts.limits.file_size.soft ? "ulimit -f unlimited  # memfds count as files"
                                                 : "strace -f verbena-info  # shows the call that failed");
  }
}

void check_limits(const ProcessLimits& limits, Findings& findings) {
  const auto low = [&](const LimitFacts& limit, std::uint64_t wanted) {
    return limit.is_known && limit.soft && *limit.soft < wanted;
  };
  constexpr std::uint64_t kFiles = 1024;
  if (low(limits.open_files, kFiles)) {
    const std::uint64_t hard = limits.open_files.hard.value_or(kFiles);
    findings.advice(fmt::format("{} open files are few: each peer takes several", *limits.open_files.soft),
                    hard >= kFiles
                        ? fmt::format("ulimit -n {}", kFiles)
                        : "echo '* - nofile 65536' > /etc/security/limits.d/nofile.conf  # as root; log in again");
  }
  if (low(limits.file_size, kServer)) {
    findings.advice(fmt::format("files, memfds among them, may have {} at most, and so may arenas",
                                human_bytes(*limits.file_size.soft)),
                    "ulimit -f unlimited");
  }
  if (low(limits.address_space, 2 * kServer)) {
    findings.advice(fmt::format("the address space is limited to {}", human_bytes(*limits.address_space.soft)),
                    "ulimit -v unlimited");
  }
}

/// The pool of 2 MiB pages, which can be reserved while the machine runs; 1 GiB pages should be reserved at boot.
const HugepagePool* common_pool(const NodeFacts& node) {
  const auto pool = std::ranges::find(node.hugepages, 2 * kMebi, &HugepagePool::page_bytes);
  return pool == node.hugepages.end() ? nullptr : &*pool;
}

bool has_free_hugepage(const NodeFacts& node) {
  return std::ranges::any_of(node.hugepages, [](const HugepagePool& pool) { return pool.free != 0; });
}

/// Only a node with memory can have arenas, and so needs hugepages.
bool lacks_hugepages(const NodeFacts& node) {
  return node.memory_bytes.value_or(0) != 0 && common_pool(node) != nullptr && !has_free_hugepage(node);
}

/// Pages that the node should have: its present ones and another GiB, but not more than half of the free memory.
std::uint64_t wanted_pages(const NodeFacts& node) {
  const HugepagePool& pool = *common_pool(node);
  const std::uint64_t more = std::min(kGib, node.free_bytes.value_or(kGib) / 2) / pool.page_bytes;
  return pool.total + std::min(std::max<std::uint64_t>(1, more), UINT64_MAX - pool.total);
}

void check_hugepages(const MemoryFacts& memory, Findings& findings) {
  const auto first = std::ranges::find_if(memory.nodes, lacks_hugepages);
  if (first == memory.nodes.end()) return;
  if (memory.nodes.size() == 1) {
    // sysctl sets the number of pages of the default size, whatever that is.
    const std::string place =
        memory.default_hugepage_bytes == 2 * kMebi
            ? fmt::format("sysctl vm.nr_hugepages={}", wanted_pages(*first))
            : fmt::format("echo {} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", wanted_pages(*first));
    findings.advice(fmt::format("no hugepage is free{}, so arenas take smaller pages",
                                common_pool(*first)->total != 0 ? ": all are in use" : ""),
                    place + "  # as root; for good: the kernel's command line, or /etc/sysctl.d");
    return;
  }
  for (const NodeFacts& node : memory.nodes) {
    if (!lacks_hugepages(node)) continue;
    findings.advice(
        fmt::format("node {} has no free hugepage, so arenas there take smaller pages", node.id),
        fmt::format("echo {} > /sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages  # as "
                    "root",
                    wanted_pages(node), node.id));
  }
}

void check_memory(const MemoryFacts& memory, Findings& findings) {
  if (memory.headroom_bytes && *memory.headroom_bytes < kServer + kServer / 4) {
    const std::uint64_t mib = std::max<std::uint64_t>(1, *memory.headroom_bytes / 2 / kMebi);
    findings.advice(fmt::format("{} of memory is available ({}), and a server takes 1 GiB by default",
                                human_bytes(*memory.headroom_bytes), memory.headroom_limit),
                    fmt::format("verbena-kv serve -m {}", mib));
  }
  check_hugepages(memory, findings);
}

}  // namespace

std::vector<Finding> find_problems(const HostFacts& facts) {
  Findings findings;
  check_permissions(facts, findings);
  check_devices(facts, findings);
  check_limits(facts.limits, findings);
  check_memory(facts.memory, findings);
  return std::move(findings.all);
}

}  // namespace verbena::programs
