// The engine: one completion loop a thread, which polls a CQ and hands what is there to the connections.
#pragma once

#include "nic/nic.hpp"

#include <verbena/deadline.hpp>

#include <array>
#include <atomic>
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

/// Cheap enough to stay on: plain increments by the owner. Snapshot by copying.
struct Counters {
  std::uint64_t work_requests = 0;  ///< Send-queue work requests posted.
  std::uint64_t doorbells = 0;      ///< ibv_post_send calls.
  std::uint64_t completions = 0;    ///< Completions polled, receives included.
  std::uint64_t inline_sends = 0;
  std::uint64_t receive_refills = 0;  ///< ibv_post_recv calls.
  std::uint64_t empty_polls = 0;
  std::uint64_t sleeps = 0;       ///< Waits on the completion channel: system calls.
  std::uint64_t quarantined = 0;  ///< Operations abandoned, now, whose segments are kept until their completion.
  std::uint64_t bytes = 0;        ///< Payload bytes posted.
  std::uint64_t strays = 0;       ///< Completions of queue pairs that are gone, dropped.
  std::uint64_t keepalives = 0;   ///< Of the work requests, those that only ask whether the peer is there.
};

/// Where connections are kept alive. The soft NIC hears of a peer's death from the kernel within milliseconds.
enum class KeepaliveOn : std::uint8_t { kDevices, kEveryNic };

struct LoopOptions {
  std::uint32_t max_connections = 64;
  std::uint32_t cqe = 4096;               ///< Must hold every connection's send and receive depth.
  std::chrono::nanoseconds spin{50'000};  ///< Adaptive wait: poll this long, then sleep on the channel.
  /// A connection that has posted nothing for this long, and waits for no completion, posts a WRITE of no bytes: with a
  /// peer that is gone, that fails after the NIC's retries. 0: never. Seen only while the loop is polled or waited for.
  std::chrono::nanoseconds keepalive{std::chrono::seconds{1}};
  KeepaliveOn keepalive_on = KeepaliveOn::kDevices;
};

/// Owns one CQ and its completion channel; the thread that calls `poll` or `wait*` owns both at that time, and every
/// connection of the loop with them. Immovable. Connections are destroyed before their loop. \thread owner  \alloc
/// setup
class CompletionLoop {
 public:
  /// Errors: kBadArgument (no connections or entries), and those of Nic::create_cq and create_channel.
  [[nodiscard]] static Result<std::unique_ptr<CompletionLoop>> create(nic::Nic& nic, const LoopOptions& options);
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
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
  [[nodiscard]] nic::Nic& nic() noexcept { return nic_; }

  /// Waits until `done()` or the deadline: kOk or kTimedOut.
  template <class Done>
  [[nodiscard]] Status wait_until(Done&& done, Deadline deadline) noexcept {
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

  CompletionLoop(nic::Nic& nic, const LoopOptions& options);

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

  [[nodiscard]] Connection* find(std::uint32_t qp_num) noexcept;
  [[nodiscard]] std::size_t home_of(std::uint32_t qp_num) const noexcept { return (qp_num * 0x9E3779B1u) >> shift_; }
  [[nodiscard]] Connection* find_in_table(std::uint32_t qp_num) noexcept;
  void insert(Connection& connection) noexcept;
  void erase(std::uint32_t qp_num) noexcept;
  void adopt() noexcept;
  void dispatch(unsigned count) noexcept;
  void on_device_failure() noexcept;
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

  nic::Nic& nic_;
  nic::Channel channel_;
  nic::Cq cq_;
  Entry last_;                ///< The table's entry that was found last.
  std::vector<Entry> table_;  ///< Open addressing, at most half full. Owner only.
  unsigned shift_ = 0;
  bool polling_ = false;
  std::uint32_t draining_count_ = 0;
  std::vector<Connection*> draining_;  ///< Capacity is max_connections.
  Counters counters_;
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
  if (draining_count_ != 0) [[unlikely]]
    check_drains();
  return count > 0 ? static_cast<unsigned>(count) : 0;
}

inline unsigned CompletionLoop::wait(Deadline deadline) noexcept {
  const unsigned handled = poll();
  return handled != 0 ? handled : wait_slowly(deadline);
}

}  // namespace verbena::engine
