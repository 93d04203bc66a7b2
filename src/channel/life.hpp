// The life of a connection, from the first word to the last: the one place where bring-up and goodbye are written.
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

/// Brings a queue pair up with a peer that a bootstrap has found. Steps may be made one at a time: with a deadline that
/// has passed, each call is one attempt, and Status::kAgain says that the peer, or its NIC, has not done its part yet.
/// \thread setup, one at a time
class Life {
 public:
  /// What has been done. `connect` goes from kMet to kOpen, in this order.
  enum class State : std::uint8_t {
    kNew,     ///< Nobody is known yet.
    kMet,     ///< The peer's end is known.
    kUp,      ///< The queue pair is ready to send.
    kTold,    ///< A server's answer is out; a client has nothing to tell.
    kOpen,    ///< READY was exchanged: both sides may post.
    kLeaving  ///< This side says goodbye.
  };
  /// The longest wait for a goodbye to get through: 336 ms. One that is lost is sent again within four timeouts of the
  /// NIC, and has one more for its way.
  static constexpr std::chrono::nanoseconds kLinger = 5 * link::ack_timeout(link::BringUp{}.timeout);

  explicit Life(engine::QueuePair& pair) noexcept : pair_(pair) {}
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  /// What this side tells the peer: its end, with `mine` and the user's data behind it. May be called again for other
  /// data; the rest stays as it is.
  [[nodiscard]] Result<void> describe(const wire::Handshake& mine, std::uint32_t receives,
                                      std::span<const std::byte> user_data);
  [[nodiscard]] const link::Endpoint& local() const noexcept { return *local_; }

  /// Client: a server that was dialed with this side's end. Server: a client that has said hello, and waits for the
  /// answer.
  [[nodiscard]] Result<void> meet(std::unique_ptr<link::Handshake> handshake, link::Role role);
  /// The peer's end, as some other carrier has brought it.
  [[nodiscard]] Result<void> meet(const link::Endpoint& remote);
  [[nodiscard]] const link::Endpoint& remote() const noexcept { return remote_; }
  [[nodiscard]] const wire::Handshake& peer() const noexcept { return peer_; }
  /// Behind this layer's part of it.
  [[nodiscard]] std::span<const std::byte> peer_data() const noexcept {
    return remote_.user_data().subspan(peer_.bytes);
  }

  /// Does what is left to be done until kOpen. Errors: those of link::bring_up and of the handshake.
  [[nodiscard]] Result<void> connect(Deadline deadline);
  /// What to poll for `events` before `connect` gets on with the peer itself; -1: it waits for the peer's NIC.
  [[nodiscard]] int fd() const noexcept { return handshake_ && state_ >= State::kUp ? handshake_->fd() : -1; }
  [[nodiscard]] short events() const noexcept { return handshake_ ? handshake_->events() : short{0}; }
  /// Server: the client is told why there is no connection, if it still waits for that.
  void refuse(const Error& why) noexcept;

  /// READY was exchanged, so that each side knows of the other.
  [[nodiscard]] bool had_handshake() const noexcept { return had_handshake_; }
  [[nodiscard]] bool is_open() const noexcept { return state_ >= State::kOpen; }

  // The end. \thread owner of the loop
  /// From now on this side leaves; what it says last, `said` is to be called for.
  void leave() noexcept {
    if (state_ != State::kOpen) return;
    state_ = State::kLeaving;
    linger_ = Deadline::after(kLinger);
  }
  /// Whether the goodbye is still to be posted.
  [[nodiscard]] bool has_words() const noexcept { return state_ == State::kLeaving && words_ == Words::kDue; }
  void said() noexcept { words_ = Words::kSaid; }
  /// The peer's NIC has the goodbye, and all that was sent before it.
  void arrived() noexcept { words_ = Words::kThere; }
  /// Nothing is left to wait for.
  [[nodiscard]] bool has_left() const noexcept {
    return state_ != State::kLeaving || words_ == Words::kThere || pair_.reason() != Status::kOk || linger_.passed();
  }
  /// When `has_left` is true at the latest.
  [[nodiscard]] Deadline linger() const noexcept { return linger_; }

 private:
  enum class Words : std::uint8_t { kDue, kSaid, kThere };

  engine::QueuePair& pair_;
  State state_ = State::kNew;
  Words words_ = Words::kDue;
  bool is_server_ = false;
  bool had_handshake_ = false;
  std::optional<link::Endpoint> local_;
  link::Endpoint remote_;
  wire::Handshake peer_;
  std::unique_ptr<link::Handshake> handshake_;
  Deadline linger_ = Deadline::never();
};

}  // namespace verbena::channel
