/// \file
/// The status enum of the whole library, grouped by the largest thing that is damaged.
#pragma once

#if __cplusplus <= 202002L
#error "Verbena needs C++23: compile with -std=c++23 (GCC 12 or Clang 19 and later)"
#endif

#include <cstdint>

#pragma GCC visibility push(default)

namespace verbena {

/// The outcome of an operation. The groups are in the order of damage, except the last one; `damage_of` returns the
/// group.
enum class Status : std::uint8_t {
  kOk = 0,

  // Nothing is damaged: back-pressure and time.
  kAgain,     ///< A queue is full or credit is used up. Complete something, then try again.
  kTimedOut,  ///< The deadline passed. The operation's effect at the peer is unknown unless the call says otherwise.

  // The operation failed; the connection and everything else go on.
  kNotFound,         ///< No such key, window or name.
  kVersionMismatch,  ///< A compare-and-swap found another version; the call also returns the current one.
  kBadKey,           ///< A key is empty or longer than the limit.
  kTooLong,          ///< A value or message is longer than the configured limit.
  kBufferTooSmall,   ///< The caller's buffer cannot hold the answer; the call also returns the length needed.
  kStoreFull,        ///< The store has no free memory for this value; the old value stays readable.
  kIndexFull,        ///< The store's index has no place for another key: raise max_items.
  kWrongKind,        ///< The key has a cell and the operation is for values, or the other way round.
  kBadArgument,      ///< The caller passed something that can never work.
  kOutOfRange,       ///< The access is not inside the window or memory region.
  kLocalAccess,      ///< A local key does not cover the buffer, or lacks the right.
  kUnsupported,      ///< This NIC, or this release, does not have it.
  kBusy,             ///< Something still uses the object.

  // The connection is damaged: it is in error; connect again.
  kPeerLost,           ///< The peer's process, host or link is gone: its NIC no longer answers.
  kConnectionRefused,  ///< Nothing listens there.
  kRejected,           ///< The peer refused; the text has its reason.
  kProtocol,           ///< The peer broke the protocol, or speaks another version.
  kRemoteAccess,       ///< The peer's NIC refused a remote key, range or right.
  kRemoteInvalid,      ///< The peer's NIC refused the request's form, such as a message longer than its receive.
  kRetryExceeded,      ///< The peer's NIC never answered: wrong addresses, or a firewall (UDP 4791 for RoCE).
  kRnrExceeded,        ///< The peer posted no receive within the retries.
  kFlushed,            ///< The queue pair went to error before this operation was executed.
  kClosed,             ///< This side or the peer closed the connection in an orderly way.
  kNotAllowed,         ///< The peer's user is not on the allow-list.
  kOtherNamespace,     ///< Same host, but another network or PID namespace.
  kOtherHost,          ///< The peer is on another host, which the soft NIC cannot reach.

  // The device, the process or the machine lacks something.
  kNoMemory,    ///< There is not enough memory; the text names the limit.
  kLimit,       ///< A configured or system limit is reached; the text names it.
  kPermission,  ///< The system refused; the text names the capability or setting.
  kDevice,      ///< The NIC failed or is gone.
  kSystem,      ///< A system call failed in a way that has no group of its own; errno is saved.
  kForked,      ///< This process was forked from one that uses Verbena: its connections belong to the parent.

  // The operation failed; the connection and everything else go on. They are last because they came later, and the
  // numbers of the others are in protocols and programs.
  kDenied,     ///< The user has no right to do this; the text names the right, the user and the prefix.
  kOverQuota,  ///< The user's quota of memory or items is used up; the text has its numbers.
  kCancelled,  ///< This side gave the operation up (verbena/coroutines.hpp). Its effect at the peer is unknown.
};

/// The largest thing that is damaged.
enum class Damage : std::uint8_t { kNone, kOperation, kConnection, kDevice };

/// The group of `status`. \thread any  \alloc none
[[nodiscard]] constexpr Damage damage_of(Status status) noexcept {
  if (status <= Status::kTimedOut) return Damage::kNone;
  if (status <= Status::kBusy || status >= Status::kDenied) return Damage::kOperation;
  if (status <= Status::kOtherHost) return Damage::kConnection;
  return Damage::kDevice;
}

/// A short lower-case name, such as "peer lost". Static storage. \thread any  \alloc none
[[nodiscard]] const char* to_string(Status status) noexcept;

}  // namespace verbena

#pragma GCC visibility pop
