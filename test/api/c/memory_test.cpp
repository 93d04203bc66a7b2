// Registered memory, windows, atomics and physical addresses of the C API.
#include "fixture.hpp"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

namespace verbena::test {
namespace {

/// A client and a server's connection, kept by the test.
class RdmaMemoryApi : public RdmaApi {
 protected:
  void SetUp() override { set_up(); }
  void TearDown() override {
    // The client first, which polls for its goodbye's answer.
    close_clients();
    if (peer != nullptr) rdmaConnClose(peer);
  }
  void set_up() {
    options.recv_mode = RDMA_RECV_QUEUE;
    keep_accepted();
    start();
    conn = connect();
    peer = conns.take();
  }
  /// Memory of the client with a pattern in it.
  [[nodiscard]] const RdmaMemory* make(RdmaConn* of, std::size_t size, std::uint64_t seed) {
    const RdmaMemory* const memory = rdmaConnRegMem(of, size);
    EXPECT_NE(memory, nullptr) << rdmaErrorDetail();
    if (memory != nullptr) fill(bytes_of(memory), seed);
    return memory;
  }
  [[nodiscard]] static std::span<std::byte> bytes_of(const RdmaMemory* memory) {
    return {static_cast<std::byte*>(memory->addr), memory->length};
  }
  [[nodiscard]] static bool equal(const RdmaMemory* a, const RdmaMemory* b) {
    return std::ranges::equal(bytes_of(a), bytes_of(b));
  }
  int sync_write(RdmaConn* from, const RdmaMemory* local, const RdmaMemory* remote) {
    return rdmaSyncWriteSignaled(from, address_of(local->addr), local->lkey, address_of(remote->addr), remote->rkey,
                                 static_cast<std::uint32_t>(local->length));
  }
  int sync_read(RdmaConn* to, const RdmaMemory* local, const RdmaMemory* remote) {
    return rdmaSyncReadSignaled(to, address_of(local->addr), local->lkey, address_of(remote->addr), remote->rkey,
                                static_cast<std::uint32_t>(local->length));
  }
  /// Answers what the client's side asks, which has no thread, until it dies or goes out of scope.
  class Serving {
   public:
    explicit Serving(RdmaConn* conn)
        : thread_([this, conn] {
            std::byte byte{};
            while (!stop_ && rdmaConnRecv(conn, &byte, 1, nullptr, 5) == RDMA_ERR_TIMED_OUT) {}
          }) {}
    ~Serving() {
      stop_ = true;
      thread_.join();
    }
    Serving(const Serving&) = delete;
    Serving& operator=(const Serving&) = delete;

   private:
    std::atomic<bool> stop_{false};
    std::thread thread_;
  };

  RdmaConn* conn = nullptr;
  RdmaConn* peer = nullptr;
};

// --- blocking

TEST_F(RdmaMemoryApi, WritesAndReadsRegisteredMemoryBothWays) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{8}, std::size_t{4097}, std::size_t{3'000'001}}) {
    const RdmaMemory* const mine = make(conn, size, 1);
    const RdmaMemory* const theirs = make(peer, size, 2);
    // The key is asked for at its first use: the peer's thread answers.
    ASSERT_EQ(sync_write(conn, mine, theirs), RDMA_OK) << rdmaErrorDetail();
    EXPECT_TRUE(equal(mine, theirs));
    fill(bytes_of(theirs), 3);
    ASSERT_EQ(sync_read(conn, mine, theirs), RDMA_OK) << rdmaErrorDetail();
    EXPECT_TRUE(equal(mine, theirs));
    {
      const Serving serving(conn);
      fill(bytes_of(theirs), 4);
      ASSERT_EQ(sync_write(peer, theirs, mine), RDMA_OK) << rdmaErrorDetail();
    }
    EXPECT_TRUE(equal(mine, theirs));
    fill(bytes_of(mine), 5);
    ASSERT_EQ(sync_read(peer, theirs, mine), RDMA_OK) << rdmaErrorDetail();
    EXPECT_TRUE(equal(mine, theirs));
    EXPECT_EQ(rdmaConnDeregMem(conn, mine), RDMA_OK);
    EXPECT_EQ(rdmaConnDeregMem(peer, theirs), RDMA_OK);
  }
}

