// Objects: the order of their destruction, and that nothing is left of them.
#include "fixture.hpp"

#include "base/fd.hpp"
#include "process.hpp"

#include <cstring>
#include <thread>

namespace verbena::nic::conformance {
namespace {

class Life : public Bare {
 protected:
  /// What is left may go a little later: peers have to hear of it.
  static void expect_objects(Nic& nic, const Nic::Objects& expected) {
    const Deadline deadline = soon();
    while (nic.objects() != expected && !deadline.passed()) std::this_thread::yield();
    const Nic::Objects found = nic.objects();
    EXPECT_EQ(found.pds, expected.pds);
    EXPECT_EQ(found.mrs, expected.mrs);
    EXPECT_EQ(found.cqs, expected.cqs);
    EXPECT_EQ(found.qps, expected.qps);
    EXPECT_EQ(found.channels, expected.channels);
    EXPECT_EQ(found.arenas, expected.arenas);
    EXPECT_EQ(found.imports, expected.imports);
    EXPECT_EQ(found.peers, expected.peers);
  }
};
VERBENA_FOR_EVERY_NIC(Life);

TEST_P(Life, NothingAtTheStart) { EXPECT_EQ(nic_a_->objects(), Nic::Objects{}); }

TEST_P(Life, WhatIsUsedIsBusy) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  EXPECT_STATUS(a.nic->dealloc_pd(a.pd.get()), Status::kBusy);
  EXPECT_STATUS(a.nic->destroy_cq(a.send_cq.get()), Status::kBusy);
  EXPECT_STATUS(a.nic->destroy_cq(a.recv_cq.get()), Status::kBusy);
  EXPECT_STATUS(a.nic->destroy_channel(a.channel.get()), Status::kBusy);
  if (a.nic->kind() == Kind::kSoft) {
    EXPECT_STATUS(a.nic->detach(a.memory_id), Status::kBusy);
  }
  a.qp.reset();
  EXPECT_STATUS(a.nic->dealloc_pd(a.pd.get()), Status::kBusy);  // The region.
  a.mr.reset();
  EXPECT_STATUS(a.nic->destroy_channel(a.channel.get()), Status::kBusy);  // The queues.
  // The refused calls have changed nothing.
  EXPECT_OK(a.nic->destroy_cq(a.send_cq.release()));
  EXPECT_OK(a.nic->destroy_cq(a.recv_cq.release()));
  EXPECT_OK(a.nic->destroy_channel(a.channel.release()));
  EXPECT_OK(a.nic->dealloc_pd(a.pd.release()));
  EXPECT_OK(a.nic->detach(a.memory_id));
  a.attached = false;
}

// No call of these waits: on a device there is nothing to wait for, and the software NIC says kAgain instead.
TEST_P(Life, BringUpThatWaitsForNobody) {
  ASSERT_NO_FATAL_FAILURE(make(a, {}));
  ASSERT_NO_FATAL_FAILURE(make(b, {}));
  const auto progress = make_eventfd();
  ASSERT_OK(progress);
  for (Nic* nic : {a.nic, b.nic}) nic->notify_progress(progress->get());
  const auto repeat = [&](auto&& call) {
    for (;;) {
      const Result<void> result = call();
      if (result || result.error().status() != Status::kAgain) return result;
      EXPECT_EQ(a.nic->kind(), Kind::kSoft);
      if (!wait_readable(progress->get(), soon())) return result;
      drain_eventfd(progress->get());
    }
  };
  const std::uint8_t sgid_index = GetParam().sgid_index;
  for (Side* side : {&a, &b}) ASSERT_OK(to_init(*side->nic, side->qp.get(), side->options));
  for (const auto& [side, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    const QpAddress peer = other->nic->address_of(other->qp.get());
    ASSERT_OK(
        repeat([&] { return to_rtr(*side->nic, side->qp.get(), peer, sgid_index, side->options, Deadline::now()); }));
    ASSERT_OK(to_rts(*side->nic, side->qp.get(), side->options));
  }
  const Window window = b.nic->window_of(b.mr.get());
  ASSERT_OK(repeat([&] { return a.nic->import_window(a.qp.get(), window, Deadline::now()); }));
  for (Nic* nic : {a.nic, b.nic}) nic->notify_progress(-1);
  test::fill(a.bytes(0, 64), 1);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 64)).remote(b, kTarget).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(test::matches(b.bytes(kTarget, 64), 1));
}

