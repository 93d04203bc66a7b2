// The one table of operations that were started and are not complete.
#pragma once

#include "channel/options.hpp"

#include <cstdint>
#include <vector>

namespace verbena::channel {

inline constexpr std::uint32_t kNoSlot = engine::wr::kNoSlot;
inline constexpr std::uint32_t kNoTag = engine::wr::kNoTag;

/// From start to completion.
struct Operation {
  enum class Kind : std::uint8_t { kRead, kWrite, kAtomic, kLarge, kPosted };
  /// Who hears of its end.
  enum class Waiter : std::uint8_t {
    kHandler,  ///< Handler::on_complete.
    kCall,     ///< The blocking call, which takes the slot's outcome.
    kNobody,   ///< Its call has given up: what is in flight is in quarantine.
  };
  std::uint64_t token = 0;
  std::byte* local = nullptr;  ///< Registered as `lkey`; or any memory, through chunks, when `is_bounced`.
  RemoteSpan remote;           ///< Of a READ, WRITE or atomic.
  Change change;               ///< Of an atomic.
  std::uint64_t total = 0;     ///< Bytes, of a large message its head's too.
  std::uint64_t posted = 0;    ///< Bytes in work requests posted.
  std::uint64_t finished = 0;  ///< Bytes of pieces that are complete; counted for bounced operations.
  std::uint64_t old = 0;       ///< What an atomic found.
  std::uint32_t lkey = 0;
  std::uint32_t head_bytes = 0;     ///< Of a large message.
  std::uint32_t outstanding = 0;    ///< Work requests posted and not complete, of those that are waited for.
  std::uint32_t last_position = 0;  ///< In the send queue, of a transfer's last work request.
  std::uint32_t next = kNoSlot;     ///< In the queue of what is not posted to the end, or of what is.
  std::uint32_t chunks = kNoSlot;   ///< Of a bounced operation: the oldest chunk in flight, which names the next.
  std::uint32_t last_chunk = kNoSlot;
  Kind kind = Kind::kRead;
  Waiter waiter = Waiter::kHandler;
  Status status = Status::kOk;
  bool is_bounced = false;
  bool is_over = false;  ///< With Waiter::kCall: the outcome is there.
};

/// Slots with generations: a completion that outlived its operation finds nothing. \thread owner  \alloc setup
/// (constructor)
class Operations {
 public:
  /// `capacity` is 1 to 32766.
  explicit Operations(std::uint32_t capacity) : slots_(capacity) {
    VERBENA_CHECK(capacity >= 1 && capacity < kNoSlot);
    for (std::uint32_t i = 0; i < capacity; ++i) slots_[i].next_free = i + 1 < capacity ? i + 1 : kNoSlot;
  }
  [[nodiscard]] static constexpr std::uint64_t bytes_for(std::uint32_t capacity) noexcept {
    return std::uint64_t{capacity} * sizeof(Slot);
  }
  /// A free slot, which is `operation` from then on; or kNoSlot.
  [[nodiscard]] std::uint32_t begin(const Operation& operation) noexcept {
    const std::uint32_t slot = first_free_;
    if (slot >= slots_.size()) return kNoSlot;
    first_free_ = slots_[slot].next_free;
    slots_[slot].operation = operation;
    slots_[slot].is_live = true;
    ++count_;
    return slot;
  }
  void end(std::uint32_t slot) noexcept {
    VERBENA_DCHECK(slot < slots_.size() && slots_[slot].is_live);
    slots_[slot].is_live = false;
    ++slots_[slot].generation;
    slots_[slot].next_free = first_free_;
    first_free_ = slot;
    --count_;
  }
  [[nodiscard]] Operation& operator[](std::uint32_t slot) noexcept { return slots_[slot].operation; }
  /// What goes into a work request's id.
  [[nodiscard]] std::uint32_t tag(std::uint32_t slot) const noexcept {
    return engine::wr::tag(slot, slots_[slot].generation);
  }
  /// The live slot that a send's id names, or kNoSlot.
  [[nodiscard]] std::uint32_t find(std::uint64_t id) const noexcept {
    const std::uint32_t slot = engine::wr::slot_of(id);
    if (slot >= slots_.size() || !slots_[slot].is_live) return kNoSlot;
    return slots_[slot].generation == engine::wr::generation_of(id) ? slot : kNoSlot;
  }
  [[nodiscard]] bool is_live(std::uint32_t slot) const noexcept { return slots_[slot].is_live; }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return static_cast<std::uint32_t>(slots_.size()); }
  [[nodiscard]] bool is_full() const noexcept { return count_ == slots_.size(); }

 private:
  struct Slot {
    Operation operation;
    std::uint32_t next_free = kNoSlot;
    std::uint16_t generation = 0;
    bool is_live = false;
  };
  std::vector<Slot> slots_;
  std::uint32_t first_free_ = 0;
  std::uint32_t count_ = 0;
};

/// Slots in the order they were started, linked through Operation::next. \thread owner
class SlotQueue {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == kNoSlot; }
  [[nodiscard]] std::uint32_t first() const noexcept { return first_; }
  void push(Operations& operations, std::uint32_t slot) noexcept {
    operations[slot].next = kNoSlot;
    (empty() ? first_ : operations[last_].next) = slot;
    last_ = slot;
  }
  void pop(Operations& operations) noexcept { first_ = operations[first_].next; }
  void remove(Operations& operations, std::uint32_t slot) noexcept {
    std::uint32_t before = kNoSlot;
    for (std::uint32_t at = first_; at != kNoSlot; before = at, at = operations[at].next) {
      if (at != slot) continue;
      (before == kNoSlot ? first_ : operations[before].next) = operations[at].next;
      if (last_ == at) last_ = before;
      return;
    }
  }
  void clear() noexcept { first_ = last_ = kNoSlot; }

 private:
  std::uint32_t first_ = kNoSlot;
  std::uint32_t last_ = kNoSlot;
};

}  // namespace verbena::channel
