// Bring-up that waits for nobody: peers that are silent, stopped, late or gone cost their own connection only.
//
// Most peers here are hand-made (raw_peer.hpp), so that a test says itself when what is answered; the others are
// processes that can be stopped and killed.
#include "other_process.hpp"
#include "raw_peer.hpp"

#include "process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::nic::soft {
namespace {

using namespace std::chrono_literals;
using conformance::Side;
using conformance::SideOptions;
using conformance::soon;

constexpr SideOptions kOptions{.send_depth = 16, .recv_depth = 16, .cqe = 64, .arena_bytes = std::size_t{64} << 10};
constexpr std::uint32_t kPeerQp = 77;
constexpr std::uint32_t kKeys = 64;

/// A peer that does and answers nothing by itself.
class RawPeer {
 public:
  [[nodiscard]] bool listen(const ibv_gid& somebodys) {
    static std::atomic<std::uint64_t> number{1};
    keys_ = make_memfd(kKeys * sizeof(KeyEntry), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return keys_ && listener_.listen(somebodys, number++);
  }
  [[nodiscard]] QpAddress address() const {
    QpAddress address;
    address.gid = listener_.gid();
    address.qp_num = kPeerQp;
    return address;
  }
  /// The next request, which must be of that type.
  [[nodiscard]] testing::AssertionResult takes(RequestType type) {
    soft::Request request;
    Fds fds;
    if (!listener_.take(request, fds, soon())) return testing::AssertionFailure() << "no request came";
    asked_memory_ = request.memory_id;
    if (request.type == type) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "request of type " << static_cast<std::uint32_t>(request.type);
  }
  [[nodiscard]] bool says_hello() {
    Reply reply;
    reply.gid = listener_.gid();
    reply.key_entries = kKeys;
    return listener_.answer(reply, {keys_.get()});
  }
  [[nodiscard]] bool says(Answer answer) {
    Reply reply;
    reply.gid = listener_.gid();
    reply.answer = answer;
    return listener_.answer(reply, {});
  }
  [[nodiscard]] bool hands_over(const Fd& memory, std::uint64_t size) {
    Reply reply;
    reply.gid = listener_.gid();
    reply.size = size;
    reply.writable = 1;
    return listener_.answer(reply, {memory.get()});
  }
  /// Puts a region of `length` bytes of its memory `memory_id` into its table.
  [[nodiscard]] Window publish(std::uint32_t index, std::uint64_t memory_id, std::uint64_t length) {
    const Window window{.address = 4096,
                        .length = length,
                        .rkey = kRemoteKeyBit | index << 8 | 1U,
                        .access = IBV_ACCESS_REMOTE_READ,
                        .memory_id = memory_id};
    const std::array<std::uint64_t, 6> words{
        window.rkey, std::uint64_t{window.access} << 32 | 1U, window.address, length, memory_id, 0};
    static_assert(offsetof(KeyEntry, domain) == 8 && offsetof(KeyEntry, access) == 12 &&
                  offsetof(KeyEntry, iova) == 16 && offsetof(KeyEntry, length) == 24 &&
                  offsetof(KeyEntry, memory_id) == 32 && offsetof(KeyEntry, memory_offset) == 40);
    const auto at = static_cast<off_t>(index * sizeof(KeyEntry));
    EXPECT_EQ(::pwrite(keys_.get(), words.data(), sizeof words, at), static_cast<ssize_t>(sizeof words));
    return window;
  }
  [[nodiscard]] std::uint64_t asked_memory() const noexcept { return asked_memory_; }
  void close() { listener_.close(); }

 private:
  RawListener listener_;
  Fd keys_;
  std::uint64_t asked_memory_ = 0;
};

class BringUp : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_soft({.max_qp = 256, .max_mr = 256});
    ASSERT_OK(opened);
    nic_ = std::move(*opened);
    auto progress = make_eventfd();
    ASSERT_OK(progress);
    progress_ = std::move(*progress);
    nic_->notify_progress(progress_.get());
    ASSERT_OK(make_side(side_, *nic_, kOptions));
    ASSERT_TRUE(peer_.listen(nic_->gid()));
  }
  void TearDown() override {
    nic_->notify_progress(-1);
    for (Side* side : {&side_, &good_, &twin_}) {
      if (side->nic != nullptr) side->close();
    }
    EXPECT_EQ(nic_->objects(), Nic::Objects{});
  }

