// Limits of memory and file descriptors: those of the process, its cgroups and the machine. Read them before touching
// memory, because exceeding most of them later raises a signal (SIGXFSZ, the OOM killer's SIGKILL) and no error.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace verbena::host {

/// How much ordinary memory is still available, and the file that tells it.
struct Headroom {
  std::size_t bytes = 0;
  char limit[160] = "";            ///< The file, and the figure in it.
  std::size_t hugepage_bytes = 0;  ///< Free hugepages, which are reserved apart from it.
};

/// Where the kernel's files are. Tests replace them by their own.
struct KernelFiles {
  const char* proc = "/proc";
  const char* cgroup = "/sys/fs/cgroup";
  const char* nodes = "/sys/devices/system/node";
  const char* infiniband = "/sys/class/infiniband";
  const char* hugepages = "/sys/kernel/mm/hugepages";
};

/// The tightest of MemAvailable (with free swap), the memory limits of this process's cgroups, and the free memory of
/// `node` if given. Caches that the kernel would drop count as free. Empty if none of them can be read.
/// \thread any  \alloc setup
[[nodiscard]] std::optional<Headroom> memory_headroom(std::optional<unsigned> node, const KernelFiles& files = {});

/// Free bytes of the machine's hugetlb pools, of all page sizes. The headroom does not include them. \thread any
[[nodiscard]] std::size_t free_hugepage_bytes(const char* directory);

/// File descriptors of this process.
struct Descriptors {
  std::uint64_t open = 0;   ///< Open now.
  std::uint64_t limit = 0;  ///< RLIMIT_NOFILE: the soft limit, or the hard one with Limit::kHard.
};
enum class Limit : std::uint8_t { kSoft, kHard };
/// Empty if they cannot be read. \thread any  \alloc setup
[[nodiscard]] std::optional<Descriptors> descriptors(Limit limit, const KernelFiles& files = {});

/// Whether the process has CAP_IPC_LOCK effective, so that RLIMIT_MEMLOCK does not apply. \thread any
[[nodiscard]] bool may_lock_at_will(const KernelFiles& files = {}) noexcept;

/// Checks that a memfd and mapping of `size_bytes` is allowed: kNoMemory (RLIMIT_AS), kLimit (RLIMIT_FSIZE). \thread
/// any
[[nodiscard]] Result<void> check_process_limits(std::size_t size_bytes);
/// kNoMemory if `size_bytes` exceed the headroom: touching that much would trigger the OOM killer. \thread any
[[nodiscard]] Result<void> check_memory(std::size_t size_bytes, std::optional<unsigned> node);
/// kLimit if pinning `size_bytes` more for a device would exceed RLIMIT_MEMLOCK. Every registration counts, also of
/// pages that are pinned already. The limit does not apply to a process with CAP_IPC_LOCK. \thread any
[[nodiscard]] Result<void> check_pinning(std::size_t size_bytes, const KernelFiles& files = {});
/// The error for a call that failed with ENOMEM; names the tightest limit. \thread any
[[nodiscard]] Error memory_error(const char* call, int system_errno, std::size_t size_bytes,
                                 std::optional<unsigned> node);

}  // namespace verbena::host
