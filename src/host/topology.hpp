// Cores, nodes, devices and pinning, from hwloc, within the affinity mask and the cgroups that this process has.
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
  unsigned node = 0;           ///< NUMA node (OS index), 0 where the machine has none.
  unsigned package = 0;        ///< Socket (OS index).
  unsigned id = 0;             ///< Lowest OS index of its hardware threads: the same core for every process.
  unsigned threads = 1;        ///< Hardware threads that this process may use,
  unsigned threads_there = 1;  ///< and that are online.
  unsigned speed = 0;          ///< Rank of its kind in a hybrid machine, where more is faster; 0 where all are alike.
};

struct Node {
  unsigned id = 0;  ///< OS index.
  std::uint64_t memory_bytes = 0;
  bool allowed = true;  ///< The cgroup lets this process have memory from there.
  [[nodiscard]] bool has_memory() const noexcept { return allowed && memory_bytes != 0; }
};

/// Where a device is attached.
struct Locality {
  std::string device;           ///< Its name; empty: none, every node is as near.
  std::vector<unsigned> nodes;  ///< Near ones, in order. Empty: unknown, or all are equally near.
};

/// Logical cpus, and why so few of them are for us.
struct CpuCounts {
  unsigned there = 0;  ///< Offline ones included, as far as the kernel knows of them.
  unsigned online = 0;
  unsigned allowed = 0;  ///< Of these, by the cgroup's cpuset.
  unsigned usable = 0;   ///< Of these, in the affinity mask.
};

/// What this process may run on. A value. \alloc setup
class Topology {
 public:
  /// Reads the machine through hwloc and intersects it with the calling thread's affinity mask; falls back on
  /// sched_getaffinity alone when hwloc finds nothing. Call it before the thread binds itself to a core. kSystem only
  /// when neither names a cpu. Takes 3 ms.
  [[nodiscard]] static Result<Topology> read(const KernelFiles& files = {});
  /// Of what hwloc knows of a machine (null: nothing), within an affinity mask whose cpus are in order, and without
  /// devices. kSystem when neither names a cpu.
  [[nodiscard]] static Result<Topology> of(hwloc_topology* machine, std::span<const unsigned> mask,
                                           std::optional<unsigned> quota_percent, bool can_bind_memory);

  /// One entry a physical core, ordered by node, then package, then cpu. Never empty.
  [[nodiscard]] std::span<const Core> cores() const noexcept { return cores_; }
  /// In the order of their index. Empty when hwloc found nothing.
  [[nodiscard]] std::span<const Node> nodes() const noexcept { return nodes_; }
  [[nodiscard]] unsigned node_count() const noexcept;
  /// Null for a node that is not known.
  [[nodiscard]] const Node* find_node(unsigned id) const noexcept;
  [[nodiscard]] const CpuCounts& counts() const noexcept { return counts_; }
  /// Processor time that the tightest cgroup grants, in percent of one cpu; empty: no limit.
  [[nodiscard]] std::optional<unsigned> quota_percent() const noexcept { return quota_percent_; }
  /// Whether memory can be bound to a node at all: many containers deny it.
  [[nodiscard]] bool can_bind_memory() const noexcept { return can_bind_memory_; }
  /// Where the RDMA device `name` is. Without nodes when that is not known, as for a virtual device.
  [[nodiscard]] Locality locality_of(std::string_view name) const;

 private:
  struct Reader;
  Topology() = default;
  void read_devices(const char* directory);

  std::vector<Core> cores_;
  std::vector<Node> nodes_;
  std::vector<std::pair<unsigned, unsigned>> node_of_cpu_;  ///< Of every cpu that is online, in order.
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
