// What machines read: the same facts as one JSON object.
#include "programs/environment.hpp"
#include "programs/info.hpp"
#include "programs/json.hpp"

#include <fmt/core.h>

namespace verbena::programs {
namespace {

std::string netdev_json(const NetdevFacts& netdev) {
  return fmt::format(R"({{"name":{},"up":{},"state":{},"mtu":{},"address":{}}})", json_string(netdev.name),
                     netdev.is_up, json_string(netdev.state), json_number(netdev.mtu), json_string(netdev.address));
}

std::string gid_json(const GidFacts& gid, const PortFacts& port) {
  return fmt::format(R"({{"index":{},"gid":{},"type":{},"netdev":{},"chosen":{},"verdict":{}}})", gid.index,
                     json_string(gid.address), json_string(gid.type), json_string(gid.netdev),
                     gid.index == port.gid_index, json_string(gid.verdict));
}

std::string port_json(const PortFacts& port) {
  return fmt::format(R"({{"port":{},"state":{},"physical":{},"link_layer":{},"rate":{},"lid":{},"netdevs":{},)"
                     R"("gids":{},"gid_index":{},"gid_reason":{}}})",
                     port.number, json_string(port.state), json_string(port.physical), json_string(port.link_layer),
                     json_string(port.rate), json_string(port.lid), json_array(port.netdevs, netdev_json),
                     json_array(port.gids, [&](const GidFacts& gid) { return gid_json(gid, port); }),
                     json_number(port.gid_index), json_string(port.gid_reason));
}

std::string distances_json(const NodeFacts& node) {
  return json_array(node.distances,
                    [](const auto& to) { return fmt::format(R"({{"node":{},"distance":{}}})", to.first, to.second); });
}

std::string device_json(const DeviceFacts& device, const MemoryFacts& memory) {
  std::string distances = "[]";
  for (const NodeFacts& node : memory.nodes) {
    if (node.id == device.numa_node) distances = distances_json(node);
  }
  return fmt::format(R"({{"name":{},"kind":{},"guid":{},"firmware":{},"numa_node":{},"distances":{},)"
                     R"("file":{},"file_exists":{},"may_open":{},"atomic":{},"relaxed_ordering":{},"ports":{}}})",
                     json_string(device.name), json_string(device.kind), json_string(device.guid),
                     json_string(device.firmware), json_number(device.numa_node), distances,
                     json_string(device.char_device), device.char_device_there, device.may_open,
                     json_string(device.atomic), json_string(device.relaxed_ordering),
                     json_array(device.ports, port_json));
}

std::string pool_json(const HugepagePool& pool) {
  return fmt::format(R"({{"page_bytes":{},"total":{},"free":{}}})", pool.page_bytes, pool.total, pool.free);
}

std::string node_json(const NodeFacts& node) {
  return fmt::format(R"({{"node":{},"cpus":{},"bytes":{},"free_bytes":{},"distances":{},"hugepages":{}}})", node.id,
                     json_string(node.cpus), json_number(node.memory_bytes), json_number(node.free_bytes),
                     distances_json(node), json_array(node.hugepages, pool_json));
}

std::string memory_json(const MemoryFacts& memory) {
  return fmt::format(R"({{"headroom_bytes":{},"headroom_limit":{},"transparent_hugepages":{},)"
                     R"("transparent_hugepages_memfd":{},"default_hugepage_bytes":{},"numa":{},"nodes":{}}})",
                     json_number(memory.headroom_bytes), json_string(memory.headroom_limit),
                     json_string(memory.transparent), json_string(memory.transparent_memfd),
                     json_number(memory.default_hugepage_bytes), memory.has_numa, json_array(memory.nodes, node_json));
}

/// null: unknown; within it null: unlimited.
std::string limit_json(const LimitFacts& limit) {
  return limit.is_known ? fmt::format(R"({{"soft":{},"hard":{}}})", json_number(limit.soft), json_number(limit.hard))
                        : "null";
}

std::string limits_json(const ProcessLimits& limits) {
  return fmt::format(
      R"({{"locked_memory_bytes":{},"open_files":{},"file_size_bytes":{},"address_space_bytes":{},"cap_ipc_lock":{}}})",
      limit_json(limits.locked_memory), limit_json(limits.open_files), limit_json(limits.file_size),
      limit_json(limits.address_space), limits.may_lock_all);
}

std::string probe_json(const Probe& probe) {
  return fmt::format(R"({{"works":{},"detail":{}}})", probe.works, json_string(probe.detail));
}

std::string permissions_json(const Permissions& p) {
  return fmt::format(R"({{"soft_nic":{},"membarrier":{},"sealed_memfd":{},"pidfd":{},"process_vm_child":{},)"
                     R"("process_vm_peer":{},"page_frame_numbers":{},"ptrace_scope":{}}})",
                     probe_json(p.soft_nic), probe_json(p.membarrier), probe_json(p.sealed_memfd), probe_json(p.pidfd),
                     probe_json(p.read_child), probe_json(p.read_peer), probe_json(p.frames),
                     p.ptrace_scope ? fmt::format("{}", *p.ptrace_scope) : "null");
}

std::string finding_json(const Finding& finding) {
  return fmt::format(R"({{"kind":"{}","what":{},"fix":{}}})",
                     finding.kind == Finding::Kind::kProblem ? "problem" : "advice", json_string(finding.what),
                     json_string(finding.fix));
}

}  // namespace

std::string info_json(const HostFacts& facts, const std::vector<Finding>& findings) {
  std::string text = fmt::format(R"({{"nic":{{"name":{},"reason":{}}},"kernel":{},)", json_string(facts.nic.name),
                                 json_string(facts.nic.reason), json_string(facts.kernel));
  text += fmt::format(
      R"("devices":{},"modules":{{"ib_uverbs":{},"rdma_ucm":{}}},)",
      json_array(facts.devices, [&](const DeviceFacts& device) { return device_json(device, facts.memory); }),
      facts.modules.uverbs, facts.modules.rdma_ucm);
  text += fmt::format(R"("memory":{},"limits":{},"permissions":{},)", memory_json(facts.memory),
                      limits_json(facts.limits), permissions_json(facts.permissions));
  return text + fmt::format("\"findings\":{}}}\n", json_array(findings, finding_json));
}

}  // namespace verbena::programs
