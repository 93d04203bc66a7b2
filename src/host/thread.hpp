// Threads of the library.
#pragma once

#include "base/error.hpp"
#include "base/threads.hpp"
#include "host/topology.hpp"

#include <system_error>
#include <utility>

namespace verbena::host {

/// Starts a thread that runs `body`, named `name` (static storage, cut at 15 characters) and with all signals blocked.
/// Errors: kLimit. \thread any  \alloc setup
template <class Body>
[[nodiscard]] Result<Thread> start_thread(const char* name, Body body) {
  try {
    return Thread([name, body = std::move(body)]() mutable {
      block_signals_in_this_thread();
      name_this_thread(name);
      body();
    });
  } catch (const std::system_error& error) {
    return fail(
        Status::kLimit, "pthread_create", error.code().value(),
        "the thread {} could not be started: raise the limit on processes (ulimit -u), or the cgroup's pids.max", name);
  }
}

}  // namespace verbena::host
