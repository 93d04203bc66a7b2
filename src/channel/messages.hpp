// Eager messages: receive buffers, sends that fit one receive of the peer, and credit updates.
#pragma once

#include "channel/credits.hpp"
#include "channel/options.hpp"
#include "nic/buffer_pool.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace verbena::channel {

/// \thread owner of the loop, except open and meet (setup)
class Messages {
 public:
  static constexpr std::uint32_t kCreditBytes = sizeof(wire::Credits);

  Messages(engine::QueuePair& pair, Credits& credits) noexcept : pair_(pair), credits_(credits) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Bytes that `open` needs, with a queue pair of that much inline room.
  [[nodiscard]] static std::size_t bytes_for(const Options& options, std::uint32_t max_inline) noexcept;
  /// Bytes of the tables that `open` allocates in addition.
  [[nodiscard]] static std::uint64_t table_bytes_for(const Options& options, std::uint32_t max_inline) noexcept;
  /// Takes over the first `bytes_for` bytes of `memory`.
  void open(const Options& options, const nic::Buffer& memory);
  void meet(const wire::Handshake& peer) noexcept;

  /// Longest body that can be sent: the peer's limit, or this side's own where the NIC's inline limit is smaller than
  /// that.
  [[nodiscard]] std::uint32_t longest() const noexcept { return longest_; }
  /// Messages that could be sent now.
  [[nodiscard]] std::uint32_t room() const noexcept {
    const std::uint32_t receives = credits_.available();
    return receives < 2 ? 0 : std::min(receives - 1, pair_.room());
  }
  /// Whether a message of `total` bytes can be sent now.
  [[nodiscard]] Status check(std::size_t total) const noexcept {
    if (pair_.reason() != Status::kOk) [[unlikely]]
      return pair_.reason();
    if (total - 1 >= longest_) [[unlikely]]
      return total == 0 ? Status::kBadArgument : Status::kTooLong;
    return credits_.available() < 2 || pair_.room() == 0 ? Status::kAgain : Status::kOk;
  }
  /// Posts a body gathered from up to three parts, which the caller may reuse on return. Requires kOk from `check`.
  [[nodiscard]] Status post(std::uint32_t tag, engine::QueuePair::Signal signal, std::span<const std::byte> a,
                            std::span<const std::byte> b, std::span<const std::byte> c) noexcept;

  /// Sends such a body past the queues: on return the peer's NIC has it. False: nothing has happened; post it. Requires
  /// kOk from `check`.
  [[nodiscard]] bool send_now(std::span<const std::byte> a, std::span<const std::byte> b,
                              std::span<const std::byte> c) noexcept;

  // In place: the sender writes a body into memory that the NIC reads.
  /// Room for a body of `longest()` bytes, the caller's until it is posted or cancelled. Null: every place is reserved
  /// or with the NIC.
  [[nodiscard]] std::byte* reserve() noexcept;
  [[nodiscard]] bool is_reserved(const std::byte* body) const noexcept;
  /// Posts a reserved body, signaled. Requires kOk from `check`. On failure the body stays reserved.
  [[nodiscard]] Status post_reserved(std::uint32_t tag, const std::byte* body, std::size_t bytes) noexcept;
  void cancel_reserved(const std::byte* body) noexcept;

