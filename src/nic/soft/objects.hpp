// The soft NIC's private objects. Data-path members first in each, cold ones behind.
#pragma once

#include "nic/nic.hpp"
#include "nic/soft/chaos.hpp"
#include "nic/soft/layout.hpp"
#include "nic/soft/ring.hpp"
#include "nic/soft/system.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace verbena::nic::soft {

struct SoftCq;
struct SoftQp;
struct SoftSrq;
struct SoftMw;
class SoftNic;

[[nodiscard]] inline bool same(const ibv_gid& a, const ibv_gid& b) noexcept {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// A key of a peer that this process may use: checked at import, immutable while `rkey` is set.
struct alignas(64) Import {
  std::atomic<std::uint32_t> rkey{0};  // 0: not imported. Published last (release).
  std::uint32_t domain = 0;            // As KeyEntry::domain.
  std::uint64_t iova = 0;
  std::uint64_t length = 0;
  std::byte* base = nullptr;                         // Of iova, in this process.
  const std::atomic<std::uint64_t>* live = nullptr;  // The owner's word: differs from `word` once revoked.
  std::uint32_t access = 0;  // In the upper half for memory that is not mapped here: see outside.cpp.
  std::uint32_t uses = 0;    // Times imported and not released. Control plane.
  std::uint64_t memory_id = 0;
  std::atomic<std::uint64_t> word{0};  // As `*live` was.
};
static_assert(sizeof(Import) == 64);

/// A region of this process, for local keys.
struct LocalKey {
  std::atomic<std::uint32_t> lkey{0};  // 0: free. Published last (release).
  std::uint32_t pd = 0;
  std::uint64_t iova = 0;
  std::uint64_t length = 0;
  std::byte* base = nullptr;
  std::uint32_t access = 0;
  std::uint32_t uses = 0;                // Of the index: the upper half of KeyEntry::live.
  std::atomic<SoftMw*> window{nullptr};  // When the index is a window's, which has no local key.
};
static_assert(sizeof(LocalKey) == 48);

/// Anonymous zeroed memory of T, faulted in as it is touched: tables that are large for few.
template <class T>
class LazyTable {
 public:
  LazyTable() noexcept = default;
  LazyTable(LazyTable&& other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  LazyTable& operator=(LazyTable&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~LazyTable();
  [[nodiscard]] static Result<LazyTable> create(std::size_t count);
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return data_[i]; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

/// A process that this NIC is connected to, found by its GID. Shared by the QPs that lead there.
struct Peer {
  // Data path.
  LazyTable<Import> imports;  // By key index.
  std::atomic<bool> dead{false};
  std::atomic<bool> denies_copies{false};  // The kernel refuses process_vm_readv and writev: its service thread copies.
  // Control plane. `request_mutex` serialises requests on the socket; the rest is under the NIC's mutex.
  ibv_gid gid{};
  PeerProcess process;
  Fd socket;
  Fd pidfd;       // Of another process only.
  Mapping keys;   // Its KeyEntry table.
  Mapping ready;  // Its ready set; empty for a foreign user.
  std::mutex request_mutex;
  struct Memory {
    std::uint64_t id = 0;
    Mapping mapping;
    bool writable = false;
    std::uint32_t uses = 0;
  };
  std::vector<std::unique_ptr<Memory>> memories;
  std::uint32_t key_entries = 0;
  std::uint32_t users = 0;          // QPs that lead there, and requests under way.
  std::uint64_t socket_source = 0;  // In the control thread's epoll; 0: not, or no longer.
  std::uint64_t pidfd_source = 0;
};

/// The peer's QP as this QP uses it: mapped, checked, immutable once published.
struct RemoteQp {
  const QpControl* control = nullptr;
  const ServiceBlock* service = nullptr;
  std::uint64_t served = 0;  // Number of its last request that this side's service thread took. Under the NIC's mutex.
  const std::atomic<std::uint32_t>* receive_lengths = nullptr;
  std::uint32_t receive_mask = 0;
  std::uint32_t pd = 0;
  std::uint32_t window_domain = 0;                   // Of windows bound on it.
  std::uint32_t access = 0;                          // qp_access_flags
  bool has_srq = false;                              // Receives are asked for (srq.cpp).
  std::atomic<std::uint64_t>* ready_word = nullptr;  // In its ready set; nullptr when it never parks for us.
  std::uint64_t ready_bit = 0;
  int event_fd = -1;     // Of a peer of this user.
  int wake_socket = -1;  // Of a foreign one: asked for the same by message.
  std::uint32_t qp_num = 0;
  std::uint64_t rnr_ticks = 0;
  Peer* peer = nullptr;
  Mapping mapping;
  Fd event;
  RingConsumer<RealMemory> ring;  // Where this side's receiving starts.
};
static_assert(sizeof(RemoteQp) == 176);

/// An offer that arrived before this side's QP went to RTR, or after: matched by GID and number.
struct Offer {
  ibv_gid gid{};
  std::uint32_t qp_num = 0;
  Request request;
  Fd memory;
  Fd event;
  pid_t pid = 0;
  uid_t uid = 0;
};

struct ReceiveWqe {
  std::uint64_t wr_id = 0;
  std::uint32_t sge_count = 0;
  std::uint32_t capacity = 0;  // Sum of the SGEs.
};
static_assert(sizeof(ReceiveWqe) == 16);

/// A send work request that could not be executed when it was posted.
struct SendWqe {
  ibv_send_wr wr{};
  std::uint64_t sq_index = 0;
};
static_assert(sizeof(SendWqe) == sizeof(ibv_send_wr) + 8);

/// Who keeps work requests or completions back.
struct Hold {
  static constexpr std::uint8_t kByTest = 1;   ///< All, until it lets go.
  static constexpr std::uint8_t kByChaos = 2;  ///< Some, as the dice fall. Set for good.
};

/// One completion, with what poll needs to retire send-queue slots.
struct alignas(64) Cqe {
  ibv_wc wc;
  SoftQp* qp;
  std::uint64_t sq_index;  // Send completions: slots up to here are free. Else kNotSend.
};
inline constexpr std::uint64_t kNotSend = ~std::uint64_t{0};
static_assert(sizeof(Cqe) == 64);

struct SoftChannel : ibv_comp_channel {
  SoftNic* nic = nullptr;
  Fd epoll;  // ibv_comp_channel::fd
  Fd wake;
  std::vector<SoftCq*> cqs;  // Under the NIC's mutex.
};

struct SoftCq : ibv_cq {
  SoftNic* nic = nullptr;
  // Owner of the CQ.
  std::unique_ptr<Cqe[]> ring;
  std::uint32_t mask = 0;
  std::uint32_t capacity = 0;
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::uint32_t busy_polls = 0;  // Polls in a row that found something without looking at rings.
  std::uint32_t parked_count = 0;
  std::uint32_t passes = 0;
  enum class Armed : std::uint8_t { kNo, kAny, kSolicited };
  Armed armed = Armed::kNo;
  std::uint8_t held = 0;         // Hold bits: completions are kept back.
  std::vector<SoftQp*> active;   // Receive side polled here. Reserved up front.
  std::vector<SoftQp*> stalled;  // Send side, or a flush, has work left.
  // `control` is odd bits of other threads: kExclusive while the control plane changes the lists, kAttention when a
  // QP has news (peer dead, connected, error asked for).
  static constexpr std::uint32_t kExclusive = 1;
  static constexpr std::uint32_t kAttention = 2;
  alignas(64) std::atomic<std::uint32_t> control{0};
  std::atomic<std::uint64_t> poll_word{0};  // Odd while the owner is inside poll.
  // Control plane.
  Fd event;                                           // Signalled by completions of this side.
  std::vector<SoftQp*> members;                       // Every QP that uses it, once.
  std::atomic<std::uint64_t>* ready_words = nullptr;  // kReadyWords words of this CQ in the ready set.
  std::uint32_t ready_index = 0;
  std::array<SoftQp*, 512> parked{};  // By bit.
  std::unique_ptr<CqChaos> chaos;

  [[nodiscard]] std::uint32_t room() const noexcept { return capacity - static_cast<std::uint32_t>(tail - head); }
};
inline constexpr std::uint32_t kReadyWords = 8;  // One cache line: 512 QPs of a CQ can be parked.

struct SoftPd : ibv_pd {
  std::uint32_t id = 0;
  std::uint32_t users = 0;
};

/// Receives that wait for a message on any of several QPs. A bounded queue for several producers and consumers (Vyukov
/// 2010), lock-free: posting and giving back put in, giving to a QP takes out, from whatever threads.
struct SoftSrq : ibv_srq {
  struct Entry {
    std::atomic<std::uint64_t> turn{0};  // Position at which it can be put in; that + 1 at which it can be taken out.
    ReceiveWqe receive;
    bool keys_hold = false;
  };
  SoftNic* nic = nullptr;
  SoftPd* spd = nullptr;
  std::unique_ptr<Entry[]> entries;  // Ring of mask + 1.
  std::unique_ptr<ibv_sge[]> sges;   // max_sge each.
  std::uint32_t mask = 0;
  std::uint32_t max_wr = 0;
  std::uint32_t max_sge = 0;
  alignas(64) std::atomic<std::uint64_t> in{0};
  alignas(64) std::atomic<std::uint64_t> out{0};
  alignas(64) std::atomic<std::uint32_t> unfinished{0};  // Posted and not complete, wherever they are.
  std::atomic<bool> is_short{false};                     // A QP has looked for a receive and found none.
  // Passed by who has put something in, and by who says that the queue is short and looks again: of two, the later one
  // sees what the earlier one did before. A fence on both sides would do the same, and TSan does not know fences.
  std::atomic<std::uint64_t> turnstile{0};
  std::uint32_t users = 0;  // Control plane.
};

struct SoftMr : ibv_mr {
  std::uint64_t memory_id = 0;
  std::uint64_t memory_offset = 0;        // Of its first byte.
  std::uint32_t grantable = 0;            // Remote access that its memory can have.
  std::atomic<std::uint32_t> windows{0};  // Bound on it.
};

/// A window of type 2. Bound and invalidated by the owner of the QP; made and ended by the control plane, by which it
/// is not freed but used again: a peer may name a window, to have it invalidated, while another thread ends it.
struct SoftMw : ibv_mw {
  SoftPd* spd = nullptr;
  bool is_used = false;                  // Control plane.
  std::atomic<std::uint32_t> key{0};     // Valid while bound; else the last one, whose low byte is not used next.
  std::atomic<SoftMr*> mr{nullptr};      // Bound on it; null: free.
  std::atomic<std::uint32_t> qp_num{0};  // While bound.
};

struct SoftQp : ibv_qp {
  SoftNic* nic = nullptr;
  SoftCq* scq = nullptr;
  SoftCq* rcq = nullptr;
  // Sending. Owner.
  RingProducer<RealMemory> tx;
  QpControl* own = nullptr;                       // This QP's shared head.
  ServiceBlock* service = nullptr;                // And its end.
  std::atomic<RemoteQp*> remote{nullptr};         // Published by the control plane when both sides have offered.
  std::atomic<std::uint32_t> now{IBV_QPS_RESET};  // ibv_qp_state
  std::uint64_t access_count = 0;
  std::uint64_t sent = 0;        // Messages that took a receive of the peer.
  std::uint64_t sent_limit = 0;  // Receives of the peer as last read.
  std::uint64_t wanted = 0;      // Mirrors of own->demand.
  std::uint64_t ask = 0;
  std::uint64_t sq_posted = 0;
  std::uint64_t sq_retired = 0;  // Slots freed by polled completions.
  std::uint32_t max_send_wr = 0;
  std::uint32_t max_send_sge = 0;
  std::uint32_t max_inline = 0;
  bool signal_all = false;
  bool in_stalled = false;
  bool notify = false;  // Messages were published since the last bell.
  bool notify_solicited = false;
  std::atomic<std::uint8_t> held{0};  // Hold bits: execution is kept back.
  // Send queue of what could not be executed at once.
  std::uint64_t pending_head = 0;
  std::uint64_t pending_tail = 0;
  std::unique_ptr<SendWqe[]> pending;           // Ring of pending_mask + 1.
  std::unique_ptr<ibv_sge[]> pending_sges;      // max_send_sge each.
  std::unique_ptr<std::byte[]> pending_inline;  // max_inline each.
  std::uint32_t pending_mask = 0;
  std::uint32_t pending_offset = 0;  // Bytes of the head's SEND already in the ring.
  std::uint32_t pending_takers = 0;  // Those that take a receive.
  /// kAnswer: for receives of a shared queue; no retries are counted until the peer has said that it has none.
  /// kRevoke: for the peer to leave a window that is being invalidated. kService: for its service thread.
  enum class Stall : std::uint8_t { kNone, kRnr, kAnswer, kPeer, kRoom, kRevoke, kService };
  Stall stall = Stall::kNone;
  std::uint64_t stall_start = 0;   // Ticks at which the head stalled for `stall`, or got on since.
  std::uint64_t take_asked = 0;    // Ticks at which the peer's control thread was asked to make room.
  std::uint64_t asked = 0;         // Requests to the peer's service thread so far.
  std::uint64_t served_bytes = 0;  // Of the head, by those that are over.
  bool is_asking = false;          // One is under way,
  bool is_ask_sent = false;        // and the peer was told of it.
  /// Since the head began to wait for kRevoke until it is complete; a failure leaves it set. For the control plane.
  std::atomic<bool> is_revoking{false};
  std::uint64_t revoke_word = 0;  // The peer's access word, odd, while the head waits for it to change; else 0.
  // Receiving. Owner.
  RingConsumer<RealMemory> rx;
  const RemoteQp* rx_remote = nullptr;     // Set with rx by the owner, once.
  std::unique_ptr<ReceiveWqe[]> receives;  // Ring of receive_mask + 1.
  std::unique_ptr<ibv_sge[]> receive_sges;
  std::atomic<std::uint32_t>* receive_lengths = nullptr;  // Shared.
  SoftSrq* srq = nullptr;
  std::uint32_t receive_pd = 0;  // Of receives' keys: the shared queue's, or this QP's.
  std::uint32_t receive_mask = 0;
  std::uint32_t max_recv_wr = 0;
  std::uint32_t max_recv_sge = 0;
  std::uint64_t rq_posted = 0;
  std::uint64_t rq_done = 0;    // Receives that are complete.
  std::uint64_t rq_polled = 0;  // Completions of receives handed to the user.
  std::uint32_t rx_offset = 0;  // Bytes of the current multi-segment message.
  bool rx_open = false;         // Between its first and its last segment.
  // Completions of what the control thread has received in the owner's place, until the owner polls. Ring of
  // receive_mask + 1; none for a QP of a shared queue.
  std::unique_ptr<Cqe[]> early;
  std::uint64_t early_head = 0;
  std::uint64_t early_tail = 0;
  bool may_park = false;   // The peer can set our bit of the ready set.
  bool loss_told = false;  // One request has been completed for the peer's loss.
  std::uint32_t idle_passes = 0;
  bool parked = false;
  bool flushing = false;
  std::uint32_t wake_flags = 0;  // Mirror of own->rare.wake. Owner.
  // Control plane.
  std::atomic<bool> peer_dead{false};
  std::atomic<bool> error_wanted{false};  // modify_qp(ERR), or a revocation that timed out.
  std::atomic<Status> failure{Status::kOk};
  std::unique_ptr<QpChaos> chaos;
  SoftPd* spd = nullptr;
  QpGeometry geometry;
  Fd memory;
  Mapping mapping;
  Fd event;
  Peer* peer = nullptr;
  ibv_gid remote_gid{};
  std::uint32_t remote_qp_num = 0;
  std::uint32_t access_flags = 0;
  std::uint32_t ready_slot = kNoReadyBit;  // In the receive CQ's ready words.
  std::uint8_t min_rnr_timer = 0;
  std::uint8_t rnr_retry = 7;
  std::uint8_t retry_count = 7;
  std::uint8_t timeout = 14;
  std::uint64_t retry_ticks = 0;  // Until RETRY_EXC_ERR; 0 is for ever.
  std::unique_ptr<RemoteQp> remote_owner;
  std::vector<Offer> offers;                                  // At most kMaxOffers, newest last.
  std::unordered_map<std::uint32_t, std::uint32_t> imported;  // Key index and count, to release with the QP.

  [[nodiscard]] ibv_qp_state state_now() const noexcept {
    return static_cast<ibv_qp_state>(now.load(std::memory_order_relaxed));
  }
};
static_assert(sizeof(SoftQp) - sizeof(ibv_qp) == 704);
inline constexpr std::size_t kMaxOffers = 4;

}  // namespace verbena::nic::soft
