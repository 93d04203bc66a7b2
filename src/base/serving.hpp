// Work that a thread goes on with while it waits inside a callback.
#pragma once

#include "base/threads.hpp"

#include <verbena/deadline.hpp>
#include <verbena/status.hpp>

#include <utility>

namespace verbena {

/// A thread of the library makes callbacks, and others depend on it meanwhile: as long as one of these lives on its
/// stack, whatever this thread waits for in the library, it serves them in place of a sleep. \thread the one that makes
/// it
class Serving {
 public:
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  /// Whether the calling thread must serve while it waits. \thread any  \alloc none
  [[nodiscard]] static bool is_due() noexcept { return innermost() != nullptr; }
  /// Whether this thread serves `what` and nothing else, so that it may sleep in it where nothing is to do.
  [[nodiscard]] static bool is_only(const void* what) noexcept {
    const Serving* const one = innermost();
    return one != nullptr && one->outer_ == nullptr && one->what_ == what;
  }
  /// Serves all once. False: nothing was to do. \alloc none
  static bool go_on() noexcept {
    bool has_worked = false;
    for (Serving* each = innermost(); each != nullptr; each = each->outer_) has_worked |= each->serve();
    return has_worked;
  }
  /// Serves until `done()` or the deadline: kOk or kTimedOut.
  template <class Done>
  [[nodiscard]] static Status wait_until(Done&& done, Deadline deadline) noexcept {
    while (!done()) {
      if (deadline.passed()) return Status::kTimedOut;
      if (!go_on()) yield_thread();
    }
    return Status::kOk;
  }

 protected:
  /// `what` is what it serves: a loop.
  explicit Serving(const void* what) noexcept : what_(what), outer_(std::exchange(innermost(), this)) {}
  ~Serving() { innermost() = outer_; }

 private:
  /// Goes on once, and makes no callback. False: nothing was to do.
  [[nodiscard]] virtual bool serve() noexcept = 0;
  [[nodiscard]] static Serving*& innermost() noexcept { return thread_word<Serving*>(); }

  const void* const what_;
  Serving* const outer_;
};

}  // namespace verbena
