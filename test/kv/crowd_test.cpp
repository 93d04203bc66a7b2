// Many who connect at the same time, and who only seem to: processes of honest clients, silent sockets, HELLOs in the
// names of others, and clients that stop half way in. The server and its clients must not notice.
#include "link/fabric.hpp"
#include "link/frames.hpp"
#include "link/socket.hpp"
#include "model.hpp"
#include "peer.hpp"
#include "raw_client.hpp"
#include "stranger.hpp"

#include <verbena/kv.hpp>

#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;
using namespace std::chrono_literals;
using test::Peer;
using Clock = std::chrono::steady_clock;

/// For any machine that is only slow.
constexpr auto kPatience = 120s;
using test::become_stranger;
using test::kStranger;

unsigned rounds() {
  const char* const text = std::getenv("VERBENA_SEEDS");
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : 2;
}

long milliseconds_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

void say(long number) {
  std::printf("%ld\n", number);
  std::fflush(stdout);
}

void await_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  int number = 0;
  (void)sigwait(&set, &number);
}

// --- processes of these tests -------------------------------------------------------------------------------------

/// Connects at each signal and leaves at the next. Says how many ms it took, or minus its status.
int be_member(std::uint16_t port) {
  ClientOptions options = client_options(port);
  options.connect_timeout = options.timeout = kPatience;
  options.buffer_bytes = 64 << 10;
  for (say(0);;) {
    await_signal();
    const auto start = Clock::now();
    const auto client = Client::connect(options);
    if (!client) {
      std::fprintf(stderr, "%s\n", client.error().text());
      say(-static_cast<long>(client.error().status()));
      return 1;
    }
    const long took = milliseconds_since(start);
    std::byte value{};
    const Status status = (*client)->get(key_of("k"), std::span(&value, 1)).status;
    say(status == Status::kOk ? took : -static_cast<long>(status));
    await_signal();
  }
}

/// Connects several clients, and says what each came to. Keeps them until the test ends.
int be_strangers(std::uint16_t port, unsigned count) {
  if (!become_stranger()) return 2;
  std::vector<std::unique_ptr<Client>> clients;
  for (unsigned i = 0; i < count; ++i) {
    auto client = Client::connect(client_options(port));
    if (!client) std::printf("%s\n", std::string(client.error().text()).contains("max_clients_per_user") ? "1" : "2");
    say(client ? 0 : static_cast<long>(client.error().status()));
    if (client) clients.push_back(std::move(*client));
  }
  for (;;) pause();
}

/// Opens sockets, says nothing on them, and keeps them until the test ends.
int be_idle(std::uint16_t port, unsigned count) {
  const rlimit files{4096, 4096};
  (void)setrlimit(RLIMIT_NOFILE, &files);
  if (geteuid() == 0 && !become_stranger()) return 2;
  std::vector<Fd> sockets;
  while (sockets.size() < count) {
    auto socket = link::connect_to("127.0.0.1", port, Deadline::after(kPatience));
    if (!socket) return 3;
    sockets.push_back(std::move(*socket));
  }
  say(static_cast<long>(sockets.size()));
  for (;;) pause();
}

int be_server() {
  ServerOptions options = small_server();
  const auto server = start(options);
  if (!server) return 1;
  say(server->port());
  say(getpid());
  for (;;) pause();
}

// --- tests --------------------------------------------------------------------------------------------------------

class Crowd : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::is_soft_under_test()) GTEST_SKIP() << "on a device, RDMA CM answers; nobody can be asked there";
  }
};

