// What tests of verbena-kv expect of a command that has ended.
#pragma once

#include "kv_process.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

namespace verbena::test {

inline testing::AssertionResult contains(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << part << "\" is not in:\n" << text;
}

/// It ended with `exit` and said exactly one line on stderr, which names the program, or none when it is 0.
inline testing::AssertionResult ended(const Ran& ran, int exit) {
  const auto lines = std::ranges::count(ran.err, '\n');
  const bool one_line = lines == 1 && ran.err.starts_with("verbena-kv: ") && ran.err.back() == '\n';
  if (ran.exit == exit && (exit == 0 ? ran.err.empty() : one_line)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "exit " << ran.exit << " (expected " << exit << "), signal " << ran.signal
                                     << (ran.late ? ", late" : "") << "\nstdout: " << ran.out.substr(0, 2000)
                                     << "\nstderr: " << ran.err.substr(0, 2000);
}

}  // namespace verbena::test
