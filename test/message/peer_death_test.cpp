// A peer in another process, or on another host, that goes in mid-traffic: every connection to it ends with a typed
// reason, every operation completes, nothing is left, and the next connection works.
#include "fixture.hpp"
#include "link/link.hpp"
#include "remote/remote.hpp"

#include <peer.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace verbena::message::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kWindowBytes = 64 * 1024;
constexpr std::size_t kLargeBytes = 1 << 20;
constexpr std::uint16_t kPeerPort = 7471;  ///< Of the peer on another host.
constexpr Options kChannel{.depth = 16, .lease_bytes = 64 * 1024};

// --- the peer -----------------------------------------------------------------------------------------------------

/// Serves one client after the other until killed: a link to its window, then a channel that echoes.
class Victim {
 public:
  /// Prints the port that it listens on. Ends only when something fails.
  int serve(const std::string& address, std::uint16_t port) {
    auto opened = link::Listener::open({.address = address, .port = port});
    if (!opened) return complain(opened.error());
    std::printf("%d\n", (*opened)->port());
    std::fflush(stdout);
    side_.recorder.keep = false;
    side_.recorder.when_message = [](Channel& channel, std::span<const std::byte> body) { (void)channel.send(body); };
    side_.recorder.when_fragment = [this](Channel&, const Fragment&) { side_.recorder.larges.clear(); };
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
    VERBENA_ASSIGN(auto for_link, listener.next(Deadline::never()));
    VERBENA_ASSIGN(auto link, remote::Link::create(*side_.loop, side_.pd.get(), {}));
    const nic::Window window = memory_.window();
    VERBENA_ASSIGN(const auto link_end, link->local_endpoint(std::as_bytes(std::span(&window, 1))));
    VERBENA_TRY(link->connect(link_end, for_link.remote(), patience()));
    VERBENA_TRY(for_link.answer(link_end, patience()));
    VERBENA_TRY(for_link.finish(patience()));
    links_.push_back(std::move(link));

    VERBENA_ASSIGN(auto for_channel, listener.next(patience()));
    VERBENA_ASSIGN(auto channel, Channel::create(*side_.loop, side_.pd.get(), kChannel, side_.recorder));
    VERBENA_ASSIGN(const auto channel_end, channel->local_endpoint({}));
    VERBENA_TRY(channel->connect(channel_end, for_channel.remote(), patience()));
    VERBENA_TRY(for_channel.answer(channel_end, patience()));
    VERBENA_TRY(for_channel.finish(patience()));
    channels_.push_back(std::move(channel));
    return {};
  }

