// The verbs NIC over a library that is not there: what is released when a call fails, events, options, limits.
#include "nic/verbs/verbs_nic.hpp"
#include "base/error.hpp"
#include "fake_library.hpp"
#include "host/arena.hpp"
#include "process.hpp"
#include "result.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

namespace verbena::nic::verbs {
namespace {

using namespace std::chrono_literals;

[[nodiscard]] Deadline soon() { return Deadline::after(10s); }

constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr int kInitMask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRtsMask =
    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

/// Makes one of everything, up to a queue pair in RTS.
struct Scene {
  std::unique_ptr<Nic> nic;
  std::optional<std::uint64_t> arena;
  Pd pd;
  Mr mr;
  Mw mw;
  Channel channel;
  Cq cq;
  ibv_srq* srq = nullptr;
  Qp qp;
  alignas(64) std::array<std::byte, 4096> memory{};

  [[nodiscard]] Result<void> set_up(const FakeLibrary& library, const VerbsOptions& options = {}) {
    VERBENA_ASSIGN(nic, open_with(library.table(), options));
    VERBENA_ASSIGN(ibv_pd * made_pd, nic->alloc_pd());
    pd = Pd(*nic, made_pd);
    VERBENA_ASSIGN(ibv_mr * made_mr, nic->reg_mr(pd.get(), memory.data(), memory.size(), 0x7000, kAllAccess));
    mr = Mr(*nic, made_mr);
    VERBENA_ASSIGN(ibv_mw * made_mw, nic->alloc_mw(pd.get()));
    mw = Mw(*nic, made_mw);
    VERBENA_ASSIGN(ibv_comp_channel * made_channel, nic->create_channel());
    channel = Channel(*nic, made_channel);
    VERBENA_ASSIGN(ibv_cq * made_cq, nic->create_cq(64, channel.get()));
    cq = Cq(*nic, made_cq);
    VERBENA_ASSIGN(srq, nic->create_srq(pd.get(), 64, 1));
    QpOptions options_of_qp{.send_cq = cq.get(), .recv_cq = cq.get(), .srq = srq};
    VERBENA_ASSIGN(ibv_qp * made_qp, nic->create_qp(pd.get(), options_of_qp));
    qp = Qp(*nic, made_qp);
    return connect(qp.get());
  }
  [[nodiscard]] Result<void> connect(ibv_qp* one) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    VERBENA_TRY(nic->modify_qp(one, attr, kInitMask, soon()));
    attr.qp_state = IBV_QPS_RTR;
    VERBENA_TRY(nic->modify_qp(one, attr, kRtrMask, soon()));
    attr.qp_state = IBV_QPS_RTS;
    VERBENA_TRY(nic->modify_qp(one, attr, kRtsMask, soon()));
    return nic->import_window(one, nic->window_of(mr.get()), soon());
  }
  void close() {
    qp.reset();
    if (srq != nullptr) {
      EXPECT_OK(nic->destroy_srq(std::exchange(srq, nullptr)));
    }
    cq.reset();
    channel.reset();
    mw.reset();
    mr.reset();
    pd.reset();
    if (nic != nullptr) {
      EXPECT_EQ(nic->objects(), Nic::Objects{});
    }
    nic.reset();
  }
  ~Scene() { close(); }
};

class VerbsNicTest : public testing::Test {
 protected:
  VerbsNicTest() {
    library_.devices.push_back(
        std::make_unique<FakeDevice>("fake_0", std::vector<FakePort>{{.gids = {ipv4_gid(3, 1)}}}));
  }
  ~VerbsNicTest() override {
    scene_.close();
    EXPECT_EQ(library_.live(), 0U);
  }
  void make_scene() { ASSERT_OK(scene_.set_up(library_)); }
  [[nodiscard]] bool becomes(const ibv_qp* qp, Status status) const {
    const Deadline deadline = soon();
    while (scene_.nic->qp_failure(qp) != status && !deadline.passed()) std::this_thread::yield();
    return scene_.nic->qp_failure(qp) == status;
  }
  [[nodiscard]] bool all_acknowledged() const {
    const Deadline deadline = soon();
    while (library_.unacknowledged() != 0 && !deadline.passed()) std::this_thread::yield();
    return library_.unacknowledged() == 0;
  }
  FakePort& port() { return library_.devices.front()->ports.front(); }

  FakeLibrary library_;
  Scene scene_;
};

// --- nothing is left behind -------------------------------------------------------------------------------------

/// Fails the n-th call that makes or changes something, for every n, until a set-up needs no n calls.
void fail_every_call(FakeLibrary& library) {
  const std::size_t descriptors = test::open_descriptors();
  int failures = 0;
  for (int n = 1;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 200);
    library.acquires = 0;
    library.fail_acquire = n;
    bool reached = false;
    {
      Scene scene;
      const auto result = scene.set_up(library);
      reached = library.acquires >= n;
      library.fail_acquire = 0;
      if (result) {
        // What is optional: a thread domain, a larger inline size. All the rest is there and works.
        EXPECT_EQ(
            scene.nic->objects(),
            (Nic::Objects{.pds = 1, .mrs = 1, .cqs = 1, .qps = 1, .channels = 1, .imports = 1, .srqs = 1, .mws = 1}));
        EXPECT_EQ(scene.nic->qp_state(scene.qp.get()), IBV_QPS_RTS);
      } else {
        ++failures;
        EXPECT_NE(result.error().status(), Status::kOk);
        EXPECT_STRNE(result.error().text(), "");
      }
    }
    EXPECT_EQ(library.live(), 0U);
    EXPECT_EQ(test::open_descriptors(), descriptors);
    if (!reached) break;
  }
  EXPECT_GE(failures, 14);  // list, open, device, port, GIDs, PD, CQ; PD, MR, channel, CQ, SRQ, QP, three states
}

