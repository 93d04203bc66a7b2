// NICs that are opened once a process: who shares one, and that nothing of it stays.
#include "../host/child.hpp"
#include "base/error.hpp"
#include "link/fabric.hpp"
#include "nic/registered_arena.hpp"
#include "result.hpp"
#include "sanitized.hpp"
#include "support.hpp"

#include <dirent.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <future>
#include <latch>
#include <set>
#include <thread>

namespace verbena::link {
namespace {

using namespace test;
using namespace verbena::test;

Result<std::unique_ptr<Fabric>> open_soft(std::vector<uid_t> uids = {}, Bootstrap bootstrap = Bootstrap::kCm,
                                          Role role = Role::kServer) {
  return Fabric::open(
      {.transport = {.bootstrap = bootstrap, .device = "soft", .gid_index = {}}, .role = role, .allowed_uids = uids},
      generous());
}
bool share_one(const std::unique_ptr<Fabric>& a, const std::unique_ptr<Fabric>& b) {
  return &a->nic() == &b->nic() && a->shared_nic() == b->shared_nic();
}

std::size_t entries_of(const char* directory) {
  DIR* const listing = opendir(directory);
  std::size_t count = 0;
  while (listing != nullptr && readdir(listing) != nullptr) ++count;
  if (listing != nullptr) closedir(listing);
  return count;
}
struct Held {
  std::size_t descriptors = entries_of("/proc/self/fd");
  std::size_t threads = entries_of("/proc/self/task");
};
/// A thread that was joined, by an earlier test too, stays listed for a moment.
bool holds_no_more_than(const Held& expected) {
  const Deadline deadline = generous();
  for (;;) {
    const Held now;
    if (now.descriptors <= expected.descriptors && now.threads <= expected.threads) return true;
    if (deadline.passed()) return false;
    std::this_thread::yield();
  }
}

TEST(SharedNic, OneForAllOfTheSameUsers) {
  const auto first = open_soft({0, 65534});
  ASSERT_OK(first);
  for (const Bootstrap bootstrap : {Bootstrap::kCm, Bootstrap::kSocket}) {
    for (const Role role : {Role::kServer, Role::kClient}) {
      const auto other = open_soft({65534, 0, 65534}, bootstrap, role);
      ASSERT_OK(other);
      EXPECT_TRUE(share_one(*first, *other));
      EXPECT_EQ((*other)->bootstrap(), bootstrap);
    }
  }
}

TEST(SharedNic, AnotherForOtherUsers) {
  const auto none = open_soft(), root = open_soft({0}), both = open_soft({0, 65534});
  ASSERT_OK(none);
  ASSERT_OK(root);
  ASSERT_OK(both);
  EXPECT_EQ((std::set{&(*none)->nic(), &(*root)->nic(), &(*both)->nic()}.size()), 3U);
  const auto again = open_soft();
  ASSERT_OK(again);
  EXPECT_TRUE(share_one(*none, *again));
}

TEST(SharedNic, TheLastUserClosesIt) {
  { ASSERT_OK(open_soft()); }  // What is made once a process.
  const Held before;
  ibv_gid gid{};
  {
    auto first = open_soft();
    ASSERT_OK(first);
    gid = (*first)->nic().gid();
    const Held with_one;
    EXPECT_GT(with_one.descriptors, before.descriptors);
    auto second = open_soft();
    ASSERT_OK(second);
    EXPECT_TRUE(holds_no_more_than(with_one)) << "the second costs nothing";
    first->reset();
    EXPECT_EQ(Held().descriptors, with_one.descriptors);
    // Without its fabric too.
    const std::shared_ptr<SharedNic> kept = (*second)->shared_nic();
    second->reset();
    EXPECT_EQ(Held().descriptors, with_one.descriptors);
    EXPECT_EQ(std::memcmp(&kept->nic().gid(), &gid, sizeof gid), 0);
  }
  EXPECT_TRUE(holds_no_more_than(before));
  const auto next = open_soft();
  ASSERT_OK(next);
  EXPECT_NE(std::memcmp(&(*next)->nic().gid(), &gid, sizeof gid), 0);
}

TEST(SharedNic, ThreadsThatOpenAtTheSameTimeGetOne) {
  constexpr int kThreads = 6, kRounds = 20;
  std::atomic<int> opened{0};
  NicRegistry registry({.open_soft =
                            [&](const nic::SoftOptions& options) {
                              ++opened;
                              return nic::open_soft(options);
                            },
                        .open_verbs = nic::open_verbs,
                        .start_cm = cm::start});
  const Held before;
  for (int round = 0; round < kRounds; ++round) {
    std::barrier together(kThreads);
    std::vector<std::future<const nic::Nic*>> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.push_back(std::async(std::launch::async, [&]() -> const nic::Nic* {
        together.arrive_and_wait();
        const auto nic = registry.soft({});
        const nic::Nic* const seen = nic ? &(*nic)->nic() : nullptr;
        together.arrive_and_wait();  // All have theirs.
        return seen;
      }));
    }
    std::set<const nic::Nic*> seen;
    for (auto& thread : threads) seen.insert(thread.get());
    EXPECT_EQ(seen.size(), 1U);
    EXPECT_FALSE(seen.contains(nullptr));
  }
  EXPECT_EQ(opened, kRounds);
  EXPECT_TRUE(holds_no_more_than(before));
}

/// Openings and closings of two NICs cross each other.
TEST(SharedNic, ComesAndGoesInThreads) {
  const Held before;
  {
    std::vector<std::jthread> threads;
    for (uid_t i = 0; i < 4; ++i) {
      threads.emplace_back([i] {
        for (int round = 0; round < 40; ++round) {
          const auto fabric = open_soft({i % 2 + 1});
          ASSERT_OK(fabric);
          nic::Nic& nic = (*fabric)->nic();
          const auto pd = nic.alloc_pd();
          ASSERT_OK(pd);
          EXPECT_OK(nic.dealloc_pd(*pd));
        }
      });
    }
  }
  EXPECT_TRUE(holds_no_more_than(before));
}

TEST(SharedNic, ASlowOneHoldsUpNobodyElse) {
  std::latch is_opening(1), may_open(1);
  NicRegistry registry({.open_soft =
                            [&](const nic::SoftOptions& options) {
                              if (options.allowed_uids.size() == 2) {
                                is_opening.count_down();
                                may_open.wait();
                              }
                              return nic::open_soft(options);
                            },
                        .open_verbs = nic::open_verbs,
                        .start_cm = cm::start});
  const std::vector<uid_t> slow = {1, 2}, fast = {1};
  auto opening = std::async(std::launch::async, [&] { return registry.soft(slow); });
  is_opening.wait();
  const auto other = registry.soft(fast);
  EXPECT_OK(other);
  may_open.count_down();
  const auto opened = opening.get();
  ASSERT_OK(opened);
  EXPECT_NE(*other, *opened);
}

TEST(SharedNic, WhoAsksAfterAFailureTriesAgain) {
  int calls = 0;
  NicRegistry registry({.open_soft = [&](const nic::SoftOptions& options) -> Result<std::unique_ptr<nic::Nic>> {
                          if (++calls == 1) return fail(Status::kLimit, "open_soft", EMFILE, "planted");
                          return nic::open_soft(options);
                        },
                        .open_verbs = nic::open_verbs,
                        .start_cm = cm::start});
  EXPECT_STATUS(registry.soft({}), Status::kLimit);
  EXPECT_OK(registry.soft({}));
  EXPECT_EQ(calls, 2);
}

/// Both ends of connections in one process are on one NIC, and hear of each other's end.
TEST(SharedNic, ServerAndClientMeetAndPartOnOneNic) {
  const auto server = open_soft({}, Bootstrap::kCm), client = open_soft({}, Bootstrap::kCm, Role::kClient);
  ASSERT_OK(server);
  ASSERT_OK(client);
  ASSERT_TRUE(share_one(*server, *client));
  nic::Nic& nic = (*server)->nic();
  const nic::Pd pd(nic, nic.alloc_pd().value());
  const nic::Cq cq(nic, nic.create_cq(8, nullptr).value());
  nic::QpOptions options{.send_cq = cq.get(), .recv_cq = cq.get()};
  const nic::Qp a(nic, nic.create_qp(pd.get(), options).value());
  const nic::Qp b(nic, nic.create_qp(pd.get(), options).value());
  auto [at_client, at_server] = connect_over(**server, b.get(), **client, a.get());
  ASSERT_OK(at_client);
  ASSERT_OK(at_server);
  at_server->watch(nic, b.get());

  // The connection ends, the process and its NIC go on. What was sent before is received before.
  nic::RegisteredArena memory;
  ASSERT_OK(memory.open(nic, pd.get(), {.size_bytes = 4096, .name = "test"}, {}, IBV_ACCESS_LOCAL_WRITE));
  ibv_sge place{.addr = reinterpret_cast<std::uintptr_t>(memory.data()), .length = 64, .lkey = memory.lkey()};
  for (std::uint64_t id = 1; id <= 3; ++id) {
    ibv_recv_wr receive{.wr_id = id, .next = nullptr, .sg_list = &place, .num_sge = 1}, *bad = nullptr;
    ASSERT_EQ(ibv_post_recv(b.get(), &receive, &bad), 0);
  }
  const auto send = [&] {
    ibv_send_wr one{}, *bad = nullptr;
    one.opcode = IBV_WR_SEND;
    one.sg_list = &place;
    one.num_sge = 1;
    return ibv_post_send(a.get(), &one, &bad);
  };
  const auto poll = [&] {
    ibv_wc wc{};
    const Deadline deadline = generous();
    while (ibv_poll_cq(cq.get(), 1, &wc) != 1)
      if (deadline.passed()) return std::pair{std::uint64_t{0}, IBV_WC_GENERAL_ERR};
    return std::pair{wc.wr_id, wc.status};
  };
  ASSERT_EQ(send(), 0);
  EXPECT_EQ(poll(), (std::pair{std::uint64_t{1}, IBV_WC_SUCCESS}));
  ASSERT_EQ(send(), 0);
  EXPECT_EQ(nic.qp_failure(b.get()), Status::kOk);
  *at_client = {};
  EXPECT_EQ(poll(), (std::pair{std::uint64_t{2}, IBV_WC_SUCCESS}));
  EXPECT_EQ(poll(), (std::pair{std::uint64_t{3}, IBV_WC_WR_FLUSH_ERR}));
  EXPECT_EQ(nic.qp_failure(b.get()), Status::kPeerLost);
  EXPECT_EQ(nic.qp_failure(a.get()), Status::kOk);
  *at_server = {};
}

}  // namespace
}  // namespace verbena::link
