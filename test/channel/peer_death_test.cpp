// A peer in another process, or on another host, that goes in mid-traffic: every connection to it ends with a typed
// reason, every operation completes, nothing is left, and the next connection works.
#include "fixture.hpp"
#include "link/link.hpp"

#include <peer.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace verbena::channel::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kWindowBytes = 64 * 1024;
constexpr std::size_t kLargeBytes = 1 << 20;
constexpr std::uint16_t kPeerPort = 7471;  ///< Of the peer on another host.
constexpr Options kConnection{.depth = 16, .lease_bytes = 64 * 1024};

// --- the peer -----------------------------------------------------------------------------------------------------

/// Serves one client after the other until killed: a connection to its window, then one that echoes.
class Victim {
 public:
  /// Prints the port that it listens on. Ends only when something fails.
  int serve(const std::string& address, std::uint16_t port) {
    auto opened = link::Listener::open({.address = address, .port = port});
    if (!opened) return complain(opened.error());
    std::printf("%d\n", (*opened)->port());
    std::fflush(stdout);
    side_.recorder.keep = false;
    side_.recorder.when_message = [](Connection& connection, std::span<const std::byte> body) {
      (void)connection.send(body);
    };
    side_.recorder.when_fragment = [this](Connection&, const Fragment&) { side_.recorder.larges.clear(); };
    std::jthread poller([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) side_.loop->wait(Deadline::after(100ms));
    });
    for (;;) {
      if (const auto done = accept(**opened); !done) return complain(done.error());
    }
  }

 private:
  static int complain(const Error& error) {
    std::fprintf(stderr, "peer: %s: %s\n", error.call(), error.text());
    return 1;
  }
  /// Whoever connects gets what comes next; a client that goes in between is no reason to end.
  [[nodiscard]] Result<void> accept(link::Listener& listener) {
    const nic::Window window = memory_.window();
    VERBENA_TRY(take(listener, Deadline::never(), {}, std::as_bytes(std::span(&window, 1))));
    return take(listener, patience(), kConnection, {});
  }
  [[nodiscard]] Result<void> take(link::Listener& listener, Deadline deadline, const Options& options,
                                  std::span<const std::byte> user_data) {
    VERBENA_ASSIGN(auto handshake, listener.next(deadline));
    VERBENA_ASSIGN(auto connection, side_.make(options, side_.recorder));
    VERBENA_TRY(connection->answer(std::move(handshake), user_data));
    VERBENA_TRY(connection->connect(patience()));
    connection->attach();
    connections_.push_back(std::move(connection));
    return {};
  }

  Side side_;
  Region memory_{*side_.nic, side_.pd.get(), kWindowBytes};
  std::vector<std::unique_ptr<Connection>> connections_;
};

// --- the survivor -------------------------------------------------------------------------------------------------

