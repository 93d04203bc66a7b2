// Private memory on transparent hugepages for large tables that are read at random: one TLB miss less an access.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace verbena::host {

/// Allocator for containers that are sized once. The memory is aligned to 2 MiB and advised; a system that has
/// transparent hugepages off gives small pages, and nothing else differs. \thread any  \alloc setup
template <class T>
struct HugePageAllocator {
  using value_type = T;
  static constexpr std::size_t kPageBytes = std::size_t{2} << 20;

  HugePageAllocator() noexcept = default;
  template <class U>
  explicit HugePageAllocator(const HugePageAllocator<U>&) noexcept {}

  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > (~std::size_t{0} - kPageBytes) / sizeof(T)) throw std::bad_alloc();
    const std::size_t bytes = (count * sizeof(T) + kPageBytes - 1) / kPageBytes * kPageBytes;
    void* memory = std::aligned_alloc(kPageBytes, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    (void)::madvise(memory, bytes, MADV_HUGEPAGE);  // A wish: EINVAL from a kernel without them changes nothing.
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) noexcept { std::free(memory); }
  friend bool operator==(const HugePageAllocator&, const HugePageAllocator&) noexcept { return true; }
};

}  // namespace verbena::host
