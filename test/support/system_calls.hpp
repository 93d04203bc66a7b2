// Sees every system call of the process, so that a section can be shown to make none. No privilege is needed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace verbena::test {

struct SystemCall {
  int number = 0;  ///< SYS_*
  pid_t thread = 0;
  friend bool operator==(const SystemCall&, const SystemCall&) = default;
  friend std::ostream& operator<<(std::ostream& out, const SystemCall& call);
};

/// First in `main`: from now on a thread of its own is told of each system call of the calling thread, and of the
/// threads that it starts, and lets it go on. For the rest of the process: a seccomp filter cannot be taken off. Empty,
/// or why this machine does not allow it.
[[nodiscard]] std::string watch_system_calls();

/// What the watched threads call from `begin` to `end`; neither makes a call itself. \thread one at a time
class SystemCallSection {
 public:
  static constexpr std::size_t kMost = 1024;  ///< Further ones are counted only.

  static void begin() noexcept;
  static void end() noexcept;
  [[nodiscard]] static std::size_t count() noexcept;
  [[nodiscard]] static std::vector<SystemCall> calls();
};

}  // namespace verbena::test
