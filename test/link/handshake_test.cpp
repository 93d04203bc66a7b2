// Handshakes over sockets, driven step by step without waiting: what one thread does with many of them.
#include "result.hpp"
#include "support.hpp"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <optional>

namespace {
/// Bytes that this thread may still send; nothing: any number. What is more finds no room.
thread_local std::optional<std::size_t> room;
}  // namespace
extern "C" ssize_t __real_send(int fd, const void* data, std::size_t bytes, int flags);
extern "C" ssize_t __wrap_send(int fd, const void* data, std::size_t bytes, int flags) {
  if (!room) return __real_send(fd, data, bytes, flags);
  if (*room == 0) {
    errno = EAGAIN;
    return -1;
  }
  const ssize_t sent = __real_send(fd, data, std::min(bytes, *room), flags);
  if (sent > 0) *room -= static_cast<std::size_t>(sent);
  return sent;
}

namespace verbena::link {
namespace {

using namespace test;
using namespace verbena::test;
using Bytes = std::vector<std::byte>;

void append(Bytes& bytes, const Frame& frame) { bytes.insert(bytes.end(), frame.bytes().begin(), frame.bytes().end()); }

bool is_readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

/// All that comes until the peer closes.
Bytes read_to_end(int fd) {
  Bytes bytes;
  std::array<std::byte, 4096> part;
  for (;;) {
    if (!wait_readable(fd, generous())) ADD_FAILURE() << "the peer did not close";
    const ssize_t got = recv(fd, part.data(), part.size(), 0);
    if (got <= 0) return bytes;
    bytes.insert(bytes.end(), part.begin(), part.begin() + got);
  }
}

/// Reads `count` bytes.
Bytes read_exactly(int fd, std::size_t count) {
  Bytes bytes(count);
  std::size_t have = 0;
  while (have < count && wait_readable(fd, generous())) {
    const ssize_t got = recv(fd, bytes.data() + have, count - have, 0);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  EXPECT_EQ(have, count);
  return bytes;
}

/// A listener, a client that speaks in bytes, and what the listener made of its HELLO.
class HandshakeSteps : public testing::Test {
 protected:
  HandshakeSteps() {
    listener_ = std::move(Listener::open({}).value());
    client_ = connect_raw(listener_->port());
    send_raw(client_.get(), encode_hello(client_end_).bytes());
    server_ = std::move(listener_->next(generous()).value());
  }
  ~HandshakeSteps() override { room.reset(); }

  /// The client's bytes arrive, and one attempt is made.
  [[nodiscard]] Result<Lifeline> finish_after(std::span<const std::byte> bytes) {
    send_raw(client_.get(), bytes);
    EXPECT_TRUE(wait_readable(server_->fd(), generous()));
    return server_->finish(Deadline::now());
  }
  void expect_over() {
    EXPECT_EQ(server_->fd(), -1);
    EXPECT_STATUS(server_->finish(Deadline::now()), Status::kBadArgument);
    EXPECT_STATUS(server_->answer(server_end_, Deadline::now()), Status::kBadArgument);
    EXPECT_EQ(server_->how().route, nullptr);
    server_->reject(Status::kRejected, "does nothing");
  }

  /// All that the server has ever sent is its HELLO and this.
  void expect_sent(const auto& last) {
    Bytes expected;
    append(expected, encode_hello(server_end_));
    append(expected, last);
    EXPECT_EQ(read_to_end(client_.get()), expected);
  }

  const Endpoint client_end_ = make_endpoint(1), server_end_ = make_endpoint(2, kMaxPrivateBytes);
  const Frame ready_ = encode_ready(client_end_.generation);
  std::unique_ptr<Listener> listener_;
  Fd client_;
  std::unique_ptr<Handshake> server_;
};

TEST_F(HandshakeSteps, ReadyByteByByte) {
  EXPECT_TRUE(same(server_->remote(), client_end_));
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  EXPECT_STATUS(server_->finish(Deadline::now()), Status::kAgain);
  EXPECT_FALSE(is_readable(server_->fd()));
  EXPECT_EQ(server_->events(), POLLIN);
  for (std::size_t i = 0; i + 1 < ready_.size; ++i) {
    EXPECT_STATUS(finish_after(ready_.bytes().subspan(i, 1)), Status::kAgain);
    EXPECT_FALSE(is_readable(server_->fd()));
  }
  EXPECT_OK(finish_after(ready_.bytes().last(1)));
  expect_over();
  expect_sent(encode_ready(server_end_.generation));
}

TEST_F(HandshakeSteps, HalfAReadyThenAWait) {
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  EXPECT_STATUS(finish_after(ready_.bytes().first(11)), Status::kAgain);
  const std::jthread rest([this] { send_raw(client_.get(), ready_.bytes().subspan(11)); });
  EXPECT_OK(server_->finish(generous()));
  expect_over();
}

TEST_F(HandshakeSteps, AWaitThatRunsOutIsTheEnd) {
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  EXPECT_STATUS(finish_after(ready_.bytes().first(11)), Status::kAgain);
  // It has passed when the call begins, and yet it was meant as a wait.
  const Deadline passed = Deadline::at_ticks(1);
  ASSERT_TRUE(passed.passed());
  EXPECT_STATUS(server_->finish(passed), Status::kTimedOut);
  expect_over();
}

TEST_F(HandshakeSteps, AnswerAndReadyGoOutAsThereIsRoom) {
  const Frame hello = encode_hello(server_end_);
  room = 0;
  EXPECT_STATUS(server_->answer(server_end_, Deadline::now()), Status::kAgain);
  EXPECT_EQ(server_->events(), POLLOUT);
  EXPECT_STATUS(server_->finish(Deadline::now()), Status::kBadArgument) << "the answer comes first";
  std::size_t attempts = 0;
  Result<void> answered;
  do {
    room = 50;
    answered = server_->answer(server_end_, Deadline::now());
    ++attempts;
  } while (!answered && answered.error().status() == Status::kAgain && attempts < hello.size);
  ASSERT_OK(answered);
  EXPECT_EQ(attempts, (hello.size + 49) / 50);
  EXPECT_EQ(server_->events(), POLLIN);

  room.reset();  // The client's bytes are sent by this thread.
  send_raw(client_.get(), ready_.bytes());
  ASSERT_TRUE(wait_readable(server_->fd(), generous()));
  for (std::size_t sent = 0; sent + 1 < ready_.size; ++sent) {
    room = 1;
    EXPECT_STATUS(server_->finish(Deadline::now()), Status::kAgain);
    EXPECT_EQ(server_->events(), POLLOUT);
  }
  room = 1;
  EXPECT_OK(server_->finish(Deadline::now()));
  room.reset();
  Bytes expected;
  append(expected, hello);
  append(expected, encode_ready(server_end_.generation));
  EXPECT_EQ(read_to_end(client_.get()), expected);
}

TEST_F(HandshakeSteps, NoRejectBehindHalfAnAnswer) {
  room = 50;
  EXPECT_STATUS(server_->answer(server_end_, Deadline::now()), Status::kAgain);
  room.reset();
  server_->reject(Status::kRejected, "enough");
  expect_over();
  const Frame hello = encode_hello(server_end_);
  EXPECT_TRUE(std::ranges::equal(read_to_end(client_.get()), hello.bytes().first(50)));
}

TEST_F(HandshakeSteps, ARejectAfterTheAnswerIsHeard) {
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  server_->reject(Status::kLimit, "no more");
  expect_over();
  expect_sent(encode_reject(Status::kLimit, "no more"));
}

TEST_F(HandshakeSteps, HearsReadyBeforeItSaysItsOwn) {
  EXPECT_STATUS(server_->hear(Deadline::now()), Status::kBadArgument);
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  EXPECT_STATUS(server_->hear(Deadline::now()), Status::kAgain);
  send_raw(client_.get(), ready_.bytes());
  EXPECT_OK(server_->hear(generous()));
  EXPECT_OK(server_->hear(Deadline::now())) << "it has heard that";
  EXPECT_OK(server_->finish(Deadline::now()));
  expect_over();
  expect_sent(encode_ready(server_end_.generation));
}

TEST_F(HandshakeSteps, RejectsWhatItHasHeard) {
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  send_raw(client_.get(), ready_.bytes());
  ASSERT_OK(server_->hear(generous()));
  server_->reject(Status::kNoMemory, "no room");
  expect_over();
  expect_sent(encode_reject(Status::kNoMemory, "no room"));
}

TEST_F(HandshakeSteps, WhatIsWrongWithTheCallEndsNothing) {
  EXPECT_STATUS(server_->finish(Deadline::now()), Status::kBadArgument);
  EXPECT_STATUS(server_->answer(Endpoint{}, Deadline::now()), Status::kBadArgument);
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  EXPECT_STATUS(server_->answer(server_end_, Deadline::now()), Status::kBadArgument);
  EXPECT_OK(finish_after(ready_.bytes()));
}

TEST_F(HandshakeSteps, ThePeerGoesBeforeTheAnswer) {
  client_.reset();
  ASSERT_TRUE(wait_readable(server_->fd(), generous()));
  const auto answered = server_->answer(server_end_, Deadline::now());  // The first bytes to a closed socket may go.
  if (answered) {
    EXPECT_STATUS(server_->finish(Deadline::now()), Status::kPeerLost);
  } else {
    EXPECT_STATUS(answered, Status::kPeerLost);
  }
  expect_over();
}

TEST_F(HandshakeSteps, ThePeerGoesAfterTheAnswer) {
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  EXPECT_STATUS(server_->finish(Deadline::now()), Status::kAgain);
  client_.reset();
  ASSERT_TRUE(wait_readable(server_->fd(), generous()));
  EXPECT_STATUS(server_->finish(Deadline::now()), Status::kPeerLost);
  expect_over();
}

TEST_F(HandshakeSteps, ThePeerGoesInItsReady) {
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  (void)read_exactly(client_.get(), encode_hello(server_end_).size);  // Closing over unread bytes would be a reset.
  EXPECT_STATUS(finish_after(ready_.bytes().first(20)), Status::kAgain);
  client_.reset();
  ASSERT_TRUE(wait_readable(server_->fd(), generous()));
  EXPECT_STATUS(server_->finish(Deadline::now()), Status::kPeerLost);
  expect_over();
}

TEST_F(HandshakeSteps, GarbageBehindHalfAReady) {
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  EXPECT_STATUS(finish_after(ready_.bytes().first(20)), Status::kAgain);
  EXPECT_STATUS(finish_after(std::as_bytes(std::span("8 bytes!", 8))), Status::kProtocol);
  expect_over();
}

TEST_F(HandshakeSteps, ARejectThatSaysAgainIsTheEnd) {
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  const auto finished = finish_after(encode_reject(Status::kAgain, "later").bytes());
  EXPECT_STATUS(finished, Status::kRejected);
  EXPECT_TRUE(contains(finished.error(), "later")) << finished.error().text();
  expect_over();
}

TEST_F(HandshakeSteps, DestroyedEarlyItTellsThePeer) {
  ASSERT_OK(server_->answer(server_end_, Deadline::now()));
  EXPECT_STATUS(finish_after(ready_.bytes().first(20)), Status::kAgain);
  server_.reset();
  Bytes expected;
  append(expected, encode_hello(server_end_));
  EXPECT_EQ(read_to_end(client_.get()), expected);
}

TEST(HandshakeStepsOfAClient, RejectsInThePlaceOfReady) {
  auto listener = std::move(Listener::open({}).value());
  auto dialing = std::async(std::launch::async,
                            [&] { return dial("127.0.0.1", listener->port(), make_endpoint(1), generous(), {}); });
  auto incoming = listener->next(generous());
  ASSERT_OK(incoming);
  ASSERT_OK((*incoming)->answer(make_endpoint(2), generous()));
  auto dialed = dialing.get();
  ASSERT_OK(dialed);
  ASSERT_OK((*dialed)->hear(Deadline::now())) << "the server's HELLO has said it";
  (*dialed)->reject(Status::kNoMemory, "no room");
  const auto heard = (*incoming)->hear(generous());
  EXPECT_STATUS(heard, Status::kNoMemory);
  EXPECT_TRUE(contains(heard.error(), "rejected the connection: no room")) << heard.error().text();
}

TEST(HandshakeStepsOfAClient, ReadyOnceAndTheServersByteByByte) {
  auto listening = listen_on("127.0.0.1", 0, 1);
  ASSERT_OK(listening);
  const Endpoint client = make_endpoint(1), server = make_endpoint(2);
  auto dialing = std::async(std::launch::async,
                            [&] { return dial("127.0.0.1", bound_port(listening->get()), client, generous()); });
  ASSERT_TRUE(wait_readable(listening->get(), generous()));
  const Fd peer(accept4(listening->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  Bytes expected;
  append(expected, encode_hello(client));
  EXPECT_EQ(read_exactly(peer.get(), expected.size()), expected);
  send_raw(peer.get(), encode_hello(server).bytes());
  auto dialed = dialing.get();
  ASSERT_OK(dialed);
  Handshake& handshake = **dialed;
  EXPECT_TRUE(same(handshake.remote(), server));
  EXPECT_STATUS(handshake.answer(client, Deadline::now()), Status::kBadArgument);

  EXPECT_STATUS(handshake.finish(Deadline::now()), Status::kAgain);
  const Frame ready = encode_ready(server.generation);
  for (std::size_t i = 0; i + 1 < ready.size; ++i) {
    send_raw(peer.get(), ready.bytes().subspan(i, 1));
    ASSERT_TRUE(wait_readable(handshake.fd(), generous()));
    EXPECT_STATUS(handshake.finish(Deadline::now()), Status::kAgain);
  }
  send_raw(peer.get(), ready.bytes().last(1));
  ASSERT_TRUE(wait_readable(handshake.fd(), generous()));
  EXPECT_OK(handshake.finish(Deadline::now()));
  EXPECT_EQ(handshake.fd(), -1);
  EXPECT_STATUS(handshake.finish(Deadline::now()), Status::kBadArgument);
  expected.clear();
  append(expected, encode_ready(client.generation));
  EXPECT_EQ(read_to_end(peer.get()), expected) << "once, and nothing besides";
}

// --- many at once ---------------------------------------------------------------------------------------------------

/// What becomes of a client after its HELLO.
enum class Fate : std::uint8_t { kGood, kSilent, kHalfAndSilent, kGone, kHalfAndGone, kGarbage, kEnd };

constexpr std::size_t kClients = 200;
constexpr std::size_t kWithoutHello = 10;
constexpr Fate fate_of(std::size_t client) {
  return client % 2 == 0 ? Fate::kGood : static_cast<Fate>(client / 2 % static_cast<std::size_t>(Fate::kEnd));
}
constexpr std::size_t count_of(std::initializer_list<Fate> fates) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < kClients; ++i) count += std::ranges::find(fates, fate_of(i)) != fates.end() ? 1 : 0;
  return count;
}

/// The clients, in one thread, each step for all of them before the next: the server has all of them at a time.
void be_clients(std::uint16_t port, std::latch& is_served) {
  std::vector<Fd> mute;
  for (std::size_t i = 0; i < kWithoutHello; ++i) mute.push_back(connect_raw(port));
  std::vector<Fd> clients;
  for (std::size_t i = 0; i < kClients; ++i) {
    clients.push_back(connect_raw(port));
    send_raw(clients[i].get(), encode_hello(make_endpoint(i)).bytes());
  }
  const std::size_t answer_bytes = encode_hello(make_endpoint(0)).size;
  for (const Fd& client : clients) (void)read_exactly(client.get(), answer_bytes);
  for (std::size_t i = 0; i < kClients; ++i) {
    const Frame ready = encode_ready(make_endpoint(i).generation);
    switch (fate_of(i)) {
      case Fate::kGood:
      case Fate::kHalfAndSilent:
      case Fate::kHalfAndGone: send_raw(clients[i].get(), ready.bytes().first(9)); break;
      case Fate::kGarbage: send_raw(clients[i].get(), "GET / HTTP/1.1\r\n\r\n"); break;
      default: break;
    }
    if (fate_of(i) == Fate::kGone || fate_of(i) == Fate::kHalfAndGone) clients[i].reset();
  }
  for (std::size_t i = 0; i < kClients; ++i)
    if (fate_of(i) == Fate::kGood)
      send_raw(clients[i].get(), encode_ready(make_endpoint(i).generation).bytes().subspan(9));
  for (std::size_t i = 0; i < kClients; ++i) {
    if (fate_of(i) != Fate::kGood) continue;
    Bytes expected;
    append(expected, encode_ready(make_endpoint(i + 1000).generation));
    EXPECT_EQ(read_to_end(clients[i].get()), expected) << i;
  }
  is_served.wait();
  // Whom the server has given up is told.
  for (std::size_t i = 0; i < kClients; ++i) {
    if (fate_of(i) == Fate::kSilent || fate_of(i) == Fate::kHalfAndSilent) {
      EXPECT_TRUE(read_to_end(clients[i].get()).empty()) << i;
    }
  }
}

/// An acceptor: everything that it waits for is one epoll set, and no call of it waits.
class Acceptor {
 public:
  explicit Acceptor(Listener& listener) : listener_(listener), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    watch(listener.fd(), EPOLLIN, EPOLL_CTL_ADD);
  }
  /// One turn; false past the deadline.
  bool turn(Deadline deadline) {
    std::array<epoll_event, 16> events;
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 earlier(deadline, listener_.due()).left_ms());
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      fd == listener_.fd() ? welcome() : finish(fd);
    }
    return !deadline.passed();
  }
  [[nodiscard]] std::size_t waiting() const { return handshakes_.size(); }

