// Things that other threads hand over to the test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace verbena::test {

template <class T>
class Mailbox {
 public:
  void put(T item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    arrived_.notify_all();
  }
  /// The next one; fails the test when none comes.
  [[nodiscard]] T take() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::seconds{20}, [&] { return !items_.empty(); })) {
      ADD_FAILURE() << "nothing came";
      return {};
    }
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }
  [[nodiscard]] bool empty() {
    const std::lock_guard lock(mutex_);
    return items_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<T> items_;
};

}  // namespace verbena::test
