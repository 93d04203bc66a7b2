// What every connection shares: its QP, the accounts of its queues, operations in flight, failure and drain.
#pragma once

#include "base/check.hpp"
#include "engine/engine.hpp"
#include "link/link.hpp"

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
inline constexpr std::uint32_t kNoSlot = kSlotMask;  ///< A send that no operation waits for.

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

/// Operations started and not complete: a fixed table. A slot's generation grows with each use, so that a completion
/// that outlived its operation finds nothing. \thread owner  \alloc setup (constructor)
class InFlight {
 public:
  /// `capacity` is 1 to 32766.
  explicit InFlight(std::uint32_t capacity) : slots_(capacity) {
    VERBENA_CHECK(capacity >= 1 && capacity < wr::kNoSlot);
    for (std::uint32_t i = 0; i < capacity; ++i) slots_[i].next_free = i + 1 < capacity ? i + 1 : wr::kNoSlot;
  }
  [[nodiscard]] static constexpr std::uint64_t bytes_for(std::uint32_t capacity) noexcept {
    return std::uint64_t{capacity} * sizeof(Slot);
  }
  /// A free slot, or wr::kNoSlot.
  [[nodiscard]] std::uint32_t begin() noexcept {
    const std::uint32_t slot = first_free_;
    if (slot >= slots_.size()) return wr::kNoSlot;
    first_free_ = slots_[slot].next_free;
    slots_[slot].live = true;
    ++live_;
    return slot;
  }
  void end(std::uint32_t slot) noexcept {
    VERBENA_DCHECK(slot < slots_.size() && slots_[slot].live);
    slots_[slot].live = false;
    ++slots_[slot].generation;
    slots_[slot].next_free = first_free_;
    first_free_ = slot;
    --live_;
  }
  [[nodiscard]] std::uint32_t tag(std::uint32_t slot) const noexcept { return wr::tag(slot, slots_[slot].generation); }
  /// The live slot that a send's id names, or wr::kNoSlot.
  [[nodiscard]] std::uint32_t find(std::uint64_t id) const noexcept {
    const std::uint32_t slot = wr::slot_of(id);
    if (slot == wr::kNoSlot || slot >= slots_.size() || !slots_[slot].live) return wr::kNoSlot;
    return slots_[slot].generation == wr::generation_of(id) ? slot : wr::kNoSlot;
  }
  [[nodiscard]] bool live(std::uint32_t slot) const noexcept { return slots_[slot].live; }
  [[nodiscard]] std::uint32_t count() const noexcept { return live_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return static_cast<std::uint32_t>(slots_.size()); }

 private:
  struct Slot {
    std::uint32_t next_free = wr::kNoSlot;
    std::uint16_t generation = 0;
    bool live = false;
  };
  static_assert(sizeof(Slot) == 8);
  std::vector<Slot> slots_;
  std::uint32_t first_free_ = 0;
  std::uint32_t live_ = 0;
};

/// Windows of the peer that are imported, so that an access is checked before it is posted. One more may be lent by who
/// keeps many windows of its own and finds them otherwise. \thread owner, or setup  \alloc setup
class WindowTable {
 public:
  static constexpr std::size_t kCapacity = 64;
  /// kLimit when full, kBadArgument for a window that wraps around the address space.
  [[nodiscard]] Status add(const nic::Window& window) noexcept;
  /// kNotFound when it is not there.
  [[nodiscard]] Status remove(const nic::Window& window) noexcept;
  /// Lends a window, in place of the last one, until an access finds another or it is taken back.
  void lend(const nic::Window& window) noexcept {
    windows_[kLent] = window;
    last_ = kLent;
  }
  void take_back() noexcept { last_ = kFirst; }
  /// kOk; kNotFound (no window has that rkey), kOutOfRange, or kRemoteAccess (the window lacks the right).
  [[nodiscard]] Status check(const RemoteSpan& span, std::uint32_t access) noexcept {
    if (last_ < count_ && windows_[last_].rkey == span.rkey) [[likely]]
      return check_in(windows_[last_], span, access);
    return check_all(span, access);
  }

