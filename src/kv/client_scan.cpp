// The client's side of listing and flushing, and its report of gets by READs.
#include "kv/client.hpp"

#include "base/failure.hpp"

#include <algorithm>
#include <array>

namespace verbena::kv {

Status PollingClient::keys(Key prefix, KeyCursor& cursor, KeyPage& page, Deadline deadline) noexcept {
  return scan(wire::Op::kKeys, prefix, cursor, page, deadline);
}

Status PollingClient::flush(Key prefix, std::uint64_t& erased, Deadline deadline) noexcept {
  erased = 0;
  KeyPage page;
  for (KeyCursor cursor; !cursor.is_over;) {
    const Status status = scan(wire::Op::kFlush, prefix, cursor, page, deadline);
    if (status != Status::kOk) return status;
    erased += page.count;
    if (deadline.passed() && !cursor.is_over) return Status::kTimedOut;
  }
  return Status::kOk;
}

// One step of a scan.
Status PollingClient::scan(wire::Op op, Key prefix, KeyCursor& cursor, KeyPage& page, Deadline deadline) noexcept {
  page.count = page.length = 0;
  if (cursor.is_over) return Status::kOk;
  const wire::ScanPlace from{.place = cursor.place, .moves = cursor.moves, .seal = cursor.seal};
  wanted_.page = &page;
  const Outcome outcome =
      run({.op = op, .key = prefix, .value = wire::bytes_of(from), .worker = cursor.worker}, deadline);
  wanted_.page = nullptr;
  if (outcome.status != Status::kOk) {
    if (outcome.status == Status::kBadArgument && cursor.worker < channels_.size())
      return note(outcome.status, call_of(op),
                  "cursor is none of this server for this prefix: begin with an empty one");
    return outcome.status;
  }
  const wire::ScanPlace& next = wanted_.next;
  const bool is_at_end = next.seal == 0;  // This worker has no more keys.
  const std::uint32_t worker = cursor.worker + (is_at_end ? 1 : 0);
  cursor = {.place = next.place,
            .moves = next.moves,
            .seal = next.seal,
            .worker = worker,
            .is_over = worker == channels_.size()};
  return Status::kOk;
}

// Calls that gave up never get here, so this is the blocked one.
void PollingClient::take_scanned(Operation& operation, const wire::Reply& reply) noexcept {
  if (operation.op == wire::Op::kKeys && reply.value.empty() && reply.scanned.count != 0)
    return die(Status::kProtocol, "the server tells of keys and does not name them");
  KeyPage& page = *wanted_.page;
  page.count = reply.scanned.count;
  page.length = static_cast<std::uint32_t>(reply.value.size());
  std::ranges::copy(reply.value, page.bytes.begin());
  wanted_.next = reply.scanned.next;
  finish(operation, {});
}

// To worker 0, whatever worker has the keys. Without credit it waits for the next occasion; at the end it is lost.
void PollingClient::report_reads(std::uint64_t least) noexcept {
  const std::uint64_t all = lookups_.by_location + lookups_.by_index;
  if (all - lookups_.reported < least) [[likely]]
    return;
  if (has_failed() || channels_.empty()) return;
  std::array<std::byte, 24> head;
  const std::size_t bytes = wire::encode_head({.op = wire::Op::kReads}, all - lookups_.reported, head);
  const Status status = channels_.front()->send(std::span(head).first(bytes));
  if (status == Status::kOk) lookups_.reported = all;
  (void)notice(0, status == Status::kAgain ? Status::kOk : status);
}

}  // namespace verbena::kv
