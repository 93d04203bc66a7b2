// Helpers to wait for file descriptors.
#pragma once

#include "base/error.hpp"
#include "base/fd.hpp"

#include <fcntl.h>
#include <sys/epoll.h>

#include <initializer_list>

namespace verbena::nic {

/// Makes an epoll set that is readable when one of `fds` is; an event's `data.fd` tells which. `what`: its purpose, for
/// errors.
[[nodiscard]] inline Result<Fd> make_epoll(std::initializer_list<int> fds, const char* what) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return fail_system("epoll_create1", errno, what);
  for (const int fd : fds) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) return fail_system("epoll_ctl", errno, what);
  }
  return epoll;
}

[[nodiscard]] inline Result<void> set_non_blocking(int fd, const char* what) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return {};
  return fail_system("fcntl", errno, what);
}

}  // namespace verbena::nic
