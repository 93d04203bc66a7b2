// Shared by the files of the data path. data_path.cpp has the common work requests; srq.cpp, windows.cpp and
// outside.cpp have rarer ones.
#pragma once

#include "nic/soft/soft_nic.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/fences.hpp"
#include "nic/arguments.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>

#ifdef VERBENA_TSAN
// From TSan's run-time library.
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

namespace verbena::nic::soft {

/// Lives while the bytes of a READ or WRITE are copied, and orders them as an initiator may rely on. A READ is an
/// access of the NIC, not of a thread: writes of the memory's owner meanwhile tear the READ, which protocols above
/// detect (checksums, state words), and are no data race of the program that TSan should report.
class CopyByNic {
 public:
  explicit CopyByNic(bool is_read) noexcept : is_read_(is_read) {
    if (fences::kAreFree || !is_read_) fences::writes_in_order();
#ifdef VERBENA_TSAN
    if (is_read_) AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
#endif
  }
  ~CopyByNic() {
#ifdef VERBENA_TSAN
    if (is_read_) AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
    if (fences::kAreFree || is_read_) fences::read_before_next();
  }
  CopyByNic(const CopyByNic&) = delete;
  CopyByNic& operator=(const CopyByNic&) = delete;

 private:
  const bool is_read_;
};

inline constexpr std::uint32_t kMaxQpWr = 16384;
inline constexpr std::uint32_t kMaxSge = 16;
/// Large enough that an eager message of the message layer needs no staging copy.
inline constexpr std::uint32_t kMaxInline = 8192;
inline constexpr std::uint32_t kMaxMessage = 1U << 30;
inline constexpr std::uint32_t kMaxSrqs = 1024;
/// Import::access has the rights shifted by this for memory that is not mapped here, so that the common path finds
/// none.
inline constexpr unsigned kOutsideShift = 16;
/// Most receives of a shared queue that one QP holds: a peer that asks for receives and does not send keeps these from
/// the others.
inline constexpr std::uint32_t kSharedGrant = 16;

template <class T>
[[nodiscard]] std::unique_ptr<T[]> make_array(std::size_t count) noexcept {
  return std::unique_ptr<T[]>(new (std::nothrow) T[count]());
}

[[nodiscard]] inline std::unexpected<Error> no_memory(const char* what) noexcept {
  return fail(Status::kNoMemory, "operator new", ENOMEM, "no memory for {}; ask for smaller queues or free memory",
              what);
}

/// Sends the peer's NIC over `socket` a request that needs no reply. False if the socket took nothing.
[[nodiscard]] inline bool tell_nic(int socket, RequestType type, const RemoteQp& remote) noexcept {
  Request request;
  request.type = type;
  request.your_qp = remote.qp_num;
  return send_message(socket, std::as_bytes(std::span(&request, 1)), {});
}

/// Whether a call must not wait, and returns kAgain instead.
[[nodiscard]] inline bool is_poll(Deadline deadline) noexcept { return deadline.ticks() == 0; }
[[nodiscard]] inline std::unexpected<Error> not_yet(const char* call) noexcept {
  return fail(Status::kAgain, call, EAGAIN, "the peer's NIC has not answered yet: call again");
}
/// The same after a deadline has passed. (peers.cpp)
[[nodiscard]] std::unexpected<Error> no_answer(const Peer& peer) noexcept;

/// The region of a key, or nullptr if the key is not valid in the protection domain `pd` with the rights `needed`.
inline const LocalKey* local_region(const SoftNic& nic, std::uint32_t pd, std::uint32_t lkey,
                                    std::uint32_t needed) noexcept {
  const std::uint32_t index = key_index(lkey);
  if ((lkey & kRemoteKeyBit) != 0 || index >= nic.key_count()) return nullptr;
  const LocalKey& key = nic.local_key(index);
  if (key.lkey.load(std::memory_order_acquire) != lkey || lkey == 0) return nullptr;
  return key.pd == pd && (key.access & needed) == needed ? &key : nullptr;
}

/// Where the segment is, or nullptr when it is not inside the region of its key.
inline std::byte* address_in(const LocalKey& key, const ibv_sge& sge) noexcept {
  const std::uint64_t offset = sge.addr - key.iova;
  if (sge.addr < key.iova || offset > key.length || sge.length > key.length - offset) return nullptr;
  return key.base + offset;
}

/// Where the segment is, or nullptr if its key is not valid in the protection domain `pd` with the rights `needed`.
inline std::byte* local_address(const SoftNic& nic, std::uint32_t pd, const ibv_sge& sge,
                                std::uint32_t needed) noexcept {
  const LocalKey* const key = local_region(nic, pd, sge.lkey, needed);
  return key != nullptr ? address_in(*key, sge) : nullptr;
}
inline std::byte* local_address(const SoftQp& qp, const ibv_sge& sge, std::uint32_t needed) noexcept {
  return local_address(*qp.nic, qp.spd->id, sge, needed);
}

/// Lives while the owner of a CQ uses its lists: owner and control plane exclude each other. The control plane's turn
/// takes a few stores. Inside a poll, which keeps the control plane out already, it does nothing.
class OwnerSection {
 public:
  explicit OwnerSection(SoftCq& cq) noexcept : cq_(cq), word_(cq.poll_word.load(std::memory_order_relaxed)) {
    if (was_inside()) return;
    for (;;) {
      cq_.poll_word.store(word_ + 1, std::memory_order_release);  // As in poll_cq.
      fences::poll_before_control();
      if ((cq_.control.load(std::memory_order_acquire) & SoftCq::kExclusive) == 0) return;
      cq_.poll_word.store(word_, std::memory_order_release);
      std::this_thread::yield();
    }
  }
  ~OwnerSection() {
    if (!was_inside()) cq_.poll_word.store(word_ + 2, std::memory_order_release);
  }
  OwnerSection(const OwnerSection&) = delete;
  OwnerSection& operator=(const OwnerSection&) = delete;

