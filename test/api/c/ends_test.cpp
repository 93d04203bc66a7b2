// How connections end while nobody uses them, and what the next call says of it: closed in order, or lost. The peer is
// this program once more. The test waits for the event, then makes one call with a deadline that is never reached: a
// call that waits for the deadline does not return before the test's own time is over.
#include "ends.hpp"
#include "calls.hpp"

#include <peer_end.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <deque>
#include <string_view>
#include <vector>

namespace verbena::test {
namespace {

constexpr unsigned kNeverMs = 3'600'000;

using End = PeerEnd<int>;  ///< What becomes of the peer, and what the calls return.
constexpr End kEnds[] = {
    {"ThePeerCloses", SIGUSR1, false, RDMA_ERR_CLOSED},
    {"TheListenerStops", SIGUSR2, false, RDMA_ERR_CLOSED},
    {"TheProgramIsTerminated", SIGTERM, true, RDMA_ERR_CLOSED},
    {"TheProcessIsKilled", SIGKILL, true, RDMA_ERR_PEER_LOST},
};

// Of the kernel's RDMA the news of a process that was killed travels by itself; all else is there before.
[[nodiscard]] bool is_known_at_once(const End& end) { return is_soft_under_test() || end.outcome == RDMA_ERR_CLOSED; }

void expect_text_of(const End& end, const char* call) {
  const std::string_view words = rdmaErrorDetail();
  for (const std::string_view wrong : {"cable", "firewall", "deadline"})
    EXPECT_EQ(words.find(wrong), words.npos) << call << ": " << words;
  if (end.outcome == RDMA_ERR_CLOSED) {
    EXPECT_NE(words.find("closed"), words.npos) << call << ": " << words;
  }
}

class RdmaEnds : public testing::TestWithParam<std::tuple<End, Driver>> {
 protected:
  void SetUp() override {
    port_ = peer_.read_number();
    ASSERT_GT(port_, 0);
  }
  ~RdmaEnds() override {
    for (const Client& client : clients_) rdmaConnClose(client.conn);
  }
  [[nodiscard]] static const End& end() { return std::get<0>(GetParam()); }
  [[nodiscard]] static bool has_thread() { return std::get<1>(GetParam()) == Driver::kThread; }
  /// An idle client.
  void add_client() {
    clients_.emplace_back();
    connect(clients_.back(), transport_, port_, has_thread() ? &ended_ : nullptr);
    if (HasFatalFailure()) return;
    ASSERT_EQ(rdmaConnSetTimeout(clients_.back().conn, kNeverMs), RDMA_OK);
  }

  Peer peer_{{"obey"}};
  Transport transport_ = transport_under_test();
  int port_ = 0;
  Mailbox<int> ended_;
  std::deque<Client> clients_;
};

// Each call is the first of its client.
TEST_P(RdmaEnds, TheNextCallSaysWhichItWas) {
  for (std::size_t i = 0; i < std::size(kCalls); ++i) ASSERT_NO_FATAL_FAILURE(add_client());
  ASSERT_NO_FATAL_FAILURE(end_by(peer_, end()));
  for (std::size_t i = 0; i < std::size(kCalls); ++i) {
    Client& client = clients_[i];
    if (kCalls[i].needs_physical && client.physical == 0) continue;
    SCOPED_TRACE(kCalls[i].name);
    int code = kCalls[i].call(client);
    // A process that was killed says nothing: until the kernel has told of it, its memory is there, and takes writes.
    while (code == RDMA_OK && end().outcome == RDMA_ERR_PEER_LOST) code = kCalls[i].call(client);
    EXPECT_EQ(code, end().outcome) << rdmaErrorString(code);
    expect_text_of(end(), kCalls[i].name);
    EXPECT_EQ(rdmaConnIsConnected(client.conn), 0);
    EXPECT_EQ(rdmaConnError(client.conn), end().outcome);
  }
}

TEST_P(RdmaEnds, IsConnectedKnowsWithoutAnotherCall) {
  ASSERT_NO_FATAL_FAILURE(add_client());
  ASSERT_EQ(rdmaConnIsConnected(clients_[0].conn), 1);
  ASSERT_NO_FATAL_FAILURE(end_by(peer_, end()));
  if (has_thread()) {
    EXPECT_EQ(ended_.take(), end().outcome);
  }
  if (is_known_at_once(end()) || has_thread()) {
    EXPECT_EQ(rdmaConnIsConnected(clients_[0].conn), 0);
  } else {
    while (rdmaConnIsConnected(clients_[0].conn) == 1) {}
  }
  EXPECT_EQ(rdmaConnError(clients_[0].conn), end().outcome);
}

// What the peer has sent before is still received, and then the reason.
TEST_P(RdmaEnds, ReceiveReturnsWhatCameBeforeAndThenTheReason) {
  ASSERT_NO_FATAL_FAILURE(add_client());
  RdmaConn* const conn = clients_[0].conn;
  ASSERT_EQ(rdmaConnSend(conn, "echo", 4), 4u) << rdmaErrorDetail();
  ASSERT_EQ(peer_.read_number(), 0) << "the peer has not answered";
  ASSERT_NO_FATAL_FAILURE(end_by(peer_, end()));
  std::array<char, 16> buffer{};
  RdmaMessage message;
  ASSERT_EQ(rdmaConnRecv(conn, buffer.data(), buffer.size(), &message, -1), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(std::string_view(buffer.data(), message.length), "echo");
  EXPECT_EQ(rdmaConnRecv(conn, buffer.data(), buffer.size(), &message, -1), end().outcome) << rdmaErrorDetail();
  expect_text_of(end(), "rdmaConnRecv");
}

INSTANTIATE_TEST_SUITE_P(Ends, RdmaEnds,
                         testing::Combine(testing::ValuesIn(kEnds), testing::Values(Driver::kCaller, Driver::kThread)),
                         kEndName);

}  // namespace

int obey() {
  // Blocked before any thread exists, so that only sigwaitinfo takes them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const Transport transport = transport_under_test();
  const RdmaOptions options = options_under_test(transport);
  RdmaListener* server = nullptr;
  Mailbox<RdmaConn*> conns;
  const auto accepted = [](RdmaConn* conn, void* user) {
    (void)rdmaConnKeep(conn);
    static_cast<Mailbox<RdmaConn*>*>(user)->put(conn);
    greet(conn);
  };
  const auto echo = [](RdmaConn* conn, const RdmaMessage* message, void*) {
    if (message->kind != RDMA_MESSAGE) return;
    (void)rdmaConnSend(conn, message->data, message->length);
    say(0);
  };
  if (rdmaServer(&server, is_soft_under_test() ? "127.0.0.1" : nullptr, 0) != RDMA_OK ||
      rdmaServerSetOptions(server, &options) != RDMA_OK || rdmaServerOnAccept(server, accepted, &conns) != RDMA_OK ||
      rdmaServerOnMessage(server, echo, nullptr) != RDMA_OK || rdmaServerStart(server) != RDMA_OK) {
    std::fprintf(stderr, "%s\n", rdmaErrorDetail());
    return 1;
  }
  say(rdmaServerPort(server));
  for (;;) {
    const int signal = sigwaitinfo(&signals, nullptr);
    if (signal == SIGUSR1) {
      while (!conns.empty()) rdmaConnClose(conns.take());
    } else if (signal > 0) {
      (void)rdmaServerStop(server);
    }
    if (signal == SIGTERM) return 0;
    if (signal > 0) say(signal);
  }
}

}  // namespace verbena::test
