// bring_up and describe against a NIC that only takes notes.
#include "support.hpp"

#include "base/error.hpp"

#include <set>

namespace verbena::link {
namespace {

using test::contains;
using test::generous;
using test::make_endpoint;

/// Records modify_qp and has nothing else.
class NotingNic final : public nic::Nic {
 public:
  explicit NotingNic(nic::Kind kind) : kind_(kind) {}

  struct Call {
    const ibv_qp* qp;
    ibv_qp_attr attr;
    int mask;
    std::uint64_t deadline_ticks;
  };
  std::vector<Call> calls;
  std::size_t failing_call = 99;
  nic::QpAddress address;

  [[nodiscard]] nic::Kind kind() const noexcept override { return kind_; }
  [[nodiscard]] const char* name() const noexcept override { return "noting"; }
  [[nodiscard]] const nic::Limits& limits() const noexcept override { return limits_; }
  [[nodiscard]] const nic::Capabilities& capabilities() const noexcept override { return capabilities_; }
  [[nodiscard]] const ibv_gid& gid() const noexcept override { return address.gid; }
  [[nodiscard]] ibv_context* context() noexcept override { return nullptr; }
  [[nodiscard]] Result<ibv_pd*> alloc_pd() override { return none(); }
  [[nodiscard]] Result<void> dealloc_pd(ibv_pd*) override { return none(); }
  [[nodiscard]] Result<std::uint64_t> attach(const host::Arena&, const nic::Grant&) override { return none(); }
  [[nodiscard]] Result<void> grant(std::uint64_t, const nic::Grant&) override { return none(); }
  [[nodiscard]] Result<void> detach(std::uint64_t) override { return none(); }
  [[nodiscard]] Result<ibv_mr*> reg_mr(ibv_pd*, void*, std::size_t, std::uint64_t, int) override { return none(); }
  [[nodiscard]] Result<void> dereg_mr(ibv_mr*, Deadline) override { return none(); }
  [[nodiscard]] nic::Window window_of(const ibv_mr*) const noexcept override { return {}; }
  [[nodiscard]] Result<void> import_window(ibv_qp*, const nic::Window&, Deadline) override { return none(); }
  [[nodiscard]] Result<void> release_window(ibv_qp*, const nic::Window&) override { return none(); }
  [[nodiscard]] Result<ibv_comp_channel*> create_channel() override { return none(); }
  [[nodiscard]] Result<void> destroy_channel(ibv_comp_channel*) override { return none(); }
  [[nodiscard]] Result<ibv_cq*> wait(ibv_comp_channel*, Deadline) override { return none(); }
  void wake(ibv_comp_channel*) noexcept override {}
  [[nodiscard]] Result<ibv_cq*> create_cq(std::uint32_t, ibv_comp_channel*) override { return none(); }
  [[nodiscard]] Result<void> destroy_cq(ibv_cq*) override { return none(); }
  [[nodiscard]] Result<ibv_srq*> create_srq(ibv_pd*, std::uint32_t, std::uint32_t) override { return none(); }
  [[nodiscard]] Result<void> destroy_srq(ibv_srq*) override { return none(); }
  [[nodiscard]] Result<ibv_mw*> alloc_mw(ibv_pd*) override { return none(); }
  [[nodiscard]] Result<void> dealloc_mw(ibv_mw*, Deadline) override { return none(); }
  [[nodiscard]] Result<ibv_qp*> create_qp(ibv_pd*, nic::QpOptions&) override { return none(); }
  [[nodiscard]] Result<void> modify_qp(ibv_qp* qp, const ibv_qp_attr& attr, int mask, Deadline deadline) override {
    calls.push_back({qp, attr, mask, deadline.ticks()});
    if (calls.size() - 1 == failing_call) return fail(Status::kPeerLost, "modify_qp", 0, "planted");
    return {};
  }
  [[nodiscard]] ibv_qp_state qp_state(const ibv_qp*) const noexcept override { return IBV_QPS_RESET; }
  [[nodiscard]] Status qp_failure(const ibv_qp*) const noexcept override { return Status::kOk; }
  void lose_peer(const ibv_qp*) noexcept override {}
  [[nodiscard]] Result<void> destroy_qp(ibv_qp*) override { return none(); }
  [[nodiscard]] nic::QpAddress address_of(const ibv_qp*) const noexcept override { return address; }
  [[nodiscard]] Result<nic::PeerProcess> peer_of(const ibv_qp*) const override { return none(); }
  [[nodiscard]] Objects objects() const override { return {}; }