  static Result<void> to_rtr(Side& side, const QpAddress& peer, Deadline deadline) {
    return conformance::to_rtr(*side.nic, side.qp.get(), peer, 0, side.options, deadline);
  }
  Result<void> step() { return to_rtr(side_, peer_.address(), Deadline::now()); }
  /// Waits until the NIC says that something got on.
  [[nodiscard]] bool got_on() const {
    const bool signalled = wait_readable(progress_.get(), soon());
    drain_eventfd(progress_.get());
    return signalled;
  }
  /// The outcome of a call that is repeated as long as it says kAgain. It never waits itself.
  template <class Call>
  [[nodiscard]] auto repeat(Call&& call) {
    for (;;) {
      auto result = call();
      if (result || result.error().status() != Status::kAgain || !got_on()) return result;
    }
  }
  /// As far as RTR, with the peer's help.
  void reach_peer() {
    ASSERT_STATUS(step(), Status::kAgain);
    ASSERT_TRUE(peer_.takes(RequestType::kHello));
    ASSERT_TRUE(peer_.says_hello());
    std::thread peer([&] {
      EXPECT_TRUE(peer_.takes(RequestType::kOffer));
      EXPECT_TRUE(peer_.says(Answer::kOk));
    });
    const auto reached = repeat([&] { return step(); });
    peer.join();
    ASSERT_OK(reached);
  }
  /// A pair of this NIC's own connects, imports and exchanges a message, all within their deadlines.
  void others_connect() {
    ASSERT_OK(make_side(good_, *nic_, kOptions));
    ASSERT_OK(make_side(twin_, *nic_, kOptions));
    ASSERT_OK(connect_side(good_, nic_->address_of(twin_.qp.get())));
    ASSERT_OK(connect_side(twin_, nic_->address_of(good_.qp.get())));
    ASSERT_OK(nic_->import_window(good_.qp.get(), nic_->window_of(twin_.mr.get()), soon()));
    ASSERT_EQ(twin_.post_recv(1, twin_.sge(0, 64)), 0);
    ASSERT_EQ(conformance::Request(IBV_WR_SEND, 2).gather(good_.sge(0, 64)).post(good_), 0);
    const Deadline deadline = soon();
    while ((twin_.received.empty() || good_.sent.empty()) && !deadline.passed()) {
      good_.poll();
      twin_.poll();
    }
    ASSERT_FALSE(twin_.received.empty());
    EXPECT_TRUE(conformance::succeeded(twin_.received.front(), 1, IBV_WC_RECV));
    good_.close();
    twin_.close();
  }
  [[nodiscard]] ibv_qp_state state() const { return nic_->qp_state(side_.qp.get()); }

  std::unique_ptr<Nic> nic_;
  Fd progress_;
  Side side_;
  Side good_;
  Side twin_;
  RawPeer peer_;
};

TEST_F(BringUp, AnAttemptSaysAgainUntilThePeerAnswers) {
  for (int i = 0; i < 3; ++i) EXPECT_STATUS(step(), Status::kAgain);
  EXPECT_EQ(state(), IBV_QPS_INIT);
  ASSERT_TRUE(peer_.takes(RequestType::kHello));
  EXPECT_STATUS(step(), Status::kAgain);
  drain_eventfd(progress_.get());
  ASSERT_TRUE(peer_.says_hello());
  ASSERT_TRUE(got_on());
  for (int i = 0; i < 3; ++i) EXPECT_STATUS(step(), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kOffer));
  EXPECT_STATUS(conformance::to_rts(*nic_, side_.qp.get(), kOptions), Status::kBadArgument);
  drain_eventfd(progress_.get());
  ASSERT_TRUE(peer_.says(Answer::kOk));
  ASSERT_TRUE(got_on());
  ASSERT_OK(step());
  EXPECT_EQ(state(), IBV_QPS_RTR);
  EXPECT_STATUS(step(), Status::kBadArgument);  // From RTR, as ever.
  ASSERT_OK(conformance::to_rts(*nic_, side_.qp.get(), kOptions));
}

