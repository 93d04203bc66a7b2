// Shared receive queues of the soft NIC.
//
// A sender takes a SEND for accepted when the peer has published a receive for it. One receive of a shared queue cannot
// be published to several senders: each has its own ring, and what is promised to one is lost to the others until it
// sends. So nothing is promised beforehand. A sender without a receive says how many it needs (QpControl::demand); the
// receiver's next poll moves that many from the shared queue into the QP's own ring of receives, where lengths and keys
// are published and checked as ever; or says that there are none, and only then is it RNR for the sender. A receive is
// so never with a QP whose peer has no message for it, and the queue's last receive serves whichever QP asks.
//
// The price: a SEND to a shared queue waits for a poll of its receiver, where one to a QP's own receives does not.
#include "nic/soft/path.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::nic::soft {

namespace {

/// The end of a queue to put in at, or to take out at (`lag` 1): claims its entry, or returns nullptr when there is
/// none.
SoftSrq::Entry* claim(SoftSrq& srq, std::atomic<std::uint64_t>& end, std::uint64_t lag, std::uint64_t& at) noexcept {
  at = end.load(std::memory_order_relaxed);
  for (;;) {
    SoftSrq::Entry& entry = srq.entries[at & srq.mask];
    const std::uint64_t turn = entry.turn.load(std::memory_order_acquire);
    if (turn == at + lag) {
      // Lost to another thread: `at` is where the end has got to. Each turn of this loop is another thread's success.
      if (end.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) return &entry;
    } else if (static_cast<std::int64_t>(turn - (at + lag)) < 0) {
      return nullptr;
    } else {
      at = end.load(std::memory_order_relaxed);
    }
  }
}

/// There is always room: what is unfinished is counted against max_wr before, and the ring is not smaller.
void put(SoftSrq& srq, const ReceiveWqe& receive, const ibv_sge* sges, bool keys_hold) noexcept {
  std::uint64_t at = 0;
  SoftSrq::Entry* entry = claim(srq, srq.in, 0, at);
  while (entry == nullptr) entry = claim(srq, srq.in, 0, at);  // Claimed by a taker that is about to let go of it.
  entry->receive = receive;
  entry->keys_hold = keys_hold;
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
  const bool keys_hold = entry->keys_hold;
  std::copy_n(srq.sges.get() + (at & srq.mask) * srq.max_sge, entry->receive.sge_count, qp.rq.sges_of(slot));
  entry->turn.store(at + srq.mask + 1, std::memory_order_release);
  publish_receive(qp, slot, keys_hold);
  ++qp.rq.posted;
  return true;
}

/// After something was put in: QPs whose owners found nothing and may sleep by now are told. Not from here: the control
/// plane's mutex is not for a poll to take.
void tell_if_short(SoftSrq& srq) noexcept {
  // Against who looked in vain, see serve_shared.
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
    // A QP that is gone sends nothing any more: what it asked for is not given to it, and what it was given and has not
    // used (all it sent before is received first) goes back.
    if (qp.rq.is_empty() || qp.rq.is_open || qp.rx.ready()) return false;
    give_back_shared(qp, GiveBack::kUntouched);
    return true;
  }
  // The peer's word, read once; any number is good for what is there and fits.
  const std::uint64_t wanted = peer.demand.wanted.load(std::memory_order_acquire);
  if (wanted <= qp.rq.posted) return false;
  // Read after `wanted`, before the queue is looked at: what is refused is this ask or an older one.
  const std::uint64_t ask = peer.demand.ask.load(std::memory_order_relaxed);
  const std::uint64_t before = qp.rq.posted;
  const std::uint64_t most = qp.rq.done + qp.rq.mask + 1;
  bool found = true;
  while (qp.rq.posted < std::min(wanted, most) && found) {
    found = take_shared(qp);
    if (found) continue;
    qp.rq.srq->is_short.store(true, std::memory_order_relaxed);
    // Against who posts: either it sees that the queue is short, or its receive is seen here.
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
    const bool keys_hold = (qp.rq.lengths[slot].load(std::memory_order_relaxed) & kBadReceive) == 0;
    put(*qp.rq.srq, qp.rq.wqes[slot], qp.rq.sges_of(slot), keys_hold);
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
    std::uint64_t capacity = 0;
    bool keys_hold = true;  // As for a QP's own receives: the sender is told beforehand.
    for (int i = 0; i < wr->num_sge; ++i) {
      const ibv_sge& sge = wr->sg_list[i];
      capacity += sge.length;
      keys_hold = keys_hold &&
                  (sge.length == 0 || local_address(*srq.nic, srq.spd->id, sge, IBV_ACCESS_LOCAL_WRITE) != nullptr);
    }
    ReceiveWqe receive;
    receive.wr_id = wr->wr_id;
    receive.sge_count = static_cast<std::uint32_t>(wr->num_sge);
    receive.capacity = static_cast<std::uint32_t>(std::min<std::uint64_t>(capacity, kMaxMessage));
    put(srq, receive, wr->sg_list, keys_hold);
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
