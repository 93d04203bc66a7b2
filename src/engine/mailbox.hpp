// Passes work of other threads to the thread that polls a loop.
#pragma once

#include <verbena/deadline.hpp>
#include <verbena/status.hpp>

#include <array>
#include <atomic>
#include <cstdint>

namespace verbena::engine {

/// A queue of letters with several senders and one reader, the thread that polls. Sending is one atomic exchange
/// (Vyukov's intrusive queue of several producers and one consumer, 2010). Immovable.
class Mailbox {
 public:
  /// A piece of work. The sender owns its memory, and keeps it until `open` is called.
  struct Letter {
    using Open = void (*)(Letter& letter) noexcept;
    std::atomic<Letter*> next{nullptr};
    Open open = nullptr;
  };

  Mailbox() noexcept = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// \thread any  \alloc none
  void send(Letter& letter) noexcept;
  /// Whether there is nothing to read. Exact for the reader, a hint for others. \thread any
  [[nodiscard]] bool empty() const noexcept { return last_.load(std::memory_order_relaxed) == &stub_; }
  /// The same, ordered after the caller's earlier stores: for a reader that is about to sleep.
  [[nodiscard]] bool empty_before_sleep() const noexcept { return last_.load(std::memory_order_seq_cst) == &stub_; }
  /// Opens at most `kMost` letters, oldest first, also those that come meanwhile. \thread reader
  void read() noexcept;
  /// Opens all letters that were sent before the call, however many. \thread reader
  void catch_up() noexcept;
  /// Opens the letters of that kind among the next kMost, before those ahead of them. The next `read` skips them; they
  /// must live until then. \thread reader
  void open_ahead(Letter::Open kind) noexcept;

  /// Makes the reader run `task`, and waits for its end. kOk; other statuses mean that it has not run and will not:
  /// kTimedOut, kClosed (no thread reads), kAgain (kCalls calls of other threads are under way; a call without a
  /// deadline waits instead). `wake` makes the reader look. The task must be short, must not throw and must not wait.
  /// \thread any but the reader's  \alloc none
  template <class Task, class Wake>
  [[nodiscard]] Status call(const Task& task, Deadline deadline, Wake&& wake) noexcept {
    callers_.fetch_add(1, std::memory_order_relaxed);
    Call* const call = claim(deadline.is_never());
    Status status = Status::kAgain;
    if (call != nullptr) {
      call->context = &task;
      call->run = [](const void* context) noexcept { (*static_cast<const Task*>(context))(); };
      send(*call);
      wake();
      status = wait_for(*call, deadline);
    }
    leave();
    return status;
  }
  /// Calls of other threads that have ended; wraps around. \thread any
  [[nodiscard]] std::uint32_t ended_calls() const noexcept { return released_.load(std::memory_order_relaxed); }
  /// Waits until no call is under way. Call it before destroying the mailbox, because the task of a call may have ended
  /// the reader.
  void await_callers() noexcept;
  /// `open` accepts calls, `shut` refuses them, also waiting ones. A mailbox is shut at first. \thread reader, or setup
  void open() noexcept { is_open_.store(true, std::memory_order_seq_cst); }
  void shut() noexcept;

 private:
  static constexpr int kMost = 256;
  static constexpr std::uint32_t kEnding = 1u << 31;
  static constexpr std::size_t kCalls = 64;
  enum State : std::uint32_t { kFree, kQueued, kRunning, kDone, kWithdrawn, kRefused };
  struct Call : Letter {
    const void* context = nullptr;
    void (*run)(const void*) noexcept = nullptr;
    std::atomic<std::uint32_t> state{kFree};
    Mailbox* mailbox = nullptr;
  };

  [[nodiscard]] Letter* take() noexcept;
  [[nodiscard]] Call* claim(bool waits) noexcept;
  [[nodiscard]] Status wait_for(Call& call, Deadline deadline) noexcept;
  void release(Call& call) noexcept;
  void leave() noexcept;
  void open_call(Call& call) noexcept;

  Letter stub_;
  Letter* first_ = &stub_;  ///< Only the reader uses it.
  alignas(64) std::atomic<Letter*> last_{&stub_};
  std::atomic<bool> is_open_{false};
  std::atomic<std::uint32_t> released_{0};  ///< Counts calls that ended.
  std::atomic<std::uint32_t> callers_{0};   ///< Threads in `call`; with kEnding once a thread waits for them.
  std::atomic<std::uint32_t> waiting_{0};   ///< Threads that wait for `released_` to grow.
  std::array<Call, kCalls> calls_{};
};

}  // namespace verbena::engine