TEST_F(BringUp, ARefusedOfferLeavesTheQueuePairInInit) {
  ASSERT_STATUS(step(), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kHello) && peer_.says_hello());
  std::thread peer([&] { EXPECT_TRUE(peer_.takes(RequestType::kOffer) && peer_.says(Answer::kUnknown)); });
  EXPECT_STATUS(repeat([&] { return step(); }), Status::kProtocol);
  peer.join();
  EXPECT_EQ(state(), IBV_QPS_INIT);
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kOk);
  // Again, from there.
  std::thread again([&] { EXPECT_TRUE(peer_.takes(RequestType::kHello) && peer_.says(Answer::kVersion)); });
  EXPECT_STATUS(repeat([&] { return step(); }), Status::kProtocol);
  again.join();
}

TEST_F(BringUp, ASilentPeerHoldsUpNobodyElse) {
  std::atomic<bool> is_over{false};
  std::thread waiting([&] {
    EXPECT_STATUS(to_rtr(side_, peer_.address(), Deadline::after(60s)), Status::kPeerLost);
    is_over = true;
  });
  EXPECT_TRUE(peer_.takes(RequestType::kHello));  // The call is under way.
  others_connect();
  EXPECT_FALSE(is_over);
  peer_.close();
  waiting.join();
  EXPECT_EQ(state(), IBV_QPS_INIT);
}

TEST_F(BringUp, ASilentPeerOfAnOfferHoldsUpNobodyElse) {
  ASSERT_STATUS(step(), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kHello) && peer_.says_hello());
  std::atomic<bool> is_over{false};
  std::thread waiting([&] {
    EXPECT_STATUS(to_rtr(side_, peer_.address(), Deadline::after(60s)), Status::kPeerLost);
    is_over = true;
  });
  EXPECT_TRUE(peer_.takes(RequestType::kOffer));
  others_connect();
  EXPECT_FALSE(is_over);
  peer_.close();
  waiting.join();
}

TEST_F(BringUp, AnInquirySaysAgainUntilThePeerAnswers) {
  const std::array<std::byte, 100> sent{};
  const auto inquiry = nic_->inquire(peer_.address().gid, sent);
  ASSERT_OK(inquiry);
  for (int i = 0; i < 3; ++i) EXPECT_STATUS((*inquiry)->answer(Deadline::now()), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kHello));
  drain_eventfd(progress_.get());
  ASSERT_TRUE(peer_.says_hello());
  ASSERT_TRUE(got_on());
  EXPECT_STATUS((*inquiry)->answer(Deadline::now()), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kConfirm));
  EXPECT_STATUS((*inquiry)->answer(Deadline::now()), Status::kAgain);
  drain_eventfd(progress_.get());
  ASSERT_TRUE(peer_.says(Answer::kOk));
  ASSERT_TRUE(got_on());
  const auto process = (*inquiry)->answer(Deadline::now());
  ASSERT_OK(process);
  EXPECT_EQ(process->pid, ::getpid());
}

TEST_F(BringUp, AnInquiryOfASilentPeer) {
  const std::array<std::byte, 100> sent{};
  const auto inquiry = nic_->inquire(peer_.address().gid, sent);
  ASSERT_OK(inquiry);
  EXPECT_STATUS((*inquiry)->answer(Deadline::after(20ms)), Status::kTimedOut);
  ASSERT_TRUE(peer_.takes(RequestType::kHello) && peer_.says_hello());
  EXPECT_STATUS((*inquiry)->answer(Deadline::after(100ms)), Status::kTimedOut);
  ASSERT_TRUE(peer_.takes(RequestType::kConfirm));
  std::thread waiting([&] { EXPECT_STATUS((*inquiry)->answer(Deadline::after(60s)), Status::kPeerLost); });
  others_connect();
  peer_.close();
  waiting.join();
}

