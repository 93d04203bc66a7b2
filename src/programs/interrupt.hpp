// ^C during long work of a program: the first one asks it to stop, a second one ends the process.
#pragma once

#include <csignal>

namespace verbena::programs {

/// Watches SIGINT while it lives, also where that was blocked. At its end it restores what was before; text that was
/// typed ahead on a terminal is dropped if there was a ^C. One at a time. \thread owner
class InterruptWatch {
 public:
  InterruptWatch() noexcept;
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
  ~InterruptWatch();

  /// Whether there was a ^C. \thread any
  [[nodiscard]] static bool is_asked_to_stop() noexcept;

 private:
  struct sigaction action_before_{};
  sigset_t mask_before_{};
};

}  // namespace verbena::programs
