// Memory outside of arenas whose pages never come: a peer decides how long the kernel's copy takes, but not how long
// anybody waits for it.
//
// The peer is this executable again. Its region is faulted in when it is registered; then a userfaultfd that nobody
// serves takes the pages away.
#include "other_process.hpp"

#include "process.hpp"
#include "unserved_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

namespace verbena::nic::soft {
namespace {

using namespace std::chrono_literals;
using Post = conformance::Request;
using conformance::Side;
using conformance::SideOptions;

constexpr SideOptions kShallow{.send_depth = 32, .recv_depth = 32, .cqe = 128, .arena_bytes = std::size_t{512} << 10};
constexpr std::size_t kRegionBytes = std::size_t{256} << 10;
constexpr std::byte kFill{0x5A};
/// Far more than the queue pair's retries take, some 70 ms; the pages never come.
constexpr auto kLong = 10s;
/// Queue pairs that a peer offers, one after the other, each with a region of the same pages.
constexpr std::size_t kSides = 2;

enum class Pages : std::uint64_t { kThere, kUnserved };

// --- the peer ---------------------------------------------------------------------------------------------------

/// Exits with the line where it went wrong.
void require(bool met, int line) {
  if (!met) ::_exit(line % 200 + 1);
}

int be_peer(Pages pages, int socket) {
  auto nic = open_soft({.max_qp = 16, .max_mr = 64});
  require(nic.has_value(), __LINE__);
  void* const data = ::mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(data != MAP_FAILED, __LINE__);
  std::memset(data, std::to_integer<int>(kFill), kRegionBytes);
  std::array<Side, kSides> sides;
  std::array<Introduction, kSides> introductions;
  for (std::size_t i = 0; i < kSides; ++i) {
    require(make_side(sides[i], **nic, kShallow).has_value(), __LINE__);
    auto region = (*nic)->reg_mr(sides[i].pd.get(), data, kRegionBytes, reinterpret_cast<std::uint64_t>(data),
                                 conformance::kAllAccess);
    require(region.has_value(), __LINE__);
    introductions[i] = {introduce(sides[i]).address, (*nic)->window_of(*region)};
  }
  Fd unserved;
  if (pages == Pages::kUnserved) unserved = test::take_pages_away(data, kRegionBytes);
  const int error = pages == Pages::kUnserved && !unserved ? errno : 0;
  require(put(socket, error) && error == 0, __LINE__);
  for (std::size_t i = 0; i < kSides; ++i) {
    Introduction theirs;
    if (!put(socket, introductions[i]) || !get(socket, theirs)) return 0;
    require(connect_side(sides[i], theirs.address).has_value(), __LINE__);
  }
  char over = 0;
  (void)get(socket, over);
  return 0;
}

// --- this side --------------------------------------------------------------------------------------------------

/// Threads of this process that copy for the NIC.
std::size_t copying_threads() {
  std::size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name == "verbena-copy" ? 1U : 0U;
  }
  return count;
}

/// Whether it becomes true in time.
template <class Condition>
bool comes(const Condition& condition) {
  for (const Deadline deadline = Deadline::after(kLong); !deadline.passed(); std::this_thread::sleep_for(1ms))
    if (condition()) return true;
  return condition();
}

class UnservedPages : public testing::Test {
 protected:
  struct Peer {
    OtherProcess process;
    Introduction introduction;
  };
  void SetUp() override {
    auto opened = open_soft({.max_qp = 16, .max_mr = 64});
    ASSERT_OK(opened);
    nic_ = std::move(*opened);
    start(bad_, Pages::kUnserved);
  }
  // A thread of one test would be counted in the next one.
  void TearDown() override {
    nic_.reset();
    bad_.process = OtherProcess();
    EXPECT_TRUE(comes([] { return copying_threads() == 0; }));
  }
  static void start(Peer& peer, Pages pages) {
    peer.process = OtherProcess::start("peer", static_cast<std::uint64_t>(pages));
    ASSERT_TRUE(peer.process);
    int error = 0;
    ASSERT_TRUE(get(peer.process.socket(), error));
    if (error != 0) GTEST_SKIP() << "no userfaultfd that stops the kernel's accesses: " << std::strerror(error);
  }
  /// A new queue pair to the peer's next one, with its window.
  void connect(Side& side, Peer& peer) {
    ASSERT_OK(make_side(side, *nic_, kShallow));
    ASSERT_TRUE(put(peer.process.socket(), introduce(side)) && get(peer.process.socket(), peer.introduction));
    ASSERT_OK(connect_side(side, peer.introduction.address));
    ASSERT_OK(nic_->import_window(side.qp.get(), peer.introduction.window, conformance::soon()));
  }
  static Post request(const Side& side, const Peer& peer, ibv_wr_opcode opcode, std::size_t bytes) {
    const Window& window = peer.introduction.window;
    return Post(opcode, 7).gather(side.sge(0, bytes)).remote(window.address, window.rkey);
  }
  /// The status of a request, which must end long before the pages come.
  static ibv_wc_status end_of(Side& side, const Peer& peer, ibv_wr_opcode opcode, std::size_t bytes) {
    const Deadline deadline = Deadline::after(kLong);
    EXPECT_EQ(request(side, peer, opcode, bytes).post(side), 0);
    while (side.sent.empty() && !deadline.passed()) side.poll();
    EXPECT_FALSE(deadline.passed());
    if (side.sent.empty()) return IBV_WC_GENERAL_ERR;
    const ibv_wc wc = side.sent.front();
    side.sent.pop_front();
    return wc.status;
  }

