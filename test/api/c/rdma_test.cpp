// The C API, as its users call it. VERBENA_NIC and VERBENA_BOOTSTRAP choose what it runs over.
#include "fixture.hpp"
#include "key_file.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

namespace verbena::test {
namespace {

const std::vector<std::size_t> kSizes = {1, 7, 64, 4096, 16'351, 16'352, 16'353, 65'536, 1'000'000, 5'000'001};

// --- control

TEST_F(RdmaApi, EveryCodeHasCauseAndFix) {
  std::set<std::string> sentences;
  for (int code = RDMA_ERR_FORKED; code <= RDMA_OK; ++code) sentences.insert(rdmaErrorString(code));
  // Five statuses are the store's alone, and share the sentence of a code that is none.
  EXPECT_EQ(sentences.size(), static_cast<std::size_t>(RDMA_OK - RDMA_ERR_FORKED + 1 - 4));
  EXPECT_STREQ(rdmaErrorString(1), rdmaErrorString(-1000));
}

TEST_F(RdmaApi, AServerStartsStopsAndStartsAgain) {
  keep_accepted();
  start();
  EXPECT_EQ(rdmaServerStart(server), RDMA_ERR_BUSY);
  EXPECT_EQ(rdmaServerSetOptions(server, &options), RDMA_ERR_BUSY);
  std::thread waiter([&] { EXPECT_EQ(rdmaServerWait(server), RDMA_OK); });
  RdmaConn* const conn = connect();
  EXPECT_EQ(rdmaConnIsConnected(conn), 1);
  EXPECT_EQ(rdmaConnect(conn, address(), port), RDMA_ERR_BUSY);
  RdmaConn* const accepted = conns.take();  // On a device the client may be first to know that it is connected.
  EXPECT_EQ(rdmaServerStop(server), RDMA_OK);
  waiter.join();
  EXPECT_EQ(ended.take(), RDMA_ERR_CLOSED);
  EXPECT_EQ(rdmaServerStop(server), RDMA_OK);
  rdmaConnClose(accepted);
  when_accepted = nullptr;
  // Nobody polled for the client while the server waited for the answer to its goodbye: it may have missed that.
  std::byte byte{};
  const int code = rdmaConnRecv(conn, &byte, 1, nullptr, -1);
  EXPECT_TRUE(code == RDMA_ERR_CLOSED || code == RDMA_ERR_PEER_LOST) << rdmaErrorString(code);
  EXPECT_EQ(rdmaConnError(conn), code);
  EXPECT_EQ(rdmaConnIsConnected(conn), 0);
  ASSERT_EQ(rdmaServerStart(server), RDMA_OK) << rdmaErrorDetail();
  port = rdmaServerPort(server);
  EXPECT_EQ(rdmaConnIsConnected(connect()), 1);
}

TEST_F(RdmaApi, WrongArgumentsAreRefused) {
  EXPECT_EQ(rdmaServer(nullptr, nullptr, 0), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaServer(&server, nullptr, 65'536), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_NE(std::string(rdmaErrorDetail()).find("65536"), std::string::npos);
  EXPECT_EQ(rdmaServerStart(nullptr), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnSend(nullptr, "x", 1), 0u);
  rdmaConnClose(nullptr);
  RdmaConn* const conn = make_client();
  EXPECT_EQ(rdmaConnect(conn, address(), -1), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnSend(conn, "x", 1), 0u);
  EXPECT_EQ(rdmaConnError(conn), RDMA_ERR_CLOSED);
  EXPECT_EQ(rdmaConnSend(conn, "x", 0), 0u);
  EXPECT_EQ(rdmaConnError(conn), RDMA_ERR_BAD_ARGUMENT);
  RdmaOptions wrong = options;
  wrong.inbox_bytes = 1;
  EXPECT_EQ(rdmaConnSetOptions(conn, &wrong), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_NE(std::string(rdmaErrorDetail()).find("inbox_bytes"), std::string::npos);
}

TEST_F(RdmaApi, ConnectingToNothingHasItsOwnCodes) {
  if (!is_soft_under_test()) GTEST_SKIP() << "needs loopback addresses";
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof at;
  ASSERT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&at), &length), 0);
  RdmaConn* conn = make_client();
  // Bound, and nobody listens.
  EXPECT_EQ(rdmaConnect(conn, "127.0.0.1", ntohs(at.sin_port)), RDMA_ERR_CONNECTION_REFUSED);
  // Listens, and says nothing.
  ASSERT_EQ(listen(listening, 4), 0);
  options.connect_timeout_ms = 200;
  conn = make_client();
  EXPECT_EQ(rdmaConnect(conn, "127.0.0.1", ntohs(at.sin_port)), RDMA_ERR_TIMED_OUT);
  ::close(listening);
  EXPECT_EQ(rdmaConnect(conn, "no.such.name.invalid", 1), RDMA_ERR_NOT_FOUND);
  // The handle is good for another attempt.
  start();
  options.connect_timeout_ms = 20'000;
  EXPECT_EQ(rdmaConnSetOptions(conn, &options), RDMA_OK);
  EXPECT_EQ(rdmaConnect(conn, address(), port), RDMA_OK) << rdmaErrorDetail();
}

TEST_F(RdmaApi, AKeyOnBothSides) {
  if (!has_keys()) GTEST_SKIP() << "this build has no keys";
  const KeyFile keys;
  options.key_file = keys.path().c_str();
  start();
  for (const char* const name : {static_cast<const char*>(nullptr), "old"}) {
    options.key_name = name;
    EXPECT_EQ(rdmaConnIsConnected(connect()), 1);
  }
  options.key_name = "none";
  EXPECT_EQ(rdmaConnect(make_client(), address(), port), RDMA_ERR_NOT_FOUND) << rdmaErrorDetail();
  options.key_file = nullptr;
  EXPECT_EQ(rdmaConnect(make_client(), address(), port), RDMA_ERR_BAD_ARGUMENT) << rdmaErrorDetail();
  options.key_name = nullptr;
  const int without = rdmaConnect(make_client(), address(), port);
  // By RDMA CM a device's listener with keys is not there.
  const bool is_refused = is_soft_under_test() || options.bootstrap == RDMA_BOOTSTRAP_SOCKET;
  EXPECT_EQ(without, is_refused ? RDMA_ERR_NOT_ALLOWED : RDMA_ERR_CONNECTION_REFUSED) << rdmaErrorDetail();
}

TEST_F(RdmaApi, MoreClientsThanItsLimitAreRejectedWithTheReason) {
  options.max_connections = 1;
  start();
  RdmaConn* const first = connect();
  RdmaConn* const second = make_client();
  EXPECT_EQ(rdmaConnect(second, address(), port), RDMA_ERR_LIMIT);
  EXPECT_NE(std::string(rdmaErrorDetail()), "");
  close(first);
  EXPECT_EQ(ended.take(), RDMA_ERR_CLOSED);
}

// --- messages

TEST_F(RdmaApi, MessagesOfAnyLengthComeBackFromACallback) {
  when_message = [](RdmaConn* conn, const RdmaMessage& message) {
    const std::size_t sent = message.has_imm != 0
                                 ? rdmaConnSendWithImm(conn, message.imm + 1, message.data, message.length)
                                 : rdmaConnSend(conn, message.data, message.length);
    EXPECT_EQ(sent, message.length) << rdmaErrorDetail();
  };
  start();
  RdmaConn* const conn = connect();
  for (const std::size_t size : kSizes) {
    const Bytes bytes = pattern(size, size);
    // A long one comes back while it is still going out: nobody takes the echo, and both inboxes are small.
    std::thread sender([&] { send(conn, bytes); });
    sender.join();
    const Received echo = receive(conn, size);
    EXPECT_EQ(echo.bytes, bytes);
    EXPECT_EQ(echo.has_imm, 0);
  }
  ASSERT_EQ(rdmaConnSendWithImm(conn, 41, "x", 1), 1u);
  const Received echo = receive(conn, 1);
  EXPECT_EQ(echo.has_imm, 1);
  EXPECT_EQ(echo.imm, 42u);
}

TEST_F(RdmaApi, AClientIsCalledBackByItsOwnThread) {
  when_message = [](RdmaConn* conn, const RdmaMessage& message) {
    EXPECT_EQ(rdmaConnSend(conn, message.data, message.length), message.length);
  };
  start();
  RdmaConn* const conn = make_client();
  Mailbox<int> connected;
  ASSERT_EQ(rdmaConnOnMessage(
                conn,
                [](RdmaConn*, const RdmaMessage* message, void* user) {
                  const auto* data = static_cast<const std::byte*>(message->data);
                  static_cast<Mailbox<Received>*>(user)->put({.bytes = Bytes(data, data + message->length)});
                },
                &messages),
            RDMA_OK);
  ASSERT_EQ(rdmaConnOnConnect(
                conn, [](RdmaConn*, void* user) { static_cast<Mailbox<int>*>(user)->put(1); }, &connected),
            RDMA_OK);
  ASSERT_EQ(rdmaConnect(conn, address(), port), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(connected.take(), 1);
  for (const std::size_t size : kSizes) {
    const Bytes bytes = pattern(size, size);
    send(conn, bytes);
    EXPECT_EQ(messages.take().bytes, bytes);
  }
  std::byte byte{};
  EXPECT_EQ(rdmaConnRecv(conn, &byte, 1, nullptr, 0), RDMA_ERR_UNSUPPORTED);
  EXPECT_EQ(rdmaConnOnConnect(conn, nullptr, nullptr), RDMA_ERR_BUSY);
}

TEST_F(RdmaApi, MessagesKeepTheirOrderAndAreNeverMergedOrCut) {
  options.recv_mode = RDMA_RECV_QUEUE;
  options.inbox_bytes = 64 * 1024;
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  constexpr std::uint64_t kCount = 2000;
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < kCount; ++i) send(conn, pattern(1 + i * 37 % 40'000, i));
  });
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const Received got = receive(peer, 40'000);
    ASSERT_EQ(got.bytes, pattern(1 + i * 37 % 40'000, i)) << i;
  }
  sender.join();
  rdmaConnClose(peer);
}

TEST_F(RdmaApi, AMessageLongerThanTheBufferWaits) {
  options.recv_mode = RDMA_RECV_QUEUE;
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  RdmaMessage message;
  std::byte byte{};
  EXPECT_EQ(rdmaConnRecv(peer, &byte, 1, &message, 20), RDMA_ERR_TIMED_OUT);
  EXPECT_EQ(rdmaConnRecv(peer, &byte, 1, &message, 0), RDMA_ERR_TIMED_OUT);
  const Bytes bytes = pattern(100'000, 1);
  send(conn, bytes);
  EXPECT_EQ(rdmaConnRecv(peer, &byte, 1, &message, -1), RDMA_ERR_BUFFER_TOO_SMALL);
  EXPECT_EQ(message.length, bytes.size());
  EXPECT_EQ(receive(peer, message.length).bytes, bytes);
  rdmaConnClose(peer);
}

TEST_F(RdmaApi, AFullInboxHoldsUpTheSenderUntilItsDeadlineAndNothingIsLost) {
  options.recv_mode = RDMA_RECV_QUEUE;
  options.inbox_bytes = 64 * 1024;
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  const Bytes first = pattern(30'000, 1);
  const Bytes cut = pattern(1'000'000, 2);
  const Bytes last = pattern(200'000, 3);
  send(conn, first);
  ASSERT_EQ(rdmaConnSetTimeout(conn, 50), RDMA_OK);
  EXPECT_EQ(rdmaConnSend(conn, cut.data(), cut.size()), 0u);
  EXPECT_EQ(rdmaConnError(conn), RDMA_ERR_TIMED_OUT);
  EXPECT_EQ(rdmaConnIsConnected(conn), 1);
  EXPECT_EQ(receive(peer, first.size()).bytes, first);
  // The start of the one that was given up is there; it never becomes whole, and is dropped for the next.
  Bytes buffer(cut.size());
  EXPECT_EQ(rdmaConnRecv(peer, buffer.data(), buffer.size(), nullptr, 50), RDMA_ERR_TIMED_OUT);
  ASSERT_EQ(rdmaConnSetTimeout(conn, 20'000), RDMA_OK);
  std::thread sender([&] { send(conn, last); });
  EXPECT_EQ(receive(peer, cut.size()).bytes, last);
  sender.join();
  rdmaConnClose(peer);
}

/// Holds a thread up, wherever it is, until it is let go.
class Hold {
 public:
  Hold() {
    EXPECT_EQ(pipe2(held_, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(free_, O_CLOEXEC), 0);
    struct sigaction action{};
    action.sa_handler = [](int) {
      char byte{};
      if (write(held_[1], "", 1) == 1) (void)!read(free_[0], &byte, 1);
    };
    EXPECT_EQ(sigaction(SIGUSR1, &action, &before_), 0);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    EXPECT_EQ(sigaction(SIGUSR1, &before_, nullptr), 0);
    for (const int fd : {held_[0], held_[1], free_[0], free_[1]}) ::close(fd);
  }
  /// Returns once the thread stands still.
  static void stop(std::thread& thread) {
    char byte{};
    ASSERT_EQ(pthread_kill(thread.native_handle(), SIGUSR1), 0);
    ASSERT_EQ(read(held_[0], &byte, 1), 1);
  }
  static void let_go() { ASSERT_EQ(write(free_[1], "", 1), 1); }

 private:
  static inline int held_[2];
  static inline int free_[2];
  struct sigaction before_{};
};

// A receive that timed out in the middle of a message goes on where it was.
TEST_F(RdmaApi, AReceiveThatTimesOutInTheMiddleLosesNothing) {
  options.recv_mode = RDMA_RECV_QUEUE;
  options.inbox_bytes = 64 * 1024;
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  const Bytes bytes = pattern(8'000'000, 1);
  Bytes buffer(bytes.size());
  RdmaMessage message;
  const Hold hold;
  // The thread that calls drives the connection: nothing is sent while it is held up.
  std::thread sender([&] { send(conn, bytes); });
  ASSERT_EQ(rdmaConnRecv(peer, buffer.data(), 1, &message, -1), RDMA_ERR_BUFFER_TOO_SMALL) << "the message has begun";
  for (int round = 0; round < 3; ++round) {
    Hold::stop(sender);
    std::ranges::fill(buffer, std::byte{0});
    EXPECT_EQ(rdmaConnRecv(peer, buffer.data(), buffer.size(), &message, round), RDMA_ERR_TIMED_OUT);
    Hold::let_go();
  }
  EXPECT_EQ(receive(peer, bytes.size()).bytes, bytes);
  sender.join();
  rdmaConnClose(peer);
}

TEST_F(RdmaApi, NobodysMessagesAreCounted) {
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  for (const std::size_t size : kSizes) send(conn, pattern(size, 1));
  // What is discarded is told to the sender: it never waits. The goodbye comes behind the last message.
  close(conn);
  EXPECT_EQ(ended.take(), RDMA_ERR_CLOSED);
  EXPECT_EQ(rdmaConnDiscarded(peer), kSizes.size());
  std::byte byte{};
  EXPECT_EQ(rdmaConnRecv(peer, &byte, 1, nullptr, 0), RDMA_ERR_UNSUPPORTED);
  rdmaConnClose(peer);
}

// --- one-sided

TEST_F(RdmaApi, WritesAndReadsThePeersWindowFromAnyMemory) {
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  ASSERT_EQ(rdmaConnPeerWindowBytes(conn), kWindow);
  std::size_t length = 0;
  const auto* const window = static_cast<const std::byte*>(rdmaConnWindow(peer, &length));
  ASSERT_EQ(length, kWindow);
  for (const std::size_t size : {std::size_t{1}, std::size_t{8}, std::size_t{65'537}, kWindow}) {
    const Bytes bytes = pattern(size, size);
    ASSERT_EQ(rdmaConnWrite(conn, bytes.data(), size), size) << rdmaErrorDetail();
    EXPECT_TRUE(std::ranges::equal(bytes, std::span(window, size)));
    Bytes back(size);
    ASSERT_EQ(rdmaConnRead(conn, back.data(), size), RDMA_OK) << rdmaErrorDetail();
    EXPECT_EQ(back, bytes);
  }
  // Both ways, with an offset.
  const Bytes bytes = pattern(1000, 9);
  ASSERT_EQ(rdmaConnWriteAt(peer, 5000, bytes.data(), bytes.size()), bytes.size()) << rdmaErrorDetail();
  const auto* const mine = static_cast<const std::byte*>(rdmaConnWindow(conn, nullptr));
  EXPECT_TRUE(std::ranges::equal(bytes, std::span(mine + 5000, bytes.size())));
  Bytes back(bytes.size());
  ASSERT_EQ(rdmaConnReadAt(peer, 5000, back.data(), back.size()), RDMA_OK);
  EXPECT_EQ(back, bytes);
  rdmaConnClose(peer);
}

TEST_F(RdmaApi, OutsideTheWindowIsRefusedAndTheConnectionGoesOn) {
  start();
  RdmaConn* const conn = connect();
  Bytes bytes(kWindow + 1);
  EXPECT_EQ(rdmaConnWrite(conn, bytes.data(), bytes.size()), 0u);
  EXPECT_EQ(rdmaConnError(conn), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaConnWriteAt(conn, kWindow, bytes.data(), 1), 0u);
  EXPECT_EQ(rdmaConnReadAt(conn, kWindow - 7, bytes.data(), 8), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaConnReadAt(conn, ~std::size_t{0}, bytes.data(), 8), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaConnReadAt(conn, 8, bytes.data(), ~std::size_t{0}), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaConnWriteWithImmAt(conn, 1, kWindow + 1, nullptr, 0), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaConnRead(conn, nullptr, 8), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnRead(conn, bytes.data(), 0), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnWriteWithImm(conn, 1, nullptr, 8), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnReadAt(conn, kWindow - 8, bytes.data(), 8), RDMA_OK);
}

TEST_F(RdmaApi, AWrittenMessageComesBehindItsBytesAndInOrderWithOthers) {
  when_message = [this](RdmaConn*, const RdmaMessage& message) {
    const auto* data = static_cast<const std::byte*>(message.data);
    messages.put({.kind = message.kind,
                  .has_imm = message.has_imm,
                  .imm = message.imm,
                  .bytes = Bytes(data, data + message.length)});
  };
  start();
  RdmaConn* const conn = connect();
  for (std::uint32_t i = 0; i < 50; ++i) {
    // More than all bounce buffers hold at once, too.
    const Bytes bytes = pattern(1 + i * 20'011 % kWindow, i);
    ASSERT_EQ(rdmaConnWriteWithImmAt(conn, i, kWindow - bytes.size(), bytes.data(), bytes.size()), RDMA_OK);
    // So that the next write does not come before this one was looked at.
    const Received written = messages.take();
    EXPECT_EQ(written.kind, RDMA_WRITTEN);
    EXPECT_EQ(written.imm, i);
    ASSERT_EQ(written.bytes, bytes) << i;
    send(conn, bytes);
    EXPECT_EQ(messages.take().bytes, bytes);
  }
  ASSERT_EQ(rdmaConnWriteWithImm(conn, 77, nullptr, 0), RDMA_OK);
  EXPECT_EQ(messages.take().imm, 77u);
}

TEST_F(RdmaApi, ManyThreadsUseOneConnectionOfAServer) {
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 50; ++i) {
        const Bytes bytes = pattern(100'000, i * 4 + t);
        ASSERT_EQ(rdmaConnWriteAt(peer, t * 200'000, bytes.data(), bytes.size()), bytes.size()) << rdmaErrorDetail();
        Bytes back(bytes.size());
        ASSERT_EQ(rdmaConnReadAt(peer, t * 200'000, back.data(), back.size()), RDMA_OK) << rdmaErrorDetail();
        ASSERT_EQ(back, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(rdmaConnIsConnected(conn), 1);
  rdmaConnClose(peer);
}

TEST_F(RdmaApi, AWrittenMessageDoesNotCutALongOneOfAnotherThread) {
  options.inbox_bytes = 64 * 1024;
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  constexpr std::uint32_t kCount = 20;
  std::thread sender([&] {
    for (std::uint32_t i = 0; i < kCount; ++i) send(peer, pattern(500'000, i));
  });
  std::thread writer([&] {
    for (std::uint32_t i = 0; i < kCount; ++i) EXPECT_EQ(rdmaConnWriteWithImm(peer, i, "x", 1), RDMA_OK);
  });
  std::uint32_t sent = 0;
  std::uint32_t written = 0;
  while (sent + written < 2 * kCount && !HasFailure()) {
    const Received got = receive(conn, 500'000);
    if (got.kind == RDMA_WRITTEN) {
      EXPECT_EQ(got.imm, written++);
    } else {
      EXPECT_EQ(got.bytes, pattern(500'000, sent++));
    }
  }
  sender.join();
  writer.join();
  rdmaConnClose(peer);
}

TEST_F(RdmaApi, ASecondThreadOnAClientsConnectionIsRefused) {
  start();
  RdmaConn* const conn = connect();
  std::atomic<bool> is_over{false};
  std::thread waiter([&] {
    std::byte byte{};
    int received = RDMA_ERR_BUSY;  // As often as it is the second itself.
    while (received == RDMA_ERR_BUSY) received = rdmaConnRecv(conn, &byte, 1, nullptr, 2000);
    EXPECT_EQ(received, RDMA_ERR_TIMED_OUT);
    is_over = true;
  });
  std::byte byte{};
  int code = RDMA_OK;
  while (code != RDMA_ERR_BUSY && !is_over) code = rdmaConnRead(conn, &byte, 1);
  EXPECT_EQ(code, RDMA_ERR_BUSY);
  waiter.join();
  EXPECT_EQ(rdmaConnRead(conn, &byte, 1), RDMA_OK);
}

TEST_F(RdmaApi, ATimeoutThatWasSetBeforeConnectingHolds) {
  start();
  options.timeout_ms = 3'600'000;  // Longer than the suite may take.
  RdmaConn* const conn = make_client();
  ASSERT_EQ(rdmaConnSetTimeout(conn, 50), RDMA_OK);
  ASSERT_EQ(rdmaConnect(conn, address(), port), RDMA_OK) << rdmaErrorDetail();
  std::byte byte{};
  EXPECT_EQ(rdmaConnRecv(conn, &byte, 1, nullptr, -1), RDMA_ERR_TIMED_OUT);
  EXPECT_EQ(std::string_view(rdmaErrorDetail()).substr(0, 13), "rdmaConnRecv:") << "by the name that users call";
}

// --- the end

TEST_F(RdmaApi, WhatWasSentBeforeTheCloseArrives) {
  options.recv_mode = RDMA_RECV_QUEUE;
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  for (std::uint64_t i = 0; i < 50; ++i) send(conn, pattern(1000, i));
  close(conn);
  EXPECT_EQ(ended.take(), RDMA_ERR_CLOSED);
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(receive(peer, 1000).bytes, pattern(1000, i));
  std::byte byte{};
  EXPECT_EQ(rdmaConnRecv(peer, &byte, 1, nullptr, -1), RDMA_ERR_CLOSED);
  EXPECT_EQ(rdmaConnWrite(peer, &byte, 1), 0u);
  EXPECT_EQ(rdmaConnError(peer), RDMA_ERR_CLOSED);
  rdmaConnClose(peer);
}

TEST_F(RdmaApi, ACallbackClosesItsOwnConnection) {
  when_message = [](RdmaConn* conn, const RdmaMessage&) {
    EXPECT_EQ(rdmaConnSend(conn, "bye", 3), 3u);
    rdmaConnClose(conn);
  };
  start();
  RdmaConn* const conn = connect();
  send(conn, pattern(8, 1));
  EXPECT_EQ(receive(conn, 3).bytes.size(), 3u);
  std::byte byte{};
  EXPECT_EQ(rdmaConnRecv(conn, &byte, 1, nullptr, -1), RDMA_ERR_CLOSED);
}

TEST_F(RdmaApi, AClientsCallbackClosesItsOwnConnection) {
  when_message = [](RdmaConn* conn, const RdmaMessage& message) {
    EXPECT_EQ(rdmaConnSend(conn, message.data, message.length), message.length);
  };
  start();
  RdmaConn* const conn = rdmaConn();
  ASSERT_EQ(rdmaConnSetOptions(conn, &options), RDMA_OK);
  ASSERT_EQ(rdmaConnSetRecvCallback(conn, [](RdmaConn* own, void*, std::size_t) { rdmaConnClose(own); }), RDMA_OK);
  ASSERT_EQ(rdmaConnect(conn, address(), port), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnSend(conn, "x", 1), 1u);
  EXPECT_EQ(ended.take(), RDMA_ERR_CLOSED);
  rdmaRuntimeStop();  // Ends its thread.
}

TEST_F(RdmaApi, StoppingTheServerEndsCallsInOtherThreads) {
  options.recv_mode = RDMA_RECV_QUEUE;
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  std::thread waiter([&] {
    std::byte byte{};
    EXPECT_EQ(rdmaConnRecv(peer, &byte, 1, nullptr, 60'000), RDMA_ERR_CLOSED);
  });
  std::thread client([&] {
    std::byte byte{};
    EXPECT_EQ(rdmaConnRecv(conn, &byte, 1, nullptr, 60'000), RDMA_ERR_CLOSED);
  });
  EXPECT_EQ(rdmaServerStop(server), RDMA_OK);
  waiter.join();
  client.join();
  std::byte byte{};
  EXPECT_EQ(rdmaConnRecv(peer, &byte, 1, nullptr, -1), RDMA_ERR_CLOSED);
  rdmaConnClose(peer);
}

TEST_F(RdmaApi, ACallbackMayNotStopItsServer) {
  Mailbox<int> codes;
  when_message = [&](RdmaConn*, const RdmaMessage&) {
    codes.put(rdmaServerStop(server));
    codes.put(rdmaServerWait(server));
  };
  start();
  send(connect(), pattern(1, 1));
  EXPECT_EQ(codes.take(), RDMA_ERR_BUSY);
  EXPECT_EQ(codes.take(), RDMA_ERR_BUSY);
}

TEST_F(RdmaApi, AMessageTooLongForACallbackEndsTheConnection) {
  options.max_message_bytes = 1000;
  when_message = [](RdmaConn*, const RdmaMessage&) { ADD_FAILURE(); };
  start();
  RdmaConn* const conn = connect();
  const Bytes bytes = pattern(1001, 1);
  send(conn, bytes);
  EXPECT_EQ(ended.take(), RDMA_ERR_TOO_LONG);
  std::byte byte{};
  EXPECT_NE(rdmaConnRecv(conn, &byte, 1, nullptr, -1), RDMA_OK);
  EXPECT_EQ(rdmaConnIsConnected(conn), 0);
}

TEST_F(RdmaApi, RuntimeStopEndsEveryClientsConnection) {
  start();
  RdmaConn* const blocking = connect();
  RdmaConn* const called = make_client();
  ASSERT_EQ(rdmaConnSetRecvCallback(called, [](RdmaConn*, void*, std::size_t) {}), RDMA_OK);
  ASSERT_EQ(rdmaConnect(called, address(), port), RDMA_OK) << rdmaErrorDetail();
  rdmaRuntimeStop();
  for (RdmaConn* conn : {blocking, called}) {
    std::byte byte{};
    EXPECT_EQ(rdmaConnSend(conn, "x", 1), 0u);
    EXPECT_EQ(rdmaConnError(conn), RDMA_ERR_CLOSED);
    EXPECT_EQ(rdmaConnWrite(conn, &byte, 1), 0u);
    EXPECT_EQ(rdmaConnRead(conn, &byte, 1), RDMA_ERR_CLOSED);
    EXPECT_EQ(ended.take(), RDMA_ERR_CLOSED);
  }
}

TEST_F(RdmaApi, ACallbackClosesItsConnectionWhileRuntimeStopEndsIt) {
  start();
  RdmaConn* const conn = rdmaConn();
  ASSERT_EQ(rdmaConnSetOptions(conn, &options), RDMA_OK);
  ASSERT_EQ(rdmaConnSetDisconnectCallback(conn, [](RdmaConn* own) { rdmaConnClose(own); }), RDMA_OK);
  ASSERT_EQ(rdmaConnect(conn, address(), port), RDMA_OK) << rdmaErrorDetail();
  rdmaRuntimeStop();
  EXPECT_EQ(ended.take(), RDMA_ERR_CLOSED);
}

}  // namespace
}  // namespace verbena::test
