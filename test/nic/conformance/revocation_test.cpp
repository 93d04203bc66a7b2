// Deregistration: when it returns, nobody reads or writes the region through its keys, now or later.
#include "fixture.hpp"

#include <atomic>
#include <cstring>
#include <thread>

namespace verbena::nic::conformance {
namespace {

class Revocation : public Pair {};
VERBENA_FOR_EVERY_NIC(Revocation);

TEST_P(Revocation, RemoteKeyIsRefusedAfterwards) {
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    SCOPED_TRACE(testing::Message() << "opcode " << opcode);
    Mr region = b.reg(kTarget, 4096, kAllAccess);
    ASSERT_TRUE(region);
    ASSERT_NO_FATAL_FAILURE(import(a, b, region.get()));
    const std::uint32_t rkey = region->rkey;
    b.word(kTarget) = 40;
    a.word(0) = 50;
    const auto access = [&](std::uint64_t wr_id) {
      Request request(opcode, wr_id);
      request.gather(a.sge(0, 8));
      if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_READ)
        request.remote(b.address(kTarget), rkey);
      else
        request.atomic(b.address(kTarget), rkey, 40, 60);
      return request;
    };
    ASSERT_EQ(access(1).post(a), 0);
    EXPECT_EQ(sent(a).status, IBV_WC_SUCCESS);
    ASSERT_OK(b.nic->dereg_mr(region.release(), soon()));
    b.word(kTarget) = 40;
    a.word(0) = 50;
    ASSERT_EQ(access(2).post(a), 0);
    EXPECT_TRUE(failed(sent(a), 2, IBV_WC_REM_ACCESS_ERR));
    EXPECT_EQ(b.word(kTarget), 40U);
    EXPECT_EQ(a.word(0), 50U);
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
}

TEST_P(Revocation, LocalKeyIsRefusedAfterwards) {
  Mr region = a.reg(0, 4096, kAllAccess);
  ASSERT_TRUE(region);
  const ibv_sge sge{a.address(0), 8, region->lkey};
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(sge).remote(b, kTarget).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  ASSERT_OK(a.nic->dereg_mr(region.release(), soon()));
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(sge).remote(b, kTarget).post(a), 0);
  EXPECT_TRUE(failed_as(sent(a), 2, IBV_WC_LOC_PROT_ERR));
}

// A peer that says goodbye takes its memory back next. Who has not polled in between hears the goodbye first.
TEST_P(Revocation, WhatThePeerSentBeforeItRefusedCompletesFirst) {
  Mr region = b.reg(kTarget, 4096, kAllAccess);
  ASSERT_TRUE(region);
  QpOptions of_a = a.qp_options;
  of_a.recv_cq = of_a.send_cq;
  const Qp at_a = make_qp(a, of_a);
  const Qp at_b = make_qp(b, b.qp_options);
  ASSERT_TRUE(at_a && at_b);
  ASSERT_NO_FATAL_FAILURE(connect(a, at_a.get(), b, at_b.get()));
  const nic::Window window = b.nic->window_of(region.get());
  ASSERT_OK(a.nic->import_window(at_a.get(), window, soon()));
  ibv_sge sge = a.sge(1024, 64);
  ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = &sge, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(at_a.get(), &receive, &bad), 0);
  a.poll();
  ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(b.sge(0, 8)).post(at_b.get()), 0);
  for (const Deadline deadline = soon(); b.sent.empty() && !deadline.passed();) b.poll();
  ASSERT_FALSE(b.sent.empty());
  ASSERT_OK(b.nic->dereg_mr(region.release(), soon()));
  ASSERT_EQ(Request(IBV_WR_RDMA_READ, 3).gather(a.sge(0, 8)).remote(window.address, window.rkey).post(at_a.get()), 0);
  const auto told = sent(a, 2);
  EXPECT_TRUE(succeeded(told[0], 1, IBV_WC_RECV));
  EXPECT_TRUE(failed(told[1], 3, IBV_WC_REM_ACCESS_ERR));
}

