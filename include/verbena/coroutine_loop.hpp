/// \file
/// Where coroutines live: memory for their frames, and the loop that resumes them. The tasks are in coroutine_task.hpp.
#pragma once

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

/// Coroutines over links, clients and meshes. docs/safety.md says what is checked, and when.
namespace verbena::coroutine {

class Loop;
template <class T>
class Task;

/// Sizes of a pool of frames.
struct FrameOptions {
  std::uint32_t frames = 256;        ///< Coroutines at a time. 1 to 2^20.
  std::uint32_t frame_bytes = 1024;  ///< The longest frame. 64 B to 1 MiB. FrameCounts::longest tells what is needed.
};

/// How a pool of frames is used.
struct FrameCounts {
  std::uint32_t in_use = 0;   ///< Frames of coroutines that live.
  std::uint32_t highest = 0;  ///< The most that there were at a time.
  std::uint64_t refused = 0;  ///< Coroutines that got none: the pool was empty, or their frame too long for it.
  std::size_t longest = 0;    ///< Bytes of the longest frame that was asked for.
};

/// Memory for the frames of coroutines, all of it allocated when it is made. A coroutine takes its frame from the pool
/// that is its first argument (or a loop's, where that is). Immovable; it outlives its coroutines. \thread any
class FramePool {
 public:
  /// Errors: kBadArgument (an option), kNoMemory. \thread setup  \alloc setup
  [[nodiscard]] static Result<std::unique_ptr<FramePool>> make(const FrameOptions& options = {});
  /// All coroutines of it are gone before that.
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  /// A snapshot. \thread any  \alloc none
  [[nodiscard]] FrameCounts counts() const noexcept;

  /// For coroutines: memory of a frame, aligned to 16; null where there is none. \thread any  \alloc none
  [[nodiscard]] void* allocate(std::size_t bytes) noexcept;
  /// Gives back what a pool has allocated. \thread any  \alloc none
  static void release(void* frame) noexcept;

 private:
  struct Block;
  FramePool(const FrameOptions& options, std::byte* memory) noexcept;
  [[nodiscard]] Block& at(std::uint32_t index) const noexcept;
  void give_back(Block& block) noexcept;

  std::byte* const memory_;
  const std::uint32_t frames_;
  const std::uint32_t bytes_;  ///< For a block: head and frame.
  /// The first free block, how many are in use, and a count of changes by which nobody takes an old value for this one.
  alignas(64) std::atomic<std::uint64_t> free_;
  std::atomic<std::uint32_t> highest_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::size_t> longest_{0};
};

namespace detail {
class Wait;
struct ReadyList;
}  // namespace detail

/// Something to go on with in a thread: a node in the list of an executor, which is the memory of who waits.
class Resumption {
 public:
  Resumption() noexcept = default;
  Resumption(const Resumption&) = delete;
  Resumption& operator=(const Resumption&) = delete;
  /// Goes on. Called once for each `post`; it may be gone when this returns.
  virtual void run() = 0;
  /// For the executor that has it.
  Resumption* next = nullptr;

 protected:
  virtual ~Resumption() {
    if (listed_in_ != nullptr) [[unlikely]]
      unlist();
  }

 private:
  friend class Loop;
  friend class detail::Wait;
  friend struct detail::ReadyList;
  /// It has come to the loop's thread.
  virtual void arrive(Loop& loop) noexcept;
  void unlist() noexcept;
  Resumption* previous_;  ///< In the list.
  detail::ReadyList* listed_in_ = nullptr;
};

/// Where coroutines can go on: `post` has `Resumption::run` called once by a thread of the executor's, and neither
/// throws nor allocates.
template <class E>
concept Executor = requires(E& executor, Resumption& resumption) {
  { executor.post(resumption) } noexcept;
};

/// What the parts of this API see of each other. Not for users.
namespace detail {

class PromiseBase;

/// Resumptions in the order they came.
struct ReadyList {
  Resumption* first = nullptr;
  Resumption* last = nullptr;
  void push(Resumption& resumption) noexcept;
  void remove(Resumption& resumption) noexcept;
};

/// Waits that end together. \thread the loop's
class Scope {
 public:
  explicit Scope(Scope* parent) noexcept;
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// kOk until it was cancelled; then why.
  [[nodiscard]] Status why() const noexcept { return why_; }
  /// Ends all waits in it, and in scopes inside it; those that come are refused. Resumes nobody.
  void cancel(Status why) noexcept;

 private:
  friend class Wait;
  [[nodiscard]] Scope* next_inside(const Scope& outer) const noexcept;

