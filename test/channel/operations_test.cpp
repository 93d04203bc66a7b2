// The table of started operations, and queues of them.
#include "channel/operations.hpp"
#include "engine/fifo.hpp"

#include <gtest/gtest.h>

namespace verbena::channel {
namespace {

TEST(Operations, HandsOutEachSlotOnceAndForgetsOldGenerations) {
  Operations table(3);
  Operation* const first = table.begin({});
  ASSERT_NE(first, nullptr);
  EXPECT_NE(table.begin({}), nullptr);
  EXPECT_FALSE(table.is_full());
  EXPECT_NE(table.begin({}), nullptr);
  EXPECT_EQ(table.begin({}), nullptr);
  EXPECT_TRUE(table.is_full());
  const std::uint64_t id = std::uint64_t{0xffff'ffff} << 32 | table.tag(*first);
  EXPECT_FALSE(engine::wr::is_receive(id));
  EXPECT_EQ(engine::wr::position_of(id), 0xffff'ffffu);
  EXPECT_EQ(table.find(id), first);
  table.end(*first);
  EXPECT_EQ(table.find(id), nullptr);
  EXPECT_EQ(table.begin({}), first);
  EXPECT_EQ(table.find(id), nullptr) << "a completion of the operation before";
  EXPECT_EQ(table.find(kNoTag), nullptr);
}

TEST(Operations, GenerationsWrapWithoutTouchingTheReceiveBit) {
  Operations table(1);
  for (int i = 0; i < 70'000; ++i) {
    Operation* const operation = table.begin({});
    ASSERT_NE(operation, nullptr);
    ASSERT_EQ(table.slot_of(*operation), 0u);
    ASSERT_FALSE(engine::wr::is_receive(table.tag(*operation)));
    ASSERT_EQ(table.find(table.tag(*operation)), operation);
    table.end(*operation);
  }
}

TEST(Fifo, KeepsItsOrderAndLosesWhatIsRemoved) {
  Operations table(5);
  engine::Fifo<Operation> queue;
  EXPECT_TRUE(queue.empty());
  Operation* all[5];
  for (Operation*& operation : all) queue.push(*(operation = table.begin({})));
  EXPECT_TRUE(table.is_full());
  queue.remove(*all[2]);
  queue.remove(*all[4]);
  queue.remove(*all[4]);  // It is in no queue any more.
  for (const Operation* expected : {all[0], all[1], all[3]}) {
    ASSERT_EQ(queue.first(), expected);
    queue.pop();
  }
  EXPECT_TRUE(queue.empty());
  queue.push(*all[0]);
  queue.remove(*all[0]);
  EXPECT_TRUE(queue.empty());
  queue.push(*all[1]);
  EXPECT_EQ(queue.first(), all[1]);
  queue.clear();
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace verbena::channel
