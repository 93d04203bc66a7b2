// The socket bootstrap over real sockets: whole handshakes, and peers of every bad kind on both
// sides.
#include "support.hpp"

#include <atomic>
#include <cerrno>
#include <future>

namespace {
// accept4 is wrapped by the linker, so that running out of descriptors can be had without doing so.
std::atomic<int> accept_calls{0};
std::atomic<int> accept_failures_left{0};
}  // namespace
extern "C" int __real_accept4(int fd, sockaddr* address, socklen_t* bytes, int flags);
extern "C" int __wrap_accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  accept_calls.fetch_add(1);
  if (accept_failures_left.load() > 0) {
    accept_failures_left.fetch_sub(1);
    errno = EMFILE;
    return -1;
  }
  return __real_accept4(fd, address, bytes, flags);
}

namespace verbena::link {
namespace {

using test::await_end;
using test::brief;
using test::connect_raw;
using test::contains;
using test::generous;
using test::make_endpoint;
using test::RawServer;
using test::read_frame;
using test::same;
using test::send_raw;

std::unique_ptr<Listener> open_listener(const ListenerOptions& options = {}) {
  auto listener = Listener::open(options);
  EXPECT_TRUE(listener.has_value()) << (listener ? "" : listener.error().text());
  return listener ? std::move(*listener) : nullptr;
}

/// dial on a thread, as the tests' main thread is the server.
std::future<Result<std::unique_ptr<Handshake>>> dial_in_background(std::uint16_t port, const Endpoint& local,
                                                                   const std::string& host = "127.0.0.1") {
  return std::async(std::launch::async, [=] { return dial(host, port, local, generous()); });
}

/// A port that nothing listens on: it was free a moment ago.
std::uint16_t unused_port() {
  auto fd = listen_on("127.0.0.1", 0, 1);
  EXPECT_TRUE(fd.has_value());
  return fd ? bound_port(fd->get()) : std::uint16_t{1};
}

// --- dial against what is no server of ours ----------------------------------------------------

/// What dial comes to against a server that acts so.
Error dial_error(std::function<void(int)> act, Deadline deadline = generous()) {
  const RawServer server(std::move(act));
  const auto dialed = dial("127.0.0.1", server.port(), make_endpoint(1), deadline);
  EXPECT_FALSE(dialed.has_value());
  if (dialed) return {};
  const std::string name = "127.0.0.1:" + std::to_string(server.port());
  EXPECT_TRUE(contains(dialed.error(), name)) << dialed.error().text();
  return dialed.error();
}

TEST(Dial, NothingListens) {
  const std::uint16_t port = unused_port();
  const auto dialed = dial("127.0.0.1", port, make_endpoint(1), generous());
  ASSERT_FALSE(dialed.has_value());
  EXPECT_EQ(dialed.error().status(), Status::kConnectionRefused);
  EXPECT_EQ(dialed.error().system_errno(), ECONNREFUSED);
  EXPECT_TRUE(contains(dialed.error(), "127.0.0.1:" + std::to_string(port))) << dialed.error().text();
}

TEST(Dial, NameThatDoesNotResolve) {
  // A label of more than 63 characters is refused before any resolver is asked, so no network is
  // needed.
  const std::string name(70, 'x');
  const auto dialed = dial(name, 1234, make_endpoint(1), generous());
  ASSERT_FALSE(dialed.has_value());
  EXPECT_EQ(dialed.error().status(), Status::kNotFound);
  EXPECT_TRUE(contains(dialed.error(), name)) << dialed.error().text();
}

TEST(Dial, BadArguments) {
  auto dialed = dial("127.0.0.1", 0, make_endpoint(1), generous());
  ASSERT_FALSE(dialed.has_value());
  EXPECT_EQ(dialed.error().status(), Status::kBadArgument);
  dialed = dial("127.0.0.1", 1234, Endpoint{}, generous());
  ASSERT_FALSE(dialed.has_value());
  EXPECT_EQ(dialed.error().status(), Status::kBadArgument);
}

TEST(Dial, WebServer) {
  const Error error = dial_error([](int fd) {
    send_raw(fd, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    await_end(fd);
  });
  EXPECT_EQ(error.status(), Status::kProtocol);
  EXPECT_TRUE(contains(error, "is not a Verbena server")) << error.text();
  EXPECT_TRUE(contains(error, "48 54 54 50")) << error.text();
}

TEST(Dial, EchoServer) {
  const Error error = dial_error([](int fd) {
    if (const auto hello = read_frame(fd)) send_raw(fd, hello->bytes());
    await_end(fd);
  });
  EXPECT_EQ(error.status(), Status::kProtocol);
  EXPECT_TRUE(contains(error, "not a Verbena server")) << error.text();
}

TEST(Dial, Silence) {
  const Error error = dial_error([](int fd) { await_end(fd); }, brief());
  EXPECT_EQ(error.status(), Status::kTimedOut);
}

TEST(Dial, HalfAFrameAndSilence) {
  const Error error = dial_error(
      [](int fd) {
        send_raw(fd, encode_hello(make_endpoint(2)).bytes().first(30));
        await_end(fd);
      },
      brief());
  EXPECT_EQ(error.status(), Status::kTimedOut);
}

TEST(Dial, HalfAFrameAndTheEnd) {
  for (const std::size_t bytes : {std::size_t{1}, kHeaderBytes, std::size_t{30}}) {
    const Error error = dial_error([=](int fd) {
      (void)read_frame(fd);
      send_raw(fd, encode_hello(make_endpoint(2)).bytes().first(bytes));
    });
    EXPECT_EQ(error.status(), Status::kPeerLost) << error.text();
  }
}

TEST(Dial, TheEndAtOnce) {
  // Closing with the HELLO unread resets the connection; with it read, it ends in order. Both are a
  // lost peer.
  EXPECT_EQ(dial_error([](int fd) { (void)read_frame(fd); }).status(), Status::kPeerLost);
  EXPECT_EQ(dial_error([](int) {}).status(), Status::kPeerLost);
}

TEST(Dial, EndlessStream) {
  const auto stream = [](int fd, std::span<const std::byte> beginning) {
    send_raw(fd, beginning);
    const std::vector<std::byte> block(4096, std::byte{0x5A});
    // Until the client hangs up; the bound is for a client that does not.
    for (int i = 0; i < 100'000; ++i) {
      const ssize_t sent = send(fd, block.data(), block.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return;
      pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
      if (sent < 0) (void)poll(&entry, 1, 1000);
    }
    ADD_FAILURE() << "the client goes on reading";
  };
  EXPECT_EQ(dial_error([&](int fd) { stream(fd, {}); }).status(), Status::kProtocol);
  const Frame longest = encode_hello(make_endpoint(2, kMaxPrivateBytes));
  EXPECT_EQ(dial_error([&](int fd) { stream(fd, longest.bytes().first(kHeaderBytes)); }).status(), Status::kProtocol);
}

TEST(Dial, OtherVersion) {
  const Error error = dial_error([](int fd) {
    Frame hello = encode_hello(make_endpoint(2));
    hello.data[4] = std::byte{7};
    send_raw(fd, hello.bytes());
    await_end(fd);
  });
  EXPECT_EQ(error.status(), Status::kProtocol);
  EXPECT_TRUE(contains(error, "version 7")) << error.text();
  EXPECT_TRUE(contains(error, fmt::format("version {}", kProtocolVersion))) << error.text();
}

TEST(Dial, ReadyInsteadOfHello) {
  const Error error = dial_error([](int fd) {
    send_raw(fd, encode_ready(1).bytes());
    await_end(fd);
  });
  EXPECT_EQ(error.status(), Status::kProtocol);
}

TEST(Dial, RejectOfUnknownStatus) {
  const Error error = dial_error([](int fd) {
    (void)read_frame(fd);
    send_raw(fd, encode_reject(static_cast<Status>(200), "for reasons of the future").bytes());
    await_end(fd);
  });
  EXPECT_EQ(error.status(), Status::kRejected);
  EXPECT_TRUE(contains(error, "for reasons of the future")) << error.text();
}

// --- whole handshakes --------------------------------------------------------------------------

void shake_hands(const std::string& host) {
  const auto listener = open_listener({.address = host});
  ASSERT_NE(listener, nullptr);
  const Endpoint client = make_endpoint(1, 0), server = make_endpoint(2, kMaxPrivateBytes);
  auto dialing = std::async(std::launch::async, [&, port = listener->port()]() -> Result<void> {
    auto dialed = dial(host, port, client, generous());
    if (!dialed) return std::unexpected(dialed.error());
    EXPECT_TRUE(same((*dialed)->remote(), server));
    if (auto finished = (*dialed)->finish(generous()); !finished) return std::unexpected(finished.error());
    return {};
  });
  auto incoming = listener->next(generous());
  ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
  EXPECT_TRUE(same((*incoming)->remote(), client));
  const auto answered = (*incoming)->answer(server, generous());
  ASSERT_TRUE(answered.has_value()) << answered.error().text();
  const auto finished = (*incoming)->finish(generous());
  EXPECT_TRUE(finished.has_value()) << finished.error().text();
  const auto dialed = dialing.get();
  EXPECT_TRUE(dialed.has_value()) << dialed.error().text();
  EXPECT_EQ(listener->dropped(), 0U);
}

TEST(Handshake, Ipv4) { shake_hands("127.0.0.1"); }
TEST(Handshake, ByName) { shake_hands("localhost"); }
TEST(Handshake, Ipv6) {
  const auto probe = listen_on("::1", 0, 1);
  if (!probe) GTEST_SKIP() << "no IPv6 loopback here: " << probe.error().text();
  shake_hands("::1");
}

TEST(Handshake, ManyOneAfterTheOther) {
  const auto listener = open_listener({.max_pending = 2});
  ASSERT_NE(listener, nullptr);
  for (std::uint64_t i = 0; i < 50; ++i) {
    auto dialing = std::async(std::launch::async, [&, i, port = listener->port()] {
      auto dialed = dial("127.0.0.1", port, make_endpoint(i), generous());
      return dialed.has_value() && (*dialed)->remote().generation == make_endpoint(i + 1000).generation &&
             (*dialed)->finish(generous()).has_value();
    });
    auto incoming = listener->next(generous());
    ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
    EXPECT_TRUE(same((*incoming)->remote(), make_endpoint(i)));
    ASSERT_TRUE((*incoming)->answer(make_endpoint(i + 1000), generous()));
    ASSERT_TRUE((*incoming)->finish(generous()));
    EXPECT_TRUE(dialing.get());
  }
  EXPECT_EQ(listener->dropped(), 0U);
}

TEST(Handshake, RejectCarriesStatusAndText) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  for (const Status status : {Status::kRejected, Status::kNotAllowed, Status::kLimit}) {
    auto dialing = dial_in_background(listener->port(), make_endpoint(1));
    auto incoming = listener->next(generous());
    ASSERT_TRUE(incoming.has_value());
    (*incoming)->reject(status, "64 clients are connected: raise max_clients");
    const auto dialed = dialing.get();
    ASSERT_FALSE(dialed.has_value());
    EXPECT_EQ(dialed.error().status(), status);
    EXPECT_TRUE(contains(dialed.error(), "64 clients are connected: raise max_clients")) << dialed.error().text();
    EXPECT_TRUE(contains(dialed.error(), "127.0.0.1:")) << dialed.error().text();
    EXPECT_FALSE((*incoming)->answer(make_endpoint(2), generous()).has_value());
    (*incoming)->reject(status, "twice does nothing");
  }
}

TEST(Handshake, IncomingDroppedWithoutAnswer) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  auto dialing = dial_in_background(listener->port(), make_endpoint(1));
  { const auto incoming = listener->next(generous()); }
  const auto dialed = dialing.get();
  ASSERT_FALSE(dialed.has_value());
  EXPECT_EQ(dialed.error().status(), Status::kPeerLost);
}

/// Both ends after HELLO and answer.
struct Pair {
  Result<std::unique_ptr<Handshake>> dialed;
  Result<std::unique_ptr<Handshake>> incoming;
};
Pair half_a_handshake(Listener& listener) {
  auto dialing = dial_in_background(listener.port(), make_endpoint(1));
  auto incoming = listener.next(generous());
  EXPECT_TRUE(incoming.has_value());
  if (incoming) {
    EXPECT_TRUE((*incoming)->answer(make_endpoint(2), generous()).has_value());
  }
  return {dialing.get(), std::move(incoming)};
}

TEST(Handshake, ClientLeavesBeforeReady) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  auto [dialed, incoming] = half_a_handshake(*listener);
  ASSERT_TRUE(dialed && incoming);
  dialed->reset();
  const auto finished = (*incoming)->finish(generous());
  ASSERT_FALSE(finished.has_value());
  EXPECT_EQ(finished.error().status(), Status::kPeerLost);
  EXPECT_TRUE(contains(finished.error(), "127.0.0.1:")) << finished.error().text();
}

TEST(Handshake, ServerLeavesBeforeReady) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  auto [dialed, incoming] = half_a_handshake(*listener);
  ASSERT_TRUE(dialed && incoming);
  incoming->reset();
  const auto finished = (*dialed)->finish(generous());
  ASSERT_FALSE(finished.has_value());
  EXPECT_EQ(finished.error().status(), Status::kPeerLost);
}