// Nobody waits for the first answer any more: it is not taken for the second's.
TEST_F(BringUp, AnInquiryThatIsGivenUp) {
  const std::array<std::byte, 100> sent{};
  auto given_up = nic_->inquire(peer_.address().gid, sent);
  auto kept = nic_->inquire(peer_.address().gid, sent);
  ASSERT_TRUE(given_up && kept);
  ASSERT_TRUE(peer_.takes(RequestType::kHello) && peer_.says_hello());
  EXPECT_STATUS((*given_up)->answer(Deadline::after(50ms)), Status::kTimedOut);
  EXPECT_STATUS((*kept)->answer(Deadline::now()), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kConfirm) && peer_.takes(RequestType::kConfirm));
  given_up->reset();
  ASSERT_TRUE(peer_.says(Answer::kOk) && peer_.says(Answer::kUnknown));
  EXPECT_STATUS((*kept)->answer(soon()), Status::kNotAllowed);
}

// The late answer still finds its request, and the next ones theirs.
TEST_F(BringUp, AnAnswerPastTheDeadline) {
  ASSERT_STATUS(step(), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kHello) && peer_.says_hello());
  EXPECT_STATUS(to_rtr(side_, peer_.address(), Deadline::after(100ms)), Status::kTimedOut);
  EXPECT_EQ(state(), IBV_QPS_INIT);
  // Nobody was left that needs the peer: it is greeted anew.
  ASSERT_NO_FATAL_FAILURE(reach_peer());
  const Window window = peer_.publish(1, 5, 4096);
  EXPECT_STATUS(nic_->import_window(side_.qp.get(), window, Deadline::after(20ms)), Status::kTimedOut);
  ASSERT_TRUE(peer_.takes(RequestType::kMemory));
  EXPECT_EQ(peer_.asked_memory(), 5U);
  EXPECT_STATUS(nic_->import_window(side_.qp.get(), window, Deadline::now()), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kMemory));
  ASSERT_TRUE(peer_.says(Answer::kUnknown));  // To the first.
  const Fd memory = make_memfd(65536, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  ASSERT_TRUE(peer_.hands_over(memory, 65536));
  EXPECT_OK(repeat([&] { return nic_->import_window(side_.qp.get(), window, Deadline::now()); }));
  EXPECT_EQ(nic_->objects().imports, 1U);
}

TEST_F(BringUp, AnImportSaysAgainUntilThePeerAnswers) {
  ASSERT_NO_FATAL_FAILURE(reach_peer());
  const std::array<Window, 3> windows{peer_.publish(1, 5, 4096), peer_.publish(2, 5, 8192), peer_.publish(3, 6, 4096)};
  const auto import = [&](const Window& window) {
    return nic_->import_window(side_.qp.get(), window, Deadline::now());
  };
  for (int i = 0; i < 3; ++i) {
    for (const Window& window : windows) EXPECT_STATUS(import(window), Status::kAgain);
  }
  // Each memory is asked for once, whoever wants it.
  ASSERT_TRUE(peer_.takes(RequestType::kMemory));
  EXPECT_EQ(peer_.asked_memory(), 5U);
  ASSERT_TRUE(peer_.takes(RequestType::kMemory));
  EXPECT_EQ(peer_.asked_memory(), 6U);
  others_connect();
  const Fd memory = make_memfd(65536, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  ASSERT_TRUE(peer_.hands_over(memory, 65536));
  EXPECT_OK(repeat([&] { return import(windows[0]); }));
  EXPECT_OK(import(windows[1]));  // In the same memory.
  EXPECT_STATUS(import(windows[2]), Status::kAgain);
  ASSERT_TRUE(peer_.says(Answer::kNotGranted));
  EXPECT_STATUS(repeat([&] { return import(windows[2]); }), Status::kNotAllowed);
  EXPECT_STATUS(import(windows[2]), Status::kAgain);  // Asked anew: it may have been granted since.
  EXPECT_OK(nic_->release_window(side_.qp.get(), windows[0]));
  EXPECT_STATUS(nic_->release_window(side_.qp.get(), windows[0]), Status::kBadArgument);
}

TEST_F(BringUp, APeerThatClosesInBetween) {
  ASSERT_STATUS(step(), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kHello));
  peer_.close();
  const auto lost = repeat([&] { return step(); });
  EXPECT_STATUS(lost, Status::kPeerLost);
  EXPECT_TRUE(std::string_view(lost.error().text()).contains("closed its NIC while it was asked"))
      << lost.error().text();
  EXPECT_EQ(state(), IBV_QPS_INIT);
  EXPECT_EQ(nic_->objects().peers, 0U);
  EXPECT_STATUS(step(), Status::kPeerLost);  // Nobody listens any more.
}

