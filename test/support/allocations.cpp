#include "allocations.hpp"
#include "sanitized.hpp"

#include <execinfo.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <new>
#include <ostream>
#include <string_view>

namespace verbena::test {
namespace {

// Constant-initialised, and without destructors: allocations come before and after everything else.
constinit thread_local Allocations of_thread;
constinit std::array<std::atomic<std::uint64_t>, kAllocationKinds> of_process{};
constinit std::atomic<std::int64_t> live_bytes{0};
constinit std::atomic<bool> is_telling{false};

#ifndef VERBENA_IS_SANITIZED
// Neither allocates: who tells has called `backtrace` before.
void tell_stack() noexcept {
  std::array<void*, 32> frames;
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  ::backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  (void)!::write(STDERR_FILENO, "\n", 1);
}

bool is_acceptor() noexcept {
  std::array<char, 16> name{};
  (void)::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return std::string_view(name.data()).starts_with("verbena-accept");
}

void note(Allocation kind) noexcept {
  const auto at = static_cast<std::size_t>(kind);
  ++of_thread.counts[at];
  if (is_acceptor()) return;
  of_process[at].fetch_add(1, std::memory_order_relaxed);
  if (is_telling.load(std::memory_order_relaxed)) [[unlikely]]
    tell_stack();
}

// What the allocator gave, so that what is freed counts the same, whoever allocated it.
void* took(void* memory) noexcept {
  live_bytes.fetch_add(static_cast<std::int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}
void gives(void* memory) noexcept {
  live_bytes.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
}
#endif

}  // namespace

std::ostream& operator<<(std::ostream& out, const Allocations& allocations) {
  constexpr std::array<const char*, kAllocationKinds> kNames{"new",  "delete",  "malloc", "calloc", "realloc",
                                                             "free", "aligned", "mmap",   "munmap"};
  const char* separator = "";
  for (std::size_t i = 0; i < kAllocationKinds; ++i) {
    if (allocations.counts[i] == 0) continue;
    out << separator << kNames[i] << " " << allocations.counts[i];
    separator = ", ";
  }
  return allocations.total() == 0 ? out << "none" : out;
}

Allocations thread_allocations() noexcept { return of_thread; }

Allocations process_allocations() noexcept {
  Allocations now;
  for (std::size_t i = 0; i < kAllocationKinds; ++i) now.counts[i] = of_process[i].load(std::memory_order_relaxed);
  return now;
}

std::int64_t live_heap_bytes() noexcept { return live_bytes.load(std::memory_order_relaxed); }

void tell_allocations(bool tells) noexcept {
  static const bool is_wanted = std::getenv("VERBENA_TELL_ALLOCATIONS") != nullptr;
  if (!is_wanted) return;
  std::array<void*, 1> frame;
  (void)::backtrace(frame.data(), 1);  // The first call loads a library.
  is_telling.store(tells);
}

const char* why_allocations_are_not_counted() noexcept {
#ifdef VERBENA_IS_SANITIZED
  return "a sanitizer brings its own allocator: what it is called for cannot be counted";
#else
  return nullptr;
#endif
}

}  // namespace verbena::test

#ifndef VERBENA_IS_SANITIZED

// The linker makes __wrap_NAME of each call of NAME in the executable, and NAME of __real_NAME (--wrap).
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names
void* __real_malloc(std::size_t bytes);
void* __real_calloc(std::size_t count, std::size_t bytes);
void* __real_realloc(void* memory, std::size_t bytes);
void __real_free(void* memory);
int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes);
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
void* __real_mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset);
void* __real_mmap64(void* address, std::size_t bytes, int protection, int flags, int fd, off64_t offset);
void* __real_mremap(void* address, std::size_t bytes, std::size_t new_bytes, int flags, ...);
int __real_munmap(void* address, std::size_t bytes);

