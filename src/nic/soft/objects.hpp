// The soft NIC's private objects. In each, data-path members come first, cold ones last.
#pragma once

#include "nic/nic.hpp"
#include "nic/soft/chaos.hpp"
#include "nic/soft/layout.hpp"
#include "nic/soft/ring.hpp"
#include "nic/soft/system.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace verbena::nic::soft {

/// How often a queue pair has imported each of its peer's keys, sorted by the key's index. The first kReserved keys
/// allocate nothing: a peer may tell windows while both sides work.
class ImportCounts {
 public:
  using Entry = std::pair<std::uint32_t, std::uint32_t>;  // Index and count.
  static constexpr std::size_t kReserved = 64;

  void reserve() { entries_.reserve(kReserved); }
  void add(std::uint32_t index) {
    const auto at = position_of(index);
    if (at != entries_.end() && at->first == index) {
      ++at->second;
    } else {
      entries_.insert(at, {index, 1});
    }
  }
  [[nodiscard]] auto find(std::uint32_t index) noexcept {
    const auto at = position_of(index);
    return at != entries_.end() && at->first == index ? at : entries_.end();
  }
  [[nodiscard]] auto begin() noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() noexcept { return entries_.end(); }
  void erase(std::vector<Entry>::iterator at) noexcept { entries_.erase(at); }
  void clear() noexcept { entries_.clear(); }

 private:
  [[nodiscard]] std::vector<Entry>::iterator position_of(std::uint32_t index) noexcept {
    return std::ranges::lower_bound(entries_, index, {}, &Entry::first);
  }

  std::vector<Entry> entries_;
};

struct SoftCq;
struct SoftQp;
struct SoftSrq;
struct SoftMw;
class SoftNic;
class Copier;

