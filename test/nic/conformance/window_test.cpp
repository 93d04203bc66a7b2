// Memory windows of type 2: keys that one queue pair's peer is given for a while.
#include "fixture.hpp"

#include <cstring>
#include <optional>

namespace verbena::nic::conformance {
namespace {

using test::all_are;
using test::fill;
using test::matches;

constexpr std::size_t kWindowBytes = 8192;

/// A window of b's, on a region that nobody else may reach.
class MwType2 : public Pair {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Pair::SetUp());
    if (a.nic->limits().max_mw == 0) GTEST_SKIP() << "the device has no memory windows";
    std::memset(b.at(kTarget), std::to_integer<int>(kCanary), 4 * kWindowBytes);
    region_ = b.reg(kTarget, kWindowBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    ASSERT_TRUE(region_);
    window_ = make_window();
  }
  void TearDown() override {
    window_.reset();
    region_.reset();
    Pair::TearDown();
  }
  [[nodiscard]] Mw make_window() {
    const auto mw = b.nic->alloc_mw(b.pd.get());
    EXPECT_OK(mw);
    return mw ? Mw(*b.nic, *mw) : Mw();
  }
  [[nodiscard]] ibv_mw_bind_info whole(unsigned access) const {
    return {region_.get(), b.address(kTarget), kWindowBytes, access};
  }
  /// Binds on b.qp under the next key; the completion.
  ibv_wc bind(const ibv_mw_bind_info& info) {
    const std::uint32_t rkey = ibv_inc_rkey(window_->rkey);
    EXPECT_EQ(Request(IBV_WR_BIND_MW, 100).bind(window_.get(), rkey, info).post(b), 0);
    const ibv_wc wc = sent(b);
    if (wc.status == IBV_WC_SUCCESS) window_->rkey = rkey;
    return wc;
  }
  /// Binds, and lets `a` know.
  void bind_and_import(const ibv_mw_bind_info& info) {
    ASSERT_TRUE(succeeded(bind(info), 100, IBV_WC_BIND_MW));
    ASSERT_OK(a.nic->import_window(a.qp.get(), b.nic->window_of(window_->rkey, info), soon()));
  }
  void try_import(const ibv_mw_bind_info& info) {
    (void)a.nic->import_window(a.qp.get(), b.nic->window_of(window_->rkey, info), soon());
  }
  void expect_invalidated() {
    ASSERT_EQ(Request(IBV_WR_LOCAL_INV, 101).invalidate(window_->rkey).post(b), 0);
    EXPECT_TRUE(succeeded(sent(b), 101, IBV_WC_LOCAL_INV));
  }
  [[nodiscard]] ibv_wc write(std::uint64_t address, std::uint32_t rkey, std::size_t length) {
    EXPECT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, length)).remote(address, rkey).post(a), 0);
    return sent(a);
  }
  [[nodiscard]] ibv_wc read(std::uint64_t address, std::uint32_t rkey, std::size_t length) {
    EXPECT_EQ(Request(IBV_WR_RDMA_READ, 1).gather(a.sge(16384, length)).remote(address, rkey).post(a), 0);
    return sent(a);
  }

  Mr region_;
  Mw window_;
};
VERBENA_FOR_EVERY_NIC(MwType2);

constexpr unsigned kReadWrite = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

TEST_P(MwType2, GivesThePeerAccess) {
  EXPECT_EQ(b.nic->objects().mws, 1U);
  ASSERT_NO_FATAL_FAILURE(bind_and_import(whole(kReadWrite | IBV_ACCESS_REMOTE_ATOMIC)));
  fill(a.bytes(0, kWindowBytes), 3);
  EXPECT_TRUE(succeeded(write(b.address(kTarget), window_->rkey, kWindowBytes), 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(matches(b.bytes(kTarget, kWindowBytes), 3));
  EXPECT_TRUE(succeeded(read(b.address(kTarget), window_->rkey, kWindowBytes), 1, IBV_WC_RDMA_READ));
  EXPECT_TRUE(matches(a.bytes(16384, kWindowBytes), 3));
  b.word(kTarget + 64) = 5;
  ASSERT_EQ(Request(IBV_WR_ATOMIC_FETCH_AND_ADD, 2)
                .gather(a.sge(16384, 8))
                .atomic(b.address(kTarget + 64), window_->rkey, 4)
                .post(a),
            0);
  EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_FETCH_ADD));
  EXPECT_EQ(b.word(kTarget + 64), 9U);
  ASSERT_NO_FATAL_FAILURE(expect_invalidated());
}

