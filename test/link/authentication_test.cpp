// Handshakes over TCP, which anybody can open, relay and change: no side believes a byte that the other one has not
// sent.
#include "nic/nic.hpp"
#include "result.hpp"
#include "support.hpp"

#include <functional>
#include <future>
#include <memory>
#include <stop_token>
#include <thread>
#include <utility>

namespace verbena::link {
namespace {

using namespace test;
using namespace verbena::test;

/// What a program between client and server does with the client's HELLO, and with the server's answer.
using Change = std::function<void(Endpoint&)>;
void keep(Endpoint&) {}

class Authentication : public testing::Test {
 protected:
  Authentication() { listener_ = Listener::open({.nic = server_nic_.get()}).value(); }

  [[nodiscard]] static Endpoint end_of(const nic::Nic& nic, std::uint64_t seed) {
    Endpoint endpoint = make_endpoint(seed);
    endpoint.qp.gid = nic.gid();
    return endpoint;
  }
  [[nodiscard]] Result<std::unique_ptr<Handshake>> dial_at(std::uint16_t port) {
    return dial("127.0.0.1", port, client_end_, generous(), {.nic = client_nic_.get()});
  }
  /// The server's whole side. Errors: those of its steps.
  [[nodiscard]] Result<void> serve() {
    VERBENA_ASSIGN(const auto incoming, listener_->next(generous()));
    VERBENA_TRY(incoming->confirm(generous()));
    VERBENA_TRY(incoming->answer(server_end_, generous()));
    VERBENA_TRY(incoming->finish(generous()));
    return {};
  }
  /// A program that stands between a client, which dials it, and the server.
  [[nodiscard]] std::unique_ptr<RawServer> middle(Change of_client, Change of_server) {
    return std::make_unique<RawServer>([=, this](int client) {
      const Fd server = connect_raw(listener_->port());
      if (pass(client, server.get(), of_client)) (void)pass(server.get(), client, of_server);
      // READYs, or a REJECT, as they come.
      if (pass(client, server.get(), keep)) (void)pass(server.get(), client, keep);
    });
  }
  struct Ends {
    Result<void> client;
    Result<void> server;
  };
  [[nodiscard]] Ends connect_through(Change of_client, Change of_server) {
    const auto between = middle(std::move(of_client), std::move(of_server));
    auto dialing = std::async(std::launch::async, [&]() -> Result<void> {
      VERBENA_ASSIGN(const auto dialed, dial_at(between->port()));
      EXPECT_TRUE(same(dialed->remote(), server_end_));
      VERBENA_TRY(dialed->finish(generous()));
      return {};
    });
    auto served = serve();
    return {dialing.get(), std::move(served)};
  }
  /// Says that HELLO by hand, and returns why the server refuses it. The server has told nothing then.
  [[nodiscard]] Result<void> refusal_of(const Endpoint& hello) {
    const Fd stranger = connect_raw(listener_->port());
    send_raw(stranger.get(), encode_hello(hello).bytes());
    const std::jthread serving([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const auto incoming = listener_->next(brief());  // None where it is refused at the door.
        if (incoming) {
          EXPECT_STATUS((*incoming)->confirm(generous()), Status::kNotAllowed);
        }
      }
    });
    const auto answer = read_frame(stranger.get());
    return answer ? Result<void>() : std::unexpected(answer.error());
  }

 private:
  /// False when it was no HELLO.
  static bool pass(int from, int to, const Change& change) {
    Inbox inbox;
    const auto got = receive_frame(from, inbox, {.peer = "one side", .awaited = "a frame"}, generous());
    auto hello = decode_hello(inbox.bytes());
    if (hello) {
      change(*hello);
      send_raw(to, encode_hello(*hello).bytes());
    } else {
      send_raw(to, inbox.bytes());
    }
    return got.has_value();
  }

