// Scans of a store's keys, step by step: see store.hpp.
#include "kv/store.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::kv {

template <class Visit>
Store::Scanned Store::step(Key prefix, ScanPlace from, Visit&& visit) const noexcept {
  Scanned done{.next = from};
  ScanPlace& next = done.next;
  // At the start there is nothing behind it that an entry could move to.
  if (next.place == 0 || moves_ - next.moves > kMovesKept) next = {.place = 0, .moves = moves_};
  unsigned looked = 0;
  const auto look = [&](std::uint64_t place) {
    std::uint64_t& word = word_at(place);
    if (word == 0) return true;
    ++looked;
    if (has_expired(item_of(word))) return true;
    const Key key = key_at(item_of(word));
    const bool begins = key.size() >= prefix.size() && std::ranges::equal(key.first(prefix.size()), prefix);
    return !begins || visit(word, key);
  };
  // Wherever the entry came from. One that moved twice is found in its last place.
  for (; next.moves != moves_; ++next.moves) {
    const std::uint64_t place = moved_to_[next.moves % kMovesKept];
    if (looked == kMostScanned || (place < next.place && !look(place))) return done;
  }
  const std::uint64_t places = index_.size() * kBucketEntries;
  const std::uint64_t end = std::min(next.place + kMostPlaces, places);
  for (; next.place != end && looked != kMostScanned; ++next.place)
    if (!look(next.place)) return done;
  done.is_over = next.place == places;
  return done;
}

Store::Scanned Store::list(Key prefix, ScanPlace from, std::span<std::byte> out) const noexcept {
  std::uint32_t keys = 0;
  std::size_t used = 0;
  Scanned done = step(prefix, from, [&](std::uint64_t, Key key) {
    const auto length = static_cast<std::uint16_t>(key.size());
    if (sizeof length + key.size() > out.size() - used) return false;
    std::memcpy(out.data() + used, &length, sizeof length);
    std::memcpy(out.data() + used + sizeof length, key.data(), key.size());
    used += sizeof length + key.size();
    ++keys;
    return true;
  });
  done.keys = keys;
  done.bytes = used;
  return done;
}

Store::Scanned Store::flush(Key prefix, ScanPlace from) noexcept {
  std::uint32_t keys = 0;
  Scanned done = step(prefix, from, [&](std::uint64_t& word, Key) {
    if ((shape(item_of(word)).flags & kCell) != 0) return true;
    remove(word);
    ++keys;
    return true;
  });
  done.keys = keys;
  return done;
}

// Call when an entry's copy is in its new place.
void Store::note_move(const std::uint64_t* to) noexcept {
  moved_to_[moves_++ % kMovesKept] = static_cast<std::uint64_t>(to - index_.data()->data());
}

}  // namespace verbena::kv
