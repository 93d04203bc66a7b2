// The data path of the soft NIC: no lock, no allocation, and no system call except to wake a sleeper that asked for it.
#include "nic/soft/path.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace verbena::nic::soft {

static_assert(Direct::kMostTaken == kSlotPayload);

namespace {

inline bool check_sges(const SoftQp& qp, const ibv_send_wr& wr, bool is_inline, std::uint32_t needed) noexcept {
  if (is_inline) return true;
  for (const ibv_sge& sge : sges_of(wr)) {
    if (sge.length != 0 && local_address(qp, sge, needed) == nullptr) return false;
  }
  return true;
}

inline bool takes_receive(const ibv_send_wr& wr) noexcept {
  return wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         wr.opcode == IBV_WR_SEND_WITH_INV;
}

/// Where `length` bytes at the peer's `address` are mapped here, or nullptr when the peer's NIC would refuse. Call it
/// while the access word is odd. It uses only private data that was checked at import, the live key, which is one word,
/// and the peer's readiness: a queue pair that was destroyed lets nobody in, even while its memory is registered.
inline std::byte* remote_address(const RemoteQp& remote, std::uint64_t address, std::uint32_t rkey,
                                 std::uint64_t length, std::uint32_t needed) noexcept {
  if (!remote.is_ready()) [[unlikely]]
    return nullptr;
  const std::uint32_t index = key_index(rkey);
  if ((rkey & kRemoteKeyBit) == 0 || index >= remote.peer->imports.size()) return nullptr;
  const Import& key = remote.peer->imports[index];
  if (key.rkey.load(std::memory_order_acquire) != rkey) return nullptr;
  if (key.live->load(std::memory_order_acquire) != key.word.load(std::memory_order_relaxed)) return nullptr;
  // Wraps around for addresses before it, and is then longer than any region.
  const std::uint64_t offset = address - key.iova;
  if ((key.domain != remote.pd && key.domain != remote.window_domain) || length > key.length ||
      offset > key.length - length || (key.access & remote.access & needed) != needed) {
    return nullptr;
  }
  return key.base + offset;
}

/// Copies as a NIC does: a naturally aligned word of 4 or 8 bytes appears whole, so that it can be polled.
inline void copy_whole(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const auto both = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (bytes == 8 && both % 8 == 0) {
    const auto value = load_peer_word<std::uint64_t>(from, std::memory_order_acquire);
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to)).store(value, std::memory_order_release);
  } else if (bytes == 4 && both % 4 == 0) {
    const auto value = load_peer_word<std::uint32_t>(from, std::memory_order_acquire);
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(to)).store(value, std::memory_order_release);
  } else {
    std::memcpy(to, from, bytes);
  }
}

inline ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) noexcept {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
    case IBV_WR_BIND_MW: return IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV: return IBV_WC_LOCAL_INV;
    default: return IBV_WC_SEND;
  }
}

/// An event for a completion that no peer's bell announces.
inline void announce(SoftCq& cq) noexcept {
  if (cq.armed == SoftCq::Armed::kNo) [[likely]]
    return;
  cq.armed = SoftCq::Armed::kNo;
  cq.is_due = true;
  ++thread_counters.wakeups;
  signal_eventfd(cq.bell);
}

inline void complete_send(SoftQp& qp, const ibv_send_wr& wr, std::uint64_t sq_index, ibv_wc_status status,
                          std::uint64_t bytes) noexcept {
  if (status == IBV_WC_SUCCESS && !qp.sq.signal_all && (wr.send_flags & IBV_SEND_SIGNALED) == 0) return;
  push(*qp.scq, qp,
       {.wr_id = wr.wr_id,
        .status = status,
        .opcode = completion_opcode(wr.opcode),
        .bytes = static_cast<std::uint32_t>(bytes)},
       sq_index);
  // A failure counts as solicited.
  if (qp.scq->armed == SoftCq::Armed::kAny || status != IBV_WC_SUCCESS) announce(*qp.scq);
}

/// The side that changes shared state pays for the barrier, so that the peers that read it need none.
void pay_barrier() noexcept {
  ++thread_counters.barriers;
  barrier_all_processes();
}

inline void set_wake(SoftQp& qp, std::uint32_t flags) noexcept {
  if (qp.watch.wake_flags == flags) return;
  qp.watch.wake_flags = flags;
  qp.own->rare.wake.store(flags, std::memory_order_release);
}

/// Changes lists of both CQs of a QP. The caller is a poll, which keeps the control plane out of its own CQ only, or a
/// post, which keeps it out of none: the control plane may be making room in the list.
template <class Change>
inline void for_each_cq(const SoftQp& qp, Change&& change) noexcept {
  const auto on = [&](SoftCq& cq) {
    const OwnerSection section(cq);
    change(cq);
  };
  on(*qp.scq);
  if (qp.rcq != qp.scq) on(*qp.rcq);
}

inline void list_stalled(SoftQp& qp) noexcept {
  if (qp.sq.in_stalled) return;
  qp.sq.in_stalled = true;
  for_each_cq(qp, [&](SoftCq& cq) { cq.stalled.push_back(&qp); });  // Room was reserved when the QP joined the CQ.
}

inline void remove_from(std::vector<SoftQp*>& list, const SoftQp& qp) noexcept {
  const auto at = std::find(list.begin(), list.end(), &qp);
  if (at == list.end()) return;
  *at = list.back();
  list.pop_back();
}

}  // namespace

void forget_parked(SoftQp& qp) noexcept {
  if (!std::exchange(qp.watch.parked, false)) return;
  SoftQp** at = &qp.rcq->parked[qp.path.ready_slot];
  while (*at != &qp) at = &(*at)->watch.next_parked;
  *at = std::exchange(qp.watch.next_parked, nullptr);
  --qp.rcq->parked_count;
}

void list_unarmed(SoftQp& qp) noexcept {
  // Capacity was reserved when the QP joined the CQ.
  if (!std::exchange(qp.watch.in_unarmed, true)) qp.rcq->unarmed.push_back(&qp);
}

void enter_error(SoftQp& qp, Status reason) noexcept {
  if (qp.state_now() == IBV_QPS_ERR && qp.failing.flushing) return;
  const OwnerSection section(*qp.rcq);  // From a post, or a poll of the other CQ.
  qp.failing.blame(reason);
  qp.enter(IBV_QPS_ERR);
  qp.tell_readiness(Readiness::kGone);
  remove_from(qp.rcq->active, qp);
  forget_parked(qp);
  if (qp.rq.srq != nullptr) give_back_shared(qp, GiveBack::kUntouched);
  qp.peer_work.revoke_word = 0;
  qp.peer_work.is_asking = false;
  abandon_copy(qp);
  qp.failing.flushing = true;
  qp.pending.stall = SoftQp::Stall::kNone;
  list_stalled(qp);
}

void ring_credit(const RemoteQp& remote) noexcept {
  fences::credit_before_bell();
  if ((remote.control->rare.wake.load(std::memory_order_relaxed) & Wake::kCredit) != 0) [[unlikely]] {
    ++thread_counters.wakeups;
    wake_peer(remote);
  }
}

namespace {

/// The bell: one load of a cache line that rarely changes; more only if the receiver asked for a wake-up.
inline void ring_bell(SoftQp& qp, const RemoteQp& remote) noexcept {
  qp.sq.notify = false;
  // This CPU may reorder the header store above and this load. The receiver's membarrier, between setting its flag and
  // looking at the ring once more, orders them: either it sees the message, or we see the flag.
  fences::message_before_bell();
  const std::uint32_t wake = remote.control->rare.wake.load(std::memory_order_relaxed);
  if (wake == 0) [[likely]] {
    qp.sq.notify_solicited = false;
    return;
  }
  if ((wake & Wake::kParked) != 0 && remote.ready_word != nullptr) {
    remote.ready_word->fetch_or(remote.ready_bit, std::memory_order_release);
  }
  if ((wake & Wake::kMessage) != 0 || ((wake & Wake::kSolicited) != 0 && qp.sq.notify_solicited)) {
    ++thread_counters.wakeups;
    wake_peer(remote);
  }
  qp.sq.notify_solicited = false;
}

Ran refuse(SoftQp& qp, const ibv_send_wr& wr, std::uint64_t sq_index, ibv_wc_status status, Status reason) noexcept {
  complete_send(qp, wr, sq_index, status, 0);
  enter_error(qp, reason);
  return Ran::kFailed;
}

/// Moves the responder's QP to error too, as the NAK of a device does.
void publish_error(SoftQp& qp, const RemoteQp& remote, SlotKind kind) noexcept {
  // Without room the responder learns of it from our readiness when it next sends.
  if (!qp.tx.has_room(0, &remote.control->consumer.consumed)) return;
  qp.tx.publish({kind, SlotFlags::kFirst | SlotFlags::kLast, 0, 0}, 0);
  qp.sq.notify_solicited = true;
  ring_bell(qp, remote);
}

/// UC: a message that the responder does not take is lost, and the sender does not learn of it.
Ran lose(SoftQp& qp, const ibv_send_wr& wr, std::uint64_t sq_index) noexcept {
  complete_send(qp, wr, sq_index, IBV_WC_SUCCESS, total_length(wr));
  return Ran::kDone;
}

void take_last_words(SoftQp& qp) noexcept;

}  // namespace

