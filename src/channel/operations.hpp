// The table of operations that were started and are not complete.
#pragma once

#include "channel/options.hpp"
#include "engine/fifo.hpp"

#include <cstdint>
#include <vector>

namespace verbena::channel {

inline constexpr std::uint32_t kNoSlot = engine::wr::kNoSlot;
inline constexpr std::uint32_t kNoTag = engine::wr::kNoTag;

/// One operation, from start to completion.
struct Operation {
  enum class Kind : std::uint8_t { kRead, kWrite, kAtomic, kLarge, kPosted };
  /// Where its outcome goes.
  enum class Waiter : std::uint8_t {
    kHandler,  ///< Handler::on_complete.
    kCall,     ///< The blocking call, which takes the slot's outcome.
    kNobody,   ///< Its call has given up; what is in flight is in quarantine.
  };
  std::uint64_t token = 0;
  std::byte* local = nullptr;  ///< Registered as `lkey`; with `is_bounced` any memory, through chunks.
  RemoteSpan remote;           ///< For a READ, WRITE or atomic.
  Change change;               ///< The operand of an atomic.
  std::uint64_t total = 0;     ///< Bytes; a large message's include its head.
  std::uint64_t posted = 0;    ///< Bytes in posted work requests.
  std::uint64_t finished = 0;  ///< Bytes of completed pieces; counted for bounced operations.
  std::uint64_t old = 0;       ///< An atomic's old value.
  Operation* next = nullptr;   ///< In the queue of operations not fully posted, or of those that are.
  std::uint32_t lkey = 0;
  std::uint32_t head_bytes = 0;     ///< For a large message.
  std::uint32_t outstanding = 0;    ///< Work requests posted and not complete, among those that are waited for.
  std::uint32_t last_position = 0;  ///< A transfer's last work request: its position in the send queue.
  std::uint32_t chunks = kNoSlot;   ///< For a bounced operation: the oldest chunk in flight, which names the next.
  std::uint32_t last_chunk = kNoSlot;
  Kind kind = Kind::kRead;
  Waiter waiter = Waiter::kHandler;
  Status status = Status::kOk;
  bool is_bounced = false;
  bool is_over = false;  ///< With Waiter::kCall: the outcome is set.
};

/// Slots with generations: a completion that outlives its operation finds nothing. \thread owner  \alloc setup
/// (constructor)
class Operations {
 public:
  /// `capacity` is 1 to 32766.
  explicit Operations(std::uint32_t capacity) : slots_(capacity), first_free_(slots_.data()) {
    VERBENA_CHECK(capacity >= 1 && capacity < kNoSlot);
    for (std::uint32_t i = 0; i + 1 < capacity; ++i) slots_[i].next = &slots_[i + 1];
  }
  [[nodiscard]] static constexpr std::uint64_t bytes_for(std::uint32_t capacity) noexcept {
    return std::uint64_t{capacity} * sizeof(Slot);
  }
  /// Puts `operation` into a free slot; null: none is free.
  [[nodiscard]] Operation* begin(const Operation& operation) noexcept {
    Slot* const slot = first_free_;
    if (slot == nullptr) return nullptr;
    first_free_ = static_cast<Slot*>(slot->next);
    static_cast<Operation&>(*slot) = operation;
    slot->is_live = true;
    return slot;
  }
  void end(Operation& operation) noexcept {
    Slot& slot = static_cast<Slot&>(operation);
    VERBENA_DCHECK(slot.is_live);
    slot.is_live = false;
    ++slot.generation;
    slot.next = first_free_;
    first_free_ = &slot;
  }
  [[nodiscard]] std::uint32_t slot_of(const Operation& operation) const noexcept {
    return static_cast<std::uint32_t>(static_cast<const Slot*>(&operation) - slots_.data());
  }
  /// The tag that goes into a work request's id.
  [[nodiscard]] std::uint32_t tag(const Operation& operation) const noexcept {
    return engine::wr::tag(slot_of(operation), static_cast<const Slot&>(operation).generation);
  }
  /// The live operation named by a send's id, or null.
  [[nodiscard]] Operation* find(std::uint64_t id) noexcept {
    const std::uint32_t slot = engine::wr::slot_of(id);
    if (slot >= slots_.size() || !slots_[slot].is_live) return nullptr;
    return slots_[slot].generation == engine::wr::generation_of(id) ? &slots_[slot] : nullptr;
  }
  /// Calls `visit` for each live operation; `visit` may end it.
  template <class Visit>
  void for_each(Visit&& visit) noexcept {
    for (Slot& slot : slots_)
      if (slot.is_live) visit(static_cast<Operation&>(slot));
  }
  [[nodiscard]] bool is_full() const noexcept { return first_free_ == nullptr; }

 private:
  struct Slot : Operation {
    std::uint16_t generation = 0;
    bool is_live = false;
  };
  std::vector<Slot> slots_;
  Slot* first_free_;
};

}  // namespace verbena::channel
