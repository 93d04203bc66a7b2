#include "link/socket.hpp"

#include "base/error.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

namespace verbena::link {

namespace {

const char* describe_errno(int error) noexcept {
  const char* text = strerrordesc_np(error);
  return text != nullptr ? text : "unknown errno";
}

/// The kernel may give an unused port of this host to the connecting socket itself, which then connects to itself.
bool is_connected_to_itself(int fd) noexcept {
  sockaddr_storage here{}, there{};
  socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_bytes) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_bytes) == 0 && here_bytes == there_bytes &&
         std::memcmp(&here, &there, here_bytes) == 0;
}

Error connect_error(const char* peer, int error) noexcept {
  switch (error) {
    case ECONNREFUSED:
      return format_error(Status::kConnectionRefused, "connect", error,
                          "nothing listens at {}: start the server there, or check address and port", peer);
    case ETIMEDOUT:
      return format_error(Status::kTimedOut, "connect", error,
                          "{} did not take the connection in time: check the address, and firewalls on the way", peer);
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EADDRNOTAVAIL:
      return format_error(Status::kPeerLost, "connect", error,
                          "{} cannot be reached: {}; check the address and this host's routes", peer,
                          describe_errno(error));
    default:
      return format_error(status_of_errno(error), "connect", error, "connecting to {} failed: {}", peer,
                          describe_errno(error));
  }
}

Result<Fd> connect_one(const addrinfo& address, const char* peer, Deadline deadline) noexcept {
  Fd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!fd) return fail_system("socket", errno, "making a socket to connect with");
  set_no_delay(fd.get());
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    // An interrupted connect continues by itself, like one in progress.
    if (errno != EINPROGRESS && errno != EINTR) return std::unexpected(connect_error(peer, errno));
    VERBENA_ASSIGN(const bool is_ready, wait_for(fd.get(), POLLOUT, deadline));
    if (!is_ready) return std::unexpected(connect_error(peer, ETIMEDOUT));
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) return std::unexpected(connect_error(peer, error));
  }
  if (is_connected_to_itself(fd.get())) return std::unexpected(connect_error(peer, ECONNREFUSED));
  return fd;
}

std::unexpected<Error> cannot_listen(const char* call, int error, const HostPort& name) noexcept {
  switch (error) {
    case EADDRINUSE:
      return fail(Status::kSystem, call, error, "{} is in use: choose another port, or stop what listens there",
                  name.c_str());
    case EADDRNOTAVAIL:
      return fail(Status::kSystem, call, error, "{} is not an address of this host: choose one of its own",
                  name.c_str());
    case EACCES:
      return fail(Status::kPermission, call, error,
                  "listening on {} is not allowed: choose a port from 1024 up, or give "
                  "CAP_NET_BIND_SERVICE",
                  name.c_str());
    default:
      return fail(status_of_errno(error), call, error, "listening on {} failed: {}", name.c_str(),
                  describe_errno(error));
  }
}

Result<Fd> bind_one(const addrinfo& address, const HostPort& name) noexcept {
  Fd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!fd) return fail_system("socket", errno, "making a socket to listen on");
  // Connections of an earlier server that are still in TIME_WAIT must not keep the next one from starting.
  const int on = 1;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
    return fail_system("setsockopt", errno, "preparing a socket to listen on");
  }
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0) return cannot_listen("bind", errno, name);
  return fd;
}

Error lost(const char* call, int error, const Step& step) noexcept {
  return format_error(Status::kPeerLost, call, error,
                      "{} closed the connection before {}: see whether it still runs and what it logged", step.peer,
                      step.awaited);
}

}  // namespace