 private:
  static std::unexpected<Error> none() { return fail(Status::kUnsupported, "NotingNic", 0, "not here"); }
  nic::Kind kind_;
  nic::Limits limits_;
  nic::Capabilities capabilities_;
};

TEST(Describe, TakesTheAddressAndDrawsTheRest) {
  NotingNic nic(nic::Kind::kVerbs);
  nic.address = make_endpoint(4).qp;
  nic.address.psn = 0;
  nic.address.network = nic::Network::kRoceV2Ipv4;
  ibv_qp qp{};
  std::set<std::uint32_t> sequence_numbers;
  std::set<std::uint64_t> generations;
  for (int i = 0; i < 64; ++i) {
    const Endpoint endpoint = describe(nic, &qp, 77);
    EXPECT_EQ(endpoint.nic, nic::Kind::kVerbs);
    EXPECT_EQ(endpoint.qp.qp_num, nic.address.qp_num);
    EXPECT_TRUE(std::ranges::equal(endpoint.qp.gid.raw, nic.address.gid.raw));
    EXPECT_EQ(endpoint.recv_depth, 77U);
    EXPECT_EQ(endpoint.private_bytes, 0U);
    EXPECT_EQ(fault_of(endpoint), nullptr);
    sequence_numbers.insert(endpoint.qp.psn);
    generations.insert(endpoint.generation);
  }
  EXPECT_EQ(generations.size(), 64U);
  EXPECT_GT(sequence_numbers.size(), 32U);
}

// Timers, retries and READs are a reliable connection's.
TEST(BringUp, AnUnreliableConnectionHasFewerAttributes) {
  NotingNic nic(nic::Kind::kSoft);
  ibv_qp qp{};
  qp.qp_type = IBV_QPT_UC;
  const Endpoint local = make_endpoint(1);
  const Endpoint remote = make_endpoint(2);
  const BringUp options{.access = IBV_ACCESS_REMOTE_WRITE, .traffic_class = 104};
  ASSERT_TRUE(bring_up(nic, &qp, local, remote, options, generous()).has_value());
  ASSERT_EQ(nic.calls.size(), 3U);
  EXPECT_EQ(nic.calls[1].mask, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
  EXPECT_EQ(nic.calls[1].attr.ah_attr.grh.traffic_class, 104);
  EXPECT_EQ(nic.calls[2].mask, IBV_QP_STATE | IBV_QP_SQ_PSN);
  EXPECT_EQ(nic.calls[2].attr.sq_psn, local.qp.psn);
}

TEST(BringUp, WalksTheStatesWithVerbsAttributes) {
  NotingNic nic(nic::Kind::kSoft);
  ibv_qp qp{};
  Endpoint local = make_endpoint(1), remote = make_endpoint(2);
  local.qp.mtu = IBV_MTU_4096;
  remote.qp.mtu = IBV_MTU_1024;
  local.qp.max_rd_atomic = 5;
  remote.qp.max_rd_atomic = 16;
  const BringUp options{.access = IBV_ACCESS_REMOTE_WRITE,
                        .min_rnr_timer = 3,
                        .rnr_retry = 6,
                        .retry_count = 5,
                        .timeout = 11,
                        .port = 2,
                        .gid_index = 4};
  const Deadline deadline = generous();
  const auto done = bring_up(nic, &qp, local, remote, options, deadline);
  ASSERT_TRUE(done.has_value()) << done.error().text();
  ASSERT_EQ(nic.calls.size(), 3U);
  for (const auto& call : nic.calls) {
    EXPECT_EQ(call.qp, &qp);
    EXPECT_EQ(call.deadline_ticks, deadline.ticks());
  }

  const auto& init = nic.calls[0];
  EXPECT_EQ(init.mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  EXPECT_EQ(init.attr.qp_state, IBV_QPS_INIT);
  EXPECT_EQ(init.attr.pkey_index, 0);
  EXPECT_EQ(init.attr.port_num, 2);
  EXPECT_EQ(init.attr.qp_access_flags, static_cast<unsigned>(IBV_ACCESS_REMOTE_WRITE));

  const auto& rtr = nic.calls[1];
  EXPECT_EQ(rtr.mask, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  EXPECT_EQ(rtr.attr.qp_state, IBV_QPS_RTR);
  EXPECT_EQ(rtr.attr.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(rtr.attr.dest_qp_num, remote.qp.qp_num);
  EXPECT_EQ(rtr.attr.rq_psn, remote.qp.psn);
  EXPECT_EQ(rtr.attr.max_dest_rd_atomic, 5);
  EXPECT_EQ(rtr.attr.min_rnr_timer, 3);
  EXPECT_EQ(rtr.attr.ah_attr.is_global, 1);
  EXPECT_TRUE(std::ranges::equal(rtr.attr.ah_attr.grh.dgid.raw, remote.qp.gid.raw));
  EXPECT_EQ(rtr.attr.ah_attr.grh.sgid_index, 4);
  EXPECT_GT(rtr.attr.ah_attr.grh.hop_limit, 1);
  EXPECT_EQ(rtr.attr.ah_attr.dlid, remote.qp.lid);
  EXPECT_EQ(rtr.attr.ah_attr.port_num, 2);

  const auto& rts = nic.calls[2];
  EXPECT_EQ(rts.mask, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC);
  EXPECT_EQ(rts.attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(rts.attr.timeout, 11);
  EXPECT_EQ(rts.attr.retry_cnt, 5);
  EXPECT_EQ(rts.attr.rnr_retry, 6);
  EXPECT_EQ(rts.attr.sq_psn, local.qp.psn);
  EXPECT_EQ(rts.attr.max_rd_atomic, 5);
}

TEST(BringUp, DefaultsAreTheNicsOwnPortAndGid) {
  NotingNic nic(nic::Kind::kSoft);
  ibv_qp qp{};
  ASSERT_TRUE(bring_up(nic, &qp, make_endpoint(1), make_endpoint(2), {}, generous()));
  EXPECT_EQ(nic.calls[0].attr.port_num, 0);
  EXPECT_EQ(nic.calls[1].attr.ah_attr.port_num, 0);
  EXPECT_EQ(nic.calls[1].attr.ah_attr.grh.sgid_index, 0);
  EXPECT_LT(nic.calls[2].attr.retry_cnt, 7) << "Soft-RoCE retries for ever with 7";
  EXPECT_EQ(nic.calls[0].attr.qp_access_flags,
            static_cast<unsigned>(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
}

TEST(BringUp, StopsAtTheFirstFailure) {
  for (std::size_t failing = 0; failing < 3; ++failing) {
    NotingNic nic(nic::Kind::kSoft);
    nic.failing_call = failing;
    ibv_qp qp{};
    const auto done = bring_up(nic, &qp, make_endpoint(1), make_endpoint(2), {}, generous());
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().status(), Status::kPeerLost);
    EXPECT_EQ(nic.calls.size(), failing + 1);
  }
}

TEST(BringUp, OtherNetworkIsRejectedNamingBoth) {
  NotingNic nic(nic::Kind::kVerbs);
  ibv_qp qp{};
  Endpoint local = make_endpoint(1), remote = make_endpoint(2);
  local.nic = remote.nic = nic::Kind::kVerbs;
  local.qp.network = nic::Network::kRoceV2Ipv4;
  remote.qp.network = nic::Network::kRoceV1;
  const auto done = bring_up(nic, &qp, local, remote, {}, generous());
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().status(), Status::kRejected);
  EXPECT_TRUE(contains(done.error(), "RoCE v2 over IPv4")) << done.error().text();
  EXPECT_TRUE(contains(done.error(), "RoCE v1")) << done.error().text();
  EXPECT_TRUE(nic.calls.empty());
  remote.qp.network = nic::Network::kRoceV2Ipv4;
  EXPECT_TRUE(bring_up(nic, &qp, local, remote, {}, generous()).has_value());
}

/// Knows a path, and fails on the way to `failing`.
class FakeRoute final : public Route {
 public:
  ibv_qp_state failing = IBV_QPS_UNKNOWN;
  Result<int> attributes(ibv_qp_attr& attr) const override {
    if (attr.qp_state == failing) return fail(Status::kDevice, "rdma_init_qp_attr", EIO, "broken on purpose");
    const ibv_qp_state state = attr.qp_state;
    attr = {};
    attr.qp_state = state;
    attr.port_num = 7;
    attr.pkey_index = 3;
    attr.dest_qp_num = 1234;
    attr.rq_psn = 55;
    attr.sq_psn = 66;
    attr.path_mtu = IBV_MTU_512;
    attr.ah_attr.sl = 5;
    attr.ah_attr.grh.sgid_index = 9;
    attr.timeout = 31;
    attr.min_rnr_timer = 0;
    attr.max_rd_atomic = 99;
    return IBV_QP_STATE;
  }
};

TEST(BringUp, TakesThePathFromTheRouteAndTheRestFromTheOptions) {
  NotingNic nic(nic::Kind::kSoft);
  ibv_qp qp{};
  FakeRoute route;
  const BringUp options{.min_rnr_timer = 3, .timeout = 11, .port = 2, .gid_index = 4, .route = &route};
  ASSERT_TRUE(bring_up(nic, &qp, make_endpoint(1), make_endpoint(2), options, generous()).has_value());
  ASSERT_EQ(nic.calls.size(), 3U);
  EXPECT_EQ(nic.calls[0].attr.port_num, 7);
  EXPECT_EQ(nic.calls[0].attr.pkey_index, 3);
  EXPECT_EQ(nic.calls[0].attr.qp_access_flags, static_cast<unsigned>(options.access));
  EXPECT_EQ(nic.calls[1].attr.dest_qp_num, 1234U);
  EXPECT_EQ(nic.calls[1].attr.rq_psn, 55U);
  EXPECT_EQ(nic.calls[1].attr.path_mtu, IBV_MTU_512);
  EXPECT_EQ(nic.calls[1].attr.ah_attr.sl, 5);
  EXPECT_EQ(nic.calls[1].attr.ah_attr.grh.sgid_index, 9);
  EXPECT_EQ(nic.calls[1].attr.min_rnr_timer, 3);
  EXPECT_EQ(nic.calls[1].attr.max_dest_rd_atomic, 16);
  EXPECT_EQ(nic.calls[2].attr.sq_psn, 66U);
  EXPECT_EQ(nic.calls[2].attr.timeout, 11);
  EXPECT_EQ(nic.calls[2].attr.max_rd_atomic, 16);
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    route.failing = state;
    const auto done = bring_up(nic, &qp, make_endpoint(1), make_endpoint(2), options, generous());
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().status(), Status::kDevice);
  }
}

TEST(BringUp, OtherKindOfNicIsRejectedNamingBoth) {
  NotingNic nic(nic::Kind::kSoft);
  ibv_qp qp{};
  Endpoint remote = make_endpoint(2);
  remote.nic = nic::Kind::kVerbs;
  remote.qp.network = nic::Network::kRoceV2Ipv4;
  const auto done = bring_up(nic, &qp, make_endpoint(1), remote, {}, generous());
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().status(), Status::kRejected);
  EXPECT_TRUE(contains(done.error(), "soft")) << done.error().text();
  EXPECT_TRUE(contains(done.error(), "verbs")) << done.error().text();
  EXPECT_TRUE(nic.calls.empty());
}

TEST(BringUp, BadEndpointsDoNotReachTheNic) {
  NotingNic nic(nic::Kind::kSoft);
  ibv_qp qp{};
  Endpoint bad = make_endpoint(2);
  bad.qp.mtu = 0;
  auto done = bring_up(nic, &qp, make_endpoint(1), bad, {}, generous());
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().status(), Status::kProtocol);
  done = bring_up(nic, &qp, bad, make_endpoint(1), {}, generous());
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().status(), Status::kBadArgument);
  EXPECT_TRUE(nic.calls.empty());
}

}  // namespace
}  // namespace verbena::link
