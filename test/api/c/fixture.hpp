// What the tests of the C API share: a server and its clients, and what callbacks hand over.
#pragma once

#include <verbena/rdma.h>

#include <mailbox.hpp>
#include <pattern.hpp>
#include <transport.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <set>
#include <utility>
#include <vector>

namespace verbena::test {
using Bytes = std::vector<std::byte>;
inline constexpr std::size_t kWindow = 1 << 20;

[[nodiscard]] inline Bytes pattern(std::size_t length, std::uint64_t seed) {
  Bytes bytes(length);
  fill(bytes, seed);
  return bytes;
}

[[nodiscard]] inline std::uint64_t address_of(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

struct Received {
  RdmaMessageKind kind = RDMA_MESSAGE;
  int has_imm = 0;
  std::uint32_t imm = 0;
  Bytes bytes;
};

class RdmaApi : public testing::Test {
 protected:
  RdmaApi() {
    rdmaOptionsInit(&options);
    transport_ = transport_under_test();
    options.device = transport_.device.c_str();
    options.bootstrap = transport_.bootstrap == Bootstrap::kCm ? RDMA_BOOTSTRAP_CM : RDMA_BOOTSTRAP_SOCKET;
    options.timeout_ms = 20'000;
    options.connect_timeout_ms = 20'000;
  }
  ~RdmaApi() override {
    close_clients();
    rdmaServerRelease(server);
  }

  /// With what was set in `options` and the functions below.
  void start() {
    ASSERT_EQ(rdmaServer(&server, address(), 0), RDMA_OK);
    ASSERT_EQ(rdmaServerSetOptions(server, &options), RDMA_OK) << rdmaErrorDetail();
    ASSERT_EQ(rdmaServerOnAccept(
                  server, [](RdmaConn* conn, void* user) { static_cast<RdmaApi*>(user)->accepted(conn); }, this),
              RDMA_OK);
    ASSERT_EQ(rdmaServerOnDisconnect(
                  server, [](RdmaConn*, int code, void* user) { static_cast<RdmaApi*>(user)->ended.put(code); }, this),
              RDMA_OK);
    if (when_message) {
      ASSERT_EQ(rdmaServerOnMessage(
                    server,
                    [](RdmaConn* conn, const RdmaMessage* message, void* user) {
                      static_cast<RdmaApi*>(user)->when_message(conn, *message);
                    },
                    this),
                RDMA_OK);
    }
    ASSERT_EQ(rdmaServerStart(server), RDMA_OK) << rdmaErrorDetail();
    port = rdmaServerPort(server);
    ASSERT_GT(port, 0);
  }
  [[nodiscard]] RdmaConn* make_client() {
    RdmaConn* const conn = rdmaConn();
    EXPECT_NE(conn, nullptr);
    EXPECT_EQ(rdmaConnSetOptions(conn, &options), RDMA_OK);
    clients_.insert(conn);
    return conn;
  }
  [[nodiscard]] RdmaConn* connect() {
    RdmaConn* const conn = make_client();
    EXPECT_EQ(rdmaConnect(conn, address(), port), RDMA_OK) << rdmaErrorDetail();
    return conn;
  }
  void close(RdmaConn* conn) {
    clients_.erase(conn);
    rdmaConnClose(conn);
  }
  void close_clients() {
    for (RdmaConn* conn : std::exchange(clients_, {})) rdmaConnClose(conn);
  }
  [[nodiscard]] static const char* address() { return is_soft_under_test() ? "127.0.0.1" : nullptr; }
  /// Keeps the connection for the test's thread.
  void keep_accepted() {
    when_accepted = [this](RdmaConn* conn) {
      EXPECT_EQ(rdmaConnKeep(conn), RDMA_OK);
      conns.put(conn);
    };
  }
  static void send(RdmaConn* conn, const Bytes& bytes) {
    ASSERT_EQ(rdmaConnSend(conn, bytes.data(), bytes.size()), bytes.size()) << rdmaErrorDetail();
  }
  [[nodiscard]] static Received receive(RdmaConn* conn, std::size_t most, int timeout_ms = -1) {
    Received received{.bytes = Bytes(most)};
    RdmaMessage message;
    EXPECT_EQ(rdmaConnRecv(conn, received.bytes.data(), most, &message, timeout_ms), RDMA_OK) << rdmaErrorDetail();
    received.kind = message.kind;
    received.has_imm = message.has_imm;
    received.imm = message.imm;
    received.bytes.resize(message.kind == RDMA_MESSAGE ? message.length : 0);
    return received;
  }

  RdmaOptions options;
  RdmaListener* server = nullptr;
  int port = 0;
  std::function<void(RdmaConn*)> when_accepted;
  std::function<void(RdmaConn*, const RdmaMessage&)> when_message;
  Mailbox<RdmaConn*> conns;
  Mailbox<int> ended;
  Mailbox<Received> messages;

 private:
  void accepted(RdmaConn* conn) {
    if (when_accepted) when_accepted(conn);
  }
  Transport transport_;
  std::set<RdmaConn*> clients_;
};

}  // namespace verbena::test
