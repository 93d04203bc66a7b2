// Reads the topology of this machine, and sets up threads on it.
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
#include <utility>

namespace verbena::host {

namespace {

constexpr unsigned kFirstMaskCpus = 1024;
constexpr unsigned kMostMaskCpus = 1U << 17;  // Sixteen times the most that Linux can be built for.

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

/// Without devices, for which hwloc needs 17 ms: `Topology::read` finds them in sysfs itself.
Machine load_this_machine() noexcept {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Machine machine(raw);
  // Includes cpus that the cgroup forbids, so that a plan can tell why there are few cores. A topology from a file
  // (HWLOC_XMLFILE) describes another machine, so threads cannot be pinned by it.
  const bool is_known = hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0 &&
                        hwloc_topology_load(raw) == 0 && hwloc_topology_is_thissystem(raw) != 0;
  return is_known ? std::move(machine) : nullptr;
}

/// Parses a list such as "0-3,8", as the kernel writes it. Cut at 4096 entries.
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
  // Reads a line of any length, because the list of a large machine's cpus can be very long.
  for_each_line(path, [&](std::string_view part) { return !line.append(part).ends_with('\n'); });
  return line;
}

/// Reads "200000 100000" or "max 100000", or two files of version 1, where -1 means no limit.
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

void Topology::read_devices(const char* directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string device = at->path() / "device";
    std::vector<unsigned> nodes;
    // Uses local_cpulist, because numa_node is often -1, and in virtual machines a wrong 0. A virtual device has
    // neither file.
    const std::vector<unsigned> cpus = parse_list(line_of((device + "/local_cpulist").c_str()));
    for (const auto& [cpu, node] : node_of_cpu_)
      if (std::ranges::binary_search(cpus, cpu) && std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
    std::ranges::sort(nodes);
    // A device that is equally near to all nodes is near to none.
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
  // The name is only for debugging, so a refusal does not matter.
  (void)pthread_setname_np(pthread_self(), text);
}

void block_signals_in_this_thread() noexcept {
  sigset_t all;
  sigfillset(&all);
  // Fails only for a wrong first argument.
  (void)pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace verbena::host
