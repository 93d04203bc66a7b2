// Marks for a ping-pong that polls memory: each side sees the other's writes by their last byte.
#pragma once

#include "base/relax.hpp"

#include <verbena/deadline.hpp>
#include <verbena/rdma.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace verbena::programs {

/// The last byte of a write lands last. Memory is 0 at first; the rounds' marks are 1, 2 to 255, 2 to 255, and so on.
inline constexpr std::uint8_t kFirstMark = 1;
/// After any round: ends the ping-pong.
inline constexpr std::uint8_t kStopMark = 0;
[[nodiscard]] constexpr std::uint8_t next_mark(std::uint8_t mark) noexcept {
  return mark == 255 ? kFirstMark + 1 : static_cast<std::uint8_t>(mark + 1);
}

inline void set_mark(std::span<std::byte> bytes, std::uint8_t mark) noexcept {
  // Reads a whole word: an eight-byte load that covers a byte just stored waits until the store is in the cache.
  const std::uint64_t word = std::uint64_t{mark} << 56;
  if (bytes.size() >= sizeof word) {
    std::memcpy(bytes.data() + bytes.size() - sizeof word, &word, sizeof word);
  } else {
    bytes.back() = static_cast<std::byte>(mark);
  }
}

/// Polls until `last` is the mark. Other results: kClosed (the stop mark), kTimedOut (neither mark within `patience`),
/// or the reason why the connection is dead. Overwrites the first byte of `own`. \thread owner
[[nodiscard]] inline Status await_mark(const std::byte& last, std::uint8_t mark, rdma::Connection& connection,
                                       const rdma::Local& own, const rdma::Remote& theirs,
                                       std::chrono::milliseconds patience) noexcept {
  constexpr unsigned kLookEvery = 1024;  // Rare enough that the look does not show in the figure.
  Deadline end = Deadline::never();
  for (unsigned polls = 1;; ++polls) {
    const std::uint8_t seen = __atomic_load_n(reinterpret_cast<const std::uint8_t*>(&last), __ATOMIC_ACQUIRE);
    if (seen == mark) return Status::kOk;
    relax();
    if (polls % kLookEvery != 0) continue;
    if (seen == kStopMark && mark != kFirstMark) return Status::kClosed;
    // No call only drives a connection. A read shows whether it has ended, and sends out earlier posts.
    rdma::Remote one = theirs;
    one.length = 1;
    if (const Status status = connection.read(own, one); status != Status::kOk) return status;
    if (end.is_never()) end = Deadline::after(patience);
    if (end.passed()) return Status::kTimedOut;
  }
}

}  // namespace verbena::programs