TEST(Handshake, SilenceInsteadOfReady) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  {
    auto [dialed, incoming] = half_a_handshake(*listener);
    ASSERT_TRUE(dialed && incoming);
    const auto finished = (*incoming)->finish(brief());
    ASSERT_FALSE(finished.has_value());
    EXPECT_EQ(finished.error().status(), Status::kTimedOut);
    // It is over for the client as well.
    const auto other = (*dialed)->finish(generous());
    ASSERT_FALSE(other.has_value());
    EXPECT_EQ(other.error().status(), Status::kPeerLost);
  }
  auto [dialed, incoming] = half_a_handshake(*listener);
  ASSERT_TRUE(dialed && incoming);
  const auto finished = (*dialed)->finish(brief());
  ASSERT_FALSE(finished.has_value());
  EXPECT_EQ(finished.error().status(), Status::kTimedOut);
}

TEST(Handshake, ReadyOfAnotherConnection) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  const Fd client = connect_raw(listener->port());
  send_raw(client.get(), encode_hello(make_endpoint(1)).bytes());
  auto incoming = listener->next(generous());
  ASSERT_TRUE(incoming.has_value());
  ASSERT_TRUE((*incoming)->answer(make_endpoint(2), generous()));
  send_raw(client.get(), encode_ready(make_endpoint(1).generation + 1).bytes());
  const auto finished = (*incoming)->finish(generous());
  ASSERT_FALSE(finished.has_value());
  EXPECT_EQ(finished.error().status(), Status::kProtocol);
}

