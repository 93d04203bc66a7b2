// Operations of the typed API that were started: a slot each, and the quarantine of those that nobody waits for.
#pragma once

#include "base/check.hpp"
#include "base/failure.hpp"
#include "base/one_at_a_time.hpp"

#include <verbena/coroutine_loop.hpp>
#include <verbena/typed.hpp>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace verbena::typed::detail {

/// A slot for each operation that was started and whose end nobody has taken. It deletes itself: it lasts until `end`
/// was called, no slot is used, and nobody holds it. A word counts 63 slots, and one bit of it says that it is not the
/// end, so that a slot that is freed costs one instruction that locks the bus. \thread owner, one at a time (Turn);
/// take, keep and abandon any
class StartedOperations {
 public:
  /// Slots of one word.
  static constexpr std::uint32_t kSlotsOfGroup = 63;
  /// Slots have numbers below.
  [[nodiscard]] std::uint32_t numbers() const noexcept { return group_count_ * kNumbersOfGroup; }

  /// At least `slots` operations at a time, each of up to `parts` segments. \alloc setup
  StartedOperations(std::uint32_t slots, std::uint32_t parts);
  StartedOperations(const StartedOperations&) = delete;
  StartedOperations& operator=(const StartedOperations&) = delete;

  /// Whether the operation of `slot` is complete: `end` says how then, and the slot is free.
  [[nodiscard]] bool take(std::uint32_t slot, End& end) noexcept;
  /// Whoever had the operation goes: what is kept stays until it is complete.
  void keep(std::uint32_t slot, std::size_t part, Claim&& claim) noexcept;
  void keep(std::uint32_t slot, std::unique_ptr<Kept> kept) noexcept { slot_at(slot).kept = std::move(kept); }
  void abandon(std::uint32_t slot) noexcept;
  /// Takes completions in, and waits for one that the operation of `slot` may have. kBusy: another thread does;
  /// kTimedOut: none came.
  [[nodiscard]] Status collect(std::uint32_t slot, Deadline deadline, const char* call) noexcept;
  /// The deadline of a wait without one.
  [[nodiscard]] virtual Deadline default_deadline() const noexcept = 0;
  [[nodiscard]] std::uint32_t quarantined() const noexcept { return quarantined_.load(std::memory_order_acquire); }
  /// Takes completions in until nothing is in quarantine. kTimedOut: something is.
  [[nodiscard]] Status settle(Deadline deadline, const char* call) noexcept;

  // --- for coroutines. \thread their loop's
  /// Has `wait` told of the end of `slot`. kOk: it is or will be told; kAgain: it is complete.
  [[nodiscard]] Status await(std::uint32_t slot, coroutine::detail::Wait& wait) noexcept;
  /// False: it was told.
  [[nodiscard]] bool stop_awaiting(std::uint32_t slot) noexcept;
  /// Null where the operations need nobody that looks at them.
  [[nodiscard]] virtual coroutine::detail::Driven* driven() noexcept { return nullptr; }