TEST_F(BringUp, APeerThatClosesBeforeItTakesTheOffer) {
  ASSERT_STATUS(step(), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kHello) && peer_.says_hello());
  ASSERT_TRUE(got_on());
  ASSERT_STATUS(step(), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kOffer));
  peer_.close();
  EXPECT_STATUS(repeat([&] { return step(); }), Status::kPeerLost);
  EXPECT_EQ(state(), IBV_QPS_INIT);
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kOk);
  EXPECT_EQ(nic_->objects().peers, 0U);
}

TEST_F(BringUp, AnAnswerThatNobodyAskedFor) {
  ASSERT_NO_FATAL_FAILURE(reach_peer());
  ASSERT_TRUE(peer_.says(Answer::kOk));
  const Deadline deadline = soon();
  while (state() != IBV_QPS_ERR && !deadline.passed()) side_.poll();
  EXPECT_EQ(state(), IBV_QPS_ERR);
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kPeerLost);
}

TEST_F(BringUp, OtherArgumentsBeginAnew) {
  ASSERT_STATUS(step(), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kHello) && peer_.says_hello());
  ASSERT_TRUE(got_on());
  ASSERT_STATUS(step(), Status::kAgain);  // Offered.
  ASSERT_OK(make_side(twin_, *nic_, kOptions));
  EXPECT_OK(repeat([&] { return to_rtr(side_, nic_->address_of(twin_.qp.get()), Deadline::now()); }));
  EXPECT_EQ(state(), IBV_QPS_RTR);
  EXPECT_EQ(nic_->objects().peers, 1U);  // Itself: the other conversation is over.
}

TEST_F(BringUp, ResetErrorAndDestructionEndAnAttempt) {
  for (const bool is_offered : {false, true}) {
    for (const int end : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << "offered " << is_offered << ", end " << end);
      ASSERT_STATUS(step(), Status::kAgain);
      ASSERT_TRUE(peer_.takes(RequestType::kHello));
      if (is_offered) {
        ASSERT_TRUE(peer_.says_hello() && got_on());
        ASSERT_STATUS(step(), Status::kAgain);
      }
      if (end == 0) {
        ASSERT_OK(conformance::to_reset(*nic_, side_.qp.get()));
      }
      if (end == 1) {
        ASSERT_OK(conformance::to_error(*nic_, side_.qp.get()));
        EXPECT_STATUS(step(), Status::kBadArgument);
        ASSERT_OK(conformance::to_reset(*nic_, side_.qp.get()));
      }
      if (end == 2) {
        side_.qp.reset();
        const auto made = nic_->create_qp(side_.pd.get(), side_.qp_options);
        ASSERT_OK(made);
        side_.qp = Qp(*nic_, *made);
      }
      EXPECT_EQ(nic_->objects().peers, 0U);
      ASSERT_OK(conformance::to_init(*nic_, side_.qp.get(), kOptions));
      drain_eventfd(progress_.get());
    }
  }
}

