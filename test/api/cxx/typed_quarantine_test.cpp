// Operations that are dropped, time out, or lose their link: nobody gets their memory before the NIC is done with it.
#include "typed_fixture.hpp"

#include "channel/connection.hpp"
#include "session/session.hpp"

#include <hold.hpp>

#include <array>
#include <cstring>
#include <semaphore>
#include <thread>

namespace verbena::typed {
namespace {

using Numbers = Segment<std::uint64_t>;
constexpr std::chrono::milliseconds kShort{20};

/// Reads of the client's link into `region`, out of a region that counts up from 0.
class TypedQuarantine : public TypedTest {
 protected:
  static constexpr std::size_t kCount = 512;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TypedTest::SetUp());
    ASSERT_NO_FATAL_FAILURE(make_regions());
  }
  void make_regions() {
    region = region_of<std::uint64_t>(kCount);
    source = region_of<std::uint64_t>(kCount);
    theirs = taken(source);
    count_up(theirs, 0);
    // The window is known from here on: nobody asks the peer for it while the NIC is held.
    auto once = taken(region);
    ASSERT_EQ(link.read(once, there()), Status::kOk) << error_detail();
  }
  [[nodiscard]] RemoteSegment<const std::uint64_t> there(std::size_t count = rdma::kRest) const {
    return remote_of<const std::uint64_t>(source.window(), 0, count);
  }
  [[nodiscard]] Operation<Numbers> read_all() { return link.start_read(taken(region), there()); }

  MemoryRegion<std::uint64_t> region;
  MemoryRegion<std::uint64_t> source;
  Numbers theirs;
};

