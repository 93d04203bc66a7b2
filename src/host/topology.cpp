#include "host/topology.hpp"

#include "base/error.hpp"
#include "host/arena.hpp"
#include "host/cgroup.hpp"
#include "host/proc_file.hpp"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

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

/// Devices of this machine are looked up in sysfs instead, as hwloc would: that takes it 17 ms.
Machine load_this_machine() noexcept {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Machine machine(raw);
  // What the cgroup forbids is wanted too, so that a plan can tell why there are few cores. A topology from a file
  // (HWLOC_XMLFILE) describes another machine: its cpus cannot be pinned to here.
  const bool is_known = hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0 &&
                        hwloc_topology_load(raw) == 0 && hwloc_topology_is_thissystem(raw) != 0;
  return is_known ? std::move(machine) : nullptr;
}

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

/// How fast the kind of `core` is among those of a hybrid machine: hwloc ranks them. 0 for all where it cannot.
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

/// "0-3,8" as the kernel writes it. Cut at 4096 entries.
std::vector<unsigned> parse_list(std::string_view text) {
  constexpr std::size_t kMost = 4096;
  std::vector<unsigned> values;
  for (const auto each : std::views::split(text, ',')) {
    const std::string_view range(each.begin(), each.end());
    const auto from = first_number(range);
    if (!from) continue;
    const std::size_t dash = range.find('-');
    const auto to = dash == std::string_view::npos ? from : first_number(range.substr(dash));
    for (std::uint64_t value = *from; to && value <= *to && value < kMostMaskCpus && values.size() < kMost; ++value)
      values.push_back(static_cast<unsigned>(value));
  }
  return values;
}

std::string line_of(const char* path) {
  std::string line;
  // The list of a large machine's cpus is longer than any buffer that looks large enough.
  for_each_line(path, [&](std::string_view part) { return !line.append(part).ends_with('\n'); });
  return line;
}

/// "200000 100000", or "max 100000", or two files of version 1, where -1 is none.
std::optional<unsigned> quota_of(CgroupVersion version, const char* directory) {
  std::string quota, period;
  if (version == CgroupVersion::k2) {
    quota = line_of(KernelPath("{}/cpu.max", directory).text);
    const std::size_t blank = quota.find(' ');
    if (blank != std::string::npos) period = quota.substr(blank);
    quota.resize(std::min(blank, quota.size()));
  } else {
    quota = line_of(KernelPath("{}/cpu.cfs_quota_us", directory).text);
    period = line_of(KernelPath("{}/cpu.cfs_period_us", directory).text);
  }
  const auto part = first_number(quota), whole = first_number(period);
  if (!part || !whole || *whole == 0 || quota.starts_with('-')) return std::nullopt;
  return static_cast<unsigned>(std::min<std::uint64_t>(*part, 1U << 30) * 100 / *whole);
}

std::optional<unsigned> tightest_quota(const KernelFiles& files) {
  std::optional<unsigned> tightest;
  for_each_cgroup(files, "cpu", [&](CgroupVersion version, const char* directory) {
    const auto quota = quota_of(version, directory);
    if (quota && (!tightest || *quota < *tightest)) tightest = quota;
  });
  return tightest;
}

}  // namespace

/// Fills a topology from what hwloc and the mask say.
struct Topology::Reader {
  Topology& topology;
  std::span<const unsigned> mask;  ///< In order.

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

  /// The nearest with memory: beside it there may be one of high-bandwidth memory, or one without any.
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
    // Some virtual machines do not tell cores from hardware threads; there every thread counts as one.
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

  /// Without hwloc the mask is all that is known.
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

Result<Topology> Topology::read(const KernelFiles& files) {
  VERBENA_ASSIGN(const CpuMask set, CpuMask::of_this_thread());
  try {
    std::vector<unsigned> mask;
    for (unsigned cpu = 0; cpu < set.size(); ++cpu)
      if (set.has(cpu)) mask.push_back(cpu);
    VERBENA_ASSIGN(Topology topology,
                   of(load_this_machine().get(), mask, tightest_quota(files), memory_can_be_bound()));
    topology.read_devices(files.infiniband);
    return topology;
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "Topology::read", ENOMEM, "no memory for the list of cores");
  }
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

void Topology::read_devices(const char* directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string device = at->path() / "device";
    std::vector<unsigned> nodes;
    // -1, and in virtual machines often a wrong 0: the cpus say more. A virtual device has neither file.
    const std::vector<unsigned> cpus = parse_list(line_of((device + "/local_cpulist").c_str()));
    for (const auto& [cpu, node] : node_of_cpu_)
      if (contains(cpus, cpu) && std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
    std::ranges::sort(nodes);
    // One that is as near to every node as to any other is near to none.
    if (nodes.size() >= nodes_.size()) nodes.clear();
    devices_.push_back({.device = at->path().filename().native(), .nodes = std::move(nodes)});
  }
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
