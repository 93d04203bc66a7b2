// Copies between this process and memory of one peer that is not mapped here, in a thread of its own.
//
// A peer decides how long process_vm_readv takes: its pages may come from a userfaultfd, FUSE or a dead NFS server, and
// only the end of this process ends the call before. So no thread that serves anybody calls it. The copier's thread
// does, between the peer and a buffer of its own. It copies between that buffer and the user's memory in steps that
// whoever gives up can keep from beginning: after that neither the thread nor the kernel touches the user's memory.
//
// One queue pair holds the copier for one work request at a time. The thread ends the access to the peer's memory by
// the queue pair's access word, whether the holder polls, has given up, or is gone.
#pragma once

#include "nic/soft/path.hpp"

#include <sched.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

namespace verbena::nic::soft {

/// How the copy of a work request has ended.
enum class Copied : std::uint8_t { kAll, kDenied, kFault, kGone };

class Copier {
 public:
  /// Bytes of one system call: enough to pay for it, few enough that the buffer stays in the cache.
  static constexpr std::size_t kPieceBytes = std::size_t{128} << 10;

  /// A READ or WRITE.
  struct Job {
    /// The queue pair's access word, which is odd. The thread makes it `even` when it has left the peer's memory.
    std::atomic<PeerWord<std::uint64_t>*> word{nullptr};
    std::uint64_t even = 0;
    std::uint64_t there = 0;   ///< In the peer's process.
    std::uint64_t length = 0;  ///< Bytes of all parts.
    bool is_read = false;
    std::int16_t cpu = -1;  ///< The owner's.
    std::uint32_t count = 0;
    std::array<ibv_sge, kMaxSge> parts{};  ///< The user's memory, at addresses of this process.
  };

  /// Starts the thread, on the processors of `like`. `pidfd` is the peer's process, -1 for our own. kNoMemory; kLimit,
  /// also for a process whose pages keep a thread of an ended copier, and for a user with several of those. \thread
  /// control
  [[nodiscard]] static Result<std::shared_ptr<Copier>> start(const PeerProcess& peer, int pidfd, std::thread& like);
  Copier() = default;
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;
  /// Call it last, when no queue pair holds it. The thread ends at once, or, if it is stuck, when it is back; it keeps
  /// the object until then. \thread control
  void end() noexcept;
  [[nodiscard]] bool is_free() const noexcept { return state_.load(std::memory_order_acquire) == State::kFree; }
  /// Whether the thread may be in the peer's memory under this access word. \thread control
  [[nodiscard]] bool is_inside(const PeerWord<std::uint64_t>& word) const noexcept {
    return job_.word.load(std::memory_order_acquire) == &word;
  }

  /// False: another queue pair has it. \thread owner of a queue pair
  [[nodiscard]] bool claim() noexcept;
  /// Whether its holder has given up, or is so slow that the peer's pages may never come. \thread any
  [[nodiscard]] bool is_stuck() const noexcept;

  // \thread owner of the queue pair that holds it
  [[nodiscard]] Job& job() noexcept { return job_; }
  /// Memory for inline data, kMaxInline bytes.
  [[nodiscard]] std::byte* inline_data() const noexcept { return memory_.data() + kPieceBytes; }
  /// Begins the job.
  void post() noexcept;
  [[nodiscard]] bool is_done() const noexcept { return done_.load(std::memory_order_acquire) == posted_; }
  /// Between two looks at that: lets the thread run, where it shares the owner's processor.
  void look_again() const noexcept;
  /// If the job takes long, moves the thread to the owner's processor, once: it may wait for one that another program
  /// keeps busy, which takes tens of milliseconds.
  void hurry() noexcept;
  /// Whether bytes have moved since the last call.
  [[nodiscard]] bool has_progress() noexcept;
  /// How the job has ended that is done.
  [[nodiscard]] Copied outcome() const noexcept { return outcome_; }
  /// Makes the thread ring the bells of `qp`, the holder, when it is done. True if it is already: nobody rings.
  [[nodiscard]] bool arm(const SoftQp& qp) noexcept;
  /// The holder has done nothing with it yet, or is done.
  void release() noexcept;
  /// Gives up the job. Waits at most for a step of the thread in the user's memory; then the copier is free for others
  /// when the thread is back. `keeps` keeps the access word until then. \thread owner of the queue pair, or control
  void abandon(std::shared_ptr<const Mapping> keeps) noexcept;

 private:
  /// Posted by the holder; kernel, touching (the user's memory) and done by the thread; left by who gives up.
  enum class State : std::uint32_t { kFree, kHeld, kPosted, kKernel, kTouching, kDone, kLeft };

  [[nodiscard]] bool moves(State from, State to) noexcept { return state_.compare_exchange_strong(from, to); }
  void wake() noexcept;
  void disarm() noexcept;
  void run() noexcept;
  [[nodiscard]] bool await_job(int owner_cpu) noexcept;
  [[nodiscard]] bool move_away() noexcept;
  [[nodiscard]] Copied copy() noexcept;
  [[nodiscard]] bool touch(std::uint64_t offset, std::uint64_t bytes) noexcept;
  [[nodiscard]] Copied copy_by_kernel(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  void ring() noexcept;

  // Setup.
  PeerProcess peer_;  // From the kernel, by SO_PEERCRED.
  Fd pidfd_;
  LazyMemory memory_;  // The buffer, and inline data.
  std::thread thread_;
  cpu_set_t cpus_{};  // On which the thread may run.
  // The thread's: when it may move to another processor, and how long not again.
  std::uint64_t may_move_ = 0;
  std::uint64_t stays_ = 0;
  // The holder's.
  alignas(64) std::uint32_t posted_ = 0;
  bool is_armed_ = false;
  bool is_hurried_ = false;
  std::uint64_t seen_ = 0;
  std::atomic<std::uint64_t> claimed_{0};  // Ticks.
  // From the holder to the thread. The holder looks at another cache line until the thread is done.
  alignas(64) std::atomic<State> state_{State::kFree};
  std::atomic<bool> wants_bell_{false};
  std::atomic<bool> is_ending_{false};
  Job job_;
  // From the thread to the holder.
  alignas(64) std::atomic<std::uint32_t> done_{0};
  Copied outcome_ = Copied::kAll;
  std::atomic<int> cpu_{-1};                // Where it last slept, or was moved to.
  std::atomic<std::uint32_t> sleeps_{0};    // 1; who wakes it writes 0.
  std::atomic<std::uint64_t> moved_{0};     // Bytes of all jobs.
  std::atomic<std::uint64_t> moved_at_{0};  // Ticks.
  std::shared_ptr<const Mapping> keeps_;    // Written by who gives up.
  std::mutex mutex_;                        // Keeps the holder's queues while the thread rings their bells.
  const SoftQp* sleeper_ = nullptr;         // Under it: the holder, while it is armed.
};

}  // namespace verbena::nic::soft