 protected:
  std::unique_ptr<nic::Nic> server_nic_ = nic::open_soft({}).value();
  std::unique_ptr<nic::Nic> client_nic_ = nic::open_soft({}).value();
  std::unique_ptr<nic::Nic> honest_nic_ = nic::open_soft({}).value();
  const Endpoint client_end_ = end_of(*client_nic_, 1), server_end_ = end_of(*server_nic_, 2);
  std::unique_ptr<Listener> listener_;
};

TEST_F(Authentication, BothSidesConfirm) {
  auto dialing = std::async(std::launch::async, [&] { return dial_at(listener_->port()); });
  const auto incoming = listener_->next(generous());
  ASSERT_OK(incoming);
  // Nobody is told anything before, and the socket tells of a client that hangs up, no more.
  EXPECT_GE((*incoming)->fd(), 0);
  EXPECT_EQ((*incoming)->events(), POLLRDHUP);
  EXPECT_STATUS((*incoming)->answer(server_end_, generous()), Status::kBadArgument);
  EXPECT_STATUS((*incoming)->finish(generous()), Status::kBadArgument);
  ASSERT_OK((*incoming)->confirm(generous()));
  EXPECT_EQ((*incoming)->uid(), geteuid());
  ASSERT_OK((*incoming)->confirm(generous()));
  ASSERT_OK((*incoming)->answer(server_end_, generous()));
  EXPECT_STATUS((*incoming)->confirm(generous()), Status::kBadArgument);
  const auto dialed = dialing.get();
  ASSERT_OK(dialed);
  EXPECT_STATUS((*dialed)->confirm(generous()), Status::kBadArgument);
  auto finishing = std::async(std::launch::async, [&] { return (*dialed)->finish(generous()); });
  EXPECT_OK((*incoming)->finish(generous()));
  EXPECT_OK(finishing.get());
}

TEST_F(Authentication, ConfirmingInSteps) {
  const Fd progress = make_eventfd().value();
  server_nic_->notify_progress(progress.get());
  auto dialing = std::async(std::launch::async, [&] { return dial_at(listener_->port()); });
  const auto incoming = listener_->next(generous());
  ASSERT_OK(incoming);
  Result<void> confirmed = (*incoming)->confirm(Deadline::now());
  while (!confirmed && confirmed.error().status() == Status::kAgain) {
    ASSERT_TRUE(wait_readable(progress.get(), generous()));
    drain_eventfd(progress.get());
    confirmed = (*incoming)->confirm(Deadline::now());
  }
  EXPECT_OK(confirmed);
  ASSERT_OK((*incoming)->answer(server_end_, generous()));
  EXPECT_OK(dialing.get());
  server_nic_->notify_progress(-1);
}

TEST_F(Authentication, ARelayThatChangesNothingIsAWire) {
  const Ends ends = connect_through(keep, keep);
  EXPECT_OK(ends.client);
  EXPECT_OK(ends.server);
}

TEST_F(Authentication, WhatIsChangedOnTheWayIsRefused) {
  const Change changes[] = {
      [](Endpoint& end) { end.private_data[5] ^= std::byte{1}; },
      [](Endpoint& end) { ++end.qp.qp_num; },
      [](Endpoint& end) { ++end.generation; },
      [](Endpoint& end) { ++end.recv_depth; },
      [](Endpoint& end) { --end.private_bytes; },
      [this](Endpoint& end) { end.qp.gid = honest_nic_->gid(); },
  };
  for (const Change& change : changes) {
    const Ends of_client = connect_through(change, keep);
    EXPECT_STATUS(of_client.server, Status::kNotAllowed);
    EXPECT_STATUS(of_client.client, Status::kNotAllowed);
    const Ends of_server = connect_through(keep, change);
    EXPECT_STATUS(of_server.client, Status::kNotAllowed);
    EXPECT_STATUS(of_server.server, Status::kPeerLost);
  }
}

TEST_F(Authentication, OthersGidsAreNoCredentials) {
  for (const nic::Nic* named : {honest_nic_.get(), client_nic_.get(), server_nic_.get()})
    EXPECT_STATUS(refusal_of(end_of(*named, 7)), Status::kNotAllowed);
  ibv_gid nobody = server_nic_->gid();
  nobody.raw[15] ^= 1;
  Endpoint of_nobody = make_endpoint(8);
  of_nobody.qp.gid = nobody;
  EXPECT_STATUS(refusal_of(of_nobody), Status::kPeerLost);
  Endpoint of_a_device = end_of(*client_nic_, 9);
  of_a_device.nic = nic::Kind::kVerbs;
  of_a_device.qp.network = nic::Network::kRoceV2Ipv4;
  EXPECT_STATUS(refusal_of(of_a_device), Status::kRejected);
}

// Who has heard a HELLO cannot say it again, not even while its client waits.
TEST_F(Authentication, AReplayIsRefused) {
  const auto attestation = nic::Attestation::make(*client_nic_, encode_hello(client_end_).bytes());
  ASSERT_OK(attestation);
  const Fd first = connect_raw(listener_->port());
  send_raw(first.get(), encode_hello(client_end_).bytes());
  const auto incoming = listener_->next(generous());
  ASSERT_OK(incoming);
  ASSERT_OK((*incoming)->confirm(generous()));
  EXPECT_STATUS(refusal_of(client_end_), Status::kNotAllowed);
}

// A server whose process is gone, or never was, is not what answered.
TEST_F(Authentication, AnAnswerInAnothersName) {
  for (const nic::Nic* named : {honest_nic_.get(), server_nic_.get(), client_nic_.get()}) {
    const RawServer imposter([&](int client) {
      (void)read_frame(client);
      send_raw(client, encode_hello(end_of(*named, 3)).bytes());
      await_end(client);
    });
    EXPECT_STATUS(dial_at(imposter.port()), Status::kNotAllowed);
  }
  const RawServer device([&](int client) {
    (void)read_frame(client);
    Endpoint end = make_endpoint(3);
    end.nic = nic::Kind::kVerbs;
    end.qp.network = nic::Network::kRoceV2Ipv4;
    send_raw(client, encode_hello(end).bytes());
    await_end(client);
  });
  EXPECT_STATUS(dial_at(device.port()), Status::kRejected);
}

TEST_F(Authentication, NothingIsLeft) {
  EXPECT_OK(connect_through(keep, keep).client);
  EXPECT_STATUS(refusal_of(end_of(*honest_nic_, 7)), Status::kNotAllowed);
  for (const nic::Nic* each : {server_nic_.get(), client_nic_.get(), honest_nic_.get()})
    EXPECT_EQ(each->objects(), nic::Nic::Objects{});
}

}  // namespace
}  // namespace verbena::link
