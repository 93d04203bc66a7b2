// Codes of the C API, the sentence of each, and the sentence of a thread's last failure.
#pragma once

#include <verbena/error.hpp>

namespace verbena::c {

/// 0 for kOk. \thread any  \alloc none
[[nodiscard]] constexpr int code_of(Status status) noexcept {
  return status == Status::kOk ? 0 : -1 - static_cast<int>(status);
}
/// Of one of our codes. \thread any  \alloc none
[[nodiscard]] constexpr Status status_of(int code) noexcept {
  return code == 0 ? Status::kOk : static_cast<Status>(-1 - code);
}
/// Remembers `error` as this thread's last failure; its code. \thread any  \alloc none
int note(const Error& error) noexcept;
/// The same for a status without a sentence of its own.
int note(Status status, const char* call) noexcept;

}  // namespace verbena::c
