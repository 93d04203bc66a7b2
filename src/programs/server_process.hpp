// What the process of a server does beside serving: it waits for the signal to stop, and may open many descriptors.
#pragma once

#include <chrono>
#include <csignal>

namespace verbena::programs {

/// SIGINT and SIGTERM, held back from before the first thread until `await` takes one. \thread main
class StopSignals {
 public:
  /// Blocks them; every thread that is started later inherits it. The process must not have started one yet.
  StopSignals() noexcept;
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Waits without a deadline, as a server does, until there is one; returns it. From then on a further one ends the
  /// process at once, in case stopping takes too long.
  int await() noexcept;
  /// The same, but returns 0 once `time` has passed.
  int await_for(std::chrono::seconds time) noexcept;

 private:
  int taken(int signal) noexcept;

  sigset_t set_;
  sigset_t before_;
};

/// Raises the limit of open files to the hard limit, because each client takes some. Nothing here uses select(2), for
/// which the soft limit exists. The server's description shows a hard limit that is too low. \thread main
void raise_descriptor_limit() noexcept;

}  // namespace verbena::programs