TEST_F(VerbsNicTest, NothingIsLeftWhenACallFails) {
  for (const int cause : {EIO, ENOMEM, EINVAL, EPERM}) {
    SCOPED_TRACE(cause);
    library_.fail_errno = cause;
    fail_every_call(library_);
  }
}

TEST_F(VerbsNicTest, NothingIsLeftWhenACallFailsWithThreadDomains) {
  library_.has_thread_domains = true;
  fail_every_call(library_);
}

// A refused release changes nothing: it is told, the object is still there, and the next try releases it.
TEST_F(VerbsNicTest, RefusedReleases) {
  library_.has_thread_domains = true;
  library_.fail_errno = EBUSY;
  make_scene();
  Nic& nic = *scene_.nic;
  const auto retried = [&](auto call) {
    library_.releases = 0;
    library_.fail_release = 1;
    EXPECT_STATUS(call(), Status::kBusy);
    library_.fail_release = 0;
    EXPECT_OK(call());
  };
  retried([&, qp = scene_.qp.release()] { return nic.destroy_qp(qp); });
  retried([&, srq = std::exchange(scene_.srq, nullptr)] { return nic.destroy_srq(srq); });
  ibv_cq* cq = scene_.cq.release();
  // Its parent domain, its thread domain, and the queue itself: what is released already is not released again.
  for (const int call : {1, 2, 2}) {
    library_.releases = 0;
    library_.fail_release = call;
    EXPECT_STATUS(nic.destroy_cq(cq), Status::kBusy);
    EXPECT_EQ(library_.releases, call);
    EXPECT_EQ(nic.objects().cqs, 1U);
  }
  library_.fail_release = 0;
  EXPECT_OK(nic.destroy_cq(cq));
  EXPECT_EQ(library_.live("td"), 0U);
  EXPECT_EQ(library_.live("parent"), 0U);
  retried([&, channel = scene_.channel.release()] { return nic.destroy_channel(channel); });
  retried([&, mw = scene_.mw.release()] { return nic.dealloc_mw(mw, soon()); });
  retried([&, mr = scene_.mr.release()] { return nic.dereg_mr(mr, soon()); });
  retried([&, pd = scene_.pd.release()] { return nic.dealloc_pd(pd); });
  EXPECT_EQ(nic.objects(), Nic::Objects{});
}

TEST_F(VerbsNicTest, WhatIsUsedIsBusy) {
  make_scene();
  Nic& nic = *scene_.nic;
  EXPECT_STATUS(nic.dealloc_pd(scene_.pd.get()), Status::kBusy);
  EXPECT_STATUS(nic.destroy_cq(scene_.cq.get()), Status::kBusy);
  EXPECT_STATUS(nic.destroy_channel(scene_.channel.get()), Status::kBusy);
  EXPECT_STATUS(nic.destroy_srq(scene_.srq), Status::kBusy);
  scene_.qp.reset();
  EXPECT_STATUS(nic.dealloc_pd(scene_.pd.get()), Status::kBusy);  // The region and the SRQ.
  EXPECT_STATUS(nic.destroy_channel(scene_.channel.get()), Status::kBusy);
}

TEST_F(VerbsNicTest, StrangersAreRefused) {
  make_scene();
  Nic& nic = *scene_.nic;
  ibv_pd pd{};
  ibv_mr mr{};
  ibv_mw mw{};
  ibv_cq cq{};
  ibv_qp qp{};
  ibv_srq srq{};
  ibv_comp_channel channel{};
  EXPECT_STATUS(nic.dealloc_pd(&pd), Status::kBadArgument);
  EXPECT_STATUS(nic.reg_mr(&pd, scene_.memory.data(), 8, 0, kAllAccess), Status::kBadArgument);
  EXPECT_STATUS(nic.dereg_mr(&mr, soon()), Status::kBadArgument);
  EXPECT_STATUS(nic.alloc_mw(&pd), Status::kBadArgument);
  EXPECT_STATUS(nic.dealloc_mw(&mw, soon()), Status::kBadArgument);
  EXPECT_STATUS(nic.destroy_cq(&cq), Status::kBadArgument);
  EXPECT_STATUS(nic.create_cq(4, &channel), Status::kBadArgument);
  EXPECT_STATUS(nic.destroy_qp(&qp), Status::kBadArgument);
  EXPECT_STATUS(nic.import_window(&qp, {}, soon()), Status::kBadArgument);
  EXPECT_STATUS(nic.destroy_srq(&srq), Status::kBadArgument);
  EXPECT_STATUS(nic.destroy_channel(&channel), Status::kBadArgument);
  EXPECT_STATUS(nic.destroy_channel(nullptr), Status::kBadArgument);
  EXPECT_STATUS(nic.wait(&channel, soon()), Status::kBadArgument);
  QpOptions options{.send_cq = &cq, .recv_cq = scene_.cq.get()};
  EXPECT_STATUS(nic.create_qp(scene_.pd.get(), options), Status::kBadArgument);
  nic.wake(&channel);  // Does nothing.
}