TEST_F(Crowd, ProcessesConnectAtOnce) {
  constexpr unsigned kProcesses = 256;
  ServerOptions options = small_server();
  options.max_clients = kProcesses + 1;
  options.lease_bytes = 64 << 10;
  options.depth = 4;
  const auto server = start(options);
  ASSERT_TRUE(server);
  const auto owner = connect(client_options(*server));
  ASSERT_TRUE(owner);
  ASSERT_EQ(owner->put(key_of("k"), bytes_of("v")).status, Status::kOk);
  std::vector<std::unique_ptr<Peer>> members;
  for (unsigned i = 0; i < kProcesses; ++i)
    members.push_back(std::make_unique<Peer>(std::vector<std::string>{"member", std::to_string(server->port())}));
  for (const auto& member : members) ASSERT_EQ(member->read_number(), 0);
  const auto signal_all = [&] {
    for (const auto& member : members) member->send(SIGUSR1);
  };
  for (unsigned round = 0; round < rounds(); ++round) {
    SCOPED_TRACE(round);
    int longest = 0;
    signal_all();
    for (const auto& member : members) {
      const int took = member->read_number();
      ASSERT_GE(took, 0) << to_string(static_cast<Status>(-took));
      longest = std::max(longest, took);
    }
    EXPECT_EQ(server->statistics().clients, kProcesses + 1);
    signal_all();
    const Deadline deadline = Deadline::after(kPatience);
    while (server->statistics().clients != 1 && !deadline.passed()) (void)usleep(1000);
    ASSERT_EQ(server->statistics().clients, 1u);
    std::printf("%u processes connected at once; the last after %d ms\n", kProcesses, longest);
  }
  EXPECT_EQ(server->statistics().clients_refused, 0u);
  EXPECT_EQ(server->statistics().clients_lost, 0u);
}

TEST_F(Crowd, IdleSocketsKeepNobodyOut) {
  constexpr unsigned kSockets = 1000;
  const auto server = start(small_server());
  ASSERT_TRUE(server);
  const auto connect_often = [&] {
    long longest = 0;
    for (int i = 0; i < 25; ++i) {
      const auto start = Clock::now();
      EXPECT_TRUE(connect(client_options(*server)));
      longest = std::max(longest, milliseconds_since(start));
    }
    return longest;
  };
  const long before = connect_often();
  Peer idle({"idle", std::to_string(server->port()), std::to_string(kSockets)});
  ASSERT_EQ(idle.read_number(), static_cast<int>(kSockets));
  std::printf("the longest of 25 connects: %ld ms without idle sockets", before);
  std::printf(", %ld ms with %u\n", connect_often(), kSockets);
  EXPECT_EQ(server->statistics().clients_refused, 0u);
}

/// The GIDs of all software NICs of this host: everybody can read them.
std::vector<ibv_gid> public_gids() {
  std::vector<ibv_gid> gids;
  std::ifstream sockets("/proc/net/unix");
  constexpr std::string_view kName = "@verbena/";
  for (std::string line; std::getline(sockets, line);) {
    const std::size_t at = line.find(kName);
    if (at == std::string::npos || line.size() < at + kName.size() + 32) continue;
    ibv_gid gid{};
    for (std::size_t i = 0; i < 16; ++i)
      gid.raw[i] = static_cast<std::uint8_t>(std::stoul(line.substr(at + kName.size() + 2 * i, 2), nullptr, 16));
    if (std::ranges::none_of(gids, [&](const ibv_gid& known) { return std::ranges::equal(known.raw, gid.raw); }))
      gids.push_back(gid);
  }
  return gids;
}

/// Says HELLO in somebody's name, and reads until the server has hung up.
void claim(std::uint16_t port, const ibv_gid& gid, unsigned number) {
  link::Endpoint hello;
  hello.qp.gid = gid;
  hello.qp.gid.raw[15] ^= static_cast<std::uint8_t>(number % 3 == 0);  // Of nobody.
  hello.qp.qp_num = number;
  hello.qp.mtu = IBV_MTU_4096;
  hello.qp.max_rd_atomic = 16;
  hello.recv_depth = 64;
  hello.generation = number;
  const auto socket = link::connect_to("127.0.0.1", port, Deadline::after(kPatience));
  ASSERT_TRUE(socket) << socket.error().text();
  const link::Frame frame = link::encode_hello(hello);
  (void)send(socket->get(), frame.data.data(), frame.size, MSG_NOSIGNAL);
  std::byte rest[256];
  do {
    const auto is_ready = link::wait_for(socket->get(), POLLIN, Deadline::after(kPatience));
    ASSERT_TRUE(is_ready && *is_ready) << "the server neither answers nor hangs up";
  } while (recv(socket->get(), rest, sizeof rest, MSG_DONTWAIT) > 0);
}

