// Callbacks that wait: whatever they wait for, their thread keeps serving the other connections, without callbacks.
#include "fixture.hpp"

#include <verbena/coroutines.hpp>
#include <verbena/rdma.hpp>

#include <atomic>
#include <string>

namespace verbena::rdma {
namespace {

constexpr std::uint32_t kWait = 1;
constexpr int kMessagesEach = 100;

template <class Done>
[[nodiscard]] bool until(Done&& done) {
  for (const Deadline limit = patience(); !limit.passed(); std::this_thread::yield())
    if (done()) return true;
  return done();
}

enum class WaitFor : std::uint8_t { kItsPeer, kAnotherConnection, kAClient, kAClientInACoroutine };

coroutine::Task<Status> accept_one(coroutine::Loop& /*loop*/, Listener& listener) {
  const auto accepted = co_await coroutine::accept(listener, patience());
  co_return accepted ? Status::kOk : accepted.error();
}

/// One callback waits, and there are so many connections.
class WaitingCallback : public RdmaCxx, public testing::WithParamInterface<std::tuple<WaitFor, unsigned>> {
 protected:
  void SetUp() override {
    calls.arrived = [this](Connection& connection, const Message& message) {
      if (message.immediate != kWait) {
        ++arrived;
        return;
      }
      is_in = true;
      outcome = wait(connection);
      is_out = true;
    };
    options.receive = Receive::kHandler;
    ASSERT_NO_FATAL_FAILURE(start(&calls));
    auto shared = server->allocate(64);
    ASSERT_OK(shared);
    shared_ = std::move(*shared);
    ASSERT_OK(server->publish("shared", shared_));
    Options second = options;
    second.port = 0;
    auto other = Listener::start(second);
    ASSERT_OK(other);
    other_ = std::move(*other);
    other_options_ = options;
    other_options_.port = other_->port();
    auto to_other = Connection::connect(other_options_);
    ASSERT_OK(to_other);
    to_other_ = std::move(*to_other);
    auto accepted = other_->accept(patience());
    ASSERT_TRUE(accepted.has_value());
    from_other_ = std::move(*accepted);
  }
  [[nodiscard]] Status wait(Connection& connection) {
    const auto status_of = [](const auto& found) { return found ? Status::kOk : found.error().status(); };
    switch (std::get<0>(GetParam())) {
      case WaitFor::kItsPeer: return status_of(connection.find("later", patience()));
      case WaitFor::kAnotherConnection: return status_of(to_other_->find("later", patience()));
      case WaitFor::kAClientInACoroutine: {
        const auto loop = coroutine::Loop::make();
        return loop ? coroutine::sync_wait(**loop, accept_one(**loop, *other_), patience()) : loop.error().status();
      }
      case WaitFor::kAClient: break;
    }
    const auto accepted = other_->accept(patience());
    return accepted ? Status::kOk : accepted.error();
  }
  /// Lets the callback go on. `peer` is its connection's other end.
  void release(Connection& peer) {
    switch (std::get<0>(GetParam())) {
      case WaitFor::kItsPeer: {
        auto memory = peer.allocate(64);
        ASSERT_OK(memory);
        later_ = std::move(*memory);
        ASSERT_OK(peer.publish("later", later_));
        ASSERT_TRUE(until([&] { return peer.is_connected() && is_out; })) << "it answers in its calls";
        return;
      }
      case WaitFor::kAnotherConnection: {
        auto memory = other_->allocate(64);
        ASSERT_OK(memory);
        later_ = std::move(*memory);
        ASSERT_OK(other_->publish("later", later_));
        return;
      }
      case WaitFor::kAClient:
      case WaitFor::kAClientInACoroutine: {
        auto one_more = Connection::connect(other_options_);
        ASSERT_OK(one_more);
        one_more_ = std::move(*one_more);
        return;
      }
    }
  }

  std::atomic<bool> is_in{false};
  std::atomic<bool> is_out{false};
  std::atomic<int> arrived{0};
  std::atomic<Status> outcome{Status::kAgain};
  Calls calls;

