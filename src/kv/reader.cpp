#include "kv/reader.hpp"

#include "base/failure.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace verbena::kv {

// --- known locations

void Locations::note(std::uint64_t hash, std::uint64_t entry) noexcept {
  if (sets_.empty()) return;
  Set& set = sets_[at(hash)];
  std::size_t way = 0;
  while (way < kWays && set.hashes[way] != hash) ++way;
  if (way < kWays) {
    set.entries[way] = entry;
  } else if (entry != 0) {
    std::shift_right(set.hashes.begin(), set.hashes.end(), 1);
    std::shift_right(set.entries.begin(), set.entries.end(), 1);
    set.hashes[0] = hash;
    set.entries[0] = entry;
  }
}

// --- one key

Reader::Read Reader::get(Key key, std::span<std::byte> out, Deadline deadline, Outcome& outcome) noexcept {
  const Call call{.key = key, .hash = hash(key), .out = out, .deadline = deadline, .outcome = outcome};
  const Part& part = parts_[worker(call.hash)];
  if (const std::uint64_t entry = locations_.find(call.hash); entry != 0) {
    const Read read = read_item(part, entry, call);
    if (read == Read::kDone) [[likely]] {
      ++counts_.by_location;
      mark(part, call.hash);
      return read;
    }
    if (read == Read::kNoWay || read == Read::kOtherKind) return read;
    drop(call.hash);
  }
  return look_up(part, call);
}

void Reader::mark(const Part& part, std::uint64_t hash) noexcept {
  if (!is_mark_due(part)) [[likely]]
    return;
  static constexpr std::byte kMarked{1};
  // Nobody misses a mark that cannot be written now.
  (void)part.channel->write_now(std::span(&kMarked, 1), part.mark(hash));
}

void Reader::drop(std::uint64_t hash) noexcept {
  locations_.forget(hash);
  ++counts_.stale;
}

Reader::Read Reader::look_up(const Part& part, const Call& call) noexcept {
  for (unsigned lookup = 1;; ++lookup) {
    const Read read = look_up_once(part, call);
    if (read == Read::kDone) {
      ++counts_.by_index;
      mark(part, call.hash);
    }
    if (read != Read::kOvertaken) return read;
    if (lookup == kMostLookups) break;
    ++counts_.retries;
  }
  ++counts_.overtaken;
  return Read::kOvertaken;
}

Reader::Read Reader::look_up_once(const Part& part, const Call& call) noexcept {
  const std::uint32_t tag = tag_of(call.hash);
  std::uint64_t number = first_bucket(call.hash, part.buckets);
  for (int i = 0; i < 2; ++i, number = other_bucket(number, tag, part.buckets)) {
    Bucket bucket;
    const std::span bytes = std::as_writable_bytes(std::span(bucket));
    if (part.channel->read_now(bytes, part.bucket(number)) != Status::kOk) return Read::kNoWay;
    for (unsigned left = matches(bucket, tag); left != 0; left &= left - 1) {
      const auto slot = static_cast<unsigned>(std::countr_zero(left));
      const std::uint64_t entry = bucket[slot];
      const Read read = read_item(part, entry, call);
      if (is_guarded_ && read == Read::kDone && !is_still_there(part, number, slot, entry)) [[unlikely]]
        return Read::kOvertaken;
      if (read == Read::kDone) locations_.note(call.hash, entry);
      if (read != Read::kOtherKey) return read;
    }
  }
  return Read::kOtherKey;
}

// Only the server stores entries, and it replaces the entry before the item's block is reused.
bool Reader::is_still_there(const Part& part, std::uint64_t bucket, unsigned slot, std::uint64_t entry) noexcept {
  std::uint64_t now = 0;
  channel::RemoteSpan word = part.bucket(bucket);
  word.address += slot * sizeof now;
  word.length = sizeof now;
  return part.channel->read_now(std::as_writable_bytes(std::span(&now, 1)), word) == Status::kOk && now == entry;
}

Reader::Read Reader::read_item(const Part& part, std::uint64_t entry, const Call& call) noexcept {
  const channel::RemoteSpan item = part.item(entry);
  if (item.length == 0) [[unlikely]]
    return Read::kOtherKey;
  const std::span bytes(scratch_.data(), static_cast<std::size_t>(item.length));
  if (part.channel->read_now(bytes, item) != Status::kOk) [[unlikely]]
    return Read::kNoWay;
  return take(part, item.address, bytes, call);
}

Reader::Read Reader::take(const Part& part, std::uint64_t address, std::span<const std::byte> item,
                          const Call& call) noexcept {
  ItemView view;
  const Read taken = take(item, part, call, view);
  return taken == Read::kLarge ? read_value(part, address, view, call) : taken;
}

// The item is live before and after the READ of its value, so its blocks were not reused in between. `read_now` ends
// with fences::read_before_next, which keeps the three READs in this order; a device's completions do.
Reader::Read Reader::read_value(const Part& part, std::uint64_t address, const ItemView& item,
                                const Call& call) noexcept {
  const std::span<std::byte> value = call.out.first(static_cast<std::size_t>(item.value_length));
  for (std::size_t done = 0; done < value.size();) {
    if (done != 0 && call.deadline.passed()) {
      call.outcome = {Status::kTimedOut};
      return Read::kDone;
    }
    const std::span<std::byte> piece = value.subspan(done, std::min(kPieceBytes, value.size() - done));
    const channel::RemoteSpan from{
        .address = part.address + item.place.offset + done, .length = piece.size(), .rkey = part.rkey};
    if (part.channel->read_now(piece, from) != Status::kOk) return Read::kNoWay;
    done += piece.size();
  }
  std::uint64_t state = 0;
  const std::span bytes = std::as_writable_bytes(std::span(&state, 1));
  const channel::RemoteSpan front{.address = address, .length = bytes.size(), .rkey = part.rkey};
  if (part.channel->read_now(bytes, front) != Status::kOk) return Read::kNoWay;
  const bool is_intact = (item.flags & kHasValueChecksum) == 0 || checksum_of_value(value) == item.place.checksum;
  return is_live(state, item.version) && is_intact ? Read::kDone : Read::kOvertaken;
}

