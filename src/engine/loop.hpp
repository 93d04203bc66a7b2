// The engine: one completion loop a thread, which polls a CQ and hands what is there to the queue pairs.
#pragma once

#include "base/check.hpp"
#include "base/count.hpp"
#include "base/fork.hpp"
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

/// A span of this process's memory: registered, or any, which transfers carry through chunks of their own.
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
};

/// Inline data of one request that waits for its doorbell; what is longer rings at once, with what waits before it.
inline constexpr std::uint32_t kHeldInlineBytes = 256;

/// Holds a connection's doorbell for as long as it lives; see QueuePair::hold. The connection outlives it.
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

/// How long a call waits, with all its parts: until a deadline, or for a time that begins when the call first has to
/// wait. The clock is not read before. A copy would begin anew. \thread one at a time
class Patience {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions): a deadline is one form of patience.
  constexpr Patience(Deadline deadline) noexcept : deadline_(deadline) {}
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions): and so is a time.
  constexpr Patience(std::chrono::nanoseconds time) noexcept : deadline_(Deadline::never()), time_(time) {}
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;
  /// The deadline, always the same. The first time reads the clock where a time was given: call it when the waiting
  /// begins.
  [[nodiscard]] Deadline begin() const noexcept {
    if (time_.count() != 0) deadline_ = Deadline::after(std::exchange(time_, std::chrono::nanoseconds{0}));
    return deadline_;
  }

 private:
  mutable Deadline deadline_;
  mutable std::chrono::nanoseconds time_{0};
};

/// Where connections are kept alive. The soft NIC hears of a peer's death from the kernel within milliseconds.
enum class KeepaliveOn : std::uint8_t { kDevices, kEveryNic };

/// Where handlers that a poll calls for several completions of one connection are in a batch. Copying a work request
/// for the later doorbell takes some 10 ns; a device's doorbell takes more, and the soft NIC's is a function call.
enum class BatchOn : std::uint8_t { kDevices, kEveryNic };

struct LoopOptions {
  std::uint32_t max_connections = 64;
  std::uint32_t cqe = 4096;  ///< Must hold every connection's send and receive depth.
  WaitPolicy wait = WaitPolicy::kAdaptive;
  std::chrono::nanoseconds spin{50'000};  ///< Adaptive wait: poll this long, then sleep on the channel.
  /// A connection that has posted nothing for this long, and waits for no completion, posts a WRITE of no bytes: with a
  /// peer that is gone, that fails after the NIC's retries. 0: never. Seen only while the loop is polled or waited for.
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
  /// At least two, so that the shift stays below 32.
  [[nodiscard]] static constexpr std::size_t entries_for(std::uint32_t capacity) noexcept {
    return std::bit_ceil(std::size_t{capacity} * 2);
  }
  [[nodiscard]] std::size_t home_of(std::uint32_t qp_num) const noexcept { return (qp_num * 0x9E3779B1u) >> shift_; }
  [[nodiscard]] QueuePair* find_in_table(std::uint32_t qp_num) noexcept;

  Entry last_;  ///< The entry that was found last.
  std::vector<Entry> entries_;
  unsigned shift_ = 0;
};

/// Owns one CQ and its completion channel; the thread that calls `poll` or `wait*` owns both at that time, and every
/// connection of the loop with them. Immovable. Queue pairs are destroyed before their loop, and not from a handler.
/// \thread owner  \alloc setup
class CompletionLoop {
 public:
  /// Errors: kBadArgument (no connections or entries), and those of Nic::create_cq and create_channel.
  [[nodiscard]] static Result<std::unique_ptr<CompletionLoop>> create(nic::Nic& nic, const LoopOptions& options);
  /// What `create` allocates, the completion queue included. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const LoopOptions& options);
  ~CompletionLoop();
  CompletionLoop(const CompletionLoop&) = delete;
  CompletionLoop& operator=(const CompletionLoop&) = delete;

  /// Polls once and dispatches what is there to the connections. Returns completions handled. Not from a handler.
  unsigned poll() noexcept;
  /// Dispatches all completions that are there when it is called. A poll takes a batch of them. Not from a handler.
  void take_arrived() noexcept;
  /// Polls until something was handled, or `deadline`, or `wake`: spins as the options say, then sleeps. Returns
  /// completions handled, 0 for deadline or wake. Reads no clock before some microsecond of empty polls.
  unsigned wait(Deadline deadline) noexcept;
  /// Ends a `wait` now, or the next one. A system call only when the loop sleeps. \thread any
  void wake() noexcept;
  /// Waits until `done()` or the deadline: kOk or kTimedOut.
  template <class Done>
  [[nodiscard]] Status wait_until(Done&& done, Deadline deadline) noexcept {
    for (;;) {
      if (done()) return Status::kOk;
      // The clock is read only after empty polls.
      if (wait(deadline) == 0 && !done() && deadline.passed()) return Status::kTimedOut;
    }
  }
  /// Waits until `done()`, for as long as `patience` lasts from the first look that finds nothing on.
  template <class Done>
  [[nodiscard]] Status wait_patiently(Done&& done, const Patience& patience) noexcept {
    poll();
    return done() ? Status::kOk : wait_until(done, patience.begin());
  }

