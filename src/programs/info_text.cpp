// Text for people: short sections, then what to do.
#include "programs/environment.hpp"
#include "programs/info.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace verbena::programs {
namespace {

std::string bytes(const std::optional<std::uint64_t>& count, const char* none) {
  return count ? human_bytes(*count) : none;
}

std::string distances_text(const NodeFacts& node) {
  std::string text;
  for (const auto& [other, distance] : node.distances)
    append(text, "{}node {}: {}", text.empty() ? "" : ", ", other, distance);
  return text.empty() ? "unknown" : text;
}

std::string place_text(const DeviceFacts& device, const MemoryFacts& memory) {
  if (!device.numa_node)
    return memory.has_numa && memory.nodes.size() > 1 ? "unknown: the firmware does not say" : "any";
  const auto node = std::ranges::find(memory.nodes, *device.numa_node, &NodeFacts::id);
  std::string text = fmt::format("node {}", *device.numa_node);
  if (node != memory.nodes.end() && !node->distances.empty()) append(text, "; distance to {}", distances_text(*node));
  return text;
}

std::string access_text(const DeviceFacts& device) {
  if (device.char_device.empty()) return "no device file: not for programs";
  if (!device.char_device_there) return device.char_device + ": not there";
  return device.char_device + (device.may_open ? ": may be opened" : ": permission denied");
}

void put_port(std::string& text, const PortFacts& port) {
  append(text, "    port {}    {}, link {}, {}, {}", port.number, or_unknown(port.state), or_unknown(port.physical),
         or_unknown(port.link_layer), or_unknown(port.rate));
  if (!port.is_ethernet() && !port.lid.empty()) append(text, ", LID {}", port.lid);
  text += '\n';
  for (const NetdevFacts& netdev : port.netdevs) {
    append(text, "      {:<10} {}, {}, MTU {}, {}\n", netdev.name, netdev.is_up ? "up" : "down", netdev.state,
           netdev.mtu ? fmt::format("{}", *netdev.mtu) : "unknown", or_unknown(netdev.address));
  }
  for (const GidFacts& gid : port.gids) {
    append(text, "    {} GID {:<3}  {:<26} {:<10} {:<8} {}\n", gid.index == port.gid_index ? '*' : ' ', gid.index,
           gid.address, gid.type, gid.netdev.empty() ? "-" : gid.netdev, gid.verdict);
  }
  if (!port.gid_index) append(text, "      no GID     {}\n", port.gid_reason);
}

void put_devices(std::string& text, const HostFacts& facts) {
  text += "RDMA devices\n";
  if (facts.devices.empty()) text += "  none          no driver has registered one; the soft NIC needs none\n";
  for (const DeviceFacts& device : facts.devices) {
    append(text, "  {}\n", device.name);
    append(text, "    kind      {}, firmware {}, GUID {}\n", or_unknown(device.kind), or_unknown(device.firmware),
           or_unknown(device.guid));
    append(text, "    NUMA      {}\n", place_text(device, facts.memory));
    append(text, "    access    {}\n", access_text(device));
    append(text, "    ATOMIC    {}\n", or_unknown(device.atomic));
    append(text, "    relaxed   {}\n", device.relaxed_ordering);
    for (const PortFacts& port : device.ports) put_port(text, port);
  }
  if (!facts.devices.empty()) {
    const auto loaded = [](bool is) { return is ? "loaded" : "not loaded"; };
    append(text, "  modules       ib_uverbs {}, rdma_ucm {}\n", loaded(facts.modules.uverbs),
           loaded(facts.modules.rdma_ucm));
  }
}

std::string pools_text(const NodeFacts& node) {
  std::string text;
  for (const HugepagePool& pool : node.hugepages) {
    append(text, "{}{} of {} pages of {} free", text.empty() ? "" : ", ", pool.free, pool.total,
           human_bytes(pool.page_bytes));
  }
  return text.empty() ? "none: this kernel has no hugepages" : text;
}

void put_memory(std::string& text, const MemoryFacts& memory) {
  append(text, "Memory\n  available     {}", bytes(memory.headroom_bytes, "unknown"));
  if (!memory.headroom_limit.empty()) append(text, " ({})", memory.headroom_limit);
  append(text, "\n  transparent   {} for ordinary memory, {} for memfds (what arenas are)\n", memory.transparent,
         memory.transparent_memfd);
  for (const NodeFacts& node : memory.nodes) {
    append(text, "  node {:<8} cpus {}, {} of {} free\n", node.id, or_unknown(node.cpus), bytes(node.free_bytes, "?"),
           bytes(node.memory_bytes, "?"));
    append(text, "    hugepages   {}\n", pools_text(node));
    if (memory.nodes.size() > 1) append(text, "    distance    to {}\n", distances_text(node));
  }
}

void put_limit(std::string& text, const LimitFacts& limit, bool is_bytes, const char* remark) {
  const auto value = [is_bytes](const std::optional<std::uint64_t>& number) {
    if (!number || is_bytes) return bytes(number, "unlimited");
    return fmt::format("{}", *number);
  };
  if (!limit.is_known) return append(text, "  {:<14}unknown\n", limit.name);
  append(text, "  {:<14}{}", limit.name, value(limit.soft));
  if (limit.soft != limit.hard) append(text, ", can be raised to {}", value(limit.hard));
  append(text, "{}\n", remark);
}

void put_probe(std::string& text, const Probe& probe) {
  append(text, "  {:<27} {:<4} {}\n", probe.name, probe.works ? "yes" : "no", probe.detail);
}

void put_permissions(std::string& text, const Permissions& p) {
  text += "Permissions (tried)\n";
  for (const Probe* probe :
       {&p.soft_nic, &p.membarrier, &p.sealed_memfd, &p.pidfd, &p.read_child, &p.read_peer, &p.frames}) {
    put_probe(text, *probe);
  }
  if (p.ptrace_scope) append(text, "  {:<27} {}\n", "yama ptrace_scope", *p.ptrace_scope);
}

void put_findings(std::string& text, const std::vector<Finding>& findings, Finding::Kind kind, const char* title) {
  if (std::ranges::find(findings, kind, &Finding::kind) == findings.end()) return;
  append(text, "{}\n", title);
  for (const Finding& finding : findings) {
    if (finding.kind == kind) append(text, "  - {}\n      {}\n", finding.what, finding.fix);
  }
}

}  // namespace

std::string info_text(const HostFacts& facts, const std::vector<Finding>& findings) {
  std::string text;
  append(text, "NIC             {}: {}\nkernel          {}\nclock           {}\npolling         {}\n", facts.nic.name,
         facts.nic.reason, facts.kernel, facts.clock, facts.looks);
  put_devices(text, facts);
  put_memory(text, facts.memory);
  text += "Limits\n";
  const ProcessLimits& limits = facts.limits;
  put_limit(text, limits.locked_memory, true, limits.may_lock_all ? "; CAP_IPC_LOCK lifts it" : "");
  put_limit(text, limits.open_files, false, "");
  put_limit(text, limits.file_size, true, "");
  put_limit(text, limits.address_space, true, "");
  put_permissions(text, facts.permissions);
  put_findings(text, findings, Finding::Kind::kProblem, "Problems");
  put_findings(text, findings, Finding::Kind::kAdvice, "Advice");
  if (findings.empty()) text += "No problems\n";
  return text;
}

}  // namespace verbena::programs
