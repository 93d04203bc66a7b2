// Channels against peers that die or lie: one typed reason, every operation completed first, nothing in flight after.
#include "chaos.hpp"
#include "fixture.hpp"

#include "channel/wire.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

namespace verbena::channel::test {
namespace {

TEST_F(ConnectionPair, FailCompletesEverythingThenSaysWhyOnce) {
  open({}, {.lease_bytes = 4096});
  Region body(*a.nic, a.pd.get(), 100'000);
  Region source(*b.nic, b.pd.get(), 4096);
  ASSERT_OK(a.connection->import_window(source.window(), patience()));
  ASSERT_EQ(a.connection->start_large({}, body.local(0, 100'000), 1), Status::kOk);
  ASSERT_EQ(a.connection->start_read(body.local(0, 8), source.remote(0, 8), 2), Status::kOk);
  ASSERT_EQ(a.connection->send(pattern(8, 1)), Status::kOk);
  a.connection->fail(Status::kClosed);
  a.connection->fail(Status::kProtocol);  // Only the first counts.
  EXPECT_TRUE(a.recorder.failures.empty()) << "the handler is called from polls only";
  EXPECT_EQ(a.connection->send(pattern(8, 1)), Status::kClosed);
  EXPECT_EQ(a.connection->start_large({}, body.local(0, 8), 3), Status::kClosed);
  EXPECT_EQ(a.connection->start_read(body.local(0, 8), source.remote(0, 8), 3), Status::kClosed);
  ASSERT_TRUE(until([&] { return a.connection->drained(); }));
  EXPECT_EQ(a.recorder.failures, std::vector{Status::kClosed});
  ASSERT_EQ(a.recorder.completions.size(), 2u);
  for (const Completion& each : a.recorder.completions) EXPECT_EQ(each.status, Status::kClosed) << each.token;
  EXPECT_FALSE(a.connection->alive());
  settle();
  EXPECT_EQ(a.recorder.failures.size(), 1u);
  EXPECT_EQ(a.loop->counters().strays, 0u);
}

TEST_F(ConnectionPair, HandlerMayFailTheChannelFromInside) {
  open();
  b.recorder.when_message = [](Connection& connection, std::span<const std::byte>) {
    connection.fail(Status::kProtocol);
  };
  ASSERT_EQ(a.connection->send(pattern(8, 1)), Status::kOk);
  ASSERT_EQ(a.connection->send(pattern(8, 2)), Status::kOk);
  ASSERT_TRUE(until([&] { return b.connection->drained(); }));
  EXPECT_EQ(b.recorder.messages.size(), 1u) << "a dead channel delivers nothing";
  EXPECT_EQ(b.recorder.failures, std::vector{Status::kProtocol});
}

TEST_F(ConnectionPair, PeerThatGoesIsNoticedWithNothingInFlight) {
  open();
  ASSERT_EQ(a.connection->send(pattern(8, 1)), Status::kOk);
  ASSERT_EQ(b.connection->send(pattern(8, 1)), Status::kOk);
  ASSERT_TRUE(until([&] { return a.recorder.message_count == 1 && b.recorder.message_count == 1; }));
  b.close();
  b.nic.reset();
  ASSERT_EQ(a.loop->wait_until([&] { return a.connection->drained(); }, patience()), Status::kOk)
      << "keepalives: " << a.loop->counters().keepalives << ", work requests: " << a.loop->counters().work_requests
      << ", completions: " << a.loop->counters().completions << ", failure: " << to_string(a.connection->failure());
  EXPECT_EQ(a.recorder.failures, std::vector{Status::kPeerLost});
}

TEST_F(ConnectionPair, ReadRefusedByThePeersNicIsTyped) {
  open();
  auto source = std::make_unique<Region>(*b.nic, b.pd.get(), 4096);
  Region sink(*a.nic, a.pd.get(), 4096);
  ASSERT_OK(a.connection->import_window(source->window(), patience()));
  const auto gone = source->remote(0, 8);
  source.reset();
  ASSERT_EQ(a.connection->start_read(sink.local(0, 8), gone, 7), Status::kOk);
  ASSERT_TRUE(until([&] { return a.connection->drained(); }));
  ASSERT_EQ(a.recorder.completions.size(), 1u);
  EXPECT_TRUE(a.recorder.completed(0, 7, Status::kRemoteAccess));
  EXPECT_EQ(a.recorder.failures, std::vector{Status::kRemoteAccess});
}

/// What a sender may write to the moment that it is its own again: the parts of a message when the call returns, a body
/// and a destination when their completion came. Each is overwritten at once, under chaos that executes late, delivers
/// in pieces and holds completions back; what arrives must be what was sent.
/// Of each three steps the first is a message, the second a large one with a head.
void check_arrived(const Recorder& recorder, std::size_t count, std::size_t head, std::size_t body) {
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(matches(recorder.messages[i], 3 * i)) << "message " << i;
    const std::span<const std::byte> large = recorder.larges[i];
    ASSERT_EQ(large.size(), head + body);
    ASSERT_TRUE(matches(large.first(head), 3 * i + 1)) << "head of " << i;
    ASSERT_TRUE(matches(large.subspan(head), 3 * i + 2)) << "body of " << i;
  }
}

TEST(LateData, NeverMeetsMemoryThatIsTheSendersAgain) {
  if (device_under_test() != nullptr) GTEST_SKIP() << "on an RDMA device: chaos is the soft NIC's";
  // More than goes inline, so that messages are staged.
  constexpr std::size_t kEager = 12'000, kHead = 500, kBody = 20'000, kPage = 4096, kSlots = 8;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    const LateNics late(seed);
    Side a, b;
    ASSERT_NO_FATAL_FAILURE(
        connect(a, b, {.depth = 8, .eager_bytes = 16384, .fragment_bytes = 4096, .max_operations = kSlots},
                {.depth = 8, .eager_bytes = 16384, .lease_bytes = 64 * 1024}));
    a.loop->poll();
    b.loop->poll();
    Region bodies(*a.nic, a.pd.get(), kSlots * kBody);
    Region pages(*a.nic, a.pd.get(), kSlots * kPage);
    Region source(*b.nic, b.pd.get(), kPage);
    fill(source.bytes(), 7);
    ASSERT_OK(a.connection->import_window(source.window(), patience()));
    // Token 2 * slot is a large message, the next one a read. Free are those that are not in flight.
    std::array<bool, 2 * kSlots> flying{};
    const auto page_of = [&](std::size_t slot) { return pages.bytes().subspan(slot * kPage, kPage); };
    constexpr std::byte kScribble{0xEE};
    a.recorder.when_complete = [&](Connection&, const Completion& completion) {
      const std::uint64_t token = completion.token;
      EXPECT_EQ(completion.status, Status::kOk);
      flying[token] = false;
      const std::size_t slot = token / 2;
      if (token % 2 != 0) {
        EXPECT_TRUE(matches(page_of(slot), 7));
      }
      std::ranges::fill(token % 2 != 0 ? page_of(slot) : bodies.bytes().subspan(slot * kBody, kBody), kScribble);
    };
    const auto step = [&](std::uint64_t i) {
      const std::size_t slot = i % kSlots;
      if (flying[2 * slot] || flying[2 * slot + 1]) return Status::kAgain;
      Status status = Status::kOk;
      if (i % 3 == 0) {
        Bytes parts = pattern(kEager, i);
        status = a.connection->send(parts);
        std::ranges::fill(parts, kScribble);
      } else if (i % 3 == 1) {
        Bytes head = pattern(kHead, i);
        fill(bodies.bytes().subspan(slot * kBody, kBody), i + 1);
        flying[2 * slot] = true;
        status = a.connection->start_large(head, bodies.local(slot * kBody, kBody), 2 * slot);
        if (status != Status::kOk) flying[2 * slot] = false;
        std::ranges::fill(head, kScribble);
      } else {
        EXPECT_TRUE(i < 3 * kSlots || all_are(page_of(slot), kScribble)) << "late into page " << slot;
        flying[2 * slot + 1] = true;
        status = a.connection->start_read(pages.local(slot * kPage, kPage), source.remote(0, kPage), 2 * slot + 1);
        if (status != Status::kOk) flying[2 * slot + 1] = false;
      }
      return status;
    };
    constexpr std::uint64_t kSteps = 600;
    for (std::uint64_t i = 0; i < kSteps; ++i) {
      Status status = Status::kAgain;
      ASSERT_TRUE(poll_until({a.loop.get(), b.loop.get()}, [&] { return (status = step(i)) != Status::kAgain; }));
      ASSERT_EQ(status, Status::kOk);
    }
    ASSERT_TRUE(poll_until({a.loop.get(), b.loop.get()}, [&] {
      return b.recorder.message_count == kSteps / 3 && b.recorder.large_count == kSteps / 3 &&
             a.recorder.completions.size() == kSteps / 3 * 2;
    }));
    ASSERT_NO_FATAL_FAILURE(check_arrived(b.recorder, kSteps / 3, kHead, kBody));
  }
}

/// A peer that speaks the handshake and then posts what it likes.
class Liar : public testing::Test {
 protected:
  static constexpr std::uint32_t kDepth = 8;
  static constexpr std::uint64_t kLease = 4096;

  void SetUp() override {
    VERBENA_SKIP_IN_CHAOS();
    auto cq = node.nic->create_cq(256, nullptr);
    ASSERT_OK(cq);
    cq_ = nic::Cq(*node.nic, *cq);
    nic::QpOptions options{.send_cq = *cq, .recv_cq = *cq};
    auto qp = node.nic->create_qp(node.pd.get(), options);
    ASSERT_OK(qp);
    qp_ = nic::Qp(*node.nic, *qp);
    memory = std::make_unique<Region>(*node.nic, node.pd.get(), 64 * 1024);
    auto made = victim.make({.depth = kDepth, .eager_bytes = 256, .lease_bytes = kLease}, victim.recorder);
    ASSERT_OK(made);
    victim.connection = std::move(*made);
    const auto end = victim.connection->describe({});
    ASSERT_OK(end);
    link::Endpoint mine = link::describe(*node.nic, *qp, wire::receives_for(kDepth));
    const auto front = wire::encode({.depth = kDepth, .eager_bytes = 256});
    ASSERT_EQ(mine.set_user_data(front.bytes()), Status::kOk);
    ASSERT_OK(victim.connection->meet(mine));
    ASSERT_OK(victim.connection->connect(patience()));
    victim.connection->attach();
    ASSERT_OK(link::bring_up(*node.nic, *qp, mine, *end, {}, patience()));
    const auto theirs = wire::decode(end->user_data());
    ASSERT_OK(theirs);
    lease = theirs->lease;
    ASSERT_OK(node.nic->import_window(*qp, lease, patience()));
    ibv_recv_wr receive{};
    ibv_recv_wr* bad = nullptr;
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory->bytes().data()) + 32768, 512, memory->local(0, 0).lkey};
    receive.sg_list = &sge;
    receive.num_sge = 1;
    for (std::uint32_t i = 0; i < wire::receives_for(kDepth); ++i) ASSERT_EQ(ibv_post_recv(*qp, &receive, &bad), 0);
    victim.loop->poll();
  }
  void poll() {
    ibv_wc wc[16];
    (void)ibv_poll_cq(cq_.get(), 16, wc);
  }
  void post(ibv_send_wr& wr, std::uint32_t length) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory->bytes().data()), length, memory->local(0, 0).lkey};
    wr.sg_list = &sge;
    wr.num_sge = length == 0 ? 0 : 1;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(qp_.get(), &wr, &bad), 0);
  }
  void send_eager(std::uint32_t posted, std::uint32_t consumed, std::uint32_t length) {
    const wire::Credits credits{posted, consumed};
    std::memcpy(memory->bytes().data(), &credits, sizeof credits);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    post(wr, length);
  }
  void send_fragment(std::uint64_t at, std::uint32_t length, std::uint64_t total, std::uint32_t imm,
                     wire::Credits credits = {wire::receives_for(kDepth), 0}) {
    const wire::FragmentHeader header{credits, total};
    std::memcpy(memory->bytes().data(), &header, sizeof header);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = htonl(imm);
    wr.wr.rdma.remote_addr = lease.address + at;
    wr.wr.rdma.rkey = lease.rkey;
    post(wr, length);
  }
  void expect(Status reason) {
    const Deadline deadline = patience();
    while (!victim.connection->drained() && !deadline.passed()) {
      poll();
      victim.loop->poll();
    }
    EXPECT_EQ(victim.recorder.failures, std::vector{reason});
  }
  void expect_alive(std::uint64_t messages, std::size_t larges) {
    const Deadline deadline = patience();
    while ((victim.recorder.message_count < messages || victim.recorder.larges.size() < larges) && !deadline.passed()) {
      poll();
      victim.loop->poll();
    }
    EXPECT_TRUE(victim.connection->alive());
    EXPECT_EQ(victim.recorder.message_count, messages);
    EXPECT_EQ(victim.recorder.larges.size(), larges);
  }

  static constexpr std::uint32_t kAll = wire::receives_for(kDepth);
  static constexpr std::uint32_t kWhole = wire::kFirst | wire::kLast;
  Side victim;
  LoopSide node;
  nic::Cq cq_;
  nic::Qp qp_;
  std::unique_ptr<Region> memory;
  nic::Window lease;
};