  /// From now on calls of other threads are taken, for the thread that becomes the owner. \thread setup
  void open_calls() noexcept { mailbox_.open(); }
  /// The calling thread owns the loop, and carries out calls in its polls.
  void become_owner() noexcept { owner_.store(this_thread(), std::memory_order_relaxed); }
  /// Opens all letters that were sent before. \thread owner
  void catch_up() noexcept { mailbox_.catch_up(); }
  /// Refuses calls of other threads, those that wait too; nobody owns the loop any more.
  void end_calls() noexcept;
  /// Calls `task` in the owner's thread, between polls, and waits for its end; in the owner's thread, at once. kOk, or
  /// it was not called and will not be: kTimedOut, kClosed (nobody carries out calls), kAgain (in a handler; or too
  /// many calls, for which one without a deadline waits). The task must be short and must not throw or wait.
  /// \thread any  \alloc none
  template <class Task>
  [[nodiscard]] Status call(const Task& task, Deadline deadline) noexcept {
    if (is_forked()) [[unlikely]]
      return Status::kForked;  // The owner is the parent's thread.
    if (!is_owner()) return mailbox_.call(task, deadline, [this] { wake_if_asleep(); });
    if (in_handler()) return Status::kAgain;
    task();
    return Status::kOk;
  }
  /// Sends a letter to the owner, who opens it in his next poll. \thread any  \alloc none
  void post(Mailbox::Letter& letter) noexcept;
  /// Whether another connection finds room at this moment. \thread any
  [[nodiscard]] bool has_room() const noexcept {
    return connections_.load(std::memory_order_relaxed) < max_connections_;
  }
  /// Whether the calling thread is the one that carries out calls. \thread any
  [[nodiscard]] bool is_owner() const noexcept { return owner_.load(std::memory_order_relaxed) == this_thread(); }

  /// A snapshot; counts of one moment only when the owner takes it. \thread any
  [[nodiscard]] Counters counters() const noexcept;
  [[nodiscard]] nic::Nic& nic() noexcept { return nic_; }
  /// Whether calls of a handler for several completions are one batch.
  [[nodiscard]] bool batches() const noexcept { return batches_; }
  /// Whether a handler is being called: then nothing may wait. \thread owner
  [[nodiscard]] bool in_handler() const noexcept { return polling_; }

 private:
  friend class QueuePair;
  static constexpr unsigned kBatch = 16;          ///< Completions taken at once.
  static constexpr unsigned kPollsPerClock = 32;  ///< Spaced polls between two readings of the clock.
  /// Completions between two readings of the clock, as a power of two, in a loop that finds some in every poll.
  static constexpr unsigned kCompletionsPerClockLog = 13;

  CompletionLoop(nic::Nic& nic, const LoopOptions& options);

  // For queue pairs.
  [[nodiscard]] ibv_cq* cq() noexcept { return cq_.get(); }
  /// Takes `entries` of the CQ and one connection's place: kLimit when they are not there. \thread any
  [[nodiscard]] Result<void> reserve(std::uint32_t entries);
  void unreserve(std::uint32_t entries) noexcept;
  void remove(QueuePair& pair) noexcept;

  void dispatch(unsigned count) noexcept;
  [[nodiscard]] QueuePair* find_arriving(std::uint32_t qp_num) noexcept;
  void on_device_failure() noexcept;
  void flush_held() noexcept;
  void check_drains() noexcept;
  [[nodiscard]] Deadline drain_deadline() const noexcept;
  void keep_alive(std::uint64_t now) noexcept;
  [[nodiscard]] Deadline keepalive_deadline() const noexcept;
  /// What ended a phase of a wait: something was handled, or the wait is over without, or the phase is.
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
  WaitPolicy wait_policy_ = WaitPolicy::kAdaptive;
  // Each has a capacity of max_connections, and a queue pair is in it once.
  std::vector<QueuePair*> holding_;
  std::vector<QueuePair*> draining_;
  BasicCounters<Count> counters_;
  std::uint64_t spin_ticks_ = 0;
  struct {
    std::uint64_t interval = 0;  ///< Ticks.
    std::uint64_t due = 0;       ///< When connections are looked at next; UINT64_MAX: never.
  } keepalive_;
  std::uint32_t max_connections_ = 0;
  std::uint32_t capacity_ = 0;
  std::array<ibv_wc, kBatch> wc_{};
  std::atomic<std::uint32_t> connections_{0};
  std::atomic<std::uint32_t> reserved_{0};

  // Written by other threads, seldom: on cache lines of their own.
  alignas(64) Mailbox mailbox_;
  std::atomic<std::uintptr_t> owner_{0};
  std::atomic<bool> woken_{false};
  std::atomic<bool> sleeping_{false};
};

inline unsigned CompletionLoop::poll() noexcept {
  if (!holding_.empty()) [[unlikely]]
    flush_held();
  const int count = ibv_poll_cq(cq_.get(), kBatch, wc_.data());
  if (count > 0) {
    dispatch(static_cast<unsigned>(count));
  } else {
    ++counters_.empty_polls;
    if (count < 0) [[unlikely]]
      on_device_failure();
  }
  if (!draining_.empty()) [[unlikely]]
    check_drains();
  // After what has arrived: a call that another thread hands over is told of it.
  if (!mailbox_.empty()) [[unlikely]]
    read_mail();
  return count > 0 ? static_cast<unsigned>(count) : 0;
}

inline unsigned CompletionLoop::wait(Deadline deadline) noexcept {
  const unsigned handled = poll();
  return handled != 0 ? handled : wait_slowly(deadline);
}

}  // namespace verbena::engine
