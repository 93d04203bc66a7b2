// Gets by READs through the client's queues: of a bucket or two, then of an item, then of its value if that is large.
// Each operation has a place for what these bring. reader.cpp is the same where READs need no queue.
#include "kv/client.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace verbena::kv {

using Way = Operation::Way;

// False: by message.
bool PollingClient::start_lookup(std::uint32_t slot) noexcept {
  Operation& operation = operations_[slot];
  operation.lookups = 0;
  const std::uint64_t known = reader_.locations().find(operation.hash);
  if (known != 0 && start_item(slot, known, Way::kLocation)) return true;
  return options_.lookup == Lookup::kOneSided && start_buckets(slot);
}

bool PollingClient::start_buckets(std::uint32_t slot) noexcept {
  Operation& operation = operations_[slot];
  channel::Connection& channel = *channels_[operation.worker];
  const Part& part = reader_.part(operation.worker);
  std::uint64_t number = first_bucket(operation.hash, part.buckets);
  operation.transfer.pieces = 0;
  // Without its second bucket a key that is there may be missed, and is then asked for by message.
  std::memset(buckets_at(slot), 0, 2 * sizeof(Bucket));
  channel.hold();
  for (std::size_t i = 0; i < 2; ++i) {
    const channel::LocalSpan to = local({buckets_at(slot) + i * sizeof(Bucket), sizeof(Bucket)});
    if (channel.start_read(to, part.bucket(number), token_of(Piece::kLookup, 0, id_of(slot))) == Status::kOk)
      ++operation.transfer.pieces;
    number = other_bucket(number, tag_of(operation.hash), part.buckets);
  }
  channel.release();
  if (operation.transfer.pieces == 0) return false;
  operation.stage = Stage::kLooking;
  operation.candidate = 0;
  ++operation.lookups;
  return true;
}

bool PollingClient::start_item(std::uint32_t slot, std::uint64_t entry, Way way) noexcept {
  Operation& operation = operations_[slot];
  const channel::RemoteSpan item = reader_.part(operation.worker).item(entry);
  if (item.length == 0) return false;  // No server makes such an entry.
  const channel::LocalSpan to = local({item_at(slot), static_cast<std::size_t>(item.length)});
  const std::uint64_t token = token_of(Piece::kLookup, 0, id_of(slot));
  if (channels_[operation.worker]->start_read(to, item, token) != Status::kOk) return false;
  operation.stage = Stage::kFetching;
  operation.transfer.pieces = 1;
  operation.source.way = way;
  operation.entry = entry;
  return true;
}

// After all of a large value: if its item is live still, it was so while the value was READ, and the value is whole.
void PollingClient::start_check(std::uint32_t slot) noexcept {
  Operation& operation = operations_[slot];
  channel::RemoteSpan front = reader_.part(operation.worker).item(operation.entry);
  front.length = sizeof(ItemHeader::state);
  const channel::LocalSpan to = local({item_at(slot), sizeof(ItemHeader::state)});
  const std::uint64_t token = token_of(Piece::kLookup, 0, id_of(slot));
  if (channels_[operation.worker]->start_read(to, front, token) != Status::kOk) return ask_by_message(slot);
  operation.stage = Stage::kChecking;
  operation.transfer.pieces = 1;
}

void PollingClient::on_lookup_read(std::uint32_t slot) noexcept {
  const Operation& operation = operations_[slot];
  if (operation.transfer.pieces != 0) return;
  if (operation.is_abandoned) return free_slot(slot);
  switch (operation.stage) {
    case Stage::kLooking: return try_candidates(slot);
    case Stage::kFetching: return take_item(slot);
    case Stage::kChecking: return take_check(slot);
    default: return;  // It has ended with the connection.
  }
}

