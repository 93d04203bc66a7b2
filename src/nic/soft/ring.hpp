// The ring between two QPs: single producer, single consumer, in the producer's memory, which the consumer maps
// read-only; the consumer's progress is in the consumer's memory, which the producer maps read-only. So every shared
// word has exactly one writer, and a hostile side can lie only about its own words.
//
// Slots are two cache lines. A slot is valid when the low half of its header is its own index + 1: the consumer needs
// no tail, and a message of up to 48 bytes costs one cache-line transfer, up to kSlotPayload two. The place of a header
// never holds payload: payload beyond the slot goes to a data ring beside the slots (docs/adr/0001).
//
// The code is a template over the memory it runs on, so that the model test runs these functions over a memory with
// store buffers and tries all interleavings.
#pragma once

#include "base/check.hpp"
#include "base/peer_memory.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace verbena::nic::soft {

/// The meaning of a slot. Values are fixed, because another process reads them.
enum class SlotKind : std::uint8_t {
  kNone = 0,
  kSend = 1,  ///< A whole SEND, or one segment of it (see SlotFlags).
  kSendImm = 2,
  kWriteImm = 3,      ///< The data is in place; this is the immediate.
  kLengthError = 4,   ///< The SEND is longer than the receive: completes it with a local length error.
  kRemoteError = 5,   ///< The requester's access was refused: the responder's QP goes to error.
  kReceiveError = 6,  ///< The receive's local keys are invalid: completes it with a local protection error.
  kSendInv = 7,       ///< A SEND whose last segment invalidates the window with the key in `imm`.
};

struct SlotFlags {
  static constexpr std::uint8_t kFirst = 1;  ///< First segment of a message.
  static constexpr std::uint8_t kLast = 2;   ///< Last segment.
  static constexpr std::uint8_t kSolicited = 4;
  static constexpr std::uint8_t kInData = 8;  ///< The payload is in the data ring; the slot holds its position.
};

inline constexpr std::size_t kSlotPayload = 112;
/// Bytes of one segment: the least size of a data ring, and the path MTU of the soft NIC.
inline constexpr std::size_t kSegmentBytes = 4096;

/// The memory of a real machine.
struct RealMemory {
  template <class T>
  using Atomic = PeerWord<T>;
  static void copy(void* to, const void* from, std::size_t bytes) noexcept { std::memcpy(to, from, bytes); }
  static std::uint64_t load_word(const std::byte* at) noexcept {
    return load_peer_word<std::uint64_t>(at, std::memory_order_relaxed);
  }
  static void prefetch_for_write(const void* at) noexcept {
#if defined(__x86_64__)
    // The builtin prefetches for reading, unless the whole archive is compiled for processors with this instruction. On
    // processors without it the instruction does nothing.
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
    __builtin_prefetch(at, 1);
#endif
  }
};

template <class Memory>
struct alignas(128) SlotOf {
  typename Memory::template Atomic<std::uint64_t> header;  // index + 1 (32 bits) | kind | flags | 16 bits zero
  // The immediate (32 bits) | bytes of this segment, for kWriteImm bytes written (32 bits).
  typename Memory::template Atomic<std::uint64_t> details;
  std::byte payload[kSlotPayload];
};
using Slot = SlotOf<RealMemory>;
static_assert(sizeof(Slot) == 128);

/// A slot's words, copied once.
struct SlotView {
  SlotKind kind = SlotKind::kNone;
  std::uint8_t flags = 0;
  std::uint32_t imm = 0;
  std::uint32_t length = 0;
};
static_assert(sizeof(SlotView) == 12);

/// A slot's `details`.
[[nodiscard]] constexpr std::uint64_t details_of(const SlotView& view) noexcept {
  return view.imm | static_cast<std::uint64_t>(view.length) << 32;
}

/// The sending end. \thread owner
template <class Memory>
class RingProducer {
 public:
  using Slot = SlotOf<Memory>;
  using Counter = typename Memory::template Atomic<std::uint64_t>;

