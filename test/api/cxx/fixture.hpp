// What tests of the C++ API share. VERBENA_NIC and VERBENA_BOOTSTRAP choose what it runs over.
#pragma once

#include <verbena/rdma.hpp>

#include <chaos.hpp>
#include <mailbox.hpp>
#include <pattern.hpp>
#include <result.hpp>
#include <transport.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::rdma {

using test::fill;
using test::Mailbox;
using Bytes = std::vector<std::byte>;
using ConnectionPtr = std::unique_ptr<Connection>;

[[nodiscard]] inline Bytes pattern(std::size_t length, std::uint64_t seed) {
  Bytes bytes(length);
  fill(bytes, seed);
  return bytes;
}
[[nodiscard]] inline Deadline patience() { return Deadline::after(std::chrono::seconds{20}); }

/// Calls what the test sets before it connects.
/// Declared before what its functions use: it stops the server that calls it when it goes.
struct Calls final : Handler {
  Calls() = default;
  ~Calls() {
    if (server != nullptr && *server) (*server)->stop();
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  void on_accept(Connection& connection) noexcept override {
    if (accepted) accepted(connection);
  }
  void on_connect(Connection& connection) noexcept override {
    if (connected) connected(connection);
  }
  void on_message(Connection& connection, const Message& message) noexcept override {
    if (arrived) arrived(connection, message);
  }
  void on_disconnect(Connection& connection, Status reason) noexcept override {
    if (disconnected) disconnected(connection, reason);
    ended.put(reason);
  }
  std::function<void(Connection&)> accepted;
  std::function<void(Connection&)> connected;
  std::function<void(Connection&, const Message&)> arrived;
  std::function<void(Connection&, Status)> disconnected;
  Mailbox<Status> ended;
  std::unique_ptr<Listener>* server = nullptr;
};

class RdmaCxx : public testing::Test {
 protected:
  RdmaCxx() {
    options.transport = test::transport_under_test();
    if (test::is_soft_under_test()) options.address = "127.0.0.1";
    options.port = 0;
    options.timeout = options.connect_timeout = std::chrono::seconds{20};
  }

  /// Clients have the options as they are when they connect, but for the handler.
  void start(Calls* handler = nullptr) {
    Options server_options = options;
    server_options.handler = handler;
    if (handler != nullptr) handler->server = &server;
    auto started = Listener::start(server_options);
    ASSERT_OK(started);
    server = std::move(*started);
    options.port = server->port();
    ASSERT_NE(options.port, 0);
    if (options.receive == Receive::kDiscard || options.receive == Receive::kHandler) options.receive = Receive::kQueue;
  }
  [[nodiscard]] ConnectionPtr connect() const {
    auto connected = Connection::connect(options);
    EXPECT_OK(connected);
    return connected ? std::move(*connected) : nullptr;
  }
  [[nodiscard]] ConnectionPtr accept() const {
    auto accepted = server->accept(patience());
    EXPECT_TRUE(accepted.has_value());
    return accepted ? std::move(*accepted) : nullptr;
  }
  [[nodiscard]] static Bytes receive(Connection& connection, std::size_t most) {
    Bytes bytes(most);
    const auto message = connection.receive(bytes);
    EXPECT_TRUE(message.has_value()) << to_string(message.error());
    bytes.resize(message ? message->data.size() : 0);
    return bytes;
  }

  Options options;
  std::unique_ptr<Listener> server;
};

}  // namespace verbena::rdma
