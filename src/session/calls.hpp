// Calls that are under way, and queues of them.
#pragma once

#include "base/futex.hpp"
#include "channel/options.hpp"
#include "session/wire.hpp"

#include <verbena/rdma_types.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace verbena::session {

/// A call is its caller's, who waits until it is done. Everything but `is_done` is of the thread that drives the
/// session, once the call has begun.
struct Call {
  Status status = Status::kOk;
  bool is_awaited = false;  ///< Another thread waits than the one that drives the session.
  std::atomic<std::uint32_t> is_done{0};

  /// Don't touch the call afterwards: its caller may have gone when this returns.
  void finish(Status outcome) noexcept {
    status = outcome;
    const bool wakes = is_awaited;
    const std::atomic<std::uint32_t>& word = is_done;
    is_done.store(1, std::memory_order_release);
    if (wakes) wake_waiters(word);
  }
  [[nodiscard]] bool done() const noexcept { return is_done.load(std::memory_order_acquire) != 0; }
};

/// Calls in the order they came. \thread owner
template <class Kind>
class CallQueue {
 public:
  [[nodiscard]] Kind* first() const noexcept { return first_; }
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  void push(Kind& call) noexcept {
    call.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &call;
    last_ = &call;
  }
  void remove(const Kind& call) noexcept {
    Kind* before = nullptr;
    for (Kind* at = first_; at != nullptr; before = at, at = at->next) {
      if (at != &call) continue;
      (before == nullptr ? first_ : before->next) = at->next;
      if (last_ == at) last_ = before;
      return;
    }
  }
  /// Takes a call out and finishes it.
  void finish(Kind& call, Status outcome) noexcept {
    remove(call);
    call.finish(outcome);
  }
  void finish_all(Status outcome) noexcept {
    while (first_ != nullptr) finish(*first_, outcome);
  }

 private:
  Kind* first_ = nullptr;
  Kind* last_ = nullptr;
};

/// READ, WRITE or atomic.
struct TransferCall : Call {
  enum class Kind : std::uint8_t { kWrite, kRead, kAtomic };
  enum class Space : std::uint8_t { kKey, kPhysical };
  Kind kind = Kind::kWrite;
  Space space = Space::kKey;   ///< Whether `remote` is in a window of the peer or in its physical memory.
  bool is_registered = false;  ///< `local` is registered as `lkey`; else the bytes go through chunks.
  bool is_started = false;     ///< The user started it and waits for a completion with `cookie`.
  std::byte* local = nullptr;
  std::uint32_t lkey = 0;
  channel::RemoteSpan remote;
  channel::Change change;     ///< The change of an atomic.
  std::uint64_t started = 0;  ///< Bytes with the connection.
  std::uint32_t parts = 0;    ///< Operations of the connection under way.
  std::uint64_t old = 0;      ///< The value before an atomic.
  std::uint64_t cookie = 0;
  TransferCall* next = nullptr;

  /// Makes it one between registered memory of this side and `to`.
  void set_registered(Kind what, const channel::LocalSpan& memory, Space where,
                      const channel::RemoteSpan& to) noexcept {
    kind = what;
    space = where;
    is_registered = true;
    local = memory.data;
    lkey = memory.lkey;
    remote = to;
  }
};

/// A message on its way out.
struct SendCall : Call {
  wire::Kind kind = wire::Kind::kData;
  std::optional<std::uint32_t> immediate;
  const std::byte* from = nullptr;
  std::uint64_t length = 0;             ///< With kWritten: bytes written.
  std::uint64_t offset = 0;             ///< With kWritten: offset in the window.
  const TransferCall* after = nullptr;  ///< This message leaves after that transfer.
  std::uint64_t sent = 0;               ///< Bytes.
  bool is_sent = false;                 ///< All bytes left; its receipt is awaited, if any.
  std::uint64_t receipt = 0;            ///< The number of its receipt, while that is awaited.
  SendCall* next = nullptr;
};

/// Takes the next message.
struct ReceiveCall : Call {
  std::byte* to = nullptr;
  std::size_t length = 0;
  std::size_t filled = 0;
  std::size_t needed = 0;  ///< With kBufferTooSmall: length of the message.
  rdma::Message message;
  ReceiveCall* next = nullptr;
};

/// Asks for a window of the peer, by its name or by its key.
struct AskCall : Call {
  std::string_view name;
  std::uint32_t rkey = 0;
  std::uint64_t number = 0;  ///< 0: not asked yet.
  bool is_absent = false;    ///< The peer has answered that there is none yet.
  rdma::Window found;
  AskCall* next = nullptr;
};

/// Takes the next completion of a started operation.
struct TakeCall : Call {
  rdma::Completion completion;
  TakeCall* next = nullptr;
};

}  // namespace verbena::session
