// The table of started operations, and queues of its slots.
#include "channel/operations.hpp"

#include <gtest/gtest.h>

namespace verbena::channel {
namespace {

TEST(Operations, HandsOutEachSlotOnceAndForgetsOldGenerations) {
  Operations table(3);
  const std::uint32_t first = table.begin({});
  ASSERT_LT(first, table.capacity());
  EXPECT_NE(table.begin({}), kNoSlot);
  EXPECT_NE(table.begin({}), kNoSlot);
  EXPECT_EQ(table.begin({}), kNoSlot);
  EXPECT_EQ(table.count(), 3u);
  const std::uint64_t id = std::uint64_t{0xffff'ffff} << 32 | table.tag(first);
  EXPECT_FALSE(engine::wr::is_receive(id));
  EXPECT_EQ(engine::wr::position_of(id), 0xffff'ffffu);
  EXPECT_EQ(table.find(id), first);
  table.end(first);
  EXPECT_EQ(table.find(id), kNoSlot);
  EXPECT_EQ(table.begin({}), first);
  EXPECT_EQ(table.find(id), kNoSlot) << "a completion of the operation before";
  EXPECT_EQ(table.find(kNoTag), kNoSlot);
}

TEST(Operations, GenerationsWrapWithoutTouchingTheReceiveBit) {
  Operations table(1);
  for (int i = 0; i < 70'000; ++i) {
    const std::uint32_t slot = table.begin({});
    ASSERT_EQ(slot, 0u);
    ASSERT_FALSE(engine::wr::is_receive(table.tag(slot)));
    ASSERT_EQ(table.find(table.tag(slot)), slot);
    table.end(slot);
  }
}

TEST(SlotQueue, KeepsItsOrderAndLosesWhatIsRemoved) {
  Operations table(5);
  SlotQueue queue;
  EXPECT_TRUE(queue.empty());
  std::uint32_t slots[5];
  for (std::uint32_t& slot : slots) queue.push(table, slot = table.begin({}));
  EXPECT_TRUE(table.is_full());
  queue.remove(table, slots[2]);
  queue.remove(table, slots[4]);
  queue.remove(table, slots[4]);  // It is in no queue any more.
  for (const std::uint32_t expected : {slots[0], slots[1], slots[3]}) {
    ASSERT_EQ(queue.first(), expected);
    queue.pop(table);
  }
  EXPECT_TRUE(queue.empty());
  queue.push(table, slots[0]);
  queue.remove(table, slots[0]);
  EXPECT_TRUE(queue.empty());
  queue.push(table, slots[1]);
  EXPECT_EQ(queue.first(), slots[1]);
  queue.clear();
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace verbena::channel
