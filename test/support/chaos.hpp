// Tests that run under chaos too (VERBENA_CHAOS), and the few that cannot.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace verbena::test {

/// An environment variable that is set meanwhile, or unset where `value` is empty. No other thread may look meanwhile.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name_); before != nullptr) before_ = before;
    EXPECT_EQ(value.empty() ? unsetenv(name_) : setenv(name_, value.c_str(), 1), 0);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { EXPECT_EQ(before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_), 0); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// Soft NICs that are opened meanwhile do this wrong, by `seed`, whatever the environment says. Processes inherit it.
class Faults {
 public:
  Faults(const std::string& rates, std::uint64_t seed)
      : rates_("VERBENA_CHAOS", rates + ",seed=" + std::to_string(seed)), seed_("VERBENA_CHAOS_SEED", "") {}

 private:
  Variable rates_;
  Variable seed_;  // It would be the stronger one.
};

/// Completions held back, work executed late, and data delivered in pieces.
class LateNics : Faults {
 public:
  explicit LateNics(std::uint64_t seed) : Faults("delay=0.5,pieces=0.5,hold=0.5", seed) {}
};

/// Whether the environment makes the soft NICs of this run misbehave.
[[nodiscard]] inline bool in_chaos() { return std::getenv("VERBENA_CHAOS") != nullptr; }

}  // namespace verbena::test

/// For a test whose one side does not poll while the other waits: chaos is counted in polls, so what it delays would
/// stay where it is.
#define VERBENA_SKIP_IN_CHAOS() \
  if (::verbena::test::in_chaos()) GTEST_SKIP() << "one side does not poll here, and chaos is counted in polls"
