// Whether this is a build with a sanitizer, where what takes long is done at a smaller size.
#pragma once

#include <concepts>

namespace verbena::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
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
