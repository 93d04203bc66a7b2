// The engine: one completion loop per thread, which polls a CQ and hands the completions to the queue pairs.
#pragma once

#include "base/check.hpp"
#include "base/count.hpp"
#include "base/fork.hpp"
#include "base/serving.hpp"
#include "base/threads.hpp"
#include "engine/mailbox.hpp"
#include "host/footprint.hpp"
#include "nic/nic.hpp"

#include <verbena/counters.hpp>
#include <verbena/deadline.hpp>
#include <verbena/wait_policy.hpp>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace verbena::engine {

class QueuePair;

/// A span of this process's memory, registered or not. Transfers copy unregistered memory through chunks of their own.
struct LocalSpan {
  std::byte* data = nullptr;
  std::size_t length = 0;
  std::uint32_t lkey = 0;
  bool is_bounced = false;  ///< Not registered.

  [[nodiscard]] static LocalSpan bounced(std::span<std::byte> bytes) noexcept {
    return {bytes.data(), bytes.size(), 0, true};
  }
  /// For a WRITE, which only reads it.
  [[nodiscard]] static LocalSpan bounced(std::span<const std::byte> bytes) noexcept {
    return {const_cast<std::byte*>(bytes.data()), bytes.size(), 0, true};
  }
};
/// A span of the peer's exported memory.
struct RemoteSpan {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint32_t rkey = 0;
  /// The first bytes of it. A copy of the whole would load the key together with the padding behind it, which nobody
  /// has stored: such a load waits until the store of the key has reached the cache.
  [[nodiscard]] RemoteSpan first(std::uint64_t bytes) const noexcept { return {address, bytes, rkey}; }
};

/// Most inline data of a request that waits for its doorbell. A longer one rings at once, together with those that wait
/// before it.
inline constexpr std::uint32_t kHeldInlineBytes = 256;

/// Holds a connection's doorbell while it lives; see QueuePair::hold. The connection must outlive it.
template <class Held>
class [[nodiscard]] Batch {
 public:
  explicit Batch(Held& connection) noexcept : connection_(connection) { connection_.hold(); }
  ~Batch() { connection_.release(); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

 private:
  Held& connection_;
};

using verbena::BasicCounters;
using verbena::Counters;
using verbena::WaitPolicy;

/// How long a call waits in all: until a deadline, or for a time that begins when the call first has to wait. It reads
/// the clock only then. Not copyable, because a copy would begin again. \thread one at a time
class Patience {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions): a deadline converts to patience.
  constexpr Patience(Deadline deadline) noexcept : deadline_(deadline) {}
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions): so does a time.
  constexpr Patience(std::chrono::nanoseconds time) noexcept : deadline_(Deadline::never()), time_(time) {}
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;
  /// Returns the deadline, always the same one. With a time, the first call reads the clock: make it when the waiting
  /// begins.
  [[nodiscard]] Deadline begin() const noexcept {
    if (time_.count() != 0) deadline_ = Deadline::after(std::exchange(time_, std::chrono::nanoseconds{0}));
    return deadline_;
  }

 private:
  mutable Deadline deadline_;
  mutable std::chrono::nanoseconds time_{0};
};

/// On which NICs connections send keepalives. The soft NIC learns of a peer's death from the kernel within
/// milliseconds.
enum class KeepaliveOn : std::uint8_t { kDevices, kEveryNic };

/// On which NICs a poll that calls a handler for several completions of one connection makes a batch of its posts.
/// Copying a work request for the later doorbell takes some 10 ns; a device's doorbell takes longer, and the soft NIC's
/// is a function call.
enum class BatchOn : std::uint8_t { kDevices, kEveryNic };

