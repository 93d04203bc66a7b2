// Another user, for tests that run as root.
#pragma once

#include "peer.hpp"

#include <grp.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace verbena::test {

inline constexpr uid_t kStranger = 65'534;

/// Before there are threads.
[[nodiscard]] inline bool become_stranger() {
  if (setgroups(0, nullptr) != 0 || setresgid(kStranger, kStranger, kStranger) != 0 ||
      setresuid(kStranger, kStranger, kStranger) != 0)
    return false;
  prctl(PR_SET_DUMPABLE, 1);  // As a process has it that was started by that user.
  die_with_the_test();
  return true;
}

}  // namespace verbena::test
