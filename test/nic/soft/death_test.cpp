// A process killed at any instruction must not wedge or corrupt a peer.
//
// The victim is this executable again. It stops at the start of a phase; from there the survivor single-steps its main
// thread some number of instructions and kills it. A system call is one step; the victim's control thread runs free.
// VERBENA_SEEDS multiplies the number of places to die at.
#include "other_process.hpp"

#include "process.hpp"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace verbena::nic::soft {
namespace {

using namespace std::chrono_literals;
using Post = conformance::Request;
using conformance::Side;
using conformance::SideOptions;

enum class Phase : std::uint8_t { kPost, kReceive, kImport, kHandshake, kTeardown };

const char* name_of(Phase phase) {
  constexpr const char* kNames[] = {"Post", "Receive", "Import", "Handshake", "Teardown"};
  return kNames[static_cast<std::size_t>(phase)];
}

constexpr SideOptions kRoomy{.send_depth = 32, .recv_depth = 32, .cqe = 128, .arena_bytes = std::size_t{512} << 10};

// Where things are in either arena. Messages come into kInbox, kSlotBytes apart.
constexpr std::size_t kSlotBytes = 4096;
constexpr std::size_t kInbox = 0;
constexpr std::size_t kOutbox = std::size_t{128} << 10;
constexpr std::size_t kWritten = std::size_t{256} << 10;
constexpr std::size_t kWrittenImm = kWritten + 4096;
constexpr std::size_t kSource = kWritten + 8192;
constexpr std::size_t kCounter = kWritten + 12288;
constexpr std::size_t kImmBytes = 1024;
constexpr std::uint64_t kOldCount = 1000;
constexpr std::uint64_t kAdded = 7;

/// Message `i` of either direction: its length; its bytes are the pattern i.
constexpr std::size_t length_of(std::size_t i) {
  constexpr std::size_t kLengths[] = {24, 3072, 48, 49, 4096, 8};
  return kLengths[i % std::size(kLengths)];
}
constexpr std::size_t kMessages = 8;

/// What the victim posts in Phase::kPost, in order; a message of the survivor's is known by its place among these.
enum Posted : std::size_t { kSmall, kLarge, kPlainWrite, kImmWrite, kPlainRead, kFetchAdd, kLast, kPostedCount };

// --- victim -----------------------------------------------------------------------------------------------------

/// Where the survivor takes over. SIGSTOP at the start, SIGUSR1 at the end: both are seen by the tracer only.
void begin_phase() {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
  ::raise(SIGSTOP);
}
void end_phase() { ::raise(SIGUSR1); }

void require(const testing::AssertionResult& met, const char* what) {
  if (met) return;
  std::fprintf(stderr, "victim: %s: %s\n", what, met.message());
  ::_exit(3);
}
void require(bool met, const char* what) { require(testing::AssertionResult(met), what); }

void post_receives(Side& side) {
  for (std::size_t i = 0; i < kMessages; ++i)
    require(side.post_recv(i, side.sge(kInbox + i * kSlotBytes, kSlotBytes)) == 0, "post_recv");
}

Post message(const Side& side, std::size_t i) {
  const std::size_t at = kOutbox + i % kMessages * kSlotBytes;
  test::fill(side.bytes(at, length_of(i)), i);
  Post request(IBV_WR_SEND, i);
  request.gather(side.sge(at, length_of(i)));
  return request;
}

void post_everything(Side& side, const Window& window) {
  const auto remote = [&](std::size_t offset) { return window.address + offset; };
  test::fill(side.bytes(kWritten, 64), 100);
  test::fill(side.bytes(kWrittenImm, kImmBytes), 101);
  // Made in place: GCC 14 warns of the copy of a request.
  std::array<Post, kPostedCount> requests{message(side, 0),
                                          message(side, 1),
                                          Post(IBV_WR_RDMA_WRITE, kPlainWrite),
                                          Post(IBV_WR_RDMA_WRITE_WITH_IMM, kImmWrite),
                                          Post(IBV_WR_RDMA_READ, kPlainRead),
                                          Post(IBV_WR_ATOMIC_FETCH_AND_ADD, kFetchAdd),
                                          message(side, 2)};
  requests[2].gather(side.sge(kWritten, 64)).remote(remote(kWritten), window.rkey);
  requests[3].gather(side.sge(kWrittenImm, kImmBytes)).remote(remote(kWrittenImm), window.rkey);
  requests[3].immediate(htonl(0xABCD));
  requests[4].gather(side.sge(kSource, kImmBytes)).remote(remote(kSource), window.rkey);
  requests[5].gather(side.sge(kCounter, 8)).atomic(remote(kCounter), window.rkey, kAdded);
  for (Post& request : requests) (void)request.prepare();
  begin_phase();
  for (Post& request : requests) {
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(side.qp.get(), &request.prepare(), &bad) != 0) ::_exit(4);
  }
  end_phase();
}