// --- some keys

Reader::Left Reader::get_some(std::span<GetRequest> requests, Deadline deadline) noexcept {
  std::array<Sought, kMostAtOnce> sought;
  std::size_t count = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    GetRequest& request = requests[i];
    if (request.key.size() - 1 >= kMaxKeyBytes) {
      request.outcome = {note(Status::kBadKey, "kv::Client::get", "key must have 1 to {} bytes; got {}", kMaxKeyBytes,
                              request.key.size())};
      continue;
    }
    const std::uint64_t h = hash(request.key);
    locations_.prefetch(h);
    sought[count++] = {.hash = h, .request = &request, .bit = std::uint32_t{1} << i, .worker = worker(h)};
  }
  const std::span all = std::span(sought).first(count);
  if (parts_.size() > 1)  // Few elements, and stable: the first key is asked for first.
    std::ranges::sort(all, {}, [](const Sought& one) { return std::pair(one.worker, one.bit); });
  Left left;
  for (std::size_t from = 0; from < all.size();) {
    std::size_t to = from + 1;
    while (to < all.size() && all[to].worker == all[from].worker) ++to;
    get_of_part(parts_[all[from].worker], all.subspan(from, to - from), deadline, left);
    from = to;
  }
  return left;
}

void Reader::get_of_part(const Part& part, std::span<Sought> sought, Deadline deadline, Left& left) noexcept {
  for (Sought& one : sought) {
    one.entry = locations_.find(one.hash);
    one.is_known = one.entry != 0;
  }
  // Most keys are in their first bucket.
  if (!read_buckets(part, sought, Which::kFirst) || !read_buckets(part, sought, Which::kSecond)) [[unlikely]] {
    for (const Sought& one : sought) left.by_queue |= one.bit;
    return;
  }
  const std::uint32_t again = take_items(part, sought, deadline, left);
  for (const Sought& one : sought) {
    if ((again & one.bit) == 0) continue;
    if (one.is_known) drop(one.hash);
    const Read read = look_up(part, one.call(deadline));
    if (read != Read::kDone) (read == Read::kNoWay ? left.by_queue : left.by_message) |= one.bit;
  }
}

bool Reader::read_buckets(const Part& part, std::span<Sought> sought, Which which) noexcept {
  std::array<nic::PlainRead, kMostAtOnce> reads;
  std::array<Sought*, kMostAtOnce> of;
  std::size_t count = 0;
  for (Sought& one : sought) {
    if (one.entry != 0) continue;
    std::uint64_t number = first_bucket(one.hash, part.buckets);
    if (which == Which::kSecond) number = other_bucket(number, tag_of(one.hash), part.buckets);
    reads[count] = {
        .to = scratch_.data() + count * sizeof(Bucket), .bytes = sizeof(Bucket), .from = part.bucket(number).address};
    of[count++] = &one;
  }
  if (count == 0) return true;
  if (part.channel->read_list_now(std::span(reads).first(count), part.rkey) != Status::kOk) return false;
  for (std::size_t i = 0; i < count; ++i) {
    Bucket bucket;
    std::memcpy(&bucket, reads[i].to, sizeof bucket);
    const unsigned found = matches(bucket, tag_of(of[i]->hash));
    if (found != 0) of[i]->entry = bucket[static_cast<unsigned>(std::countr_zero(found))];
  }
  return true;
}

// READs the items of those with an entry, as many at a time as the scratch memory holds. Returns the ones to look up
// again; the ones to fetch by other means go into `left`.
std::uint32_t Reader::take_items(const Part& part, std::span<const Sought> sought, Deadline deadline,
                                 Left& left) noexcept {
  std::uint32_t again = 0;
  for (std::size_t next = 0; next < sought.size();) {
    std::array<nic::PlainRead, kMostAtOnce> reads;
    std::array<const Sought*, kMostAtOnce> of;
    std::size_t count = 0, used = 0;
    for (; next < sought.size(); ++next) {
      const Sought& one = sought[next];
      const channel::RemoteSpan item = part.item(one.entry);
      if (item.length == 0) {  // No item, which is also what an entry of 0 says.
        left.by_message |= one.bit;
        continue;
      }
      if (used + item.length > scratch_.size()) break;
      reads[count] = {
          .to = scratch_.data() + used, .bytes = static_cast<std::uint32_t>(item.length), .from = item.address};
      of[count++] = &one;
      used += static_cast<std::size_t>(item.length);
    }
    if (count == 0) continue;
    const Status status = part.channel->read_list_now(std::span(reads).first(count), part.rkey);
    for (std::size_t i = 0; i < count; ++i) {
      const Sought& one = *of[i];
      const Read read = status == Status::kOk
                            ? take(part, reads[i].from, {reads[i].to, reads[i].bytes}, one.call(deadline))
                            : Read::kNoWay;
      if (read == Read::kDone) {
        ++(one.is_known ? counts_.by_location : counts_.by_index);
        if (!one.is_known) locations_.note(one.hash, one.entry);
        mark(part, one.hash);
      } else if (read == Read::kNoWay) {
        left.by_queue |= one.bit;
      } else if (read == Read::kOtherKind) {
        left.by_message |= one.bit;
      } else {
        again |= one.bit;
      }
    }
  }
  return again;
}

}  // namespace verbena::kv