TEST_P(Life, BusyObjectsStillWork) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  EXPECT_STATUS(a.nic->dealloc_pd(a.pd.get()), Status::kBusy);
  EXPECT_STATUS(b.nic->destroy_cq(b.recv_cq.get()), Status::kBusy);
  ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
  ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(0, 64)).post(a), 0);
  EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
}

TEST_P(Life, ObjectsReturnToTheirStart) {
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(make_pair({.arena_bytes = 65536}));
    ASSERT_EQ(b.post_recv(1, b.sge(0, 64)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(a.sge(0, 64)).post(a), 0);
    EXPECT_TRUE(succeeded(received(b), 1, IBV_WC_RECV));
    // Some of it in mid-work: a SEND that waits, a receive that is posted.
    ASSERT_EQ(Request(IBV_WR_SEND, 3).gather(a.sge(0, 64)).post(a), 0);
    ASSERT_EQ(a.post_recv(4, a.sge(0, 64)), 0);
    a.close();
    b.close();
    a.nic = nic_a_.get();
    b.nic = nic_b_ != nullptr ? nic_b_.get() : nic_a_.get();
    expect_objects(*a.nic, {});
    expect_objects(*b.nic, {});
  }
}

// Completions of a QP that were not polled vanish with it.
TEST_P(Life, CompletionsVanishWithTheirQp) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: completions stay in the queue when their queue pair goes";
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  const Qp here = make_qp(a, a.qp_options);
  const Qp there = make_qp(b, b.qp_options);
  ASSERT_TRUE(here && there);
  ASSERT_NO_FATAL_FAILURE(connect(a, here.get(), b, there.get()));
  ASSERT_OK(a.nic->import_window(here.get(), b.nic->window_of(b.mr.get()), soon()));
  for (std::uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, i).gather(a.sge(0, 8)).remote(b, kTarget).post(a), 0);
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 100 + i).gather(a.sge(0, 8)).remote(b, kTarget).post(here.get()), 0);
  }
  a.qp.reset();
  const auto out = sent(a, 10);
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(succeeded(out[i], 100 + i, IBV_WC_RDMA_WRITE));
  expect_quiet(2ms);
}

TEST_P(Life, ThousandsOfQps) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  QpOptions options_a = a.qp_options, options_b = b.qp_options;
  for (QpOptions* options : {&options_a, &options_b}) options->max_send_wr = options->max_recv_wr = 8;
  const auto once = [&](bool is_connected) {
    const Qp here = make_qp(a, options_a);
    const Qp there = make_qp(b, options_b);
    ASSERT_TRUE(here && there);
    if (!is_connected) return;
    ASSERT_NO_FATAL_FAILURE(connect(a, here.get(), b, there.get()));
    ASSERT_OK(a.nic->import_window(here.get(), b.nic->window_of(b.mr.get()), soon()));
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(b, kTarget).post(here.get()), 0);
    EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  };
  for (int i = 0; i < 10; ++i) ASSERT_NO_FATAL_FAILURE(once(true));
  const auto objects_a = a.nic->objects();
  const auto objects_b = b.nic->objects();
  const std::size_t descriptors = test::open_descriptors();
  const std::size_t mappings = test::memfd_mappings();
  for (std::uint64_t i = 0; i < rounds(2000); ++i) ASSERT_NO_FATAL_FAILURE(once(i % 8 == 0));
  expect_objects(*a.nic, objects_a);
  expect_objects(*b.nic, objects_b);
  const Deadline deadline = soon();
  while ((test::open_descriptors() > descriptors || test::memfd_mappings() > mappings) && !deadline.passed())
    std::this_thread::yield();
  EXPECT_LE(test::open_descriptors(), descriptors);
  EXPECT_LE(test::memfd_mappings(), mappings);
}

