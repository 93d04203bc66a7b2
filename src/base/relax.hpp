// The pause between two polls of memory that another core is about to write.
#pragma once

namespace verbena {

/// A poll of a cache line that the other core is about to write delays that write, because it fetches the cache line
/// back. Polls that are some tens of cycles apart see the new value sooner: 24 to 32 groups of four instructions were
/// best on the machine where we tried it. \thread any  \alloc none
inline void relax() noexcept {
#if defined(__x86_64__)
  for (int i = 0; i < 24; ++i) asm volatile("nop\n\tnop\n\tnop\n\tnop");
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace verbena
