// A thread that sleeps until a descriptor is readable.
#pragma once

#include "base/error.hpp"
#include "base/fd.hpp"
#include "base/threads.hpp"
#include "host/thread.hpp"

#include <poll.h>

#include <array>

namespace verbena::nic {

/// Ends with its owner; make it the owner's last member. \thread any, one at a time
class EventThread {
 public:
  EventThread() noexcept = default;
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;
  ~EventThread() { stop(); }

  /// Call it once. Starts the thread `name`, which calls `take` whenever `fd` is readable, until `take` returns false.
  /// Errors: kLimit (files, processes).
  template <class Take>
  [[nodiscard]] Result<void> start(const char* name, int fd, Take take) {
    VERBENA_ASSIGN(stop_, make_eventfd());
    VERBENA_ASSIGN(thread_, host::start_thread(name, [stop = stop_.get(), fd, take] {
                     std::array<pollfd, 2> fds = {{{stop, POLLIN, 0}, {fd, POLLIN, 0}}};
                     for (;;) {
                       // Sleeps until `fd` is readable, or the owner ends.
                       if (::poll(fds.data(), fds.size(), -1) < 0) continue;
                       if (fds[0].revents != 0) return;
                       if (fds[1].revents != 0 && !take()) fds[1].fd = -1;
                     }
                   }));
    return {};
  }
  /// Waits until the thread has ended. Does nothing when it has not been started, or has ended.
  void stop() noexcept {
    if (!thread_.joinable()) return;
    signal_eventfd(stop_.get());
    thread_.join();
  }

 private:
  Fd stop_;
  Thread thread_;
};

}  // namespace verbena::nic
