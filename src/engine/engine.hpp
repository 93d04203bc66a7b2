// The engine: one completion loop a thread, which polls a CQ and hands what is there to the connections.
#pragma once

#include "base/count.hpp"
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
#include <vector>

namespace verbena::engine {

class Connection;

/// A span of this process's registered memory.
struct LocalSpan {
  std::byte* data = nullptr;
  std::size_t length = 0;
  std::uint32_t lkey = 0;
};
/// A span of the peer's exported memory.
struct RemoteSpan {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint32_t rkey = 0;
};

/// Inline data of one request that waits for its doorbell; what is longer rings at once, with what waits before it.
inline constexpr std::uint32_t kHeldInlineBytes = 256;

/// Holds a connection's doorbell for as long as it lives; see Connection::hold. The connection outlives it.
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

/// Owns one CQ and its completion channel; the thread that calls `poll` or `wait*` owns both at that time, and every
/// connection of the loop with them. Immovable. Connections are destroyed before their loop. \thread owner  \alloc
/// setup
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
  /// Polls until something was handled, or `deadline`, or `wake`: spins as the options say, then sleeps. Returns
  /// completions handled, 0 for deadline or wake. Reads no clock before some microsecond of empty polls.
  unsigned wait(Deadline deadline) noexcept;
  /// Ends a `wait` now, or the next one. A system call only when the loop sleeps. \thread any
  void wake() noexcept;
  /// A snapshot; counts of one moment only when the owner takes it. \thread any
  [[nodiscard]] Counters counters() const noexcept;
  [[nodiscard]] nic::Nic& nic() noexcept { return nic_; }
  /// While one lives, nothing that was disposed of is destroyed: the call that polls may be on it. \thread owner
  class Blocked {
   public:
    explicit Blocked(CompletionLoop& loop) noexcept : loop_(loop) { ++loop_.blocked_; }
    ~Blocked() { --loop_.blocked_; }
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;

   private:
    CompletionLoop& loop_;
  };
  /// Whether calls of a handler for several completions are one batch.
  [[nodiscard]] bool batches() const noexcept { return batches_; }
  /// Whether a handler is being called: then nothing may wait. \thread owner
  [[nodiscard]] bool in_handler() const noexcept { return polling_; }

  /// Destroys a connection of this loop once no call of its handler is running, and no blocking call on this loop: at
  /// once, or, from a handler, at the end of the poll or of a later one. Its handler is not called any more. \thread
  /// owner
  template <class Shut>
  void dispose(std::unique_ptr<Shut> connection) noexcept {
    connection->mute();
    if (!polling_) return;  // Its end of life is here.
    doom(connection.release(), [](void* doomed) noexcept { delete static_cast<Shut*>(doomed); });
  }

  /// Waits until `done()` or the deadline: kOk or kTimedOut.
  template <class Done>
  [[nodiscard]] Status wait_until(Done&& done, Deadline deadline) noexcept {
    const Blocked blocked(*this);
    for (;;) {
      if (done()) return Status::kOk;
      // The clock is read only after empty polls.
      if (wait(deadline) == 0 && !done() && deadline.passed()) return Status::kTimedOut;
    }
  }

 private:
  friend class Connection;
  static constexpr unsigned kBatch = 16;          ///< Completions taken at once.
  static constexpr unsigned kPollsPerClock = 32;  ///< Spaced polls between two readings of the clock.
  /// Completions between two readings of the clock, as a power of two, in a loop that finds some in every poll.
  static constexpr unsigned kCompletionsPerClockLog = 13;

  struct Entry {
    Connection* connection = nullptr;
    std::uint32_t qp_num = 0;
  };

  struct Doomed {
    void* object;
    void (*destroy)(void*) noexcept;
  };

  CompletionLoop(nic::Nic& nic, const LoopOptions& options);
  /// At most half full, so that a probe ends soon, and at least two entries, so that the shift stays below 32.
  [[nodiscard]] static constexpr std::size_t table_entries(const LoopOptions& options) noexcept {
    return std::bit_ceil(std::size_t{options.max_connections} * 2);
  }

