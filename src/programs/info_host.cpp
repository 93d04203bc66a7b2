// Memory, NUMA nodes and resource limits from the kernel's files, and all facts together.
#include "base/relax.hpp"
#include "base/units.hpp"
#include "host/memory_limits.hpp"
#include "link/fabric.hpp"
#include "programs/environment.hpp"
#include "programs/info.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace verbena::programs {
namespace {

/// To open a NIC: it resolves no name and looks for no path.
constexpr std::chrono::seconds kChoiceTimeout{5};

constexpr std::string_view kNodes = "sys/devices/system/node";

/// The number after a prefix: 3 for "node3".
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view prefix,
                                          std::string_view suffix = {}) {
  if (!text.starts_with(prefix) || !text.ends_with(suffix) || text.size() <= prefix.size() + suffix.size()) return {};
  return natural(whole_number(text.substr(prefix.size(), text.size() - prefix.size() - suffix.size())));
}

/// Bytes in the line "NAME: N kB".
std::optional<std::uint64_t> meminfo_bytes(std::string_view meminfo, std::string_view name) {
  const auto words = words_of(proc_field(meminfo, name));
  const auto kib = words.empty() ? std::nullopt : natural(whole_number(words.front()));
  if (!kib || *kib > UINT64_MAX / kKibi) return std::nullopt;
  return *kib * kKibi;
}

std::vector<HugepagePool> read_pools(const SystemFiles& files, const std::string& directory) {
  std::vector<HugepagePool> pools;
  for (const std::string& name : files.names(directory)) {
    const auto kib = number_after(name, "hugepages-", "kB");
    const auto total = natural(files.number(fmt::format("{}/{}/nr_hugepages", directory, name)));
    const auto free = natural(files.number(fmt::format("{}/{}/free_hugepages", directory, name)));
    if (!kib || *kib == 0 || *kib > UINT64_MAX / kKibi || !total || !free) continue;
    pools.push_back({.page_bytes = *kib * kKibi, .total = *total, .free = *free});
  }
  std::ranges::sort(pools, {}, &HugepagePool::page_bytes);
  return pools;
}

NodeFacts read_node(const SystemFiles& files, unsigned id) {
  const std::string directory = fmt::format("{}/node{}", kNodes, id);
  const std::string meminfo = files.text(directory + "/meminfo").value_or("");
  const std::string prefix = fmt::format("Node {} ", id);
  return {.id = id,
          .cpus = files.line(directory + "/cpulist"),
          .memory_bytes = meminfo_bytes(meminfo, prefix + "MemTotal"),
          .free_bytes = meminfo_bytes(meminfo, prefix + "MemFree"),
          .distances = {},
          .hugepages = read_pools(files, directory + "/hugepages")};
}

/// The file has one number per online node, in their order.
void read_distances(const SystemFiles& files, std::vector<NodeFacts>& nodes) {
  for (NodeFacts& node : nodes) {
    const std::string text = files.text(fmt::format("{}/node{}/distance", kNodes, node.id)).value_or("");
    const auto words = words_of(text);
    if (words.size() != nodes.size()) continue;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (const auto distance = natural(whole_number(words[i]))) node.distances.emplace_back(nodes[i].id, *distance);
    }
  }
}

std::vector<NodeFacts> read_nodes(const SystemFiles& files) {
  std::vector<NodeFacts> nodes;
  for (const std::string& name : files.names(kNodes)) {
    const auto id = number_after(name, "node");
    if (id && *id < 4096) nodes.push_back(read_node(files, static_cast<unsigned>(*id)));
  }
  std::ranges::sort(nodes, {}, &NodeFacts::id);
  read_distances(files, nodes);
  return nodes;
}

/// Soft and hard limit from the line "NAME  N  N  UNITS" of /proc/self/limits.
void read_limit(std::string_view text, std::string_view name, LimitFacts& limit) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return;
  text.remove_prefix(at + name.size());
  const auto words = words_of(text.substr(0, text.find('\n')));
  if (words.size() < 2) return;
  const auto value = [](std::string_view word, std::optional<std::uint64_t>& out) {
    // A limit that does not fit counts as unlimited.
    out = natural(whole_number(word));
    return out.has_value() || word == "unlimited";
  };
  limit.is_known = value(words[0], limit.soft) && value(words[1], limit.hard);
}

}  // namespace

MemoryFacts read_memory(const SystemFiles& files) {
  MemoryFacts memory;
  const std::string proc = files.full("proc"), cgroup = files.full("sys/fs/cgroup"), sys = files.full(kNodes);
  if (const auto headroom =
          host::memory_headroom(std::nullopt, {.proc = proc.c_str(), .cgroup = cgroup.c_str(), .nodes = sys.c_str()})) {
    memory.headroom_bytes = headroom->bytes;
    memory.headroom_limit = printable(headroom->limit);
  }
  memory.transparent = bracketed(files.line("sys/kernel/mm/transparent_hugepage/enabled"));
  memory.transparent_memfd = bracketed(files.line("sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  const std::string meminfo = files.text("proc/meminfo").value_or("");
  memory.default_hugepage_bytes = meminfo_bytes(meminfo, "Hugepagesize");
  memory.nodes = read_nodes(files);
  memory.has_numa = !memory.nodes.empty();
  if (!memory.has_numa) {
    memory.nodes.push_back({.id = 0,
                            .cpus = files.line("sys/devices/system/cpu/online"),
                            .memory_bytes = meminfo_bytes(meminfo, "MemTotal"),
                            .free_bytes = meminfo_bytes(meminfo, "MemFree"),
                            .distances = {},
                            .hugepages = read_pools(files, "sys/kernel/mm/hugepages")});
  }
  return memory;
}

ProcessLimits read_limits(const SystemFiles& files) {
  ProcessLimits limits;
  const std::string text = files.text("proc/self/limits").value_or("");
  read_limit(text, "Max locked memory", limits.locked_memory);
  read_limit(text, "Max open files", limits.open_files);
  read_limit(text, "Max file size", limits.file_size);
  read_limit(text, "Max address space", limits.address_space);
  limits.may_lock_all = host::may_lock_at_will({.proc = std::string(files.full("proc")).c_str()});
  return limits;
}

NicChoice choose_nic() {
  const auto fabric = link::Fabric::open({}, Deadline::after(kChoiceTimeout));
  if (fabric) return {.name = (*fabric)->nic().name(), .reason = (*fabric)->reason()};
  return {.name = "none", .reason = fabric.error().text()};
}

HostFacts read_host(const SystemFiles& files) {
  HostFacts facts{.kernel = read_environment().kernel,
                  .clock = clock_description(),
                  .looks = describe(choose_looks()),
                  .devices = read_devices(files),
                  .modules = read_modules(files),
                  .memory = read_memory(files),
                  .limits = read_limits(files),
                  .permissions = probe_permissions(files),
                  .nic = {}};
  if (!facts.devices.empty()) explain_atomics(facts.devices, nic::list_devices());
  facts.nic = choose_nic();
  return facts;
}

}  // namespace verbena::programs