// --- what the device can do -------------------------------------------------------------------------------------

TEST_F(VerbsNicTest, LimitsAreReadBack) {
  make_scene();
  const Limits& limits = scene_.nic->limits();
  EXPECT_EQ(limits.max_qp, 1000U);
  EXPECT_EQ(limits.max_cq, 900U);
  EXPECT_EQ(limits.max_mr, 800U);
  EXPECT_EQ(limits.max_pd, 700U);
  EXPECT_EQ(limits.max_qp_wr, 4096U);
  EXPECT_EQ(limits.max_cqe, 60000U);
  EXPECT_EQ(limits.max_sge, 20U);        // That of READ.
  EXPECT_EQ(limits.max_rd_atomic, 12U);  // The smaller role.
  EXPECT_EQ(limits.max_inline, 220U);    // Asked for 128, rounded up by the device.
  EXPECT_EQ(limits.max_message, 1U << 30);
  const DeviceFacts* facts = facts_of(*scene_.nic);
  ASSERT_NE(facts, nullptr);
  EXPECT_EQ(facts->port, 1);
  EXPECT_EQ(facts->mtu, IBV_MTU_2048);
  EXPECT_EQ(facts->atomics, IBV_ATOMIC_HCA);
  EXPECT_FALSE(facts->thread_domains);
  EXPECT_EQ(facts->gid.index, 3U);
  EXPECT_STREQ(facts->gid.netdev.data(), "lo");
  EXPECT_EQ(scene_.nic->kind(), Kind::kVerbs);
  EXPECT_STREQ(scene_.nic->name(), "fake_0");

  const QpAddress address = scene_.nic->address_of(scene_.qp.get());
  EXPECT_EQ(address.qp_num, scene_.qp->qp_num);
  EXPECT_EQ(std::memcmp(&address.gid, &port().gids[0].gid, sizeof address.gid), 0);
  EXPECT_EQ(address.mtu, IBV_MTU_2048);
  EXPECT_EQ(address.max_rd_atomic, 12);
  EXPECT_STATUS(scene_.nic->peer_of(scene_.qp.get()), Status::kUnsupported);
}

TEST_F(VerbsNicTest, NotARdmaDevice) {
  const auto soft = open_soft({});
  ASSERT_OK(soft);
  EXPECT_EQ(facts_of(**soft), nullptr);
}

TEST_F(VerbsNicTest, QueuePairsBeyondTheLimits) {
  make_scene();
  Nic& nic = *scene_.nic;
  const auto refused = [&](auto change) {
    QpOptions options{.send_cq = scene_.cq.get(), .recv_cq = scene_.cq.get()};
    change(options);
    return test::has_status(nic.create_qp(scene_.pd.get(), options), Status::kBadArgument);
  };
  EXPECT_TRUE(refused([](QpOptions& options) { options.max_send_wr = 4097; }));
  EXPECT_TRUE(refused([](QpOptions& options) { options.max_recv_wr = 4097; }));
  EXPECT_TRUE(refused([](QpOptions& options) { options.max_send_sge = 21; }));
  EXPECT_TRUE(refused([](QpOptions& options) { options.max_recv_sge = 21; }));
  EXPECT_TRUE(refused([](QpOptions& options) { options.max_inline = 221; }));
  EXPECT_TRUE(refused([](QpOptions& options) { options.send_cq = nullptr; }));
  EXPECT_STATUS(nic.create_cq(0, nullptr), Status::kBadArgument);
  EXPECT_STATUS(nic.create_cq(60001, nullptr), Status::kBadArgument);
  QpOptions options{.send_cq = scene_.cq.get(), .recv_cq = scene_.cq.get(), .max_send_wr = 10, .max_inline = 7};
  const auto made = nic.create_qp(scene_.pd.get(), options);
  ASSERT_OK(made);
  const Qp qp(nic, *made);
  EXPECT_EQ(options.max_send_wr, 11U);  // What the queue pair has.
  EXPECT_EQ(options.max_inline, 220U);
}

// One thread owns a receive queue: its queue pairs share a domain, those of another do not.
TEST_F(VerbsNicTest, ThreadDomains) {
  library_.has_thread_domains = true;
  make_scene();
  EXPECT_TRUE(facts_of(*scene_.nic)->thread_domains);
  Nic& nic = *scene_.nic;
  ibv_pd* first = library_.last_qp_domain;
  EXPECT_NE(first, scene_.pd.get());
  const auto other_cq = nic.create_cq(4, nullptr);
  ASSERT_OK(other_cq);
  const Cq cq(nic, *other_cq);
  QpOptions same{.send_cq = cq.get(), .recv_cq = scene_.cq.get()};
  const auto second = nic.create_qp(scene_.pd.get(), same);
  ASSERT_OK(second);
  const Qp second_qp(nic, *second);
  EXPECT_EQ(library_.last_qp_domain, first);
  QpOptions other{.send_cq = cq.get(), .recv_cq = cq.get()};
  const auto third = nic.create_qp(scene_.pd.get(), other);
  ASSERT_OK(third);
  const Qp third_qp(nic, *third);
  EXPECT_NE(library_.last_qp_domain, first);
  EXPECT_NE(library_.last_qp_domain, scene_.pd.get());
  EXPECT_EQ(library_.live("td"), 2U);
  EXPECT_EQ(library_.live("parent"), 2U);
  EXPECT_EQ(nic.objects().pds, 1U);
}

