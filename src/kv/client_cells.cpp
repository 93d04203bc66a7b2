// The client's side of cells: opening one by message, and what is done to its word by this side's NIC.
#include "kv/client.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <new>

namespace verbena::kv {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);

std::unexpected<Error> refused(Status status) noexcept {
  constexpr const char* kCall = "open_cell";
  switch (status) {
    case Status::kUnsupported:
      return fail(status, kCall, 0, "the server has no cells: start it with max_cells of 1 and more");
    case Status::kLimit:
      return fail(
          status, kCall, 0,
          "the server's cells, of the worker that the key belongs to, are all made: start it with more max_cells");
    case Status::kWrongKind: return fail(status, kCall, 0, "the key has a value and no cell: use another key");
    default: return fail(status, kCall, 0, "the cell could not be opened: {}", to_string(status));
  }
}

}  // namespace

// --- opening

Result<Cell> PollingClient::open_cell(Key key, std::uint64_t initial, Deadline deadline) noexcept {
  const Outcome outcome = run({.op = wire::Op::kCell, .expected = initial, .key = key}, deadline);
  if (error_.status() != Status::kOk) return std::unexpected(error_);
  if (outcome.status != Status::kOk) return refused(outcome.status);
  VERBENA_TRY(use_cells(deadline));
  return Cell{.address = cell_place_.window_address + cell_place_.offset,
              .worker = cell_worker_,
              .is_new = cell_place_.is_new != 0};
}

// Its frame is sound, and it is the answer to the only open_cell that somebody waits for.
void PollingClient::take_cell(std::uint32_t slot, const wire::Reply& reply) noexcept {
  cell_place_ = reply.cell;
  cell_worker_ = operations_[slot].worker;
  finish(slot, {Status::kOk, reply.head.version, 0});
}

// Makes the window of the last reply's cells usable, which it stays.
Result<void> PollingClient::use_cells(Deadline deadline) noexcept {
  const nic::Window window = wire::window_of(cell_place_);
  nic::Window& known = cell_windows_[cell_worker_];
  if (known == window) return {};
  if (known.length != 0) {
    die(Status::kProtocol, "the server says that a worker's cells are elsewhere now, where they never are");
    drain();
    return std::unexpected(error_);
  }
  try {
    VERBENA_TRY(channels_[cell_worker_]->import_window(window, deadline));
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "open_cell", 0, "no memory for another window of the server");
  }
  known = window;
  return {};
}

// --- words

Status PollingClient::fetch_add(const Cell& cell, std::uint64_t delta, std::uint64_t& old, Deadline deadline) noexcept {
  return on_word({.cell = cell, .change = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .compare_add = delta}}, old,
                 deadline);
}

Status PollingClient::compare_swap(const Cell& cell, std::uint64_t expected, std::uint64_t desired, std::uint64_t& old,
                                   Deadline deadline) noexcept {
  return on_word(
      {.cell = cell, .change = {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}}, old,
      deadline);
}

Status PollingClient::read(const Cell& cell, std::uint64_t& value, Deadline deadline) noexcept {
  return on_word({.cell = cell, .is_read = true}, value, deadline);
}

// A NIC of software does it in this thread, with the result where the caller wants it. Everything else goes through the
// NIC's queue, with the result in the slot's own word, so that one that is late meets nothing of the caller's.
Status PollingClient::on_word(const WordAsk& ask, std::uint64_t& value, Deadline deadline) noexcept {
  if (error_.status() != Status::kOk) [[unlikely]]
    return error_.status();
  const Cell& cell = ask.cell;
  if (cell.worker >= channels_.size() || cell_windows_[cell.worker].length == 0 || cell.address % kWordBytes != 0)
    return Status::kBadArgument;
  message::Channel& channel = *channels_[cell.worker];
  const message::RemoteSpan word = span_of(cell);
  const Status now = ask.is_read ? channel.read_now(std::as_writable_bytes(std::span(&value, 1)), word)
                                 : channel.change_now(ask.change, word, value);
  if (now == Status::kOk) [[likely]]
    return now;
  if (now == Status::kAgain) {
    const Outcome outcome = run({.op = wire::Op::kCell, .word = &ask}, deadline);
    if (outcome.status == Status::kOk) value = outcome.version;
    return outcome.status;
  }
  if (damage_of(now) < Damage::kConnection) return now;
  // It has failed in a poll of this very call.
  on_failure(channel, now);
  drain();
  return error_.status();
}

message::RemoteSpan PollingClient::span_of(const Cell& cell) const noexcept {
  return {.address = cell.address, .length = kWordBytes, .rkey = cell_windows_[cell.worker].rkey};
}

Status PollingClient::start_on_word(std::uint32_t slot, const WordAsk& ask) noexcept {
  Operation& operation = operations_[slot];
  operation.stage = Stage::kFetching;
  operation.worker = static_cast<std::uint16_t>(ask.cell.worker);
  operation.pieces = 1;
  message::Channel& channel = *channels_[operation.worker];
  const std::uint64_t token = token_of(Piece::kWord, 0, id_of(slot));
  const message::LocalSpan result = local(std::as_bytes(std::span(word_at(slot), 1)));
  return ask.is_read ? channel.start_read(result, span_of(ask.cell), token)
                     : channel.start_atomic(ask.change, result, span_of(ask.cell), token);
}

void PollingClient::take_word(std::uint32_t slot) noexcept { finish(slot, {Status::kOk, *word_at(slot), 0}); }

}  // namespace verbena::kv
