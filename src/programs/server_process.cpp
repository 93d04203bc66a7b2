#include "programs/server_process.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <ctime>

namespace verbena::programs {

StopSignals::StopSignals() noexcept {
  sigemptyset(&set_);
  sigaddset(&set_, SIGINT);
  sigaddset(&set_, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
}

int StopSignals::taken(int signal) noexcept {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  return signal;
}

int StopSignals::await() noexcept {
  for (;;) {
    const int signal = ::sigwaitinfo(&set_, nullptr);
    if (signal > 0) return taken(signal);
    if (errno != EINTR) return taken(SIGTERM);
  }
}

int StopSignals::await_for(std::chrono::seconds time) noexcept {
  const timespec limit{.tv_sec = time.count(), .tv_nsec = 0};
  const int signal = ::sigtimedwait(&set_, nullptr, &limit);
  return signal > 0 ? taken(signal) : 0;
}

void raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace verbena::programs
