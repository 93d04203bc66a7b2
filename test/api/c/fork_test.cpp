// Programs that fork while they are connected: the child is told, harms nobody, and keeps nothing alive.
#include "every_call.hpp"

#include <peer.hpp>
#include <sanitized.hpp>

#include "../../host/child.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::test {
namespace {

using namespace std::chrono_literals;

/// Whether a connection carries messages and memory.
bool works(rdma::Connection& connection) {
  std::array<std::byte, 64> bytes{};
  return connection.send(bytes) == Status::kOk && connection.receive(bytes).has_value() &&
         connection.write(bytes) == Status::kOk && connection.read(bytes) == Status::kOk;
}

/// In a child: names the calls that do not say kForked.
template <class All, class... Timeout>
[[nodiscard]] testing::AssertionResult say_so_in_a_child(All& all, Timeout... timeout) {
  return in_child([&] {
    std::string wrong;
    all.each(timeout..., [&](const char* call, const Outcome& outcome) {
      if (!outcome.is_forked()) wrong += std::string(call) + " ";
    });
    all.end([](const char*) {});
    return wrong;
  });
}

TEST(Fork, EveryCallOfCSaysSo) {
  Echo echo;
  EveryCallOfC all(echo);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_TRUE(say_so_in_a_child(all, 20'000u));
  Client& client = all.client;
  EXPECT_TRUE(in_child([&] { return std::string(rdmaConnIsConnected(client.conn) == 1 ? "it is connected" : ""); }));
  for (const Call& call : kCalls) {
    const std::string_view name = call.name;  // Two wait for what nobody sends; there is no physical memory.
    if (name == "rdmaConnRecv" || name == "rdmaConnLookup" || call.needs_physical) continue;
    EXPECT_EQ(call.call(client), RDMA_OK) << call.name;
  }
  EXPECT_EQ(rdmaConnIsConnected(client.conn), 1);
}

// The thread that would carry the calls out is the parent's.
TEST(Fork, EveryCallOfCThatAThreadCarriesOutSaysSo) {
  Echo echo;
  Mailbox<int> ended;
  EveryCallOfC all(echo, &ended);
  EXPECT_TRUE(say_so_in_a_child(all, 20'000u));
  EXPECT_EQ(rdmaConnIsConnected(all.client.conn), 1);
  EXPECT_TRUE(ended.empty());
}

TEST(Fork, EveryCallOfCxxSaysSo) {
  Echo echo;
  EveryCallOfCxx all(echo);
  EXPECT_TRUE(say_so_in_a_child(all, 20s));
  EXPECT_TRUE(in_child([&] { return std::string(all.connection->is_connected() ? "it is connected" : ""); }));
  EXPECT_TRUE(all.connection->is_connected());
  EXPECT_TRUE(works(*all.connection));
  EXPECT_TRUE(all.memory.deregister());
}

TEST(Fork, EveryCallOfTheStoreSaysSo) {
  EveryCallOfTheStore all;
  EXPECT_TRUE(say_so_in_a_child(all));
  std::array<std::byte, 64> value;
  EXPECT_EQ(all.client->get(all.key, value).status, Status::kOk);
  EXPECT_EQ(all.server->statistics().clients, 2u);
}

std::unique_ptr<rdma::Connection> static_connection;
std::unique_ptr<kv::Client> static_client;

/// A child that ends as programs do, with destructors of static objects.
TEST(Fork, AChildThatExitsHarmsNobody) {
  if constexpr (kIsSanitized) GTEST_SKIP() << "the child leaves what is its parent's, and a sanitizer calls that leaks";
  Echo echo;
  const auto server = kv::Server::start(small_server());
  ASSERT_TRUE(server);
  static_connection = connect_to(echo.port());
  static_client = std::move(*kv::Client::connect(client_of((*server)->port())));
  std::fflush(nullptr);
  for (const bool has_grandchild : {false, true}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (has_grandchild && fork() != 0) {
        int status = 0;
        (void)::wait(&status);
        std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
      }
      std::exit(static_connection->is_connected() ? 3 : 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << has_grandchild;
    EXPECT_TRUE(static_connection->is_connected());
    EXPECT_TRUE(works(*static_connection));
    std::byte value{};
    EXPECT_EQ(static_client->get(std::as_bytes(std::span("no", 2)), std::span(&value, 1), Deadline::after(20s)).status,
              Status::kNotFound);
  }
  EXPECT_EQ((*server)->statistics().clients_lost, 0u);
  static_client.reset();
  static_connection.reset();
}

TEST(Fork, OtherProgramsAreStartedAsUsual) {
  Echo echo;
  const auto connection = connect_to(echo.port());
  ASSERT_TRUE(connection);
  EXPECT_EQ(std::system("exit 7"), 7 << 8);
  FILE* const output = popen("echo 5", "r");
  ASSERT_NE(output, nullptr);
  int number = 0;
  EXPECT_EQ(std::fscanf(output, "%d", &number), 1);
  EXPECT_EQ(pclose(output), 0);
  EXPECT_EQ(number, 5);
  EXPECT_TRUE(works(*connection));
}

/// Connects, forks a child that lives on, and waits to be killed.
int be_parent(std::uint16_t port) {
  const auto connection = connect_to(port);
  if (!connection || !works(*connection)) return 1;
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  std::printf("%d\n", static_cast<int>(child));
  std::fflush(stdout);
  for (;;) pause();
}

/// Forks before it has used the library; both connect.
int fork_early(std::uint16_t port) {
  const pid_t child = fork();
  const auto connection = connect_to(port);
  const int outcome = connection && works(*connection) ? 0 : 1;
  if (child == 0) return outcome;
  int status = -1;
  (void)waitpid(child, &status, 0);
  std::printf("%d\n", outcome * 10 + status);
  return 0;
}

TEST(Fork, AChildThatLivesOnKeepsNoConnectionAlive) {
  Mailbox<Status> ended;
  Echo echo(&ended);
  Peer parent({"parent", std::to_string(echo.port())});
  const int child = parent.read_number();
  ASSERT_GT(child, 0);
  parent.kill();
  EXPECT_EQ(ended.take(), Status::kPeerLost);
  EXPECT_EQ(::kill(child, SIGKILL), 0) << "the child has ended before";
}

TEST(Fork, WhoForksFirstUsesItInBoth) {
  Echo echo;
  Peer both({"early", std::to_string(echo.port())});
  EXPECT_EQ(both.read_number(), 0);
}

}  // namespace
}  // namespace verbena::test

int main(int argc, char** argv) {
  using namespace verbena::test;
  testing::InitGoogleTest(&argc, argv);
  if (argc > 3 && std::string_view(argv[1]) == "peer") {
    const auto port = static_cast<std::uint16_t>(std::strtoul(argv[3], nullptr, 10));
    const bool is_parent = std::string_view(argv[2]) == "parent";
    if (is_parent) die_with_the_test();
    return is_parent ? be_parent(port) : fork_early(port);
  }
  return RUN_ALL_TESTS();
}
