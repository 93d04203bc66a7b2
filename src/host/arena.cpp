#include "host/arena.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "host/memory_limits.hpp"
#include "host/prefault.hpp"
#include "host/proc_file.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U  // Linux 6.3
#endif

namespace verbena::host {

const char* to_string(Pages pages) noexcept {
  switch (pages) {
    case Pages::kHuge1G: return "1 GiB hugepages";
    case Pages::kHuge2M: return "2 MiB hugepages";
    case Pages::kTransparent: return "transparent hugepages";
    case Pages::kSmall: return "small pages";
  }
  return "unknown pages";
}

bool memory_can_be_bound() noexcept {
  // An mbind of no bytes changes nothing, and is denied like any other.
  return numa_available() >= 0 && mbind(nullptr, 0, MPOL_DEFAULT, nullptr, 0, 0) == 0;
}

namespace {

constexpr std::size_t kGibi = std::size_t{1} << 30;
constexpr std::size_t kMaxArenaBytes = 1024 * kGibi;
constexpr std::size_t kMaxNameBytes = 32;
constexpr unsigned kMaxPrefaultThreads = 64;
constexpr unsigned kDefaultPrefaultThreads = 8;
constexpr unsigned kMaxNodes = 1024;  // CONFIG_NODES_SHIFT is at most 10.

struct Rung {
  Pages pages;
  std::size_t page_bytes;
  unsigned memfd_flags;
};
constexpr Rung kRung1G{Pages::kHuge1G, kGibi, MFD_HUGETLB | MFD_HUGE_1GB};
constexpr Rung kRung2M{Pages::kHuge2M, 2 * kMebi, MFD_HUGETLB | MFD_HUGE_2MB};

/// Sentences joined by semicolons, cut at what a PageReport holds.
struct Reasons {
  char text[sizeof PageReport::reason] = "";

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) noexcept {
    char* const end = text + sizeof text - 1;
    char* at = text + std::strlen(text);
    if (at != text) at = fmt::format_to_n(at, static_cast<std::size_t>(end - at), "; ").out;
    *fmt::format_to_n(at, static_cast<std::size_t>(end - at), format, std::forward<Args>(args)...).out = '\0';
  }
};

/// A memfd and its mapping, before an arena owns them.
struct Backing {
  Fd file;
  Mapping memory;
};

std::size_t round_up(std::size_t size, std::size_t to) noexcept { return (size + to - 1) / to * to; }
std::size_t system_page_bytes() noexcept { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

unsigned default_prefault_threads() noexcept {
  cpu_set_t mask;
  // Fails on a machine of more than 1024 cpus, which has enough cpus for the default maximum.
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return kDefaultPrefaultThreads;
  return std::clamp(static_cast<unsigned>(CPU_COUNT(&mask)), 1U, kDefaultPrefaultThreads);
}

// ---- Options

/// If memory cannot be bound, only node 0 is usable, and only if it is the single node.
bool node_is_usable(unsigned node) noexcept {
  if (!memory_can_be_bound()) return node == 0 && access("/sys/devices/system/node/node1", F_OK) != 0;
  return node < kMaxNodes && static_cast<int>(node) <= numa_max_node() &&
         numa_bitmask_isbitset(numa_all_nodes_ptr, node) != 0;
}

Result<void> check_options(const ArenaOptions& options) {
  constexpr const char* kCall = "Arena::create";
  if (options.size_bytes == 0 || options.size_bytes > kMaxArenaBytes) {
    return fail(Status::kBadArgument, kCall, 0, "an arena has 1 byte to 1 TiB, and {} bytes were asked for",
                options.size_bytes);
  }
  if (options.prefault_threads > kMaxPrefaultThreads) {
    return fail(Status::kBadArgument, kCall, 0, "an arena is faulted in by at most {} threads, and {} were asked for",
                kMaxPrefaultThreads, options.prefault_threads);
  }
  if (options.huge == HugePolicy::kRequire && options.share == Share::kReadWrite) {
    return fail(Status::kBadArgument, kCall, 0,
                "memory that peers may write is never on hugetlb pages, since they could punch holes into it: do not "
                "require hugepages for it");
  }
  if (options.huge == HugePolicy::kRequire && options.populate == Populate::kAsUsed) {
    return fail(Status::kBadArgument, kCall, 0,
                "memory that is faulted in as it is used is of small pages: do not require hugepages for it");
  }
  if (options.node && !node_is_usable(*options.node)) {
    return fail(Status::kBadArgument, kCall, 0,
                "NUMA node {} is not there, has no memory, or may not be used by this process; see `numactl -H` and "
                "Mems_allowed in /proc/self/status",
                *options.node);
  }
  return {};
}

// ---- Making a mapping

Result<Fd> make_memfd(std::string_view name, unsigned flags) {
  char full[sizeof "verbena-" + kMaxNameBytes] = "verbena-";
  const std::size_t prefix = std::strlen(full);
  std::memcpy(full + prefix, name.data(), std::min(name.size(), kMaxNameBytes));
  flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd fd(memfd_create(full, flags | MFD_NOEXEC_SEAL));
  // A kernel before 6.3 does not know the flag; one with vm.memfd_noexec=2 refuses memfds without it.
  if (!fd && errno == EINVAL) fd = Fd(memfd_create(full, flags));
  if (!fd) return fail_system("memfd_create", errno, "making the file behind an arena");
  return fd;
}

Result<void> bind(const Mapping& memory, unsigned node) {
  if (!memory_can_be_bound()) return {};
  unsigned long mask[kMaxNodes / (8 * sizeof(unsigned long))] = {};
  constexpr unsigned kBits = 8 * sizeof(unsigned long);
  mask[node / kBits] = 1UL << (node % kBits);
  // The kernel reads one bit less than the number it gets.
  if (mbind(memory.data(), memory.size(), MPOL_BIND, mask, kMaxNodes + 1, 0) != 0)
    return fail_system("mbind", errno, "binding an arena to its NUMA node");
  return {};
}

/// Seals `fd`, so that a peer can neither take pages away (SIGBUS) nor add seals. With kReadOnly nobody can map it
/// writable any more; our existing mapping stays writable.
Result<void> seal(int fd, Share share) {
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (share == Share::kReadOnly) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(fd, F_ADD_SEALS, seals) != 0) return fail_system("fcntl", errno, "sealing the file behind an arena");
  return {};
}

Result<Backing> build(const Rung& rung, const ArenaOptions& options) {
  const bool hugetlb = (rung.memfd_flags & MFD_HUGETLB) != 0;
  Backing backing;
  const std::size_t size = round_up(options.size_bytes, hugetlb ? rung.page_bytes : system_page_bytes());
  VERBENA_TRY(check_process_limits(size));
  const bool is_populated = options.populate == Populate::kAll;
  if (!hugetlb && is_populated) VERBENA_TRY(check_memory(size, options.node));

  VERBENA_ASSIGN(backing.file, make_memfd(options.name, rung.memfd_flags));
  const int fd = backing.file.get();
  if (ftruncate(fd, static_cast<off_t>(size)) != 0)
    return std::unexpected(memory_error("ftruncate", errno, size, options.node));
  const std::size_t alignment = size >= rung.page_bytes ? rung.page_bytes : system_page_bytes();
  std::byte* const data = map_aligned(fd, size, alignment, PROT_READ | PROT_WRITE);
  if (data == nullptr) return std::unexpected(memory_error("mmap", errno, size, options.node));
  backing.memory = Mapping(data, size);
  if (options.node) VERBENA_TRY(bind(backing.memory, *options.node));
  // A forked child must not write to it, and need not copy page tables for it.
  (void)madvise(data, size, MADV_DONTFORK);
  // Only advice: if the kernel refuses it, the report has the pages that were found.
  if (rung.pages == Pages::kTransparent) (void)madvise(data, size, MADV_HUGEPAGE);

  if (is_populated) {
    const unsigned threads = options.prefault_threads != 0 ? options.prefault_threads : default_prefault_threads();
    const std::size_t step = hugetlb ? rung.page_bytes : system_page_bytes();
    if (const int error = prefault({data, size}, fd, step, threads); error != 0)
      return std::unexpected(memory_error("madvise", error, size, options.node));
  } else {
    // Only advice, for machines that give memfds huge pages unasked: a touch would then allocate a whole one.
    (void)madvise(data, size, MADV_NOHUGEPAGE);
  }
  VERBENA_TRY(seal(fd, options.share));
  return backing;
}

// ---- The ladder

/// The upper rungs to try, in order.
struct Ladder {
  std::array<Rung, 3> rungs{};
  std::size_t count = 0;
  void add(const Rung& rung) noexcept { rungs[count++] = rung; }
};

/// Hugepages are scarce: unless they are required, rounding up may waste at most an eighth of the size.
bool rounds_well(std::size_t size, std::size_t page_bytes) noexcept {
  return round_up(size, page_bytes) - size <= size / 8;
}

Ladder hugetlb_rungs(const ArenaOptions& options, Reasons& reasons) {
  Ladder ladder;
  const std::size_t size = options.size_bytes;
  if (options.share == Share::kReadWrite) {
    if (size >= kRung2M.page_bytes) reasons.add("hugetlb pages: never for memory that peers may write");
    return ladder;
  }
  if (rounds_well(size, kRung1G.page_bytes)) ladder.add(kRung1G);
  if (rounds_well(size, kRung2M.page_bytes) || options.huge == HugePolicy::kRequire) ladder.add(kRung2M);
  const bool large = size >= kRung1G.page_bytes;
  if (large && !rounds_well(size, kRung1G.page_bytes)) {
    if (options.huge == HugePolicy::kRequire)
      ladder.add(kRung1G);
    else
      reasons.add("1 GiB pages: rounding up would waste more than an eighth");
  } else if (ladder.count == 0 && size >= kRung2M.page_bytes) {
    reasons.add("2 MiB pages: rounding up would waste more than an eighth");
  }
  return ladder;
}

/// Explains why `rung` failed, and names the setting that changes it.
void explain(const Rung& rung, const ArenaOptions& options, const Error& error, Reasons& reasons) {
  const bool giant = rung.pages == Pages::kHuge1G;
  const char* const size_name = giant ? "1 GiB" : "2 MiB";
  const KernelPath directory =
      options.node ? KernelPath("/sys/devices/system/node/node{}", *options.node) : KernelPath("/sys/kernel/mm");
  const auto path_of = [&](const char* file) {
    return KernelPath("{}/hugepages/hugepages-{}kB/{}", directory.text, rung.page_bytes / 1024, file);
  };
  const std::size_t needed = round_up(options.size_bytes, rung.page_bytes) / rung.page_bytes;
  const KernelPath pages = path_of("nr_hugepages");
  const auto total = number_in_file(pages);
  const auto unused = number_in_file(path_of("free_hugepages"));
  // Exists only for the machine, not for a node.
  const std::uint64_t promised = number_in_file(path_of("resv_hugepages")).value_or(0);
  if (!unused || !total) {
    reasons.add("{} pages: not in this kernel or processor", size_name);
    return;
  }
  const std::uint64_t free_now = *unused > promised ? *unused - promised : 0;
  if (free_now >= needed) {
    reasons.add("{} pages: {} are free, but {} failed: {} (a cgroup's hugetlb limit?)", size_name, free_now,
                error.call(), strerrordesc_np(error.system_errno()));
    return;
  }
  const std::uint64_t reserve = *total + needed - free_now;
  const auto default_kib = sum_of_lines("/proc/meminfo", {"Hugepagesize:"});
  if (giant) {
    reasons.add("1 GiB pages: {} needed, {} free (boot with hugepagesz=1G hugepages={})", needed, free_now, reserve);
  } else if (!options.node && default_kib == rung.page_bytes / 1024) {
    reasons.add("2 MiB pages: {} needed, {} free (sysctl vm.nr_hugepages={})", needed, free_now, reserve);
  } else {
    reasons.add("2 MiB pages: {} needed, {} free (echo {} > {})", needed, free_now, reserve, pages.text);
  }
}

/// Whether the next rung would fail with the same error, because it does not depend on the page size.
bool ends_the_ladder(const Error& error) noexcept {
  return error.system_errno() == EMFILE || error.system_errno() == ENFILE || std::string_view(error.call()) == "mbind";
}

/// The rung of ordinary memory: transparent pages if memfds may have them, else small ones.
Rung ordinary_rung(std::size_t size, Reasons& reasons) {
  const Rung small{Pages::kSmall, system_page_bytes(), 0};
  const auto huge_bytes = number_in_file("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
  if (!huge_bytes) {
    if (size >= kRung2M.page_bytes) reasons.add("transparent pages: not in this kernel");
    return small;
  }
  if (size < *huge_bytes) return small;
  constexpr const char* kPath = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  Rung found = small;
  bool is_told = false;
  for_each_line(kPath, [&](std::string_view text) {
    is_told = true;
    if (!text.contains("[never]") && !text.contains("[deny]")) found = {Pages::kTransparent, *huge_bytes, 0};
    return false;
  });
  if (!is_told)
    reasons.add("transparent pages: not for memfds in this kernel");
  else if (found.pages == Pages::kSmall)
    reasons.add("transparent pages: off for memfds (echo advise > {})", kPath);
  return found;
}

// ---- The report

struct Found {
  std::size_t page_bytes = 0;
  std::size_t transparent_bytes = 0;
};

/// Reads the mapping that starts at `data` from /proc/self/smaps; zeros if it is not there.
Found find_in_smaps(const std::byte* data) noexcept {
  Found found;
  bool ours = false;
  for_each_line("/proc/self/smaps", [&](std::string_view text) {
    std::uintptr_t begin = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), begin, 16);
    if (error == std::errc{} && text.substr(static_cast<std::size_t>(end - text.data())).starts_with('-')) {
      if (ours) return false;
      ours = begin == reinterpret_cast<std::uintptr_t>(data);
    } else if (ours && text.starts_with("KernelPageSize:")) {
      found.page_bytes = first_number(text).value_or(0) * 1024;
    } else if (ours && text.starts_with("ShmemPmdMapped:")) {
      found.transparent_bytes = first_number(text).value_or(0) * 1024;
    }
    return true;
  });
  return found;
}

