// Meshes of processes that die, stop, come back, or have no business there.
#include "fixture.hpp"

#include <peer.hpp>
#include <process.hpp>
#include <sanitized.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

namespace verbena::mesh::test {
namespace {

using Kind = Completion::Kind;
using verbena::test::Peer;

void say(int number) {
  std::printf("%d\n", number);
  std::fflush(stdout);
}

/// peer DIRECTORY ID PROCESSES INCARNATION: joins, says its status, then answers each message, and ends with an error
/// when its parent does.
int be_process(char** arguments) {
  die_with_the_test();
  Options options =
      options_for(static_cast<unsigned>(std::atoi(arguments[3])), static_cast<unsigned>(std::atoi(arguments[4])));
  options.incarnation = std::strtoull(arguments[5], nullptr, 10);
  if (std::string_view(arguments[6]) == "briefly") options.join_timeout = 1s;
  auto carrier = directory_carrier(arguments[2], "test");
  if (!carrier) return 1;
  const auto joined = Mesh::join(options, std::move(*carrier));
  if (!joined) std::fprintf(stderr, "process %u: %s\n", options.id, joined.error().text());
  say(joined ? 0 : static_cast<int>(joined.error().status()));
  if (!joined) return 1;
  Lane& lane = (*joined)->lane(0);
  for (;;) {
    std::array<Completion, 16> some;
    const std::size_t count = lane.wait(some, patience());
    for (std::size_t i = 0; i < count; ++i) {
      if (some[i].kind != Kind::kReceive) continue;
      if (some[i].bytes.empty()) return 0;  // Leaves in order.
      Status status = Status::kAgain;
      std::array<Completion, 1> none;
      while ((status = lane.send(some[i].peer, some[i].bytes, 0)) == Status::kAgain)
        (void)lane.poll(none, Which::kSends);
      (void)lane.release(some[i]);
    }
  }
}

/// Joins two processes, each on a machine, by a list of both, and has each write into the other's memory, say so, and
/// find what the other wrote. What went wrong; or empty.
std::string exchange_with_other_host(unsigned id, const std::vector<std::string>& hosts) {
  constexpr std::size_t kLength = 100'000;
  constexpr std::uint32_t kRounds = 20;
  Options options = options_for(id, 2);
  const std::size_t colon = hosts[id].rfind(':');
  options.address = hosts[id].substr(0, colon);
  options.port = static_cast<std::uint16_t>(std::stoul(hosts[id].substr(colon + 1)));
  auto carrier = host_list_carrier(hosts);
  if (!carrier) return carrier.error().text();
  const auto joined = Mesh::join(options, std::move(*carrier));
  if (!joined) return joined.error().text();
  Lane& lane = (*joined)->lane(0);
  const unsigned peer = 1 - id;
  const auto memory = (*joined)->allocate(kLength);
  if (!memory) return memory.error().text();
  if (const auto published = (*joined)->publish("memory", *memory); !published) return published.error().text();
  const auto window = lane.find(peer, "memory", patience());
  if (!window) return window.error().text();
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const Bytes mine = pattern(kLength, 2 * round + id);
    const Status written = lane.write(*window, 0, mine, round, round);
    if (written != Status::kOk) return to_string(written);
    for (unsigned due = 2; due != 0;) {
      std::array<Completion, 4> some;
      const std::size_t count = lane.wait(some, patience());
      if (count == 0) return "nothing came";
      for (const Completion& one : std::span(some).first(count)) {
        if (one.kind == Kind::kJoined) continue;
        if (one.status != Status::kOk) return to_string(one.status);
        --due;
        if (one.kind != Kind::kWritten) continue;
        if (one.immediate != round) return "another round's";
        if (!std::ranges::equal(one.bytes, pattern(kLength, 2 * round + peer))) return "other bytes";
      }
    }
    if (const auto all = lane.barrier(patience()); !all) return all.error().text();
  }
  return {};
}

class Processes : public Meshes {
 protected:
  [[nodiscard]] std::unique_ptr<Peer> spawn(unsigned id, unsigned processes, unsigned incarnation,
                                            const char* how = "patiently") {
    return std::make_unique<Peer>(std::vector<std::string>{
        directory.path(), std::to_string(id), std::to_string(processes), std::to_string(incarnation), how});
  }
  /// This process is 0 of `processes`, and the others are spawned.
  void start_with(unsigned processes) {
    for (unsigned id = 1; id < processes; ++id) peers.push_back(spawn(id, processes, 1));
    Options options = options_for(0, processes);
    auto joined = join(options);
    ASSERT_OK(joined);
    meshes.push_back(std::move(*joined));
    for (const auto& peer : peers) ASSERT_EQ(peer->read_number(), 0);
    for (unsigned id = 1; id < processes; ++id) ASSERT_EQ(next(0).kind, Kind::kJoined);
  }
  void expect_echo(unsigned peer, std::size_t bytes = 333) {
    ASSERT_EQ(patiently([&] { return lane(0).send(peer, pattern(bytes, peer), kEcho); }), Status::kOk);
    bool has_sent = false, has_got = false;
    while (!has_sent || !has_got) {
      const Completion one = next(0);
      ASSERT_TRUE(one.kind == Kind::kSend || one.kind == Kind::kReceive) << static_cast<int>(one.kind);
      ASSERT_EQ(one.status, Status::kOk);
      if (one.kind == Kind::kSend) {
        has_sent |= one.cookie == kEcho;
        under_way.erase(one.cookie);
        continue;
      }
      has_got = true;
      EXPECT_EQ(one.peer, peer);
      EXPECT_EQ(Bytes(one.bytes.begin(), one.bytes.end()), pattern(bytes, peer));
      EXPECT_EQ(lane(0).release(one), Status::kOk);
    }
  }
  static constexpr std::uint64_t kEcho = 1'000'000;
  std::vector<std::unique_ptr<Peer>> peers;
  std::set<std::uint64_t> under_way;  ///< Cookies of other sends.
};

TEST_F(Processes, OneThatIsKilledEndsItsOwnSendsAlone) {
  ASSERT_NO_FATAL_FAILURE(start_with(3));
  // It takes nothing any more: what is sent stays under way.
  peers[0]->pause();
  for (std::uint64_t i = 0; lane(0).send(1, pattern(100, i), i) == Status::kOk; ++i) under_way.insert(i);
  EXPECT_FALSE(under_way.empty());
  ASSERT_NO_FATAL_FAILURE(expect_echo(2)) << "others go on";
  peers[0]->kill();
  bool has_left = false;
  while (!has_left) {
    const Completion one = next(0);
    ASSERT_EQ(one.peer, 1U);
    if (one.kind == Kind::kLeft) {
      EXPECT_EQ(one.status, Status::kPeerLost);
      has_left = true;
    } else {
      ASSERT_EQ(one.kind, Kind::kSend);
      EXPECT_EQ(under_way.erase(one.cookie), 1U);
    }
  }
  EXPECT_TRUE(under_way.empty()) << "each send has ended before";
  EXPECT_FALSE(lane(0).is_here(1));
  EXPECT_EQ(lane(0).send(1, pattern(1, 0), 0), Status::kPeerLost);
  ASSERT_NO_FATAL_FAILURE(expect_echo(2));
  const auto barrier = lane(0).barrier(patience());
  ASSERT_STATUS(barrier, Status::kPeerLost);
  EXPECT_NE(std::string_view(barrier.error().text()).find("process 1"), std::string_view::npos);
}

// What it has sent stays as it is after its end, until it is released, once.
TEST_F(Processes, MessagesOutliveTheirSender) {
  ASSERT_NO_FATAL_FAILURE(start_with(2));
  ASSERT_EQ(patiently([&] { return lane(0).send(1, pattern(99, 1), kEcho); }), Status::kOk);
  const Window of_first_life{.peer = 1, .memory = {.address = 4096, .length = 64}, .incarnation = 1};
  Completion message = next(0, 0, Which::kReceives);
  ASSERT_EQ(message.kind, Kind::kReceive);
  std::span<std::byte> reserved;
  ASSERT_TRUE(until([&] { return !(reserved = lane(0).reserve(1)).empty(); }));
  peers[0]->kill();
  ASSERT_EQ(next(0, 0, Which::kReceives).kind, Kind::kLeft);
  peers[0] = spawn(1, 2, 2);
  ASSERT_EQ(next(0, 0, Which::kReceives).kind, Kind::kJoined);
  turn();
  EXPECT_TRUE(std::ranges::equal(message.bytes, pattern(99, 1)));
  EXPECT_EQ(lane(0).release(message), Status::kOk);
  EXPECT_EQ(next(0, 0, Which::kSends).cookie, kEcho);
  turn();
  std::ranges::fill(reserved, std::byte{1});
  EXPECT_EQ(lane(0).cancel(1, reserved), Status::kOk);
  turn();  // Nothing of the earlier life is left.
  EXPECT_EQ(lane(0).cancel(1, reserved), Status::kBadArgument);
  EXPECT_EQ(lane(0).release(message), Status::kBadArgument);
  EXPECT_EQ(lane(0).write(of_first_life, 0, pattern(8, 1), 0), Status::kPeerLost);
  EXPECT_NE(std::string_view(error_detail()).find("earlier life"), std::string_view::npos) << error_detail();
  ASSERT_NO_FATAL_FAILURE(expect_echo(1));
}

TEST_F(Processes, OneThatComesBackIsFoundAgain) {
  ASSERT_NO_FATAL_FAILURE(start_with(3));
  for (unsigned life = 2; life < 5; ++life) {
    for (const unsigned id : {1U, 2U}) {
      peers[id - 1]->kill();
      Completion news = next(0);
      ASSERT_EQ(news.kind, Kind::kLeft);
      EXPECT_EQ(news.status, Status::kPeerLost);
      peers[id - 1] = spawn(id, 3, life);
      news = next(0);
      ASSERT_EQ(news.kind, Kind::kJoined);
      EXPECT_EQ(news.peer, id);
      // Its join returns once all others have said that they are ready, which they do by polling.
      ASSERT_NO_FATAL_FAILURE(expect_echo(id));
      EXPECT_EQ(peers[id - 1]->read_number(), 0);
    }
  }
}

TEST_F(Processes, OneThatLeavesSaysSo) {
  ASSERT_NO_FATAL_FAILURE(start_with(2));
  ASSERT_EQ(patiently([&] { return lane(0).send(1, {}, 1); }), Status::kOk);
  for (Completion one = next(0); one.kind != Kind::kLeft; one = next(0)) EXPECT_EQ(one.status, Status::kOk);
  EXPECT_EQ(lane(0).send(1, pattern(1, 0), 0), Status::kClosed);
}

TEST_F(Processes, AnEarlierLifeIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start_with(2));
  peers[0]->kill();
  ASSERT_EQ(next(0).kind, Kind::kLeft);
  peers[0] = spawn(1, 2, 0x7fffffff);
  ASSERT_EQ(next(0).kind, Kind::kJoined);
  ASSERT_NO_FATAL_FAILURE(expect_echo(1));
  ASSERT_EQ(peers[0]->read_number(), 0);
  peers[0]->kill();
  ASSERT_EQ(next(0).kind, Kind::kLeft);
  EXPECT_EQ(spawn(1, 2, 5)->read_number(), static_cast<int>(Status::kRejected));
}

