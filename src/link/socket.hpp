// TCP for the handshake: connecting, listening, and moving single frames, each within a deadline.
#pragma once

#include "base/fd.hpp"
#include "link/frames.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <netdb.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace verbena::link {

/// "host:port" ("[host]:port" for IPv6), cut so that an error's text around it keeps its fix.
class HostPort {
 public:
  HostPort(std::string_view host, std::uint16_t port) noexcept;
  /// The other end of a connected socket.
  [[nodiscard]] static HostPort of_peer(int fd) noexcept;
  [[nodiscard]] const char* c_str() const noexcept { return text_.data(); }

 private:
  std::array<char, 128> text_{};
};

/// Most addresses of a name to try.
inline constexpr unsigned kMaxAddresses = 8;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
/// Resolves a name; numeric addresses need no resolver. `flags` as for getaddrinfo. Errors: kNotFound, kNoMemory.
[[nodiscard]] Result<Addresses> resolve(const std::string& host, std::uint16_t port, int flags) noexcept;
/// Whether it is 0.0.0.0 or ::.
[[nodiscard]] bool is_any(const sockaddr& address) noexcept;
/// An equal share of the time for each of `addresses` still to try, so that a dead first one does not use it all up.
[[nodiscard]] Deadline share_of(Deadline deadline, unsigned addresses) noexcept;
/// The result of `attempt` for the first address with which it succeeds; else the first error.
template <class Attempt>
auto try_each(const Addresses& addresses, Deadline deadline, Attempt&& attempt)
    -> decltype(attempt(*addresses, deadline)) {
  unsigned left = 0;
  for (const addrinfo* at = addresses.get(); at != nullptr && left < kMaxAddresses; at = at->ai_next) ++left;
  auto first = attempt(*addresses, share_of(deadline, left));
  for (const addrinfo* at = addresses->ai_next; !first && left > 1; at = at->ai_next) {
    auto next = attempt(*at, share_of(deadline, --left));
    if (next) return next;
  }
  return first;
}

/// A connected, non-blocking socket. Tries every address of the name, each with its share of the time.
[[nodiscard]] Result<Fd> connect_to(const std::string& host, std::uint16_t port, Deadline deadline) noexcept;
/// A non-blocking socket on the first address of `host` that can be bound. It refuses connections until `listen_at`.
[[nodiscard]] Result<Fd> bind_to(const std::string& host, std::uint16_t port) noexcept;
[[nodiscard]] Result<void> listen_at(const Fd& bound, const std::string& host, int backlog) noexcept;
/// Both in one.
[[nodiscard]] Result<Fd> listen_on(const std::string& host, std::uint16_t port, int backlog) noexcept;
/// The port that a socket is bound to; 0 if unknown.
[[nodiscard]] std::uint16_t bound_port(int fd) noexcept;

/// Turns Nagle's algorithm off: a handshake is a ping-pong of small frames. A failure costs only time.
void set_no_delay(int fd) noexcept;

/// A frame that is being received. Plain bytes: `have` of the `need` known so far have come.
struct Inbox {
  std::array<std::byte, kMaxFrameBytes> data{};
  std::size_t have = 0;
  std::size_t need = kHeaderBytes;
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data.data(), have}; }
};
enum class Arrival : std::uint8_t {
  kWhole,  ///< All `need` bytes have come.
  kPart,   ///< No more for now.
  kEnd,    ///< The peer closed or reset the connection first.
};
/// Takes arrived bytes without waiting, and never more than this frame. kProtocol as soon as they cannot be a frame.
[[nodiscard]] Result<Arrival> take_arrived(int fd, Inbox& inbox) noexcept;

/// A frame that is being sent.
struct Outbox {
  Frame frame;
  std::size_t sent = 0;
};

/// Words for errors: the peer, and what was expected of it.
struct Step {
  const char* peer;
  const char* awaited;
};
// These don't wait: false if there is no room, or the frame is not whole yet. You may call them again then, and also
// after success.
[[nodiscard]] Result<bool> try_send(int fd, Outbox& outbox, const Step& step) noexcept;
/// A REJECT becomes the error that it carries; other failures are kProtocol or kPeerLost. On failure `inbox` has the
/// bytes that came.
[[nodiscard]] Result<bool> try_receive(int fd, Inbox& inbox, const Step& step) noexcept;
/// The kTimedOut error for a peer that a wait has given up.
[[nodiscard]] Error late(const char* call, const Step& step) noexcept;

/// Whether a call with this deadline makes one attempt that may return kAgain, instead of a wait that may return
/// kTimedOut.
[[nodiscard]] constexpr bool is_attempt(Deadline deadline) noexcept { return deadline.ticks() == 0; }
/// The error of `Listener::next` if there is no client.
[[nodiscard]] Error no_client(Deadline deadline) noexcept;

/// Waits until the descriptor has `events` (POLLIN or POLLOUT) or an error; false when the deadline passes.
[[nodiscard]] Result<bool> wait_for(int fd, short events, Deadline deadline) noexcept;
// The same with waits. Further errors: kTimedOut.
[[nodiscard]] Result<void> send_frame(int fd, const Frame& frame, const Step& step, Deadline deadline) noexcept;
[[nodiscard]] Result<void> receive_frame(int fd, Inbox& inbox, const Step& step, Deadline deadline) noexcept;
/// Sends a REJECT, as far as that works without waiting, and makes sure that closing the socket does not discard it.
void send_reject(int fd, Status status, std::string_view text) noexcept;

}  // namespace verbena::link