  /// Posts all receives. Call once the loop knows the queue pair.
  void post_receives() noexcept;
  /// Sets `body` to the body of an arrived message; empty for a credit update. Errors: kProtocol if it is no message.
  [[nodiscard]] Status take(const ibv_wc& completion, std::span<const std::byte>& body) noexcept;
  /// The same for a message that has used no receive.
  [[nodiscard]] Status take(std::span<const std::byte> message, std::span<const std::byte>& body) noexcept {
    if (const Status status = read(message, body); status != Status::kOk) [[unlikely]]
      return status;
    credits_.consumed();
    credits_.posted(1);
    return Status::kOk;
  }
  /// Call before `consumed` of the receive taken last: its body stays as it is until `give_back` of the returned slot.
  [[nodiscard]] std::uint32_t keep() noexcept {
    is_kept_[current_] = 1;
    return current_;
  }
  void give_back(std::uint32_t slot) noexcept {
    VERBENA_CHECK(slot < is_kept_.size() && is_kept_[slot] != 0);
    is_kept_[slot] = 0;
    put_back(slot);
  }
  /// Ends the handling of `completion`'s receive.
  void consumed(const ibv_wc& completion) noexcept {
    const std::uint32_t slot = engine::wr::slot_of(completion.wr_id);
    if (is_kept_[slot] == 0) [[likely]]
      put_back(slot);
  }
  /// Reposts consumed receives and sends a credit update, each when it is due.
  void progress() noexcept {
    if (credits_.unposted() >= credits_.buffers() / 4) refill();
    if (credits_.is_update_due()) [[unlikely]]
      send_update();
  }

 private:
  /// The place of one message that the NIC reads from this memory.
  struct Place {
    enum class State : std::uint8_t { kFree, kReserved, kPosted };
    std::uint32_t posted_at = 0;  ///< Position of the last request that used it.
    State state = State::kFree;
  };
  /// Places used in turn. A place is reused once its request has retired.
  struct Ring {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
    std::uint32_t next = 0;
    void advance() noexcept { next = next + 1 == end ? first : next + 1; }
  };
  using ReceiveSges = std::array<ibv_sge, 2>;  ///< The head of a receive, and its rest.

  /// Takes the peer's claims from a message, and sets `body` to the rest.
  [[nodiscard]] Status read(std::span<const std::byte> message, std::span<const std::byte>& body) noexcept {
    wire::Credits claim;
    if (message.size() < sizeof claim) return Status::kProtocol;
    std::memcpy(&claim, message.data(), sizeof claim);
    if (!credits_.accept(claim)) return Status::kProtocol;
    body = message.subspan(sizeof claim);
    return Status::kOk;
  }
  void refill() noexcept;
  void send_update() noexcept;
  void put_back(std::uint32_t slot) noexcept {
    credits_.consumed();
    ibv_recv_wr& receive = receives_[slot];
    receive.next = nullptr;
    (to_post_ == nullptr ? to_post_ : last_to_post_->next) = &receive;
    last_to_post_ = &receive;
  }
  [[nodiscard]] bool is_free(const Place& place) const noexcept;
  [[nodiscard]] std::byte* take_next(Ring& ring, Place::State as) noexcept;
  [[nodiscard]] std::uint32_t place_of(const std::byte* body) const noexcept;
  [[nodiscard]] int gather_inline(std::span<const std::byte> a, std::span<const std::byte> b,
                                  std::span<const std::byte> c) noexcept;
  [[nodiscard]] int gather_staged(std::span<const std::byte> a, std::span<const std::byte> b,
                                  std::span<const std::byte> c) noexcept;

  engine::QueuePair& pair_;
  Credits& credits_;
  std::uint32_t longest_ = 0;
  std::uint32_t eager_bytes_ = 0;
  wire::Credits header_;  ///< Credits of the inline message being posted.
  ibv_send_wr request_{};
  std::array<ibv_sge, 4> sge_{};
  std::uint32_t lkey_ = 0;
  std::byte* heads_ = nullptr;
  std::byte* buffers_ = nullptr;
  std::size_t stride_ = 0;
  std::vector<ibv_recv_wr> receives_;
  std::vector<ReceiveSges> receive_sges_;
  ibv_recv_wr* to_post_ = nullptr;  ///< Consumed receives, linked in that order.
  ibv_recv_wr* last_to_post_ = nullptr;
  std::vector<std::uint8_t> is_kept_;  ///< One flag per receive.
  std::uint32_t current_ = 0;          ///< Slot of the message taken last.
  std::byte* first_place_ = nullptr;
  std::vector<Place> places_;
  Ring staging_;       ///< For bodies longer than the NIC's inline limit.
  Ring reservations_;  ///< For `reserve`: a body held for long delays no other message.
};

}  // namespace verbena::channel
