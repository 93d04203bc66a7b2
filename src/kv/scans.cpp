#include "kv/scans.hpp"

#include "base/error.hpp"
#include "base/failure.hpp"
#include "kv/requests.hpp"

#include <algorithm>
#include <array>

namespace verbena::kv {

Status Scans::flush(Key prefix, std::uint64_t& erased, Deadline deadline) noexcept {
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
Status Scans::scan(wire::Op op, Key prefix, KeyCursor& cursor, KeyPage& page, Deadline deadline) noexcept {
  page.count = page.length = 0;
  if (cursor.is_over) return Status::kOk;
  const wire::ScanPlace from{.place = cursor.place, .moves = cursor.moves, .seal = cursor.seal};
  wanted_.page = &page;
  const Outcome outcome =
      requests_.run({.op = op, .key = prefix, .value = wire::bytes_of(from), .worker = cursor.worker}, deadline);
  wanted_.page = nullptr;
  if (outcome.status != Status::kOk) {
    if (outcome.status == Status::kBadArgument && cursor.worker < links_.workers())
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
            .is_over = worker == links_.workers()};
  return Status::kOk;
}

Result<ServerStatistics> Scans::statistics(Deadline deadline) noexcept {
  report_reads(1);
  Result<ServerStatistics> statistics;
  wanted_.out = &*statistics;
  Outcome outcome;
  for (std::uint64_t part = 0; part < kStatisticsParts && outcome.status == Status::kOk; ++part) {
    wanted_.part = static_cast<StatisticsPart>(part);
    outcome = requests_.run({.op = wire::Op::kStatistics, .expected = part}, deadline);
  }
  wanted_.out = nullptr;
  if (outcome.status == Status::kOk) return statistics;
  if (links_.has_failed()) return std::unexpected(links_.connection_error());
  if (outcome.status == Status::kDenied) return std::unexpected(last_failure());
  return fail(outcome.status, "server_statistics", 0, "the server did not answer with its statistics: {}",
              to_string(outcome.status));
}

// Calls that gave up never get here, so this is the blocked one.
bool Scans::take_reply(Operation& operation, const wire::Reply& reply) noexcept {
  if (operation.op == wire::Op::kStatistics && reply.head.kind == wire::ReplyKind::kStatistics) {
    take_words(reply.value, wanted_.part, *wanted_.out);
    requests_.finish(operation, {});
    return true;
  }
  if (!wire::is_scan(operation.op) || reply.head.kind != wire::ReplyKind::kScanned) return false;
  take_scanned(operation, reply);
  return true;
}

void Scans::take_scanned(Operation& operation, const wire::Reply& reply) noexcept {
  if (operation.op == wire::Op::kKeys && reply.value.empty() && reply.scanned.count != 0)
    return links_.die(Status::kProtocol, "the server tells of keys and does not name them");
  KeyPage& page = *wanted_.page;
  page.count = reply.scanned.count;
  page.length = static_cast<std::uint32_t>(reply.value.size());
  std::ranges::copy(reply.value, page.bytes.begin());
  wanted_.next = reply.scanned.next;
  requests_.finish(operation, {});
}

// To worker 0, whatever worker has the keys. Without credit it waits for the next occasion; at the end it is lost.
void Scans::send_report(std::uint64_t all) noexcept {
  if (links_.has_failed() || links_.workers() == 0) return;
  std::array<std::byte, 24> head;
  const std::size_t bytes = wire::encode_head({.op = wire::Op::kReads}, all - reported_, head);
  const Status status = links_.channel(0).send(std::span(head).first(bytes));
  if (status == Status::kOk) reported_ = all;
  (void)links_.notice(0, status == Status::kAgain ? Status::kOk : status);
}

}  // namespace verbena::kv
