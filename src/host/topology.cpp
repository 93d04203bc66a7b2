#include "host/topology.hpp"

#include "base/check.hpp"
#include "base/error.hpp"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <tuple>

namespace verbena::host {

namespace {

constexpr unsigned kFirstMaskCpus = 1024;
constexpr unsigned kMostMaskCpus = 1U << 17;  // Sixteen times what Linux can be built for.

/// A cpu_set_t of any size: sched_getaffinity refuses one that is smaller than the kernel's own.
class CpuMask {
 public:
  [[nodiscard]] static Result<CpuMask> of_this_thread() {
    for (unsigned cpus = kFirstMaskCpus; cpus <= kMostMaskCpus; cpus *= 2) {
      CpuMask mask(cpus);
      if (mask.set_ == nullptr) return fail(Status::kNoMemory, "CPU_ALLOC", ENOMEM, "no memory for a cpu mask");
      if (sched_getaffinity(0, mask.bytes_, mask.set_.get()) == 0) return mask;
      if (errno != EINVAL) break;
    }
    return fail_system("sched_getaffinity", errno, "reading the cpus that this thread may use");
  }
  [[nodiscard]] bool has(unsigned cpu) const noexcept {
    return cpu < cpus_ && CPU_ISSET_S(cpu, bytes_, set_.get()) != 0;
  }
  [[nodiscard]] unsigned size() const noexcept { return cpus_; }
  [[nodiscard]] int pin(unsigned cpu) noexcept {
    CPU_ZERO_S(bytes_, set_.get());
    CPU_SET_S(cpu, bytes_, set_.get());
    return sched_setaffinity(0, bytes_, set_.get()) == 0 ? 0 : errno;
  }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const noexcept { CPU_FREE(set); }
  };
  explicit CpuMask(unsigned cpus) noexcept : cpus_(cpus), bytes_(CPU_ALLOC_SIZE(cpus)), set_(CPU_ALLOC(cpus)) {
    if (set_ != nullptr) CPU_ZERO_S(bytes_, set_.get());
  }
  unsigned cpus_;
  std::size_t bytes_;
  std::unique_ptr<cpu_set_t, Free> set_;
};

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using Machine = std::unique_ptr<hwloc_topology, DestroyTopology>;

Machine load_machine() noexcept {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Machine machine(raw);
  // A topology from a file (HWLOC_XMLFILE) describes another machine: its cpus cannot be pinned to here.
  if (hwloc_topology_load(raw) != 0 || hwloc_topology_is_thissystem(raw) == 0) return nullptr;
  return machine;
}

std::optional<unsigned> first_allowed(hwloc_const_bitmap_t cpus, const CpuMask& mask) noexcept {
  for (int cpu = hwloc_bitmap_first(cpus); cpu >= 0; cpu = hwloc_bitmap_next(cpus, cpu))
    if (mask.has(static_cast<unsigned>(cpu))) return static_cast<unsigned>(cpu);
  return std::nullopt;
}

unsigned package_of(hwloc_topology* machine, hwloc_obj* core) noexcept {
  const hwloc_obj* package = hwloc_get_ancestor_obj_by_type(machine, HWLOC_OBJ_PACKAGE, core);
  return package == nullptr || package->os_index == HWLOC_UNKNOWN_INDEX ? 0 : package->os_index;
}

std::vector<Core> cores_of(hwloc_topology* machine, const CpuMask& mask) {
  std::vector<Core> cores;
  // Some virtual machines do not tell cores from hardware threads; there every thread counts as one.
  const bool has_cores = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj* at = hwloc_get_next_obj_by_type(machine, type, nullptr); at != nullptr;
       at = hwloc_get_next_obj_by_type(machine, type, at)) {
    const auto cpu = first_allowed(at->cpuset, mask);
    if (!cpu) continue;
    const int node = at->nodeset == nullptr ? -1 : hwloc_bitmap_first(at->nodeset);
    cores.push_back({*cpu, node < 0 ? 0 : static_cast<unsigned>(node), package_of(machine, at)});
  }
  std::ranges::sort(cores, {}, [](const Core& core) { return std::tuple(core.node, core.package, core.cpu); });
  return cores;
}

std::vector<Core> cores_of(const CpuMask& mask) {
  std::vector<Core> cores;
  for (unsigned cpu = 0; cpu < mask.size(); ++cpu)
    if (mask.has(cpu)) cores.push_back({.cpu = cpu});
  return cores;
}

}  // namespace

Result<Topology> Topology::read() {
  VERBENA_ASSIGN(const CpuMask mask, CpuMask::of_this_thread());
  Topology topology;
  try {
    if (const Machine machine = load_machine()) {
      topology.cores_ = cores_of(machine.get(), mask);
      topology.node_count_ =
          static_cast<unsigned>(std::max(1, hwloc_get_nbobjs_by_type(machine.get(), HWLOC_OBJ_NUMANODE)));
    }
    if (topology.cores_.empty()) topology.cores_ = cores_of(mask);
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "Topology::read", ENOMEM, "no memory for the list of cores");
  }
  if (topology.cores_.empty()) {
    return fail(Status::kSystem, "sched_getaffinity", 0, "neither hwloc nor the affinity mask names a cpu to run on");
  }
  return topology;
}

const Core& Topology::core_for_poller(unsigned n) const noexcept {
  VERBENA_CHECK(!cores_.empty());
  return cores_[cores_.size() - 1 - n % cores_.size()];
}

Result<void> pin_this_thread(unsigned cpu) {
  VERBENA_ASSIGN(CpuMask mask, CpuMask::of_this_thread());
  if (!mask.has(cpu)) {
    return fail(Status::kBadArgument, "sched_setaffinity", EINVAL,
                "cpu {} is not there, or not in this thread's affinity mask; see `taskset -p`, and the launcher's "
                "binding options",
                cpu);
  }
  if (const int error = mask.pin(cpu); error != 0) return fail_system("sched_setaffinity", error, "pinning a thread");
  return {};
}

void name_this_thread(std::string_view name) noexcept {
  char text[16] = {};
  std::memcpy(text, name.data(), std::min(name.size(), sizeof text - 1));
  // A name is for people who debug; a kernel that refuses it changes nothing else.
  (void)pthread_setname_np(pthread_self(), text);
}

void block_signals_in_this_thread() noexcept {
  sigset_t all;
  sigfillset(&all);
  // Fails only for a wrong first argument.
  (void)pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace verbena::host
