// The soft NIC's ring against the other side's lies: a consumer over any slots, a producer told any progress, and both
// together, where what was sent comes out.
#include "input.hpp"
#include "nic/soft/layout.hpp"
#include "nic/soft/ring.hpp"

#include <deque>

namespace verbena::fuzz::soft_ring {
namespace {

using namespace nic::soft;

enum class Form : std::uint8_t { kConsumer, kBoth, kGeometry, kChanging, kEnd };

/// Slots and data ring in blocks of their own, so that a sanitizer sees the ends of each.
struct Memory {
  Memory(std::uint32_t count, std::uint32_t bytes) : slots(new Slot[count]()), slot_count(count), data(bytes) {}
  [[nodiscard]] Bytes payload_of(std::uint64_t index) const noexcept { return slots[index & (slot_count - 1)].payload; }
  [[nodiscard]] std::uint32_t data_bytes() const noexcept { return static_cast<std::uint32_t>(data.bytes().size()); }
  std::unique_ptr<Slot[]> slots;
  std::uint32_t slot_count;
  Tight data;
};

std::uint32_t power(Input& in, unsigned least, unsigned most) noexcept {
  return 1U << (least + in.take<std::uint8_t>() % (most - least + 1));
}

/// Where the position says, and only there; nullptr exactly when that leads outside.
void check_payload(const Memory& memory, const RingConsumer<RealMemory>& ring, const SlotView& view) noexcept {
  const std::byte* const at = ring.payload(view);
  const Bytes slot = memory.payload_of(ring.head());
  if ((view.flags & SlotFlags::kInData) == 0) {
    VERBENA_CHECK(at == (view.length <= slot.size() ? slot.data() : nullptr));
  } else {
    std::uint64_t position = 0;
    std::memcpy(&position, slot.data(), sizeof position);
    position %= memory.data_bytes();
    const bool fits = view.length <= memory.data_bytes() - position;
    VERBENA_CHECK(at == (fits ? memory.data.bytes().data() + position : nullptr));
  }
  // Read, so that a sanitizer has its say.
  const Tight copy(at == nullptr ? Bytes{} : Bytes{at, view.length});
}

void check_consumer(Input& in) {
  const std::uint32_t slot_count = power(in, 1, 4);
  Memory memory(slot_count, power(in, 6, 14));
  const std::uint64_t start = in.take<std::uint64_t>() / memory.slot_count * memory.slot_count;
  RingConsumer<RealMemory> ring(memory.slots.get(), memory.slot_count, memory.data.bytes().data(), memory.data_bytes(),
                                start);
  PeerWord<std::uint64_t> consumed;
  consumed.store(start);
  while (!in.empty()) {
    // What the peer writes into the slot that is looked at next; mostly under a header that is accepted.
    Slot& slot = memory.slots[ring.head() & (memory.slot_count - 1)];
    const auto header = in.take<std::uint32_t>();
    const bool right = (header & 1) != 0;
    const std::uint64_t index = right ? static_cast<std::uint32_t>(ring.head() + 1) : in.take<std::uint32_t>();
    slot.header.store(index | static_cast<std::uint64_t>(header) << 32);
    const std::uint64_t details = details_of({.imm = header, .length = in.take<std::uint32_t>()});
    slot.details.store(details);
    const Bytes position = in.take_bytes(sizeof(std::uint64_t));
    std::ranges::copy(position, slot.payload);
    SlotView view;
    const bool found = ring.peek(view);
    VERBENA_CHECK(found == ring.ready() && found == (index == static_cast<std::uint32_t>(ring.head() + 1)));
    if (!found) continue;
    VERBENA_CHECK(details_of(view) == details);
    check_payload(memory, ring, view);
    ring.advance();
    ring.publish_progress(consumed);
    VERBENA_CHECK(consumed.load() == ring.head());
  }
}

struct Sent {
  std::uint32_t length;
  std::uint8_t seed;
};

/// Sends as post_send does: in the slot, or in the data ring. False when there is no room.
bool send(RingProducer<RealMemory>& ring, const Memory& memory, const Sent& message,
          const PeerWord<std::uint64_t>& progress) noexcept {
  const bool in_data = message.length > kSlotPayload;
  const std::size_t data_bytes = in_data ? message.length : 0;
  if (!ring.has_room(data_bytes, &progress)) return false;
  const std::uint64_t index = ring.tail();
  std::byte* const to = in_data ? ring.data_payload(data_bytes) : ring.slot_payload();
  VERBENA_CHECK(is_inside({to, message.length}, in_data ? memory.data.bytes() : memory.payload_of(index)));
  std::memset(to, message.seed, message.length);
  ring.publish({SlotKind::kSend, in_data ? SlotFlags::kInData : std::uint8_t{0}, message.seed, message.length},
               data_bytes);
  VERBENA_CHECK(ring.tail() == index + 1);
  return true;
}

void receive(RingConsumer<RealMemory>& ring, const Sent& message, PeerWord<std::uint64_t>& progress) noexcept {
  SlotView view;
  VERBENA_CHECK(ring.peek(view) && view.kind == SlotKind::kSend);
  VERBENA_CHECK(view.imm == message.seed && view.length == message.length);
  const std::byte* const from = ring.payload(view);
  VERBENA_CHECK(from != nullptr);
  const Bytes payload(from, message.length);
  VERBENA_CHECK(std::ranges::all_of(payload, [&](std::byte b) { return b == static_cast<std::byte>(message.seed); }));
  ring.advance();
  ring.publish_progress(progress);
}

/// A ring whose words change under the reader: every load finds another value, the next one of the input.
struct ChangingMemory : RealMemory {
  template <class T>
  class Atomic {
   public:
    [[nodiscard]] T load(std::memory_order) const noexcept { return changes->take<T>(); }
    void store(T, std::memory_order) noexcept {}

