// Cores, nodes, devices and pinning, from hwloc, limited by this process's affinity mask and cgroups.
#pragma once

#include "host/memory_limits.hpp"

#include <verbena/error.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct hwloc_topology;

namespace verbena::host {

/// A physical core of which this process may use a hardware thread.
struct Core {
  unsigned cpu = 0;            ///< OS index of the first hardware thread that this process may use.
  unsigned node = 0;           ///< NUMA node (OS index), 0 if the machine has none.
  unsigned package = 0;        ///< Socket (OS index).
  unsigned id = 0;             ///< Lowest OS index of its hardware threads: the same core for every process.
  unsigned threads = 1;        ///< Hardware threads that this process may use.
  unsigned threads_there = 1;  ///< Hardware threads that are online.
  unsigned speed = 0;          ///< Rank of its kind in a hybrid machine, higher is faster; 0 if all are alike.
};

struct Node {
  unsigned id = 0;  ///< OS index.
  std::uint64_t memory_bytes = 0;
  bool allowed = true;  ///< Whether the cgroup lets this process use its memory.
  [[nodiscard]] bool has_memory() const noexcept { return allowed && memory_bytes != 0; }
};

/// Where a device is attached.
struct Locality {
  std::string device;           ///< Its name; empty: no device, all nodes are equally near.
  std::vector<unsigned> nodes;  ///< Near nodes, ascending. Empty: unknown, or all are equally near.
};

/// Numbers of logical cpus, which tell why this process may use so few.
struct CpuCounts {
  unsigned there = 0;  ///< All that the kernel knows, offline ones included.
  unsigned online = 0;
  unsigned allowed = 0;  ///< Online ones that the cgroup's cpuset allows.
  unsigned usable = 0;   ///< Allowed ones in the affinity mask.
};

/// The cpus and memory that this process may use. A value. \alloc setup
class Topology {
 public:
  /// Reads the machine through hwloc and intersects it with the calling thread's affinity mask; uses sched_getaffinity
  /// alone if hwloc finds nothing. Call it before the thread binds itself to a core. kSystem only if neither names a
  /// cpu. Takes 3 ms.
  [[nodiscard]] static Result<Topology> read(const KernelFiles& files = {});
  /// Makes a topology, without devices, from hwloc's data of a machine (null: none) and an affinity mask with ascending
  /// cpus. kSystem if neither names a cpu.
  [[nodiscard]] static Result<Topology> of(hwloc_topology* machine, std::span<const unsigned> mask,
                                           std::optional<unsigned> quota_percent, bool can_bind_memory);

  /// One entry per physical core, ordered by node, then package, then cpu. Never empty.
  [[nodiscard]] std::span<const Core> cores() const noexcept { return cores_; }
  /// Ordered by index. Empty if hwloc found nothing.
  [[nodiscard]] std::span<const Node> nodes() const noexcept { return nodes_; }
  [[nodiscard]] unsigned node_count() const noexcept;
  /// Null for an unknown node.
  [[nodiscard]] const Node* find_node(unsigned id) const noexcept;
  [[nodiscard]] const CpuCounts& counts() const noexcept { return counts_; }
  /// Processor time that the tightest cgroup grants, in percent of one cpu; empty: no limit.
  [[nodiscard]] std::optional<unsigned> quota_percent() const noexcept { return quota_percent_; }
  /// Whether memory can be bound to a node at all: many containers deny it.
  [[nodiscard]] bool can_bind_memory() const noexcept { return can_bind_memory_; }
  /// Where the RDMA device `name` is. Has no nodes if that is unknown, as for a virtual device.
  [[nodiscard]] Locality locality_of(std::string_view name) const;

 private:
  struct Reader;
  Topology() = default;
  void read_devices(const char* directory);

  std::vector<Core> cores_;
  std::vector<Node> nodes_;
  std::vector<std::pair<unsigned, unsigned>> node_of_cpu_;  ///< Every online cpu and its node, ascending.
  std::vector<Locality> devices_;
  CpuCounts counts_;
  std::optional<unsigned> quota_percent_;
  bool can_bind_memory_ = true;
};

/// Pins the calling thread to one cpu. Errors: kBadArgument (no such cpu, or outside this thread's affinity
/// mask). \thread owner
[[nodiscard]] Result<void> pin_this_thread(unsigned cpu);
/// Names the calling thread ("verbena-kv-0"), cut at 15 characters. \thread owner
void name_this_thread(std::string_view name) noexcept;
/// Blocks all signals in the calling thread: every thread of the library does this first. \thread owner
void block_signals_in_this_thread() noexcept;

}  // namespace verbena::host
