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
#include <deque>
#include <memory>
#include <optional>
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
  std::byte* base = nullptr;                      // Where iova lies in this process.
  const PeerWord<std::uint64_t>* live = nullptr;  // The owner's word: differs from `word` once revoked.
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

/// Tables that are large for few. All-zero bytes are a valid T: atomics of 0, null pointers.
template <class T>
class LazyTable {
 public:
  [[nodiscard]] static Result<LazyTable> create(std::size_t count) {
    LazyTable table;
    VERBENA_ASSIGN(table.memory_, LazyMemory::create(count * sizeof(T), "making a key table"));
    table.count_ = count;
    return table;
  }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return reinterpret_cast<T*>(memory_.data())[i]; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }

 private:
  LazyMemory memory_;
  std::size_t count_ = 0;
};

/// Descriptors to go with a message. Borrowed.
class Handout {
 public:
  void add(int fd) noexcept { fds_[count_++] = fd; }
  [[nodiscard]] std::span<const int> given() const noexcept { return {fds_.data(), count_}; }

 private:
  std::array<int, kMaxFds> fds_{};
  std::size_t count_ = 0;
};

/// One request to a peer's NIC. It is in a queue of its conversation until it is over, and belongs to whoever asks.
struct Ask {
  Request request;
  std::vector<std::byte> attested;  // Goes behind the request.
  Handout fds;                      // Who asks takes an unsent request back before they are closed.
  // When it is over: the answer with its descriptors, or why there is none.
  bool is_over = false;
  Reply reply;
  Fds received;
  std::optional<Error> failure;
};

/// A process that this NIC talks to, found by its GID. Shared by the QPs that lead there, or are on their way.
struct Peer {
  // Data path.
  LazyTable<Import> imports;  // By key index.
  std::atomic<bool> dead{false};
  std::atomic<bool> denies_copies{false};  // The kernel refuses process_vm_readv and writev: its service thread copies.
  // Control plane, under the NIC's mutex.
  enum class State : std::uint8_t {
    kConnecting,  // Its listener's backlog is full.
    kGreeting,    // Its answer to the greeting is still to come: what is below `socket_source` is not there yet.
    kKnown,
  };
  State state = State::kConnecting;
  bool awaits_room = false;  // In the socket, which took no more requests.
  ibv_gid gid{};
  PeerProcess process;
  Fd socket;
  Fd pidfd;  // Of another process only.
  // The conversation: answers come in the order of the requests.
  std::deque<std::shared_ptr<Ask>> sent;
  std::deque<std::shared_ptr<Ask>> unsent;
  Error failure;                    // When it is dead: why.
  std::uint32_t users = 0;          // QPs that lead there or are on their way.
  std::uint64_t socket_source = 0;  // In the control thread's epoll; 0: not, or no longer.
  std::uint64_t pidfd_source = 0;
  Mapping keys;   // Its KeyEntry table.
  Mapping ready;  // Its ready set; empty for a foreign user.
  struct Memory {
    std::uint64_t id = 0;
    Mapping mapping;  // Empty while the peer is asked for it,
    std::shared_ptr<Ask> ask;
    std::vector<const SoftQp*> waiting;  // by these.
    bool writable = false;
    std::uint32_t uses = 0;
  };
  std::vector<std::unique_ptr<Memory>> memories;
  std::uint32_t key_entries = 0;
};

/// A QP's way from INIT to RTR, from the first call of modify_qp until the one that succeeds or fails.
struct Approach {
  ibv_gid gid{};
  std::uint32_t qp_num = 0;
  std::uint8_t min_rnr_timer = 0;
  Peer* peer = nullptr;        // Counted; from the offer on it is the QP's.
  std::shared_ptr<Ask> offer;  // Null until the peer is known.
  [[nodiscard]] bool leads_to(const ibv_gid& to_gid, std::uint32_t to_qp, std::uint8_t timer) const noexcept {
    return same(gid, to_gid) && qp_num == to_qp && min_rnr_timer == timer;
  }
};

/// Duplicates of a process's bells: one for each bell, however many QPs of it ring it here.
using Bells = std::array<std::shared_ptr<const Fd>, kMaxBells>;

