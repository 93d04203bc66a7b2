// Connections through RDMA CM, over a librdmacm and a libibverbs that are not there.
#include "../nic/verbs/fake_library.hpp"
#include "fake_cm.hpp"
#include "link/cm/manager.hpp"
#include "link/cm/private_data.hpp"
#include "nic/verbs/verbs_nic.hpp"
#include "result.hpp"
#include "support.hpp"

#include <gtest/gtest.h>

#include <poll.h>

#include <future>
#include <optional>

namespace verbena::link::cm {
namespace {

using namespace test;

Endpoint endpoint_of(std::uint64_t seed, std::size_t user_bytes) {
  Endpoint endpoint = make_endpoint(seed, user_bytes);
  endpoint.nic = nic::Kind::kVerbs;
  endpoint.qp.network = nic::Network::kRoceV2Ipv4;
  return endpoint;
}

/// What private data carries.
bool told(const Endpoint& got, const Endpoint& sent) {
  return got.recv_depth == sent.recv_depth && got.generation == sent.generation &&
         std::ranges::equal(got.user_data(), sent.user_data()) && got.qp.qp_num == sent.qp.qp_num &&
         got.qp.max_rd_atomic == sent.qp.max_rd_atomic;
}

class CmTest : public testing::Test {
 protected:
  CmTest() {
    library_.devices.push_back(std::make_unique<nic::verbs::FakeDevice>(
        "fake_0", std::vector<nic::verbs::FakePort>{{.gids = {nic::verbs::ipv4_gid(3, 1)}}}));
    auto opened = nic::verbs::open_with(library_.table(), {});
    EXPECT_OK(opened);
    nic_ = std::move(*opened);
  }
  ~CmTest() override {
    manager_.reset();
    EXPECT_EQ(cm_.live(), 0U);
    nic_.reset();
    EXPECT_EQ(library_.live(), 0U);
  }
  void begin() {
    auto started = start_with(cm_.table(), *nic_);
    ASSERT_OK(started);
    manager_ = std::move(*started);
    auto listening = manager_->listen({.address = "10.0.0.1"});
    ASSERT_OK(listening);
    listener_ = std::move(*listening);
  }
  void TearDown() override { listener_.reset(); }
  /// In the background: the server's side is the test's.
  [[nodiscard]] std::future<Result<std::unique_ptr<Handshake>>> dial(const Endpoint& local,
                                                                     Deadline deadline = generous()) {
    return std::async(std::launch::async, [this, local, deadline, port = listener_->port()] {
      return manager_->dial("10.0.0.1", port, local, deadline);
    });
  }
  /// Connects a client, up to the server's `finish`.
  void meet(std::unique_ptr<Handshake>& server, Lifeline& client) {
    auto dialing = dial(endpoint_of(1, 8));
    auto incoming = listener_->next(generous());
    ASSERT_OK(incoming);
    ASSERT_OK((*incoming)->answer(endpoint_of(2, 8), generous()));
    auto dialed = dialing.get();
    ASSERT_OK(dialed);
    auto finished = (*dialed)->finish(generous());
    ASSERT_OK(finished);
    server = std::move(*incoming);
    client = std::move(*finished);
  }
  [[nodiscard]] nic::Qp make_qp(nic::Pd& pd, nic::Cq& cq) {
    pd = nic::Pd(*nic_, nic_->alloc_pd().value());
    cq = nic::Cq(*nic_, nic_->create_cq(8, nullptr).value());
    nic::QpOptions options{.send_cq = cq.get(), .recv_cq = cq.get()};
    return nic::Qp(*nic_, nic_->create_qp(pd.get(), options).value());
  }
  [[nodiscard]] bool is_lost(const ibv_qp* qp) const {
    const Deadline deadline = generous();
    while (nic_->qp_failure(qp) != Status::kPeerLost && !deadline.passed()) std::this_thread::yield();
    return nic_->qp_failure(qp) == Status::kPeerLost;
  }

