#include "kv/gets.hpp"

#include "base/ticks.hpp"
#include "kv/item.hpp"
#include "kv/requests.hpp"
#include "kv/scans.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace verbena::kv {
namespace {

/// How often a large value may arrive without matching its checksum before the client distrusts the server.
constexpr unsigned kMostMismatches = 4;

// Checks a large value that is in place.
bool has_its_checksum(const Operation& operation) noexcept {
  return operation.source.checksum == 0 ||
         checksum_of_value(operation.out.first(operation.outcome.length)) == operation.source.checksum;
}

std::chrono::nanoseconds time_left(const wire::Reply& reply) noexcept {
  const auto [clock_ns, until_ns] = reply.expiry;
  return std::chrono::nanoseconds(until_ns > clock_ns ? static_cast<std::int64_t>(until_ns - clock_ns) : 0);
}

}  // namespace

// --- lookups: READs of one or two buckets, then of an item, then of its value if that is large

bool Gets::start_lookup(Operation& operation) noexcept {
  if (links_.is_guarded()) return false;
  operation.source.lookups = 0;
  const std::uint64_t known = reader_.locations().find(operation.hash);
  if (known != 0 && start_item(operation, known, Way::kLocation)) return true;
  return links_.options().lookup == Lookup::kOneSided && start_buckets(operation);
}

bool Gets::start_buckets(Operation& operation) noexcept {
  channel::Connection& channel = channel_of(operation);
  const Part& part = reader_.part(operation.worker);
  std::uint64_t number = first_bucket(operation.hash, part.buckets);
  operation.transfer.pieces = 0;
  // If the READ of the second bucket is not posted, a key may be missed and is then asked for by message.
  std::memset(buckets_at(operation), 0, 2 * sizeof(Bucket));
  channel.hold();
  for (std::size_t i = 0; i < 2; ++i) {
    const channel::LocalSpan to = links_.local({buckets_at(operation) + i * sizeof(Bucket), sizeof(Bucket)});
    if (channel.start_read(to, part.bucket(number), token_of(Piece::kLookup, operation)) == Status::kOk)
      ++operation.transfer.pieces;
    number = other_bucket(number, tag_of(operation.hash), part.buckets);
  }
  channel.release();
  if (operation.transfer.pieces == 0) return false;
  operation.stage = Stage::kLooking;
  operation.source.candidate = 0;
  ++operation.source.lookups;
  return true;
}

bool Gets::start_item(Operation& operation, std::uint64_t entry, Way way) noexcept {
  const channel::RemoteSpan item = reader_.part(operation.worker).item(entry);
  // No server creates an entry of length 0.
  if (item.length == 0 || !start_fetch(operation, item, Stage::kFetching)) return false;
  operation.source.way = way;
  operation.entry = entry;
  return true;
}

// Follows the READ of a large value: if its item is still live, it was so while the value was READ, and the value is
// whole.
void Gets::start_check(Operation& operation) noexcept {
  channel::RemoteSpan front = reader_.part(operation.worker).item(operation.entry);
  front.length = sizeof(ItemHeader::state);
  if (!start_fetch(operation, front, Stage::kChecking)) ask_by_message(operation);
}

bool Gets::start_fetch(Operation& operation, const channel::RemoteSpan& from, Stage stage) noexcept {
  const channel::LocalSpan to = links_.local({item_at(operation), static_cast<std::size_t>(from.length)});
  if (channel_of(operation).start_read(to, from, token_of(Piece::kLookup, operation)) != Status::kOk) return false;
  operation.stage = stage;
  operation.transfer.pieces = 1;
  return true;
}

void Gets::on_lookup_read(Operation& operation) noexcept {
  if (operation.transfer.pieces != 0) return;
  if (Requests::is_abandoned(operation)) return requests_.free_slot(operation);
  switch (operation.stage) {
    case Stage::kLooking: return try_candidates(operation);
    case Stage::kFetching: return take_item(operation);
    case Stage::kChecking: return take_check(operation);
    default: return;  // The operation ended with the connection.
  }
}

void Gets::try_candidates(Operation& operation) noexcept {
  std::array<Bucket, 2> buckets;
  std::memcpy(&buckets, buckets_at(operation), sizeof buckets);
  const std::uint32_t tag = tag_of(operation.hash);
  unsigned left = (matches(buckets[0], tag) | matches(buckets[1], tag) << kBucketEntries) >> operation.source.candidate;
  while (left != 0) {
    operation.source.candidate = static_cast<std::uint8_t>(operation.source.candidate + std::countr_zero(left) + 1);
    left >>= std::countr_zero(left) + 1;
    const unsigned at = operation.source.candidate - 1u;
    if (start_item(operation, buckets[at / kBucketEntries][at % kBucketEntries], Way::kIndex)) return;
  }
  ask_by_message(operation);
}