Ran refuse_remote(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, std::uint64_t sq_index) noexcept {
  if (qp.qp_type == IBV_QPT_UC) return lose(qp, wr, sq_index);
  // Its queue pair has just gone: nobody refuses, and nobody answers.
  if (!remote.is_ready()) return stall(qp, SoftQp::Stall::kPeer);
  // A peer that says goodbye then revokes its memory. Complete what it has sent before the request that it refuses.
  take_last_words(qp);
  // These messages took the last entries, or ended the connection: the request waits for its turn again, or is flushed.
  if (qp.scq->room() == 0 || qp.state_now() == IBV_QPS_ERR) [[unlikely]]
    return stall(qp, SoftQp::Stall::kRoom);
  publish_error(qp, remote, SlotKind::kRemoteError);
  return refuse(qp, wr, sq_index, IBV_WC_REM_ACCESS_ERR, Status::kRemoteAccess);
}

namespace {

/// Whether the peer has a receive for the next message.
inline bool has_receive(SoftQp& qp, const RemoteQp& remote) noexcept {
  if (qp.credit.sent < qp.credit.limit) [[likely]]
    return true;
  qp.credit.limit = remote.control->receives.posted.load(std::memory_order_acquire);
  return qp.credit.sent < qp.credit.limit;
}

/// Returns what a message without a receive waits for. If the peer has a shared receive queue, asks it for a receive;
/// this is no RNR before the peer has answered.
SoftQp::Stall ask_for_receive(SoftQp& qp, const RemoteQp& remote) noexcept {
  if (!remote.has_srq) return SoftQp::Stall::kRnr;
  // Also asks for the messages that wait behind the head.
  const std::uint64_t wanted = qp.credit.sent + std::max<std::uint64_t>(qp.pending.takers, 1);
  if (wanted > qp.credit.wanted) {
    qp.credit.wanted = wanted;
    qp.own->demand.ask.store(++qp.credit.ask, std::memory_order_relaxed);
    qp.own->demand.wanted.store(wanted, std::memory_order_release);
    qp.sq.notify = true;
  }
  const bool is_refused = remote.control->receives.refused.load(std::memory_order_acquire) == qp.credit.ask;
  return is_refused ? SoftQp::Stall::kRnr : SoftQp::Stall::kAnswer;
}

/// A message for which the peer has no receive.
Ran lacks_receive(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, std::uint64_t sq_index) noexcept {
  const SoftQp::Stall why = ask_for_receive(qp, remote);
  if (qp.qp_type == IBV_QPT_UC && why == SoftQp::Stall::kRnr) {
    if (remote.has_srq) {
      // The receive is no longer wanted: the next message asks again.
      qp.credit.wanted = qp.credit.sent;
      qp.own->demand.wanted.store(qp.credit.wanted, std::memory_order_release);
    }
    return lose(qp, wr, sq_index);
  }
  return stall(qp, why);
}

/// Whether the next receive takes a message: kSend if it does, else the kind of slot that tells the receiver. In the
/// common case, receives of one size, this reads only the cache line that rarely changes.
inline SlotKind receive_takes(const SoftQp& qp, const RemoteQp& remote, std::uint64_t length) noexcept {
  if (length <= remote.control->rare.min_receive.load(std::memory_order_relaxed)) [[likely]]
    return SlotKind::kSend;
  const std::uint32_t entry =
      remote.receive_lengths[qp.credit.sent & remote.receive_mask].load(std::memory_order_relaxed);
  if (length > (entry & ~kBadReceive)) return SlotKind::kLengthError;
  return (entry & kBadReceive) != 0 ? SlotKind::kReceiveError : SlotKind::kSend;
}

Ran run_send(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline,
             std::uint64_t sq_index) noexcept {
  const std::uint64_t length = total_length(wr);
  if (!check_sges(qp, wr, is_inline, 0)) [[unlikely]] {
    return refuse(qp, wr, sq_index, IBV_WC_LOC_PROT_ERR, Status::kLocalAccess);
  }
  if (!has_receive(qp, remote)) [[unlikely]]
    return lacks_receive(qp, remote, wr, sq_index);
  if (const SlotKind taken = receive_takes(qp, remote, length); taken != SlotKind::kSend) [[unlikely]] {
    if (qp.qp_type == IBV_QPT_UC) {
      // The responder drops a message that is too long; an invalid key of its own is its own error.
      if (taken == SlotKind::kReceiveError) publish_error(qp, remote, taken);
      return lose(qp, wr, sq_index);
    }
    publish_error(qp, remote, taken);
    const bool too_long = taken == SlotKind::kLengthError;
    return refuse(qp, wr, sq_index, too_long ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR, Status::kRemoteInvalid);
  }
  // The key to invalidate is in the field of the immediate.
  const SlotKind kind = wr.opcode == IBV_WR_SEND            ? SlotKind::kSend
                        : wr.opcode == IBV_WR_SEND_WITH_IMM ? SlotKind::kSendImm
                                                            : SlotKind::kSendInv;
  const bool solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  std::uint64_t offset = qp.pending.offset;
  do {
    const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(length - offset, kSegmentBytes));
    const std::size_t data_bytes = bytes <= kSlotPayload ? 0 : bytes;
    if (!qp.tx.has_room(data_bytes, &remote.control->consumer.consumed)) [[unlikely]] {
      if (offset != qp.pending.offset) qp.pending.stall = SoftQp::Stall::kNone;  // Progress restarts its time.
      qp.pending.offset = static_cast<std::uint32_t>(offset);
      return stall(qp, SoftQp::Stall::kRoom);
    }
    std::byte* to = data_bytes == 0 ? qp.tx.slot_payload() : qp.tx.data_payload(data_bytes);
    gather(qp, wr, is_inline, offset, to, bytes);
    const bool last = offset + bytes == length;
    const auto flags = static_cast<std::uint8_t>((offset == 0 ? SlotFlags::kFirst : 0) | (last ? SlotFlags::kLast : 0) |
                                                 (solicited && last ? SlotFlags::kSolicited : 0) |
                                                 (data_bytes != 0 ? SlotFlags::kInData : 0));
    qp.tx.publish({kind, flags, wr.imm_data, bytes}, data_bytes);
    qp.sq.notify = true;
    offset += bytes;
  } while (offset < length);
  qp.sq.notify_solicited |= solicited;
  qp.pending.offset = 0;
  ++qp.credit.sent;
  complete_send(qp, wr, sq_index, IBV_WC_SUCCESS, length);
  return Ran::kDone;
}

inline bool is_solicited(const ibv_send_wr& wr) noexcept { return (wr.send_flags & IBV_SEND_SOLICITED) != 0; }

/// A message that takes a receive and one slot; `data_bytes` of it, or none, are in the data ring.
inline void publish_whole(SoftQp& qp, SlotView view, std::size_t data_bytes, bool solicited) noexcept {
  view.flags =
      static_cast<std::uint8_t>(SlotFlags::kFirst | SlotFlags::kLast | (solicited ? SlotFlags::kSolicited : 0) |
                                (data_bytes != 0 ? SlotFlags::kInData : 0));
  qp.tx.publish(view, data_bytes);
  qp.sq.notify = true;
  qp.sq.notify_solicited |= solicited;
  ++qp.credit.sent;
}

/// Moves the bytes of a READ or WRITE. Nothing: they are in place. Else as `run_outside` returns.
template <bool kIsRead>
std::optional<Ran> transfer(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline,
                            std::uint64_t sq_index, std::uint64_t length) noexcept {
  {
    const AccessGuard guard(qp);
    std::byte* there = remote_address(remote, wr.wr.rdma.remote_addr, wr.wr.rdma.rkey, length,
                                      kIsRead ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
    if (there != nullptr) [[likely]] {
      const CopyByNic copy(kIsRead);
      for (const ibv_sge& sge : sges_of(wr)) {
        if (sge.length == 0) continue;
        std::byte* const here = sge_address(qp, sge, is_inline, 0);
        copy_whole(kIsRead ? here : there, kIsRead ? there : here, sge.length);
        there += sge.length;
      }
      return std::nullopt;
    }
  }
  return run_outside(qp, remote, wr, is_inline, sq_index, nullptr);
}

/// With `is_delivered` the bytes are in place already.
Ran run_write(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline, std::uint64_t sq_index,
              bool is_delivered) noexcept {
  const std::uint64_t length = total_length(wr);
  if (!check_sges(qp, wr, is_inline, 0)) [[unlikely]] {
    return refuse(qp, wr, sq_index, IBV_WC_LOC_PROT_ERR, Status::kLocalAccess);
  }
  const bool with_imm = wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (with_imm) {
    if (!has_receive(qp, remote)) return lacks_receive(qp, remote, wr, sq_index);
    if (!qp.tx.has_room(0, &remote.control->consumer.consumed)) return stall(qp, SoftQp::Stall::kRoom);
  }
  if (length > 0 && !is_delivered) {
    if (const auto ended = transfer<false>(qp, remote, wr, is_inline, sq_index, length)) return *ended;
  }
  if (with_imm) {
    const SlotView told{.kind = SlotKind::kWriteImm, .imm = wr.imm_data, .length = static_cast<std::uint32_t>(length)};
    publish_whole(qp, told, 0, is_solicited(wr));
  }
  complete_send(qp, wr, sq_index, IBV_WC_SUCCESS, length);
  return Ran::kDone;
}

Ran run_read(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, std::uint64_t sq_index,
             bool is_delivered) noexcept {
  const std::uint64_t length = total_length(wr);
  if (!check_sges(qp, wr, false, IBV_ACCESS_LOCAL_WRITE)) [[unlikely]] {
    return refuse(qp, wr, sq_index, IBV_WC_LOC_PROT_ERR, Status::kLocalAccess);
  }
  if (length > 0 && !is_delivered) {
    if (const auto ended = transfer<true>(qp, remote, wr, false, sq_index, length)) return *ended;
  }
  complete_send(qp, wr, sq_index, IBV_WC_SUCCESS, length);
  return Ran::kDone;
}

/// Carries out an atomic on a word that is mapped here. False: it is not mapped, or the access would be refused; no
/// side effect.
inline bool change_word(SoftQp& qp, const RemoteQp& remote, ibv_wr_opcode opcode, std::uint64_t operand,
                        std::uint64_t swap, std::uint64_t address, std::uint32_t rkey, std::uint64_t& old) noexcept {
  const AccessGuard guard(qp);
  std::byte* const at = remote_address(remote, address, rkey, sizeof old, IBV_ACCESS_REMOTE_ATOMIC);
  if (at == nullptr || reinterpret_cast<std::uintptr_t>(at) % sizeof old != 0) [[unlikely]]
    return false;
  std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(at));
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    old = word.fetch_add(operand, std::memory_order_seq_cst);
  } else {
    std::uint64_t seen = operand;
    word.compare_exchange_strong(seen, swap, std::memory_order_seq_cst);
    old = seen;
  }
  return true;
}

