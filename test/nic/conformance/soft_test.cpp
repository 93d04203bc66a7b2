// What the soft NIC says of things that it does not have yet, and of memory that it may not share.
#include "fixture.hpp"

#include <unistd.h>
#include <array>
#include <cerrno>

namespace verbena::nic::conformance {
namespace {

constexpr std::size_t kTarget = std::size_t{2} << 20;

class Soft : public Pair {};
VERBENA_FOR_THE_SOFT_NIC(Soft);

TEST_P(Soft, IsTheSoftNic) {
  EXPECT_EQ(a.nic->kind(), Kind::kSoft);
  EXPECT_STREQ(a.nic->name(), "soft");
}

TEST_P(Soft, DatagramsAreUnsupported) {
  QpOptions options = a.qp_options;
  options.type = IBV_QPT_UD;
  EXPECT_STATUS(a.nic->create_qp(a.pd.get(), options), Status::kUnsupported);
}

TEST_P(Soft, PeerIsThisProcess) {
  const auto peer = a.nic->peer_of(a.qp.get());
  ASSERT_OK(peer);
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, getuid());
  const Qp fresh = make_qp(a, a.qp_options);
  ASSERT_TRUE(fresh);
  EXPECT_STATUS(a.nic->peer_of(fresh.get()), Status::kBadArgument);
}

/// An arena of `share` on side b, attached with `grant`.
class SoftMemory : public Soft {
 protected:
  void make_arena(host::Share share, const Grant& grant) {
    auto made =
        host::Arena::create({.size_bytes = 65536, .share = share, .prefault_threads = 1, .name = "conformance-2"});
    ASSERT_OK(made);
    arena_ = std::move(*made);
    const auto id = b.nic->attach(arena_, grant);
    ASSERT_OK(id);
    id_ = *id;
  }
  Result<ibv_mr*> reg(int access) {
    return b.nic->reg_mr(b.pd.get(), arena_.data(), arena_.size(), reinterpret_cast<std::uint64_t>(arena_.data()),
                         access);
  }
  Result<void> import_it(const Mr& region) {
    return a.nic->import_window(a.qp.get(), b.nic->window_of(region.get()), soon());
  }
  void TearDown() override {
    a.qp.reset();
    if (id_ != 0) {
      EXPECT_OK(b.nic->detach(id_));
    }
    Soft::TearDown();
  }
  host::Arena arena_;
  std::uint64_t id_ = 0;
};
VERBENA_FOR_TWO_SOFT_NICS(SoftMemory);

TEST_P(SoftMemory, ReadOnlyArena) {
  ASSERT_NO_FATAL_FAILURE(make_arena(host::Share::kReadOnly, {.to = Grant::To::kAnyPeer}));
  EXPECT_STATUS(reg(kAllAccess), Status::kBadArgument);
  EXPECT_STATUS(reg(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC), Status::kBadArgument);
  const auto made = reg(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  ASSERT_OK(made);
  const Mr region(*b.nic, *made);
  ASSERT_OK(import_it(region));
  test::fill(arena_.bytes(), 8);
  const auto address = reinterpret_cast<std::uint64_t>(arena_.data());
  ASSERT_EQ(Request(IBV_WR_RDMA_READ, 1).gather(a.sge(kTarget, 65536)).remote(address, region->rkey).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_READ));
  EXPECT_TRUE(test::matches(a.bytes(kTarget, 65536), 8));
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 2).gather(a.sge(0, 8)).remote(address, region->rkey).post(a), 0);
  EXPECT_TRUE(failed(sent(a), 2, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(test::matches(arena_.bytes(), 8));
}

TEST_P(SoftMemory, PrivateArena) {
  const auto refused = [&](const Grant& grant) {
    auto made = host::Arena::create({.size_bytes = 4096, .prefault_threads = 1});
    ASSERT_OK(made);
    EXPECT_STATUS(b.nic->attach(*made, grant), Status::kBadArgument);
  };
  ASSERT_NO_FATAL_FAILURE(refused({.to = Grant::To::kAnyPeer}));
  ASSERT_NO_FATAL_FAILURE(make_arena(host::Share::kNone, {}));
  EXPECT_STATUS(reg(kAllAccess), Status::kBadArgument);
  EXPECT_STATUS(reg(IBV_ACCESS_REMOTE_READ), Status::kBadArgument);
  const auto made = reg(IBV_ACCESS_LOCAL_WRITE);  // For this process's own use.
  ASSERT_OK(made);
  const Mr region(*b.nic, *made);
  const ibv_sge sge{reinterpret_cast<std::uint64_t>(arena_.data()), 65536, region->lkey};
  test::fill(arena_.bytes(), 9);
  ASSERT_EQ(a.post_recv(1, a.sge(kTarget, 65536)), 0);
  ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(sge).post(b), 0);
  EXPECT_TRUE(succeeded(received(a), 1, IBV_WC_RECV));
  EXPECT_TRUE(succeeded(sent(b), 2, IBV_WC_SEND));
  EXPECT_TRUE(test::matches(a.bytes(kTarget, 65536), 9));
}

TEST_P(SoftMemory, NotGranted) {
  ASSERT_NO_FATAL_FAILURE(make_arena(host::Share::kReadWrite, {.to = Grant::To::kNobody}));
  const auto made = reg(kAllAccess);
  ASSERT_OK(made);
  const Mr region(*b.nic, *made);
  EXPECT_STATUS(import_it(region), Status::kNotAllowed);
  // Granted later, once and for one.
  ASSERT_OK(b.nic->grant(id_, {.to = Grant::To::kOneGid, .gid = a.nic->gid()}));
  EXPECT_FALSE(b.nic->grant(id_, {.to = Grant::To::kAnyPeer}).has_value());
  ASSERT_OK(import_it(region));
  const auto address = reinterpret_cast<std::uint64_t>(arena_.data());
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(address, region->rkey).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
}

TEST_P(SoftMemory, GrantedToSomebodyElse) {
  Grant grant{.to = Grant::To::kOneGid, .gid = a.nic->gid()};
  grant.gid.raw[15] ^= 1;
  ASSERT_NO_FATAL_FAILURE(make_arena(host::Share::kReadWrite, grant));
  const auto made = reg(kAllAccess);
  ASSERT_OK(made);
  const Mr region(*b.nic, *made);
  EXPECT_STATUS(import_it(region), Status::kNotAllowed);
}

TEST_P(SoftMemory, WindowsThatAreNotThere) {
  const auto import_changed = [&](auto change) {
    const Mr region = b.reg(kTarget, 4096, kAllAccess);  // Its key is new to a.
    Window window = b.nic->window_of(region.get());
    change(window);
    return a.nic->import_window(a.qp.get(), window, soon()).has_value();
  };
  EXPECT_FALSE(import_changed([](Window& window) { window.length = std::uint64_t{1} << 60; }));
  EXPECT_FALSE(import_changed([](Window& window) { window.rkey ^= 0x40000; }));
  EXPECT_TRUE(import_changed([](Window&) {}));
}

}  // namespace
}  // namespace verbena::nic::conformance
