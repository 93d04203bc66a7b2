// The ring and the wake-up protocol, walked through all interleavings of its threads over memory with store buffers.
#include "nic/soft/layout.hpp"
#include "nic/soft/ring.hpp"
#include "sanitized.hpp"
#include "soft/model.hpp"

#include <gtest/gtest.h>

namespace verbena::nic::soft::model {
namespace {

constexpr bool kFibersWork = !test::kIsSanitized;

// The smallest ring: two slots, and a data ring of two units, so that both wrap within three messages.
constexpr std::uint32_t kSlots = 2;
constexpr std::uint32_t kDataBytes = 128;
constexpr std::uint64_t kMessages = 3;

using Producer = RingProducer<ModelMemory>;
using Consumer = RingConsumer<ModelMemory>;
template <class T>
using Word = ModelMemory::Atomic<T>;

struct Shared {
  SlotOf<ModelMemory> slots[kSlots];
  std::byte data[kDataBytes];
  Word<std::uint64_t> consumed;
  Word<std::uint32_t> wake;
  Word<std::uint32_t> control;
  Word<std::uint64_t> poll_word;
};

class RingModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!kFibersWork)
      GTEST_SKIP() << "the model runs on fibers, which the sanitizers do not follow; the plain build runs it";
  }

  enum class Bug { kNone, kNoRoomCheck, kEarlyProgress, kNoRecheck, kNoBarrier, kExcludedIsEmpty };

  /// Sends kMessages numbered payloads, every other one through the data ring.
  void produce(Bug bug) {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      const bool in_data = i % 2 == 1;
      const std::size_t data_bytes = in_data ? 56 : 0;
      while (bug != Bug::kNoRoomCheck && !producer_.has_room(data_bytes, &shared_.consumed)) model_.wait_for_change();
      std::byte* to = in_data ? producer_.data_payload(data_bytes) : producer_.slot_payload();
      const std::uint64_t payload = 0x1000 + i;
      ModelMemory::copy(to, &payload, sizeof payload);
      producer_.publish({SlotKind::kSend, static_cast<std::uint8_t>(in_data ? SlotFlags::kInData : 0),
                         static_cast<std::uint32_t>(i), in_data ? 56U : 8U},
                        data_bytes);
    }
  }
  /// Takes one message, which must be the next in order and whole.
  void take(std::uint64_t expected, Bug bug) {
    SlotView view;
    if (!consumer_.peek(view)) {
      model_.fail("ready, and then not");
      return;
    }
    if (bug == Bug::kEarlyProgress) {
      Consumer after = consumer_;
      after.advance();
      after.publish_progress(shared_.consumed);
    }
    model_.step();
    std::uint64_t payload = 0;
    const std::byte* from = consumer_.payload(view);
    if (from == nullptr) {
      model_.fail("the payload's position leads outside the ring");
      return;
    }
    ModelMemory::copy(&payload, from, sizeof payload);
    model_.learn(payload);
    if (view.imm != expected || payload != 0x1000 + expected) model_.fail("a message was lost, torn or overtaken");
    consumer_.advance();
    consumer_.publish_progress(shared_.consumed);
  }
  void consume(Bug bug) {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      while (!consumer_.ready()) model_.wait_for_change();
      take(i, bug);
    }
  }

  Model::Scenario scenario(std::uint64_t start) {
    Model::Scenario made;
    made.reset = [this, start] {
      std::memset(static_cast<void*>(&shared_), 0, sizeof shared_);
      ModelMemory::shared_begin = reinterpret_cast<std::byte*>(&shared_);
      ModelMemory::shared_end = ModelMemory::shared_begin + sizeof shared_;
      std::memcpy(static_cast<void*>(&shared_.consumed), &start, sizeof start);
      // Slots hold the headers of the lap before, as they do when a ring has come this far by itself.
      for (std::uint64_t i = 0; start != 0 && i < kSlots; ++i) {
        const std::uint64_t before = static_cast<std::uint32_t>(start + i + 1 - kSlots);
        std::memcpy(static_cast<void*>(&shared_.slots[i].header), &before, sizeof before);
      }
      producer_ = Producer(shared_.slots, kSlots, shared_.data, kDataBytes, ends_, start);
      consumer_ = Consumer(shared_.slots, kSlots, shared_.data, kDataBytes, start);
      bells_ = 0;
    };
    made.memory = {{&shared_, sizeof shared_}, {&bells_, sizeof bells_}};
    made.finished = [this, start] {
      return consumer_.head() == start + kMessages ? std::string() : std::string("messages are left over");
    };
    return made;
  }
  std::string walk_ring(Bug bug, std::uint64_t start = 0) {
    Model::Scenario made = scenario(start);
    made.run[0] = [this, bug] { produce(bug); };
    made.run[1] = [this, bug] { consume(bug); };
    return model_.walk(made);
  }

  /// A poll of the queue that the consumer has armed: whether a message is there. Keeps out of the control plane's way.
  bool finds_message(Bug bug) {
    for (std::uint64_t word = 0;; word += 2) {
      shared_.poll_word.store(word + 1, std::memory_order_release);
      const bool is_excluded = shared_.control.load(std::memory_order_acquire) != 0;
      const bool is_found = !is_excluded && consumer_.ready();
      shared_.poll_word.store(word + 2, std::memory_order_release);
      if (!is_excluded || bug == Bug::kExcludedIsEmpty) return is_found;
      while (shared_.control.load(std::memory_order_acquire) != 0) model_.wait_for_change();
    }
  }

  /// Changes something of the queue's once, outside its owner's polls.
  void change_exclusively() {
    shared_.control.store(1, std::memory_order_seq_cst);
    model_.barrier_all();
    const std::uint64_t word = shared_.poll_word.load(std::memory_order_acquire);
    if (word % 2 == 1) {
      while (shared_.poll_word.load(std::memory_order_acquire) == word) model_.wait_for_change();
    }
    shared_.control.store(0, std::memory_order_release);
    model_.step();
  }

  /// One message to a consumer that goes to sleep as the engine does: arm, barrier, look once more, sleep. With
  /// `is_changed` the control plane has something to change in its queue meanwhile.
  std::string walk_sleep(Bug bug, bool is_changed = false) {
    Model::Scenario made = scenario(0);
    made.run[0] = [this] {
      const std::uint64_t payload = 0x1000;
      ModelMemory::copy(producer_.slot_payload(), &payload, sizeof payload);
      producer_.publish({SlotKind::kSend, 0, 0, 8}, 0);
      if ((shared_.wake.load(std::memory_order_relaxed) & Wake::kMessage) != 0) {
        // The bell is a system call under the event's lock: what was stored before it is seen by whoever it wakes.
        model_.barrier_all();
        bells_ = 1;
        model_.signal();
      }
      model_.step();
    };
    if (is_changed) made.run[2] = [this] { change_exclusively(); };
    made.run[1] = [this, bug, is_changed] {
      if (!consumer_.ready()) {
        shared_.wake.store(Wake::kMessage, std::memory_order_release);
        model_.step();
        if (bug != Bug::kNoBarrier) model_.barrier_all();
        const bool looks = bug != Bug::kNoRecheck;
        if (!looks || !(is_changed ? finds_message(bug) : consumer_.ready())) {
          while (bells_ == 0) model_.wait_for_change();
        }
      }
      take(0, Bug::kNone);
    };
    made.finished = [this] { return consumer_.head() == 1 ? std::string() : std::string("the message is left over"); };
    return model_.walk(made);
  }
  Model model_;
  Shared shared_;
  std::uint64_t ends_[kSlots] = {};
  Producer producer_;
  Consumer consumer_;
  std::uint64_t bells_ = 0;
};