  std::unique_ptr<Nic> nic_;
  Peer bad_;
};

class UnservedPagesBy : public UnservedPages, public testing::WithParamInterface<ibv_wr_opcode> {};
INSTANTIATE_TEST_SUITE_P(Opcodes, UnservedPagesBy, testing::Values(IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE),
                         [](const auto& each) { return each.param == IBV_WR_RDMA_READ ? "Read" : "Write"; });

// The request fails as for any peer that does not answer; neither other peers nor the ends of handles wait for it; and
// the same peer gets no second thread to stop, however often it connects.
TEST_P(UnservedPagesBy, HoldUpNobody) {
  for (std::size_t i = 0; i < kSides; ++i) {
    Side side;
    ASSERT_NO_FATAL_FAILURE(connect(side, bad_));
    if (IsSkipped()) return;
    std::memset(side.at(0), 1, kRegionBytes);
    EXPECT_EQ(end_of(side, bad_, GetParam(), i == 0 ? 8 : kRegionBytes), IBV_WC_RETRY_EXC_ERR);
    EXPECT_TRUE(test::all_are(side.bytes(0, kRegionBytes), std::byte{1}));
    EXPECT_EQ(copying_threads(), 1U);
    const Deadline deadline = Deadline::after(kLong);
    side.close();
    EXPECT_FALSE(deadline.passed());
  }
  Peer good;
  ASSERT_NO_FATAL_FAILURE(start(good, Pages::kThere));
  {
    Side side;
    ASSERT_NO_FATAL_FAILURE(connect(side, good));
    EXPECT_EQ(end_of(side, good, IBV_WR_RDMA_READ, kRegionBytes), IBV_WC_SUCCESS);
    EXPECT_TRUE(test::all_are(side.bytes(0, kRegionBytes), kFill));
    EXPECT_EQ(end_of(side, good, IBV_WR_RDMA_WRITE, kRegionBytes), IBV_WC_SUCCESS);
    side.close();
  }
  EXPECT_EQ(copying_threads(), 1U);
  const Deadline deadline = Deadline::after(kLong);
  nic_.reset();
  EXPECT_FALSE(deadline.passed());
  // The end of the peer closes the userfaultfd, and lets the thread go.
  EXPECT_EQ(copying_threads(), 1U);
  bad_.process = OtherProcess();
  EXPECT_TRUE(comes([] { return copying_threads() == 0; }));
  EXPECT_EQ(test::memfd_mappings(), 0U);
}

// Handles end while the copy is under way, and its queue pair begins anew.
TEST_P(UnservedPagesBy, AreLeftInTheMiddle) {
  Side side;
  ASSERT_NO_FATAL_FAILURE(connect(side, bad_));
  if (IsSkipped()) return;
  const Deadline deadline = Deadline::after(kLong);
  ASSERT_EQ(request(side, bad_, GetParam(), kRegionBytes).post(side), 0);
  ASSERT_OK(nic_->release_window(side.qp.get(), bad_.introduction.window));
  ASSERT_OK(conformance::to_reset(*nic_, side.qp.get()));
  ASSERT_OK(conformance::to_init(*nic_, side.qp.get(), kShallow));
  EXPECT_FALSE(deadline.passed());
  // The pages' process has a thread stuck already: its service thread is asked instead, and is stuck as well.
  ASSERT_TRUE(put(bad_.process.socket(), introduce(side)) && get(bad_.process.socket(), bad_.introduction));
  ASSERT_OK(connect_side(side, bad_.introduction.address));
  ASSERT_OK(nic_->import_window(side.qp.get(), bad_.introduction.window, conformance::soon()));
  EXPECT_EQ(end_of(side, bad_, GetParam(), 8), IBV_WC_RETRY_EXC_ERR);
  EXPECT_LE(copying_threads(), 1U);  // None, if the first had not begun when it was left.
  side.close();
}

// Who sleeps until the completion is woken when the time is over, and a second queue pair to the same peer as well.
TEST_F(UnservedPages, SleepersAreWoken) {
  std::array<Side, 2> sides;
  for (Side& side : sides) {
    ASSERT_NO_FATAL_FAILURE(connect(side, bad_));
    if (IsSkipped()) return;
    ASSERT_EQ(request(side, bad_, IBV_WR_RDMA_READ, 8).post(side), 0);
  }
  for (Side& side : sides) {
    ASSERT_NO_FATAL_FAILURE(side.sleep_until_sent());
    ASSERT_FALSE(side.sent.empty());
    EXPECT_EQ(side.sent.front().status, IBV_WC_RETRY_EXC_ERR);
  }
  EXPECT_EQ(copying_threads(), 1U);
  for (Side& side : sides) side.close();
}

}  // namespace

int run_other(std::string_view, std::uint64_t argument, int socket) {
  return be_peer(static_cast<Pages>(argument), socket);
}

}  // namespace verbena::nic::soft
