// Connecting while the control plane of both NICs is late, out of order, and loses messages with their descriptors: a
// connection comes about and works, or the call says what happened, and nothing is left behind. The peers are this
// program once more, with a seed of their own.
#include <verbena/rdma.hpp>

#include <environment.hpp>
#include <peer_end.hpp>
#include <process.hpp>
#include <transport.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

namespace verbena::test {
namespace {

using namespace std::chrono_literals;

constexpr int kConnects = 50;

struct Echo final : rdma::Handler {
  void on_message(rdma::Connection& connection, const rdma::Message& message) noexcept override {
    (void)connection.send(message.data);
  }
};

rdma::Options options_of(std::uint16_t port) {
  rdma::Options options;
  options.transport = {.bootstrap = Bootstrap::kSocket, .device = "soft"};
  options.address = "127.0.0.1";
  options.port = port;
  options.connect_timeout = options.timeout = 20s;
  return options;
}

int be_server() {
  Echo echo;
  rdma::Options options = options_of(0);
  options.handler = &echo;
  options.receive = rdma::Receive::kHandler;
  const auto listener = rdma::Listener::start(options);
  if (!listener) return 1;
  say((*listener)->port());
  (*listener)->wait();
  return 0;
}

/// What a connection that is cut may say; anything else is named.
bool is_loss(Status status) {
  switch (status) {
    case Status::kPeerLost:
    case Status::kRetryExceeded:
    case Status::kClosed:
    case Status::kNotAllowed:  // The question about a handshake was lost with its conversation.
    case Status::kRejected:
    case Status::kTimedOut: return true;
    default: return false;
  }
}

/// Says how many connections worked, how many were lost, how many failed in another way, and how many descriptors are
/// more than at the beginning.
int be_client(std::uint16_t port) {
  int worked = 0, lost = 0, odd = 0;
  std::array<std::byte, 100'000> bytes{};
  // The NIC stays open, with what the first connection starts.
  const auto node = rdma::Node::open({.transport = {.bootstrap = Bootstrap::kSocket, .device = "soft"}});
  if (!node) return 1;
  std::size_t before = 0;
  for (int i = 0; i < kConnects; ++i) {
    const auto connection = rdma::Connection::connect(options_of(port));
    Status status = connection ? Status::kOk : connection.error().status();
    if (status == Status::kOk) status = (*connection)->write(bytes);
    if (status == Status::kOk) status = (*connection)->send(bytes);
    if (status == Status::kOk) {
      const auto echoed = (*connection)->receive(bytes);
      status = echoed ? Status::kOk : echoed.error();
    }
    ++(status == Status::kOk ? worked : is_loss(status) ? lost : odd);
    if (status != Status::kOk && !is_loss(status))
      std::fprintf(stderr, "connection %d: %s\n", i, connection ? error_detail() : connection.error().text());
    if (status == Status::kOk && before == 0) before = open_descriptors();
  }
  for (const int number : {worked, lost, odd, static_cast<int>(open_descriptors()) - static_cast<int>(before)})
    say(number);
  return 0;
}

struct Outcome {
  int worked = 0;
  int lost = 0;
  int odd = 0;
  int left = 0;
};
Outcome run(const std::string& chaos, int seed) {
  ::setenv("VERBENA_CHAOS", chaos.c_str(), 1);
  ::setenv("VERBENA_CHAOS_SEED", std::to_string(seed).c_str(), 1);
  Peer server({"server"});
  const int port = server.read_number();
  EXPECT_GT(port, 0);
  ::setenv("VERBENA_CHAOS_SEED", std::to_string(seed + 1000).c_str(), 1);
  Peer client({"client", std::to_string(port)});
  Outcome outcome{.worked = client.read_number(),
                  .lost = client.read_number(),
                  .odd = client.read_number(),
                  .left = client.read_number()};
  EXPECT_EQ(client.wait(), 0);
  ::unsetenv("VERBENA_CHAOS");
  ::unsetenv("VERBENA_CHAOS_SEED");
  return outcome;
}

[[nodiscard]] int seeds() { return static_cast<int>(number_in("VERBENA_SEEDS", 2)); }

TEST(ControlChaos, LateStepsDelayAndLoseNothing) {
  for (int seed = 1; seed <= seeds(); ++seed) {
    SCOPED_TRACE(seed);
    const Outcome outcome = run("control=0.5", seed);
    EXPECT_EQ(outcome.worked, kConnects);
    EXPECT_EQ(outcome.lost, 0);
    EXPECT_EQ(outcome.odd, 0);
    EXPECT_LE(outcome.left, 0);
  }
}

TEST(ControlChaos, ConversationsThatAreCutEndConnectionsAndNothingElse) {
  for (int seed = 1; seed <= seeds(); ++seed) {
    SCOPED_TRACE(seed);
    const Outcome outcome = run("control=0.2,cut=0.05", seed);
    EXPECT_EQ(outcome.worked + outcome.lost, kConnects);
    EXPECT_GT(outcome.worked, 0) << "nothing worked";
    EXPECT_GT(outcome.lost, 0) << "nothing was cut";
    EXPECT_EQ(outcome.odd, 0);
    EXPECT_LE(outcome.left, 0);
    std::printf("seed %d: %d worked, %d were lost\n", seed, outcome.worked, outcome.lost);
  }
}

}  // namespace
}  // namespace verbena::test

int main(int argc, char** argv) {
  using namespace verbena::test;
  testing::InitGoogleTest(&argc, argv);
  if (argc > 2 && std::string_view(argv[1]) == "peer") {
    die_with_the_test();
    if (std::string_view(argv[2]) == "server") return be_server();
    return be_client(static_cast<std::uint16_t>(std::strtoul(argv[3], nullptr, 10)));
  }
  return RUN_ALL_TESTS();
}
