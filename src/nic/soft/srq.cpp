// Shared receive queues of the soft NIC.
//
// A sender considers a SEND accepted when the peer has published a receive for it. One receive of a shared queue cannot
// be published to several senders: each has its own ring, and a receive that is promised to one is lost to the others
// until that one sends. So the receiver promises nothing beforehand. A sender without a receive says how many it needs
// (QpControl::demand). The receiver's next poll moves that many from the shared queue into the QP's own ring of
// receives, where lengths and keys are published and checked as usual, or says that there are none; only then it is RNR
// for the sender. So no QP holds a receive for which its peer has no message, and the queue's last receive serves any
// QP that asks.
//
// The price: a SEND to a shared queue waits for a poll of its receiver; one to a QP's own receives does not.
#include "nic/soft/path.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::nic::soft {

namespace {

/// Claims the entry at the end of a queue for putting in, or for taking out (`lag` 1); nullptr if there is none.
SoftSrq::Entry* claim(SoftSrq& srq, std::atomic<std::uint64_t>& end, std::uint64_t lag, std::uint64_t& at) noexcept {
  at = end.load(std::memory_order_relaxed);
  for (;;) {
    SoftSrq::Entry& entry = srq.entries[at & srq.mask];
    const std::uint64_t turn = entry.turn.load(std::memory_order_acquire);
    if (turn == at + lag) {
      // If another thread wins, `at` becomes the new end. Each turn of this loop means that another thread has
      // succeeded.
      if (end.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) return &entry;
    } else if (static_cast<std::int64_t>(turn - (at + lag)) < 0) {
      return nullptr;
    } else {
      at = end.load(std::memory_order_relaxed);
    }
  }
}

/// There is always room: the caller has checked the unfinished receives against max_wr, and the ring is not smaller.
void put(SoftSrq& srq, const ReceiveWqe& receive, const ibv_sge* sges) noexcept {
  std::uint64_t at = 0;
  SoftSrq::Entry* entry = claim(srq, srq.in, 0, at);
  while (entry == nullptr) entry = claim(srq, srq.in, 0, at);  // A thread that takes it out is about to release it.
  entry->receive = receive;
  std::copy_n(sges, receive.sge_count, srq.sges.get() + (at & srq.mask) * srq.max_sge);
  entry->turn.store(at + 1, std::memory_order_release);
}

/// Moves the oldest receive of the shared queue into the QP's own ring. False when there is none.
bool take_shared(SoftQp& qp) noexcept {
  SoftSrq& srq = *qp.rq.srq;
  std::uint64_t at = 0;
  SoftSrq::Entry* const entry = claim(srq, srq.out, 1, at);
  if (entry == nullptr) return false;
  const std::size_t slot = qp.rq.posted & qp.rq.mask;
  qp.rq.wqes[slot] = entry->receive;
  std::copy_n(srq.sges.get() + (at & srq.mask) * srq.max_sge, entry->receive.sge_count, qp.rq.sges_of(slot));
  entry->turn.store(at + srq.mask + 1, std::memory_order_release);
  publish_receive(qp, slot);
  ++qp.rq.posted;
  return true;
}

/// Call it after putting something in: makes the control thread wake owners that found nothing and may sleep by now. A
/// poll must not take the control plane's mutex itself.
void tell_if_short(SoftSrq& srq) noexcept {
  // Pairs with a thread that has looked in vain; see serve_shared.
  srq.turnstile.fetch_add(1, std::memory_order_acq_rel);
  if (srq.is_short.load(std::memory_order_relaxed) && srq.is_short.exchange(false, std::memory_order_relaxed)) {
    srq.nic->stir();
  }
}

}  // namespace

bool owes_shared(const SoftQp& qp) noexcept {
  if (qp.rx_remote == nullptr) return false;
  return !qp.rq.is_empty() || qp.rx_remote->control->demand.wanted.load(std::memory_order_acquire) > qp.rq.posted;
}

bool serve_shared(SoftQp& qp) noexcept {
  const QpControl& peer = *qp.rx_remote->control;
  if (!owes_shared(qp)) return false;
  if (peer.rare.readiness.load(std::memory_order_acquire) == Readiness::kGone) {
    // A QP that is gone sends nothing more: give it no more receives, and take back the unused ones, after receiving
    // all that it has sent.
    if (qp.rq.is_empty() || qp.rq.is_open || qp.rx.ready()) return false;
    give_back_shared(qp, GiveBack::kUntouched);
    return true;
  }
  // The peer's word, read once. Any number is harmless: it gets only as many as exist and fit.
  const std::uint64_t wanted = peer.demand.wanted.load(std::memory_order_acquire);
  if (wanted <= qp.rq.posted) return false;
  // Read after `wanted` and before looking at the queue, so that a refusal is for this ask or an older one.
  const std::uint64_t ask = peer.demand.ask.load(std::memory_order_relaxed);
  const std::uint64_t before = qp.rq.posted;
  const std::uint64_t most = qp.rq.done + qp.rq.mask + 1;
  bool found = true;
  while (qp.rq.posted < std::min(wanted, most) && found) {
    found = take_shared(qp);
    if (found) continue;
    qp.rq.srq->is_short.store(true, std::memory_order_relaxed);
    // Pairs with a thread that posts: either it sees that the queue is short, or we see its receive.
    qp.rq.srq->turnstile.fetch_add(1, std::memory_order_acq_rel);
    found = take_shared(qp);
  }
  if (qp.rq.posted != before) qp.own->receives.posted.store(qp.rq.posted, std::memory_order_release);
  const bool refuses = !found && qp.own->receives.refused.load(std::memory_order_relaxed) != ask;
  if (refuses) qp.own->receives.refused.store(ask, std::memory_order_release);
  if (qp.rq.posted == before && !refuses) return false;
  ring_credit(*qp.rx_remote);
  return true;
}

