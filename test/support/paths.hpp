// Paths that Meson hands to a test by its environment. In the compiler's arguments they would keep a compiler cache
// from knowing a source of another clone.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace verbena::test {

/// The path in the environment variable `name`. Throws, which fails the test, where it is not set.
[[nodiscard]] inline std::string path_in(const char* name) {
  const char* const path = std::getenv(name);
  if (path == nullptr) throw std::runtime_error(std::string(name) + " is not set: start the test by `meson test`");
  return path;
}

/// The program that the suite is about.
[[nodiscard]] inline std::string tested_program() { return path_in("VERBENA_PROGRAM"); }

}  // namespace verbena::test
