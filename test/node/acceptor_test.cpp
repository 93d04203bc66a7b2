// Who gets in, who waits and who is sent away when many come at the same time: the acceptor, with a listener, clients
// and a host of the test's own.
#include "node/acceptor.hpp"
#include "base/error.hpp"
#include "base/fd.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::node {
namespace {

using namespace std::chrono_literals;
using namespace verbena::test;

const uid_t kOwn = geteuid();
const uid_t kStranger = kOwn + 1;
const uid_t kOtherStranger = kOwn + 2;

/// What becomes of a client. Shared by the test and the acceptor's thread.
struct Client {
  uid_t uid = kOwn;
  std::atomic<bool> is_confirmed{true};  ///< Its NIC has answered.
  std::atomic<bool> goes_on{true};       ///< It takes the last step.
  std::atomic<bool> is_done{false};
  std::atomic<Status> refusal{Status::kOk};
  Fd near_end;  ///< The server's end of its socket; only of a client that has one.
  Fd far_end;

  [[nodiscard]] bool is_over() const { return is_done || refusal != Status::kOk; }
};
using ClientPtr = std::shared_ptr<Client>;

class FakeInquiry final : public nic::Inquiry {
 public:
  explicit FakeInquiry(ClientPtr client) : client_(std::move(client)) {}
  Result<nic::PeerProcess> answer(Deadline) override {
    if (!client_->is_confirmed) return fail(Status::kAgain, "answer", 0, "not yet");
    return nic::PeerProcess{1, client_->uid};
  }
  std::optional<uid_t> uid() const override { return client_->uid; }

 private:
  const ClientPtr client_;
};

class FakeHandshake final : public link::Handshake {
 public:
  explicit FakeHandshake(const ClientPtr& client)
      : Handshake(link::Role::kServer, {}, 0, std::make_unique<FakeInquiry>(client)), client_(client) {}
  [[nodiscard]] const ClientPtr& client() const { return client_; }

 private:
  Result<bool> try_answer(const link::Endpoint&) override { return true; }
  Result<bool> try_finish() override { return true; }
  Result<link::Lifeline> take_lifeline() override { return link::Lifeline(); }
  void send_reject(Status status, std::string_view) noexcept override { client_->refusal = status; }
  void close() noexcept override {}
  int descriptor() const noexcept override { return client_->near_end.get(); }
  bool has_hung_up() const noexcept override {
    pollfd socket{.fd = descriptor(), .events = POLLRDHUP, .revents = 0};
    return poll(&socket, 1, 0) > 0;
  }
  Error late() const noexcept override { return {Status::kTimedOut, "late", 0, "late"}; }

  const ClientPtr client_;
};

/// Clients come when the test says so.
class Entrance {
 public:
  void enter(ClientPtr client) {
    const std::lock_guard lock(mutex_);
    clients_.push_back(std::move(client));
    signal_eventfd(bell_.get());
  }
  [[nodiscard]] ClientPtr next() {
    const std::lock_guard lock(mutex_);
    (void)drain_eventfd(bell_.get());
    if (clients_.empty()) return nullptr;
    ClientPtr client = std::move(clients_.front());
    clients_.pop_front();
    if (!clients_.empty()) signal_eventfd(bell_.get());
    return client;
  }
  [[nodiscard]] int bell() const { return bell_.get(); }

 private:
  const Fd bell_ = make_eventfd().value();
  std::mutex mutex_;
  std::deque<ClientPtr> clients_;
};

class FakeListener final : public link::Listener {
 public:
  explicit FakeListener(Entrance& entrance) : entrance_(entrance) {}
  std::uint16_t port() const noexcept override { return 1; }
  Result<void> admit() override { return {}; }
  Result<std::unique_ptr<link::Handshake>> next(Deadline) override {
    const ClientPtr client = entrance_.next();
    if (client == nullptr) return fail(Status::kAgain, "next", 0, "nobody");
    return std::make_unique<FakeHandshake>(client);
  }
  int fd() const noexcept override { return entrance_.bell(); }
  Deadline due() const noexcept override { return Deadline::never(); }
  void close() noexcept override {}
  std::uint64_t dropped() const noexcept override { return 0; }

