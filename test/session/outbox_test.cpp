// Messages that wait for room or for a transfer keep their order, whichever way the next one would go.
#include "session/outbox.hpp"
#include "../channel/fixture.hpp"
#include "session/reception.hpp"
#include "session/transfers.hpp"

#include <array>

namespace verbena::session {
namespace {

class OutboxTest : public channel::test::MemoryPair {
 protected:
  /// Bytes of room in the peer's inbox, heads of messages included.
  static constexpr std::uint32_t kRoom = 200;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(open());
    outbox.meet(*a.connection, kRoom, false);
    a.recorder.when_complete = [this](channel::Connection&, const channel::Completion& completion) {
      transfers.on_part(completion);
    };
  }
  struct Send : SendCall {
    explicit Send(std::size_t bytes) {
      from = memory.data();
      length = bytes;
    }
    std::array<std::byte, 1024> memory{};
  };
  /// The note of a write.
  struct Note : Send {
    explicit Note(const TransferCall& write) : Send(0) {
      kind = wire::Kind::kWritten;
      after = &write;
    }
  };
  void push(SendCall& call) {
    outbox.push(call);
    outbox.progress();
  }
  [[nodiscard]] Transfer write() const {
    return {.kind = Transfer::Kind::kWrite, .local = local->local(0, 64), .place = {.span = target->remote(0, 64)}};
  }
  /// Hands the transfers that wait to the connection, and then what waits behind them.
  void progress() {
    transfers.progress(here());
    outbox.progress();
  }
  /// Kinds of the messages that have arrived at the other end.
  [[nodiscard]] std::vector<wire::Kind> arrived() {
    settle();
    std::vector<wire::Kind> kinds;
    for (const channel::test::Bytes& message : b.recorder.messages) kinds.push_back(wire::Kind(message.front()));
    return kinds;
  }

  Reception reception{64 * 1024, 64 * 1024};
  PhysicalPeer physical;
  Transfers transfers{physical};
  Outbox outbox{reception, transfers};
};

TEST_F(OutboxTest, AShortMessageDoesNotOvertakeOneThatWaitsForRoom) {
  Send waiting(kRoom);
  push(waiting);
  EXPECT_FALSE(waiting.done()) << "with its head it is longer than the room";
  const std::array<std::byte, 8> word{};
  EXPECT_FALSE(outbox.send_now(word, {}));
  Send behind(8);
  push(behind);
  EXPECT_FALSE(behind.done());
  EXPECT_TRUE(arrived().empty());
  EXPECT_FALSE(outbox.cancel(waiting));
  outbox.progress();
  EXPECT_TRUE(behind.done());
  EXPECT_EQ(outbox.send_now(word, {}), test::device_under_test() == nullptr) << "now nothing is ahead";
}

// Its bytes must be there first.
TEST_F(OutboxTest, MessagesLeaveAfterTheTransfersThatCameBeforeThem) {
  TransferCall first(write());
  transfers.push(first);
  Note note(first);
  Send message(8);
  push(note);
  push(message);
  EXPECT_FALSE(note.done() || message.done()) << "the WRITE is not with the connection";
  EXPECT_TRUE(arrived().empty());
  progress();
  EXPECT_TRUE(note.done() && message.done());
  EXPECT_EQ(arrived(), (std::vector{wire::Kind::kWritten, wire::Kind::kData}));
}

TEST_F(OutboxTest, AMessageDoesNotWaitForATransferThatCameLater) {
  Send message(8);
  outbox.push(message);
  TransferCall later(write());
  transfers.push(later);
  outbox.progress();
  EXPECT_TRUE(message.done());
  progress();
  EXPECT_TRUE(until([&] { return transfers.is_quiet(); }));
}

TEST_F(OutboxTest, ANoteOfAWriteThatFailedIsNotSent) {
  TransferCall failed(write());
  failed.status = Status::kOutOfRange;
  Note note(failed);
  Send behind(8);
  push(note);
  push(behind);
  EXPECT_TRUE(note.done() && behind.done());
  EXPECT_EQ(note.status, Status::kOutOfRange);
  EXPECT_EQ(arrived(), std::vector{wire::Kind::kData});
}

}  // namespace
}  // namespace verbena::session