struct LoopOptions {
  std::uint32_t max_connections = 64;
  std::uint32_t cqe = 4096;  ///< Must hold every connection's send and receive depth.
  WaitPolicy wait = WaitPolicy::kAdaptive;
  std::chrono::nanoseconds spin{50'000};  ///< Adaptive wait: poll this long, then sleep on the channel.
  /// A connection that has posted nothing for this long, and waits for no completion, posts a WRITE of no bytes: if the
  /// peer is gone, that fails after the NIC's retries. 0: never. Works only while a thread polls the loop or waits on
  /// it.
  std::chrono::nanoseconds keepalive{std::chrono::seconds{1}};
  KeepaliveOn keepalive_on = KeepaliveOn::kDevices;
  BatchOn batch_on = BatchOn::kDevices;
};

/// Queue pairs by number: open addressing, at most half full. \thread owner  \alloc setup (constructor)
class PairTable {
 public:
  explicit PairTable(std::uint32_t capacity);
  [[nodiscard]] static constexpr std::size_t bytes_for(std::uint32_t capacity) noexcept {
    return entries_for(capacity) * sizeof(Entry);
  }
  void insert(QueuePair& pair, std::uint32_t qp_num) noexcept;
  void erase(std::uint32_t qp_num) noexcept;
  /// Null: none has that number.
  [[nodiscard]] QueuePair* find(std::uint32_t qp_num) noexcept {
    if (last_.qp_num == qp_num && last_.pair != nullptr) [[likely]]
      return last_.pair;
    return find_in_table(qp_num);
  }
  template <class Visit>
  void for_each(Visit&& visit) noexcept {
    for (const Entry& entry : entries_)
      if (entry.pair != nullptr) visit(*entry.pair);
  }

 private:
  struct Entry {
    QueuePair* pair = nullptr;
    std::uint32_t qp_num = 0;
  };
  /// Returns at least two, so that the shift stays below 32.
  [[nodiscard]] static constexpr std::size_t entries_for(std::uint32_t capacity) noexcept {
    return std::bit_ceil(std::size_t{capacity} * 2);
  }
  [[nodiscard]] std::size_t home_of(std::uint32_t qp_num) const noexcept { return (qp_num * 0x9E3779B1u) >> shift_; }
  [[nodiscard]] QueuePair* find_in_table(std::uint32_t qp_num) noexcept;

  Entry last_;  ///< The entry that was found last.
  std::vector<Entry> entries_;
  unsigned shift_ = 0;
};

/// Owns one CQ and its completion channel; the thread that calls `poll` or `wait*` owns both during the call, and with
/// them every connection of the loop. Immovable. Destroy queue pairs before their loop, and not in a handler.
/// \thread owner  \alloc setup
class CompletionLoop {
 public:
  /// Errors: kBadArgument (no connections or entries), and those of Nic::create_cq and create_channel.
  [[nodiscard]] static Result<std::unique_ptr<CompletionLoop>> create(nic::Nic& nic, const LoopOptions& options);
  /// The footprint of `create`, the completion queue included. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const LoopOptions& options);
  ~CompletionLoop();
  CompletionLoop(const CompletionLoop&) = delete;
  CompletionLoop& operator=(const CompletionLoop&) = delete;

  /// Polls once, dispatches the completions to the connections, and returns their number. Don't call it in a handler.
  unsigned poll() noexcept;
  /// Dispatches all completions that have arrived before the call, where a poll takes one batch. Don't call it in a
  /// handler.
  void take_arrived() noexcept;
  /// Polls until it has handled something, `deadline` passes, or `wake`: spins as the options say, then sleeps. Returns
  /// the completions handled; 0 after the deadline or a wake. Reads the clock only after about a microsecond of empty
  /// polls. In a callback it serves what its thread has to (base/serving.hpp), and may return 0 after that.
  unsigned wait(Deadline deadline) noexcept;
  /// Ends a `wait` now, or the next one. Makes a system call only if the loop sleeps. \thread any
  void wake() noexcept;
  /// Waits until `done()` or the deadline: kOk or kTimedOut.
  template <class Done>
  [[nodiscard]] Status wait_until(Done&& done, Deadline deadline) noexcept {
    for (unsigned turn = 1;; ++turn) {
      if (done()) return Status::kOk;
      // Reads the clock only after empty polls.
      if (wait(deadline) == 0 && !done() && deadline.passed()) return Status::kTimedOut;
      // A wait that finds something each time serves nobody.
      if (turn % kTurnsPerService == 0 && Serving::is_due()) [[unlikely]]
        Serving::go_on();
    }
  }
  /// Waits until `done()`, as long as `patience` lasts; it begins when the first check finds nothing.
  template <class Done>
  [[nodiscard]] Status wait_patiently(Done&& done, const Patience& patience) noexcept {
    poll();
    return done() ? Status::kOk : wait_until(done, patience.begin());
  }

