// Large messages: fragments, each a WRITE with an immediate into the window that the receiver has leased to the sender.
#pragma once

#include "channel/credits.hpp"
#include "channel/operations.hpp"
#include "channel/options.hpp"
#include "nic/buffer_pool.hpp"
#include "nic/registered_arena.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::channel {

/// The sending side: writes into the peer's lease. \thread owner of the loop, except open and meet (setup)
class LargeSender {
 public:
  static constexpr std::size_t kMaxHeadBytes = 2048;

  LargeSender(engine::QueuePair& pair, Credits& credits, Operations& operations) noexcept
      : pair_(pair), credits_(credits), operations_(operations) {}
  LargeSender(const LargeSender&) = delete;
  LargeSender& operator=(const LargeSender&) = delete;

  /// Bytes that `open` needs.
  [[nodiscard]] static std::size_t bytes_for(const Options& options) noexcept;
  /// Takes over `memory`; its part for this object starts at `begin`.
  void open(const Options& options, const nic::Buffer& memory, std::byte* begin);
  void meet(const wire::Handshake& peer, std::uint64_t fragment_bytes) noexcept;
  /// Makes the peer's lease usable. If `deadline` has passed: one attempt, which may be kAgain.
  [[nodiscard]] Result<void> open_lease(Deadline deadline);

  /// See Connection::start_large.
  [[nodiscard]] Status start(std::span<const std::byte> head, LocalSpan body, std::uint64_t token) noexcept;
  [[nodiscard]] bool is_waiting() const noexcept { return !waiting_.empty(); }
  /// Posts fragments while there is room.
  void progress() noexcept;
  /// Call when a large message is complete, or will never be.
  void ended() noexcept { --started_; }
  void forget_waiting() noexcept { waiting_.clear(); }

 private:
  [[nodiscard]] bool post_fragment(Operation& operation) noexcept;
  [[nodiscard]] int gather(const Operation& operation, std::uint32_t bytes) noexcept;
  [[nodiscard]] std::byte* head_of(const Operation& operation) const noexcept {
    return heads_ + operations_.slot_of(operation) * kMaxHeadBytes;
  }

  engine::QueuePair& pair_;
  Credits& credits_;
  Operations& operations_;
  engine::Fifo<Operation> waiting_;
  nic::Window lease_;  ///< The peer's.
  bool is_open_ = false;
  std::uint32_t most_ = 0;     ///< Large messages at a time, at most.
  std::uint32_t started_ = 0;  ///< Started and not complete.
  std::uint32_t cursor_ = 0;
  std::uint32_t number_ = 0;
  std::uint32_t payload_ = 0;  ///< Bytes of a fragment, at most.
  ibv_send_wr request_{};
  std::array<ibv_sge, 3> sge_{};
  std::uint32_t lkey_ = 0;
  std::byte* heads_ = nullptr;    ///< One per slot.
  std::byte* headers_ = nullptr;  ///< Fragment headers, one per slot of the send queue.
};

/// The receiving side: reads from our lease. \thread owner of the loop, except open (setup)
class LargeReceiver {
 public:
  explicit LargeReceiver(Credits& credits) noexcept : credits_(credits) {}
  LargeReceiver(const LargeReceiver&) = delete;
  LargeReceiver& operator=(const LargeReceiver&) = delete;

  /// Registers the lease, an arena of its own that nobody may use yet. Errors: those of RegisteredArena::open.
  [[nodiscard]] Result<void> open(nic::Nic& nic, ibv_pd* pd, const Options& options);
  [[nodiscard]] bool has_lease() const noexcept { return static_cast<bool>(lease_); }
  [[nodiscard]] const nic::RegisteredArena& lease() const noexcept { return lease_; }
  [[nodiscard]] std::uint32_t units() const noexcept { return units_; }
  void meet(const wire::Handshake& peer) noexcept { number_ = peer.first_count & wire::kNumberMask; }
  /// Takes the fragment that a completion announces; call `done` when you have handled it. Errors: kProtocol if it is
  /// no valid fragment.
  [[nodiscard]] Status take(const ibv_wc& completion, Fragment& fragment) noexcept;
  void done() noexcept { credits_.consumed_lease(taken_); }

 private:
  Credits& credits_;
  nic::RegisteredArena lease_;
  std::uint32_t units_ = 0;
  std::uint32_t cursor_ = 0;
  std::uint32_t number_ = 0;
  std::uint32_t taken_ = 0;   ///< Units of the current fragment.
  std::uint64_t total_ = 0;   ///< Bytes of the arriving message; 0 between messages.
  std::uint64_t offset_ = 0;  ///< Offset of its next byte.
};

}  // namespace verbena::channel
