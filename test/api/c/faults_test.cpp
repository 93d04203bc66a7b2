// What ends under a call of the C API: the peer's process killed, the server stopped, a fork; within the deadline and
// with a code of its own. The peers are this program once more.
#include "calls.hpp"
#include "ends.hpp"

#include <capability.hpp>
#include <deny.hpp>
#include <device.hpp>
#include <peer.hpp>
#include <unserved_pages.hpp>

#include <grp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

namespace verbena::test {
namespace {

constexpr unsigned kStranger = 65534;

/// What the window of a server is.
enum class WindowOf : std::uint8_t { kArena, kUser, kNobody };

alignas(4096) std::byte own[kBytes];  // Whole pages.
static_assert(kBytes % 4096 == 0);

/// The window is registered by then. Prints 0, or -errno.
void withdraw_and_greet(RdmaConn* conn) {
  static const Fd unserved = take_pages_away(own, sizeof own);
  std::printf("%d\n", unserved ? 0 : -errno);
  std::fflush(stdout);
  greet(conn);
}

[[nodiscard]] RdmaListener* start_server(const Transport& transport, WindowOf window = WindowOf::kArena) {
  RdmaOptions options = options_under_test(transport);
  if (window != WindowOf::kArena) {
    options.window = own;
    options.window_bytes = sizeof own;
  }
  RdmaListener* server = nullptr;
  if (rdmaServer(&server, is_soft_under_test() ? "127.0.0.1" : nullptr, 0) != RDMA_OK ||
      rdmaServerSetOptions(server, &options) != RDMA_OK ||
      rdmaServerSetAcceptCallback(server, window == WindowOf::kNobody ? withdraw_and_greet : greet) != RDMA_OK ||
      rdmaServerStart(server) != RDMA_OK) {
    std::fprintf(stderr, "%s\n", rdmaErrorDetail());
    rdmaServerRelease(server);
    return nullptr;
  }
  return server;
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
    // A kernel takes a killed process's registrations away before its queue pairs: what arrives in between is refused.
    const bool is_of_a_device = code == RDMA_ERR_RETRY_EXCEEDED || code == RDMA_ERR_REMOTE_ACCESS;
    EXPECT_TRUE(code == RDMA_ERR_PEER_LOST || (!is_soft_under_test() && is_of_a_device))
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

// Where the kernel refuses copies between processes, the peer's own thread makes them, and that can be stopped.
TEST(RdmaDeadline, TheUsersMemoryIsTheUsersAgainWhenACallTimesOut) {
  VERBENA_SKIP_ON_A_DEVICE("a device goes on when its process is stopped");
  Peer peer({"timing out"});
  EXPECT_EQ(peer.read_number(), 0);
}

// Its pages never come, so no thread that waits for them may be the caller's.
TEST(RdmaDeadline, PagesThatNeverComeHoldUpNoCall) {
  VERBENA_SKIP_ON_A_DEVICE("a device copies pinned pages");
  for (const bool is_read : {true, false}) {
    Peer server({"server of unserved window"});
    Client client;
    ASSERT_NO_FATAL_FAILURE(connect(client, transport_under_test(), server.read_number()));
    const int withdrawn = server.read_number();
    if (withdrawn < 0) GTEST_SKIP() << "no userfaultfd that stops the kernel's accesses: " << std::strerror(-withdrawn);
    ASSERT_EQ(rdmaConnSetTimeout(client.conn, 100), RDMA_OK);  // Less than the retries take.
    const Deadline far_off = Deadline::after(std::chrono::seconds{10});
    const auto call = is_read ? rdmaSyncReadSignaled : rdmaSyncWriteSignaled;
    EXPECT_EQ(call(client.conn, client.local(), client.memory->lkey, client.window.addr, client.window.rkey, kBytes),
              RDMA_ERR_TIMED_OUT);
    rdmaConnClose(client.conn);
    EXPECT_FALSE(far_off.passed());
  }
}

// The client is a process of another user, which the server's options allow or do not.
TEST_F(RdmaFaultsApi, OptionsSayWhichOtherUsersMayConnect) {
  VERBENA_SKIP_ON_A_DEVICE("only the software NIC asks who the peer is");
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to start a process of another user";
  const std::array<unsigned, 2> users{kStranger + 1, kStranger};
  for (const std::size_t allowed : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    options.allowed_uids = users.data();
    options.allowed_uid_count = allowed;
    start();
    Peer peer({"stranger", std::to_string(port)});
    const int code = peer.read_number();
    if (allowed == users.size()) {
      EXPECT_EQ(code, RDMA_OK) << rdmaErrorString(code);
    } else {
      EXPECT_EQ(code, RDMA_ERR_NOT_ALLOWED) << rdmaErrorString(code);
    }
    peer.wait();
    rdmaServerRelease(std::exchange(server, nullptr));
  }
}

// The same for the users of a node.
TEST_F(RdmaFaultsApi, ANodesOptionsSayWhichOtherUsersMayConnect) {
  VERBENA_SKIP_ON_A_DEVICE("only the software NIC asks who the peer is");
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to start a process of another user";
  const unsigned user = kStranger;
  RdmaNodeOptions wanted;
  rdmaNodeOptionsInit(&wanted);
  wanted.device = options.device;
  wanted.bootstrap = options.bootstrap;
  wanted.allowed_uids = &user;
  wanted.allowed_uid_count = 1;
  RdmaNode* node = nullptr;
  ASSERT_EQ(rdmaNode(&node, &wanted), RDMA_OK) << rdmaErrorDetail();
  options.node = node;
  start();
  {
    Peer peer({"stranger", std::to_string(port)});
    EXPECT_EQ(peer.read_number(), RDMA_OK);
    peer.wait();
  }
  rdmaServerRelease(std::exchange(server, nullptr));
  rdmaNodeRelease(node);
}

/// Becomes another user and connects; prints the code.
int be_stranger(const char* port) {
  if (setgroups(0, nullptr) != 0 || setresgid(kStranger, kStranger, kStranger) != 0 ||
      setresuid(kStranger, kStranger, kStranger) != 0)
    return 1;
  prctl(PR_SET_DUMPABLE, 1);  // As a process has it that the user has started.
  die_with_the_test();
  const Transport transport = transport_under_test();
  RdmaOptions options = options_under_test(transport);
  RdmaConn* const conn = rdmaConn();
  int code = rdmaConnSetOptions(conn, &options);
  if (code == RDMA_OK) code = rdmaConnect(conn, "127.0.0.1", std::atoi(port));
  if (code != RDMA_OK) std::fprintf(stderr, "%s\n", rdmaErrorDetail());
  rdmaConnClose(conn);
  std::printf("%d\n", code);
  std::fflush(stdout);
  return 0;
}

int be_server(WindowOf window) {
  RdmaListener* const server = start_server(transport_under_test(), window);
  if (server == nullptr) return 1;
  std::printf("%d\n", rdmaServerPort(server));
  std::fflush(stdout);
  return rdmaServerWait(server);
}

/// What is not as it should be, on standard error; their number on standard output, for the test.
class Report {
 public:
  void expect(bool is_right, const char* what) {
    if (is_right) return;
    std::fprintf(stderr, "%s: %s\n", what, rdmaErrorDetail());
    ++failed_;
  }
  int end() const {
    std::printf("%d\n", failed_);
    std::fflush(stdout);
    return failed_;
  }

 private:
  int failed_ = 0;
};

int be_timing_out() {
  Report report;
  Peer server({"server of own window"});
  Client client;
  // Before the NIC has the thread that makes these calls.
  report.expect(deny(SYS_process_vm_readv, 1, EPERM) && deny(SYS_process_vm_writev, 1, EPERM), "seccomp");
  connect(client, transport_under_test(), server.read_number());
  report.expect(!testing::Test::HasFailure(), "connect");
  const auto read = [&] {
    return rdmaSyncReadSignaled(client.conn, client.local(), client.memory->lkey, client.window.addr,
                                client.window.rkey, kBytes);
  };
  report.expect(read() == RDMA_OK, "a read by the peer's thread");
  auto* const bytes = static_cast<std::byte*>(client.memory->addr);
  std::memset(bytes, 1, kBytes);
  server.pause();
  report.expect(rdmaConnSetTimeout(client.conn, 50) == RDMA_OK, "timeout");
  // Through chunks of the library's own: the connection goes on.
  std::byte any[64]{};
  report.expect(rdmaConnRead(client.conn, any, sizeof any) == RDMA_ERR_TIMED_OUT, "a read of any memory");
  report.expect(rdmaConnIsConnected(client.conn) == 1, "it goes on");
  report.expect(rdmaSyncFetchAdd(client.conn, client.window.addr, client.window.rkey, 1, nullptr) == RDMA_ERR_TIMED_OUT,
                "an atomic");
  report.expect(rdmaConnIsConnected(client.conn) == 1, "it goes on after an atomic");
  // In the user's own memory: it is dead before the call returns, and nothing comes late.
  report.expect(read() == RDMA_ERR_TIMED_OUT, "a read of registered memory");
  report.expect(rdmaConnIsConnected(client.conn) == 0, "it is dead");
  report.expect(rdmaConnError(client.conn) == RDMA_ERR_TIMED_OUT, "the reason");
  server.resume();
  report.expect(read() == RDMA_ERR_TIMED_OUT, "the reason again");
  report.expect(rdmaConnSend(client.conn, any, sizeof any) == 0, "a message");
  for (std::uint32_t i = 0; i < kBytes; ++i) report.expect(bytes[i] == std::byte{1}, "a byte came late");
  rdmaConnClose(client.conn);
  return report.end();
}

int be_unprivileged() {
  if (has_capability(CAP_SYS_ADMIN) && !drop_capability(CAP_SYS_ADMIN)) return 1;
  const Transport transport = transport_under_test();
  RdmaListener* const server = start_server(transport);
  if (server == nullptr) return 1;
  Client client;
  connect(client, transport, rdmaServerPort(server));
  Report report;
  report.expect(!testing::Test::HasFailure(), "connect");
  std::uint64_t physical = 0;
  report.expect(client.physical == 0, "the server exports");
  report.expect(rdmaPAExport(client.conn, client.memory, &physical) == RDMA_ERR_PERMISSION, "export");
  report.expect(std::string_view(rdmaErrorDetail()).find("CAP_SYS_ADMIN") != std::string_view::npos,
                "the capability's name");
  report.expect(rdmaConnError(client.conn) == RDMA_ERR_PERMISSION, "the connection's code");
  report.expect(rdmaPAAddress(nullptr, client.memory->addr, &physical) == RDMA_ERR_PERMISSION, "address");
  for (const Call& call : kCalls) {
    if (call.needs_physical || std::strcmp(call.name, "rdmaConnRecv") == 0 ||
        std::strcmp(call.name, "rdmaConnLookup") == 0)
      continue;
    report.expect(call.call(client) == RDMA_OK, call.name);
  }
  rdmaConnClose(client.conn);
  rdmaServerRelease(server);
  return report.end();
}

}  // namespace

int peer_main(std::string_view what, const char* argument) {
  if (what == "server") return be_server(WindowOf::kArena);
  if (what == "obey") return obey();
  if (what == "server of own window") return be_server(WindowOf::kUser);
  if (what == "server of unserved window") return be_server(WindowOf::kNobody);
  if (what == "stranger") return be_stranger(argument);
  return what == "unprivileged" ? be_unprivileged() : be_timing_out();
}

}  // namespace verbena::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc <= 2 || std::string_view(argv[1]) != "peer") return RUN_ALL_TESTS();
  verbena::test::die_with_the_test();
  return verbena::test::peer_main(argv[2], argc > 3 ? argv[3] : "");
}
