/// \file
/// Tasks, and what is made of several: all of them, the first of them, one within a time.
#pragma once

#include <verbena/coroutine_loop.hpp>

#include <array>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <expected>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

namespace verbena::coroutine {

/// How a result tells of a status: `of` makes one of it. Specialize it for result types of your own.
template <class T>
struct Refusal;
/// For results that are a status.
template <>
struct Refusal<Status> {
  /// The status itself.
  [[nodiscard]] static Status of(Status status) noexcept { return status; }
};
/// For results that are a value or a status.
template <class T>
struct Refusal<std::expected<T, Status>> {
  /// No value.
  [[nodiscard]] static std::expected<T, Status> of(Status status) noexcept { return std::unexpected(status); }
};

/// The result type of a task: a task that got no frame still has a result, which is kLimit.
template <class T>
concept Answer = std::movable<T> && requires(Status status) {
  { Refusal<T>::of(status) } -> std::same_as<T>;
};

namespace detail {

/// A source of frames.
template <class T>
concept HasFrames = std::same_as<T, FramePool> || std::same_as<T, Loop>;
/// Whether a coroutine with these arguments has one: the first, or the second where that is an object of its own.
template <class... Arguments>
inline constexpr bool kIsGivenFrames = [] {
  std::size_t at = 0;
  bool is_given = false;
  ((is_given |= at++ < 2 && HasFrames<std::remove_cv_t<Arguments>>), ...);
  return is_given;
}();
[[nodiscard]] inline FramePool& frames_of(FramePool& pool) noexcept { return pool; }
[[nodiscard]] inline FramePool& frames_of(Loop& loop) noexcept { return loop.frames(); }

/// Something that a task can await: it is told where the task runs.
class Awaitable {
 public:
  void enter(const Context& context) noexcept { context_ = context; }

 protected:
  Awaitable() noexcept = default;
  ~Awaitable() = default;
  Awaitable(const Awaitable&) = delete;
  Awaitable& operator=(const Awaitable&) = delete;
  [[nodiscard]] const Context& context() const noexcept { return context_; }

 private:
  Context context_;
};

/// An awaitable where it is. GCC 12 copies what `await_transform` returns by reference.
template <class A>
struct InPlace {
  [[nodiscard]] bool await_ready() { return awaitable->await_ready(); }
  [[nodiscard]] auto await_suspend(std::coroutine_handle<> awaiting) { return awaitable->await_suspend(awaiting); }
  auto await_resume() { return awaitable->await_resume(); }
  A* awaitable;
};

template <class T>
class Awaited;

/// What promises of all tasks have in common. As a resumption it ends a task in the loop's thread.
class PromiseBase : public Resumption {
 public:
  struct Final {
    [[nodiscard]] static bool await_ready() noexcept { return false; }
    template <class Promise>
    [[nodiscard]] static std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) noexcept {
      return ended.promise().end();
    }
    static void await_resume() noexcept {}
  };

  [[nodiscard]] static std::suspend_always initial_suspend() noexcept { return {}; }
  [[nodiscard]] static Final final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { thrown_ = std::current_exception(); }

  template <class First, class... Rest>
    requires HasFrames<std::remove_cv_t<First>>
  static void* operator new(std::size_t bytes, First& first, const Rest&... /*rest*/) noexcept {
    return frames_of(first).allocate(bytes);
  }
  /// For a member function, or a lambda.
  template <class Self, class First, class... Rest>
    requires(!HasFrames<std::remove_cv_t<Self>> && HasFrames<std::remove_cv_t<First>>)
  static void* operator new(std::size_t bytes, const Self& /*self*/, First& first, const Rest&... /*rest*/) noexcept {
    return frames_of(first).allocate(bytes);
  }
  template <class... Arguments>
    requires(!kIsGivenFrames<Arguments...>)
  static void* operator new(std::size_t /*bytes*/, const Arguments&... /*arguments*/) noexcept {
    static_assert(sizeof...(Arguments) > 1000, "the first argument of a coroutine must be a FramePool or a Loop");
    return nullptr;
  }
  static void operator delete(void* frame) noexcept { FramePool::release(frame); }

  template <class T>
  [[nodiscard]] Awaited<T> await_transform(Task<T>&& task) noexcept;
  /// Move it: a task is awaited once.
  template <class T>
  void await_transform(Task<T>& task) = delete;
  template <class A>
    requires(std::derived_from<A, Awaitable> && !std::is_const_v<A>)
  [[nodiscard]] InPlace<A> await_transform(A&& awaitable) noexcept {
    awaitable.enter(context_);
    return {&awaitable};
  }