 private:
  [[nodiscard]] bool was_inside() const noexcept { return word_ % 2 != 0; }

  SoftCq& cq_;
  const std::uint64_t word_;  // The value at the start: only the owner writes it, and a nested section leaves it alone.
};

/// The parts of a completion that vary.
struct Ending {
  std::uint64_t wr_id = 0;
  ibv_wc_status status = IBV_WC_SUCCESS;
  ibv_wc_opcode opcode = IBV_WC_SEND;
  std::uint32_t bytes = 0;
  std::uint32_t imm = 0;
  unsigned flags = 0;
};

/// Writes a completion by stores of the width that poll loads it with soon after: a load that covers several narrower
/// stores waits for all of them to reach the cache.
inline void fill(Cqe& entry, SoftQp& qp, const Ending& ending, std::uint64_t sq_index) noexcept {
  using Words = std::uint64_t __attribute__((vector_size(16), may_alias));
  const auto word = [](std::uint32_t first, std::uint32_t second) {
    return std::bit_cast<std::uint64_t>(std::array{first, second});
  };
  static_assert(offsetof(ibv_wc, status) == 8 && offsetof(ibv_wc, opcode) == 12 && offsetof(ibv_wc, vendor_err) == 16 &&
                offsetof(ibv_wc, byte_len) == 20 && offsetof(ibv_wc, imm_data) == 24 &&
                offsetof(ibv_wc, qp_num) == 28 && offsetof(ibv_wc, src_qp) == 32 && offsetof(ibv_wc, wc_flags) == 36 &&
                sizeof(ibv_wc) == 48 && offsetof(Cqe, qp) == 48 && offsetof(Cqe, sq_index) == 56);
  auto* const words = reinterpret_cast<Words*>(&entry);
  words[0] = Words{ending.wr_id, word(ending.status, ending.opcode)};
  words[1] = Words{word(0, ending.bytes), word(ending.imm, qp.qp_num)};
  words[2] = Words{word(qp.path.qp_num, ending.flags), 0};
  words[3] = Words{std::bit_cast<std::uint64_t>(&qp), sq_index};
}

inline void push(SoftCq& cq, SoftQp& qp, const Ending& ending, std::uint64_t sq_index = kNotSend) noexcept {
  VERBENA_DCHECK(cq.room() > 0);
  fill(cq.ring[cq.tail & cq.mask], qp, ending, sq_index);
  ++cq.tail;
}

enum class Ran : std::uint8_t { kDone, kStalled, kFailed };

inline Ran stall(SoftQp& qp, SoftQp::Stall why) noexcept {
  if (qp.pending.stall != why) {
    qp.pending.stall = why;
    qp.pending.stall_start = ticks_now();
  }
  return Ran::kStalled;
}

/// Lives while this QP reads or writes a peer's memory, and marks that in the access word. A revoking owner that sees
/// the word even, after its membarrier, knows that any later access sees the revoked key; one that sees it odd waits
/// for it to change.
class AccessGuard {
 public:
  explicit AccessGuard(SoftQp& qp) noexcept : qp_(qp), word_(qp.own->access.word), count_(qp.access_count) {
    // A release, too: an owner that waits may miss the even word between two accesses, and then relies on this one.
    word_.store(++count_, std::memory_order_release);
    fences::access_before_key();
  }
  ~AccessGuard() {
    qp_.access_count = ++count_;
    word_.store(count_, std::memory_order_release);
  }
  AccessGuard(const AccessGuard&) = delete;
  AccessGuard& operator=(const AccessGuard&) = delete;