  /// From `hold` to `release` it lasts. \thread any
  void hold() noexcept { holders_.fetch_add(1, std::memory_order_relaxed); }
  /// Don't touch this object afterwards, unless something else is held.
  void release() noexcept {
    if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 protected:
  virtual ~StartedOperations() = default;

  /// The thread that starts operations, or takes in their ends.
  class Turn {
   public:
    explicit Turn(StartedOperations& of) noexcept
        : flag_(of.is_in_turn_), is_mine_(!flag_.exchange(true, std::memory_order_acquire)) {}
    ~Turn() {
      if (is_mine_) flag_.store(false, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const noexcept { return is_mine_; }

   private:
    std::atomic<bool>& flag_;
    const bool is_mine_;
  };
  /// The status of a call without its turn.
  static Status refuse_turn(const char* call) noexcept {
    return note(Status::kBusy, call,
                "another thread uses operations of this link or queue pair: let one do so at a time");
  }

  /// Takes in what is complete, and waits for it: for one that the operation of `slot` may have. In a turn.
  virtual void collect_now() noexcept = 0;
  [[nodiscard]] virtual Status collect_until(std::uint32_t slot, Deadline deadline) noexcept = 0;
  /// Whoever had the operation of `slot` goes. \thread any
  virtual void on_abandon(std::uint32_t slot) noexcept { static_cast<void>(slot); }
  /// Whoever has the operation of `slot` takes its end: what only this thread can say of it.
  virtual void on_take(std::uint32_t slot, End& end) noexcept { static_cast<void>(slot), static_cast<void>(end); }

  /// Calls `begin(cookie)`, which starts an operation that ends with `complete(slot)`: the low half of the cookie is
  /// the slot, and the high one tells it from those that had the slot before.
  template <class Begin>
  [[nodiscard]] Started start(const char* call, Begin&& begin) noexcept;
  /// Whether the cookie is that of a slot's operation.
  [[nodiscard]] bool is_current(std::uint64_t cookie) const noexcept {
    const auto slot = static_cast<std::uint32_t>(cookie);
    return slot < numbers() && slot % kNumbersOfGroup != kSlotsOfGroup && is_used(slot) && cookie_of(slot) == cookie;
  }
  [[nodiscard]] std::uint64_t cookie_of(std::uint32_t slot) const noexcept {
    return std::uint64_t{slot_at(slot).generation} << 32 | slot;
  }
  void complete(std::uint32_t slot, const End& end) noexcept;
  /// Whether it is under way, and in quarantine.
  [[nodiscard]] bool is_abandoned(std::uint32_t slot) const noexcept {
    return is_used(slot) && slot_at(slot).state.load(std::memory_order_acquire) == State::kAbandoned;
  }
  [[nodiscard]] bool is_under_way(std::uint32_t slot) const noexcept {
    return is_used(slot) && slot_at(slot).state.load(std::memory_order_acquire) != State::kComplete;
  }
  /// Calls `visit(slot)` for each one that is under way.
  template <class Visit>
  void for_each_under_way(Visit&& visit) const noexcept;
  void complete_all(Status status) noexcept;
  /// Nothing more is started. Don't touch this object afterwards.
  void end() noexcept;

 private:
  enum class State : std::uint8_t {
    kUnderWay,
    kAwaited,  ///< Under way, and a coroutine is to be told.
    kTelling,  ///< It is just being told; kComplete follows.
    kComplete,
    kAbandoned
  };
  struct Slot {
    std::atomic<State> state{State::kComplete};
    std::uint32_t generation = 0;
    End end;
    Claim claim;                              ///< kAbandoned: in quarantine.
    std::unique_ptr<Kept> kept;               ///< The same.
    coroutine::detail::Wait* wait = nullptr;  ///< kAwaited.
    [[no_unique_address]] OneAtATime user;    ///< The operation's.
  };
  static constexpr std::uint32_t kNumbersOfGroup = 64;
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << kSlotsOfGroup;
  struct Group {
    std::atomic<std::uint64_t> used{kOpen};  ///< A bit for each slot, and kOpen until `end`.
    std::array<Slot, kSlotsOfGroup> slots;
  };

  [[nodiscard]] Group& group_of(std::uint32_t slot) const noexcept { return groups_[slot / kNumbersOfGroup]; }
  [[nodiscard]] Slot& slot_at(std::uint32_t slot) const noexcept {
    return group_of(slot).slots[slot % kNumbersOfGroup];
  }
  [[nodiscard]] static std::uint64_t bit_of(std::uint32_t slot) noexcept {
    return std::uint64_t{1} << slot % kNumbersOfGroup;
  }
  [[nodiscard]] bool is_used(std::uint32_t slot) const noexcept {
    return (group_of(slot).used.load(std::memory_order_acquire) & bit_of(slot)) != 0;
  }
  /// A free slot; kNone without.
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  [[nodiscard]] std::uint32_t find_free() noexcept;
  void leave_quarantine(std::uint32_t slot) noexcept;
  [[nodiscard]] Status collect_abandoned(Deadline deadline, const char* call) noexcept;
  void free(std::uint32_t slot) noexcept { let_go(group_of(slot), bit_of(slot)); }
  /// Don't touch this object afterwards, unless something else is held.
  void let_go(Group& group, std::uint64_t bit) noexcept {
    if (group.used.fetch_and(~bit, std::memory_order_acq_rel) == bit) release();
  }

  const std::uint32_t group_count_;
  const std::uint32_t parts_;
  std::uint32_t last_group_ = 0;  ///< Where a free slot was found last.
  std::atomic<bool> is_in_turn_{false};
  std::atomic<std::uint32_t> quarantined_{0};
  std::atomic<std::uint32_t> holders_;  ///< Groups that are not at their end, and others.
  const std::unique_ptr<Group[]> groups_;
  std::vector<Claim> more_claims_;  ///< Those of a slot's further parts.
};

template <class Visit>
void StartedOperations::for_each_under_way(Visit&& visit) const noexcept {
  for (std::uint32_t group = 0; group < group_count_; ++group) {
    for (std::uint32_t i = 0; i < kSlotsOfGroup; ++i) {
      const std::uint32_t slot = group * kNumbersOfGroup + i;
      if (is_under_way(slot)) visit(slot);
    }
  }
}

template <class Begin>
Started StartedOperations::start(const char* call, Begin&& begin) noexcept {
  const Turn turn(*this);
  if (!turn) return Started(refuse_turn(call));
  if (quarantined() != 0) collect_now();
  const std::uint32_t number = find_free();
  if (number == kNone)
    return Started(note(Status::kAgain, call, "{} operations are under way: take one, or let the others settle",
                        group_count_ * kSlotsOfGroup));
  Slot& slot = slot_at(number);
  ++slot.generation;
  slot.state.store(State::kUnderWay, std::memory_order_relaxed);
  Group& group = group_of(number);
  // Before it begins: another thread may tell of its end at once.
  const bool is_open = (group.used.fetch_or(bit_of(number), std::memory_order_acq_rel) & kOpen) != 0;
  const Status begun = begin(cookie_of(number));
  if (begun == Status::kOk) return {*this, number};
  slot.state.store(State::kComplete, std::memory_order_relaxed);
  if (is_open) {
    free(number);
  } else {
    // After `end`, where somebody holds it: the group is not counted any more.
    group.used.fetch_and(~bit_of(number), std::memory_order_relaxed);
  }
  return Started(begun);
}

}  // namespace verbena::typed::detail
