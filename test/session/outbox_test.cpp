// Messages that wait for room or for a transfer keep their order, whichever way the next one would go.
#include "session/outbox.hpp"
#include "../channel/fixture.hpp"
#include "session/reception.hpp"

#include <array>

namespace verbena::session {
namespace {

class OutboxTest : public channel::test::ConnectionPair {
 protected:
  /// Bytes of room in the peer's inbox, heads of messages included.
  static constexpr std::uint32_t kRoom = 200;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(open());
    outbox.meet(*a.connection, kRoom, false);
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
  /// Kinds of the messages that have arrived at the other end.
  [[nodiscard]] std::vector<wire::Kind> arrived() {
    settle();
    std::vector<wire::Kind> kinds;
    for (const channel::test::Bytes& message : b.recorder.messages) kinds.push_back(wire::Kind(message.front()));
    return kinds;
  }

  Reception reception{64 * 1024, 64 * 1024};
  Outbox outbox{reception};
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
TEST_F(OutboxTest, ANoteLeavesAfterItsWrite) {
  TransferCall write({.kind = Transfer::Kind::kWrite, .place = {.span = {.length = 64}}});
  Note note(write);
  Send behind(8);
  push(note);
  push(behind);
  EXPECT_FALSE(note.done() || behind.done());
  EXPECT_TRUE(arrived().empty());
  write.started = 63;
  outbox.progress();
  EXPECT_FALSE(note.done()) << "a part of it is still to be handed to the connection";
  write.started = 64;
  outbox.progress();
  EXPECT_TRUE(note.done() && behind.done());
  EXPECT_EQ(arrived(), (std::vector{wire::Kind::kWritten, wire::Kind::kData}));
}

TEST_F(OutboxTest, ANoteOfAWriteThatFailedIsNotSent) {
  TransferCall write({.kind = Transfer::Kind::kWrite, .place = {.span = {.length = 64}}});
  write.status = Status::kOutOfRange;
  Note note(write);
  Send behind(8);
  push(note);
  push(behind);
  EXPECT_TRUE(note.done() && behind.done());
  EXPECT_EQ(note.status, Status::kOutOfRange);
  EXPECT_EQ(arrived(), std::vector{wire::Kind::kData});
}

}  // namespace
}  // namespace verbena::session
