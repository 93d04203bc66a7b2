#include "raw_peer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>

namespace verbena::nic::soft {
namespace {

using namespace std::chrono_literals;

/// Not this process's user, whose descriptors the NIC that is tested may refuse.
constexpr uid_t kSender = 4242;

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
};

/// As rendezvous.cpp names it; written again here, because it is the protocol.
Name name_of(const ibv_gid& gid) {
  Name name;
  name.address.sun_family = AF_UNIX;
  char* const start = name.address.sun_path + 1;
  int at = std::snprintf(start, 100, "verbena/");
  for (const std::uint8_t byte : gid.raw) at += std::snprintf(start + at, 4, "%02x", byte);
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(at));
  return name;
}

}  // namespace

// --- RawClient --------------------------------------------------------------------------------------------------

bool RawClient::connect(const ibv_gid& gid) {
  socket_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval patience{10, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const Name name = name_of(gid);
  return ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) == 0;
}

bool RawClient::send(const void* bytes, std::size_t length, std::span<const int> fds) {
  return send_message(socket_.get(), {static_cast<const std::byte*>(bytes), length}, fds);
}

bool RawClient::ask(const soft::Request& request, std::initializer_list<int> fds, Reply& reply, Fds& received) {
  return send(&request, sizeof request, std::span(fds.begin(), fds.size())) && take(reply, received);
}

bool RawClient::take(Reply& reply, Fds& received) {
  if (!wait_readable(socket_.get(), Deadline::after(10s))) return false;
  return receive_message(socket_.get(), std::as_writable_bytes(std::span(&reply, 1)), received, kSender) ==
         static_cast<ssize_t>(sizeof reply);
}

std::size_t RawClient::drop_replies() {
  std::size_t count = 0;
  Reply reply;
  Fds received;
  while (receive_message(socket_.get(), std::as_writable_bytes(std::span(&reply, 1)), received, kSender) > 0) ++count;
  return count;
}

bool RawClient::hello(const ibv_gid& my_gid, Reply& reply, Fds& received) {
  soft::Request request;
  request.my_gid = my_gid;
  return ask(request, {}, reply, received);
}

bool RawClient::hung_up() {
  const Deadline deadline = Deadline::after(10s);
  Reply reply;
  Fds received;
  while (wait_readable(socket_.get(), deadline)) {
    if (receive_message(socket_.get(), std::as_writable_bytes(std::span(&reply, 1)), received, kSender) <= 0)
      return true;
  }
  return false;
}

// --- RawListener ------------------------------------------------------------------------------------------------

bool RawListener::listen(const ibv_gid& somebodys, std::uint64_t number) {
  gid_ = somebodys;
  const auto pid = static_cast<std::uint32_t>(::getpid());
  std::memcpy(gid_.raw + 4, &pid, sizeof pid);
  std::memcpy(gid_.raw + 8, &number, sizeof number);
  connection_.reset();
  listener_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const Name name = name_of(gid_);
  return ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) == 0 &&
         ::listen(listener_.get(), 8) == 0;
}

bool RawListener::take(soft::Request& request, Fds& received, Deadline deadline) {
  for (;;) {
    pollfd entries[2] = {{listener_.get(), POLLIN, 0}, {connection_.get(), POLLIN, 0}};
    const int ready = ::poll(entries, connection_ ? 2 : 1, deadline.left_ms());
    if (ready == 0 && deadline.passed()) return false;
    if (ready <= 0) continue;
    if ((entries[0].revents & POLLIN) != 0) {
      connection_ = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      continue;
    }
    std::array<std::byte, kMaxRequestBytes> message;
    const ssize_t got = receive_message(connection_.get(), message, received, kSender);
    if (got >= static_cast<ssize_t>(sizeof request)) {
      std::memcpy(&request, message.data(), sizeof request);
      if (got == static_cast<ssize_t>(sizeof request + request.attested_bytes)) return true;
    }
    connection_.reset();
  }
}

bool RawListener::answer(const Reply& reply, std::initializer_list<int> fds) {
  return send_message(connection_.get(), std::as_bytes(std::span(&reply, 1)), std::span(fds.begin(), fds.size()));
}

Fd make_memfd(std::size_t size, int seals) {
  Fd fd(::memfd_create("verbena-raw", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return Fd();
  if (seals != 0 && ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return Fd();
  return fd;
}

}  // namespace verbena::nic::soft