  std::size_t done = 0;
  std::map<Status, std::size_t> lost;
  std::size_t most = 0;  ///< At a time.

 private:
  void watch(int fd, std::uint32_t events, int operation) {
    epoll_event event{.events = events, .data = {.fd = fd}};
    EXPECT_EQ(epoll_ctl(epoll_.get(), operation, fd, &event), 0);
  }
  void welcome() {
    for (;;) {
      auto next = listener_.next(Deadline::now());
      if (!next) {
        EXPECT_STATUS(next, Status::kAgain);
        return;
      }
      const std::uint64_t client = (*next)->remote().generation - make_endpoint(0).generation;
      EXPECT_OK((*next)->answer(make_endpoint(client + 1000), Deadline::now()));
      const int fd = (*next)->fd();
      watch(fd, EPOLLIN | EPOLLONESHOT, EPOLL_CTL_ADD);
      handshakes_[fd] = std::move(*next);
      most = std::max(most, handshakes_.size());
    }
  }
  void finish(int fd) {
    const auto at = handshakes_.find(fd);
    ASSERT_NE(at, handshakes_.end());
    const auto finished = at->second->finish(Deadline::now());
    if (!finished && finished.error().status() == Status::kAgain)
      return watch(fd, static_cast<std::uint32_t>(at->second->events()) | EPOLLONESHOT, EPOLL_CTL_MOD);
    finished ? ++done : ++lost[finished.error().status()];
    handshakes_.erase(at);
  }

