// How the programs end: exit codes, and the one line on stderr that says why.
#pragma once

#include <verbena/error.hpp>
#include <verbena/kv.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::programs {

enum class Exit : int {
  kDone = 0,
  kNo = 1,     ///< Not found, version mismatch, or files that differ.
  kUsage = 2,  ///< The command line makes no sense.
  kError = 3,
};

/// The worse of two: an error counts more than a "no".
[[nodiscard]] constexpr Exit worse(Exit a, Exit b) noexcept { return a < b ? b : a; }

/// The exit code that an operation's status stands for.
[[nodiscard]] Exit exit_of(Status status) noexcept;

/// The whole of a program's main: runs it as `name` (static storage), whose complaints begin with that, without
/// SIGPIPE, and turns what is thrown for want of resources into an exit code. \thread main
[[nodiscard]] int run_program(const char* name, Exit (*run)(int, char**), int argc, char** argv);
/// One line on stderr: "verbena-kv: ...". Line breaks and other control characters in it become '?'.
void complain_text(std::string_view text);

template <class... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  complain_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Complains, and tells that it was an error.
template <class... Args>
[[nodiscard]] Exit error_exit(fmt::format_string<Args...> format, Args&&... args) {
  complain(format, std::forward<Args>(args)...);
  return Exit::kError;
}

/// Prints on stdout what a program was asked for, and complains where that fails: a full disk or a closed pipe must not
/// look like success.
[[nodiscard]] Exit write_out(std::string_view text);

/// What a failed operation means and what to do about it, in one sentence. `broken` is the client's connection_error.
[[nodiscard]] std::string explain(const kv::Outcome& outcome, const Error& broken);

/// `text`, an error of the library's, with its options by the names that they have on the command line: max_items
/// becomes --max-items. Where that has a unit, its value is in it.
[[nodiscard]] std::string by_option(std::string_view text);

/// "text", with control characters, quotes and bytes above 126 as \xHH; cut after 64 bytes.
[[nodiscard]] std::string quoted_bytes(std::string_view bytes);

}  // namespace verbena::programs
