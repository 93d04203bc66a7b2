// Pieces of JSON that more than one report has; json_string is in environment.hpp.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>

namespace verbena::programs {

[[nodiscard]] inline std::string json_number(const std::optional<std::uint64_t>& value) {
  return value ? fmt::format("{}", *value) : "null";
}

/// `of` makes the text of an element.
template <class Range, class Of>
[[nodiscard]] std::string json_array(const Range& range, Of&& of) {
  std::string text;
  for (const auto& element : range) text += (text.empty() ? "" : ",") + of(element);
  return "[" + text + "]";
}

}  // namespace verbena::programs
