// Watches sockets that stay open after their handshake, so that each end learns when the other's process ends.
#pragma once

#include "base/fd.hpp"
#include "link/link.hpp"
#include "link/watches.hpp"
#include "nic/event_thread.hpp"

#include <atomic>
#include <cstdint>
#include <memory>

namespace verbena::link {

/// One thread, which sleeps until a peer leaves. It must outlive the lifelines it makes. \thread any
class SocketWatcher {
 public:
  /// Errors: kLimit (files, processes).
  [[nodiscard]] static Result<std::unique_ptr<SocketWatcher>> start();
  SocketWatcher(const SocketWatcher&) = delete;
  SocketWatcher& operator=(const SocketWatcher&) = delete;

  /// Takes the socket of a complete handshake: nothing more is sent on it.
  [[nodiscard]] Result<Lifeline> take(Fd socket);

 private:
  class Watched;
  SocketWatcher() = default;
  void take_ends() noexcept;

  Fd epoll_;
  /// By a number of its own: a descriptor may be reused by the time its event is handled, and a child with a copy of it
  /// keeps it in the epoll set.
  Watches<std::uint64_t> watches_;
  std::atomic<std::uint64_t> next_number_{0};
  nic::EventThread thread_;  // Last: reads everything above.
};

}  // namespace verbena::link
