// Sizes by name.
#pragma once

#include <cstddef>

namespace verbena {

inline constexpr std::size_t kKibi = std::size_t{1} << 10;
inline constexpr std::size_t kMebi = std::size_t{1} << 20;

}  // namespace verbena