 private:
  [[nodiscard]] static Status check_in(const nic::Window& window, const RemoteSpan& span,
                                       std::uint32_t access) noexcept {
    const std::uint64_t offset = span.address - window.address;
    if (span.address < window.address || offset > window.length || span.length > window.length - offset)
      return Status::kOutOfRange;
    return (window.access & access) == access ? Status::kOk : Status::kRemoteAccess;
  }
  [[nodiscard]] Status check_all(const RemoteSpan& span, std::uint32_t access) noexcept;

  static constexpr std::size_t kLent = 0;
  static constexpr std::size_t kFirst = 1;
  std::array<nic::Window, kCapacity + 1> windows_{};
  std::size_t count_ = 1;  ///< The lent one is always counted, and found only while it is the last.
  std::size_t last_ = kFirst;
};

/// Whether a completion has shown that the peer was there.
enum class Heard : std::uint8_t { kNever, kBefore };

/// The reason that an error completion stands for. Retries without an answer mean that the peer is lost, unless it
/// never answered: then the path is wrong (addresses, a firewall), and the reason stays kRetryExceeded. \thread any
/// \alloc none
[[nodiscard]] Status status_of(ibv_wc_status status, Status qp_failure, Heard heard) noexcept;

struct QueueOptions {
  std::uint32_t sends = 64;    ///< Work requests in flight, the reserve excluded.
  std::uint32_t receives = 0;  ///< Receives posted at most.
  std::uint32_t send_sge = 4;
  std::uint32_t max_inline = 64;     ///< Wished for; `max_inline()` tells what it came to.
  std::uint32_t first_position = 0;  ///< Where the send queue's wrapping count starts; tests of wrap-around set it.
};

/// Work requests that wait for their doorbell, as a list that ibv_post_send takes. What they point to is copied, but
/// registered memory. \thread owner  \alloc setup (constructor)
class HeldRequests {
 public:
  static constexpr std::uint32_t kCapacity = 32;
  static constexpr std::uint32_t kMaxSge = 4;

  HeldRequests() : places_(kCapacity) {}
  [[nodiscard]] static constexpr std::uint64_t bytes() noexcept { return kCapacity * sizeof(Place); }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  [[nodiscard]] bool full() const noexcept { return count_ == kCapacity; }
  /// Whether a request can wait here at all.
  [[nodiscard]] static bool fits(const ibv_send_wr& request) noexcept;
  /// Appends; not when full.
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

/// Base of everything that owns a QP. A derived class calls `shut` first in its destructor, so that nothing of its
/// memory is in flight when that goes. \thread owner of the loop, except open and attach (setup)
class Connection {
 public:
  /// Slots of the send queue kept back: one for the drain's marker, one for what must not starve (a credit update).
  static constexpr std::uint32_t kReserve = 2;
  /// Time that flushing a failed QP may take before the QP is destroyed instead.
  static constexpr std::chrono::milliseconds kDrainTimeout{1000};
  /// Entries of the loop's CQ that a connection takes.
  [[nodiscard]] static constexpr std::uint32_t completions_needed(std::uint32_t sends,
                                                                  std::uint32_t receives) noexcept {
    return sends + kReserve + receives;
  }

  /// The queue pair that `open` asks the NIC for, without its completion queues. \thread any  \alloc none
  [[nodiscard]] static nic::QpOptions qp_options(const QueueOptions& options, const nic::Limits& limits) noexcept;
  /// What a connection allocates besides itself. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const nic::Limits& limits,
                                                 const QueueOptions& options);

  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

 protected:
  explicit Connection(CompletionLoop& loop) noexcept
      : loop_(loop), counters_(loop.counters_), direct_(loop.nic_.direct()) {}
  virtual ~Connection();

  /// Batches: from `hold` to as many calls of `release`, work requests wait for one doorbell. It rings at `flush`, at
  /// the last `release`, when 32 are waiting, and at the next poll or wait of the loop, so that whoever waits for a
  /// completion gets it.
  void hold() noexcept { ++hold_depth_; }
  void release() noexcept {
    VERBENA_DCHECK(hold_depth_ != 0);
    if (--hold_depth_ == 0 && held_count_ != 0) flush();
  }
  /// Rings the doorbell for what waits. After a failure there is nothing.
  void flush() noexcept;

