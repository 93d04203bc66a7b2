// Protects noexcept functions from pthread_cancel: glibc cancels a thread by unwinding its stack, and unwinding out of
// a noexcept function would end the process.
#pragma once

#include <pthread.h>

namespace verbena {

/// While one lives, the calling thread is not cancelled: a request waits until the call of the library has returned.
/// Hold one around each cancellation point (read, write, poll, close and others: pthreads(7)). \thread any
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
