// Arenas: one contiguous, NUMA-bound range of memory, pre-faulted from the largest pages there are, or faulted as used.
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

/// What other processes can be given of an arena. Fixed when it is created: seals cannot be taken off a memfd.
enum class Share : std::uint8_t {
  kNone,       ///< Never handed out.
  kReadOnly,   ///< Peers may map it read-only; F_SEAL_FUTURE_WRITE makes the kernel refuse anything else.
  kReadWrite,  ///< Peers may map it read-write. Never hugetlb: its writers can punch holes.
};

/// The page sizes of the ladder, best first.
enum class Pages : std::uint8_t { kHuge1G, kHuge2M, kTransparent, kSmall };
[[nodiscard]] const char* to_string(Pages pages) noexcept;

enum class HugePolicy : std::uint8_t {
  kBestEffort,  ///< Take the best rung that works, and say why the better ones did not.
  kRequire,     ///< Fail with kLimit, naming the sysctl that reserves pages, unless hugetlb pages back all of it.
};

enum class Populate : std::uint8_t {
  kAll,     ///< Every page is there when the arena is.
  kAsUsed,  ///< Small pages, each there once it is touched: for what is large and mostly unused. A page that the
            ///< machine cannot give then ends the process, and a device that pins the memory faults it in.
};

struct ArenaOptions {
  std::size_t size_bytes = 0;    ///< Rounded up to the page size found. 1 byte to 1 TiB.
  std::optional<unsigned> node;  ///< NUMA node to bind to; the machine's default policy without.
  HugePolicy huge = HugePolicy::kBestEffort;
  Share share = Share::kNone;
  Populate populate = Populate::kAll;
  unsigned prefault_threads = 0;    ///< Threads that fault pages in (kAll): 1 to 64; 0 is one a core, 8 at most.
  std::string_view name = "arena";  ///< Shows in /proc/PID/maps as memfd:verbena-NAME. Cut at 32 characters.
};

/// What the ladder came to.
struct PageReport {
  Pages pages = Pages::kSmall;
  std::size_t page_bytes = 4096;  ///< As found in /proc/self/smaps (KernelPageSize), not as asked for.
  char reason[256] = "";          ///< Why better rungs were not taken; empty for the best rung that could apply.
};

/// Move-only owner of one memfd and its mapping. The memory is zeroed, faulted in as asked for, and of this process
/// until destruction. Setup and teardown only. \thread any (one at a time)  \alloc setup
class Arena {
 public:
  Arena() noexcept = default;
  /// Errors: kBadArgument (size 0 or absurd, unknown node, more than 64 threads, kRequire with kReadWrite or kAsUsed),
  /// kLimit (hugepages required and not there, open files, RLIMIT_FSIZE), kPermission (binding to a node denied),
  /// kNoMemory (with the limit that was hit). Nothing is left behind on failure.
  [[nodiscard]] static Result<Arena> create(const ArenaOptions& options);

  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data(), size()}; }
  /// The memfd, sealed against shrinking, growing and further seals; -1 when empty. Owned by the arena.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  /// Closes the memfd: nobody gets it any more, and the memory stays as long as the arena does. For what is shared with
  /// nobody, so that a pool's memory takes no descriptors.
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

/// Whether arenas can be on a node of one's choice: the kernel knows NUMA, and the calls for it are not denied, as they
/// are in containers with Docker's seccomp profile (hwloc reads the nodes from sysfs, and sees them there too).
/// \thread any  \alloc none
[[nodiscard]] bool memory_can_be_bound() noexcept;

}  // namespace verbena::host
