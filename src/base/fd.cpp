#include "base/fd.hpp"

#include "base/cancellation.hpp"
#include "base/error.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace verbena {

void Fd::reset() noexcept {
  if (fd_ < 0) return;
  const CancellationHeld held;
  ::close(std::exchange(fd_, -1));
}

// Each of these calls is a cancellation point, and the data path reaches some of them.
bool wait_readable(int fd, Deadline deadline) noexcept {
  const CancellationHeld held;
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const int ready = ::poll(&entry, 1, deadline.left_ms());
    if (ready > 0) return true;
    if (ready == 0 && deadline.passed()) return false;
    if (ready < 0 && errno != EINTR) return true;  // The read that follows reports what is wrong.
  }
}

Result<Fd> make_eventfd() {
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return fail_system("eventfd", errno, "making an event descriptor");
  return fd;
}

void signal_eventfd(int fd) noexcept {
  const CancellationHeld held;
  const std::uint64_t one = 1;
  // EAGAIN means that the counter is full: the reader is awake or about to wake.
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
}

bool is_signalled(int fd) noexcept {
  const CancellationHeld held;
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

bool drain_eventfd(int fd) noexcept {
  const CancellationHeld held;
  std::uint64_t count = 0;
  return ::read(fd, &count, sizeof count) == static_cast<ssize_t>(sizeof count);
}

}  // namespace verbena
