// Codes of the C API.
#pragma once

#include "api/failure.hpp"

#include <verbena/error.hpp>

namespace verbena::api::c {

/// 0 for kOk. \thread any  \alloc none
[[nodiscard]] constexpr int code_of(Status status) noexcept {
  return status == Status::kOk ? 0 : -1 - static_cast<int>(status);
}
/// Whether it is a code of ours, and not a program's own.
[[nodiscard]] constexpr bool is_code(int code) noexcept {
  return code <= 0 && code >= code_of(Status::kSystem) && code != -1;
}
/// For a code of ours. \thread any  \alloc none
[[nodiscard]] constexpr Status status_of(int code) noexcept {
  return code == 0 ? Status::kOk : static_cast<Status>(-1 - code);
}

}  // namespace verbena::api::c
