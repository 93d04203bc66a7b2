// Each call of the C API with each argument that it refuses: the code, and the text, which names the argument, its
// value and what it may be.
#include "fixture.hpp"
#include "wrong.hpp"

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbena::test {
namespace {

/// What a call that returns bytes, or a pointer, failed with.
[[nodiscard]] int code_without(RdmaConn* conn, bool is_nothing) {
  if (!is_nothing) return RDMA_OK;
  return conn != nullptr ? rdmaConnError(conn) : RDMA_ERR_BAD_ARGUMENT;
}

/// Every call of a connection, with arguments that are right.
struct ConnCall {
  const char* name;
  std::function<int(RdmaConn*)> make;
};
[[nodiscard]] std::vector<ConnCall> calls_on_data() {
  static char bytes[64];
  static RdmaWindow window{};
  static RdmaCompletion completion;
  static const RdmaMemory memory{};
  const auto local = reinterpret_cast<std::uintptr_t>(bytes);
  return {
      {"rdmaConnSend", [](RdmaConn* c) { return code_without(c, rdmaConnSend(c, bytes, 8) == 0); }},
      {"rdmaConnSendWithImm", [](RdmaConn* c) { return code_without(c, rdmaConnSendWithImm(c, 1, bytes, 8) == 0); }},
      {"rdmaConnRecv", [](RdmaConn* c) { return rdmaConnRecv(c, bytes, 8, nullptr, -1); }},
      {"rdmaConnWrite", [](RdmaConn* c) { return code_without(c, rdmaConnWrite(c, bytes, 8) == 0); }},
      {"rdmaConnWriteAt", [](RdmaConn* c) { return code_without(c, rdmaConnWriteAt(c, 8, bytes, 8) == 0); }},
      {"rdmaConnRead", [](RdmaConn* c) { return rdmaConnRead(c, bytes, 8); }},
      {"rdmaConnReadAt", [](RdmaConn* c) { return rdmaConnReadAt(c, 8, bytes, 8); }},
      {"rdmaConnWriteWithImm", [](RdmaConn* c) { return rdmaConnWriteWithImm(c, 1, bytes, 8); }},
      {"rdmaConnWriteWithImmAt", [](RdmaConn* c) { return rdmaConnWriteWithImmAt(c, 1, 8, bytes, 8); }},
      {"rdmaConnPeerWindow", [](RdmaConn* c) { return rdmaConnPeerWindow(c, &window); }},
      {"rdmaConnRegMem", [](RdmaConn* c) { return code_without(c, rdmaConnRegMem(c, 4096) == nullptr); }},
      {"rdmaConnRegister", [](RdmaConn* c) { return code_without(c, rdmaConnRegister(c, bytes, 64, 7) == nullptr); }},
      {"rdmaConnDeregMem", [](RdmaConn* c) { return rdmaConnDeregMem(c, &memory); }},
      {"rdmaConnPublish", [](RdmaConn* c) { return rdmaConnPublish(c, "name", &memory); }},
      {"rdmaConnPublishPart", [](RdmaConn* c) { return rdmaConnPublishPart(c, "name", &memory, 0, 8); }},
      {"rdmaConnLookup", [](RdmaConn* c) { return rdmaConnLookup(c, "name", &window, -1); }},
      {"rdmaConnImportWindow", [](RdmaConn* c) { return rdmaConnImportWindow(c, &window); }},
      {"rdmaConnReleaseWindow", [](RdmaConn* c) { return rdmaConnReleaseWindow(c, &window); }},
      {"rdmaSyncWriteSignaled", [=](RdmaConn* c) { return rdmaSyncWriteSignaled(c, local, 1, 64, 1, 8); }},
      {"rdmaSyncReadSignaled", [=](RdmaConn* c) { return rdmaSyncReadSignaled(c, local, 1, 64, 1, 8); }},
      {"rdmaSyncFetchAdd", [](RdmaConn* c) { return rdmaSyncFetchAdd(c, 64, 1, 1, nullptr); }},
      {"rdmaSyncCompareSwap", [](RdmaConn* c) { return rdmaSyncCompareSwap(c, 64, 1, 1, 2, nullptr); }},
      {"rdmaStartWrite", [=](RdmaConn* c) { return rdmaStartWrite(c, local, 1, 64, 1, 8, 1); }},
      {"rdmaStartRead", [=](RdmaConn* c) { return rdmaStartRead(c, local, 1, 64, 1, 8, 1); }},
      {"rdmaStartFetchAdd", [](RdmaConn* c) { return rdmaStartFetchAdd(c, 64, 1, 1, 1); }},
      {"rdmaStartCompareSwap", [](RdmaConn* c) { return rdmaStartCompareSwap(c, 64, 1, 1, 2, 1); }},
      {"rdmaConnComplete", [](RdmaConn* c) { return rdmaConnComplete(c, &completion, -1); }},
      {"rdmaPAExport", [](RdmaConn* c) { return rdmaPAExport(c, &memory, nullptr); }},
      {"rdmaPASyncWriteSignaled", [=](RdmaConn* c) { return rdmaPASyncWriteSignaled(c, local, 1, 64, 8); }},
      {"rdmaPASyncReadSignaled", [=](RdmaConn* c) { return rdmaPASyncReadSignaled(c, local, 1, 64, 8); }},
      {"rdmaPASyncFetchAdd", [](RdmaConn* c) { return rdmaPASyncFetchAdd(c, 64, 1, nullptr); }},
      {"rdmaPASyncCompareSwap", [](RdmaConn* c) { return rdmaPASyncCompareSwap(c, 64, 1, 2, nullptr); }},
      {"rdmaPAWriteSignaled", [=](RdmaConn* c) { return rdmaPAWriteSignaled(c, local, 1, 64, 8); }},
      {"rdmaPAReadSignaled", [=](RdmaConn* c) { return rdmaPAReadSignaled(c, local, 1, 64, 8); }},
  };
}

/// Options with one of them wrong.
struct WrongOption {
  std::function<void(RdmaOptions&)> set;
  std::vector<std::string> says;
};
[[nodiscard]] std::vector<WrongOption> wrong_options() {
  static char memory[64];
  return {
      {[](RdmaOptions& o) { o.bootstrap = static_cast<RdmaBootstrap>(2); }, {"bootstrap", "got 2", "RDMA_BOOTSTRAP_"}},
      {[](RdmaOptions& o) { o.recv_mode = static_cast<RdmaRecvMode>(2); }, {"recv_mode", "got 2", "RDMA_RECV_"}},
      {[](RdmaOptions& o) { o.connect_timeout_ms = 0; }, {"connect_timeout_ms", "got 0", "1 to 1073741824"}},
      {[](RdmaOptions& o) { o.timeout_ms = 0; }, {"timeout_ms", "got 0", "1 to 1073741824"}},
      {[](RdmaOptions& o) { o.timeout_ms = 4'000'000'000; }, {"timeout_ms", "got 4000000000", "1 to 1073741824"}},
      {[](RdmaOptions& o) { o.max_connections = 0; }, {"max_connections", "got 0", "1 to 65536"}},
      {[](RdmaOptions& o) { o.max_connections = 65537; }, {"max_connections", "got 65537", "1 to 65536"}},
      {[](RdmaOptions& o) { o.inbox_bytes = 65535; }, {"inbox_bytes", "got 65535", "65536 to 1073741824"}},
      {[](RdmaOptions& o) { o.inbox_bytes = (1u << 30) + 1; }, {"inbox_bytes", "got 1073741825", "65536 to"}},
      {[](RdmaOptions& o) { o.max_message_bytes = 0; }, {"max_message_bytes", "got 0", "1 to 1099511627776"}},
      {[](RdmaOptions& o) { o.window_bytes = (std::size_t{64} << 30) + 1; },
       {"window_bytes", "got 68719476737", "0 to 68719476736"}},
      {[](RdmaOptions& o) { o.window = memory, o.window_bytes = 0; }, {"window_bytes", "got 0", "at least 64"}},
      {[](RdmaOptions& o) { o.window = memory, o.window_bytes = 63; }, {"window_bytes", "got 63", "multiple of 64"}},
      {[](RdmaOptions& o) { o.gid_index = 256; }, {"gid_index", "got 256", "0 to 255"}},
      {[](RdmaOptions& o) { o.gid_index = -2; }, {"gid_index", "got -2", "0 to 255"}},
      {[](RdmaOptions& o) { o.allowed_uid_count = 3; }, {"allowed_uids", "null", "allowed_uid_count", "3"}},
  };
}

class RdmaArguments : public RdmaApi {
 protected:
  RdmaArguments() { rdmaServer(&fresh_, address(), 0); }
  ~RdmaArguments() override {
    rdmaServerRelease(fresh_);
    rdmaConnClose(fresh_conn_);
  }
  RdmaListener* fresh_ = nullptr;  ///< Never started.
  RdmaConn* fresh_conn_ = rdmaConn();
  RdmaOptions defaults_ = [] {
    RdmaOptions made;
    rdmaOptionsInit(&made);
    return made;
  }();
};

TEST_F(RdmaArguments, NullHandlesAreNamed) {
  std::vector<Wrong> all;
  const std::vector<std::string> says{"conn", "must not be null"};
  const std::vector<ConnCall> calls = calls_on_data();
  for (const ConnCall& each : calls)
    all.push_back({each.name, [&] { return each.make(nullptr); }, RDMA_ERR_BAD_ARGUMENT, says});
  const auto add = [&](const char* name, std::function<int()> make, const char* argument) {
    all.push_back({name, std::move(make), RDMA_ERR_BAD_ARGUMENT, {argument, "must not be null"}});
  };
  add("rdmaConnSetOptions", [&] { return rdmaConnSetOptions(nullptr, &options); }, "conn");
  add("rdmaConnSetOptions", [&] { return rdmaConnSetOptions(fresh_conn_, nullptr); }, "options");
  add("rdmaConnSetRecvCallback", [] { return rdmaConnSetRecvCallback(nullptr, nullptr); }, "conn");
  add("rdmaConnSetConnectedCallback", [] { return rdmaConnSetConnectedCallback(nullptr, nullptr); }, "conn");
  add("rdmaConnSetDisconnectCallback", [] { return rdmaConnSetDisconnectCallback(nullptr, nullptr); }, "conn");
  add("rdmaConnSetWriteCallback", [] { return rdmaConnSetWriteCallback(nullptr, nullptr); }, "conn");
  add("rdmaConnSetReadCallback", [] { return rdmaConnSetReadCallback(nullptr, nullptr); }, "conn");
  add("rdmaConnOnConnect", [] { return rdmaConnOnConnect(nullptr, nullptr, nullptr); }, "conn");
  add("rdmaConnOnMessage", [] { return rdmaConnOnMessage(nullptr, nullptr, nullptr); }, "conn");
  add("rdmaConnOnDisconnect", [] { return rdmaConnOnDisconnect(nullptr, nullptr, nullptr); }, "conn");
  add("rdmaConnOnWrite", [] { return rdmaConnOnWrite(nullptr, nullptr, nullptr); }, "conn");
  add("rdmaConnOnRead", [] { return rdmaConnOnRead(nullptr, nullptr, nullptr); }, "conn");
  add("rdmaConnect", [] { return rdmaConnect(nullptr, "127.0.0.1", 1); }, "conn");
  add("rdmaConnKeep", [] { return rdmaConnKeep(nullptr); }, "conn");
  add("rdmaConnSetTimeout", [] { return rdmaConnSetTimeout(nullptr, 1); }, "conn");
  add("rdmaPAAddress", [] { return rdmaPAAddress(nullptr, nullptr, nullptr); }, "local");
  add("rdmaPAAddress", [this] { return rdmaPAAddress(nullptr, this, nullptr); }, "physical");
  add("rdmaServer", [] { return rdmaServer(nullptr, nullptr, 0); }, "listener");
  add("rdmaServerSetOptions", [&] { return rdmaServerSetOptions(nullptr, &options); }, "listener");
  add("rdmaServerSetOptions", [&] { return rdmaServerSetOptions(fresh_, nullptr); }, "options");
  add("rdmaServerSetAcceptCallback", [] { return rdmaServerSetAcceptCallback(nullptr, nullptr); }, "listener");
  add("rdmaServerOnAccept", [] { return rdmaServerOnAccept(nullptr, nullptr, nullptr); }, "listener");
  add("rdmaServerOnMessage", [] { return rdmaServerOnMessage(nullptr, nullptr, nullptr); }, "listener");
  add("rdmaServerOnDisconnect", [] { return rdmaServerOnDisconnect(nullptr, nullptr, nullptr); }, "listener");
  add("rdmaServerStart", [] { return rdmaServerStart(nullptr); }, "listener");
  add("rdmaServerPort", [] { return rdmaServerPort(nullptr); }, "listener");
  add(
      "rdmaServerAddress",
      [] {
        char c;
        return rdmaServerAddress(nullptr, &c, 1);
      },
      "listener");
  add("rdmaServerWait", [] { return rdmaServerWait(nullptr); }, "listener");
  add("rdmaServerStop", [] { return rdmaServerStop(nullptr); }, "listener");
  add("rdmaServerRegMem", [] { return code_without(nullptr, rdmaServerRegMem(nullptr, 1) == nullptr); }, "listener");
  add(
      "rdmaServerRegister",
      [this] { return code_without(nullptr, rdmaServerRegister(nullptr, this, 1, 0) == nullptr); }, "listener");
  add("rdmaServerDeregMem", [] { return rdmaServerDeregMem(nullptr, nullptr); }, "listener");
  add("rdmaServerPublish", [] { return rdmaServerPublish(nullptr, "name", nullptr); }, "listener");
  add("rdmaServerPublishPart", [] { return rdmaServerPublishPart(nullptr, "name", nullptr, 0, 1); }, "listener");
  add("rdmaNode", [] { return rdmaNode(nullptr, nullptr); }, "node");
  add("rdmaNodeRegMem", [] { return code_without(nullptr, rdmaNodeRegMem(nullptr, 1) == nullptr); }, "node");
  add(
      "rdmaNodeRegister", [this] { return code_without(nullptr, rdmaNodeRegister(nullptr, this, 1, 0) == nullptr); },
      "node");
  add("rdmaNodeDeregMem", [] { return rdmaNodeDeregMem(nullptr, nullptr); }, "node");
  add("rdmaNodePublish", [] { return rdmaNodePublish(nullptr, "name", nullptr); }, "node");
  add("rdmaNodePublishPart", [] { return rdmaNodePublishPart(nullptr, "name", nullptr, 0, 1); }, "node");
  expect_refused(all);
}

TEST_F(RdmaArguments, ACallBeforeTheConnectionSaysToConnect) {
  std::vector<Wrong> all;
  const std::vector<ConnCall> calls = calls_on_data();
  for (const ConnCall& each : calls) {
    all.push_back({each.name,
                   [&] {
                     const int code = each.make(fresh_conn_);
                     return code == RDMA_ERR || code == RDMA_OK ? RDMA_ERR_CLOSED : code;
                   },
                   RDMA_ERR_CLOSED,
                   {"never made", "rdmaConnect"}});
  }
  all.push_back({"rdmaConnKeep", [this] { return rdmaConnKeep(fresh_conn_); }, RDMA_ERR_BUSY, {"accept callback"}});
  expect_refused(all);
  EXPECT_EQ(rdmaConnIsConnected(fresh_conn_), 0);
  EXPECT_EQ(rdmaConnSend(fresh_conn_, "x", 1), 0u);
  EXPECT_EQ(rdmaConnError(fresh_conn_), RDMA_ERR_CLOSED) << "the call says that it is in rdmaConnError";
}

TEST_F(RdmaArguments, ACallBeforeTheStartSaysToStart) {
  char text[64];
  static const RdmaMemory memory{};
  const std::vector<std::string> says{"does not run", "rdmaServerStart"};
  const auto failed = [](bool is_nothing) { return is_nothing ? RDMA_ERR_CLOSED : RDMA_OK; };
  expect_refused({
      {"rdmaServerPort", [&] { return rdmaServerPort(fresh_); }, RDMA_ERR_CLOSED, says},
      {"rdmaServerAddress", [&] { return rdmaServerAddress(fresh_, text, 64); }, RDMA_ERR_CLOSED, says},
      {"rdmaServerRegMem", [&] { return failed(rdmaServerRegMem(fresh_, 4096) == nullptr); }, RDMA_ERR_CLOSED, says},
      {"rdmaServerRegister", [&] { return failed(rdmaServerRegister(fresh_, text, 64, 7) == nullptr); },
       RDMA_ERR_CLOSED, says},
      {"rdmaServerDeregMem", [&] { return rdmaServerDeregMem(fresh_, &memory); }, RDMA_ERR_CLOSED, says},
      {"rdmaServerPublish", [&] { return rdmaServerPublish(fresh_, "name", &memory); }, RDMA_ERR_CLOSED, says},
      {"rdmaServerPublishPart", [&] { return rdmaServerPublishPart(fresh_, "name", &memory, 0, 1); }, RDMA_ERR_CLOSED,
       says},
  });
}

TEST_F(RdmaArguments, PortsAreNamedWithTheirRange) {
  RdmaListener* made = nullptr;
  std::vector<Wrong> all;
  for (const int wrong : {-1, 65536, 70000}) {
    const std::string got = "got " + std::to_string(wrong);
    all.push_back({"rdmaServer",
                   [&made, wrong] { return rdmaServer(&made, nullptr, wrong); },
                   RDMA_ERR_BAD_ARGUMENT,
                   {"port", got, "0 to 65535"}});
    all.push_back({"rdmaConnect",
                   [this, wrong] { return rdmaConnect(fresh_conn_, "127.0.0.1", wrong); },
                   RDMA_ERR_BAD_ARGUMENT,
                   {"port", got, "1 to 65535"}});
  }
  all.push_back({"rdmaConnect",
                 [this] { return rdmaConnect(fresh_conn_, "127.0.0.1", 0); },
                 RDMA_ERR_BAD_ARGUMENT,
                 {"port", "got 0", "1 to 65535"}});
  expect_refused(all);
  EXPECT_EQ(made, nullptr);
}

TEST_F(RdmaArguments, OptionsAreNamedWithTheirRange) {
  std::vector<Wrong> all;
  for (const WrongOption& each : wrong_options()) {
    RdmaOptions wrong = defaults_;
    each.set(wrong);
    all.push_back({"rdmaServerSetOptions", [this, wrong] { return rdmaServerSetOptions(fresh_, &wrong); },
                   RDMA_ERR_BAD_ARGUMENT, each.says});
    all.push_back({"rdmaConnSetOptions", [this, wrong] { return rdmaConnSetOptions(fresh_conn_, &wrong); },
                   RDMA_ERR_BAD_ARGUMENT, each.says});
  }
  const auto node = [&](auto set, std::vector<std::string> says) {
    RdmaNodeOptions wrong;
    rdmaNodeOptionsInit(&wrong);
    wrong.device = "soft";
    set(wrong);
    all.push_back({"rdmaNode",
                   [wrong] {
                     RdmaNode* made = nullptr;
                     const int code = rdmaNode(&made, &wrong);
                     rdmaNodeRelease(made);
                     return code;
                   },
                   RDMA_ERR_BAD_ARGUMENT, std::move(says)});
  };
  node([](RdmaNodeOptions& o) { o.bootstrap = static_cast<RdmaBootstrap>(2); },
       {"bootstrap", "got 2", "RDMA_BOOTSTRAP_"});
  node([](RdmaNodeOptions& o) { o.gid_index = 256; }, {"gid_index", "got 256", "0 to 255"});
  node([](RdmaNodeOptions& o) { o.shards = 0; }, {"shards", "got 0", "1 to 256"});
  node([](RdmaNodeOptions& o) { o.shards = 257; }, {"shards", "got 257", "1 to 256"});
  node([](RdmaNodeOptions& o) { o.connections = 0; }, {"connections", "got 0", "1 to 65536"});
  node([](RdmaNodeOptions& o) { o.connections = 65537; }, {"connections", "got 65537", "1 to 65536"});
  node([](RdmaNodeOptions& o) { o.allowed_uid_count = 3; }, {"allowed_uids", "null", "allowed_uid_count", "3"});
  expect_refused(all);
}

TEST_F(RdmaArguments, ADeviceThatIsNoneIsNamed) {
  for (const char* name : {"nosuchdevice", "nosuchdevice:1"}) {
    RdmaOptions wrong = defaults_;
    wrong.device = name;
    ASSERT_EQ(rdmaConnSetOptions(fresh_conn_, &wrong), RDMA_OK);
    ASSERT_EQ(rdmaServerSetOptions(fresh_, &wrong), RDMA_OK);
    // A kernel that has no devices at all says that.
    const auto not_there = [](int code) { return code == RDMA_ERR_DEVICE ? RDMA_ERR_NOT_FOUND : code; };
    expect_refused({
        {"rdmaConnect",
         [&] { return not_there(rdmaConnect(fresh_conn_, "127.0.0.1", 1)); },
         RDMA_ERR_NOT_FOUND,
         {"nosuchdevice"}},
        {"rdmaServerStart", [&] { return not_there(rdmaServerStart(fresh_)); }, RDMA_ERR_NOT_FOUND, {"nosuchdevice"}},
    });
  }
  RdmaOptions wrong = defaults_;
  wrong.device = "mlx5_0:x";
  ASSERT_EQ(rdmaConnSetOptions(fresh_conn_, &wrong), RDMA_OK);
  expect_refused({{"rdmaConnect",
                   [this] { return rdmaConnect(fresh_conn_, "127.0.0.1", 1); },
                   RDMA_ERR_BAD_ARGUMENT,
                   {"device", "mlx5_0:x", "mlx5_0:2"}}});
}

TEST_F(RdmaArguments, WhatComesTooLateIsToldSo) {
  start();
  RdmaConn* const conn = connect();
  const std::vector<std::string> started{"listener runs", "before rdmaServerStart"};
  const std::vector<std::string> connected{"connection is made", "before rdmaConnect"};
  expect_refused({
      {"rdmaServerSetOptions", [&] { return rdmaServerSetOptions(server, &options); }, RDMA_ERR_BUSY, started},
      {"rdmaServerSetAcceptCallback", [&] { return rdmaServerSetAcceptCallback(server, nullptr); }, RDMA_ERR_BUSY,
       started},
      {"rdmaServerOnAccept", [&] { return rdmaServerOnAccept(server, nullptr, nullptr); }, RDMA_ERR_BUSY, started},
      {"rdmaServerOnMessage", [&] { return rdmaServerOnMessage(server, nullptr, nullptr); }, RDMA_ERR_BUSY, started},
      {"rdmaServerOnDisconnect", [&] { return rdmaServerOnDisconnect(server, nullptr, nullptr); }, RDMA_ERR_BUSY,
       started},
      {"rdmaServerStart", [&] { return rdmaServerStart(server); }, RDMA_ERR_BUSY, {"runs already"}},
      {"rdmaConnSetOptions", [&] { return rdmaConnSetOptions(conn, &options); }, RDMA_ERR_BUSY, connected},
      {"rdmaConnSetRecvCallback", [&] { return rdmaConnSetRecvCallback(conn, nullptr); }, RDMA_ERR_BUSY, connected},
      {"rdmaConnSetConnectedCallback", [&] { return rdmaConnSetConnectedCallback(conn, nullptr); }, RDMA_ERR_BUSY,
       connected},
      {"rdmaConnSetDisconnectCallback", [&] { return rdmaConnSetDisconnectCallback(conn, nullptr); }, RDMA_ERR_BUSY,
       connected},
      {"rdmaConnSetWriteCallback", [&] { return rdmaConnSetWriteCallback(conn, nullptr); }, RDMA_ERR_BUSY, connected},
      {"rdmaConnSetReadCallback", [&] { return rdmaConnSetReadCallback(conn, nullptr); }, RDMA_ERR_BUSY, connected},
      {"rdmaConnOnConnect", [&] { return rdmaConnOnConnect(conn, nullptr, nullptr); }, RDMA_ERR_BUSY, connected},
      {"rdmaConnOnMessage", [&] { return rdmaConnOnMessage(conn, nullptr, nullptr); }, RDMA_ERR_BUSY, connected},
      {"rdmaConnOnDisconnect", [&] { return rdmaConnOnDisconnect(conn, nullptr, nullptr); }, RDMA_ERR_BUSY, connected},
      {"rdmaConnOnWrite", [&] { return rdmaConnOnWrite(conn, nullptr, nullptr); }, RDMA_ERR_BUSY, connected},
      {"rdmaConnOnRead", [&] { return rdmaConnOnRead(conn, nullptr, nullptr); }, RDMA_ERR_BUSY, connected},
      {"rdmaConnect", [&] { return rdmaConnect(conn, address(), port); }, RDMA_ERR_BUSY, {"already"}},
      {"rdmaConnKeep", [&] { return rdmaConnKeep(conn); }, RDMA_ERR_BUSY, {"accept callback"}},
  });
}

TEST_F(RdmaArguments, DataAndWindowsAreNamed) {
  start();
  RdmaConn* const conn = connect();
  const RdmaMemory* const memory = rdmaConnRegMem(conn, 4096);
  ASSERT_NE(memory, nullptr) << rdmaErrorDetail();
  RdmaWindow window;
  ASSERT_EQ(rdmaConnPeerWindow(conn, &window), RDMA_OK);
  char bytes[64]{};
  const auto local = reinterpret_cast<std::uintptr_t>(memory->addr);
  const std::string size = std::to_string(window.length);
  const auto hex = [](std::uint64_t number) {
    char text[32];
    std::snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(number));
    return std::string(text);
  };
  const std::uint32_t lkey = memory->lkey, rkey = window.rkey;
  const std::uint32_t bad = 0xbadbad;
  constexpr int kBad = RDMA_ERR_BAD_ARGUMENT;
  const std::vector<std::string> no_length{"length", "got 0", "at least 1"};
  const std::vector<std::string> no_local{"local_addr", "must not be null"};
  const std::vector<std::string> no_lkey{"local_addr", hex(local), "lkey", "0xbadbad", "length 8"};
  const std::vector<std::string> past_lkey{"local_addr", hex(local + 4090), "length 8", "lkey", hex(lkey)};
  const std::vector<std::string> no_rkey{"rkey", "0xbadbad"};
  const std::vector<std::string> past{"remote_addr", hex(window.addr + window.length), "length 8", size};
  const std::vector<std::string> crooked{"remote_addr", hex(window.addr + 4), "multiple of 8"};
  std::vector<Wrong> all{
      {"rdmaConnSend", [&] { return code_without(conn, rdmaConnSend(conn, nullptr, 8) == 0); }, kBad, {"data", "null"}},
      {"rdmaConnSend",
       [&] { return code_without(conn, rdmaConnSend(conn, bytes, 0) == 0); },
       kBad,
       {"data_len", "got 0", "at least 1"}},
      {"rdmaConnSendWithImm",
       [&] { return code_without(conn, rdmaConnSendWithImm(conn, 1, nullptr, 8) == 0); },
       kBad,
       {"data", "null"}},
      {"rdmaConnSendWithImm",
       [&] { return code_without(conn, rdmaConnSendWithImm(conn, 1, bytes, 0) == 0); },
       kBad,
       {"data_len", "got 0", "at least 1"}},
      {"rdmaConnRecv", [&] { return rdmaConnRecv(conn, nullptr, 8, nullptr, -1); }, kBad, {"buffer", "null"}},
      {"rdmaConnWrite",
       [&] { return code_without(conn, rdmaConnWrite(conn, nullptr, 8) == 0); },
       kBad,
       {"data", "null"}},
      {"rdmaConnWrite",
       [&] { return code_without(conn, rdmaConnWrite(conn, bytes, 0) == 0); },
       kBad,
       {"data_len", "got 0", "at least 1"}},
      {"rdmaConnWrite",
       [&] { return code_without(conn, rdmaConnWrite(conn, bytes, window.length + 1) == 0); },
       RDMA_ERR_OUT_OF_RANGE,
       {"data_len", std::to_string(window.length + 1), size}},
      {"rdmaConnWriteAt",
       [&] { return code_without(conn, rdmaConnWriteAt(conn, window.length, bytes, 8) == 0); },
       RDMA_ERR_OUT_OF_RANGE,
       {"offset", size, "8"}},
      {"rdmaConnRead", [&] { return rdmaConnRead(conn, nullptr, 8); }, kBad, {"data_buf", "null"}},
      {"rdmaConnRead", [&] { return rdmaConnRead(conn, bytes, 0); }, kBad, {"buf_len", "got 0", "at least 1"}},
      {"rdmaConnRead",
       [&] { return rdmaConnRead(conn, bytes, window.length + 1); },
       RDMA_ERR_OUT_OF_RANGE,
       {"buf_len", std::to_string(window.length + 1), size}},
      {"rdmaConnReadAt",
       [&] { return rdmaConnReadAt(conn, window.length, bytes, 8); },
       RDMA_ERR_OUT_OF_RANGE,
       {"offset", size, "8"}},
      {"rdmaConnWriteWithImm", [&] { return rdmaConnWriteWithImm(conn, 1, nullptr, 8); }, kBad, {"data", "null"}},
      {"rdmaConnWriteWithImm",
       [&] { return rdmaConnWriteWithImm(conn, 1, bytes, window.length + 1); },
       RDMA_ERR_OUT_OF_RANGE,
       {"data_len", size}},
      {"rdmaConnWriteWithImmAt",
       [&] { return rdmaConnWriteWithImmAt(conn, 1, window.length, bytes, 8); },
       RDMA_ERR_OUT_OF_RANGE,
       {"offset", size, "8"}},
      {"rdmaConnPeerWindow", [&] { return rdmaConnPeerWindow(conn, nullptr); }, kBad, {"window", "null"}},
      {"rdmaConnComplete", [&] { return rdmaConnComplete(conn, nullptr, 0); }, kBad, {"completion", "null"}},
      {"rdmaConnSetTimeout",
       [&] { return rdmaConnSetTimeout(conn, 0); },
       kBad,
       {"timeout_ms", "got 0", "1 to 1073741824"}},
      {"rdmaSyncFetchAdd", [&] { return rdmaSyncFetchAdd(conn, window.addr + 4, rkey, 1, nullptr); }, kBad, crooked},
      {"rdmaSyncFetchAdd", [&] { return rdmaSyncFetchAdd(conn, window.addr, bad, 1, nullptr); }, RDMA_ERR_NOT_FOUND,
       no_rkey},
      {"rdmaSyncFetchAdd", [&] { return rdmaSyncFetchAdd(conn, window.addr + window.length, rkey, 1, nullptr); },
       RDMA_ERR_OUT_OF_RANGE, past},
      {"rdmaSyncCompareSwap", [&] { return rdmaSyncCompareSwap(conn, window.addr + 4, rkey, 1, 2, nullptr); }, kBad,
       crooked},
      {"rdmaSyncCompareSwap", [&] { return rdmaSyncCompareSwap(conn, window.addr, bad, 1, 2, nullptr); },
       RDMA_ERR_NOT_FOUND, no_rkey},
      {"rdmaStartFetchAdd", [&] { return rdmaStartFetchAdd(conn, window.addr + 4, rkey, 1, 1); }, kBad, crooked},
      {"rdmaStartFetchAdd", [&] { return rdmaStartFetchAdd(conn, window.addr, bad, 1, 1); }, RDMA_ERR_NOT_FOUND,
       no_rkey},
      {"rdmaStartCompareSwap", [&] { return rdmaStartCompareSwap(conn, window.addr + 4, rkey, 1, 2, 1); }, kBad,
       crooked},
      {"rdmaPASyncFetchAdd", [&] { return rdmaPASyncFetchAdd(conn, window.addr + 4, 1, nullptr); }, kBad, crooked},
      {"rdmaPASyncCompareSwap", [&] { return rdmaPASyncCompareSwap(conn, window.addr + 4, 1, 2, nullptr); }, kBad,
       crooked},
      {"rdmaPASyncFetchAdd",
       [&] { return rdmaPASyncFetchAdd(conn, 4096, 1, nullptr); },
       RDMA_ERR_NOT_FOUND,
       {"remote_addr", "0x1000", "rdmaPAExport"}},
      {"rdmaConnComplete",
       [&] {
         RdmaCompletion completion;
         return rdmaConnComplete(conn, &completion, -1);
       },
       RDMA_ERR_NOT_FOUND,
       {"nothing", "rdmaStart"}},
      {"rdmaConnImportWindow", [&] { return rdmaConnImportWindow(conn, nullptr); }, kBad, {"window", "null"}},
      {"rdmaConnReleaseWindow", [&] { return rdmaConnReleaseWindow(conn, nullptr); }, kBad, {"window", "null"}},
  };
  // The four forms of a transfer, by key and by physical address, have the same arguments.
  struct Form {
    const char* name;
    std::function<int(std::uint64_t local, std::uint32_t lkey, std::uint64_t remote, std::uint32_t rkey,
                      std::uint32_t length)>
        make;
    bool has_key;
  };
  const Form forms[] = {
      {"rdmaSyncWriteSignaled", [&](auto... of) { return rdmaSyncWriteSignaled(conn, of...); }, true},
      {"rdmaSyncReadSignaled", [&](auto... of) { return rdmaSyncReadSignaled(conn, of...); }, true},
      {"rdmaStartWrite", [&](auto... of) { return rdmaStartWrite(conn, of..., 7); }, true},
      {"rdmaStartRead", [&](auto... of) { return rdmaStartRead(conn, of..., 7); }, true},
      {"rdmaPASyncWriteSignaled",
       [&](auto a, auto k, auto r, auto, auto n) { return rdmaPASyncWriteSignaled(conn, a, k, r, n); }, false},
      {"rdmaPASyncReadSignaled",
       [&](auto a, auto k, auto r, auto, auto n) { return rdmaPASyncReadSignaled(conn, a, k, r, n); }, false},
      {"rdmaPAWriteSignaled",
       [&](auto a, auto k, auto r, auto, auto n) { return rdmaPAWriteSignaled(conn, a, k, r, n); }, false},
      {"rdmaPAReadSignaled", [&](auto a, auto k, auto r, auto, auto n) { return rdmaPAReadSignaled(conn, a, k, r, n); },
       false},
  };
  for (const Form& form : forms) {
    const auto add = [&](int code, const std::vector<std::string>& says, std::uint64_t a, std::uint32_t k,
                         std::uint64_t r, std::uint32_t key, std::uint32_t n) {
      all.push_back({form.name, [&form, a, k, r, key, n] { return form.make(a, k, r, key, n); }, code, says});
    };
    add(kBad, no_length, local, lkey, window.addr, rkey, 0);
    add(kBad, no_local, 0, lkey, window.addr, rkey, 8);
    add(RDMA_ERR_LOCAL_ACCESS, no_lkey, local, bad, window.addr, rkey, 8);
    add(RDMA_ERR_LOCAL_ACCESS, past_lkey, local + 4090, lkey, window.addr, rkey, 8);
    if (form.has_key) {
      add(RDMA_ERR_NOT_FOUND, no_rkey, local, lkey, window.addr, bad, 8);
      add(RDMA_ERR_OUT_OF_RANGE, past, local, lkey, window.addr + window.length, rkey, 8);
    } else {
      add(RDMA_ERR_NOT_FOUND, {"remote_addr", "0x1000", "rdmaPAExport"}, local, lkey, 4096, 0, 8);
    }
  }
  expect_refused(all);
  EXPECT_EQ(rdmaConnIsConnected(conn), 1) << "nothing of that is the end of a connection";
}

TEST_F(RdmaArguments, MemoryAndNamesAreNamed) {
  start();
  RdmaConn* const conn = connect();
  RdmaNodeOptions node_options;
  rdmaNodeOptionsInit(&node_options);
  node_options.device = options.device;
  node_options.bootstrap = options.bootstrap;
  RdmaNode* node = nullptr;
  ASSERT_EQ(rdmaNode(&node, &node_options), RDMA_OK) << rdmaErrorDetail();
  const std::unique_ptr<RdmaNode, void (*)(RdmaNode*)> release(node, rdmaNodeRelease);
  alignas(64) static char bytes[64];
  static const RdmaMemory stranger{};
  RdmaWindow window{};
  const std::string longest(65, 'n');
  // The same calls of a connection, a listener and a node.
  struct Owner {
    const char *reg_mem, *reg, *dereg, *publish, *part;
    std::function<const RdmaMemory*(std::size_t)> reg_mem_call;
    std::function<const RdmaMemory*(void*, std::size_t, unsigned)> reg_call;
    std::function<int(const RdmaMemory*)> dereg_call;
    std::function<int(const char*, const RdmaMemory*)> publish_call;
    std::function<int(const char*, const RdmaMemory*, std::size_t, std::size_t)> part_call;
  };
  const Owner owners[] = {
      {"rdmaConnRegMem", "rdmaConnRegister", "rdmaConnDeregMem", "rdmaConnPublish", "rdmaConnPublishPart",
       [&](auto... of) { return rdmaConnRegMem(conn, of...); },
       [&](auto... of) { return rdmaConnRegister(conn, of...); },
       [&](auto... of) { return rdmaConnDeregMem(conn, of...); },
       [&](auto... of) { return rdmaConnPublish(conn, of...); },
       [&](auto... of) { return rdmaConnPublishPart(conn, of...); }},
      {"rdmaServerRegMem", "rdmaServerRegister", "rdmaServerDeregMem", "rdmaServerPublish", "rdmaServerPublishPart",
       [&](auto... of) { return rdmaServerRegMem(server, of...); },
       [&](auto... of) { return rdmaServerRegister(server, of...); },
       [&](auto... of) { return rdmaServerDeregMem(server, of...); },
       [&](auto... of) { return rdmaServerPublish(server, of...); },
       [&](auto... of) { return rdmaServerPublishPart(server, of...); }},
      {"rdmaNodeRegMem", "rdmaNodeRegister", "rdmaNodeDeregMem", "rdmaNodePublish", "rdmaNodePublishPart",
       [&](auto... of) { return rdmaNodeRegMem(node, of...); },
       [&](auto... of) { return rdmaNodeRegister(node, of...); },
       [&](auto... of) { return rdmaNodeDeregMem(node, of...); },
       [&](auto... of) { return rdmaNodePublish(node, of...); },
       [&](auto... of) { return rdmaNodePublishPart(node, of...); }},
  };
  std::vector<Wrong> all;
  constexpr int kBad = RDMA_ERR_BAD_ARGUMENT;
  const auto refused = [](const RdmaMemory* memory) { return memory == nullptr ? RDMA_ERR_BAD_ARGUMENT : RDMA_OK; };
  constexpr std::size_t kTooMuch = (std::size_t{1} << 40) + 1;
  for (const Owner& of : owners) {
    const RdmaMemory* const memory = of.reg_mem_call(4096);
    ASSERT_NE(memory, nullptr) << rdmaErrorDetail();
    ASSERT_EQ(of.publish_call("taken", memory), RDMA_OK) << rdmaErrorDetail();
    all.insert(
        all.end(),
        {{of.reg_mem,
          [&of, refused] { return refused(of.reg_mem_call(0)); },
          kBad,
          {"size", "got 0", "1 to 1099511627776"}},
         {of.reg_mem,
          [&of, refused] { return refused(of.reg_mem_call(kTooMuch)); },
          kBad,
          {"size", "got 1099511627777", "1 to 1099511627776"}},
         {of.reg, [&of, refused] { return refused(of.reg_call(nullptr, 64, 7)); }, kBad, {"addr", "must not be null"}},
         {of.reg,
          [&of, refused] { return refused(of.reg_call(bytes, 0, 7)); },
          kBad,
          {"length", "got 0", "1 to 1099511627776"}},
         {of.reg, [&of, refused] { return refused(of.reg_call(bytes, 64, 8)); }, kBad, {"access", "got 8", "0 to 7"}},
         {of.dereg, [&of] { return of.dereg_call(nullptr); }, kBad, {"memory", "must not be null"}},
         {of.dereg, [&of] { return of.dereg_call(&stranger); }, kBad, {"memory", "not registered"}},
         {of.publish, [&of, memory] { return of.publish_call(nullptr, memory); }, kBad, {"name", "must not be null"}},
         {of.publish, [&of, memory] { return of.publish_call("", memory); }, kBad, {"name", "got 0", "1 to 64 bytes"}},
         {of.publish,
          [&of, memory, longest] { return of.publish_call(longest.c_str(), memory); },
          kBad,
          {"name", "got 65", "1 to 64 bytes"}},
         {of.publish, [&of] { return of.publish_call("name", &stranger); }, kBad, {"memory", "not registered"}},
         {of.publish,
          [&of, memory] { return of.publish_call("taken", memory); },
          RDMA_ERR_BUSY,
          {"\"taken\"", "published already"}},
         {of.publish, [&of] { return of.publish_call("nobody's", nullptr); }, RDMA_ERR_NOT_FOUND, {"\"nobody's\""}},
         {of.part, [&of, memory] { return of.part_call(nullptr, memory, 0, 1); }, kBad, {"name", "must not be null"}},
         {of.part, [&of, memory] { return of.part_call("", memory, 0, 1); }, kBad, {"name", "got 0", "1 to 64 bytes"}},
         {of.part, [&of] { return of.part_call("name", nullptr, 0, 1); }, kBad, {"memory", "must not be null"}},
         {of.part, [&of] { return of.part_call("name", &stranger, 0, 1); }, kBad, {"memory", "not registered"}},
         {of.part,
          [&of, memory] { return of.part_call("name", memory, 0, 0); },
          kBad,
          {"length", "got 0", "at least 1"}},
         {of.part,
          [&of, memory] { return of.part_call("name", memory, 4096, 1); },
          RDMA_ERR_OUT_OF_RANGE,
          {"offset 4096", "length 1", "4096 bytes"}},
         {of.part,
          [&of, memory] { return of.part_call("name", memory, 1, 4096); },
          RDMA_ERR_OUT_OF_RANGE,
          {"offset 1", "length 4096", "4096 bytes"}}});
  }
  all.insert(
      all.end(),
      {{"rdmaConnLookup", [&] { return rdmaConnLookup(conn, nullptr, &window, 0); }, kBad, {"name", "null"}},
       {"rdmaConnLookup",
        [&] { return rdmaConnLookup(conn, "", &window, 0); },
        kBad,
        {"name", "got 0", "1 to 64 bytes"}},
       {"rdmaConnLookup",
        [&] { return rdmaConnLookup(conn, longest.c_str(), &window, 0); },
        kBad,
        {"name", "got 65", "1 to 64 bytes"}},
       {"rdmaConnLookup", [&] { return rdmaConnLookup(conn, "name", nullptr, 0); }, kBad, {"window", "null"}},
       {"rdmaPAExport", [&] { return rdmaPAExport(conn, nullptr, nullptr); }, kBad, {"memory", "null"}},
       {"rdmaPAExport", [&] { return rdmaPAExport(conn, &stranger, nullptr); }, kBad, {"memory", "not registered"}},
       {"rdmaServerAddress", [&] { return rdmaServerAddress(server, nullptr, 8); }, kBad, {"address", "null"}},
       {"rdmaServerAddress",
        [&] { return rdmaServerAddress(server, bytes, 1); },
        RDMA_ERR_BUFFER_TOO_SMALL,
        {"length", "got 1", "at least"}}});
  expect_refused(all);
  all.clear();
  close_clients();
}

TEST_F(RdmaArguments, MessagesThatDoNotFitAreToldWhatTheyNeed) {
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const accepted = conns.take();
  send(accepted, pattern(100, 1));
  char bytes[64];
  expect_refused({
      {"rdmaConnRecv",
       [&] { return rdmaConnRecv(conn, bytes, 64, nullptr, -1); },
       RDMA_ERR_BUFFER_TOO_SMALL,
       {"buffer_len", "got 64", "at least 100"}},
      {"rdmaConnRecv",
       [&] { return rdmaConnRecv(accepted, bytes, 64, nullptr, -1); },
       RDMA_ERR_UNSUPPORTED,
       {"recv_mode", "RDMA_RECV_QUEUE"}},
  });
  rdmaConnClose(accepted);
}

TEST_F(RdmaArguments, AnotherThreadsCallIsToldSo) {
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const accepted = conns.take();
  std::atomic<bool> has_seen{false};
  std::thread other([&] {
    char byte = 0;
    // The two are in each other's way until one of them waits.
    while (rdmaConnRecv(conn, &byte, 1, nullptr, 20'000) == RDMA_ERR_BUSY) {}
    has_seen = true;
  });
  char byte = 0;
  int code = RDMA_OK;
  while (code != RDMA_ERR_BUSY && !has_seen) code = rdmaConnRecv(conn, &byte, 1, nullptr, 0);
  EXPECT_EQ(code, RDMA_ERR_BUSY);
  expect_refused({{"rdmaConnRead", [&] { return rdmaConnRead(conn, &byte, 1); }, RDMA_ERR_BUSY, {"another thread"}},
                  {"rdmaConnSend",
                   [&] { return code_without(conn, rdmaConnSend(conn, &byte, 1) == 0); },
                   RDMA_ERR_BUSY,
                   {"another thread"}}});
  EXPECT_EQ(rdmaConnSend(accepted, "x", 1), 1u) << rdmaErrorDetail();
  other.join();
  rdmaConnClose(accepted);
}

TEST_F(RdmaArguments, ACallbackCannotEndItsOwnListener) {
  Mailbox<std::string> texts;
  when_accepted = [&](RdmaConn*) {
    for (const auto call : {rdmaServerStop, rdmaServerWait}) {
      EXPECT_EQ(call(server), RDMA_ERR_BUSY);
      texts.put(rdmaErrorDetail());
    }
  };
  start();
  (void)connect();
  for (const char* name : {"rdmaServerStop", "rdmaServerWait"}) {
    const std::string text = texts.take();
    EXPECT_TRUE(text.starts_with(name)) << text;
    expect_words(text, kOfCxx, std::vector<std::string>{"callback"});
  }
}

TEST_F(RdmaArguments, ACallAfterTheEndSaysHowItEnded) {
  keep_accepted();
  start();
  RdmaConn* const conn = connect();
  RdmaConn* const accepted = conns.take();
  rdmaServerStop(server);
  rdmaConnClose(accepted);
  std::vector<Wrong> all;
  const std::vector<ConnCall> calls = calls_on_data();
  for (const ConnCall& each : calls) {
    const std::string_view name = each.name;
    // These are this side's own, and work on until rdmaConnClose; or their memory is none.
    if (name.find("Reg") != name.npos || name.find("Dereg") != name.npos || name.find("Publish") != name.npos ||
        name == "rdmaConnPeerWindow" || name == "rdmaPAExport" || name.find("rdmaPA") == 0 ||
        name.find("WriteSignaled") != name.npos || name.find("ReadSignaled") != name.npos || name == "rdmaStartWrite" ||
        name == "rdmaStartRead" || name == "rdmaConnComplete")
      continue;
    all.push_back({each.name, [&, conn] { return each.make(conn); }, RDMA_ERR_CLOSED, {"closed", "connect again"}});
  }
  expect_refused(all);
}

TEST_F(RdmaArguments, StringsOfCodesSaySomething) {
  for (int code = RDMA_ERR_FORKED; code <= RDMA_OK; ++code)
    EXPECT_GT(std::string_view(rdmaErrorString(code)).size(), 6u);
  for (const int code : {1, -1000, std::numeric_limits<int>::min()})
    EXPECT_NE(std::string_view(rdmaErrorString(code)).find("no code"), std::string_view::npos);
}

}  // namespace
}  // namespace verbena::test
