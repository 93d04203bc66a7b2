// verbena-info: what a host has for a program of ours, what stands in its way, and what mends it.
//
// Facts are collected into plain structs from a root directory, problems follow from the facts alone, and text and JSON
// follow from both: so each step is tested on trees that no test machine has.
#pragma once

#include "nic/verbs.hpp"
#include "programs/info_files.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace verbena::programs {

/// One GID table entry that is not empty.
struct GidFacts {
  std::uint32_t index = 0;
  std::array<std::uint8_t, 16> bytes{};
  std::string address;  ///< IPv4 or IPv6. This and the verdict are the library's.
  std::string type;     ///< "InfiniBand", "RoCE v1", "RoCE v2"; "unknown" when the kernel does not tell.
  std::string netdev;   ///< Empty when there is none in this network namespace.
  std::string verdict;  ///< Why it is chosen, or not.
};

struct NetdevFacts {
  std::string name, state, address;
  std::optional<std::uint64_t> mtu;
  bool is_up = false;  ///< As an administrator sets it; whether there is a carrier is in `state`.
};

struct PortFacts {
  unsigned number = 0;
  std::string state, physical, link_layer, rate, lid;  ///< Empty when the kernel does not tell.
  std::vector<NetdevFacts> netdevs;                    ///< In this network namespace.
  std::vector<GidFacts> gids;
  std::optional<std::uint32_t> gid_index;  ///< What the library would choose.
  std::string gid_reason;                  ///< Why that one, or why none.

  [[nodiscard]] bool is_ethernet() const { return link_layer == "Ethernet"; }
  [[nodiscard]] bool is_active() const { return state == "ACTIVE"; }
};

struct DeviceFacts {
  std::string name, kind, guid, firmware;
  std::optional<unsigned> numa_node;
  std::string char_device;         ///< "/dev/infiniband/uverbs0"; empty when no driver registered one.
  bool char_device_there = false;  ///< In this container or chroot.
  bool may_open = false;
  std::string atomic;            ///< A sentence; empty until explain_atomics.
  std::string relaxed_ordering;  ///< A sentence: sysfs does not tell for sure.
  std::vector<PortFacts> ports;
};

struct HugepagePool {
  std::uint64_t page_bytes = 0, total = 0, free = 0;
};

struct NodeFacts {
  unsigned id = 0;
  std::string cpus;
  std::optional<std::uint64_t> memory_bytes, free_bytes;
  /// Node and distance; 10 is the node itself.
  std::vector<std::pair<unsigned, std::uint64_t>> distances;
  std::vector<HugepagePool> hugepages;
};

struct MemoryFacts {
  std::optional<std::uint64_t> headroom_bytes;  ///< What can still be had, and what says so.
  std::string headroom_limit;
  std::string transparent, transparent_memfd;  ///< "always", "madvise", "never"...; "unknown".
  std::optional<std::uint64_t> default_hugepage_bytes;
  bool has_numa = false;  ///< Otherwise `nodes` has one entry for the whole machine.
  std::vector<NodeFacts> nodes;
};

/// A resource limit of this process; an empty number is "unlimited".
struct LimitFacts {
  std::string name;
  bool is_known = false;
  std::optional<std::uint64_t> soft, hard;
};

struct ProcessLimits {
  LimitFacts locked_memory{.name = "locked memory"}, open_files{.name = "open files"};
  LimitFacts file_size{.name = "file size"}, address_space{.name = "address space"};
  bool may_lock_all = false;  ///< CAP_IPC_LOCK: the limit of locked memory does not bind.
};

/// Something that was really tried.
struct Probe {
  std::string name;
  bool works = false;
  std::string detail;  ///< What it is for when it works, why it does not otherwise.
};

struct Permissions {
  Probe soft_nic, membarrier, sealed_memfd, pidfd;  ///< The soft NIC cannot do without any of them.
  Probe read_child, read_peer, frames;              ///< Of no use to this release.
  std::optional<std::int64_t> ptrace_scope;         ///< Yama; empty when the kernel is without it.
};

struct RdmaModules {
  bool uverbs = false;    ///< /dev/infiniband/uverbsN can be there.
  bool rdma_ucm = false;  ///< rdma_cm works.
};

struct NicChoice {
  std::string name;  ///< An RDMA device's, or "soft"; "none" when not even that works.
  std::string reason;
};

struct HostFacts {
  std::string kernel;
  std::string clock;  ///< Which one the library uses, and why.
  std::vector<DeviceFacts> devices;
  RdmaModules modules;
  MemoryFacts memory;
  ProcessLimits limits;
  Permissions permissions;
  NicChoice nic;
};

/// Something that stands in the way (a problem), or that would make things faster or safer (advice).
struct Finding {
  enum class Kind { kProblem, kAdvice };
  Kind kind = Kind::kProblem;
  std::string what;
  std::string fix;  ///< A command for the shell; what else there is to know comes behind it as a comment.
};

// Facts from the kernel's files. None of these fails: what is not there stays empty.
[[nodiscard]] std::vector<DeviceFacts> read_devices(const SystemFiles& files);
[[nodiscard]] RdmaModules read_modules(const SystemFiles& files);
[[nodiscard]] MemoryFacts read_memory(const SystemFiles& files);
[[nodiscard]] ProcessLimits read_limits(const SystemFiles& files);

/// Fills in what atomics the devices have, which only an opened one tells: `opened` is what nic::list_devices says.
void explain_atomics(std::vector<DeviceFacts>& devices, const Result<std::vector<nic::DeviceSummary>>& opened);

/// Tries on this process and a child of its own what the soft NIC needs. Changes nothing outside of them. \thread main
[[nodiscard]] Permissions probe_permissions(const SystemFiles& files);

/// Which NIC a program without options uses here: opens it as such a program does, and closes it again.
[[nodiscard]] NicChoice choose_nic();

/// Everything about the host whose files are below `files`; the permissions are always this process's.
[[nodiscard]] HostFacts read_host(const SystemFiles& files);

[[nodiscard]] std::vector<Finding> find_problems(const HostFacts& facts);

[[nodiscard]] std::string info_text(const HostFacts& facts, const std::vector<Finding>& findings);
/// One JSON object and a line break.
[[nodiscard]] std::string info_json(const HostFacts& facts, const std::vector<Finding>& findings);

}  // namespace verbena::programs