  /// Completions of this connection, in order, all of one poll.
  virtual void handle(std::span<const ibv_wc> completions) noexcept = 0;
  /// In the loop's thread, once the loop knows this connection: the time to post receives.
  virtual void on_attached() noexcept = 0;
  /// Once, after a failure, in a poll: nothing is in flight any more.
  virtual void on_drained() noexcept = 0;

  [[nodiscard]] Result<void> open(ibv_pd* pd, const QueueOptions& options);
  /// Until `shut` the peer's leaving is noticed through it. \thread setup
  void keep(link::Lifeline lifeline) noexcept {
    lifeline_ = std::move(lifeline);
    lifeline_.watch(nic(), qp_.get());
  }
  /// From now on the loop's polls dispatch to this connection. \thread any
  void attach() noexcept;
  /// Takes this out of the loop and destroys the QP: nothing is in flight afterwards. Idempotent.
  void shut() noexcept;

  [[nodiscard]] CompletionLoop& loop() const noexcept { return loop_; }
  [[nodiscard]] nic::Nic& nic() const noexcept { return loop_.nic_; }
  [[nodiscard]] ibv_qp* qp() const noexcept { return qp_.get(); }
  [[nodiscard]] BasicCounters<Count>& count() const noexcept { return counters_; }
  [[nodiscard]] std::uint32_t max_inline() const noexcept { return max_inline_; }
  /// The NIC's way past its queues, for a blocking call that nothing waiting for its doorbell is ahead of; or null. Not
  /// after a failure, which may have destroyed the QP.
  [[nodiscard]] const nic::Direct* direct() const noexcept {
    return held_count_ == 0 && reason_ == Status::kOk ? direct_ : nullptr;
  }
  /// Counts operations that went that way. Every so many the loop is polled: who calls nothing else has its peers'
  /// messages taken and its failures noticed all the same.
  void went_directly(std::uint64_t bytes, std::uint64_t operations = 1) noexcept {
    counters_.work_requests += operations;
    counters_.bytes += bytes;
    const std::uint64_t before = counters_.direct;
    counters_.direct = before + operations;
    if (before / kDirectPerPoll != (before + operations) / kDirectPerPoll) [[unlikely]] {
      const CompletionLoop::Blocked blocked(loop_);
      loop_.poll();
    }
  }

  /// Work requests that can be posted, the reserve excluded.
  [[nodiscard]] std::uint32_t send_room() const noexcept {
    const std::uint32_t used = posted_ - retired_;
    return used < sends_ ? sends_ - used : 0;
  }
  [[nodiscard]] bool has_reserve() const noexcept { return posted_ - retired_ < sends_ + 1; }
  /// Index of the send-queue slot that the next post takes: memory of its own can go with it until it is retired.
  [[nodiscard]] std::uint32_t next_send_slot() const noexcept { return send_slot_; }
  [[nodiscard]] std::uint32_t send_slots() const noexcept { return sends_ + kReserve; }

