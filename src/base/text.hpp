// Bytes as text, and text as bytes: keys and values of the store, and names that travel.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace verbena {

/// A view of the same memory. \thread any  \alloc none
[[nodiscard]] inline std::string_view text_of(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
[[nodiscard]] inline std::span<const std::byte> bytes_of_text(std::string_view text) noexcept {
  return std::as_bytes(std::span(text));
}

}  // namespace verbena