void give_back_shared(SoftQp& qp, GiveBack what) noexcept {
  const std::uint64_t keep = qp.rq.done + (what == GiveBack::kUntouched && qp.rq.is_open ? 1 : 0);
  const bool any = qp.rq.posted > keep;
  for (std::uint64_t i = keep; i < qp.rq.posted; ++i) {
    const std::size_t slot = i & qp.rq.mask;
    put(*qp.rq.srq, qp.rq.wqes[slot], qp.rq.sges_of(slot));
  }
  qp.rq.posted = std::min(qp.rq.posted, keep);
  if (any) tell_if_short(*qp.rq.srq);
}

void retire_shared(SoftSrq& srq) noexcept { srq.unfinished.fetch_sub(1, std::memory_order_relaxed); }

int post_srq_recv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
  SoftSrq& srq = *static_cast<SoftSrq*>(base);
  int error = 0;
  bool any = false;
  for (; wr != nullptr; wr = wr->next) {
    if (wr->num_sge < 0 || static_cast<std::uint32_t>(wr->num_sge) > srq.max_sge) {
      error = EINVAL;
    } else if (srq.unfinished.fetch_add(1, std::memory_order_relaxed) >= srq.max_wr) {
      srq.unfinished.fetch_sub(1, std::memory_order_relaxed);
      error = ENOMEM;
    }
    if (error != 0) [[unlikely]] {
      *bad_wr = wr;
      break;
    }
    ReceiveWqe receive;
    receive.keys_hold = true;  // As for a QP's own receives, the sender learns beforehand.
    std::uint64_t capacity = 0;
    for (int i = 0; i < wr->num_sge; ++i) {
      const ibv_sge& sge = wr->sg_list[i];
      capacity += sge.length;
      receive.keys_hold = receive.keys_hold && (sge.length == 0 || local_address(*srq.nic, srq.spd->id, sge,
                                                                                 IBV_ACCESS_LOCAL_WRITE) != nullptr);
    }
    receive.wr_id = wr->wr_id;
    receive.sge_count = static_cast<std::uint16_t>(wr->num_sge);
    receive.capacity = static_cast<std::uint32_t>(std::min<std::uint64_t>(capacity, kMaxMessage));
    put(srq, receive, wr->sg_list);
    any = true;
  }
  if (any) tell_if_short(srq);
  return error;
}

Result<ibv_srq*> SoftNic::create_srq(ibv_pd* pd, std::uint32_t max_wr, std::uint32_t max_sge) {
  if (max_wr == 0 || max_wr > limits_.max_srq_wr || max_sge > limits_.max_sge) {
    return fail(Status::kBadArgument, "create_srq", EINVAL, "{} receives (1 to {}) of {} segments (to {})", max_wr,
                limits_.max_srq_wr, max_sge, limits_.max_sge);
  }
  auto srq = std::unique_ptr<SoftSrq>(new (std::nothrow) SoftSrq());
  if (srq == nullptr) return no_memory("a shared receive queue");
  const std::uint32_t entries = std::bit_ceil(std::max(max_wr, 2U));
  srq->context = context();
  srq->pd = pd;
  srq->nic = this;
  srq->spd = static_cast<SoftPd*>(pd);
  srq->mask = entries - 1;
  srq->max_wr = max_wr;
  srq->max_sge = std::max(max_sge, 1U);
  srq->entries = make_array<SoftSrq::Entry>(entries);
  srq->sges = make_array<ibv_sge>(std::size_t{entries} * srq->max_sge);
  if (srq->entries == nullptr || srq->sges == nullptr) return no_memory("a shared receive queue");
  for (std::uint32_t i = 0; i < entries; ++i) srq->entries[i].turn.store(i, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  if (objects_.srqs == limits_.max_srq) {
    return fail(Status::kLimit, "create_srq", ENOMEM, "all {} shared receive queues are in use; share them",
                limits_.max_srq);
  }
  ++srq->spd->users;
  ++objects_.srqs;
  return srq.release();
}

Result<void> SoftNic::destroy_srq(ibv_srq* base) {
  auto* srq = static_cast<SoftSrq*>(base);
  const std::lock_guard lock(mutex_);
  VERBENA_TRY(check_unused("destroy_srq", srq->users, kSrqUsers));
  --srq->spd->users;
  --objects_.srqs;
  delete srq;
  return {};
}

}  // namespace verbena::nic::soft