  Scope* const parent_;
  Scope* first_ = nullptr;  ///< Scopes inside it.
  Scope* next_ = nullptr;
  Scope* previous_ = nullptr;
  Wait* waits_ = nullptr;
  Status why_ = Status::kOk;
};

/// Where a task runs.
struct Context {
  Loop* loop = nullptr;
  Scope* scope = nullptr;
};

/// Something that only moves on while this thread looks at it.
class Driven {
 public:
  virtual void look() noexcept = 0;
  /// Looks, and sleeps until something arrives, the deadline, or `wake`.
  virtual void sleep(Deadline deadline) noexcept = 0;
  /// \thread any
  virtual void wake() noexcept = 0;

 protected:
  Driven() noexcept = default;
  virtual ~Driven() = default;
  Driven(const Driven&) = delete;
  Driven& operator=(const Driven&) = delete;
  /// It ends, and whoever waited for something of it has been told: it is polled no more.
  void settle() noexcept;

 private:
  friend class coroutine::Loop;
  Loop* loop_ = nullptr;
  Driven* next_ = nullptr;
  Driven* previous_ = nullptr;
  std::uint32_t waits_ = 0;
};

/// A coroutine that is suspended until something has happened, the deadline, or the end of its scope. Whoever derives
/// from it calls `leave` in its destructor. \thread the loop's, except where said
class Wait : public Resumption {
 public:
  /// It has happened. Called once for each time that it was begun, unless `withdraw` has returned true. \thread any
  void tell() noexcept;
  /// Its scope was cancelled.
  virtual void abort(Status why) noexcept { end(why); }
  /// Its deadline has passed.
  virtual void expire() noexcept { end(Status::kTimedOut); }

 protected:
  Wait() noexcept = default;
  ~Wait() override = default;

  /// Has it wait in a loop that has room (Loop::refuses). `driven` may be null.
  void park(const Context& context, std::coroutine_handle<> awaiting, Deadline deadline, Driven* driven) noexcept;
  /// It waits no more, and nobody will tell.
  void unpark() noexcept;
  /// It goes on in the loop's next turn, after all others that can.
  void yield(const Context& context, std::coroutine_handle<> awaiting) noexcept;
  /// It goes: nobody resumes it.
  void leave() noexcept {
    if (place_ != Place::kNowhere) take_out();
  }
  /// How the wait has ended: kOk where it was told.
  [[nodiscard]] Status ended() const noexcept { return ended_; }
  [[nodiscard]] std::coroutine_handle<> awaiting() const noexcept { return awaiting_; }
  /// Ends the wait without what it is for.
  void end(Status why) noexcept;
  void run() override {
    place_ = Place::kNowhere;
    go_on();
  }

 private:
  friend class coroutine::Loop;
  enum class Place : std::uint8_t { kNowhere, kParked, kReady };
  /// Takes back what it waits for. False: it has been told, or another thread is just telling and has done so when this
  /// returns.
  [[nodiscard]] virtual bool withdraw() noexcept = 0;
  /// The wait is over, and this thread is the loop's.
  virtual void go_on() { awaiting_.resume(); }
  void arrive(Loop& loop) noexcept override;
  void take_out() noexcept;

  // Set by `park` and `yield`: what need not wait does not pay for them.
  Loop* loop_;
  Scope* scope_;
  Driven* driven_;
  Wait* next_in_scope_;
  Wait* previous_in_scope_;
  std::coroutine_handle<> awaiting_;
  std::uint64_t deadline_;  ///< Ticks.
  std::uint32_t at_;        ///< In the loop's heap.
  Place place_ = Place::kNowhere;
  Status ended_ = Status::kOk;

  friend class Scope;
};

/// Told of a task's end, in the loop's thread: who goes on.
class Ending {
 public:
  [[nodiscard]] virtual std::coroutine_handle<> on_end(PromiseBase& ended) noexcept = 0;

 protected:
  ~Ending() = default;
};

}  // namespace detail

/// Sizes of a loop.
struct LoopOptions {
  FrameOptions frames{};               ///< For its pool.
  std::uint32_t waits = 1024;          ///< Coroutines that wait at a time. 1 to 2^20.
  std::chrono::microseconds spin{50};  ///< Polls this long with nothing to do, then sleeps. 0 to 1 s.
};

/// The coroutines of one thread. It polls connections that a coroutine waits for and that have no thread of the
/// library's; where the library's threads drive the connections, they list what is ready, and an idle loop costs
/// nothing however many wait. It sleeps where there is nothing to do: on the event of the connection that it polls, or
/// until it is told. With several connections to poll it does not sleep: give them a handler, so that the library's
/// thread drives them. Immovable; it outlives its tasks. \thread one at a time, except where said
class Loop {
 public:
  /// Errors: kBadArgument (an option), kNoMemory. \thread setup  \alloc setup
  [[nodiscard]] static Result<std::unique_ptr<Loop>> make(const LoopOptions& options = {});
  /// Destroys the tasks that were given to it, in whatever state; their operations are in quarantine.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// The pool of its frames.
  [[nodiscard]] FramePool& frames() noexcept { return *frames_; }
  /// Starts a task, which is the loop's from then on, and runs it up to its first wait. Its status counts in `failed`
  /// unless it is kOk. What it throws, the next `poll`, `run_until` or sync_wait throws. kLimit: it has no frame.
  [[nodiscard]] Status spawn(Task<Status>&& task);
  /// Tasks that were given to it and have not ended.
  [[nodiscard]] std::size_t spawned() const noexcept { return spawned_count_; }
  /// Tasks that were given to it and have ended with another status than kOk.
  [[nodiscard]] std::uint64_t failed() const noexcept { return failed_; }
  /// Destroys all tasks that were given to it, as the destructor does. Not from one of them.
  void drop_all() noexcept;

