// Machines that no test runs on, as hwloc describes them.
#pragma once

#include "host/topology.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <hwloc.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::test {

/// Cpus `first` to `last`.
[[nodiscard]] inline std::vector<unsigned> cpus(unsigned first, unsigned last) {
  std::vector<unsigned> all(last - first + 1);
  std::iota(all.begin(), all.end(), first);
  return all;
}

/// A machine by one of hwloc's two languages; without either it is as if hwloc had found nothing.
struct MachineDescription {
  std::string_view synthetic{};      ///< "package:2 core:4 pu:2".
  std::string_view xml{};            ///< As lstopo exports it.
  std::span<const unsigned> mask{};  ///< Affinity mask: the cpus that the process may use, in order.
  std::optional<unsigned> quota_percent{};
  bool can_bind_memory = true;
};

[[nodiscard]] inline Result<host::Topology> describe(const MachineDescription& description) {
  const auto [synthetic, xml, mask, quota_percent, can_bind_memory] = description;
  if (synthetic.empty() && xml.empty()) return host::Topology::of(nullptr, mask, quota_percent, can_bind_memory);
  hwloc_topology_t raw = nullptr;
  EXPECT_EQ(hwloc_topology_init(&raw), 0);
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> owner(raw, &hwloc_topology_destroy);
  EXPECT_EQ(hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED), 0);
  const std::string text(xml.empty() ? synthetic : xml);  // hwloc wants a terminating zero.
  EXPECT_EQ(xml.empty() ? hwloc_topology_set_synthetic(raw, text.c_str())
                        : hwloc_topology_set_xmlbuffer(raw, text.c_str(), static_cast<int>(text.size()) + 1),
            0);
  EXPECT_EQ(hwloc_topology_load(raw), 0);
  return host::Topology::of(raw, mask, quota_percent, can_bind_memory);
}

[[nodiscard]] inline Result<host::Topology> machine(std::string_view synthetic, const std::vector<unsigned>& mask) {
  return describe({.synthetic = synthetic, .mask = mask});
}

// Two sockets of four cores with two hyper-threads each.
inline constexpr std::string_view kTwoSockets = "package:2 node:1 core:4 pu:2";
inline constexpr std::string_view kTwoPlainSockets = "package:2 node:1 core:4 pu:1";
// Two sockets of two clusters, each with its node and two cores.
inline constexpr std::string_view kSubNuma = "package:2 group:2 node:1 core:2 pu:1";

/// Two nodes of two cores; of four more cpus on the second node, two are offline and two kept by the cgroup.
[[nodiscard]] inline std::string xml_machine(std::uint64_t second_nodes_bytes = 1 << 30) {
  const auto sets = [](const char* cpus, const char* node) {
    return std::string(" cpuset=\"") + cpus + "\" complete_cpuset=\"" + cpus + "\" nodeset=\"" + node +
           "\" complete_nodeset=\"" + node + "\"";
  };
  const auto core = [&](unsigned cpu, const char* mask, const char* node) {
    const std::string index = std::to_string(cpu);
    return "<object type=\"Core\" os_index=\"" + index + "\"" + sets(mask, node) + "><object type=\"PU\" os_index=\"" +
           index + "\"" + sets(mask, node) + "/></object>";
  };
  const auto numa = [&](unsigned node, const char* cpus, const char* mask, std::uint64_t bytes) {
    return "<object type=\"NUMANode\" os_index=\"" + std::to_string(node) + "\"" + sets(cpus, mask) +
           " local_memory=\"" + std::to_string(bytes) + "\"/>";
  };
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
         "version=\"2.0\">\n"
         "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x0000003f\" complete_cpuset=\"0x000000ff\" "
         "allowed_cpuset=\"0x0000000f\" nodeset=\"0x00000003\" complete_nodeset=\"0x00000003\" "
         "allowed_nodeset=\"0x00000003\">"
         "<object type=\"Package\" os_index=\"0\"" +
         sets("0x00000003", "0x00000001") + ">" + numa(0, "0x00000003", "0x00000001", 1 << 30) +
         core(0, "0x00000001", "0x00000001") + core(1, "0x00000002", "0x00000001") +
         "</object><object type=\"Package\" os_index=\"1\" cpuset=\"0x0000003c\" complete_cpuset=\"0x000000fc\" "
         "nodeset=\"0x00000002\" complete_nodeset=\"0x00000002\">" +
         numa(1, "0x0000003c", "0x00000002", second_nodes_bytes) + core(2, "0x00000004", "0x00000002") +
         core(3, "0x00000008", "0x00000002") + core(4, "0x00000010", "0x00000002") +
         core(5, "0x00000020", "0x00000002") + "</object></object>\n</topology>\n";
}

/// A hybrid processor on one node: cpus 0 to 3 are the threads of two fast cores, 4 to 7 frugal cores.
[[nodiscard]] inline std::string hybrid_machine() {
  const auto object = [](const char* type, unsigned index, unsigned cpus, const std::string& inside) {
    const std::string sets = fmt::format(
        R"( os_index="{}" cpuset="{:#010x}" complete_cpuset="{:#010x}" nodeset="0x1" complete_nodeset="0x1")", index,
        cpus, cpus);
    return fmt::format(R"(<object type="{}"{}{}>{}</object>)", type, sets,
                       std::string_view(type) == "Machine" ? R"( allowed_cpuset="0xff" allowed_nodeset="0x1")" : "",
                       inside);
  };
  std::string inside = object("NUMANode", 0, 0xff, "");
  inside.replace(inside.find('>'), 1, R"( local_memory="1073741824">)");
  for (unsigned core = 0; core < 2; ++core)
    inside += object("Core", core, 3U << 2 * core,
                     object("PU", 2 * core, 1U << 2 * core, "") + object("PU", 2 * core + 1, 2U << 2 * core, ""));
  for (unsigned cpu = 4; cpu < 8; ++cpu) inside += object("Core", cpu - 2, 1U << cpu, object("PU", cpu, 1U << cpu, ""));
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
         "version=\"2.0\">\n" +
         object("Machine", 0, 0xff, inside) +
         R"(<cpukind cpuset="0x0000000f" forced_efficiency="1"/><cpukind cpuset="0x000000f0" forced_efficiency="0"/>)"
         "\n</topology>\n";
}

}  // namespace verbena::test
