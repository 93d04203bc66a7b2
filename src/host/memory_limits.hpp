// The bounds of memory here, and of file descriptors: the process's limits, its cgroups and the machine. Read before
// memory is touched, because running into most of them afterwards is a signal (SIGXFSZ, the OOM killer's SIGKILL) and
// not an error.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace verbena::host {

/// How much ordinary memory can still be had, and what says so.
struct Headroom {
  std::size_t bytes = 0;
  char limit[160] = "";  ///< The file, and the figure in it.
};

/// Where the kernel's files are. Tests put their own in place of them.
struct KernelFiles {
  const char* proc = "/proc";
  const char* cgroup = "/sys/fs/cgroup";
  const char* nodes = "/sys/devices/system/node";
  const char* infiniband = "/sys/class/infiniband";
};

/// The tightest of MemAvailable (with free swap), the memory limits of this process's cgroups, and what `node` has
/// where one is named. Caches that the kernel would give up count as free. Empty when none of them can be read.
/// \thread any  \alloc setup
[[nodiscard]] std::optional<Headroom> memory_headroom(std::optional<unsigned> node, const KernelFiles& files = {});

/// Bytes of the machine's hugetlb pools that nobody has, of all page sizes. They are not in the headroom. \thread any
[[nodiscard]] std::size_t free_hugepage_bytes(const char* directory = "/sys/kernel/mm/hugepages");

/// File descriptors of this process.
struct Descriptors {
  std::uint64_t open = 0;   ///< At the moment.
  std::uint64_t limit = 0;  ///< RLIMIT_NOFILE: what it may raise the soft limit to, where that is asked for.
};
enum class Limit : std::uint8_t { kSoft, kHard };
/// Empty when they cannot be read. \thread any  \alloc setup
[[nodiscard]] std::optional<Descriptors> descriptors(Limit limit, const KernelFiles& files = {});

/// Whether CAP_IPC_LOCK is among the process's effective capabilities: RLIMIT_MEMLOCK does not bind. \thread any
[[nodiscard]] bool may_lock_at_will(const KernelFiles& files = {}) noexcept;

/// kNoMemory when RLIMIT_AS, kLimit when RLIMIT_FSIZE forbids a memfd and mapping of `size_bytes`. \thread any
[[nodiscard]] Result<void> check_process_limits(std::size_t size_bytes);
/// kNoMemory when `size_bytes` exceed the headroom: touching that much would end in the OOM killer. \thread any
[[nodiscard]] Result<void> check_memory(std::size_t size_bytes, std::optional<unsigned> node);
/// kLimit when a device's pinning `size_bytes` more would go past RLIMIT_MEMLOCK: every registration counts, of pages
/// that are pinned already too. It does not bind a process with CAP_IPC_LOCK. \thread any
[[nodiscard]] Result<void> check_pinning(std::size_t size_bytes, const KernelFiles& files = {});
/// The error for a call that came back with ENOMEM, naming the tightest limit there is. \thread any
[[nodiscard]] Error memory_error(const char* call, int system_errno, std::size_t size_bytes,
                                 std::optional<unsigned> node);

}  // namespace verbena::host