TEST_F(Liar, TellsTheTruthAtFirst) {  // Else the tests below could pass for another reason.
  send_eager(kAll, 0, 24);
  send_fragment(0, 16 + 100, 100, kWhole | 0);
  send_fragment(128, 16 + 10, 30, wire::kFirst | 1);
  send_fragment(192, 16 + 20, 30, wire::kLast | 2);
  expect_alive(1, 2);
}
TEST_F(Liar, EmptyMessage) {
  send_eager(kAll, 0, 0);
  expect(Status::kProtocol);
}
TEST_F(Liar, HalfAHeader) {
  send_eager(kAll, 0, 7);
  expect(Status::kProtocol);
}
TEST_F(Liar, ClaimsMoreReceivesThanItsDepth) {
  send_eager(kAll + 1, 0, 16);
  expect(Status::kProtocol);
}
TEST_F(Liar, TakesReceivesBack) {
  send_eager(kAll - 1, 0, 16);
  expect(Status::kProtocol);
}
TEST_F(Liar, GivesBackLeaseThatWasNotUsed) {
  send_eager(kAll, 1, 16);
  expect(Status::kProtocol);
}
TEST_F(Liar, GivesNegativeLease) {
  send_eager(kAll, ~0u, 16);
  expect(Status::kProtocol);
}
TEST_F(Liar, LiesInAFragmentsCredits) {
  send_fragment(0, 116, 100, kWhole, {kAll + 1, 0});
  expect(Status::kProtocol);
}
TEST_F(Liar, WrongNumber) {
  send_fragment(0, 116, 100, kWhole | 1);
  expect(Status::kProtocol);
}
TEST_F(Liar, UnknownFlag) {
  send_fragment(0, 116, 100, kWhole | 1u << 29);
  expect(Status::kProtocol);
}
TEST_F(Liar, FirstIsMissing) {
  send_fragment(0, 116, 100, wire::kLast);
  expect(Status::kProtocol);
}
TEST_F(Liar, LastIsMissing) {
  send_fragment(0, 116, 100, wire::kFirst);
  expect(Status::kProtocol);
}
TEST_F(Liar, LastTooEarly) {
  send_fragment(0, 116, 101, kWhole);
  expect(Status::kProtocol);
}
TEST_F(Liar, MoreThanItsTotal) {
  send_fragment(0, 116, 99, kWhole);
  expect(Status::kProtocol);
}
TEST_F(Liar, TotalOfNothing) {
  send_fragment(0, 116, 0, kWhole);
  expect(Status::kProtocol);
}
TEST_F(Liar, FragmentWithoutBytes) {
  send_fragment(0, 16, 0, kWhole);
  expect(Status::kProtocol);
}
TEST_F(Liar, TotalChangesUnderway) {
  send_fragment(0, 16 + 48, 1000, wire::kFirst);
  send_fragment(64, 16 + 48, 1001, 1);
  expect(Status::kProtocol);
}
TEST_F(Liar, FirstAgainUnderway) {
  send_fragment(0, 16 + 48, 1000, wire::kFirst);
  send_fragment(64, 16 + 48, 1000, wire::kFirst | 1);
  expect(Status::kProtocol);
}
TEST_F(Liar, UsesMoreLeaseThanThereIs) {
  // Two of 2112 bytes do not fit in 4096; what the first used was not given back before the second was posted.
  send_fragment(0, 2112, 2096, kWhole | 0);
  victim.recorder.when_fragment = [&](Connection&, const Fragment&) {};
  send_fragment(0, 2112, 2096, kWhole | 1);
  expect(Status::kProtocol);
}
TEST_F(Liar, SendWithImmediate) {
  const wire::Credits credits{kAll, 0};
  std::memcpy(memory->bytes().data(), &credits, sizeof credits);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  post(wr, 16);
  expect(Status::kProtocol);
}
TEST_F(Liar, MessageLongerThanTheReceives) {
  send_eager(kAll, 0, 8 + 257);
  const Deadline deadline = patience();
  while (!victim.connection->drained() && !deadline.passed()) {
    poll();
    victim.loop->poll();
  }
  EXPECT_EQ(victim.recorder.failures.size(), 1u);
  EXPECT_EQ(victim.recorder.message_count, 0u);
}