[[nodiscard]] inline bool same(const ibv_gid& a, const ibv_gid& b) noexcept {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// A key of a peer that this process may use: checked at import, immutable while `rkey` is set.
struct alignas(64) Import {
  std::atomic<std::uint32_t> rkey{0};  // 0: not imported. Published last (release).
  std::uint32_t domain = 0;            // As KeyEntry::domain.
  std::uint64_t iova = 0;
  std::uint64_t length = 0;
  std::byte* base = nullptr;                      // Where iova is in this process.
  const PeerWord<std::uint64_t>* live = nullptr;  // The owner's word: differs from `word` once revoked.
  std::uint32_t access = 0;  // In the upper half if the memory is not mapped here: see outside.cpp.
  std::uint32_t uses = 0;    // Times imported and not released. Control plane.
  std::uint64_t memory_id = 0;
  std::atomic<std::uint64_t> word{0};  // The value of `*live` at import.
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
  std::uint32_t uses = 0;                // Uses of the index: the upper half of KeyEntry::live.
  std::atomic<SoftMw*> window{nullptr};  // Set if the index belongs to a window, which has no local key.
};
static_assert(sizeof(LocalKey) == 48);

/// Tables that are large but mostly unused. All-zero bytes must be a valid T: atomics of 0, null pointers.
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

/// Descriptors to send with a message. Borrowed.
class Handout {
 public:
  void add(int fd) noexcept { fds_[count_++] = fd; }
  [[nodiscard]] std::span<const int> given() const noexcept { return {fds_.data(), count_}; }

 private:
  std::array<int, kMaxFds> fds_{};
  std::size_t count_ = 0;
};

/// Adds it to things to free later; without memory for that, it is freed now.
template <class T>
void free_later(std::vector<std::unique_ptr<T>>& list, std::unique_ptr<T> ended) noexcept {
  try {
    list.push_back(std::move(ended));
  } catch (const std::bad_alloc&) {
    return;
  }
}

/// One request to a peer's NIC. A queue of its conversation holds it until it is over; the caller that asks shares it.
struct Ask {
  Request request;
  std::vector<std::byte> attested;  // Sent after the request.
  Handout fds;                      // The caller takes an unsent request back before it closes them.
  // Once it is over: the answer with its descriptors, or why there is none.
  bool is_over = false;
  Reply reply;
  Fds received;
  std::optional<Error> failure;
  std::optional<bool> is_whole;  // Whether the memory of the answer is; nothing until somebody has looked.
};

/// A process that this NIC talks to, found by its GID. The QPs that are connected or connecting to it share it.
struct Peer {
  // Data path.
  LazyTable<Import> imports;  // By key index.
  std::atomic<bool> dead{false};
  std::atomic<bool> denies_copies{false};  // The kernel refuses process_vm_readv and writev: its service thread copies.
  // Set before the first import of memory outside of arenas. Null: there is none, and the service thread copies.
  std::shared_ptr<Copier> copier;
  // Control plane, under the NIC's mutex.
  enum class State : std::uint8_t {
    kConnecting,  // Its listener's backlog is full.
    kGreeting,    // It has not answered the greeting yet: the members after `socket_source` are not set.
    kKnown,
  };
  State state = State::kConnecting;
  bool awaits_room = false;  // The socket is full and takes no more requests.
  ibv_gid gid{};
  PeerProcess process;
  Fd socket;
  Fd pidfd;  // Only for another process.
  // The conversation: answers come in the order of the requests.
  std::deque<std::shared_ptr<Ask>> sent;
  std::deque<std::shared_ptr<Ask>> unsent;
  Error failure;                    // Why it is dead.
  bool was_late = false;            // It has stayed inside memory past a deadline: nobody waits for it again.
  std::uint32_t users = 0;          // QPs that are connected or connecting to it.
  std::uint64_t socket_source = 0;  // Number in the control thread's epoll; 0: not, or no longer, in it.
  std::uint64_t pidfd_source = 0;
  Mapping keys;   // Its KeyEntry table.
  Fd key_file;    // The same, of a stranger.
  Mapping ready;  // Its ready set; empty for a foreign user.
  struct Memory {
    std::uint64_t id = 0;
    Mapping mapping;  // Empty until the peer has answered `ask`.
    std::shared_ptr<Ask> ask;
    std::vector<const SoftQp*> waiting;  // QPs that wait for the answer.
    bool writable = false;
    bool is_whole = false;  // All its pages exist; those of a stranger for good.
    std::uint32_t uses = 0;
  };
  std::vector<std::unique_ptr<Memory>> memories;
  std::uint32_t key_entries = 0;
  bool has_outside = false;  // Whether a copier was asked for.

  Peer() = default;
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();  // Ends the copier.

  /// This process reads no hole in a stranger's memfd: the read would make the page, at this process's expense.
  [[nodiscard]] bool is_stranger() const noexcept { return nic::is_stranger(process.uid); }
};

/// State of a QP between INIT and RTR, from the first call of modify_qp to the one that succeeds or fails.
struct Approach {
  ibv_gid gid{};
  std::uint32_t qp_num = 0;
  std::uint8_t min_rnr_timer = 0;
  Peer* peer = nullptr;        // Counted; from the offer on the QP owns this use.
  std::shared_ptr<Ask> offer;  // Null until the peer is known.
  bool has_pages = false;      // All of the QP's memory is there.
  [[nodiscard]] bool leads_to(const ibv_gid& to_gid, std::uint32_t to_qp, std::uint8_t timer) const noexcept {
    return same(gid, to_gid) && qp_num == to_qp && min_rnr_timer == timer;
  }
};

/// Duplicates of a process's bells: one for each bell, however many QPs ring it here.
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
  bool has_srq = false;                           // This side must ask for receives (srq.cpp).
  PeerWord<std::uint64_t>* ready_word = nullptr;  // In its ready set; nullptr if it never parks for us.
  std::uint64_t ready_bit = 0;
  std::array<int, kMaxBells> bells{-1, -1};  // For a peer of this user; valid ones come first.
  int wake_socket = -1;                      // For a peer of another user: a message on it asks for the same.
  std::uint32_t qp_num = 0;
  std::uint64_t rnr_ticks = 0;
  Peer* peer = nullptr;
  Mapping mapping;
  Bells kept_bells;
  RingConsumer<RealMemory> ring;  // Where this side's receiving starts.
  /// Whether it says that it is in RTR or RTS.
  [[nodiscard]] bool is_ready() const noexcept {
    return control->rare.readiness.load(std::memory_order_acquire) == Readiness::kReady;
  }
};
static_assert(sizeof(RemoteQp) == 200);

