// How the programs end: exit codes, and one line on stderr with the reason.
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
  kUsage = 2,  ///< The command line is wrong.
  kError = 3,
};

/// The worse of two: an error counts more than a "no".
[[nodiscard]] constexpr Exit worse(Exit a, Exit b) noexcept { return a < b ? b : a; }

/// The exit code for an operation's status.
[[nodiscard]] Exit exit_of(Status status) noexcept;

/// A program's whole main. Runs it as `name` (static storage), which starts its messages, ignores SIGPIPE, and turns
/// exceptions for lack of resources into an exit code. \thread main
[[nodiscard]] int run_program(const char* name, Exit (*run)(int, char**), int argc, char** argv);
/// Prints one line on stderr: "verbena-kv: ...". Control characters in it, such as line breaks, become '?'.
void complain_text(std::string_view text);

template <class... Args>
void complain(fmt::format_string<Args...> format, Args&&... args) {
  complain_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Complains, and returns the code for an error.
template <class... Args>
[[nodiscard]] Exit error_exit(fmt::format_string<Args...> format, Args&&... args) {
  complain(format, std::forward<Args>(args)...);
  return Exit::kError;
}

/// Prints a program's result on stdout, and complains if that fails: a full disk or a closed pipe must not look like
/// success.
[[nodiscard]] Exit write_out(std::string_view text);

/// One sentence: what a failed operation means and what to do about it. `broken` is the client's connection_error.
[[nodiscard]] std::string explain(const kv::Outcome& outcome, const Error& broken);

/// `text`, an error of the library, with options under their command-line names: max_items becomes --max-items. If the
/// option has a unit, the value is converted to it.
[[nodiscard]] std::string by_option(std::string_view text);

/// "text", with control characters, quotes and bytes above 126 as \xHH; cut after 64 bytes.
[[nodiscard]] std::string quoted_bytes(std::string_view bytes);

}  // namespace verbena::programs