void* __wrap_malloc(std::size_t bytes) {
  verbena::test::note(verbena::test::Allocation::kMalloc);
  return verbena::test::took(__real_malloc(bytes));
}
void* __wrap_calloc(std::size_t count, std::size_t bytes) {
  verbena::test::note(verbena::test::Allocation::kCalloc);
  return verbena::test::took(__real_calloc(count, bytes));
}
void* __wrap_realloc(void* memory, std::size_t bytes) {
  verbena::test::note(verbena::test::Allocation::kRealloc);
  verbena::test::gives(memory);
  void* const moved = __real_realloc(memory, bytes);
  // Refused: what was there is still there.
  (void)verbena::test::took(moved == nullptr && bytes != 0 ? memory : moved);
  return moved;
}
void __wrap_free(void* memory) {
  verbena::test::note(verbena::test::Allocation::kFree);
  verbena::test::gives(memory);
  __real_free(memory);
}
int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  verbena::test::note(verbena::test::Allocation::kAligned);
  const int status = __real_posix_memalign(memory, alignment, bytes);
  if (status == 0) (void)verbena::test::took(*memory);
  return status;
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  verbena::test::note(verbena::test::Allocation::kAligned);
  return verbena::test::took(__real_aligned_alloc(alignment, bytes));
}
void* __wrap_mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  verbena::test::note(verbena::test::Allocation::kMap);
  return __real_mmap(address, bytes, protection, flags, fd, offset);
}
// What mmap is where files are large (_FILE_OFFSET_BITS=64).
void* __wrap_mmap64(void* address, std::size_t bytes, int protection, int flags, int fd, off64_t offset) {
  verbena::test::note(verbena::test::Allocation::kMap);
  return __real_mmap64(address, bytes, protection, flags, fd, offset);
}
void* __wrap_mremap(void* address, std::size_t bytes, std::size_t new_bytes, int flags, ...) {
  verbena::test::note(verbena::test::Allocation::kMap);
  std::va_list more;
  va_start(more, flags);
  void* const wanted = (flags & MREMAP_FIXED) != 0 ? va_arg(more, void*) : nullptr;
  va_end(more);
  return __real_mremap(address, bytes, new_bytes, flags, wanted);
}
int __wrap_munmap(void* address, std::size_t bytes) {
  verbena::test::note(verbena::test::Allocation::kUnmap);
  return __real_munmap(address, bytes);
}
// NOLINTEND(bugprone-reserved-identifier)
}

namespace {

[[nodiscard]] void* make(std::size_t bytes) noexcept {
  verbena::test::note(verbena::test::Allocation::kNew);
  return verbena::test::took(__real_malloc(bytes == 0 ? 1 : bytes));
}
[[nodiscard]] void* make(std::size_t bytes, std::align_val_t alignment) noexcept {
  verbena::test::note(verbena::test::Allocation::kNew);
  void* memory = nullptr;
  if (__real_posix_memalign(&memory, static_cast<std::size_t>(alignment), bytes == 0 ? 1 : bytes) != 0) return nullptr;
  return verbena::test::took(memory);
}
[[nodiscard]] void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void end(void* memory) noexcept {
  verbena::test::note(verbena::test::Allocation::kDelete);
  verbena::test::gives(memory);
  __real_free(memory);
}

}  // namespace

// Not inlined: GCC would warn of a free() of what new gave.
#define VERBENA_KEPT [[gnu::noinline]]
VERBENA_KEPT void* operator new(std::size_t bytes) { return or_throw(make(bytes)); }
VERBENA_KEPT void* operator new[](std::size_t bytes) { return or_throw(make(bytes)); }
VERBENA_KEPT void* operator new(std::size_t bytes, std::align_val_t at) { return or_throw(make(bytes, at)); }
VERBENA_KEPT void* operator new[](std::size_t bytes, std::align_val_t at) { return or_throw(make(bytes, at)); }
VERBENA_KEPT void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return make(bytes); }
VERBENA_KEPT void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return make(bytes); }
VERBENA_KEPT void* operator new(std::size_t bytes, std::align_val_t at, const std::nothrow_t&) noexcept {
  return make(bytes, at);
}
VERBENA_KEPT void* operator new[](std::size_t bytes, std::align_val_t at, const std::nothrow_t&) noexcept {
  return make(bytes, at);
}
VERBENA_KEPT void operator delete(void* memory) noexcept { end(memory); }
VERBENA_KEPT void operator delete[](void* memory) noexcept { end(memory); }
VERBENA_KEPT void operator delete(void* memory, std::size_t) noexcept { end(memory); }
VERBENA_KEPT void operator delete[](void* memory, std::size_t) noexcept { end(memory); }
VERBENA_KEPT void operator delete(void* memory, std::align_val_t) noexcept { end(memory); }
VERBENA_KEPT void operator delete[](void* memory, std::align_val_t) noexcept { end(memory); }
VERBENA_KEPT void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { end(memory); }
VERBENA_KEPT void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { end(memory); }
VERBENA_KEPT void operator delete(void* memory, const std::nothrow_t&) noexcept { end(memory); }
VERBENA_KEPT void operator delete[](void* memory, const std::nothrow_t&) noexcept { end(memory); }
VERBENA_KEPT void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { end(memory); }
VERBENA_KEPT void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept { end(memory); }

#endif