// The window has bounds of its own, inside the region's.
TEST_P(MwType2, BoundsAreItsOwn) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE checks the region's bounds only";
  const ibv_mw_bind_info info{region_.get(), b.address(kTarget + 128), 256, kReadWrite};
  ASSERT_NO_FATAL_FAILURE(bind_and_import(info));
  EXPECT_TRUE(succeeded(write(b.address(kTarget + 128), window_->rkey, 256), 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(failed_as(write(b.address(kTarget + 129), window_->rkey, 256), 1, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(all_are(b.bytes(kTarget + 384, 64), kCanary));
  EXPECT_TRUE(all_are(b.bytes(kTarget, 128), kCanary));
}

TEST_P(MwType2, RightsAreItsOwn) {
  ASSERT_NO_FATAL_FAILURE(bind_and_import(whole(IBV_ACCESS_REMOTE_READ)));
  EXPECT_TRUE(succeeded(read(b.address(kTarget), window_->rkey, 64), 1, IBV_WC_RDMA_READ));
  EXPECT_TRUE(failed_as(write(b.address(kTarget), window_->rkey, 64), 1, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(all_are(b.bytes(kTarget, kWindowBytes), kCanary));
}

TEST_P(MwType2, InvalidatedIsRefused) {
  ASSERT_NO_FATAL_FAILURE(bind_and_import(whole(kReadWrite)));
  EXPECT_TRUE(succeeded(write(b.address(kTarget), window_->rkey, 64), 1, IBV_WC_RDMA_WRITE));
  ASSERT_NO_FATAL_FAILURE(expect_invalidated());
  std::memset(b.at(kTarget), std::to_integer<int>(kCanary), 64);
  EXPECT_TRUE(failed_as(write(b.address(kTarget), window_->rkey, 64), 1, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(all_are(b.bytes(kTarget, kWindowBytes), kCanary));
}

// All 256 values of the key's low byte, more than once: each works while bound, and only then.
TEST_P(MwType2, KeysRotate) {
  const std::uint64_t count = rounds(600);
  std::optional<Window> last;
  for (std::uint64_t i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    const ibv_mw_bind_info info{region_.get(), b.address(kTarget + i % 64 * 64), 64, kReadWrite};
    ASSERT_NO_FATAL_FAILURE(bind_and_import(info));
    fill(a.bytes(0, 64), i);
    ASSERT_TRUE(succeeded(write(info.addr, window_->rkey, 64), 1, IBV_WC_RDMA_WRITE));
    ASSERT_TRUE(matches(b.bytes(kTarget + i % 64 * 64, 64), i));
    ASSERT_NO_FATAL_FAILURE(expect_invalidated());
    if (last) {
      ASSERT_OK(a.nic->release_window(a.qp.get(), *last));
    }
    last = b.nic->window_of(window_->rkey, info);
  }
  // The last but one key, while a new one is valid.
  const std::uint32_t stale = window_->rkey;
  ASSERT_NO_FATAL_FAILURE(bind_and_import(whole(kReadWrite)));
  EXPECT_TRUE(failed_as(write(b.address(kTarget), stale, 64), 1, IBV_WC_REM_ACCESS_ERR));
}

TEST_P(MwType2, IsBoundOnce) {
  ASSERT_TRUE(succeeded(bind(whole(kReadWrite)), 100, IBV_WC_BIND_MW));
  EXPECT_TRUE(failed(bind(whole(kReadWrite)), 100, IBV_WC_MW_BIND_ERR));
  EXPECT_EQ(b.state(), IBV_QPS_ERR);
}

TEST_P(MwType2, TheRegionMustAllowIt) {
  const Mr unbindable = b.reg(kTarget, kWindowBytes, IBV_ACCESS_LOCAL_WRITE);
  const Mr read_only = b.reg(kTarget, kWindowBytes, IBV_ACCESS_MW_BIND);
  for (const ibv_mw_bind_info& info :
       {ibv_mw_bind_info{unbindable.get(), b.address(kTarget), 64, IBV_ACCESS_REMOTE_READ},
        ibv_mw_bind_info{read_only.get(), b.address(kTarget), 64, IBV_ACCESS_REMOTE_WRITE},
        ibv_mw_bind_info{region_.get(), b.address(kTarget), kWindowBytes + 1, IBV_ACCESS_REMOTE_READ},
        ibv_mw_bind_info{region_.get(), b.address(kTarget) - 1, 64, IBV_ACCESS_REMOTE_READ}}) {
    EXPECT_TRUE(failed(bind(info), 100, IBV_WC_MW_BIND_ERR));
    ASSERT_NO_FATAL_FAILURE(reconnect());
  }
  EXPECT_TRUE(succeeded(bind(whole(IBV_ACCESS_REMOTE_READ)), 100, IBV_WC_BIND_MW));
}

TEST_P(MwType2, TheKeyMustBeANewOne) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE takes a fresh window's first key";
  ASSERT_EQ(Request(IBV_WR_BIND_MW, 1).bind(window_.get(), window_->rkey, whole(kReadWrite)).post(b), 0);
  EXPECT_TRUE(failed(sent(b), 1, IBV_WC_MW_BIND_ERR));
}

TEST_P(MwType2, InvalidatingWhatIsNotBoundFails) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE's kernel (6.1) dies of it";
  ASSERT_EQ(Request(IBV_WR_LOCAL_INV, 1).invalidate(window_->rkey).post(b), 0);
  EXPECT_TRUE(failed(sent(b), 1, IBV_WC_MW_BIND_ERR));
  EXPECT_TRUE(reaches(b, IBV_QPS_ERR));
}

// Of two queue pairs of one protection domain only the one that it is bound on has it.
TEST_P(MwType2, BelongsToItsQueuePair) {
  const Qp other_a = make_qp(a, a.qp_options);
  const Qp other_b = make_qp(b, b.qp_options);
  ASSERT_TRUE(other_a && other_b);
  ASSERT_NO_FATAL_FAILURE(connect(a, other_a.get(), b, other_b.get()));
  ASSERT_NO_FATAL_FAILURE(bind_and_import(whole(kReadWrite)));
  (void)a.nic->import_window(other_a.get(), b.nic->window_of(window_->rkey, whole(kReadWrite)), soon());
  ASSERT_EQ(
      Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 64)).remote(b.address(kTarget), window_->rkey).post(other_a.get()),
      0);
  EXPECT_TRUE(failed_as(sent(a), 1, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(all_are(b.bytes(kTarget, kWindowBytes), kCanary));
  EXPECT_TRUE(succeeded(write(b.address(kTarget), window_->rkey, 64), 1, IBV_WC_RDMA_WRITE));
}

TEST_P(MwType2, ThePeerInvalidates) {
  for (const std::size_t size : {0UZ, 8UZ, 200UZ, 20000UZ}) {
    SCOPED_TRACE(size);
    ASSERT_NO_FATAL_FAILURE(bind_and_import(whole(kReadWrite)));
    EXPECT_TRUE(succeeded(write(b.address(kTarget), window_->rkey, 64), 1, IBV_WC_RDMA_WRITE));
    fill(a.bytes(0, size), size);
    ASSERT_EQ(b.post_recv(7, b.sge(0, size)), 0);
    ASSERT_EQ(Request(IBV_WR_SEND_WITH_INV, 2).gather(a.sge(0, size)).invalidate(window_->rkey).post(a), 0);
    const ibv_wc wc = received(b);
    EXPECT_TRUE(succeeded(wc, 7, IBV_WC_RECV));
    if (!is_soft_roce()) {  // Which does not say so.
      EXPECT_EQ(wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_WITH_IMM), unsigned{IBV_WC_WITH_INV});
      EXPECT_EQ(wc.invalidated_rkey, window_->rkey);
    }
    EXPECT_TRUE(matches(b.bytes(0, size), size));
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_SEND));
  }
  std::memset(b.at(kTarget), std::to_integer<int>(kCanary), 64);
  EXPECT_TRUE(failed_as(write(b.address(kTarget), window_->rkey, 64), 1, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(all_are(b.bytes(kTarget, kWindowBytes), kCanary));
}

// What is posted behind the message that gives the window up finds it gone.
TEST_P(MwType2, NothingComesAfterThePeersInvalidation) {
  ASSERT_NO_FATAL_FAILURE(bind_and_import(whole(kReadWrite)));
  ASSERT_EQ(b.post_recv(7, b.sge(0, 64)), 0);
  ASSERT_EQ(Request(IBV_WR_SEND_WITH_INV, 2).gather(a.sge(0, 8)).invalidate(window_->rkey).post(a), 0);
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 3).gather(a.sge(0, 64)).remote(b.address(kTarget), window_->rkey).post(a), 0);
  const auto out = sent(a, 2);
  EXPECT_TRUE(succeeded(out[0], 2, IBV_WC_SEND));
  EXPECT_TRUE(failed_as(out[1], 3, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(all_are(b.bytes(kTarget, kWindowBytes), kCanary));
}

TEST_P(MwType2, ThePeerCannotInvalidateOthers) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE's kernel (6.1) may die of it";
  ASSERT_TRUE(succeeded(bind(whole(kReadWrite)), 100, IBV_WC_BIND_MW));
  const std::uint32_t stranger = window_->rkey ^ 0x80;  // A key that the window does not have now.
  ASSERT_EQ(b.post_recv(7, b.sge(0, 64)), 0);
  ASSERT_EQ(Request(IBV_WR_SEND_WITH_INV, 2).gather(a.sge(0, 8)).invalidate(stranger).post(a), 0);
  EXPECT_NE(sent(a).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(reaches(b, IBV_QPS_ERR));
}

TEST_P(MwType2, TheRegionStaysWhileBound) {
  ASSERT_TRUE(succeeded(bind(whole(kReadWrite)), 100, IBV_WC_BIND_MW));
  EXPECT_FALSE(b.nic->dereg_mr(region_.get(), soon()).has_value());
  ASSERT_NO_FATAL_FAILURE(expect_invalidated());
}

TEST_P(MwType2, EndingItInvalidates) {
  ASSERT_NO_FATAL_FAILURE(bind_and_import(whole(kReadWrite)));
  const std::uint32_t rkey = window_->rkey;
  ASSERT_OK(b.nic->dealloc_mw(window_.release(), soon()));
  EXPECT_TRUE(failed_as(write(b.address(kTarget), rkey, 64), 1, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(all_are(b.bytes(kTarget, kWindowBytes), kCanary));
}

TEST_P(MwType2, AddressesMayStartAtZero) {
  if (is_soft_roce()) GTEST_SKIP() << "Soft-RoCE has no zero-based windows";
  const ibv_mw_bind_info info{region_.get(), b.address(kTarget + 64), 128, kReadWrite | IBV_ACCESS_ZERO_BASED};
  ASSERT_NO_FATAL_FAILURE(bind_and_import(info));
  fill(a.bytes(0, 32), 2);
  EXPECT_TRUE(succeeded(write(96, window_->rkey, 32), 1, IBV_WC_RDMA_WRITE));
  EXPECT_TRUE(matches(b.bytes(kTarget + 160, 32), 2));
  EXPECT_TRUE(failed_as(write(97, window_->rkey, 32), 1, IBV_WC_REM_ACCESS_ERR));
}

// --- the soft NIC -----------------------------------------------------------------------------------------------

class SoftMwType2 : public MwType2 {};
VERBENA_FOR_THE_SOFT_NIC(SoftMwType2);

// An import of a binding 256 bindings ago has that one's bounds: it does not come to life with the key.
TEST_P(SoftMwType2, AnOldImportStaysDead) {
  ASSERT_NO_FATAL_FAILURE(bind_and_import(whole(kReadWrite)));
  const std::uint32_t old = window_->rkey;
  ASSERT_NO_FATAL_FAILURE(expect_invalidated());
  const ibv_mw_bind_info small{region_.get(), b.address(kTarget), 64, kReadWrite};
  for (int i = 0; i < 256; ++i) {
    ASSERT_TRUE(succeeded(bind(small), 100, IBV_WC_BIND_MW));
    if (i < 255) {
      ASSERT_NO_FATAL_FAILURE(expect_invalidated());
    }
  }
  ASSERT_EQ(window_->rkey, old);
  EXPECT_TRUE(failed(write(b.address(kTarget + 64), old, 64), 1, IBV_WC_REM_ACCESS_ERR));
  EXPECT_TRUE(all_are(b.bytes(kTarget, kWindowBytes), kCanary));
}

// Its queue pair's end frees the window, and with it the region.
TEST_P(SoftMwType2, EndsWithItsQueuePair) {
  ASSERT_TRUE(succeeded(bind(whole(kReadWrite)), 100, IBV_WC_BIND_MW));
  ASSERT_OK(to_reset(*b.nic, b.qp.get()));
  ASSERT_OK(b.nic->dereg_mr(region_.release(), soon()));
}

TEST_P(SoftMwType2, MemoryThatIsNotSharedIsNotGiven) {
  auto made = host::Arena::create({.size_bytes = 65536, .share = host::Share::kReadOnly, .prefault_threads = 1});
  ASSERT_OK(made);
  const auto id = b.nic->attach(*made, {.to = Grant::To::kAnyPeer});
  ASSERT_OK(id);
  const auto address = reinterpret_cast<std::uint64_t>(made->data());
  const auto region =
      b.nic->reg_mr(b.pd.get(), made->data(), 4096, address, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  ASSERT_OK(region);
  EXPECT_TRUE(failed(bind({*region, address, 64, kReadWrite}), 100, IBV_WC_MW_BIND_ERR));
  ASSERT_OK(b.nic->dereg_mr(*region, soon()));
  ASSERT_OK(b.nic->detach(*id));
}

TEST_P(SoftMwType2, MalformedRequestsAreRefused) {
  ibv_mw_bind_info info = whole(kReadWrite);
  EXPECT_EQ(Request(IBV_WR_BIND_MW, 1).bind(nullptr, 1, info).post(b), EINVAL);
  info.mr = nullptr;
  EXPECT_EQ(Request(IBV_WR_BIND_MW, 1).bind(window_.get(), 1, info).post(b), EINVAL);
  EXPECT_EQ(Request(IBV_WR_LOCAL_INV, 1).gather(b.sge(0, 8)).invalidate(1).post(b), EINVAL);
}

}  // namespace
}  // namespace verbena::nic::conformance