Result<Addresses> resolve(const std::string& host, std::uint16_t port, int flags) noexcept {
  char service[8];
  *fmt::format_to_n(service, sizeof service - 1, "{}", port).out = '\0';
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  // Tries a numeric address first, which needs no resolver and so cannot hang.
  hints.ai_flags = flags | AI_NUMERICSERV | AI_NUMERICHOST;
  int error = getaddrinfo(host.c_str(), service, &hints, &found);
  if (error == EAI_NONAME) {
    hints.ai_flags = flags | AI_NUMERICSERV;
    error = getaddrinfo(host.c_str(), service, &hints, &found);
  }
  if (error == 0) return Addresses(found, &freeaddrinfo);
  const int saved = error == EAI_SYSTEM ? errno : 0;
  return fail(error == EAI_MEMORY ? Status::kNoMemory : Status::kNotFound, "getaddrinfo", saved,
              "the name \"{:.100}\" does not resolve: {}{}{}; check its spelling, or give a "
              "numeric address",
              host, gai_strerror(error), saved != 0 ? ": " : "", saved != 0 ? describe_errno(saved) : "");
}

bool is_any(const sockaddr& address) noexcept {
  if (address.sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == htonl(INADDR_ANY);
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

Deadline share_of(Deadline deadline, unsigned addresses) noexcept {
  if (deadline.is_never() || addresses <= 1) return deadline;
  return Deadline::after(deadline.left() / addresses);
}

HostPort::HostPort(std::string_view host, std::uint16_t port) noexcept {
  host = host.substr(0, 100);
  const bool brackets = host.find(':') != std::string_view::npos;
  *fmt::format_to_n(text_.data(), text_.size() - 1, "{}{}{}:{}", brackets ? "[" : "", host, brackets ? "]" : "", port)
       .out = '\0';
}

HostPort HostPort::of_peer(int fd) noexcept {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  char host[NI_MAXHOST] = "the peer";
  char service[NI_MAXSERV] = "0";
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (getpeername(fd, generic, &bytes) == 0) {
    (void)getnameinfo(generic, bytes, host, sizeof host, service, sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
  }
  return {host, static_cast<std::uint16_t>(std::strtoul(service, nullptr, 10))};
}

Result<Fd> connect_to(const std::string& host, std::uint16_t port, Deadline deadline) noexcept {
  const HostPort peer(host, port);
  if (port == 0) return fail(Status::kBadArgument, "connect", 0, "nothing can listen at {}: give a port", peer.c_str());
  VERBENA_ASSIGN(const Addresses addresses, resolve(host, port, 0));
  // A refusal is the most useful error: the host exists, and the port is wrong.
  std::optional<Error> refusal;
  auto connected = try_each(addresses, deadline, [&](const addrinfo& to, Deadline share) {
    auto fd = connect_one(to, peer.c_str(), share);
    if (!fd && fd.error().status() == Status::kConnectionRefused) refusal = fd.error();
    return fd;
  });
  if (!connected && refusal) return std::unexpected(*refusal);
  return connected;
}

Result<Fd> bind_to(const std::string& host, std::uint16_t port) noexcept {
  const HostPort name(host, port);
  VERBENA_ASSIGN(const Addresses addresses, resolve(host, port, AI_PASSIVE));
  return try_each(addresses, Deadline::never(), [&](const addrinfo& at, Deadline) { return bind_one(at, name); });
}

Result<void> listen_at(const Fd& bound, const std::string& host, int backlog) noexcept {
  if (listen(bound.get(), backlog) == 0) return {};
  const int error = errno;
  return cannot_listen("listen", error, HostPort(host, bound_port(bound.get())));
}

Result<Fd> listen_on(const std::string& host, std::uint16_t port, int backlog) noexcept {
  VERBENA_ASSIGN(Fd bound, bind_to(host, port));
  VERBENA_TRY(listen_at(bound, host, backlog));
  return bound;
}

std::uint16_t bound_port(int fd) noexcept {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return 0;
}

void set_no_delay(int fd) noexcept {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Result<Arrival> take_arrived(int fd, Inbox& inbox) noexcept {
  // Bounded by the frame: every turn either adds a byte or returns.
  while (inbox.have < inbox.need) {
    const ssize_t count = recv(fd, inbox.data.data() + inbox.have, inbox.need - inbox.have, MSG_DONTWAIT);
    if (count == 0) return Arrival::kEnd;
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Arrival::kPart;
      if (errno == ECONNRESET || errno == EPIPE || errno == ETIMEDOUT) return Arrival::kEnd;
      return fail_system("recv", errno, "reading a handshake");
    }
    inbox.have += static_cast<std::size_t>(count);
    VERBENA_ASSIGN(inbox.need, bytes_needed(inbox.bytes()));
  }
  return Arrival::kWhole;
}

Result<bool> wait_for(int fd, short events, Deadline deadline) noexcept {
  for (;;) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int count = poll(&entry, 1, deadline.left_ms());
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return fail_system("poll", errno, "waiting for a peer");
    if (deadline.passed()) return false;
  }
}

Error late(const char* call, const Step& step) noexcept {
  return format_error(Status::kTimedOut, call, 0,
                      "{} is connected, but {} did not come in time: check that it is a Verbena "
                      "server and not stuck",
                      step.peer, step.awaited);
}

Error no_client(Deadline deadline) noexcept {
  if (is_attempt(deadline)) return format_error(Status::kAgain, "Listener::next", 0, "no client has come yet");
  return format_error(Status::kTimedOut, "Listener::next", 0, "no client came in time");
}

Result<bool> try_send(int fd, Outbox& outbox, const Step& step) noexcept {
  // Bounded by the frame, except for signals.
  while (outbox.sent < outbox.frame.size) {
    const auto rest = outbox.frame.bytes().subspan(outbox.sent);
    const ssize_t count = send(fd, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      outbox.sent += static_cast<std::size_t>(count);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno == ECONNRESET || errno == EPIPE || errno == ETIMEDOUT) return std::unexpected(lost("send", errno, step));
    return fail_system("send", errno, "sending a handshake");
  }
  return true;
}

Result<bool> try_receive(int fd, Inbox& inbox, const Step& step) noexcept {
  const auto arrival = take_arrived(fd, inbox);
  if (!arrival) {
    return fail(arrival.error().status(), arrival.error().call(), arrival.error().system_errno(), "{}: {}", step.peer,
                arrival.error().text());
  }
  if (*arrival == Arrival::kPart) return false;
  if (*arrival == Arrival::kEnd) return std::unexpected(lost("recv", 0, step));
  const auto type = decode_type(inbox.bytes());
  if (!type) return broken("{}: {}", step.peer, type.error().text());
  if (*type != FrameType::kReject) return true;
  const auto reject = decode_reject(inbox.bytes());
  if (!reject) return broken("{}: {}", step.peer, reject.error().text());
  return fail(reject->status, "handshake", 0, "{} rejected the connection: {}", step.peer,
              reject->text_bytes != 0 ? reject->reason() : std::string_view(to_string(reject->status)));
}

namespace {
/// Makes attempts until one succeeds.
template <class Attempt>
Result<void> drive(int fd, short events, const char* call, const Step& step, Deadline deadline,
                   const Attempt& attempt) noexcept {
  for (;;) {
    VERBENA_ASSIGN(const bool is_done, attempt());
    if (is_done) return {};
    VERBENA_ASSIGN(const bool is_ready, wait_for(fd, events, deadline));
    if (!is_ready) return std::unexpected(late(call, step));
  }
}
}  // namespace

Result<void> send_frame(int fd, const Frame& frame, const Step& step, Deadline deadline) noexcept {
  Outbox outbox{.frame = frame};
  return drive(fd, POLLOUT, "send", step, deadline, [&] { return try_send(fd, outbox, step); });
}

Result<void> receive_frame(int fd, Inbox& inbox, const Step& step, Deadline deadline) noexcept {
  return drive(fd, POLLIN, "recv", step, deadline, [&] { return try_receive(fd, inbox, step); });
}

void send_reject(int fd, Status status, std::string_view text) noexcept {
  const Frame frame = encode_reject(status, text);
  // A new socket's buffer holds many such frames. If the peer has filled it, that is the peer's own fault.
  (void)send(fd, frame.data.data(), frame.size, MSG_DONTWAIT | MSG_NOSIGNAL);
  (void)shutdown(fd, SHUT_WR);
  // Closing with unread bytes makes the kernel reset the connection, and the reset overtakes the sent frame.
  std::array<std::byte, kMaxFrameBytes> unread;
  (void)recv(fd, unread.data(), unread.size(), MSG_DONTWAIT);
}

}  // namespace verbena::link
