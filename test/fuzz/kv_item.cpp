// What a reader concludes from bytes of a worker's window: items that may be anything, index entries, and buckets.
#include "input.hpp"
#include "kv/index.hpp"
#include "kv/item.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace verbena::fuzz::kv_item {
namespace {

using namespace kv;

enum class Form : std::uint8_t {
  kBytes,   ///< Judged as they are.
  kSealed,  ///< With the state and the checksum that no mutation finds.
  kBuilt,   ///< An item of the input's fields, with one bit flipped.
  kIndex,
  kEnd,
};

/// What must hold of an item that a reader takes.
void check_whole(Bytes bytes, Key key, std::uint64_t window_bytes, const ItemView& view) {
  ItemHeader header;
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof header);
  const ItemShape shape = ItemShape::unpack(header.shape);
  VERBENA_CHECK(is_live(header.state, view.version) && view.version != 0 && view.version <= kMaxVersion);
  VERBENA_CHECK(shape.bytes() <= bytes.size() && shape.pack() == header.shape);
  VERBENA_CHECK(checksum_of(bytes.data(), shape.bytes(), view.version) == header.checksum);
  VERBENA_CHECK(same_bytes(bytes.subspan(sizeof header, shape.key_length), key));
  VERBENA_CHECK(view.value_length == shape.value_length && view.flags == shape.flags);
  if (shape.is_inline()) {
    VERBENA_CHECK(is_inside(view.value, bytes) && view.value.size() == shape.value_length);
  } else {
    VERBENA_CHECK(view.value.empty() && view.place.offset <= window_bytes);
    VERBENA_CHECK(shape.value_length <= window_bytes - view.place.offset);
  }
}

Verdict check_judge(Bytes bytes, Key key, std::uint64_t window_bytes) {
  constexpr std::uint64_t kUntouched = 0x5555;
  ItemView view{.version = kUntouched, .value_length = kUntouched, .value = {}, .place = {}};
  const Verdict verdict = judge(bytes, key, window_bytes, view);
  VERBENA_CHECK(verdict <= Verdict::kTorn);
  if (verdict == Verdict::kWhole) {
    check_whole(bytes, key, window_bytes, view);
  } else {
    VERBENA_CHECK(view.version == kUntouched && view.value_length == kUntouched && view.value.empty());
  }
  return verdict;
}

/// Gives bytes the state and, where its lengths allow, the checksum of a live item.
void seal(std::span<std::byte> bytes, std::uint64_t version) {
  if (bytes.size() < sizeof(ItemHeader)) return;
  ItemHeader header;
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof header);
  header.state = state_word(ItemState::kLive, version);
  const std::size_t whole = ItemShape::unpack(header.shape).bytes();
  if (whole <= bytes.size()) header.checksum = checksum_of(bytes.data(), whole, version);
  std::memcpy(bytes.data(), &header, sizeof header);
}

/// The key that the bytes claim, so that looking at it is no dead end; `other` for a key of its own.
Key key_in(Bytes bytes, Bytes other) {
  if (bytes.size() < sizeof(ItemHeader)) return other;
  ItemHeader header;
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof header);
  const std::size_t length = ItemShape::unpack(header.shape).key_length;
  const bool is_there = length != 0 && length <= bytes.size() - sizeof header;
  return is_there ? bytes.subspan(sizeof header, length) : other;
}

void run_bytes(Input in, bool is_sealed) {
  const auto window_bytes = in.take<std::uint64_t>();
  const auto version = in.take<std::uint64_t>() & kMaxVersion;
  const Tight own(in.take_bytes(1 + in.take<std::uint8_t>() % 8));
  Tight item(in.rest());
  if (is_sealed) seal(item.writable(), version);
  (void)check_judge(item.bytes(), own.bytes(), window_bytes);
  const Tight claimed(key_in(item.bytes(), own.bytes()));
  (void)check_judge(item.bytes(), claimed.bytes(), window_bytes);
}

