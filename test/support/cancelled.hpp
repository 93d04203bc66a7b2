// Threads that are cancelled.
#pragma once

#include <pthread.h>

#include <functional>

namespace verbena::test {

/// Runs `body` in a thread that is cancelled before, so that it ends at the first cancellation point that heeds it:
/// true if that was behind the body. A cancellation inside a noexcept function ends the process.
[[nodiscard]] inline bool runs_while_cancelled(const std::function<void()>& body) {
  struct Run {
    const std::function<void()>& body;
    bool has_ended = false;
  } run{.body = body};
  const auto start = [](void* argument) -> void* {
    auto& of = *static_cast<Run*>(argument);
    pthread_cancel(pthread_self());
    of.body();
    of.has_ended = true;
    pthread_testcancel();
    return nullptr;
  };
  pthread_t thread{};
  void* result = nullptr;
  return pthread_create(&thread, nullptr, start, &run) == 0 && pthread_join(thread, &result) == 0 && run.has_ended &&
         result == PTHREAD_CANCELED;
}

}  // namespace verbena::test
