// Server and clients in several processes, and what is left when one of them is killed.
#include "process.hpp"
#include "ends.hpp"
#include "model.hpp"
#include "peer.hpp"
#include "result.hpp"
#include "sanitized.hpp"

#include <verbena/kv.hpp>

#include <sys/resource.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <array>
#include <atomic>
#include <charconv>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;
using test::Peer;

unsigned number_of(const char* text) { return static_cast<unsigned>(std::strtoul(text, nullptr, 10)); }

/// The address space of this process gets no larger than it is, but for `more` bytes.
void take_no_more_than(std::size_t more) {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  const rlimit narrow{.rlim_cur = pages * static_cast<std::size_t>(getpagesize()) + more, .rlim_max = RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &narrow);
}

int serve_in_little_space() {
  const auto server = start(small_server());
  if (!server) return 1;
  take_no_more_than(std::size_t{32} << 20);
  std::printf("%d\n", server->port());
  std::fflush(stdout);
  for (;;) pause();
}

int serve() {
  ServerOptions options = small_server();
  options.max_cells = 10;
  const auto server = start(options);
  if (!server) return 1;
  std::printf("%d\n", server->port());
  std::fflush(stdout);
  for (;;) pause();
}

/// Operations of all sizes until killed.
int churn(unsigned port, unsigned seed) {
  const ClientOptions options = client_options(static_cast<std::uint16_t>(port));
  const auto client = connect(options);
  if (!client) return 1;
  std::puts("1");
  std::fflush(stdout);
  std::mt19937 random(seed);
  const auto registered = client->allocate(1 << 20);
  std::vector<std::byte> own(1 << 20, std::byte{7});
  for (;;) {
    const std::string key = "churn" + std::to_string(random() % 4);
    const std::size_t length = random() % 2 == 0 ? random() % 4096 : random() % (1 << 20);
    const std::span<std::byte> memory = random() % 2 == 0 ? registered : std::span(own);
    const Outcome outcome =
        random() % 3 != 0 ? client->put(key_of(key), memory.first(length)) : client->get(key_of(key), memory);
    if (damage_of(outcome.status) >= Damage::kConnection) return 2;
  }
}

int model(unsigned port, unsigned seed) {
  ClientOptions options = client_options(static_cast<std::uint16_t>(port));
  const auto client = connect(options);
  if (client) run_against_model(*client, "model" + std::to_string(seed) + "/", seed, 2000);
  return client && !testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 0 : 1;
}

constexpr unsigned kAdditions = 5000;

/// Adds to a cell by both atomics.
int count(unsigned port) {
  const auto client = connect(client_options(static_cast<std::uint16_t>(port)));
  if (!client) return 1;
  const auto cell = client->open_cell(key_of("sum"), 0);
  if (!cell) return 2;
  std::uint64_t seen = 0;
  for (unsigned i = 0; i < kAdditions; ++i) {
    if (client->fetch_add(*cell, 1, seen) != Status::kOk) return 3;
    for (std::uint64_t expected = ++seen;; expected = seen) {
      if (client->compare_swap(*cell, expected, expected + 1, seen) != Status::kOk) return 4;
      if (seen == expected) break;
    }
  }
  return 0;
}

TEST(KvProcess, SumsOfProcessesAddUp) {
  ServerOptions options = small_server();
  options.max_cells = 1;
  const auto server = start(options);
  ASSERT_TRUE(server);
  std::vector<std::unique_ptr<Peer>> peers;
  for (unsigned i = 0; i < 3; ++i)
    peers.push_back(std::make_unique<Peer>(std::vector<std::string>{"count", std::to_string(server->port())}));
  for (auto& peer : peers) EXPECT_EQ(peer->wait(), 0);
  const auto client = connect(client_options(*server));
  ASSERT_TRUE(client);
  const auto cell = client->open_cell(key_of("sum"), 0);
  ASSERT_TRUE(cell) << cell.error().text();
  EXPECT_FALSE(cell->is_new);
  std::uint64_t sum = 0;
  ASSERT_EQ(client->read(*cell, sum), Status::kOk);
  EXPECT_EQ(sum, 3U * 2 * kAdditions);
}

