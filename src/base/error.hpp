// Building errors: format_error for a sentence, system_error for a failed system call.
#pragma once

#include <verbena/error.hpp>

#include <fmt/core.h>

#include <cerrno>
#include <utility>

namespace verbena {

/// An error whose text is formatted in place. \thread any  \alloc none
template <class... Args>
[[nodiscard]] Error format_error(Status status, const char* call, int system_errno, fmt::format_string<Args...> format,
                                 Args&&... args) noexcept {
  char text[Error::kTextBytes];
  const auto end = fmt::format_to_n(text, sizeof text - 1, format, std::forward<Args>(args)...);
  return Error(status, call, system_errno, std::string_view(text, static_cast<std::size_t>(end.out - text)));
}

/// The same error as a `std::unexpected`.
template <class... Args>
[[nodiscard]] std::unexpected<Error> fail(Status status, const char* call, int system_errno,
                                          fmt::format_string<Args...> format, Args&&... args) noexcept {
  return std::unexpected(format_error(status, call, system_errno, format, std::forward<Args>(args)...));
}

/// The status that an errno of a system call stands for: ENOMEM is kNoMemory, EPERM and EACCES kPermission, EMFILE,
/// ENFILE and ENOSPC kLimit, else kSystem. \thread any  \alloc none
[[nodiscard]] Status status_of_errno(int system_errno) noexcept;

/// An error for a system call that failed just now with `system_errno`: names the call, what it was for, the errno's
/// name, and the usual fix for the errno. \thread any  \alloc none
[[nodiscard]] Error system_error(const char* call, int system_errno, std::string_view what) noexcept;

[[nodiscard]] inline std::unexpected<Error> fail_system(const char* call, int system_errno,
                                                        std::string_view what) noexcept {
  return std::unexpected(system_error(call, system_errno, what));
}

}  // namespace verbena

/// Returns the error of a Result-valued expression from the enclosing function; evaluates to nothing.
#define VERBENA_TRY(expression)                                                   \
  do {                                                                            \
    if (auto verbena_try_result = (expression); !verbena_try_result) [[unlikely]] \
      return std::unexpected(std::move(verbena_try_result).error());              \
  } while (false)

#define VERBENA_CONCAT_(a, b) a##b
#define VERBENA_CONCAT(a, b) VERBENA_CONCAT_(a, b)
/// `VERBENA_ASSIGN(auto x, expression);` declares x from a Result, or returns its error.
#define VERBENA_ASSIGN(declaration, expression)                                           \
  auto VERBENA_CONCAT(verbena_result_, __LINE__) = (expression);                          \
  if (!VERBENA_CONCAT(verbena_result_, __LINE__)) [[unlikely]]                            \
    return std::unexpected(std::move(VERBENA_CONCAT(verbena_result_, __LINE__)).error()); \
  declaration = std::move(*VERBENA_CONCAT(verbena_result_, __LINE__))
