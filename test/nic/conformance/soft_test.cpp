// What the soft NIC says of things that it does not have yet, and of memory that it may not share.
#include "emulated.hpp"
#include "fixture.hpp"

#include "nic/footprint.hpp"
#include "process.hpp"
#include "sanitized.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <thread>
#include <vector>

namespace verbena::nic::conformance {
namespace {

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

/// Descriptors of this process, and what must become of them.
class Descriptors : public Soft {
 protected:
  static constexpr std::size_t kPairs = 64;
  /// What a control thread has just been handed is closed a little later.
  static testing::AssertionResult become(std::size_t expected) {
    const Deadline deadline = soon();
    while (test::open_descriptors() != expected && !deadline.passed()) std::this_thread::yield();
    if (test::open_descriptors() == expected) return testing::AssertionSuccess();
    return testing::AssertionFailure() << test::open_descriptors() << " descriptors; expected " << expected;
  }
  void connect_pairs(const QpOptions& a_options, const QpOptions& b_options) {
    for (std::size_t i = 0; i < kPairs; ++i) {
      qps_.push_back(make_qp(a, a_options));
      qps_.push_back(make_qp(b, b_options));
      ASSERT_NO_FATAL_FAILURE(connect(a, qps_[2 * i].get(), b, qps_[2 * i + 1].get()));
    }
  }
  void TearDown() override {
    qps_.clear();
    Soft::TearDown();
  }
  std::vector<Qp> qps_;  // Of a and b in turn.
};
VERBENA_FOR_THE_SOFT_NIC(Descriptors);

TEST_P(Descriptors, NoneOfAConnectedQueuePair) {
  const std::size_t before = test::open_descriptors();
  ASSERT_NO_FATAL_FAILURE(connect_pairs(a.qp_options, b.qp_options));
  EXPECT_TRUE(become(before));
  // Memory of their own again, until they are connected again.
  for (const Qp& qp : qps_) {
    Side& side = qp->context == a.nic->context() ? a : b;
    ASSERT_OK(to_reset(*side.nic, qp.get()));
  }
  EXPECT_TRUE(become(before + 2 * kPairs));
  for (std::size_t i = 0; i < kPairs; ++i) {
    ASSERT_NO_FATAL_FAILURE(connect(a, qps_[2 * i].get(), b, qps_[2 * i + 1].get()));
  }
  EXPECT_TRUE(become(before));
  qps_.clear();
  EXPECT_TRUE(become(before));
}

TEST_P(Descriptors, OneOfAChannelAndOneDuplicateOfItAtThePeer) {
  const std::size_t before = test::open_descriptors();
  const auto channel = a.nic->create_channel();
  ASSERT_OK(channel);
  EXPECT_TRUE(become(before + 1));
  const auto made = a.nic->create_cq(1024, *channel);
  ASSERT_OK(made);
  EXPECT_TRUE(become(before + 1));
  QpOptions options = a.qp_options;
  options.recv_cq = *made;  // The send queue keeps its channel: the peer rings both.
  ASSERT_NO_FATAL_FAILURE(connect_pairs(options, b.qp_options));
  EXPECT_TRUE(become(before + 2));
  qps_.clear();
  EXPECT_TRUE(become(before + 1));
  EXPECT_OK(a.nic->destroy_cq(*made));
  EXPECT_OK(a.nic->destroy_channel(*channel));
  EXPECT_TRUE(become(before));
}

/// What objects take of memory while they wait for work.
class Resident : public Soft {
 protected:
  void SetUp() override {
    if (test::kIsSanitized) GTEST_SKIP() << "a sanitizer's own memory grows with the program's";
    VERBENA_SKIP_IN_CHAOS();
    ASSERT_NO_FATAL_FAILURE(Soft::SetUp());
  }
  void TearDown() override {
    qps_.clear();
    Soft::TearDown();
  }
  std::vector<Qp> qps_;
};
VERBENA_FOR_THE_SOFT_NIC(Resident);

TEST_P(Resident, AConnectedQueuePairWithoutTraffic) {
  constexpr std::size_t kPairs = 128;
  constexpr std::size_t kMost = std::size_t{24} << 10;  // At each end.
  const auto made_a = a.nic->create_cq(kPairs * 192, a.channel.get());
  const auto made_b = b.nic->create_cq(kPairs * 192, b.channel.get());
  ASSERT_OK(made_a);
  ASSERT_OK(made_b);
  const Cq cq_a(*a.nic, *made_a);
  const Cq cq_b(*b.nic, *made_b);
  const std::size_t before = test::resident_bytes();
  for (std::size_t i = 0; i < kPairs; ++i) {
    for (const auto& [side, cq] : {std::pair(&a, *made_a), std::pair(&b, *made_b)}) {
      QpOptions options{.send_cq = cq, .recv_cq = cq, .max_send_wr = 128, .max_recv_wr = 64, .max_recv_sge = 1};
      qps_.push_back(make_qp(*side, options));
    }
    ASSERT_NO_FATAL_FAILURE(connect(a, qps_[2 * i].get(), b, qps_[2 * i + 1].get()));
    for (const Qp& qp : {std::cref(qps_[2 * i]), std::cref(qps_[2 * i + 1])}) {
      const Side& side = &qp == &qps_[2 * i] ? a : b;
      for (std::uint64_t n = 0; n < 64; ++n) {
        ibv_sge sge = side.sge(0, 64);
        ibv_recv_wr wr{.wr_id = n, .next = nullptr, .sg_list = &sge, .num_sge = 1};
        ibv_recv_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_recv(qp.get(), &wr, &bad), 0);
      }
    }
  }
  ibv_wc wc{};
  for (int i = 0; i < 4096; ++i) {
    ASSERT_EQ(ibv_poll_cq(*made_a, 1, &wc), 0);
    ASSERT_EQ(ibv_poll_cq(*made_b, 1, &wc), 0);
  }
  const std::size_t each = (test::resident_bytes() - before) / (2 * kPairs);
  std::printf("%zu bytes at each end of an idle connection\n", each);
  EXPECT_LE(each, kMost);
  EXPECT_GE(each, 4096U);  // Else it was not measured.
  qps_.clear();
}

TEST_P(Resident, AQueueThatIsEmpty) {
  VERBENA_SKIP_IN_EMULATOR("has pages of its own for each page of the program");
  const std::size_t before = test::resident_bytes();
  const auto made = a.nic->create_cq(a.nic->limits().max_cqe, nullptr);
  ASSERT_OK(made);
  EXPECT_LE(test::resident_bytes() - before, std::size_t{256} << 10);
  EXPECT_OK(a.nic->destroy_cq(*made));
}

// However many completions pass through a queue, those that it holds at a time are what it takes.
TEST_P(Resident, AQueueThatManyCompletionsPass) {
  const auto made = a.nic->create_cq(a.nic->limits().max_cqe, a.channel.get());
  ASSERT_OK(made);
  const Cq cq(*a.nic, *made);
  QpOptions options = a.qp_options;
  options.send_cq = *made;
  const Qp here = make_qp(a, options);
  const Qp there = make_qp(b, b.qp_options);
  ASSERT_NO_FATAL_FAILURE(connect(a, here.get(), b, there.get()));
  ASSERT_OK(a.nic->import_window(here.get(), b.nic->window_of(b.mr.get()), soon()));
  const std::size_t before = test::resident_bytes();
  const Deadline deadline = soon();
  for (int i = 0; i < 200'000 && !deadline.passed(); ++i) {
    ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 8)).remote(b, kTarget).post(here.get()), 0);
    std::array<ibv_wc, 16> completions{};
    while (ibv_poll_cq(*made, 16, completions.data()) == 0 && !deadline.passed()) {}
  }
  EXPECT_LE(test::resident_bytes() - before, std::size_t{2} << 20);  // Of 12.8 MB.
}

