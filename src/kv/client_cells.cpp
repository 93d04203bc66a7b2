// The client's side of cells: opening one by message, and what is done to its word by this side's NIC.
#include "kv/client.hpp"

#include "base/error.hpp"
#include "base/failure.hpp"

#include <algorithm>
#include <new>

namespace verbena::kv {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);

std::unexpected<Error> refused(Status status, Key key) noexcept {
  constexpr const char* kCall = "open_cell";
  switch (status) {
    case Status::kUnsupported:
      return fail(status, kCall, 0, "the server has no cells: start it with max_cells of 1 and more");
    case Status::kLimit:
      return fail(
          status, kCall, 0,
          "the server's cells, of the worker that the key belongs to, are all made: start it with more max_cells");
    case Status::kWrongKind: return fail(status, kCall, 0, "the key has a value and no cell: use another key");
    case Status::kBadKey:
      return fail(status, kCall, 0, "key must have 1 to {} bytes; got {}", kMaxKeyBytes, key.size());
    default: return fail(status, kCall, 0, "the cell is not opened: {}", sentence_of(status));
  }
}

}  // namespace

// --- opening

Result<Cell> PollingClient::open_cell(Key key, std::uint64_t initial, Deadline deadline) noexcept {
  const Outcome outcome = run({.op = wire::Op::kCell, .expected = initial, .key = key}, deadline);
  if (error_.status() != Status::kOk) return std::unexpected(error_);
  if (outcome.status != Status::kOk) return refused(outcome.status, key);
  VERBENA_TRY(use_cells(deadline));
  return Cell{.address = cells_.place.window_address + cells_.place.offset,
              .worker = cells_.worker,
              .is_new = cells_.place.is_new != 0};
}

// Its frame is sound, and it is the answer to the only open_cell that somebody waits for.
void PollingClient::take_cell(std::uint32_t slot, const wire::Reply& reply) noexcept {
  cells_.place = reply.cell;
  cells_.worker = operations_[slot].worker;
  finish(slot, {Status::kOk, reply.head.version, 0});
}

// Makes the window of the last reply's cells usable, which it stays.
Result<void> PollingClient::use_cells(Deadline deadline) noexcept {
  const nic::Window window = wire::window_of(cells_.place);
  nic::Window& known = cells_.windows[cells_.worker];
  if (known == window) return {};
  if (known.length != 0) {
    die(Status::kProtocol, "the server says that a worker's cells are elsewhere now, where they never are");
    drain();
    return std::unexpected(error_);
  }
  try {
    VERBENA_TRY(channels_[cells_.worker]->import_window(window, deadline));
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
  if (cell.worker >= channels_.size() || cells_.windows[cell.worker].length == 0 || cell.address % kWordBytes != 0)
      [[unlikely]]
    return note(Status::kBadArgument, ask.is_read ? "kv::Client::read" : "kv::Client::fetch_add or compare_swap",
                "cell is at address {:#x} of worker {}, where this client has opened none: open it here, and connect "
                "only once",
                cell.address, cell.worker);
  channel::Connection& channel = *channels_[cell.worker];
  const channel::RemoteSpan word = span_of(cell);
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
  on_end(channel, now);
  drain();
  return error_.status();
}

channel::RemoteSpan PollingClient::span_of(const Cell& cell) const noexcept {
  return {.address = cell.address, .length = kWordBytes, .rkey = cells_.windows[cell.worker].rkey};
}

Status PollingClient::start_on_word(std::uint32_t slot, const WordAsk& ask) noexcept {
  Operation& operation = operations_[slot];
  operation.stage = Stage::kFetching;
  operation.worker = static_cast<std::uint16_t>(ask.cell.worker);
  operation.transfer.pieces = 1;
  channel::Connection& channel = *channels_[operation.worker];
  if (!ask.is_read)
    return channel.start_change(ask.change, span_of(ask.cell), token_of(Piece::kChange, 0, id_of(slot)));
  return channel.start_read(local(std::as_bytes(std::span(word_at(slot), 1))), span_of(ask.cell),
                            token_of(Piece::kWord, 0, id_of(slot)));
}

void PollingClient::take_word(std::uint32_t slot, std::uint64_t value) noexcept {
  finish(slot, {Status::kOk, value, 0});
}

}  // namespace verbena::kv