  nic::verbs::FakeLibrary library_;
  FakeCm cm_;
  std::unique_ptr<nic::Nic> nic_;
  std::unique_ptr<Manager> manager_;
  std::unique_ptr<Listener> listener_;
};

TEST_F(CmTest, ShakesHandsAndHearsOfTheEnd) {
  ASSERT_NO_FATAL_FAILURE(begin());
  const Endpoint client = endpoint_of(1, kMaxCmRequestBytes), server = endpoint_of(2, kMaxCmAnswerBytes);
  auto dialing = dial(client);
  auto incoming = listener_->next(generous());
  ASSERT_OK(incoming);
  EXPECT_TRUE(told((*incoming)->remote(), client));
  nic::Pd pd;
  nic::Cq cq;
  const nic::Qp qp = make_qp(pd, cq);
  EXPECT_OK(bring_up(*nic_, qp.get(), server, (*incoming)->remote(), (*incoming)->how(), generous()));
  EXPECT_EQ(cm_.states_asked, (std::vector{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}));
  EXPECT_OK((*incoming)->answer(server, generous()));
  auto dialed = dialing.get();
  ASSERT_OK(dialed);
  EXPECT_TRUE(told((*dialed)->remote(), server));
  auto at_client = (*dialed)->finish(generous());
  ASSERT_OK(at_client);
  auto at_server = (*incoming)->finish(generous());
  ASSERT_OK(at_server);
  at_server->watch(*nic_, qp.get());
  EXPECT_EQ(nic_->qp_failure(qp.get()), Status::kOk);
  *at_client = {};  // The client leaves.
  EXPECT_TRUE(is_lost(qp.get()));
  // Who comes too late to watch is told at once.
  at_server->watch(*nic_, qp.get());
  EXPECT_EQ(listener_->dropped(), 0U);
}

TEST_F(CmTest, APeerThatLeftBeforeItWasWatchedIsLost) {
  ASSERT_NO_FATAL_FAILURE(begin());
  std::unique_ptr<Handshake> incoming;
  Lifeline at_client;
  ASSERT_NO_FATAL_FAILURE(meet(incoming, at_client));
  auto at_server = incoming->finish(generous());
  ASSERT_OK(at_server);
  at_client = {};
  nic::Pd pd;
  nic::Cq cq;
  const nic::Qp qp = make_qp(pd, cq);
  at_server->watch(*nic_, qp.get());
  EXPECT_TRUE(is_lost(qp.get()));
}

/// A server that has answered may end before it has heard that its client is ready, or after.
TEST_F(CmTest, AServerThatEndsAfterItsAnswerIsLost) {
  ASSERT_NO_FATAL_FAILURE(begin());
  for (const bool loses_ready : {true, false}) {
    SCOPED_TRACE(loses_ready);
    cm_.loses_ready = loses_ready;
    std::unique_ptr<Handshake> incoming;
    Lifeline at_client;
    ASSERT_NO_FATAL_FAILURE(meet(incoming, at_client));
    nic::Pd pd;
    nic::Cq cq;
    const nic::Qp qp = make_qp(pd, cq);
    at_client.watch(*nic_, qp.get());
    EXPECT_EQ(nic_->qp_failure(qp.get()), Status::kOk);
    incoming->reject(Status::kClosed, "the server ends");
    EXPECT_TRUE(is_lost(qp.get()));
  }
}

TEST_F(CmTest, RejectsWithStatusAndText) {
  ASSERT_NO_FATAL_FAILURE(begin());
  auto dialing = dial(endpoint_of(1, 8));
  auto incoming = listener_->next(generous());
  ASSERT_OK(incoming);
  (*incoming)->reject(Status::kLimit, "the server is full " + std::string(300, '!'));
  const auto dialed = dialing.get();
  EXPECT_STATUS(dialed, Status::kLimit);
  ASSERT_FALSE(dialed.has_value());
  EXPECT_TRUE(contains(dialed.error(), "the server is full !!")) << dialed.error().text();
}

TEST_F(CmTest, AnUnansweredRequestIsPeerLost) {
  ASSERT_NO_FATAL_FAILURE(begin());
  auto dialing = dial(endpoint_of(1, 8));
  {
    const auto incoming = listener_->next(generous());
    ASSERT_OK(incoming);
  }
  EXPECT_STATUS(dialing.get(), Status::kPeerLost);
}

TEST_F(CmTest, ClientThatLeavesInTheHandshakeIsPeerLost) {
  ASSERT_NO_FATAL_FAILURE(begin());
  auto dialing = dial(endpoint_of(1, 8));
  auto incoming = listener_->next(generous());
  ASSERT_OK(incoming);
  ASSERT_OK((*incoming)->answer(endpoint_of(2, 8), generous()));
  { const auto dialed = dialing.get(); }
  EXPECT_STATUS((*incoming)->finish(generous()), Status::kPeerLost);
}

bool is_readable(int fd) { return wait_readable(fd, Deadline::now()); }

TEST_F(CmTest, ShakesHandsWithoutWaiting) {
  ASSERT_NO_FATAL_FAILURE(begin());
  EXPECT_FALSE(is_readable(listener_->fd()));
  EXPECT_TRUE(listener_->due().is_never());
  EXPECT_STATUS(listener_->next(Deadline::now()), Status::kAgain);
  const Endpoint client = endpoint_of(1, 8), server = endpoint_of(2, 8);
  auto dialing = dial(client);
  ASSERT_TRUE(wait_readable(listener_->fd(), generous()));
  auto incoming = listener_->next(Deadline::now());
  ASSERT_OK(incoming);
  EXPECT_FALSE(is_readable(listener_->fd()));
  Handshake& handshake = **incoming;
  EXPECT_STATUS(handshake.finish(Deadline::now()), Status::kBadArgument);
  ASSERT_OK(handshake.answer(server, Deadline::now()));
  EXPECT_STATUS(handshake.answer(server, Deadline::now()), Status::kBadArgument);
  EXPECT_STATUS(handshake.finish(Deadline::now()), Status::kAgain);
  EXPECT_FALSE(is_readable(handshake.fd()));
  EXPECT_EQ(handshake.events(), POLLIN);
  auto dialed = dialing.get();
  ASSERT_OK(dialed);
  EXPECT_STATUS(handshake.finish(Deadline::now()), Status::kAgain);
  const auto at_client = (*dialed)->finish(Deadline::now());
  ASSERT_OK(at_client);
  ASSERT_TRUE(wait_readable(handshake.fd(), generous()));
  const auto at_server = handshake.finish(Deadline::now());
  ASSERT_OK(at_server);
  for (Handshake* over : {&handshake, dialed->get()}) {
    EXPECT_EQ(over->fd(), -1);
    EXPECT_EQ(over->how().route, nullptr);
    EXPECT_STATUS(over->finish(Deadline::now()), Status::kBadArgument);
    over->reject(Status::kRejected, "does nothing");
  }
}

TEST_F(CmTest, AClientThatGoesBetweenTwoAttemptsIsPeerLost) {
  ASSERT_NO_FATAL_FAILURE(begin());
  auto dialing = dial(endpoint_of(1, 8));
  const auto incoming = listener_->next(generous());
  ASSERT_OK(incoming);
  ASSERT_OK((*incoming)->answer(endpoint_of(2, 8), Deadline::now()));
  EXPECT_STATUS((*incoming)->finish(Deadline::now()), Status::kAgain);
  { const auto dialed = dialing.get(); }
  ASSERT_TRUE(wait_readable((*incoming)->fd(), generous()));
  EXPECT_STATUS((*incoming)->finish(Deadline::now()), Status::kPeerLost);
  EXPECT_EQ((*incoming)->fd(), -1);
}

TEST_F(CmTest, AClientThatSaysNothingMoreIsLate) {
  ASSERT_NO_FATAL_FAILURE(begin());
  auto dialing = dial(endpoint_of(1, 8));
  const auto incoming = listener_->next(generous());
  ASSERT_OK(incoming);
  ASSERT_OK((*incoming)->answer(endpoint_of(2, 8), generous()));
  const auto dialed = dialing.get();
  ASSERT_OK(dialed);
  EXPECT_STATUS((*incoming)->finish(brief()), Status::kTimedOut);
  EXPECT_STATUS((*incoming)->finish(brief()), Status::kBadArgument);
}

/// All requests are there before the first is answered, and one thread with one poll set drives all of them.
TEST_F(CmTest, ManyAtOnceInOneThread) {
  constexpr std::size_t kClients = 40;
  ASSERT_NO_FATAL_FAILURE(begin());
  std::vector<std::future<Result<Lifeline>>> clients;
  for (std::size_t i = 0; i < kClients; ++i) {
    clients.push_back(std::async(std::launch::async, [this, i, port = listener_->port()]() -> Result<Lifeline> {
      auto dialed = manager_->dial("10.0.0.1", port, endpoint_of(i, 8), generous());
      if (!dialed) return std::unexpected(dialed.error());
      EXPECT_EQ((*dialed)->remote().generation, endpoint_of(i + 1000, 8).generation);
      if (i % 4 == 3) return Lifeline();  // Goes.
      return (*dialed)->finish(generous());
    }));
  }
  std::vector<std::unique_ptr<Handshake>> handshakes;
  while (handshakes.size() < kClients && wait_readable(listener_->fd(), generous())) {
    auto incoming = listener_->next(Deadline::now());
    if (incoming) handshakes.push_back(std::move(*incoming));
  }
  ASSERT_EQ(handshakes.size(), kClients);
  for (const auto& one : handshakes) {
    const std::uint64_t client = one->remote().generation - endpoint_of(0, 8).generation;
    ASSERT_OK(one->answer(endpoint_of(client + 1000, 8), Deadline::now()));
  }
  std::vector<Lifeline> done;
  std::size_t lost = 0;
  const Deadline deadline = generous();
  while (!handshakes.empty() && !deadline.passed()) {
    std::vector<pollfd> set;
    for (const auto& one : handshakes) set.push_back({one->fd(), one->events(), 0});
    ASSERT_GT(poll(set.data(), set.size(), deadline.left_ms()), 0);
    std::vector<std::unique_ptr<Handshake>> waiting;
    for (std::size_t i = 0; i < set.size(); ++i) {
      const bool is_ready = set[i].revents != 0;
      auto finished = is_ready ? handshakes[i]->finish(Deadline::now()) : Result<Lifeline>();
      const Status status = finished ? Status::kOk : finished.error().status();
      if (!is_ready || status == Status::kAgain) {
        waiting.push_back(std::move(handshakes[i]));
      } else if (status == Status::kOk) {
        done.push_back(std::move(*finished));
      } else {
        EXPECT_EQ(status, Status::kPeerLost);
        ++lost;
      }
    }
    handshakes.swap(waiting);
  }
  EXPECT_EQ(done.size(), kClients / 4 * 3);
  EXPECT_EQ(lost, kClients / 4);
  for (auto& client : clients) EXPECT_OK(client.get());
}

TEST_F(CmTest, NobodyListensNobodyAnswersNoDevice) {
  ASSERT_NO_FATAL_FAILURE(begin());
  EXPECT_STATUS(manager_->dial("10.0.0.1", 7, endpoint_of(1, 8), generous()), Status::kConnectionRefused);
  EXPECT_STATUS(manager_->dial("10.0.0.1", 0, endpoint_of(1, 8), generous()), Status::kBadArgument);
  cm_.at_resolve = RDMA_CM_EVENT_ADDR_ERROR;
  for (const auto& [status, expected] : std::initializer_list<std::pair<int, Status>>{
           {-ENODEV, Status::kNotFound}, {-ETIMEDOUT, Status::kTimedOut}, {-EHOSTUNREACH, Status::kPeerLost}}) {
    cm_.at_resolve_status = status;
    EXPECT_STATUS(manager_->dial("10.0.0.1", 7, endpoint_of(1, 8), generous()), expected);
  }
  cm_.at_resolve.reset();
  cm_.at_resolve_status = 0;
  cm_.is_silent = true;
  EXPECT_STATUS(manager_->dial("10.0.0.1", listener_->port(), endpoint_of(1, 8), brief()), Status::kTimedOut);
}

TEST_F(CmTest, UserDataHasTheLimitsOfItsPackets) {
  ASSERT_NO_FATAL_FAILURE(begin());
  EXPECT_STATUS(manager_->dial("10.0.0.1", listener_->port(), endpoint_of(1, kMaxCmRequestBytes + 1), generous()),
                Status::kTooLong);
  auto dialing = dial(endpoint_of(1, 0));
  auto incoming = listener_->next(generous());
  ASSERT_OK(incoming);
  EXPECT_STATUS((*incoming)->answer(endpoint_of(2, kMaxCmAnswerBytes + 1), generous()), Status::kTooLong);
  (*incoming)->reject(Status::kTooLong, "");
  EXPECT_STATUS(dialing.get(), Status::kTooLong);
}

TEST_F(CmTest, OtherVersionsAreRejectedAndCounted) {
  ASSERT_NO_FATAL_FAILURE(begin());
  cm_.spoils_data = true;
  auto dialing = dial(endpoint_of(1, 8));
  EXPECT_STATUS(listener_->next(brief()), Status::kTimedOut);
  const auto dialed = dialing.get();
  EXPECT_STATUS(dialed, Status::kProtocol);
  ASSERT_FALSE(dialed.has_value());
  EXPECT_TRUE(contains(dialed.error(), "version")) << dialed.error().text();
  EXPECT_EQ(listener_->dropped(), 1U);
}

TEST_F(CmTest, OtherDevicesAreNamed) {
  ASSERT_NO_FATAL_FAILURE(begin());
  cm_.device = "fake_9";
  const auto dialed = manager_->dial("10.0.0.1", listener_->port(), endpoint_of(1, 8), generous());
  EXPECT_STATUS(dialed, Status::kBadArgument);
  ASSERT_FALSE(dialed.has_value());
  EXPECT_TRUE(contains(dialed.error(), "fake_9") && contains(dialed.error(), "fake_0")) << dialed.error().text();
  EXPECT_STATUS(manager_->listen({.address = "10.0.0.1"}), Status::kBadArgument);
  EXPECT_OK(manager_->listen({.address = ""}));
  EXPECT_STATUS(manager_->listen({.address = "127.0.0.1"}), Status::kNotFound);
}

TEST_F(CmTest, ClosedListenerSaysSoAndRefuses) {
  ASSERT_NO_FATAL_FAILURE(begin());
  const std::uint16_t port = listener_->port();
  auto waiting = std::async(std::launch::async, [&] { return listener_->next(generous()); });
  listener_->close();
  EXPECT_STATUS(waiting.get(), Status::kClosed);
  EXPECT_TRUE(is_readable(listener_->fd()));
  EXPECT_STATUS(manager_->dial("10.0.0.1", port, endpoint_of(1, 8), generous()), Status::kConnectionRefused);
  EXPECT_STATUS(listener_->next(generous()), Status::kClosed);
  EXPECT_TRUE(is_readable(listener_->fd())) << "for good";
}

TEST_F(CmTest, AShutListenerRefusesUntilItAdmits) {
  ASSERT_NO_FATAL_FAILURE(begin());
  auto shut = manager_->listen({.address = "10.0.0.1", .is_shut_at_first = true});
  ASSERT_OK(shut);
  const std::uint16_t port = (*shut)->port();
  EXPECT_STATUS(manager_->dial("10.0.0.1", port, endpoint_of(1, 8), generous()), Status::kConnectionRefused);
  ASSERT_OK((*shut)->admit());
  auto waiting = std::async(std::launch::async, [&] { return (*shut)->next(generous()); });
  const auto dialing =
      std::async(std::launch::async, [&] { return manager_->dial("10.0.0.1", port, endpoint_of(1, 8), brief()); });
  EXPECT_OK(waiting.get());
}

TEST_F(CmTest, AddressInUseAndNoAddressOfADevice) {
  ASSERT_NO_FATAL_FAILURE(begin());
  EXPECT_STATUS(manager_->listen({.address = "10.0.0.1", .port = listener_->port()}), Status::kSystem);
  cm_.calls = 0;
  cm_.fail_at = 3;  // Channel, id, bind.
  cm_.fail_errno = ENODEV;
  const auto refused = manager_->listen({.address = "10.0.0.1"});
  EXPECT_STATUS(refused, Status::kNotFound);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(contains(refused.error(), "socket mode")) << refused.error().text();
}

TEST_F(CmTest, FindsTheDeviceOfAnAddress) {
  const auto own = place_of(cm_.table(), "10.0.0.1");
  ASSERT_OK(own);
  EXPECT_EQ(own->device, "fake_0");
  EXPECT_EQ(own->port, 1);
  const auto towards = place_towards(cm_.table(), "10.0.0.2", 5, generous());
  ASSERT_OK(towards);
  EXPECT_EQ(towards->device, "fake_0");
  ASSERT_TRUE(towards->gid.address.has_value());
  EXPECT_EQ(towards->gid.address->raw[15], 1);
  EXPECT_STATUS(place_of(cm_.table(), "0.0.0.0"), Status::kNotFound);
}

/// One connection from nothing to its end, both sides in one thread where they can be.
Result<void> connect_once(FakeCm& cm, nic::Nic& nic) {
  auto started = start_with(cm.table(), nic);
  if (!started) return std::unexpected(started.error());
  Manager& manager = **started;
  auto listener = manager.listen({.address = "10.0.0.1"});
  if (!listener) return std::unexpected(listener.error());
  const auto dial = [&, port = (*listener)->port()]() -> Result<void> {
    auto dialed = manager.dial("10.0.0.1", port, endpoint_of(1, 8), generous());
    if (!dialed) return std::unexpected(dialed.error());
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    if (auto known = (*dialed)->how().route->attributes(attr); !known) return std::unexpected(known.error());
    if (auto lifeline = (*dialed)->finish(generous()); !lifeline) return std::unexpected(lifeline.error());
    return {};
  };
  const auto serve = [&]() -> Result<void> {
    auto incoming = (*listener)->next(generous());
    if (!incoming) return std::unexpected(incoming.error());
    if (auto answered = (*incoming)->answer(endpoint_of(2, 8), generous()); !answered) return answered;
    auto lifeline = (*incoming)->finish(generous());
    if (!lifeline) return std::unexpected(lifeline.error());
    return {};
  };
  // Whoever fails ends the wait of the other.
  const auto closing = [&](const auto& act) {
    Result<void> done = act();
    if (!done) (*listener)->close();
    return done;
  };
  auto dialing = std::async(std::launch::async, [&] { return closing(dial); });
  const Result<void> served = closing(serve);
  const Result<void> dialed = dialing.get();
  return dialed ? served : dialed;
}

TEST_F(CmTest, WhicheverCallFailsEverythingIsReleased) {
  ASSERT_OK(connect_once(cm_, *nic_));
  EXPECT_EQ(cm_.live(), 0U);
  const int calls = cm_.calls;
  EXPECT_GT(calls, 12);
  for (int n = 1; n <= calls; ++n) {
    cm_.calls = 0;
    cm_.fail_at = n;
    const auto done = connect_once(cm_, *nic_);
    ASSERT_FALSE(done.has_value()) << n;
    EXPECT_STRNE(done.error().text(), "") << n;
    EXPECT_EQ(cm_.live(), 0U) << n;
  }
}

// As version 2 has them for ever.
TEST(CmPrivateData, BytesAreTheSameInEveryRelease) {
  EXPECT_EQ(hex_of(encode_cm_hello(endpoint_of(1, 3)).bytes()),
            "5642020103000102"
            "f0cdab8967452301"
            "01080f");
  EXPECT_EQ(hex_of(encode_cm_reject(Status::kNotAllowed, "uid 12").bytes()),
            "56420202061a0000"
            "756964203132");
}

TEST(CmPrivateData, CarriesBothWaysAndRefusesTheRest) {
  const Endpoint sent = endpoint_of(5, kMaxCmAnswerBytes);
  const PrivateData hello = encode_cm_hello(sent);
  EXPECT_EQ(hello.size, kReplyBytes);
  Endpoint got;
  ASSERT_OK(decode_cm_hello(hello.bytes(), got));
  EXPECT_EQ(got.generation, sent.generation);
  EXPECT_EQ(got.recv_depth, sent.recv_depth);
  EXPECT_TRUE(std::ranges::equal(got.user_data(), sent.user_data()));
  for (std::size_t length = 0; length < hello.size; ++length)
    EXPECT_STATUS(decode_cm_hello(hello.bytes().first(length), got), Status::kProtocol);
  for (const std::size_t at : {0u, 1u, 2u, 3u, 5u}) {  // Magic number, version, type, and what is reserved.
    PrivateData broken = hello;
    broken.data[at] ^= std::byte{1};
    EXPECT_STATUS(decode_cm_hello(broken.bytes(), got), Status::kProtocol) << at;
  }
  const PrivateData reject = encode_cm_reject(Status::kLimit, std::string(400, 'x') + "\n");
  EXPECT_EQ(reject.size, kRejectBytes);
  const auto heard = decode_cm_reject(reject.bytes());
  ASSERT_OK(heard);
  EXPECT_EQ(heard->status, Status::kLimit);
  EXPECT_EQ(heard->reason(), std::string(kMaxCmRejectText, 'x'));
  EXPECT_STATUS(decode_cm_hello(reject.bytes(), got), Status::kProtocol);
  EXPECT_STATUS(decode_cm_reject(hello.bytes()), Status::kProtocol);
  const auto unknown = decode_cm_reject(encode_cm_reject(static_cast<Status>(200), "\x1b[2J").bytes());
  ASSERT_OK(unknown);
  EXPECT_EQ(unknown->status, Status::kRejected);
  EXPECT_EQ(unknown->reason(), "?[2J");
}

}  // namespace
}  // namespace verbena::link::cm