TEST(Handshake, GarbageInsteadOfReady) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  const Frame hello = encode_hello(make_endpoint(1));
  for (int kind = 0; kind < 2; ++kind) {
    const Fd client = connect_raw(listener->port());
    send_raw(client.get(), hello.bytes());
    // Behind a right HELLO the next bytes belong to the next step, and are judged there.
    send_raw(client.get(), kind == 0 ? std::span(hello.bytes()) : std::as_bytes(std::span("garbage, garbage")));
    auto incoming = listener->next(generous());
    ASSERT_TRUE(incoming.has_value());
    ASSERT_TRUE((*incoming)->answer(make_endpoint(2), generous()));
    const auto finished = (*incoming)->finish(generous());
    ASSERT_FALSE(finished.has_value());
    EXPECT_EQ(finished.error().status(), Status::kProtocol);
  }
}

TEST(Handshake, ByteByByte) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  const Fd client = connect_raw(listener->port());
  set_no_delay(client.get());
  const std::jthread sender([&] {
    const Frame hello = encode_hello(make_endpoint(1));
    for (std::size_t i = 0; i < hello.size; ++i) send_raw(client.get(), hello.bytes().subspan(i, 1));
  });
  const auto incoming = listener->next(generous());
  ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
  EXPECT_TRUE(same((*incoming)->remote(), make_endpoint(1)));
}

