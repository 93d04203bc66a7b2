// Physical addresses of this process's memory, from the kernel's page map. See docs/physical-addressing.md.
#pragma once

#include "base/files.hpp"

#include <verbena/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace verbena::host {

/// Bytes of this process that are contiguous in physical memory as well.
struct PhysicalRun {
  std::byte* data = nullptr;
  std::uint64_t physical = 0;
  std::size_t length = 0;
};

/// The runs of a range, in the order of its addresses.
struct PhysicalRuns {
  std::vector<PhysicalRun> runs;  ///< The first ones, at most the requested number.
  std::size_t count = 0;          ///< Number of runs in the whole range.
};

/// Where the kernel's page map is: an entry of 8 bytes for each page of `page_bytes`. Tests use their own.
struct PageMapFile {
  const char* path = "/proc/self/pagemap";
  std::size_t page_bytes = 0;  ///< A power of two; 0: the system's page.
};

/// Reads the page map. The kernel checks CAP_SYS_ADMIN only when the map is opened: a map that was opened with it still
/// tells physical addresses after the process has dropped it.
///
/// The map has an entry for each small page, whatever the page size of the memory, so all this holds for hugepages too:
/// they have successive entries.
///
/// An address is valid only while the page stays in place: the kernel moves pages that no device has pinned, and swaps
/// them out. \thread any
class PageMap {
 public:
  /// Errors: kPermission (the file is not for this process), kUnsupported (there is none: a kernel without
  /// CONFIG_PROC_PAGE_MONITOR, or no /proc), kBadArgument (page_bytes), kSystem. \alloc setup
  [[nodiscard]] static Result<PageMap> open(const PageMapFile& file = {});

  /// The physical address of one byte. Errors: kPermission (the kernel hides frame numbers: no CAP_SYS_ADMIN),
  /// kNotFound (there is no page, or it is swapped out: touch it first), kBadArgument (not an address of a process),
  /// kSystem. \alloc none
  [[nodiscard]] Result<std::uint64_t> address_of(const void* at) const;
  /// The physically contiguous runs of `range`: keeps the first `most`, counts all. Errors: as address_of, for the
  /// first page that has one. \alloc setup
  [[nodiscard]] Result<PhysicalRuns> runs_of(std::span<std::byte> range, std::size_t most) const;

 private:
  PageMap(File file, std::size_t page_bytes) noexcept : file_(std::move(file)), page_bytes_(page_bytes) {}
  /// Reads the entries of `entries.size()` pages from page number `first` on.
  [[nodiscard]] Result<void> read(std::uint64_t first, std::span<std::uint64_t> entries) const;
  [[nodiscard]] Result<std::uint64_t> frame_of(std::uint64_t entry, std::uint64_t page) const;

  File file_;
  std::size_t page_bytes_ = 0;
};

}  // namespace verbena::host
