// A connection's life: the one place that implements its bring-up and its goodbye.
#pragma once

#include "channel/options.hpp"
#include "channel/wire.hpp"
#include "link/link.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace verbena::channel {

/// Brings a queue pair up with a peer that a bootstrap has found. It can go step by step: with a deadline that has
/// passed each call is one attempt, and kAgain says that the peer, or its NIC, has not done its part yet.
/// \thread setup, one at a time
class Life {
 public:
  /// How far the connection is. `connect` goes from kMet to kOpen, in this order.
  enum class State : std::uint8_t {
    kNew,     ///< No peer is known yet.
    kMet,     ///< The peer's end is known.
    kUp,      ///< The queue pair is ready to send.
    kTold,    ///< A server has sent its answer; a client has nothing to send here.
    kHeard,   ///< The peer's queue pair is ready, too. This side imports what it needs of the peer.
    kReady,   ///< This side needs nothing more; READY is on its way.
    kOpen,    ///< READY was exchanged; both sides may post.
    kLeaving  ///< This side is saying goodbye.
  };
  /// The longest wait for a goodbye to arrive: 336 ms. The NIC resends a lost one within four of its timeouts; a fifth
  /// covers the resent one's way.
  static constexpr std::chrono::nanoseconds kLinger = 5 * link::ack_timeout(link::BringUp{}.timeout);

  explicit Life(engine::QueuePair& pair) noexcept : pair_(pair) {}
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  /// Describes this side to the peer: its endpoint, followed by `mine` and the user's data. May be called again with
  /// other data; the rest stays as it is.
  [[nodiscard]] Result<void> describe(const wire::Handshake& mine, std::uint32_t receives,
                                      std::span<const std::byte> user_data);
  [[nodiscard]] const link::Endpoint& local() const noexcept { return *local_; }

  /// Client: takes a server that was dialed with this side's endpoint. Server: takes a client that has sent its hello
  /// and waits for the answer.
  [[nodiscard]] Result<void> meet(std::unique_ptr<link::Handshake> handshake, link::Role role);
  /// Takes the peer's endpoint from another carrier.
  [[nodiscard]] Result<void> meet(const link::Endpoint& remote);
  [[nodiscard]] const link::Endpoint& remote() const noexcept { return remote_; }
  [[nodiscard]] const wire::Handshake& peer() const noexcept { return peer_; }
  /// The user's data, behind this layer's part.
  [[nodiscard]] std::span<const std::byte> peer_data() const noexcept {
    return remote_.user_data().subspan(peer_.bytes);
  }

  /// Takes the steps to kHeard. Import the windows that this side needs next; if that fails, `refuse` tells the peer
  /// why. Errors: those of link::bring_up and of the handshake.
  [[nodiscard]] Result<void> hear(Deadline deadline);
  /// Takes the remaining steps to kOpen. Errors: those of `hear`.
  [[nodiscard]] Result<void> connect(Deadline deadline);
  /// The descriptor to poll for `events` before the next call of `hear` or `connect`; -1: it waits for the peer's NIC.
  [[nodiscard]] int fd() const noexcept {
    return handshake_ && state_ >= State::kUp && state_ != State::kHeard ? handshake_->fd() : -1;
  }
  [[nodiscard]] short events() const noexcept { return handshake_ ? handshake_->events() : short{0}; }
  /// Tells the peer why there is no connection, if it is still waiting.
  void refuse(const Error& why) noexcept;

  /// The sides meet through a handshake, by which each learns that the other is up.
  [[nodiscard]] bool has_handshake() const noexcept { return has_handshake_; }
  [[nodiscard]] bool is_open() const noexcept { return state_ >= State::kOpen; }

  // The end. \thread owner of the loop
  /// Starts to leave. Post this side's last message next, and call `said`.
  void leave() noexcept {
    if (state_ != State::kOpen) return;
    state_ = State::kLeaving;
    linger_ = Deadline::after(kLinger);
  }
  /// Whether the goodbye is still to be posted.
  [[nodiscard]] bool has_words() const noexcept { return state_ == State::kLeaving && words_ == Words::kDue; }
  void said() noexcept { words_ = Words::kSaid; }
  /// Call when the peer's NIC has the goodbye, and all that was sent before it.
  void arrived() noexcept { words_ = Words::kThere; }
  /// Whether nothing is left to wait for.
  [[nodiscard]] bool has_left() const noexcept {
    return state_ != State::kLeaving || words_ == Words::kThere || pair_.reason() != Status::kOk || linger_.passed();
  }
  /// The time by which `has_left` is true.
  [[nodiscard]] Deadline linger() const noexcept { return linger_; }

 private:
  enum class Words : std::uint8_t { kDue, kSaid, kThere };

  engine::QueuePair& pair_;
  State state_ = State::kNew;
  Words words_ = Words::kDue;
  bool is_server_ = false;
  bool has_handshake_ = false;
  std::optional<link::Endpoint> local_;
  link::Endpoint remote_;
  wire::Handshake peer_;
  std::unique_ptr<link::Handshake> handshake_;
  Deadline linger_ = Deadline::never();
};

}  // namespace verbena::channel
