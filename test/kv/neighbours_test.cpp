// A client of one user notices no more of another user's process that does its worst than of one that only keeps a
// processor busy. The server is this process, the neighbour and the enemy are others.
//
// The enemy's slices of time alternate: in every second one it burns a processor and lets the server alone. Both kinds
// of slices meet the same machine, so their ratio is judged, over as many slices as it takes.
#include "../nic/soft/raw_peer.hpp"
#include "inside.hpp"
#include "model.hpp"
#include "peer.hpp"
#include "raw_client.hpp"
#include "sanitized.hpp"
#include "stranger.hpp"

#include "link/socket.hpp"

#include <verbena/kv.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbena::kv {
namespace {

using namespace testing_support;
using namespace std::chrono_literals;
using test::become_stranger;
using test::kStranger;
using test::Peer;
using Clock = std::chrono::steady_clock;

constexpr uid_t kEnemy = 65'533;
constexpr auto kSlice = 60ms;
constexpr auto kPause = 100us;    // Between two calls of the neighbour.
constexpr unsigned kSlices = 10;  // Slices of each sort before the first judgement.
constexpr unsigned kMostSlices = 80;
constexpr double kMostTimes = 3;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

// --- what the processes share

/// The enemy's deeds in its slices.
enum class Evil : std::uint32_t { kTakes, kWakes, kRequests, kConnections, kHoles, kComings, kInside, kStops };

enum class Slice : std::uint32_t { kNone, kBurn, kEvil };

struct Shared {
  static constexpr std::size_t kMost = 4096;
  std::atomic<Slice> slice{Slice::kNone};
  std::atomic<std::uint64_t> calls{0};                      // The neighbour makes them in this slice; 0 before each.
  std::array<std::atomic<std::uint32_t>, kMost> took_ns{};  // The first ones took so long.
  std::atomic<std::uint64_t> deeds{0};                      // The enemy does them.
  std::atomic<std::uint32_t> failures{0};                   // Calls of the neighbour that failed.
};

Shared* map(int fd) {
  void* const data = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<Shared*>(data);
}

// --- the neighbour

/// Reads, one-sided and by messages, and writes, a little at a time.
int be_neighbour(Shared& shared, std::uint16_t port) {
  if (!become_stranger()) return 2;
  ClientOptions options = client_options(port);
  const auto reader = Client::connect(options);
  options.lookup = Lookup::kMessage;
  const auto asker = Client::connect(options);
  if (!reader || !asker) return 3;
  std::array<std::byte, 256> value{};
  std::puts("0");
  std::fflush(stdout);
  for (unsigned i = 0;; ++i) {
    std::this_thread::sleep_for(kPause);
    const auto begin = Clock::now();
    const Status status = i % 3 == 0   ? (*reader)->get(key_of("k"), value).status
                          : i % 3 == 1 ? (*asker)->get(key_of("k"), value).status
                                       : (*asker)->put(key_of("own"), std::span(value).first(100)).status;
    const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin);
    if (status != Status::kOk) shared.failures.fetch_add(1);
    const std::uint64_t at = shared.calls.fetch_add(1);
    constexpr std::uint64_t kMostNs = std::numeric_limits<std::uint32_t>::max();
    if (at < Shared::kMost)
      shared.took_ns[at].store(static_cast<std::uint32_t>(std::min(static_cast<std::uint64_t>(took.count()), kMostNs)));
  }
}

// --- the enemy

void burn() {
  for (const auto end = Clock::now() + 50us; Clock::now() < end;) continue;
}

/// Deeds at full speed in the slices for them.
template <class Deed>
[[noreturn]] void be_evil(Shared& shared, Deed&& deed) {
  std::puts("0");
  std::fflush(stdout);
  for (;;) {
    switch (shared.slice.load()) {
      case Slice::kNone: std::this_thread::sleep_for(1ms); break;
      case Slice::kBurn: burn(); break;
      case Slice::kEvil: deed(); shared.deeds.fetch_add(1);
    }
  }
}

