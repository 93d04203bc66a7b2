#include "session/transfers.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <memory>

namespace verbena::session {

// --- tokens -------------------------------------------------------------------------------------------------------

std::uint64_t Transfers::token_of(const TransferCall& call) const noexcept {
  return std::uint64_t{slots_[call.slot].generation} << 32 | call.slot;
}

// Only calls with a part in flight have a slot, and there are as many slots as parts, so one is free.
void Transfers::enter(TransferCall& call) noexcept {
  const auto free = std::ranges::find(slots_, nullptr, &Slot::call);
  VERBENA_DCHECK(free != slots_.end());
  free->call = &call;
  call.slot = static_cast<std::uint32_t>(free - slots_.begin());
}

void Transfers::leave(const TransferCall& call) noexcept {
  Slot& slot = slots_[call.slot];
  slot.call = nullptr;
  slot.generation = (slot.generation + 1) & kLastGeneration;
}

TransferCall* Transfers::find(std::uint64_t token) const noexcept {
  const Slot& slot = slots_[token % kParts];
  return slot.call != nullptr && token_of(*slot.call) == token ? slot.call : nullptr;
}

// --- parts --------------------------------------------------------------------------------------------------------

Status Transfers::start_part(TransferCall& call, channel::Connection& connection) noexcept {
  const RemoteSpan& whole = call.place.span;
  const Place rest{call.place.space, {whole.address + call.started, whole.length - call.started, whole.rkey}};
  RemoteSpan remote;
  if (const Status found = find(connection, rest, remote); found != Status::kOk) return found;
  if (parts_ == kParts) return Status::kAgain;
  LocalSpan local = call.local;
  local.data += call.started;
  local.length = static_cast<std::size_t>(remote.length);
  const auto start = [&] {
    switch (call.kind) {
      case Transfer::Kind::kAtomic: return connection.start_change(call.change, remote, token_of(call));
      case Transfer::Kind::kRead: return connection.start_read(local, remote, token_of(call));
      case Transfer::Kind::kWrite: break;
    }
    return connection.start_write(local, remote, token_of(call));
  };
  if (call.parts == 0) enter(call);
  if (const Status status = start(); status != Status::kOk) {
    if (call.parts == 0) leave(call);
    return status;
  }
  ++parts_;
  ++call.parts;
  call.started += remote.length;
  return Status::kOk;
}

void Transfers::start_waiting(channel::Connection& connection) noexcept {
  while (TransferCall* const call = waiting_.first()) {
    // The parts of a range that crosses a border of physical memory share one doorbell.
    const engine::Batch<channel::Connection> batch(connection);
    Status status = Status::kOk;
    while (status == Status::kOk && call->started < call->place.span.length) status = start_part(*call, connection);
    if (status == Status::kAgain) return;
    if (status != Status::kOk) {
      cut(*call, status);
    } else {
      waiting_.remove(*call);
      if (call->parts == 0) finish(*call);  // Its parts have already completed.
    }
  }
}

void Transfers::on_part(const channel::Completion& completion) noexcept {
  TransferCall* const found = find(completion.token);
  if (found == nullptr) return;  // The call was cancelled.
  TransferCall& call = *found;
  --parts_;
  if (--call.parts == 0) leave(call);
  call.old = completion.old;
  if (call.status == Status::kOk) call.status = completion.status;
  if (call.parts != 0) return;
  if (call.started == call.place.span.length) {
    waiting_.remove(call);
    finish(call);
  }
}

void Transfers::cut(TransferCall& call, Status status) noexcept {
  waiting_.remove(call);
  if (call.status == Status::kOk) call.status = status;
  call.place.span.length = call.started;
  if (call.parts == 0) finish(call);
}

void Transfers::finish(TransferCall& call) noexcept {
  if (!call.is_started) return call.finish(call.status);
  --under_way_;
  const bool is_called = (call.kind == Transfer::Kind::kRead ? reads_ : writes_) == rdma::Complete::kHandler;
  (is_called ? to_handler_ : to_take_).push(call);
  feed_takers();
}

bool Transfers::cancel(TransferCall& call, channel::Connection& connection) noexcept {
  if (call.parts != 0 && call.is_registered()) {
    cut(call, Status::kTimedOut);
    return false;
  }
  waiting_.remove(call);
  if (call.parts != 0) {
    (void)connection.abandon(token_of(call));
    leave(call);
  }
  parts_ -= call.parts;
  call.parts = 0;
  call.finish(Status::kTimedOut);
  return true;
}

void Transfers::end(Status reason) noexcept {
  while (!waiting_.empty()) cut(*waiting_.first(), reason);
  feed_takers();
}

// --- started ------------------------------------------------------------------------------------------------------

Status Transfers::start(const Transfer& transfer, channel::Connection& connection) noexcept {
  TransferCall* const end = &started_[0] + kMostStarted;
  TransferCall* const free = std::find_if(&started_[0], end, [](const TransferCall& call) { return !call.is_started; });
  if (free == end) return Status::kAgain;
  std::destroy_at(free);
  TransferCall& call = *std::construct_at(free, transfer);
  push(call);
  progress(connection);
  // Done already means refused, since completions come only by polls.
  if (call.done()) return call.status;
  call.is_started = true;
  ++under_way_;
  return Status::kOk;
}

rdma::Completion Transfers::take(CallQueue<TransferCall>& calls) noexcept {
  TransferCall& call = *calls.first();
  calls.pop();
  call.is_started = false;
  return {.cookie = call.cookie, .operation = call.kind, .status = call.status, .old = call.old};
}

void Transfers::hand_out() noexcept {
  while (TakeCall* const taker = takers_.first()) {
    if (to_take_.empty() && under_way_ != 0) return;
    if (to_take_.empty()) {
      takers_.finish(*taker, Status::kNotFound);
      continue;
    }
    taker->completion = take(to_take_);
    takers_.finish(*taker, Status::kOk);
  }
}

bool Transfers::take_for_handler(rdma::Completion& completion) noexcept {
  if (to_handler_.empty()) return false;
  completion = take(to_handler_);
  return true;
}

}  // namespace verbena::session
