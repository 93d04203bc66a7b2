// The C API's calls, sealed: connections and the store, with sizes that grow, each from the first call on.
#include "sealed.hpp"

#include <transport.hpp>

#include <verbena/kv.h>
#include <verbena/rdma.h>

#include <array>
#include <string>
#include <vector>

namespace verbena::test {
namespace {

constexpr std::size_t kLongest = 1 << 20;
const char* address_under_test() { return is_soft_under_test() ? "127.0.0.1" : nullptr; }
std::uint64_t number_of(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

class SealedC : public testing::Test {
 protected:
  ~SealedC() override {
    rdmaConnClose(conn);
    rdmaServerRelease(listener_);
  }
  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    const Transport transport = transport_under_test();
    RdmaOptions options;
    rdmaOptionsInit(&options);
    options.device = transport.device.c_str();
    options.bootstrap = transport.bootstrap == Bootstrap::kCm ? RDMA_BOOTSTRAP_CM : RDMA_BOOTSTRAP_SOCKET;
    options.timeout_ms = options.connect_timeout_ms = 20'000;
    ASSERT_EQ(rdmaServer(&listener_, address_under_test(), 0), RDMA_OK);
    ASSERT_EQ(rdmaServerSetOptions(listener_, &options), RDMA_OK) << rdmaErrorDetail();
    ASSERT_EQ(rdmaServerOnMessage(listener_, on_message, this), RDMA_OK);
    ASSERT_EQ(rdmaServerStart(listener_), RDMA_OK) << rdmaErrorDetail();
    conn = rdmaConn();
    ASSERT_EQ(rdmaConnSetOptions(conn, &options), RDMA_OK);
    ASSERT_EQ(rdmaConnect(conn, address_under_test(), rdmaServerPort(listener_)), RDMA_OK) << rdmaErrorDetail();
    mine = rdmaConnRegMem(conn, kLongest);
    ASSERT_NE(mine, nullptr) << rdmaErrorDetail();
    ASSERT_EQ(rdmaConnPeerWindow(conn, &window), RDMA_OK);
    here = number_of(mine->addr);
    ASSERT_EQ(rdmaConnSend(conn, own.data(), 1), 1u);  // The listener's thread serves this side once it answers.
    ASSERT_EQ(rdmaConnRecv(conn, own.data(), own.size(), nullptr, -1), RDMA_OK);
  }

  RdmaConn* conn = nullptr;
  const RdmaMemory* mine = nullptr;
  std::uint64_t here = 0;
  RdmaWindow window{};
  std::vector<std::byte> own = std::vector<std::byte>(kLongest);

 private:
  /// Sends back what comes; with an immediate, the physical address of memory that it exports, or 0.
  static void on_message(RdmaConn* from, const RdmaMessage* message, void* /*user*/) {
    std::uint64_t physical = 0;
    if (message->has_imm == 0) {
      EXPECT_EQ(rdmaConnSend(from, message->data, message->length), message->length);
      return;
    }
    const RdmaMemory* const memory = rdmaConnRegMem(from, 1 << 16);
    if (memory == nullptr || rdmaPAExport(from, memory, &physical) != RDMA_OK) physical = 0;
    EXPECT_EQ(rdmaConnSend(from, &physical, sizeof physical), sizeof physical);
  }
  RdmaListener* listener_ = nullptr;
};

TEST_F(SealedC, MessagesThatGrow) {
  RdmaMessage message;
  expect_unallocated_as_it_grows("echo", kLongest, [&](std::size_t length) {
    return rdmaConnSend(conn, own.data(), length) == length &&
           rdmaConnRecv(conn, own.data(), own.size(), &message, -1) == RDMA_OK && message.length == length;
  });
}

TEST_F(SealedC, OneSidedCallsThatGrow) {
  expect_unallocated_as_it_grows("the window", kLongest, [&](std::size_t length) {
    return rdmaConnWrite(conn, own.data(), length) == length && rdmaConnRead(conn, own.data(), length) == RDMA_OK;
  });
  expect_unallocated_as_it_grows("registered memory", kLongest, [&](std::size_t length) {
    const auto bytes = static_cast<std::uint32_t>(length);
    return rdmaSyncWriteSignaled(conn, here, mine->lkey, window.addr, window.rkey, bytes) == RDMA_OK &&
           rdmaSyncReadSignaled(conn, here, mine->lkey, window.addr, window.rkey, bytes) == RDMA_OK;
  });
  RdmaCompletion completion;
  expect_unallocated_as_it_grows("started", kLongest, [&](std::size_t length) {
    const auto bytes = static_cast<std::uint32_t>(length);
    return rdmaStartWrite(conn, here, mine->lkey, window.addr, window.rkey, bytes, 1) == RDMA_OK &&
           rdmaConnComplete(conn, &completion, -1) == RDMA_OK &&
           rdmaStartRead(conn, here, mine->lkey, window.addr, window.rkey, bytes, 2) == RDMA_OK &&
           rdmaConnComplete(conn, &completion, -1) == RDMA_OK && completion.code == RDMA_OK;
  });
  std::uint64_t old = 0;
  expect_sealed("fetch-add", 200, [&] { return rdmaSyncFetchAdd(conn, window.addr, window.rkey, 1, &old) == RDMA_OK; });
}

TEST_F(SealedC, ByPhysicalAddress) {
  std::uint64_t at = 0;
  ASSERT_EQ(rdmaConnSendWithImm(conn, 1, &at, sizeof at), sizeof at);
  ASSERT_EQ(rdmaConnRecv(conn, &at, sizeof at, nullptr, -1), RDMA_OK);
  if (at == 0) GTEST_SKIP() << "this process may not see physical addresses: that takes CAP_SYS_ADMIN";
  ASSERT_EQ(rdmaPASyncReadSignaled(conn, here, mine->lkey, at, 8), RDMA_OK);  // Imports the run.
  for (const std::uint32_t length : {8u, 64u, 4096u}) {
    SCOPED_TRACE(length);
    expect_sealed("write", 200, [&] { return rdmaPASyncWriteSignaled(conn, here, mine->lkey, at, length) == RDMA_OK; });
    expect_sealed("read", 200, [&] { return rdmaPASyncReadSignaled(conn, here, mine->lkey, at, length) == RDMA_OK; });
  }
  std::uint64_t old = 0;
  expect_sealed("fetch-add", 200, [&] { return rdmaPASyncFetchAdd(conn, at, 1, &old) == RDMA_OK; });
  expect_sealed("compare-and-swap", 200, [&] { return rdmaPASyncCompareSwap(conn, at, 0, 0, &old) == RDMA_OK; });
}

class SealedKvC : public testing::Test {
 protected:
  ~SealedKvC() override {
    kv_client_destroy(client);
    kv_server_destroy(server_);
  }
  void SetUp() override {
    VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
    const Transport transport = transport_under_test();
    const conn_mode_t mode = transport.bootstrap == Bootstrap::kCm ? CONN_MODE_CM : CONN_MODE_SOCKET;
    kv_server_options_t options;
    ASSERT_EQ(kv_server_options_init(&options), KV_OK);
    options.mode = mode;
    options.device = transport.device.c_str();
    options.port = 0;
    options.memory_bytes = std::size_t{64} << 20;
    options.max_items = 20'000;
    options.max_cells = 4;
    options.pin_workers = 0;
    server_ = kv_server_create(&options);
    ASSERT_NE(server_, nullptr) << kv_error_detail();
    ASSERT_EQ(kv_server_start(server_), KV_OK) << kv_error_detail();
    kv_client_options_t mine;
    ASSERT_EQ(kv_client_options_init(&mine), KV_OK);
    mine.device = transport.device.c_str();
    mine.timeout_ms = mine.connect_timeout_ms = 20'000;
    client = kv_client_create(mode);
    ASSERT_EQ(kv_client_set_options(client, &mine), KV_OK) << kv_error_detail();
    ASSERT_EQ(kv_client_connect(client, address_under_test(), kv_server_port(server_)), KV_OK) << kv_error_detail();
  }

