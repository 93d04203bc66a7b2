// The wait between two looks at memory that another core is about to write.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace verbena {

/// How `relax` waits.
struct Looks {
  std::uint32_t pauses = 1;  ///< The processor's pause instruction, so many times. 0: 96 nops instead.
  double pause_ns = 0;       ///< How long one takes.
  bool is_set = false;       ///< VERBENA_PAUSES in the environment has set it.
};
inline constexpr std::uint32_t kMostPauses = 64;

/// Chooses how `relax` waits, on the first call, in some 20 us; `relax` pauses once before that. By VERBENA_PAUSES in
/// the environment, 0 to kMostPauses; else by the time that a pause takes here. \thread any  \alloc none
const Looks& choose_looks() noexcept;
/// The choice for a processor whose pause takes that long. `wanted` is the variable's value, empty if there is none;
/// other values do not count. \thread any  \alloc none
[[nodiscard]] Looks looks_for(double pause_ns, std::string_view wanted) noexcept;
/// The choice in words. \thread any
[[nodiscard]] std::string describe(const Looks& looks);

namespace detail {
inline constinit std::atomic<std::uint32_t> pauses{1};

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}
}  // namespace detail

/// A look at a cache line that the other core is about to write delays that write, because it fetches the cache line
/// back. And it is speculative: a loop without a pause has read on when the new value comes, and starts over. \thread
/// any  \alloc none
inline void relax() noexcept {
  std::uint32_t left = detail::pauses.load(std::memory_order_relaxed);
  if (left == 0) [[unlikely]] {
    for (int i = 0; i < 24; ++i) asm volatile("nop\n\tnop\n\tnop\n\tnop");
    return;
  }
  do detail::pause();
  while (--left != 0);
}

}  // namespace verbena
