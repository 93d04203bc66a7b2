// Sockets that stay open after their handshake, so that each end hears when the other's process ends.
#pragma once

#include "base/fd.hpp"
#include "link/link.hpp"
#include "link/watches.hpp"
#include "nic/event_thread.hpp"

#include <atomic>
#include <cstdint>
#include <memory>

namespace verbena::link {

/// One thread, which sleeps until a peer leaves. Outlives the lifelines it makes. \thread any
class SocketWatcher {
 public:
  /// Errors: kLimit (files, processes).
  [[nodiscard]] static Result<std::unique_ptr<SocketWatcher>> start();
  SocketWatcher(const SocketWatcher&) = delete;
  SocketWatcher& operator=(const SocketWatcher&) = delete;

  /// The socket of a handshake that is complete: nothing more is said on it.
  [[nodiscard]] Result<Lifeline> take(Fd socket);

 private:
  class Watched;
  SocketWatcher() = default;
  void take_ends() noexcept;

  Fd epoll_;
  /// By number: a descriptor's number may be another's when its event is looked at, and a child that has a copy of it
  /// keeps it in the epoll set.
  Watches<std::uint64_t> watches_;
  std::atomic<std::uint64_t> next_number_{0};
  nic::EventThread thread_;  // Last: reads everything above.
};

}  // namespace verbena::link
