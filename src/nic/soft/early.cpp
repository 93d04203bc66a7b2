// Receives on behalf of an owner that does not poll.
//
// A SEND for which a receive is posted completes whether its receiver polls or not, as far as the ring has room. If the
// ring is full and nothing moves for a millisecond, the sender asks the peer's control thread. The control thread keeps
// the owner out of poll (as for any change of what a poll reads), copies the messages of the ring to the receives, and
// puts the completions into a list that the owner's next poll takes over. It leaves everything else to the owner:
// errors, invalidations, and all messages of a shared receive queue, whose receives only the owner hands out.
#include "nic/soft/path.hpp"

namespace verbena::nic::soft {

namespace {

/// Slots taken at a time, 4 MiB: about a millisecond, during which the owner's polls find nothing.
constexpr int kSlotsAtATime = 1024;

/// Takes one slot of the ring. False: it is left for the owner.
bool take_one(SoftQp& qp) noexcept {
  SlotView view;
  if (!qp.rx.peek(view) || view.kind == SlotKind::kSendInv) return false;
  // The owner may be posting receives: only published ones count, and they were written before.
  const Segment taken = take_segment(qp, view, qp.own->receives.posted.load(std::memory_order_acquire));
  if (taken != Segment::kWhole && taken != Segment::kPart) return false;
  if (taken == Segment::kWhole) {
    // There is room: one entry for each receive, and no receive is posted again before the completion of its
    // predecessor is polled.
    Cqe& entry = qp.early.ring[qp.early.tail & qp.rq.mask];
    fill(entry, qp, end_message(qp, view), kNotSend);
    ++qp.early.tail;
    ++qp.rq.done;
  }
  qp.rx.advance();
  return true;
}

}  // namespace

std::uint64_t take_after_ticks() noexcept { return static_cast<std::uint64_t>(1000 * ticks_per_us()); }

bool may_ask_to_take(const SoftQp& qp) noexcept {
  return qp.pending.stall == SoftQp::Stall::kRoom && qp.pending.take_asked < qp.pending.stall_start &&
         qp.scq->room() > 0;
}

void ask_to_take(SoftQp& qp) noexcept {
  const RemoteQp* const remote = qp.remote.load(std::memory_order_acquire);
  const std::uint64_t now = ticks_now();
  if (remote == nullptr || !may_ask_to_take(qp) || now - qp.pending.stall_start < take_after_ticks()) return;
  // If the socket is full, a later poll tries again.
  if (!tell_nic(remote->peer->socket.get(), RequestType::kTake, *remote)) return;
  qp.pending.take_asked = now;
  ++thread_counters.services;
}

void take_over_early(SoftQp& qp) noexcept {
  SoftCq& cq = *qp.rcq;
  for (; !qp.early.is_empty() && cq.room() > 0; ++qp.early.head) {
    cq.ring[cq.tail++ & cq.mask] = qp.early.ring[qp.early.head & qp.rq.mask];
  }
  if (!qp.early.is_empty()) cq.control.fetch_or(SoftCq::kLeftOver, std::memory_order_relaxed);
}

bool receive_early(SoftQp& qp) noexcept {
  if (qp.rx_remote == nullptr) return false;  // The owner has not polled since the QP was connected.
  int taken = 0;
  while (taken < kSlotsAtATime && take_one(qp)) ++taken;
  if (taken == 0) return false;
  qp.rx.publish_progress(qp.own->consumer.consumed);
  ring_credit(*qp.rx_remote);
  return true;
}

}  // namespace verbena::nic::soft
