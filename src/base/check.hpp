// Assertions: VERBENA_CHECK is always on (cold paths), VERBENA_DCHECK in debug builds only (hot paths).
#pragma once

namespace verbena {
/// Writes the failed condition to stderr and aborts. For broken invariants of ours, never for a caller's mistake.
[[noreturn]] void check_failed(const char* condition, const char* file, int line) noexcept;
}  // namespace verbena

#define VERBENA_CHECK(condition)                               \
  do {                                                         \
    if (!(condition)) [[unlikely]]                             \
      ::verbena::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)

#ifdef NDEBUG
#define VERBENA_DCHECK(condition) \
  do {                            \
    (void)sizeof(condition);      \
  } while (false)
#else
#define VERBENA_DCHECK(condition) VERBENA_CHECK(condition)
#endif
