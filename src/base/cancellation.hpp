// pthread_cancel and a library whose functions are noexcept: glibc cancels by unwinding the stack, which would end the
// process there.
#pragma once

#include <pthread.h>

namespace verbena {

/// While one lives, the calling thread is not cancelled: a request waits until the call of the library has returned. To
/// be held where a cancellation point is reached (read, write, poll, close and others: pthreads(7)). \thread any
class CancellationHeld {
 public:
  CancellationHeld() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~CancellationHeld() { pthread_setcancelstate(before_, nullptr); }
  CancellationHeld(const CancellationHeld&) = delete;
  CancellationHeld& operator=(const CancellationHeld&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace verbena
