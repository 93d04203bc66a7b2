#include "base/futex.hpp"

#include "base/relax.hpp"
#include "base/serving.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>

namespace verbena {

namespace {

/// Polls before the first sleep: some 5 us, about as long as a sleep and its wake-up take.
constexpr int kPolls = 256;
/// The longest single sleep, so that the time fits what the kernel takes; the loop around it continues.
constexpr std::chrono::nanoseconds kLongestSleep{std::chrono::hours{1}};

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "the kernel looks at the word itself");

}  // namespace

bool changes_soon(const std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept {
  for (int i = 0; i < kPolls; ++i) {
    if (word.load(std::memory_order_acquire) != value) return true;
    relax();
  }
  return false;
}

Status wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t value, Deadline deadline) noexcept {
  return changes_soon(word, value) ? Status::kOk : sleep_while(word, value, deadline);
}

Status sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value, Deadline deadline) noexcept {
  if (Serving::is_due()) [[unlikely]]
    return Serving::wait_until([&] { return word.load(std::memory_order_acquire) != value; }, deadline);
  for (;;) {
    const std::chrono::nanoseconds left = std::min(deadline.left(), kLongestSleep);
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec time{.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
    // Returns at once if the word has changed meanwhile. The code below handles every other return.
    (void)syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &time, nullptr, 0);
    if (word.load(std::memory_order_acquire) != value) return Status::kOk;
    if (deadline.passed()) return Status::kTimedOut;
  }
}

void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept {
  (void)syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_waiters(const std::atomic<std::uint32_t>& word) noexcept {
  (void)syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace verbena