/// An offer that arrived before or after this side's QP went to RTR; matched by GID and number.
struct Offer {
  Request request;
  Fd memory;
  Bells bells;
  PeerProcess process;
};

struct ReceiveWqe {
  std::uint64_t wr_id = 0;
  std::uint32_t capacity = 0;  // Sum of the SGEs.
  std::uint16_t sge_count = 0;
  bool keys_hold = false;  // Whether the keys of its SGEs were valid when it was published.
};
static_assert(sizeof(ReceiveWqe) == 16);

/// A send work request that could not be executed when it was posted.
struct SendWqe {
  ibv_send_wr wr{};
  std::uint64_t sq_index = 0;
};
static_assert(sizeof(SendWqe) == sizeof(ibv_send_wr) + 8);

/// Reasons to hold back work requests or completions.
struct Hold {
  static constexpr std::uint8_t kByTest = 1;   ///< All, until the test releases them.
  static constexpr std::uint8_t kByChaos = 2;  ///< Some, at random. Set for good.
};

/// One completion, with the position by which poll retires send-queue slots.
struct alignas(64) Cqe {
  ibv_wc wc;
  SoftQp* qp;
  std::uint64_t sq_index;  // Send completions: slots up to here are free. Else kNotSend.
};
inline constexpr std::uint64_t kNotSend = ~std::uint64_t{0};
static_assert(sizeof(Cqe) == 64);

/// One eventfd rings for everything: `wake`, completions, and peers. Peers cannot say for which queue, so each queue
/// that waits for an event gets one then, perhaps a spurious one.
struct SoftChannel : ibv_comp_channel {
  SoftNic* nic = nullptr;
  Fd bell;  // ibv_comp_channel::fd
  std::uint32_t number = 0;
  std::atomic<bool> is_woken{false};  // Set by `wake` until a `wait` takes it.
  // Owner: the thread that waits.
  std::uint64_t own_rings = 0;  // Rings since the bell was emptied, for queues whose event has not been taken yet.
  std::size_t next = 0;         // Queue to look at first.
  std::vector<SoftCq*> cqs;     // Under the NIC's mutex.
};

/// One cache line for each CQ. If it has more QPs than bits they share bits: a bit stands for a list of parked ones.
inline constexpr std::uint32_t kReadyWords = 8;
inline constexpr std::uint32_t kReadyBits = kReadyWords * 64;