// --- options ----------------------------------------------------------------------------------------------------

class OpenTest : public VerbsNicTest {
 protected:
  testing::AssertionResult refused(const VerbsOptions& options, Status status, const char* text) {
    const auto nic = open_with(library_.table(), options);
    if (!test::has_status(nic, status)) return test::has_status(nic, status);
    if (std::strstr(nic.error().text(), text) != nullptr) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "\"" << nic.error().text() << "\" does not say \"" << text << "\"";
  }
  void add(const char* name, std::vector<FakePort> ports) {
    library_.devices.push_back(std::make_unique<FakeDevice>(name, std::move(ports)));
  }
};

TEST_F(OpenTest, UnknownDevice) {
  add("fake_1", {{.gids = {ipv4_gid(0, 2)}}});
  EXPECT_TRUE(refused({.device = "mlx5_7"}, Status::kNotFound, "mlx5_7; this host has: fake_0, fake_1"));
}

TEST_F(OpenTest, NoDevice) {
  library_.devices.clear();
  EXPECT_TRUE(refused({}, Status::kNotFound, "no RDMA device"));
  EXPECT_TRUE(refused({.device = "fake_0"}, Status::kNotFound, "no RDMA device"));
}

TEST_F(OpenTest, NoVerbsInTheKernel) {
  library_.list_errno = ENOSYS;
  EXPECT_TRUE(refused({}, Status::kDevice, "ib_uverbs"));
  EXPECT_STATUS(list_with(library_.table()), Status::kDevice);
  library_.list_errno = EPERM;
  EXPECT_TRUE(refused({}, Status::kPermission, "/dev/infiniband"));
}

TEST_F(OpenTest, ForbiddenDevice) {
  library_.devices.front()->open_errno = EACCES;
  EXPECT_TRUE(refused({}, Status::kPermission, "uverbs"));
}

TEST_F(OpenTest, DeviceByName) {
  add("fake_1", {{.gids = {ipv4_gid(5, 2)}}});
  const auto nic = open_with(library_.table(), {.device = "fake_1"});
  ASSERT_OK(nic);
  EXPECT_STREQ((*nic)->name(), "fake_1");
  EXPECT_EQ(facts_of(**nic)->gid.index, 5U);
}

TEST_F(OpenTest, FirstDeviceThatCanBeUsed) {
  port().state = IBV_PORT_DOWN;
  add("fake_1", {{.gids = {}}});
  add("fake_2", {{.gids = {ipv4_gid(0, 2)}}});
  const auto nic = open_with(library_.table(), {});
  ASSERT_OK(nic);
  EXPECT_STREQ((*nic)->name(), "fake_2");
}

TEST_F(OpenTest, Ports) {
  port().state = IBV_PORT_DOWN;
  EXPECT_TRUE(refused({.port = 2}, Status::kBadArgument, "its ports are 1 to 1"));
  EXPECT_TRUE(refused({.port = 1}, Status::kDevice, "port 1 of fake_0 is down"));
  EXPECT_TRUE(refused({}, Status::kDevice, "port 1 of fake_0 is down"));
  FakeDevice& device = *library_.devices.front();
  device.ports.push_back({.gids = {ipv4_gid(1, 9)}});
  device.attr.phys_port_cnt = 2;
  EXPECT_TRUE(refused({.port = 1}, Status::kDevice, "port 1 of fake_0 is down"));
  const auto nic = open_with(library_.table(), {});
  ASSERT_OK(nic);
  EXPECT_EQ(facts_of(**nic)->port, 2);
  EXPECT_EQ((*nic)->gid().raw[15], 9);  // The second port's own GID.
}

TEST_F(OpenTest, Gids) {
  port().gids.push_back(ipv4_gid(4, 7));
  EXPECT_TRUE(refused({.gid = {.index = 9}}, Status::kNotFound, ""));
  auto nic = open_with(library_.table(), {.gid = {.index = 4}});
  ASSERT_OK(nic);
  EXPECT_EQ((*nic)->gid().raw[15], 7);
  nic->reset();
  nic = open_with(library_.table(), {.gid = {.address = ipv4_gid(0, 1).gid}});
  ASSERT_OK(nic);
  EXPECT_EQ(facts_of(**nic)->gid.index, 3U);
  nic->reset();
  port().gids.clear();
  EXPECT_TRUE(refused({}, Status::kNotFound, ""));
}

