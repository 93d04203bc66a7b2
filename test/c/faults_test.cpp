// What ends under a call of the C API: the peer's process killed, the server stopped, a fork; within the deadline and
// with a code of its own. The peers are this program once more.
#include "fixture.hpp"

#include <capability.hpp>
#include <chaos.hpp>
#include <peer.hpp>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

namespace verbena::test {
namespace {

constexpr std::uint32_t kBytes = 4096;

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
int code_of(const Client& client, std::size_t sent) { return sent != 0 ? RDMA_OK : rdmaConnError(client.conn); }
int complete(Client& client, int code) {
  RdmaCompletion completion;
  if (code == RDMA_OK) code = rdmaConnComplete(client.conn, &completion, -1);
  return code == RDMA_OK ? completion.code : code;
}

const Call kCalls[] = {
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

RdmaOptions options_under_test(const Transport& transport) {
  RdmaOptions options;
  rdmaOptionsInit(&options);
  options.device = transport.device.c_str();
  options.bootstrap = transport.bootstrap == Bootstrap::kCm ? RDMA_BOOTSTRAP_CM : RDMA_BOOTSTRAP_SOCKET;
  options.timeout_ms = 20'000;
  options.connect_timeout_ms = 20'000;
  return options;
}

/// A server's connection: with an export, of which it tells by a message.
void greet(RdmaConn* conn) {
  std::uint64_t physical = 0;
  if (const RdmaMemory* const memory = rdmaConnRegMem(conn, 4096); memory != nullptr)
    if (rdmaPAExport(conn, memory, &physical) != RDMA_OK) physical = 0;
  (void)rdmaConnSend(conn, &physical, sizeof physical);
}

[[nodiscard]] RdmaListener* start_server(const Transport& transport) {
  const RdmaOptions options = options_under_test(transport);
  RdmaListener* server = nullptr;
  if (rdmaServer(&server, is_soft_under_test() ? "127.0.0.1" : nullptr, 0) != RDMA_OK ||
      rdmaServerSetOptions(server, &options) != RDMA_OK || rdmaServerSetAcceptCallback(server, greet) != RDMA_OK ||
      rdmaServerStart(server) != RDMA_OK) {
    std::fprintf(stderr, "%s\n", rdmaErrorDetail());
    rdmaServerRelease(server);
    return nullptr;
  }
  return server;
}

void connect(Client& client, const Transport& transport, int port) {
  const RdmaOptions options = options_under_test(transport);
  client.conn = rdmaConn();
  ASSERT_EQ(rdmaConnSetOptions(client.conn, &options), RDMA_OK);
  ASSERT_EQ(rdmaConnect(client.conn, is_soft_under_test() ? "127.0.0.1" : nullptr, port), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnRecv(client.conn, &client.physical, sizeof client.physical, nullptr, -1), RDMA_OK)
      << rdmaErrorDetail();
  client.memory = rdmaConnRegMem(client.conn, 1 << 20);
  ASSERT_NE(client.memory, nullptr) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnPeerWindow(client.conn, &client.window), RDMA_OK);
}

/// Calls until it fails; how it failed. `done` counts what succeeded.
int call_until_it_fails(const Call& call, Client& client, std::atomic<bool>& is_inside) {
  int code = RDMA_OK;
  while (code == RDMA_OK) {
    code = call.call(client);
    is_inside = true;
  }
  return code;
}

class RdmaFaults : public testing::TestWithParam<Call> {};

// The peer is killed while the call is under way, or between two of them.
TEST_P(RdmaFaults, ThePeersProcessIsKilledInsideACall) {
  const Transport transport = transport_under_test();
  Peer peer({"server"});
  const int port = peer.read_number();
  ASSERT_GT(port, 0);
  Client client;
  connect(client, transport, port);
  if (HasFatalFailure()) return;
  if (GetParam().needs_physical && client.physical == 0) GTEST_SKIP() << "without CAP_SYS_ADMIN";
  std::atomic<bool> is_inside{false};
  std::thread caller([&] {
    const int code = call_until_it_fails(GetParam(), client, is_inside);
    EXPECT_TRUE(code == RDMA_ERR_PEER_LOST || (!is_soft_under_test() && code == RDMA_ERR_RETRY_EXCEEDED))
        << GetParam().name << ": " << code << ' ' << rdmaErrorString(code);
  });
  // The two that wait for the peer do not return before.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds{50};
  while (!is_inside && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
  peer.kill();
  caller.join();
  EXPECT_EQ(rdmaConnIsConnected(client.conn), 0);
  // The next one says it too, at once.
  EXPECT_NE(GetParam().call(client), RDMA_OK);
  rdmaConnClose(client.conn);
}

TEST_P(RdmaFaults, TheServerStopsWithAClientInsideACall) {
  const Transport transport = transport_under_test();
  RdmaListener* const server = start_server(transport);
  ASSERT_NE(server, nullptr);
  Client client;
  connect(client, transport, rdmaServerPort(server));
  if (HasFatalFailure()) return;
  if (GetParam().needs_physical && client.physical == 0) {
    rdmaConnClose(client.conn);
    rdmaServerRelease(server);
    GTEST_SKIP() << "without CAP_SYS_ADMIN";
  }
  std::atomic<bool> is_inside{false};
  std::thread caller([&] {
    const int code = call_until_it_fails(GetParam(), client, is_inside);
    EXPECT_TRUE(code == RDMA_ERR_CLOSED || code == RDMA_ERR_PEER_LOST)
        << GetParam().name << ": " << code << ' ' << rdmaErrorString(code);
  });
  const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds{50};
  while (!is_inside && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
  EXPECT_EQ(rdmaServerStop(server), RDMA_OK);
  caller.join();
  EXPECT_EQ(rdmaConnIsConnected(client.conn), 0);
  rdmaConnClose(client.conn);
  rdmaServerRelease(server);
}

INSTANTIATE_TEST_SUITE_P(Calls, RdmaFaults, testing::ValuesIn(kCalls), [](const auto& call) {
  std::string name = call.param.name;
  std::erase_if(name, [](char c) { return c == ',' || c == ' '; });
  return name;
});

class RdmaFaultsApi : public RdmaApi {};

// A child that ends without a call takes nothing with it.
TEST_F(RdmaFaultsApi, AChildOfAForkTakesNothingWithIt) {
  start();
  RdmaConn* const conn = connect();
  const RdmaMemory* const memory = rdmaConnRegMem(conn, kBytes);
  ASSERT_NE(memory, nullptr) << rdmaErrorDetail();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  RdmaWindow window;
  ASSERT_EQ(rdmaConnPeerWindow(conn, &window), RDMA_OK);
  const auto local = reinterpret_cast<std::uintptr_t>(memory->addr);
  EXPECT_EQ(rdmaSyncWriteSignaled(conn, local, memory->lkey, window.addr, window.rkey, kBytes), RDMA_OK);
  EXPECT_EQ(rdmaConnSend(conn, "x", 1), 1u);
  EXPECT_EQ(rdmaConnIsConnected(conn), 1);
}

// In a child that has given the capability up, and has a server and a client of its own.
TEST(RdmaPrivilege, WithoutItTheErrorNamesItAndTheRestGoesOn) {
  Peer peer({"unprivileged"});
  // Lines of the child that are not numbers end the reading: it says what was wrong on its standard error.
  EXPECT_EQ(peer.read_number(), 0);
}

int be_server() {
  RdmaListener* const server = start_server(transport_under_test());
  if (server == nullptr) return 1;
  std::printf("%d\n", rdmaServerPort(server));
  std::fflush(stdout);
  return rdmaServerWait(server);
}

int be_unprivileged() {
  if (has_capability(CAP_SYS_ADMIN) && !drop_capability(CAP_SYS_ADMIN)) return 1;
  const Transport transport = transport_under_test();
  RdmaListener* const server = start_server(transport);
  if (server == nullptr) return 1;
  Client client;
  connect(client, transport, rdmaServerPort(server));
  int failed = testing::Test::HasFailure() ? 1 : 0;
  const auto expect = [&](bool is_right, const char* what) {
    if (is_right) return;
    std::fprintf(stderr, "%s: %s\n", what, rdmaErrorDetail());
    failed = 1;
  };
  std::uint64_t physical = 0;
  expect(client.physical == 0, "the server exports");
  expect(rdmaPAExport(client.conn, client.memory, &physical) == RDMA_ERR_PERMISSION, "export");
  expect(std::string_view(rdmaErrorDetail()).find("CAP_SYS_ADMIN") != std::string_view::npos, "the capability's name");
  expect(rdmaConnError(client.conn) == RDMA_ERR_PERMISSION, "the connection's code");
  expect(rdmaPAAddress(nullptr, client.memory->addr, &physical) == RDMA_ERR_PERMISSION, "address");
  for (const Call& call : kCalls) {
    if (call.needs_physical || std::strcmp(call.name, "rdmaConnRecv") == 0 ||
        std::strcmp(call.name, "rdmaConnLookup") == 0)
      continue;
    expect(call.call(client) == RDMA_OK, call.name);
  }
  rdmaConnClose(client.conn);
  rdmaServerRelease(server);
  std::printf("%d\n", failed);
  std::fflush(stdout);
  return failed;
}

}  // namespace

int peer_main(std::string_view what) { return what == "server" ? be_server() : be_unprivileged(); }

}  // namespace verbena::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc <= 2 || std::string_view(argv[1]) != "peer") return RUN_ALL_TESTS();
  verbena::test::die_with_the_test();
  return verbena::test::peer_main(argv[2]);
}
