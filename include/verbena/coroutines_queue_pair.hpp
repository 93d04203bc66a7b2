/// \file
/// Awaitable operations of queue pairs: what is posted is awaited by the coroutine, and no thread waits.
#pragma once

#include <verbena/coroutines.hpp>
#include <verbena/queue_pair.hpp>

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

/// Awaitables of typed::Ready post when they are awaited, and give their segments back with the status of the post or
/// of its end; or with kTimedOut (the deadline; without one QueuePairBuilder::wait_timeout), kCancelled (its scope),
/// kBusy (another thread than the loop's), kLimit (LoopOptions::waits wait). An operation that was posted by then goes
/// on, with its segments in quarantine; so does what is destroyed. The queue pair lives on. \alloc none
///
/// A queue pair is used by one loop at a time, which polls it while a coroutine awaits something of it, and sleeps on
/// its event where it is the only one that is polled. Don't move typed::Ready while it is awaited.
namespace verbena::coroutine {

/// For receives.
template <typed::Target Part>
struct Refusal<typed::ReceiveOutcome<Part>> {
  /// Without a segment.
  [[nodiscard]] static typed::ReceiveOutcome<Part> of(Status status) noexcept { return {.status = status}; }
};

/// Writes all of `from`, a segment or an array or tuple of segments, to the front of `to`; see
/// typed::Ready::post_write.
template <typed::QueuePairType Type, typed::Source Part>
[[nodiscard]] auto write(typed::Ready<Type>& pair, Part from, const typed::RemoteSegment<typed::ElementOf<Part>>& to,
                         std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from), [&pair, to](Part&& part) { return pair.post_write(std::move(part), to); }, deadline);
}
/// The same, and a receive of the peer's takes `immediate`.
template <typed::QueuePairType Type, typed::Source Part>
[[nodiscard]] auto write_with_immediate(typed::Ready<Type>& pair, Part from,
                                        const typed::RemoteSegment<typed::ElementOf<Part>>& to, std::uint32_t immediate,
                                        std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from),
      [&pair, to, immediate](Part&& part) { return pair.post_write_with_immediate(std::move(part), to, immediate); },
      deadline);
}
/// Sends all of `from` into a receive of the peer's.
template <typed::QueuePairType Type, typed::Source Part>
[[nodiscard]] auto send(typed::Ready<Type>& pair, Part from, std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from), [&pair](Part&& part) { return pair.post_send(std::move(part)); }, deadline);
}
/// The same, with a number for the receiver.
template <typed::QueuePairType Type, typed::Source Part>
[[nodiscard]] auto send_with_immediate(typed::Ready<Type>& pair, Part from, std::uint32_t immediate,
                                       std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from),
      [&pair, immediate](Part&& part) { return pair.post_send_with_immediate(std::move(part), immediate); }, deadline);
}
/// Takes one message, to the front of `to`. One that is given up stays posted, and takes a message: post it with
/// typed::Ready::post_receive and `finish` it with a deadline to keep it.
template <typed::QueuePairType Type, typed::Target Part>
[[nodiscard]] auto receive(typed::Ready<Type>& pair, Part to, std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(to), [&pair](Part&& part) { return pair.post_receive(std::move(part)); }, deadline);
}
/// Reads as many elements as `to` has, from the front of `from`.
template <typed::QueuePairType Type, typed::Target Part>
  requires std::same_as<Type, typed::Rc>
[[nodiscard]] auto read(typed::Ready<Type>& pair, Part to,
                        const typed::RemoteSegment<const typed::ElementOf<Part>>& from,
                        std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(to), [&pair, from](Part&& part) { return pair.post_read(std::move(part), from); }, deadline);
}
/// Adds `delta` to the first element of `word`: the value before. kUnsupported: the NIC has none.
template <typed::QueuePairType Type, std::same_as<std::uint64_t> T>
  requires std::same_as<Type, typed::Rc>
[[nodiscard]] auto fetch_add(typed::Ready<Type>& pair, const typed::RemoteSegment<T>& word, std::uint64_t delta,
                             std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_atomic([&pair, word, delta] { return pair.post_fetch_add(word, delta); }, deadline);
}
/// Sets the first element of `word` to `desired` if it is `expected`; otherwise as fetch_add.
template <typed::QueuePairType Type, std::same_as<std::uint64_t> T>
  requires std::same_as<Type, typed::Rc>
[[nodiscard]] auto compare_swap(typed::Ready<Type>& pair, const typed::RemoteSegment<T>& word, std::uint64_t expected,
                                std::uint64_t desired, std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_atomic(
      [&pair, word, expected, desired] { return pair.post_compare_swap(word, expected, desired); }, deadline);
}
/// Awaits a receive that was posted before.
template <typed::Target Part>
[[nodiscard]] detail::FinishWait<typed::ReceiveOperation<Part>> finish(typed::ReceiveOperation<Part>&& operation,
                                                                       std::optional<Deadline> deadline = {}) noexcept {
  return {std::move(operation), deadline};
}

}  // namespace verbena::coroutine

#pragma GCC visibility pop
