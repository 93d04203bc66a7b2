#include "session/outbox.hpp"

#include <algorithm>

namespace verbena::session {

bool Outbox::send_now(std::span<const std::byte> data, std::optional<std::uint32_t> immediate) noexcept {
  if (!calls_.empty() || data.size() - 1 >= longest_piece_ || !has_room(data.size())) return false;
  const wire::Head head{.flags = immediate ? wire::kHasImmediate : std::uint8_t{0},
                        .immediate = immediate.value_or(0),
                        .consumed = reception_.consumed(),
                        .total = data.size()};
  if (!connection_->send_now(std::as_bytes(std::span(&head, 1)), data)) return false;
  reception_.told();
  sent_ += Inbox::bytes_of(data.size());
  return true;
}

bool Outbox::send_some(SendCall& call) noexcept {
  const bool is_note = call.kind == wire::Kind::kWritten;
  if (call.after != nullptr && call.after->status != Status::kOk) {
    calls_.finish(call, call.after->status);
    return true;
  }
  if (transfers_.is_any_waiting(call.behind)) return false;
  const std::size_t bytes =
      is_note ? 0 : static_cast<std::size_t>(std::min<std::uint64_t>(call.length - call.sent, longest_piece_));
  // The peer takes anything but user messages at once, so that needs no room.
  const bool takes_room = is_note || call.kind == wire::Kind::kData;
  if (takes_room && !has_room(bytes)) return false;
  const wire::Head head{.kind = call.kind,
                        .flags = call.immediate ? wire::kHasImmediate : std::uint8_t{0},
                        .immediate = call.immediate.value_or(0),
                        .total = call.length,
                        .offset = is_note ? call.offset : call.sent};
  const bool is_last = is_note || call.sent + bytes == call.length;
  const std::uint64_t receipt = is_last && wants_receipts_ ? last_receipt_ + 1 : 0;
  if (!say(head, {call.from + call.sent, bytes}, receipt)) return false;
  if (takes_room) sent_ += Inbox::bytes_of(bytes);
  call.sent += bytes;
  if (!is_last) return true;
  if (receipt == 0) {
    calls_.finish(call, Status::kOk);
    return true;
  }
  call.is_sent = true;
  call.receipt = last_receipt_ = receipt;
  return false;
}

void Outbox::on_receipt(std::uint64_t receipt, Status status) noexcept {
  SendCall* const call = calls_.first();
  if (call != nullptr && call->receipt == receipt) calls_.finish(*call, status);
}

bool Outbox::say(wire::Head head, std::span<const std::byte> piece, std::uint64_t receipt) noexcept {
  head.consumed = reception_.consumed();
  const auto front = std::as_bytes(std::span(&head, 1));
  const Status status = receipt == 0 ? connection_->send(front, piece)
                                     : connection_->start_send(front, piece, Transfers::kForeignToken | receipt);
  if (status == Status::kAgain) connection_->tell_of_room();
  if (status != Status::kOk) return false;
  reception_.told();
  return true;
}

bool Outbox::cancel(SendCall& call) noexcept {
  calls_.remove(call);
  return call.is_sent;
}

}  // namespace verbena::session
