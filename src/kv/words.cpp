#include "kv/words.hpp"

#include "base/error.hpp"
#include "base/failure.hpp"
#include "kv/requests.hpp"

#include <new>

namespace verbena::kv {
namespace {

using Word = AwaitedCall::Word;

constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);

std::unexpected<Error> refused(Status status, Key key) noexcept {
  constexpr const char* kCall = "open_cell";
  switch (status) {
    case Status::kUnsupported:
      return fail(status, kCall, 0, "the server has no cells: start it with max_cells of 1 and more");
    case Status::kLimit:
      return fail(status, kCall, 0, "the key's worker has no cell left: start the server with a larger max_cells");
    case Status::kWrongKind: return fail(status, kCall, 0, "the key has a value, not a cell: use another key");
    case Status::kBadKey:
      return fail(status, kCall, 0, "key must have 1 to {} bytes; got {}", kMaxKeyBytes, key.size());
    case Status::kDenied:
    case Status::kOverQuota: return fail(status, kCall, 0, "{}", last_failure().text());
    default: return fail(status, kCall, 0, "the cell cannot be opened: {}", sentence_of(status));
  }
}

}  // namespace

// --- opening

Result<Cell> Words::open_cell(Key key, std::uint64_t initial, Deadline deadline) noexcept {
  const Outcome outcome = requests_.run({.op = wire::Op::kCell, .expected = initial, .key = key}, deadline);
  if (links_.has_failed()) return std::unexpected(links_.connection_error());
  if (outcome.status != Status::kOk) return refused(outcome.status, key);
  VERBENA_TRY(use_cells(deadline));
  return Cell{.address = place_.window_address + place_.offset, .worker = worker_, .is_new = place_.is_new != 0};
}

// Makes the window of the last reply's cells usable, for as long as the connection lives.
Result<void> Words::use_cells(Deadline deadline) noexcept {
  const nic::Window window = wire::window_of(place_);
  nic::Window& known = windows_[worker_];
  if (known == window) return {};
  if (known.length != 0) {
    links_.die(Status::kProtocol, "the server says that a worker's cells have moved, which they never do");
    requests_.drain();
    return std::unexpected(links_.connection_error());
  }
  try {
    VERBENA_TRY(links_.channel(worker_).import_window(window, deadline));
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "open_cell", 0, "no memory for another window of the server");
  }
  known = window;
  return {};
}

bool Words::take_reply(Operation& operation, const wire::Reply& reply) noexcept {
  if (reply.head.kind != wire::ReplyKind::kCell) return false;
  // The frame is sound, and it answers the only open_cell that somebody waits for.
  place_ = reply.cell;
  worker_ = operation.worker;
  requests_.finish(operation, {Status::kOk, reply.head.version, 0});
  return true;
}

// --- words

// The connection carries these out itself: a software NIC in this thread, any other through its queue with the result
// in the connection's memory, so a late result touches nothing of the caller's.
Status Words::change(const Cell& cell, const channel::Change& change, std::uint64_t& old, Deadline deadline) noexcept {
  old = 0;
  const Status checked = check(cell, "kv::Client::fetch_add or compare_swap");
  if (checked != Status::kOk) [[unlikely]]
    return checked;
  return end(links_.channel(cell.worker).change(change, span_of(cell), old, deadline));
}

Status Words::read(const Cell& cell, std::uint64_t& value, Deadline deadline) noexcept {
  value = 0;
  const Status checked = check(cell, "kv::Client::read");
  if (checked != Status::kOk) [[unlikely]]
    return checked;
  const std::span to = std::as_writable_bytes(std::span(&value, 1));
  return end(links_.channel(cell.worker).read(to, span_of(cell), deadline));
}

Status Words::check(const Cell& cell, const char* call) const noexcept {
  if (links_.has_failed()) [[unlikely]]
    return links_.connection_error().status();
  if (cell.worker >= links_.workers() || windows_[cell.worker].length == 0 || cell.address % kWordBytes != 0)
      [[unlikely]]
    return note(Status::kBadArgument, call,
                "cell is at address {:#x} of worker {}, where this client has opened none: open it here, and connect "
                "only once",
                cell.address, cell.worker);
  return Status::kOk;
}

Status Words::end(Status status) noexcept {
  if (status == Status::kOk && !links_.has_failed()) [[likely]]
    return status;
  if (damage_of(status) >= Damage::kConnection) links_.on_end(status);
  requests_.drain();
  return status != Status::kOk && links_.has_failed() ? links_.failure() : status;
}

channel::RemoteSpan Words::span_of(const Cell& cell) const noexcept {
  return {.address = cell.address, .length = kWordBytes, .rkey = windows_[cell.worker].rkey};
}

// --- awaited

bool Words::carry_out_now(AwaitedCall& call) noexcept {
  Status status = check(call.cell, "an awaited operation on a cell");
  if (status == Status::kOk) {
    channel::Connection& channel = links_.channel(call.cell.worker);
    const std::span to = std::as_writable_bytes(std::span(&call.old, 1));
    status = call.word == Word::kRead ? channel.read_now(to, span_of(call.cell))
                                      : channel.change_now(call.change, span_of(call.cell), call.old);
    if (status == Status::kAgain) return false;
    status = end(status);
  }
  call.outcome = {status};
  return true;
}

Status Words::start(const AwaitedCall& call, Operation& operation) noexcept {
  operation.worker = static_cast<std::uint16_t>(call.cell.worker);
  operation.transfer = {.pieces = 1};
  operation.stage = Operation::Stage::kOnWord;
  const std::uint64_t token = token_of(Piece::kWord, operation);
  channel::Connection& channel = links_.channel(call.cell.worker);
  if (call.word == Word::kChange) return channel.start_change(call.change, span_of(call.cell), token);
  return channel.start_read(std::as_writable_bytes(std::span(&operation.awaited->old, 1)), span_of(call.cell), token);
}

void Words::on_word(Operation& operation, std::uint64_t old) noexcept {
  if (operation.awaited->word == Word::kChange) operation.awaited->old = old;
  requests_.finish(operation, {});
}

}  // namespace verbena::kv
