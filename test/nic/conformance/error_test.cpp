// Refused accesses: the status at the requester, what the responder sees, and where both QPs end.
#include "fixture.hpp"

#include <array>
#include <cstring>
#include <limits>

namespace verbena::nic::conformance {
namespace {

using test::all_are;

// The region that accesses are about; the arena, and so readable memory, goes on before and after it.
constexpr std::size_t kRegion = kTarget + 4096;
constexpr std::size_t kRegionBytes = 4096;

class Errors : public Pair {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Pair::SetUp());
    for (Side* side : {&a, &b}) std::memset(side->at(kTarget), std::to_integer<int>(kCanary), 3 * 4096);
  }
  void expect_untouched(Side& side) { EXPECT_TRUE(all_are(side.bytes(kTarget, 3 * 4096), kCanary)); }
  /// In error, a QP flushes what is posted to it.
  void expect_flushes(Side& side) {
    EXPECT_TRUE(reaches(side, IBV_QPS_ERR));
    EXPECT_NE(side.nic->qp_failure(side.qp.get()), Status::kOk);
    ASSERT_EQ(Request(IBV_WR_SEND, 900).gather(side.sge(0, 1)).flags(0).post(side), 0);
    EXPECT_TRUE(failed(sent(side), 900, IBV_WC_WR_FLUSH_ERR));
    // Soft-RoCE's library puts a receive into memory that its kernel does not look at any more.
    if (is_soft_roce()) return;
    ASSERT_EQ(side.post_recv(901, side.sge(0, 1)), 0);
    EXPECT_TRUE(failed(received(side), 901, IBV_WC_WR_FLUSH_ERR));
  }
  /// A request that the responder refuses: both QPs end in error, everything posted is flushed, nothing is written.
  void expect_refused_there(Request request, ibv_wc_status status) {
    ASSERT_EQ(a.post_recv(300, a.sge(0, 64)), 0);
    ASSERT_EQ(b.post_recv(400, b.sge(0, 64)), 0);
    ASSERT_EQ(b.post_recv(401, b.sge(0, 64)), 0);
    ASSERT_EQ(request.post(a), 0);
    // Behind it, unsignaled: flushed all the same, or refused because the QP is in error already.
    ASSERT_EQ(Request(IBV_WR_SEND, 101).gather(a.sge(0, 8)).flags(0).post(a), 0);
    const auto out = sent(a, 2);
    EXPECT_TRUE(failed(out[0], 100, status));
    EXPECT_EQ(out[0].qp_num, a.qp->qp_num);
    EXPECT_TRUE(failed(out[1], 101, IBV_WC_WR_FLUSH_ERR));
    EXPECT_TRUE(failed(received(a), 300, IBV_WC_WR_FLUSH_ERR));
    const auto in = received(b, 2);
    EXPECT_TRUE(failed(in[0], 400, IBV_WC_WR_FLUSH_ERR));
    EXPECT_TRUE(failed(in[1], 401, IBV_WC_WR_FLUSH_ERR));
    EXPECT_EQ(in[0].qp_num, b.qp->qp_num);
    expect_flushes(a);
    expect_flushes(b);
    expect_untouched(b);
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
  /// A request that the requester's own NIC refuses: the responder hears nothing of it.
  void expect_refused_here(Request request, ibv_wc_status status) {
    ASSERT_EQ(a.post_recv(300, a.sge(0, 64)), 0);
    // Long enough for what a wire has carried before the requester comes to the fault.
    ASSERT_EQ(b.post_recv(400, b.sge(0, 2 * kRegionBytes)), 0);
    ASSERT_EQ(request.post(a), 0);
    ASSERT_EQ(Request(IBV_WR_SEND, 101).gather(a.sge(0, 8)).flags(0).post(a), 0);
    const auto out = sent(a, 2);
    EXPECT_TRUE(failed_as(out[0], 100, status));
    EXPECT_TRUE(failed(out[1], 101, IBV_WC_WR_FLUSH_ERR));
    EXPECT_TRUE(failed(received(a), 300, IBV_WC_WR_FLUSH_ERR));
    expect_flushes(a);
    expect_quiet(2ms);
    EXPECT_EQ(b.state(), IBV_QPS_RTS);
    expect_untouched(a);
    expect_untouched(b);
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
  /// A request of `opcode` on `length` bytes at a remote address.
  Request access(ibv_wr_opcode opcode, std::uint64_t address, std::uint32_t rkey, std::size_t length = 8) {
    Request request(opcode, 100);
    request.gather(a.sge(0, length));
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
      request.atomic(address, rkey, 0xA5A5A5A5A5A5A5A5, 1);
    else if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      request.atomic(address, rkey, 1);
    else
      request.remote(address, rkey);
    return request;
  }
};
VERBENA_FOR_EVERY_NIC(Errors);

// --- remote keys ------------------------------------------------------------------------------------------------

// A WRITE with immediate that is refused may or may not have taken its receive: it has its own test below.
class RemoteErrors : public Errors {
 protected:
  template <class Check>
  void for_each_opcode(Check check) {
    for (const ibv_wr_opcode opcode :
         {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
      SCOPED_TRACE(testing::Message() << "opcode " << opcode);
      ASSERT_NO_FATAL_FAILURE(check(opcode));
    }
  }
};
VERBENA_FOR_EVERY_NIC(RemoteErrors);

TEST_P(RemoteErrors, UnknownKey) {
  for_each_opcode([this](ibv_wr_opcode opcode) {
    for (const std::uint32_t rkey : {~b.rkey(), b.rkey() ^ 1U, b.rkey() ^ 0x100U, 0U}) {
      SCOPED_TRACE(testing::Message() << "rkey " << rkey << " instead of " << b.rkey());
      expect_refused_there(access(opcode, b.address(kRegion), rkey), IBV_WC_REM_ACCESS_ERR);
    }
  });
}

TEST_P(RemoteErrors, KeyOfAnotherProtectionDomain) {
  const auto other = b.nic->alloc_pd();
  ASSERT_OK(other);
  const Pd pd(*b.nic, *other);
  const Mr region = b.reg(pd, kRegion, kRegionBytes, kAllAccess);
  ASSERT_TRUE(region);
  for_each_opcode([&](ibv_wr_opcode opcode) {
    try_import(a, b, region.get());
    expect_refused_there(access(opcode, b.address(kRegion), region->rkey), IBV_WC_REM_ACCESS_ERR);
  });
}

TEST_P(RemoteErrors, MissingRight) {
  const auto right_of = [](ibv_wr_opcode opcode) -> int {
    if (opcode == IBV_WR_RDMA_WRITE) return IBV_ACCESS_REMOTE_WRITE;
    return opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_ATOMIC;
  };
  for_each_opcode([&](ibv_wr_opcode opcode) {
    const Mr region = b.reg(kRegion, kRegionBytes, kAllAccess & ~right_of(opcode));
    ASSERT_TRUE(region);
    ASSERT_NO_FATAL_FAILURE(import(a, b, region.get()));
    expect_refused_there(access(opcode, b.address(kRegion), region->rkey), IBV_WC_REM_ACCESS_ERR);
    const Mr local = b.reg(kRegion, kRegionBytes, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_TRUE(local);
    try_import(a, b, local.get());
    expect_refused_there(access(opcode, b.address(kRegion), local->rkey), IBV_WC_REM_ACCESS_ERR);
  });
}

TEST_P(RemoteErrors, OutOfRangeByOneByte) {
  const Mr region = b.reg(kRegion, kRegionBytes, kAllAccess);
  ASSERT_TRUE(region);
  const std::uint64_t start = b.address(kRegion);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    for (const std::size_t length :
         {std::size_t{1}, std::size_t{8}, std::size_t{100}, kRegionBytes, kRegionBytes + 1}) {
      SCOPED_TRACE(testing::Message() << "opcode " << opcode << " length " << length);
      ASSERT_NO_FATAL_FAILURE(import(a, b, region.get()));
      expect_refused_there(access(opcode, start - 1, region->rkey, length), IBV_WC_REM_ACCESS_ERR);
      ASSERT_NO_FATAL_FAILURE(import(a, b, region.get()));
      expect_refused_there(access(opcode, start + kRegionBytes + 1 - length, region->rkey, length),
                           IBV_WC_REM_ACCESS_ERR);
    }
  }
}

TEST_P(RemoteErrors, AtomicOutOfRange) {
  const Mr region = b.reg(kRegion, kRegionBytes, kAllAccess);
  const Mr odd = b.reg(kRegion + 4, kRegionBytes - 8, kAllAccess);  // Ends inside a word.
  ASSERT_TRUE(region && odd);
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    SCOPED_TRACE(testing::Message() << "opcode " << opcode);
    const auto refuse = [&](const Mr& mr, std::size_t offset) {
      SCOPED_TRACE(offset - kRegion);
      ASSERT_NO_FATAL_FAILURE(import(a, b, mr.get()));
      expect_refused_there(access(opcode, b.address(offset), mr->rkey), IBV_WC_REM_ACCESS_ERR);
    };
    refuse(region, kRegion - 8);
    refuse(region, kRegion + kRegionBytes);
    refuse(odd, kRegion);
    refuse(odd, kRegion + kRegionBytes - 8);
  }
}

TEST_P(RemoteErrors, RangeThatWrapsAround) {
  constexpr std::uint64_t kTop = std::numeric_limits<std::uint64_t>::max();
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    for (const std::uint64_t address :
         {kTop, kTop - 6, kTop - 7, std::uint64_t{0}, b.address(kRegion) | (std::uint64_t{1} << 63)}) {
      SCOPED_TRACE(testing::Message() << "opcode " << opcode << " address " << address);
      expect_refused_there(access(opcode, address, b.rkey()), IBV_WC_REM_ACCESS_ERR);
    }
  }
}

// A region that ends where IO virtual addresses end does not go on at 0.
TEST_P(RemoteErrors, RangeThatLeavesTheTopOfTheAddressSpace) {
  constexpr std::uint64_t kTop = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t iova = kTop - kRegionBytes + 1;
  const auto region = b.nic->reg_mr(b.pd.get(), b.at(kRegion), kRegionBytes, iova, kAllAccess);
  if (!region) GTEST_SKIP() << "this NIC registers nothing at the top of the address space: " << region.error().text();
  const Mr top(*b.nic, *region);
  ASSERT_NO_FATAL_FAILURE(import(a, b, top.get()));
  expect_refused_there(access(IBV_WR_RDMA_WRITE, kTop - 3, top->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_P(RemoteErrors, RegionHasAnotherIova) {
  constexpr std::uint64_t kIova = 0x5000'0000'0000;
  const auto made = b.nic->reg_mr(b.pd.get(), b.at(kRegion), kRegionBytes, kIova, kAllAccess);
  ASSERT_OK(made);
  const Mr region(*b.nic, *made);
  for_each_opcode([&](ibv_wr_opcode opcode) {
    ASSERT_NO_FATAL_FAILURE(import(a, b, region.get()));
    expect_refused_there(access(opcode, b.address(kRegion), region->rkey), IBV_WC_REM_ACCESS_ERR);
    ASSERT_NO_FATAL_FAILURE(import(a, b, region.get()));
    expect_refused_there(access(opcode, kIova - 8, region->rkey), IBV_WC_REM_ACCESS_ERR);
  });
}

TEST_P(RemoteErrors, MisalignedAtomic) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE: its library refuses to post such a request";
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    for (const std::size_t shift : {std::size_t{1}, std::size_t{4}, std::size_t{7}}) {
      SCOPED_TRACE(testing::Message() << "opcode " << opcode << " shift " << shift);
      expect_refused_there(access(opcode, b.address(kRegion + shift), b.rkey()), IBV_WC_REM_INV_REQ_ERR);
    }
  }
}

TEST_P(RemoteErrors, LocalKeyUsedAsRemote) {
  if (b.mr->lkey == b.mr->rkey) GTEST_SKIP() << "this NIC has one number for both keys of a region";
  for_each_opcode([&](ibv_wr_opcode opcode) {
    expect_refused_there(access(opcode, b.address(kRegion), b.mr->lkey), IBV_WC_REM_ACCESS_ERR);
  });
}

TEST_P(RemoteErrors, WriteWithImmediate) {
  ASSERT_EQ(b.post_recv(400, b.sge(0, 64)), 0);
  ASSERT_EQ(b.post_recv(401, b.sge(0, 64)), 0);
  ASSERT_EQ(access(IBV_WR_RDMA_WRITE_WITH_IMM, b.address(kRegion), ~b.rkey()).post(a), 0);
  EXPECT_TRUE(failed(sent(a), 100, IBV_WC_REM_ACCESS_ERR));
  const auto in = received(b, 2);
  EXPECT_EQ(in[0].wr_id, 400U);
  EXPECT_NE(in[0].status, IBV_WC_SUCCESS);
  EXPECT_TRUE(failed(in[1], 401, IBV_WC_WR_FLUSH_ERR));
  expect_untouched(b);
  expect_flushes(a);
  expect_flushes(b);
}

// What was posted before the refused request is done, and its completion comes first.
TEST_P(RemoteErrors, EarlierRequestsAreDone) {
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 10; ++i)
    requests.emplace_back(IBV_WR_RDMA_WRITE, i)
        .gather(a.sge(0, 16))
        .remote(b, 4096 + i * 16)
        .flags(i % 2 != 0 ? IBV_SEND_SIGNALED : 0);
  requests.push_back(access(IBV_WR_RDMA_WRITE, b.address(kRegion), ~b.rkey()));
  requests.push_back(Request(IBV_WR_RDMA_WRITE, 101).gather(a.sge(0, 8)).remote(b, kRegion));
  test::fill(a.bytes(0, 16), 4);
  std::size_t bad = 0;
  ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
  const auto out = sent(a, 7);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(succeeded(out[i], i * 2 + 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(failed(out[5], 100, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(failed(out[6], 101, IBV_WC_WR_FLUSH_ERR));
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(test::matches(b.bytes(4096 + i * 16, 16), 4));
  expect_untouched(b);
}

TEST_P(RemoteErrors, UnsignaledFailureCompletes) {
  ASSERT_EQ(access(IBV_WR_RDMA_WRITE, b.address(kRegion), ~b.rkey()).flags(0).post(a), 0);
  EXPECT_TRUE(failed(sent(a), 100, IBV_WC_REM_ACCESS_ERR));
}

// A QP that does not accept an opcode refuses it whatever the key allows.
class QpAccess : public Errors {
 protected:
  // NOLINTNEXTLINE(bugprone-parent-virtual-call): what Errors sets up, each test here does with rights of its own.
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(Bare::SetUp()); }
};
VERBENA_FOR_EVERY_NIC(QpAccess);

TEST_P(QpAccess, OpcodesThatTheQpDoesNotAccept) {
  constexpr std::array<std::pair<ibv_wr_opcode, int>, 4> kRights = {
      {{IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
       {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
       {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_ATOMIC},
       {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC}}};
  ASSERT_NO_FATAL_FAILURE(make_pair({}));
  for (const auto& [opcode, right] : kRights) {
    SCOPED_TRACE(testing::Message() << "opcode " << opcode);
    std::memset(b.at(kTarget), std::to_integer<int>(kCanary), 3 * 4096);
    b.options.qp_access = kRemoteAccess & ~right;
    ASSERT_NO_FATAL_FAILURE(reconnect());
    ASSERT_EQ(access(opcode, b.address(kRegion), b.rkey()).post(a), 0);
    const ibv_wc out = sent(a);
    EXPECT_EQ(out.wr_id, 100U);
    // IBTA says invalid request; some devices answer with an access error.
    EXPECT_TRUE(out.status == IBV_WC_REM_INV_REQ_ERR || out.status == IBV_WC_REM_ACCESS_ERR) << out.status;
    expect_flushes(a);
    expect_flushes(b);
    expect_untouched(b);
    b.options.qp_access = right;
    ASSERT_NO_FATAL_FAILURE(reconnect());
    ASSERT_EQ(access(opcode, b.address(0), b.rkey()).post(a), 0);
    EXPECT_EQ(sent(a).status, IBV_WC_SUCCESS);
  }
}

// --- local keys -------------------------------------------------------------------------------------------------

/// A way in which a local segment is wrong.
struct BadSegment {
  const char* what;
  ibv_sge sge;
};

class LocalErrors : public Errors {
 protected:
  /// Every way, for `length` bytes of `side`. The regions live as long as the fixture.
  std::vector<BadSegment> bad_segments(Side& side, bool for_writing) {
    constexpr std::uint32_t kLength = 100;
    std::vector<BadSegment> bad;
    const auto other = side.nic->alloc_pd();
    EXPECT_OK(other);
    if (!other) return bad;
    pds_.emplace_back(*side.nic, *other);
    const auto keep = [this](Mr mr) { return regions_.emplace_back(std::move(mr)).get(); };
    const ibv_mr* region = keep(side.reg(kRegion, kRegionBytes, kAllAccess));
    const ibv_mr* foreign = keep(side.reg(pds_.back(), kRegion, kRegionBytes, kAllAccess));
    const ibv_mr* read_only = keep(side.reg(kRegion, kRegionBytes, 0));
    const std::uint64_t start = side.address(kRegion);
    bad = {{"unknown key", {start, kLength, ~side.mr->lkey}},
           {"key 0", {start, kLength, 0}},
           {"other protection domain", {start, kLength, foreign->lkey}},
           {"one byte before", {start - 1, kLength, region->lkey}},
           {"one byte after", {start + kRegionBytes + 1 - kLength, kLength, region->lkey}},
           {"wraps around", {~std::uint64_t{0} - 10, kLength, region->lkey}},
           {"null", {0, kLength, region->lkey}}};
    if (side.mr->lkey != side.mr->rkey) bad.push_back({"remote key", {start, kLength, side.mr->rkey}});
    if (for_writing) bad.push_back({"no local write", {start, kLength, read_only->lkey}});
    // As a target, such a segment may be filled up to the region's end.
    if (!for_writing) bad.push_back({"longer than the region", {start, kRegionBytes + 1, region->lkey}});
    return bad;
  }
  void TearDown() override {
    regions_.clear();
    pds_.clear();
    Errors::TearDown();
  }

 private:
  std::vector<Pd> pds_;
  std::vector<Mr> regions_;
};
VERBENA_FOR_EVERY_NIC(LocalErrors);

TEST_P(LocalErrors, SourceOfASend) {
  for (const BadSegment& bad : bad_segments(a, false)) {
    SCOPED_TRACE(bad.what);
    expect_refused_here(Request(IBV_WR_SEND, 100).gather(bad.sge), IBV_WC_LOC_PROT_ERR);
  }
}

TEST_P(LocalErrors, SecondSegmentOfASend) {
  for (const BadSegment& bad : bad_segments(a, false)) {
    SCOPED_TRACE(bad.what);
    expect_refused_here(Request(IBV_WR_SEND, 100).gather(a.sge(0, 8)).gather(bad.sge), IBV_WC_LOC_PROT_ERR);
  }
}

TEST_P(LocalErrors, SourceOfAWrite) {
  for (const BadSegment& bad : bad_segments(a, false)) {
    SCOPED_TRACE(bad.what);
    expect_refused_here(Request(IBV_WR_RDMA_WRITE, 100).gather(bad.sge).remote(b, kRegion), IBV_WC_LOC_PROT_ERR);
  }
}

TEST_P(LocalErrors, TargetOfARead) {
  for (const BadSegment& bad : bad_segments(a, true)) {
    SCOPED_TRACE(bad.what);
    expect_refused_here(Request(IBV_WR_RDMA_READ, 100).gather(bad.sge).remote(b, 0), IBV_WC_LOC_PROT_ERR);
  }
}

// The atomic itself may have been done: only its result has no place to go.
TEST_P(LocalErrors, TargetOfAnAtomic) {
  for (const BadSegment& bad : bad_segments(a, true)) {
    SCOPED_TRACE(bad.what);
    ibv_sge sge = bad.sge;
    sge.length = 8;
    if (std::string_view(bad.what) == "one byte after") sge.addr += 92;
    ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, 100).gather(sge).atomic(b.address(0), b.rkey(), 1).post(a), 0);
    EXPECT_TRUE(failed(sent(a), 100, IBV_WC_LOC_PROT_ERR));
    expect_flushes(a);
    expect_untouched(a);
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
}

TEST_P(LocalErrors, TargetOfAReceive) {
  for (const BadSegment& bad : bad_segments(b, true)) {
    for (const std::uint32_t size : {40U, 100U}) {
      SCOPED_TRACE(testing::Message() << bad.what << ", " << size << " bytes");
      if (size == 40 && std::string_view(bad.what) == "one byte after") continue;  // Not reached.
      ASSERT_EQ(b.post_recv(400, bad.sge), 0);
      ASSERT_EQ(b.post_recv(401, b.sge(0, 64)), 0);
      ASSERT_EQ(Request(IBV_WR_SEND, 100).gather(a.sge(0, size)).post(a), 0);
      EXPECT_TRUE(failed(sent(a), 100, IBV_WC_REM_OP_ERR));
      const auto in = received(b, 2);
      EXPECT_TRUE(failed_as(in[0], 400, IBV_WC_LOC_PROT_ERR));
      EXPECT_TRUE(failed(in[1], 401, IBV_WC_WR_FLUSH_ERR));
      expect_flushes(a);
      expect_flushes(b);
      expect_untouched(b);
      ASSERT_NO_FATAL_FAILURE(reconnect());
    }
  }
}

// --- lengths ----------------------------------------------------------------------------------------------------

TEST_P(Errors, ReceiveTooShort) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{48}, std::size_t{49}, std::size_t{100}, std::size_t{4096},
                                 std::size_t{5000}, std::size_t{300000}}) {
    for (const std::size_t room : {std::size_t{0}, size / 2, size - 1}) {
      SCOPED_TRACE(testing::Message() << size << " bytes into " << room);
      ASSERT_EQ(a.post_recv(300, a.sge(0, 64)), 0);
      ASSERT_EQ(b.post_recv(400, b.sge(1 << 20, room)), 0);
      ASSERT_EQ(b.post_recv(401, b.sge(0, 64)), 0);
      ASSERT_EQ(Request(IBV_WR_SEND, 100).gather(a.sge(0, size)).post(a), 0);
      EXPECT_TRUE(failed_as(sent(a), 100, IBV_WC_REM_INV_REQ_ERR));
      const auto in = received(b, 2);
      EXPECT_TRUE(failed_as(in[0], 400, IBV_WC_LOC_LEN_ERR));
      EXPECT_TRUE(failed(in[1], 401, IBV_WC_WR_FLUSH_ERR));
      EXPECT_TRUE(failed(received(a), 300, IBV_WC_WR_FLUSH_ERR));
      expect_flushes(a);
      expect_flushes(b);
      expect_untouched(b);
      ASSERT_NO_FATAL_FAILURE(reconnect());
    }
  }
}

// Receives before the short one complete with their data.
TEST_P(Errors, ReceiveTooShortAfterGoodOnes) {
  for (std::uint64_t i = 0; i < 5; ++i) ASSERT_EQ(b.post_recv(400 + i, b.sge(i * 64, i == 3 ? 10 : 64)), 0);
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 5; ++i) requests.emplace_back(IBV_WR_SEND, 100 + i).gather(a.sge(0, 64));
  test::fill(a.bytes(0, 64), 6);
  std::size_t bad = 0;
  ASSERT_EQ(post_list(a.qp.get(), requests, bad), 0);
  const auto out = sent(a, 5);
  const auto in = received(b, 5);
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(succeeded(out[i], 100 + i, IBV_WC_SEND));
    EXPECT_TRUE(succeeded(in[i], 400 + i, IBV_WC_RECV));
    EXPECT_TRUE(test::matches(b.bytes(i * 64, 64), 6));
  }
  EXPECT_TRUE(failed_as(out[3], 103, IBV_WC_REM_INV_REQ_ERR));
  EXPECT_TRUE(failed(out[4], 104, IBV_WC_WR_FLUSH_ERR));
  EXPECT_TRUE(failed_as(in[3], 403, IBV_WC_LOC_LEN_ERR));
  EXPECT_TRUE(failed(in[4], 404, IBV_WC_WR_FLUSH_ERR));
}

// An error on one QP is none of its neighbours' business.
TEST_P(Errors, OtherQpsGoOn) {
  const Qp here = make_qp(a, a.qp_options);
  const Qp there = make_qp(b, b.qp_options);
  ASSERT_TRUE(here && there);
  ASSERT_NO_FATAL_FAILURE(connect(a, here.get(), b, there.get()));
  ASSERT_OK(a.nic->import_window(here.get(), b.nic->window_of(b.mr.get()), soon()));
  ASSERT_EQ(access(IBV_WR_RDMA_WRITE, b.address(kRegion), ~b.rkey()).post(a), 0);
  EXPECT_TRUE(failed(sent(a), 100, IBV_WC_REM_ACCESS_ERR));
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, i).gather(a.sge(0, 64)).remote(b, 64).post(here.get()), 0);
    EXPECT_TRUE(succeeded(sent(a), i, IBV_WC_RDMA_WRITE));
  }
  EXPECT_EQ(a.nic->qp_state(here.get()), IBV_QPS_RTS);
  EXPECT_EQ(b.nic->qp_state(there.get()), IBV_QPS_RTS);
}

}  // namespace
}  // namespace verbena::nic::conformance