/// Keeps the soft NIC from executing what a link posts.
class Held {
 public:
  explicit Held(const Link& link)
      : pair_(detail::Inside::session(link.unsafe_connection())->connection()->queue_pair()) {
    test::hold_execution(pair_, true);
  }
  ~Held() { release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void release() {
    if (ibv_qp* const pair = std::exchange(pair_, nullptr); pair != nullptr) test::hold_execution(pair, false);
  }
  /// The queue pair has gone.
  void forget() { pair_ = nullptr; }

 private:
  ibv_qp* pair_;
};

/// The same where the NIC's work can be held.
class TypedHeld : public TypedQuarantine {
 protected:
  void SetUp() override {
    if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
    TypedQuarantine::SetUp();
  }
};

TEST_F(TypedQuarantine, ADroppedOperationKeepsItsRangeUntilItIsComplete) {
  { const Operation<Numbers> dropped = read_all(); }
  EXPECT_EQ(link.quarantined(), 1u);
  EXPECT_EQ(region.take().error(), Status::kBusy);
  EXPECT_EQ(region.held(), 1u);
  ASSERT_EQ(link.settle(patience()), Status::kOk) << error_detail();
  EXPECT_EQ(link.quarantined(), 0u);
  EXPECT_EQ(region.held(), 0u);
  EXPECT_TRUE(counts_up(taken(region), 0)) << "it went on";
}

TEST_F(TypedQuarantine, AnAssignedOperationIsDropped) {
  auto chunks = taken(region).chunks(kCount / 2);
  auto read = link.start_read(*chunks.next(), there(kCount / 2));
  read = link.start_read(*chunks.next(), there(kCount / 2));
  EXPECT_LE(link.quarantined(), 1u) << "a start may have found the first one's end";
  EXPECT_EQ(read.wait(patience()), Status::kOk);
  EXPECT_EQ(link.quarantined(), 0u) << "the first was complete before";
  auto added = link.start_fetch_add(remote_of<std::uint64_t>(source.window()), 1);
  if (added.status() == Status::kUnsupported) GTEST_SKIP() << "the device has no atomics";
  added = link.start_fetch_add(remote_of<std::uint64_t>(source.window()), 1);
  ASSERT_EQ(added.wait(patience()), Status::kOk);
  EXPECT_EQ(added.old().value(), 1u);
}

TEST_F(TypedQuarantine, StartingTakesInWhatIsComplete) {
  for (std::size_t i = 0; i < 5 * Link::kMaxOperations; ++i) {
    const Deadline limit = patience();
    // Of slots that are all in quarantine one is free as soon as its operation is complete.
    while (true) {
      auto segment = region.take(0, 1 + i % 7);
      if (segment) {
        auto read = link.start_read(std::move(*segment), there(1));
        if (read.is_under_way()) break;
        ASSERT_EQ(read.status(), Status::kAgain) << error_detail();
      }
      ASSERT_FALSE(limit.passed());
      (void)link.settle(Deadline::now());
    }
  }
  EXPECT_EQ(link.settle(patience()), Status::kOk);
  EXPECT_EQ(region.held(), 0u);
}

TEST_F(TypedHeld, AHeldOperationTimesOutAndTheLinkLives) {
  Held held(link);
  auto read = read_all();
  EXPECT_EQ(read.wait(Deadline::after(kShort)), Status::kTimedOut);
  EXPECT_TRUE(read.is_under_way());
  EXPECT_FALSE(read.poll());
  EXPECT_EQ(read.take().error(), Status::kBusy);
  EXPECT_TRUE(link.is_connected());
  held.release();
  ASSERT_EQ(read.wait(patience()), Status::kOk);
  EXPECT_TRUE(counts_up(*read.take(), 0));
}

TEST_F(TypedHeld, PastTheDeadlineOfFinishTheSegmentIsInQuarantine) {
  Held held(link);
  auto [status, segment] = read_all().finish(Deadline::after(kShort));
  EXPECT_EQ(status, Status::kTimedOut);
  EXPECT_TRUE(segment.empty());
  EXPECT_EQ(link.settle(Deadline::after(kShort)), Status::kTimedOut);
  EXPECT_EQ(link.quarantined(), 1u);
  EXPECT_EQ(region.take().error(), Status::kBusy);
  EXPECT_TRUE(link.is_connected());
  held.release();
  ASSERT_EQ(link.settle(patience()), Status::kOk);
  EXPECT_TRUE(counts_up(taken(region), 0)) << "it landed in memory that nobody had";
}

TEST_F(TypedHeld, AWriteInQuarantineSendsWhatItHadAtItsStart) {
  auto numbers = taken(region);
  count_up(numbers, 7000);
  ConstSegment<std::uint64_t> frozen = std::move(numbers).freeze();
  Held held(link);
  { const auto dropped = link.start_write(frozen, remote_of<std::uint64_t>(source.window())); }
  EXPECT_EQ(std::move(frozen).thaw().error(), Status::kBusy) << "the NIC reads it";
  frozen = {};
  EXPECT_EQ(region.take().error(), Status::kBusy);
  held.release();
  ASSERT_EQ(link.settle(patience()), Status::kOk);
  EXPECT_TRUE(counts_up(theirs, 7000));
  EXPECT_EQ(region.held(), 0u);
}

// The connection has as many parts in flight as it may: a WRITE waits, and the peer must not be told of it meanwhile.
TEST_F(TypedHeld, ANoteWaitsForAWriteThatHasNotLeft) {
  const auto window = remote_of<std::uint64_t>(link.peer_window(), 0, 1);
  auto segment = taken(region, 0, 1);
  auto words = taken(region, 1, 1);
  const auto posted = [this] {
    return detail::Inside::session(link.unsafe_connection())->home().loop().counters().work_requests;
  };
  Held held(link);
  for (std::uint64_t i = 0; i < rdma::Connection::kMaxStarted; ++i)
    ASSERT_EQ(link.unsafe_connection().start_read(segment.unsafe_local(0, 1), there(1).remote(), i), Status::kOk);
  const std::uint64_t before = posted();
  EXPECT_EQ(link.write_with_immediate(words, window, 4, Deadline::after(kShort)), Status::kTimedOut);
  count_up(words, 70);
  auto writing = link.start_write_with_immediate(std::move(words), window, 5);
  EXPECT_FALSE(writing.poll());
  EXPECT_EQ(posted(), before) << "neither the WRITE nor its note";
  held.release();
  ASSERT_EQ(writing.wait(patience()), Status::kOk) << error_detail();
  auto into = taken(region, 10, 1);
  const auto told = peer.receive(into, patience());
  ASSERT_TRUE(told.has_value()) << error_detail();
  EXPECT_EQ(told->immediate, 5u);
  std::uint64_t number = 0;
  std::memcpy(&number, peer.unsafe_connection().window().data(), sizeof number);
  EXPECT_EQ(number, 70u);
}

// A thread drives the listener's end: the note counts as sent when it is posted, and the NIC still reads the elements.
TEST_F(TypedHeld, AWriteWithImmediateLastsUntilTheWriteIsComplete) {
  const auto window = remote_of<std::uint64_t>(peer.peer_window(), 0, 100);
  auto words = taken(region, 0, 100);
  count_up(words, 70);
  Held held(peer);
  auto writing = peer.start_write_with_immediate(std::move(words), window, 5);
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(writing.poll());
  EXPECT_EQ(region.take(0, 1).error(), Status::kBusy);
  held.release();
  // It wakes the thread, which polls nothing otherwise.
  const std::array<std::byte, 8> word{};
  ASSERT_EQ(link.unsafe_connection().send(word, patience()), Status::kOk);
  ASSERT_EQ(writing.wait(patience()), Status::kOk) << error_detail();
  EXPECT_TRUE(counts_up(*writing.take(), 70));
}

TEST_F(TypedHeld, AWriteWithImmediateThatFailsIsNotOk) {
  const auto window = remote_of<std::uint64_t>(peer.peer_window(), 0, 100);
  Held held(peer);
  auto writing = peer.start_write_with_immediate(taken(region, 0, 100), window, 5);
  link.close();
  const Status status = writing.wait(patience());
  held.forget();
  EXPECT_FALSE(writing.is_under_way());
  EXPECT_TRUE(status == Status::kClosed || status == Status::kPeerLost) << to_string(status);
  EXPECT_EQ(writing.take()->size(), 100u);
}

// It is on its way, and cannot be taken back: the peer will get it.
TEST_F(TypedHeld, ASendThatHasLeftDoesNotTimeOut) {
  auto words = taken(region, 0, 100);
  count_up(words, 5);
  Held held(link);
  EXPECT_EQ(link.send(words, Deadline::after(kShort)), Status::kOk) << error_detail();
  held.release();
  auto into = taken(region, 100, 100);
  auto receiving = peer.start_receive(std::move(into));
  for (const Deadline limit = patience(); !receiving.poll() && !limit.passed();) (void)link.is_connected();
  ASSERT_EQ(receiving.status(), Status::kOk);
  EXPECT_TRUE(counts_up(*receiving.take(), 5));
}

TEST_F(TypedHeld, AClosedLinkEndsWhatIsUnderWay) {
  auto chunks = taken(region).chunks(kCount / 2);
  Held held(link);
  auto kept = link.start_read(*chunks.next(), there(kCount / 2));
  { const auto dropped = link.start_read(*chunks.next(), there(kCount / 2)); }
  link.close();
  held.forget();
  EXPECT_EQ(region.held(), 1u) << "what was in quarantine is the region's";
  EXPECT_TRUE(kept.poll());
  EXPECT_EQ(kept.status(), Status::kClosed);
  EXPECT_EQ(kept.take()->size(), kCount / 2);
}

TEST_F(TypedHeld, APeerThatLeavesEndsWhatIsUnderWay) {
  Held held(link);
  auto kept = read_all();
  peer.close();
  const Status status = kept.wait(patience());
  EXPECT_FALSE(kept.is_under_way());
  EXPECT_TRUE(status == Status::kClosed || status == Status::kPeerLost) << to_string(status);
  EXPECT_EQ(kept.take()->size(), kCount);
}

TEST_F(TypedHeld, OperationsOutliveTheirLinkTheirRegionAndTheNode) {
  Held held(link);
  std::optional<Operation<Numbers>> kept = read_all();
  region = {};
  link.close();
  held.forget();
  peer.close();
  listener.reset();
  theirs = {};
  source = {};
  node.reset();
  EXPECT_EQ(kept->wait(patience()), Status::kClosed);
  auto segment = kept->take();
  kept.reset();
  ASSERT_TRUE(segment.has_value());
  count_up(*segment, 3);
  EXPECT_TRUE(counts_up(*segment, 3));
}

TEST_F(TypedHeld, AnOperationMayEndInAnotherThread) {
  for (int round = 0; round < 100; ++round) {
    auto read = read_all();
    std::jthread other([mine = std::move(read)]() mutable { const auto dropped = std::move(mine); });
    // Meanwhile its completion is taken in.
    (void)link.settle(Deadline::now());
    other.join();
    ASSERT_EQ(link.settle(patience()), Status::kOk) << error_detail();
    ASSERT_EQ(region.held(), 0u);
  }
}

TEST_F(TypedHeld, ASecondThreadIsRefused) {
  Held held(link);
  auto read = read_all();
  const Deadline limit = patience();
  std::atomic<Status> waited{Status::kAgain};
  std::jthread other([&] {
    // For short times: who sleeps is not woken when the NIC goes on. And this thread may be the one that is refused.
    do waited = read.wait(Deadline::after(kShort));
    while (read.is_under_way() && !limit.passed());
  });
  // What is refused for its length is not started, and says whether the other thread waits.
  Status refused = Status::kOk;
  while (refused != Status::kBusy && !limit.passed()) refused = link.start_read(Numbers(), there()).status();
  EXPECT_EQ(refused, Status::kBusy);
  held.release();
  other.join();
  EXPECT_EQ(waited, Status::kOk);
}

// In a link that a thread drives, a wait begins before, while and after its read completes.
TEST_F(TypedQuarantine, NoWakeUpOfATransferIsLost) {
  const Deadline limit = Deadline::after(std::chrono::seconds{60});
  const auto window = remote_of<const std::uint64_t>(peer.peer_window(), 0, kCount);
  for (int round = 0; round < 400 && !limit.passed(); ++round) {
    auto read = peer.start_read(taken(region), window);
    for (volatile int spin = 0; spin < round * 10;) spin = spin + 1;
    ASSERT_EQ(read.wait(limit), Status::kOk) << error_detail();
  }
  EXPECT_FALSE(limit.passed());
}

// What a user starts past the link disturbs no operation.
TEST_F(TypedQuarantine, CompletionsOfOthersAreTakenForNobodys) {
  auto chunks = taken(region).chunks(kCount / 2);
  auto other = *chunks.next();
  rdma::Connection& connection = link.unsafe_connection();
  for (const std::uint64_t cookie : {std::uint64_t{0}, std::uint64_t{62}, std::uint64_t{63}, ~std::uint64_t{0}})
    ASSERT_EQ(connection.start_read(other.unsafe_local(0, 1), there(1).remote(), cookie), Status::kOk);
  auto read = link.start_read(*chunks.next(), there(kCount / 2));
  EXPECT_EQ(read.wait(patience()), Status::kOk);
  EXPECT_TRUE(counts_up(*read.take(), 0));
}

// Memory that is taken anew is never written by what was dropped before, however late that is.
TEST(TypedLate, NothingLandsInMemoryThatWasTakenAnew) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be late on purpose";
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    const test::LateNics late(seed);
    class Case : public TypedQuarantine {
     public:
      void TestBody() override {
        SetUp();
        if (HasFatalFailure()) return;
        for (std::uint64_t round = 0; round < 30; ++round) {
          {
            const auto dropped = read_all();
          }
          auto again = region.take();
          const Deadline limit = patience();
          for (; !again && !limit.passed(); again = region.take()) (void)link.settle(Deadline::now());
          ASSERT_TRUE(again.has_value());
          count_up(*again, 1'000'000);
          const auto word = link.fetch_add(remote_of<std::uint64_t>(link.peer_window(), 0, 1), 1);
          ASSERT_EQ(word.value(), round);
          ASSERT_TRUE(counts_up(*again, 1'000'000));
        }
      }
    } one;
    one.TestBody();
  }
}