Ran run_atomic(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, std::uint64_t sq_index) noexcept {
  std::byte* result = nullptr;
  if (wr.num_sge == 1 && wr.sg_list[0].length == 8) result = local_address(qp, wr.sg_list[0], IBV_ACCESS_LOCAL_WRITE);
  if (result == nullptr) {
    const bool bad_length = wr.num_sge != 1 || wr.sg_list[0].length != 8;
    return refuse(qp, wr, sq_index, bad_length ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR, Status::kLocalAccess);
  }
  const std::uint64_t address = wr.wr.atomic.remote_addr;
  if (address % 8 != 0) {
    publish_error(qp, remote, SlotKind::kRemoteError);
    return refuse(qp, wr, sq_index, IBV_WC_REM_INV_REQ_ERR, Status::kRemoteInvalid);
  }
  std::uint64_t old = 0;
  if (!change_word(qp, remote, wr.opcode, wr.wr.atomic.compare_add, wr.wr.atomic.swap, address, wr.wr.atomic.rkey,
                   old)) {
    const auto ended = run_outside(qp, remote, wr, false, sq_index, &old);
    if (ended) return *ended;
  }
  std::memcpy(result, &old, sizeof old);
  complete_send(qp, wr, sq_index, IBV_WC_SUCCESS, 8);
  return Ran::kDone;
}

Ran run_send_invalidate(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline,
                        std::uint64_t sq_index) noexcept {
  if (qp.pending.offset == 0 && !may_invalidate(remote, wr.invalidate_rkey)) {
    return refuse_remote(qp, remote, wr, sq_index);
  }
  const Ran ran = run_send(qp, remote, wr, is_inline, sq_index);
  if (ran == Ran::kDone) forget_window(remote, wr.invalidate_rkey);
  return ran;
}

/// Bind and invalidate. Neither needs a connected peer.
Ran run_local(SoftQp& qp, const ibv_send_wr& wr, std::uint64_t sq_index) noexcept {
  const RemoteQp* const remote = qp.remote.load(std::memory_order_acquire);
  if (wr.opcode == IBV_WR_BIND_MW) {
    const ibv_wc_status status = bind_window(qp, wr);
    if (status != IBV_WC_SUCCESS) return refuse(qp, wr, sq_index, status, Status::kLocalAccess);
  } else if (qp.peer_work.revoke_word == 0) {
    if (!withdraw_window(qp, wr.invalidate_rkey)) {
      // As for a bind: the status of all memory management operations (IBTA 11.6.2).
      return refuse(qp, wr, sq_index, IBV_WC_MW_BIND_ERR, Status::kLocalAccess);
    }
    // Completing means that the peer can no longer reach the memory. Only this QP's peer could: after the barrier it
    // either sees the window gone, or we see it inside an access.
    pay_barrier();
    if (remote != nullptr) {
      const std::uint64_t seen = remote->control->access.word.load(std::memory_order_acquire);
      if (seen % 2 == 1) {
        qp.peer_work.revoke_word = seen;
        qp.peer_work.is_revoking.store(true, std::memory_order_release);
        return stall(qp, SoftQp::Stall::kRevoke);
      }
    }
  } else {
    const bool has_moved = remote->control->access.word.load(std::memory_order_acquire) != qp.peer_work.revoke_word;
    if (!has_moved) return stall(qp, SoftQp::Stall::kRevoke);
    qp.peer_work.revoke_word = 0;
    qp.peer_work.is_revoking.store(false, std::memory_order_relaxed);
  }
  complete_send(qp, wr, sq_index, IBV_WC_SUCCESS, 0);
  return Ran::kDone;
}

inline bool is_local(ibv_wr_opcode opcode) noexcept { return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV; }

/// Validates a request's local side, as a device does before it sends.
ibv_wc_status local_fault(const SoftQp& qp, const ibv_send_wr& wr, bool is_inline) noexcept {
  const bool is_atomic = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  if (is_atomic && (wr.num_sge != 1 || wr.sg_list[0].length != sizeof(std::uint64_t))) return IBV_WC_LOC_LEN_ERR;
  const std::uint32_t needed = is_atomic || wr.opcode == IBV_WR_RDMA_READ ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U;
  return check_sges(qp, wr, is_inline, needed) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
}

/// Executes one work request now, or says what it waits for.
inline Ran run(SoftQp& qp, const ibv_send_wr& wr, bool is_inline, std::uint64_t sq_index,
               bool is_delivered = false) noexcept {
  const bool is_peer_dead = qp.failing.peer_dead.load(std::memory_order_acquire);
  if (is_peer_dead) [[unlikely]]
    take_last_words(qp);
  // Success or failure needs a place for its completion: a CQ never overruns here, it holds the sender back.
  if (qp.scq->room() == 0) [[unlikely]]
    return stall(qp, SoftQp::Stall::kRoom);
  const RemoteQp* remote = qp.remote.load(std::memory_order_acquire);
  if (is_peer_dead) [[unlikely]] {
    qp.failing.loss_told = true;
    return refuse(qp, wr, sq_index, IBV_WC_RETRY_EXC_ERR, Status::kPeerLost);
  }
  if (remote == nullptr || !remote->is_ready()) [[unlikely]] {
    if (is_local(wr.opcode)) return run_local(qp, wr, sq_index);
    if (const ibv_wc_status fault = local_fault(qp, wr, is_inline); fault != IBV_WC_SUCCESS) {
      return refuse(qp, wr, sq_index, fault, Status::kLocalAccess);
    }
    if (qp.qp_type == IBV_QPT_UC) return lose(qp, wr, sq_index);
    return stall(qp, SoftQp::Stall::kPeer);
  }
  switch (wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return run_send(qp, *remote, wr, is_inline, sq_index);
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return run_write(qp, *remote, wr, is_inline, sq_index, is_delivered);
    case IBV_WR_RDMA_READ: return run_read(qp, *remote, wr, sq_index, is_delivered);
    case IBV_WR_SEND_WITH_INV: return run_send_invalidate(qp, *remote, wr, is_inline, sq_index);
    case IBV_WR_BIND_MW:
    case IBV_WR_LOCAL_INV: return run_local(qp, wr, sq_index);
    default: return run_atomic(qp, *remote, wr, sq_index);
  }
}

/// Copies a work request into the send queue, inline data included, so that the caller may reuse its memory.
void enqueue(SoftQp& qp, const ibv_send_wr& wr, std::uint64_t sq_index) noexcept {
  if (qp.pending.is_empty()) qp.pending.head = qp.pending.tail = 0;  // Keeps the used part small.
  const std::size_t slot = qp.pending.tail & qp.pending.mask;
  SendWqe& entry = qp.pending.wqes[slot];
  entry.wr = wr;
  entry.wr.next = nullptr;
  entry.sq_index = sq_index;
  ibv_sge* sges = qp.pending.sges + slot * qp.sq.max_sge;
  entry.wr.sg_list = sges;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    std::byte* data = qp.pending.inline_data + slot * qp.sq.max_inline;
    const std::uint64_t length = total_length(wr);
    gather(qp, wr, true, 0, data, length);
    sges[0] = {reinterpret_cast<std::uint64_t>(data), static_cast<std::uint32_t>(length), 0};
    entry.wr.num_sge = length == 0 ? 0 : 1;
  } else {
    std::copy_n(wr.sg_list, wr.num_sge, sges);
  }
  if (takes_receive(wr)) ++qp.pending.takers;
  ++qp.pending.tail;
  list_stalled(qp);
}

/// Ticks that a stalled head may wait; nothing: for ever.
std::optional<std::uint64_t> patience_of(const SoftQp& qp) noexcept {
  if (qp.pending.stall == SoftQp::Stall::kRnr && qp.path.rnr_retry != 7)
    return qp.path.rnr_retry * qp.remote.load(std::memory_order_acquire)->rnr_ticks;
  if (qp.pending.waits_for_peer() && qp.path.retry_ticks != 0) return qp.path.retry_ticks;
  return std::nullopt;
}