  /// Before it runs: where, and who goes on after it.
  void begin(const Context& context, std::coroutine_handle<> continuation) noexcept {
    context_ = context;
    continuation_ = continuation;
  }
  void begin(const Context& context, Ending& ending) noexcept {
    context_ = context;
    ending_ = &ending;
  }
  void rethrow() {
    if (thrown_) [[unlikely]]
      std::rethrow_exception(std::exchange(thrown_, nullptr));
  }

 protected:
  explicit PromiseBase(std::coroutine_handle<> self) noexcept : self_(self) {}
  ~PromiseBase() override = default;

 private:
  friend class coroutine::Loop;
  [[nodiscard]] std::coroutine_handle<> end() noexcept {
    if (context_.loop != nullptr && !context_.loop->is_here()) [[unlikely]]
      return end_in_loop();
    return ending_ != nullptr ? ending_->on_end(*this) : continuation_;
  }
  [[nodiscard]] std::coroutine_handle<> end_in_loop() noexcept {
    context_.loop->post(*this);
    return std::noop_coroutine();
  }
  void run() override { end().resume(); }
  [[nodiscard]] virtual Status spawned_status() const noexcept = 0;

  Context context_;
  std::coroutine_handle<> continuation_ = std::noop_coroutine();
  Ending* ending_ = nullptr;
  const std::coroutine_handle<> self_;
  std::exception_ptr thrown_;
  // For a task that is the loop's.
  PromiseBase* next_task_ = nullptr;
  PromiseBase* previous_task_ = nullptr;
};

template <class T>
class Promise final : public PromiseBase {
 public:
  Promise() noexcept : PromiseBase(std::coroutine_handle<Promise>::from_promise(*this)) {}
  [[nodiscard]] Task<T> get_return_object() noexcept;
  [[nodiscard]] static Task<T> get_return_object_on_allocation_failure() noexcept;
  template <class Value>
    requires std::constructible_from<T, Value>
  void return_value(Value&& value) {
    value_.emplace(std::forward<Value>(value));
  }
  [[nodiscard]] T take() {
    rethrow();
    return std::move(*value_);
  }

 private:
  [[nodiscard]] Status spawned_status() const noexcept override {
    if constexpr (std::same_as<T, Status>) return value_.value_or(Status::kOk);
    return Status::kOk;
  }
  std::optional<T> value_;
};

}  // namespace detail

/// A coroutine that has not begun, and begins when it is awaited, given to a loop, or waited for. It ends in the thread
/// of its loop. Destroyed before that, in whatever state, it gives up what it waits for; don't while an executor has
/// it. What its body throws reaches whoever awaits it. Move-only; awaited once. \thread the loop's
template <class T>
class [[nodiscard]] Task {
  static_assert(Answer<T>,
                "Task<T>: a task without a frame must have a result too: Status, std::expected<.., Status>, "
                "or a type that Refusal is specialized for");

 public:
  /// For the compiler.
  using promise_type = detail::Promise<T>;

  /// Leaves `other` over, with kBadArgument.
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), status_(other.status_) {
    other.status_ = Status::kBadArgument;
  }
  /// Destroys the task that this was.
  Task& operator=(Task&& other) noexcept {
    if (this == &other) return *this;
    if (handle_) handle_.destroy();
    handle_ = std::exchange(other.handle_, nullptr);
    status_ = std::exchange(other.status_, Status::kBadArgument);
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  /// Destroys its coroutine, in whatever state.
  ~Task() {
    if (handle_) handle_.destroy();
  }

  /// kOk; kLimit: it got no frame, and is over with that; kBadArgument: it was moved from.
  [[nodiscard]] Status status() const noexcept { return status_; }
  /// Whether it has ended, or never was.
  [[nodiscard]] bool is_over() const noexcept { return !handle_ || handle_.done(); }

  // --- for those who run it. Not for users.

  /// Runs it up to its first wait.
  template <class After>
  void start(const detail::Context& context, After&& after) {
    handle_.promise().begin(context, after);
    handle_.resume();
  }
  /// The handle, to run it in one's own place.
  template <class After>
  [[nodiscard]] std::coroutine_handle<> begin(const detail::Context& context, After&& after) noexcept {
    handle_.promise().begin(context, after);
    return handle_;
  }
  /// Returns what the task returned once it has ended, or why it was refused; throws what the task threw.
  [[nodiscard]] T result() && {
    if (!handle_) return Refusal<T>::of(status_);
    return handle_.promise().take();
  }
  /// Gives its coroutine up, to who destroys it.
  [[nodiscard]] std::coroutine_handle<promise_type> release() && noexcept { return std::exchange(handle_, nullptr); }

 private:
  friend class detail::Promise<T>;
  explicit Task(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}
  explicit Task(Status refused) noexcept : status_(refused) {}

  std::coroutine_handle<promise_type> handle_;
  Status status_ = Status::kOk;
};