// --- in a handler

/// Closes its link in the node's thread, with a read of it under way that the NIC does not get to.
class ClosesInHandler final : public rdma::Handler {
 public:
  void on_accept(rdma::Connection& connection) noexcept override {
    if (auto made = Link::over(connection.keep())) link = std::move(*made);
  }
  void on_message(rdma::Connection& /*connection*/, const rdma::Message& /*message*/) noexcept override {
    {
      Held held(link);
      auto kept = link.start_read(std::move(segment), remote);
      { const auto dropped = link.start_read(std::move(other), remote); }
      // For more than the client's inbox, which nobody takes from.
      auto sending = link.start_send(std::move(message));
      receive_status = link.start_receive(Numbers()).status();
      link.close();
      sending_status = sending.wait(Deadline::now());
      held.forget();
      is_complete = kept.poll();
      status = kept.status();
      if (auto back = kept.take()) length = back->size();
    }
    done.release();
  }

  Link link;
  Numbers segment;
  Numbers other;
  Numbers message;
  Status sending_status = Status::kOk;
  Status receive_status = Status::kOk;
  RemoteSegment<const std::uint64_t> remote;
  bool is_complete = false;
  Status status = Status::kOk;
  std::size_t length = 0;
  std::binary_semaphore done{0};
};

TEST(TypedInHandler, ALinkIsClosedWithItsOperations) {
  if (!test::is_soft_under_test()) GTEST_SKIP() << "only the soft NIC can be held";
  auto node = rdma::Node::open({.transport = test::transport_under_test(), .address = "127.0.0.1"});
  ASSERT_OK(node);
  auto region = MemoryRegion<std::uint64_t>::allocate(**node, 200'000);
  ASSERT_OK(region);
  ClosesInHandler handler;
  rdma::Options options{.transport = test::transport_under_test(),
                        .address = "127.0.0.1",
                        .port = 0,
                        .handler = &handler,
                        .receive = rdma::Receive::kHandler,
                        .node = node->get()};
  auto listener = rdma::Listener::start(options);
  ASSERT_OK(listener);
  options.port = (*listener)->port();
  options.handler = nullptr;
  options.receive = rdma::Receive::kQueue;
  auto client = rdma::Connection::connect(options);
  ASSERT_OK(client);
  handler.segment = std::move(*region->take(0, 50));
  handler.other = std::move(*region->take(50, 50));
  handler.message = std::move(*region->take(100));
  // The peer's own window, which is known to the other side.
  const auto own = (*client)->window();
  handler.remote =
      *RemoteSegment<const std::uint64_t>::of({.address = reinterpret_cast<std::uintptr_t>(own.data()),
                                               .length = 400,
                                               .rkey = detail::Inside::session(**client)->window_memory()->rkey,
                                               .access = rdma::Access::kRead});
  ASSERT_EQ((*client)->send(std::as_bytes(std::span("now"))), Status::kOk);
  ASSERT_TRUE(handler.done.try_acquire_for(std::chrono::seconds{20}));
  EXPECT_TRUE(handler.is_complete);
  EXPECT_NE(handler.status, Status::kOk);
  EXPECT_EQ(handler.length, 50u);
  EXPECT_EQ(handler.sending_status, Status::kClosed);
  EXPECT_EQ(handler.receive_status, Status::kUnsupported) << "messages go to the handler";
  EXPECT_EQ(region->held(), 0u);
  (*listener)->stop();
}

}  // namespace
}  // namespace verbena::typed
