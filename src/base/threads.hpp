// Threads, and what they wait for each other with. In a simulation they are tasks of one thread, behind the same names:
// whatever runs in threads goes through here.
#pragma once

#if defined(VERBENA_SIMULATION)
#include <simulated_threads.hpp>
#else

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace verbena {

using Mutex = std::mutex;
using Condition = std::condition_variable;
using Thread = std::thread;

/// Tells the calling thread from all others that run. Never 0. \thread any  \alloc none
[[nodiscard]] inline std::uintptr_t this_thread() noexcept {
  return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
}
/// Lets other threads of this core go on. \thread any  \alloc none
inline void yield_thread() noexcept { std::this_thread::yield(); }

}  // namespace verbena

#endif
