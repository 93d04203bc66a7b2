// Codes of the C API.
#pragma once

#include "api/failure.hpp"
#include "base/cancellation.hpp"
#include "base/fork.hpp"

#include <verbena/error.hpp>

#include <new>

namespace verbena::api::c {

/// The code of a status: 0 for kOk, otherwise a negative number. \thread any  \alloc none
[[nodiscard]] constexpr int code_of(Status status) noexcept {
  return status == Status::kOk ? 0 : -1 - static_cast<int>(status);
}
/// True for a code that this library returns, false for a number of the program's own.
[[nodiscard]] constexpr bool is_code(int code) noexcept {
  return code <= 0 && code >= code_of(Status::kOverQuota) && code != -1;
}
/// The status of a code that this library returns. \thread any  \alloc none
[[nodiscard]] constexpr Status status_of(int code) noexcept {
  return code == 0 ? Status::kOk : static_cast<Status>(-1 - code);
}
/// The code of this thread's last failure.
[[nodiscard]] inline int last_code() noexcept { return code_of(last_failure().status()); }

/// Remembers that an argument of `call` is wrong; returns the code.
template <class... Args>
[[gnu::cold]] int refuse(const char* call, fmt::format_string<Args...> format, Args&&... args) noexcept {
  return code_of(note(Status::kBadArgument, as_written(call), format, std::forward<Args>(args)...));
}

/// Remembers that this process was forked from the one that made the handle; returns the code.
[[gnu::cold]] inline int refuse_forked(const char* call) noexcept {
  return code_of(note_as(as_written(call), check_process().error()));
}

/// Runs `body`, which returns a Result, and returns its code; remembers a failure as this call's. `sentence` has the
/// words for a lack of memory.
template <class Body>
int coded(const char* call, Body&& body, const char* (*sentence)(Status) noexcept = sentence_of) noexcept {
  const CancellationHeld held;
  try {
    if (is_forked()) return refuse_forked(call);
    const Result<void> result = body();
    return result ? 0 : code_of(note_as(as_written(call), result.error()));
  } catch (const std::bad_alloc&) {
    return code_of(note(Status::kNoMemory, as_written(call), "{}", sentence(Status::kNoMemory)));
  }
}

}  // namespace verbena::api::c