void PollingClient::try_candidates(std::uint32_t slot) noexcept {
  Operation& operation = operations_[slot];
  std::array<Bucket, 2> buckets;
  std::memcpy(&buckets, buckets_at(slot), sizeof buckets);
  const std::uint32_t tag = tag_of(operation.hash);
  unsigned left = (matches(buckets[0], tag) | matches(buckets[1], tag) << kBucketEntries) >> operation.candidate;
  while (left != 0) {
    operation.candidate = static_cast<std::uint8_t>(operation.candidate + std::countr_zero(left) + 1);
    left >>= std::countr_zero(left) + 1;
    const unsigned at = operation.candidate - 1u;
    if (start_item(slot, buckets[at / kBucketEntries][at % kBucketEntries], Way::kIndex)) return;
  }
  ask_by_message(slot);
}

void PollingClient::take_item(std::uint32_t slot) noexcept {
  const Operation& operation = operations_[slot];
  const Part& part = reader_.part(operation.worker);
  const std::span bytes(item_at(slot), Entry::unpack(operation.entry).bytes());
  ItemView item;
  switch (judge(bytes, std::span(operation.key).first(operation.key_length), part.length, item)) {
    case Verdict::kWhole: return take_whole(slot, item);
    case Verdict::kOtherKey: return on_other_key(slot);
    case Verdict::kNotLive:
    case Verdict::kTorn: return on_overtaken(slot);
  }
}

void PollingClient::take_whole(std::uint32_t slot, const ItemView& item) noexcept {
  Operation& operation = operations_[slot];
  if ((item.flags & kCell) != 0) return ask_by_message(slot);  // The server says what is wrong with that.
  const auto length = static_cast<std::size_t>(item.value_length);
  if (length > operation.out.size()) return end_lookup(slot, {Status::kBufferTooSmall, item.version, length});
  operation.outcome = {Status::kOk, item.version, length};
  if (length < kEagerBytes) {
    if (length != 0) std::memcpy(operation.out.data(), item.value.data(), length);
    return end_lookup(slot, operation.outcome);
  }
  const Part& part = reader_.part(operation.worker);
  operation.source.address = part.address + item.place.offset;
  operation.source.rkey = part.rkey;
  operation.source.checksum = item.place.checksum;
  operation.transfer.posted = operation.transfer.copied = 0;
  operation.is_late = false;
  start_reading(slot);
}

void PollingClient::take_check(std::uint32_t slot) noexcept {
  const Operation& operation = operations_[slot];
  std::uint64_t state = 0;
  std::memcpy(&state, item_at(slot), sizeof state);
  if (!is_live(state, operation.outcome.version)) return on_overtaken(slot);
  end_lookup(slot, operation.outcome);
}

void PollingClient::end_lookup(std::uint32_t slot, const Outcome& outcome) noexcept {
  const Operation& operation = operations_[slot];
  if (operation.source.way == Way::kLocation) {
    ++lookups_.by_location;
  } else {
    ++lookups_.by_index;
    reader_.locations().note(operation.hash, operation.entry);
  }
  finish(slot, outcome);
}

void PollingClient::on_other_key(std::uint32_t slot) noexcept {
  if (operations_[slot].source.way == Way::kIndex) return try_candidates(slot);
  on_overtaken(slot);
}

// Another lookup through the index, if that is the way to go and there were not too many.
void PollingClient::on_overtaken(std::uint32_t slot) noexcept {
  const Operation& operation = operations_[slot];
  if (operation.source.way == Way::kLocation) {
    reader_.drop(operation.hash);
  } else if (operation.lookups == Reader::kMostLookups) {
    ++lookups_.overtaken;
  } else {
    ++lookups_.retries;
  }
  const bool goes_on = options_.lookup == Lookup::kOneSided && operation.lookups < Reader::kMostLookups;
  if (!goes_on || !start_buckets(slot)) ask_by_message(slot);
}

void PollingClient::ask_by_message(std::uint32_t slot) noexcept {
  Operation& operation = operations_[slot];
  operation.source.way = Way::kMessage;
  operation.outcome = {};  // Nothing of what was READ is believed.
  ++lookups_.by_message;
  ask_again(slot);
}

}  // namespace verbena::kv