 private:
  SoftQp& qp_;
  PeerWord<std::uint64_t>& word_;
  std::uint64_t count_;
};

/// Writes the length of the receive in `slot`, and whether its keys are valid.
inline void publish_length(SoftQp& qp, std::size_t slot) noexcept {
  const ReceiveWqe& receive = qp.rq.wqes[slot];
  const std::uint32_t length = receive.capacity | (receive.keys_hold ? 0 : kBadReceive);
  // Receives of a place are mostly the same: the sender keeps its copy of the cache line.
  if (qp.rq.lengths[slot].load(std::memory_order_relaxed) != length)
    qp.rq.lengths[slot].store(length, std::memory_order_relaxed);
}

/// Writes what senders check beforehand for a new receive: its length, and the smallest length of all. Do so before the
/// count that admits a sender to it.
inline void publish_receive(SoftQp& qp, std::size_t slot) noexcept {
  publish_length(qp, slot);
  const ReceiveWqe& receive = qp.rq.wqes[slot];
  const std::uint32_t smallest = receive.keys_hold ? receive.capacity : 0;
  if (smallest < qp.own->rare.min_receive.load(std::memory_order_relaxed)) {
    qp.own->rare.min_receive.store(smallest, std::memory_order_relaxed);
  }
}

// --- segments
/// One pass over an SGE list with the local keys checked, or none for inline data.
inline std::byte* sge_address(const SoftQp& qp, const ibv_sge& sge, bool is_inline, std::uint32_t needed) noexcept {
  if (is_inline) return reinterpret_cast<std::byte*>(sge.addr);
  return local_address(qp, sge, needed);
}

inline std::span<const ibv_sge> sges_of(const ibv_send_wr& wr) noexcept {
  return {wr.sg_list, static_cast<std::size_t>(wr.num_sge)};
}

inline std::uint64_t total_length(const ibv_send_wr& wr) noexcept {
  std::uint64_t total = 0;
  for (const ibv_sge& sge : sges_of(wr)) total += sge.length;
  return total;
}

/// Calls `part(sge, offset in it, bytes)` for `bytes` of a list from `offset` on, as long as it returns true. False if
/// it has returned false, or the list ends before.
template <class Part>
[[gnu::always_inline]] inline bool for_parts(std::span<const ibv_sge> list, std::uint64_t offset, std::uint64_t bytes,
                                             const Part& part) noexcept {
  for (const ibv_sge& sge : list) {
    if (bytes == 0) break;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const std::uint64_t here = std::min(bytes, sge.length - offset);
    if (!part(sge, offset, here)) return false;
    bytes -= here;
    offset = 0;
  }
  return bytes == 0;
}

/// Copies `bytes` of the gather list from `offset` on.
inline void gather(const SoftQp& qp, const ibv_send_wr& wr, bool is_inline, std::uint64_t offset, std::byte* to,
                   std::size_t bytes) noexcept {
  for_parts(sges_of(wr), offset, bytes, [&](const ibv_sge& sge, std::uint64_t at, std::size_t part) {
    std::memcpy(to, sge_address(qp, sge, is_inline, 0) + at, part);
    to += part;
    return true;
  });
}

/// Copies part of a READ to its local segments.
inline void scatter_read(const SoftQp& qp, const ibv_send_wr& wr, std::uint64_t offset, const std::byte* from,
                         std::size_t bytes) noexcept {
  for_parts(sges_of(wr), offset, bytes, [&](const ibv_sge& sge, std::uint64_t at, std::size_t part) {
    std::memcpy(local_address(qp, sge, 0) + at, from, part);
    from += part;
    return true;
  });
}

// --- receiving
/// Scatters one segment; false if it would pass the receive's end or a local key is invalid.
inline bool scatter(const SoftQp& qp, const ReceiveWqe& receive, std::size_t slot, std::uint64_t offset,
                    const std::byte* from, std::size_t bytes) noexcept {
  const std::span<const ibv_sge> list(qp.rq.sges_of(slot), receive.sge_count);
  return for_parts(list, offset, bytes, [&](const ibv_sge& sge, std::uint64_t at, std::size_t part) {
    std::byte* const to = local_address(*qp.nic, qp.rq.pd, sge, IBV_ACCESS_LOCAL_WRITE);
    if (to == nullptr) return false;
    std::memcpy(to + at, from, part);
    from += part;
    return true;
  });
}

/// Outcome of taking a slot of the peer's ring: all but the first two change nothing.
enum class Segment : std::uint8_t { kWhole, kPart, kProtocol, kTooLong, kBadKey };

/// Copies one message or segment to its receive. Don't trust `view`, which the peer wrote: an honest NIC keeps to the
/// receives `posted` and the published lengths, so any breach is a protocol error.
inline Segment take_segment(SoftQp& qp, const SlotView& view, std::uint64_t posted) noexcept {
  const bool known = view.kind == SlotKind::kSend || view.kind == SlotKind::kSendImm ||
                     view.kind == SlotKind::kWriteImm || view.kind == SlotKind::kSendInv;
  const bool first = (view.flags & SlotFlags::kFirst) != 0;
  if (!known || qp.rq.done == posted || first != (qp.rq.offset == 0 && !qp.rq.is_open)) return Segment::kProtocol;
  const bool last = (view.flags & SlotFlags::kLast) != 0;
  // Only full segments may be followed by more, so that every segment makes progress and a message ends.
  if (!last && (view.kind == SlotKind::kWriteImm || view.length != kSegmentBytes)) return Segment::kProtocol;
  const std::size_t slot = qp.rq.done & qp.rq.mask;
  const ReceiveWqe& receive = qp.rq.wqes[slot];
  if (view.kind != SlotKind::kWriteImm) {
    const std::byte* from = qp.rx.payload(view);
    if (from == nullptr || view.length > kSegmentBytes) return Segment::kProtocol;
    if (view.length > receive.capacity - qp.rq.offset) return Segment::kTooLong;
    if (!scatter(qp, receive, slot, qp.rq.offset, from, view.length)) return Segment::kBadKey;
  }
  if (last) return Segment::kWhole;
  qp.rq.is_open = true;
  qp.rq.offset += view.length;
  return Segment::kPart;
}

/// Ends a whole message, and returns its completion.
inline Ending end_message(SoftQp& qp, const SlotView& view) noexcept {
  Ending ending{.wr_id = qp.rq.wqes[qp.rq.done & qp.rq.mask].wr_id,
                .opcode = view.kind == SlotKind::kWriteImm ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                .bytes = qp.rq.offset + view.length};
  if (view.kind != SlotKind::kSend) {
    ending.imm = view.imm;
    ending.flags = view.kind == SlotKind::kSendInv ? IBV_WC_WITH_INV : IBV_WC_WITH_IMM;
  }
  qp.rq.offset = 0;
  qp.rq.is_open = false;
  return ending;
}

// data_path.cpp
/// Moves the QP to the error state: it executes and receives nothing more, and flushes everything posted in order.
void enter_error(SoftQp& qp, Status reason) noexcept;
/// Takes the QP out of the list of its bit, if it is parked. \thread owner of the receive CQ, or control that keeps the
/// owner out
void forget_parked(SoftQp& qp) noexcept;
/// Notes that the QP's peer has not been asked to ring for messages: the next arming of its receive CQ asks it. \thread
/// as above
void list_unarmed(SoftQp& qp) noexcept;
/// Wakes a peer that waits for credit.
void ring_credit(const RemoteQp& remote) noexcept;

/// Completes the request with a remote access error; on UC, drops it.
Ran refuse_remote(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, std::uint64_t sq_index) noexcept;

// outside.cpp: peers' memory that is in no arena. \thread owner of the QP
/// Runs a READ, WRITE or (with `old`) an atomic whose memory the common path cannot reach. Nothing: done, but not yet
/// completed. Else: to be run again, or refused.
[[nodiscard]] std::optional<Ran> run_outside(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr, bool is_inline,
                                             std::uint64_t sq_index, std::uint64_t* old) noexcept;
[[nodiscard]] bool is_outside(const RemoteQp& remote, std::uint32_t rkey) noexcept;
/// The READ or WRITE that the peer's copier has, for which this waits so many ticks. Returns as run_outside.
[[nodiscard]] std::optional<Ran> continue_copy(SoftQp& qp, const RemoteQp& remote, const ibv_send_wr& wr,
                                               bool is_inline, std::uint64_t sq_index, std::uint64_t patience) noexcept;
/// Leaves the copier alone with what it has of this QP, if anything. Waits for no peer, and at most for one step of the
/// copier in the user's memory. \thread owner of the QP, or control
void abandon_copy(SoftQp& qp) noexcept;
/// For a head that waits for kService: whether it can go on already, or nobody would wake it. Else the copier will.
[[nodiscard]] bool arm_copy(SoftQp& qp) noexcept;
/// Whether the peer's service thread has answered.
[[nodiscard]] bool is_served(const SoftQp& qp, const RemoteQp& remote) noexcept;

// early.cpp: receives on behalf of an owner that does not poll
/// Asks the peer's control thread to receive, each time that nothing has moved for a millisecond.
void ask_to_take(SoftQp& qp) noexcept;
[[nodiscard]] bool may_ask_to_take(const SoftQp& qp) noexcept;
[[nodiscard]] std::uint64_t take_after_ticks() noexcept;
/// Moves completions of messages received on the owner's behalf to the CQ. If that has no room, the next poll
/// continues.
void take_over_early(SoftQp& qp) noexcept;
/// \thread control, while the owner of the receive CQ is kept out of poll. True if it received something.
bool receive_early(SoftQp& qp) noexcept;

// srq.cpp: receives of a shared queue. All of it: \thread owner of the QP
/// Gives the QP receives of its shared queue, if its peer waits for some; takes them back if the peer is gone. True if
/// it did something.
bool serve_shared(SoftQp& qp) noexcept;
/// Whether the peer waits for receives that it was not given, or holds some: keep polling such a QP.
[[nodiscard]] bool owes_shared(const SoftQp& qp) noexcept;
/// Gives back receives that no message has used; `kAll`: also the one that a message has begun to fill.
enum class GiveBack : std::uint8_t { kUntouched, kAll };
void give_back_shared(SoftQp& qp, GiveBack what) noexcept;
/// A receive of the shared queue is complete: its place is free.
void retire_shared(SoftSrq& srq) noexcept;

// windows.cpp: windows of type 2. \thread owner of the QP
/// IBV_WC_SUCCESS, or IBV_WC_MW_BIND_ERR.
[[nodiscard]] ibv_wc_status bind_window(SoftQp& qp, const ibv_send_wr& wr) noexcept;
/// Invalidates a window that is bound on the QP; the peer may still be inside an access. False if `rkey` is not valid
/// on this QP.
[[nodiscard]] bool withdraw_window(SoftQp& qp, std::uint32_t rkey) noexcept;
/// Whether this QP may invalidate the peer's window `rkey`.
[[nodiscard]] bool may_invalidate(const RemoteQp& remote, std::uint32_t rkey) noexcept;
/// Call it after the message that invalidates the window: no later request of this QP reaches it.
void forget_window(const RemoteQp& remote, std::uint32_t rkey) noexcept;

}  // namespace verbena::nic::soft
