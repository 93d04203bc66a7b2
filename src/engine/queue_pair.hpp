// A queue pair: the accounts of its queues, failure and drain, and the checks before a work request is posted.
#pragma once

#include "base/check.hpp"
#include "engine/loop.hpp"
#include "link/link.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace verbena::engine {

/// Work request ids. A send's: position in the send queue (cumulative, after it) | generation | operation slot. A
/// receive's: kReceiveBit | buffer slot. The opcode of a failed completion is undefined, so the id must tell them
/// apart.
namespace wr {
inline constexpr std::uint64_t kReceiveBit = 0x8000;
inline constexpr std::uint32_t kSlotMask = 0x7fff;
inline constexpr std::uint32_t kNoSlot = kSlotMask;  ///< For a send that no operation waits for.

[[nodiscard]] constexpr bool is_receive(std::uint64_t id) noexcept { return (id & kReceiveBit) != 0; }
[[nodiscard]] constexpr std::uint32_t slot_of(std::uint64_t id) noexcept {
  return static_cast<std::uint32_t>(id) & kSlotMask;
}
[[nodiscard]] constexpr std::uint16_t generation_of(std::uint64_t id) noexcept {
  return static_cast<std::uint16_t>(id >> 16);
}
[[nodiscard]] constexpr std::uint32_t position_of(std::uint64_t id) noexcept {
  return static_cast<std::uint32_t>(id >> 32);
}
/// The operation's half of a send's id.
[[nodiscard]] constexpr std::uint32_t tag(std::uint32_t slot, std::uint16_t generation) noexcept {
  return slot | std::uint32_t{generation} << 16;
}
inline constexpr std::uint32_t kNoTag = kNoSlot;
}  // namespace wr

/// Imported windows of the peer, to check an access before it is posted. Several may have the same rkey: parts of one
/// memory that the peer has published under different names. A user that keeps many windows itself may lend one more.
/// \thread owner, or setup  \alloc setup
class WindowTable {
 public:
  static constexpr std::size_t kCapacity = 64;
  WindowTable() noexcept { windows_.fill(kNone); }
  /// kLimit when full, kBadArgument for a window that wraps around the address space.
  [[nodiscard]] Status add(const nic::Window& window) noexcept;
  /// kNotFound if it is not in the table.
  [[nodiscard]] Status remove(const nic::Window& window) noexcept;
  /// Lends a window, in place of the last one, until an access finds another.
  void lend(const nic::Window& window) noexcept {
    windows_[kLent] = window;
    last_ = kLent;
  }
  /// kOk; kNotFound (no window has that rkey), kOutOfRange, or kRemoteAccess (the window lacks the right).
  [[nodiscard]] Status check(const RemoteSpan& span, std::uint32_t access) noexcept {
    if (windows_[last_].rkey == span.rkey && check_in(windows_[last_], span, access) == Status::kOk) [[likely]]
      return Status::kOk;
    return check_all(span, access);
  }

 private:
  [[nodiscard]] static Status check_in(const nic::Window& window, const RemoteSpan& span,
                                       std::uint32_t access) noexcept {
    // Wraps around for addresses before it, and is then longer than any window.
    const std::uint64_t offset = span.address - window.address;
    if (span.length > window.length || offset > window.length - span.length) return Status::kOutOfRange;
    return (window.access & access) == access ? Status::kOk : Status::kRemoteAccess;
  }
  /// By value: a reference would keep the span of an inlined `check` in memory.
  [[nodiscard]] Status check_all(RemoteSpan span, std::uint32_t access) noexcept;

  static constexpr std::size_t kLent = 0;
  static constexpr std::size_t kFirst = 1;
  /// A place without a window: no access is inside.
  static constexpr nic::Window kNone{.address = ~std::uint64_t{0}};
  std::array<nic::Window, kCapacity + 1> windows_;
  std::size_t count_ = 1;  ///< Includes the lent one, which is found only while it is `last_`.
  std::size_t last_ = kFirst;
};

/// Whether a completion has shown that the peer has ever answered.
enum class Heard : std::uint8_t { kNever, kBefore };

/// The status for an error completion. Retries without an answer mean that the peer is lost, unless it never answered:
/// then the path is wrong (addresses, a firewall), and the reason stays kRetryExceeded. \thread any  \alloc none
[[nodiscard]] Status status_of(ibv_wc_status status, Status qp_failure, Heard heard) noexcept;

