// Connections between processes, one of which is killed in the middle of everything.
#include "ends.hpp"

#include <verbena/rdma.hpp>

#include <peer.hpp>
#include <result.hpp>
#include <transport.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbena::rdma {
namespace {

using test::Peer;

[[nodiscard]] Options options_of(std::uint16_t port) {
  return {.transport = test::transport_under_test(),
          .address = test::is_soft_under_test() ? "127.0.0.1" : "",
          .port = port,
          .timeout = std::chrono::seconds{20}};
}

/// Takes no messages: senders wait.
int serve() {
  Options options = options_of(0);
  options.inbox_bytes = 64 * 1024;
  const auto listener = Listener::start(options);
  if (!listener) return 1;
  std::printf("%d\n", (*listener)->port());
  std::fflush(stdout);
  for (;;) pause();
}

/// Writes until it is killed.
int write_for_ever(std::uint16_t port) {
  const auto client = Connection::connect(options_of(port));
  if (!client) return 1;
  std::vector<std::byte> bytes(300'000);
  if ((*client)->send(std::span(bytes).first(1)) != Status::kOk) return 2;
  std::puts("1");
  std::fflush(stdout);
  while ((*client)->write(bytes) == Status::kOk) {}
  return 3;
}

/// What waits, or goes on for ever, until the peer is dead.
struct Case {
  const char* name;
  std::function<Status(Connection&, const Memory&)> call;
};

TEST(RdmaCxxProcess, ThePeersDeathEndsEveryCall) {
  std::array<std::byte, 8> word{};
  std::vector<std::byte> large(300'000);
  const std::vector<Case> cases = {
      {"receive", [&](Connection& c, const Memory&) { return c.receive(word).error(); }},
      {"send", [&](Connection& c, const Memory&) { return c.send(large); }},
      {"write", [&](Connection& c, const Memory&) { return c.write(large); }},
      {"read", [&](Connection& c, const Memory&) { return c.read(large); }},
      {"registered write",
       [](Connection& c, const Memory& m) { return c.write(m.at(0, 8), c.peer_window().at(0, 8)); }},
      {"registered read", [](Connection& c, const Memory& m) { return c.read(m.at(), c.peer_window().at(0, 4096)); }},
      {"atomic",
       [](Connection& c, const Memory&) {
         const auto old = c.fetch_add(c.peer_window().at(0, 8), 1);
         return old ? Status::kOk : old.error();
       }},
      {"find", [](Connection& c, const Memory&) { return c.find("nobody's").error().status(); }},
      {"started",
       [](Connection& c, const Memory& m) {
         if (const Status started = c.start_read(m.at(0, 8), c.peer_window().at(0, 8), 1); started != Status::kOk)
           return started;
         const auto completion = c.complete();
         return completion ? completion->status : completion.error();
       }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    Peer server({"serve"});
    const int port = server.read_number();
    ASSERT_GT(port, 0);
    auto client = Connection::connect(options_of(static_cast<std::uint16_t>(port)));
    ASSERT_OK(client);
    auto memory = (*client)->allocate(4096);
    ASSERT_OK(memory);
    // Into the middle of the calls: after some of those that come to an end, or a moment after one that waits.
    std::atomic<int> begun = 0;
    std::thread killer([&] {
      while (begun == 0) std::this_thread::yield();
      const Deadline moment = Deadline::after(std::chrono::milliseconds{20});
      while (begun < 10 && !moment.passed()) std::this_thread::yield();
      server.kill();
    });
    const Deadline limit = Deadline::after(std::chrono::seconds{30});
    Status status = Status::kOk;
    while (status == Status::kOk && !limit.passed()) {
      ++begun;
      status = each.call(**client, *memory);
    }
    killer.join();
    EXPECT_EQ(status, Status::kPeerLost) << to_string(status);
    EXPECT_EQ((*client)->failure(), status);
    EXPECT_EQ((*client)->read(word), status);
  }
}

TEST(RdmaCxxProcess, AListenerOutlivesItsClients) {
  const auto listener = Listener::start(options_of(0));
  ASSERT_OK(listener);
  std::array<std::byte, 8> word{};
  for (int i = 0; i < 3; ++i) {
    Peer client({"write", std::to_string((*listener)->port())});
    ASSERT_EQ(client.read_number(), 1);
    auto connection = (*listener)->accept(Deadline::after(std::chrono::seconds{20}));
    ASSERT_TRUE(connection.has_value());
    ASSERT_TRUE((*connection)->receive(word).has_value());
    client.kill();
    EXPECT_EQ((*connection)->receive(word).error(), Status::kPeerLost);
  }
}

int be_peer(std::span<char*> arguments) {
  test::die_with_the_test();
  if (std::string_view(arguments[0]) == "serve") return serve();
  if (std::string_view(arguments[0]) == "obey") return obey();
  if (std::string_view(arguments[0]).ends_with("reliable")) return be_queue_pair(arguments[0], arguments[1]);
  return write_for_ever(static_cast<std::uint16_t>(std::strtoul(arguments[1], nullptr, 10)));
}

}  // namespace
}  // namespace verbena::rdma

int main(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "peer")
    return verbena::rdma::be_peer(std::span(argv, static_cast<std::size_t>(argc)).subspan(2));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
