// Outgoing messages, within the room that the peer's inbox has, and behind the transfers that came before them.
#pragma once

#include "channel/connection.hpp"
#include "session/calls.hpp"
#include "session/reception.hpp"
#include "session/transfers.hpp"
#include "session/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace verbena::session {

/// \thread owner of the session's loop
class Outbox {
 public:
  Outbox(Reception& reception, const Transfers& transfers) noexcept : reception_(reception), transfers_(transfers) {}
  /// With `wants_receipts` a call is done once the peer's NIC has its message, otherwise once this side's NIC has it.
  void meet(channel::Connection& connection, std::uint32_t peer_inbox_bytes, bool wants_receipts) noexcept {
    connection_ = &connection;
    peer_inbox_bytes_ = peer_inbox_bytes;
    longest_piece_ = connection.longest_send() - sizeof(wire::Head);
    wants_receipts_ = wants_receipts;
  }
  /// Sends a head and its piece at once, with the count of consumed bytes. Reports `receipt`, unless 0, once the peer's
  /// NIC has both. False: no room now.
  [[nodiscard]] bool say(wire::Head head, std::span<const std::byte> piece, std::uint64_t receipt = 0) noexcept;
  /// Sends a short message past calls and queues: on return the peer's NIC has it. False: not possible now, and nothing
  /// has happened.
  [[nodiscard]] bool send_now(std::span<const std::byte> data, std::optional<std::uint32_t> immediate) noexcept;
  void push(SendCall& call) noexcept {
    call.behind = transfers_.last_number();
    calls_.push(call);
  }
  [[nodiscard]] bool empty() const noexcept { return calls_.empty(); }
  /// Sends waiting messages while there is room.
  void progress() noexcept {
    for (SendCall* call; (call = calls_.first()) != nullptr;)
      if (call->is_sent || !send_some(*call)) return;
  }
  void on_receipt(std::uint64_t receipt, Status status) noexcept;
  /// Takes the peer's claim of how many bytes of records it has taken in all. False: the claim is impossible.
  [[nodiscard]] bool accept(std::uint64_t consumed) noexcept {
    if (consumed < peer_consumed_ || consumed > sent_) return false;
    peer_consumed_ = consumed;
    return true;
  }
  /// The caller is gone. True: all of the message is on its way.
  [[nodiscard]] bool cancel(SendCall& call) noexcept;
  void end(Status reason) noexcept { calls_.finish_all(reason); }

 private:
  /// False: nothing more can be sent now.
  [[nodiscard]] bool send_some(SendCall& call) noexcept;
  [[nodiscard]] bool has_room(std::size_t piece) const noexcept {
    return Inbox::bytes_of(piece) <= peer_inbox_bytes_ - (sent_ - peer_consumed_);
  }

  Reception& reception_;
  const Transfers& transfers_;
  channel::Connection* connection_ = nullptr;
  CallQueue<SendCall> calls_;
  std::uint32_t peer_inbox_bytes_ = 0;
  std::size_t longest_piece_ = 0;
  bool wants_receipts_ = false;
  std::uint64_t sent_ = 0;           ///< Bytes of records, in total.
  std::uint64_t peer_consumed_ = 0;  ///< How much of sent_ the peer claims to have taken.
  std::uint64_t last_receipt_ = 0;
};

}  // namespace verbena::session
