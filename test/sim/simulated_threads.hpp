// What src/base/threads.hpp has in a simulation: threads are tasks of the simulated process that starts them, and who
// waits for a lock lets others go on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

namespace verbena {

class Mutex {
 public:
  Mutex() noexcept = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() noexcept;
  [[nodiscard]] bool try_lock() noexcept;
  void unlock() noexcept;

 private:
  bool is_locked_ = false;
};

class Condition {
 public:
  void wait(std::unique_lock<Mutex>& lock) noexcept;
  template <class Done>
  void wait(std::unique_lock<Mutex>& lock, const Done& done) {
    while (!done()) wait(lock);
  }
  template <class Done>
  bool wait_for(std::unique_lock<Mutex>& lock, std::chrono::nanoseconds time, const Done& done) {
    const std::uint64_t until = end_of(time);
    while (!done())
      if (!wait_until(lock, until)) return done();
    return true;
  }
  void notify_one() noexcept { notify_all(); }
  void notify_all() noexcept;

 private:
  [[nodiscard]] static std::uint64_t end_of(std::chrono::nanoseconds time) noexcept;
  bool wait_until(std::unique_lock<Mutex>& lock, std::uint64_t until) noexcept;
};

class Thread {
 public:
  Thread() noexcept = default;
  template <class Body>
    requires std::is_invocable_v<Body&>
  explicit Thread(Body body) : Thread(hold(std::move(body)), 0) {}
  Thread(Thread&& other) noexcept : task_(std::exchange(other.task_, kNone)) {}
  Thread& operator=(Thread&& other) noexcept {
    std::swap(task_, other.task_);
    return *this;
  }
  [[nodiscard]] bool joinable() const noexcept { return task_ != kNone; }
  void join() noexcept;
  void detach() noexcept { task_ = kNone; }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  Thread(std::function<void()> body, int);
  /// As a function that can be copied, which the body need not be.
  template <class Body>
  [[nodiscard]] static std::function<void()> hold(Body body) {
    return [held = std::make_shared<Body>(std::move(body))] { (*held)(); };
  }
  std::uint64_t task_ = kNone;
};

[[nodiscard]] std::uintptr_t this_thread() noexcept;
/// The word of the running task; outside of tasks, of all that is there.
[[nodiscard]] void*& word_of_thread() noexcept;
template <class Pointer>
[[nodiscard]] Pointer& thread_word() noexcept {
  return reinterpret_cast<Pointer&>(word_of_thread());
}
void yield_thread() noexcept;

}  // namespace verbena
