// Capabilities of the test's process.
#pragma once

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace verbena::test {

namespace capability_sets {
struct Sets {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
};
}  // namespace capability_sets

/// Whether `capability` is effective.
[[nodiscard]] inline bool has_capability(unsigned capability) {
  capability_sets::Sets sets;
  return syscall(SYS_capget, &sets.header, sets.data) == 0 &&
         (sets.data[capability / 32].effective >> capability % 32 & 1) != 0;
}

/// Gives `capability` up for good. For a child.
[[nodiscard]] inline bool drop_capability(unsigned capability) {
  capability_sets::Sets sets;
  if (syscall(SYS_capget, &sets.header, sets.data) != 0) return false;
  const std::uint32_t bit = std::uint32_t{1} << capability % 32;
  sets.data[capability / 32].effective &= ~bit;
  sets.data[capability / 32].permitted &= ~bit;
  sets.data[capability / 32].inheritable &= ~bit;
  return syscall(SYS_capset, &sets.header, sets.data) == 0;
}

/// Whether the kernel tells this process physical addresses: CAP_SYS_ADMIN, and not of a user namespace.
[[nodiscard]] inline bool may_see_frames() {
  std::ifstream map("/proc/self/uid_map");
  std::uint64_t inside = 1;
  std::uint64_t outside = 1;
  std::uint64_t count = 0;
  map >> inside >> outside >> count;
  return has_capability(CAP_SYS_ADMIN) && inside == 0 && outside == 0 && count == 0xFFFFFFFF;
}

}  // namespace verbena::test
