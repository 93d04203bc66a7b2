// A connection's options, and the types that all of its parts share.
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
  std::uint64_t lease_bytes = 0;     ///< Window that this side gives the peer for large messages; 0 refuses them.
  std::uint64_t fragment_bytes =
      256 * 1024;  ///< Largest fragment sent, at least 1 KiB; a quarter of the peer's lease if that is less.
  std::uint32_t max_reads = 16;  ///< READs of this side in flight (the NIC's depth may lower it); more queue, up to
                                 ///< max_operations in all, and are posted as credits return.
  std::uint32_t max_operations = 64;  ///< Operations started and not yet complete. 1 to 4096.
  std::uint32_t max_larges = 16;      ///< Large messages among them, at most. 0 to 4096.
  std::uint32_t reservations = 0;     ///< Messages that this side may write in place at a time. 0 to 1024.
  std::uint32_t staged = 32;          ///< Messages above the NIC's inline limit in flight at a time, at most. 1 to 32.
  std::uint32_t held = 32;            ///< Posts that share a doorbell, at most. 0 to 32.
  bool keeps_messages = false;        ///< Handlers may call Connection::keep_message: every message is in a receive.
  std::optional<unsigned> node{};     ///< NUMA node of the buffers and the lease; best is that of the loop's thread.
  std::uint32_t first_count = 0;      ///< Where this side's wrapping counters start; tests of wrap-around set it.
};

/// Checks the ranges above, and the send queue against the NIC. Errors: kBadArgument or kLimit, naming the option.
/// \thread any  \alloc none
[[nodiscard]] Result<void> check(const Options& options, const nic::Nic& nic);
/// Work requests of the send queue, without its reserve. \thread any  \alloc none
[[nodiscard]] std::uint32_t sends_for(const Options& options) noexcept;
/// Entries that one connection takes from its loop's LoopOptions::cqe. \thread any  \alloc none
[[nodiscard]] std::uint32_t completions_needed(const Options& options) noexcept;
/// The queue sizes of one connection. \thread any  \alloc none
[[nodiscard]] engine::QueueOptions queues_needed(const Options& options) noexcept;

/// An atomic on eight bytes of the peer.
struct Change {
  ibv_wr_opcode opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;  ///< Or IBV_WR_ATOMIC_CMP_AND_SWP.
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
};

/// How a started operation ended.
struct Completion {
  std::uint64_t token = 0;  ///< The token it was started with.
  Status status = Status::kOk;
  std::uint64_t old = 0;  ///< An atomic's old value.
};

/// One piece of a large message, as the receiver sees it. A large message arrives as consecutive fragments of one
/// connection, in order, not interleaved with other large messages (eager messages may come between).
struct Fragment {
  std::uint64_t total = 0;           ///< Bytes of the whole message: the peer's claim, the same in all fragments.
  std::uint64_t offset = 0;          ///< Where these bytes start in the message; counted by the receiver, not claimed.
  std::span<const std::byte> bytes;  ///< In the lease, which the peer can still write: copy once, then check.
  [[nodiscard]] bool last() const noexcept { return offset + bytes.size() == total; }
};
static_assert(sizeof(Fragment) == 32);

/// A connection's callbacks, called in the thread that polls its loop. A handler may send and post on any connection of
/// the loop and may call `fail`; it must not destroy a connection or wait.
class Handler {
 public:
  /// An eager message. `body` is private memory of this side, valid until the return.
  virtual void on_message(Connection& connection, std::span<const std::byte> body) noexcept = 0;
  /// A piece of a large message. Its bytes return to the peer as lease credit when this returns. Called only if
  /// Options::lease_bytes is not 0. The default treats it as a protocol violation.
  virtual void on_fragment(Connection& connection, const Fragment& fragment) noexcept;
  /// A started operation is complete: kOk, or the reason of its failure. Its memory belongs to the caller again.
  virtual void on_complete(Connection& connection, const Completion& completion) noexcept = 0;
  /// Called after a poll that brought something, once Connection::tell_of_room was called: retry what returned kAgain.
  virtual void on_room(Connection& /*connection*/) noexcept {}
  /// The connection is dead. Called once, after on_complete for every operation in flight. kClosed: one of the sides
  /// left in order.
  virtual void on_end(Connection& connection, Status reason) noexcept = 0;

 protected:
  ~Handler() = default;
};

}  // namespace verbena::channel