/// Receives everything, each message whole, gives the receive back and echoes the message.
void receive_everything(Side& side) {
  std::size_t next = 0;
  // The echoes, and what is compared with: bytes are made and checked outside of the phase, or it is mostly that.
  std::vector<Post> echoes;
  for (std::size_t i = 0; i < kMessages; ++i) echoes.push_back(message(side, i));
  begin_phase();
  const Deadline deadline = Deadline::after(60s);
  while (next < kMessages && !deadline.passed()) {
    ibv_wc wc{};
    ibv_wc sent{};
    (void)ibv_poll_cq(side.send_cq.get(), 1, &sent);
    if (ibv_poll_cq(side.recv_cq.get(), 1, &wc) != 1) continue;
    if (wc.status != IBV_WC_SUCCESS || wc.wr_id != next || wc.byte_len != length_of(next)) ::_exit(5);
    const std::size_t at = next * kSlotBytes;
    if (std::memcmp(side.at(kInbox + at), side.at(kOutbox + at), wc.byte_len) != 0) ::_exit(6);
    if (echoes[next].post(side) != 0) ::_exit(7);
    require(side.post_recv(next, side.sge(kInbox + next * kSlotBytes, kSlotBytes)) == 0, "post_recv");
    ++next;
  }
  require(next == kMessages, "messages");
  end_phase();
}

void tear_down(Side& side, std::unique_ptr<Nic>& nic) {
  begin_phase();
  require(test::is_ok(nic->dereg_mr(side.mr.release(), Deadline::after(10s))), "dereg_mr");
  side.close();
  nic.reset();
  end_phase();
}

void live(Phase phase, int socket) {
  auto opened = open_soft({.max_qp = 16, .max_mr = 64});
  require(test::is_ok(opened), "open_soft");
  std::unique_ptr<Nic> nic = std::move(*opened);
  Side side;
  require(test::is_ok(make_side(side, *nic, kRoomy)), "make_side");
  post_receives(side);
  Introduction survivor;
  require(put(socket, introduce(side)) && get(socket, survivor), "introduction");
  if (phase == Phase::kHandshake) begin_phase();
  require(test::is_ok(connect_side(side, survivor.address)), "connect_side");
  if (phase == Phase::kHandshake) return end_phase();
  if (phase == Phase::kImport) begin_phase();
  require(test::is_ok(nic->import_window(side.qp.get(), survivor.window, Deadline::after(10s))), "import_window");
  if (phase == Phase::kImport) return end_phase();
  char go = 0;
  require(put(socket, go) && get(socket, go), "go");
  if (phase == Phase::kPost) post_everything(side, survivor.window);
  if (phase == Phase::kReceive) receive_everything(side);
  if (phase == Phase::kTeardown) tear_down(side, nic);
}

// --- survivor ---------------------------------------------------------------------------------------------------

class Death : public testing::TestWithParam<Phase> {
 protected:
  void SetUp() override {
    auto opened = open_soft({.max_qp = 16, .max_mr = 64});
    ASSERT_OK(opened);
    nic_ = std::move(*opened);
  }

  struct Baseline {
    Nic::Objects objects;
    std::size_t descriptors;
    std::size_t mappings;
    friend bool operator==(const Baseline&, const Baseline&) = default;
  };
  [[nodiscard]] Baseline now() const { return {nic_->objects(), test::open_descriptors(), test::memfd_mappings()}; }

  /// Steps the victim. The number of steps taken: fewer than `most` when the phase ended before.
  std::uint64_t step(OtherProcess& victim, std::uint64_t most, bool poll, bool (*there)(const Side&)) {
    for (std::uint64_t steps = 0; steps < most; ++steps) {
      if (there != nullptr && there(side_)) return steps;
      if (::ptrace(PTRACE_SINGLESTEP, victim.pid(), nullptr, nullptr) != 0) {
        ADD_FAILURE() << "PTRACE_SINGLESTEP: errno " << errno;
        return steps;
      }
      const int status = victim.wait();
      if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGUSR1) return steps;
      if (!WIFSTOPPED(status)) {
        ADD_FAILURE() << "the victim ended by itself after " << steps << " steps, status " << status;
        return steps;
      }
      if (poll && steps % 16 == 0) side_.poll();
    }
    return most;
  }

  /// Brings up a victim and kills it after `most` steps of the phase, or earlier when `there` says so. The steps taken.
  void run(std::uint64_t most, unsigned variant, std::uint64_t& steps, bool (*there)(const Side&) = nullptr);
  void prepare();
  void meet(OtherProcess& victim, bool late);
  void check_messages();
  void mourn(unsigned variant, bool late);

  std::unique_ptr<Nic> nic_;
  Side side_;
  Mr exposed_;  ///< What the victim may reach: revoked apart from the receives' own region.
  Introduction peer_;
};

