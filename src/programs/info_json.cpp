// JSON for machines: the same facts as one object.
#include "programs/info.hpp"
#include "programs/json.hpp"

#include <algorithm>

namespace verbena::programs {
namespace {

Json netdev_json(const NetdevFacts& netdev) {
  return json_object("name", netdev.name, "up", netdev.is_up, "state", netdev.state, "mtu", netdev.mtu, "address",
                     netdev.address);
}

Json port_json(const PortFacts& port) {
  const auto gid_json = [&](const GidFacts& gid) {
    return json_object("index", gid.index, "gid", gid.address, "type", gid.type, "netdev", gid.netdev, "chosen",
                       gid.index == port.gid_index, "verdict", gid.verdict);
  };
  return json_object("port", port.number, "state", port.state, "physical", port.physical, "link_layer", port.link_layer,
                     "rate", port.rate, "lid", port.lid, "netdevs", json_array(port.netdevs, netdev_json), "gids",
                     json_array(port.gids, gid_json), "gid_index", port.gid_index, "gid_reason", port.gid_reason);
}

Json distances_json(const NodeFacts& node) {
  return json_array(node.distances,
                    [](const auto& to) { return json_object("node", to.first, "distance", to.second); });
}

Json device_json(const DeviceFacts& device, const MemoryFacts& memory) {
  const auto node = std::ranges::find(memory.nodes, device.numa_node, &NodeFacts::id);
  return json_object("name", device.name, "kind", device.kind, "guid", device.guid, "firmware", device.firmware,
                     "numa_node", device.numa_node, "distances",
                     node != memory.nodes.end() ? distances_json(*node) : Json::array(), "file", device.char_device,
                     "file_exists", device.char_device_there, "may_open", device.may_open, "atomic", device.atomic,
                     "relaxed_ordering", device.relaxed_ordering, "ports", json_array(device.ports, port_json));
}

Json pool_json(const HugepagePool& pool) {
  return json_object("page_bytes", pool.page_bytes, "total", pool.total, "free", pool.free);
}

Json node_json(const NodeFacts& node) {
  return json_object("node", node.id, "cpus", node.cpus, "bytes", node.memory_bytes, "free_bytes", node.free_bytes,
                     "distances", distances_json(node), "hugepages", json_array(node.hugepages, pool_json));
}

Json memory_json(const MemoryFacts& memory) {
  return json_object("headroom_bytes", memory.headroom_bytes, "headroom_limit", memory.headroom_limit,
                     "transparent_hugepages", memory.transparent, "transparent_hugepages_memfd",
                     memory.transparent_memfd, "default_hugepage_bytes", memory.default_hugepage_bytes, "numa",
                     memory.has_numa, "nodes", json_array(memory.nodes, node_json));
}

/// null: unknown. A null within it: unlimited.
Json limit_json(const LimitFacts& limit) {
  return limit.is_known ? json_object("soft", limit.soft, "hard", limit.hard) : Json();
}

Json limits_json(const ProcessLimits& limits) {
  return json_object("locked_memory_bytes", limit_json(limits.locked_memory), "open_files",
                     limit_json(limits.open_files), "file_size_bytes", limit_json(limits.file_size),
                     "address_space_bytes", limit_json(limits.address_space), "cap_ipc_lock", limits.may_lock_all);
}

Json probe_json(const Probe& probe) { return json_object("works", probe.works, "detail", probe.detail); }

Json permissions_json(const Permissions& p) {
  return json_object("soft_nic", probe_json(p.soft_nic), "membarrier", probe_json(p.membarrier), "sealed_memfd",
                     probe_json(p.sealed_memfd), "pidfd", probe_json(p.pidfd), "process_vm_child",
                     probe_json(p.read_child), "process_vm_peer", probe_json(p.read_peer), "page_frame_numbers",
                     probe_json(p.frames), "ptrace_scope", p.ptrace_scope);
}

Json finding_json(const Finding& finding) {
  return json_object("kind", finding.kind == Finding::Kind::kProblem ? "problem" : "advice", "what", finding.what,
                     "fix", finding.fix);
}

}  // namespace

std::string info_json(const HostFacts& facts, const std::vector<Finding>& findings) {
  const auto describe = [&](const DeviceFacts& device) { return device_json(device, facts.memory); };
  return json_line("nic", json_object("name", facts.nic.name, "reason", facts.nic.reason), "kernel", facts.kernel,
                   "clock", facts.clock, "looks", facts.looks, "devices", json_array(facts.devices, describe),
                   "modules", json_object("ib_uverbs", facts.modules.uverbs, "rdma_ucm", facts.modules.rdma_ucm),
                   "memory", memory_json(facts.memory), "limits", limits_json(facts.limits), "permissions",
                   permissions_json(facts.permissions), "findings", json_array(findings, finding_json));
}

}  // namespace verbena::programs
