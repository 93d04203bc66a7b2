// Pointers that callers of the C API pass.
#pragma once

#include "api/c/codes.hpp"

#include <cstddef>
#include <span>

namespace verbena::api::c {

/// A pointer that a caller passed, with its name in the call. It must not be null, or not together with a length.
struct Argument {
  template <class T>
  Argument(const char* its_name, T* data, const char* its_length = nullptr, std::size_t bytes = 1) noexcept
      : name(its_name), length_name(its_length), length(bytes), is_there(data != nullptr || bytes == 0) {}
  const char* name;
  const char* length_name;
  std::size_t length;
  bool is_there;
};

/// Whether the call got this argument. Remembers the failure if it is missing. \thread any  \alloc none
[[nodiscard]] inline bool is_given(const char* call, const Argument& argument) noexcept {
  if (argument.is_there) [[likely]]
    return true;
  if (argument.length_name == nullptr) {
    (void)refuse(call, "{} must not be null", argument.name);
  } else {
    (void)refuse(call, "{} must not be null with a {} of {}", argument.name, argument.length_name, argument.length);
  }
  return false;
}

/// Sets what a call returns through these pointers, unless null, to nothing: a call does so before all else, so that no
/// way out leaves what was there. \thread any  \alloc none
inline void clear(auto*... outs) noexcept { ((outs != nullptr ? static_cast<void>(*outs = {}) : void()), ...); }

/// Bytes that a caller passed. \thread any  \alloc none
[[nodiscard]] inline std::span<const std::byte> bytes_at(const void* data, std::size_t length) noexcept {
  return {static_cast<const std::byte*>(data), length};
}
[[nodiscard]] inline std::span<std::byte> bytes_at(void* data, std::size_t length) noexcept {
  return {static_cast<std::byte*>(data), length};
}

}  // namespace verbena::api::c