// A server whose process stands still answers nothing, and its NIC all the same.
TEST(KvProcess, CellsNeedNoCpuOfTheServer) {
  Peer server({"serve"});
  const auto client = connect(client_options(static_cast<std::uint16_t>(server.read_number())));
  ASSERT_TRUE(client);
  const auto cell = client->open_cell(key_of("cell"), 0);
  ASSERT_TRUE(cell) << cell.error().text();
  server.pause();
  const auto soon = Deadline::after(std::chrono::milliseconds{20});
  EXPECT_EQ(client->put(key_of("k"), bytes_of("v"), soon).status, Status::kTimedOut);
  std::uint64_t old = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(client->fetch_add(*cell, 1, old), Status::kOk);
    ASSERT_EQ(old, i);
  }
  ASSERT_EQ(client->compare_swap(*cell, 1000, 7, old), Status::kOk);
  ASSERT_EQ(client->read(*cell, old), Status::kOk);
  EXPECT_EQ(old, 7u);
  const auto opened = client->open_cell(key_of("other"), 0, Deadline::after(std::chrono::milliseconds{20}));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().status(), Status::kTimedOut);
  server.resume();
  const auto later = client->open_cell(key_of("other"), 5);
  ASSERT_TRUE(later) << later.error().text();
  EXPECT_FALSE(later->is_new) << "the one that timed out has made it";
  EXPECT_EQ(client->connection_error().status(), Status::kOk);
}

// Whatever is under way on a cell when the server is killed comes to its end, and everything after it says so.
TEST(KvProcess, CellsEndWithTheirServer) {
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kind);
    Peer server({"serve"});
    const auto client = connect(client_options(static_cast<std::uint16_t>(server.read_number())));
    ASSERT_TRUE(client);
    const auto cell = client->open_cell(key_of("cell"), 0);
    ASSERT_TRUE(cell) << cell.error().text();
    std::uint64_t old = 0;
    const auto call = [&](int which) {
      switch (which) {
        case 0: return client->fetch_add(*cell, 1, old);
        case 1: return client->compare_swap(*cell, old, old + 1, old);
        case 2: return client->read(*cell, old);
        default: {
          const auto opened = client->open_cell(key_of("cell"), 0);
          return opened ? Status::kOk : opened.error().status();
        }
      }
    };
    std::atomic<bool> has_begun{false};
    std::jthread killer([&] {
      has_begun.wait(false);
      server.kill();
    });
    Status status = Status::kOk;
    EXPECT_TRUE(eventually([&] {
      status = call(kind);
      has_begun = true;
      has_begun.notify_one();
      return status != Status::kOk;
    }));
    EXPECT_EQ(status, Status::kPeerLost) << to_string(status);
    for (int other = 0; other < 4; ++other) EXPECT_EQ(call(other), Status::kPeerLost);
    EXPECT_EQ(client->connection_error().status(), Status::kPeerLost);
  }
}

TEST(KvProcess, ClientsInProcessesBehaveLikeMaps) {
  ServerOptions options = small_server();
  options.memory_bytes = std::size_t{256} << 20;
  const auto server = start(options);
  ASSERT_TRUE(server);
  std::vector<std::unique_ptr<Peer>> peers;
  for (unsigned seed = 1; seed <= 3; ++seed)
    peers.push_back(std::make_unique<Peer>(
        std::vector<std::string>{"model", std::to_string(server->port()), std::to_string(seed)}));
  for (auto& peer : peers) EXPECT_EQ(peer->wait(), 0);
  EXPECT_TRUE(eventually([&] { return server->statistics().clients == 0; }));
  EXPECT_TRUE(eventually([&] { return server->statistics().used_bytes == 0; }));
  EXPECT_EQ(server->statistics().items, 0u);
  EXPECT_EQ(server->statistics().clients_lost, 0u);
}

