#include "system.hpp"

#include "tasks.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What -Wl,--wrap makes of the system's names. All of them have the system's types.
extern "C" {
int __real_socket(int family, int type, int protocol);
int __real_bind(int fd, const sockaddr* address, socklen_t bytes);
int __real_connect(int fd, const sockaddr* address, socklen_t bytes);
int __real_accept4(int fd, sockaddr* address, socklen_t* bytes, int flags);
int __real_getsockname(int fd, sockaddr* address, socklen_t* bytes);
int __real_setsockopt(int fd, int level, int name, const void* value, socklen_t bytes);
int __real_getsockopt(int fd, int level, int name, void* value, socklen_t* bytes);
ssize_t __real_send(int fd, const void* data, size_t bytes, int flags);
int __real_shutdown(int fd, int how);
int __real_close(int fd);
ssize_t __real_write(int fd, const void* data, size_t bytes);
int __real_poll(pollfd* fds, nfds_t count, int timeout_ms);
int __real_epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms);
}

namespace verbena::sim {
namespace {

struct Socket {
  const Process* owner = nullptr;
  std::uint16_t port = 0;                ///< That it is bound to.
  std::uint64_t name = 0;                ///< Of the Unix socket there.
  std::uint16_t towards = 0;             ///< The port that it is connecting to, while nobody answers from there.
  int error = 0;                         ///< What came of that.
  std::deque<const Process*> callers{};  ///< Of a listener: who waits to be accepted.
  const Process* peer = nullptr;         ///< Once it is connected.
  std::string held{};                    ///< What was sent while the way to the peer was cut.
  std::optional<int> ends{};             ///< And the shutdown behind it.
  bool is_lost = false;                  ///< The peer never hears of it again.
};
struct Descriptors {
  std::map<int, Socket> sockets;
  /// Closed by their owners, of which the peers have not heard.
  std::vector<std::pair<int, Socket>> left;
  std::uint16_t next_port = 20000;
  std::uint64_t next_name = 0;
  char changed = 0;  ///< Its address is what waits for any descriptor wait for.
};
Descriptors& all() {
  static Descriptors one;
  return one;
}

bool is_simulated() noexcept { return Tasks::is_inside(); }

void changed() {
  if (Tasks::current() != nullptr) Tasks::current()->wake(&all().changed);
}

Socket* socket_of(int fd) {
  const auto at = all().sockets.find(fd);
  return at == all().sockets.end() ? nullptr : &at->second;
}
std::pair<const int, Socket>* listener_at(std::uint16_t port) {
  for (auto& entry : all().sockets)
    if (entry.second.port == port && port != 0) return &entry;
  return nullptr;
}

int name_socket(std::uint64_t name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  // The first byte stays 0: an abstract name, which goes with its socket.
  const auto end =
      fmt::format_to_n(address.sun_path + 1, sizeof address.sun_path - 1, "verbena-sim-{}-{}", ::getpid(), name);
  return static_cast<int>(offsetof(sockaddr_un, sun_path) + 1 + end.size);
}

bool reaches(const Process& from, const Process& to) { return from.network().reaches(from.number(), to.number()); }
bool is_heard(const Process& one, const Process& other) { return reaches(one, other) && reaches(other, one); }

/// Whether the peer does not hear what happens to a socket now. Some peers hear nothing of it even once the way is
/// healed, as behind a firewall that has forgotten the connection.
bool is_held(Socket& socket) {
  if (socket.peer == nullptr || socket.is_lost) return socket.is_lost;
  if (reaches(*socket.owner, *socket.peer)) return false;
  World& world = socket.owner->network().world();
  if (socket.held.empty() && !socket.ends) socket.is_lost = world.random().one_in(4);
  world.tell("{} does not hear {} at their socket{}", socket.peer->name(), socket.owner->name(),
             socket.is_lost ? ", and never will again" : "");
  return true;
}

/// The peer hears what was held back. False: it is not to.
bool deliver(int fd, Socket& socket) {
  if (socket.is_lost || socket.peer == nullptr || !reaches(*socket.owner, *socket.peer)) return false;
  // Of a peer that has closed nobody wants to know; all that a handshake sends fits.
  (void)__real_send(fd, socket.held.data(), socket.held.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  socket.held.clear();
  if (const auto how = std::exchange(socket.ends, std::nullopt)) (void)__real_shutdown(fd, *how);
  return true;
}

/// The owner of a socket has closed it, and the peer does not hear of that now.
void leave(int fd, Socket socket) {
  socket.ends = SHUT_RDWR;
  all().left.emplace_back(fd, std::move(socket));
}

/// Of a listener that is shut down the kernel tells without an end. Who has not been accepted is hung up on.
void hang_up(int fd, Socket& listener) {
  for (int waiting = 0; (waiting = __real_accept4(fd, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
    Socket socket{.owner = listener.owner, .peer = listener.callers.front()};
    listener.callers.pop_front();
    if (is_held(socket)) {
      leave(waiting, std::move(socket));
    } else {
      (void)__real_close(waiting);
    }
  }
}

/// 0, or what is wrong; EINPROGRESS while its way is cut.
int try_to_connect(int fd, Socket& socket, std::uint16_t port) {
  auto* const at = listener_at(port);
  if (at == nullptr) return ECONNREFUSED;
  if (!is_heard(*socket.owner, *at->second.owner)) {
    socket.towards = port;
    return EINPROGRESS;
  }
  socket.towards = 0;
  sockaddr_un address;
  const int length = name_socket(at->second.name, address);
  if (__real_connect(fd, reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(length)) != 0)
    return errno;
  at->second.callers.push_back(socket.owner);
  socket.peer = at->second.owner;
  changed();
  return 0;
}

/// Whether what a descriptor waits for may have come: not while it connects, and nobody answers.
bool is_pending(int fd) {
  Socket* const socket = socket_of(fd);
  if (socket == nullptr || socket->towards == 0) return false;
  socket->error = try_to_connect(fd, *socket, socket->towards);
  if (socket->error == EINPROGRESS) return true;
  socket->towards = 0;
  return false;
}

int fail_with(int error) {
  errno = error;
  return -1;
}

/// Tries until something is there, or the time is over.
template <class Try>
int wait_for(int timeout_ms, const Try& attempt) {
  int count = attempt();
  if (count != 0 || timeout_ms == 0 || !is_simulated()) return count;
  Tasks& tasks = *Tasks::current();
  const Nanoseconds until =
      timeout_ms < 0 ? ~Nanoseconds{0} : tasks.now() + static_cast<Nanoseconds>(timeout_ms) * 1'000'000;
  while (count == 0) {
    const bool is_woken = tasks.sleep(&all().changed, until);
    count = attempt();
    if (!is_woken) break;
  }
  return count;
}

}  // namespace

void end_descriptors_of(const Process& process) {
  for (auto& [fd, socket] : all().sockets) {
    if (socket.owner != &process) continue;
    if (std::exchange(socket.port, 0) != 0) {
      hang_up(fd, socket);
    } else if (is_held(socket)) {
      socket.ends = SHUT_RDWR;
    } else {
      (void)__real_shutdown(fd, SHUT_RDWR);
    }
  }
  changed();
}

void look_at_descriptors() {
  for (auto& [fd, socket] : all().sockets) (void)deliver(fd, socket);
  std::erase_if(all().left, [](auto& one) { return deliver(one.first, one.second) && __real_close(one.first) == 0; });
  changed();
}

void forget_descriptors() {
  for (const auto& [fd, socket] : all().left) (void)__real_close(fd);
  all() = {};
}

}  // namespace verbena::sim

using namespace verbena::sim;  // NOLINT(google-build-using-namespace): the linker's names are outside of it.

extern "C" {

int __wrap_socket(int family, int type, int protocol) {
  if (!is_simulated() || (family != AF_INET && family != AF_INET6)) return __real_socket(family, type, protocol);
  const int fd = __real_socket(AF_UNIX, type, 0);
  if (fd >= 0) all().sockets[fd] = {.owner = &Tasks::current()->process()};
  return fd;
}

int __wrap_bind(int fd, const sockaddr* address, socklen_t bytes) {
  Socket* const socket = socket_of(fd);
  if (socket == nullptr) return __real_bind(fd, address, bytes);
  std::uint16_t port = ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  if (port == 0) port = all().next_port++;
  if (listener_at(port) != nullptr) return fail_with(EADDRINUSE);
  sockaddr_un unix_address;
  const std::uint64_t name = all().next_name++;
  const int length = name_socket(name, unix_address);
  if (__real_bind(fd, reinterpret_cast<const sockaddr*>(&unix_address), static_cast<socklen_t>(length)) != 0) return -1;
  socket->port = port;
  socket->name = name;
  return 0;
}

int __wrap_connect(int fd, const sockaddr* address, socklen_t bytes) {
  Socket* const socket = socket_of(fd);
  if (socket == nullptr) return __real_connect(fd, address, bytes);
  const int error = try_to_connect(fd, *socket, ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port));
  return error == 0 ? 0 : fail_with(error);
}

int __wrap_accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  Socket* const socket = socket_of(fd);
  const int accepted = __real_accept4(fd, address, bytes, flags);
  if (accepted < 0 || socket == nullptr) return accepted;
  all().sockets[accepted] = {.owner = socket->owner, .peer = socket->callers.front()};
  socket->callers.pop_front();
  return accepted;
}

int __wrap_getsockname(int fd, sockaddr* address, socklen_t* bytes) {
  const Socket* const socket = socket_of(fd);
  if (socket == nullptr || socket->port == 0) return __real_getsockname(fd, address, bytes);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(socket->port);
  std::memcpy(address, &name, std::min<std::size_t>(*bytes, sizeof name));
  *bytes = sizeof name;
  return 0;
}

int __wrap_setsockopt(int fd, int level, int name, const void* value, socklen_t bytes) {
  return socket_of(fd) != nullptr ? 0 : __real_setsockopt(fd, level, name, value, bytes);
}

int __wrap_getsockopt(int fd, int level, int name, void* value, socklen_t* bytes) {
  Socket* const socket = socket_of(fd);
  if (socket == nullptr || level != SOL_SOCKET || name != SO_ERROR)
    return __real_getsockopt(fd, level, name, value, bytes);
  std::memcpy(value, &socket->error, sizeof(int));
  socket->error = 0;
  return 0;
}

ssize_t __wrap_send(int fd, const void* data, size_t bytes, int flags) {
  if (Socket* const socket = socket_of(fd); socket != nullptr && is_held(*socket)) {
    if (!socket->is_lost) socket->held.append(static_cast<const char*>(data), bytes);
    return static_cast<ssize_t>(bytes);
  }
  const ssize_t sent = __real_send(fd, data, bytes, flags);
  const int error = errno;
  if (is_simulated()) changed();
  errno = error;
  return sent;
}

int __wrap_shutdown(int fd, int how) {
  if (Socket* const socket = socket_of(fd); socket != nullptr && is_held(*socket)) {
    socket->ends = how;
    return 0;
  }
  const int result = __real_shutdown(fd, how);
  if (is_simulated()) changed();
  return result;
}

int __wrap_close(int fd) {
  if (auto closed = all().sockets.extract(fd); !closed.empty()) {
    Socket& socket = closed.mapped();
    if (socket.port != 0) hang_up(fd, socket);
    if (is_held(socket)) leave(::dup(fd), std::move(socket));  // Its number is free from now on.
  }
  const int result = __real_close(fd);
  if (is_simulated()) changed();
  return result;
}

ssize_t __wrap_write(int fd, const void* data, size_t bytes) {
  const ssize_t written = __real_write(fd, data, bytes);
  if (is_simulated()) changed();
  return written;
}

int __wrap_poll(pollfd* fds, nfds_t count, int timeout_ms) {
  return wait_for(timeout_ms, [&] {
    if (count == 1 && is_pending(fds->fd)) return 0;
    return __real_poll(fds, count, is_simulated() ? 0 : timeout_ms);
  });
}

int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  return wait_for(timeout_ms, [&] { return __real_epoll_wait(epoll, events, most, is_simulated() ? 0 : timeout_ms); });
}

}  // extern "C"