TEST_P(Resident, FootprintsTellWhatIsMapped) {
  for (const std::uint32_t depth : {1U, 60U, 1000U}) {
    const std::uint64_t before = test::mapped_bytes();
    QpOptions options = a.qp_options;
    options.max_send_wr = depth;
    options.max_recv_wr = 2 * depth;
    const std::uint64_t told = qp_footprint(Kind::kSoft, options).bytes(host::PoolKind::kAsUsed);
    const Qp qp = make_qp(a, options);
    const std::uint64_t mapped = test::mapped_bytes() - before;
    EXPECT_GE(mapped, told) << depth;
    EXPECT_LE(mapped, told + 3 * 4096) << depth;  // Two mappings of whole pages, arrays of whole lines.
    const std::uint64_t without = test::mapped_bytes();
    const auto made = a.nic->create_cq(100 * depth, nullptr);
    ASSERT_OK(made);
    const Cq cq(*a.nic, *made);
    const std::uint64_t told_of_cq = cq_footprint(Kind::kSoft, 100 * depth).bytes(host::PoolKind::kAsUsed);
    EXPECT_GE(test::mapped_bytes() - without, told_of_cq) << depth;
    EXPECT_LE(test::mapped_bytes() - without, told_of_cq + 2 * 4096) << depth;
  }
}

