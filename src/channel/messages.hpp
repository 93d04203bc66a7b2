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
  [[nodiscard]] static std::uint64_t table_bytes_for(const Options& options) noexcept;
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

  /// Posts all receives: once the loop knows the queue pair.
  void post_receives() noexcept;
  /// The body of a message that has arrived, to `body`; empty for an update. kProtocol for what is no message.
  [[nodiscard]] Status take(const ibv_wc& completion, std::span<const std::byte>& body) noexcept;
  /// Posts what was consumed, and tells the peer, where either is due.
  void progress() noexcept {
    if (credits_.unposted() >= credits_.buffers() / 4) refill();
    if (credits_.is_update_due()) [[unlikely]]
      send_update();
  }

 private:
  using ReceiveSges = std::array<ibv_sge, 2>;  ///< The head of a receive, and the rest.

  void refill() noexcept;
  void send_update() noexcept;
  [[nodiscard]] bool is_staging_free() const noexcept;
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
  std::vector<ibv_recv_wr> receives_;  ///< A ring, linked in order, so that any range of it is a list.
  std::vector<ReceiveSges> receive_sges_;
  std::uint32_t next_receive_ = 0;  ///< First buffer to post.
  // What is too long for the NIC's inline limit is sent from here. A place is used again once its request is retired.
  std::byte* staging_ = nullptr;
  std::vector<std::uint32_t> staged_at_;  ///< Position of the request that used a place last.
  std::uint32_t next_staging_ = 0;
};

}  // namespace verbena::channel
