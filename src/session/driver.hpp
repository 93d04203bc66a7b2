// How a call of any thread gets to the thread that may touch a session, and back.
#pragma once

#include "base/exclusive.hpp"
#include "base/fork.hpp"
#include "base/threads.hpp"
#include "engine/call.hpp"
#include "engine/loop.hpp"
#include "session/home.hpp"
#include "session/sessions.hpp"

#include <chrono>
#include <initializer_list>
#include <type_traits>

namespace verbena::session {

using engine::Call;
using engine::Patience;

/// A call of another thread gets at least this long to be handed over, even if its own deadline is nearer.
inline constexpr std::chrono::milliseconds kHandOver{100};

/// Carries out calls of a session where it is driven: in the thread of its home, or in the calling thread, one at a
/// time. `Driven` has
///  - `before_call()`: called in the driving thread before a call of its own begins,
///  - `progress()`: continues what is under way,
///  - `is_detached()`: whether its home has let go of it, \thread any.
/// \thread any  \alloc none
template <class Driven>
class Driver {
 public:
  Driver(Home& home, Driven& driven) noexcept : home_(home), driven_(driven) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Whether the calling thread drives it.
  [[nodiscard]] bool is_here() const noexcept { return home_.is_driven_here(); }
  /// Whether the calling thread drives it, whichever that is.
  [[nodiscard]] bool is_callers() const noexcept { return home_.driver() == DrivenBy::kCaller; }
  /// For checks, where this thread may drive it: whether no other one is in a call.
  [[nodiscard]] bool is_alone() noexcept {
    Exclusive::Mark* const mark = used_.enter();
    if (mark != nullptr) Exclusive::leave(mark);
    return mark != nullptr;
  }
  /// As Exclusive has them, for calls that are one function down to the NIC.
  [[nodiscard, gnu::always_inline]] Exclusive::Mark* enter() noexcept { return used_.enter(); }

  /// Calls `task`, which returns a Status, in this thread, which drives it. kBusy: another thread is in a call.
  template <class Task>
  [[nodiscard]] Status alone(Task&& task) noexcept {
    if (is_forked()) [[unlikely]]
      return Status::kForked;
    const bool is_shared = is_callers() || driven_.is_detached();
    Exclusive::Mark* const mark = is_shared ? used_.enter() : nullptr;
    if (is_shared && mark == nullptr) [[unlikely]]
      return Status::kBusy;
    const Status status = task();
    if (mark != nullptr) Exclusive::leave(mark);
    return status;
  }
  /// Calls `task` in the thread that drives it, or here where nobody else does: kOk, kBusy, or as CompletionLoop::call.
  template <class Task>
  [[nodiscard]] Status call(Task&& task, Deadline deadline) noexcept {
    if (!is_here()) {
      const Status handed = home_.loop().call(task, deadline);
      if (handed != Status::kClosed || !driven_.is_detached()) return handed;
    }
    // Nobody else drives it then, but another thread's call.
    return alone([&] {
      task();
      return Status::kOk;
    });
  }
  /// The same for a task that a detached one does not need: then kClosed.
  template <class Task>
  [[nodiscard]] Status call_while_attached(Task&& task, const Patience& patience) noexcept {
    if (!is_here()) return home_.loop().call(task, hand_over_by(patience.begin()));
    return alone([&] {
      task();
      return Status::kOk;
    });
  }

  struct Nothing {
    void operator()() const noexcept {}
  };
  /// Begins a call by `start`, waits for its end, and calls `cancel` past the deadline. The thread that drives calls
  /// `settle` once the call is over and before this returns.
  template <class Start, class Cancel, class Settle = Nothing>
  [[nodiscard]] Status run(Call& call, const Patience& patience, Start&& start, Cancel&& cancel,
                           Settle&& settle = {}) noexcept;
  /// Begins calls by `start`, and has those that are not done then told of, each by its function: kOk; or kBusy, or as
  /// CompletionLoop::call.
  struct Begun {
    Call& call;
    Call::Tell tell;
  };
  template <class Start>
  [[nodiscard]] Status begin(std::initializer_list<Begun> calls, Start&& start) noexcept;
  /// Takes a call back that was begun, by `give_up`: kOk, the call is done and nobody is told; kNotFound: it was done
  /// before; or as `call`.
  template <class GiveUp>
  [[nodiscard]] Status take_back(Call& call, Deadline deadline, GiveUp&& give_up) noexcept;
  /// Waits for a call that was begun. kTimedOut: it goes on.
  [[nodiscard]] Status wait_for(Call& call, const Patience& patience) noexcept;

