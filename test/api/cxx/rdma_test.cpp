// The C++ API, as its users call it: messages, the peer's window, handlers, threads, the end.
#include "fixture.hpp"

#include <array>
#include <atomic>
#include <string_view>
#include <thread>

namespace verbena::rdma {
namespace {

const std::vector<std::size_t> kSizes = {1, 7, 64, 4096, 16'351, 16'352, 16'353, 65'536, 1'000'000, 5'000'001};

// --- control

TEST_F(RdmaCxx, WrongOptionsAreRefusedAndNamed) {
  start();
  const auto refused = [&](const Options& wrong, const char* named) {
    const auto connected = Connection::connect(wrong);
    EXPECT_STATUS(connected, Status::kBadArgument);
    EXPECT_NE(std::string_view(connected.error().text()).find(named), std::string_view::npos)
        << connected.error().text();
  };
  Options wrong = options;
  wrong.inbox_bytes = 1;
  refused(wrong, "inbox_bytes");
  wrong = options;
  wrong.timeout = std::chrono::milliseconds{-1};
  refused(wrong, "timeout");
  wrong = options;
  wrong.receive = Receive::kHandler;
  refused(wrong, "handler");
  wrong.receive = Receive::kDiscard;
  refused(wrong, "listeners");
  wrong = options;
  wrong.receive = Receive::kHandler;
  EXPECT_STATUS(Listener::start(wrong), Status::kBadArgument);
}

TEST_F(RdmaCxx, ConnectingToNothingIsRefused) {
  start();
  server->stop();
  options.connect_timeout = std::chrono::seconds{2};
  const auto connected = Connection::connect(options);
  ASSERT_FALSE(connected.has_value());
  // A device says that nobody listens by a reject.
  const Status status = connected.error().status();
  EXPECT_TRUE(status == Status::kConnectionRefused || status == Status::kRejected) << to_string(status);
}

TEST_F(RdmaCxx, AcceptWaitsUntilItsDeadlineOrTheStop) {
  start();
  EXPECT_EQ(server->accept(Deadline::now()).error(), Status::kTimedOut);
  EXPECT_EQ(server->accept(Deadline::after(std::chrono::milliseconds{20})).error(), Status::kTimedOut);
  std::thread waiter([&] { EXPECT_EQ(server->accept(Deadline::never()).error(), Status::kClosed); });
  server->stop();
  waiter.join();
  server->stop();
  server->wait();
  EXPECT_EQ(server->port(), 0);
}

TEST_F(RdmaCxx, AListenerWithAHandlerDoesNotAccept) {
  Calls calls;
  start(&calls);
  EXPECT_EQ(server->accept(Deadline::now()).error(), Status::kUnsupported);
}

TEST_F(RdmaCxx, AClientThatLeftBeforeItWasAcceptedIsNotAmongThem) {
  start();
  connect().reset();
  const ConnectionPtr client = connect();
  ASSERT_EQ(client->send(pattern(8, 1)), Status::kOk);
  // The first one's connection may be there still, when its end comes late.
  ConnectionPtr peer = accept();
  Bytes in(8);
  auto message = peer->receive(in);
  if (!message && message.error() == Status::kClosed) {
    peer = accept();
    message = peer->receive(in);
  }
  ASSERT_TRUE(message.has_value()) << to_string(message.error());
  EXPECT_EQ(in, pattern(8, 1));
}

TEST_F(RdmaCxx, WhatAClientSentBeforeItLeftCanBeReceivedAfterwards) {
  start();
  for (const std::size_t size : {std::size_t{8}, std::size_t{100'000}}) {
    {
      const ConnectionPtr client = connect();
      ASSERT_EQ(client->send(pattern(size, 1)), Status::kOk);
      ASSERT_EQ(client->write_with_immediate({}, 7), Status::kOk);
    }  // What it sent has arrived when this is over.
    const ConnectionPtr peer = accept();
    EXPECT_EQ(receive(*peer, size), pattern(size, 1));
    Bytes none;
    const auto notice = peer->receive(none);
    ASSERT_TRUE(notice.has_value()) << to_string(notice.error());
    EXPECT_EQ(notice->immediate, 7u);
    EXPECT_EQ(peer->receive(none).error(), Status::kClosed);
  }
}

TEST_F(RdmaCxx, OfTooManyClientsThatLeftTheLatestAreThere) {
  if (test::in_chaos()) GTEST_SKIP() << "70 goodbyes that are held back take a second each";
  if (!test::is_soft_under_test()) GTEST_SKIP() << "70 connections take a minute where verbs are emulated";
  constexpr unsigned kClients = 70;
  constexpr unsigned kKept = 64;
  start();
  for (unsigned i = 0; i < kClients; ++i) {
    const ConnectionPtr client = connect();
    ASSERT_EQ(client->send_with_immediate(pattern(8, i), i), Status::kOk);
  }
  const ConnectionPtr last = connect();  // The ends of those before it may come late.
  ASSERT_EQ(last->send_with_immediate(pattern(8, kClients), kClients), Status::kOk);
  unsigned found = 0;
  for (unsigned seen = 0; seen != kClients; ++found) {
    const ConnectionPtr peer = accept();
    Bytes bytes(8);
    const auto message = peer->receive(bytes);
    ASSERT_TRUE(message.has_value()) << to_string(message.error());
    seen = message->immediate.value_or(0);
    EXPECT_EQ(bytes, pattern(8, seen));
  }
  EXPECT_GE(found, kKept);
}

TEST_F(RdmaCxx, AListenerStopsWithClientsThatLeft) {
  start();
  {
    const ConnectionPtr client = connect();
    ASSERT_EQ(client->send(pattern(8, 1)), Status::kOk);
  }
  server->stop();
  EXPECT_EQ(server->accept(Deadline::now()).error(), Status::kClosed);
}

TEST_F(RdmaCxx, OneClientMoreThanTheLimitIsRejected) {
  options.max_connections = 1;
  start();
  const ConnectionPtr client = connect();
  EXPECT_STATUS(Connection::connect(options), Status::kLimit);
}

// --- messages

TEST_F(RdmaCxx, MessagesOfAnyLengthComeBackFromAHandler) {
  Calls calls;
  calls.arrived = [](Connection& connection, const Message& message) {
    EXPECT_EQ(message.immediate ? connection.send_with_immediate(message.data, *message.immediate + 1)
                                : connection.send(message.data),
              Status::kOk);
  };
  options.receive = Receive::kHandler;
  start(&calls);
  const ConnectionPtr client = connect();
  for (const std::size_t size : kSizes) {
    const Bytes bytes = pattern(size, size);
    ASSERT_EQ(client->send(bytes), Status::kOk);
    EXPECT_EQ(receive(*client, size), bytes);
  }
  Bytes byte(1);
  ASSERT_EQ(client->send_with_immediate(byte, 41), Status::kOk);
  const auto message = client->receive(byte);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->immediate, 42u);
  EXPECT_EQ(message->kind, Message::Kind::kSent);
}

TEST_F(RdmaCxx, AClientWithAHandlerIsCalled) {
  Calls servers;
  servers.arrived = [](Connection& connection, const Message& message) {
    EXPECT_EQ(connection.send(message.data), Status::kOk);
  };
  options.receive = Receive::kHandler;
  start(&servers);
  Calls clients;
  Mailbox<int> connected;
  Mailbox<Bytes> messages;
  clients.connected = [&](Connection&) { connected.put(1); };
  clients.arrived = [&](Connection&, const Message& message) {
    messages.put(Bytes(message.data.begin(), message.data.end()));
  };
  options.handler = &clients;
  options.receive = Receive::kHandler;
  const ConnectionPtr client = connect();
  EXPECT_EQ(connected.take(), 1);
  for (const std::size_t size : kSizes) {
    ASSERT_EQ(client->send(pattern(size, size)), Status::kOk);
    EXPECT_EQ(messages.take(), pattern(size, size));
  }
  Bytes byte(1);
  EXPECT_EQ(client->receive(byte, Deadline::now()).error(), Status::kUnsupported);
  server->stop();
  EXPECT_EQ(clients.ended.take(), Status::kClosed);
  EXPECT_EQ(client->failure(), Status::kClosed);
}

TEST_F(RdmaCxx, AMessageLongerThanTheBufferWaits) {
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr peer = accept();
  Bytes byte(1);
  EXPECT_EQ(peer->receive(byte, Deadline::now()).error(), Status::kTimedOut);
  EXPECT_EQ(peer->receive(byte, Deadline::after(std::chrono::milliseconds{20})).error(), Status::kTimedOut);
  EXPECT_EQ(client->send({}), Status::kBadArgument);
  const Bytes bytes = pattern(100'000, 1);
  ASSERT_EQ(client->send(bytes), Status::kOk);
  EXPECT_EQ(peer->receive(byte).error(), Status::kBufferTooSmall);
  ASSERT_EQ(peer->waiting_bytes(), bytes.size());
  EXPECT_EQ(receive(*peer, peer->waiting_bytes()), bytes);
}

TEST_F(RdmaCxx, AFullInboxHoldsUpTheSenderUntilItsDeadline) {
  options.inbox_bytes = 64 * 1024;
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr peer = accept();
  const Bytes first = pattern(30'000, 1);
  const Bytes last = pattern(200'000, 3);
  ASSERT_EQ(client->send(first), Status::kOk);
  EXPECT_EQ(client->send(pattern(1'000'000, 2), Deadline::after(std::chrono::milliseconds{50})), Status::kTimedOut);
  EXPECT_TRUE(client->is_connected());
  client->set_timeout(std::chrono::milliseconds{30});
  EXPECT_EQ(client->send(pattern(1'000'000, 2)), Status::kTimedOut);
  client->set_timeout(std::chrono::seconds{20});
  EXPECT_EQ(receive(*peer, first.size()), first);
  std::thread sender([&] { EXPECT_EQ(client->send(last), Status::kOk); });
  // The starts of the two that were given up are there, and dropped for it.
  EXPECT_EQ(receive(*peer, 1'000'000), last);
  sender.join();
}

TEST_F(RdmaCxx, NobodysMessagesAreCounted) {
  Calls calls;
  ConnectionPtr kept;
  calls.accepted = [&](Connection& connection) { kept = connection.keep(); };
  options.receive = Receive::kDiscard;
  start(&calls);
  ConnectionPtr client = connect();
  for (const std::size_t size : kSizes) ASSERT_EQ(client->send(pattern(size, 1)), Status::kOk);
  client.reset();
  EXPECT_EQ(calls.ended.take(), Status::kClosed);
  EXPECT_EQ(kept->discarded(), kSizes.size());
  Bytes byte(1);
  EXPECT_EQ(kept->receive(byte).error(), Status::kUnsupported);
}

// --- the peer's window

TEST_F(RdmaCxx, AWriteIsThereAndIsReadBackBothWays) {
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr server_side = accept();
  const std::array<std::pair<Connection*, Connection*>, 2> ways{
      {{client.get(), server_side.get()}, {server_side.get(), client.get()}}};
  for (const auto& [here, there] : ways) {
    ASSERT_EQ(here->peer_window().length, std::size_t{1} << 20);
    ASSERT_EQ(there->window().size(), here->peer_window().length);
    for (const std::size_t size : {std::size_t{1}, std::size_t{8}, std::size_t{65'537}, std::size_t{1'000'000}}) {
      const Bytes bytes = pattern(size, size);
      ASSERT_EQ(here->write(bytes, 17), Status::kOk);
      EXPECT_TRUE(std::ranges::equal(bytes, there->window().subspan(17, size)));
      Bytes back(size);
      ASSERT_EQ(here->read(back, 17), Status::kOk);
      EXPECT_EQ(back, bytes);
    }
  }
}

TEST_F(RdmaCxx, OutsideTheWindowIsRefusedAndTheConnectionGoesOn) {
  start();
  const ConnectionPtr client = connect();
  const std::uint64_t window = client->peer_window().length;
  Bytes bytes(window + 1);
  EXPECT_EQ(client->write(bytes), Status::kOutOfRange);
  EXPECT_EQ(client->write(std::span(bytes).first(1), window), Status::kOutOfRange);
  EXPECT_EQ(client->read(std::span(bytes).first(8), window - 7), Status::kOutOfRange);
  EXPECT_EQ(client->read(std::span(bytes).first(8), ~std::size_t{0}), Status::kOutOfRange);
  EXPECT_EQ(client->write_with_immediate({}, 1, window + 1), Status::kOutOfRange);
  EXPECT_EQ(client->read({}), Status::kBadArgument);
  EXPECT_EQ(client->write({}), Status::kBadArgument);
  EXPECT_EQ(client->read(std::span(bytes).first(8), window - 8), Status::kOk);
  EXPECT_EQ(client->failure(), Status::kOk);
}

TEST_F(RdmaCxx, NoWindowIsAnEmptyOne) {
  options.window_bytes = 0;
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr peer = accept();
  EXPECT_TRUE(peer->window().empty());
  EXPECT_EQ(client->peer_window().length, 0u);
  EXPECT_EQ(client->write(pattern(1, 1)), Status::kOutOfRange);
}

TEST_F(RdmaCxx, AWrittenMessageComesBehindItsBytes) {
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr peer = accept();
  for (std::uint32_t i = 0; i < 20; ++i) {
    const Bytes bytes = pattern(1 + i * 20'011, i);
    ASSERT_EQ(client->write_with_immediate(bytes, i, 100), Status::kOk);
    const auto message = peer->receive({});
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->kind, Message::Kind::kWritten);
    EXPECT_EQ(message->immediate, i);
    EXPECT_EQ(message->data.data(), peer->window().data() + 100);
    EXPECT_TRUE(std::ranges::equal(message->data, bytes));
  }
  ASSERT_EQ(client->write_with_immediate({}, 77), Status::kOk);
  EXPECT_EQ(peer->receive({})->immediate, 77u);
}

// --- threads

TEST_F(RdmaCxx, ManyThreadsUseOneConnectionOfAServer) {
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr peer = accept();
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 30; ++i) {
        const Bytes bytes = pattern(100'000, i * 4 + t);
        ASSERT_EQ(peer->write(bytes, t * 200'000), Status::kOk);
        Bytes back(bytes.size());
        ASSERT_EQ(peer->read(back, t * 200'000), Status::kOk);
        ASSERT_EQ(back, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RdmaCxx, ASecondThreadOnAClientsConnectionIsRefused) {
  start();
  const ConnectionPtr client = connect();
  std::atomic<bool> is_over{false};
  std::thread waiter([&] {
    Bytes byte(1);
    Status status = Status::kBusy;
    // The other thread may be inside first.
    while (status == Status::kBusy) status = client->receive(byte, Deadline::after(std::chrono::seconds{2})).error();
    EXPECT_EQ(status, Status::kTimedOut);
    is_over = true;
  });
  Bytes byte(1);
  Status status = Status::kOk;
  while (status != Status::kBusy && !is_over) status = client->read(byte);
  EXPECT_EQ(status, Status::kBusy);
  waiter.join();
  EXPECT_EQ(client->read(byte), Status::kOk);
}

// --- handlers and the end

TEST_F(RdmaCxx, AHandlerPostsAndWaits) {
  Calls calls;
  calls.arrived = [](Connection& connection, const Message& message) {
    Bytes there(message.data.size());
    EXPECT_EQ(connection.read(there), Status::kOk);
    EXPECT_EQ(connection.write(message.data), Status::kOk);
    EXPECT_EQ(connection.send(there), Status::kOk);
  };
  options.receive = Receive::kHandler;
  start(&calls);
  const ConnectionPtr client = connect();
  const Bytes before = pattern(100'000, 1);
  const Bytes after = pattern(100'000, 2);
  std::ranges::copy(before, client->window().begin());
  ASSERT_EQ(client->send(after), Status::kOk);
  EXPECT_EQ(receive(*client, before.size()), before);
  EXPECT_TRUE(std::ranges::equal(after, client->window().first(after.size())));
}

// The read lets further messages arrive, all around the inbox.
TEST_F(RdmaCxx, AMessageStaysWhileItsHandlerReads) {
  constexpr unsigned kMessages = 400;
  constexpr auto size_of = [](unsigned i) { return std::size_t{1} + i * 37 % 3000; };
  Calls calls;
  Mailbox<bool> done;
  unsigned arrived = 0;
  bool all_right = true;
  calls.arrived = [&](Connection& connection, const Message& message) {
    Bytes there(64);
    const bool has_read = connection.read(there) == Status::kOk;
    all_right = all_right && has_read && there == pattern(64, 7) &&
                std::ranges::equal(message.data, pattern(size_of(arrived), arrived));
    if (++arrived == kMessages) done.put(true);
  };
  options.receive = Receive::kHandler;
  options.inbox_bytes = 64 * 1024;
  start(&calls);
  const ConnectionPtr client = connect();
  std::ranges::copy(pattern(64, 7), client->window().begin());
  for (unsigned i = 0; i < kMessages; ++i) ASSERT_EQ(client->send(pattern(size_of(i), i)), Status::kOk);
  EXPECT_TRUE(done.take());
  EXPECT_TRUE(all_right);
}

TEST_F(RdmaCxx, AHandlerClosesItsOwnConnection) {
  Calls calls;
  calls.arrived = [](Connection& connection, const Message&) {
    EXPECT_EQ(connection.send(pattern(3, 1)), Status::kOk);
    connection.close();
    EXPECT_EQ(connection.send(pattern(3, 1)), Status::kClosed);
    EXPECT_EQ(connection.failure(), Status::kClosed);
  };
  calls.disconnected = [](Connection&, Status) { ADD_FAILURE() << "this side has closed it"; };
  options.receive = Receive::kHandler;
  start(&calls);
  const ConnectionPtr client = connect();
  ASSERT_EQ(client->send(pattern(8, 1)), Status::kOk);
  EXPECT_EQ(receive(*client, 3), pattern(3, 1));
  Bytes byte(1);
  EXPECT_EQ(client->receive(byte).error(), Status::kClosed);
  EXPECT_EQ(client->failure(), Status::kClosed);
}

TEST_F(RdmaCxx, AHandlerDestroysTheConnectionThatWasKept) {
  Calls calls;
  ConnectionPtr kept;
  Mailbox<int> done;
  calls.accepted = [&](Connection& connection) {
    kept = connection.keep();
    ASSERT_NE(kept, nullptr);
    EXPECT_EQ(kept->keep(), nullptr);
  };
  calls.arrived = [&](Connection&, const Message&) {
    kept.reset();
    done.put(1);
  };
  options.receive = Receive::kHandler;
  start(&calls);
  const ConnectionPtr client = connect();
  ASSERT_EQ(client->send(pattern(8, 1)), Status::kOk);
  EXPECT_EQ(done.take(), 1);
  Bytes byte(1);
  EXPECT_EQ(client->receive(byte).error(), Status::kClosed);
}

TEST_F(RdmaCxx, ADisconnectHandlerDestroysTheConnectionThatWasKept) {
  Calls calls;
  ConnectionPtr kept;
  calls.accepted = [&](Connection& connection) { kept = connection.keep(); };
  calls.disconnected = [&](Connection&, Status) { kept.reset(); };
  start(&calls);
  connect().reset();
  EXPECT_EQ(calls.ended.take(), Status::kClosed);
  server->stop();
  EXPECT_EQ(kept, nullptr);
}

TEST_F(RdmaCxx, AClientsHandlerDestroysItsOwnConnection) {
  Calls servers;
  servers.arrived = [](Connection& connection, const Message& message) {
    EXPECT_EQ(connection.send(message.data), Status::kOk);
  };
  options.receive = Receive::kHandler;
  start(&servers);
  ConnectionPtr client;
  Calls clients;
  clients.arrived = [&](Connection&, const Message&) { client.reset(); };
  options.handler = &clients;
  options.receive = Receive::kHandler;
  client = connect();
  ASSERT_EQ(client->send(pattern(1, 1)), Status::kOk);
  EXPECT_EQ(servers.ended.take(), Status::kClosed);
}

TEST_F(RdmaCxx, StoppingTheServerEndsCallsInOtherThreads) {
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr peer = accept();
  const Deadline late = Deadline::after(std::chrono::seconds{60});
  std::thread waiter([&] {
    Bytes byte(1);
    EXPECT_EQ(peer->receive(byte, late).error(), Status::kClosed);
  });
  std::thread other([&] {
    Bytes byte(1);
    EXPECT_EQ(client->receive(byte, late).error(), Status::kClosed);
  });
  std::thread stopped([&] { server->wait(); });
  server->stop();
  stopped.join();
  waiter.join();
  other.join();
  EXPECT_EQ(peer->send(pattern(1, 1)), Status::kClosed);
}

TEST_F(RdmaCxx, AHandlerMayNotStopItsServer) {
  Calls calls;
  Mailbox<int> done;
  calls.arrived = [&](Connection&, const Message&) {
    server->stop();
    server->wait();
    done.put(1);
  };
  options.receive = Receive::kHandler;
  start(&calls);
  const ConnectionPtr client = connect();
  ASSERT_EQ(client->send(pattern(1, 1)), Status::kOk);
  EXPECT_EQ(done.take(), 1);
  EXPECT_NE(server->port(), 0);
}

TEST_F(RdmaCxx, WhatWasSentBeforeTheCloseArrives) {
  start();
  ConnectionPtr client = connect();
  const ConnectionPtr peer = accept();
  for (std::uint64_t i = 0; i < 50; ++i) ASSERT_EQ(client->send(pattern(1000, i)), Status::kOk);
  client.reset();
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(receive(*peer, 1000), pattern(1000, i));
  Bytes byte(1);
  EXPECT_EQ(peer->receive(byte).error(), Status::kClosed);
  EXPECT_EQ(peer->write(byte), Status::kClosed);
}

// The call finds that the peer has gone, and more has arrived than one poll takes.
TEST_F(RdmaCxx, WhatArrivedBeforeACallFindsThePeerGoneIsNotLost) {
  constexpr std::uint64_t kMessages = 20;
  start();
  const ConnectionPtr client = connect();
  ConnectionPtr peer = accept();
  for (std::uint64_t i = 0; i < kMessages; ++i) ASSERT_EQ(peer->send(pattern(8, i)), Status::kOk);
  peer.reset();
  const Bytes byte(1);
  EXPECT_EQ(client->write(byte), Status::kClosed);
  for (std::uint64_t i = 0; i < kMessages; ++i) EXPECT_EQ(receive(*client, 8), pattern(8, i));
  Bytes none;
  EXPECT_EQ(client->receive(none).error(), Status::kClosed);
}

}  // namespace
}  // namespace verbena::rdma
