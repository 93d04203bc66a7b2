// Gets by READs through the client's queues: of one or two buckets, then of an item, then of its value if that is
// large. Each operation has a place for the bytes. reader.cpp does the same where READs need no queue.
#include "kv/client.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace verbena::kv {

using Way = Operation::Way;

// False: ask by message.
bool PollingClient::start_lookup(Operation& operation) noexcept {
  if (way_.is_guarded) return false;
  operation.source.lookups = 0;
  const std::uint64_t known = reader_.locations().find(operation.hash);
  if (known != 0 && start_item(operation, known, Way::kLocation)) return true;
  return options_.lookup == Lookup::kOneSided && start_buckets(operation);
}

bool PollingClient::start_buckets(Operation& operation) noexcept {
  channel::Connection& channel = channel_of(operation);
  const Part& part = reader_.part(operation.worker);
  std::uint64_t number = first_bucket(operation.hash, part.buckets);
  operation.transfer.pieces = 0;
  // If the READ of the second bucket is not posted, a key may be missed and is then asked for by message.
  std::memset(buckets_at(operation), 0, 2 * sizeof(Bucket));
  channel.hold();
  for (std::size_t i = 0; i < 2; ++i) {
    const channel::LocalSpan to = local({buckets_at(operation) + i * sizeof(Bucket), sizeof(Bucket)});
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

bool PollingClient::start_item(Operation& operation, std::uint64_t entry, Way way) noexcept {
  const channel::RemoteSpan item = reader_.part(operation.worker).item(entry);
  // No server creates an entry of length 0.
  if (item.length == 0 || !start_fetch(operation, item, Stage::kFetching)) return false;
  operation.source.way = way;
  operation.entry = entry;
  return true;
}

// Follows the READ of a large value: if its item is still live, it was so while the value was READ, and the value is
// whole.
void PollingClient::start_check(Operation& operation) noexcept {
  channel::RemoteSpan front = reader_.part(operation.worker).item(operation.entry);
  front.length = sizeof(ItemHeader::state);
  if (!start_fetch(operation, front, Stage::kChecking)) ask_by_message(operation);
}

bool PollingClient::start_fetch(Operation& operation, const channel::RemoteSpan& from, Stage stage) noexcept {
  const channel::LocalSpan to = local({item_at(operation), static_cast<std::size_t>(from.length)});
  if (channel_of(operation).start_read(to, from, token_of(Piece::kLookup, operation)) != Status::kOk) return false;
  operation.stage = stage;
  operation.transfer.pieces = 1;
  return true;
}

void PollingClient::on_lookup_read(Operation& operation) noexcept {
  if (operation.transfer.pieces != 0) return;
  if (operation.is_abandoned) return free_slot(operation);
  switch (operation.stage) {
    case Stage::kLooking: return try_candidates(operation);
    case Stage::kFetching: return take_item(operation);
    case Stage::kChecking: return take_check(operation);
    default: return;  // The operation ended with the connection.
  }
}

void PollingClient::try_candidates(Operation& operation) noexcept {
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

void PollingClient::take_item(Operation& operation) noexcept {
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

void PollingClient::take_check(Operation& operation) noexcept {
  std::uint64_t state = 0;
  std::memcpy(&state, item_at(operation), sizeof state);
  if (!is_live(state, operation.outcome.version)) return on_overtaken(operation);
  end_lookup(operation);
}

void PollingClient::end_lookup(Operation& operation) noexcept {
  if (operation.source.way == Way::kLocation) {
    ++lookups_.by_location;
  } else {
    ++lookups_.by_index;
    reader_.locations().note(operation.hash, operation.entry);
  }
  start_mark(operation);
  finish(operation, operation.outcome);
  report_reads(kReadsPerReport);
}

// Nobody misses a mark for which there is no room.
void PollingClient::start_mark(const Operation& operation) noexcept {
  const Part& part = reader_.part(operation.worker);
  if (!reader_.is_mark_due(part) || in_flight_.marks == kMostMarks) return;
  const channel::LocalSpan from = local({region_.data() + own_bytes(options_) - kLineBytes, 1});
  if (channel_of(operation).start_write(from, part.mark(operation.hash), token_of(Piece::kMark, operation)) ==
      Status::kOk)
    ++in_flight_.marks;
}

// Looks the key up through the index once more, unless lookups are by message or there were too many.
void PollingClient::on_overtaken(Operation& operation) noexcept {
  if (operation.source.way == Way::kLocation) {
    reader_.drop(operation.hash);
  } else if (operation.source.lookups == Reader::kMostLookups) {
    ++lookups_.overtaken;
  } else {
    ++lookups_.retries;
  }
  const bool goes_on = options_.lookup == Lookup::kOneSided && operation.source.lookups < Reader::kMostLookups;
  if (!goes_on || !start_buckets(operation)) ask_by_message(operation);
}

void PollingClient::ask_by_message(Operation& operation) noexcept {
  operation.source.way = Way::kMessage;
  operation.outcome = {};  // Discards everything that was READ.
  ++lookups_.by_message;
  ask_again(operation);
}

}  // namespace verbena::kv
