// The client's side of cells: opens them by message, and changes their words through this side's NIC.
#include "kv/client.hpp"

#include "base/error.hpp"
#include "base/failure.hpp"

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

Result<Cell> PollingClient::open_cell(Key key, std::uint64_t initial, Deadline deadline) noexcept {
  const Outcome outcome = run({.op = wire::Op::kCell, .expected = initial, .key = key}, deadline);
  if (has_failed()) return std::unexpected(connection_error());
  if (outcome.status != Status::kOk) return refused(outcome.status, key);
  VERBENA_TRY(use_cells(deadline));
  return Cell{.address = cells_.place.window_address + cells_.place.offset,
              .worker = cells_.worker,
              .is_new = cells_.place.is_new != 0};
}

// Makes the window of the last reply's cells usable, for as long as the connection lives.
Result<void> PollingClient::use_cells(Deadline deadline) noexcept {
  const nic::Window window = wire::window_of(cells_.place);
  nic::Window& known = cells_.windows[cells_.worker];
  if (known == window) return {};
  if (known.length != 0) {
    die(Status::kProtocol, "the server says that a worker's cells have moved, which they never do");
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

// The connection carries these out itself: a software NIC in this thread, any other through its queue with the result
// in the connection's memory, so a late result touches nothing of the caller's.
Status PollingClient::change(const Cell& cell, const channel::Change& change, std::uint64_t& old,
                             Deadline deadline) noexcept {
  old = 0;
  const Status checked = check_cell(cell, "kv::Client::fetch_add or compare_swap");
  if (checked != Status::kOk) [[unlikely]]
    return checked;
  return end_on_word(cell, channels_[cell.worker]->change(change, span_of(cell), old, deadline));
}

Status PollingClient::read(const Cell& cell, std::uint64_t& value, Deadline deadline) noexcept {
  value = 0;
  const Status checked = check_cell(cell, "kv::Client::read");
  if (checked != Status::kOk) [[unlikely]]
    return checked;
  const std::span to = std::as_writable_bytes(std::span(&value, 1));
  return end_on_word(cell, channels_[cell.worker]->read(to, span_of(cell), deadline));
}

Status PollingClient::check_cell(const Cell& cell, const char* call) const noexcept {
  if (has_failed()) [[unlikely]]
    return connection_error().status();
  if (cell.worker >= channels_.size() || cells_.windows[cell.worker].length == 0 || cell.address % kWordBytes != 0)
      [[unlikely]]
    return note(Status::kBadArgument, call,
                "cell is at address {:#x} of worker {}, where this client has opened none: open it here, and connect "
                "only once",
                cell.address, cell.worker);
  return Status::kOk;
}

// The connection may have failed in a poll of this call, or of an earlier one.
Status PollingClient::end_on_word(const Cell& cell, Status status) noexcept {
  if (status == Status::kOk && !has_failed()) [[likely]]
    return status;
  if (damage_of(status) >= Damage::kConnection) on_end(*channels_[cell.worker], status);
  drain();
  return status != Status::kOk && has_failed() ? error_.status() : status;
}

channel::RemoteSpan PollingClient::span_of(const Cell& cell) const noexcept {
  return {.address = cell.address, .length = kWordBytes, .rkey = cells_.windows[cell.worker].rkey};
}

}  // namespace verbena::kv
