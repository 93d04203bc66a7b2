// How much memory is still available, as the kernel's files tell it.
#include "base/units.hpp"
#include "host/cgroup.hpp"
#include "host/memory_limits.hpp"
#include "host/proc_file.hpp"

namespace verbena::host {

namespace {

std::optional<Headroom> machine_headroom(const char* proc) {
  const KernelPath path("{}/meminfo", proc);
  // Swap counts, because idle memory of others can move there while a used arena stays in memory.
  const auto kib = sum_of_lines(path.text, {"MemAvailable:", "SwapFree:"});
  if (!kib) return std::nullopt;
  Headroom headroom{.bytes = *kib * 1024};
  print(headroom.limit, "MemAvailable and SwapFree in {}", path.text);
  return headroom;
}

/// Whether a list has more than one number: "0-3" or "0,2", but not "0".
bool more_than_one(const KernelPath& list) noexcept {
  bool is_more = false;
  for_each_line(list.text, [&](std::string_view line) {
    is_more = line.find_first_of(",-") != std::string_view::npos;
    return false;
  });
  return is_more;
}

/// Memory bound to one of several nodes must come from that node, or the OOM killer strikes: other nodes and swap do
/// not count. With one node the machine's figures are better: they include memory that a balloon driver would return.
std::optional<Headroom> node_headroom(const char* nodes, unsigned node) {
  if (!more_than_one(KernelPath("{}/has_memory", nodes))) return std::nullopt;
  const KernelPath path("{}/node{}/meminfo", nodes, node);
  char prefix[32];
  print(prefix, "Node {} ", node);
  const auto kib = sum_of_lines(path.text, {"MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:"},
                                std::string_view(prefix));
  if (!kib) return std::nullopt;
  Headroom headroom{.bytes = *kib * 1024};
  print(headroom.limit, "what is free in {}", path.text);
  return headroom;
}

/// The files of one version of the memory controller.
struct Controller {
  const char* limit;
  const char* usage;
  std::string_view cache[2];
  const char* swap_limit;  // Version 1 limits the sum of memory and swap, so swap does not count as headroom there.
  const char* swap_usage;
};
constexpr Controller kV2{
    "memory.max", "memory.current", {"inactive_file ", "active_file "}, "memory.swap.max", "memory.swap.current"};
constexpr Controller kV1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file ", "total_active_file "}, nullptr, nullptr};

std::uint64_t difference(std::uint64_t a, std::uint64_t b) noexcept { return a > b ? a - b : 0; }

std::optional<Headroom> group_headroom(const Controller& files, const char* directory) {
  const auto number_in = [&](const char* file) { return number_in_file(KernelPath("{}/{}", directory, file)); };
  const auto usage = number_in(files.usage);
  const std::uint64_t cache = sum_of_lines(KernelPath("{}/memory.stat", directory).text, files.cache).value_or(0);
  std::uint64_t swap = 0;
  if (files.swap_limit != nullptr)
    swap = difference(number_in(files.swap_limit).value_or(0), number_in(files.swap_usage).value_or(0));
  const auto limit = number_in(files.limit);
  if (!limit || !usage) return std::nullopt;
  Headroom headroom{.bytes = difference(*limit, difference(*usage, cache)) + swap};
  print(headroom.limit, "{} MiB in {}/{}", *limit / kMebi, directory, files.limit);
  return headroom;
}

void keep_tighter(std::optional<Headroom>& kept, const std::optional<Headroom>& other) noexcept {
  if (other && (!kept || other->bytes < kept->bytes)) kept = other;
}

std::optional<Headroom> cgroup_headroom(const KernelFiles& files) {
  std::optional<Headroom> kept;
  for_each_cgroup(files, "memory", [&](CgroupVersion version, const char* directory) {
    keep_tighter(kept, group_headroom(version == CgroupVersion::k2 ? kV2 : kV1, directory));
  });
  return kept;
}

}  // namespace

std::optional<Headroom> memory_headroom(std::optional<unsigned> node, const KernelFiles& files) {
  auto kept = machine_headroom(files.proc);
  keep_tighter(kept, cgroup_headroom(files));
  if (node) keep_tighter(kept, node_headroom(files.nodes, *node));
  if (kept) kept->hugepage_bytes = free_hugepage_bytes(files.hugepages);
  return kept;
}

}  // namespace verbena::host