// --- listener ----------------------------------------------------------------------------------

TEST(ListenerOpen, PortInUse) {
  const auto first = open_listener();
  ASSERT_NE(first, nullptr);
  const auto second = Listener::open({.port = first->port()});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().status(), Status::kSystem);
  EXPECT_EQ(second.error().system_errno(), EADDRINUSE);
  EXPECT_TRUE(contains(second.error(), "127.0.0.1:" + std::to_string(first->port()))) << second.error().text();
}

TEST(ListenerOpen, PortIsFreeAgainAfterClients) {
  std::uint16_t port = 0;
  {
    const auto first = open_listener();
    ASSERT_NE(first, nullptr);
    port = first->port();
    auto [dialed, incoming] = half_a_handshake(*first);
    // The server closes first, so the server's end stays in TIME_WAIT.
    incoming->reset();
    EXPECT_FALSE((*dialed)->finish(generous()).has_value());
  }
  const auto second = Listener::open({.port = port});
  EXPECT_TRUE(second.has_value()) << second.error().text();
}

TEST(ListenerOpen, BadOptions) {
  const auto status_of = [](const ListenerOptions& options) {
    const auto listener = Listener::open(options);
    return listener ? Status::kOk : listener.error().status();
  };
  EXPECT_EQ(status_of({.max_pending = 0}), Status::kBadArgument);
  EXPECT_EQ(status_of({.max_pending = 1'000'000}), Status::kBadArgument);
  EXPECT_EQ(status_of({.hello_timeout = std::chrono::milliseconds{0}}), Status::kBadArgument);
  EXPECT_EQ(status_of({.address = std::string(70, 'x')}), Status::kNotFound);
  EXPECT_EQ(status_of({.address = "192.0.2.1"}),
            Status::kSystem);  // An address for documentation: nobody has it.
}