/// The status of a stalled head whose time is over; IBV_WC_SUCCESS while it may still wait.
ibv_wc_status given_up(const SoftQp& qp) noexcept {
  const auto patience = patience_of(qp);
  if (!patience || ticks_now() - qp.pending.stall_start < *patience) return IBV_WC_SUCCESS;
  return qp.pending.stall == SoftQp::Stall::kRnr ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR;
}

// --- chaos: the fate of the head of a send queue

/// Delivers pieces of the head, about a quarter of them at a time. kDone when all are in place.
Ran deliver_pieces(SoftQp& qp, const SendWqe& entry) noexcept {
  const ibv_send_wr& wr = entry.wr;
  const RemoteQp& remote = *qp.remote.load(std::memory_order_acquire);
  const bool is_read = wr.opcode == IBV_WR_RDMA_READ;
  const bool is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  const std::uint64_t length = total_length(wr);
  QpChaos& chaos = *qp.chaos;
  if (!check_sges(qp, wr, is_inline, is_read ? IBV_ACCESS_LOCAL_WRITE : 0)) {
    return refuse(qp, wr, entry.sq_index, IBV_WC_LOC_PROT_ERR, Status::kLocalAccess);
  }
  if (!std::exchange(chaos.has_begun, true)) chaos.pieces.begin(wr.wr.rdma.remote_addr, length, chaos.dice);
  bool refused = false;
  {
    const AccessGuard guard(qp);
    std::byte* const there = remote_address(remote, wr.wr.rdma.remote_addr, wr.wr.rdma.rkey, length,
                                            is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
    refused = there == nullptr;
    const CopyByNic copy(is_read);
    for (std::uint32_t n = 1 + chaos.dice.below(1 + chaos.pieces.count() / 4); n > 0 && !refused; --n) {
      if (chaos.pieces.done()) break;
      const Pieces::Piece piece = chaos.pieces.take();
      if (is_read) {
        scatter_read(qp, wr, piece.offset, there + piece.offset, piece.bytes);
      } else {
        gather(qp, wr, is_inline, piece.offset, there + piece.offset, piece.bytes);
      }
    }
  }
  if (refused) return refuse_remote(qp, remote, wr, entry.sq_index);
  return chaos.pieces.done() ? Ran::kDone : Ran::kStalled;
}

/// Whether the peer is connected and ready: before that, chaos lets the head wait as it would anyway.
bool can_reach_peer(const SoftQp& qp) noexcept {
  const RemoteQp* remote = qp.remote.load(std::memory_order_acquire);
  return remote != nullptr && !qp.failing.peer_dead.load(std::memory_order_relaxed) && remote->is_ready();
}

/// Ends a work request that chaos lets fail.
Ran end_badly(SoftQp& qp, const SendWqe& entry, Fate::End end) noexcept {
  switch (end) {
    case Fate::End::kRnrRetry:
      return refuse(qp, entry.wr, entry.sq_index, IBV_WC_RNR_RETRY_EXC_ERR, Status::kRnrExceeded);
    case Fate::End::kFatal: return refuse(qp, entry.wr, entry.sq_index, IBV_WC_FATAL_ERR, Status::kDevice);
    default:
      if (qp.qp_type == IBV_QPT_UC) return lose(qp, entry.wr, entry.sq_index);
      return refuse(qp, entry.wr, entry.sq_index, IBV_WC_RETRY_EXC_ERR, Status::kRetryExceeded);
  }
}

/// Stalls for a reason that no event of the peer ends: it counts no retries, and a sleeper must not wait for the peer.
Ran wait_in_chaos(SoftQp& qp) noexcept {
  qp.pending.stall = SoftQp::Stall::kNone;
  return Ran::kStalled;
}

/// The head's turn under chaos. kStalled: not yet, at this poll.
Ran run_in_chaos(SoftQp& qp, const SendWqe& entry, bool is_inline) noexcept {
  QpChaos& chaos = *qp.chaos;
  const ibv_send_wr& wr = entry.wr;
  // Without room for a completion, or with a dead or absent peer, do as without chaos.
  if (qp.scq->room() == 0 || !can_reach_peer(qp)) return run(qp, wr, is_inline, entry.sq_index);
  if (!chaos.is_drawn) {
    const bool is_rdma =
        wr.opcode == IBV_WR_RDMA_READ || wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    chaos.draw(takes_receive(wr), is_rdma, total_length(wr), qp.path.rnr_retry);
  }
  Fate& fate = chaos.fate;
  if (fate.polls != 0) {
    --fate.polls;
    return wait_in_chaos(qp);
  }
  if (fate.end == Fate::End::kDeath) {
    qp.failing.peer_dead.store(true, std::memory_order_relaxed);
    return run(qp, wr, is_inline, entry.sq_index);
  }
  const bool comes_late = fate.end == Fate::End::kRetryLate;
  if (fate.end != Fate::End::kWell && !comes_late) return end_badly(qp, entry, fate.end);
  // On UC a refused request is lost as a whole, so it must be refused before any part is delivered.
  const bool in_pieces = (fate.in_pieces || comes_late) && total_length(wr) > 0 && qp.qp_type == IBV_QPT_RC &&
                         !is_outside(*qp.remote.load(std::memory_order_relaxed), wr.wr.rdma.rkey);
  if (in_pieces && !(chaos.has_begun && chaos.pieces.done())) {
    const Ran delivered = deliver_pieces(qp, entry);
    if (delivered == Ran::kStalled) return wait_in_chaos(qp);
    if (delivered == Ran::kFailed) return delivered;
  }
  if (comes_late) return end_badly(qp, entry, fate.end);
  return run(qp, wr, is_inline, entry.sq_index, in_pieces);
}

/// The head, while the copier moves its bytes. Local regions may have gone since its last turn.
Ran run_copied(SoftQp& qp, const SendWqe& entry, bool is_inline) noexcept {
  const ibv_send_wr& wr = entry.wr;
  if (qp.scq->room() == 0) return stall(qp, SoftQp::Stall::kRoom);
  if (!check_sges(qp, wr, is_inline, wr.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0))
    return refuse(qp, wr, entry.sq_index, IBV_WC_LOC_PROT_ERR, Status::kLocalAccess);
  const RemoteQp& remote = *qp.remote.load(std::memory_order_acquire);
  if (const auto ended = continue_copy(qp, remote, wr, is_inline, entry.sq_index, 0)) return *ended;
  return run(qp, wr, is_inline, entry.sq_index, true);
}

/// Continues with the send queue. True if it executed something.
bool run_pending(SoftQp& qp) noexcept {
  bool any = false;
  while (!qp.pending.is_empty() && qp.state_now() == IBV_QPS_RTS) {
    const std::uint8_t held = qp.sq.held.load(std::memory_order_relaxed);
    if ((held & Hold::kByTest) != 0) break;
    const SendWqe& entry = qp.pending.front();
    const bool is_inline = (entry.wr.send_flags & IBV_SEND_INLINE) != 0;
    const Ran ran = qp.peer_work.is_copying ? run_copied(qp, entry, is_inline)
                    : held == 0             ? run(qp, entry.wr, is_inline, entry.sq_index)
                                            : run_in_chaos(qp, entry, is_inline);
    if (ran == Ran::kStalled) {
      const ibv_wc_status status = given_up(qp);
      if (qp.pending.stall == SoftQp::Stall::kRoom && qp.scq->room() > 0) ask_to_take(qp);
      if (status == IBV_WC_SUCCESS || qp.scq->room() == 0) break;
      refuse(qp, entry.wr, entry.sq_index, status,
             status == IBV_WC_RETRY_EXC_ERR ? Status::kRetryExceeded : Status::kRnrExceeded);
    }
    qp.pending.stall = SoftQp::Stall::kNone;
    if (takes_receive(entry.wr)) --qp.pending.takers;
    ++qp.pending.head;
    if (held != 0) qp.chaos->is_drawn = false;
    any = true;
    if (ran != Ran::kDone) break;
  }
  if (qp.sq.notify) {
    // The remote side exists, because something was published.
    ring_bell(qp, *qp.remote.load(std::memory_order_relaxed));
  }
  return any;
}

/// Completes the oldest receive.
inline void end_receive(SoftQp& qp) noexcept {
  ++qp.rq.done;
  if (qp.rq.srq != nullptr) [[unlikely]]
    retire_shared(*qp.rq.srq);
}

/// Flushes what the error state left, as far as the CQs have room. True when all is flushed.
bool flush(SoftQp& qp) noexcept {
  abandon_copy(qp);  // Before its completion says that the memory is free: a control plane enters the error state, too.
  while (!qp.pending.is_empty() && qp.scq->room() > 0) {
    const SendWqe& entry = qp.pending.front();
    // The request that was waiting for the dead peer is the one that failed; the rest is flushed after it.
    const bool lost =
        qp.failing.peer_dead.load(std::memory_order_relaxed) && !std::exchange(qp.failing.loss_told, true);
    complete_send(qp, entry.wr, entry.sq_index, lost ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR, 0);
    ++qp.pending.head;
  }
  if (!qp.early.is_empty()) return false;  // Early completions are older.
  while (!qp.rq.is_empty() && qp.rcq->room() > 0) {
    const ReceiveWqe& receive = qp.rq.wqes[qp.rq.done & qp.rq.mask];
    push(*qp.rcq, qp, {.wr_id = receive.wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV});
    announce(*qp.rcq);
    end_receive(qp);
  }
  return qp.pending.is_empty() && qp.rq.is_empty();
}

bool run_stalled(SoftCq& cq) noexcept {
  bool any = false;
  for (std::size_t i = 0; i < cq.stalled.size();) {
    SoftQp& qp = *cq.stalled[i];
    bool idle = false;
    if (qp.state_now() == IBV_QPS_ERR) {
      any = true;
      idle = flush(qp);
    } else {
      any |= run_pending(qp);
      idle = qp.pending.is_empty() && qp.state_now() == IBV_QPS_RTS;
    }
    if (idle) {
      qp.sq.in_stalled = false;
      if ((qp.watch.wake_flags & Wake::kCredit) != 0) set_wake(qp, qp.watch.wake_flags & ~Wake::kCredit);
      for_each_cq(qp, [&](SoftCq& one) { remove_from(one.stalled, qp); });
    } else {
      ++i;
    }
  }
  return any;
}

void fail_receive(SoftQp& qp, ibv_wc_status status, Status reason) noexcept {
  if (!qp.rq.is_empty()) {
    const ReceiveWqe& receive = qp.rq.wqes[qp.rq.done & qp.rq.mask];
    push(*qp.rcq, qp, {.wr_id = receive.wr_id, .status = status, .opcode = IBV_WC_RECV});
    qp.rq.is_open = false;
    end_receive(qp);
  }
  enter_error(qp, reason);
}

/// Takes one message or segment off the peer's ring. False when the QP went to error. Don't trust `view`, which the
/// peer wrote: an honest NIC keeps to the posted receives and the published lengths, so any breach is a protocol error.
bool receive_one(SoftQp& qp, const SlotView& view) noexcept {
  if (view.kind == SlotKind::kRemoteError) {
    enter_error(qp, Status::kRemoteAccess);
    return false;
  }
  const Segment taken = view.kind == SlotKind::kLengthError    ? Segment::kTooLong
                        : view.kind == SlotKind::kReceiveError ? Segment::kBadKey
                                                               : take_segment(qp, view, qp.rq.posted);
  switch (taken) {
    case Segment::kWhole: break;
    case Segment::kPart: return true;
    case Segment::kProtocol: enter_error(qp, Status::kProtocol); return false;
    case Segment::kTooLong: fail_receive(qp, IBV_WC_LOC_LEN_ERR, Status::kTooLong); return false;
    case Segment::kBadKey: fail_receive(qp, IBV_WC_LOC_PROT_ERR, Status::kLocalAccess); return false;
  }
  if (view.kind == SlotKind::kSendInv && !withdraw_window(qp, view.imm)) [[unlikely]] {
    // The sender has checked the key: it was invalidated or bound again since, or the sender is not honest.
    enter_error(qp, Status::kRemoteAccess);
    return false;
  }
  push(*qp.rcq, qp, end_message(qp, view));
  end_receive(qp);
  return true;
}

/// Where a whole SEND in one slot goes, if the first segment of its receive has room for it. Null: `receive_one`
/// handles it.
inline std::byte* place_of_small(const SoftQp& qp, const SlotView& view) noexcept {
  const bool is_whole = view.kind == SlotKind::kSend && view.flags == (SlotFlags::kFirst | SlotFlags::kLast);
  if (!is_whole || qp.rq.is_open || qp.rq.is_empty() || view.length > kSlotPayload) return nullptr;
  const std::size_t slot = qp.rq.done & qp.rq.mask;
  const ibv_sge& sge = qp.rq.sges[slot * qp.rq.max_sge];
  if (qp.rq.wqes[slot].sge_count == 0 || view.length > sge.length) return nullptr;
  return local_address(*qp.nic, qp.rq.pd, sge, IBV_ACCESS_LOCAL_WRITE);
}

/// False: not executed, no side effect.
inline bool receive_small(SoftQp& qp, const SlotView& view) noexcept {
  std::byte* const to = place_of_small(qp, view);
  if (to == nullptr) return false;
  std::memcpy(to, qp.rx.payload(view), view.length);
  const ReceiveWqe& receive = qp.rq.wqes[qp.rq.done & qp.rq.mask];
  push(*qp.rcq, qp, {.wr_id = receive.wr_id, .opcode = IBV_WC_RECV, .bytes = view.length});
  end_receive(qp);
  return true;
}

/// Called when a QP whose peer rings the bell has received. Only the first message after the arming makes the event of
/// an armed CQ. If the bell has rung, for any QP, the CQ has its event (which waits on the channel) and is no longer
/// armed; if not, the received messages are older, and the CQ stays armed. Costs one look at a descriptor, in this
/// state only.
void settle_arming(SoftQp& qp) noexcept {
  SoftCq& cq = *qp.rcq;
  if (cq.armed != SoftCq::Armed::kNo) {
    ++thread_counters.checks;
    if (!is_signalled(cq.bell)) return;
    cq.armed = SoftCq::Armed::kNo;
    cq.is_due = true;
  }
  set_wake(qp, qp.watch.wake_flags & ~(Wake::kMessage | Wake::kSolicited));
  list_unarmed(qp);
}

/// Messages one QP may take in one pass, so that a flood does not starve its neighbours.
constexpr int kReceiveBudget = 64;

inline bool receive(SoftQp& qp) noexcept {
  if (!qp.rx.ready()) [[likely]]
    return false;
  if (!qp.early.is_empty()) [[unlikely]]
    return false;  // Early completions are older, and have no room yet.
  SlotView view;
  for (int i = 0; i < kReceiveBudget && qp.rcq->room() > 0 && qp.rx.peek(view); ++i) {
    if (!receive_small(qp, view) && !receive_one(qp, view)) return true;
    qp.rx.advance();
  }
  qp.rx.publish_progress(qp.own->consumer.consumed);
  ring_credit(*qp.rx_remote);
  if ((qp.watch.wake_flags & (Wake::kMessage | Wake::kSolicited)) != 0) [[unlikely]]
    settle_arming(qp);
  return true;
}

/// The oldest receive becomes the newest, as if it had completed and its owner had posted it again.
inline void repost_oldest(SoftQp& qp) noexcept {
  SoftQp::ReceiveQueue& rq = qp.rq;
  const std::size_t from = rq.done & rq.mask, to = rq.posted & rq.mask;
  if (from != to) {
    rq.wqes[to] = rq.wqes[from];
    std::copy_n(rq.sges_of(from), rq.wqes[to].sge_count, rq.sges_of(to));
    publish_length(qp, to);  // It was published before: the smallest length is right.
  }
  ++rq.done;
  ++rq.polled;
  qp.own->receives.posted.store(++rq.posted, std::memory_order_release);
}

/// Copies a message to `message` if nothing comes before it or after it, and the queues would have received it in the
/// same way. Returns its bytes; 0: not executed, no side effect.
inline std::uint32_t take_small(SoftCq& cq, SoftQp& qp, std::byte* message) noexcept {
  SlotView view;
  // `ready` first: mostly there is no message.
  if (qp.rx_remote == nullptr || !qp.rx.ready() || cq.head != cq.tail || cq.held != 0 || !cq.stalled.empty() ||
      qp.state_now() != IBV_QPS_RTS || !qp.early.is_empty() || qp.rq.srq != nullptr || qp.watch.parked ||
      (qp.watch.wake_flags & (Wake::kMessage | Wake::kSolicited)) != 0 || qp.rx.is_followed() || !qp.rx.peek(view) ||
      view.length == 0 || place_of_small(qp, view) == nullptr)
    return 0;
  std::memcpy(message, qp.rx.payload(view), view.length);
  repost_oldest(qp);
  qp.rx.advance();
  qp.rx.publish_progress(qp.own->consumer.consumed);
  ring_credit(*qp.rx_remote);
  qp.watch.idle_passes = 0;
  return view.length;
}

/// Up to this many QPs none is parked: a sweep over them is cheaper than a bell.
constexpr std::size_t kDirectQps = 8;
/// Passes between two checks for QPs to park, and passes without a message after which a QP is parked.
constexpr std::uint32_t kHouseEvery = 1024;
constexpr std::uint32_t kIdlePasses = 512;

/// Unparks the QPs of a bit that have a message: none if the bit is a stray one, because peers of our own user can set
/// any. A peer sets a bit after it has published, and a later message sets it again.
void unpark(SoftCq& cq, std::uint32_t slot) noexcept {
  for (SoftQp** at = &cq.parked[slot]; *at != nullptr;) {
    SoftQp* const qp = *at;
    if (!qp->rx.ready() && !(qp->rq.srq != nullptr && owes_shared(*qp))) {
      at = &qp->watch.next_parked;
      continue;
    }
    *at = std::exchange(qp->watch.next_parked, nullptr);
    --cq.parked_count;
    qp->watch.parked = false;
    qp->watch.idle_passes = 0;
    set_wake(*qp, qp->watch.wake_flags & ~Wake::kParked);
    cq.active.push_back(qp);
  }
}

bool check_ready_set(SoftCq& cq) noexcept {
  bool any = false;
  for (std::uint32_t word = 0; word < kReadyWords; ++word) {
    if (cq.ready_words[word].load(std::memory_order_relaxed) == 0) [[likely]]
      continue;
    std::uint64_t bits = cq.ready_words[word].exchange(0, std::memory_order_acquire);
    for (; bits != 0; bits &= bits - 1) unpark(cq, word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
    any = true;
  }
  return any;
}

/// Asks the peers of QPs without a message for `idle_passes` passes to set a bit when they publish. True if there are
/// any: then call `park_asked`, after one barrier for all of them.
[[nodiscard]] bool ask_to_park(SoftCq& cq, std::uint32_t idle_passes) noexcept {
  if (cq.active.size() <= kDirectQps) return false;
  bool any = false;
  for (SoftQp* qp : cq.active) {
    if (qp->watch.idle_passes >= idle_passes && qp->watch.may_park && !(qp->rq.srq != nullptr && owes_shared(*qp))) {
      set_wake(*qp, qp->watch.wake_flags | Wake::kParked);
      any = true;
    }
  }
  return any;
}

/// Takes these QPs out of the sweep. A look at the ring finds a message of a peer that could not see the flag yet; any
/// later message sees the flag.
void park_asked(SoftCq& cq) noexcept {
  for (std::size_t i = 0; i < cq.active.size();) {
    SoftQp& qp = *cq.active[i];
    if ((qp.watch.wake_flags & Wake::kParked) == 0) {
      ++i;
    } else if (qp.rx.ready() || (qp.rq.srq != nullptr && owes_shared(qp))) {
      set_wake(qp, qp.watch.wake_flags & ~Wake::kParked);
      qp.watch.idle_passes = 0;
      ++i;
    } else {
      qp.watch.parked = true;
      qp.watch.next_parked = std::exchange(cq.parked[qp.path.ready_slot], &qp);
      ++cq.parked_count;
      cq.active[i] = cq.active.back();
      cq.active.pop_back();
    }
  }
}

/// Restarts an empty ring at its begin, so that few of its entries are used, whatever it could hold. Not while
/// completions are held, because chaos counts them by their places.
inline void restart_ring(SoftCq& cq) noexcept {
  if (cq.head == cq.tail && cq.held == 0) cq.head = cq.tail = 0;
}

/// Periodic work.
void keep_house(SoftCq& cq) noexcept {
  restart_ring(cq);
  if (!ask_to_park(cq, kIdlePasses)) return;
  pay_barrier();
  park_asked(cq);
}

bool progress(SoftCq& cq) noexcept {
  bool any = false;
  if (++cq.passes % kHouseEvery == 0) [[unlikely]]
    keep_house(cq);
  if (cq.parked_count != 0) any |= check_ready_set(cq);
  for (std::size_t i = 0; i < cq.active.size(); ++i) {
    SoftQp* qp = cq.active[i];
    bool found = receive(*qp);
    if (qp->rq.srq != nullptr && qp->state_now() != IBV_QPS_ERR) [[unlikely]]
      found |= serve_shared(*qp);
    if (found) {
      qp->watch.idle_passes = 0;
      any = true;
      if (i < cq.active.size() && cq.active[i] != qp) --i;  // It went to error, and another QP took its place.
    } else {
      ++qp->watch.idle_passes;
    }
  }
  if (!cq.stalled.empty()) [[unlikely]]
    any |= run_stalled(cq);
  return any;
}

void receive_all(SoftQp& qp) noexcept {
  while (qp.rx_remote != nullptr && qp.state_now() != IBV_QPS_ERR && qp.rcq->room() > 0 && receive(qp)) {}
}

/// Receives what the peer published before it died or refused a request, so that it completes before that failure, as
/// on a device: it may be a goodbye. Only if one thread has both CQs.
void take_last_words(SoftQp& qp) noexcept {
  if (qp.rcq != qp.scq) return;
  const OwnerSection section(*qp.rcq);
  take_over_early(qp);
  receive_all(qp);
}

/// Handles news for QPs of this CQ: connected, peer dead, error requested.
void attend(SoftCq& cq) noexcept {
  cq.control.fetch_and(~(SoftCq::kAttention | SoftCq::kLeftOver), std::memory_order_acquire);
  for (SoftQp* qp : cq.members) {
    const ibv_qp_state state = qp->state_now();
    if (state == IBV_QPS_RESET || state == IBV_QPS_INIT) continue;
    if (qp->rcq == &cq) take_over_early(*qp);
    if (qp->failing.peer_dead.load(std::memory_order_acquire)) {
      receive_all(*qp);
      enter_error(*qp, Status::kPeerLost);
    } else if (qp->failing.error_wanted.load(std::memory_order_acquire)) {
      enter_error(*qp, Status::kClosed);
    } else if (const RemoteQp* remote = qp->remote.load(std::memory_order_acquire);
               remote != nullptr && qp->rx_remote == nullptr && qp->rcq == &cq && state != IBV_QPS_ERR) {
      qp->rx = remote->ring;
      qp->rx_remote = remote;
      cq.active.push_back(qp);
      // Receives posted before the peer was known woke nobody: a sender may be sleeping until there are some.
      if (qp->rq.posted != 0) ring_credit(*remote);
    }
  }
}

/// Delivers flushes all the same, so that queues drain. An owner that has armed a CQ is about to sleep, and would not
/// poll again for a completion that chaos holds back: on a device it would not be in the CQ yet, and its event would
/// come later.
bool keeps_back(SoftCq& cq, const Cqe& entry) noexcept {
  if (entry.qp->state_now() == IBV_QPS_ERR) return false;
  if ((cq.held & Hold::kByTest) != 0) return true;
  return cq.armed == SoftCq::Armed::kNo && cq.chaos->keeps_back(cq.head);
}

inline int drain(SoftCq& cq, int count, ibv_wc* wc) noexcept {
  int got = 0;
  while (got < count && cq.head != cq.tail) {
    const Cqe& entry = cq.ring[cq.head & cq.mask];
    if (cq.held != 0 && keeps_back(cq, entry)) [[unlikely]]
      break;
    wc[got++] = entry.wc;
    if (entry.sq_index != kNotSend) {
      entry.qp->sq.retired = entry.sq_index + 1;
    } else {
      ++entry.qp->rq.polled;
    }
    ++cq.head;
  }
  return got;
}

/// Successive polls that may return completions without looking at the rings.
constexpr std::uint32_t kBusyPolls = 8;

int validate(const SoftQp& qp, const ibv_send_wr& wr) noexcept {
  switch (wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: break;
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      if (qp.qp_type == IBV_QPT_UC) return EINVAL;
      if ((wr.send_flags & IBV_SEND_INLINE) != 0) return EINVAL;
      break;
    case IBV_WR_SEND_WITH_INV:
      if (qp.qp_type != IBV_QPT_RC) return EINVAL;
      break;
    case IBV_WR_BIND_MW:
      if (wr.bind_mw.mw == nullptr || wr.bind_mw.bind_info.mr == nullptr) return EINVAL;
      [[fallthrough]];
    case IBV_WR_LOCAL_INV: return wr.num_sge == 0 ? 0 : EINVAL;
    default: return EOPNOTSUPP;
  }
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.sq.max_sge) return EINVAL;
  const std::uint64_t length = total_length(wr);
  if ((wr.send_flags & IBV_SEND_INLINE) != 0 && length > qp.sq.max_inline) return EINVAL;
  return length > kMaxMessage ? EMSGSIZE : 0;
}

/// The peer, if nothing is ahead of an operation that begins now, as far as this side knows.
inline const RemoteQp* free_remote(const SoftQp& qp) noexcept {
  if (qp.state_now() != IBV_QPS_RTS || !qp.pending.is_empty() || qp.sq.held.load(std::memory_order_relaxed) != 0 ||
      qp.failing.peer_dead.load(std::memory_order_relaxed)) [[unlikely]]
    return nullptr;
  return qp.remote.load(std::memory_order_acquire);
}

/// The same for a work request: there is room for its completion, and the peer is ready.
inline const RemoteQp* ready_remote(const SoftQp& qp) noexcept {
  if (qp.sq.is_full() || qp.scq->room() == 0) return nullptr;
  const RemoteQp* const remote = free_remote(qp);
  return remote != nullptr && remote->is_ready() ? remote : nullptr;
}

/// A READ or WRITE of one segment.
struct Move {
  std::byte* here;  ///< Null if its key is invalid.
  std::uint64_t bytes;
  bool is_read;
  std::uint64_t remote;
  std::uint32_t rkey;
};

/// A READ or WRITE between memory that is mapped on both sides: the same as `validate`, `run` and the rest, with each
/// check once. False: not executed, no side effect; post it normally.
[[gnu::always_inline]] inline bool move_now(SoftQp& qp, const RemoteQp& remote, const Move& move) noexcept {
  if (move.here == nullptr || move.bytes - 1 >= kMaxMessage || (move.is_read && qp.qp_type == IBV_QPT_UC)) return false;
  const AccessGuard guard(qp);
  std::byte* const there = remote_address(remote, move.remote, move.rkey, move.bytes,
                                          move.is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);
  if (there == nullptr) [[unlikely]]
    return false;
  const CopyByNic copy(move.is_read);
  copy_whole(move.is_read ? move.here : there, move.is_read ? there : move.here, move.bytes);
  return true;
}

inline bool transfer_now(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr) noexcept {
  const ibv_sge& sge = wr.sg_list[0];
  const bool is_read = wr.opcode == IBV_WR_RDMA_READ;
  std::byte* here = nullptr;
  if ((wr.send_flags & IBV_SEND_INLINE) == 0) {
    here = local_address(qp, sge, is_read ? IBV_ACCESS_LOCAL_WRITE : 0);
  } else if (!is_read && sge.length <= qp.sq.max_inline) {
    here = reinterpret_cast<std::byte*>(sge.addr);
  }
  const Move move{here, sge.length, is_read, wr.wr.rdma.remote_addr, wr.wr.rdma.rkey};
  if (!move_now(qp, remote, move)) return false;
  complete_send(qp, wr, qp.sq.posted++, IBV_WC_SUCCESS, sge.length);
  return true;
}

/// Most messages in a slot are words.
inline void copy_few(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes == sizeof(std::uint64_t)) [[likely]] {
    std::memcpy(to, from, sizeof(std::uint64_t));
  } else {
    std::memcpy(to, from, bytes);
  }
}