class SoftChannels : public Soft {};
VERBENA_FOR_THE_SOFT_NIC(SoftChannels);

// Who polls the descriptor himself takes one event each time that it is readable, and misses none.
TEST_P(SoftChannels, TheDescriptorIsReadableAsLongAsThereAreEvents) {
  VERBENA_SKIP_IN_CHAOS();
  std::array<Cq, 3> cqs;
  for (Cq& cq : cqs) {
    const auto made = a.nic->create_cq(16, a.channel.get());
    ASSERT_OK(made);
    cq = Cq(*a.nic, *made);
    ASSERT_EQ(ibv_req_notify_cq(*made, 0), 0);
  }
  a.nic->wake(a.channel.get());
  ASSERT_EQ(ibv_req_notify_cq(a.recv_cq.get(), 0), 0);
  a.poll();
  ASSERT_EQ(a.post_recv(1, a.sge(0, 64)), 0);
  ASSERT_EQ(Request(IBV_WR_SEND, 2).gather(b.sge(0, 8)).post(b), 0);
  std::set<ibv_cq*> seen;
  int taken = 0;
  while (!seen.contains(a.recv_cq.get())) {
    pollfd entry{a.channel->fd, POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
    const auto event = a.nic->wait(a.channel.get(), Deadline::now());
    if (!event) continue;  // It may ring for nobody.
    ASSERT_LE(++taken, 8);
    seen.insert(*event);
    // Who arms at once what was taken must not keep the others from their turn.
    if (*event != nullptr && *event != a.recv_cq.get()) {
      ASSERT_EQ(ibv_req_notify_cq(*event, 0), 0);
    }
  }
  EXPECT_TRUE(seen.contains(nullptr));
  EXPECT_TRUE(succeeded(received(a), 1, IBV_WC_RECV));
  EXPECT_TRUE(succeeded(sent(b), 2, IBV_WC_SEND));
}

// Each queue pair's messages come to the channel of its receive queue, and the other channel's sleeper to no harm.
TEST_P(SoftChannels, QueuesOnTwoChannels) {
  VERBENA_SKIP_IN_CHAOS();
  const auto made_channel = a.nic->create_channel();
  ASSERT_OK(made_channel);
  const Channel channel(*a.nic, *made_channel);
  const auto made = a.nic->create_cq(64, channel.get());
  ASSERT_OK(made);
  const Cq recv_cq(*a.nic, *made);
  QpOptions options = a.qp_options;
  options.recv_cq = *made;
  const Qp here = make_qp(a, options);
  const Qp there = make_qp(b, b.qp_options);
  ASSERT_NO_FATAL_FAILURE(connect(a, here.get(), b, there.get()));
  for (std::uint64_t round = 0; round < 50; ++round) {
    ibv_sge sge = a.sge(0, 64);
    ibv_recv_wr wr{};
    wr.wr_id = round;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(here.get(), &wr, &bad), 0);
    std::thread sender([&] {
      EXPECT_EQ(Request(IBV_WR_SEND, round).gather(b.sge(0, 8)).post(there.get()), 0);
      const Deadline deadline = soon();
      while (b.sent.empty() && !deadline.passed()) b.poll();
      EXPECT_TRUE(!b.sent.empty());
      b.sent.clear();
    });
    const Deadline deadline = soon();
    ibv_wc wc{};
    int count = 0;
    while (count == 0 && !deadline.passed()) {
      EXPECT_EQ(ibv_req_notify_cq(recv_cq.get(), 0), 0);
      count = ibv_poll_cq(recv_cq.get(), 1, &wc);
      if (count != 0) break;
      EXPECT_OK(a.nic->wait(channel.get(), deadline));
      count = ibv_poll_cq(recv_cq.get(), 1, &wc);
    }
    sender.join();
    ASSERT_EQ(count, 1);
    EXPECT_TRUE(succeeded(wc, round, IBV_WC_RECV));
  }
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

// Nobody makes pages of it that nobody uses: neither registering it nor importing it.
TEST_P(SoftMemory, ArenaThatIsFaultedInAsUsed) {
  auto made = host::Arena::create(
      {.size_bytes = 1 << 20, .share = host::Share::kReadWrite, .populate = host::Populate::kAsUsed});
  ASSERT_OK(made);
  arena_ = std::move(*made);
  const auto id = b.nic->attach(arena_, {.to = Grant::To::kAnyPeer});
  ASSERT_OK(id);
  id_ = *id;
  const auto registered = reg(kAllAccess);
  ASSERT_OK(registered);
  const Mr region(*b.nic, *registered);
  ASSERT_OK(import_it(region));
  const auto pages = [&] {
    std::vector<unsigned char> there(arena_.size() / 4096);
    EXPECT_EQ(::mincore(arena_.data(), arena_.size(), there.data()), 0);
    return std::ranges::count_if(there, [](unsigned char page) { return (page & 1) != 0; });
  };
  EXPECT_EQ(pages(), 0);
  test::fill(a.bytes(0, 4096), 4);
  const auto address = reinterpret_cast<std::uint64_t>(arena_.data());
  ASSERT_EQ(Request(IBV_WR_RDMA_WRITE, 1).gather(a.sge(0, 4096)).remote(address + 8192, region->rkey).post(a), 0);
  EXPECT_TRUE(succeeded(sent(a), 1, IBV_WC_RDMA_WRITE));
  EXPECT_EQ(pages(), 1);
  EXPECT_TRUE(test::matches(arena_.bytes().subspan(8192, 4096), 4));
}

// The memory of the binding before, which nothing else keeps, is that of the new one.
TEST_P(SoftMemory, AWindowThatIsBoundAnew) {
  ASSERT_NO_FATAL_FAILURE(make_arena(host::Share::kReadWrite, {.to = Grant::To::kAnyPeer}));
  const auto made = reg(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  ASSERT_OK(made);
  const Mr region(*b.nic, *made);
  const auto made_window = b.nic->alloc_mw(b.pd.get());
  ASSERT_OK(made_window);
  const Mw window(*b.nic, *made_window);
  const auto address = reinterpret_cast<std::uint64_t>(arena_.data());
  for (int round = 0; round < 3; ++round) {
    const ibv_mw_bind_info bind{region.get(), address, 4096, IBV_ACCESS_REMOTE_READ};
    window->rkey = ibv_inc_rkey(window->rkey);
    ASSERT_EQ(Request(IBV_WR_BIND_MW, 1).bind(window.get(), window->rkey, bind).post(b), 0);
    EXPECT_TRUE(succeeded(sent(b), 1, IBV_WC_BIND_MW));
    ASSERT_OK(a.nic->import_window(a.qp.get(), b.nic->window_of(window->rkey, bind), soon()));
    test::fill(arena_.bytes().first(4096), static_cast<std::uint64_t>(round));
    ASSERT_EQ(Request(IBV_WR_RDMA_READ, 2).gather(a.sge(0, 4096)).remote(address, window->rkey).post(a), 0);
    EXPECT_TRUE(succeeded(sent(a), 2, IBV_WC_RDMA_READ));
    EXPECT_TRUE(test::matches(a.bytes(0, 4096), static_cast<std::uint64_t>(round)));
    ASSERT_EQ(Request(IBV_WR_LOCAL_INV, 3).invalidate(window->rkey).post(b), 0);
    EXPECT_TRUE(succeeded(sent(b), 3, IBV_WC_LOCAL_INV));
  }
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
