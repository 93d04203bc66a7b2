// Tests that run under chaos too (VERBENA_CHAOS), and the few that cannot.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace verbena::test {

/// Soft NICs that are opened meanwhile have completions held back, work executed late, and data delivered in pieces, by
/// `seed`; whatever the environment says.
class LateNics {
 public:
  explicit LateNics(std::uint64_t seed) {
    if (const char* before = std::getenv(kName); before != nullptr) before_ = before;
    EXPECT_EQ(setenv(kName, ("delay=0.5,pieces=0.5,hold=0.5,seed=" + std::to_string(seed)).c_str(), 1), 0);
  }
  LateNics(const LateNics&) = delete;
  LateNics& operator=(const LateNics&) = delete;
  ~LateNics() { EXPECT_EQ(before_ ? setenv(kName, before_->c_str(), 1) : unsetenv(kName), 0); }

 private:
  static constexpr const char* kName = "VERBENA_CHAOS";
  std::optional<std::string> before_;
};

/// Whether the environment makes the soft NICs of this run misbehave.
[[nodiscard]] inline bool in_chaos() { return std::getenv("VERBENA_CHAOS") != nullptr; }

}  // namespace verbena::test

/// For a test whose one side does not poll while the other waits: chaos is counted in polls, so what it delays would
/// stay where it is.
#define VERBENA_SKIP_IN_CHAOS() \
  if (::verbena::test::in_chaos()) GTEST_SKIP() << "one side does not poll here, and chaos is counted in polls"
