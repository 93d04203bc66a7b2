// That ThreadSanitizer sees the ring at all: through two mappings of one page it would not, so in its builds a mapping
// of memory that this process owns is the owner's. A ring whose header is published without release is reported; the
// ring as it is, over the same mappings, is not.
#include "nic/soft/ring.hpp"
#include "nic/soft/system.hpp"

#include "result.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

namespace verbena::nic::soft {
namespace {

/// Real memory whose stores order nothing.
struct UnorderedMemory : RealMemory {
  template <class T>
  class Atomic {
   public:
    [[nodiscard]] T load(std::memory_order order) const noexcept { return value_.load(order); }
    void store(T value, std::memory_order) noexcept { value_.store(value, std::memory_order_relaxed); }

   private:
    std::atomic<T> value_;
  };
};

constexpr std::uint32_t kSlots = 8;
constexpr std::uint32_t kDataBytes = 4 * kSegmentBytes;
constexpr std::uint64_t kMessages = 1000;

/// Sends numbers from one thread to another over a ring in a memfd; every other one goes through the data ring.
template <class Memory>
void pass_numbers() {
  using Slot = SlotOf<Memory>;
  constexpr std::size_t kBytes = kSlots * sizeof(Slot) + kDataBytes;
  auto own = Mapping::create("race", kBytes, Mapping::Mode::kRead);
  ASSERT_OK(own);
  const auto peer = Mapping::of_peer(own->fd.get(), kBytes, Mapping::Mode::kRead);
  ASSERT_OK(peer);
  std::byte* const to = own->mapping.data();
  const std::byte* const from = peer->data();
  std::array<std::uint64_t, kSlots> ends{};
  RingProducer<Memory> producer(reinterpret_cast<Slot*>(to), kSlots, to + kSlots * sizeof(Slot), kDataBytes,
                                ends.data(), 0);
  RingConsumer<Memory> consumer(reinterpret_cast<const Slot*>(from), kSlots, from + kSlots * sizeof(Slot), kDataBytes,
                                0);
  typename RingConsumer<Memory>::Counter consumed{};
  const std::jthread sender([&] {
    for (std::uint64_t number = 1; number <= kMessages;) {
      const std::size_t data_bytes = number % 2 == 0 ? 0 : kSlotPayload + 8;
      if (!producer.has_room(data_bytes, &consumed)) {
        std::this_thread::yield();
        continue;
      }
      std::memcpy(data_bytes == 0 ? producer.slot_payload() : producer.data_payload(data_bytes), &number,
                  sizeof number);
      const std::uint8_t flags = data_bytes == 0 ? 0 : SlotFlags::kInData;
      producer.publish({SlotKind::kSend, flags, 0, sizeof number}, data_bytes);
      ++number;
    }
  });
  for (std::uint64_t expected = 1; expected <= kMessages;) {
    SlotView view;
    if (!consumer.peek(view)) {
      std::this_thread::yield();
      continue;
    }
    std::uint64_t number = 0;
    std::memcpy(&number, consumer.payload(view), sizeof number);
    EXPECT_EQ(number, expected);
    consumer.advance();
    consumer.publish_progress(consumed);
    ++expected;
  }
}

TEST(RingRace, TheRingHasNone) { pass_numbers<RealMemory>(); }

TEST(RingRaceDeathTest, PlantedRaceIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(pass_numbers<UnorderedMemory>(), "ThreadSanitizer: data race");
}

}  // namespace
}  // namespace verbena::nic::soft
