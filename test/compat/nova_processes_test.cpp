// Servers of the RDMALib interface that are processes: they work together, die, and come back.
#include "servers.hpp"

#include <peer.hpp>

#include <cstdio>
#include <cstdlib>
#include <ranges>
#include <set>
#include <string_view>

namespace verbena::test {
namespace {

constexpr std::uint32_t kRequest = 1;
constexpr std::uint32_t kAnswer = 2;
constexpr std::uint64_t kRounds = 100;

void say(std::uint64_t number) {
  std::printf("%llu\n", static_cast<unsigned long long>(number));
  std::fflush(stdout);
}

[[nodiscard]] std::vector<std::uint32_t> ids_of(unsigned servers) {
  std::vector<std::uint32_t> ids;
  for (std::uint32_t id = 0; id < servers; ++id) ids.push_back(id);
  return ids;
}

void poll_until(Server& server, const std::function<bool()>& is_done) {
  for (const auto deadline = Deadline::after(kNovaPatience); !is_done(); server.poll()) {
    if (deadline.passed()) throw NovaError(Status::kTimedOut, "nothing came any more");
    std::this_thread::yield();  // To the other servers, where there are fewer cores.
  }
}

/// Asks all others in rounds, answers what they ask, writes into their memory and reads it back. Returns the answers.
std::uint64_t be_one_of_all(Server& server, unsigned id, unsigned servers) {
  const std::uint64_t others = servers - 1;
  std::uint64_t asked = 0, answered = 0, written = 0, read = 0;
  server.callback.then = [&](const Event& event) {
    if (event.type == IBV_WC_RECV && event.imm == kRequest) server.send(event.server, event.number + 1, kAnswer);
    asked += event.type == IBV_WC_RECV && event.imm == kRequest;
    answered += event.type == IBV_WC_RECV && event.imm == kAnswer;
    written += event.type == IBV_WC_RECV_RDMA_WITH_IMM;
    read += event.type == IBV_WC_RDMA_READ;
  };
  char* const own = server.memory.data() + 1024;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    // Not before the last round's writes have left it, which is when their receivers have said so.
    std::memcpy(own, &round, sizeof round);
    for (unsigned peer = 0; peer < servers; ++peer) {
      if (peer == id) continue;
      (void)server.store->PostWrite(own, 8, static_cast<int>(peer), 8 * id, true, 1);
      server.send(static_cast<int>(peer), round, kRequest);
    }
    server.store->FlushPendingSends();
    poll_until(server, [&] { return answered == round * others && written >= round * others; });
  }
  poll_until(server, [&] { return asked == kRounds * others; });
  std::vector<std::uint64_t> back(servers, kRounds);
  char* const place = server.memory.data() + 2048;
  for (unsigned peer = 0; peer < servers; ++peer)
    if (peer != id)
      (void)server.store->PostRead(place, 8, static_cast<int>(peer), std::uint64_t{8} * peer, std::uint64_t{8} * id,
                                   true);
  poll_until(server, [&] { return read == others; });
  for (unsigned peer = 0; peer < servers; ++peer) {
    std::uint64_t of_peer = 0, in_peer = 0;
    std::memcpy(&of_peer, server.memory.data() + 8 * peer, sizeof of_peer);
    std::memcpy(&in_peer, place + 8 * peer, sizeof in_peer);
    if (peer != id && (of_peer != kRounds || in_peer != kRounds))
      throw NovaError(Status::kProtocol, "other bytes than were written");
  }
  (void)nova::detail::value_of(server.store->lane().gather({}, {}, Deadline::after(kNovaPatience)));
  return answered;
}

/// Sends each message back, until it is killed, or its server 0 has left. Others may be lost.
void be_echo(Server& server) {
  server.callback.then = [&](const Event& event) {
    if (event.type == IBV_WC_RECV) server.send(event.server, event.number);
  };
  say(0);
  while (server.store->lane().is_here(0)) {
    try {
      server.poll();
    } catch (const NovaError& error) {
      if (error.status() != Status::kPeerLost) throw;
    }
  }
}

int be_server(char** arguments) {
  die_with_the_test();
  const std::string address = arguments[3];
  const auto id = static_cast<unsigned>(std::atoi(arguments[4]));
  const auto servers = static_cast<unsigned>(std::atoi(arguments[5]));
  try {
    Server server;
    server.open(ids_of(servers), id, {}, address, options_at(address));
    server.store->Init(server.ctrl.get());
    if (arguments[2] == std::string_view("echo"))
      be_echo(server);
    else
      say(be_one_of_all(server, id, servers));
  } catch (const NovaError& error) {
    std::fprintf(stderr, "server %u: %s\n", id, error.what());
    return 1;
  }
  return 0;
}

[[nodiscard]] std::unique_ptr<Peer> spawn(const char* how, unsigned id, unsigned servers) {
  return std::make_unique<Peer>(
      std::vector<std::string>{how, own_address(), std::to_string(id), std::to_string(servers)});
}

class NovaProcesses : public testing::TestWithParam<unsigned> {};

TEST_P(NovaProcesses, AskAndAnswer) {
  std::vector<std::unique_ptr<Peer>> peers;
  for (unsigned id = 0; id < GetParam(); ++id) peers.push_back(spawn("all", id, GetParam()));
  for (const auto& peer : peers) EXPECT_EQ(peer->read_number(), static_cast<int>(kRounds * (GetParam() - 1)));
  for (const auto& peer : peers) EXPECT_EQ(peer->wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Servers, NovaProcesses, testing::Values(2U, 4U));

class Survivors : public testing::Test {
 protected:
  void start() {
    for (const unsigned id : {1U, 2U}) peers.push_back(spawn("echo", id, 3));
    server.open(ids_of(3), 0, {}, own_address(), options_at(own_address()));
    ASSERT_EQ(status_of([&] { server.store->Init(server.ctrl.get()); }), Status::kOk);
    for (const auto& peer : peers) ASSERT_EQ(peer->read_number(), 0);
  }
  void expect_echo(int peer) {
    const std::size_t before = server.callback.events.size();
    const auto is_back = [&](const Event& event) { return event.type == IBV_WC_RECV && event.server == peer; };
    const auto found = [&] { return std::ranges::find_if(server.callback.events | std::views::drop(before), is_back); };
    const auto send_and_wait = [&] {
      server.send(peer, 4711);
      poll_until(server, [&] { return found() != server.callback.events.end(); });
    };
    ASSERT_EQ(status_of(send_and_wait), Status::kOk);
    EXPECT_EQ(found()->number, 4711U);
  }

  std::vector<std::unique_ptr<Peer>> peers;
  Server server;
};

// RDMALib ended the process.
TEST_F(Survivors, TheDeathOfAServerIsAnErrorOfItsOperationsAlone) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(expect_echo(1));
  ASSERT_NO_FATAL_FAILURE(expect_echo(2));
  const auto has_type = [](ibv_wc_opcode type) { return [type](const Event& event) { return event.type == type; }; };
  poll_until(server, [&] { return std::ranges::count_if(server.callback.events, has_type(IBV_WC_SEND)) == 2; });
  peers[0]->pause();
  std::set<std::uint64_t> under_way;
  for (std::uint64_t number = 0; number < 8; ++number)
    under_way.insert(server.store->PostSend(reinterpret_cast<const char*>(&number), sizeof number, 1, 0));
  ASSERT_EQ(under_way.size(), 8U);
  ASSERT_NO_FATAL_FAILURE(expect_echo(2)) << "others go on";
  peers[0]->kill();
  bool is_lost = false;
  const auto is_over = [&] {
    for (const Event& event : server.callback.events)
      if (event.type == IBV_WC_SEND) under_way.erase(event.wr_id);
    return is_lost && under_way.empty();
  };
  for (const auto deadline = Deadline::after(kNovaPatience); !is_over() && !deadline.passed();) {
    try {
      server.poll();
    } catch (const NovaError& error) {
      EXPECT_EQ(error.status(), Status::kPeerLost) << error.what();
      EXPECT_EQ(error.server_id(), 1);
      if (error.wr_id() == NovaError::kNoRequest)
        EXPECT_FALSE(std::exchange(is_lost, true)) << "it is told once";
      else
        EXPECT_EQ(under_way.erase(error.wr_id()), 1U) << "each has one end";
    }
  }
  EXPECT_TRUE(is_lost);
  EXPECT_TRUE(under_way.empty());
  EXPECT_EQ(status_of([&] { server.send(1, 1); }), Status::kPeerLost);
  EXPECT_EQ(status_of([&] { (void)server.store->PostWrite(server.memory.data(), 8, 1, 0, true, 0); }),
            Status::kPeerLost);
  ASSERT_NO_FATAL_FAILURE(expect_echo(2));

  // Its next life is found by itself, and so is its memory.
  peers[0] = spawn("echo", 1, 3);
  poll_until(server, [&] { return server.store->lane().is_here(1); });
  ASSERT_NO_FATAL_FAILURE(expect_echo(1));
  EXPECT_EQ(status_of([&] { (void)server.store->PostWrite(server.memory.data(), 8, 1, 0, true, 0); }), Status::kOk);
  poll_until(server, [&] { return std::ranges::any_of(server.callback.events, has_type(IBV_WC_RDMA_WRITE)); });
  EXPECT_EQ(peers[0]->read_number(), 0);
}

}  // namespace

int peer_main(char** arguments) { return be_server(arguments); }

}  // namespace verbena::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 6 && std::string_view(argv[1]) == "peer") return verbena::test::peer_main(argv);
  return RUN_ALL_TESTS();
}