// More requests than are on the socket at a time: the others follow the answers.
TEST_F(BringUp, ManyOffersToOnePeer) {
  constexpr std::size_t kQps = 40;
  std::vector<Qp> qps;
  for (std::size_t i = 0; i < kQps; ++i) {
    const auto made = nic_->create_qp(side_.pd.get(), side_.qp_options);
    ASSERT_OK(made);
    qps.emplace_back(*nic_, *made);
    ASSERT_OK(conformance::to_init(*nic_, *made, kOptions));
  }
  ASSERT_STATUS(step(), Status::kAgain);
  ASSERT_TRUE(peer_.takes(RequestType::kHello) && peer_.says_hello());
  ASSERT_TRUE(got_on());
  Qp own = std::move(side_.qp);
  for (Qp& qp : qps) {
    side_.qp = std::move(qp);
    EXPECT_STATUS(step(), Status::kAgain);
    qp = std::move(side_.qp);
  }
  qps[3].reset();         // On the socket: its answer is passed over.
  qps[kQps - 1].reset();  // Not yet.
  for (std::size_t i = 0; i + 1 < kQps; ++i) ASSERT_TRUE(peer_.takes(RequestType::kOffer) && peer_.says(Answer::kOk));
  for (Qp& qp : qps) {
    if (!qp) continue;
    side_.qp = std::move(qp);
    EXPECT_OK(repeat([&] { return step(); }));
    EXPECT_EQ(state(), IBV_QPS_RTR);
    qp = std::move(side_.qp);
  }
  side_.qp = std::move(own);
}

/// A listener whose backlog is full: a connect says EAGAIN.
TEST_F(BringUp, AFullBacklog) {
  ibv_gid gid = nic_->gid();
  gid.raw[15] ^= 1;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  int length = std::snprintf(name.sun_path + 1, 32, "verbena/");
  for (const std::uint8_t byte : gid.raw) length += std::snprintf(name.sun_path + 1 + length, 4, "%02x", byte);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length));
  const auto* address = reinterpret_cast<const sockaddr*>(&name);
  const auto make_socket = [] { return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); };
  const Fd listener = make_socket();
  ASSERT_EQ(::bind(listener.get(), address, bytes), 0);
  ASSERT_EQ(::listen(listener.get(), 2), 0);
  std::vector<Fd> others;
  for (bool is_full = false; !is_full;) {
    others.push_back(make_socket());
    is_full = ::connect(others.back().get(), address, bytes) != 0;
    ASSERT_LT(others.size(), 1000U);
  }
  QpAddress peer = peer_.address();
  peer.gid = gid;
  for (int i = 0; i < 3; ++i) EXPECT_STATUS(to_rtr(side_, peer, Deadline::now()), Status::kAgain);
  const auto late = to_rtr(side_, peer, Deadline::after(20ms));
  EXPECT_STATUS(late, Status::kTimedOut);
  EXPECT_STREQ(late.error().call(), "connect");
  EXPECT_STATUS(to_rtr(side_, peer, Deadline::now()), Status::kAgain);
  others_connect();
  // Room for one, whose greeting comes.
  const std::size_t before_it = others.size() - 1;
  others.clear();
  for (std::size_t i = 0; i <= before_it; ++i) {
    ASSERT_TRUE(wait_readable(listener.get(), soon()));
    const Fd taken(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(taken);
    if (i < before_it) continue;
    soft::Request request;
    ASSERT_TRUE(wait_readable(taken.get(), soon()));
    ASSERT_EQ(::recv(taken.get(), &request, sizeof request, 0), static_cast<ssize_t>(sizeof request));
    EXPECT_EQ(request.type, RequestType::kHello);
  }
  EXPECT_STATUS(repeat([&] { return to_rtr(side_, peer, Deadline::now()); }), Status::kPeerLost);
}

