// Cores, nodes and pinning, from hwloc, within the affinity mask that this process has.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace verbena::host {

struct Core {
  unsigned cpu = 0;      ///< OS index of the first hardware thread that this process may use.
  unsigned node = 0;     ///< NUMA node (OS index), 0 where the machine has none.
  unsigned package = 0;  ///< Socket (OS index).
};

/// What this process may run on. A value. \alloc setup
class Topology {
 public:
  /// Reads the machine through hwloc and intersects it with the affinity mask; falls back on
  /// sched_getaffinity alone when hwloc finds nothing. kSystem only when neither works.
  [[nodiscard]] static Result<Topology> read();

  /// One entry a physical core, ordered by node, then package, then cpu. Never empty.
  [[nodiscard]] std::span<const Core> cores() const noexcept { return cores_; }
  [[nodiscard]] unsigned node_count() const noexcept { return node_count_; }
  /// Core for the n-th polling thread: spread over the allowed cores from the last one down, because the first
  /// usually takes the interrupts; wraps when n passes their number.
  [[nodiscard]] const Core& core_for_poller(unsigned n) const noexcept;

 private:
  std::vector<Core> cores_;
  unsigned node_count_ = 1;
};

/// Pins the calling thread to one cpu. Errors: kBadArgument (no such cpu, or outside this thread's affinity
/// mask). \thread owner
[[nodiscard]] Result<void> pin_this_thread(unsigned cpu);
/// Names the calling thread ("verbena-kv-0"), cut at 15 characters. \thread owner
void name_this_thread(std::string_view name) noexcept;
/// Blocks all signals in the calling thread: every thread of the library does this first. \thread owner
void block_signals_in_this_thread() noexcept;

}  // namespace verbena::host