/// A client of a Victim, by the socket bootstrap.
struct Survivor : Side {
  void connect(const std::string& host, std::uint16_t port) {
    // The other host may be booting.
    const Deadline listening = Deadline::after(60s);
    ASSERT_NO_FATAL_FAILURE(dial(host, port, {}, at_memory, listening, memory));
    nic::Window window;
    ASSERT_EQ(memory->peer_data().size(), sizeof window);
    std::memcpy(&window, memory->peer_data().data(), sizeof window);
    ASSERT_OK(memory->import_window(window, patience()));
    remote = {window.address, window.length, window.rkey};
    ASSERT_NO_FATAL_FAILURE(dial(host, port, kConnection, recorder, listening, connection));
  }
  void dial(const std::string& host, std::uint16_t port, const Options& options, Handler& handler, Deadline listening,
            std::unique_ptr<Connection>& made) {
    auto created = make(options, handler);
    ASSERT_OK(created);
    const auto end = (*created)->describe({});
    ASSERT_OK(end);
    auto dialed = link::dial(host, port, *end, listening);
    while (!dialed && !listening.passed()) {
      std::this_thread::sleep_for(100ms);
      dialed = link::dial(host, port, *end, listening);
    }
    ASSERT_OK(dialed);
    ASSERT_OK((*created)->dialed(std::move(*dialed)));
    ASSERT_OK((*created)->connect(patience()));
    made = std::move(*created);
    made->attach();
  }
  /// One WRITE, one READ, one message there and back.
  [[nodiscard]] Status once() {
    Status status = write_and_read();
    if (status != Status::kOk) return status;
    const std::uint64_t before = recorder.message_count;
    status =
        loop->wait_until([&] { return (sent_ = connection->send(pattern(100, 1))) != Status::kAgain; }, patience());
    if (status != Status::kOk || sent_ != Status::kOk) return status != Status::kOk ? status : sent_;
    status = loop->wait_until([&] { return recorder.message_count > before || !connection->alive(); }, patience());
    return connection->alive() ? status : connection->failure();
  }
  [[nodiscard]] Status write_and_read() {
    const Bytes mine = pattern(10'000, ++seed_);
    Status status = memory->write(std::span<const std::byte>(mine), remote, patience());
    if (status != Status::kOk) return status;
    Bytes back(mine.size());
    status = memory->read(std::span(back), {remote.address, back.size(), remote.rkey}, patience());
    EXPECT_TRUE(status != Status::kOk || back == mine);
    return status;
  }
  /// Traffic on `memory` until it fails, which is waited for.
  [[nodiscard]] Status write_and_read_until_failure() {
    const Deadline deadline = patience();
    Status status = Status::kOk;
    while (status == Status::kOk && !deadline.passed()) status = write_and_read();
    return status;
  }
  /// Both connections end because the peer is lost, what was started on them too, and nothing is left.
  void expect_all_ended(std::size_t operations) {
    EXPECT_EQ(loop->wait_until([&] { return connection->drained(); }, patience()), Status::kOk);
    EXPECT_EQ(connection->failure(), Status::kPeerLost);
    // An idle connection hears of it by a keepalive, which the soft NIC has not, or at the next call.
    EXPECT_EQ(write_and_read(), Status::kPeerLost);
    EXPECT_EQ(loop->wait_until([&] { return memory->drained(); }, patience()), Status::kOk);
    EXPECT_EQ(memory->failure(), Status::kPeerLost);
    EXPECT_EQ(recorder.failures, std::vector{Status::kPeerLost});
    EXPECT_EQ(at_memory.failures, std::vector{Status::kPeerLost});
    at_memory.failures.clear();
    EXPECT_EQ(recorder.completions.size(), operations);
    recorder.failures.clear();
    recorder.completions.clear();
    connection.reset();
    memory.reset();
    EXPECT_EQ(loop->counters().quarantined, 0u);
    EXPECT_EQ(nic->objects().qps, 0u);
  }
  /// What is left with everything closed. The soft NIC has to hear of its peers' ends.
  void expect_nothing_left() {
    memory.reset();
    close();
    const Deadline deadline = patience();
    while (nic->objects() != nic::Nic::Objects{} && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(nic->objects(), nic::Nic::Objects{});
  }

  Recorder at_memory;
  std::unique_ptr<Connection> memory;  ///< Whose peer has a window.
  engine::RemoteSpan remote;

 private:
  Status sent_ = Status::kOk;
  std::uint64_t seed_ = 0;
};

class PeerDeath : public testing::Test {
 protected:
  void start() {
    peer_ = std::make_unique<Peer>(std::vector<std::string>{"127.0.0.1", "0"});
    const int port = peer_->read_number();
    ASSERT_GT(port, 0);
    ASSERT_NO_FATAL_FAILURE(survivor_.connect("127.0.0.1", static_cast<std::uint16_t>(port)));
    ASSERT_EQ(survivor_.once(), Status::kOk);
  }
  /// A large message that is on its way for as long as the peer takes to read it.
  void start_large() {
    body_ = std::make_unique<Region>(*survivor_.nic, survivor_.pd.get(), kLargeBytes);
    ASSERT_EQ(survivor_.connection->start_large({}, body_->local(0, kLargeBytes), 1), Status::kOk);
  }
  void works_again() {
    body_.reset();
    ASSERT_NO_FATAL_FAILURE(start());
    EXPECT_EQ(survivor_.once(), Status::kOk);
    survivor_.expect_nothing_left();
  }

  std::unique_ptr<Peer> peer_;
  Survivor survivor_;
  std::unique_ptr<Region> body_;
};

TEST_F(PeerDeath, KilledInMidTraffic) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (std::uint64_t i = 0; i < survivor_.rounds(500); ++i) ASSERT_EQ(survivor_.once(), Status::kOk);
  ASSERT_NO_FATAL_FAILURE(start_large());
  peer_->kill();
  EXPECT_EQ(survivor_.write_and_read_until_failure(), Status::kPeerLost);
  survivor_.expect_all_ended(1);
  works_again();
}

TEST_F(PeerDeath, KilledWhileNobodySends) {
  ASSERT_NO_FATAL_FAILURE(start());
  peer_->kill();
  survivor_.expect_all_ended(0);
  works_again();
}

// --- what only a device has ---------------------------------------------------------------------------------------

/// The network device below VERBENA_NIC, which this test may turn off: that is said by VERBENA_NETDEV.
class LinkDown : public PeerDeath {
 protected:
  void SetUp() override {
    netdev_ = std::getenv("VERBENA_NETDEV");
    if (device_under_test() == nullptr || netdev_ == nullptr)
      GTEST_SKIP() << "no network device that may be turned off (VERBENA_NIC and VERBENA_NETDEV name one)";
  }
  void TearDown() override {
    if (netdev_ != nullptr) set("up");
  }
  void set(const std::string& state) {
    ASSERT_EQ(std::system(("ip link set " + std::string(netdev_) + " " + state).c_str()), 0);
  }
  const char* netdev_ = nullptr;
};

TEST_F(LinkDown, InMidTrafficAndUpAgain) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(start_large());
  ASSERT_NO_FATAL_FAILURE(set("down"));
  EXPECT_EQ(survivor_.write_and_read_until_failure(), Status::kPeerLost);
  survivor_.expect_all_ended(1);
  ASSERT_NO_FATAL_FAILURE(set("up"));
  works_again();
}

