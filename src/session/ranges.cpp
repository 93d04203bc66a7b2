#include "session/ranges.hpp"

#include "base/check.hpp"
#include "base/threads.hpp"

namespace verbena::session {

/// Excludes other threads, and orders their earlier accesses to the ranges before this thread's.
class Ranges::Alone {
 public:
  explicit Alone(const Ranges& ranges) noexcept : flag_(ranges.is_busy_) {
    while (flag_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      yield_thread();
  }
  ~Alone() { flag_.store(false, std::memory_order_release); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  std::atomic<bool>& flag_;
};

Ranges::Ranges(std::uint64_t length, std::uint32_t max_ranges) : length_(length), ranges_(max_ranges) {
  VERBENA_CHECK(max_ranges >= 1 && max_ranges <= kMaxRanges);
  for (std::uint32_t i = 0; i + 1 < max_ranges; ++i) ranges_[i].next = i + 1;
}

std::uint32_t Ranges::insert(Span span, std::uint32_t previous, std::uint32_t next) noexcept {
  const std::uint32_t made = first_free_;
  if (made == kNone) return kNone;
  Range& range = ranges_[made];
  first_free_ = range.next;
  range.span = span;
  range.previous = previous;
  range.next = next;
  range.holders.store(1, std::memory_order_relaxed);
  (previous == kNone ? first_ : ranges_[previous].next) = made;
  if (next != kNone) ranges_[next].previous = made;
  held_.store(held_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return made;
}

void Ranges::remove(std::uint32_t range) noexcept {
  Range& gone = ranges_[range];
  (gone.previous == kNone ? first_ : ranges_[gone.previous].next) = gone.next;
  if (gone.next != kNone) ranges_[gone.next].previous = gone.previous;
  gone.next = first_free_;
  first_free_ = range;
  held_.store(held_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
}

Status Ranges::take(Span wanted, std::uint32_t& range) noexcept {
  if (wanted.begin > wanted.end || wanted.end > length_) return Status::kOutOfRange;
  if (wanted.begin == wanted.end) return Status::kBadArgument;
  const Alone alone(*this);
  std::uint32_t previous = kNone;
  std::uint32_t next = first_;
  for (; next != kNone && ranges_[next].span.end <= wanted.begin; next = ranges_[next].next) previous = next;
  if (next != kNone && ranges_[next].span.begin < wanted.end) return Status::kBusy;
  range = insert(wanted, previous, next);
  return range != kNone ? Status::kOk : Status::kLimit;
}

Status Ranges::split(std::uint32_t range, std::uint64_t front, std::uint32_t& rest) noexcept {
  Range& whole = ranges_[range];
  if (front == 0 || front >= whole.span.end - whole.span.begin) return Status::kOutOfRange;
  const std::uint64_t border = whole.span.begin + front;
  const Alone alone(*this);
  rest = insert({border, whole.span.end}, range, whole.next);
  if (rest == kNone) return Status::kLimit;
  whole.span.end = border;
  return Status::kOk;
}

Status Ranges::join(std::uint32_t range, std::uint32_t next) noexcept {
  Range& front = ranges_[range];
  const Range& back = ranges_[next];
  if (back.span.begin != front.span.end) return Status::kBadArgument;
  const Alone alone(*this);
  front.span.end = back.span.end;
  remove(next);
  return Status::kOk;
}

bool Ranges::drop(std::uint32_t range) noexcept {
  std::atomic<std::uint32_t>& holders = ranges_[range].holders;
  // One that is alone stays so: only a holder makes another.
  const bool is_last =
      holders.load(std::memory_order_acquire) == 1 || holders.fetch_sub(1, std::memory_order_acq_rel) == 1;
  if (!is_last) return false;
  const Alone alone(*this);
  remove(range);
  return !is_open_ && held_.load(std::memory_order_relaxed) == 0;
}

bool Ranges::close() noexcept {
  const Alone alone(*this);
  is_open_ = false;
  return held_.load(std::memory_order_relaxed) == 0;
}

}  // namespace verbena::session