  Listener& listener_;
  const Fd epoll_;
  std::map<int, std::unique_ptr<Handshake>> handshakes_;
};

TEST(HandshakeMany, OneThreadDrivesTwoHundredGoodAndBad) {
  constexpr std::size_t kGood = count_of({Fate::kGood});
  constexpr std::size_t kLost = count_of({Fate::kGone, Fate::kHalfAndGone, Fate::kGarbage});
  static_assert(kGood > 100 && kLost > 30 && kGood + kLost < kClients);
  auto listener = Listener::open({.max_pending = 256, .hello_timeout = std::chrono::seconds{60}});
  ASSERT_OK(listener);
  std::latch is_served(1);
  std::jthread clients([&] { be_clients((*listener)->port(), is_served); });
  {
    Acceptor acceptor(**listener);
    const Deadline deadline = generous();
    const auto is_settled = [&] {
      std::size_t lost = 0;
      for (const auto& [status, count] : acceptor.lost) lost += count;
      return acceptor.done >= kGood && lost >= kLost;
    };
    while (!is_settled() && acceptor.turn(deadline)) {}
    EXPECT_EQ(acceptor.done, kGood);
    EXPECT_EQ(acceptor.lost[Status::kProtocol], count_of({Fate::kGarbage}));
    EXPECT_EQ(acceptor.lost[Status::kPeerLost], count_of({Fate::kGone, Fate::kHalfAndGone}));
    EXPECT_EQ(acceptor.most, kClients);
    EXPECT_EQ(acceptor.waiting(), kClients - kGood - kLost) << "the silent ones, a slot each";
    EXPECT_EQ((*listener)->dropped(), 0U);
  }
  is_served.count_down();
}

