#include "session/reception.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::session {

Result<void> Front::reserve(std::size_t bytes) {
  if (bytes <= reserved_) return {};
  VERBENA_ASSIGN(memory_, host::LazyMemory::create(bytes,
                                                   "reserving address space for the longest message that a "
                                                   "handler gets; lower max_message_bytes, or raise ulimit -v"));
  reserved_ = bytes;
  size_ = 0;
  return {};
}

void Reception::discard() noexcept {
  discards_.store(true, std::memory_order_relaxed);
  release();
  for (; !inbox_.empty(); inbox_.pop()) count_discarded(inbox_.head(), inbox_.length());
}

void Reception::count_discarded(const wire::Head& head, std::size_t piece) noexcept {
  if (head.kind == wire::Kind::kData && head.offset + piece != head.total) return;
  discarded_.store(discarded_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Everything in the head is the peer's claim.
bool Reception::accept(const wire::Head& head, std::span<const std::byte> piece, bool keeps) noexcept {
  if (head.kind == wire::Kind::kWritten) {
    if (!piece.empty() || head.offset > window_.size() || head.total > window_.size() - head.offset) return false;
    total_ = 0;  // Drops an unfinished message.
  } else {
    if (piece.empty() || head.offset > head.total || piece.size() > head.total - head.offset) return false;
    if (head.offset != 0 && (head.total != total_ || head.offset != next_)) return false;
    next_ = head.offset + piece.size();
    total_ = next_ == head.total ? 0 : head.total;
  }
  if (keeps && !discards()) return (!calls_.empty() && feed_whole(head, piece)) || inbox_.push(head, piece);
  inbox_.skip(piece.size());
  if (discards()) count_discarded(head, piece.size());
  return true;
}

bool Reception::take_written(rdma::Message& message) noexcept {
  const wire::Head& head = inbox_.head();
  if (head.kind != wire::Kind::kWritten) return false;
  front_.clear();
  message = {.kind = rdma::Message::Kind::kWritten,
             .immediate = head.immediate,
             .data = window_.subspan(static_cast<std::size_t>(head.offset), static_cast<std::size_t>(head.total))};
  inbox_.pop();
  return true;
}

rdma::Message Reception::whole(const wire::Head& head, std::span<std::byte> bytes) noexcept {
  rdma::Message message{.kind = rdma::Message::Kind::kSent, .data = bytes};
  if ((head.flags & wire::kHasImmediate) != 0) message.immediate = head.immediate;
  return message;
}

// Moves one record, or finishes the call, or both.
void Reception::feed(ReceiveCall& call) noexcept {
  if (take_written(call.message)) return calls_.finish(call, Status::kOk);
  const wire::Head head = inbox_.head();
  if (head.offset == 0) {
    call.filled = 0;
    front_.clear();
  }
  if (head.total > call.length) {
    call.needed = static_cast<std::size_t>(head.total);
    return calls_.finish(call, Status::kBufferTooSmall);
  }
  if (call.filled != head.offset) {
    VERBENA_CHECK(front_.size() == head.offset);
    std::memcpy(call.to, front_.data(), front_.size());
    call.filled = front_.size();
    front_.clear();
  }
  inbox_.copy(call.to + call.filled);
  call.filled += inbox_.length();
  inbox_.pop();
  if (call.filled != head.total) return;
  call.message = whole(head, {call.to, call.filled});
  calls_.finish(call, Status::kOk);
}

// Not for a call whose end somebody is told of: that may begin the next call, and here a handler is running.
bool Reception::feed_whole(const wire::Head& head, std::span<const std::byte> bytes) noexcept {
  if (head.kind != wire::Kind::kData || bytes.size() != head.total || !inbox_.empty()) return false;
  ReceiveCall& call = *calls_.first();
  if (call.tell != nullptr || call.is_dropped.load(std::memory_order_relaxed) || bytes.size() > call.length)
    return false;
  front_.clear();
  std::memcpy(call.to, bytes.data(), bytes.size());
  inbox_.skip(bytes.size());
  call.filled = bytes.size();
  call.message = whole(head, {call.to, call.filled});
  calls_.finish(call, Status::kOk);
  return true;
}

// The call has taken the start of a message; the next call continues it.
Status Reception::cancel(ReceiveCall& call) noexcept {
  calls_.remove(call);
  if (call.filled == 0) return Status::kOk;
  if (!front_.reserve(call.filled)) return Status::kNoMemory;
  front_.resize(call.filled);
  std::memcpy(front_.data(), call.to, call.filled);
  return Status::kOk;
}

Status Reception::assemble(rdma::Message& message) noexcept {
  while (!inbox_.empty()) {
    if (take_written(message)) return Status::kOk;
    const wire::Head& head = inbox_.head();
    if (head.offset == 0) front_.clear();
    // A large one would keep the room of the next messages while the handler runs.
    if (inbox_.length() == head.total && head.total <= std::min(max_message_bytes_, inbox_.capacity() / 8)) [[likely]] {
      if (std::byte* const bytes = inbox_.in_place(); bytes != nullptr) {
        is_lent_ = true;
        message = whole(head, {bytes, inbox_.length()});
        return Status::kOk;
      }
    }
    if (head.total > max_message_bytes_) {
      while (!inbox_.empty()) inbox_.pop();
      return Status::kTooLong;
    }
    front_.resize(head.offset + inbox_.length());
    inbox_.copy(front_.data() + head.offset);
    const bool is_last = front_.size() == head.total;
    if (is_last) message = whole(head, {front_.data(), front_.size()});
    inbox_.pop();
    if (is_last) return Status::kOk;
  }
  return Status::kAgain;
}

}  // namespace verbena::session
