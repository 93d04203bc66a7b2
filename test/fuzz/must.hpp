// For targets that set up real objects: what must succeed before any byte of the input is used.
#pragma once

#include "base/check.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <chrono>
#include <cstdio>
#include <type_traits>
#include <utility>

namespace verbena::fuzz {

/// Only what is broken comes near it.
[[nodiscard]] inline Deadline patience() { return Deadline::after(std::chrono::seconds(60)); }

template <class T>
T must(Result<T> result) {
  if (!result) std::fprintf(stderr, "%s: %s\n", result.error().call(), result.error().text());
  VERBENA_CHECK(result.has_value());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace verbena::fuzz