TEST_F(OpenTest, NoQueuePairCanBeMade) {
  library_.fail_errno = ENOMEM;
  for (int n = 1; n < 20; ++n) {
    library_.acquires = 0;
    library_.fail_acquire = n;
    const auto nic = open_with(library_.table(), {});
    if (nic) break;
    EXPECT_STRNE(nic.error().text(), "");
  }
}

TEST_F(OpenTest, Listing) {
  add("fake_1", {{.state = IBV_PORT_DOWN}, {.link_layer = IBV_LINK_LAYER_INFINIBAND}});
  const auto list = list_with(library_.table());
  ASSERT_OK(list);
  ASSERT_EQ(list->size(), 3U);
  EXPECT_EQ((*list)[0].device, "fake_0");
  EXPECT_EQ((*list)[0].link_layer, LinkLayer::kEthernet);
  EXPECT_EQ((*list)[0].atomics, IBV_ATOMIC_HCA);
  EXPECT_EQ((*list)[0].max_rd_atomic, 12U);
  EXPECT_EQ((*list)[1].state, IBV_PORT_DOWN);
  EXPECT_EQ((*list)[2].port, 2);
  EXPECT_EQ((*list)[2].link_layer, LinkLayer::kInfiniBand);
}

// The real one, or what stands in for it: no machine has this device.
TEST(VerbsTest, ARealLibraryKnowsNoSuchDevice) {
  const auto nic = open_verbs({.device = "no such device"});
  ASSERT_FALSE(nic.has_value());
  EXPECT_TRUE(nic.error().status() == Status::kNotFound || nic.error().status() == Status::kDevice ||
              nic.error().status() == Status::kPermission || nic.error().status() == Status::kUnsupported);
}

// --- addresses --------------------------------------------------------------------------------------------------

class PathTest : public VerbsNicTest {
 protected:
  ibv_ah_attr path_to(const ibv_gid& gid, std::uint8_t port = 0) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.dlid = 17;
    attr.ah_attr.port_num = port;
    attr.ah_attr.grh.dgid = gid;
    attr.ah_attr.grh.sgid_index = 77;
    attr.ah_attr.grh.hop_limit = 5;
    EXPECT_OK(scene_.nic->modify_qp(scene_.qp.get(), attr, kRtrMask, soon()));
    return library_.last_modify.ah_attr;
  }
};

TEST_F(PathTest, Ethernet) {
  make_scene();
  const ibv_ah_attr path = path_to(ipv4_gid(0, 2).gid);
  EXPECT_EQ(path.port_num, 1);
  EXPECT_EQ(path.is_global, 1);
  EXPECT_EQ(path.grh.sgid_index, 3);
  EXPECT_EQ(path.grh.hop_limit, 5);
  EXPECT_EQ(path.grh.dgid.raw[15], 2);
}

TEST_F(PathTest, AsGivenWithItsPort) {
  make_scene();
  const ibv_ah_attr path = path_to(ipv4_gid(0, 2).gid, 1);
  EXPECT_EQ(path.grh.sgid_index, 77);
  EXPECT_EQ(path.port_num, 1);
}

TEST_F(PathTest, PortOfInit) {
  make_scene();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  ASSERT_OK(scene_.nic->modify_qp(scene_.qp.get(), attr, kInitMask, soon()));
  EXPECT_EQ(library_.last_modify.port_num, 1);
}

TEST_F(PathTest, InfiniBand) {
  ibv_gid_entry own{};
  own.gid_type = IBV_GID_TYPE_IB;
  own.gid.global.subnet_prefix = 0x80FE;  // fe80::, big-endian
  own.gid.global.interface_id = 5;
  port() = {.link_layer = IBV_LINK_LAYER_INFINIBAND, .lid = 9, .gids = {own}};
  make_scene();
  EXPECT_EQ(scene_.nic->address_of(scene_.qp.get()).lid, 9);
  ibv_gid peer = own.gid;
  peer.global.interface_id = 6;
  EXPECT_EQ(path_to(peer).is_global, 0);
  EXPECT_EQ(path_to(peer).dlid, 17);
  peer.global.subnet_prefix = 0x81FE;
  EXPECT_EQ(path_to(peer).is_global, 1);
}

TEST_F(PathTest, InfiniBandThatRoutesByGid) {
  ibv_gid_entry own{};
  own.gid.global.subnet_prefix = 0x80FE;
  own.gid.global.interface_id = 5;
  port() = {.link_layer = IBV_LINK_LAYER_INFINIBAND, .lid = 9, .flags = IBV_QPF_GRH_REQUIRED, .gids = {own}};
  make_scene();
  EXPECT_EQ(path_to(own.gid).is_global, 1);
}

// --- memory -----------------------------------------------------------------------------------------------------

TEST_F(VerbsNicTest, Windows) {
  make_scene();
  const Window window = scene_.nic->window_of(scene_.mr.get());
  EXPECT_EQ(window.address, 0x7000U);
  EXPECT_EQ(window.length, scene_.memory.size());
  EXPECT_EQ(window.rkey, scene_.mr->rkey);
  EXPECT_EQ(window.access, static_cast<unsigned>(kAllAccess));
  EXPECT_EQ(window.memory_id, 0U);
  Nic& nic = *scene_.nic;
  ASSERT_EQ(nic.objects().imports, 1U);
  ASSERT_OK(nic.import_window(scene_.qp.get(), window, soon()));
  EXPECT_EQ(nic.objects().imports, 1U);
  EXPECT_OK(nic.release_window(scene_.qp.get(), window));
  EXPECT_EQ(nic.objects().imports, 1U);
  EXPECT_OK(nic.release_window(scene_.qp.get(), window));
  EXPECT_EQ(nic.objects().imports, 0U);
  EXPECT_STATUS(nic.release_window(scene_.qp.get(), window), Status::kBadArgument);
}

