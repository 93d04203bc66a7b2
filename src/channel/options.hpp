// What a connection is made with, and the words that all of its parts use.
#pragma once

#include "engine/queue_pair.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace verbena::channel {

class Connection;

using engine::LocalSpan;
using engine::Patience;
using engine::RemoteSpan;

struct Options {
  std::uint32_t depth = 64;          ///< Eager messages that the peer may have in flight to us. 4 to 4096.
  std::uint32_t eager_bytes = 5248;  ///< Largest eager body. A multiple of 64. 64 B to 16 KiB.
  std::uint64_t lease_bytes = 0;     ///< Window that this side gives the peer for large messages; 0: refuses them.
  std::uint64_t fragment_bytes = 256 * 1024;  ///< Largest fragment sent, at least 1 KiB; a quarter of the peer's lease
                                              ///< when that is less.
  std::uint32_t max_reads = 16;       ///< READs of this side in flight (the NIC's depth may lower it); more queue up to
                                      ///< max_operations and are posted as credits return.
  std::uint32_t max_operations = 64;  ///< Operations started and not complete. 1 to 4096.
  std::uint32_t max_larges = 16;      ///< Large messages among them, at most. 0 to 4096.
  std::uint32_t reservations = 0;     ///< Messages that this side writes in place at a time. 0 to 1024.
  std::uint32_t staged = 32;          ///< Messages longer than the NIC's inline limit that are on the way at a time, at
                                      ///< most. 1 to 32.
  std::uint32_t held = 32;            ///< Posts that share a doorbell, at most. 0 to 32.
  std::optional<unsigned> node{};     ///< NUMA node of the buffers and the lease: that of the loop's thread, best.
  std::uint32_t first_count = 0;      ///< Where this side's wrapping counters start; tests of wrap-around set it.
};

/// Checks the ranges that Options names, and the send queue against the NIC. kBadArgument or kLimit, naming the option.
/// \thread any  \alloc none
[[nodiscard]] Result<void> check(const Options& options, const nic::Nic& nic);
/// Work requests of the send queue, its reserve excluded. \thread any  \alloc none
[[nodiscard]] std::uint32_t sends_for(const Options& options) noexcept;
/// Entries that one connection takes of its loop's LoopOptions::cqe. \thread any  \alloc none
[[nodiscard]] std::uint32_t completions_needed(const Options& options) noexcept;
/// The queues of one connection. \thread any  \alloc none
[[nodiscard]] engine::QueueOptions queues_needed(const Options& options) noexcept;

/// What an atomic does to eight bytes of the peer.
struct Change {
  ibv_wr_opcode opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;  ///< Or IBV_WR_ATOMIC_CMP_AND_SWP.
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
};

/// How a started operation ended.
struct Completion {
  std::uint64_t token = 0;  ///< As it was started with.
  Status status = Status::kOk;
  std::uint64_t old = 0;  ///< What an atomic found.
};

/// One piece of a large message, as the receiver sees it. A large message arrives as consecutive fragments of one
/// connection, in order, not interleaved with other large messages (eager messages may come between).
struct Fragment {
  std::uint64_t total = 0;           ///< Bytes of the whole message. A peer's claim, the same in all its fragments.
  std::uint64_t offset = 0;          ///< Of these bytes in the message; counted by the receiver, not claimed.
  std::span<const std::byte> bytes;  ///< In the lease, which the peer can still write: copy once, then check.
  [[nodiscard]] bool last() const noexcept { return offset + bytes.size() == total; }
};
static_assert(sizeof(Fragment) == 32);

/// What a connection calls, in the thread that polls its loop. A handler may send and post on any connection of the
/// loop and may call `fail`; it must not destroy a connection and must not wait.
class Handler {
 public:
  /// An eager message; `body` is private memory of this side, valid until the return.
  virtual void on_message(Connection& connection, std::span<const std::byte> body) noexcept = 0;
  /// A piece of a large message; the bytes go back to the peer as lease credit when this returns. Called only where
  /// Options::lease_bytes is not 0. By default a violation of the protocol.
  virtual void on_fragment(Connection& connection, const Fragment& fragment) noexcept;
  /// What was started is complete: kOk, or why not. Its memory is the caller's again.
  virtual void on_complete(Connection& connection, const Completion& completion) noexcept = 0;
  /// After a poll that brought something, where Connection::tell_of_room was called: what was kAgain may go now.
  virtual void on_room(Connection& /*connection*/) noexcept {}
  /// The connection is dead, once; every operation in flight has been completed through on_complete before. kClosed:
  /// one of the sides has left in order.
  virtual void on_end(Connection& connection, Status reason) noexcept = 0;

 protected:
  ~Handler() = default;
};

}  // namespace verbena::channel