/// A right item is taken, and is not with one bit of it changed, but for what the server may note in it.
void run_built(Input in) {
  constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 30;
  const auto version = std::max<std::uint64_t>(in.take<std::uint64_t>() & kMaxVersion, 1);
  const auto flip = in.take<std::uint32_t>();
  const auto cut = in.take<std::uint16_t>();
  const bool is_large = in.take<std::uint8_t>() % 2 != 0;
  const auto place = in.take<ValuePlace>();
  const Bytes key = in.take_bytes(1 + in.take<std::uint16_t>() % kMaxKeyBytes);
  if (key.empty()) return;
  const Bytes value = in.take_bytes(kEagerBytes - 1);
  const ItemShape shape{.value_length = is_large ? kEagerBytes + value.size() : value.size(), .key_length = key.size()};
  Tight item(shape.bytes());
  const ItemHeader header{.state = 0, .server = flip, .checksum = 0, .shape = shape.pack()};
  std::memcpy(item.writable().data(), &header, sizeof header);
  std::ranges::copy(key, item.writable().begin() + sizeof header);
  const Bytes tail = is_large ? std::as_bytes(std::span(&place, 1)) : value;
  std::ranges::copy(tail, item.writable().begin() + static_cast<std::ptrdiff_t>(shape.tail_offset()));
  seal(item.writable(), version);
  const bool fits = !is_large || (place.offset <= kWindowBytes && shape.value_length <= kWindowBytes - place.offset);
  VERBENA_CHECK(check_judge(item.bytes(), key, kWindowBytes) == (fits ? Verdict::kWhole : Verdict::kTorn));

  const Tight less(item.bytes().first(cut % item.bytes().size()));
  VERBENA_CHECK(check_judge(less.bytes(), key, kWindowBytes) != Verdict::kWhole);

  const std::size_t bit = flip % (item.bytes().size() * 8);
  item.writable()[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  const bool is_note = bit / 64 == offsetof(ItemHeader, server) / 8;
  const Verdict verdict = check_judge(item.bytes(), key, kWindowBytes);
  VERBENA_CHECK(is_note ? verdict == (fits ? Verdict::kWhole : Verdict::kTorn) : verdict != Verdict::kWhole);
}

void run_index(Input in) {
  const auto word = in.take<std::uint64_t>();
  const auto window_bytes = in.take<std::uint64_t>() % (kMaxWindowBytes + 1);
  const Entry entry = Entry::unpack(word);
  VERBENA_CHECK(entry.pack() == word && tag_of_entry(word) == entry.tag);
  if (entry.is_inside(window_bytes)) {
    VERBENA_CHECK(entry.bytes() != 0 && entry.offset() + entry.bytes() <= window_bytes);
  }
  const auto hash = in.take<std::uint64_t>();
  const auto workers = 1 + in.take<std::uint8_t>() % 64u;
  const std::uint64_t items = 1 + in.take<std::uint64_t>() % kMaxItems;
  const std::uint64_t buckets = buckets_for(items);
  VERBENA_CHECK(buckets % 2 == 0 && buckets * kBucketEntries >= items && buckets <= buckets_for(kMaxItems));
  VERBENA_CHECK(index_bytes(buckets) >= buckets * sizeof(Bucket));
  VERBENA_CHECK(worker_of(hash, workers) < workers);
  const std::uint64_t first = first_bucket(hash, buckets);
  const std::uint64_t other = other_bucket(first, tag_of(hash), buckets);
  VERBENA_CHECK(first < buckets && other < buckets && first != other);
  VERBENA_CHECK(other_bucket(other, tag_of(hash), buckets) == first);
  const Entry least{.tag = 0, .lines = 1};
  VERBENA_CHECK(least.pack() != 0);
}

void run(Input in) {
  switch (static_cast<Form>(in.take<std::uint8_t>() % static_cast<std::uint8_t>(Form::kEnd))) {
    case Form::kBytes: return run_bytes(in, false);
    case Form::kSealed: return run_bytes(in, true);
    case Form::kBuilt: return run_built(in);
    case Form::kIndex: return run_index(in);
    case Form::kEnd: return;
  }
}

}  // namespace
}  // namespace verbena::fuzz::kv_item

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::kv_item::run({data, size});
  return 0;
}
