// The machine that a figure was measured on.
#pragma once

#include <fmt/core.h>
#include <nlohmann/json_fwd.hpp>

#include <concepts>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::programs {

struct Environment {
  unsigned cores_online = 0;
  unsigned cpus_allowed = 0;
  std::string cpu_model;
  std::string kernel;
  std::string transparent_hugepages;  ///< "always", "madvise", "never" or "unknown".
  std::string hugepages;              ///< Free and total pages of the default size, such as "0 of 0 of 2048 kB".
  std::size_t page_bytes = 0;
  std::string build;  ///< Compiler, and whether assertions are on.
};

/// Reads it from the running system; "unknown" for anything unreadable.
[[nodiscard]] Environment read_environment();

/// "on 2 cores (2 allowed), ...", one line without a line break.
[[nodiscard]] std::string environment_text(const Environment& environment);
[[nodiscard]] nlohmann::ordered_json environment_json(const Environment& environment);

/// The value of the first `name: value` line in text of /proc/cpuinfo or /proc/meminfo; empty if there is none.
[[nodiscard]] std::string_view proc_field(std::string_view text, std::string_view name);
/// "madvise" for "always [madvise] never"; "unknown" if nothing is bracketed.
[[nodiscard]] std::string_view bracketed(std::string_view text);

/// Appends formatted text.
template <class... Args>
void append(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}
/// `text`, or "unknown" if it is empty.
[[nodiscard]] std::string or_unknown(std::string_view text);

/// "64 B", "1.50 KiB", "3.20 GiB".
[[nodiscard]] std::string human_bytes(double bytes);
[[nodiscard]] std::string human_bytes(std::integral auto bytes) { return human_bytes(static_cast<double>(bytes)); }
/// "350 ns", "1.25 us", "3.70 ms", "2.00 s".
[[nodiscard]] std::string human_time(double ns);

}  // namespace verbena::programs