void Death::prepare() {
  side_ = Side();
  ASSERT_OK(make_side(side_, *nic_, kRoomy));
  exposed_ = side_.reg(0, side_.arena.size(), conformance::kAllAccess);
  ASSERT_TRUE(exposed_);
  post_receives(side_);
  side_.word(kCounter) = kOldCount;
  std::ranges::fill(side_.bytes(kWritten, 8192), std::byte{0});
}

/// Up to the start of the phase; `late`: the survivor connects after the death only.
void Death::meet(OtherProcess& victim, bool late) {
  ASSERT_TRUE(get(victim.socket(), peer_));
  if (!late) {
    ASSERT_OK(connect_side(side_, peer_.address));
  }
  ASSERT_TRUE(put(victim.socket(), Introduction{nic_->address_of(side_.qp.get()), nic_->window_of(exposed_.get())}));
  const Phase phase = GetParam();
  if (phase == Phase::kHandshake || phase == Phase::kImport) return;
  char go = 0;
  ASSERT_TRUE(get(victim.socket(), go));
  ASSERT_OK(nic_->import_window(side_.qp.get(), peer_.window, conformance::soon()));
  if (phase == Phase::kReceive) {
    for (std::size_t i = 0; i < kMessages; ++i) ASSERT_EQ(message(side_, i).post(side_), 0);
  }
  ASSERT_TRUE(put(victim.socket(), go));
}

/// Everything that came before the end is whole, in order, and what it says of earlier operations is true.
void Death::check_messages() {
  const std::uint64_t count = std::atomic_ref(side_.word(kCounter)).load();
  EXPECT_TRUE(count == kOldCount || count == kOldCount + kAdded) << count;
  std::size_t next = 0;      // Receive.
  std::size_t numbered = 0;  // Message.
  for (const ibv_wc& wc : side_.received) {
    if (wc.status != IBV_WC_SUCCESS) {
      EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
      continue;
    }
    ASSERT_EQ(wc.wr_id, next);
    const bool is_imm = GetParam() == Phase::kPost && next == 2;
    if (is_imm) {
      EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
      EXPECT_EQ(wc.imm_data, htonl(0xABCD));
      EXPECT_EQ(wc.byte_len, kImmBytes);
      EXPECT_TRUE(test::matches(side_.bytes(kWritten, 64), 100));
      EXPECT_TRUE(test::matches(side_.bytes(kWrittenImm, kImmBytes), 101));
    } else {
      ASSERT_EQ(wc.byte_len, length_of(numbered));
      EXPECT_TRUE(test::matches(side_.bytes(kInbox + next * kSlotBytes, wc.byte_len), numbered));
      if (GetParam() == Phase::kPost && numbered == 2) {
        EXPECT_EQ(count, kOldCount + kAdded);
      }
      ++numbered;
    }
    ++next;
  }
}

/// After the kill: error in time with the right reason, and everything can be taken down.
void Death::mourn(unsigned variant, bool late) {
  if (late) {
    const auto connected = connect_side(side_, peer_.address);
    if (!connected) {
      EXPECT_STATUS(connected, Status::kPeerLost);
      return;
    }
  }
  if (variant % 4 == 1) {
    // Before anything has noticed the death. The killed initiator may have been inside the region.
    EXPECT_OK(nic_->dereg_mr(exposed_.release(), Deadline::after(10s)));
  } else if (variant % 4 == 2) {
    const auto imported = nic_->import_window(side_.qp.get(), peer_.window, Deadline::after(10s));
    if (!imported) {
      const Status status = imported.error().status();
      // Revoked by the victim's teardown, if that came so far.
      EXPECT_TRUE(status == Status::kPeerLost || (GetParam() == Phase::kTeardown && status == Status::kNotFound))
          << to_string(status) << ' ' << imported.error().text();
    }
  }
  const Deadline deadline = conformance::soon();
  while (side_.state() != IBV_QPS_ERR && !deadline.passed()) side_.poll();
  EXPECT_EQ(side_.state(), IBV_QPS_ERR);
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kPeerLost);
  for (int i = 0; i < 4; ++i) side_.poll();  // Flushes.
  check_messages();
}