TEST_F(RingModel, EveryInterleavingDeliversInOrderAndWhole) {
  EXPECT_EQ(walk_ring(Bug::kNone), "");
  EXPECT_GT(model_.runs, 1000U);
}
TEST_F(RingModel, AcrossTheWrapOfTheSequenceNumber) {
  EXPECT_EQ(walk_ring(Bug::kNone, (std::uint64_t{1} << 32) - 2), "");
}
TEST_F(RingModel, FindsAProducerThatDoesNotLookForRoom) { EXPECT_NE(walk_ring(Bug::kNoRoomCheck), ""); }
TEST_F(RingModel, FindsAConsumerThatFreesBeforeItCopies) { EXPECT_NE(walk_ring(Bug::kEarlyProgress), ""); }

TEST_F(RingModel, NoWakeUpIsLost) { EXPECT_EQ(walk_sleep(Bug::kNone), ""); }
TEST_F(RingModel, FindsASleeperThatDoesNotLookAgain) { EXPECT_NE(walk_sleep(Bug::kNoRecheck), ""); }
TEST_F(RingModel, NoWakeUpIsLostWhileTheControlPlaneChangesTheQueue) { EXPECT_EQ(walk_sleep(Bug::kNone, true), ""); }
TEST_F(RingModel, FindsAPollThatCallsAnExcludedQueueEmpty) { EXPECT_NE(walk_sleep(Bug::kExcludedIsEmpty, true), ""); }
TEST_F(RingModel, FindsASleeperWithoutABarrier) { EXPECT_NE(walk_sleep(Bug::kNoBarrier), ""); }

}  // namespace
}  // namespace verbena::nic::soft::model