 private:
  [[nodiscard]] static Deadline hand_over_by(Deadline deadline) noexcept {
    const Deadline least = Deadline::after(kHandOver);
    return deadline.ticks() > least.ticks() ? deadline : least;
  }
  [[nodiscard]] bool is_over(const Call& call) noexcept {
    home_.sessions().progress();
    return call.done();
  }

  Home& home_;
  Driven& driven_;
  Exclusive used_;  ///< With DrivenBy::kCaller: held by the current call.
};

template <class Driven>
template <class Start, class Cancel, class Settle>
Status Driver<Driven>::run(Call& call, const Patience& patience, Start&& start, Cancel&& cancel,
                           Settle&& settle) noexcept {
  engine::CompletionLoop& loop = home_.loop();
  const auto begin = [&] {
    start();
    driven_.progress();
  };
  if (!is_here()) {
    const Deadline deadline = patience.begin();
    call.is_handed_over = true;
    const Status handed = loop.call(begin, hand_over_by(deadline));
    if (handed == Status::kOk) {
      if (call.wait(deadline) == Status::kTimedOut) {
        // If the thread is ending instead, it ends the call before it is gone. An operation that the NIC carries out in
        // the caller's memory takes the time of a drain.
        const auto end = [&] {
          if (!call.done()) cancel();
        };
        (void)loop.call(end, Deadline::never());
        (void)call.wait(Deadline::never());
      }
      if constexpr (!std::is_same_v<std::remove_cvref_t<Settle>, Nothing>) (void)loop.call(settle, Deadline::never());
      return call.status;
    }
    if (handed != Status::kClosed || !driven_.is_detached()) return handed;
    call.is_handed_over = false;
  }
  // Nobody else drives it then, but another thread's call.
  return alone([&] {
    driven_.before_call();
    begin();
    const auto is_done = [&] { return is_over(call); };
    if (!call.done() && !driven_.is_detached()) (void)loop.wait_patiently(is_done, patience);
    if (!call.done()) cancel();
    // The drain bounds this.
    if (!call.done()) (void)loop.wait_until(is_done, Deadline::never());
    settle();
    return call.status;
  });
}

template <class Driven>
template <class Start>
Status Driver<Driven>::begin(std::initializer_list<Begun> calls, Start&& start) noexcept {
  const bool is_handed_over = !is_here();
  for (const Begun& each : calls) each.call.is_handed_over = is_handed_over;
  const auto begin = [&] {
    driven_.before_call();
    start();
    driven_.progress();
    for (const Begun& each : calls)
      if (!each.call.done()) each.call.tell = each.tell;
  };
  return call(begin, Deadline::after(kHandOver));
}

template <class Driven>
template <class GiveUp>
Status Driver<Driven>::take_back(Call& call, Deadline deadline, GiveUp&& give_up) noexcept {
  bool is_taken = false;
  const auto end = [&] {
    is_taken = !call.done();
    if (!is_taken) return;
    call.tell = nullptr;
    give_up();
  };
  const Status status = this->call(end, deadline);
  return status != Status::kOk || is_taken ? status : Status::kNotFound;
}

template <class Driven>
Status Driver<Driven>::wait_for(Call& call, const Patience& patience) noexcept {
  if (call.done()) return Status::kOk;
  if (!is_here()) {
    const Deadline deadline = patience.begin();
    // The thread goes on with it by itself, and ends it before it is gone.
    return deadline.passed() ? Status::kTimedOut : call.wait(deadline);
  }
  return alone([&] {
    driven_.progress();
    if (call.done()) return Status::kOk;
    if (driven_.is_detached()) return Status::kTimedOut;
    return home_.loop().wait_patiently([&] { return is_over(call); }, patience);
  });
}

}  // namespace verbena::session