TEST_F(VerbsNicTest, Registrations) {
  make_scene();
  Nic& nic = *scene_.nic;
  void* memory = scene_.memory.data();
  EXPECT_STATUS(nic.reg_mr(scene_.pd.get(), memory, 0, 0, kAllAccess), Status::kBadArgument);
  EXPECT_STATUS(nic.reg_mr(scene_.pd.get(), memory, 9, ~std::uint64_t{0} - 7, kAllAccess), Status::kBadArgument);
  EXPECT_STATUS(nic.reg_mr(scene_.pd.get(), memory, 8, 0, IBV_ACCESS_REMOTE_WRITE), Status::kBadArgument);
  EXPECT_STATUS(nic.reg_mr(scene_.pd.get(), memory, 8, 0, IBV_ACCESS_REMOTE_ATOMIC), Status::kBadArgument);
  EXPECT_EQ(nic.objects().mrs, 1U);
  // Up to the last address there is.
  const auto top = nic.reg_mr(scene_.pd.get(), memory, 8, ~std::uint64_t{0} - 7, kAllAccess);
  ASSERT_OK(top);
  EXPECT_OK(nic.dereg_mr(*top, soon()));
}

TEST_F(VerbsNicTest, RelaxedOrderingIsOptional) {
  make_scene();
  Nic& nic = *scene_.nic;
  const auto access_of = [&](int access) {
    const auto mr = nic.reg_mr(scene_.pd.get(), scene_.memory.data(), 8, 0, access);
    EXPECT_OK(mr);
    if (!mr) return 0U;
    const Mr owner(nic, *mr);
    EXPECT_EQ(nic.window_of(*mr).access, library_.last_access);
    return library_.last_access;
  };
  constexpr int kRelaxed = kAllAccess | IBV_ACCESS_RELAXED_ORDERING;
  EXPECT_EQ(access_of(kAllAccess), static_cast<unsigned>(kAllAccess));  // Never unasked.
  EXPECT_EQ(access_of(kRelaxed), static_cast<unsigned>(kRelaxed));
  library_.refuses_optional_access = true;
  EXPECT_EQ(access_of(kRelaxed), static_cast<unsigned>(kAllAccess));
}

TEST_F(VerbsNicTest, LockedMemoryLimit) {
  make_scene();
  Nic& nic = *scene_.nic;
  library_.max_locked = 4096;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  rlimit lower = limit;
  lower.rlim_cur = 65536;
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &lower), 0);
  const auto over = nic.reg_mr(scene_.pd.get(), scene_.memory.data(), 1 << 20, 0, kAllAccess);
  const auto under = nic.reg_mr(scene_.pd.get(), scene_.memory.data(), 8192, 0, kAllAccess);
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  EXPECT_STATUS(over, Status::kLimit);
  EXPECT_NE(std::strstr(over.error().text(), "RLIMIT_MEMLOCK is 64 KiB"), nullptr) << over.error().text();
  EXPECT_NE(std::strstr(over.error().text(), "ulimit -l"), nullptr);
  EXPECT_STATUS(under, Status::kNoMemory);  // The limit is not what it was.
  EXPECT_EQ(nic.objects().mrs, 1U);
}

TEST_F(VerbsNicTest, Arenas) {
  make_scene();
  Nic& nic = *scene_.nic;
  const auto own = host::Arena::create({.size_bytes = 4096, .prefault_threads = 1, .name = "fake"});
  const auto shared = host::Arena::create(
      {.size_bytes = 4096, .share = host::Share::kReadWrite, .prefault_threads = 1, .name = "fake"});
  ASSERT_OK(own);
  ASSERT_OK(shared);
  EXPECT_STATUS(nic.detach(0), Status::kBadArgument);
  EXPECT_STATUS(nic.attach(host::Arena(), {}), Status::kBadArgument);
  EXPECT_STATUS(nic.attach(*own, {.to = Grant::To::kAnyPeer}), Status::kBadArgument);
  ASSERT_OK(nic.attach(*own, {}));
  const auto id = nic.attach(*shared, {.to = Grant::To::kAnyPeer});
  ASSERT_OK(id);
  EXPECT_EQ(*id, 0U);
  EXPECT_EQ(nic.objects().arenas, 2U);
  EXPECT_OK(nic.grant(0, {.to = Grant::To::kAnyPeer}));
  EXPECT_STATUS(nic.grant(1, {}), Status::kBadArgument);
  EXPECT_STATUS(nic.detach(1), Status::kBadArgument);
  EXPECT_OK(nic.detach(0));
  EXPECT_OK(nic.detach(0));
  EXPECT_STATUS(nic.detach(0), Status::kBadArgument);
}