long resident_kib_of(int pid) {
  std::ifstream rollup("/proc/" + std::to_string(pid) + "/smaps_rollup");
  for (std::string line; std::getline(rollup, line);)
    if (line.starts_with("Rss:")) return std::stol(line.substr(4));
  return -1;
}

TEST_F(Crowd, HellosOfOthersCostNoMemory) {
  Peer process({"server"});
  const auto port = static_cast<std::uint16_t>(process.read_number());
  const int pid = process.read_number();
  const auto client = connect(client_options(port));
  ASSERT_TRUE(client);
  ASSERT_EQ(client->put(key_of("k"), bytes_of("v")).status, Status::kOk);
  const auto gids = public_gids();
  ASSERT_FALSE(gids.empty());
  unsigned number = 0;
  const auto claim_often = [&](unsigned count) {
    for (const unsigned until = number + count; number < until; ++number) {
      ASSERT_NO_FATAL_FAILURE(claim(port, gids[number % gids.size()], number));
      std::byte value{};
      ASSERT_EQ(client->get(key_of("k"), std::span(&value, 1)).status, Status::kOk);
    }
  };
  ASSERT_NO_FATAL_FAILURE(claim_often(500));
  const long before = resident_kib_of(pid);
  ASSERT_GT(before, 0);
  ASSERT_NO_FATAL_FAILURE(claim_often(10'000));
  const long after = resident_kib_of(pid);
  std::printf("%ld KiB before 10,000 HELLOs, %ld KiB after\n", before, after);
  EXPECT_LT(after - before, 1024);
  const auto statistics = client->server_statistics(Deadline::after(kPatience));
  ASSERT_TRUE(statistics);
  EXPECT_EQ(statistics->clients, 1u);
}

TEST_F(Crowd, WhoStopsHalfWayInKeepsNobodyOut) {
  ServerOptions options = small_server();
  options.max_clients = 2;
  const auto server = start(options);
  ASSERT_TRUE(server);
  const RawClient first(server->port(), RawClient::Stops::kBeforeConnect);
  const RawClient second(server->port(), RawClient::Stops::kBeforeConnect);
  for (int i = 0; i < 2; ++i) {
    const auto client = connect(client_options(*server));
    ASSERT_TRUE(client);
    EXPECT_EQ(client->put(key_of("k"), bytes_of("v")).status, Status::kOk);
  }
  EXPECT_GE(server->statistics().clients_refused, 1u);
}

TEST_F(Crowd, AUserHasHisShareOfThePlaces) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  ServerOptions options = small_server();
  options.max_clients = 4;
  options.allowed_uids = {kStranger};
  const auto server = start(options);
  ASSERT_TRUE(server);
  Peer strangers({"strangers", std::to_string(server->port()), "3"});
  EXPECT_EQ(strangers.read_number(), 0);
  EXPECT_EQ(strangers.read_number(), 0);
  EXPECT_EQ(strangers.read_number(), 1) << "the error does not name max_clients_per_user";
  EXPECT_EQ(strangers.read_number(), static_cast<int>(Status::kLimit));
  std::vector<std::unique_ptr<Client>> mine;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(mine.emplace_back(connect(client_options(*server))));
  const auto fifth = Client::connect(client_options(*server));
  ASSERT_FALSE(fifth);
  EXPECT_EQ(fifth.error().status(), Status::kLimit) << fifth.error().text();
}

int peer_main(int argc, char** argv) {
  test::die_with_the_test();
  const auto number = [&](int at) {
    return at < argc ? static_cast<unsigned>(std::strtoul(argv[at], nullptr, 10)) : 0;
  };
  const std::string_view role = argv[2];
  if (role == "member") return be_member(static_cast<std::uint16_t>(number(3)));
  if (role == "strangers") return be_strangers(static_cast<std::uint16_t>(number(3)), number(4));
  if (role == "idle") return be_idle(static_cast<std::uint16_t>(number(3)), number(4));
  return be_server();
}

}  // namespace
}  // namespace verbena::kv

int main(int argc, char** argv) {
  // Before there are threads, which would take it.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  testing::InitGoogleTest(&argc, argv);
  if (argc > 2 && std::string_view(argv[1]) == "peer") return verbena::kv::peer_main(argc, argv);
  return RUN_ALL_TESTS();
}
