// What a thread does besides polling its loop.
#pragma once

#include <verbena/deadline.hpp>

namespace verbena::engine {

/// Called by whoever runs a loop. \thread owner of the loop
class Duty {
 public:
  /// Before each wait: when it must end at the latest.
  [[nodiscard]] virtual Deadline before_wait() noexcept = 0;
  /// After each wait, which handled so many completions.
  virtual void after_wait(unsigned handled) noexcept = 0;
  /// Once, before the thread ends.
  virtual void before_end() noexcept {}

 protected:
  ~Duty() = default;
};

}  // namespace verbena::engine
