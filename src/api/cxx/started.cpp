#include "api/cxx/started.hpp"

#include "base/relax.hpp"
#include "base/threads.hpp"

namespace verbena::typed::detail {

StartedOperations::StartedOperations(std::uint32_t slots, std::uint32_t parts)
    : group_count_((slots + kSlotsOfGroup - 1) / kSlotsOfGroup),
      parts_(parts),
      holders_(group_count_ + 1),
      groups_(std::make_unique<Group[]>(group_count_)),
      more_claims_(std::size_t{parts - 1} * numbers()) {}

std::uint32_t StartedOperations::find_free() noexcept {
  for (std::uint32_t i = 0; i < group_count_; ++i) {
    const std::uint32_t number = last_group_ + i < group_count_ ? last_group_ + i : last_group_ + i - group_count_;
    const std::uint64_t used = groups_[number].used.load(std::memory_order_acquire);
    if (~used == 0) continue;
    last_group_ = number;
    return number * kNumbersOfGroup + static_cast<std::uint32_t>(std::countr_one(used));
  }
  return kNone;
}

bool StartedOperations::take(std::uint32_t slot, End& end) noexcept {
  const Slot& of = slot_at(slot);
  of.user.check();
  State state = of.state.load(std::memory_order_acquire);
  // A coroutine that was told may be here before the thread that told it has stored so, in its next instruction.
  for (; state == State::kTelling; state = of.state.load(std::memory_order_acquire)) yield_thread();
  if (state != State::kComplete) return false;
  end = of.end;
  on_take(slot, end);
  free(slot);
  return true;
}

void StartedOperations::keep(std::uint32_t slot, std::size_t part, Claim&& claim) noexcept {
  VERBENA_DCHECK(part < parts_);
  slot_at(slot).user.check();
  Claim& place = part == 0 ? slot_at(slot).claim : more_claims_[std::size_t{slot} * (parts_ - 1) + part - 1];
  place = std::move(claim);
}

void StartedOperations::leave_quarantine(std::uint32_t slot) noexcept {
  Slot& of = slot_at(slot);
  of.claim = {};
  of.kept.reset();
  for (std::uint32_t part = 1; part < parts_; ++part) more_claims_[std::size_t{slot} * (parts_ - 1) + part - 1] = {};
  quarantined_.fetch_sub(1, std::memory_order_release);
  free(slot);
}

void StartedOperations::abandon(std::uint32_t slot) noexcept {
  slot_at(slot).user.check();
  on_abandon(slot);
  quarantined_.fetch_add(1, std::memory_order_relaxed);
  State expected = State::kUnderWay;
  // Release: whoever completes it finds the claims. Acquire: they are dropped after the NIC is done.
  if (!slot_at(slot).state.compare_exchange_strong(expected, State::kAbandoned, std::memory_order_acq_rel))
    leave_quarantine(slot);
}

void StartedOperations::complete(std::uint32_t slot, const End& end) noexcept {
  Slot& of = slot_at(slot);
  of.end = end;
  State before = of.state.load(std::memory_order_acquire);
  while (before != State::kAbandoned) {
    const State after = before == State::kAwaited ? State::kTelling : State::kComplete;
    if (!of.state.compare_exchange_weak(before, after, std::memory_order_acq_rel)) continue;
    if (after == State::kComplete) return;
    of.wait->tell();
    return of.state.store(State::kComplete, std::memory_order_release);
  }
  leave_quarantine(slot);
}

// --- coroutines

Status StartedOperations::await(std::uint32_t slot, coroutine::detail::Wait& wait) noexcept {
  Slot& of = slot_at(slot);
  of.wait = &wait;
  State expected = State::kUnderWay;
  const bool is_begun = of.state.compare_exchange_strong(expected, State::kAwaited, std::memory_order_acq_rel);
  return is_begun ? Status::kOk : Status::kAgain;
}

bool StartedOperations::stop_awaiting(std::uint32_t slot) noexcept {
  Slot& of = slot_at(slot);
  State expected = State::kAwaited;
  if (of.state.compare_exchange_strong(expected, State::kUnderWay, std::memory_order_acq_rel)) return true;
  // The next instruction of the thread that tells stores that it has told.
  while (of.state.load(std::memory_order_acquire) == State::kTelling) yield_thread();
  return false;
}

void StartedOperations::complete_all(Status status) noexcept {
  for_each_under_way([&](std::uint32_t slot) { complete(slot, {.status = status}); });
}

void StartedOperations::end() noexcept {
  for (std::uint32_t group = 0; group < group_count_; ++group) let_go(groups_[group], kOpen);
  release();
}

Status StartedOperations::collect(std::uint32_t slot, Deadline deadline, const char* call) noexcept {
  const OneAtATime::Use use(slot_at(slot).user);
  const Turn turn(*this);
  if (!turn) return refuse_turn(call);
  if (!deadline.passed()) return collect_until(slot, deadline);
  collect_now();
  return Status::kTimedOut;
}

Status StartedOperations::collect_abandoned(Deadline deadline, const char* call) noexcept {
  const Turn turn(*this);
  if (!turn) return refuse_turn(call);
  collect_now();
  if (deadline.passed()) return Status::kTimedOut;
  std::uint32_t abandoned = kNone;
  for_each_under_way([&](std::uint32_t slot) {
    if (abandoned == kNone && is_abandoned(slot)) abandoned = slot;
  });
  return abandoned != kNone ? collect_until(abandoned, deadline) : Status::kOk;
}

Status StartedOperations::settle(Deadline deadline, const char* call) noexcept {
  while (quarantined() != 0) {
    const Status collected = collect_abandoned(deadline, call);
    if (collected == Status::kTimedOut && quarantined() != 0)
      return note(collected, call, "{} operations are in quarantine still", quarantined());
    if (collected != Status::kOk && collected != Status::kTimedOut) return collected;
  }
  return Status::kOk;
}

// --- started ------------------------------------------------------------------------------------------------------

bool Started::look() noexcept {
  if (operations_ != nullptr && operations_->take(slot_, end_)) operations_ = nullptr;
  return operations_ == nullptr;
}

bool Started::poll() noexcept {
  if (look()) return true;
  (void)operations_->collect(slot_, Deadline::now(), "");
  return look();
}

Status Started::wait(const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "typed::Operation::wait";
  if (look()) return status();
  const Deadline until = deadline ? *deadline : operations_->default_deadline();
  while (true) {
    const Status collected = operations_->collect(slot_, until, kCall);
    if (look()) return status();
    if (collected == Status::kTimedOut)
      return note(collected, kCall, "the operation is under way still: wait again, or destroy it");
    if (collected != Status::kOk) return collected;
  }
}

void Started::keep(std::size_t part, Claim&& claim) noexcept { operations_->keep(slot_, part, std::move(claim)); }
void Started::keep(std::unique_ptr<Kept> kept) noexcept { operations_->keep(slot_, std::move(kept)); }
void Started::abandon() noexcept {
  operations_->abandon(slot_);
  operations_ = nullptr;
}

}  // namespace verbena::typed::detail