TEST_P(Life, ThousandsOfRegionsAndQueues) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  const auto objects = a.nic->objects();
  const auto once = [&] {
    const auto channel = a.nic->create_channel();
    ASSERT_OK(channel);
    const Channel own_channel(*a.nic, *channel);
    const auto cq = a.nic->create_cq(64, *channel);
    ASSERT_OK(cq);
    const Cq own_cq(*a.nic, *cq);
    const auto pd = a.nic->alloc_pd();
    ASSERT_OK(pd);
    const Pd own_pd(*a.nic, *pd);
    const Mr region = a.reg(own_pd, 4096, 4096, kAllAccess);
    ASSERT_TRUE(region);
  };
  for (int i = 0; i < 10; ++i) ASSERT_NO_FATAL_FAILURE(once());
  const std::size_t descriptors = test::open_descriptors();
  const std::size_t mappings = test::memfd_mappings();
  for (std::uint64_t i = 0; i < rounds(1000); ++i) ASSERT_NO_FATAL_FAILURE(once());
  EXPECT_EQ(a.nic->objects(), objects);
  EXPECT_LE(test::open_descriptors(), descriptors);
  EXPECT_LE(test::memfd_mappings(), mappings);
}

TEST_P(Life, NicsComeAndGo) {
  a.close();
  b.close();
  nic_a_.reset();
  nic_b_.reset();
  const std::size_t descriptors = test::open_descriptors();
  const std::size_t mappings = test::memfd_mappings();
  for (int i = 0; i < 20; ++i) {
    ASSERT_NO_FATAL_FAILURE(Bare::SetUp());
    ASSERT_NO_FATAL_FAILURE(make_pair({.arena_bytes = 65536}));
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(b, 64).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
    ASSERT_NO_FATAL_FAILURE(Bare::TearDown());
  }
  EXPECT_LE(test::open_descriptors(), descriptors);
  EXPECT_LE(test::memfd_mappings(), mappings);
}

// A window imported twice is there until it is released twice.
TEST_P(Life, ImportsAreCounted) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  const auto before = a.nic->objects();
  const Mr region = b.reg(kTarget, 4096, kAllAccess);
  ASSERT_TRUE(region);
  const Window window = b.nic->window_of(region.get());
  EXPECT_EQ(window.address, b.address(kTarget));
  EXPECT_EQ(window.length, 4096U);
  EXPECT_EQ(window.rkey, region->rkey);
  const auto write = [&] {
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(window.address, window.rkey).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  };
  ASSERT_OK(a.nic->import_window(a.qp.get(), window, soon()));
  ASSERT_OK(a.nic->import_window(a.qp.get(), window, soon()));
  ASSERT_NO_FATAL_FAILURE(write());
  ASSERT_OK(a.nic->release_window(a.qp.get(), window));
  ASSERT_NO_FATAL_FAILURE(write());
  ASSERT_OK(a.nic->release_window(a.qp.get(), window));
  EXPECT_EQ(a.nic->objects().imports, before.imports);
}

TEST_P(Life, AddressesOfQps) {
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  const QpAddress here = a.nic->address_of(a.qp.get());
  const QpAddress there = b.nic->address_of(b.qp.get());
  EXPECT_EQ(here.qp_num, a.qp->qp_num);
  EXPECT_EQ(std::memcmp(&here.gid, &a.nic->gid(), sizeof here.gid), 0);
  EXPECT_LT(here.qp_num, 1U << 24);
  EXPECT_GT(here.qp_num, 1U);  // 0 and 1 are the fabric's own.
  EXPECT_GE(here.mtu, IBV_MTU_256);
  EXPECT_LE(here.mtu, IBV_MTU_4096);
  EXPECT_GE(here.max_rd_atomic, 1);
  if (GetParam().layout == Layout::kOneNic) {
    EXPECT_NE(here.qp_num, there.qp_num);
  }
}

}  // namespace
}  // namespace verbena::nic::conformance