  /// Resumes what is ready, once each, without waiting. True: something was.
  bool poll();
  /// Polls and sleeps until `done()`, which is asked after each turn: kOk; or kTimedOut.
  template <class Done>
  [[nodiscard]] Status run_until(Done&& done, Deadline deadline) {
    std::uint64_t idle_since = 0;
    while (!done()) {
      if (poll()) {
        idle_since = 0;
      } else if (deadline.passed()) {
        return done() ? Status::kOk : Status::kTimedOut;
      } else {
        idle(deadline, idle_since);
      }
    }
    return Status::kOk;
  }
  /// Has `resumption` run in the thread of this loop. \thread any  \alloc none
  void post(Resumption& resumption) noexcept;
  /// Ends a sleep of `run_until`, so that it asks `done`. \thread any
  void wake() noexcept;
  /// Whether the calling thread is the one that has last polled, spawned a task, or waited for one. \thread any
  [[nodiscard]] bool is_here() const noexcept;
  /// Coroutines that wait.
  [[nodiscard]] std::size_t waiting() const noexcept { return waits_.size(); }

  // --- for awaitables. Not for users.

  /// Why nothing can be awaited now: the scope is cancelled, this is another thread (kBusy), or LoopOptions::waits wait
  /// (kLimit); kOk if it can. Awaitables ask before they begin anything.
  [[nodiscard]] Status refuses(const detail::Scope* scope) const noexcept;
  /// Whether a coroutine goes on at once with what was ready: every kTurn-th lets the others go first.
  [[nodiscard]] bool goes_on() noexcept { return turn_ != 0 && --turn_ != 0; }
  /// Takes in what was posted.
  void take_in() noexcept;
  /// The calling thread is the loop's from now on.
  void become_owner() noexcept;
  /// Where a task begins that this loop runs: the library's own.
  [[nodiscard]] detail::Context context() noexcept { return {.loop = this, .scope = &root_}; }

 private:
  friend class Resumption;
  friend class detail::Wait;
  static constexpr std::uint32_t kTurn = 64;

  class Spawned final : public detail::Ending {
   public:
    explicit Spawned(Loop& loop) noexcept : loop_(loop) {}
    [[nodiscard]] std::coroutine_handle<> on_end(detail::PromiseBase& ended) noexcept override;

   private:
    Loop& loop_;
  };
  explicit Loop(const LoopOptions& options) noexcept(false);

  void list(Resumption& resumption) noexcept { ready_[is_odd_turn_ ? 1 : 0].push(resumption); }
  void enter(detail::Wait& wait) noexcept;
  void remove(detail::Wait& wait) noexcept;
  void place(detail::Wait& wait, std::size_t at) noexcept;
  void sift(detail::Wait& wait, std::size_t at) noexcept;
  void add(detail::Driven& driven) noexcept;
  void drop(detail::Driven& driven) noexcept;
  void expire() noexcept;
  void reap();
  void idle(Deadline deadline, std::uint64_t& idle_since) noexcept;
  void sleep(Deadline deadline) noexcept;
  [[nodiscard]] bool take_wake() noexcept;

  struct Bell;
  std::unique_ptr<FramePool> frames_;
  const std::unique_ptr<Bell> bell_;
  std::vector<detail::Wait*> waits_;  ///< A heap by deadline; its capacity is the limit.
  const std::uint32_t max_waits_;
  std::uint32_t turn_ = kTurn;
  std::uint64_t spin_ticks_;
  detail::Scope root_{nullptr};
  /// Those that are resumed in this turn, and those that became ready meanwhile.
  std::array<detail::ReadyList, 2> ready_;
  bool is_odd_turn_ = false;
  detail::Driven* driven_ = nullptr;
  Spawned on_spawned_{*this};
  struct {
    detail::PromiseBase* live = nullptr;
    detail::PromiseBase* ended = nullptr;
  } tasks_;
  std::size_t spawned_count_ = 0;
  std::uint64_t failed_ = 0;
  std::exception_ptr thrown_;
  std::atomic<std::uintptr_t> owner_;
  alignas(64) std::atomic<Resumption*> posted_{nullptr};  ///< The latest first.
};

}  // namespace verbena::coroutine

#pragma GCC visibility pop
