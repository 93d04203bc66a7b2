#include "engine/mailbox.hpp"

#include "base/futex.hpp"
#include "base/threads.hpp"

namespace verbena::engine {

void Mailbox::send(Letter& letter) noexcept {
  letter.next.store(nullptr, std::memory_order_relaxed);
  // Sequentially consistent, to pair with a reader that says it sleeps and then looks here once more.
  Letter* const before = last_.exchange(&letter, std::memory_order_seq_cst);
  before->next.store(&letter, std::memory_order_release);
}

// Null: there is no letter, or the oldest one's sender is between its two stores and wakes the reader after them.
Mailbox::Letter* Mailbox::take() noexcept {
  Letter* first = first_;
  Letter* next = first->next.load(std::memory_order_acquire);
  if (first == &stub_) {
    if (next == nullptr) return nullptr;
    first_ = first = next;
    next = first->next.load(std::memory_order_acquire);
  }
  if (next == nullptr) {
    if (last_.load(std::memory_order_acquire) != first) return nullptr;
    send(stub_);
    next = first->next.load(std::memory_order_acquire);
    if (next == nullptr) return nullptr;
  }
  first_ = next;
  return first;
}

void Mailbox::read() noexcept {
  for (int i = 0; i < kMost; ++i) {
    Letter* const letter = take();
    if (letter == nullptr) return;
    letter->open(*letter);
  }
}

// Sends a letter of its own and reads until that is opened. May have to wait for the second store of an earlier sender.
void Mailbox::catch_up() noexcept {
  struct Mark : Letter {
    bool is_opened = false;
  } mark;
  mark.open = [](Letter& letter) noexcept { static_cast<Mark&>(letter).is_opened = true; };
  send(mark);
  for (read(); !mark.is_opened; read()) yield_thread();
}

void Mailbox::open_ahead(Letter::Open kind) noexcept {
  Letter* letter = first_;
  for (int i = 0; letter != nullptr && i < kMost; ++i, letter = letter->next.load(std::memory_order_acquire)) {
    if (letter->open != kind) continue;
    letter->open(*letter);
    letter->open = [](Letter&) noexcept {};
  }
}

Mailbox::Call* Mailbox::claim(bool waits) noexcept {
  for (bool is_counted = false;; is_counted = true) {
    const std::uint32_t released = released_.load(std::memory_order_seq_cst);
    for (Call& call : calls_) {
      std::uint32_t free = kFree;
      if (call.state.load(std::memory_order_relaxed) != kFree ||
          !call.state.compare_exchange_strong(free, kQueued, std::memory_order_acquire))
        continue;
      call.mailbox = this;
      call.open = [](Letter& letter) noexcept {
        auto& opened = static_cast<Call&>(letter);
        opened.mailbox->open_call(opened);
      };
      if (is_counted) waiting_.fetch_sub(1, std::memory_order_relaxed);
      return &call;
    }
    if (!waits) return nullptr;
    if (!is_counted) {
      waiting_.fetch_add(1, std::memory_order_seq_cst);
      continue;  // Looks once more: from here on a call that ends wakes this thread.
    }
    (void)wait_while(released_, released, Deadline::never());  // Calls are short, so one ends soon.
  }
}

void Mailbox::release(Call& call) noexcept {
  call.state.store(kFree, std::memory_order_release);
  released_.fetch_add(1, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) != 0) wake_waiters(released_);
}

void Mailbox::open_call(Call& call) noexcept {
  std::uint32_t queued = kQueued;
  const bool runs = is_open_.load(std::memory_order_relaxed);
  if (!call.state.compare_exchange_strong(queued, runs ? kRunning : kRefused, std::memory_order_acq_rel))
    return release(call);  // Its caller has gone.
  if (!runs) return wake_waiters(call.state);
  call.run(call.context);
  call.state.store(kDone, std::memory_order_release);
  wake_waiters(call.state);
}

Status Mailbox::wait_for(Call& call, Deadline deadline) noexcept {
  // Checked after the send: either `shut` sees the letter, or this sees that the mailbox is shut.
  const bool is_late =
      !is_open_.load(std::memory_order_seq_cst) || wait_while(call.state, kQueued, deadline) == Status::kTimedOut;
  std::uint32_t queued = kQueued;
  if (is_late && call.state.compare_exchange_strong(queued, kWithdrawn, std::memory_order_acq_rel))
    return is_open_.load(std::memory_order_relaxed) ? Status::kTimedOut : Status::kClosed;
  (void)wait_while(call.state, kRunning, Deadline::never());  // The task is running, and is short.
  const bool was_run = call.state.load(std::memory_order_acquire) == kDone;
  release(call);
  return was_run ? Status::kOk : Status::kClosed;
}

// The mailbox may be destroyed once the count is 0: the wake then uses only its address.
void Mailbox::leave() noexcept {
  if (callers_.fetch_sub(1, std::memory_order_release) == (kEnding | 1)) wake_waiters(callers_);
}

void Mailbox::await_callers() noexcept {
  std::uint32_t callers = callers_.fetch_or(kEnding, std::memory_order_acquire) | kEnding;
  while (callers != kEnding) {
    (void)wait_while(callers_, callers, Deadline::never());  // They have their answers, and are about to leave.
    callers = callers_.load(std::memory_order_acquire);
  }
}

// A sender that has put a letter in and then found the mailbox open waits for an answer. Its exchange comes before its
// load of is_open_, both sequentially consistent, so the exchange is before the store here, and the check here sees the
// letter; acquire would not suffice. The sender's second store may still be missing, but is its next step.
void Mailbox::shut() noexcept {
  is_open_.store(false, std::memory_order_seq_cst);
  for (read(); !empty_before_sleep(); read()) yield_thread();
}

}  // namespace verbena::engine
