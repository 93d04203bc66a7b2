#include "host/memory_limits.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "host/proc_file.hpp"

#include <linux/capability.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <limits>
#include <system_error>

namespace verbena::host {

namespace {

std::size_t mapped_bytes() noexcept {
  const auto pages = number_in_file("/proc/self/statm");
  return pages.value_or(0) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t soft_limit(int resource) noexcept {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<std::size_t>::max();
  return limit.rlim_cur;
}

bool address_space_lacks(std::size_t size_bytes) noexcept {
  const std::size_t limit = soft_limit(RLIMIT_AS);
  const std::size_t used = mapped_bytes();
  return used > limit || size_bytes > limit - used;
}

Error address_space_error(const char* call, int system_errno, std::size_t size_bytes) {
  return format_error(Status::kNoMemory, call, system_errno,
                      "{} MiB do not fit into the address space: RLIMIT_AS is {} MiB and {} MiB are mapped; raise it "
                      "(ulimit -v), or ask for less",
                      (size_bytes + kMebi - 1) / kMebi, soft_limit(RLIMIT_AS) / kMebi, mapped_bytes() / kMebi);
}

Error headroom_error(const char* call, int system_errno, std::size_t size_bytes, const Headroom& headroom) {
  return format_error(Status::kNoMemory, call, system_errno,
                      "{} MiB of memory are not available: {} MiB are left by {}; raise that limit or free memory, or "
                      "ask for less",
                      (size_bytes + kMebi - 1) / kMebi, headroom.bytes / kMebi, headroom.limit);
}

}  // namespace

std::size_t free_hugepage_bytes(const char* directory) {
  std::size_t bytes = 0;
  for (const unsigned kib : {2048U, 1048576U})
    bytes += number_in_file(KernelPath("{}/hugepages-{}kB/free_hugepages", directory, kib)).value_or(0) * kib * 1024;
  return bytes;
}

std::optional<Descriptors> descriptors(Limit limit, const KernelFiles& files) {
  rlimit now{};
  if (getrlimit(RLIMIT_NOFILE, &now) != 0) return std::nullopt;
  Descriptors descriptors{.limit = limit == Limit::kSoft ? now.rlim_cur : now.rlim_max};
  std::error_code unreadable;
  std::filesystem::directory_iterator at(KernelPath("{}/self/fd", files.proc).text, unreadable);
  for (; !unreadable && at != std::filesystem::directory_iterator(); at.increment(unreadable)) ++descriptors.open;
  if (unreadable || descriptors.open == 0) return std::nullopt;
  --descriptors.open;  // The descriptor of the directory itself.
  return descriptors;
}

bool may_lock_at_will(const KernelFiles& files) noexcept {
  constexpr std::string_view kKey = "CapEff:\t";
  std::uint64_t capabilities = 0;
  for_each_line(KernelPath("{}/self/status", files.proc).text, [&](std::string_view text) {
    if (!text.starts_with(kKey)) return true;
    std::from_chars(text.data() + kKey.size(), text.data() + text.size(), capabilities, 16);
    return false;
  });
  return (capabilities >> CAP_IPC_LOCK & 1) != 0;
}

Result<void> check_process_limits(std::size_t size_bytes) {
  if (address_space_lacks(size_bytes)) return std::unexpected(address_space_error("mmap", ENOMEM, size_bytes));
  // The kernel sends SIGXFSZ if ftruncate exceeds it, which by default ends the process.
  if (const std::size_t limit = soft_limit(RLIMIT_FSIZE); size_bytes > limit) {
    return fail(Status::kLimit, "ftruncate", EFBIG,
                "{} MiB are more than the largest file this process may make, {} MiB, which counts for memfds too; "
                "raise RLIMIT_FSIZE (ulimit -f), or ask for less",
                (size_bytes + kMebi - 1) / kMebi, limit / kMebi);
  }
  return {};
}

Result<void> check_memory(std::size_t size_bytes, std::optional<unsigned> node) {
  const auto headroom = memory_headroom(node);
  // The page tables of 4 KiB pages take 8 bytes a page.
  const std::size_t needed = size_bytes + size_bytes / 512;
  if (!headroom || needed <= headroom->bytes) return {};
  return std::unexpected(headroom_error("madvise", ENOMEM, size_bytes, *headroom));
}

Result<void> check_pinning(std::size_t size_bytes, const KernelFiles& files) {
  const std::size_t limit = soft_limit(RLIMIT_MEMLOCK);
  const std::size_t pinned = sum_of_lines(KernelPath("{}/self/status", files.proc).text, {"VmPin:"}).value_or(0) * 1024;
  if (pinned + size_bytes <= limit || may_lock_at_will(files)) return {};
  return fail(
      Status::kLimit, "check_pinning", ENOMEM,
      "{} KiB more would be pinned, {} KiB are pinned already, and RLIMIT_MEMLOCK is {} KiB; raise it: ulimit -l "
      "unlimited, memlock in /etc/security/limits.conf, or LimitMEMLOCK=infinity of the systemd unit",
      size_bytes >> 10, pinned >> 10, limit >> 10);
}

Error memory_error(const char* call, int system_errno, std::size_t size_bytes, std::optional<unsigned> node) {
  if (address_space_lacks(size_bytes)) return address_space_error(call, system_errno, size_bytes);
  if (const auto headroom = memory_headroom(node)) return headroom_error(call, system_errno, size_bytes, *headroom);
  return system_error(call, system_errno, "memory for an arena");
}

}  // namespace verbena::host