// Every queue pair of both NICs is driven by this one thread.
TEST_F(BringUp, OneThreadDrivesManyConnections) {
  constexpr std::size_t kPairs = 64;
  auto opened = open_soft({.max_qp = 256, .max_mr = 256});
  ASSERT_OK(opened);
  Nic& other = **opened;
  other.notify_progress(progress_.get());
  ASSERT_OK(make_side(twin_, other, kOptions));
  struct End {
    Side* side = nullptr;
    Qp qp;
    QpAddress peer;
    bool is_up = false;
    bool has_window = false;
  };
  std::vector<End> ends(2 * kPairs);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    Side& side = i % 2 == 0 ? side_ : twin_;
    const auto made = side.nic->create_qp(side.pd.get(), side.qp_options);
    ASSERT_OK(made);
    ends[i].side = &side;
    ends[i].qp = Qp(*side.nic, *made);
    ASSERT_OK(conformance::to_init(*side.nic, *made, kOptions));
    ends[i ^ 1].peer = side.nic->address_of(*made);
  }
  const auto advance = [&](End& end) {
    Side& side = *end.side;
    std::swap(side.qp, end.qp);
    if (!end.is_up) {
      const auto result = to_rtr(side, end.peer, Deadline::now());
      if (!result) {
        EXPECT_STATUS(result, Status::kAgain);
      }
      end.is_up = result.has_value();
    }
    if (end.is_up && !end.has_window) {
      const Side& owner = &side == &side_ ? twin_ : side_;
      const auto result = side.nic->import_window(side.qp.get(), owner.nic->window_of(owner.mr.get()), Deadline::now());
      if (!result) {
        EXPECT_STATUS(result, Status::kAgain);
      }
      end.has_window = result.has_value();
    }
    std::swap(side.qp, end.qp);
    return end.has_window;
  };
  for (std::size_t done = 0; done < ends.size();) {
    done = 0;
    for (End& end : ends) done += advance(end) ? 1 : 0;
    if (done < ends.size()) {
      ASSERT_TRUE(got_on());
    }
    ASSERT_FALSE(HasFailure());
  }
  ends.clear();
  twin_.close();
}

// --- other processes ------------------------------------------------------------------------------------------------

/// Stops in its control thread too: SIGSTOP is of the whole process.
class Processes : public BringUp {
 protected:
  void start(std::uint64_t argument = 0) {
    other_ = OtherProcess::start("peer", argument);
    ASSERT_TRUE(other_);
    ASSERT_TRUE(get(other_.socket(), introduction_));
  }
  void stop() {
    ASSERT_EQ(::kill(other_.pid(), SIGSTOP), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(other_.pid(), &status, WUNTRACED), other_.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  Result<void> step_to_other() { return to_rtr(side_, introduction_.address, Deadline::now()); }

  OtherProcess other_;
  Introduction introduction_;
};

TEST_F(Processes, AStoppedProcess) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(stop());
  for (int i = 0; i < 3; ++i) EXPECT_STATUS(step_to_other(), Status::kAgain);
  std::atomic<bool> is_over{false};
  std::thread waiting([&] {
    EXPECT_OK(to_rtr(side_, introduction_.address, Deadline::after(60s)));
    is_over = true;
  });
  others_connect();
  EXPECT_FALSE(is_over);
  ASSERT_EQ(::kill(other_.pid(), SIGCONT), 0);
  waiting.join();
  EXPECT_EQ(state(), IBV_QPS_RTR);
  // And while one is stopped that is connected.
  ASSERT_NO_FATAL_FAILURE(stop());
  EXPECT_STATUS(nic_->import_window(side_.qp.get(), introduction_.window, Deadline::now()), Status::kAgain);
  others_connect();
  ASSERT_EQ(::kill(other_.pid(), SIGCONT), 0);
  EXPECT_OK(repeat([&] { return nic_->import_window(side_.qp.get(), introduction_.window, Deadline::now()); }));
}

TEST_F(Processes, AProcessThatIsKilledWhileItIsStopped) {
  for (const bool is_connected : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(start());
    if (is_connected) {
      ASSERT_OK(to_rtr(side_, introduction_.address, soon()));
    }
    ASSERT_NO_FATAL_FAILURE(stop());
    const auto call = [&] {
      return is_connected ? nic_->import_window(side_.qp.get(), introduction_.window, Deadline::now())
                          : step_to_other();
    };
    EXPECT_STATUS(call(), Status::kAgain);
    other_.kill();
    EXPECT_STATUS(repeat(call), Status::kPeerLost);
    (void)other_.wait();
  }
}

int be_peer(int socket) {
  auto nic = open_soft({.max_qp = 16, .max_mr = 64});
  Side side;
  if (!nic || !make_side(side, **nic, kOptions) || !put(socket, introduce(side))) return 3;
  char end = 0;  // The parent closes its end, or kills this process.
  (void)get(socket, end);
  return 0;
}

}  // namespace

int run_other(std::string_view, std::uint64_t, int socket) { return be_peer(socket); }

}  // namespace verbena::nic::soft
