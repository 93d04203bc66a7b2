#include "host/mapping.hpp"

#include <unistd.h>

#include <cstdint>

namespace verbena::host {

// Never replaces a mapping: MAP_FIXED over a reservation would unmap it before failing, and another thread could take
// the hole before it is restored.
std::byte* map_aligned(int fd, std::size_t size, std::size_t alignment, int access) noexcept {
  void* mapped = MAP_FAILED;
  void* found = MAP_FAILED;
  if (alignment > static_cast<std::size_t>(sysconf(_SC_PAGESIZE)))
    found = mmap(nullptr, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found != MAP_FAILED) {
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(found);
    void* const wanted = reinterpret_cast<void*>((begin + alignment - 1) / alignment * alignment);
    munmap(found, size + alignment);
    // A kernel before 4.17 takes the address as a hint, which may move the mapping and never replaces another.
    mapped = mmap(wanted, size, access, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
  }
  if (mapped == MAP_FAILED) mapped = mmap(nullptr, size, access, MAP_SHARED, fd, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

}  // namespace verbena::host
