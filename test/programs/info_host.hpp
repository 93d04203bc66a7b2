// Synthetic hosts: the kernel's files of machines that no test runs on.
#pragma once

#include "programs/info.hpp"

#include "scratch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::test {

/// A tree of kernel files, as SystemFiles reads it. Written with a line break, as the kernel does.
class FakeHost {
 public:
  void put(const std::string& path, std::string_view text) const { scratch_.write(path, std::string(text) + "\n"); }
  void put_raw(const std::string& path, std::string_view bytes) const { scratch_.write(path, bytes); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return scratch_.path(); }
  [[nodiscard]] programs::SystemFiles files() const { return programs::SystemFiles(scratch_.path()); }

  void device(const std::string& name, const std::string& numa_node, const std::string& uverbs) const {
    const std::string at = "sys/class/infiniband/" + name;
    put(at + "/node_type", "1: CA");
    put(at + "/node_guid", "506b:4b03:00a0:1234");
    put(at + "/fw_ver", "20.31.1014");
    put(at + "/device/numa_node", numa_node);
    put("sys/class/infiniband_verbs/" + uverbs + "/ibdev", name);
    put("dev/infiniband/" + uverbs, "");
    put("sys/module/ib_uverbs/refcnt", "1");
    put("sys/module/rdma_ucm/refcnt", "1");
  }
  void port(const std::string& device, unsigned number, const std::string& layer, const std::string& state,
            const std::string& physical) const {
    const std::string at = fmt::format("sys/class/infiniband/{}/ports/{}", device, number);
    put(at + "/link_layer", layer);
    put(at + "/state", state);
    put(at + "/phys_state", physical);
    put(at + "/rate", "100 Gb/sec (4X EDR)");
    put(at + "/lid", layer == "Ethernet" ? "0x0" : "0x1b");
  }
  /// An entry of the GID table; the kernel prints every group with four digits.
  void gid(const std::string& device, unsigned port, unsigned index, const std::string& gid, const std::string& type,
           const std::string& netdev) const {
    const std::string at = fmt::format("sys/class/infiniband/{}/ports/{}", device, port);
    put(fmt::format("{}/gids/{}", at, index), gid);
    if (!type.empty()) put(fmt::format("{}/gid_attrs/types/{}", at, index), type);
    if (!netdev.empty()) put(fmt::format("{}/gid_attrs/ndevs/{}", at, index), netdev);
  }
  void netdev(const std::string& name, const std::string& flags, const std::string& state, unsigned mtu = 9000) const {
    const std::string at = "sys/class/net/" + name;
    put(at + "/flags", flags);
    put(at + "/operstate", state);
    put(at + "/mtu", fmt::format("{}", mtu));
    put(at + "/address", "50:6b:4b:a0:12:34");
  }
  void hugepages(const std::string& directory, unsigned kib, unsigned total, unsigned free) const {
    const std::string at = fmt::format("{}/hugepages-{}kB", directory, kib);
    put(at + "/nr_hugepages", fmt::format("{}", total));
    put(at + "/free_hugepages", fmt::format("{}", free));
  }
  void node(unsigned id, const std::string& cpus, const std::string& distances) const {
    const std::string at = fmt::format("sys/devices/system/node/node{}", id);
    put(at + "/cpulist", cpus);
    put(at + "/distance", distances);
    put(at + "/meminfo", fmt::format("Node {0} MemTotal:       65536000 kB\nNode {0} MemFree:        32768000 kB", id));
  }
  [[nodiscard]] static std::string node_pools(unsigned id) {
    return fmt::format("sys/devices/system/node/node{}/hugepages", id);
  }
  void limits(const std::string& locked, const std::string& files = "1024 524288") const {
    put("proc/self/limits",
        fmt::format("Limit                     Soft Limit           Hard Limit           Units     \n"
                    "Max file size             unlimited            unlimited            bytes     \n"
                    "Max open files            {}               files     \n"
                    "Max locked memory         {}            bytes     \n"
                    "Max address space         unlimited            unlimited            bytes     ",
                    files, locked));
  }

  /// The facts of this host, with permissions as a plain machine has them.
  [[nodiscard]] programs::HostFacts facts() const {
    const programs::SystemFiles at = files();
    programs::HostFacts facts{.kernel = "Linux",
                              .devices = programs::read_devices(at),
                              .modules = programs::read_modules(at),
                              .memory = programs::read_memory(at),
                              .limits = programs::read_limits(at),
                              .permissions = {},
                              .nic = {}};
    for (programs::Probe* probe : {&facts.permissions.soft_nic, &facts.permissions.membarrier,
                                   &facts.permissions.sealed_memfd, &facts.permissions.pidfd}) {
      *probe = {.name = "a probe", .works = true, .detail = "fine"};
    }
    facts.nic = {.name = "soft", .reason = "as asked for"};
    return facts;
  }

 private:
  Scratch scratch_;
};

/// The fix of the first finding whose sentence has `what`; empty when there is none.
[[nodiscard]] inline std::string fix_of(const programs::HostFacts& facts, std::string_view what) {
  for (const programs::Finding& finding : programs::find_problems(facts)) {
    if (finding.what.find(what) != std::string::npos) return finding.fix;
  }
  return {};
}

[[nodiscard]] inline std::ptrdiff_t count_of(const programs::HostFacts& facts, programs::Finding::Kind kind) {
  const auto findings = programs::find_problems(facts);
  return std::ranges::count(findings, kind, &programs::Finding::kind);
}

}  // namespace verbena::test
