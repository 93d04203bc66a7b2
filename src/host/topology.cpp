#include "host/topology.hpp"

#include "base/error.hpp"

#include <hwloc.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace verbena::host {

namespace {

unsigned weight(hwloc_const_bitmap_t set) noexcept {
  return static_cast<unsigned>(std::max(hwloc_bitmap_weight(set), 0));
}

std::vector<unsigned> members(hwloc_const_bitmap_t set) {
  std::vector<unsigned> indices;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i))
    indices.push_back(static_cast<unsigned>(i));
  return indices;
}

unsigned package_of(hwloc_topology* machine, hwloc_obj* core) noexcept {
  const hwloc_obj* package = hwloc_get_ancestor_obj_by_type(machine, HWLOC_OBJ_PACKAGE, core);
  return package == nullptr || package->os_index == HWLOC_UNKNOWN_INDEX ? 0 : package->os_index;
}

/// The rank of the kind of `core` in a hybrid machine, from hwloc. 0 for all if hwloc cannot tell.
unsigned speed_of([[maybe_unused]] hwloc_topology* machine, [[maybe_unused]] const hwloc_obj* core) noexcept {
#if HWLOC_API_VERSION >= 0x00020400
  const int kind = hwloc_cpukinds_get_by_cpuset(machine, core->cpuset, 0);
  int rank = 0;
  if (kind >= 0 &&
      hwloc_cpukinds_get_info(machine, static_cast<unsigned>(kind), nullptr, &rank, nullptr, nullptr, 0) == 0)
    return static_cast<unsigned>(std::max(rank, 0));
#endif
  return 0;
}

bool contains(std::span<const unsigned> sorted, unsigned value) noexcept {
  return std::ranges::binary_search(sorted, value);
}

}  // namespace

/// Fills a topology from hwloc and the mask.
struct Topology::Reader {
  Topology& topology;
  std::span<const unsigned> mask;  ///< Ascending.

  void take(hwloc_topology* machine) {
    take_nodes(machine);
    take_cpus(machine);
    take_cores(machine);
  }

  void take_nodes(hwloc_topology* machine) {
    const hwloc_const_nodeset_t allowed = hwloc_topology_get_allowed_nodeset(machine);
    for (hwloc_obj* at = nullptr; (at = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_NUMANODE, at)) != nullptr;) {
      topology.nodes_.push_back({.id = at->os_index,
                                 .memory_bytes = at->attr->numanode.local_memory,
                                 .allowed = hwloc_bitmap_isset(allowed, at->os_index) != 0});
    }
    std::ranges::sort(topology.nodes_, {}, &Node::id);
  }

  void take_cpus(hwloc_topology* machine) {
    const hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(machine);
    topology.counts_ = {.there = weight(hwloc_topology_get_complete_cpuset(machine)),
                        .online = weight(hwloc_topology_get_topology_cpuset(machine))};
    for (hwloc_obj* at = nullptr; (at = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, at)) != nullptr;) {
      const unsigned cpu = at->os_index;
      topology.node_of_cpu_.emplace_back(cpu, node_of(at));
      if (hwloc_bitmap_isset(allowed, cpu) == 0) continue;
      ++topology.counts_.allowed;
      if (contains(mask, cpu)) ++topology.counts_.usable;
    }
    std::ranges::sort(topology.node_of_cpu_);
  }

  /// The nearest node with memory: there may also be one with high-bandwidth memory, or one without memory.
  [[nodiscard]] unsigned node_of(const hwloc_obj* at) const noexcept {
    int first = -1;
    for (int i = hwloc_bitmap_first(at->nodeset); i >= 0; i = hwloc_bitmap_next(at->nodeset, i)) {
      if (first < 0) first = i;
      const Node* node = topology.find_node(static_cast<unsigned>(i));
      if (node != nullptr && node->has_memory()) return node->id;
    }
    return first < 0 ? 0 : static_cast<unsigned>(first);
  }

  void take_cores(hwloc_topology* machine) {
    // Some virtual machines do not distinguish cores from hardware threads; there every thread counts as a core.
    const bool has_cores = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_CORE) > 0;
    const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    const hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(machine);
    for (hwloc_obj* at = nullptr; (at = hwloc_get_next_obj_by_type(machine, type, at)) != nullptr;) {
      Core core{.node = node_of(at), .package = package_of(machine, at), .threads = 0};
      core.threads_there = weight(at->cpuset);
      core.speed = speed_of(machine, at);
      core.id = static_cast<unsigned>(std::max(hwloc_bitmap_first(at->complete_cpuset), 0));
      for (const unsigned cpu : members(at->cpuset)) {
        if (hwloc_bitmap_isset(allowed, cpu) == 0 || !contains(mask, cpu)) continue;
        if (core.threads++ == 0) core.cpu = cpu;
      }
      if (core.threads != 0) topology.cores_.push_back(core);
    }
    std::ranges::sort(topology.cores_, {},
                      [](const Core& core) { return std::tuple(core.node, core.package, core.cpu); });
  }

  /// Without hwloc only the mask is known.
  void take_mask() {
    for (const unsigned cpu : mask) {
      topology.cores_.push_back({.cpu = cpu, .id = cpu});
      topology.node_of_cpu_.emplace_back(cpu, 0U);
    }
    const auto count = static_cast<unsigned>(mask.size());
    topology.counts_ = {.there = count, .online = count, .allowed = count, .usable = count};
  }
};

Result<Topology> Topology::of(hwloc_topology* machine, std::span<const unsigned> mask,
                              std::optional<unsigned> quota_percent, bool can_bind_memory) {
  Topology topology;
  Reader reader{topology, mask};
  if (machine != nullptr) reader.take(machine);
  if (topology.cores_.empty()) reader.take_mask();
  if (topology.cores_.empty())
    return fail(Status::kSystem, "sched_getaffinity", 0, "neither hwloc nor the affinity mask names a cpu to run on");
  topology.quota_percent_ = quota_percent;
  topology.can_bind_memory_ = can_bind_memory;
  return topology;
}

unsigned Topology::node_count() const noexcept { return std::max(1U, static_cast<unsigned>(nodes_.size())); }

const Node* Topology::find_node(unsigned id) const noexcept {
  const auto at = std::ranges::find(nodes_, id, &Node::id);
  return at == nodes_.end() ? nullptr : &*at;
}

Locality Topology::locality_of(std::string_view name) const {
  const auto at = std::ranges::find(devices_, name, &Locality::device);
  return at == devices_.end() ? Locality{.device = std::string(name), .nodes = {}} : *at;
}

}  // namespace verbena::host