  /// From now on accepts calls of other threads, for the thread that becomes the owner. \thread setup
  void open_calls() noexcept { mailbox_.open(); }
  /// The calling thread owns the loop, and carries out calls in its polls.
  void become_owner() noexcept { owner_.store(this_thread(), std::memory_order_relaxed); }
  /// Opens all letters that were sent before the call. \thread owner
  void catch_up() noexcept { mailbox_.catch_up(); }
  /// Refuses calls of other threads, also waiting ones. Afterwards no thread owns the loop.
  void end_calls() noexcept;
  /// Runs `task` in the owner's thread, between polls, and waits for its end; runs it at once if called in that thread.
  /// kOk; other statuses mean that it has not run and will not: kTimedOut, kClosed (no thread carries out calls),
  /// kAgain (called in a handler, or too many calls; a call without a deadline waits instead). The task must be short
  /// and must not throw or wait.
  /// \thread any  \alloc none
  template <class Task>
  [[nodiscard]] Status call(const Task& task, Deadline deadline) noexcept {
    if (is_forked()) [[unlikely]]
      return Status::kForked;  // The owner is a thread of the parent.
    if (!is_owner()) return mailbox_.call(task, deadline, [this] { wake_if_asleep(); });
    if (in_handler()) return Status::kAgain;
    task();
    return Status::kOk;
  }
  /// Calls of other threads that have ended; wraps around. \thread any
  [[nodiscard]] std::uint32_t ended_calls() const noexcept { return mailbox_.ended_calls(); }
  /// Sends a letter to the owner, who opens it in the next poll. \thread any  \alloc none
  void post(Mailbox::Letter& letter) noexcept;
  /// Whether there is room for another connection now. \thread any
  [[nodiscard]] bool has_room() const noexcept {
    return connections_.load(std::memory_order_relaxed) < max_connections_;
  }
  /// Whether the calling thread is the one that carries out calls. \thread any
  [[nodiscard]] bool is_owner() const noexcept { return owner_.load(std::memory_order_relaxed) == this_thread(); }

  /// A snapshot; the counts are of one moment only if the owner takes it. \thread any
  [[nodiscard]] Counters counters() const noexcept;
  [[nodiscard]] nic::Nic& nic() noexcept { return nic_; }
  /// Whether several calls of a handler in one poll share a batch.
  [[nodiscard]] bool batches() const noexcept { return batches_; }
  /// Whether a handler is running: then no call may wait. \thread owner
  [[nodiscard]] bool in_handler() const noexcept { return polling_; }

 private:
  friend class QueuePair;
  static constexpr unsigned kBatch = 16;          ///< Completions taken at once.
  static constexpr unsigned kPollsPerClock = 32;  ///< Spaced polls between two readings of the clock.
  /// Completions between two readings of the clock, as a power of two, in a loop that finds some in every poll.
  static constexpr unsigned kCompletionsPerClockLog = 13;
  /// Messages taken in a row from the queue pair that is expected to have one, before a poll looks at all.
  static constexpr unsigned kMostTakenInRow = 15;
  static constexpr unsigned kTurnsPerService = 16;

  CompletionLoop(nic::Nic& nic, const LoopOptions& options);

  // For queue pairs.
  [[nodiscard]] ibv_cq* cq() noexcept { return cq_.get(); }
  /// From now on expects the next message from this queue pair. The NIC must be able to take it directly.
  void expect(QueuePair& pair) noexcept { expected_ = &pair; }
  void expect_no_more(const QueuePair& pair) noexcept {
    if (expected_ == &pair) expected_ = nullptr;
  }
  /// Takes `entries` of the CQ and a connection's place; kLimit if there are not enough. \thread any
  [[nodiscard]] Result<void> reserve(std::uint32_t entries);
  void unreserve(std::uint32_t entries) noexcept;
  void remove(QueuePair& pair) noexcept;