/// A SEND of inline data in one segment: the same as `validate`, `run` and the rest when nothing is in its way, with
/// each check once, but without its completion. False: not executed, no side effect; post it normally.
[[gnu::always_inline]] inline bool send_inline(SoftQp& qp, const RemoteQp& remote, std::span<const ibv_sge> parts,
                                               std::uint64_t bytes, bool solicited) noexcept {
  const std::size_t data_bytes = bytes <= kSlotPayload ? 0 : bytes;
  if (bytes > std::min<std::uint64_t>(qp.sq.max_inline, kSegmentBytes) || !has_receive(qp, remote) ||
      bytes > remote.control->rare.min_receive.load(std::memory_order_relaxed) ||
      !qp.tx.has_room(data_bytes, &remote.control->consumer.consumed))
    return false;
  std::byte* to = data_bytes == 0 ? qp.tx.slot_payload() : qp.tx.data_payload(data_bytes);
  for (const ibv_sge& sge : parts) {
    copy_few(to, reinterpret_cast<const std::byte*>(sge.addr), sge.length);
    to += sge.length;
  }
  publish_whole(qp, {.kind = SlotKind::kSend, .length = static_cast<std::uint32_t>(bytes)}, data_bytes, solicited);
  return true;
}

inline bool send_now(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr) noexcept {
  if ((wr.send_flags & IBV_SEND_INLINE) == 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.sq.max_sge) return false;
  const std::uint64_t bytes = total_length(wr);
  if (!send_inline(qp, remote, sges_of(wr), bytes, is_solicited(wr))) return false;
  complete_send(qp, wr, qp.sq.posted++, IBV_WC_SUCCESS, bytes);
  return true;
}

