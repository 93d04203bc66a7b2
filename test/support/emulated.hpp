// Programs that run in an emulator of processes, as scripts/aarch64.sh runs them: its system calls are not the
// kernel's.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

/// For tests of what the emulator does not have. `why` says what that is.
#define VERBENA_SKIP_IN_EMULATOR(why)                                                                              \
  do {                                                                                                             \
    if (const char* name = std::getenv("VERBENA_EMULATOR"); name != nullptr) GTEST_SKIP() << name << ' ' << (why); \
  } while (false)