  RingProducer() noexcept = default;
  /// `slot_count` and `data_bytes` are powers of two; `data_ends` has slot_count entries of private memory, and must
  /// outlive this object. All counters start at `start`, which must be a multiple of slot_count (tests start them near
  /// a wrap).
  RingProducer(Slot* slots, std::uint32_t slot_count, std::byte* data, std::uint32_t data_bytes,
               std::uint64_t* data_ends, std::uint64_t start) noexcept
      : slots_(slots),
        data_(data),
        data_ends_(data_ends),
        tail_(start),
        freed_(start),
        slot_mask_(slot_count - 1),
        data_mask_(data_bytes - 1) {}

  /// Whether a message whose payload takes `data_bytes` of the data ring (0 for in-slot) fits now. `consumed` is the
  /// consumer's word: read only when the known count does not suffice, so that its cache line stays with the consumer.
  [[nodiscard]] bool has_room(std::size_t data_bytes, const Counter* consumed) noexcept {
    if (fits(data_bytes)) [[likely]]
      return true;
    if (consumed == nullptr) return false;
    const std::uint64_t seen = consumed->load(std::memory_order_acquire);
    // A hostile consumer may write anything: accept only counts between the freed and the sent messages.
    if (seen - freed_ > tail_ - freed_) return false;
    if (seen != freed_) {
      freed_ = seen;
      data_head_ = data_ends_[(seen - 1) & slot_mask_];
    }
    return fits(data_bytes);
  }

  /// Where the next in-slot payload goes, at most kSlotPayload bytes. Call after has_room.
  [[nodiscard]] std::byte* slot_payload() noexcept { return slots_[tail_ & slot_mask_].payload; }
  /// Where the next payload of `bytes` in the data ring goes, contiguous. Call after has_room(bytes).
  [[nodiscard]] std::byte* data_payload(std::size_t bytes) noexcept {
    data_tail_ = start_of(bytes);
    return data_ + (data_tail_ & data_mask_);
  }
  /// Makes the payload just written visible, in the slot (`in_data` 0) or in the data ring.
  void publish(SlotView view, std::size_t data_bytes) noexcept {
    Slot& slot = slots_[tail_ & slot_mask_];
    if ((view.flags & SlotFlags::kInData) != 0) {
      Memory::copy(slot.payload, &data_tail_, sizeof data_tail_);
      data_tail_ += round_up(data_bytes);
    }
    data_ends_[tail_ & slot_mask_] = data_tail_;
    slot.details.store(details_of(view), std::memory_order_relaxed);
    const std::uint64_t header = static_cast<std::uint32_t>(tail_ + 1) | (static_cast<std::uint64_t>(view.kind) << 32) |
                                 (static_cast<std::uint64_t>(view.flags) << 40);
    // Release: the consumer that sees the header (acquire) sees the payload written before it.
    slot.header.store(header, std::memory_order_release);
    ++tail_;
    // Fetches the cache lines of the next message for writing now, so that it need not wait for them between payload
    // and header. Leaves the cache line of the header alone, because the consumer polls it.
    Memory::prefetch_for_write(slots_[tail_ & slot_mask_].payload + 64);
    if ((view.flags & SlotFlags::kInData) != 0) Memory::prefetch_for_write(data_ + (data_tail_ & data_mask_));
  }
  [[nodiscard]] std::uint64_t tail() const noexcept { return tail_; }

 private:
  [[nodiscard]] static std::size_t round_up(std::size_t bytes) noexcept { return (bytes + 63) & ~std::size_t{63}; }
  /// Payloads are contiguous: one that would wrap starts at the beginning, and the skipped bytes are freed with it.
  [[nodiscard]] std::uint64_t start_of(std::size_t bytes) const noexcept {
    const std::uint64_t at = data_tail_ & data_mask_;
    return at + round_up(bytes) > data_mask_ + 1 ? data_tail_ + (data_mask_ + 1 - at) : data_tail_;
  }
  [[nodiscard]] bool fits(std::size_t data_bytes) const noexcept {
    if (tail_ - freed_ > slot_mask_) return false;
    return data_bytes == 0 || start_of(data_bytes) + round_up(data_bytes) - data_head_ <= data_mask_ + 1;
  }

