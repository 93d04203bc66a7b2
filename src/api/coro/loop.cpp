// The loop of coroutines: who is ready, who waits until when, and what is polled meanwhile.
#include <verbena/coroutine_task.hpp>

#include "api/cxx/guarded.hpp"
#include "base/check.hpp"
#include "base/futex.hpp"
#include "base/limit.hpp"
#include "base/relax.hpp"
#include "base/serving.hpp"
#include "base/threads.hpp"
#include "base/ticks.hpp"

#include <algorithm>
#include <mutex>

namespace verbena::coroutine {

/// By which other threads end the loop's sleep.
struct Loop::Bell {
  std::atomic<bool> is_asleep{false};
  std::atomic<bool> is_rung{false};     ///< `wake` was called.
  std::atomic<std::uint32_t> rings{0};  ///< 1: the sleep is over, where there is no event to sleep on.
  Mutex mutex;                          ///< For the next one, which is gone after the sleep.
  detail::Driven* sleeps_on = nullptr;

  void ring() noexcept {
    const std::lock_guard lock(mutex);
    if (sleeps_on != nullptr) return sleeps_on->wake();
    rings.store(1, std::memory_order_release);
    wake_waiters(rings);
  }
};

// --- resumptions --------------------------------------------------------------------------------------------------

void Resumption::arrive(Loop& loop) noexcept { loop.list(*this); }
void Resumption::unlist() noexcept { listed_in_->remove(*this); }

void detail::ReadyList::push(Resumption& resumption) noexcept {
  resumption.next = nullptr;
  resumption.previous_ = last;
  resumption.listed_in_ = this;
  (last == nullptr ? first : last->next) = &resumption;
  last = &resumption;
}

void detail::ReadyList::remove(Resumption& resumption) noexcept {
  (resumption.previous_ == nullptr ? first : resumption.previous_->next) = resumption.next;
  (resumption.next == nullptr ? last : resumption.next->previous_) = resumption.previous_;
  resumption.listed_in_ = nullptr;
}

void Loop::post(Resumption& resumption) noexcept {
  Resumption* latest = posted_.load(std::memory_order_relaxed);
  do resumption.next = latest;
  while (!posted_.compare_exchange_weak(latest, &resumption, std::memory_order_seq_cst, std::memory_order_relaxed));
  // Against `sleep`, which sets is_asleep and then looks at what is posted: one of the two sees the other's.
  if (bell_->is_asleep.load(std::memory_order_seq_cst)) [[unlikely]]
    bell_->ring();
}

void Loop::take_in() noexcept {
  if (posted_.load(std::memory_order_relaxed) == nullptr) return;
  Resumption* latest = posted_.exchange(nullptr, std::memory_order_acquire);
  Resumption* oldest = nullptr;
  while (latest != nullptr) {
    Resumption* const before = std::exchange(latest->next, oldest);
    oldest = std::exchange(latest, before);
  }
  while (oldest != nullptr) {
    Resumption& each = *oldest;
    oldest = each.next;
    each.arrive(*this);
  }
}

// --- scopes -------------------------------------------------------------------------------------------------------

namespace detail {

Scope::Scope(Scope* parent) noexcept : parent_(parent) {
  if (parent == nullptr) return;
  why_ = parent->why_;
  next_ = parent->first_;
  if (next_ != nullptr) next_->previous_ = this;
  parent->first_ = this;
}

Scope::~Scope() {
  VERBENA_DCHECK(first_ == nullptr && waits_ == nullptr);
  if (parent_ == nullptr) return;
  (previous_ == nullptr ? parent_->first_ : previous_->next_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

Scope* Scope::next_inside(const Scope& outer) const noexcept {
  if (first_ != nullptr) return first_;
  const Scope* at = this;
  while (at != &outer && at->next_ == nullptr) at = at->parent_;
  return at == &outer ? nullptr : at->next_;
}

void Scope::cancel(Status why) noexcept {
  for (Scope* at = this; at != nullptr; at = at->next_inside(*this)) {
    if (at->why_ == Status::kOk) at->why_ = why;
    while (at->waits_ != nullptr) at->waits_->abort(why);
  }
}

// --- waits --------------------------------------------------------------------------------------------------------

void Wait::tell() noexcept { loop_->post(*this); }

void Wait::arrive(Loop& loop) noexcept {
  unpark();
  place_ = Place::kReady;
  loop.list(*this);
}

void Wait::park(const Context& context, std::coroutine_handle<> awaiting, Deadline deadline, Driven* driven) noexcept {
  loop_ = context.loop;
  scope_ = context.scope;
  awaiting_ = awaiting;
  deadline_ = deadline.ticks();
  driven_ = driven;
  ended_ = Status::kOk;
  place_ = Place::kParked;
  next_in_scope_ = scope_->waits_;
  previous_in_scope_ = nullptr;
  if (next_in_scope_ != nullptr) next_in_scope_->previous_in_scope_ = this;
  scope_->waits_ = this;
  loop_->enter(*this);
}

void Wait::unpark() noexcept {
  if (place_ != Place::kParked) return;
  place_ = Place::kNowhere;
  (previous_in_scope_ == nullptr ? scope_->waits_ : previous_in_scope_->next_in_scope_) = next_in_scope_;
  if (next_in_scope_ != nullptr) next_in_scope_->previous_in_scope_ = previous_in_scope_;
  loop_->remove(*this);
}

void Wait::yield(const Context& context, std::coroutine_handle<> awaiting) noexcept {
  loop_ = context.loop;
  awaiting_ = awaiting;
  ended_ = Status::kOk;
  place_ = Place::kReady;
  loop_->list(*this);
}

void Wait::end(Status why) noexcept {
  loop_->take_in();  // What it waits for may be gone, and has told it.
  if (place_ != Place::kParked) return;
  if (!withdraw()) return loop_->take_in();
  unpark();
  ended_ = why;
  place_ = Place::kReady;
  loop_->list(*this);
}

void Wait::take_out() noexcept {
  if (place_ == Place::kParked) loop_->take_in();
  if (place_ == Place::kParked) withdraw() ? unpark() : loop_->take_in();
  if (listed_in_ != nullptr) unlist();
  place_ = Place::kNowhere;
}

}  // namespace detail

// --- what waits ---------------------------------------------------------------------------------------------------

void Loop::place(detail::Wait& wait, std::size_t at) noexcept {
  waits_[at] = &wait;
  wait.at_ = static_cast<std::uint32_t>(at);
}

// Moves it from where it is to where it belongs.
void Loop::sift(detail::Wait& wait, std::size_t at) noexcept {
  for (std::size_t above = 0; at != 0 && waits_[above = (at - 1) / 2]->deadline_ > wait.deadline_; at = above)
    place(*waits_[above], at);
  for (std::size_t below = 0; (below = 2 * at + 1) < waits_.size(); at = below) {
    if (below + 1 < waits_.size() && waits_[below + 1]->deadline_ < waits_[below]->deadline_) ++below;
    if (waits_[below]->deadline_ >= wait.deadline_) break;
    place(*waits_[below], at);
  }
  place(wait, at);
}

void Loop::enter(detail::Wait& wait) noexcept {
  VERBENA_DCHECK(waits_.size() < max_waits_);
  waits_.push_back(&wait);  // Within its capacity.
  sift(wait, waits_.size() - 1);
  if (wait.driven_ != nullptr && wait.driven_->waits_++ == 0) add(*wait.driven_);
}

void Loop::remove(detail::Wait& wait) noexcept {
  detail::Wait& last = *waits_.back();
  waits_.pop_back();
  if (&last != &wait) sift(last, wait.at_);
  if (wait.driven_ != nullptr && --wait.driven_->waits_ == 0) drop(*wait.driven_);
}

void detail::Driven::settle() noexcept {
  if (waits_ != 0) loop_->take_in();
  VERBENA_CHECK(waits_ == 0);
}

void Loop::add(detail::Driven& driven) noexcept {
  driven.loop_ = this;
  driven.previous_ = nullptr;
  driven.next_ = driven_;
  if (driven_ != nullptr) driven_->previous_ = &driven;
  driven_ = &driven;
}

void Loop::drop(detail::Driven& driven) noexcept {
  (driven.previous_ == nullptr ? driven_ : driven.previous_->next_) = driven.next_;
  if (driven.next_ != nullptr) driven.next_->previous_ = driven.previous_;
}

Status Loop::refuses(const detail::Scope* scope) const noexcept {
  constexpr const char* kCall = "coroutine::Loop";
  if (!is_here()) [[unlikely]]
    return note(Status::kBusy, kCall, "this thread is another one than the loop's: co_await resume_on(loop) first");
  if (scope->why() != Status::kOk) [[unlikely]]
    return scope->why();
  if (waits_.size() == max_waits_) [[unlikely]]
    return note(Status::kLimit, kCall, "{} coroutines wait, or have a time limit: raise LoopOptions::waits",
                max_waits_);
  return Status::kOk;
}

void Loop::expire() noexcept {
  if (waits_.empty()) return;
  const std::uint64_t now = ticks_now();
  while (!waits_.empty() && waits_.front()->deadline_ <= now) waits_.front()->expire();
}

// --- the loop -----------------------------------------------------------------------------------------------------

Loop::Loop(const LoopOptions& options)
    : bell_(std::make_unique<Bell>()),
      max_waits_(options.waits),
      spin_ticks_(ticks_in(options.spin)),
      owner_(this_thread()) {
  waits_.reserve(max_waits_);
}

Result<std::unique_ptr<Loop>> Loop::make(const LoopOptions& options) {
  constexpr const char* kCall = "coroutine::Loop::make";
  return api::guarded(kCall, [&]() -> Result<std::unique_ptr<Loop>> {
    VERBENA_TRY(check_limit(kCall, "waits", options.waits, 1, 1u << 20));
    if (options.spin.count() < 0 || options.spin > std::chrono::seconds{1})
      return fail(Status::kBadArgument, kCall, 0, "spin must be 0 to 1000000 us; got {}", options.spin.count());
    VERBENA_ASSIGN(auto frames, FramePool::make(options.frames));
    std::unique_ptr<Loop> loop(new Loop(options));
    loop->frames_ = std::move(frames);
    return loop;
  });
}

Loop::~Loop() {
  drop_all();
  // A wait that is still in its lists would be told in memory that is gone.
  VERBENA_CHECK(waits_.empty() && ready_[0].first == nullptr && ready_[1].first == nullptr &&
                posted_.load(std::memory_order_acquire) == nullptr);
}

bool Loop::is_here() const noexcept { return owner_.load(std::memory_order_relaxed) == this_thread(); }

std::coroutine_handle<> Loop::Spawned::on_end(detail::PromiseBase& ended) noexcept {
  (ended.previous_task_ == nullptr ? loop_.tasks_.live : ended.previous_task_->next_task_) = ended.next_task_;
  if (ended.next_task_ != nullptr) ended.next_task_->previous_task_ = ended.previous_task_;
  // It is destroyed when this has returned.
  ended.next_task_ = std::exchange(loop_.tasks_.ended, &ended);
  return std::noop_coroutine();
}

Status Loop::spawn(Task<Status>&& task) {
  if (task.status() != Status::kOk) return task.status();
  if (task.is_over()) return Status::kBadArgument;
  detail::PromiseBase& promise = std::move(task).release().promise();
  promise.begin(context(), on_spawned_);
  promise.previous_task_ = nullptr;
  promise.next_task_ = std::exchange(tasks_.live, &promise);
  if (promise.next_task_ != nullptr) promise.next_task_->previous_task_ = &promise;
  ++spawned_count_;
  become_owner();
  promise.self_.resume();
  return Status::kOk;
}

// Destroys what has ended, and throws the first that was thrown.
void Loop::reap() {
  while (tasks_.ended != nullptr) {
    detail::PromiseBase& ended = *tasks_.ended;
    tasks_.ended = ended.next_task_;
    --spawned_count_;
    if (ended.thrown_ && !thrown_) thrown_ = ended.thrown_;
    if (ended.spawned_status() != Status::kOk) ++failed_;
    ended.self_.destroy();
  }
  if (thrown_) [[unlikely]]
    std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void Loop::drop_all() noexcept {
  take_in();
  for (detail::PromiseBase** list : {&tasks_.live, &tasks_.ended}) {
    while (*list != nullptr) {
      detail::PromiseBase& task = **list;
      *list = task.next_task_;
      if (*list != nullptr) (*list)->previous_task_ = nullptr;
      --spawned_count_;
      task.self_.destroy();
    }
  }
}

void Loop::become_owner() noexcept { owner_.store(this_thread(), std::memory_order_relaxed); }

bool Loop::poll() {
  become_owner();
  for (detail::Driven *at = driven_, *next = nullptr; at != nullptr; at = next) {
    next = at->next_;
    at->look();
  }
  take_in();
  expire();
  // Those that become ready meanwhile have their turn after the next look.
  detail::ReadyList& now = ready_[is_odd_turn_ ? 1 : 0];
  is_odd_turn_ = !is_odd_turn_;
  const bool is_any = now.first != nullptr;
  while (now.first != nullptr) {
    Resumption& each = *now.first;
    now.remove(each);
    turn_ = kTurn;
    each.run();
  }
  if (tasks_.ended != nullptr || thrown_) reap();
  return is_any;
}

void Loop::wake() noexcept {
  bell_->is_rung.store(true, std::memory_order_seq_cst);
  if (bell_->is_asleep.load(std::memory_order_seq_cst)) bell_->ring();
}

bool Loop::take_wake() noexcept {
  return bell_->is_rung.load(std::memory_order_relaxed) && bell_->is_rung.exchange(false, std::memory_order_acquire);
}

void Loop::idle(Deadline deadline, std::uint64_t& idle_since) noexcept {
  if (take_wake()) return;
  const std::uint64_t now = ticks_now();
  if (idle_since == 0) idle_since = now;
  if (now - idle_since < spin_ticks_) return relax();
  // Each has an event of its own, and one thread sleeps on one.
  if (driven_ != nullptr && driven_->next_ != nullptr) {
    if (!Serving::go_on()) yield_thread();
    return;
  }
  sleep(waits_.empty() ? deadline : earlier(deadline, Deadline::at_ticks(waits_.front()->deadline_)));
}

void Loop::sleep(Deadline deadline) noexcept {
  const auto set = [this](detail::Driven* sleeps_on, bool is_asleep) {
    const std::lock_guard lock(bell_->mutex);
    bell_->sleeps_on = sleeps_on;
    bell_->is_asleep.store(is_asleep, std::memory_order_seq_cst);
  };
  bell_->rings.store(0, std::memory_order_relaxed);
  set(driven_, true);
  if (posted_.load(std::memory_order_seq_cst) == nullptr && !bell_->is_rung.load(std::memory_order_seq_cst)) {
    if (driven_ != nullptr) {
      driven_->sleep(deadline);
    } else {
      (void)wait_while(bell_->rings, 0, deadline);
    }
  }
  set(nullptr, false);
}

// --- cancelling ---------------------------------------------------------------------------------------------------

void CancelSource::add(Member& member) noexcept {
  member.previous = nullptr;
  member.next = std::exchange(first_, &member);
  if (member.next != nullptr) member.next->previous = &member;
  if (is_cancelled_) member.scope->cancel(Status::kCancelled);
}

void CancelSource::remove(Member& member) noexcept {
  (member.previous == nullptr ? first_ : member.previous->next) = member.next;
  if (member.next != nullptr) member.next->previous = member.previous;
}

void CancelSource::cancel() noexcept {
  is_cancelled_ = true;
  for (Member* at = first_; at != nullptr; at = at->next) at->scope->cancel(Status::kCancelled);
}

}  // namespace verbena::coroutine
