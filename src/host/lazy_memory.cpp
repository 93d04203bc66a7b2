#include "host/lazy_memory.hpp"

#include "base/error.hpp"

#include <sys/mman.h>

#include <cerrno>

namespace verbena::host {

Result<LazyMemory> LazyMemory::create(std::size_t size, const char* what) {
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return fail_system("mmap", errno, what);
  // The first touch would allocate a whole huge page. Only advice: a kernel without them may refuse it.
  (void)::madvise(data, size, MADV_NOHUGEPAGE);
  LazyMemory memory;
  memory.mapping_ = Mapping(static_cast<std::byte*>(data), size);
  return memory;
}

}  // namespace verbena::host