TEST_F(Processes, ASecondOneWithTheSameIdIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start_with(2));
  const auto second = spawn(1, 2, 2, "briefly");
  std::jthread polling([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) turn();
  });
  EXPECT_EQ(second->read_number(), static_cast<int>(Status::kTimedOut));
  polling.request_stop();
  polling.join();
  ASSERT_NO_FATAL_FAILURE(expect_echo(1)) << "the first one goes on";
}

// docs/mesh.md promises both, with the default options.
TEST(Memory, OfAPeerOnADeviceIsBounded) {
  const auto bytes = mesh::Peer::footprint(nic::Kind::kVerbs, {.max_inline = 220}, PeerOptions::of({})).bytes();
  RecordProperty("bytes_per_peer", static_cast<int>(bytes));
  EXPECT_LT(bytes, 64U * 1024);
}

TEST_F(Processes, EachTakesLittleMemoryForAPeer) {
  if constexpr (kIsSanitized) GTEST_SKIP() << "a sanitizer's memory is counted too";
  if (device_under_test() != nullptr) GTEST_SKIP() << "it is the memory of the software NIC's connections";
  const auto bytes_with = [this](unsigned processes) {
    const std::size_t before = proportional_bytes();
    start_with(processes);
    // Every receive of each peer is used.
    for (unsigned round = 0; round < 2 * Options{}.depth && !HasFatalFailure(); ++round)
      for (unsigned id = 1; id < processes; ++id) expect_echo(id, 64);
    const std::size_t after = proportional_bytes();
    meshes.clear();
    peers.clear();
    return after - before;
  };
  // The larger one first: what it leaves with malloc makes the smaller one smaller, and so the difference larger.
  const std::size_t many = bytes_with(64);
  ASSERT_FALSE(HasFatalFailure());
  const std::size_t few = bytes_with(16);
  ASSERT_FALSE(HasFatalFailure());
  const std::size_t each = (many - few) / (64 - 16);
  RecordProperty("bytes_per_peer", static_cast<int>(each));
  EXPECT_LT(each, 64U * 1024);
}

