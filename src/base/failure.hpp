// The error text of a thread's last failed call, for calls that return only a status or a code.
#pragma once

#include "base/error.hpp"

#include <cstdint>

namespace verbena {

/// This thread's last failure. Its `call` names the function that the user called, in static storage; its text names
/// neither call nor code.
/// \thread any  \alloc none
[[nodiscard]] const Error& last_failure() noexcept;
/// The same as "call: text"; "" before the first failure. Valid until the thread's next failure.
[[nodiscard]] const char* last_failure_text() noexcept;
/// Counts this thread's failures, so that a caller can tell whether a call has noted one.
/// \alloc none
[[nodiscard]] std::uint64_t failure_count() noexcept;

/// Remembers a failure, and returns its status for the caller to return. \thread any  \alloc none
Status note(const Error& error) noexcept;
/// The same for a failure that is frequent and seldom asked about: calls `sentence(status)` only when somebody asks.
Status note_later(Status status, const char* call, const char* (*sentence)(Status) noexcept) noexcept;

template <class... Args>
[[gnu::cold]] Status note(Status status, const char* call, fmt::format_string<Args...> format,
                          Args&&... args) noexcept {
  return note(format_error(status, call, 0, format, std::forward<Args>(args)...));
}
/// Notes a failure of a lower layer under this call's name.
[[gnu::cold]] inline Status note_as(const char* call, const Error& error) noexcept {
  return note(Error(error.status(), call, error.system_errno(), error.text()));
}

/// Cause and fix of a status that has no sentence of its own. Static storage. \thread any  \alloc none
[[nodiscard]] const char* sentence_of(Status status) noexcept;

}  // namespace verbena
