// JSON as text, from alternating names and values; json_string of environment.hpp makes the strings.
#pragma once

#include "programs/environment.hpp"

#include <fmt/core.h>

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace verbena::programs {

/// Text that is JSON already.
struct Json {
  std::string text = "null";
};

/// A number with a fixed count of decimals.
struct Fixed {
  double value = 0;
  int digits = 0;
};

[[nodiscard]] inline std::string json_text(const Json& json) { return json.text; }
[[nodiscard]] inline std::string json_text(Fixed number) { return fmt::format("{:.{}f}", number.value, number.digits); }
[[nodiscard]] inline std::string json_text(std::string_view text) { return json_string(text); }
[[nodiscard]] inline std::string json_text(std::integral auto value) { return fmt::format("{}", value); }
template <class T>
[[nodiscard]] std::string json_text(const std::optional<T>& value) {
  return value ? json_text(*value) : "null";
}

/// The members of an object without its braces: a name, its value, the next name, and so on.
template <class... NamesAndValues>
[[nodiscard]] std::string json_members(const NamesAndValues&... parts) {
  static_assert(sizeof...(parts) % 2 == 0);
  std::string text;
  std::size_t count = 0;
  const auto add = [&](const auto& part) {
    if (count != 0) text += count % 2 != 0 ? ':' : ',';
    text += json_text(part);
    ++count;
  };
  (add(parts), ...);
  return text;
}

template <class... NamesAndValues>
[[nodiscard]] Json json_object(const NamesAndValues&... parts) {
  return {"{" + json_members(parts...) + "}"};
}

/// One object and a line break.
template <class... NamesAndValues>
[[nodiscard]] std::string json_line(const NamesAndValues&... parts) {
  return json_object(parts...).text + '\n';
}

/// `of` makes the value for an element.
template <class Range, class Of>
[[nodiscard]] Json json_array(const Range& range, Of&& of) {
  std::string text;
  for (const auto& element : range) text += (text.empty() ? "" : ",") + json_text(of(element));
  return {"[" + text + "]"};
}

}  // namespace verbena::programs