/// The peer's QP as this QP uses it: mapped, checked, immutable once published.
struct RemoteQp {
  const QpControl* control = nullptr;
  const ServiceBlock* service = nullptr;
  std::uint64_t served = 0;  // Number of its last request that this side's service thread took. Under the NIC's mutex.
  const PeerWord<std::uint32_t>* receive_lengths = nullptr;
  std::uint32_t receive_mask = 0;
  std::uint32_t pd = 0;
  std::uint32_t window_domain = 0;                // The domain that windows bound on it get.
  std::uint32_t access = 0;                       // qp_access_flags
  bool has_srq = false;                           // Receives are asked for (srq.cpp).
  PeerWord<std::uint64_t>* ready_word = nullptr;  // In its ready set; nullptr when it never parks for us.
  std::uint64_t ready_bit = 0;
  std::array<int, kMaxBells> bells{-1, -1};  // Of a peer of this user; those there are come first.
  int wake_socket = -1;                      // Of a foreign one: asked for the same by message.
  std::uint32_t qp_num = 0;
  std::uint64_t rnr_ticks = 0;
  Peer* peer = nullptr;
  Mapping mapping;
  Bells kept_bells;
  RingConsumer<RealMemory> ring;  // Where this side's receiving starts.
  /// Whether it is in RTR or RTS, as it says.
  [[nodiscard]] bool is_ready() const noexcept {
    return control->rare.readiness.load(std::memory_order_acquire) == Readiness::kReady;
  }
};
static_assert(sizeof(RemoteQp) == 200);

/// An offer that arrived before this side's QP went to RTR, or after: matched by GID and number.
struct Offer {
  Request request;
  Fd memory;
  Bells bells;
  PeerProcess process;
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

/// One eventfd rings for everything: for `wake`, for completions, and for what peers have to tell. They cannot say for
/// which queue: each that waits for an event has one then, perhaps for nothing.
struct SoftChannel : ibv_comp_channel {
  SoftNic* nic = nullptr;
  Fd bell;  // ibv_comp_channel::fd
  std::uint32_t number = 0;
  std::atomic<bool> is_woken{false};  // By `wake`, and not taken yet.
  // Who waits.
  std::uint64_t own_rings = 0;  // Since the bell was emptied, for queues whose event is still to be taken.
  std::size_t next = 0;         // Queue that is looked at first.
  std::vector<SoftCq*> cqs;     // Under the NIC's mutex.
};

/// One cache line for each CQ, whose QPs share the bits when they are more: a bit stands for a list of parked ones.
inline constexpr std::uint32_t kReadyWords = 8;
inline constexpr std::uint32_t kReadyBits = kReadyWords * 64;

struct SoftCq : ibv_cq {
  SoftNic* nic = nullptr;
  // Owner of the CQ.
  Cqe* ring = nullptr;  // Begun anew when it is empty: what is used of it stays small.
  std::uint32_t mask = 0;
  std::uint32_t capacity = 0;
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::uint32_t busy_polls = 0;  // Polls in a row that found something without looking at rings.
  std::uint32_t parked_count = 0;
  std::uint32_t passes = 0;
  enum class Armed : std::uint8_t { kNo, kAny, kSolicited };
  Armed armed = Armed::kNo;
  bool is_due = false;           // It has had its event, which `wait` has not returned yet.
  std::uint8_t held = 0;         // Hold bits: completions are kept back.
  int bell = -1;                 // Of its channel.
  std::vector<SoftQp*> active;   // Receive side polled here. Reserved up front.
  std::vector<SoftQp*> stalled;  // Send side, or a flush, has work left.
  std::vector<SoftQp*> unarmed;  // Receive side polled here, and its peer may not ring as `armed_for` says.
  std::uint32_t armed_for = 0;   // Wake bit that all but `unarmed` have.
  // `control` is odd bits of other threads: kExclusive while the control plane changes the lists, kAttention when a
  // QP has news (peer dead, connected, error asked for). kLeftOver is the owner's: there was no room for all news.
  static constexpr std::uint32_t kExclusive = 1;
  static constexpr std::uint32_t kAttention = 2;
  static constexpr std::uint32_t kLeftOver = 4;
  alignas(64) std::atomic<std::uint32_t> control{0};
  std::atomic<std::uint64_t> poll_word{0};  // Odd while the owner is inside poll.
  // Control plane.
  LazyMemory memory;                               // The ring lies in it.
  std::vector<SoftQp*> members;                    // Every QP that uses it, once.
  PeerWord<std::uint64_t>* ready_words = nullptr;  // kReadyWords words of this CQ in the ready set.
  std::uint32_t ready_index = 0;
  std::array<SoftQp*, kReadyBits> parked{};  // By bit: the first of a list.
  std::unique_ptr<CqChaos> chaos;