  Slot* slots_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t* data_ends_ = nullptr;  // data_tail_ after the message in each slot
  std::uint64_t tail_ = 0;              // Messages published.
  std::uint64_t freed_ = 0;             // Messages that the consumer has copied out, as far as known.
  std::uint64_t data_tail_ = 0;         // Bytes of the data ring used since the start, skips included.
  std::uint64_t data_head_ = 0;         // Bytes freed.
  std::uint64_t slot_mask_ = 0;
  std::uint64_t data_mask_ = 0;
};

/// The receiving end. A peer writes everything that it reads: copy it once, then check it. \thread owner
template <class Memory>
class RingConsumer {
 public:
  using Slot = SlotOf<Memory>;
  using Counter = typename Memory::template Atomic<std::uint64_t>;

  RingConsumer() noexcept = default;
  RingConsumer(const Slot* slots, std::uint32_t slot_count, const std::byte* data, std::uint32_t data_bytes,
               std::uint64_t start) noexcept
      : slots_(slots), data_(data), head_(start), slot_mask_(slot_count - 1), data_mask_(data_bytes - 1) {}

  /// Whether there is a message. One load of one cache line.
  [[nodiscard]] bool ready() const noexcept { return is_there(head_); }
  /// Whether there is a message behind the next one.
  [[nodiscard]] bool is_followed() const noexcept { return is_there(head_ + 1); }
  /// Copies the next message's words; false if there is none.
  [[nodiscard]] bool peek(SlotView& view) const noexcept {
    const Slot& slot = slots_[head_ & slot_mask_];
    const std::uint64_t header = slot.header.load(std::memory_order_acquire);
    if (static_cast<std::uint32_t>(header) != static_cast<std::uint32_t>(head_ + 1)) return false;
    view.kind = static_cast<SlotKind>((header >> 32) & 0xFF);
    view.flags = static_cast<std::uint8_t>(header >> 40);
    const std::uint64_t details = slot.details.load(std::memory_order_relaxed);
    view.imm = static_cast<std::uint32_t>(details);
    view.length = static_cast<std::uint32_t>(details >> 32);
    return true;
  }
  /// Where the payload of `view` is, or nullptr if it would be outside the peer's ring.
  [[nodiscard]] const std::byte* payload(const SlotView& view) const noexcept {
    const Slot& slot = slots_[head_ & slot_mask_];
    if ((view.flags & SlotFlags::kInData) == 0) return view.length <= kSlotPayload ? slot.payload : nullptr;
    const std::uint64_t position = Memory::load_word(slot.payload) & data_mask_;
    return position + view.length <= data_mask_ + 1 ? data_ + position : nullptr;
  }
  /// Finishes with the message; call `publish_progress` to give its slot back to the producer.
  void advance() noexcept { ++head_; }
  void publish_progress(Counter& consumed) const noexcept {
    // Release: the loads of the payload come before the producer may reuse it.
    consumed.store(head_, std::memory_order_release);
  }
  [[nodiscard]] std::uint64_t head() const noexcept { return head_; }
  /// Whether a message of that index has been published. \thread any
  [[nodiscard]] bool has(std::uint64_t index) const noexcept { return is_there(index); }

 private:
  [[nodiscard]] bool is_there(std::uint64_t index) const noexcept {
    return static_cast<std::uint32_t>(slots_[index & slot_mask_].header.load(std::memory_order_acquire)) ==
           static_cast<std::uint32_t>(index + 1);
  }

  const Slot* slots_ = nullptr;
  const std::byte* data_ = nullptr;
  std::uint64_t head_ = 0;
  std::uint64_t slot_mask_ = 0;
  std::uint64_t data_mask_ = 0;
};

// Private to each end, and touched by every message, so keep them small.
static_assert(sizeof(RingProducer<RealMemory>) == 72);
static_assert(sizeof(RingConsumer<RealMemory>) == 40);

}  // namespace verbena::nic::soft
