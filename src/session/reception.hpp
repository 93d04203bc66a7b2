// Messages that have arrived: the inbox, the calls that wait for them, and messages assembled for a handler.
#pragma once

#include "session/calls.hpp"
#include "session/inbox.hpp"
#include "session/wire.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace verbena::session {

/// \thread owner of the session's loop, except where said
class Reception {
 public:
  /// `window` is the memory that the peer's writes with a message go to.
  Reception(std::size_t inbox_bytes, std::size_t max_message_bytes) noexcept(false)
      : inbox_(inbox_bytes), max_message_bytes_(max_message_bytes) {}
  void set_window(std::span<std::byte> window) noexcept { window_ = window; }

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
  /// Gives messages to the calls that wait for them.
  void progress() noexcept {
    while (!calls_.empty() && !inbox_.empty()) feed(*calls_.first());
  }
  void end(Status reason) noexcept { calls_.finish_all(reason); }
  /// The caller is gone. Returns kOk, or kNoMemory: it had the front of a message, which cannot be kept.
  [[nodiscard]] Status cancel(ReceiveCall& call) noexcept;

  /// Takes the next message for a handler: kOk, kAgain (none is complete), or kTooLong and kNoMemory, which end the
  /// session.
  [[nodiscard]] Status assemble(rdma::Message& message) noexcept;

 private:
  void count_discarded(const wire::Head& head, std::size_t piece) noexcept;
  void feed(ReceiveCall& call) noexcept;
  /// Takes the first record if it reports a WRITE; that drops an unfinished message.
  [[nodiscard]] bool take_written(rdma::Message& message) noexcept;
  [[nodiscard]] static rdma::Message whole(const wire::Head& head, std::span<std::byte> bytes) noexcept;

  Inbox inbox_;
  const std::size_t max_message_bytes_;
  std::span<std::byte> window_;
  CallQueue<ReceiveCall> calls_;
  std::vector<std::byte> partial_;  ///< The front of a partly taken message.
  std::uint64_t told_ = 0;
  std::uint64_t total_ = 0;  ///< Bytes of the message that is arriving; 0: none.
  std::uint64_t next_ = 0;   ///< Offset of its next piece.
  std::atomic<bool> discards_{false};
  std::atomic<std::uint64_t> discarded_{0};
};

}  // namespace verbena::session
