// Connections between processes, one of which is killed in the middle of everything.
#include "ends.hpp"

#include <verbena/rdma.hpp>
#include <verbena/typed.hpp>

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
#include <optional>
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

/// A connection to a server of another process, whose first window has its own bytes.
struct Served {
  Peer server{{"serve"}};
  std::unique_ptr<Connection> client;
};
void meet(Served& served, Node& node) {
  const int port = served.server.read_number();
  ASSERT_GT(port, 0);
  Options options = options_of(static_cast<std::uint16_t>(port));
  options.node = &node;
  auto connected = Connection::connect(options);
  ASSERT_OK(connected);
  served.client = std::move(*connected);
}

// Two servers may hand out the same key for the same address: forked from one parent, or without randomized addresses.
TEST(RdmaCxxProcess, WhatOneServerHasHandedOutIsRefusedAtAnother) {
  const auto node = Node::open({.transport = test::transport_under_test(), .address = options_of(0).address});
  ASSERT_OK(node);
  Served first;
  ASSERT_NO_FATAL_FAILURE(meet(first, **node));
  const Window theirs = first.client->peer_window();
  ASSERT_NE(theirs.peer, 0);
  std::optional<Served> second;
  // Two numbers are the same once in 65,535 times; on one device all are.
  for (int i = 0; i < 4; ++i) {
    ASSERT_NO_FATAL_FAILURE(meet(second.emplace(), **node));
    if (second->client->peer_window().peer != theirs.peer) break;
  }
  Connection& client = *second->client;
  if (client.peer_window().peer == theirs.peer) GTEST_SKIP() << "both servers have one NIC, which tells keys apart";
  Window same = client.peer_window();
  same.peer = theirs.peer;
  const Remote there = same.at(0, 8);
  auto memory = client.allocate(64);
  ASSERT_OK(memory);
  const Local here = memory->at(0, 8);
  std::ranges::fill(here.bytes(), std::byte{7});
  std::array<std::byte, 8> bytes{};
  EXPECT_EQ(client.write(here, there), Status::kBadArgument);
  EXPECT_NE(std::string_view(error_detail()).find("another peer"), std::string_view::npos) << error_detail();
  EXPECT_EQ(client.write(bytes, there), Status::kBadArgument);
  EXPECT_EQ(client.read(here, there), Status::kBadArgument);
  EXPECT_EQ(client.read(bytes, there), Status::kBadArgument);
  EXPECT_EQ(client.fetch_add(there, 1).error(), Status::kBadArgument);
  EXPECT_EQ(client.compare_swap(there, 0, 1).error(), Status::kBadArgument);
  EXPECT_EQ(client.start_write(here, there, 1), Status::kBadArgument);
  EXPECT_EQ(client.start_read(here, there, 1), Status::kBadArgument);
  EXPECT_EQ(client.start_fetch_add(there, 1, 1), Status::kBadArgument);
  EXPECT_EQ(client.import(same).error().status(), Status::kBadArgument);
  ASSERT_EQ(client.read(bytes, std::size_t{0}), Status::kOk) << "the connection is unharmed";
  EXPECT_EQ(bytes, (std::array<std::byte, 8>{})) << "nothing was written";
  // Typed, where the segment was made of the other's window.
  auto link = typed::Link::over(std::move(second->client));
  ASSERT_OK(link);
  auto region = typed::MemoryRegion<std::uint64_t>::allocate(**node, 1);
  ASSERT_OK(region);
  auto segment = region->take(0, 1);
  ASSERT_TRUE(segment.has_value());
  const auto remote = typed::RemoteSegment<std::uint64_t>::of(same, 0, 1);
  ASSERT_TRUE(remote.has_value());
  EXPECT_EQ(link->write(*segment, *remote), Status::kBadArgument);
  EXPECT_EQ(link->read(*segment, *remote), Status::kBadArgument);
  EXPECT_EQ(link->write_with_immediate(*segment, *remote, 1), Status::kBadArgument);
  EXPECT_EQ(link->fetch_add(*remote, 1).error(), Status::kBadArgument);
  auto [status, back] = link->start_write(std::move(*segment), *remote).finish();
  EXPECT_EQ(status, Status::kBadArgument);
  EXPECT_EQ(back.size(), 1u);
  EXPECT_TRUE(link->is_connected());
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
