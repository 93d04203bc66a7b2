// Which receive gets what has arrived, when receives are given up and messages are abandoned half-way.
#include "session/reception.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>

namespace verbena::session {
namespace {

constexpr std::size_t kInboxBytes = 64 * 1024;

class ReceptionTest : public testing::Test {
 protected:
  struct Receive : ReceiveCall {
    explicit Receive(std::size_t room = 64) {
      to = bytes.data();
      length = room;
    }
    [[nodiscard]] std::string_view text() const {
      return {reinterpret_cast<const char*>(message.data.data()), message.data.size()};
    }
    std::array<std::byte, 64> bytes{};
    int told = 0;
  };

  ReceptionTest() : reception(kInboxBytes, kInboxBytes) { reception.set_window(window); }

  /// A piece arrives of a message that has `total` bytes.
  [[nodiscard]] bool arrive(std::string_view piece, std::size_t offset, std::size_t total) {
    return reception.accept({.kind = wire::Kind::kData, .total = total, .offset = offset},
                            std::as_bytes(std::span(piece)), true);
  }
  [[nodiscard]] bool arrive(std::string_view message) { return arrive(message, 0, message.size()); }
  /// A call gets the front of a message whose rest does not come.
  void begin(Receive& receive) {
    reception.push(receive);
    ASSERT_TRUE(arrive("unfinished", 0, 20));
    EXPECT_TRUE(reception.progress());
  }
  /// Hands out the messages that have arrived: the call gets this one.
  void expect_got(const Receive& receive, std::string_view text) {
    EXPECT_TRUE(reception.progress());
    ASSERT_TRUE(receive.done());
    EXPECT_EQ(receive.text(), text);
  }
  [[nodiscard]] bool arrive_written(std::size_t offset, std::size_t bytes) {
    return reception.accept({.kind = wire::Kind::kWritten, .immediate = 7, .total = bytes, .offset = offset}, {}, true);
  }

  std::array<std::byte, 16> window{};
  Reception reception;
};

TEST_F(ReceptionTest, ADroppedReceiveGetsNoMessage) {
  Receive dropped;
  Receive next;
  reception.push(dropped);
  reception.push(next);
  dropped.is_dropped.store(true, std::memory_order_relaxed);
  ASSERT_TRUE(arrive("whole"));
  EXPECT_TRUE(reception.progress());
  EXPECT_TRUE(dropped.done());
  EXPECT_EQ(dropped.status, Status::kTimedOut);
  EXPECT_EQ(dropped.bytes[0], std::byte{0}) << "its memory was touched";
  ASSERT_TRUE(next.done());
  EXPECT_EQ(next.text(), "whole");
}

TEST_F(ReceptionTest, ADroppedReceiveIsOverWithoutAnyMessage) {
  Receive dropped;
  Receive next;
  reception.push(dropped);
  reception.push(next);
  EXPECT_TRUE(reception.progress());
  EXPECT_FALSE(dropped.done());
  dropped.is_dropped.store(true, std::memory_order_relaxed);
  EXPECT_TRUE(reception.progress());
  EXPECT_TRUE(dropped.done());
  EXPECT_FALSE(next.done());
  EXPECT_EQ(reception.cancel(next), Status::kOk);
}

TEST_F(ReceptionTest, ACancelledReceiveLeavesItsFrontToTheNext) {
  Receive first;
  Receive next;
  reception.push(first);
  ASSERT_TRUE(arrive("front", 0, 9));
  EXPECT_TRUE(reception.progress());
  EXPECT_FALSE(first.done());
  EXPECT_TRUE(reception.drop(first));
  reception.push(next);
  ASSERT_TRUE(arrive("back", 5, 9));
  expect_got(next, "frontback");
}

// The sender has given the first message up.
TEST_F(ReceptionTest, AMessageThatBeginsDropsTheUnfinishedOneBeforeIt) {
  Receive receive;
  ASSERT_NO_FATAL_FAILURE(begin(receive));
  ASSERT_TRUE(arrive("new ", 0, 8));
  ASSERT_TRUE(arrive("ones", 4, 8));
  expect_got(receive, "new ones");
}

TEST_F(ReceptionTest, AWholeMessageDropsTheUnfinishedOneBeforeIt) {
  Receive receive;
  ASSERT_NO_FATAL_FAILURE(begin(receive));
  ASSERT_TRUE(arrive("whole"));
  expect_got(receive, "whole");
}

TEST_F(ReceptionTest, AFrontOfAnAbandonedMessageIsNotOfTheNextOne) {
  Receive first;
  ASSERT_NO_FATAL_FAILURE(begin(first));
  EXPECT_TRUE(reception.drop(first));
  // A call takes the start of the next message, and is given up, too: the front is its start alone.
  Receive second;
  reception.push(second);
  ASSERT_TRUE(arrive("ne", 0, 8));
  EXPECT_TRUE(reception.progress());
  EXPECT_FALSE(second.done());
  ASSERT_TRUE(arrive("w ones", 2, 8));
  expect_got(second, "new ones");
}

TEST_F(ReceptionTest, AWriteDropsTheUnfinishedMessageBeforeIt) {
  Receive first;
  ASSERT_NO_FATAL_FAILURE(begin(first));
  EXPECT_TRUE(reception.drop(first));
  Receive second;
  reception.push(second);
  ASSERT_TRUE(arrive_written(4, 8));
  EXPECT_TRUE(reception.progress());
  ASSERT_TRUE(second.done());
  EXPECT_EQ(second.message.kind, rdma::Message::Kind::kWritten);
  EXPECT_EQ(second.message.data.data(), window.data() + 4);
  EXPECT_FALSE(arrive("the rest..", 10, 20)) << "of a message that is gone";
}

TEST_F(ReceptionTest, MessagesStayInOrderWhereACallIsThereBeforeThem) {
  Receive first;
  Receive second;
  reception.push(first);
  reception.push(second);
  // Both arrive in one poll, before anything is handed out.
  ASSERT_TRUE(arrive_written(0, 8));
  ASSERT_TRUE(arrive("behind"));
  EXPECT_TRUE(reception.progress());
  ASSERT_TRUE(first.done() && second.done());
  EXPECT_EQ(first.message.kind, rdma::Message::Kind::kWritten);
  EXPECT_EQ(second.text(), "behind");
}

// Who is told may begin the next call, which must not happen while a message is being handled.
TEST_F(ReceptionTest, AnArrivalTellsNobody) {
  Receive receive;
  receive.tell = [](Call& call) noexcept { ++static_cast<Receive&>(call).told; };
  reception.push(receive);
  ASSERT_TRUE(arrive("whole"));
  EXPECT_EQ(receive.told, 0);
  EXPECT_TRUE(reception.progress());
  EXPECT_EQ(receive.told, 1);
  EXPECT_EQ(receive.text(), "whole");
}

TEST_F(ReceptionTest, AMessageThatIsTooLongStays) {
  Receive small(4);
  Receive large;
  reception.push(small);
  reception.push(large);
  ASSERT_TRUE(arrive("longer"));
  EXPECT_TRUE(reception.progress());
  ASSERT_TRUE(small.done() && large.done());
  EXPECT_EQ(small.status, Status::kBufferTooSmall);
  EXPECT_EQ(small.needed, 6u);
  EXPECT_EQ(large.text(), "longer");
}

}  // namespace
}  // namespace verbena::session
