// Threads, and the means to wait for each other. A simulation replaces them by tasks of one thread under the same
// names, so all code that uses threads includes this.
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

/// Identifies the calling thread among all that run. Never 0. \thread any  \alloc none
[[nodiscard]] inline std::uintptr_t this_thread() noexcept {
  return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
}
/// A pointer of the calling thread's, null at first: one for each type. \thread any  \alloc none
template <class Pointer>
[[nodiscard]] Pointer& thread_word() noexcept {
  static constinit thread_local Pointer word = nullptr;
  return word;
}
/// Lets other threads of this core run. \thread any  \alloc none
inline void yield_thread() noexcept { std::this_thread::yield(); }

}  // namespace verbena

#endif