namespace detail {

template <class T>
Task<T> Promise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<Promise>::from_promise(*this));
}
template <class T>
Task<T> Promise<T>::get_return_object_on_allocation_failure() noexcept {
  return Task<T>(Status::kLimit);
}

template <class T>
class [[nodiscard]] Awaited {
 public:
  Awaited(Task<T>&& task, const Context& context) noexcept : task_(std::move(task)), context_(context) {}
  [[nodiscard]] bool await_ready() const noexcept { return task_.is_over(); }
  [[nodiscard]] std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    return task_.begin(context_, awaiting);
  }
  [[nodiscard]] T await_resume() { return std::move(task_).result(); }

 private:
  Task<T> task_;
  Context context_;
};

template <class T>
Awaited<T> PromiseBase::await_transform(Task<T>&& task) noexcept {
  return Awaited<T>(std::move(task), context_);
}

/// Goes on when the last of several tasks has ended.
class Join final : public Ending {
 public:
  /// One more than there are tasks: whoever starts them takes the last one.
  void expect(std::size_t count, std::coroutine_handle<> awaiting) noexcept {
    left_ = count + 1;
    awaiting_ = awaiting;
  }
  [[nodiscard]] bool leave() noexcept { return --left_ == 0; }
  [[nodiscard]] std::coroutine_handle<> on_end(PromiseBase& /*ended*/) noexcept override {
    return leave() ? awaiting_ : std::noop_coroutine();
  }

 private:
  std::size_t left_ = 0;
  std::coroutine_handle<> awaiting_;
};

template <Answer... T>
class [[nodiscard]] All : public Awaitable {
 public:
  explicit All(Task<T>&&... tasks) noexcept : tasks_(std::move(tasks)...) {}
  [[nodiscard]] static bool await_ready() noexcept { return false; }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) {
    join_.expect(sizeof...(T), awaiting);
    const auto start = [this](auto& task) {
      task.is_over() ? static_cast<void>(join_.leave()) : task.start(context(), static_cast<Ending&>(join_));
    };
    std::apply([&](auto&... each) { (start(each), ...); }, tasks_);
    return !join_.leave();
  }
  /// Throws the exception of the first of them that threw.
  [[nodiscard]] std::tuple<T...> await_resume() {
    return std::apply([](auto&... each) { return std::tuple<T...>{std::move(each).result()...}; }, tasks_);
  }

 private:
  std::tuple<Task<T>...> tasks_;
  Join join_;
};

/// A task in a scope of its own.
template <Answer T>
class Scoped : public Awaitable {
 public:
  explicit Scoped(Task<T>&& task) noexcept : task_(std::move(task)) {}
  [[nodiscard]] bool await_ready() const noexcept { return task_.is_over(); }
  [[nodiscard]] T await_resume() { return std::move(task_).result(); }

 protected:
  ~Scoped() = default;
  [[nodiscard]] Scope& open() noexcept { return scope_.emplace(context().scope); }
  [[nodiscard]] std::coroutine_handle<> begin(std::coroutine_handle<> awaiting) noexcept {
    return task_.begin(Context{.loop = context().loop, .scope = &*scope_}, awaiting);
  }

 private:
  std::optional<Scope> scope_;  ///< Before the task, whose waits are in it.
  Task<T> task_;
};

