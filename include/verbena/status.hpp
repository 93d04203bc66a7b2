// The one status enum, grouped by the largest thing that is damaged.
#pragma once

#if __cplusplus <= 202002L
#error "Verbena needs C++23: compile with -std=c++23 (GCC 12 or Clang 19 and later)"
#endif

#include <cstdint>

#pragma GCC visibility push(default)

namespace verbena {

/// The outcome of an operation. The order of the groups is the order of damage, but for the last one; `damage_of`
/// returns the group.
enum class Status : std::uint8_t {
  kOk = 0,

  // Nothing is damaged: back-pressure and time.
  kAgain,     ///< A queue or credit is used up. Complete something, then try again.
  kTimedOut,  ///< The deadline passed. The operation's effect at the peer is unknown unless the call says otherwise.

  // The operation failed; the connection and everything else go on.
  kNotFound,         ///< No such key, window or name.
  kVersionMismatch,  ///< A compare-and-swap met another version; the current one is returned beside it.
  kBadKey,           ///< A key is empty or longer than the limit.
  kTooLong,          ///< A value or message is longer than the configured limit.
  kBufferTooSmall,   ///< The caller's buffer cannot hold the answer; the length needed is returned beside it.
  kStoreFull,        ///< No memory of the store is free for this value; what was there stays readable.
  kIndexFull,        ///< The store's index has no place for another key: raise max_items.
  kWrongKind,        ///< The key is a cell's and the operation is for values, or the other way round.
  kBadArgument,      ///< The caller passed something that can never work.
  kOutOfRange,       ///< The access is not inside the window or memory region.
  kLocalAccess,      ///< A local key does not cover the buffer, or lacks the right.
  kUnsupported,      ///< This NIC, or this release, does not have it.
  kBusy,             ///< Something still uses the object.

  // The connection is damaged: it is in error and must be made anew.
  kPeerLost,           ///< The peer's process, host or link is gone: its NIC answers no more.
  kConnectionRefused,  ///< Nothing listens there.
  kRejected,           ///< The peer answered and said no; the text has its reason.
  kProtocol,           ///< The peer broke the protocol, or speaks another version.
  kRemoteAccess,       ///< The peer's NIC refused a remote key, range or right.
  kRemoteInvalid,      ///< The peer's NIC refused the request's form, such as a message longer than its receive.
  kRetryExceeded,      ///< The peer's NIC never answered: wrong addresses, or a firewall (UDP 4791 for RoCE).
  kRnrExceeded,        ///< The peer posted no receive within the retries.
  kFlushed,            ///< The queue pair went to error before this operation was executed.
  kClosed,             ///< This side or the peer closed the connection in order.
  kNotAllowed,         ///< The peer's user is not on the allow-list.
  kOtherNamespace,     ///< Same host, but another network or PID namespace.
  kOtherHost,          ///< The soft NIC was asked for a peer on another host.

  // The device, the process or the machine lacks something.
  kNoMemory,    ///< Memory could not be had; the text names the limit.
  kLimit,       ///< A configured or system limit is reached; the text names it.
  kPermission,  ///< The system refused; the text names the capability or setting.
  kDevice,      ///< The NIC failed or is gone.
  kSystem,      ///< A system call failed in a way that has no group of its own; errno is saved.
  kForked,      ///< This process was forked from one that uses Verbena: its connections are the parent's.

  // The operation failed; the connection and everything else go on. These came later, and the numbers of the others
  // travel between processes and stand in programs.
  kDenied,     ///< The user has no right to do this; the text names the right, the user and the prefix.
  kOverQuota,  ///< The user's quota of memory or items is used up; the text has its numbers.
};

/// The largest thing that a status says is damaged.
enum class Damage : std::uint8_t { kNone, kOperation, kConnection, kDevice };

/// The group of `status`. \thread any  \alloc none
[[nodiscard]] constexpr Damage damage_of(Status status) noexcept {
  if (status <= Status::kTimedOut) return Damage::kNone;
  if (status <= Status::kBusy || status == Status::kDenied || status == Status::kOverQuota) return Damage::kOperation;
  if (status <= Status::kOtherHost) return Damage::kConnection;
  return Damage::kDevice;
}

/// A short lower-case name, such as "peer lost". Static storage. \thread any  \alloc none
[[nodiscard]] const char* to_string(Status status) noexcept;

}  // namespace verbena

#pragma GCC visibility pop