TEST(ListenerNext, TimesOutWithoutClients) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  for (const auto& [deadline, expected] : {std::pair{Deadline::now(), Status::kAgain}, {brief(), Status::kTimedOut}}) {
    const auto incoming = listener->next(deadline);
    ASSERT_FALSE(incoming.has_value());
    EXPECT_EQ(incoming.error().status(), expected);
  }
  EXPECT_EQ(listener->dropped(), 0U);
}

TEST(ListenerNext, WorksAsAPoll) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  auto dialing = dial_in_background(listener->port(), make_endpoint(1));
  const Deadline deadline = generous();
  Result<std::unique_ptr<Handshake>> incoming = listener->next(Deadline::now());
  while (!incoming && !deadline.passed()) {
    ASSERT_EQ(incoming.error().status(), Status::kAgain);
    incoming = listener->next(Deadline::now());
  }
  ASSERT_TRUE(incoming.has_value());
  (*incoming)->reject(Status::kRejected, "enough");
  EXPECT_FALSE(dialing.get().has_value());
}

/// A hostile client acts; it must be closed and counted, and a good client behind it served.
void expect_dropped(const std::function<void(int)>& act, const ListenerOptions& options = {}) {
  const auto listener = open_listener(options);
  ASSERT_NE(listener, nullptr);
  const Fd bad = connect_raw(listener->port());
  const std::jthread actor([&] {
    act(bad.get());
    await_end(bad.get());
  });
  // Nobody but the bad client is there: next sees it off and waits on.
  const Deadline deadline = generous();
  while (listener->dropped() == 0 && !deadline.passed()) {
    const auto incoming = listener->next(Deadline::after(std::chrono::milliseconds{5}));
    ASSERT_FALSE(incoming.has_value());
    ASSERT_EQ(incoming.error().status(), Status::kTimedOut) << incoming.error().text();
  }
  EXPECT_EQ(listener->dropped(), 1U);
  auto dialing = dial_in_background(listener->port(), make_endpoint(1));
  auto incoming = listener->next(generous());
  ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
  (*incoming)->reject(Status::kRejected, "enough");
  EXPECT_FALSE(dialing.get().has_value());
  EXPECT_EQ(listener->dropped(), 1U);
}

TEST(ListenerDrops, Garbage) {
  expect_dropped([](int fd) { send_raw(fd, "GET / HTTP/1.1\r\n\r\n"); });
}
TEST(ListenerDrops, OneWrongByte) {
  expect_dropped([](int fd) { send_raw(fd, "X"); });
}
TEST(ListenerDrops, WrongChecksum) {
  expect_dropped([](int fd) {
    Frame hello = encode_hello(make_endpoint(1));
    hello.data[20] ^= std::byte{1};
    send_raw(fd, hello.bytes());
  });
}
TEST(ListenerDrops, OtherFrame) {
  expect_dropped([](int fd) { send_raw(fd, encode_ready(1).bytes()); });
}
TEST(ListenerDrops, EndBeforeHello) {
  expect_dropped([](int fd) { (void)shutdown(fd, SHUT_WR); });
}
TEST(ListenerDrops, EndInHello) {
  expect_dropped([](int fd) {
    send_raw(fd, encode_hello(make_endpoint(1)).bytes().first(40));
    (void)shutdown(fd, SHUT_WR);
  });
}
TEST(ListenerDrops, Silence) {
  expect_dropped([](int) {}, {.hello_timeout = std::chrono::milliseconds{30}});
}
TEST(ListenerDrops, HalfAFrameAndSilence) {
  expect_dropped([](int fd) { send_raw(fd, encode_hello(make_endpoint(1)).bytes().first(40)); },
                 {.hello_timeout = std::chrono::milliseconds{30}});
}
TEST(ListenerDrops, EndlessStream) {
  expect_dropped([](int fd) {
    const std::vector<std::byte> megabyte(1U << 20, std::byte{0x56});
    send_raw(fd, encode_hello(make_endpoint(1, kMaxPrivateBytes)).bytes().first(kHeaderBytes));
    send_raw(fd, megabyte);
  });
}

