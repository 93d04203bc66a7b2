// Work of a thread besides polling its loop.
#pragma once

#include <verbena/deadline.hpp>

namespace verbena::engine {

/// The thread that runs a loop calls these. \thread owner of the loop
class Duty {
 public:
  /// Called before each wait; returns when the wait must end at the latest.
  [[nodiscard]] virtual Deadline before_wait() noexcept = 0;
  /// Called after each wait, with the number of completions handled.
  virtual void after_wait(unsigned handled) noexcept = 0;
  /// Called once, before the thread ends.
  virtual void before_end() noexcept {}

 protected:
  ~Duty() = default;
};

}  // namespace verbena::engine