  enum class Signal : std::uint8_t {
    kSometimes,  ///< One in `signal_every`, to retire the others by count.
    kAlways,
    kWithDoorbell,  ///< The last of its doorbell is; its completion stands for those before it.
  };
  /// Posts one work request with an id for `tag`. The caller has looked at send_room. False: the connection has failed.
  bool post(ibv_send_wr& request, std::uint32_t tag, Signal signal) noexcept {
    VERBENA_DCHECK(posted_ - retired_ < send_slots());
    const std::uint32_t position = posted_ + 1;
    request.wr_id = std::uint64_t{position} << 32 | tag;
    const bool is_held = hold_depth_ != 0;
    if (++since_signal_ >= signal_every_ || signal == Signal::kAlways ||
        (signal == Signal::kWithDoorbell && !is_held)) {
      sign(request);
    } else {
      request.send_flags &= ~static_cast<unsigned>(IBV_SEND_SIGNALED);
    }
    if (is_held) [[unlikely]] {
      if (!keep_for_doorbell(request, signal)) return false;
    } else {
      if (!ring(request)) return false;
    }
    posted_ = position;
    if (++send_slot_ == send_slots()) send_slot_ = 0;
    ++counters_.work_requests;
    return true;
  }
  /// Posts a list of `count` receives. False: the connection has failed.
  bool post_receives(ibv_recv_wr& first, std::uint32_t count) noexcept {
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(qp_.get(), &first, &bad) != 0) [[unlikely]] {
      for (const ibv_recv_wr* posted = &first; posted != bad && posted != nullptr; posted = posted->next)
        ++receives_posted_;
      begin_failure(Status::kDevice);
      return false;
    }
    receives_posted_ += count;
    ++counters_.receive_refills;
    return true;
  }
  /// Retires everything up to a send's completion.
  void retire(std::uint64_t id) noexcept {
    VERBENA_DCHECK(wr::position_of(id) - retired_ <= posted_ - retired_);
    retired_ = wr::position_of(id);
  }
  /// Whether the request posted at `position`, not long ago, is complete.
  [[nodiscard]] bool is_retired(std::uint32_t position) const noexcept {
    return static_cast<std::int32_t>(retired_ - position) >= 0;
  }
  /// Of the request posted last.
  [[nodiscard]] std::uint32_t position() const noexcept { return posted_; }
  void took_receive() noexcept { ++received_; }

  /// For an error completion, and for every completion after a failure.
  void handle_failed(const ibv_wc& completion) noexcept;
  /// Moves the QP to error and drains it during polls; on_drained follows. Only the first reason counts.
  void begin_failure(Status reason) noexcept;
  [[nodiscard]] Status reason() const noexcept { return reason_; }
  [[nodiscard]] bool is_drained() const noexcept { return drained_; }

 private:
  friend class CompletionLoop;
  enum class Place : std::uint8_t { kOutside, kMailbox, kTable };
  static constexpr std::uint64_t kDirectPerPoll = 16;

  /// One call of ibv_post_send.
  bool ring(ibv_send_wr& first) noexcept {
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(qp_.get(), &first, &bad) != 0) [[unlikely]] {
      begin_failure(Status::kDevice);
      return false;
    }
    ++counters_.doorbells;
    return true;
  }
  void sign(ibv_send_wr& request) noexcept {
    request.send_flags |= IBV_SEND_SIGNALED;
    since_signal_ = 0;
  }
  bool keep_for_doorbell(ibv_send_wr& request, Signal signal) noexcept;
  void post_marker() noexcept;
  void enter_drained() noexcept;
  /// Once an interval: asks the peer whether it is there, if nothing else did.
  void keep_alive() noexcept;
  [[nodiscard]] bool nothing_in_flight() const noexcept { return posted_ == retired_ && receives_posted_ == received_; }
  [[nodiscard]] Heard heard() const noexcept {
    return retired_ != first_ || received_ != 0 ? Heard::kBefore : Heard::kNever;
  }

  CompletionLoop& loop_;
  BasicCounters<Count>& counters_;
  const nic::Direct* direct_;
  nic::Qp qp_;
  link::Lifeline lifeline_;    ///< Ends before the QP does.
  std::uint32_t posted_ = 0;   ///< Work requests posted, cumulative; wraps.
  std::uint32_t retired_ = 0;  ///< Of these, known to be complete.
  std::uint32_t sends_ = 0;
  std::uint32_t send_slot_ = 0;
  std::uint32_t since_signal_ = 0;
  std::uint32_t signal_every_ = 1;
  std::uint32_t receives_posted_ = 0;  ///< Cumulative; wraps.
  std::uint32_t received_ = 0;         ///< Of these, complete.
  std::uint32_t max_inline_ = 0;
  std::uint32_t qp_num_ = 0;
  std::uint32_t reserved_entries_ = 0;
  std::uint32_t first_ = 0;  ///< Where posted_ started.
  std::uint32_t seen_ = 0;   ///< posted_ when it was last looked at for a keepalive.
  std::uint32_t hold_depth_ = 0;
  std::uint32_t held_count_ = 0;  ///< As held_.count(); beside what the release looks at.
  bool held_wants_signal_ = false;
  Status reason_ = Status::kOk;
  bool drained_ = false;
  Place place_ = Place::kOutside;
  bool draining_ = false;
  Deadline drain_deadline_ = Deadline::never();
  Connection* next_arrival_ = nullptr;
  HeldRequests held_;
};

}  // namespace verbena::engine
