#include "host/physical.hpp"

#include "base/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>

namespace verbena::host {

namespace {

// Bits of an entry, from Documentation/admin-guide/mm/pagemap.rst. Its other bits, such as soft-dirty, do not tell
// where the page is.
constexpr std::uint64_t kFrameMask = (std::uint64_t{1} << 55) - 1;
constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;

constexpr std::size_t kEntriesAtOnce = 1024;

[[nodiscard]] std::uint64_t number_of(const void* at) noexcept { return reinterpret_cast<std::uintptr_t>(at); }

}  // namespace

Result<PageMap> PageMap::open(const PageMapFile& file) {
  const std::size_t page_bytes =
      file.page_bytes != 0 ? file.page_bytes : static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (!std::has_single_bit(page_bytes))
    return fail(Status::kBadArgument, "PageMap::open", 0, "a page has a power of two of bytes, not {}", page_bytes);
  auto opened = File::open(file.path, File::How::kRead);
  if (opened) return PageMap(std::move(*opened), page_bytes);
  const Error& error = opened.error();
  if (error.status() == Status::kNotFound) {
    return fail(Status::kUnsupported, "PageMap::open", error.system_errno(),
                "there is no {}: physical addresses need a kernel with CONFIG_PROC_PAGE_MONITOR and /proc mounted",
                file.path);
  }
  if (error.status() != Status::kPermission) return std::unexpected(error);
  return fail(Status::kPermission, "PageMap::open", error.system_errno(),
              "{} is not for this process: physical addresses need CAP_SYS_ADMIN; a process that changed its user or "
              "got the capability from its file (setcap) also needs prctl(PR_SET_DUMPABLE, 1) first, or "
              "CAP_DAC_READ_SEARCH. All but physical addressing works without",
              file.path);
}

Result<void> PageMap::read(std::uint64_t first, std::span<std::uint64_t> entries) const {
  const std::span<std::byte> bytes = std::as_writable_bytes(entries);
  VERBENA_ASSIGN(const std::size_t got, file_.read(first * sizeof(std::uint64_t), bytes));
  if (got == bytes.size()) return {};
  return fail(Status::kBadArgument, "PageMap", 0, "{:#x} is not in the address space of a process",
              (first + got / sizeof(std::uint64_t)) * page_bytes_);
}

Result<std::uint64_t> PageMap::frame_of(std::uint64_t entry, std::uint64_t page) const {
  const std::uint64_t address = page * page_bytes_;
  if ((entry & kPresent) == 0) {
    return fail(Status::kNotFound, "PageMap", 0,
                "the page at {:#x} {}; keep it in memory: allocate it from an arena, {}", address,
                (entry & kSwapped) != 0 ? "is swapped out or on the move" : "was never touched, or is not mapped",
                "register it with a device, or touch it and mlock it");
  }
  const std::uint64_t frame = entry & kFrameMask;
  // Frame 0 belongs to the firmware on every machine.
  if (frame == 0) {
    return fail(
        Status::kPermission, "PageMap", 0,
        "the kernel hides physical addresses from a process without CAP_SYS_ADMIN: run as root (the host's, not "
        "a user namespace's), or setcap cap_sys_admin,cap_dac_read_search+ep PROGRAM, or in a container "
        "--cap-add SYS_ADMIN. All but physical addressing works without");
  }
  return frame;
}

Result<std::uint64_t> PageMap::address_of(const void* at) const {
  const std::uint64_t page = number_of(at) / page_bytes_;
  std::uint64_t entry = 0;
  VERBENA_TRY(read(page, {&entry, 1}));
  VERBENA_ASSIGN(const std::uint64_t frame, frame_of(entry, page));
  return frame * page_bytes_ + number_of(at) % page_bytes_;
}

Result<PhysicalRuns> PageMap::runs_of(std::span<std::byte> range, std::size_t most) const {
  PhysicalRuns found;
  if (range.empty()) return found;
  const std::uint64_t begin = number_of(range.data());
  const std::uint64_t last = begin + (range.size() - 1);
  if (last < begin)
    return fail(Status::kBadArgument, "PageMap", 0, "{} bytes at {:#x} wrap around the address space", range.size(),
                begin);
  std::array<std::uint64_t, kEntriesAtOnce> entries;
  std::uint64_t next_frame = 0;  // The frame that would extend the run. No real frame is 0.
  std::size_t done = 0;
  for (std::uint64_t page = begin / page_bytes_; done < range.size();) {
    const std::span batch = std::span(entries).first(std::min(kEntriesAtOnce, last / page_bytes_ - page + 1));
    VERBENA_TRY(read(page, batch));
    for (const std::uint64_t entry : batch) {
      VERBENA_ASSIGN(const std::uint64_t frame, frame_of(entry, page));
      const std::size_t offset = (begin + done) % page_bytes_;
      const std::size_t length = std::min(page_bytes_ - offset, range.size() - done);
      const bool is_new = frame != next_frame;
      if (is_new && ++found.count <= most)
        found.runs.push_back({.data = range.data() + done, .physical = frame * page_bytes_ + offset, .length = 0});
      if (found.count <= most) found.runs.back().length += length;
      next_frame = frame + 1;
      done += length;
      ++page;
    }
  }
  return found;
}

}  // namespace verbena::host