struct SoftCq : ibv_cq {
  SoftNic* nic = nullptr;
  // Owner of the CQ.
  Cqe* ring = nullptr;  // Restarted when it is empty, so that the used part stays small.
  std::uint32_t mask = 0;
  std::uint32_t capacity = 0;
  std::uint64_t head = 0;
  std::uint64_t tail = 0;
  std::uint32_t busy_polls = 0;  // Successive polls that found something without looking at rings.
  std::uint32_t parked_count = 0;
  std::uint32_t passes = 0;
  enum class Armed : std::uint8_t { kNo, kAny, kSolicited };
  Armed armed = Armed::kNo;
  bool is_due = false;           // It has an event that `wait` has not returned yet.
  std::uint8_t held = 0;         // Hold bits: completions are held back.
  int bell = -1;                 // Its channel's.
  std::vector<SoftQp*> active;   // Receive side polled here. Reserved up front.
  std::vector<SoftQp*> stalled;  // Send side, or a flush, has work left.
  std::vector<SoftQp*> unarmed;  // Receive side polled here, but its peer may not ring as `armed_for` says.
  std::uint32_t armed_for = 0;   // Wake bit that all but `unarmed` have.
  // Other threads set bits of `control`: kExclusive while the control plane changes the lists, kAttention when a QP has
  // news (peer dead, connected, error requested). The owner sets kLeftOver when it had no room for all news.
  static constexpr std::uint32_t kExclusive = 1;
  static constexpr std::uint32_t kAttention = 2;
  static constexpr std::uint32_t kLeftOver = 4;
  alignas(64) std::atomic<std::uint32_t> control{0};
  std::atomic<std::uint64_t> poll_word{0};  // Odd while the owner is inside poll.
  // Control plane.
  LazyMemory memory;                               // Contains the ring.
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
/// 2010), lock-free. Posting and giving back put receives in, giving to a QP takes them out; any thread may do each.
struct SoftSrq : ibv_srq {
  struct Entry {
    std::atomic<std::uint64_t> turn{0};  // Position at which it can be put in; that + 1 at which it can be taken out.
    ReceiveWqe receive;
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
  alignas(64) std::atomic<std::uint32_t> unfinished{0};  // Receives posted and not complete, wherever they are.
  std::atomic<bool> is_short{false};                     // A QP has looked for a receive and found none.
  // A thread passes it after it has put something in, or after it has set `is_short` and before it looks again: the
  // later one of two sees what the earlier one did before. A fence on both sides would do the same, but TSan does not
  // know fences.
  std::atomic<std::uint64_t> turnstile{0};
  std::uint32_t users = 0;  // Control plane.
};

struct SoftMr : ibv_mr {
  std::uint64_t memory_id = 0;
  std::uint64_t memory_offset = 0;        // Offset of its first byte.
  std::uint32_t grantable = 0;            // Remote access that its memory allows.
  std::atomic<std::uint32_t> windows{0};  // Windows bound on it.
};

/// A window of type 2. The owner of the QP binds and invalidates it. The control plane makes and ends it, and reuses it
/// instead of freeing it: a peer may name a window in an invalidation while another thread ends the window.
struct SoftMw : ibv_mw {
  SoftPd* spd = nullptr;
  bool is_used = false;                  // Control plane.
  std::atomic<std::uint32_t> key{0};     // Valid while bound; else the last one. The next low byte differs.
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
  ServiceBlock* service = nullptr;                // The end of this QP's shared memory.
  std::atomic<RemoteQp*> remote{nullptr};         // Published by the control plane when both sides have offered.
  std::atomic<std::uint32_t> now{IBV_QPS_RESET};  // ibv_qp_state
  std::uint64_t access_count = 0;
  /// Receives of the peer, which messages take.
  struct Credit {
    std::uint64_t sent = 0;    // Messages that took one.
    std::uint64_t limit = 0;   // Receives posted, as last read.
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
    std::atomic<std::uint8_t> held{0};  // Hold bits: execution is held back.
    [[nodiscard]] bool is_full() const noexcept { return posted - retired >= max_wr; }
  } sq;
  /// What the head waits for. kAnswer: receives of a shared queue; it counts no retries until the peer has said that it
  /// has none.
  /// kRevoke: the peer to leave a window that is being invalidated. kService: the peer's service thread, or the copier.
  enum class Stall : std::uint8_t { kNone, kRnr, kAnswer, kPeer, kRoom, kRevoke, kService };
  /// Requests that could not be executed at once, and why the head waits.
  struct Pending {
    std::uint64_t head = 0;
    std::uint64_t tail = 0;
    SendWqe* wqes = nullptr;           // Ring of mask + 1.
    ibv_sge* sges = nullptr;           // max_sge each.
    std::byte* inline_data = nullptr;  // max_inline each.
    std::uint32_t mask = 0;
    std::uint32_t offset = 0;  // Bytes of the head's SEND already in the ring.
    std::uint32_t takers = 0;  // Requests that take a receive.
    Stall stall = Stall::kNone;
    std::uint64_t stall_start = 0;  // Ticks at which the head stalled for `stall`, or last made progress.
    std::uint64_t take_asked = 0;   // Ticks at which the peer's control thread was asked to make room.
    [[nodiscard]] bool is_empty() const noexcept { return head == tail; }
    [[nodiscard]] const SendWqe& front() const noexcept { return wqes[head & mask]; }
    [[nodiscard]] bool waits_for_peer() const noexcept {
      return stall == Stall::kPeer || stall == Stall::kRevoke || stall == Stall::kService;
    }
  } pending;
  /// Work that the head needs from the peer.
  struct PeerWork {
    std::uint64_t asked = 0;         // Requests to its service thread so far.
    std::uint64_t served_bytes = 0;  // Bytes of the head that finished requests have moved.
    bool is_asking = false;          // A request is under way.
    bool is_ask_sent = false;        // The peer knows of it.
    bool is_copying = false;         // The head has the peer's copier.
    /// True from when the head begins to wait for kRevoke until it is complete; a failure leaves it set. For the
    /// control plane.
    std::atomic<bool> is_revoking{false};
    std::uint64_t revoke_word = 0;  // The peer's access word, odd, while the head waits for it to change; else 0.
  } peer_work;
  // Receiving. Owner.
  RingConsumer<RealMemory> rx;
  const RemoteQp* rx_remote = nullptr;  // The owner sets it once, with rx.
  /// The receive queue, and how much of its head is filled.
  struct ReceiveQueue {
    ReceiveWqe* wqes = nullptr;  // Ring of mask + 1.
    ibv_sge* sges = nullptr;
    PeerWord<std::uint32_t>* lengths = nullptr;  // Shared.
    SoftSrq* srq = nullptr;
    std::uint32_t pd = 0;  // Protection domain of receives' keys: the shared queue's, or this QP's.
    std::uint32_t mask = 0;
    std::uint32_t max_wr = 0;
    std::uint32_t max_sge = 0;
    std::uint64_t posted = 0;
    std::uint64_t done = 0;    // Receives that are complete.
    std::uint64_t polled = 0;  // Completions of receives handed to the user.
    std::uint32_t offset = 0;  // Bytes of the current multi-segment message.
    bool is_open = false;      // The current message has begun and not ended.
    [[nodiscard]] bool is_empty() const noexcept { return done == posted; }
    [[nodiscard]] ibv_sge* sges_of(std::size_t slot) const noexcept { return sges + slot * max_sge; }
  } rq;
  /// Completions of messages that the control thread has received on the owner's behalf, until the owner polls. Ring of
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
    SoftQp* next_parked = nullptr;  // Next one of the same bit.
  } watch;
  /// How the QP fails. The control plane sets the atomics.
  struct Failing {
    bool flushing = false;
    bool loss_told = false;  // One request has already completed with the peer's loss.
    std::atomic<bool> peer_dead{false};
    std::atomic<bool> error_wanted{false};  // modify_qp(ERR), or a revocation that timed out.
    std::atomic<Status> reason{Status::kOk};
    /// Keeps the first reason.
    void blame(Status why) noexcept {
      Status none = Status::kOk;
      reason.compare_exchange_strong(none, why);
    }
  } failing;
  // Control plane.
  std::unique_ptr<QpChaos> chaos;
  SoftPd* spd = nullptr;
  /// Its memory: private arrays, and the memory that the peer maps.
  struct Storage {
    LazyMemory queues;                   // Its arrays.
    std::uint64_t* ring_ends = nullptr;  // One of the arrays: that of `tx`.
    QpGeometry geometry;
    Fd memory;  // Kept until the peer has it.
    std::shared_ptr<const Mapping> mapping;
  } storage;
  /// The path to the peer; kept until RESET.
  struct Path {
    Peer* peer = nullptr;
    ibv_gid gid{};
    std::uint32_t qp_num = 0;
    std::uint32_t access_flags = 0;          // The peer's rights.
    std::uint32_t ready_slot = kNoReadyBit;  // In the receive CQ's ready words.
    std::uint8_t min_rnr_timer = 0;
    std::uint8_t rnr_retry = 7;
    std::uint8_t retry_count = 7;
    std::uint8_t timeout = 14;
    std::uint64_t retry_ticks = 0;       // Time until RETRY_EXC_ERR; 0 is for ever.
    std::unique_ptr<Approach> approach;  // While it goes to RTR.
    std::unique_ptr<RemoteQp> remote;
    std::vector<Offer> offers;  // At most kMaxOffers, newest last.
    ImportCounts imported;      // To release with the QP.
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
static_assert(sizeof(SoftQp) - sizeof(ibv_qp) == 696);
inline constexpr std::size_t kMaxOffers = 4;

}  // namespace verbena::nic::soft
