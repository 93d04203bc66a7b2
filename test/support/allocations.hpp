// Counts what this process allocates: operator new and delete in all forms, malloc and its kin, and mappings. For an
// executable of its own, which adds allocations.cpp to its sources and `allocation_args` to what it is linked with.
//
// malloc and its kin are seen where the executable calls them, the archive's calls included; operator new and delete
// everywhere, since the executable's replace those of shared libraries too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <numeric>

namespace verbena::test {

enum class Allocation : std::uint8_t {
  kNew,
  kDelete,
  kMalloc,
  kCalloc,
  kRealloc,
  kFree,
  kAligned,  ///< posix_memalign, aligned_alloc
  kMap,      ///< mmap, mremap
  kUnmap,
};
inline constexpr std::size_t kAllocationKinds = 9;

struct Allocations {
  std::array<std::uint64_t, kAllocationKinds> counts{};

  [[nodiscard]] std::uint64_t of(Allocation kind) const noexcept { return counts[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] std::uint64_t total() const noexcept {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  }
  [[nodiscard]] friend Allocations operator-(const Allocations& after, const Allocations& before) noexcept {
    Allocations made;
    for (std::size_t i = 0; i < kAllocationKinds; ++i) made.counts[i] = after.counts[i] - before.counts[i];
    return made;
  }
  friend bool operator==(const Allocations&, const Allocations&) = default;
  /// Those that are not zero, by name.
  friend std::ostream& operator<<(std::ostream& out, const Allocations& allocations);
};

/// Of the calling thread, since it started. \thread any
[[nodiscard]] Allocations thread_allocations() noexcept;
/// Of all threads but servers' acceptors. They set connections up, which may allocate, and are done some time after the
/// client's connect has returned; no operation is theirs. \thread any
[[nodiscard]] Allocations process_allocations() noexcept;
/// Bytes that were allocated and not freed, mappings aside. Only differences mean something. \thread any
[[nodiscard]] std::int64_t live_heap_bytes() noexcept;

/// From here on each allocation of any thread writes its stack to stderr, or no longer: if VERBENA_TELL_ALLOCATIONS is
/// set in the environment. `addr2line -Cfie EXECUTABLE` reads the addresses. \thread any
void tell_allocations(bool tells) noexcept;

/// Sanitizers bring an allocator of their own. Null where the counters count, else why not.
[[nodiscard]] const char* why_allocations_are_not_counted() noexcept;

}  // namespace verbena::test

#define VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS() \
  if (const char* const why = ::verbena::test::why_allocations_are_not_counted(); why) GTEST_SKIP() << why
