// Numbers that the environment gives to tests: VERBENA_SEEDS and others.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace verbena::test {

/// The number in a variable, or `otherwise` where it is not set.
[[nodiscard]] inline std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace verbena::test