// --- asynchronous events ----------------------------------------------------------------------------------------

class EventTest : public VerbsNicTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(make_scene());
    // Beside the scene's: one that is not connected, on queues of its own.
    const auto cq = scene_.nic->create_cq(4, nullptr);
    ASSERT_OK(cq);
    other_cq_ = Cq(*scene_.nic, *cq);
    QpOptions options{.send_cq = *cq, .recv_cq = *cq};
    const auto qp = scene_.nic->create_qp(scene_.pd.get(), options);
    ASSERT_OK(qp);
    other_ = Qp(*scene_.nic, *qp);
  }
  void TearDown() override {
    EXPECT_TRUE(all_acknowledged());
    other_.reset();
    other_cq_.reset();
  }
  static ibv_async_event event(ibv_event_type type) {
    ibv_async_event made{};
    made.event_type = type;
    return made;
  }
  /// Waits until everything sent so far is handled.
  void settle() {
    ibv_async_event last = event(IBV_EVENT_QP_FATAL);
    last.element.qp = other_.get();
    library_.async(last);
    EXPECT_TRUE(becomes(other_.get(), Status::kDevice));
  }
  Cq other_cq_;
  Qp other_;
};

TEST_F(EventTest, OfOneQueuePair) {
  constexpr std::pair<ibv_event_type, Status> kEvents[] = {{IBV_EVENT_QP_FATAL, Status::kDevice},
                                                           {IBV_EVENT_QP_REQ_ERR, Status::kProtocol},
                                                           {IBV_EVENT_QP_ACCESS_ERR, Status::kRemoteAccess}};
  ibv_qp* qp = scene_.qp.get();
  for (const auto& [type, status] : kEvents) {
    SCOPED_TRACE(type);
    EXPECT_EQ(scene_.nic->qp_failure(qp), Status::kOk);
    ibv_async_event made = event(type);
    made.element.qp = qp;
    library_.async(made);
    EXPECT_TRUE(becomes(qp, status));
    // Flushed: who waits for its completions is woken.
    EXPECT_TRUE(all_acknowledged());
    EXPECT_EQ(scene_.nic->qp_state(qp), IBV_QPS_ERR);
    EXPECT_EQ(scene_.nic->qp_failure(other_.get()), Status::kOk);
    ibv_qp_attr attr{};
    ASSERT_OK(scene_.nic->modify_qp(qp, attr, IBV_QP_STATE, soon()));  // RESET
    ASSERT_OK(scene_.connect(qp));
  }
}

TEST_F(EventTest, OfAQueue) {
  ibv_async_event made = event(IBV_EVENT_CQ_ERR);
  made.element.cq = scene_.cq.get();
  library_.async(made);
  EXPECT_TRUE(becomes(scene_.qp.get(), Status::kDevice));
  EXPECT_EQ(scene_.nic->qp_failure(other_.get()), Status::kOk);
}

TEST_F(EventTest, OfASharedReceiveQueue) {
  ibv_async_event made = event(IBV_EVENT_SRQ_ERR);
  made.element.srq = scene_.srq;
  library_.async(made);
  EXPECT_TRUE(becomes(scene_.qp.get(), Status::kDevice));
  EXPECT_EQ(scene_.nic->qp_failure(other_.get()), Status::kOk);
}

TEST_F(EventTest, PortDown) {
  ibv_async_event made = event(IBV_EVENT_PORT_ERR);
  made.element.port_num = 2;  // Somebody else's.
  library_.async(made);
  settle();
  EXPECT_EQ(scene_.nic->qp_failure(scene_.qp.get()), Status::kOk);
  ibv_qp_attr attr{};
  ASSERT_OK(scene_.nic->modify_qp(other_.get(), attr, IBV_QP_STATE, soon()));
  made.element.port_num = 1;
  library_.async(made);
  EXPECT_TRUE(becomes(scene_.qp.get(), Status::kPeerLost));
  EXPECT_TRUE(all_acknowledged());
  EXPECT_EQ(scene_.nic->qp_state(scene_.qp.get()), IBV_QPS_ERR);
  EXPECT_EQ(scene_.nic->qp_failure(other_.get()), Status::kOk);  // It is connected to nobody.
}

TEST_F(EventTest, DeviceFatal) {
  library_.async(event(IBV_EVENT_DEVICE_FATAL));
  EXPECT_TRUE(becomes(scene_.qp.get(), Status::kDevice));
  EXPECT_TRUE(becomes(other_.get(), Status::kDevice));
}

TEST_F(EventTest, DeviceRemoved) {
  library_.remove_device();
  EXPECT_TRUE(becomes(scene_.qp.get(), Status::kDevice));
  EXPECT_TRUE(becomes(other_.get(), Status::kDevice));
}

TEST_F(EventTest, NewsThatEndNothing) {
  for (const ibv_event_type type : {IBV_EVENT_COMM_EST, IBV_EVENT_PATH_MIG, IBV_EVENT_QP_LAST_WQE_REACHED}) {
    ibv_async_event made = event(type);
    made.element.qp = scene_.qp.get();
    library_.async(made);
  }
  for (const ibv_event_type type : {IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE}) {
    ibv_async_event made = event(type);
    made.element.port_num = 1;
    library_.async(made);
  }
  settle();
  EXPECT_EQ(scene_.nic->qp_failure(scene_.qp.get()), Status::kOk);
}

