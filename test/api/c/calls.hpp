// A client of the C API and every call of it that goes to the peer, for tests of what ends under them.
#pragma once

#include "fixture.hpp"

#include <cstdint>

namespace verbena::test {

inline constexpr std::uint32_t kBytes = 4096;

/// A client's connection and what its calls need.
struct Client {
  RdmaConn* conn = nullptr;
  const RdmaMemory* memory = nullptr;
  RdmaWindow window{};
  std::uint64_t physical = 0;  ///< 0: the peer has no privilege.
  [[nodiscard]] std::uint64_t local() const { return reinterpret_cast<std::uintptr_t>(memory->addr); }
};

/// A call that is repeated while it succeeds; its code.
struct Call {
  const char* name;
  int (*call)(Client& client);
  bool needs_physical = false;
};
inline int code_of(const Client& client, std::size_t sent) { return sent != 0 ? RDMA_OK : rdmaConnError(client.conn); }
inline int complete(Client& client, int code) {
  RdmaCompletion completion;
  if (code == RDMA_OK) code = rdmaConnComplete(client.conn, &completion, -1);
  return code == RDMA_OK ? completion.code : code;
}

inline const Call kCalls[] = {
    {"rdmaConnSend", [](Client& of) { return code_of(of, rdmaConnSend(of.conn, of.memory->addr, kBytes)); }},
    {"rdmaConnSendWithImm",
     [](Client& of) { return code_of(of, rdmaConnSendWithImm(of.conn, 1, of.memory->addr, kBytes)); }},
    {"rdmaConnRecv",
     [](Client& of) {
       std::byte byte{};
       return rdmaConnRecv(of.conn, &byte, 1, nullptr, -1);
     }},
    {"rdmaConnWrite", [](Client& of) { return code_of(of, rdmaConnWrite(of.conn, of.memory->addr, kBytes)); }},
    {"rdmaConnWrite, long",
     [](Client& of) { return code_of(of, rdmaConnWrite(of.conn, of.memory->addr, of.memory->length)); }},
    {"rdmaConnWriteWithImm", [](Client& of) { return rdmaConnWriteWithImm(of.conn, 1, of.memory->addr, kBytes); }},
    {"rdmaConnRead", [](Client& of) { return rdmaConnRead(of.conn, of.memory->addr, kBytes); }},
    {"rdmaSyncWriteSignaled",
     [](Client& of) {
       return rdmaSyncWriteSignaled(of.conn, of.local(), of.memory->lkey, of.window.addr, of.window.rkey, kBytes);
     }},
    {"rdmaSyncReadSignaled",
     [](Client& of) {
       return rdmaSyncReadSignaled(of.conn, of.local(), of.memory->lkey, of.window.addr, of.window.rkey, kBytes);
     }},
    {"rdmaSyncFetchAdd",
     [](Client& of) { return rdmaSyncFetchAdd(of.conn, of.window.addr, of.window.rkey, 1, nullptr); }},
    {"rdmaSyncCompareSwap",
     [](Client& of) { return rdmaSyncCompareSwap(of.conn, of.window.addr, of.window.rkey, 1, 2, nullptr); }},
    {"rdmaConnLookup",
     [](Client& of) {
       RdmaWindow window;
       return rdmaConnLookup(of.conn, "never", &window, -1);
     }},
    {"rdmaStartWrite",
     [](Client& of) {
       return complete(of,
                       rdmaStartWrite(of.conn, of.local(), of.memory->lkey, of.window.addr, of.window.rkey, kBytes, 1));
     }},
    {"rdmaStartRead",
     [](Client& of) {
       return complete(of,
                       rdmaStartRead(of.conn, of.local(), of.memory->lkey, of.window.addr, of.window.rkey, kBytes, 1));
     }},
    {"rdmaStartFetchAdd",
     [](Client& of) { return complete(of, rdmaStartFetchAdd(of.conn, of.window.addr, of.window.rkey, 1, 1)); }},
    {"rdmaStartCompareSwap",
     [](Client& of) { return complete(of, rdmaStartCompareSwap(of.conn, of.window.addr, of.window.rkey, 1, 2, 1)); }},
    {"rdmaPASyncWriteSignaled",
     [](Client& of) { return rdmaPASyncWriteSignaled(of.conn, of.local(), of.memory->lkey, of.physical, 64); }, true},
    {"rdmaPASyncReadSignaled",
     [](Client& of) { return rdmaPASyncReadSignaled(of.conn, of.local(), of.memory->lkey, of.physical, 64); }, true},
    {"rdmaPASyncFetchAdd", [](Client& of) { return rdmaPASyncFetchAdd(of.conn, of.physical, 1, nullptr); }, true},
    {"rdmaPAWriteSignaled",
     [](Client& of) {
       return complete(of, rdmaPAWriteSignaled(of.conn, of.local(), of.memory->lkey, of.physical, 64));
     },
     true},
};

[[nodiscard]] inline RdmaOptions options_under_test(const Transport& transport) {
  RdmaOptions options;
  rdmaOptionsInit(&options);
  options.device = transport.device.c_str();
  options.bootstrap = transport.bootstrap == Bootstrap::kCm ? RDMA_BOOTSTRAP_CM : RDMA_BOOTSTRAP_SOCKET;
  options.timeout_ms = 20'000;
  options.connect_timeout_ms = 20'000;
  return options;
}

/// A server's connection: with an export, of which it tells by a message.
inline void greet(RdmaConn* conn) {
  std::uint64_t physical = 0;
  if (const RdmaMemory* const memory = rdmaConnRegMem(conn, 4096); memory != nullptr)
    if (rdmaPAExport(conn, memory, &physical) != RDMA_OK) physical = 0;
  (void)rdmaConnSend(conn, &physical, sizeof physical);
}

/// With `ended`, which gets the connection's code, a thread of the library drives the connection.
inline void connect(Client& client, const Transport& transport, int port, Mailbox<int>* ended = nullptr) {
  const RdmaOptions options = options_under_test(transport);
  client.conn = rdmaConn();
  ASSERT_EQ(rdmaConnSetOptions(client.conn, &options), RDMA_OK);
  if (ended != nullptr) {
    ASSERT_EQ(
        rdmaConnOnDisconnect(
            client.conn, [](RdmaConn*, int code, void* user) { static_cast<Mailbox<int>*>(user)->put(code); }, ended),
        RDMA_OK);
  }
  ASSERT_EQ(rdmaConnect(client.conn, is_soft_under_test() ? "127.0.0.1" : nullptr, port), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnRecv(client.conn, &client.physical, sizeof client.physical, nullptr, -1), RDMA_OK)
      << rdmaErrorDetail();
  client.memory = rdmaConnRegMem(client.conn, 1 << 20);
  ASSERT_NE(client.memory, nullptr) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnPeerWindow(client.conn, &client.window), RDMA_OK);
}

}  // namespace verbena::test
