// Eager messages: receive buffers, sends that fit one of the peer's, and credit updates.
#pragma once

#include "channel/credits.hpp"
#include "channel/options.hpp"
#include "nic/buffer_pool.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
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

  /// Bytes of `open`'s memory, with a queue pair of that much inline room.
  [[nodiscard]] static std::size_t bytes_for(const Options& options, std::uint32_t max_inline) noexcept;
  /// Bytes of tables that `open` allocates besides.
  [[nodiscard]] static std::uint64_t table_bytes_for(const Options& options, std::uint32_t max_inline) noexcept;
  /// The first bytes_for bytes of `memory` are this object's from then on.
  void open(const Options& options, const nic::Buffer& memory);
  void meet(const wire::Handshake& peer) noexcept;

  /// Longest body that can be sent: what the peer receives, and this side's own limit where the NIC's inline limit is
  /// smaller than that.
  [[nodiscard]] std::uint32_t longest() const noexcept { return longest_; }
  /// Bodies that could be sent now.
  [[nodiscard]] std::uint32_t room() const noexcept {
    const std::uint32_t receives = credits_.available();
    return receives < 2 ? 0 : std::min(receives - 1, pair_.room());
  }
  /// Whether `total` bytes can be sent now.
  [[nodiscard]] Status check(std::size_t total) const noexcept {
    if (pair_.reason() != Status::kOk) [[unlikely]]
      return pair_.reason();
    if (total - 1 >= longest_) [[unlikely]]
      return total == 0 ? Status::kBadArgument : Status::kTooLong;
    return credits_.available() < 2 || pair_.room() == 0 ? Status::kAgain : Status::kOk;
  }
  /// Posts a body gathered from up to three parts, which are free when it returns. `check` has said kOk.
  [[nodiscard]] Status post(std::uint32_t tag, engine::QueuePair::Signal signal, std::span<const std::byte> a,
                            std::span<const std::byte> b, std::span<const std::byte> c) noexcept;

  // In place: the sender writes a body where the NIC reads it.
  /// Room for a body of `longest()` bytes, which is the caller's until it is posted or cancelled; null: all places are
  /// reserved, or with the NIC.
  [[nodiscard]] std::byte* reserve() noexcept;
  [[nodiscard]] bool is_reserved(const std::byte* body) const noexcept;
  /// Posts a reserved body, signaled. `check` has said kOk. On failure it stays reserved.
  [[nodiscard]] Status post_reserved(std::uint32_t tag, const std::byte* body, std::size_t bytes) noexcept;
  void cancel_reserved(const std::byte* body) noexcept;

  /// Posts all receives: once the loop knows the queue pair.
  void post_receives() noexcept;
  /// The body of a message that has arrived, to `body`; empty for an update. kProtocol for what is no message.
  [[nodiscard]] Status take(const ibv_wc& completion, std::span<const std::byte>& body) noexcept;
  /// Before `consumed` of the receive that was taken last: its body stays as it is until `give_back` of the slot.
  [[nodiscard]] std::uint32_t keep() noexcept {
    is_kept_[current_] = 1;
    return current_;
  }
  void give_back(std::uint32_t slot) noexcept {
    VERBENA_CHECK(slot < is_kept_.size() && is_kept_[slot] != 0);
    is_kept_[slot] = 0;
    put_back(slot);
  }
  /// The receive of `completion` is dealt with.
  void consumed(const ibv_wc& completion) noexcept {
    const std::uint32_t slot = engine::wr::slot_of(completion.wr_id);
    if (is_kept_[slot] == 0) [[likely]]
      put_back(slot);
  }
  /// Posts what was consumed, and tells the peer, where either is due.
  void progress() noexcept {
    if (credits_.unposted() >= credits_.buffers() / 4) refill();
    if (credits_.is_update_due()) [[unlikely]]
      send_update();
  }

 private:
  /// Where one message lies that the NIC reads from this memory.
  struct Place {
    enum class State : std::uint8_t { kFree, kReserved, kPosted };
    std::uint32_t posted_at = 0;  ///< Position of the request that used it last.
    State state = State::kFree;
  };
  /// Places that are taken in turn. One is used again once its request is retired.
  struct Ring {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
    std::uint32_t next = 0;
    void advance() noexcept { next = next + 1 == end ? first : next + 1; }
  };
  using ReceiveSges = std::array<ibv_sge, 2>;  ///< The head of a receive, and the rest.

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
  wire::Credits header_;  ///< Of the inline message being posted.
  ibv_send_wr request_{};
  std::array<ibv_sge, 4> sge_{};
  std::uint32_t lkey_ = 0;
  std::byte* heads_ = nullptr;
  std::byte* buffers_ = nullptr;
  std::size_t stride_ = 0;
  std::vector<ibv_recv_wr> receives_;
  std::vector<ReceiveSges> receive_sges_;
  ibv_recv_wr* to_post_ = nullptr;  ///< Those that were consumed, linked in that order.
  ibv_recv_wr* last_to_post_ = nullptr;
  std::vector<std::uint8_t> is_kept_;  ///< Of each receive.
  std::uint32_t current_ = 0;          ///< Of the message taken last.
  std::byte* first_place_ = nullptr;
  std::vector<Place> places_;
  Ring staging_;       ///< For bodies that are too long for the NIC's inline limit.
  Ring reservations_;  ///< For `reserve`: a body that is held for long holds up no other message.
};

}  // namespace verbena::channel