  Side side_;
  Region memory_{*side_.nic, side_.pd.get(), kWindowBytes};
  std::vector<std::unique_ptr<remote::Link>> links_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

// --- the survivor -------------------------------------------------------------------------------------------------

/// A client of a Victim, by the socket bootstrap.
struct Survivor : Side {
  void connect(const std::string& host, std::uint16_t port) {
    auto made_link = remote::Link::create(*loop, pd.get(), {.bounce_bytes = 8192, .bounce_buffers = 1});
    ASSERT_OK(made_link);
    const auto link_end = (*made_link)->local_endpoint({});
    ASSERT_OK(link_end);
    // The other host may be booting.
    const Deadline listening = Deadline::after(60s);
    auto link_dialed = link::dial(host, port, *link_end, listening);
    while (!link_dialed && !listening.passed()) {
      std::this_thread::sleep_for(100ms);
      link_dialed = link::dial(host, port, *link_end, listening);
    }
    ASSERT_OK(link_dialed);
    ASSERT_OK((*made_link)->connect(*link_end, link_dialed->remote(), patience()));
    ASSERT_OK(link_dialed->finish(patience()));
    nic::Window window;
    ASSERT_EQ(link_dialed->remote().user_data().size(), sizeof window);
    std::memcpy(&window, link_dialed->remote().user_data().data(), sizeof window);
    ASSERT_OK((*made_link)->import_window(window, patience()));
    link = std::move(*made_link);
    remote = {window.address, window.length, window.rkey};

    auto made_channel = Channel::create(*loop, pd.get(), kChannel, recorder);
    ASSERT_OK(made_channel);
    const auto channel_end = (*made_channel)->local_endpoint({});
    ASSERT_OK(channel_end);
    auto channel_dialed = link::dial(host, port, *channel_end, patience());
    ASSERT_OK(channel_dialed);
    ASSERT_OK((*made_channel)->connect(*channel_end, channel_dialed->remote(), patience()));
    ASSERT_OK(channel_dialed->finish(patience()));
    ASSERT_OK((*made_channel)->open_lease(patience()));
    channel = std::move(*made_channel);
  }
  /// One WRITE, one READ, one message there and back.
  [[nodiscard]] Status once() {
    Status status = write_and_read();
    if (status != Status::kOk) return status;
    const std::uint64_t before = recorder.message_count;
    status = loop->wait_until([&] { return (sent_ = channel->send(pattern(100, 1))) != Status::kAgain; }, patience());
    if (status != Status::kOk || sent_ != Status::kOk) return status != Status::kOk ? status : sent_;
    status = loop->wait_until([&] { return recorder.message_count > before || !channel->alive(); }, patience());
    return channel->alive() ? status : channel->failure();
  }
  [[nodiscard]] Status write_and_read() {
    const Bytes mine = pattern(10'000, ++seed_);
    Status status = link->write(std::span<const std::byte>(mine), remote, patience());
    if (status != Status::kOk) return status;
    Bytes back(mine.size());
    status = link->read(std::span(back), {remote.address, back.size(), remote.rkey}, patience());
    EXPECT_TRUE(status != Status::kOk || back == mine);
    return status;
  }
  /// Traffic on the link until it fails, which is waited for.
  [[nodiscard]] Status write_and_read_until_failure() {
    const Deadline deadline = patience();
    Status status = Status::kOk;
    while (status == Status::kOk && !deadline.passed()) status = write_and_read();
    return status;
  }
  /// Both connections end because the peer is lost, what was started on them too, and nothing is left.
  void expect_all_ended(std::size_t operations) {
    EXPECT_EQ(loop->wait_until([&] { return channel->drained(); }, patience()), Status::kOk);
    EXPECT_EQ(channel->failure(), Status::kPeerLost);
    // An idle link hears of it by a keepalive, which the soft NIC has not, or at the next call.
    EXPECT_EQ(write_and_read(), Status::kPeerLost);
    EXPECT_EQ(loop->wait_until([&] { return link->drained(); }, patience()), Status::kOk);
    EXPECT_EQ(link->failure(), Status::kPeerLost);
    EXPECT_EQ(recorder.failures, std::vector{Status::kPeerLost});
    EXPECT_EQ(recorder.completions.size(), operations);
    recorder.failures.clear();
    recorder.completions.clear();
    channel.reset();
    link.reset();
    EXPECT_EQ(loop->counters().quarantined, 0u);
    EXPECT_EQ(nic->objects().qps, 0u);
  }
  /// What is left with everything closed. The soft NIC has to hear of its peers' ends.
  void expect_nothing_left() {
    channel.reset();
    link.reset();
    loop.reset();
    pd.reset();
    const Deadline deadline = patience();
    while (nic->objects() != nic::Nic::Objects{} && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(nic->objects(), nic::Nic::Objects{});
  }

  std::unique_ptr<remote::Link> link;
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
    ASSERT_EQ(survivor_.channel->start_large({}, body_->local(0, kLargeBytes), 1), Status::kOk);
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

}  // namespace verbena::message::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc <= 1 || std::string_view(argv[1]) != "peer") return RUN_ALL_TESTS();
  verbena::test::die_with_the_test();
  return verbena::message::test::peer_main(argc, argv);
}
