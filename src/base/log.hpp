// Passes lines to the function that the user has set; see verbena/log.h.
#pragma once

#include <verbena/log.h>

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace verbena {

namespace detail {
[[nodiscard]] bool wants_log(verbena_log_level level) noexcept;
void write_log(verbena_log_level level, const char* line) noexcept;
}  // namespace detail

/// Formats a line, cut at 511 characters, if somebody wants it; otherwise it costs a call and a load. Not for data
/// paths.
/// \thread any  \alloc none
template <class... Args>
void log(verbena_log_level level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (!detail::wants_log(level)) return;
  char line[512];
  const auto end = fmt::format_to_n(line, sizeof line - 1, format, std::forward<Args>(args)...);
  *std::min(end.out, line + sizeof line - 1) = '\0';
  detail::write_log(level, line);
}

}  // namespace verbena
