// The ranges of a region that are held; none overlaps another.
#pragma once

#include <verbena/status.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::session {

/// Positions are elements, of whatever size the caller's are. A range has one holder, or several that share it; it is
/// free when the last has dropped it. Every call but the constructor is short, and excludes the others by one flag:
/// a caller spins for as long as another one's takes, which is at most a walk over the ranges that are held.
/// \thread any  \alloc setup (constructor)
class Ranges {
 public:
  static constexpr std::uint32_t kMaxRanges = 65536;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Span {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  /// `length` is the region's length in elements; `max_ranges` is 1 to kMaxRanges.
  Ranges(std::uint64_t length, std::uint32_t max_ranges);
  Ranges(const Ranges&) = delete;
  Ranges& operator=(const Ranges&) = delete;

  [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return static_cast<std::uint32_t>(ranges_.size()); }
  /// Makes [begin, end) a range with one holder. Errors: kBadArgument (no elements), kOutOfRange, kBusy (part of it is
  /// held), kLimit (max_ranges are held).
  [[nodiscard]] Status take(Span wanted, std::uint32_t& range) noexcept;
  /// Cuts a range with one holder after `front` elements; the rest becomes a range of its own. Errors: kOutOfRange (no
  /// elements on one side), kLimit.
  [[nodiscard]] Status split(std::uint32_t range, std::uint64_t front, std::uint32_t& rest) noexcept;
  /// Joins two ranges with one holder each into `range`. Errors: kBadArgument (`next` does not begin where `range`
  /// ends).
  [[nodiscard]] Status join(std::uint32_t range, std::uint32_t next) noexcept;

  /// Another holder of a range. \thread any, of one that holds it
  void share(std::uint32_t range) noexcept { ranges_[range].holders.fetch_add(1, std::memory_order_relaxed); }
  /// Whether the caller is the only holder, and sees what the others did.
  [[nodiscard]] bool is_sole(std::uint32_t range) const noexcept {
    return ranges_[range].holders.load(std::memory_order_acquire) == 1;
  }
  /// Removes a holder. True: it was the last of all, and the region is closed.
  [[nodiscard]] bool drop(std::uint32_t range) noexcept;
  /// Lets no more ranges be taken. True: none is held.
  [[nodiscard]] bool close() noexcept;

  /// \thread any that holds it
  [[nodiscard]] Span span(std::uint32_t range) const noexcept { return ranges_[range].span; }
  /// Number of held ranges.
  [[nodiscard]] std::uint32_t held() const noexcept { return held_.load(std::memory_order_relaxed); }

 private:
  /// A held range is in the list, by position; a free one is in the free list, by `next`.
  struct Range {
    Span span;
    std::atomic<std::uint32_t> holders{0};
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;
  };
  static_assert(sizeof(Range) == 32);

  class Alone;
  [[nodiscard]] std::uint32_t insert(Span span, std::uint32_t previous, std::uint32_t next) noexcept;
  void remove(std::uint32_t range) noexcept;

  const std::uint64_t length_;
  std::vector<Range> ranges_;
  mutable std::atomic<bool> is_busy_{false};  ///< Guards the members below, and the lists.
  bool is_open_ = true;
  std::uint32_t first_ = kNone;
  std::uint32_t first_free_ = 0;
  std::atomic<std::uint32_t> held_{0};
};

}  // namespace verbena::session
