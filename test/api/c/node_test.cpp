// Nodes, memory that all peers share, parts of it under names, started atomics, and the options of listeners.
#include "fixture.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

namespace verbena::test {
namespace {

constexpr int kMostStarted = 64;

[[nodiscard]] bool says(std::string_view word) {
  return std::string_view(rdmaErrorDetail()).find(word) != std::string_view::npos;
}
template <class Word = std::uint64_t>
[[nodiscard]] Word word_at(const void* memory, std::size_t index) {
  Word word;
  std::memcpy(&word, static_cast<const std::byte*>(memory) + index * sizeof word, sizeof word);
  return word;
}

/// Looks up a name that is not published. A deadline that was too short for the peer's answer is doubled.
[[nodiscard]] int look_up_absent(RdmaConn* conn, const char* name) {
  RdmaWindow window{};
  int code = RDMA_ERR_TIMED_OUT;
  for (int timeout_ms = 25; code == RDMA_ERR_TIMED_OUT && timeout_ms < 20'000; timeout_ms *= 2)
    code = rdmaConnLookup(conn, name, &window, timeout_ms);
  return code;
}

// --- listeners

TEST_F(RdmaApi, AServerTellsWhatAPeerDials) {
  std::array<char, 1024> text{};
  ASSERT_EQ(rdmaServer(&server, address(), 0), RDMA_OK);
  EXPECT_EQ(rdmaServerAddress(server, text.data(), text.size()), RDMA_ERR_CLOSED) << "it does not run yet";
  EXPECT_EQ(rdmaServerAddress(nullptr, text.data(), text.size()), RDMA_ERR_BAD_ARGUMENT);
  rdmaServerRelease(std::exchange(server, nullptr));
  start();
  ASSERT_EQ(rdmaServerAddress(server, text.data(), text.size()), RDMA_OK) << rdmaErrorDetail();
  const std::string dialed = text.data();
  EXPECT_FALSE(dialed.empty());
  if (is_soft_under_test()) {
    EXPECT_EQ(dialed, "127.0.0.1");
  }
  EXPECT_EQ(rdmaServerAddress(server, nullptr, text.size()), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaServerAddress(server, text.data(), dialed.size()), RDMA_ERR_BUFFER_TOO_SMALL) << "the null";
  EXPECT_TRUE(says(std::to_string(dialed.size() + 1))) << rdmaErrorDetail();
  EXPECT_EQ(rdmaServerAddress(server, text.data(), dialed.size() + 1), RDMA_OK) << rdmaErrorDetail();
  RdmaConn* const conn = make_client();
  EXPECT_EQ(rdmaConnect(conn, dialed.c_str(), port), RDMA_OK) << rdmaErrorDetail();
}

TEST_F(RdmaApi, AServerThatListensOnAllAddressesTellsThisHostsName) {
  if (!is_soft_under_test()) GTEST_SKIP() << "RDMA CM listens on the addresses of the device";
  ASSERT_EQ(rdmaServer(&server, "0.0.0.0", 0), RDMA_OK);
  ASSERT_EQ(rdmaServerSetOptions(server, &options), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaServerStart(server), RDMA_OK) << rdmaErrorDetail();
  std::array<char, 1024> text{};
  std::array<char, 256> host{};
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  ASSERT_EQ(rdmaServerAddress(server, text.data(), text.size()), RDMA_OK) << rdmaErrorDetail();
  EXPECT_STREQ(text.data(), host.data());
}

TEST_F(RdmaApi, ASharedWindowIsTheSameForAllConnections) {
  options.shared_window = 1;
  options.window_bytes = 4096;
  EXPECT_EQ(rdmaServerWindow(nullptr, nullptr), nullptr);
  start();
  std::size_t length = 0;
  void* const window = rdmaServerWindow(server, &length);
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(length, 4096U);
  EXPECT_EQ(word_at(window, 0), 0U) << "it is zeroed";
  RdmaConn* const first = connect();
  RdmaConn* const second = connect();
  const std::array<std::uint64_t, 2> words{41, 42};
  ASSERT_EQ(rdmaConnWriteAt(first, 0, &words[0], 8), 8U) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnWriteAt(second, 8, &words[1], 8), 8U) << rdmaErrorDetail();
  std::array<std::uint64_t, 2> back{};
  ASSERT_EQ(rdmaConnRead(second, back.data(), sizeof back), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(back, words);
  EXPECT_EQ(word_at(window, 0), 41U);
  EXPECT_EQ(word_at(window, 1), 42U);
  ASSERT_EQ(rdmaServerStop(server), RDMA_OK);
  EXPECT_EQ(rdmaServerWindow(server, &length), nullptr);
  EXPECT_EQ(length, 0U);
}

TEST_F(RdmaApi, WithoutASharedWindowAServerHasNone) {
  keep_accepted();
  start();
  std::size_t length = 1;
  EXPECT_EQ(rdmaServerWindow(server, &length), nullptr);
  EXPECT_EQ(length, 0U);
  (void)connect();
  (void)connect();
  RdmaConn* const first = conns.take();
  RdmaConn* const second = conns.take();
  EXPECT_NE(rdmaConnWindow(first, nullptr), rdmaConnWindow(second, nullptr));
  close_clients();
  rdmaConnClose(first);
  rdmaConnClose(second);
}

TEST_F(RdmaApi, AWindowOfTheUsersOwnIsTheServersWindow) {
  alignas(64) static std::array<std::byte, 4096> own;
  own = {};
  options.window = own.data();
  options.window_bytes = own.size();
  start();
  options.window = nullptr;
  std::size_t length = 0;
  EXPECT_EQ(rdmaServerWindow(server, &length), own.data());
  EXPECT_EQ(length, own.size());
  RdmaConn* const conn = connect();
  const std::uint64_t word = 7;
  ASSERT_EQ(rdmaConnWrite(conn, &word, sizeof word), sizeof word) << rdmaErrorDetail();
  EXPECT_EQ(word_at(own.data(), 0), 7U);
}

TEST_F(RdmaApi, WrongOptionsAreNamedWithTheirRange) {
  ASSERT_EQ(rdmaServer(&server, address(), 0), RDMA_OK);
  RdmaConn* const conn = make_client();
  const auto refused = [&](const char* name, auto&& change) {
    RdmaOptions wrong = options;
    change(wrong);
    EXPECT_EQ(rdmaServerSetOptions(server, &wrong), RDMA_ERR_BAD_ARGUMENT) << name;
    EXPECT_TRUE(says(name)) << rdmaErrorDetail();
    EXPECT_EQ(rdmaConnSetOptions(conn, &wrong), RDMA_ERR_BAD_ARGUMENT) << name;
    EXPECT_TRUE(says(name)) << rdmaErrorDetail();
  };
  refused("gid_index", [](RdmaOptions& of) { of.gid_index = -2; });
  refused("256", [](RdmaOptions& of) { of.gid_index = 256; });
  refused("allowed_uids", [](RdmaOptions& of) { of.allowed_uid_count = 3; });
  RdmaNodeOptions node_options;
  rdmaNodeOptionsInit(&node_options);
  RdmaNode* node = nullptr;
  const auto refused_by_node = [&](const char* name, auto&& change) {
    RdmaNodeOptions wrong = node_options;
    wrong.device = options.device;
    change(wrong);
    EXPECT_EQ(rdmaNode(&node, &wrong), RDMA_ERR_BAD_ARGUMENT) << name;
    EXPECT_TRUE(says(name)) << rdmaErrorDetail();
    EXPECT_EQ(node, nullptr);
  };
  refused_by_node("gid_index", [](RdmaNodeOptions& of) { of.gid_index = 256; });
  refused_by_node("allowed_uids", [](RdmaNodeOptions& of) { of.allowed_uid_count = 1; });
  refused_by_node("shards", [](RdmaNodeOptions& of) { of.shards = 0; });
  refused_by_node("shards", [](RdmaNodeOptions& of) { of.shards = 257; });
  refused_by_node("connections", [](RdmaNodeOptions& of) { of.connections = 65537; });
  EXPECT_EQ(rdmaNode(nullptr, &node_options), RDMA_ERR_BAD_ARGUMENT);
  rdmaNodeRelease(nullptr);
}

TEST_F(RdmaApi, ARowThatTheGidTableLacksIsRefused) {
  if (is_soft_under_test()) GTEST_SKIP() << "the software NIC has no GID table";
  options.bootstrap = RDMA_BOOTSTRAP_SOCKET;
  options.gid_index = 255;
  ASSERT_EQ(rdmaServer(&server, address(), 0), RDMA_OK);
  ASSERT_EQ(rdmaServerSetOptions(server, &options), RDMA_OK) << rdmaErrorDetail();
  EXPECT_NE(rdmaServerStart(server), RDMA_OK);
  EXPECT_TRUE(says("255")) << rdmaErrorDetail();
}

// --- nodes

/// A node, and listeners on it.
class RdmaNodeApi : public RdmaApi {
 protected:
  void SetUp() override {
    RdmaNodeOptions wanted;
    rdmaNodeOptionsInit(&wanted);
    wanted.device = options.device;
    wanted.bootstrap = options.bootstrap;
    wanted.shards = 2;
    ASSERT_EQ(rdmaNode(&node, &wanted), RDMA_OK) << rdmaErrorDetail();
    options.node = node;
    options.recv_mode = RDMA_RECV_QUEUE;
  }
  void TearDown() override {
    close_clients();
    for (RdmaListener* each : {server, second}) rdmaServerRelease(each);
    server = nullptr;
    rdmaNodeRelease(node);
  }
  /// Another listener on the node, which echoes.
  [[nodiscard]] int start_second() {
    EXPECT_EQ(rdmaServer(&second, address(), 0), RDMA_OK);
    EXPECT_EQ(rdmaServerSetOptions(second, &options), RDMA_OK) << rdmaErrorDetail();
    EXPECT_EQ(rdmaServerOnMessage(second, echo, nullptr), RDMA_OK);
    EXPECT_EQ(rdmaServerStart(second), RDMA_OK) << rdmaErrorDetail();
    return rdmaServerPort(second);
  }
  static void echo(RdmaConn* conn, const RdmaMessage* message, void* /*user*/) {
    EXPECT_EQ(rdmaConnSend(conn, message->data, message->length), message->length) << rdmaErrorDetail();
  }
  void start_echo() {
    when_message = [](RdmaConn* conn, const RdmaMessage& message) { echo(conn, &message, nullptr); };
    start();
  }
  [[nodiscard]] RdmaConn* connect_to(int at) {
    RdmaConn* const conn = make_client();
    EXPECT_EQ(rdmaConnect(conn, address(), at), RDMA_OK) << rdmaErrorDetail();
    return conn;
  }
  static void expect_echo(RdmaConn* conn, std::uint64_t seed) {
    const Bytes bytes = pattern(5000, seed);
    send(conn, bytes);
    EXPECT_EQ(receive(conn, bytes.size()).bytes, bytes);
  }
  /// What a client finds under a name, and reads from its beginning.
  [[nodiscard]] static std::uint64_t read_first_word(RdmaConn* conn, const char* name, std::uint64_t length) {
    RdmaWindow window{};
    EXPECT_EQ(rdmaConnLookup(conn, name, &window, -1), RDMA_OK) << rdmaErrorDetail();
    EXPECT_EQ(window.length, length);
    const RdmaMemory* const mine = rdmaConnRegMem(conn, 64);
    if (mine == nullptr) return ADD_FAILURE() << rdmaErrorDetail(), 0;
    EXPECT_EQ(rdmaSyncReadSignaled(conn, address_of(mine->addr), mine->lkey, window.addr, window.rkey, 8), RDMA_OK)
        << rdmaErrorDetail();
    return word_at(mine->addr, 0);
  }

  RdmaNode* node = nullptr;
  RdmaListener* second = nullptr;
};

TEST_F(RdmaNodeApi, TwoListenersAndTheirClientsShareIt) {
  start_echo();
  const int other = start_second();
  EXPECT_NE(other, port);
  std::vector<RdmaConn*> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(connect_to(i % 2 == 0 ? port : other));
  for (std::size_t i = 0; i < clients.size(); ++i) expect_echo(clients[i], i);
  // One ends; the other's connections go on.
  ASSERT_EQ(rdmaServerStop(second), RDMA_OK);
  std::byte byte{};
  EXPECT_EQ(rdmaConnRecv(clients[1], &byte, 1, nullptr, -1), RDMA_ERR_CLOSED);
  EXPECT_EQ(rdmaConnIsConnected(clients[1]), 0);
  for (const std::size_t i : {0U, 2U, 4U}) expect_echo(clients[i], 10 + i);
  ASSERT_EQ(rdmaServerStart(second), RDMA_OK) << rdmaErrorDetail();
  expect_echo(connect_to(rdmaServerPort(second)), 20);
}

TEST_F(RdmaNodeApi, AClientWithCallbacksIsDrivenByAShard) {
  start_echo();
  RdmaConn* const conn = make_client();
  ASSERT_EQ(rdmaConnOnMessage(
                conn,
                [](RdmaConn*, const RdmaMessage* message, void* user) {
                  Received received{.bytes = Bytes(message->length)};
                  std::memcpy(received.bytes.data(), message->data, message->length);
                  static_cast<Mailbox<Received>*>(user)->put(received);
                },
                &messages),
            RDMA_OK);
  ASSERT_EQ(rdmaConnect(conn, address(), port), RDMA_OK) << rdmaErrorDetail();
  const Bytes bytes = pattern(100'000, 1);
  send(conn, bytes);
  EXPECT_EQ(messages.take().bytes, bytes);
}

TEST_F(RdmaNodeApi, MemoryThatIsRegisteredOnceReachesEveryPeer) {
  start_echo();
  const int other = start_second();
  const RdmaMemory* const allocated = rdmaNodeRegMem(node, 4096);
  ASSERT_NE(allocated, nullptr) << rdmaErrorDetail();
  Bytes own(4096);
  const RdmaMemory* const registered =
      rdmaNodeRegister(node, own.data(), own.size(), RDMA_ACCESS_REMOTE_READ | RDMA_ACCESS_REMOTE_WRITE);
  ASSERT_NE(registered, nullptr) << rdmaErrorDetail();
  const std::uint64_t forty = 40, fifty = 50;
  std::memcpy(allocated->addr, &forty, sizeof forty);
  std::memcpy(own.data(), &fifty, sizeof fifty);
  ASSERT_EQ(rdmaNodePublish(node, "allocated", allocated), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaNodePublish(node, "own", registered), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(rdmaNodePublish(node, "own", allocated), RDMA_ERR_BUSY);
  for (const int at : {port, other, port}) {
    RdmaConn* const conn = connect_to(at);
    EXPECT_EQ(read_first_word(conn, "allocated", 4096), 40U);
    EXPECT_EQ(read_first_word(conn, "own", 4096), 50U);
    // Local memory of this side, too, whichever connection: the node's clients use it without registering it again.
    RdmaWindow window{};
    ASSERT_EQ(rdmaConnPeerWindow(conn, &window), RDMA_OK) << rdmaErrorDetail();
    EXPECT_EQ(rdmaSyncWriteSignaled(conn, address_of(allocated->addr), allocated->lkey, window.addr, window.rkey, 8),
              RDMA_OK)
        << rdmaErrorDetail();
  }
  ASSERT_EQ(rdmaNodePublish(node, "own", nullptr), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(rdmaNodePublish(node, "own", nullptr), RDMA_ERR_NOT_FOUND);
  EXPECT_EQ(look_up_absent(connect_to(port), "own"), RDMA_ERR_NOT_FOUND);
  ASSERT_EQ(rdmaNodeDeregMem(node, allocated), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(rdmaNodeDeregMem(node, allocated), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(look_up_absent(connect_to(other), "allocated"), RDMA_ERR_NOT_FOUND);
}

TEST_F(RdmaNodeApi, MemoryOfTheNodeIsTheDefaultWindowOfAListener) {
  const RdmaMemory* const memory = rdmaNodeRegMem(node, 8192);
  ASSERT_NE(memory, nullptr) << rdmaErrorDetail();
  auto* const begin = static_cast<std::byte*>(memory->addr);
  options.window = begin + 4096;
  options.window_bytes = 4096;
  start_echo();
  options.window = nullptr;
  EXPECT_EQ(rdmaServerWindow(server, nullptr), begin + 4096);
  const std::uint64_t word = 77;
  ASSERT_EQ(rdmaConnWrite(connect_to(port), &word, sizeof word), sizeof word) << rdmaErrorDetail();
  std::uint64_t back = 0;
  ASSERT_EQ(rdmaConnRead(connect_to(port), &back, sizeof back), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(back, 77U);
  EXPECT_EQ(word_at(begin, 4096 / 8), 77U);
}

TEST_F(RdmaNodeApi, PartsOfMemoryAreWindowsOfTheirOwn) {
  start_echo();
  const RdmaMemory* const memory = rdmaNodeRegMem(node, 4096);
  ASSERT_NE(memory, nullptr) << rdmaErrorDetail();
  for (std::uint64_t i = 0; i < 512; ++i) std::memcpy(static_cast<std::byte*>(memory->addr) + 8 * i, &i, sizeof i);
  EXPECT_EQ(rdmaNodePublishPart(node, "x", memory, 4096, 1), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaNodePublishPart(node, "x", memory, 4090, 7), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaNodePublishPart(node, "x", nullptr, 0, 8), RDMA_ERR_BAD_ARGUMENT);
  ASSERT_EQ(rdmaNodePublishPart(node, "middle", memory, 1024, 64), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaNodePublishPart(node, "first", memory, 0, 8), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaNodePublishPart(node, "last", memory, 4088, 8), RDMA_OK) << rdmaErrorDetail();
  RdmaConn* const conn = connect_to(port);
  EXPECT_EQ(read_first_word(conn, "middle", 64), 128U);
  EXPECT_EQ(read_first_word(conn, "last", 8), 511U) << "of the same memory, beside the one before";
  EXPECT_EQ(read_first_word(conn, "first", 8), 0U);
  EXPECT_EQ(read_first_word(conn, "middle", 64), 128U);
  // No more than the parts.
  RdmaWindow window{};
  ASSERT_EQ(rdmaConnLookup(conn, "middle", &window, -1), RDMA_OK) << rdmaErrorDetail();
  const RdmaMemory* const mine = rdmaConnRegMem(conn, 4096);
  ASSERT_NE(mine, nullptr) << rdmaErrorDetail();
  const auto read = [&](std::uint64_t from, std::uint32_t length) {
    return rdmaSyncReadSignaled(conn, address_of(mine->addr), mine->lkey, from, window.rkey, length);
  };
  EXPECT_EQ(read(window.addr, 64), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(read(window.addr, 65), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(read(window.addr - 1, 8), RDMA_ERR_OUT_OF_RANGE);
  // Released, it is gone, and the others stay.
  ASSERT_EQ(rdmaConnReleaseWindow(conn, &window), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(read(window.addr, 8), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaConnIsConnected(conn), 1);
  EXPECT_EQ(read_first_word(conn, "last", 8), 511U);
}

TEST_F(RdmaApi, AListenerAndAConnectionPublishParts) {
  options.recv_mode = RDMA_RECV_QUEUE;
  keep_accepted();
  start();
  const RdmaMemory* const listeners = rdmaServerRegMem(server, 4096);
  ASSERT_NE(listeners, nullptr) << rdmaErrorDetail();
  ASSERT_EQ(rdmaServerPublishPart(server, "part", listeners, 64, 128), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(rdmaServerPublishPart(server, "much", listeners, 64, 4096), RDMA_ERR_OUT_OF_RANGE);
  RdmaConn* const conn = connect();
  RdmaConn* const peer = conns.take();
  const RdmaMemory* const theirs = rdmaConnRegMem(peer, 4096);
  ASSERT_NE(theirs, nullptr) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnPublishPart(peer, "of one", theirs, 4000, 96), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(rdmaConnPublishPart(peer, "of one", theirs, 0, 8), RDMA_ERR_BUSY);
  RdmaWindow window{};
  ASSERT_EQ(rdmaConnLookup(conn, "part", &window, -1), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(window.length, 128U);
  EXPECT_EQ(window.addr, address_of(listeners->addr) + 64);
  ASSERT_EQ(rdmaConnLookup(conn, "of one", &window, -1), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(window.length, 96U);
  EXPECT_EQ(window.addr, address_of(theirs->addr) + 4000);
  // What one connection publishes is for its peer only.
  EXPECT_EQ(look_up_absent(connect(), "of one"), RDMA_ERR_NOT_FOUND);
  RdmaConn* const another = conns.take();
  close_clients();
  rdmaConnClose(peer);
  rdmaConnClose(another);
}

// --- atomics that are started

class RdmaStartedAtomics : public RdmaApi {
 protected:
  void SetUp() override {
    start();
    conn = connect();
    ASSERT_EQ(rdmaConnPeerWindow(conn, &window), RDMA_OK) << rdmaErrorDetail();
  }
  [[nodiscard]] RdmaCompletion complete() {
    RdmaCompletion completion{};
    EXPECT_EQ(rdmaConnComplete(conn, &completion, -1), RDMA_OK) << rdmaErrorDetail();
    EXPECT_EQ(completion.code, RDMA_OK) << rdmaErrorString(completion.code);
    return completion;
  }
  RdmaConn* conn = nullptr;
  RdmaWindow window{};
};

TEST_F(RdmaStartedAtomics, EachTellsWhatItFoundInTheOrderTheyWereStarted) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(rdmaStartFetchAdd(conn, window.addr, window.rkey, 3, 2 * i), RDMA_OK) << rdmaErrorDetail();
    // One that finds what it expects, and one that does not.
    const std::uint64_t expected = i % 2 == 0 ? 4 * i + 3 : 1'000'000;
    const std::uint64_t desired = i % 2 == 0 ? 4 * i + 4 : 0;
    if (i % 2 == 1) {
      ASSERT_EQ(rdmaStartFetchAdd(conn, window.addr, window.rkey, 1, 100 + i), RDMA_OK) << rdmaErrorDetail();
    }
    ASSERT_EQ(rdmaStartCompareSwap(conn, window.addr, window.rkey, expected, desired, 2 * i + 1), RDMA_OK)
        << rdmaErrorDetail();
    RdmaCompletion completion = complete();
    EXPECT_EQ(completion.cookie, 2 * i);
    EXPECT_EQ(completion.operation, RDMA_ATOMIC);
    EXPECT_EQ(completion.old, 4 * i);
    if (i % 2 == 1) {
      completion = complete();
      EXPECT_EQ(completion.cookie, 100 + i);
      EXPECT_EQ(completion.old, 4 * i + 3);
    }
    completion = complete();
    EXPECT_EQ(completion.cookie, 2 * i + 1);
    EXPECT_EQ(completion.operation, RDMA_ATOMIC);
    EXPECT_EQ(completion.old, i % 2 == 0 ? 4 * i + 3 : 4 * i + 4);
  }
  std::uint64_t now = 0;
  ASSERT_EQ(rdmaConnRead(conn, &now, sizeof now), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(now, 80U);
  RdmaCompletion none{};
  EXPECT_EQ(rdmaConnComplete(conn, &none, 0), RDMA_ERR_NOT_FOUND);
}

TEST_F(RdmaStartedAtomics, OneMoreThanTheMostHasToWait) {
  for (int i = 0; i < kMostStarted; ++i)
    ASSERT_EQ(rdmaStartFetchAdd(conn, window.addr + 8, window.rkey, 1, static_cast<std::uint64_t>(i)), RDMA_OK)
        << rdmaErrorDetail();
  EXPECT_EQ(rdmaStartFetchAdd(conn, window.addr + 8, window.rkey, 1, 999), RDMA_ERR_AGAIN);
  EXPECT_EQ(rdmaStartCompareSwap(conn, window.addr + 8, window.rkey, 0, 1, 999), RDMA_ERR_AGAIN);
  for (int i = 0; i < kMostStarted; ++i) {
    const RdmaCompletion completion = complete();
    EXPECT_EQ(completion.cookie, static_cast<std::uint64_t>(i));
    EXPECT_EQ(completion.old, static_cast<std::uint64_t>(i));
  }
  ASSERT_EQ(rdmaStartFetchAdd(conn, window.addr + 8, window.rkey, 1, 7), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(complete().old, static_cast<std::uint64_t>(kMostStarted)) << "those that had to wait did nothing";
}

TEST_F(RdmaStartedAtomics, WhatIsWrongIsRefusedAndTheConnectionGoesOn) {
  EXPECT_EQ(rdmaStartFetchAdd(nullptr, window.addr, window.rkey, 1, 0), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaStartFetchAdd(conn, window.addr + 4, window.rkey, 1, 0), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaStartCompareSwap(conn, window.addr + 1, window.rkey, 0, 1, 0), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaStartFetchAdd(conn, window.addr + window.length, window.rkey, 1, 0), RDMA_ERR_OUT_OF_RANGE);
  RdmaCompletion none{};
  EXPECT_EQ(rdmaConnComplete(conn, &none, 0), RDMA_ERR_NOT_FOUND);
  ASSERT_EQ(rdmaStartFetchAdd(conn, window.addr, window.rkey, 1, 5), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(complete().cookie, 5U);
}

TEST_F(RdmaApi, StartedAtomicsGoToTheWriteCallback) {
  start();
  RdmaConn* const conn = make_client();
  Mailbox<RdmaCompletion> completions;
  const auto put = [](RdmaConn*, const RdmaCompletion* completion, void* user) {
    static_cast<Mailbox<RdmaCompletion>*>(user)->put(*completion);
  };
  ASSERT_EQ(rdmaConnOnWrite(conn, put, &completions), RDMA_OK);
  ASSERT_EQ(rdmaConnect(conn, address(), port), RDMA_OK) << rdmaErrorDetail();
  RdmaWindow window{};
  ASSERT_EQ(rdmaConnPeerWindow(conn, &window), RDMA_OK);
  ASSERT_EQ(rdmaStartFetchAdd(conn, window.addr, window.rkey, 9, 1), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaStartCompareSwap(conn, window.addr, window.rkey, 9, 2, 2), RDMA_OK) << rdmaErrorDetail();
  RdmaCompletion completion = completions.take();
  EXPECT_EQ(completion.cookie, 1U);
  EXPECT_EQ(completion.operation, RDMA_ATOMIC);
  EXPECT_EQ(completion.old, 0U);
  completion = completions.take();
  EXPECT_EQ(completion.cookie, 2U);
  EXPECT_EQ(completion.old, 9U);
  close(conn);
}

}  // namespace
}  // namespace verbena::test
