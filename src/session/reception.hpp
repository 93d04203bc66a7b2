// Messages that have arrived: the inbox, the calls that wait for them, and messages assembled for a handler.
#pragma once

#include "base/check.hpp"
#include "host/lazy_memory.hpp"
#include "session/calls.hpp"
#include "session/inbox.hpp"
#include "session/wire.hpp"

#include <verbena/error.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace verbena::session {

/// The front of a message that is only partly taken, in memory that was reserved before: pages come as bytes do.
/// \thread owner of the session's loop
class Front {
 public:
  /// Makes room for `bytes`; if there was less, drops what is there. \alloc setup
  [[nodiscard]] Result<void> reserve(std::size_t bytes);
  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// The bytes up to `size`, which must be within the reserved ones.
  void resize(std::size_t size) noexcept {
    VERBENA_CHECK(size <= reserved_);
    size_ = size;
  }
  void clear() noexcept { size_ = 0; }

 private:
  host::LazyMemory memory_;
  std::size_t reserved_ = 0;
  std::size_t size_ = 0;
};

/// \thread owner of the session's loop, except where said
class Reception {
 public:
  /// `window` is the memory that the peer's writes with a message go to.
  Reception(std::size_t inbox_bytes, std::size_t max_message_bytes) noexcept(false)
      : inbox_(inbox_bytes), max_message_bytes_(max_message_bytes) {}
  void set_window(std::span<std::byte> window) noexcept { window_ = window; }
  /// Reserves the address space in which messages are assembled for a handler. Errors: kNoMemory. \alloc setup
  [[nodiscard]] Result<void> reserve() { return front_.reserve(max_message_bytes_); }

  /// From now on counts and drops messages, including those already here.
  void discard() noexcept;
  /// \thread any
  [[nodiscard]] bool discards() const noexcept { return discards_.load(std::memory_order_relaxed); }
  /// \thread any
  [[nodiscard]] std::uint64_t discarded() const noexcept { return discarded_.load(std::memory_order_relaxed); }

  /// Takes a piece that has arrived; without `keeps`, only counts it. False: the peer broke the protocol.
  [[nodiscard]] bool accept(const wire::Head& head, std::span<const std::byte> piece, bool keeps) noexcept;
  /// Total bytes of records taken, which the peer is told.
  [[nodiscard]] std::uint64_t consumed() const noexcept { return inbox_.consumed(); }
  /// Call when the peer was told of them.
  void told() noexcept { told_ = inbox_.consumed(); }
  [[nodiscard]] bool is_telling_due() const noexcept { return inbox_.consumed() - told_ >= inbox_.capacity() / 4; }
  [[nodiscard]] bool empty() const noexcept { return inbox_.empty(); }

  void push(ReceiveCall& call) noexcept { calls_.push(call); }
  /// Gives messages to the calls that wait for them. False: no memory for the front of a message that a dropped call
  /// had.
  [[nodiscard]] bool progress() noexcept {
    while (ReceiveCall* const call = calls_.first()) {
      if (call->is_dropped.load(std::memory_order_relaxed)) [[unlikely]] {
        if (!drop(*call)) return false;
      } else if (inbox_.empty()) {
        return true;
      } else {
        feed(*call);
      }
    }
    return true;
  }
  void end(Status reason) noexcept { calls_.finish_all(reason); }
  /// The caller is gone. Returns kOk, or kNoMemory: it had the front of a message, which cannot be kept.
  [[nodiscard]] Status cancel(ReceiveCall& call) noexcept;
  /// The same, and the call is done. False: kNoMemory.
  [[nodiscard]] bool drop(ReceiveCall& call) noexcept {
    const Status cancelled = cancel(call);
    call.finish(Status::kTimedOut);
    return cancelled == Status::kOk;
  }

  /// After `reserve`: takes the next message for a handler: kOk, kAgain (none is complete), or kTooLong, which ends the
  /// session. Its bytes stay until `release`, which must come first. \alloc none
  [[nodiscard]] Status assemble(rdma::Message& message) noexcept;
  void release() noexcept {
    if (std::exchange(is_lent_, false)) inbox_.pop();
  }

 private:
  void count_discarded(const wire::Head& head, std::size_t piece) noexcept;
  void feed(ReceiveCall& call) noexcept;
  /// Copies a whole message to the call that waits for it. False: none does, or something is ahead of it.
  [[nodiscard]] bool feed_whole(const wire::Head& head, std::span<const std::byte> bytes) noexcept;
  /// Takes the first record if it reports a WRITE; that drops an unfinished message.
  [[nodiscard]] bool take_written(rdma::Message& message) noexcept;
  [[nodiscard]] static rdma::Message whole(const wire::Head& head, std::span<std::byte> bytes) noexcept;

  Inbox inbox_;
  const std::size_t max_message_bytes_;
  std::span<std::byte> window_;
  CallQueue<ReceiveCall> calls_;
  Front front_;
  std::uint64_t told_ = 0;
  bool is_lent_ = false;     ///< The handler has the first record of the inbox.
  std::uint64_t total_ = 0;  ///< Bytes of the message that is arriving; 0: none.
  std::uint64_t next_ = 0;   ///< Offset of its next piece.
  std::atomic<bool> discards_{false};
  std::atomic<std::uint64_t> discarded_{0};
};

}  // namespace verbena::session