PageReport report_of(const Rung& rung, const Mapping& memory, Reasons& reasons) {
  // Skipped for small pages, because the kernel takes long to list thousands of mappings.
  const Found found = rung.pages == Pages::kSmall ? Found{} : find_in_smaps(memory.data());
  PageReport report;
  const bool hugetlb = (rung.memfd_flags & MFD_HUGETLB) != 0;
  report.page_bytes = found.page_bytes != 0 ? found.page_bytes : hugetlb ? rung.page_bytes : system_page_bytes();
  report.pages = rung.pages;
  if (rung.pages == Pages::kTransparent) {
    // If the size is no multiple of the page size, the last pages are always small.
    const std::size_t best = memory.size() / rung.page_bytes * rung.page_bytes;
    if (found.transparent_bytes == 0) report.pages = Pages::kSmall;
    if (found.transparent_bytes < best) {
      reasons.add("transparent pages: back {} of {} MiB (memory is fragmented, or a cgroup or policy forbids more)",
                  found.transparent_bytes / kMebi, best / kMebi);
    }
  }
  std::memcpy(report.reason, reasons.text, sizeof report.reason);
  return report;
}

}  // namespace

Result<Arena> Arena::create(const ArenaOptions& options) {
  VERBENA_TRY(check_options(options));
  // Checked before the ladder, because hugetlb pages do not avoid these limits.
  VERBENA_TRY(check_process_limits(options.size_bytes));

  const auto adopt = [&](Backing& backing, const Rung& rung, Reasons& reasons) {
    Arena arena;
    arena.report_ = report_of(rung, backing.memory, reasons);
    arena.share_ = options.share;
    arena.populate_ = options.populate;
    arena.memory_ = std::move(backing.memory);
    arena.file_ = std::move(backing.file);
    return arena;
  };

  Reasons reasons;
  if (options.populate == Populate::kAsUsed) {
    const Rung small{Pages::kSmall, system_page_bytes(), 0};
    if (options.size_bytes >= kRung2M.page_bytes) reasons.add("hugepages: not for memory that is faulted in as used");
    VERBENA_ASSIGN(Backing backing, build(small, options));
    return adopt(backing, small, reasons);
  }
  const Ladder ladder = hugetlb_rungs(options, reasons);
  for (std::size_t i = 0; i < ladder.count; ++i) {
    const Rung& rung = ladder.rungs[i];
    auto backing = build(rung, options);
    if (backing) return adopt(*backing, rung, reasons);
    if (ends_the_ladder(backing.error())) return std::unexpected(backing.error());
    explain(rung, options, backing.error(), reasons);
  }
  if (options.huge == HugePolicy::kRequire) {
    return fail(Status::kLimit, "Arena::create", ENOMEM, "hugepages are required and not there: {}", reasons.text);
  }
  const Rung rung = ordinary_rung(options.size_bytes, reasons);
  VERBENA_ASSIGN(Backing backing, build(rung, options));
  return adopt(backing, rung, reasons);
}

}  // namespace verbena::host