void Gets::take_item(Operation& operation) noexcept {
  const Part& part = reader_.part(operation.worker);
  const std::span bytes(item_at(operation), Entry::unpack(operation.entry).bytes());
  ItemView item;
  const Reader::Call call{.key = operation.key_bytes(),
                          .hash = operation.hash,
                          .out = operation.out,
                          .deadline = Deadline::never(),
                          .outcome = operation.outcome};
  switch (reader_.take(bytes, part, call, item)) {
    case Reader::Read::kDone: return end_lookup(operation);
    case Reader::Read::kLarge: break;
    case Reader::Read::kOtherKey:
      return operation.source.way == Way::kIndex ? try_candidates(operation) : on_overtaken(operation);
    case Reader::Read::kOtherKind: return ask_by_message(operation);  // The server names the error.
    case Reader::Read::kOvertaken:
    case Reader::Read::kNoWay: return on_overtaken(operation);
  }
  operation.transfer.copied = 0;
  start_reading(operation, part.address + item.place.offset, part.rkey, item.place.checksum);
}

void Gets::take_check(Operation& operation) noexcept {
  std::uint64_t state = 0;
  std::memcpy(&state, item_at(operation), sizeof state);
  if (!is_live(state, operation.outcome.version)) return on_overtaken(operation);
  end_lookup(operation);
}

void Gets::end_lookup(Operation& operation) noexcept {
  if (operation.source.way == Way::kLocation) {
    ++counts_.by_location;
  } else {
    ++counts_.by_index;
    reader_.locations().note(operation.hash, operation.entry);
  }
  start_mark(operation);
  requests_.finish(operation, operation.outcome);
  scans_.report_reads();
}

// Nobody misses a mark for which there is no room.
void Gets::start_mark(const Operation& operation) noexcept {
  const Part& part = reader_.part(operation.worker);
  if (!reader_.is_mark_due(part) || marks_ == kMostMarks) return;
  const channel::LocalSpan from = links_.mark();
  if (channel_of(operation).start_write(from, part.mark(operation.hash), token_of(Piece::kMark, operation)) ==
      Status::kOk)
    ++marks_;
}

// Looks the key up through the index once more, unless lookups are by message or there were too many.
void Gets::on_overtaken(Operation& operation) noexcept {
  if (operation.source.way == Way::kLocation) {
    reader_.drop(operation.hash);
  } else if (operation.source.lookups == Reader::kMostLookups) {
    ++counts_.overtaken;
  } else {
    ++counts_.retries;
  }
  const bool goes_on = links_.options().lookup == Lookup::kOneSided && operation.source.lookups < Reader::kMostLookups;
  if (!goes_on || !start_buckets(operation)) ask_by_message(operation);
}

void Gets::ask_by_message(Operation& operation) noexcept {
  operation.source.way = Way::kMessage;
  operation.outcome = {};  // Discards everything that was READ.
  ++counts_.by_message;
  ask_again(operation);
}

// --- replies

void Gets::take_note(const Operation& operation, const wire::Reply& reply) noexcept {
  if (operation.op == wire::Op::kGet && reply.expiry.until_ns != 0) [[unlikely]]
    reader_.clock().set(reply.expiry.clock_ns, operation.sent_ticks);
  if (!has_key(operation.op) || !links_.may_read()) return;
  const bool is_known = reply.head.status == Status::kOk || reply.head.status == Status::kNotFound;
  if (is_known) reader_.locations().note(operation.hash, reply.head.entry);  // Entry 0 removes a stale one.
}

bool Gets::take_reply(Operation& operation, const wire::Reply& reply) noexcept {
  switch (reply.head.kind) {
    case wire::ReplyKind::kValue: take_value(operation, reply); break;
    case wire::ReplyKind::kLocation: take_location(operation, reply); break;
    case wire::ReplyKind::kPart: take_part(operation, reply); break;
    default: return false;
  }
  return true;
}

void Gets::take_value(Operation& operation, const wire::Reply& reply) noexcept {
  const std::size_t length = reply.value.size();
  const bool fits = length <= operation.out.size();
  if (fits && length != 0) std::memcpy(operation.out.data(), reply.value.data(), length);
  requests_.finish(operation,
                   {fits ? Status::kOk : Status::kBufferTooSmall, reply.head.version, length, time_left(reply)});
}

// Takes over what a reply says of a value that follows; another version than before starts the transfer over. False:
// the operation is over.
bool Gets::expect(Operation& operation, const wire::Reply& reply, std::uint64_t length, bool& goes_on) noexcept {
  const auto bytes = static_cast<std::size_t>(length);
  if (bytes > links_.server().max_value_bytes) {
    links_.die(Status::kProtocol, "the server names a value longer than its limit");
    return false;
  }
  const bool fits = bytes <= operation.out.size();
  const Outcome outcome{fits ? Status::kOk : Status::kBufferTooSmall, reply.head.version, bytes, time_left(reply)};
  if (!fits) {
    requests_.finish(operation, outcome);
    return false;
  }
  goes_on = outcome.version == operation.outcome.version && bytes == operation.outcome.length;
  if (!goes_on) operation.transfer.copied = 0;
  operation.outcome = outcome;
  return true;
}

void Gets::take_location(Operation& operation, const wire::Reply& reply) noexcept {
  bool goes_on = false;
  if (!expect(operation, reply, reply.location.length, goes_on)) return;
  start_reading(operation, reply.location.address, reply.location.rkey, reply.location.checksum);
}