// The second machine of scripts/softroce.sh --peer, which loses its power when the file "cut-power" is there.
TEST(HostDeath, PoweredOffInMidTraffic) {
  const char* host = std::getenv("VERBENA_PEER_HOST");
  const char* results = std::getenv("VERBENA_RESULTS");
  if (host == nullptr || results == nullptr) GTEST_SKIP() << "no second machine: scripts/softroce.sh --peer has one";
  Survivor survivor;
  ASSERT_NO_FATAL_FAILURE(survivor.connect(host, kPeerPort));
  for (int i = 0; i < 5; ++i) ASSERT_EQ(survivor.once(), Status::kOk);
  const std::uint64_t keepalives = survivor.loop->counters().keepalives;
  std::ofstream(std::string(results) + "/cut-power") << "now\n";
  EXPECT_EQ(survivor.write_and_read_until_failure(), Status::kPeerLost);
  // The channel has nothing under way: it hears by its keepalive alone.
  survivor.expect_all_ended(0);
  EXPECT_GT(survivor.loop->counters().keepalives, keepalives);
  survivor.expect_nothing_left();
}

}  // namespace

int peer_main(int argc, char** argv) {
  if (argc < 4) return 2;
  Victim victim;
  return victim.serve(argv[2], static_cast<std::uint16_t>(std::strtoul(argv[3], nullptr, 10)));
}

}  // namespace verbena::channel::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc <= 1 || std::string_view(argv[1]) != "peer") return RUN_ALL_TESTS();
  verbena::test::die_with_the_test();
  return verbena::channel::test::peer_main(argc, argv);
}
