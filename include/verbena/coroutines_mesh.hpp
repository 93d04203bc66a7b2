/// \file
/// Awaitable operations of a mesh's lane: a send waits for credit without its thread.
#pragma once

#include <verbena/coroutines.hpp>
#include <verbena/typed_mesh.hpp>

#include <concepts>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

/// Awaitables of typed::MeshLane start when they are awaited, and give their segments back with what the operation ends
/// with; or with kTimedOut (the deadline; without one MeshLaneOptions::timeout), kCancelled (its scope), kBusy (another
/// thread than the loop's), kLimit (LoopOptions::waits wait), kAgain (MeshLaneOptions::operations are under way). An
/// operation that has started by then goes on, with its segment in quarantine; a receive that is given up takes no
/// message. \alloc
/// none
///
/// A lane is used by one loop at a time, which polls it while a coroutine awaits something of it, and sleeps on its
/// event where it is the only one that is polled. Don't move typed::MeshLane while it is awaited.
namespace verbena::coroutine {

/// Sends all of `from`; see typed::MeshLane::start_send.
template <typed::Element T>
[[nodiscard]] auto send(typed::MeshLane& lane, unsigned peer, typed::Segment<T>&& from,
                        std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from), [&lane, peer](typed::Segment<T>&& part) { return lane.start_send(peer, std::move(part)); },
      deadline);
}
/// The same of a ConstSegment.
template <typed::Element T>
[[nodiscard]] auto send(typed::MeshLane& lane, unsigned peer, typed::ConstSegment<T> from,
                        std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from), [&lane, peer](typed::ConstSegment<T>&& part) { return lane.start_send(peer, std::move(part)); },
      deadline);
}
/// Sends all of `from`, with a number for the receiver.
template <typed::Element T>
[[nodiscard]] auto send_with_immediate(typed::MeshLane& lane, unsigned peer, typed::Segment<T>&& from,
                                       std::uint32_t immediate, std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from),
      [&lane, peer, immediate](typed::Segment<T>&& part) { return lane.start_send(peer, std::move(part), immediate); },
      deadline);
}
/// Takes the peer's next message, to the front of `to`; see typed::MeshLane::start_receive.
template <typed::Element T>
[[nodiscard]] auto receive(typed::MeshLane& lane, unsigned peer, typed::Segment<T>&& to,
                           std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(to), [&lane, peer](typed::Segment<T>&& part) { return lane.start_receive(peer, std::move(part)); },
      deadline);
}
/// Reads from.size() elements to the front of `to`.
template <typed::Element T>
[[nodiscard]] auto read(typed::MeshLane& lane, typed::Segment<T>&& to,
                        const std::type_identity_t<typed::PeerSegment<const T>>& from,
                        std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(to), [&lane, from](typed::Segment<T>&& part) { return lane.start_read(std::move(part), from); },
      deadline);
}
/// Writes all of `from` to the front of `to`.
template <typed::Element T>
[[nodiscard]] auto write(typed::MeshLane& lane, typed::Segment<T>&& from,
                         const std::type_identity_t<typed::PeerSegment<T>>& to,
                         std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from), [&lane, to](typed::Segment<T>&& part) { return lane.start_write(std::move(part), to); },
      deadline);
}
/// The same of a ConstSegment.
template <typed::Element T>
[[nodiscard]] auto write(typed::MeshLane& lane, typed::ConstSegment<T> from,
                         const std::type_identity_t<typed::PeerSegment<T>>& to,
                         std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from), [&lane, to](typed::ConstSegment<T>&& part) { return lane.start_write(std::move(part), to); },
      deadline);
}
/// The same, and the peer is told once the elements are there.
template <typed::Element T>
[[nodiscard]] auto write_with_immediate(typed::MeshLane& lane, typed::Segment<T>&& from,
                                        const std::type_identity_t<typed::PeerSegment<T>>& to, std::uint32_t immediate,
                                        std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::move(from),
      [&lane, to, immediate](typed::Segment<T>&& part) { return lane.start_write(std::move(part), to, immediate); },
      deadline);
}
/// Adds `delta` to the first element of `word`: the value before. kUnsupported: the NIC has none.
template <std::same_as<std::uint64_t> T>
[[nodiscard]] auto fetch_add(typed::MeshLane& lane, const typed::PeerSegment<T>& word, std::uint64_t delta,
                             std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_atomic([&lane, word, delta] { return lane.start_fetch_add(word, delta); }, deadline);
}
/// Sets the first element of `word` to `desired` if it is `expected`; otherwise as fetch_add.
template <std::same_as<std::uint64_t> T>
[[nodiscard]] auto compare_swap(typed::MeshLane& lane, const typed::PeerSegment<T>& word, std::uint64_t expected,
                                std::uint64_t desired, std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_atomic(
      [&lane, word, expected, desired] { return lane.start_compare_swap(word, expected, desired); }, deadline);
}
/// Awaits the end of all that was started with the peer before but receives; see typed::MeshLane::start_flush.
[[nodiscard]] inline auto flush(typed::MeshLane& lane, unsigned peer, std::optional<Deadline> deadline = {}) noexcept {
  return detail::start_wait(
      std::tuple<>(), [&lane, peer](std::tuple<>&& /*nothing*/) { return lane.start_flush(peer); }, deadline);
}

}  // namespace verbena::coroutine

#pragma GCC visibility pop