  // For connections.
  [[nodiscard]] ibv_cq* cq() noexcept { return cq_.get(); }
  /// Takes `entries` of the CQ and one connection's place: kLimit when they are not there. \thread any
  [[nodiscard]] Result<void> reserve(std::uint32_t entries);
  void unreserve(std::uint32_t entries) noexcept;
  /// Puts the connection into the mailbox; the owner's next poll enters it in the table. \thread any
  void attach(Connection& connection) noexcept;
  void remove(Connection& connection) noexcept;
  void started_draining(Connection& connection) noexcept;
  void stopped_draining(Connection& connection) noexcept;
  void started_holding(Connection& connection) noexcept;
  void stopped_holding(Connection& connection) noexcept;
  void doom(void* object, void (*destroy)(void*) noexcept) noexcept;

  [[nodiscard]] Connection* find(std::uint32_t qp_num) noexcept;
  [[nodiscard]] std::size_t home_of(std::uint32_t qp_num) const noexcept { return (qp_num * 0x9E3779B1u) >> shift_; }
  [[nodiscard]] Connection* find_in_table(std::uint32_t qp_num) noexcept;
  void insert(Connection& connection) noexcept;
  void erase(std::uint32_t qp_num) noexcept;
  void adopt() noexcept;
  void dispatch(unsigned count) noexcept;
  void on_device_failure() noexcept;
  void flush_held() noexcept;
  void check_drains() noexcept;
  void bury_doomed() noexcept;
  [[nodiscard]] Deadline drain_deadline() const noexcept;
  void keep_alive(std::uint64_t now) noexcept;
  [[nodiscard]] Deadline keepalive_deadline() const noexcept;
  /// What ended a phase of a wait: something was handled, or the wait is over without, or the phase is.
  enum class Phase : std::uint8_t { kHandled, kEnded, kGoOn };
  [[nodiscard]] Phase spin(Deadline deadline, unsigned& handled) noexcept;
  [[nodiscard]] Phase sleep(Deadline deadline, unsigned& handled) noexcept;
  [[nodiscard]] unsigned wait_slowly(Deadline deadline) noexcept;
  [[nodiscard]] bool take_wake() noexcept;

  nic::Nic& nic_;
  nic::Channel channel_;
  nic::Cq cq_;
  Entry last_;                ///< The table's entry that was found last.
  std::vector<Entry> table_;  ///< Open addressing, at most half full. Owner only.
  unsigned shift_ = 0;
  bool polling_ = false;
  bool holding_ = false;     ///< holding_list_ is not empty.
  bool has_chores_ = false;  ///< draining_ or doomed_ is not empty.
  bool batches_ = false;
  std::uint32_t blocked_ = 0;  ///< Blocking calls on the stack.
  WaitPolicy wait_policy_ = WaitPolicy::kAdaptive;
  // Each has a capacity of max_connections.
  std::vector<Connection*> holding_list_;
  std::vector<Connection*> draining_;
  std::vector<Doomed> doomed_;
  BasicCounters<Count> counters_;
  std::uint64_t spin_ticks_ = 0;
  std::uint64_t keepalive_ticks_ = 0;
  std::uint64_t keepalive_due_ = 0;  ///< When connections are looked at next; UINT64_MAX: never.
  std::uint32_t max_connections_ = 0;
  std::uint32_t capacity_ = 0;
  std::array<ibv_wc, kBatch> wc_{};
  std::atomic<std::uint32_t> connections_{0};
  std::atomic<std::uint32_t> reserved_{0};

  // Written by other threads, seldom: on a line of their own.
  alignas(64) std::atomic<Connection*> arrivals_{nullptr};
  std::atomic<bool> woken_{false};
  std::atomic<bool> sleeping_{false};
};

inline Connection* CompletionLoop::find(std::uint32_t qp_num) noexcept {
  if (last_.qp_num == qp_num && last_.connection != nullptr) [[likely]]
    return last_.connection;
  return find_in_table(qp_num);
}

inline unsigned CompletionLoop::poll() noexcept {
  if (holding_) [[unlikely]]
    flush_held();
  if (arrivals_.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
    adopt();
  const int count = ibv_poll_cq(cq_.get(), kBatch, wc_.data());
  if (count > 0) {
    dispatch(static_cast<unsigned>(count));
  } else {
    ++counters_.empty_polls;
    if (count < 0) [[unlikely]]
      on_device_failure();
  }
  if (has_chores_) [[unlikely]] {
    check_drains();
    bury_doomed();
  }
  return count > 0 ? static_cast<unsigned>(count) : 0;
}

inline unsigned CompletionLoop::wait(Deadline deadline) noexcept {
  const unsigned handled = poll();
  return handled != 0 ? handled : wait_slowly(deadline);
}

}  // namespace verbena::engine
