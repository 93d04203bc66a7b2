// File descriptors: their owner, and eventfds.
#pragma once

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <utility>

namespace verbena {

/// Move-only owner of a file descriptor.
class Fd {
 public:
  Fd() noexcept = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }
  ~Fd() { reset(); }
  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Waits until `fd` is readable or hung up; false when the deadline passes first.
[[nodiscard]] bool wait_readable(int fd, Deadline deadline) noexcept;

[[nodiscard]] Result<Fd> make_eventfd();
/// Adds 1 to an eventfd. The reader wakes even if the counter was full. \thread any, async-signal-safe
void signal_eventfd(int fd) noexcept;
/// Whether an eventfd has been signalled and not drained.
[[nodiscard]] bool is_signalled(int fd) noexcept;
/// Empties an eventfd; false when there was nothing.
bool drain_eventfd(int fd) noexcept;

}  // namespace verbena