struct QueueOptions {
  std::uint32_t sends = 64;    ///< Work requests in flight, the reserve excluded.
  std::uint32_t receives = 0;  ///< Receives posted at most.
  std::uint32_t send_sge = 4;
  std::uint32_t receive_sge = 2;
  std::uint32_t max_inline = 64;     ///< Wished for; `max_inline()` tells what it came to.
  std::uint32_t held = 32;           ///< Work requests that share a doorbell, at most.
  std::uint32_t first_position = 0;  ///< Where the send queue's wrapping count starts; tests of wrap-around set it.
  ibv_qp_type type = IBV_QPT_RC;     ///< IBV_QPT_RC or IBV_QPT_UC.
  bool takes_messages = false;       ///< The owner's `take` gets short messages that the NIC can give directly.
};

/// Work requests that wait for their doorbell, as a list for ibv_post_send. Copies everything that they point to,
/// except registered memory. \thread owner  \alloc setup (open)
class HeldRequests {
 public:
  static constexpr std::uint32_t kMostPlaces = 32;
  static constexpr std::uint32_t kMaxSge = 4;

  void open(std::uint32_t places) { places_.resize(places); }
  [[nodiscard]] static constexpr std::uint64_t bytes(std::uint32_t places) noexcept { return places * sizeof(Place); }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  [[nodiscard]] bool full() const noexcept { return count_ == places_.size(); }
  /// Whether a request can wait here at all.
  [[nodiscard]] bool fits(const ibv_send_wr& request) const noexcept;
  /// Appends a request. Must not be full.
  void add(const ibv_send_wr& request) noexcept;
  [[nodiscard]] ibv_send_wr& first() noexcept { return places_[0].request; }
  [[nodiscard]] ibv_send_wr& last() noexcept { return places_[count_ - 1].request; }
  void clear() noexcept { count_ = 0; }

 private:
  struct Place {
    ibv_send_wr request{};
    std::array<ibv_sge, kMaxSge> sge{};
    std::array<std::byte, kHeldInlineBytes> data{};
  };
  std::vector<Place> places_;
  std::uint32_t count_ = 0;
};

/// The account of a send queue: positions are cumulative and wrap. Signaled completions retire all before them.
/// \thread owner
class SendAccount {
 public:
  /// Allows `capacity` work requests in flight, and the reserve; the count starts at `first`.
  void open(std::uint32_t capacity, std::uint32_t reserve, std::uint32_t first) noexcept {
    capacity_ = capacity;
    slots_ = capacity + reserve;
    // At most a quarter of the queue waits for a later signaled request, so the rest can always be retired.
    signal_every_ = std::clamp(capacity / 4, 1u, 32u);
    posted_ = retired_ = first_ = first;
  }
  /// Work requests that can be posted, the reserve excluded.
  [[nodiscard]] std::uint32_t room() const noexcept {
    const std::uint32_t used = posted_ - retired_;
    return used < capacity_ ? capacity_ - used : 0;
  }
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return posted_ - retired_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::uint32_t slots() const noexcept { return slots_; }
  /// Index of the slot that the next post takes.
  [[nodiscard]] std::uint32_t next_slot() const noexcept { return slot_; }
  /// Position of the last request posted.
  [[nodiscard]] std::uint32_t position() const noexcept { return posted_; }
  /// Whether any request has completed.
  [[nodiscard]] bool has_retired() const noexcept { return retired_ != first_; }
  /// Whether to signal the next request, so that its completion retires the others.
  [[nodiscard]] bool wants_signal() noexcept { return ++since_signal_ >= signal_every_; }
  void signaled() noexcept { since_signal_ = 0; }
  /// Counts a request again that was counted before a doorbell and is posted after it.
  void count_again() noexcept { since_signal_ = std::max(since_signal_, 1u); }
  [[nodiscard]] std::uint32_t since_signal() const noexcept { return since_signal_; }
  void post() noexcept {
    ++posted_;
    if (++slot_ == slots_) slot_ = 0;
  }
  void retire(std::uint32_t position) noexcept {
    VERBENA_DCHECK(position - retired_ <= posted_ - retired_);
    retired_ = position;
  }
  void retire_all() noexcept { retired_ = posted_; }
  /// Whether the request posted at `position`, not long ago, is complete.
  [[nodiscard]] bool is_retired(std::uint32_t position) const noexcept {
    return static_cast<std::int32_t>(retired_ - position) >= 0;
  }