// A child has neither the threads nor the connections: it is told so, does its parent no harm, and may end.
TEST_F(Processes, AForkedChildIsRefused) {
  if constexpr (kIsSanitized) GTEST_SKIP() << "the child leaves what is its parent's, and a sanitizer calls that leaks";
  ASSERT_NO_FATAL_FAILURE(start_with(2));
  const pid_t child = fork();
  if (child == 0) {
    std::array<Completion, 1> one;
    Lane& mine = lane(0);
    const bool is_refused = mine.send(1, pattern(8, 1), 0) == Status::kForked && mine.reserve(1).empty() &&
                            mine.poll(one) == 0 && mine.wait(one, patience()) == 0 && !mine.is_here(1) &&
                            mine.barrier(patience()).error().status() == Status::kForked &&
                            meshes[0]->allocate(64).error().status() == Status::kForked;
    meshes.clear();
    _exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_NO_FATAL_FAILURE(expect_echo(1));
}

TEST(TwoHosts, WriteIntoEachOthersMemory) {
  const char* own = std::getenv("VERBENA_OWN_HOST");
  const char* other = std::getenv("VERBENA_PEER_HOST");
  if (own == nullptr || other == nullptr) GTEST_SKIP() << "no second machine: scripts/softroce.sh --pair has one";
  EXPECT_EQ(exchange_with_other_host(0, {std::string(own) + ":7480", std::string(other) + ":7480"}), "");
}

}  // namespace

int member_main(char** arguments) {
  const std::string wrong = exchange_with_other_host(1, {arguments[2], arguments[3]});
  if (!wrong.empty()) std::fprintf(stderr, "process 1: %s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

int peer_main(char** arguments) { return be_process(arguments); }

}  // namespace verbena::mesh::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 7 && std::string_view(argv[1]) == "peer") return verbena::mesh::test::peer_main(argv);
  if (argc == 4 && std::string_view(argv[1]) == "member") return verbena::mesh::test::member_main(argv);
  return RUN_ALL_TESTS();
}
