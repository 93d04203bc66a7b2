// verbena-info: what a host offers to programs of Verbena, what stands in their way, and how to fix it.
//
// Facts are collected into plain structs from a root directory. Problems follow from the facts alone; text and JSON
// follow from both. So each step is tested on trees that no test machine has.
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
  std::string address;  ///< IPv4 or IPv6. The library makes this and the verdict.
  std::string type;     ///< "InfiniBand", "RoCE v1", "RoCE v2"; "unknown" if the kernel does not say.
  std::string netdev;   ///< Empty if there is none in this network namespace.
  std::string verdict;  ///< Why it is chosen, or why not.
};

struct NetdevFacts {
  std::string name, state, address;
  std::optional<std::uint64_t> mtu;
  bool is_up = false;  ///< As set by an administrator; `state` says whether there is a carrier.
};

struct PortFacts {
  unsigned number = 0;
  std::string state, physical, link_layer, rate, lid;  ///< Empty if the kernel does not say.
  std::vector<NetdevFacts> netdevs;                    ///< In this network namespace.
  std::vector<GidFacts> gids;
  std::optional<std::uint32_t> gid_index;  ///< The library's choice.
  std::string gid_reason;                  ///< Why it is chosen, or why there is none.

  [[nodiscard]] bool is_ethernet() const { return link_layer == "Ethernet"; }
  [[nodiscard]] bool is_active() const { return state == "ACTIVE"; }
};

struct DeviceFacts {
  std::string name, kind, guid, firmware;
  std::optional<unsigned> numa_node;
  std::string char_device;         ///< "/dev/infiniband/uverbs0"; empty if no driver registered one.
  bool char_device_there = false;  ///< Whether it exists in this container or chroot.
  bool may_open = false;
  std::string atomic;            ///< A sentence; empty until explain_atomics.
  std::string relaxed_ordering;  ///< A sentence, because sysfs does not tell for sure.
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
  std::optional<std::uint64_t> headroom_bytes;  ///< How much memory is still available, and the source of that figure.
  std::string headroom_limit;
  std::string transparent, transparent_memfd;  ///< "always", "madvise", "never" and so on; "unknown".
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

/// The result of a real attempt.
struct Probe {
  std::string name;
  bool works = false;
  std::string detail;  ///< Its purpose if it works, otherwise why it does not.
};

struct Permissions {
  Probe soft_nic, membarrier, sealed_memfd, pidfd;  ///< The soft NIC needs all of them.
  Probe read_child, read_peer, frames;              ///< Not used by this release.
  std::optional<std::int64_t> ptrace_scope;         ///< Yama; empty if the kernel has none.
};

struct RdmaModules {
  bool uverbs = false;    ///< /dev/infiniband/uverbsN can exist.
  bool rdma_ucm = false;  ///< rdma_cm works.
};

struct NicChoice {
  std::string name;  ///< An RDMA device, or "soft"; "none" if not even that works.
  std::string reason;
};

struct HostFacts {
  std::string kernel;
  std::string clock;  ///< The clock that the library uses, and why.
  std::string looks;  ///< How its polling threads wait between two looks.
  std::vector<DeviceFacts> devices;
  RdmaModules modules;
  MemoryFacts memory;
  ProcessLimits limits;
  Permissions permissions;
  NicChoice nic;
};

/// A problem stands in the way; advice would make things faster or safer.
struct Finding {
  enum class Kind { kProblem, kAdvice };
  Kind kind = Kind::kProblem;
  std::string what;
  std::string fix;  ///< A shell command; a comment after it says what else to know.
};

// Facts from the kernel's files. None of these fails: what is missing stays empty.
[[nodiscard]] std::vector<DeviceFacts> read_devices(const SystemFiles& files);
[[nodiscard]] RdmaModules read_modules(const SystemFiles& files);
[[nodiscard]] MemoryFacts read_memory(const SystemFiles& files);
[[nodiscard]] ProcessLimits read_limits(const SystemFiles& files);

/// Fills in the devices' atomics, which only an opened device reports: `opened` is the result of nic::list_devices.
void explain_atomics(std::vector<DeviceFacts>& devices, const Result<std::vector<nic::DeviceSummary>>& opened);

/// Tries what the soft NIC needs on this process and on a child. Changes nothing outside of them. \thread main
[[nodiscard]] Permissions probe_permissions(const SystemFiles& files);

/// The NIC that a program without options uses here: opens it as such a program does, and closes it again.
[[nodiscard]] NicChoice choose_nic();

/// All facts about the host whose files are below `files`; the permissions are always this process's.
[[nodiscard]] HostFacts read_host(const SystemFiles& files);

[[nodiscard]] std::vector<Finding> find_problems(const HostFacts& facts);

[[nodiscard]] std::string info_text(const HostFacts& facts, const std::vector<Finding>& findings);
/// One JSON object and a line break.
[[nodiscard]] std::string info_json(const HostFacts& facts, const std::vector<Finding>& findings);

}  // namespace verbena::programs