// The first reason stays, and going to error oneself is one.
TEST_F(EventTest, FirstReasonStays) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_OK(scene_.nic->modify_qp(scene_.qp.get(), attr, IBV_QP_STATE, soon()));
  EXPECT_EQ(scene_.nic->qp_failure(scene_.qp.get()), Status::kClosed);
  library_.async(event(IBV_EVENT_DEVICE_FATAL));
  EXPECT_TRUE(becomes(other_.get(), Status::kDevice));
  EXPECT_EQ(scene_.nic->qp_failure(scene_.qp.get()), Status::kClosed);
}

// What the device did by itself, and told nobody but the completions.
TEST_F(EventTest, ErrorWithoutAnEvent) {
  scene_.qp->state = IBV_QPS_ERR;
  EXPECT_EQ(scene_.nic->qp_state(scene_.qp.get()), IBV_QPS_ERR);
  EXPECT_EQ(scene_.nic->qp_failure(scene_.qp.get()), Status::kFlushed);
}

// The library does not destroy what an event in the thread's hands names: neither waits for the other.
TEST_F(EventTest, DestroyedWhileItsEventIsHandled) {
  for (int round = 0; round < 500; ++round) {
    QpOptions options{.send_cq = other_cq_.get(), .recv_cq = other_cq_.get()};
    const auto qp = scene_.nic->create_qp(scene_.pd.get(), options);
    ASSERT_OK(qp);
    ibv_async_event made = event(IBV_EVENT_QP_FATAL);
    made.element.qp = *qp;
    library_.async(made);
    if (round % 2 == 0) std::this_thread::yield();
    ASSERT_OK(scene_.nic->destroy_qp(*qp));
  }
}

// --- channels ---------------------------------------------------------------------------------------------------

TEST_F(VerbsNicTest, WaitTakesAndAcknowledges) {
  make_scene();
  for (int i = 0; i < 3; ++i) library_.complete(scene_.cq.get());
  for (int i = 0; i < 3; ++i) {
    const auto cq = scene_.nic->wait(scene_.channel.get(), soon());
    ASSERT_OK(cq);
    EXPECT_EQ(*cq, scene_.cq.get());
    EXPECT_EQ(library_.unacknowledged(), 0);
  }
  EXPECT_STATUS(scene_.nic->wait(scene_.channel.get(), Deadline::now()), Status::kTimedOut);
  EXPECT_STATUS(scene_.nic->wait(scene_.channel.get(), Deadline::after(5ms)), Status::kTimedOut);
}

TEST_F(VerbsNicTest, WakeIsSticky) {
  make_scene();
  for (int i = 0; i < 3; ++i) scene_.nic->wake(scene_.channel.get());
  const auto woken = scene_.nic->wait(scene_.channel.get(), soon());
  ASSERT_OK(woken);
  EXPECT_EQ(*woken, nullptr);
  EXPECT_STATUS(scene_.nic->wait(scene_.channel.get(), Deadline::after(5ms)), Status::kTimedOut);
  std::thread waker([&] { scene_.nic->wake(scene_.channel.get()); });
  const auto again = scene_.nic->wait(scene_.channel.get(), soon());
  waker.join();
  ASSERT_OK(again);
  EXPECT_EQ(*again, nullptr);
}

TEST_F(VerbsNicTest, WakeHidesNoEvent) {
  make_scene();
  scene_.nic->wake(scene_.channel.get());
  library_.complete(scene_.cq.get());
  const auto first = scene_.nic->wait(scene_.channel.get(), soon());
  const auto second = scene_.nic->wait(scene_.channel.get(), soon());
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_TRUE((*first == nullptr) != (*second == nullptr));
}

// Readable, but somebody else took it: waiting goes on, with its deadline.
TEST_F(VerbsNicTest, SpuriousReadiness) {
  make_scene();
  library_.make_spurious(scene_.channel.get());
  EXPECT_STATUS(scene_.nic->wait(scene_.channel.get(), Deadline::after(5ms)), Status::kTimedOut);
}

TEST_F(VerbsNicTest, ChannelOfARemovedDevice) {
  make_scene();
  library_.break_channel(scene_.channel.get());
  EXPECT_STATUS(scene_.nic->wait(scene_.channel.get(), soon()), Status::kDevice);
}

TEST_F(VerbsNicTest, ChannelsOfTheirOwn) {
  make_scene();
  Nic& nic = *scene_.nic;
  for (int round = 0; round < 3; ++round) {  // The slots are used again.
    const auto made = nic.create_channel();
    ASSERT_OK(made);
    const Channel other(nic, *made);
    nic.wake(*made);
    EXPECT_STATUS(nic.wait(scene_.channel.get(), Deadline::now()), Status::kTimedOut);
    const auto woken = nic.wait(*made, soon());
    ASSERT_OK(woken);
    EXPECT_EQ(*woken, nullptr);
    EXPECT_EQ(nic.objects().channels, 2U);
  }
}

}  // namespace
}  // namespace verbena::nic::verbs