TEST_F(RdmaMemoryApi, MemoryOfTheUsersOwnIsRegisteredWithRights) {
  Bytes own(100'000);
  fill(own, 1);
  const RdmaMemory* const mine = rdmaConnRegister(conn, own.data(), own.size(), RDMA_ACCESS_LOCAL);
  ASSERT_NE(mine, nullptr) << rdmaErrorDetail();
  Bytes there(own.size());
  const RdmaMemory* theirs =
      rdmaConnRegister(peer, there.data(), there.size(), RDMA_ACCESS_REMOTE_READ | RDMA_ACCESS_REMOTE_WRITE);
  ASSERT_NE(theirs, nullptr) << rdmaErrorDetail();
  ASSERT_EQ(sync_write(conn, mine, theirs), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(there, own);
  fill(there, 2);
  ASSERT_EQ(sync_read(conn, mine, theirs), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(there, own);
  std::uint64_t old = 0;
  EXPECT_EQ(rdmaSyncFetchAdd(conn, (address_of(there.data()) + 7) / 8 * 8, theirs->rkey, 1, &old),
            RDMA_ERR_REMOTE_ACCESS);
  EXPECT_EQ(rdmaConnDeregMem(peer, theirs), RDMA_OK);
  theirs = rdmaConnRegister(peer, there.data(), there.size(), RDMA_ACCESS_REMOTE_READ);
  ASSERT_NE(theirs, nullptr) << rdmaErrorDetail();
  EXPECT_EQ(sync_write(conn, mine, theirs), RDMA_ERR_REMOTE_ACCESS);
  EXPECT_EQ(sync_read(conn, mine, theirs), RDMA_OK) << rdmaErrorDetail();
  // Without rights for peers nobody is told of it.
  const Serving serving(conn);
  EXPECT_EQ(rdmaSyncReadSignaled(peer, address_of(there.data()), theirs->lkey, address_of(own.data()), mine->rkey, 8),
            RDMA_ERR_NOT_FOUND);
  EXPECT_EQ(rdmaConnIsConnected(conn), 1);
}

TEST_F(RdmaMemoryApi, WhatIsWrongIsRefusedAndTheConnectionGoesOn) {
  const RdmaMemory* const mine = make(conn, 4096, 1);
  const RdmaMemory* const theirs = make(peer, 4096, 2);
  const std::uint64_t local = address_of(mine->addr);
  const std::uint64_t remote = address_of(theirs->addr);
  for (const auto& call : {rdmaSyncWriteSignaled, rdmaSyncReadSignaled}) {
    ASSERT_EQ(call(conn, local, mine->lkey, remote, theirs->rkey, 8), RDMA_OK) << rdmaErrorDetail();
    EXPECT_EQ(call(nullptr, local, mine->lkey, remote, theirs->rkey, 8), RDMA_ERR_BAD_ARGUMENT);
    EXPECT_EQ(call(conn, 0, mine->lkey, remote, theirs->rkey, 8), RDMA_ERR_BAD_ARGUMENT);
    EXPECT_EQ(call(conn, local, mine->lkey, remote, theirs->rkey, 0), RDMA_ERR_BAD_ARGUMENT);
    EXPECT_EQ(call(conn, local, mine->lkey + 77, remote, theirs->rkey, 8), RDMA_ERR_LOCAL_ACCESS);
    EXPECT_EQ(call(conn, local, mine->lkey, remote, theirs->rkey, 4097), RDMA_ERR_LOCAL_ACCESS);
    EXPECT_EQ(call(conn, local + 4089, mine->lkey, remote, theirs->rkey, 8), RDMA_ERR_LOCAL_ACCESS);
    EXPECT_EQ(call(conn, local - 1, mine->lkey, remote, theirs->rkey, 8), RDMA_ERR_LOCAL_ACCESS);
    EXPECT_EQ(call(conn, local, mine->lkey, remote, theirs->rkey, 0xffff'ffff), RDMA_ERR_LOCAL_ACCESS);
    EXPECT_EQ(call(conn, local, mine->lkey, remote, theirs->rkey + 77, 8), RDMA_ERR_NOT_FOUND);
    EXPECT_EQ(call(conn, local, mine->lkey, remote + 4089, theirs->rkey, 8), RDMA_ERR_OUT_OF_RANGE);
    EXPECT_EQ(call(conn, local, mine->lkey, remote - 1, theirs->rkey, 8), RDMA_ERR_OUT_OF_RANGE);
    EXPECT_EQ(call(conn, local, mine->lkey, ~std::uint64_t{0}, theirs->rkey, 8), RDMA_ERR_OUT_OF_RANGE);
    EXPECT_EQ(rdmaConnError(conn), RDMA_ERR_OUT_OF_RANGE);
    EXPECT_EQ(call(peer, remote, theirs->lkey + 77, local, mine->rkey, 8), RDMA_ERR_LOCAL_ACCESS);
    EXPECT_EQ(call(conn, local, mine->lkey, remote, theirs->rkey, 4096), RDMA_OK) << rdmaErrorDetail();
  }
  std::uint64_t old = 5;
  EXPECT_EQ(rdmaSyncFetchAdd(conn, remote + 4, theirs->rkey, 1, &old), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaSyncCompareSwap(conn, remote + 1, theirs->rkey, 1, 1, &old), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaSyncFetchAdd(conn, remote + 4096, theirs->rkey, 1, &old), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(old, 0u);
  old = 5;
  EXPECT_EQ(rdmaSyncFetchAdd(conn, remote, theirs->rkey + 77, 1, &old), RDMA_ERR_NOT_FOUND);
  EXPECT_EQ(old, 0u);
  EXPECT_EQ(rdmaConnRegMem(conn, 0), nullptr);
  EXPECT_EQ(rdmaConnError(conn), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnRegMem(nullptr, 8), nullptr);
  EXPECT_EQ(rdmaConnRegister(conn, nullptr, 8, 0), nullptr);
  EXPECT_EQ(rdmaConnRegister(conn, &old, 8, 8), nullptr);
  EXPECT_EQ(rdmaConnRegister(conn, &old, ~std::size_t{0}, 0), nullptr);
  EXPECT_EQ(rdmaConnDeregMem(conn, theirs), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnDeregMem(conn, rdmaConnWindowMemory(conn)), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnDeregMem(conn, nullptr), RDMA_ERR_BAD_ARGUMENT);
  const std::uint32_t old_lkey = mine->lkey;
  EXPECT_EQ(rdmaConnDeregMem(conn, mine), RDMA_OK);
  EXPECT_EQ(rdmaSyncReadSignaled(conn, local, old_lkey, remote, theirs->rkey, 8), RDMA_ERR_LOCAL_ACCESS);
  EXPECT_EQ(rdmaConnIsConnected(conn), 1);
}

TEST_F(RdmaMemoryApi, AtomicsChangeWordsOfThePeer) {
  const RdmaMemory* const theirs = rdmaConnRegMem(peer, 64);
  ASSERT_NE(theirs, nullptr) << rdmaErrorDetail();
  const std::uint64_t word = address_of(theirs->addr) + 8;
  std::uint64_t old = 99;
  ASSERT_EQ(rdmaSyncFetchAdd(conn, word, theirs->rkey, 5, &old), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(old, 0u);
  ASSERT_EQ(rdmaSyncFetchAdd(conn, word, theirs->rkey, 6, nullptr), RDMA_OK);
  ASSERT_EQ(rdmaSyncCompareSwap(conn, word, theirs->rkey, 12, 1, &old), RDMA_OK);
  EXPECT_EQ(old, 11u);
  ASSERT_EQ(rdmaSyncCompareSwap(conn, word, theirs->rkey, 11, 100, &old), RDMA_OK);
  EXPECT_EQ(old, 11u);
  std::uint64_t now = 0;
  std::memcpy(&now, static_cast<std::byte*>(theirs->addr) + 8, sizeof now);
  EXPECT_EQ(now, 100u);
  // The default window has words too; from both sides.
  RdmaWindow window;
  ASSERT_EQ(rdmaConnPeerWindow(conn, &window), RDMA_OK);
  ASSERT_EQ(rdmaSyncFetchAdd(conn, window.addr, window.rkey, 3, &old), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnPeerWindow(peer, &window), RDMA_OK);
  ASSERT_EQ(rdmaSyncFetchAdd(peer, window.addr, window.rkey, 3, &old), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaSyncFetchAdd(peer, window.addr, window.rkey, 3, &old), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(old, 3u);
}

// --- without waiting

TEST_F(RdmaMemoryApi, StartedTransfersCompleteWithTheirCookies) {
  constexpr std::size_t kCount = 64;
  const RdmaMemory* const mine = make(conn, kCount * 1000, 1);
  const RdmaMemory* const theirs = make(peer, kCount * 1000, 2);
  RdmaCompletion completion;
  EXPECT_EQ(rdmaConnComplete(conn, &completion, 0), RDMA_ERR_NOT_FOUND);
  const auto at = [](const RdmaMemory* memory, std::size_t i) { return address_of(memory->addr) + i * 1000; };
  for (std::size_t i = 0; i < kCount; ++i)
    ASSERT_EQ(rdmaStartWrite(conn, at(mine, i), mine->lkey, at(theirs, i), theirs->rkey, 1000, i), RDMA_OK)
        << i << rdmaErrorDetail();
  EXPECT_EQ(rdmaStartWrite(conn, at(mine, 0), mine->lkey, at(theirs, 0), theirs->rkey, 1000, 0), RDMA_ERR_AGAIN);
  EXPECT_EQ(rdmaStartRead(conn, at(mine, 0), mine->lkey, at(theirs, 0), theirs->rkey, 0, 0), RDMA_ERR_BAD_ARGUMENT);
  std::set<std::uint64_t> cookies;
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(rdmaConnComplete(conn, &completion, -1), RDMA_OK) << rdmaErrorDetail();
    EXPECT_EQ(completion.code, RDMA_OK);
    EXPECT_EQ(completion.operation, RDMA_WRITE);
    cookies.insert(completion.cookie);
  }
  EXPECT_EQ(cookies.size(), kCount);
  EXPECT_TRUE(equal(mine, theirs));
  EXPECT_EQ(rdmaConnComplete(conn, &completion, -1), RDMA_ERR_NOT_FOUND);
  fill(bytes_of(theirs), 3);
  ASSERT_EQ(rdmaStartRead(conn, at(mine, 0), mine->lkey, at(theirs, 0), theirs->rkey, kCount * 1000, 7), RDMA_OK);
  ASSERT_EQ(rdmaConnComplete(conn, &completion, -1), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(completion.operation, RDMA_READ);
  EXPECT_EQ(completion.cookie, 7u);
  EXPECT_TRUE(equal(mine, theirs));
  // What is refused has no completion.
  EXPECT_EQ(rdmaStartRead(conn, at(mine, 0), mine->lkey, at(theirs, kCount), theirs->rkey, 8, 7),
            RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaStartRead(conn, at(mine, 0), mine->lkey + 77, at(theirs, 0), theirs->rkey, 8, 7),
            RDMA_ERR_LOCAL_ACCESS);
  EXPECT_EQ(rdmaStartRead(conn, at(mine, 0), mine->lkey, at(theirs, 0), theirs->rkey + 77, 8, 7), RDMA_ERR_NOT_FOUND);
  EXPECT_EQ(rdmaConnComplete(conn, &completion, -1), RDMA_ERR_NOT_FOUND);
  // By another thread than that which drives it.
  const RdmaMemory* const own = make(peer, 64, 4);
  RdmaWindow window;
  ASSERT_EQ(rdmaConnPeerWindow(peer, &window), RDMA_OK);
  ASSERT_EQ(rdmaStartWrite(peer, address_of(own->addr), own->lkey, window.addr, window.rkey, 64, 8), RDMA_OK);
  ASSERT_EQ(rdmaConnComplete(peer, &completion, -1), RDMA_OK);
  EXPECT_EQ(completion.cookie, 8u);
}

TEST_F(RdmaMemoryApi, CallbacksTellOfWritesAndReads) {
  RdmaConn* const called = make_client();
  Mailbox<RdmaCompletion> written;
  static std::atomic<int> reads;
  reads = 0;
  ASSERT_EQ(rdmaConnOnWrite(
                called,
                [](RdmaConn*, const RdmaCompletion* completion, void* user) {
                  static_cast<Mailbox<RdmaCompletion>*>(user)->put(*completion);
                },
                &written),
            RDMA_OK);
  ASSERT_EQ(rdmaConnSetReadCallback(called, [](RdmaConn*) { ++reads; }), RDMA_OK);
  ASSERT_EQ(rdmaConnect(called, address(), port), RDMA_OK) << rdmaErrorDetail();
  RdmaConn* const other = conns.take();
  const RdmaMemory* const mine = make(called, 1000, 1);
  const RdmaMemory* const theirs = make(other, 1000, 2);
  for (std::uint64_t i = 0; i < 100; ++i) {
    int code = RDMA_ERR_AGAIN;
    while (code == RDMA_ERR_AGAIN)
      code =
          rdmaStartWrite(called, address_of(mine->addr), mine->lkey, address_of(theirs->addr), theirs->rkey, 1000, i);
    ASSERT_EQ(code, RDMA_OK) << rdmaErrorDetail();
  }
  for (std::uint64_t i = 0; i < 100; ++i) {
    const RdmaCompletion completion = written.take();
    EXPECT_EQ(completion.cookie, i);
    EXPECT_EQ(completion.code, RDMA_OK);
  }
  EXPECT_TRUE(equal(mine, theirs));
  ASSERT_EQ(rdmaStartRead(called, address_of(mine->addr), mine->lkey, address_of(theirs->addr), theirs->rkey, 8, 0),
            RDMA_OK);
  while (reads == 0) std::this_thread::yield();
  rdmaConnClose(other);
}

// What was started is completed when the connection ends, before anything says that it has.
TEST_F(RdmaMemoryApi, TheEndCompletesWhatWasStarted) {
  const RdmaMemory* const mine = make(conn, 1 << 20, 1);
  const RdmaMemory* const theirs = make(peer, 1 << 20, 2);
  ASSERT_EQ(sync_read(conn, mine, theirs), RDMA_OK) << rdmaErrorDetail();
  for (std::uint64_t i = 0; i < 8; ++i)
    ASSERT_EQ(
        rdmaStartWrite(conn, address_of(mine->addr), mine->lkey, address_of(theirs->addr), theirs->rkey, 1 << 20, i),
        RDMA_OK);
  EXPECT_EQ(rdmaServerStop(server), RDMA_OK);
  RdmaCompletion completion;
  std::set<std::uint64_t> cookies;
  int code = RDMA_OK;
  while ((code = rdmaConnComplete(conn, &completion, -1)) == RDMA_OK) cookies.insert(completion.cookie);
  EXPECT_EQ(code, RDMA_ERR_NOT_FOUND);
  EXPECT_EQ(cookies.size(), 8u);
}

TEST_F(RdmaMemoryApi, ACloseWithTransfersPendingReturns) {
  Bytes own(1 << 20);
  const RdmaMemory* const mine = rdmaConnRegister(conn, own.data(), own.size(), RDMA_ACCESS_LOCAL);
  ASSERT_NE(mine, nullptr) << rdmaErrorDetail();
  const RdmaMemory* const theirs = make(peer, own.size(), 2);
  ASSERT_EQ(sync_write(conn, mine, theirs), RDMA_OK) << rdmaErrorDetail();
  for (std::uint64_t i = 0; i < 8; ++i)
    ASSERT_EQ(
        rdmaStartRead(conn, address_of(mine->addr), mine->lkey, address_of(theirs->addr), theirs->rkey, 1 << 20, i),
        RDMA_OK);
  close(conn);
  EXPECT_EQ(ended.take(), RDMA_ERR_CLOSED);
}

// --- windows

TEST_F(RdmaMemoryApi, AWindowOfTheUsersOwnIsTheDefaultWindow) {
  Bytes shared(4096);
  Bytes mine(640);
  options.window = mine.data();
  options.window_bytes = 100;
  RdmaConn* const other = rdmaConn();
  EXPECT_EQ(rdmaConnSetOptions(other, &options), RDMA_ERR_BAD_ARGUMENT);
  options.window_bytes = mine.size();
  EXPECT_EQ(rdmaConnSetOptions(other, &options), RDMA_OK);
  ASSERT_EQ(rdmaConnect(other, address(), port), RDMA_OK) << rdmaErrorDetail();
  RdmaConn* const theirs = conns.take();
  EXPECT_EQ(rdmaConnWindow(other, nullptr), mine.data());
  EXPECT_EQ(rdmaConnPeerWindowBytes(theirs), mine.size());
  const Bytes bytes = pattern(640, 5);
  ASSERT_EQ(rdmaConnWrite(theirs, bytes.data(), bytes.size()), bytes.size()) << rdmaErrorDetail();
  EXPECT_EQ(mine, bytes);
  EXPECT_EQ(rdmaConnWriteAt(theirs, 633, bytes.data(), 8), 0u);
  EXPECT_EQ(rdmaConnError(theirs), RDMA_ERR_OUT_OF_RANGE);
  rdmaConnClose(theirs);
  rdmaConnClose(other);
  // A listener's, the same for all of its clients.
  rdmaConnClose(peer);
  peer = nullptr;
  ASSERT_EQ(rdmaServerStop(server), RDMA_OK);
  options.window = shared.data();
  options.window_bytes = shared.size();
  ASSERT_EQ(rdmaServerSetOptions(server, &options), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaServerStart(server), RDMA_OK) << rdmaErrorDetail();
  port = rdmaServerPort(server);
  options.window = nullptr;
  RdmaConn* const first = connect();
  RdmaConn* const second = connect();
  ASSERT_EQ(rdmaConnWrite(first, bytes.data(), bytes.size()), bytes.size()) << rdmaErrorDetail();
  Bytes back(bytes.size());
  ASSERT_EQ(rdmaConnRead(second, back.data(), back.size()), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(back, bytes);
  rdmaConnClose(conns.take());
  rdmaConnClose(conns.take());
}

TEST_F(RdmaMemoryApi, AWindowIsFoundByItsName) {
  const RdmaMemory* const all = rdmaServerRegMem(server, 4096);
  ASSERT_NE(all, nullptr) << rdmaErrorDetail();
  fill(bytes_of(all), 1);
  ASSERT_EQ(rdmaServerPublish(server, "all", all), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(rdmaServerPublish(server, "all", all), RDMA_ERR_BUSY);
  RdmaWindow window;
  ASSERT_EQ(rdmaConnLookup(conn, "all", &window, -1), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(window.addr, address_of(all->addr));
  EXPECT_EQ(window.length, all->length);
  const RdmaMemory* const mine = make(conn, 4096, 2);
  ASSERT_EQ(rdmaSyncReadSignaled(conn, address_of(mine->addr), mine->lkey, window.addr, window.rkey, 4096), RDMA_OK)
      << rdmaErrorDetail();
  EXPECT_TRUE(equal(mine, all));
  // Another client finds it too; one connection's own is found by its peer only, also before the same name of all.
  RdmaConn* const second = connect();
  RdmaConn* const second_peer = conns.take();
  ASSERT_EQ(rdmaConnLookup(second, "all", &window, -1), RDMA_OK) << rdmaErrorDetail();
  const RdmaMemory* const ours = make(peer, 64, 3);
  ASSERT_EQ(rdmaConnPublish(peer, "ours", ours), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnLookup(conn, "ours", &window, -1), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(rdmaConnLookup(second, "ours", &window, 20), RDMA_ERR_NOT_FOUND);
  // Nor its key.
  const RdmaMemory* const here = make(second, 64, 1);
  EXPECT_EQ(sync_read(second, here, ours), RDMA_ERR_NOT_FOUND);
  // Both ways: a client publishes, and answers during its calls.
  ASSERT_EQ(rdmaConnPublish(conn, "of the client", mine), RDMA_OK);
  {
    const Serving serving(conn);
    ASSERT_EQ(rdmaConnLookup(peer, "of the client", &window, -1), RDMA_OK) << rdmaErrorDetail();
  }
  // Also during those that are over at once.
  ASSERT_EQ(rdmaConnPublish(conn, "once more", mine), RDMA_OK);
  std::atomic<bool> is_found = false;
  std::thread looker([&] {
    EXPECT_EQ(rdmaConnLookup(peer, "once more", &window, 5000), RDMA_OK) << rdmaErrorDetail();
    is_found = true;
  });
  for (std::uint64_t word = 0; !is_found;) EXPECT_EQ(rdmaConnRead(conn, &word, sizeof word), RDMA_OK);
  looker.join();
  EXPECT_EQ(rdmaConnLookup(peer, "of nobody", &window, 20), RDMA_ERR_TIMED_OUT);
  // Taken back.
  ASSERT_EQ(rdmaServerPublish(server, "all", nullptr), RDMA_OK);
  EXPECT_EQ(rdmaServerPublish(server, "all", nullptr), RDMA_ERR_NOT_FOUND);
  EXPECT_EQ(rdmaConnLookup(conn, "all", &window, 20), RDMA_ERR_NOT_FOUND);
  EXPECT_EQ(rdmaConnPublish(conn, "", mine), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnPublish(conn, std::string(65, 'x').c_str(), mine), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnPublish(conn, "theirs", ours), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnPublish(conn, nullptr, mine), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnLookup(conn, "", &window, -1), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnLookup(conn, nullptr, &window, -1), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaServerDeregMem(server, all), RDMA_OK);
  rdmaConnClose(second_peer);
}

TEST_F(RdmaMemoryApi, ALookupWaitsUntilTheNameIsPublished) {
  const RdmaMemory* const ours = make(peer, 64, 3);
  RdmaWindow window{};
  std::thread waiter([&] { EXPECT_EQ(rdmaConnLookup(conn, "late", &window, -1), RDMA_OK) << rdmaErrorDetail(); });
  // It is asked for first, or not: both must be right.
  EXPECT_EQ(rdmaConnPublish(peer, "late", ours), RDMA_OK);
  waiter.join();
  EXPECT_EQ(window.rkey, ours->rkey);
}

TEST_F(RdmaMemoryApi, AWindowThatWasToldOfIsImportedAndReleased) {
  const RdmaMemory* const theirs = make(peer, 64, 2);
  const RdmaMemory* const mine = make(conn, 64, 1);
  RdmaWindow window{.addr = address_of(theirs->addr),
                    .length = theirs->length,
                    .rkey = theirs->rkey,
                    .access = RDMA_ACCESS_REMOTE_READ,
                    .memory_id = theirs->memory_id};
  EXPECT_EQ(rdmaConnReleaseWindow(conn, &window), RDMA_ERR_NOT_FOUND);
  ASSERT_EQ(rdmaConnImportWindow(conn, &window), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(sync_read(conn, mine, theirs), RDMA_OK);
  // As it was told of, it is for reading.
  EXPECT_EQ(sync_write(conn, mine, theirs), RDMA_ERR_REMOTE_ACCESS);
  EXPECT_EQ(rdmaConnReleaseWindow(conn, &window), RDMA_OK);
  EXPECT_EQ(sync_write(conn, mine, theirs), RDMA_OK) << "it is asked for again";
  EXPECT_EQ(rdmaConnImportWindow(conn, nullptr), RDMA_ERR_BAD_ARGUMENT);
  // Memory that was taken back: whoever uses its key dies, and the memory is not touched.
  ASSERT_EQ(rdmaConnDeregMem(peer, theirs), RDMA_OK);
  EXPECT_EQ(rdmaSyncWriteSignaled(conn, address_of(mine->addr), mine->lkey, window.addr, window.rkey, 8),
            RDMA_ERR_REMOTE_ACCESS);
  EXPECT_EQ(rdmaConnIsConnected(conn), 0);
}

// --- physical addresses

class RdmaPhysicalApi : public RdmaMemoryApi {
 protected:
  void SetUp() override {
    std::uint64_t physical = 0;
    int on_stack = 1;
    if (rdmaPAAddress(nullptr, &on_stack, &physical) == RDMA_ERR_PERMISSION) GTEST_SKIP() << rdmaErrorDetail();
    set_up();
  }
};

TEST_F(RdmaPhysicalApi, WritesReadsAndChangesByPhysicalAddress) {
  constexpr std::size_t kSize = 64 * 1024;
  const RdmaMemory* const theirs = make(peer, kSize, 2);
  const RdmaMemory* const mine = make(conn, kSize, 1);
  const std::uint64_t local = address_of(mine->addr);
  EXPECT_EQ(rdmaPASyncReadSignaled(conn, local, mine->lkey, 4096, 8), RDMA_ERR_NOT_FOUND);
  std::uint64_t physical = 0;
  ASSERT_EQ(rdmaPAExport(peer, theirs, &physical), RDMA_OK) << rdmaErrorDetail();
  std::uint64_t at = 0;
  ASSERT_EQ(rdmaPAAddress(peer, theirs->addr, &at), RDMA_OK);
  EXPECT_EQ(at, physical);
  // A message behind it: the table is there.
  ASSERT_EQ(rdmaConnSend(peer, "x", 1), 1u);
  (void)receive(conn, 1);
  // Page by page, as they may lie anywhere.
  for (std::size_t page = 0; page < kSize; page += 4096) {
    ASSERT_EQ(rdmaPAAddress(peer, static_cast<std::byte*>(theirs->addr) + page, &at), RDMA_OK);
    ASSERT_EQ(rdmaPASyncWriteSignaled(conn, local + page, mine->lkey, at, 4096), RDMA_OK) << rdmaErrorDetail();
  }
  EXPECT_TRUE(equal(mine, theirs));
  fill(bytes_of(theirs), 3);
  for (std::size_t page = 0; page < kSize; page += 4096) {
    ASSERT_EQ(rdmaPAAddress(peer, static_cast<std::byte*>(theirs->addr) + page, &at), RDMA_OK);
    ASSERT_EQ(rdmaPASyncReadSignaled(conn, local + page, mine->lkey, at, 4096), RDMA_OK) << rdmaErrorDetail();
  }
  EXPECT_TRUE(equal(mine, theirs));
  // Without waiting.
  fill(bytes_of(mine), 4);
  ASSERT_EQ(rdmaPAWriteSignaled(conn, local, mine->lkey, physical, 4096), RDMA_OK) << rdmaErrorDetail();
  RdmaCompletion completion;
  ASSERT_EQ(rdmaConnComplete(conn, &completion, -1), RDMA_OK);
  EXPECT_EQ(completion.cookie, local);
  EXPECT_EQ(completion.code, RDMA_OK);
  EXPECT_EQ(std::memcmp(theirs->addr, mine->addr, 4096), 0);
  ASSERT_EQ(rdmaPAReadSignaled(conn, local + 4096, mine->lkey, physical, 4096), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnComplete(conn, &completion, -1), RDMA_OK);
  EXPECT_EQ(completion.operation, RDMA_READ);
  EXPECT_EQ(std::memcmp(static_cast<std::byte*>(mine->addr) + 4096, mine->addr, 4096), 0);
  // Atomics.
  std::memset(theirs->addr, 0, 8);
  std::uint64_t old = 7;
  ASSERT_EQ(rdmaPASyncFetchAdd(conn, physical, 5, &old), RDMA_OK) << rdmaErrorDetail();
  EXPECT_EQ(old, 0u);
  ASSERT_EQ(rdmaPASyncCompareSwap(conn, physical, 5, 9, &old), RDMA_OK);
  EXPECT_EQ(old, 5u);
  EXPECT_EQ(rdmaPASyncFetchAdd(conn, physical + 4, 5, &old), RDMA_ERR_BAD_ARGUMENT);
  // What was not exported, and what is wrong here.
  EXPECT_EQ(rdmaPASyncReadSignaled(conn, local, mine->lkey, 0, 8), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaPASyncWriteSignaled(conn, local, mine->lkey, ~std::uint64_t{0}, 8), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaPASyncReadSignaled(conn, local, mine->lkey, physical, 0), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaPASyncReadSignaled(conn, local, mine->lkey + 77, physical, 8), RDMA_ERR_LOCAL_ACCESS);
  EXPECT_EQ(rdmaPAReadSignaled(conn, local, mine->lkey, 0, 8), RDMA_ERR_OUT_OF_RANGE);
  EXPECT_EQ(rdmaPAExport(peer, mine, nullptr), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaPAExport(peer, nullptr, nullptr), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaPAAddress(nullptr, nullptr, &at), RDMA_ERR_BAD_ARGUMENT);
  EXPECT_EQ(rdmaConnIsConnected(conn), 1);
}

TEST_F(RdmaPhysicalApi, WhatIsExportedGoesWithItsMemory) {
  const RdmaMemory* const theirs = make(peer, 4096, 2);
  const RdmaMemory* const mine = make(conn, 4096, 1);
  std::uint64_t physical = 0;
  for (int i = 0; i < 16; ++i) ASSERT_EQ(rdmaPAExport(peer, theirs, &physical), RDMA_OK) << rdmaErrorDetail();
  std::uint64_t none = 5;
  EXPECT_EQ(rdmaPAExport(peer, theirs, &none), RDMA_ERR_LIMIT);
  EXPECT_EQ(none, 0u);
  ASSERT_EQ(rdmaConnSend(peer, "x", 1), 1u);
  (void)receive(conn, 1);
  const std::uint64_t local = address_of(mine->addr);
  ASSERT_EQ(rdmaPASyncReadSignaled(conn, local, mine->lkey, physical, 8), RDMA_OK) << rdmaErrorDetail();
  ASSERT_EQ(rdmaConnDeregMem(peer, theirs), RDMA_OK);
  EXPECT_EQ(rdmaPASyncReadSignaled(conn, local, mine->lkey, physical, 8), RDMA_ERR_REMOTE_ACCESS);
}

TEST_F(RdmaPhysicalApi, WhatIsExportedAnewIsReachedUntilTheLimit) {
  alignas(4096) static std::array<std::byte, 4096> own{};
  const RdmaMemory* const mine = make(conn, 4096, 1);
  const std::uint64_t local = address_of(mine->addr);
  const auto export_own = [&](std::uint64_t& physical) {
    const RdmaMemory* const theirs = rdmaConnRegister(peer, own.data(), own.size(), RDMA_ACCESS_REMOTE_ALL);
    return std::pair{theirs, rdmaPAExport(peer, theirs, &physical)};
  };
  std::uint64_t physical = 0;
  for (int i = 0; i < 16; ++i) {
    own.fill(static_cast<std::byte>(i + 1));
    const auto [theirs, code] = export_own(physical);
    ASSERT_EQ(code, RDMA_OK) << rdmaErrorDetail();
    ASSERT_EQ(rdmaConnSend(peer, "x", 1), 1u);
    (void)receive(conn, 1);
    ASSERT_EQ(rdmaPASyncReadSignaled(conn, local, mine->lkey, physical, 8), RDMA_OK) << i << rdmaErrorDetail();
    EXPECT_EQ(*static_cast<const std::byte*>(mine->addr), own.front());
    ASSERT_EQ(rdmaConnDeregMem(peer, theirs), RDMA_OK);
  }
  EXPECT_EQ(export_own(physical).second, RDMA_ERR_LIMIT);
  ASSERT_EQ(rdmaConnSend(peer, "x", 1), 1u);
  (void)receive(conn, 1);
  EXPECT_EQ(rdmaConnIsConnected(conn), 1);
}

}  // namespace
}  // namespace verbena::test