// --- what a listener is polled by -----------------------------------------------------------------------------------

TEST(ListenerPoll, TheDescriptorTellsOfClientsAndOfTheEnd) {
  auto opened = Listener::open({});
  ASSERT_OK(opened);
  Listener& listener = **opened;
  EXPECT_FALSE(is_readable(listener.fd()));
  EXPECT_TRUE(listener.due().is_never());
  const Fd client = connect_raw(listener.port());
  ASSERT_TRUE(wait_readable(listener.fd(), generous()));
  EXPECT_STATUS(listener.next(Deadline::now()), Status::kAgain) << "it has not said HELLO";
  EXPECT_FALSE(is_readable(listener.fd()));
  EXPECT_FALSE(listener.due().is_never());
  const Frame hello = encode_hello(make_endpoint(1));
  send_raw(client.get(), hello.bytes().first(30));
  ASSERT_TRUE(wait_readable(listener.fd(), generous()));
  EXPECT_STATUS(listener.next(Deadline::now()), Status::kAgain);
  EXPECT_FALSE(is_readable(listener.fd()));
  send_raw(client.get(), hello.bytes().subspan(30));
  ASSERT_TRUE(wait_readable(listener.fd(), generous()));
  const auto next = listener.next(Deadline::now());
  ASSERT_OK(next);
  EXPECT_TRUE(same((*next)->remote(), make_endpoint(1)));
  EXPECT_TRUE(listener.due().is_never());
  EXPECT_FALSE(is_readable(listener.fd()));
  listener.close();
  EXPECT_TRUE(is_readable(listener.fd()));
  EXPECT_STATUS(listener.next(Deadline::now()), Status::kClosed);
  EXPECT_TRUE(is_readable(listener.fd())) << "for good";
}

