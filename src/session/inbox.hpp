// Messages that arrived and are not taken yet: a ring of records, each a head and its piece of a message.
#pragma once

#include "host/lazy_memory.hpp"
#include "session/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::session {

/// Holds `capacity` bytes. Both sides count a record as its head and its bytes. Memory is committed only once messages
/// have used it, and an empty inbox fills from its front again: an inbox whose messages are taken at once uses one or
/// two pages.
/// \thread owner  \alloc setup (constructor)
class Inbox {
 public:
  /// Throws bad_alloc.
  explicit Inbox(std::size_t capacity);

  [[nodiscard]] static constexpr std::uint64_t bytes_of(std::uint64_t piece) noexcept {
    return sizeof(wire::Head) + piece;
  }
  /// False: it does not fit, because the sender exceeded its room.
  [[nodiscard]] bool push(const wire::Head& head, std::span<const std::byte> piece) noexcept;
  [[nodiscard]] bool empty() const noexcept { return pushed_ == popped_; }

  /// Head of the first record. Requires a record.
  [[nodiscard]] const wire::Head& head() const noexcept { return head_; }
  [[nodiscard]] std::size_t length() const noexcept { return length_; }
  /// Copies the first record's piece to `to`.
  void copy(std::byte* to) const noexcept { take_out(popped_ + sizeof head_, to, length_); }
  /// The first record's piece where it lies, until `pop`; null if it goes around the end of the ring.
  [[nodiscard]] std::byte* in_place() const noexcept {
    const std::size_t at = place_of(popped_ + sizeof head_);
    return length_ <= capacity_ - at ? memory_.data() + at : nullptr;
  }
  void pop() noexcept;
  /// Counts a record that is not kept.
  void skip(std::size_t piece) noexcept { consumed_ += bytes_of(piece); }

  /// Total bytes of records taken, which the peer is told.
  [[nodiscard]] std::uint64_t consumed() const noexcept { return consumed_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

 private:
  [[nodiscard]] std::size_t place_of(std::uint64_t position) const noexcept {
    return static_cast<std::size_t>(position < capacity_ ? position : position - capacity_);
  }
  void put_in(std::uint64_t position, const void* from, std::size_t bytes) noexcept;
  void take_out(std::uint64_t position, void* to, std::size_t bytes) const noexcept;
  void look_at_first() noexcept;
  void set_first(const wire::Head& record) noexcept {
    head_ = record;
    length_ = static_cast<std::size_t>(record.consumed);
  }

  host::LazyMemory memory_;
  std::size_t capacity_;
  std::uint64_t pushed_ = 0;  ///< Ends of the records, counted from the place where the ring began last: `popped_`
  std::uint64_t popped_ = 0;  ///< is below the capacity, `pushed_` below twice that.
  std::uint64_t consumed_ = 0;
  wire::Head head_;  ///< Head of the first record.
  std::size_t length_ = 0;
};

}  // namespace verbena::session