  /// Polls as `poll_cq` does, but looks first for a short message that the NIC gives directly, and hands it over.
  /// Returns the completions in `wc_`, or -1 after a failure of the device.
  [[nodiscard]] int poll_expecting(unsigned& taken) noexcept;
  void dispatch(unsigned count) noexcept;
  void look_at_clock_if_due(std::uint64_t before) noexcept {
    if ((before ^ counters_.completions) >> kCompletionsPerClockLog != 0) [[unlikely]]
      keep_alive(ticks_now());
  }
  [[nodiscard]] QueuePair* find_arriving(std::uint32_t qp_num) noexcept;
  void on_device_failure() noexcept;
  void flush_held() noexcept;
  void check_drains() noexcept;
  [[nodiscard]] Deadline drain_deadline() const noexcept;
  void keep_alive(std::uint64_t now) noexcept;
  [[nodiscard]] Deadline keepalive_deadline() const noexcept;
  /// How a phase of a wait ended: completions were handled, the wait is over without any, or the next phase follows.
  enum class Phase : std::uint8_t { kHandled, kEnded, kGoOn };
  [[nodiscard]] Phase spin(Deadline deadline, unsigned& handled) noexcept;
  [[nodiscard]] Phase sleep(Deadline deadline, unsigned& handled) noexcept;
  [[nodiscard]] unsigned wait_slowly(Deadline deadline) noexcept;
  [[nodiscard]] bool take_wake() noexcept;
  void wake_if_asleep() noexcept;
  void read_mail() noexcept;

  nic::Nic& nic_;
  nic::Channel channel_;
  nic::Cq cq_;
  PairTable pairs_;
  bool polling_ = false;
  bool batches_ = false;
  QueuePair* expected_ = nullptr;  ///< Has received the last message, and may receive past the queues.
  unsigned taken_in_row_ = 0;
  WaitPolicy wait_policy_ = WaitPolicy::kAdaptive;
  // Each has a capacity of max_connections; a queue pair is in it at most once.
  std::vector<QueuePair*> holding_;
  std::vector<QueuePair*> draining_;
  BasicCounters<Count> counters_;
  std::uint64_t spin_ticks_ = 0;
  struct {
    std::uint64_t interval = 0;  ///< Ticks.
    std::uint64_t due = 0;       ///< When to check connections next; UINT64_MAX: never.
  } keepalive_;
  std::uint32_t max_connections_ = 0;
  std::uint32_t capacity_ = 0;
  std::array<ibv_wc, kBatch> wc_{};
  alignas(8) std::array<std::byte, nic::Direct::kMostTaken> message_{};  ///< Taken directly.
  std::atomic<std::uint32_t> connections_{0};
  std::atomic<std::uint32_t> reserved_{0};

  // Other threads write these, seldom, so they have cache lines of their own.
  alignas(64) Mailbox mailbox_;
  std::atomic<std::uintptr_t> owner_{0};
  std::atomic<bool> woken_{false};
  std::atomic<bool> sleeping_{false};
};

inline unsigned CompletionLoop::poll() noexcept {
  if (!holding_.empty()) [[unlikely]]
    flush_held();
  unsigned taken = 0;
  const int count = expected_ != nullptr ? poll_expecting(taken) : ibv_poll_cq(cq_.get(), kBatch, wc_.data());
  if (count > 0) {
    dispatch(static_cast<unsigned>(count));
  } else if (taken == 0) {
    ++counters_.empty_polls;
    if (count < 0) [[unlikely]]
      on_device_failure();
  }
  if (!draining_.empty()) [[unlikely]]
    check_drains();
  // Reads mail after handling arrivals, so that a call of another thread sees their effects.
  if (!mailbox_.empty()) [[unlikely]]
    read_mail();
  return count > 0 ? static_cast<unsigned>(count) : taken;
}

inline unsigned CompletionLoop::wait(Deadline deadline) noexcept {
  const unsigned handled = poll();
  return handled != 0 ? handled : wait_slowly(deadline);
}

}  // namespace verbena::engine
