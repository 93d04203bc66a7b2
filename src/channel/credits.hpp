// Credit accounts: they keep either side from sending more than the other has room for.
#pragma once

#include "base/check.hpp"
#include "channel/wire.hpp"

#include <cstdint>

namespace verbena::channel {

/// Counts for both directions, cumulative and wrapping. Each side has posted R = depth + margin receives and tells the
/// peer the cumulative count in every message; leases are counted the same way, in units.
///
/// Why they cannot deadlock: a sender may send while the peer's count exceeds its own. A message or fragment needs two
/// credits, a bare credit update one. An update is due when depth/2 receives, or half of the lease, were given back
/// since the last one. Suppose that nothing is in flight, and A has a message to send but lacks the credit.
///  - Receives: A has at most one credit, so B has consumed at least R - 1 messages since its last claim reached A,
///    more than depth/2: B owes an update, and sends it unless B has no credit at all.
///  - Both at zero: only an update takes a side to zero (a message leaves one credit), and each update raises its claim
///    by at least one. One of the two last updates, say B's, was sent before B had processed A's, so under an older
///    claim of A's. A's update raised that claim, so B has a credit after all; A's R messages are consumed, so B owes
///    an update.
///  - Lease: a fragment is at most a quarter of the lease, so with the units skipped at the end it needs less than
///    half. Less than half is unreported when no update is due, so more than half is free.
/// Updates do not answer updates for ever: it takes depth/2 >= 2 messages to make one due. \thread owner  \alloc none
class Credits {
 public:
  /// Sets this side's counts: R receives are posted from the start, as the handshake says; the lease has `lease_units`.
  void open(std::uint32_t depth, std::uint32_t first_count, std::uint32_t lease_units) noexcept {
    depth_ = depth;
    buffers_ = wire::receives_for(depth);
    lease_units_ = lease_units;
    posted_ = told_posted_ = first_count + buffers_;
    consumed_ = lease_consumed_ = told_lease_ = first_count;
  }
  /// Sets the peer's side from its handshake.
  void meet(const wire::Handshake& peer) noexcept {
    peer_buffers_ = wire::receives_for(peer.depth);
    peer_lease_units_ = wire::units_of(peer.lease.length);
    sent_ = lease_used_ = peer_lease_consumed_ = peer.first_count;
    peer_posted_ = peer.first_count + peer_buffers_;
  }

  // Sending.
  /// Messages that the peer can take now.
  [[nodiscard]] std::uint32_t available() const noexcept { return peer_posted_ - sent_; }
  [[nodiscard]] std::uint32_t peer_buffers() const noexcept { return peer_buffers_; }
  [[nodiscard]] std::uint32_t peer_lease_units() const noexcept { return peer_lease_units_; }
  [[nodiscard]] std::uint32_t lease_room() const noexcept {
    return peer_lease_units_ - (lease_used_ - peer_lease_consumed_);
  }
  void sent() noexcept {
    VERBENA_DCHECK(available() != 0);
    ++sent_;
  }
  void used_lease(std::uint32_t units) noexcept {
    VERBENA_DCHECK(units <= lease_room());
    lease_used_ += units;
  }
  /// The credit claims for the next message.
  [[nodiscard]] wire::Credits tell() noexcept {
    told_posted_ = posted_;
    told_lease_ = lease_consumed_;
    return {posted_, lease_consumed_};
  }

  // Receiving.
  /// Takes the peer's claims. False: a count went back, or exceeds what the handshake allows.
  [[nodiscard]] bool accept(wire::Credits claim) noexcept {
    const std::uint32_t posted = claim.receives_posted;
    const std::uint32_t consumed = claim.lease_consumed;
    if (posted - peer_posted_ > peer_buffers_ || posted - sent_ > peer_buffers_) return false;
    if (consumed - peer_lease_consumed_ > lease_used_ - peer_lease_consumed_) return false;
    peer_posted_ = posted;
    peer_lease_consumed_ = consumed;
    return true;
  }
  [[nodiscard]] std::uint32_t buffers() const noexcept { return buffers_; }
  void consumed() noexcept {
    VERBENA_DCHECK(unposted() < buffers_);
    ++consumed_;
  }
  /// Receives consumed and not yet reposted.
  [[nodiscard]] std::uint32_t unposted() const noexcept { return consumed_ + buffers_ - posted_; }
  void posted(std::uint32_t count) noexcept {
    VERBENA_DCHECK(count <= unposted());
    posted_ += count;
  }
  /// Whether a fragment of `units` fits the room that the peer may know of.
  [[nodiscard]] bool lease_holds(std::uint32_t units) const noexcept {
    return lease_consumed_ + units - told_lease_ <= lease_units_;
  }
  void consumed_lease(std::uint32_t units) noexcept { lease_consumed_ += units; }
  [[nodiscard]] bool is_update_due() const noexcept {
    const std::uint32_t untold = consumed_ + buffers_ - told_posted_;
    return untold >= depth_ / 2 || (lease_units_ != 0 && lease_consumed_ - told_lease_ >= lease_units_ / 2);
  }

 private:
  std::uint32_t peer_posted_ = 0;  ///< Receives that the peer claims to have posted.
  std::uint32_t sent_ = 0;         ///< Messages and fragments.
  std::uint32_t posted_ = 0;       ///< Receives that this side has posted.
  std::uint32_t consumed_ = 0;
  std::uint32_t told_posted_ = 0;
  std::uint32_t lease_consumed_ = 0;  ///< Units of our lease given back to the peer.
  std::uint32_t told_lease_ = 0;
  std::uint32_t buffers_ = 0;  ///< Receives posted when all buffers are.
  std::uint32_t depth_ = 0;
  std::uint32_t peer_buffers_ = 0;
  std::uint32_t lease_units_ = 0;
  std::uint32_t peer_lease_units_ = 0;
  std::uint32_t lease_used_ = 0;
  std::uint32_t peer_lease_consumed_ = 0;  ///< The peer's claim.
};

}  // namespace verbena::channel