TEST(ListenerPoll, AShutListenerHasItsPortAndRefusesUntilItAdmits) {
  auto opened = Listener::open({.is_shut_at_first = true});
  ASSERT_OK(opened);
  Listener& listener = **opened;
  ASSERT_NE(listener.port(), 0);
  EXPECT_STATUS(dial("127.0.0.1", listener.port(), make_endpoint(1), generous()), Status::kConnectionRefused);
  ASSERT_OK(listener.admit());
  const Fd client = connect_raw(listener.port());
  send_raw(client.get(), encode_hello(make_endpoint(1)).bytes());
  const auto next = listener.next(generous());
  ASSERT_OK(next);
  EXPECT_TRUE(same((*next)->remote(), make_endpoint(1)));
}

TEST(ListenerPoll, AShutListenerWhosePortIsTakenSaysSoWhenItAdmits) {
  auto shut = Listener::open({.is_shut_at_first = true});
  ASSERT_OK(shut);
  const auto other = Listener::open({.port = (*shut)->port()});
  ASSERT_OK(other);
  const auto admitted = (*shut)->admit();
  ASSERT_STATUS(admitted, Status::kSystem);
  EXPECT_NE(std::string_view(admitted.error().text()).find("is in use"), std::string_view::npos);
}

TEST(ListenerPoll, DueIsWhenTheSilentGo) {
  auto listener = Listener::open({.hello_timeout = std::chrono::milliseconds{30}});
  ASSERT_OK(listener);
  const Fd silent = connect_raw((*listener)->port());
  const Deadline deadline = generous();
  while ((*listener)->dropped() == 0 && !deadline.passed()) {
    (void)wait_readable((*listener)->fd(), earlier(deadline, (*listener)->due()));
    ASSERT_STATUS((*listener)->next(Deadline::now()), Status::kAgain);
  }
  EXPECT_EQ((*listener)->dropped(), 1U);
  EXPECT_TRUE((*listener)->due().is_never());
  await_end(silent.get());
}

}  // namespace
}  // namespace verbena::link