/// Ends a scope at a time. It resumes nobody.
class Alarm final : public Wait {
 public:
  Alarm() noexcept = default;
  ~Alarm() override { leave(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  void set(const Context& context, Scope& scope, Deadline deadline) noexcept {
    scope_ = &scope;
    park(context, std::noop_coroutine(), deadline, nullptr);
  }
  void abort(Status /*why*/) noexcept override { unpark(); }  // The scope is inside the one that is cancelled.
  void expire() noexcept override {
    unpark();
    scope_->cancel(Status::kTimedOut);
  }

 private:
  [[nodiscard]] bool withdraw() noexcept override { return true; }
  Scope* scope_ = nullptr;
};

template <Answer T>
class [[nodiscard]] Within : public Scoped<T> {
 public:
  Within(Deadline deadline, Task<T>&& task) noexcept : Scoped<T>(std::move(task)), deadline_(deadline) {}
  [[nodiscard]] std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    const Context& context = this->context();
    Scope& scope = this->open();
    // Where there is no place for the alarm, the task is told so at its first wait.
    if (const Status refused = context.loop->refuses(context.scope); refused != Status::kOk) {
      scope.cancel(refused);
    } else {
      alarm_.set(context, scope, deadline_);
    }
    return this->begin(awaiting);
  }

 private:
  Deadline deadline_;
  Alarm alarm_;
};

/// Waits for nothing but its deadline, or a turn.
class Sleeper : public Awaitable, public Wait {
 public:
  explicit Sleeper(Deadline until) noexcept : until_(until) {}
  ~Sleeper() override { leave(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  [[nodiscard]] static bool await_ready() noexcept { return false; }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
    refused_ = context().loop->refuses(context().scope);
    if (refused_ != Status::kOk) return false;
    until_.ticks() == 0 ? yield(context(), awaiting) : park(context(), awaiting, until_, nullptr);
    return true;
  }
  /// kOk at its time; or why its scope was cancelled.
  [[nodiscard]] Status await_resume() const noexcept { return refused_ != Status::kOk ? refused_ : ended(); }
  void expire() noexcept override { end(Status::kOk); }

 private:
  [[nodiscard]] bool withdraw() noexcept override { return true; }
  Deadline until_;
  Status refused_ = Status::kOk;
};

template <Executor E>
class [[nodiscard]] Hop : public Awaitable, public Resumption {
 public:
  explicit Hop(E& executor) noexcept : executor_(executor) {}
  [[nodiscard]] static bool await_ready() noexcept { return false; }
  void await_suspend(std::coroutine_handle<> awaiting) noexcept {
    awaiting_ = awaiting;
    executor_.post(*this);  // It may be gone now.
  }
  static void await_resume() noexcept {}
  void run() override { awaiting_.resume(); }

 private:
  E& executor_;
  std::coroutine_handle<> awaiting_;
};

}  // namespace detail

/// Awaits all of the tasks, which run interleaved: the tuple of their results, in their order. Where some have thrown,
/// it throws what the first of them in that order has, once all have ended.
template <Answer... T>
[[nodiscard]] detail::All<T...> when_all(Task<T>... tasks) noexcept {
  return detail::All<T...>(std::move(tasks)...);
}

/// Awaits a task, whose waits end with kTimedOut at the deadline, those that come after it too. The task goes on with
/// that, and its result is this one's.
template <Answer T>
[[nodiscard]] detail::Within<T> within(Deadline deadline, Task<T> task) noexcept {
  return detail::Within<T>(deadline, std::move(task));
}

/// Awaits a point in time: kOk; or why its scope was cancelled.
[[nodiscard]] inline detail::Sleeper reached(Deadline deadline) noexcept { return detail::Sleeper(deadline); }
/// Lets all others go on first that can. Results as of `reached`.
[[nodiscard]] inline detail::Sleeper yield() noexcept { return detail::Sleeper(Deadline::now()); }
/// Goes on in a thread of the executor's. Nothing of a loop's can be awaited there (kBusy), but the way back: a loop is
/// an executor, too. A task that ends elsewhere ends in its loop's thread.
template <Executor E>
[[nodiscard]] detail::Hop<E> resume_on(E& executor) noexcept {
  return detail::Hop<E>(executor);
}

/// The result of when_any.
template <class T>
struct First {
  std::size_t index;  ///< Which of the tasks ended first.
  T result;           ///< Its result.
};

namespace detail {

template <Answer T, std::size_t kCount>
class [[nodiscard]] Any final : public Awaitable, private Ending {
 public:
  template <class... Tasks>
  explicit Any(Tasks&&... tasks) noexcept : tasks_{std::move(tasks)...} {}
  [[nodiscard]] static bool await_ready() noexcept { return false; }
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> awaiting) {
    Scope& scope = scope_.emplace(context().scope);
    const Context inside{.loop = context().loop, .scope = &scope};
    awaiting_ = awaiting;
    left_ = kCount + 1;
    for (Task<T>& task : tasks_) {
      if (task.is_over()) {
        (void)count_end();
      } else {
        task.start(inside, static_cast<Ending&>(*this));
      }
    }
    return --left_ != 0;
  }
  /// Throws the exception of the first, or else that of another one.
  [[nodiscard]] First<T> await_resume() {
    First<T> first{.index = first_, .result = std::move(tasks_[first_]).result()};
    for (std::size_t i = 0; i < kCount; ++i)
      if (i != first_) (void)std::move(tasks_[i]).result();
    return first;
  }