TEST(ListenerDrops, OtherVersionIsTold) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  const Fd client = connect_raw(listener->port());
  Frame hello = encode_hello(make_endpoint(1));
  hello.data[4] = std::byte{9};
  send_raw(client.get(), hello.bytes());
  auto answering = std::async(std::launch::async, [&] { return read_frame(client.get()); });
  const Deadline deadline = generous();
  while (listener->dropped() == 0 && !deadline.passed()) {
    ASSERT_FALSE(listener->next(Deadline::after(std::chrono::milliseconds{5})).has_value());
  }
  const auto answer = answering.get();
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().status(), Status::kProtocol);
  EXPECT_TRUE(contains(answer.error(), fmt::format("version {} ", kProtocolVersion))) << answer.error().text();
  EXPECT_TRUE(contains(answer.error(), "client 9")) << answer.error().text();
}

TEST(ListenerFlood, SilentSocketsBeyondTheLimit) {
  const auto listener = open_listener({.max_pending = 4, .hello_timeout = std::chrono::seconds{60}});
  ASSERT_NE(listener, nullptr);
  std::vector<Fd> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(connect_raw(listener->port()));
  auto dialing = dial_in_background(listener->port(), make_endpoint(1));
  auto incoming = listener->next(generous());
  ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
  ASSERT_TRUE((*incoming)->answer(make_endpoint(2), generous()));
  auto dialed = dialing.get();
  ASSERT_TRUE(dialed.has_value()) << dialed.error().text();
  // At most four of the forty are kept, and the client took a place of its own for a while.
  EXPECT_GE(listener->dropped(), 36U);
  EXPECT_LE(listener->dropped(), 40U);
  await_end(silent.front().get());
}

TEST(ListenerFlood, HelloThatIsThereIsNotEvictedUnread) {
  const auto listener = open_listener({.max_pending = 4, .hello_timeout = std::chrono::seconds{60}});
  ASSERT_NE(listener, nullptr);
  // All are in the backlog, in this order, before the listener looks: accepting the later ones
  // evicts the good one.
  const Fd good = connect_raw(listener->port());
  send_raw(good.get(), encode_hello(make_endpoint(1)).bytes());
  std::vector<Fd> silent;
  for (int i = 0; i < 12; ++i) silent.push_back(connect_raw(listener->port()));
  const auto incoming = listener->next(generous());
  ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
  EXPECT_TRUE(same((*incoming)->remote(), make_endpoint(1)));
}

TEST(ListenerFlood, AllAtOnce) {
  constexpr std::uint64_t kAtOnce = 24;
  const auto listener = open_listener({.max_pending = 64});
  ASSERT_NE(listener, nullptr);
  std::vector<Fd> clients;
  for (std::uint64_t i = 0; i < kAtOnce; ++i) {
    clients.push_back(connect_raw(listener->port()));
    send_raw(clients.back().get(), encode_hello(make_endpoint(i)).bytes());
  }
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < kAtOnce; ++i) {
    const auto incoming = listener->next(generous());
    ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
    sum += (*incoming)->remote().generation - make_endpoint(0).generation;
  }
  EXPECT_EQ(sum, kAtOnce * (kAtOnce - 1) / 2);
  EXPECT_EQ(listener->dropped(), 0U);
}