// The other regions over the same memory, and on the same QP, stay.
TEST_P(Revocation, OtherRegionsStay) {
  Mr first = b.reg(kTarget, 4096, kAllAccess);
  const Mr second = b.reg(kTarget, 4096, kAllAccess);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->rkey, second->rkey);
  ASSERT_NO_FATAL_FAILURE(import(a, b, first.get()));
  ASSERT_NO_FATAL_FAILURE(import(a, b, second.get()));
  ASSERT_OK(b.nic->dereg_mr(first.release(), soon()));
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(b.address(kTarget), second->rkey).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
}

// A SEND that still waits for its receive when its memory goes, and a receive whose memory has gone.
TEST_P(Revocation, RequestsThatWait) {
  Mr source = a.reg(0, 200000, kAllAccess);
  ASSERT_TRUE(source);
  for (const std::uint32_t size : {100U, 200000U}) {
    SCOPED_TRACE(size);
    if (!source) source = a.reg(0, 200000, kAllAccess);
    ASSERT_EQ(Request(IBV_WR_SEND, 1).gather({a.address(0), size, source->lkey}).post(a), 0);
    expect_quiet(2ms);
    ASSERT_OK(a.nic->dereg_mr(source.release(), soon()));
    ASSERT_EQ(b.post_recv(2, b.sge(0, 200000)), 0);
    // Data that was taken before may still go out; what may not happen is silence.
    const ibv_wc out = sent(a);
    EXPECT_EQ(out.wr_id, 1U);
    if (out.status != IBV_WC_SUCCESS) {
      EXPECT_TRUE(failed_as(out, 1, IBV_WC_LOC_PROT_ERR));
    }
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
  Mr target = b.reg(kTarget, 4096, kAllAccess);
  ASSERT_TRUE(target);
  ASSERT_EQ(b.post_recv(3, {b.address(kTarget), 4096, target->lkey}), 0);
  ASSERT_OK(b.nic->dereg_mr(target.release(), soon()));
  b.word(kTarget) = 1;
  a.word(0) = 2;
  ASSERT_EQ(Request(IBV_WR_SEND, 4).gather(a.sge(0, 8)).post(a), 0);
  EXPECT_TRUE(failed_as(received(b), 3, IBV_WC_LOC_PROT_ERR));
  EXPECT_EQ(b.word(kTarget), 1U);
}

// A peer writes without pause while the owner deregisters: after that, no byte changes.
TEST_P(Revocation, InMidStream) {
  VERBENA_SKIP_IN_SIMULATION();
  constexpr std::size_t kBytes = 16384;
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    Mr region = b.reg(kTarget, kBytes, kAllAccess);
    ASSERT_TRUE(region);
    ASSERT_NO_FATAL_FAILURE(import(a, b, region.get()));
    const std::uint64_t address = b.address(kTarget);
    const std::uint32_t rkey = region->rkey;
    std::atomic<std::uint64_t> done{0};
    ibv_wc last{};
    // Everything of side a is this thread's until it is joined.
    std::thread writer([&] {
      const Deadline deadline = soon();
      const std::size_t size = round % 2 == 0 ? 64 : kBytes;
      for (std::uint64_t i = 0; !deadline.passed(); ++i) {
        std::memset(a.at(0), static_cast<int>(i), size);
        if (Request(IBV_WR_RDMA_WRITE, i).gather(a.sge(0, size)).remote(address, rkey).post(a) != 0) return;
        while (a.sent.empty() && !deadline.passed()) a.poll();
        if (a.sent.empty()) return;
        last = a.sent.front();
        a.sent.pop_front();
        if (last.status != IBV_WC_SUCCESS) return;
        done.store(i + 1, std::memory_order_relaxed);
      }
    });
    const Deadline deadline = soon();
    while (done.load(std::memory_order_relaxed) < 50 && !deadline.passed()) std::this_thread::yield();
    const auto revoked = b.nic->dereg_mr(region.release(), soon());
    // The memory is the owner's again: nobody else touches it, so neither tears nor changes what it writes.
    std::vector<std::byte> snapshot(b.at(kTarget), b.at(kTarget) + kBytes);
    for (int i = 0; i < 50; ++i) {
      std::this_thread::yield();
      EXPECT_EQ(std::memcmp(snapshot.data(), b.at(kTarget), kBytes), 0);
    }
    std::memset(b.at(kTarget), 0xEE, kBytes);
    writer.join();
    EXPECT_TRUE(test::all_are(b.bytes(kTarget, kBytes), std::byte{0xEE}));
    EXPECT_OK(revoked);
    EXPECT_GE(done.load(), 50U);
    EXPECT_EQ(last.status, IBV_WC_REM_ACCESS_ERR);
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
}

// The first key stays dead however often the memory is registered anew. A device may have only 8 bits of generation;
// the soft NIC has more.
TEST_P(Revocation, OldKeyStaysDead) {
  Mr first = b.reg(kTarget, 4096, kAllAccess);
  ASSERT_TRUE(first);
  const std::uint32_t old_rkey = first->rkey;
  const std::uint32_t old_lkey = first->lkey;
  ASSERT_NO_FATAL_FAILURE(import(a, b, first.get()));
  ASSERT_OK(b.nic->dereg_mr(first.release(), soon()));
  const int generations = b.nic->kind() == Kind::kSoft ? 700 : 200;
  for (int generation = 1; generation <= generations; ++generation) {
    Mr region = b.reg(kTarget, 4096, kAllAccess);
    ASSERT_TRUE(region);
    ASSERT_NE(region->rkey, old_rkey) << "generation " << generation;
    ASSERT_NE(region->lkey, old_lkey) << "generation " << generation;
    if (generation % 64 == 1 || (generation >= 254 && generation <= 258)) {
      SCOPED_TRACE(generation);
      b.word(kTarget) = 40;
      ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(b.address(kTarget), old_rkey).post(a), 0);
      EXPECT_TRUE(failed(sent(a), 1, IBV_WC_REM_ACCESS_ERR));
      EXPECT_EQ(b.word(kTarget), 40U);
      ASSERT_NO_FATAL_FAILURE(reconnect());
      ASSERT_NO_FATAL_FAILURE(import(a, b, region.get()));
      a.word(0) = 41;
      ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(0, 8)).remote(b.address(kTarget), region->rkey).post(a), 0);
      EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_WRITE));
      EXPECT_EQ(b.word(kTarget), 41U);
    }
    ASSERT_OK(b.nic->dereg_mr(region.release(), soon()));
  }
}