 private:
  [[nodiscard]] std::coroutine_handle<> on_end(PromiseBase& /*ended*/) noexcept override {
    return count_end() ? awaiting_ : std::noop_coroutine();
  }
  [[nodiscard]] bool count_end() noexcept {
    if (first_ == kCount) {
      first_ = 0;
      while (!tasks_[first_].is_over()) ++first_;
      scope_->cancel(Status::kCancelled);
    }
    return --left_ == 0;
  }

  std::optional<Scope> scope_;
  std::array<Task<T>, kCount> tasks_;
  std::coroutine_handle<> awaiting_;
  std::size_t left_ = 0;
  std::size_t first_ = kCount;
};

}  // namespace detail

/// Runs the tasks until one has ended; then the waits of the others end with kCancelled, and it awaits their ends, too:
/// nothing of them goes on behind it. Their results are dropped, memory in them included; what they throw is not.
template <Answer T, std::same_as<Task<T>>... More>
[[nodiscard]] auto when_any(Task<T> first, More... more) noexcept {
  return detail::Any<T, sizeof...(More) + 1>(std::move(first), std::move(more)...);
}

/// Cancels tasks. Immovable; it outlives them. \thread the loop's
class CancelSource {
 public:
  CancelSource() noexcept = default;
  CancelSource(const CancelSource&) = delete;
  CancelSource& operator=(const CancelSource&) = delete;

  /// The waits of all its tasks end with kCancelled; so do those that come. Resumes nobody: they go on in the next turn
  /// of their loop. \alloc none
  void cancel() noexcept;
  /// Whether `cancel` was called.
  [[nodiscard]] bool is_cancelled() const noexcept { return is_cancelled_; }

 private:
  template <Answer T>
  friend class Cancellable;
  struct Member {
    detail::Scope* scope = nullptr;
    Member* next = nullptr;
    Member* previous = nullptr;
  };
  void add(Member& member) noexcept;
  void remove(Member& member) noexcept;

  Member* first_ = nullptr;
  bool is_cancelled_ = false;
};

/// Awaits a task that a source can cancel.
template <Answer T>
class [[nodiscard]] Cancellable : public detail::Scoped<T> {
 public:
  /// See `cancellable`.
  Cancellable(CancelSource& source, Task<T>&& task) noexcept : detail::Scoped<T>(std::move(task)), source_(source) {}
  /// It is the source's no more.
  ~Cancellable() {
    if (member_.scope != nullptr) source_.remove(member_);
  }
  Cancellable(const Cancellable&) = delete;
  Cancellable& operator=(const Cancellable&) = delete;
  /// Runs the task.
  [[nodiscard]] std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    member_.scope = &this->open();
    source_.add(member_);
    return this->begin(awaiting);
  }

 private:
  CancelSource& source_;
  CancelSource::Member member_;
};

/// Awaits a task whose waits end when the source cancels. Its result is this one's.
template <Answer T>
[[nodiscard]] Cancellable<T> cancellable(CancelSource& source, Task<T> task) noexcept {
  return Cancellable<T>(source, std::move(task));
}

/// How long a task that has reached its deadline has to end by itself.
inline constexpr std::chrono::milliseconds kGrace{500};
/// Runs the loop until the task has ended: its result. At the deadline the waits of the task end with kTimedOut; it has
/// kGrace more to end by itself, then it is destroyed, and the result is kTimedOut. Throws what the task throws. Not
/// from a task of the loop.
template <Answer T>
[[nodiscard]] T sync_wait(Loop& loop, Task<T> task, Deadline deadline) {
  if (task.is_over()) return std::move(task).result();
  class End final : public detail::Ending {
   public:
    [[nodiscard]] std::coroutine_handle<> on_end(detail::PromiseBase& /*ended*/) noexcept override {
      is_here = true;
      return std::noop_coroutine();
    }
    bool is_here = false;
  } end;
  detail::Context context = loop.context();
  detail::Scope scope(context.scope);
  context.scope = &scope;
  Task<T> mine = std::move(task);  // Destroyed before its scope.
  loop.become_owner();
  mine.start(context, static_cast<detail::Ending&>(end));
  const auto has_ended = [&] { return end.is_here; };
  if (loop.run_until(has_ended, deadline) == Status::kOk) return std::move(mine).result();
  scope.cancel(Status::kTimedOut);
  if (loop.run_until(has_ended, Deadline::after(kGrace)) == Status::kOk) return std::move(mine).result();
  return Refusal<T>::of(Status::kTimedOut);
}

}  // namespace verbena::coroutine

#pragma GCC visibility pop
