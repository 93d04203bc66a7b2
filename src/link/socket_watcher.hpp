// Sockets that stay open after their handshake, so that each end hears when the other's process ends.
#pragma once

#include "base/fd.hpp"
#include "link/link.hpp"
#include "link/watches.hpp"

#include <memory>
#include <thread>

namespace verbena::link {

/// One thread, which sleeps until a peer leaves. Outlives the lifelines it makes. \thread any
class SocketWatcher {
 public:
  /// Errors: kLimit (files, processes).
  [[nodiscard]] static Result<std::unique_ptr<SocketWatcher>> start();
  ~SocketWatcher();
  SocketWatcher(const SocketWatcher&) = delete;
  SocketWatcher& operator=(const SocketWatcher&) = delete;

  /// The socket of a handshake that is complete: nothing more is said on it.
  [[nodiscard]] Result<Lifeline> take(Fd socket);

 private:
  class Watched;
  SocketWatcher() = default;
  void run() noexcept;

  Fd epoll_;
  Fd stop_;
  Watches<int> watches_;  // By descriptor.
  std::thread thread_;    // Last: reads everything above.
};

}  // namespace verbena::link