// From a server that grants this client no memory.
void Gets::take_part(Operation& operation, const wire::Reply& reply) noexcept {
  bool goes_on = false;
  if (!expect(operation, reply, reply.part.length, goes_on)) return;
  if (reply.part.offset == operation.transfer.copied) {
    std::memcpy(operation.out.data() + operation.transfer.copied, reply.value.data(), reply.value.size());
    operation.transfer.copied += reply.value.size();
  } else if (goes_on) {
    return links_.die(Status::kProtocol, "the server sent a part of a value that the client did not ask for");
  }
  if (operation.transfer.copied == operation.outcome.length) return requests_.finish(operation, operation.outcome);
  ask_for_part(operation);
}

void Gets::ask_for_part(Operation& operation) noexcept {
  std::array<std::byte, 24> head;
  const std::size_t bytes =
      wire::encode_head({.op = wire::Op::kGetPart, .key_length = operation.key_length, .id = operation.id},
                        operation.transfer.copied, head);
  requests_.end_unless_sent(operation, channel_of(operation).send(std::span(head).first(bytes), operation.key_bytes()));
}

void Gets::ask_again(Operation& operation) noexcept {
  operation.stage = Stage::kAwaiting;
  operation.sent_ticks = ticks_now();
  const wire::RequestHead head{.op = wire::Op::kGet, .key_length = operation.key_length, .id = operation.id};
  requests_.end_unless_sent(operation, channel_of(operation).send(wire::bytes_of(head), operation.key_bytes()));
}

// --- large values

// Starts with the first byte that is not in place yet.
void Gets::start_reading(Operation& operation, std::uint64_t address, std::uint32_t rkey,
                         std::uint64_t checksum) noexcept {
  operation.source.address = address;
  operation.source.rkey = rkey;
  operation.source.checksum = checksum;
  operation.transfer.posted = operation.transfer.copied;
  operation.is_late = false;
  // An awaited get may be given up at any time, and its memory is not the NIC's then.
  operation.is_bounced =
      Requests::is_awaited(operation) || !links_.is_registered(operation.out.first(operation.outcome.length));
  operation.stage = Stage::kReading;
  read_pieces(operation);
}

// The pieces of one get go through one connection, so they complete in order.
void Gets::read_pieces(Operation& operation) noexcept {
  const std::uint64_t length = operation.outcome.length;
  while (operation.transfer.pieces < operation.transfer.burst && operation.transfer.posted < length) {
    const bool is_ahead = operation.transfer.pieces != 0;
    if (is_ahead && ahead_ == kMostAhead) return;  // Continues when its own pieces have arrived.
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(operation.piece_bytes(), length - operation.transfer.posted));
    const std::span<std::byte> to = operation.out.subspan(operation.transfer.posted, bytes);
    const channel::RemoteSpan from{operation.source.address + operation.transfer.posted, bytes, operation.source.rkey};
    const std::uint64_t token = token_of(Piece::kRead, operation);
    channel::Connection& channel = channel_of(operation);
    const Status status =
        operation.is_bounced ? channel.start_read(to, from, token) : channel.start_read(links_.local(to), from, token);
    if (status != Status::kOk) {
      (void)links_.notice(operation.worker, status);
      return links_.die(Status::kProtocol, "the server names a location outside its window");
    }
    operation.transfer.posted += bytes;
    ++operation.transfer.pieces;
    if (is_ahead) ++ahead_;
  }
}

// The block at the location is not reused before the grace period ends, which began after the request was sent: a piece
// that arrived within three quarters of it belongs to the value. A later piece may hold anything. The client then asks
// for the location again, and goes on reading where it was if the version is still the same.
void Gets::on_piece_read(Operation& operation) noexcept {
  if (!operation.is_late) {
    // For an item that was READ itself another READ tells whether it is still live: start_check.
    operation.is_late =
        operation.source.way == Way::kMessage && ticks_now() - operation.sent_ticks > links_.read_ticks();
    if (!operation.is_late)
      operation.transfer.copied +=
          std::min<std::uint64_t>(operation.piece_bytes(), operation.outcome.length - operation.transfer.copied);
  }
  if (!operation.is_late && operation.transfer.copied != operation.outcome.length) return read_pieces(operation);
  if (operation.transfer.pieces == 0) end_read(operation);
}

void Gets::end_read(Operation& operation) noexcept {
  if (operation.source.way != Way::kMessage) {
    has_its_checksum(operation) ? start_check(operation) : on_overtaken(operation);
  } else if (!operation.is_late && has_its_checksum(operation)) {
    requests_.finish(operation, operation.outcome);
  } else if (!operation.is_late && ++operation.mismatches == kMostMismatches) {
    links_.die(Status::kProtocol, "a value does not match the checksum that the server sent");
  } else {
    if (!operation.is_late) operation.outcome.version = 0;  // Starts over.
    operation.transfer.burst = 1;                           // There may be time for no more than the next piece.
    ask_again(operation);
  }
}

}  // namespace verbena::kv
