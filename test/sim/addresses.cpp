#include "addresses.hpp"

#include "base/check.hpp"

#include <sys/mman.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

// -Wl,--wrap makes these of the system's name, which has the same type.
extern "C" {
void* __real_mmap64(void* address, std::size_t size, int protection, int flags, int fd, off64_t offset);
void* __wrap_mmap64(void* address, std::size_t size, int protection, int flags, int fd, off64_t offset);
}

namespace verbena::sim {
namespace {

/// Neither the kernel nor a sanitizer puts anything there.
constexpr std::uintptr_t kFirst = std::uintptr_t{0x2000} << 32;
/// Between two mappings, and what huge pages are aligned to.
constexpr std::uintptr_t kStep = std::uintptr_t{2} << 20;

std::uintptr_t next = 0;  // 0: outside of a run.

}  // namespace

void restart_addresses() noexcept { next = kFirst; }

}  // namespace verbena::sim

using verbena::sim::kStep, verbena::sim::next;

void* __wrap_mmap64(void* address, std::size_t size, int protection, int flags, int fd, off64_t offset) {
  if (address != nullptr || next == 0) return __real_mmap64(address, size, protection, flags, fd, offset);
  void* const wanted = reinterpret_cast<void*>(next);
  next += (size + 2 * kStep - 1) / kStep * kStep;
  void* const mapped = __real_mmap64(wanted, size, protection, flags | MAP_FIXED_NOREPLACE, fd, offset);
  // Memory that an earlier run has left there would make this one another.
  VERBENA_CHECK(mapped != MAP_FAILED || errno != EEXIST);
  return mapped;
}