 private:
  Entrance& entrance_;
};

/// A host with a few places.
class FakeHost final : public Acceptor::Host {
 public:
  explicit FakeHost(int places) : free_(places) {}
  [[nodiscard]] int refusals() const { return refusals_; }

 private:
  class Guest final : public Acceptor::Guest {
   public:
    Guest(FakeHost& host, ClientPtr client) : host_(host), client_(std::move(client)) { --host_.free_; }
    ~Guest() override {
      if (!client_->is_done) ++host_.free_;
    }
    Result<void> step() override {
      if (client_->goes_on) return {};
      return fail(Status::kAgain, "step", 0, "not yet");
    }
    int fd() const noexcept override { return client_->near_end.get(); }
    short events() const noexcept override { return POLLIN; }
    void done(const Acceptor::Stay& /*stay*/) noexcept override { client_->is_done = true; }
    void refuse(const Error& why) noexcept override { client_->refusal = why.status(); }

   private:
    FakeHost& host_;
    const ClientPtr client_;
  };

  Result<std::unique_ptr<Acceptor::Guest>> welcome(std::unique_ptr<link::Handshake>& handshake) override {
    if (free_ == 0) return fail(Status::kLimit, "welcome", 0, "no place");
    return std::make_unique<Guest>(*this, static_cast<const FakeHandshake&>(*handshake).client());
  }
  void refused() noexcept override { ++refusals_; }

  int free_;  // The acceptor's thread alone.
  std::atomic<int> refusals_{0};
};

class AcceptorTest : public testing::Test {
 protected:
  void open(int places) {
    host_ = std::make_unique<FakeHost>(places);
    acceptor_ = Acceptor::start(*nic_).value();
    door_ = acceptor_->open(std::make_unique<FakeListener>(entrance_), *host_).value();
  }
  ~AcceptorTest() override {
    if (acceptor_) acceptor_->close(door_);
  }
  struct Traits {
    uid_t uid = kOwn;
    bool is_confirmed = true;
    bool goes_on = true;
    bool has_socket = false;
  };
  ClientPtr come(const Traits& traits) {
    auto client = std::make_shared<Client>();
    client->uid = traits.uid;
    client->is_confirmed = traits.is_confirmed;
    client->goes_on = traits.goes_on;
    if (traits.has_socket) {
      std::array<int, 2> ends{};
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
      client->near_end = Fd(ends[0]);
      client->far_end = Fd(ends[1]);
    }
    entrance_.enter(client);
    return client;
  }
  std::vector<ClientPtr> come(std::size_t count, const Traits& traits) {
    std::vector<ClientPtr> clients;
    for (std::size_t i = 0; i < count; ++i) clients.push_back(come(traits));
    return clients;
  }
  [[nodiscard]] static bool comes_true(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::after(30s);
    while (!condition()) {
      if (deadline.passed()) return false;
      (void)usleep(1000);
    }
    return true;
  }
  [[nodiscard]] static bool is_over(const ClientPtr& client) {
    return comes_true([&] { return client->is_over(); });
  }
  [[nodiscard]] static std::size_t count_over(const std::vector<ClientPtr>& clients) {
    return static_cast<std::size_t>(std::ranges::count_if(clients, [](const auto& one) { return one->is_over(); }));
  }

