// Faulting a mapping's pages in, in parallel, with errors instead of SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::host {

/// Makes every page of `range`, a mapping of `fd` from its start, present and writable, and changes no byte. Returns 0,
/// or the errno of a failed populate (EFAULT: hugetlb, and the node has no free page). `threads` is 1 to 64, the
/// caller's included; it uses fewer if it cannot start them. \thread any  \alloc setup
[[nodiscard]] int prefault(std::span<std::byte> range, int fd, std::size_t page_bytes, unsigned threads) noexcept;

/// Bytes that all calls of `prefault` in this process have faulted in so far: for showing progress. \thread any
/// \alloc none
[[nodiscard]] std::uint64_t prefaulted_bytes() noexcept;

}  // namespace verbena::host