TEST(MessageHandshake, RefusesWhatItCannotHaveMade) {
  const wire::Handshake good{
      .depth = 64, .eager_bytes = 128, .lease = {.address = 4096, .length = 8192, .rkey = 1, .memory_id = 7}};
  const auto with = [&](auto&& change) {
    wire::Handshake changed = good;
    change(changed);
    return wire::decode(wire::encode(changed).bytes());
  };
  EXPECT_OK(with([](wire::Handshake&) {}));
  EXPECT_OK(with([](auto& h) { h.lease.memory_id = 0; }));
  EXPECT_OK(with([](auto& h) { h.lease = {}; }));
  EXPECT_STATUS(with([](auto& h) { h.depth = 3; }), Status::kProtocol);
  EXPECT_STATUS(with([](auto& h) { h.depth = 4097; }), Status::kProtocol);
  EXPECT_STATUS(with([](auto& h) { h.eager_bytes = 0; }), Status::kProtocol);
  EXPECT_STATUS(with([](auto& h) { h.eager_bytes = 16384 + 64; }), Status::kProtocol);
  EXPECT_STATUS(with([](auto& h) { h.lease.length = 100; }), Status::kProtocol);
  EXPECT_STATUS(with([](auto& h) { h.lease.length = std::uint64_t{1} << 37; }), Status::kProtocol);
  EXPECT_STATUS(with([](auto& h) { h.lease.address = 8; }), Status::kProtocol);
  EXPECT_STATUS(with([](auto& h) { h.lease.address = ~std::uint64_t{0} << 12; }), Status::kProtocol);
  const auto whole = wire::encode(good);
  for (std::size_t length = 0; length < whole.size; ++length)
    EXPECT_STATUS(wire::decode(whole.bytes().first(length)), Status::kProtocol);
  const auto with_byte = [&](std::size_t at, std::uint8_t flip) {
    auto broken = whole;
    broken.data[at] ^= std::byte{flip};
    return wire::decode(broken.bytes());
  };
  EXPECT_STATUS(with_byte(0, 1), Status::kProtocol);     // Magic number.
  EXPECT_STATUS(with_byte(1, 1), Status::kProtocol);     // Version.
  EXPECT_STATUS(with_byte(1, 0x40), Status::kProtocol);  // A part that there is not.
  EXPECT_STATUS(with_byte(1, 0x10), Status::kProtocol);  // A memory id without a lease.
  EXPECT_STATUS(with_byte(26, 7), Status::kProtocol);    // A memory id of 0.
}

// What a client of the store tells fits the few bytes of RDMA CM.
TEST(MessageHandshake, IsShort) {
  EXPECT_EQ(wire::encode({.depth = 64, .eager_bytes = 128}).size, wire::kMinHandshakeBytes);
  EXPECT_EQ(wire::encode({.depth = 64, .eager_bytes = 128, .lease = {.length = 4096, .rkey = 1}}).size, 26u);
  EXPECT_EQ(wire::encode({.depth = 64, .eager_bytes = 128, .lease = {.length = 4096, .memory_id = 1}}).size,
            wire::kMaxHandshakeBytes);
}

}  // namespace
}  // namespace verbena::channel::test