/// While a test holds completions back, their effects must not be visible either.
inline const RemoteQp* directly_reached(const SoftQp& qp) noexcept {
  return qp.scq->held == 0 ? free_remote(qp) : nullptr;
}

enum class Keys : std::uint8_t { kChecked, kNone };

template <bool kIsRead, Keys kKeys>
bool move_directly(ibv_qp* base, std::byte* local, std::uint32_t lkey, std::uint64_t bytes, std::uint64_t remote,
                   std::uint32_t rkey) noexcept {
  SoftQp& qp = *static_cast<SoftQp*>(base);
  const RemoteQp* const peer = directly_reached(qp);
  if (peer == nullptr) [[unlikely]]
    return false;
  if (kKeys == Keys::kChecked) {
    if (bytes > kMaxMessage) [[unlikely]]
      return false;
    const ibv_sge sge{
        .addr = reinterpret_cast<std::uint64_t>(local), .length = static_cast<std::uint32_t>(bytes), .lkey = lkey};
    local = local_address(qp, sge, kIsRead ? IBV_ACCESS_LOCAL_WRITE : 0);
  }
  return move_now(qp, *peer, {local, bytes, kIsRead, remote, rkey});
}

constexpr std::size_t kLineBytes = 64;

/// Lists mostly read whole cache lines: these copies need no call.
inline void copy_lines(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  constexpr std::size_t kMostLines = 8;
  if (bytes % kLineBytes != 0 || bytes > kMostLines * kLineBytes) return copy_whole(to, from, bytes);
  for (std::size_t at = 0; at < bytes; at += kLineBytes) std::memcpy(to + at, from + at, kLineBytes);
}