 private:
  Memory shared_;
  Memory later_;
  std::unique_ptr<Listener> other_;
  Options other_options_;
  ConnectionPtr to_other_;
  ConnectionPtr from_other_;
  ConnectionPtr one_more_;
};

TEST_P(WaitingCallback, LeavesNobodyElseWaiting) {
  std::vector<ConnectionPtr> clients(std::get<1>(GetParam()));
  for (ConnectionPtr& client : clients) ASSERT_NE(client = connect(), nullptr);
  const Bytes body = pattern(200, 1);
  ASSERT_EQ(clients.front()->send_with_immediate(body, kWait), Status::kOk);
  ASSERT_TRUE(until([&] { return is_in.load(); }));
  for (std::size_t i = 1; i < clients.size(); ++i) {
    for (int k = 0; k < kMessagesEach; ++k)
      ASSERT_EQ(clients[i]->send(body, patience()), Status::kOk) << error_detail();
    const auto found = clients[i]->find("shared", patience());
    ASSERT_OK(found);
  }
  EXPECT_FALSE(is_out);
  EXPECT_EQ(arrived, 0) << "a callback inside of another one";
  ASSERT_NO_FATAL_FAILURE(release(*clients.front()));
  ASSERT_TRUE(until([&] { return is_out.load(); }));
  EXPECT_EQ(outcome, Status::kOk);
  const int sent = kMessagesEach * static_cast<int>(clients.size() - 1);
  EXPECT_TRUE(until([&] { return arrived == sent; })) << arrived << " of " << sent;
}

std::string name_of(const testing::TestParamInfo<std::tuple<WaitFor, unsigned>>& info) {
  constexpr std::array kNames{"ItsPeer", "AnotherConnection", "AClient", "AClientInACoroutine"};
  return kNames[static_cast<std::size_t>(std::get<0>(info.param))] + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, WaitingCallback,
                         testing::Combine(testing::Values(WaitFor::kItsPeer, WaitFor::kAnotherConnection,
                                                          WaitFor::kAClient, WaitFor::kAClientInACoroutine),
                                          testing::Values(2u, 3u, 10u)),
                         name_of);

/// Both ends of connections have callbacks.
class CrossedCallbacks : public RdmaCxx {
 protected:
  /// Sends messages, and counts those that were.
  static void send_all(Connection& connection, std::atomic<int>& sent) {
    const Bytes body = pattern(200, 2);
    for (int i = 0; i < kMessagesEach; ++i)
      if (connection.send(body, patience()) == Status::kOk) ++sent;
  }
};

TEST_F(CrossedCallbacks, SendEachOtherMoreThanTheOtherReceives) {
  std::atomic<int> sent_there{0}, sent_back{0}, arrived_there{0}, arrived_back{0};
  Calls mine;
  Calls theirs;
  theirs.arrived = [&](Connection& connection, const Message& message) {
    if (message.immediate != kWait) {
      ++arrived_there;
      return;
    }
    send_all(connection, sent_back);
  };
  mine.arrived = [&](Connection& connection, const Message&) {
    // Its peer sends still.
    if (++arrived_back == 1) send_all(connection, sent_there);
  };
  options.receive = Receive::kHandler;
  ASSERT_NO_FATAL_FAILURE(start(&theirs));
  options.handler = &mine;
  options.receive = Receive::kHandler;
  const ConnectionPtr client = connect();
  ASSERT_NE(client, nullptr);
  ASSERT_EQ(client->send_with_immediate(pattern(8, 1), kWait), Status::kOk);
  EXPECT_TRUE(until([&] { return arrived_there == kMessagesEach && arrived_back == kMessagesEach; }))
      << arrived_there << " and " << arrived_back;
  EXPECT_EQ(sent_there, kMessagesEach);
  EXPECT_EQ(sent_back, kMessagesEach);
}

// Each waits for the thread that waits for it.
TEST_F(CrossedCallbacks, UseEachOthersConnections) {
  constexpr std::size_t kSides = 2;
  struct Side {
    std::atomic<Connection*> accepted{nullptr};
    std::atomic<bool> is_in{false};
    std::atomic<Status> sent{Status::kAgain};
    std::unique_ptr<Listener> listener;
    ConnectionPtr client;
  };
  std::array<Calls, kSides> calls;
  std::array<Side, kSides> sides;
  for (std::size_t i = 0; i < kSides; ++i) {
    Side& side = sides[i];
    Side& other = sides[1 - i];
    calls[i].accepted = [&side](Connection& connection) { side.accepted = &connection; };
    calls[i].arrived = [&side, &other](Connection&, const Message& message) {
      if (message.immediate != kWait) return;
      side.is_in = true;
      if (!until([&] { return other.is_in.load(); })) return;
      side.sent = other.accepted.load()->send(pattern(8, 3), patience());
    };
    Options of_listener = options;
    of_listener.handler = &calls[i];
    of_listener.receive = Receive::kHandler;
    auto listener = Listener::start(of_listener);
    ASSERT_OK(listener);
    side.listener = std::move(*listener);
    Options of_client = options;
    of_client.port = side.listener->port();
    auto client = Connection::connect(of_client);
    ASSERT_OK(client);
    side.client = std::move(*client);
    ASSERT_TRUE(until([&] { return side.accepted.load() != nullptr; }));
  }
  for (Side& side : sides) ASSERT_EQ(side.client->send_with_immediate(pattern(8, 1), kWait), Status::kOk);
  for (Side& side : sides) {
    EXPECT_EQ(receive(*side.client, 8), pattern(8, 3));
    EXPECT_TRUE(until([&] { return side.sent == Status::kOk; }));
  }
}

}  // namespace
}  // namespace verbena::rdma
