// Tells whether this is a build with a sanitizer, where long tests do less.
#pragma once

#include <concepts>

// GCC and Clang tell in different ways.
#if defined(__SANITIZE_ADDRESS__)
#define VERBENA_HAS_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define VERBENA_HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VERBENA_HAS_ASAN 1
#elif __has_feature(thread_sanitizer)
#define VERBENA_HAS_TSAN 1
#endif
#endif
#if defined(VERBENA_HAS_ASAN) || defined(VERBENA_HAS_TSAN)
#define VERBENA_IS_SANITIZED 1
#endif

namespace verbena::test {

#ifdef VERBENA_IS_SANITIZED
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

/// `rounds`, or a fifth of them under a sanitizer.
template <std::integral Count>
[[nodiscard]] constexpr Count unsanitized(Count rounds) noexcept {
  return kIsSanitized ? rounds / 5 : rounds;
}

}  // namespace verbena::test