// Reading goes the same way: a READ after deregistration brings nothing of what the memory holds then.
TEST_P(Revocation, ReadsInMidStream) {
  VERBENA_SKIP_IN_SIMULATION();
  constexpr std::size_t kBytes = 4096;
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    Mr region = b.reg(kTarget, kBytes, kAllAccess);
    ASSERT_TRUE(region);
    ASSERT_NO_FATAL_FAILURE(import(a, b, region.get()));
    std::memset(b.at(kTarget), 0x01, kBytes);
    const std::uint64_t address = b.address(kTarget);
    const std::uint32_t rkey = region->rkey;
    std::atomic<std::uint64_t> done{0};
    bool secret_seen = false;
    ibv_wc last{};
    std::thread reader([&] {
      const Deadline deadline = soon();
      while (!deadline.passed()) {
        if (Request(IBV_WR_RDMA_READ, 1).gather(a.sge(0, kBytes)).remote(address, rkey).post(a) != 0) return;
        while (a.sent.empty() && !deadline.passed()) a.poll();
        if (a.sent.empty()) return;
        last = a.sent.front();
        a.sent.pop_front();
        if (!test::all_are(a.bytes(0, kBytes), std::byte{0x01})) secret_seen = true;
        if (last.status != IBV_WC_SUCCESS) return;
        done.fetch_add(1, std::memory_order_relaxed);
      }
    });
    const Deadline deadline = soon();
    while (done.load(std::memory_order_relaxed) < 50 && !deadline.passed()) std::this_thread::yield();
    const auto revoked = b.nic->dereg_mr(region.release(), soon());
    std::memset(b.at(kTarget), 0x02, kBytes);
    reader.join();
    EXPECT_OK(revoked);
    EXPECT_FALSE(secret_seen);
    // Soft-RoCE may find the region gone in the middle of an answer, and then is silent.
    EXPECT_TRUE(last.status == IBV_WC_REM_ACCESS_ERR || (is_soft_roce() && last.status == IBV_WC_RETRY_EXC_ERR))
        << last.status;
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
}

}  // namespace
}  // namespace verbena::nic::conformance
