// Arenas: one contiguous, NUMA-bound range of memory, pre-faulted with the largest available pages, or faulted in as
// used.
#pragma once

#include "base/fd.hpp"
#include "host/mapping.hpp"

#include <verbena/error.hpp>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace verbena::host {

/// Access that other processes can get to an arena. Fixed at creation, because seals cannot be removed from a memfd.
enum class Share : std::uint8_t {
  kNone,       ///< Never handed out.
  kReadOnly,   ///< Peers may map it read-only; F_SEAL_FUTURE_WRITE makes the kernel refuse anything else.
  kReadWrite,  ///< Peers may map it read-write. Never hugetlb: its writers can punch holes.
};

/// The page sizes of the ladder, best first.
enum class Pages : std::uint8_t { kHuge1G, kHuge2M, kTransparent, kSmall };
[[nodiscard]] const char* to_string(Pages pages) noexcept;

enum class HugePolicy : std::uint8_t {
  kBestEffort,  ///< Use the largest available pages, and report why larger ones failed.
  kRequire,     ///< Fail with kLimit, naming the sysctl that reserves pages, unless hugetlb pages back all of it.
};

enum class Populate : std::uint8_t {
  kAll,     ///< Faults in every page at creation.
  kAsUsed,  ///< Small pages, each faulted in at its first touch: for memory that is large and mostly unused. If the
            ///< machine has no page left then, the process dies. A device that pins the memory faults all of it in.
};

struct ArenaOptions {
  std::size_t size_bytes = 0;    ///< Rounded up to the page size found. 1 byte to 1 TiB.
  std::optional<unsigned> node;  ///< NUMA node to bind to; empty: the machine's default policy.
  HugePolicy huge = HugePolicy::kBestEffort;
  Share share = Share::kNone;
  Populate populate = Populate::kAll;
  unsigned prefault_threads = 0;    ///< Threads that fault pages in (kAll): 1 to 64; 0: one per core, 8 at most.
  std::string_view name = "arena";  ///< Shows in /proc/PID/maps as memfd:verbena-NAME. Cut at 32 characters.
};

/// The pages that an arena got.
struct PageReport {
  Pages pages = Pages::kSmall;
  std::size_t page_bytes = 4096;  ///< As found in /proc/self/smaps (KernelPageSize), not as requested.
  char reason[256] = "";          ///< Why larger pages were not used; empty if the largest that fit were.
};

/// Move-only owner of one memfd and its mapping. The memory is zeroed, faulted in as the options say, and mapped until
/// destruction. Setup and teardown only. \thread any (one at a time)  \alloc setup
class Arena {
 public:
  Arena() noexcept = default;
  /// Errors: kBadArgument (size 0 or absurd, unknown node, more than 64 threads, kRequire with kReadWrite or kAsUsed),
  /// kLimit (hugepages required and not there, open files, RLIMIT_FSIZE), kPermission (binding to a node denied),
  /// kNoMemory (the text names the limit). Leaves nothing behind on failure.
  [[nodiscard]] static Result<Arena> create(const ArenaOptions& options);

  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data(), size()}; }
  /// The memfd, sealed against shrinking, growing and further seals; -1 when empty. Owned by the arena.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  /// Closes the memfd; the memory stays as long as the arena. For memory that is not shared, so that a pool's memory
  /// takes no descriptors.
  void close_file() noexcept { file_.reset(); }
  [[nodiscard]] Share share() const noexcept { return share_; }
  [[nodiscard]] Populate populate() const noexcept { return populate_; }
  [[nodiscard]] const PageReport& page_report() const noexcept { return report_; }
  [[nodiscard]] bool contains(const void* address, std::size_t length) const noexcept {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= data() && length <= size() && static_cast<std::size_t>(at - data()) <= size() - length;
  }

 private:
  Mapping memory_;
  Fd file_;
  Share share_ = Share::kNone;
  Populate populate_ = Populate::kAll;
  PageReport report_;
};

/// Whether arenas can be bound to a chosen node: the kernel knows NUMA, and does not deny the calls, as Docker's
/// seccomp profile does in containers (where hwloc still sees the nodes, because it reads sysfs).
/// \thread any  \alloc none
[[nodiscard]] bool memory_can_be_bound() noexcept;

}  // namespace verbena::host
