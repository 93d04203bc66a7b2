// A pinned thread that polls one loop, for all the connections of it.
#pragma once

#include "engine/engine.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace verbena::engine {

/// What a poller's thread does besides polling.
class Duty {
 public:
  /// Before each wait: when it must end at the latest.
  [[nodiscard]] virtual Deadline before_wait() noexcept = 0;
  /// After each wait, which handled so many completions.
  virtual void after_wait(unsigned handled) noexcept = 0;
  /// Once, in the thread, before it ends.
  virtual void before_end() noexcept {}

 protected:
  ~Duty() = default;
};

struct PollerOptions {
  std::string name = "verbena-poll";  ///< Of the thread, cut at 15 characters.
  std::optional<unsigned> cpu;        ///< Pinned there. Refused by the kernel: slower, and right all the same.
  LoopOptions loop;
  unsigned max_tasks = 64;  ///< Of `run` at a time. 1 to 65536.
};

/// Owns a loop, and the thread that polls it between `start` and `stop`. In that time everything of the loop whose
/// thread is "owner" is the poller's: other threads attach connections, and have the rest done by `run`. Handlers are
/// called in the poller's thread. Immovable. \thread setup, except where said  \alloc setup
class Poller {
 public:
  /// `duty`, if any, outlives the poller. Errors: kBadArgument, and those of CompletionLoop::create.
  [[nodiscard]] static Result<std::unique_ptr<Poller>> create(nic::Nic& nic, PollerOptions options,
                                                              Duty* duty = nullptr);
  /// What `create` allocates, the loop included. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const PollerOptions& options);
  ~Poller() { stop(); }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /// Errors: kLimit (threads), kBusy (it runs).
  [[nodiscard]] Result<void> start();
  /// Ends the thread after the poll at hand; tasks that did not begin end with kClosed. What is in flight stays so: the
  /// caller owns the loop now, and completes it by polling, or ends it by destroying its connections. Idempotent. Not
  /// from the poller's thread.
  void stop() noexcept;
  /// Whether the calling thread is the poller's. \thread any
  [[nodiscard]] bool is_this_thread() const noexcept;

  [[nodiscard]] CompletionLoop& loop() noexcept { return *loop_; }
  [[nodiscard]] const CompletionLoop& loop() const noexcept { return *loop_; }
  [[nodiscard]] const PollerOptions& options() const noexcept { return options_; }

  /// Calls `task` in the poller's thread, between polls, and waits for its end; in the poller's thread, at once. kOk,
  /// or it was not called and will not be: kTimedOut, kClosed (no thread), kAgain (in a handler; or max_tasks, for
  /// which one without a deadline waits). Locks and wakes: not for data paths. The task must be short, must not throw
  /// and must not wait. \thread any  \alloc none
  template <class Task>
  [[nodiscard]] Status run(Task&& task, Deadline deadline) noexcept {
    Order order;
    order.context = &task;
    order.call = [](void* context) noexcept { (*static_cast<std::remove_reference_t<Task>*>(context))(); };
    return carry_out(order, deadline);
  }

 private:
  struct Order {
    enum class State : std::uint8_t { kQueued, kRunning, kDone, kRefused };
    void* context = nullptr;
    void (*call)(void*) noexcept = nullptr;
    State state = State::kQueued;
  };

  Poller(PollerOptions options, Duty* duty) : options_(std::move(options)), duty_(duty) {}
  void poll_until_stopped() noexcept;
  [[nodiscard]] Status carry_out(Order& order, Deadline deadline) noexcept;
  void take_orders() noexcept;
  void refuse_orders() noexcept;

  const PollerOptions options_;
  Duty* const duty_;
  std::unique_ptr<CompletionLoop> loop_;

  std::mutex mutex_;  ///< Of what follows.
  std::condition_variable ended_;
  std::vector<Order*> orders_;  ///< Of callers that wait. Capacity is max_tasks.
  std::vector<Order*> taken_;   ///< The poller's, of the same capacity.
  bool accepts_ = false;

  alignas(64) std::atomic<bool> has_orders_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::thread::id> thread_id_{};
  std::thread thread_;
};

}  // namespace verbena::engine