 private:
  std::uint32_t posted_ = 0;
  std::uint32_t retired_ = 0;
  std::uint32_t capacity_ = 0;
  std::uint32_t slots_ = 0;
  std::uint32_t slot_ = 0;
  std::uint32_t since_signal_ = 0;
  std::uint32_t signal_every_ = 1;
  std::uint32_t first_ = 0;
};

/// A queue pair of a loop: its queues' accounts, doorbell batching, failure and drain. Its owner calls `shut` before it
/// frees anything that the work requests point to. \thread owner of the loop, except open, keep and attach (setup)
class QueuePair final {
 public:
  /// Callbacks of a queue pair, in the thread that polls its loop.
  class Owner {
   public:
    /// Completions of this queue pair, in order, all of one poll.
    virtual void handle(std::span<const ibv_wc> completions) noexcept = 0;
    /// A short message that has used neither a receive nor a completion: the receive that it would have taken is the
    /// last one posted now. The bytes are valid until the return. Called only with QueueOptions::takes_messages.
    virtual void take(std::span<const std::byte> /*message*/) noexcept {}
    /// Called once the loop knows the queue pair: post receives here.
    virtual void on_attached() noexcept = 0;
    /// Called once in a poll after a failure, when nothing is in flight any more.
    virtual void on_drained() noexcept = 0;

   protected:
    ~Owner() = default;
  };