bool read_list_directly(ibv_qp* base, const PlainRead* reads, std::size_t count, std::uint32_t rkey) noexcept {
  SoftQp& qp = *static_cast<SoftQp*>(base);
  VERBENA_DCHECK(count <= Direct::kMaxList);
  const RemoteQp* const peer = directly_reached(qp);
  if (peer == nullptr || qp.qp_type == IBV_QPT_UC) [[unlikely]]
    return false;
  // The processor's own prefetcher finds further cache lines of one READ.
  constexpr std::size_t kFetched = 4 * kLineBytes;
  std::array<const std::byte*, Direct::kMaxList> there;
  const AccessGuard guard(qp);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bytes = reads[i].bytes;
    there[i] = remote_address(*peer, reads[i].from, rkey, bytes, IBV_ACCESS_REMOTE_READ);
    if (there[i] == nullptr || bytes - 1 >= kMaxMessage) [[unlikely]]
      return false;
    for (std::size_t at = 0; at < std::min<std::size_t>(bytes, kFetched); at += kLineBytes)
      __builtin_prefetch(there[i] + at);
  }
  const CopyByNic copy(true);
  for (std::size_t i = 0; i < count; ++i) copy_lines(reads[i].to, there[i], reads[i].bytes);
  return true;
}

bool change_directly(ibv_qp* base, ibv_wr_opcode opcode, std::uint64_t operand, std::uint64_t swap,
                     std::uint64_t remote, std::uint32_t rkey, std::uint64_t& old) noexcept {
  SoftQp& qp = *static_cast<SoftQp*>(base);
  const RemoteQp* const peer = directly_reached(qp);
  if (peer == nullptr || qp.qp_type == IBV_QPT_UC || remote % sizeof old != 0) [[unlikely]]
    return false;
  return change_word(qp, *peer, opcode, operand, swap, remote, rkey, old);
}

/// Says that the owner is inside a poll, unless the control plane is in its lists. Returns the bits of `control`.
[[gnu::always_inline]] inline std::uint32_t enter_poll(SoftCq& cq, std::uint64_t word) noexcept {
  // A release, too: a control plane that waits may miss the even word between two polls, and then relies on this one.
  cq.poll_word.store(word + 1, std::memory_order_release);
  fences::poll_before_control();
  return cq.control.load(std::memory_order_acquire);
}

/// Called by a poll that finds the control plane in the lists. A poll of an armed queue waits until it has left them:
/// the owner sleeps if that poll finds nothing, and no bell rings for a message that came before the arming. The
/// control plane stays for a change of a list, or a millisecond of receiving. Any other poll ends without a look, and
/// comes again. Returns whether the poll may look; then `word` and `control` are as after enter_poll.
[[gnu::cold, gnu::noinline]] bool awaits_turn(SoftCq& cq, std::uint64_t& word, std::uint32_t& control) noexcept {
  while ((control & SoftCq::kExclusive) != 0) {
    word += 2;
    cq.poll_word.store(word, std::memory_order_release);
    if (cq.armed == SoftCq::Armed::kNo) return false;
    do std::this_thread::yield();
    while ((cq.control.load(std::memory_order_acquire) & SoftCq::kExclusive) != 0);
    control = enter_poll(cq, word);
  }
  return true;
}

/// A poll, which returns nothing more once `take` has returned true.
template <class Take>
[[gnu::always_inline]] inline int poll_now(SoftCq& cq, int count, ibv_wc* wc, const Take& take) noexcept {
  std::uint64_t word = cq.poll_word.load(std::memory_order_relaxed);
  std::uint32_t control = enter_poll(cq, word);
  if (control != 0) [[unlikely]] {
    if ((control & SoftCq::kExclusive) != 0 && !awaits_turn(cq, word, control)) return 0;
    if (control != 0) attend(cq);
  }
  int got = 0;
  if (!take()) {
    got = drain(cq, count, wc);
    if (got == 0 || (got < count && ++cq.busy_polls >= kBusyPolls)) {
      cq.busy_polls = 0;
      if (progress(cq)) got += drain(cq, count - got, wc + got);
    }
  }
  cq.poll_word.store(word + 2, std::memory_order_release);
  return got;
}

int poll_expecting(ibv_cq* base, int count, ibv_wc* wc, ibv_qp* expected, std::byte* message,
                   std::uint32_t& bytes) noexcept {
  SoftCq& cq = *static_cast<SoftCq*>(base);
  SoftQp& qp = *static_cast<SoftQp*>(expected);
  VERBENA_DCHECK(qp.rcq == &cq);
  bytes = 0;
  return poll_now(cq, count, wc, [&] { return (bytes = take_small(cq, qp, message)) != 0; });
}

bool send_directly(ibv_qp* base, const ibv_sge* parts, std::size_t count) noexcept {
  SoftQp& qp = *static_cast<SoftQp*>(base);
  const RemoteQp* const peer = directly_reached(qp);
  if (peer == nullptr || !peer->is_ready() || count > qp.sq.max_sge) [[unlikely]]
    return false;
  const std::span<const ibv_sge> list(parts, count);
  std::uint64_t bytes = 0;
  for (const ibv_sge& part : list) bytes += part.length;
  if (!send_inline(qp, *peer, list, bytes, false)) return false;
  ring_bell(qp, *peer);
  return true;
}

}  // namespace

const Direct& direct_operations() noexcept {
  static constexpr Direct kDirect{.read = move_directly<true, Keys::kChecked>,
                                  .write = move_directly<false, Keys::kChecked>,
                                  .read_plain = move_directly<true, Keys::kNone>,
                                  .write_plain = move_directly<false, Keys::kNone>,
                                  .atomic = change_directly,
                                  .read_list = read_list_directly,
                                  .send = send_directly,
                                  .poll = poll_expecting};
  return kDirect;
}

