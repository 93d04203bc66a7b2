// What the suites of src/link share: endpoints, raw sockets, and a peer that does as a test says.
#pragma once

#include "base/error.hpp"
#include "link/fabric.hpp"
#include "link/frames.hpp"
#include "link/link.hpp"
#include "link/socket.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::link::test {

/// Long enough for any machine that is only slow; every wait of these tests ends by an event
/// before.
inline Deadline generous() { return Deadline::after(std::chrono::seconds{30}); }
/// For waits that are meant to run out.
inline Deadline brief() { return Deadline::after(std::chrono::milliseconds{60}); }

/// An endpoint with every field set to something of its own.
inline Endpoint make_endpoint(std::uint64_t seed, std::size_t private_bytes = 37) {
  Endpoint endpoint;
  endpoint.nic = nic::Kind::kSoft;
  for (std::size_t i = 0; i < sizeof endpoint.qp.gid.raw; ++i) {
    endpoint.qp.gid.raw[i] = static_cast<std::uint8_t>(seed * 31 + i);
  }
  endpoint.qp.qp_num = static_cast<std::uint32_t>(0x10203 + seed);
  endpoint.qp.psn = static_cast<std::uint32_t>(0xABCDE + seed) & 0xFFFFFFU;
  endpoint.qp.lid = static_cast<std::uint16_t>(0x1111 + seed);
  endpoint.qp.mtu = IBV_MTU_4096;
  endpoint.qp.max_rd_atomic = 16;
  endpoint.recv_depth = static_cast<std::uint32_t>(512 + seed);
  endpoint.generation = 0x0123456789ABCDEFULL + seed;
  std::vector<std::byte> data(private_bytes);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(seed + 7 * i);
  EXPECT_EQ(endpoint.set_user_data(data), Status::kOk);
  return endpoint;
}

/// The encoding has every field, so equal encodings are equal endpoints.
inline bool same(const Endpoint& a, const Endpoint& b) {
  return std::ranges::equal(encode_hello(a).bytes(), encode_hello(b).bytes());
}

inline std::string hex_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

inline bool contains(const Error& error, std::string_view part) {
  return std::string_view(error.text()).find(part) != std::string_view::npos;
}

inline Fd connect_raw(std::uint16_t port, const std::string& host = "127.0.0.1") {
  auto fd = connect_to(host, port, generous());
  EXPECT_TRUE(fd.has_value()) << (fd ? "" : fd.error().text());
  return fd ? std::move(*fd) : Fd();
}

/// Sends all, or stops when the peer has closed.
inline void send_raw(int fd, std::span<const std::byte> bytes) {
  Frame chunk;
  while (!bytes.empty()) {
    chunk.size = std::min(bytes.size(), kMaxFrameBytes);
    std::ranges::copy(bytes.first(chunk.size), chunk.data.begin());
    if (!send_frame(fd, chunk, {.peer = "peer", .awaited = "it"}, generous())) return;
    bytes = bytes.subspan(chunk.size);
  }
}
inline void send_raw(int fd, std::string_view text) { send_raw(fd, std::as_bytes(std::span(text))); }

/// Connects the queue pairs of both sides as servers and clients do.
struct Lifelines {
  Result<Lifeline> client;
  Result<Lifeline> server;
};
inline Lifelines connect_over(Fabric& server, ibv_qp* of_server, Fabric& client, ibv_qp* of_client) {
  const auto listener = server.listen({});
  if (!listener) return {std::unexpected(listener.error()), std::unexpected(listener.error())};
  auto dialing = std::async(std::launch::async, [&]() -> Result<Lifeline> {
    const Endpoint local = describe(client.nic(), of_client, 0);
    VERBENA_ASSIGN(const auto dialed, client.dial((*listener)->port(), local, generous()));
    VERBENA_TRY(bring_up(client.nic(), of_client, local, dialed->remote(), dialed->how(), generous()));
    return dialed->finish(generous());
  });
  const auto serve = [&]() -> Result<Lifeline> {
    const Endpoint local = describe(server.nic(), of_server, 0);
    VERBENA_ASSIGN(const auto incoming, (*listener)->next(generous()));
    VERBENA_TRY(incoming->confirm(generous()));
    VERBENA_TRY(bring_up(server.nic(), of_server, local, incoming->remote(), incoming->how(), generous()));
    VERBENA_TRY(incoming->answer(local, generous()));
    return incoming->finish(generous());
  };
  auto served = serve();
  return {dialing.get(), std::move(served)};
}

/// Waits for a frame as a well-behaved peer does.
inline Result<Inbox> read_frame(int fd) {
  Inbox inbox;
  auto received = receive_frame(fd, inbox, {.peer = "peer", .awaited = "a frame"}, generous());
  if (!received) return std::unexpected(received.error());
  return inbox;
}

/// Waits until the peer closes, throwing away what it sends.
inline void await_end(int fd) {
  const Deadline deadline = generous();
  while (!deadline.passed()) {
    Inbox inbox;
    inbox.need = kMaxFrameBytes;
    if (auto received = receive_frame(fd, inbox, {.peer = "peer", .awaited = "the end"}, deadline);
        !received && received.error().status() == Status::kPeerLost) {
      return;
    }
  }
  ADD_FAILURE() << "the peer did not close";
}

/// A server of one connection that does as `act` says, on a thread.
class RawServer {
 public:
  explicit RawServer(std::function<void(int)> act) {
    auto listening = listen_on("127.0.0.1", 0, 4);
    if (!listening) {
      ADD_FAILURE() << listening.error().text();
      return;
    }
    port_ = bound_port(listening->get());
    thread_ = std::jthread([fd = std::move(*listening), act = std::move(act)](std::stop_token stop) {
      const Deadline deadline = generous();
      while (!stop.stop_requested() && !deadline.passed()) {
        pollfd entry{.fd = fd.get(), .events = POLLIN, .revents = 0};
        if (poll(&entry, 1, 20) <= 0) continue;
        const Fd peer(accept4(fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        return act(peer.get());
      }
    });
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  std::uint16_t port_ = 0;
  std::jthread thread_;
};

}  // namespace verbena::link::test
