// Operations that somebody awaits: begun, queued for room, told, and taken back at any time. After that nothing of the
// caller's memory is used: gets copy out of the client's own, and the channel forgets what it was to fill. Only a large
// put goes on, out of memory of the client's.
#include "kv/client.hpp"

#include "base/failure.hpp"
#include "base/ticks.hpp"

#include <algorithm>

namespace verbena::kv {

using Place = AwaitedCall::Place;
using Word = AwaitedCall::Word;

// --- beginning

bool PollingClient::carry_out_now(AwaitedCall& call) noexcept {
  if (call.word != Word::kNone) return carry_out_on_word_now(call);
  if (const Status checked = check_unblocked(call.ask, call_of(call.ask.op)); checked != Status::kOk) [[unlikely]] {
    call.outcome = {checked};
    return true;
  }
  if (call.ask.op != wire::Op::kGet || !way_.reads_now) return false;
  // No deadline: nothing waits here.
  const Reader::Read read = reader_.get(call.ask.key, call.ask.out, Deadline::never(), call.outcome);
  if (read == Reader::Read::kDone) return true;
  call.outcome = {};
  call.ask.skips_reads = read != Reader::Read::kNoWay;
  return false;
}

bool PollingClient::carry_out_on_word_now(AwaitedCall& call) noexcept {
  Status status = check_cell(call.cell, "an awaited operation on a cell");
  if (status == Status::kOk) {
    channel::Connection& channel = *channels_[call.cell.worker];
    const std::span to = std::as_writable_bytes(std::span(&call.old, 1));
    status = call.word == Word::kRead ? channel.read_now(to, span_of(call.cell))
                                      : channel.change_now(call.change, span_of(call.cell), call.old);
    if (status == Status::kAgain) return false;
    status = end_on_word(call.cell, status);
  }
  call.outcome = {status};
  return true;
}

bool PollingClient::begin(AwaitedCall& call, const void* who) noexcept {
  // Behind those that wait for room.
  const Status status = awaited_.queued.first != nullptr ? Status::kAgain : start_awaited(call);
  if (status != Status::kOk && status != Status::kAgain) {
    call.outcome = {status};
    return false;
  }
  if (status == Status::kAgain) {
    call.place = Place::kQueued;
    awaited_.queued.push_back(call);
  }
  awaited_.who.store(who, std::memory_order_relaxed);
  ++awaited_.count;
  return true;
}

Status PollingClient::start_awaited(AwaitedCall& call) noexcept {
  if (has_failed()) [[unlikely]]
    return connection_error().status();
  Operation* operation = nullptr;
  const Status status = call.word == Word::kNone ? start(call.ask, operation) : start_on_word(call, operation);
  if (status != Status::kOk) return status;
  operation->awaited = &call;
  call.operation = operation;
  call.place = Place::kUnderWay;
  return status;
}

Status PollingClient::start_on_word(AwaitedCall& call, Operation*& started) noexcept {
  if (free_.empty()) return Status::kAgain;
  Operation& operation = take_slot();
  started = &operation;
  operation.op = wire::Op::kCell;
  operation.is_pipelined = operation.is_abandoned = operation.is_bounced = operation.has_reply = false;
  operation.result = nullptr;
  operation.worker = static_cast<std::uint16_t>(call.cell.worker);
  operation.key_length = 0;
  operation.transfer = {.pieces = 1};
  operation.outcome = {};
  operation.out = {};
  operation.stage = Stage::kOnWord;
  const std::uint64_t token = token_of(Piece::kWord, operation);
  channel::Connection& channel = channel_of(operation);
  const std::span<std::byte> to = std::as_writable_bytes(std::span(&call.old, 1));
  const Status status = call.word == Word::kRead ? channel.start_read(to, span_of(call.cell), token)
                                                 : channel.start_change(call.change, span_of(call.cell), token);
  if (status == Status::kOk) [[likely]]
    return status;
  free_slot(operation);
  return status == Status::kAgain ? status : end_on_word(call.cell, status);
}

// --- ends

void PollingClient::on_word(Operation& operation, std::uint64_t old) noexcept {
  if (operation.awaited->word == Word::kChange) operation.awaited->old = old;
  finish(operation, {});
}

void PollingClient::end_awaited(Operation& operation, const Outcome& outcome) noexcept {
  AwaitedCall& call = *std::exchange(operation.awaited, nullptr);
  free_slot(operation);
  if (outcome.status != Status::kAgain) return tell(call, outcome);
  // As for blocking puts: the server has the memory, but readers may still use it. See `run`.
  call.rests_until = ticks_now() + read_ticks_ / 10;
  call.place = Place::kResting;
  awaited_.resting.push_back(call);
}

void PollingClient::tell(AwaitedCall& call, const Outcome& outcome) noexcept {
  call.outcome = outcome;
  forget(call);
  call.finish(outcome.status);
}

void PollingClient::forget(AwaitedCall& call) noexcept {
  call.place = Place::kNowhere;
  if (--awaited_.count == 0) awaited_.who.store(nullptr, std::memory_order_relaxed);
}

bool PollingClient::withdraw(AwaitedCall& call) noexcept {
  switch (call.place) {
    case Place::kNowhere: return false;
    case Place::kQueued: awaited_.queued.remove(call); break;
    case Place::kResting:
      awaited_.resting.remove(call);
      call.outcome = {Status::kStoreFull};
      break;
    case Place::kUnderWay:
      call.operation->awaited = nullptr;
      abandon(*call.operation);
      break;
  }
  forget(call);
  return true;
}

// The connection has ended. Those under way were told.
void PollingClient::end_waiting(Status reason) noexcept {
  for (AwaitedCalls* calls : {&awaited_.queued, &awaited_.resting})
    while (calls->first != nullptr) {
      AwaitedCall& call = *calls->first;
      calls->remove(call);
      tell(call, {reason});
    }
}

// --- polling

void PollingClient::look() noexcept {
  if (is_forked()) [[unlikely]]
    return;  // Their deadlines end them.
  if (!channels_.empty()) work();
  go_on_awaited();
}

void PollingClient::sleep(Deadline deadline) noexcept {
  if (is_forked()) [[unlikely]]
    return;
  const AwaitedCall* const resting = awaited_.resting.first;
  if (resting != nullptr) deadline = earlier(deadline, Deadline::at_ticks(resting->rests_until));
  (void)loop_->wait(deadline);
  drain();
  go_on_awaited();
}

// A start may end the connection, and with that all that wait.
void PollingClient::go_on_awaited() noexcept {
  while (awaited_.resting.first != nullptr && awaited_.resting.first->rests_until <= ticks_now()) {
    AwaitedCall& call = *awaited_.resting.first;
    awaited_.resting.remove(call);
    call.place = Place::kQueued;
    awaited_.queued.push_back(call);
  }
  while (awaited_.queued.first != nullptr) {
    AwaitedCall& call = *awaited_.queued.first;
    awaited_.queued.remove(call);
    const Status status = start_awaited(call);
    if (status == Status::kAgain) return awaited_.queued.push_front(call);
    if (status != Status::kOk) tell(call, {status});
  }
}

// --- what was given up

Status PollingClient::settle(Deadline deadline) noexcept {
  if (is_forked()) [[unlikely]]
    return note_as("kv::Client::settle", connection_error());
  const auto is_settled = [&] {
    const auto is_left = [](const Operation& one) { return one.is_running() && one.is_abandoned; };
    return has_failed() || std::ranges::none_of(operations_, is_left);
  };
  const Status status = loop_->wait_until(is_settled, deadline);
  drain();
  return status;
}

}  // namespace verbena::kv