   private:
    T value_{};
  };
  static std::uint64_t load_word(const std::byte*) noexcept { return changes->take<std::uint64_t>(); }
  static inline Input* changes = nullptr;
};

/// A payload is inside the ring by the length that `peek` gave, whatever other loads would have found.
void check_changing(Input& in) {
  using ChangingSlot = SlotOf<ChangingMemory>;
  static_assert(sizeof(ChangingSlot) == sizeof(Slot));
  const std::uint32_t slot_count = power(in, 1, 4);
  const auto slots = std::make_unique<ChangingSlot[]>(slot_count);
  const Tight data(std::size_t{power(in, 6, 14)});
  ChangingMemory::changes = &in;
  RingConsumer<ChangingMemory> ring(slots.get(), slot_count, data.bytes().data(),
                                    static_cast<std::uint32_t>(data.bytes().size()), 0);
  while (!in.empty()) {
    SlotView view;
    if (!ring.peek(view)) continue;
    const std::byte* const at = ring.payload(view);
    const Bytes payload = at == nullptr ? Bytes{} : Bytes{at, view.length};
    const Bytes slot(slots[ring.head() & (slot_count - 1)].payload);
    VERBENA_CHECK(is_inside(payload, (view.flags & SlotFlags::kInData) == 0 ? slot : data.bytes()));
    const Tight copy(payload);  // Read, so that a sanitizer has its say.
    ring.advance();
  }
  ChangingMemory::changes = nullptr;
}

/// What was sent comes out, in order and whole, until the consumer lies about its progress; from then on the producer
/// need only stay inside its ring.
void check_both(Input& in) {
  const std::uint32_t slot_count = power(in, 1, 4);
  Memory memory(slot_count, power(in, 14, 16));  // From four segments on, as QpGeometry has it.
  const std::uint64_t start = in.take<std::uint64_t>() / memory.slot_count * memory.slot_count;
  for (std::uint32_t i = 0; i < memory.slot_count; ++i) {
    // As make_shared_memory leaves them.
    memory.slots[i].header.store(static_cast<std::uint32_t>(start + i + 1 - memory.slot_count));
  }
  const auto ends = std::make_unique<std::uint64_t[]>(memory.slot_count);
  RingProducer<RealMemory> producer(memory.slots.get(), memory.slot_count, memory.data.writable().data(),
                                    memory.data_bytes(), ends.get(), start);
  RingConsumer<RealMemory> consumer(memory.slots.get(), memory.slot_count, memory.data.bytes().data(),
                                    memory.data_bytes(), start);
  PeerWord<std::uint64_t> progress;
  progress.store(start);
  std::deque<Sent> under_way;
  bool honest = true;
  while (!in.empty()) {
    const auto what = in.take<std::uint8_t>();
    if (what < 0x80) {
      const Sent message{in.take<std::uint16_t>() % std::uint32_t{kSegmentBytes + 1}, what};
      const bool sent = send(producer, memory, message, progress);
      if (sent) under_way.push_back(message);
      VERBENA_CHECK(!honest || under_way.size() <= memory.slot_count);
      VERBENA_CHECK(!honest || sent || !under_way.empty());
    } else if (what < 0xf8) {
      if (!honest || under_way.empty()) continue;
      receive(consumer, under_way.front(), progress);
      under_way.pop_front();
    } else {
      progress.store(what == 0xff ? in.take<std::uint64_t>() : progress.load() + in.take<std::uint8_t>());
      honest = false;
    }
  }
  VERBENA_CHECK(!honest || consumer.ready() == !under_way.empty());
}

/// A geometry that is accepted has its parts one behind the other, aligned, inside its total, which a mapping can have.
void check_geometry(const QpGeometry& geometry) noexcept {
  if (!geometry.valid()) return;
  const std::size_t lengths_end = geometry.lengths_offset() + std::size_t{geometry.receive_entries} * 4;
  const std::size_t slots_end = geometry.slots_offset() + std::size_t{geometry.slots} * sizeof(Slot);
  VERBENA_CHECK(geometry.receive_entries != 0 && geometry.lengths_offset() >= sizeof(QpControl));
  VERBENA_CHECK(geometry.slots_offset() >= lengths_end && geometry.slots_offset() % alignof(Slot) == 0);
  VERBENA_CHECK(geometry.data_offset() >= slots_end);
  VERBENA_CHECK(geometry.total_bytes() >= geometry.data_offset() + geometry.data_bytes);
  VERBENA_CHECK(geometry.total_bytes() % 4096 == 0 && geometry.total_bytes() <= std::size_t{1} << 26);
  VERBENA_CHECK(geometry.data_bytes >= 4 * kSegmentBytes && geometry.start % geometry.slots == 0);
}

void run(Input in) {
  switch (static_cast<Form>(in.take<std::uint8_t>() % static_cast<std::uint8_t>(Form::kEnd))) {
    case Form::kConsumer: return check_consumer(in);
    case Form::kBoth: return check_both(in);
    case Form::kGeometry:
      check_geometry(in.take<QpGeometry>());
      // Powers of two are rare among random numbers.
      return check_geometry({.receive_entries = power(in, 0, 31),
                             .slots = power(in, 0, 31),
                             .data_bytes = power(in, 0, 31),
                             .start = in.take<std::uint64_t>()});
    case Form::kChanging: return check_changing(in);
    case Form::kEnd: return;
  }
}

}  // namespace
}  // namespace verbena::fuzz::soft_ring

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::soft_ring::run({data, size});
  return 0;
}