void Death::run(std::uint64_t most, unsigned variant, std::uint64_t& steps, bool (*there)(const Side&)) {
  const Baseline before = now();
  ASSERT_NO_FATAL_FAILURE(prepare());
  const bool late = GetParam() == Phase::kHandshake && variant % 2 == 1;
  {
    OtherProcess victim = OtherProcess::start("victim", static_cast<std::uint64_t>(GetParam()));
    ASSERT_TRUE(victim);
    ASSERT_NO_FATAL_FAILURE(meet(victim, late));
    const int stopped = victim.wait();
    if (WIFEXITED(stopped) && WEXITSTATUS(stopped) == 77) GTEST_SKIP() << "ptrace is not permitted here";
    ASSERT_TRUE(WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGSTOP) << stopped;
    steps = step(victim, most, variant % 3 == 1, there);
    victim.kill();
    // In every other run nothing waits for the kernel to be done with it.
    if (variant % 2 == 0) (void)victim.wait();
    mourn(variant, late);
  }
  if (exposed_) {
    EXPECT_OK(nic_->dereg_mr(exposed_.release(), Deadline::after(10s)));
  }
  side_.close();
  // The control thread hears of the victim's sockets by itself.
  const Deadline deadline = conformance::soon();
  while (now() != before && !deadline.passed()) std::this_thread::yield();
  const Baseline after = now();
  EXPECT_EQ(after.objects, before.objects);
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.mappings, before.mappings);
}

TEST_P(Death, AtAnyInstruction) {
  std::uint64_t length = 0;
  ASSERT_NO_FATAL_FAILURE(run(10'000'000, 0, length));
  if (IsSkipped()) return;
  ASSERT_GT(length, 100U);
  // Steps are what costs: as many runs as some hundred thousand of them allow.
  std::uint64_t runs = std::clamp<std::uint64_t>(200'000 / length, 10, 40);
  if (const char* seeds = std::getenv("VERBENA_SEEDS"); seeds != nullptr) runs *= std::strtoull(seeds, nullptr, 10);
  runs = std::clamp<std::uint64_t>(runs, 1, length);
  std::printf("%s: %llu instructions, %llu runs\n", name_of(GetParam()), static_cast<unsigned long long>(length),
              static_cast<unsigned long long>(runs));
  for (std::uint64_t i = 0; i < runs; ++i) {
    // Every length/runs-th instruction, but not in step with any loop of that period.
    const std::uint64_t at = i * length / runs + i * 7919 % std::max<std::uint64_t>(length / runs, 1);
    SCOPED_TRACE(testing::Message() << "killed after " << at << " of " << length << " instructions, variant " << i);
    std::uint64_t steps = 0;
    ASSERT_NO_FATAL_FAILURE(run(at, static_cast<unsigned>(i), steps));
    if (HasFailure()) return;
  }
}

/// The victim dies inside an access to the region that is revoked next, before anything has noticed: the revocation
/// waits for its process, not for its deadline.
class DeathInside : public Death {};

TEST_P(DeathInside, AnAccessDoesNotHoldUpRevocation) {
  std::uint64_t steps = 0;
  // The instruction after which the effect is seen is followed by the end of the access.
  const auto added = [](const Side& side) { return std::atomic_ref(side.word(kCounter)).load() != kOldCount; };
  ASSERT_NO_FATAL_FAILURE(run(10'000'000, 1, steps, added));
  if (IsSkipped()) return;
  const auto writing = [](const Side& side) {
    return std::to_integer<int>(std::atomic_ref(*side.at(kWrittenImm)).load()) != 0;
  };
  ASSERT_NO_FATAL_FAILURE(run(10'000'000, 1, steps, writing));
}

INSTANTIATE_TEST_SUITE_P(Phases, DeathInside, testing::Values(Phase::kPost),
                         [](const testing::TestParamInfo<Phase>& one) { return name_of(one.param); });
INSTANTIATE_TEST_SUITE_P(Phases, Death,
                         testing::Values(Phase::kPost, Phase::kReceive, Phase::kImport, Phase::kHandshake,
                                         Phase::kTeardown),
                         [](const testing::TestParamInfo<Phase>& one) { return name_of(one.param); });

}  // namespace

int run_other(std::string_view, std::uint64_t argument, int socket) {
  live(static_cast<Phase>(argument), socket);
  return 0;
}

}  // namespace verbena::nic::soft
