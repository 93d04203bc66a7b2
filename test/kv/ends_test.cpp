// How a client's connection ends while nobody uses it, and what the next call says of it: closed in order, or lost. The
// server is this program once more. The test waits for the event, then makes one call with a deadline that is never
// reached: a call that waits for the deadline does not return before the test's own time is over.
#include "ends.hpp"
#include "model.hpp"
#include "peer_end.hpp"

#include <verbena/kv.h>
#include <verbena/kv.hpp>

#include <array>
#include <csignal>
#include <deque>
#include <string>
#include <string_view>

namespace verbena::kv {
namespace {

using namespace testing_support;
using test::Peer;
using test::say;

using End = test::PeerEnd<Status>;  ///< What becomes of the peer, and what the calls return.
constexpr std::array kEnds{
    End{"TheServerStops", SIGUSR1, false, Status::kClosed},
    End{"TheProgramIsTerminated", SIGTERM, true, Status::kClosed},
    End{"TheProcessIsKilled", SIGKILL, true, Status::kPeerLost},
};

/// A client that has put "key", and has opened a cell.
struct Idle {
  std::unique_ptr<Client> client;
  Cell cell;
};

struct Call {
  const char* name;
  Status (*call)(Idle& idle);
};
std::array<std::byte, 100'000> buffer;

constexpr std::array kCalls{
    Call{"put", [](Idle& of) { return of.client->put(key_of("other"), bytes_of("value")).status; }},
    Call{"put, large", [](Idle& of) { return of.client->put(key_of("other"), buffer).status; }},
    Call{"get", [](Idle& of) { return of.client->get(key_of("key"), buffer).status; }},
    Call{"get, of nothing known", [](Idle& of) { return of.client->get(key_of("unknown"), buffer).status; }},
    Call{"get, large", [](Idle& of) { return of.client->get(key_of("large"), buffer).status; }},
    Call{"cas", [](Idle& of) { return of.client->cas(key_of("other"), 0, bytes_of("value")).status; }},
    Call{"erase", [](Idle& of) { return of.client->erase(key_of("other")).status; }},
    Call{"get of a batch",
         [](Idle& of) {
           std::array requests{GetRequest{.key = key_of("key"), .out = buffer, .outcome = {}}};
           of.client->get(requests);
           return requests[0].outcome.status;
         }},
    Call{"put of a batch",
         [](Idle& of) {
           std::array requests{PutRequest{.key = key_of("other"), .value = bytes_of("value"), .outcome = {}}};
           of.client->put(requests);
           return requests[0].outcome.status;
         }},
    Call{"start_get",
         [](Idle& of) {
           if (const Status started = of.client->start_get(key_of("key"), buffer, 1); started != Status::kOk)
             return started;
           std::array<Completion, 1> done;
           return of.client->wait(done, Deadline::never()) == 1 ? done[0].outcome.status : Status::kAgain;
         }},
    Call{"open_cell",
         [](Idle& of) {
           const auto opened = of.client->open_cell(key_of("another"), 0);
           return opened ? Status::kOk : opened.error().status();
         }},
    Call{"fetch_add",
         [](Idle& of) {
           std::uint64_t old = 0;
           return of.client->fetch_add(of.cell, 1, old);
         }},
    Call{"compare_swap",
         [](Idle& of) {
           std::uint64_t old = 0;
           return of.client->compare_swap(of.cell, 1, 2, old);
         }},
    Call{"read",
         [](Idle& of) {
           std::uint64_t value = 0;
           return of.client->read(of.cell, value);
         }},
    Call{"server_statistics",
         [](Idle& of) {
           const auto statistics = of.client->server_statistics(Deadline::never());
           return statistics ? Status::kOk : statistics.error().status();
         }},
};

void expect_text_of(Status status, std::string_view words) {
  for (const std::string_view wrong : {"cable", "firewall", "deadline"})
    EXPECT_EQ(words.find(wrong), words.npos) << words;
  EXPECT_NE(words.find(status == Status::kClosed ? "stopped" : "killed"), words.npos) << words;
}

class KvEnds : public testing::TestWithParam<std::tuple<End, Lookup>> {
 protected:
  void SetUp() override {
    port_ = server_.read_number();
    ASSERT_GT(port_, 0);
  }
  [[nodiscard]] static const End& end() { return std::get<0>(GetParam()); }
  [[nodiscard]] static Lookup lookup() { return std::get<1>(GetParam()); }
  void add_client() {
    ClientOptions options = client_options(static_cast<std::uint16_t>(port_));
    options.lookup = lookup();
    options.timeout = std::chrono::hours{1};
    Idle& idle = clients_.emplace_back();
    idle.client = connect(options);
    ASSERT_NE(idle.client, nullptr);
    ASSERT_EQ(idle.client->put(key_of("key"), bytes_of("value")).status, Status::kOk);
    ASSERT_EQ(idle.client->put(key_of("large"), std::span(buffer).first(50'000)).status, Status::kOk);
    const auto cell = idle.client->open_cell(key_of("cell"), 0);
    ASSERT_TRUE(cell) << cell.error().text();
    idle.cell = *cell;
  }

  Peer server_{{"obey"}};
  int port_ = 0;
  std::deque<Idle> clients_;
};

// Each call is the first of its client.
TEST_P(KvEnds, TheNextCallSaysWhichItWas) {
  for (std::size_t i = 0; i < kCalls.size(); ++i) ASSERT_NO_FATAL_FAILURE(add_client());
  ASSERT_NO_FATAL_FAILURE(end_by(server_, end()));
  for (std::size_t i = 0; i < kCalls.size(); ++i) {
    SCOPED_TRACE(kCalls[i].name);
    Idle& idle = clients_[i];
    Status status = kCalls[i].call(idle);
    // A process that was killed says nothing: until the kernel has told of it, its memory is there, and can be read.
    while (status == Status::kOk && end().outcome == Status::kPeerLost) status = kCalls[i].call(idle);
    EXPECT_EQ(status, end().outcome) << to_string(status);
    EXPECT_EQ(idle.client->connection_error().status(), end().outcome);
    expect_text_of(end().outcome, idle.client->connection_error().text());
    // And all others after it.
    for (const Call& other : kCalls) EXPECT_EQ(other.call(idle), end().outcome) << other.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ends, KvEnds,
                         testing::Combine(testing::ValuesIn(kEnds), testing::Values(Lookup::kAuto, Lookup::kMessage)),
                         [](const auto& each) {
                           const bool is_by_message = std::get<1>(each.param) == Lookup::kMessage;
                           return std::string(std::get<0>(each.param).name) + (is_by_message ? "ByMessage" : "");
                         });

// The same through the C API, whose text is that of the C calls.
TEST(KvEndsInC, TheNextCallSaysWhichItWas) {
  const Transport transport = test::transport_under_test();
  const auto mode = transport.bootstrap == Bootstrap::kCm ? CONN_MODE_CM : CONN_MODE_SOCKET;
  for (const End& end : kEnds) {
    SCOPED_TRACE(end.name);
    Peer server({"obey"});
    const int port = server.read_number();
    kv_client_options_t options;
    ASSERT_EQ(kv_client_options_init(&options), KV_OK);
    options.device = transport.device.c_str();
    options.timeout_ms = 3'600'000;
    kv_client_t* const client = kv_client_create(mode);
    ASSERT_EQ(kv_client_set_options(client, &options), KV_OK) << kv_error_detail();
    ASSERT_EQ(kv_client_connect(client, nullptr, port), KV_OK) << kv_error_detail();
    ASSERT_EQ(kv_client_put(client, "key", 3, "value", 5), KV_OK) << kv_error_detail();
    ASSERT_NO_FATAL_FAILURE(end_by(server, end));
    const int code = end.outcome == Status::kClosed ? KV_ERR_CLOSED : KV_ERR_PEER_LOST;
    std::size_t length = buffer.size();
    int got = kv_client_get(client, "key", 3, buffer.data(), &length);
    while (got == KV_OK && code == KV_ERR_PEER_LOST) {
      length = buffer.size();
      got = kv_client_get(client, "key", 3, buffer.data(), &length);
    }
    EXPECT_EQ(got, code) << kv_error_detail();
    expect_text_of(end.outcome, kv_error_detail());
    EXPECT_EQ(kv_client_put(client, "key", 3, "value", 5), code);
    expect_text_of(end.outcome, kv_error_detail());
    kv_client_destroy(client);
  }
}

}  // namespace

int obey() {
  // Blocked before any thread exists, so that only sigwaitinfo takes them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGUSR1, SIGTERM}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ServerOptions options = small_server();
  options.max_cells = 10;
  options.max_clients = 32;
  options.lease_bytes = std::size_t{256} << 10;
  const auto server = start(options);
  if (!server) return 1;
  say(server->port());
  for (;;) {
    const int signal = sigwaitinfo(&signals, nullptr);
    if (signal > 0) server->stop();
    if (signal == SIGTERM) return 0;
    if (signal > 0) say(signal);
  }
}

}  // namespace verbena::kv