  const std::unique_ptr<nic::Nic> nic_ = nic::open_soft({}).value();
  Entrance entrance_;
  std::unique_ptr<FakeHost> host_;
  std::unique_ptr<Acceptor> acceptor_;
  std::uint64_t door_ = 0;
};

TEST_F(AcceptorTest, AStrangerWithManyPushesOutHisOwn) {
  open(8);
  const ClientPtr mine = come({.is_confirmed = false});
  const ClientPtr other = come({.uid = kOtherStranger, .is_confirmed = false});
  const auto many = come(Acceptor::kMostVisitsOfAStranger, {.uid = kStranger, .is_confirmed = false});
  // The last of them is in when a client that comes later is.
  ASSERT_TRUE(is_over(come({})));
  EXPECT_EQ(count_over(many), 0u);
  (void)come(3, {.uid = kStranger, .is_confirmed = false});
  ASSERT_TRUE(is_over(come({})));
  EXPECT_EQ(count_over(many), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(many[i]->refusal, Status::kLimit) << i;
  EXPECT_FALSE(mine->is_over());
  EXPECT_FALSE(other->is_over());
  EXPECT_EQ(host_->refusals(), 0) << "nobody knows whether they were what they said";
}

TEST_F(AcceptorTest, AFullHallSendsAwayWhoHasMostInIt) {
  open(8);
  const auto strangers = come(200, {.uid = kStranger, .is_confirmed = false});
  const auto mine = come(Acceptor::kMostVisits - 200, {.is_confirmed = false});
  ASSERT_TRUE(is_over(come({.uid = kOtherStranger})));
  EXPECT_EQ(count_over(strangers), 0u);
  EXPECT_EQ(count_over(mine), 1u);
  EXPECT_EQ(mine.front()->refusal, Status::kLimit);
}

TEST_F(AcceptorTest, WhoHangsUpBeforeHeIsConfirmedLeavesAtOnce) {
  open(1);
  const ClientPtr silent = come({.is_confirmed = false, .has_socket = true});
  ASSERT_TRUE(is_over(come({})));
  EXPECT_FALSE(silent->is_over());
  silent->far_end.reset();
  ASSERT_TRUE(is_over(silent));
  EXPECT_EQ(silent->refusal, Status::kPeerLost);
}

TEST_F(AcceptorTest, AGuestThatDoesNotGoOnLosesItsPlaceToOneThatWaits) {
  open(2);
  const auto slow = come(2, {.uid = kStranger, .goes_on = false});
  const ClientPtr honest = come({});
  ASSERT_TRUE(is_over(honest));
  EXPECT_TRUE(honest->is_done) << to_string(honest->refusal);
  EXPECT_EQ(slow[0]->refusal, Status::kTimedOut);
  EXPECT_FALSE(slow[1]->is_over()) << "one place was enough";
  EXPECT_EQ(host_->refusals(), 1);
}

TEST_F(AcceptorTest, WhoWaitsIsRefusedWhenTheOthersAreIn) {
  open(1);
  const ClientPtr first = come({.goes_on = false, .has_socket = true});
  const ClientPtr second = come({});
  first->goes_on = true;
  EXPECT_EQ(write(first->far_end.get(), "", 1), 1);
  ASSERT_TRUE(is_over(first));
  ASSERT_TRUE(is_over(second));
  EXPECT_TRUE(first->is_done) << to_string(first->refusal);
  EXPECT_EQ(second->refusal, Status::kLimit);
}

TEST_F(AcceptorTest, WhoWaitsForAPlaceAndHangsUpLeavesAtOnce) {
  open(1);
  const ClientPtr slow = come({.goes_on = false});
  const ClientPtr waiting = come({.has_socket = true});
  waiting->far_end.reset();
  ASSERT_TRUE(is_over(waiting));
  EXPECT_EQ(waiting->refusal, Status::kPeerLost);
  EXPECT_FALSE(slow->is_over());
}

TEST_F(AcceptorTest, AFullHostRefusesAtOnceAndCounts) {
  open(1);
  const ClientPtr in = come({});
  ASSERT_TRUE(is_over(in));
  ASSERT_TRUE(in->is_done);
  for (int i = 0; i < 3; ++i) {
    const ClientPtr late = come({});
    ASSERT_TRUE(is_over(late));
    EXPECT_EQ(late->refusal, Status::kLimit);
  }
  EXPECT_TRUE(comes_true([&] { return host_->refusals() == 3; }));
}

}  // namespace
}  // namespace verbena::node
