// verbena/compat/kvstore.h: each call with each argument that it refuses.
#include "fixture.hpp"
#include "wrong.hpp"

#include <verbena/compat/kvstore.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace verbena::test {
namespace {

class KvstoreArguments : public RdmaApi {
 protected:
  void SetUp() override {
    keep_accepted();
    start();
    std::array<char, 64> host{};
    ASSERT_EQ(rdmaServerAddress(server, host.data(), host.size()), RDMA_OK) << rdmaErrorDetail();
    ASSERT_EQ(RDMA_connect_with(host.data(), port, &options, &context_), RDMA_OK) << rdmaErrorDetail();
    peer_ = conns.take();
  }
  void TearDown() override {
    RDMA_disconnect(context_);
    rdmaConnClose(peer_);
  }
  PingpongContext* context_ = nullptr;
  RdmaConn* peer_ = nullptr;
  std::string bytes_ = std::string(64, 'b');
};

TEST_F(KvstoreArguments, EveryCallNamesItsContext) {
  struct Call {
    const char* name;
    std::function<int(PingpongContext*)> make;
  };
  std::uint32_t key = 0;
  const std::vector<Call> calls{
      {"RDMA_register", [&](PingpongContext* c) { return RDMA_register(c, bytes_.data(), 64, &key); }},
      {"RDMA_deregister", [&](PingpongContext* c) { return RDMA_deregister(c, bytes_.data()); }},
      {"send_packet", [](PingpongContext* c) { return send_packet(c); }},
      {"receive_packet", [](PingpongContext* c) { return receive_packet(c); }},
      {"receive_packet_async", [](PingpongContext* c) { return receive_packet_async(c); }},
      {"pp_wait_completions", [](PingpongContext* c) { return pp_wait_completions(c, 0); }},
      {"send_RDMA_read", [&](PingpongContext* c) { return send_RDMA_read(c, bytes_.data(), 8, nullptr, 1); }},
      {"send_RDMA_write", [&](PingpongContext* c) { return send_RDMA_write(c, "value", nullptr, 1); }},
      {"send_fin", [](PingpongContext* c) { return send_fin(c); }},
      {"receive_fin", [](PingpongContext* c) { return receive_fin(c); }},
  };
  std::vector<Wrong> all;
  for (const Call& each : calls) {
    all.push_back({each.name, [&] { return each.make(nullptr); }, RDMA_ERR_BAD_ARGUMENT, {"ctx", "must not be null"}});
    for (const int wrong : {-1, +KVSTORE_BUFFERS}) {
      const auto make = [&, wrong] {
        const int before = std::exchange(context_->currBuffer, wrong);
        const int code = each.make(context_);
        context_->currBuffer = before;
        return code;
      };
      all.push_back(
          {each.name, make, RDMA_ERR_BAD_ARGUMENT, {"currBuffer", "got " + std::to_string(wrong), "0 to 15"}});
    }
  }
  expect_refused(all);
}

TEST_F(KvstoreArguments, AreNamedWithValueAndRange) {
  std::uint32_t key = 0;
  const auto at = reinterpret_cast<void*>(std::uintptr_t{4096});
  expect_refused({
      {"RDMA_register",
       [&] { return RDMA_register(context_, bytes_.data(), 64, nullptr); },
       RDMA_ERR_BAD_ARGUMENT,
       {"key", "must not be null"}},
      {"rdmaConnRegister",
       [&] { return RDMA_register(context_, nullptr, 64, &key); },
       RDMA_ERR_BAD_ARGUMENT,
       {"addr", "must not be null"}},
      {"rdmaConnRegister",
       [&] { return RDMA_register(context_, bytes_.data(), 0, &key); },
       RDMA_ERR_BAD_ARGUMENT,
       {"length", "got 0", "1 to 1099511627776"}},
      {"RDMA_deregister",
       [&] { return RDMA_deregister(context_, at); },
       RDMA_ERR_BAD_ARGUMENT,
       {"addr", "0x1000", "RDMA_register"}},
      {"pp_wait_completions",
       [&] { return pp_wait_completions(context_, -1); },
       RDMA_ERR_BAD_ARGUMENT,
       {"iters", "got -1", "0 to 0"}},
      {"pp_wait_completions",
       [&] { return pp_wait_completions(context_, 1); },
       RDMA_ERR_BAD_ARGUMENT,
       {"iters", "got 1", "0 to 0"}},
      {"send_RDMA_read",
       [&] { return send_RDMA_read(context_, nullptr, 8, at, 1); },
       RDMA_ERR_BAD_ARGUMENT,
       {"target", "must not be null"}},
      {"send_RDMA_read",
       [&] { return send_RDMA_read(context_, bytes_.data(), 0, at, 1); },
       RDMA_ERR_BAD_ARGUMENT,
       {"size", "got 0", "at least 1"}},
      {"send_RDMA_write",
       [&] { return send_RDMA_write(context_, nullptr, at, 1); },
       RDMA_ERR_BAD_ARGUMENT,
       {"value", "must not be null"}},
  });
  for (int i = 0; i < KVSTORE_BUFFERS; ++i) EXPECT_EQ(receive_packet_async(context_), RDMA_OK);
  expect_refused({{"receive_packet_async",
                   [&] { return receive_packet_async(context_); },
                   RDMA_ERR_AGAIN,
                   {"16 buffers wait for packets"}}});
}

TEST_F(KvstoreArguments, OfConnecting) {
  PingpongContext* made = nullptr;
  RdmaOptions wrong = options;
  wrong.timeout_ms = 0;
  const std::string with_port = std::string("127.0.0.1:") + "70000";
  expect_refused({
      {"RDMA_connect",
       [&] { return RDMA_connect("127.0.0.1", nullptr); },
       RDMA_ERR_BAD_ARGUMENT,
       {"save_ctx", "must not be null"}},
      {"rdmaConnect",
       [&] { return RDMA_connect_with("127.0.0.1", 70000, &options, &made); },
       RDMA_ERR_BAD_ARGUMENT,
       {"port", "got 70000", "1 to 65535"}},
      {"RDMA_connect",
       [&] { return RDMA_connect_with(with_port.c_str(), 1, &options, &made); },
       RDMA_ERR_BAD_ARGUMENT,
       {"port", "got 70000", "1 to 65535"}},
      {"RDMA_connect",
       [&] { return RDMA_connect_with("127.0.0.1:http", 1, &options, &made); },
       RDMA_ERR_BAD_ARGUMENT,
       {"port", "got http", "1 to 65535"}},
      {"rdmaConnSetOptions",
       [&] { return RDMA_connect_with("127.0.0.1", port, &wrong, &made); },
       RDMA_ERR_BAD_ARGUMENT,
       {"timeout_ms", "got 0", "1 to 1073741824"}},
  });
  EXPECT_EQ(made, nullptr);
}

}  // namespace
}  // namespace verbena::test