  [[nodiscard]] std::uint32_t room() const noexcept { return capacity - static_cast<std::uint32_t>(tail - head); }
};
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
  /// Receives of the peer, which messages take.
  struct Credit {
    std::uint64_t sent = 0;    // Messages that took one.
    std::uint64_t limit = 0;   // Those posted, as last read.
    std::uint64_t wanted = 0;  // Mirrors of own->demand.
    std::uint64_t ask = 0;
  } credit;
  /// The send queue as the user sees it.
  struct SendQueue {
    std::uint64_t posted = 0;
    std::uint64_t retired = 0;  // Slots freed by polled completions.
    std::uint32_t max_wr = 0;
    std::uint32_t max_sge = 0;
    std::uint32_t max_inline = 0;
    bool signal_all = false;
    bool in_stalled = false;
    bool notify = false;  // Messages were published since the last bell.
    bool notify_solicited = false;
    std::atomic<std::uint8_t> held{0};  // Hold bits: execution is kept back.
    [[nodiscard]] bool is_full() const noexcept { return posted - retired >= max_wr; }
  } sq;
  /// kAnswer: for receives of a shared queue; no retries are counted until the peer has said that it has none.
  /// kRevoke: for the peer to leave a window that is being invalidated. kService: for its service thread.
  enum class Stall : std::uint8_t { kNone, kRnr, kAnswer, kPeer, kRoom, kRevoke, kService };
  /// What of it could not be executed at once, and why its head waits.
  struct Pending {
    std::uint64_t head = 0;
    std::uint64_t tail = 0;
    SendWqe* wqes = nullptr;           // Ring of mask + 1.
    ibv_sge* sges = nullptr;           // max_sge each.
    std::byte* inline_data = nullptr;  // max_inline each.
    std::uint32_t mask = 0;
    std::uint32_t offset = 0;  // Bytes of the head's SEND already in the ring.
    std::uint32_t takers = 0;  // Those that take a receive.
    Stall stall = Stall::kNone;
    std::uint64_t stall_start = 0;  // Ticks at which the head stalled for `stall`, or got on since.
    std::uint64_t take_asked = 0;   // Ticks at which the peer's control thread was asked to make room.
    [[nodiscard]] bool is_empty() const noexcept { return head == tail; }
    [[nodiscard]] const SendWqe& front() const noexcept { return wqes[head & mask]; }
    [[nodiscard]] bool waits_for_peer() const noexcept {
      return stall == Stall::kPeer || stall == Stall::kRevoke || stall == Stall::kService;
    }
  } pending;
  /// What the head needs the peer to do.
  struct PeerWork {
    std::uint64_t asked = 0;         // Requests to its service thread so far.
    std::uint64_t served_bytes = 0;  // Of the head, by those that are over.
    bool is_asking = false;          // One is under way,
    bool is_ask_sent = false;        // and the peer was told of it.
    /// Since the head began to wait for kRevoke until it is complete; a failure leaves it set. For the control plane.
    std::atomic<bool> is_revoking{false};
    std::uint64_t revoke_word = 0;  // The peer's access word, odd, while the head waits for it to change; else 0.
  } peer_work;
  // Receiving. Owner.
  RingConsumer<RealMemory> rx;
  const RemoteQp* rx_remote = nullptr;  // Set with rx by the owner, once.
  /// The receive queue, and how much of its head is filled.
  struct ReceiveQueue {
    ReceiveWqe* wqes = nullptr;  // Ring of mask + 1.
    ibv_sge* sges = nullptr;
    PeerWord<std::uint32_t>* lengths = nullptr;  // Shared.
    SoftSrq* srq = nullptr;
    std::uint32_t pd = 0;  // Of receives' keys: the shared queue's, or this QP's.
    std::uint32_t mask = 0;
    std::uint32_t max_wr = 0;
    std::uint32_t max_sge = 0;
    std::uint64_t posted = 0;
    std::uint64_t done = 0;    // Receives that are complete.
    std::uint64_t polled = 0;  // Completions of receives handed to the user.
    std::uint32_t offset = 0;  // Bytes of the current multi-segment message.
    bool is_open = false;      // Between its first and its last segment.
    [[nodiscard]] bool is_empty() const noexcept { return done == posted; }
    [[nodiscard]] ibv_sge* sges_of(std::size_t slot) const noexcept { return sges + slot * max_sge; }
  } rq;
  /// Completions of what the control thread has received in the owner's place, until the owner polls. Ring of
  /// rq.mask + 1; none for a QP of a shared queue.
  struct Early {
    Cqe* ring = nullptr;
    std::uint64_t head = 0;
    std::uint64_t tail = 0;
    [[nodiscard]] bool is_empty() const noexcept { return head == tail; }
  } early;
  /// How the owner's polls look for messages, and how the peer wakes the owner. Owner.
  struct Watch {
    bool may_park = false;  // The peer can set our bit of the ready set.
    bool parked = false;
    bool in_unarmed = false;
    std::uint32_t idle_passes = 0;
    std::uint32_t wake_flags = 0;   // Mirror of own->rare.wake.
    SoftQp* next_parked = nullptr;  // Of the same bit.
  } watch;
  /// How it ends. The atomics are the control plane's.
  struct Failing {
    bool flushing = false;
    bool loss_told = false;  // One request has been completed for the peer's loss.
    std::atomic<bool> peer_dead{false};
    std::atomic<bool> error_wanted{false};  // modify_qp(ERR), or a revocation that timed out.
    std::atomic<Status> reason{Status::kOk};
    /// The first reason stays.
    void blame(Status why) noexcept {
      Status none = Status::kOk;
      reason.compare_exchange_strong(none, why);
    }
  } failing;
  // Control plane.
  std::unique_ptr<QpChaos> chaos;
  SoftPd* spd = nullptr;
  /// Its memory: own arrays, and what the peer maps.
  struct Storage {
    LazyMemory queues;                   // Its arrays.
    std::uint64_t* ring_ends = nullptr;  // One of them: `tx`'s.
    QpGeometry geometry;
    Fd memory;  // Until the peer has it.
    Mapping mapping;
  } storage;
  /// The way to the peer, and what is kept of it until RESET.
  struct Path {
    Peer* peer = nullptr;
    ibv_gid gid{};
    std::uint32_t qp_num = 0;
    std::uint32_t access_flags = 0;          // What the peer may do.
    std::uint32_t ready_slot = kNoReadyBit;  // In the receive CQ's ready words.
    std::uint8_t min_rnr_timer = 0;
    std::uint8_t rnr_retry = 7;
    std::uint8_t retry_count = 7;
    std::uint8_t timeout = 14;
    std::uint64_t retry_ticks = 0;       // Until RETRY_EXC_ERR; 0 is for ever.
    std::unique_ptr<Approach> approach;  // On its way to RTR.
    std::unique_ptr<RemoteQp> remote;
    std::vector<Offer> offers;                                  // At most kMaxOffers, newest last.
    std::unordered_map<std::uint32_t, std::uint32_t> imported;  // Key index and count, to release with the QP.
  } path;

  [[nodiscard]] ibv_qp_state state_now() const noexcept {
    return static_cast<ibv_qp_state>(now.load(std::memory_order_relaxed));
  }
  void enter(ibv_qp_state next) noexcept {
    state = next;
    now.store(next, std::memory_order_release);
  }
  void tell_readiness(Readiness readiness) noexcept { own->rare.readiness.store(readiness, std::memory_order_release); }
};
static_assert(sizeof(SoftQp) - sizeof(ibv_qp) == 736);
inline constexpr std::size_t kMaxOffers = 4;

}  // namespace verbena::nic::soft
