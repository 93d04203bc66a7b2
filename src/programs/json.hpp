// JSON objects whose members keep the order in which they were written.
#pragma once

#include <nlohmann/json.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::programs {

using Json = nlohmann::ordered_json;

/// A number with a most count of decimals.
struct Fixed {
  double value = 0;
  int digits = 0;
};

[[nodiscard]] const Json& json_of(const std::same_as<Json> auto& json) { return json; }
[[nodiscard]] inline Json json_of(std::string_view text) { return text; }
[[nodiscard]] inline Json json_of(std::integral auto value) { return value; }
[[nodiscard]] inline Json json_of(Fixed number) {
  constexpr double kMostWhole = 9e15;  // Doubles beyond are whole, but not each whole number is a double.
  const double scale = std::pow(10, number.digits);
  const double rounded = std::round(number.value * scale) / scale;
  if (number.digits == 0 && std::abs(rounded) < kMostWhole) return static_cast<std::int64_t>(rounded);
  return rounded;  // One that is not finite becomes null.
}
template <class T>
[[nodiscard]] Json json_of(const std::optional<T>& value) {
  return value ? json_of(*value) : Json();
}

/// An object of names and values: a name, its value, the next name, and so on.
template <class... NamesAndValues>
[[nodiscard]] Json json_object(const NamesAndValues&... parts) {
  static_assert(sizeof...(parts) % 2 == 0);
  Json object = Json::object();
  std::string name;
  std::size_t count = 0;
  const auto add = [&](const auto& part) {
    if constexpr (std::constructible_from<std::string, decltype(part)>) {
      if (count++ % 2 == 0) {
        name = part;
        return;
      }
    } else {
      ++count;
    }
    object[name] = json_of(part);
  };
  (add(parts), ...);
  return object;
}

/// An array; `of` makes the value for an element.
template <class Range, class Of>
[[nodiscard]] Json json_array(const Range& range, Of&& of) {
  Json array = Json::array();
  for (const auto& element : range) array.push_back(json_of(of(element)));
  return array;
}

/// ASCII without blanks. Bytes that are no UTF-8 become U+FFFD: names of devices and paths may be anything.
[[nodiscard]] inline std::string json_text(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// One object and a line break.
template <class... NamesAndValues>
[[nodiscard]] std::string json_line(const NamesAndValues&... parts) {
  return json_text(json_object(parts...)) + '\n';
}

}  // namespace verbena::programs
