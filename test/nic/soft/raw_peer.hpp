// A peer that speaks the rendezvous protocol by hand, and lies where it likes.
#pragma once

#include "nic/soft/layout.hpp"
#include "nic/soft/system.hpp"

#include <verbena/deadline.hpp>

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace verbena::nic::soft {

/// A client of somebody's rendezvous socket.
class RawClient {
 public:
  [[nodiscard]] bool connect(const ibv_gid& gid);
  /// Sends bytes as they are.
  [[nodiscard]] bool send(const void* bytes, std::size_t length, std::span<const int> fds = {});
  /// The next reply. False when the other side hangs up or does not answer.
  [[nodiscard]] bool take(Reply& reply, Fds& received);
  /// Drops the replies that are there, and returns how many those were.
  std::size_t drop_replies();
  /// One request and its reply. False when the other side hangs up or does not answer.
  [[nodiscard]] bool ask(const Request& request, std::initializer_list<int> fds, Reply& reply, Fds& received);
  [[nodiscard]] bool hello(const ibv_gid& my_gid, Reply& reply, Fds& received);
  /// Whether the other side hangs up in time.
  [[nodiscard]] bool hung_up();
  void close() { socket_.reset(); }

 private:
  Fd socket_;
};

/// The listening side of a peer: a rendezvous socket under a GID of its own, served by hand.
class RawListener {
 public:
  /// A GID of this boot, with `number` for its random part.
  [[nodiscard]] bool listen(const ibv_gid& somebodys, std::uint64_t number);
  [[nodiscard]] const ibv_gid& gid() const noexcept { return gid_; }
  /// Takes the next request on the newest connection, or on a new one. False past the deadline.
  [[nodiscard]] bool take(Request& request, Fds& received, Deadline deadline);
  [[nodiscard]] bool answer(const Reply& reply, std::initializer_list<int> fds);
  /// Nobody listens on the GID any more, and the connection is closed.
  void close() {
    listener_.reset();
    connection_.reset();
  }

 private:
  ibv_gid gid_{};
  Fd listener_;
  Fd connection_;
};

/// The seals of memory whose pages stay: only mappings that were made before can write it.
inline constexpr int kKeptSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE;
/// A memfd of `size` bytes with `seals` (F_SEAL_*).
[[nodiscard]] Fd make_memfd(std::size_t size, int seals);

}  // namespace verbena::nic::soft