TEST(KvProcess, KilledClientsLeaveNothingBehind) {
  const auto server = start(small_server());
  ASSERT_TRUE(server);
  const auto client = connect(client_options(*server));
  ASSERT_TRUE(client);
  const std::size_t descriptors = test::open_descriptors();
  const std::size_t mappings = test::memfd_mappings();
  constexpr unsigned kVictims = 12;
  std::mt19937 random(5);
  const auto requests = [&] {
    const ServerStatistics now = server->statistics();
    return now.puts + now.gets;
  };
  for (unsigned i = 0; i < kVictims; ++i) {
    Peer victim({"churn", std::to_string(server->port()), std::to_string(i)});
    ASSERT_EQ(victim.read_number(), 1);
    const std::uint64_t until = requests() + random() % 200;
    ASSERT_TRUE(eventually([&] { return requests() >= until; }));
    victim.kill();
    const std::string value(5000 + i, static_cast<char>('a' + i));
    ASSERT_EQ(client->put(key_of("mine"), bytes_of(value)).status, Status::kOk);
    std::string out(10'000, '\0');
    const Outcome outcome = client->get(key_of("mine"), std::as_writable_bytes(std::span(out)));
    ASSERT_EQ(outcome.status, Status::kOk);
    ASSERT_TRUE(out.substr(0, outcome.length) == value);
  }
  EXPECT_TRUE(eventually([&] { return server->statistics().clients == 1; })) << server->statistics().clients;
  EXPECT_EQ(server->statistics().clients_lost, kVictims);
  for (int i = 0; i < 4; ++i) (void)client->erase(key_of("churn" + std::to_string(i)));
  ASSERT_EQ(client->erase(key_of("mine")).status, Status::kOk);
  EXPECT_TRUE(eventually([&] { return server->statistics().used_bytes == 0; })) << server->statistics().used_bytes;
  EXPECT_TRUE(eventually([&] { return server->statistics().resting_bytes == 0; }))
      << server->statistics().resting_bytes;
  EXPECT_TRUE(eventually([&] { return test::open_descriptors() <= descriptors; }))
      << test::open_descriptors() << " now, " << descriptors << " before";
  EXPECT_TRUE(eventually([&] { return test::memfd_mappings() <= mappings; }))
      << test::memfd_mappings() << " now, " << mappings << " before";
}

TEST(KvProcess, KilledServerIsPeerLost) {
  Peer server({"serve"});
  const int port = server.read_number();
  ASSERT_GT(port, 0);
  ClientOptions options = client_options(static_cast<std::uint16_t>(port));
  const auto client = connect(options);
  ASSERT_TRUE(client);
  const auto value = client->allocate(1 << 20);
  ASSERT_EQ(client->put(key_of("k"), value).status, Status::kOk);
  for (std::uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(client->start_put(key_of("p" + std::to_string(i)), value, i), Status::kOk);
  }
  server.kill();
  // What was in flight may have come to its end before; the rest is lost, all of it is told.
  std::vector<Completion> completions(8);
  std::size_t told = 0;
  EXPECT_TRUE(eventually([&] {
    const std::size_t count = client->poll(std::span(completions).subspan(told));
    told += count;
    return client->in_flight() == 0;
  }));
  EXPECT_EQ(told, 4u);
  for (std::size_t i = 0; i < told; ++i) {
    const Status status = completions[i].outcome.status;
    EXPECT_TRUE(status == Status::kOk || status == Status::kPeerLost) << to_string(status);
  }
  EXPECT_EQ(client->put(key_of("k"), bytes_of("v")).status, Status::kPeerLost);
  EXPECT_EQ(client->get(key_of("k"), value).status, Status::kPeerLost);
  EXPECT_EQ(client->connection_error().status(), Status::kPeerLost);
  const auto statistics = client->server_statistics(Deadline::after(std::chrono::seconds{10}));
  ASSERT_FALSE(statistics);
  EXPECT_EQ(statistics.error().status(), Status::kPeerLost);
}

// A server that stands still: small requests time out and the connection stays, with the slots taken until the replies
// come; a large value that is not through ends the connection, because the channel reads the caller's memory.
TEST(KvProcess, StoppedServerTimesCallsOut) {
  Peer server({"serve"});
  ClientOptions options = client_options(static_cast<std::uint16_t>(server.read_number()));
  options.depth = 4;
  options.lookup = Lookup::kMessage;
  auto client = connect(options);
  ASSERT_TRUE(client);
  ASSERT_EQ(client->put(key_of("k"), bytes_of("old")).status, Status::kOk);
  const auto soon = [] { return Deadline::after(std::chrono::milliseconds{20}); };
  std::string out(100, 'x');
  server.pause();
  for (int i = 0; i < 6; ++i) {
    const Outcome outcome = client->get(key_of("k"), std::as_writable_bytes(std::span(out)), soon());
    EXPECT_EQ(outcome.status, Status::kTimedOut) << i;
  }
  server.resume();
  EXPECT_EQ(client->put(key_of("k"), bytes_of("new")).status, Status::kOk);
  EXPECT_EQ(out, std::string(100, 'x')) << "a late reply reached memory that was the caller's again";
  EXPECT_EQ(client->get(key_of("k"), std::as_writable_bytes(std::span(out))).length, 3u);
  EXPECT_EQ(client->connection_error().status(), Status::kOk);

  server.pause();
  EXPECT_EQ(client->put(key_of("large"), bytes_of(std::string(4 << 20, 'l')), soon()).status, Status::kTimedOut);
  EXPECT_EQ(client->connection_error().status(), Status::kTimedOut);
  EXPECT_EQ(client->put(key_of("k"), bytes_of("v")).status, Status::kTimedOut);
  server.resume();
  client = connect(options);
  ASSERT_TRUE(client);
  EXPECT_EQ(client->get(key_of("k"), std::as_writable_bytes(std::span(out))).length, 3u);
  ASSERT_EQ(client->erase(key_of("k")).status, Status::kOk);
  (void)client->erase(key_of("large"));
  EXPECT_TRUE(eventually([&] {
    const auto now = client->server_statistics(Deadline::after(std::chrono::seconds{10}));
    return now && now->used_bytes == 0 && now->clients == 1;
  })) << "the half of a value came back, and its client is gone";
}

// Its memory can be read: only what asks the server waits for it.
TEST(KvProcess, StoppedServerIsReadAllTheSame) {
  Peer server({"serve"});
  ClientOptions options = client_options(static_cast<std::uint16_t>(server.read_number()));
  options.lookup = Lookup::kOneSided;
  const auto client = connect(options);
  ASSERT_TRUE(client);
  ASSERT_EQ(client->put(key_of("k"), bytes_of("value")).status, Status::kOk);
  options.known_locations = 0;
  options.timeout = std::chrono::seconds{1};
  const auto by_index = connect(options);
  ASSERT_TRUE(by_index);
  server.pause();
  std::string out(100, 'x');
  for (int i = 0; i < 40; ++i) {
    for (Client* const one : {client.get(), by_index.get()}) {
      const Outcome outcome = one->get(key_of("k"), std::as_writable_bytes(std::span(out)));
      ASSERT_EQ(outcome.status, Status::kOk);
      ASSERT_EQ(out.substr(0, outcome.length), "value");
    }
  }
  EXPECT_EQ(client->lookups().by_location, 40u);
  EXPECT_EQ(by_index->lookups().by_index, 40u);
  const Deadline soon = Deadline::after(std::chrono::milliseconds{20});
  EXPECT_EQ(client->get(key_of("none"), std::as_writable_bytes(std::span(out)), soon).status, Status::kTimedOut);
  // The default deadline begins where READs have not found the key.
  if (test::is_soft_under_test()) {
    EXPECT_EQ(by_index->get(key_of("none"), std::as_writable_bytes(std::span(out))).status, Status::kTimedOut);
  }
  server.resume();
  EXPECT_EQ(client->get(key_of("none"), std::as_writable_bytes(std::span(out))).status, Status::kNotFound);
}

// What waits for completions gives up at its own deadline, and at the default one of the oldest operation, whichever is
// first; the latter ends the connection.
TEST(KvProcess, StoppedServerTimesWaitsOut) {
  Peer server({"serve"});
  ClientOptions options = client_options(static_cast<std::uint16_t>(server.read_number()));
  // Long enough for what is looked at before it is over. The emulated device takes a machine that stands still for half
  // a second, which this one may do beside others, for one that is gone.
  options.timeout = std::chrono::milliseconds{test::is_soft_under_test() ? 2000 : 400};
  const auto client = connect(options);
  ASSERT_TRUE(client);
  server.pause();
  ASSERT_EQ(client->start_put(key_of("k"), bytes_of("v"), 7), Status::kOk);
  std::array<Completion, 2> ended;
  EXPECT_EQ(client->wait(ended, Deadline::after(std::chrono::milliseconds{1})), 0u);
  EXPECT_EQ(client->in_flight(), 1u);
  EXPECT_EQ(client->connection_error().status(), Status::kOk);
  ASSERT_EQ(client->wait(ended, Deadline::never()), 1u);
  EXPECT_EQ(ended[0].cookie, 7u);
  EXPECT_EQ(ended[0].outcome.status, Status::kTimedOut);
  EXPECT_EQ(client->connection_error().status(), Status::kTimedOut);
  server.resume();
}

// The server maps what a client lends it. Where it cannot, the client hears why, and others may connect.
TEST(KvProcess, MemoryThatCannotBeMappedIsTheReasonAtBothEnds) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "a device maps nothing";
#ifdef VERBENA_IS_SANITIZED
  GTEST_SKIP() << "the sanitizer's own memory has no limit";
#endif
  Peer server({"serve_in_little_space"});
  ClientOptions options = client_options(static_cast<std::uint16_t>(server.read_number()));
  options.buffer_bytes = std::size_t{256} << 20;
  const auto refused = Client::connect(options);
  EXPECT_STATUS(refused, Status::kNoMemory);
  if (!refused) {
    EXPECT_NE(std::string_view(refused.error().text()).find("rejected the connection: mapping a peer's memory"),
              std::string_view::npos)
        << refused.error().text();
  }
  options.buffer_bytes = std::size_t{1} << 20;
  const auto client = connect(options);
  ASSERT_TRUE(client);
  EXPECT_EQ(client->put(key_of("k"), bytes_of("value")).status, Status::kOk);
}

int peer_main(int argc, char** argv) {
  test::die_with_the_test();
  const std::string_view mode = argc > 2 ? argv[2] : "";
  if (mode == "serve") return serve();
  if (mode == "serve_in_little_space") return serve_in_little_space();
  if (mode == "obey") return obey();
  if (mode == "count" && argc > 3) return count(number_of(argv[3]));
  if (argc < 5) return 2;
  return mode == "churn" ? churn(number_of(argv[3]), number_of(argv[4]))
                         : model(number_of(argv[3]), number_of(argv[4]));
}

}  // namespace
}  // namespace verbena::kv

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "peer") return verbena::kv::peer_main(argc, argv);
  return RUN_ALL_TESTS();
}