TEST(ListenerDescriptors, OutOfThemGivesUpTheOldestPending) {
  const auto listener = open_listener({.hello_timeout = std::chrono::seconds{60}});
  ASSERT_NE(listener, nullptr);
  const Fd silent = connect_raw(listener->port());
  ASSERT_FALSE(listener->next(brief()).has_value());
  ASSERT_EQ(listener->dropped(), 0U);
  accept_failures_left = 1;
  auto dialing = dial_in_background(listener->port(), make_endpoint(1));
  auto incoming = listener->next(generous());
  EXPECT_EQ(accept_failures_left.exchange(0), 0);
  ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
  EXPECT_EQ(listener->dropped(), 1U);
  await_end(silent.get());
  (*incoming)->reject(Status::kRejected, "enough");
  EXPECT_FALSE(dialing.get().has_value());
}

TEST(ListenerDescriptors, OutOfThemDoesNotSpin) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  const Fd client = connect_raw(listener->port());
  send_raw(client.get(), encode_hello(make_endpoint(1)).bytes());
  accept_failures_left = 1'000'000'000;
  accept_calls = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto none = listener->next(Deadline::after(std::chrono::milliseconds{300}));
  const auto waited = std::chrono::steady_clock::now() - start;
  accept_failures_left = 0;
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().status(), Status::kTimedOut);
  EXPECT_GE(accept_calls.load(), 1);
  // One try for each rest of 50 ms, however long it took.
  EXPECT_LE(accept_calls.load(), 2 + waited / std::chrono::milliseconds{50});
  // And when there are descriptors again, the client that waited is served.
  const auto incoming = listener->next(generous());
  ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
}

TEST(ListenerDescriptors, OutOfThemIsDueAgainSoon) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  const Fd client = connect_raw(listener->port());
  send_raw(client.get(), encode_hello(make_endpoint(1)).bytes());
  ASSERT_TRUE(wait_readable(listener->fd(), generous()));
  accept_failures_left = 1;
  EXPECT_EQ(listener->next(Deadline::now()).error().status(), Status::kAgain);
  EXPECT_EQ(accept_failures_left.exchange(0), 0);
  // Nothing tells when there are descriptors again.
  EXPECT_FALSE(listener->due().is_never());
  const Deadline deadline = generous();
  auto incoming = listener->next(Deadline::now());
  while (!incoming && !deadline.passed()) {
    ASSERT_EQ(incoming.error().status(), Status::kAgain);
    (void)wait_readable(listener->fd(), earlier(deadline, listener->due()));
    incoming = listener->next(Deadline::now());
  }
  ASSERT_TRUE(incoming.has_value()) << incoming.error().text();
  EXPECT_TRUE(listener->due().is_never());
}

TEST(ListenerClose, WakesNext) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  auto waiting = std::async(std::launch::async, [&] { return listener->next(generous()); });
  // Most of the time the other thread sleeps by now; whether or not it does, it must see the close.
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds{20}), std::future_status::timeout);
  listener->close();
  const auto incoming = waiting.get();
  ASSERT_FALSE(incoming.has_value());
  EXPECT_EQ(incoming.error().status(), Status::kClosed);
  // For good, and as often as one likes.
  listener->close();
  const auto again = listener->next(Deadline::now());
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().status(), Status::kClosed);
}

TEST(ListenerClose, ClosesPendingAndRefusesNew) {
  const auto listener = open_listener();
  ASSERT_NE(listener, nullptr);
  const Fd silent = connect_raw(listener->port());
  ASSERT_FALSE(listener->next(brief()).has_value());
  listener->close();
  const auto dialed = dial("127.0.0.1", listener->port(), make_endpoint(1), generous());
  ASSERT_FALSE(dialed.has_value());
  EXPECT_EQ(dialed.error().status(), Status::kConnectionRefused);
  ASSERT_FALSE(listener->next(generous()).has_value());
  await_end(silent.get());
  EXPECT_EQ(listener->dropped(), 0U);
}

TEST(ListenerClose, LeavesNoDescriptors) {
  const auto lowest_free = [] {
    const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return fd.get();
  };
  const int before = lowest_free();
  {
    const auto listener = open_listener();
    ASSERT_NE(listener, nullptr);
    std::vector<Fd> silent;
    for (int i = 0; i < 5; ++i) silent.push_back(connect_raw(listener->port()));
    ASSERT_FALSE(listener->next(brief()).has_value());
    auto [dialed, incoming] = half_a_handshake(*listener);
  }
  EXPECT_EQ(lowest_free(), before);
}

}  // namespace
}  // namespace verbena::link
