// A call: what one thread begins, and the thread that drives something ends.
#pragma once

#include "base/futex.hpp"
#include "engine/fifo.hpp"

#include <verbena/deadline.hpp>
#include <verbena/status.hpp>

#include <atomic>
#include <cstdint>

namespace verbena::engine {

/// A call belongs to its caller, who waits until it is done, or is told. Once it has begun, only the thread that drives
/// it touches anything but `done` and `wait`.
struct Call {
  Status status = Status::kOk;
  bool is_handed_over = false;  ///< Another thread than the caller's ends it. Set before it begins.
  /// For a call in which nobody waits: who is told of its end. Short, and starts nothing but calls of its own kind.
  using Tell = void (*)(Call& call) noexcept;
  Tell tell = nullptr;

  [[nodiscard]] bool done() const noexcept { return state_.load(std::memory_order_acquire) == kDone; }
  /// For a call that was handed over: kOk once it is done; kTimedOut: it goes on. \thread one at a time  \alloc none
  [[nodiscard]] Status wait(Deadline deadline) noexcept {
    // Whoever ends it within some microseconds need not wake anybody.
    if (changes_soon(state_, kUnderWay) && done()) return Status::kOk;
    std::uint32_t before = kUnderWay;
    if (!state_.compare_exchange_strong(before, kAwaited, std::memory_order_acquire) && before == kDone)
      return Status::kOk;
    return sleep_while(state_, kAwaited, deadline);
  }
  /// Don't touch the call afterwards: its caller may have gone when this returns. Who is told is there until he is.
  void finish(Status outcome) noexcept {
    status = outcome;
    const Tell tells = tell;
    std::atomic<std::uint32_t>& state = state_;
    if (!is_handed_over) {
      state.store(kDone, std::memory_order_release);
    } else if (state.exchange(kDone, std::memory_order_release) == kAwaited) {
      wake_waiters(state);
    }
    if (tells != nullptr) tells(*this);
  }
  /// A call that is done, and of which nobody is told, can begin once more.
  void begin_again() noexcept {
    status = Status::kOk;
    state_.store(kUnderWay, std::memory_order_relaxed);
  }

 private:
  enum State : std::uint32_t {
    kUnderWay,
    kAwaited,  ///< Under way, and its caller may sleep.
    kDone
  };
  std::atomic<std::uint32_t> state_{kUnderWay};
};

/// Calls in order of arrival. \thread owner
template <class Kind>
class CallQueue : public Fifo<Kind> {
 public:
  /// Removes a call and finishes it.
  void finish(Kind& call, Status outcome) noexcept {
    this->remove(call);
    call.finish(outcome);
  }
  void finish_all(Status outcome) noexcept {
    while (!this->empty()) finish(*this->first(), outcome);
  }
};

}  // namespace verbena::engine