  kv_client_t* client = nullptr;
  std::vector<std::byte> own = std::vector<std::byte>(kLongest);

 private:
  kv_server_t* server_ = nullptr;
};

TEST_F(SealedKvC, ValuesThatGrow) {
  void* const registered = kv_client_allocate(client, kLongest);
  ASSERT_NE(registered, nullptr) << kv_error_detail();
  const auto put_and_get = [&](void* memory, std::size_t length) {
    std::size_t got = kLongest;
    return kv_client_put(client, "key", 3, memory, length) == KV_OK &&
           kv_client_get(client, "key", 3, memory, &got) == KV_OK && got == length;
  };
  expect_unallocated_as_it_grows("any memory", kLongest,
                                 [&](std::size_t length) { return put_and_get(own.data(), length); });
  expect_unallocated_as_it_grows("registered", kLongest,
                                 [&](std::size_t length) { return put_and_get(registered, length); });
}

TEST_F(SealedKvC, OtherCalls) {
  std::uint64_t version = 0;
  std::size_t length = 0;
  const auto get_version = [&] {
    length = own.size();
    return kv_client_get_version(client, "key", 3, own.data(), &length, &version);
  };
  ASSERT_EQ(kv_client_put(client, "key", 3, own.data(), 100), KV_OK);
  expect_unallocated("cas", 200, [&] {
    return get_version() == KV_OK && kv_client_cas(client, "key", 3, version, own.data(), 100, &version) == KV_OK;
  });
  expect_unallocated("delete", 200, [&] {
    return kv_client_delete(client, "key", 3) == KV_OK && get_version() == KV_ERR_NOT_FOUND &&
           kv_client_put(client, "key", 3, own.data(), 100) == KV_OK;
  });
  kv_cell_t cell;
  ASSERT_EQ(kv_client_cell_open(client, "cell", 4, 0, &cell), KV_OK) << kv_error_detail();
  expect_unallocated("cell", 200, [&] { return kv_client_cell_fetch_add(client, &cell, 1, &version) == KV_OK; });
  std::array<kv_put_item_t, 16> puts{};
  std::array<kv_get_item_t, 16> gets{};
  for (std::size_t i = 0; i < puts.size(); ++i) {
    puts[i] = {.key = "key", .klen = 3, .value = own.data(), .vlen = i * 100, .version = 0, .code = 0};
    gets[i] = {.key = "key", .klen = 3, .buf = own.data() + i * 2000, .len = 2000, .version = 0, .code = 0};
  }
  expect_unallocated("batches", 100, [&] {
    for (kv_get_item_t& item : gets) item.len = 2000;
    return kv_client_put_items(client, puts.data(), puts.size()) == KV_OK &&
           kv_client_get_items(client, gets.data(), gets.size()) == KV_OK;
  });
}

}  // namespace
}  // namespace verbena::test