  /// Reserved slots of the send queue: one for the drain's marker, one for a request that must not starve (a credit
  /// update).
  static constexpr std::uint32_t kReserve = 2;
  /// Time that flushing a failed QP may take before the QP is destroyed instead.
  static constexpr std::chrono::milliseconds kDrainTimeout{1000};
  /// Entries of the loop's CQ that a queue pair takes.
  [[nodiscard]] static constexpr std::uint32_t completions_needed(std::uint32_t sends,
                                                                  std::uint32_t receives) noexcept {
    return sends + kReserve + receives;
  }
  /// The options by which `open` creates the queue pair, without its completion queues. \thread any  \alloc none
  [[nodiscard]] static nic::QpOptions qp_options(const QueueOptions& options, const nic::Limits& limits) noexcept;
  /// The footprint of a queue pair besides the object itself. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const nic::Limits& limits,
                                                 const QueueOptions& options);

  QueuePair(CompletionLoop& loop, Owner& owner) noexcept
      : loop_(loop),
        owner_(owner),
        counters_(loop.counters_),
        direct_(loop.nic_.direct()),
        is_soft_roce_(loop.nic_.limits().is_soft_roce) {}
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  [[nodiscard]] Result<void> open(ibv_pd* pd, const QueueOptions& options);
  /// Keeps a lifeline: until `shut` it tells when the peer leaves. \thread setup
  void keep(link::Lifeline lifeline) noexcept {
    lifeline_ = std::move(lifeline);
    lifeline_.watch(nic(), qp_.get());
  }
  /// Checks now whether the peer has gone, without waiting for the event thread. If so, a poll reports it soon.
  [[nodiscard]] bool look_for_peer() noexcept {
    if (reason_ != Status::kOk || !lifeline_.is_over()) return false;
    nic().lose_peer(qp_.get());
    return true;
  }
  /// From now on the loop's polls dispatch to this queue pair. \thread any
  void attach() noexcept;
  /// Removes this from the loop, once it is drained: from then on any thread may `shut` it.
  void leave_loop() noexcept;
  /// Removes this from the loop and destroys the QP: nothing is in flight afterwards. Idempotent.
  void shut() noexcept;

  /// Batches: from `hold` to as many calls of `release`, work requests wait for one doorbell. It rings at `flush`, at
  /// the last `release`, when 32 are waiting, and at the next poll or wait of the loop, so that a thread that waits for
  /// a completion gets it.
  void hold() noexcept { ++hold_depth_; }
  void release() noexcept {
    VERBENA_DCHECK(hold_depth_ != 0);
    if (--hold_depth_ == 0 && is_holding()) flush();
  }
  /// Rings the doorbell for the waiting requests. After a failure there are none.
  void flush() noexcept;

  [[nodiscard]] CompletionLoop& loop() const noexcept { return loop_; }
  [[nodiscard]] nic::Nic& nic() const noexcept { return loop_.nic_; }
  /// Null before `open`, and after a drain that had to destroy the QP.
  [[nodiscard]] ibv_qp* get() const noexcept { return qp_.get(); }
  [[nodiscard]] BasicCounters<Count>& count() const noexcept { return counters_; }
  [[nodiscard]] std::uint32_t max_inline() const noexcept { return max_inline_; }
  [[nodiscard]] const SendAccount& sends() const noexcept { return sends_; }
  /// Work requests that can be posted, the reserve excluded.
  [[nodiscard]] std::uint32_t room() const noexcept { return sends_.room(); }
  [[nodiscard]] bool has_reserve() const noexcept { return sends_.in_flight() < sends_.capacity() + 1; }

  /// The NIC's direct operations, for a blocking call; null while requests wait for their doorbell, or after a failure,
  /// which may have destroyed the QP.
  [[nodiscard]] const nic::Direct* direct() const noexcept {
    return !is_holding() && reason_ == Status::kOk ? direct_ : nullptr;
  }
  /// Counts direct operations, and polls the loop now and then, so that a caller that does nothing else still receives
  /// messages and notices failures.
  [[gnu::always_inline]] void went_directly(std::uint64_t bytes, std::uint64_t operations = 1) noexcept {
    BasicCounters<Count>& counters = counters_;
    counters.work_requests += operations;
    counters.bytes += bytes;
    counters.direct += operations;
    since_look_ += static_cast<std::uint32_t>(operations);
    look_if_due();
  }
  /// The same for a message that `send_directly` has sent.
  void look_if_due() noexcept {
    if (since_look_ < kDirectPerPoll) [[likely]]
      return;
    since_look_ = 0;
    loop_.poll();
  }
  /// Sends a message of `count` parts past the queues, in a call or a handler. False: not executed; post it.
  bool send_directly(const ibv_sge* parts, std::size_t count) noexcept {
    if (hold_depth_ != 0) [[unlikely]]
      return false;
    const nic::Direct* const now = direct();
    if (now == nullptr || !now->send(qp_.get(), parts, count)) [[unlikely]]
      return false;
    ++counters_.work_requests;
    ++counters_.direct;
    ++since_look_;
    return true;
  }

  enum class Signal : std::uint8_t {
    kSometimes,  ///< Signals one in several, which retires the others.
    kAlways,
    kWithDoorbell,  ///< Signals the last request of a doorbell; its completion counts for those before it.
  };
  /// Posts one work request with an id for `tag`. Check `room` first. False: the queue pair has failed.
  bool post(ibv_send_wr& request, std::uint32_t tag, Signal signal) noexcept {
    VERBENA_DCHECK(sends_.in_flight() < sends_.slots());
    request.wr_id = std::uint64_t{sends_.position() + 1} << 32 | tag;
    const bool is_held = hold_depth_ != 0;
    if (sends_.wants_signal() || signal == Signal::kAlways || (signal == Signal::kWithDoorbell && !is_held)) {
      sign(request);
    } else {
      request.send_flags &= ~static_cast<unsigned>(IBV_SEND_SIGNALED);
    }
    if (is_held) [[unlikely]] {
      if (!keep_for_doorbell(request, signal)) return false;
    } else {
      if (!ring(request)) return false;
    }
    sends_.post();
    ++counters_.work_requests;
    return true;
  }
  /// Posts a list with one doorbell. Its last request alone is signaled, and stands for those before it; all have ids
  /// for `tag`. The caller has looked at `room`, and nothing waits for a doorbell. False: the queue pair has failed,
  /// with the front of the list posted.
  bool post_list(std::span<ibv_send_wr> list, std::uint32_t tag) noexcept;
  /// Posts a list of `count` receives. False: the queue pair has failed.
  bool post_receives(ibv_recv_wr& first, std::uint32_t count) noexcept {
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(qp_.get(), &first, &bad) != 0) [[unlikely]] {
      for (const ibv_recv_wr* posted = &first; posted != bad && posted != nullptr; posted = posted->next)
        ++receives_.posted;
      fail(Status::kDevice);
      return false;
    }
    receives_.posted += count;
    ++counters_.receive_refills;
    return true;
  }
  /// Retires everything up to a send's completion.
  void retire(std::uint64_t id) noexcept { sends_.retire(wr::position_of(id)); }
  /// Retires the requests posted before that of an error completion.
  void retire_before(std::uint64_t id) noexcept {
    const std::uint32_t last = wr::position_of(id) - 1;
    if (!sends_.is_retired(last)) sends_.retire(last);
  }
  void took_receive() noexcept {
    ++receives_.completed;
    if (takes_messages_) loop_.expect(*this);
  }

  /// Handles an error completion, or any completion after a failure.
  void handle_failed(const ibv_wc& completion) noexcept;
  /// Moves the QP to error and drains it during polls; on_drained follows. Only the first reason counts.
  void fail(Status reason) noexcept;
  /// Why it has failed; kOk while it has not.
  [[nodiscard]] Status reason() const noexcept { return reason_; }
  [[nodiscard]] bool is_drained() const noexcept { return phase_ == Phase::kDrained; }

 private:
  friend class CompletionLoop;
  enum class Place : std::uint8_t { kOutside, kMailbox, kTable };
  enum class Phase : std::uint8_t { kWorking, kDraining, kDrained };
  /// Opens the letter of `attach`.
  static void enter_table_of(Mailbox::Letter& letter) noexcept;
  struct Arrival : Mailbox::Letter {
    QueuePair* pair = nullptr;
  };
  static constexpr std::uint32_t kDirectPerPoll = 16;

  /// One call of ibv_post_send; the request that it refused, or null.
  [[nodiscard]] ibv_send_wr* post(ibv_send_wr& first) noexcept {
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(qp_.get(), &first, &bad) == 0) [[likely]]
      return nullptr;
    return bad != nullptr ? bad : &first;
  }
  /// The same on Soft-RoCE, where it is a system call.
  [[nodiscard]] ibv_send_wr* post_by_system_call(ibv_send_wr& first) noexcept;
  bool ring(ibv_send_wr& first) noexcept {
    if ((is_soft_roce_ ? post_by_system_call(first) : post(first)) != nullptr) [[unlikely]] {
      fail(Status::kDevice);
      return false;
    }
    ++counters_.doorbells;
    return true;
  }
  void sign(ibv_send_wr& request) noexcept {
    request.send_flags |= IBV_SEND_SIGNALED;
    sends_.signaled();
  }
  bool keep_for_doorbell(ibv_send_wr& request, Signal signal) noexcept;
  [[nodiscard]] bool is_holding() const noexcept { return held_.count() != 0; }
  void forget_held() noexcept;
  void enter_table() noexcept;
  void post_marker() noexcept;
  void enter_drained() noexcept;
  /// Called once per interval: sends the peer a keepalive, unless other requests ask it anyway.
  void keep_alive() noexcept;
  [[nodiscard]] bool nothing_in_flight() const noexcept {
    return sends_.in_flight() == 0 && receives_.posted == receives_.completed;
  }
  [[nodiscard]] Heard heard() const noexcept {
    return sends_.has_retired() || receives_.completed != 0 ? Heard::kBefore : Heard::kNever;
  }

  CompletionLoop& loop_;
  Owner& owner_;
  BasicCounters<Count>& counters_;
  const nic::Direct* direct_;
  nic::Qp qp_;
  SendAccount sends_;
  struct {
    std::uint32_t posted = 0;  ///< Cumulative; wraps.
    std::uint32_t completed = 0;
  } receives_;
  std::uint32_t since_look_ = 0;  ///< Direct operations since the last look at the loop.
  std::uint32_t hold_depth_ = 0;
  HeldRequests held_;
  bool held_wants_signal_ = false;
  bool takes_messages_ = false;  ///< And has not failed.
  const bool is_soft_roce_;
  bool is_reliable_ = true;
  Status reason_ = Status::kOk;
  Phase phase_ = Phase::kWorking;
  Place place_ = Place::kOutside;
  std::uint32_t max_inline_ = 0;
  std::uint32_t qp_num_ = 0;
  std::uint32_t reserved_entries_ = 0;
  std::uint32_t seen_ = 0;  ///< The position at the last keepalive check.
  Deadline drain_deadline_ = Deadline::never();
  link::Lifeline lifeline_;  ///< Ends before the QP does.
  Arrival arrival_;
};

}  // namespace verbena::engine
