// Waiting for a word that another thread of this process changes.
#pragma once

#include <verbena/deadline.hpp>
#include <verbena/status.hpp>

#include <atomic>
#include <cstdint>

namespace verbena {

/// Waits until `word` is no longer `value`: kOk, or kTimedOut past the deadline. Polls first, as `changes_soon`, then
/// sleeps, as `sleep_while`. \thread any  \alloc none
[[nodiscard]] Status wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t value,
                                Deadline deadline) noexcept;
/// Polls for some microseconds, in which most answers come: whether `word` is no longer `value`. \thread any
/// \alloc none
[[nodiscard]] bool changes_soon(const std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept;
/// Sleeps in the kernel until `word` is no longer `value` and a waker has been there: kOk, or kTimedOut past the
/// deadline. In a callback it serves instead (base/serving.hpp). \thread any  \alloc none
[[nodiscard]] Status sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value,
                                 Deadline deadline) noexcept;
/// The same without a deadline; may return before. \thread any  \alloc none
void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept;

/// Wakes all that wait for `word`, which the caller has changed. A system call. \thread any  \alloc none
void wake_waiters(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace verbena