int be_enemy(Shared& shared, std::uint16_t port, Evil evil) {
  if (setgroups(0, nullptr) != 0 || setresgid(kEnemy, kEnemy, kEnemy) != 0 || setresuid(kEnemy, kEnemy, kEnemy) != 0)
    return 2;
  prctl(PR_SET_DUMPABLE, 1);
  test::die_with_the_test();
  if (evil == Evil::kComings) {
    be_evil(shared, [&] { (void)Client::connect(client_options(port)); });
  }
  if (evil == Evil::kHoles) {
    be_evil(shared, [&] {
      const RawClient raw(port, RawClient::Stops::kIfRefused, 0, [](wire::ClientHello::Source& source) {
        ++source.memory_id;  // The memory of its own that comes next has holes.
      });
    });
  }
  if (evil == Evil::kInside) {
    be_evil(shared, [&] {
      const RawClient raw(port);
      test::claim_to_be_inside();
    });
  }
  if (evil == Evil::kConnections) {
    be_evil(shared, [&] {
      const auto socket = link::connect_to("127.0.0.1", port, Deadline::after(5s));
      const std::array<char, 100> noise{'x'};
      if (socket) (void)!::send(socket->get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    });
  }
  RawClient raw(port);
  nic::soft::RawClient nic;
  nic::soft::Reply reply;
  nic::soft::Fds fds;
  if (!nic.connect(raw.server().gid) || !nic.hello(raw.nic().gid(), reply, fds)) return 3;
  nic::soft::Request take;
  take.type = evil == Evil::kWakes ? nic::soft::RequestType::kWake : nic::soft::RequestType::kTake;
  take.your_qp = raw.server().qp_num;
  if (evil == Evil::kTakes || evil == Evil::kWakes) be_evil(shared, [&] { (void)nic.send(&take, sizeof take); });
  if (evil == Evil::kRequests) {
    be_evil(shared, [&] {
      for (const auto type : {nic::soft::RequestType::kWake, nic::soft::RequestType::kServe}) {
        take.type = type;
        (void)nic.send(&take, sizeof take);
      }
      (void)nic.hello(raw.nic().gid(), reply, fds);
    });
  }
  // It stops itself in the middle of its calls; the test lets it go on after the slice.
  const auto client = Client::connect(client_options(port));
  if (!client) return 4;
  std::vector<std::byte> value(100'000);
  be_evil(shared, [&] {
    for (int i = 0; i < 5; ++i) (void)(*client)->put(key_of("large"), value);
    (void)raise(SIGSTOP);
  });
}

// --- the tests

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

template <class Values>
double median_of(Values values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

class KvNeighbours : public testing::TestWithParam<Evil> {
 protected:
  void SetUp() override {
    if (!test::is_soft_under_test()) GTEST_SKIP() << "users of one host meet on the soft NIC";
    if (geteuid() != 0) GTEST_SKIP() << "only root can start processes of other users";
    if (test::kIsSanitized) GTEST_SKIP() << "times under a sanitizer say nothing";
    fd_ = Fd(memfd_create("neighbours", 0));
    ASSERT_EQ(ftruncate(fd_.get(), sizeof(Shared)), 0);
    shared_ = map(fd_.get());
    ASSERT_NE(shared_, nullptr);
    new (shared_) Shared();
  }
  std::unique_ptr<Peer> start_peer(std::string role, std::uint16_t port) {
    return std::make_unique<Peer>(std::vector<std::string>{std::move(role), std::to_string(fd_.get()),
                                                           std::to_string(port),
                                                           std::to_string(static_cast<unsigned>(GetParam()))});
  }
  /// The 99th percentile of the neighbour's calls while the enemy does that, in us.
  double p99_while(Slice slice, Peer& enemy) {
    if (GetParam() == Evil::kStops) enemy.resume();
    shared_->calls.store(0);
    shared_->slice.store(slice);
    std::this_thread::sleep_for(kSlice);
    shared_->slice.store(Slice::kNone);
    const std::size_t calls = std::min<std::size_t>(shared_->calls.load(), Shared::kMost);
    std::vector<std::uint32_t> took(calls);
    for (std::size_t i = 0; i < calls; ++i) took[i] = shared_->took_ns[i].load();
    std::ranges::sort(took);
    // A slice in which hardly a call ended is one long call.
    if (calls < 2) return std::chrono::duration<double, std::micro>(kSlice).count();
    return took[calls * 99 / 100] / 1e3;
  }

  Fd fd_;
  Shared* shared_ = nullptr;
};

TEST_P(KvNeighbours, NoticeNothing) {
  ServerOptions options = small_server();
  options.allowed_uids = {kStranger, kEnemy};
  options.max_clients = 64;
  const auto server = start(options);
  ASSERT_TRUE(server);
  const auto owner = connect(client_options(*server));
  ASSERT_TRUE(owner);
  ASSERT_EQ(owner->put(key_of("k"), bytes_of("value")).status, Status::kOk);
  const auto neighbour = start_peer("neighbour", server->port());
  ASSERT_EQ(neighbour->read_number(), 0);
  const auto enemy = start_peer("enemy", server->port());
  ASSERT_EQ(enemy->read_number(), 0);
  const std::size_t before = resident_bytes();
  std::vector<double> burnt, suffered;
  double times = 0;
  for (unsigned slice = 0; slice < kMostSlices; ++slice) {
    burnt.push_back(p99_while(Slice::kBurn, *enemy));
    suffered.push_back(p99_while(Slice::kEvil, *enemy));
    times = median_of(suffered) / median_of(burnt);
    if (slice + 1 >= kSlices && times <= kMostTimes) break;
  }
  const std::size_t after = resident_bytes();
  std::printf("%llu deeds; the neighbour's p99: %.1f us, %.1f us beside a busy loop, %.2f times; %.1f MiB more\n",
              static_cast<unsigned long long>(shared_->deeds.load()), median_of(suffered), median_of(burnt), times,
              static_cast<double>(after - std::min(before, after)) / (1 << 20));
  EXPECT_GT(shared_->deeds.load(), 0U);
  EXPECT_LE(times, kMostTimes);
  EXPECT_LE(after, before + kMostBytes);
  EXPECT_EQ(shared_->failures.load(), 0U);
}

std::string name_of_evil(const testing::TestParamInfo<Evil>& info) {
  switch (info.param) {
    case Evil::kTakes: return "OfRequestsToReceive";
    case Evil::kWakes: return "OfWakesForNothing";
    case Evil::kRequests: return "OfRequestsToTheNic";
    case Evil::kConnections: return "OfConnectionsWithNoise";
    case Evil::kHoles: return "OfRefusedMemory";
    case Evil::kComings: return "OfClientsThatComeAndGo";
    case Evil::kInside: return "OfClientsThatSayTheyAreInside";
    case Evil::kStops: return "OfAClientThatStops";
  }
  return "OfSomething";
}

INSTANTIATE_TEST_SUITE_P(Beside, KvNeighbours,
                         testing::Values(Evil::kTakes, Evil::kWakes, Evil::kRequests, Evil::kConnections, Evil::kHoles,
                                         Evil::kComings, Evil::kInside, Evil::kStops),
                         name_of_evil);

int peer_main(char** argv) {
  test::die_with_the_test();
  const auto number = [&](int at) { return std::strtoul(argv[at], nullptr, 10); };
  Shared* const shared = map(static_cast<int>(number(3)));
  const auto port = static_cast<std::uint16_t>(number(4));
  if (shared == nullptr) return 3;
  if (std::string_view(argv[2]) == "neighbour") return be_neighbour(*shared, port);
  return be_enemy(*shared, port, static_cast<Evil>(number(5)));
}

}  // namespace
}  // namespace verbena::kv

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 6 && std::string_view(argv[1]) == "peer") return verbena::kv::peer_main(argv);
  return RUN_ALL_TESTS();
}
