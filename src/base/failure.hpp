// The sentence of a thread's last call that failed, for calls that return a status or a code alone.
#pragma once

#include "base/error.hpp"

#include <cstdint>

namespace verbena {

/// This thread's last failure. Its call is the user's, in static storage; its text names neither call nor code.
/// \thread any  \alloc none
[[nodiscard]] const Error& last_failure() noexcept;
/// "call: text" of the same; "" before any. Good until the thread's next failure.
[[nodiscard]] const char* last_failure_text() noexcept;
/// Grows with each failure of this thread: whoever has called something can tell whether it has noted one.
/// \alloc none
[[nodiscard]] std::uint64_t failure_count() noexcept;

/// Remembers a failure; its status, for the caller to return. \thread any  \alloc none
Status note(const Error& error) noexcept;
/// The same for a failure that comes often and is seldom asked about: `sentence(status)` is called when it is.
Status note_later(Status status, const char* call, const char* (*sentence)(Status) noexcept) noexcept;

template <class... Args>
[[gnu::cold]] Status note(Status status, const char* call, fmt::format_string<Args...> format,
                          Args&&... args) noexcept {
  return note(format_error(status, call, 0, format, std::forward<Args>(args)...));
}
/// A failure of the library below, as this call's.
[[gnu::cold]] inline Status note_as(const char* call, const Error& error) noexcept {
  return note(Error(error.status(), call, error.system_errno(), error.text()));
}

/// Cause and fix of a status that has no sentence of its own. Static storage. \thread any  \alloc none
[[nodiscard]] const char* sentence_of(Status status) noexcept;

}  // namespace verbena
