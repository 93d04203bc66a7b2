// Tests that run under chaos too (VERBENA_CHAOS), and the few that cannot.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

namespace verbena::test {

/// Whether the environment makes the soft NICs of this run misbehave.
[[nodiscard]] inline bool in_chaos() { return std::getenv("VERBENA_CHAOS") != nullptr; }

}  // namespace verbena::test

/// For a test whose one side does not poll while the other waits: chaos is counted in polls, so what it delays would
/// stay where it is.
#define VERBENA_SKIP_IN_CHAOS() \
  if (::verbena::test::in_chaos()) GTEST_SKIP() << "one side does not poll here, and chaos is counted in polls"
