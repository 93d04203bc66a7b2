// How connections end while nobody uses them, and what the next call says of it: closed in order, or lost. The peer is
// this program once more, or a listener of the test's own. The test waits for the event, then makes one call with a
// deadline that is never reached: a call that waits for the deadline does not return before the test's own time is
// over.
#include "ends.hpp"
#include "fixture.hpp"

#include <peer_end.hpp>

#include <array>
#include <csignal>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace verbena::rdma {
namespace {

using test::Driver;
using test::Peer;
using test::say;

constexpr std::chrono::hours kNever{1};

using End = test::PeerEnd<Status>;  ///< What becomes of the peer, and what the calls return.
constexpr std::array kEnds{
    End{"ThePeerCloses", SIGUSR1, false, Status::kClosed},
    End{"TheListenerStops", SIGUSR2, false, Status::kClosed},
    End{"TheProgramIsTerminated", SIGTERM, true, Status::kClosed},
    End{"TheProcessIsKilled", SIGKILL, true, Status::kPeerLost},
};

struct Client {
  std::unique_ptr<Calls> handler;  ///< Outlives the connection.
  ConnectionPtr connection;
  Memory memory;
};

template <class T>
[[nodiscard]] Status status_of(const std::expected<T, Status>& result) {
  return result ? Status::kOk : result.error();
}

struct Call {
  const char* name;
  Status (*call)(Client& client);
};
std::array<std::byte, 64> some;
Status complete(Client& of, Status started) {
  if (started != Status::kOk) return started;
  const auto completion = of.connection->complete();
  return completion ? completion->status : completion.error();
}
[[nodiscard]] Remote there(const Client& of) { return of.connection->peer_window().at(0, 8); }

constexpr std::array kCalls{
    Call{"receive", [](Client& of) { return status_of(of.connection->receive(some)); }},
    Call{"send", [](Client& of) { return of.connection->send(some); }},
    Call{"send_with_immediate", [](Client& of) { return of.connection->send_with_immediate(some, 1); }},
    Call{"write", [](Client& of) { return of.connection->write(some); }},
    Call{"write, long",
         [](Client& of) {
           static const Bytes bytes(300'000);
           return of.connection->write(bytes);
         }},
    Call{"read", [](Client& of) { return of.connection->read(some); }},
    Call{"write of registered memory", [](Client& of) { return of.connection->write(of.memory.at(0, 8), there(of)); }},
    Call{"read into registered memory", [](Client& of) { return of.connection->read(of.memory.at(0, 8), there(of)); }},
    Call{"write_with_immediate", [](Client& of) { return of.connection->write_with_immediate(some, 1); }},
    Call{"fetch_add", [](Client& of) { return status_of(of.connection->fetch_add(there(of), 1)); }},
    Call{"compare_swap", [](Client& of) { return status_of(of.connection->compare_swap(there(of), 1, 2)); }},
    Call{"start_write",
         [](Client& of) { return complete(of, of.connection->start_write(of.memory.at(0, 8), there(of), 1)); }},
    Call{"start_read",
         [](Client& of) { return complete(of, of.connection->start_read(of.memory.at(0, 8), there(of), 1)); }},
    Call{"start_fetch_add", [](Client& of) { return complete(of, of.connection->start_fetch_add(there(of), 1, 1)); }},
    Call{"find",
         [](Client& of) {
           const auto found = of.connection->find("nobody's");
           return found ? Status::kOk : found.error().status();
         }},
};

void expect_text_of(Status status, std::string_view words) {
  for (const std::string_view wrong : {"cable", "firewall", "deadline"})
    EXPECT_EQ(words.find(wrong), words.npos) << words;
  if (status == Status::kClosed) {
    EXPECT_NE(words.find("closed"), words.npos) << words;
  }
}

class RdmaCxxEnds : public RdmaCxx, public testing::WithParamInterface<std::tuple<End, Driver>> {
 protected:
  [[nodiscard]] static const End& end() { return std::get<0>(GetParam()); }
  [[nodiscard]] static bool has_thread() { return std::get<1>(GetParam()) == Driver::kThread; }
  void start_peer() {
    peer_ = std::make_unique<Peer>(std::vector<std::string>{"obey"});
    const int port = peer_->read_number();
    ASSERT_GT(port, 0);
    options.port = static_cast<std::uint16_t>(port);
  }
  /// An idle client, whose connection the peer has taken.
  void add_client() {
    Client& client = clients_.emplace_back();
    if (has_thread()) client.handler = std::make_unique<Calls>();
    options.handler = client.handler.get();
    client.connection = connect();
    ASSERT_NE(client.connection, nullptr);
    auto memory = client.connection->allocate(4096);
    ASSERT_OK(memory);
    client.memory = std::move(*memory);
    if (peer_) {
      ASSERT_TRUE(client.connection->receive(some).has_value()) << error_detail();
    }
    client.connection->set_timeout(kNever);
  }
  void expect_end(Client& client, const Call& call) {
    SCOPED_TRACE(call.name);
    Status status = call.call(client);
    // A process that was killed says nothing: until the kernel has told of it, its memory is there, and takes writes.
    while (status == Status::kOk && end().outcome == Status::kPeerLost) status = call.call(client);
    EXPECT_EQ(status, end().outcome) << to_string(status);
    if (std::string_view(call.name) != "find") expect_text_of(end().outcome, error_detail());
    EXPECT_FALSE(client.connection->is_connected());
    EXPECT_EQ(client.connection->failure(), end().outcome);
  }

  std::unique_ptr<Peer> peer_;
  std::deque<Client> clients_;
};

// Each call is the first of its client.
TEST_P(RdmaCxxEnds, TheNextCallSaysWhichItWas) {
  ASSERT_NO_FATAL_FAILURE(start_peer());
  for (std::size_t i = 0; i < kCalls.size(); ++i) ASSERT_NO_FATAL_FAILURE(add_client());
  ASSERT_NO_FATAL_FAILURE(end_by(*peer_, end()));
  for (std::size_t i = 0; i < kCalls.size(); ++i) expect_end(clients_[i], kCalls[i]);
}

TEST_P(RdmaCxxEnds, IsConnectedKnowsWithoutAnotherCall) {
  ASSERT_NO_FATAL_FAILURE(start_peer());
  ASSERT_NO_FATAL_FAILURE(add_client());
  Connection& connection = *clients_[0].connection;
  ASSERT_TRUE(connection.is_connected());
  ASSERT_NO_FATAL_FAILURE(end_by(*peer_, end()));
  if (has_thread()) {
    EXPECT_EQ(clients_[0].handler->ended.take(), end().outcome);
  }
  // Of the kernel's RDMA the news of a process that was killed travels by itself; all else is there before.
  const bool is_there = test::is_soft_under_test() || end().outcome == Status::kClosed || has_thread();
  while (!is_there && connection.is_connected()) {}
  EXPECT_FALSE(connection.is_connected());
  EXPECT_EQ(connection.failure(), end().outcome);
}

// The listener and the clients have one process, and on a machine without others one NIC.
TEST_P(RdmaCxxEnds, InOneProcess) {
  if (end().has_ended) GTEST_SKIP() << "the test's own process goes on";
  start();
  std::vector<ConnectionPtr> accepted;
  for (std::size_t i = 0; i < kCalls.size() + 1; ++i) {
    ASSERT_NO_FATAL_FAILURE(add_client());
    accepted.push_back(accept());
  }
  end().signal == SIGUSR1 ? accepted.clear() : server->stop();
  for (std::size_t i = 0; i < kCalls.size(); ++i) expect_end(clients_[i], kCalls[i]);
  if (has_thread()) {
    EXPECT_EQ(clients_.back().handler->ended.take(), end().outcome);
  }
  EXPECT_FALSE(clients_.back().connection->is_connected());
}

INSTANTIATE_TEST_SUITE_P(Ends, RdmaCxxEnds,
                         testing::Combine(testing::ValuesIn(kEnds), testing::Values(Driver::kCaller, Driver::kThread)),
                         test::kEndName);

/// Keeps all connections, and greets them.
struct Keeper final : Handler {
  void on_accept(Connection& connection) noexcept override {
    const std::lock_guard lock(mutex);  // The test may go on once it is greeted, and have all of them closed.
    connections.push_back(connection.keep());
    (void)connection.send(some);
  }
  void close_all() {
    std::vector<ConnectionPtr> closed;
    const std::lock_guard lock(mutex);
    closed.swap(connections);
  }
  std::mutex mutex;
  std::vector<ConnectionPtr> connections;
};

}  // namespace

int obey() {
  // Blocked before any thread exists, so that only sigwaitinfo takes them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Keeper keeper;
  const auto listener = Listener::start({.transport = test::transport_under_test(),
                                         .address = test::is_soft_under_test() ? "127.0.0.1" : "",
                                         .port = 0,
                                         .handler = &keeper});
  if (!listener) {
    std::fprintf(stderr, "%s\n", listener.error().text());
    return 1;
  }
  say((*listener)->port());
  for (;;) {
    const int signal = sigwaitinfo(&signals, nullptr);
    if (signal == SIGUSR1) {
      keeper.close_all();
    } else if (signal > 0) {
      (*listener)->stop();
    }
    if (signal == SIGTERM) return 0;
    if (signal > 0) say(signal);
  }
}

}  // namespace verbena::rdma
