#include "session/inbox.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace verbena::session {

Inbox::Inbox(std::size_t capacity) : capacity_(capacity) {
  auto memory = host::LazyMemory::create(capacity, "making an inbox");
  if (!memory) throw std::bad_alloc();
  memory_ = std::move(*memory);
}

void Inbox::put_in(std::uint64_t position, const void* from, std::size_t bytes) noexcept {
  const std::size_t at = place_of(position);
  const std::size_t first = std::min(bytes, capacity_ - at);
  if (first != 0) std::memcpy(memory_.data() + at, from, first);
  if (bytes != first) std::memcpy(memory_.data(), static_cast<const std::byte*>(from) + first, bytes - first);
}

void Inbox::take_out(std::uint64_t position, void* to, std::size_t bytes) const noexcept {
  const std::size_t at = place_of(position);
  const std::size_t first = std::min(bytes, capacity_ - at);
  if (first != 0) std::memcpy(to, memory_.data() + at, first);
  if (bytes != first) std::memcpy(static_cast<std::byte*>(to) + first, memory_.data(), bytes - first);
}

bool Inbox::push(const wire::Head& head, std::span<const std::byte> piece) noexcept {
  if (bytes_of(piece.size()) > capacity_ - (pushed_ - popped_)) return false;
  const bool was_empty = empty();
  if (was_empty) pushed_ = popped_ = 0;
  // In the ring, the head's `consumed` holds the piece's length.
  wire::Head record = head;
  record.consumed = piece.size();
  if (was_empty) {
    set_first(record);  // Nobody reads its head from the ring.
  } else {
    put_in(pushed_, &record, sizeof record);
  }
  put_in(pushed_ + sizeof record, piece.data(), piece.size());
  pushed_ += bytes_of(piece.size());
  return true;
}

void Inbox::look_at_first() noexcept {
  wire::Head record;
  take_out(popped_, &record, sizeof record);
  set_first(record);
}

void Inbox::pop() noexcept {
  popped_ += bytes_of(length_);
  // Positions stay below twice the capacity: `place_of` needs no division.
  if (popped_ >= capacity_) {
    popped_ -= capacity_;
    pushed_ -= capacity_;
  }
  consumed_ += bytes_of(length_);
  if (!empty()) look_at_first();
}

}  // namespace verbena::session