void wake_peer(const RemoteQp& remote) noexcept {
  for (const int bell : remote.bells) {
    if (bell >= 0) signal_eventfd(bell);
  }
  // A peer whose socket is full sleeps on; that is its own fault.
  if (remote.wake_socket >= 0) (void)tell_nic(remote.wake_socket, RequestType::kWake, remote);
}

int post_send(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad_wr) noexcept {
  SoftQp& qp = *static_cast<SoftQp*>(base);
  for (; wr != nullptr; wr = wr->next) {
    const bool is_send = wr->opcode == IBV_WR_SEND;
    if (is_send || ((wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_RDMA_WRITE) && wr->num_sge == 1)) {
      const RemoteQp* const remote = ready_remote(qp);
      if (remote != nullptr && (is_send ? send_now(qp, *remote, *wr) : transfer_now(qp, *remote, *wr))) [[likely]]
        continue;
    }
    const ibv_qp_state state = qp.state_now();
    int error = state == IBV_QPS_RTS || state == IBV_QPS_ERR ? validate(qp, *wr) : EINVAL;
    if (error == 0 && qp.sq.is_full()) error = ENOMEM;
    if (error != 0) [[unlikely]] {
      *bad_wr = wr;
      if (qp.sq.notify) ring_bell(qp, *qp.remote.load(std::memory_order_relaxed));
      return error;
    }
    const std::uint64_t sq_index = qp.sq.posted++;
    const bool may_run =
        state == IBV_QPS_RTS && qp.pending.is_empty() && qp.sq.held.load(std::memory_order_relaxed) == 0;
    if (may_run) [[likely]] {
      if (run(qp, *wr, (wr->send_flags & IBV_SEND_INLINE) != 0, sq_index) == Ran::kStalled) [[unlikely]] {
        enqueue(qp, *wr, sq_index);
      }
    } else {
      enqueue(qp, *wr, sq_index);
    }
  }
  if (qp.sq.notify) ring_bell(qp, *qp.remote.load(std::memory_order_relaxed));
  return 0;
}

int post_recv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
  SoftQp& qp = *static_cast<SoftQp*>(base);
  int error = 0;
  const std::uint64_t before = qp.rq.posted;
  const bool takes_receives = qp.state_now() != IBV_QPS_RESET && qp.rq.srq == nullptr;
  // Receives of one list are usually in one region.
  const LocalKey* region = nullptr;
  std::uint32_t lkey = 0;
  for (; wr != nullptr; wr = wr->next) {
    if (!takes_receives || static_cast<std::uint32_t>(wr->num_sge) > qp.rq.max_sge) {  // A negative one is too many.
      error = EINVAL;
    } else if (qp.rq.posted - qp.rq.polled >= qp.rq.max_wr) {
      error = ENOMEM;
    }
    if (error != 0) [[unlikely]] {
      *bad_wr = wr;
      break;
    }
    const std::size_t slot = qp.rq.posted & qp.rq.mask;
    ReceiveWqe& entry = qp.rq.wqes[slot];
    entry.wr_id = wr->wr_id;
    entry.sge_count = static_cast<std::uint16_t>(wr->num_sge);
    entry.keys_hold = true;
    std::uint64_t capacity = 0;
    ibv_sge* sges = qp.rq.sges_of(slot);
    for (int i = 0; i < wr->num_sge; ++i) {
      sges[i] = wr->sg_list[i];
      capacity += wr->sg_list[i].length;
      // A device finds a bad key when the message arrives, and tells the sender. Here the sender's completion does not
      // wait for the receiver, so the sender must be able to see a bad key beforehand.
      if (sges[i].length == 0) continue;
      if (region == nullptr || lkey != sges[i].lkey) {
        lkey = sges[i].lkey;
        region = local_region(*qp.nic, qp.spd->id, lkey, IBV_ACCESS_LOCAL_WRITE);
      }
      entry.keys_hold = entry.keys_hold && region != nullptr && address_in(*region, sges[i]) != nullptr;
    }
    entry.capacity = static_cast<std::uint32_t>(std::min<std::uint64_t>(capacity, kMaxMessage));
    publish_receive(qp, slot);
    ++qp.rq.posted;
  }
  if (qp.rq.posted != before) {
    if (qp.state_now() == IBV_QPS_ERR) [[unlikely]] {
      list_stalled(qp);
      return error;
    }
    qp.own->receives.posted.store(qp.rq.posted, std::memory_order_release);
    if (qp.rx_remote != nullptr) ring_credit(*qp.rx_remote);
  }
  return error;
}

int poll_cq(ibv_cq* base, int count, ibv_wc* wc) noexcept {
  return poll_now(*static_cast<SoftCq*>(base), count, wc, [] { return false; });
}

int req_notify_cq(ibv_cq* base, int solicited_only) noexcept {
  SoftCq& cq = *static_cast<SoftCq*>(base);
  if (cq.channel == nullptr) return EINVAL;
  const OwnerSection section(cq);
  restart_ring(cq);
  if (cq.armed != SoftCq::Armed::kAny) {
    cq.armed = solicited_only != 0 ? SoftCq::Armed::kSolicited : SoftCq::Armed::kAny;
  }
  const std::uint32_t wanted = cq.armed == SoftCq::Armed::kAny ? Wake::kMessage : Wake::kSolicited;
  bool changed = false;
  const auto tell = [&](SoftQp& qp, std::uint32_t flags) {
    changed |= (qp.watch.wake_flags & flags) != flags;
    set_wake(qp, qp.watch.wake_flags | flags);
  };
  // Skips queue pairs whose peers ring already: few of many have had messages since the CQ was last armed.
  if (std::exchange(cq.armed_for, wanted) != wanted) {
    for (SoftQp* qp : cq.members)
      if (qp->rcq == &cq && qp->state_now() != IBV_QPS_RESET) tell(*qp, wanted);  // Its memory may be changing.
  }
  for (SoftQp* qp : cq.unarmed) {
    tell(*qp, wanted);
    qp->watch.in_unarmed = false;
  }
  cq.unarmed.clear();
  for (SoftQp* qp : cq.stalled)
    if (qp->scq == &cq && !qp->pending.is_empty()) tell(*qp, Wake::kCredit);
  // A sleeper wakes for a few of many QPs: the barrier that it pays anyway also parks all that are idle now.
  const bool parks = ask_to_park(cq, 1);
  if (changed || parks) {
    // The sleeper pays the barrier: afterwards a peer either sees the flag, or the poll that the caller must do between
    // arming and waiting sees its message.
    pay_barrier();
  }
  if (parks) park_asked(cq);
  return 0;
}

Deadline stall_deadline(SoftCq& cq) noexcept {
  const OwnerSection section(cq);
  Deadline earliest = Deadline::never();
  for (const SoftQp* qp : cq.stalled) {
    auto patience = patience_of(*qp);
    if (!patience && may_ask_to_take(*qp)) patience = take_after_ticks();
    if (patience) earliest = earlier(earliest, Deadline::at_ticks(qp->pending.stall_start + *patience));
  }
  return earliest;
}

void take_ring(SoftCq& cq) noexcept {
  const OwnerSection section(cq);
  const bool needs_poll = !cq.stalled.empty() || (cq.control.load(std::memory_order_relaxed) & SoftCq::kAttention) != 0;
  if (cq.armed == SoftCq::Armed::kNo && !needs_poll) return;
  cq.armed = SoftCq::Armed::kNo;
  cq.is_due = true;
}

bool arm_stalled(SoftCq& cq) noexcept {
  const OwnerSection section(cq);
  bool changed = false;
  for (SoftQp* qp : cq.stalled) {
    if (qp->failing.flushing) return true;
    // Chaos counts polls: keep polling as long as the head waits for nothing else.
    if (qp->chaos != nullptr && qp->pending.stall == SoftQp::Stall::kNone) return true;
    // A peer inside a window tells nobody when it leaves. It takes one copy.
    if (qp->pending.stall == SoftQp::Stall::kRevoke) return true;
    if (qp->pending.stall == SoftQp::Stall::kService && arm_copy(*qp)) return true;
    if ((qp->watch.wake_flags & Wake::kCredit) != 0) continue;
    set_wake(*qp, qp->watch.wake_flags | Wake::kCredit);
    changed = true;
  }
  if (!changed) return false;
  pay_barrier();
  // Checks again for credit that came before the peer could see the flag.
  for (SoftQp* qp : cq.stalled) {
    const RemoteQp* remote = qp->remote.load(std::memory_order_acquire);
    if (remote == nullptr) continue;
    if ((qp->pending.stall == SoftQp::Stall::kRnr || qp->pending.stall == SoftQp::Stall::kAnswer) &&
        has_receive(*qp, *remote)) {
      return true;
    }
    if (qp->pending.stall == SoftQp::Stall::kAnswer && ask_for_receive(*qp, *remote) == SoftQp::Stall::kRnr)
      return true;
    if (qp->pending.stall == SoftQp::Stall::kRoom &&
        qp->tx.has_room(kSegmentBytes, &remote->control->consumer.consumed)) {
      return true;
    }
    if (qp->peer_work.is_asking && is_served(*qp, *remote)) return true;
    if (qp->pending.stall == SoftQp::Stall::kPeer && remote->is_ready()) return true;
  }
  return false;
}

}  // namespace verbena::nic::soft
