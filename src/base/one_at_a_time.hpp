// Finds two threads that use what one thread may use at a time. In release builds it is empty, and checks nothing.
#pragma once

#include "base/check.hpp"
#include "base/threads.hpp"

#include <atomic>
#include <cstdint>

namespace verbena {

/// Ends the process where a second thread comes while one is inside, as a broken invariant does: what they would do to
/// each other shows much later, if at all. \thread any  \alloc none
class OneAtATime {
 public:
  OneAtATime() noexcept = default;
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;

#ifdef NDEBUG
  class Use {
   public:
    explicit Use(OneAtATime& /*used*/) noexcept {}
  };
  void check() const noexcept {}
#else
  /// The thread is inside for as long as this lives; it may be inside already.
  class Use {
   public:
    explicit Use(OneAtATime& used) noexcept : used_(used) {
      std::uintptr_t user = 0;
      is_first_ = used.user_.compare_exchange_strong(user, this_thread(), std::memory_order_acquire);
      VERBENA_DCHECK(is_first_ || user == this_thread());
    }
    ~Use() {
      if (is_first_) used_.user_.store(0, std::memory_order_release);
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    OneAtATime& used_;
    bool is_first_ = false;
  };
  /// Nobody else is inside at this moment.
  void check() const noexcept {
    const std::uintptr_t user = user_.load(std::memory_order_relaxed);
    VERBENA_DCHECK(user == 0 || user == this_thread());
  }

 private:
  std::atomic<std::uintptr_t> user_{0};
#endif
};

}  // namespace verbena
