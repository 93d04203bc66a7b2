#include "c/inbox.hpp"

#include <algorithm>

namespace verbena::c {

void Inbox::put_in(std::uint64_t position, const void* from, std::size_t bytes) noexcept {
  const std::size_t at = position % capacity_;
  const std::size_t first = std::min(bytes, capacity_ - at);
  if (first != 0) std::memcpy(&ring_[at], from, first);
  if (bytes != first) std::memcpy(&ring_[0], static_cast<const std::byte*>(from) + first, bytes - first);
}

void Inbox::take_out(std::uint64_t position, void* to, std::size_t bytes) const noexcept {
  const std::size_t at = position % capacity_;
  const std::size_t first = std::min(bytes, capacity_ - at);
  if (first != 0) std::memcpy(to, &ring_[at], first);
  if (bytes != first) std::memcpy(static_cast<std::byte*>(to) + first, &ring_[0], bytes - first);
}

bool Inbox::push(const wire::Head& head, std::span<const std::byte> piece) noexcept {
  if (bytes_of(piece.size()) > capacity_ - (pushed_ - popped_)) return false;
  Record record{.head = head};
  record.head.consumed = piece.size();
  put_in(pushed_, &record, sizeof record);
  put_in(pushed_ + sizeof record, piece.data(), piece.size());
  const bool was_empty = empty();
  pushed_ += bytes_of(piece.size());
  if (was_empty) look_at_first();
  return true;
}

void Inbox::look_at_first() noexcept {
  Record record;
  take_out(popped_, &record, sizeof record);
  head_ = record.head;
  length_ = static_cast<std::size_t>(record.head.consumed);
}

void Inbox::pop() noexcept {
  popped_ += bytes_of(length_);
  consumed_ += bytes_of(length_);
  if (!empty()) look_at_first();
}

}  // namespace verbena::c
