// The one credit-controlled message layer: SEND up to the eager limit, WRITE_WITH_IMM into the peer's lease above.
#pragma once

#include "engine/connection.hpp"
#include "engine/engine.hpp"
#include "link/link.hpp"
#include "nic/nic.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace verbena::message {

class Channel;

/// One piece of a large message, as the receiver sees it. A large message arrives as consecutive fragments of one
/// channel, in order, not interleaved with other large messages (eager messages may come between).
struct Fragment {
  std::uint64_t total = 0;           ///< Bytes of the whole message. A peer's claim, the same in all its fragments.
  std::uint64_t offset = 0;          ///< Of these bytes in the message; counted by the receiver, not claimed.
  std::span<const std::byte> bytes;  ///< In the lease, which the peer can still write: copy once, then check.
  [[nodiscard]] bool last() const noexcept { return offset + bytes.size() == total; }
};
static_assert(sizeof(Fragment) == 32);

/// What a channel calls, in the thread that polls its loop. A handler may send and post on the channel, and may call
/// `fail`; it must not destroy the channel from inside a call, but may have the loop dispose of it
/// (CompletionLoop::dispose), and must not wait.
class Handler {
 public:
  /// An eager message; `body` is private memory of this side, valid until the return.
  virtual void on_message(Channel& channel, std::span<const std::byte> body) noexcept = 0;
  /// A piece of a large message; the bytes go back to the peer as lease credit when this returns.
  virtual void on_fragment(Channel& channel, const Fragment& fragment) noexcept = 0;
  /// A READ, a WRITE or a send that was started with `token` is complete: kOk, or why not. Its memory is the caller's
  /// again.
  virtual void on_complete(Channel& channel, std::uint64_t token, Status status) noexcept = 0;
  /// The channel is dead, once; every operation in flight has been completed through on_complete before.
  virtual void on_failure(Channel& channel, Status reason) noexcept = 0;

 protected:
  ~Handler() = default;
};

/// When the loop gets to know a channel. Its receives are posted by the loop's thread, in the poll that follows.
enum class Attach : std::uint8_t {
  kInConnect,  ///< At the end of `connect`: the loop's thread may call the handler from then on, also while another
               ///< thread still finishes the bootstrap. Then only the loop's thread may destroy the channel.
  kByCaller,   ///< When `attach` is called. Until then no handler is called, and any thread may destroy the channel.
};

struct Options {
  std::uint32_t depth = 64;          ///< Eager messages that the peer may have in flight to us. 4 to 4096.
  std::uint32_t eager_bytes = 5248;  ///< Largest eager body. A multiple of 64. 64 B to 16 KiB.
  std::uint64_t lease_bytes = 0;     ///< Window that this side gives the peer for large messages; 0: refuses them.
  std::uint64_t fragment_bytes = 256 * 1024;  ///< Largest fragment sent, at least 1 KiB; a quarter of the peer's lease
                                              ///< when that is less.
  std::uint32_t max_reads = 16;       ///< READs of this side in flight (the NIC's depth may lower it); more queue up to
                                      ///< max_operations and are posted as credits return.
  std::uint32_t max_operations = 64;  ///< READs, WRITEs and sends started and not complete. 1 to 4096.
  Attach attach = Attach::kInConnect;
  std::optional<unsigned> node{};  ///< Of the buffers and the lease: the NUMA node of the loop's thread, best.
  std::uint32_t first_count = 0;   ///< Where this side's wrapping counters start; tests of wrap-around set it.
};

/// Entries that one channel takes of its loop's LoopOptions::cqe. \thread any  \alloc none
[[nodiscard]] std::uint32_t completions_needed(const Options& options) noexcept;
/// The queues of one channel. \thread any  \alloc none
[[nodiscard]] engine::QueueOptions queues_needed(const Options& options) noexcept;

using engine::LocalSpan;
using engine::RemoteSpan;

/// What an atomic does to eight bytes of the peer.
struct Change {
  ibv_wr_opcode opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;  ///< Or IBV_WR_ATOMIC_CMP_AND_SWP.
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
};

/// What Channel::create allocates. \thread any  \alloc setup
[[nodiscard]] host::Footprint footprint(nic::Kind kind, const nic::Limits& limits, const Options& options);

/// One QP with its receives, send buffers, credits and lease. Immovable.
/// \thread owner of the loop, except create, connect and local_endpoint (setup)  \alloc setup only
/// Destroying a channel that is alive ends what is in flight without a call of the handler.
class Channel {
 public:
  /// Makes the QP in RESET, registers buffers and the lease (an arena of its own, granted to the peer in `connect`).
  /// Errors: kBadArgument (an option out of its range), kLimit (the loop is full), and those of Arena and Nic.
  [[nodiscard]] static Result<std::unique_ptr<Channel>> create(engine::CompletionLoop& loop, ibv_pd* pd,
                                                               const Options& options, Handler& handler);
  virtual ~Channel() = default;

  /// What to hand to the peer, and to `connect` as `local`. `user_data` up to kMaxUserBytes rides along. May be called
  /// again for other user data: the rest of the endpoint stays as it is.
  /// RDMA CM carries less of it: see link::kMaxCmRequestBytes.
  static constexpr std::size_t kMaxUserBytes = link::kMaxPrivateBytes - 64;
  [[nodiscard]] virtual Result<link::Endpoint> local_endpoint(std::span<const std::byte> user_data) = 0;
  /// The peer's user data out of its endpoint; kProtocol when this layer's part of it is not well-formed.
  [[nodiscard]] static Result<std::span<const std::byte>> user_data_of(const link::Endpoint& remote);
  /// Grants the lease, brings the QP to RTS on the way that the bootstrap found (Dialed::how, Incoming::how; none for
  /// blobs), and attaches unless the options say otherwise. The peer's lease is
  /// imported by `open_lease`, after the bootstrap's READY exchange, because only then does the peer surely hand it
  /// out.
  [[nodiscard]] virtual Result<void> connect(const link::Endpoint& local, const link::Endpoint& remote,
                                             Deadline deadline, const link::BringUp& how = {}) = 0;
  /// Keeps what the bootstrap's `finish` returned until the channel ends. \thread setup
  virtual void keep(link::Lifeline lifeline) noexcept = 0;
  [[nodiscard]] virtual Result<void> open_lease(Deadline deadline) = 0;
  /// Hands the channel to the loop's thread (Attach::kByCaller, once, after `connect`). \thread any
  virtual void attach() noexcept = 0;

  /// Sends one eager message gathered from up to three parts (total 1 to eager_bytes of the peer). The parts are free
  /// when it returns. kAgain: no credit or no send-queue slot now; poll and try again. kTooLong, or the reason of
  /// death.
  [[nodiscard]] virtual Status send(std::span<const std::byte> a, std::span<const std::byte> b = {},
                                    std::span<const std::byte> c = {}) noexcept = 0;
  /// The same with a completion: on_complete(token) once the peer's NIC has the message. A software NIC hands on what
  /// did not fit into its ring only while this side polls. kAgain, too, when max_operations are in flight.
  [[nodiscard]] virtual Status start_send(std::span<const std::byte> a, std::span<const std::byte> b,
                                          std::uint64_t token) noexcept = 0;
  /// Starts a large message: `head` (at most 2 KiB, copied now), then `body` (registered memory of this side, which
  /// must stay as it is until on_complete(token)). Fragments go out as the peer's lease has room, during later polls.
  /// Large messages leave in the order they were started. kAgain when max_operations are in flight; kUnsupported when
  /// the peer gives no lease or `open_lease` was not called.
  [[nodiscard]] virtual Status start_large(std::span<const std::byte> head, LocalSpan body,
                                           std::uint64_t token) noexcept = 0;
  /// Starts a READ of remote.length bytes into local (same length or longer). Split into requests the NIC can take.
  /// kAgain when max_operations are in flight; kBadArgument (nothing to read, or the local span is too short),
  /// kNotFound (no imported window has that key), kOutOfRange, kRemoteAccess: nothing was posted.
  [[nodiscard]] virtual Status start_read(LocalSpan local, RemoteSpan remote, std::uint64_t token) noexcept = 0;
  /// Starts a WRITE of all of `local` to the front of `remote`; otherwise as start_read. It is there before whatever is
  /// sent or started after it, but for READs: an eager message is kAgain until the WRITE is posted.
  [[nodiscard]] virtual Status start_write(LocalSpan local, RemoteSpan remote, std::uint64_t token) noexcept = 0;
  /// Starts an atomic on a word of the peer, aligned to 8 (else kBadArgument); what was there comes to `result`, as
  /// many bytes of registered memory. Otherwise as start_read. kUnsupported, too: this side's device has no atomics.
  [[nodiscard]] virtual Status start_atomic(const Change& change, LocalSpan result, RemoteSpan word,
                                            std::uint64_t token) noexcept = 0;
  /// The same as start_read and start_write, and waits; with their errors, and kAgain (nothing was posted: there is no
  /// room, or others wait for it). The memory is the caller's own: past the deadline the channel fails with kTimedOut,
  /// and is drained before this returns. `timeout` is counted from the first empty poll: the clock is not read before.
  /// Not from a handler, where it is kAgain.
  [[nodiscard]] virtual Status read(LocalSpan local, RemoteSpan remote, std::chrono::nanoseconds timeout) noexcept = 0;
  [[nodiscard]] virtual Status write(LocalSpan local, RemoteSpan remote, std::chrono::nanoseconds timeout) noexcept = 0;
  /// The same, and an atomic, on memory that need not be registered, where the NIC is made of software and can carry it
  /// out at once, in the calling thread. kAgain, and nothing has happened: it is not so.
  [[nodiscard]] virtual Status read_now(std::span<std::byte> to, RemoteSpan from) noexcept = 0;
  [[nodiscard]] virtual Status write_now(std::span<const std::byte> from, RemoteSpan to) noexcept = 0;
  [[nodiscard]] virtual Status change_now(const Change& change, RemoteSpan word, std::uint64_t& old) noexcept = 0;
  /// The same for a list of READs out of one window, 1 to nic::Direct::kMaxList: all of them, or nothing has happened.
  [[nodiscard]] virtual Status read_list_now(std::span<const nic::PlainRead> reads, std::uint32_t rkey) noexcept = 0;
  /// Makes a window of the peer usable with what starts READs, WRITEs and atomics. At most 64. \thread setup, or owner
  [[nodiscard]] virtual Result<void> import_window(const nic::Window& window, Deadline deadline) = 0;
  /// Whether a window is imported already.
  [[nodiscard]] virtual bool is_usable(const nic::Window& window) noexcept = 0;
  [[nodiscard]] virtual Result<void> release_window(const nic::Window& window) = 0;
  /// Makes a window usable that the caller has imported on `queue_pair` itself, in place of the one lent before.
  virtual void lend_window(const nic::Window& window) noexcept = 0;
  /// Binds a window of type 2 (nic::Nic::alloc_mw) for the peer, under the key `rkey`: what is sent after it finds the
  /// window bound. kAgain: the send queue has no room now. A binding that the NIC refuses ends the channel.
  [[nodiscard]] virtual Status bind(ibv_mw& window, std::uint32_t rkey, const ibv_mw_bind_info& info) noexcept = 0;
  /// Takes a bound window back: once on_complete(token) says kOk the peer reaches its memory no more. kAgain, and
  /// nothing has happened: the send queue has no room, or max_operations are in flight.
  [[nodiscard]] virtual Status start_invalidate(std::uint32_t rkey, std::uint64_t token) noexcept = 0;
  /// The raw queue pair; null once a drain had to destroy it.
  [[nodiscard]] virtual ibv_qp* queue_pair() const noexcept = 0;

  /// Batches: what is sent and started from `hold` to as many calls of `release` goes out by one doorbell (see
  /// engine::Batch); or at `flush`, or at the next poll of the loop. Calls of the handler are in a batch already when a
  /// poll brought several completions.
  virtual void hold() noexcept = 0;
  virtual void release() noexcept = 0;
  virtual void flush() noexcept = 0;

  /// The handler is not called any more, and the channel fails with kClosed if it has not failed. To destroy it from a
  /// call of its handler: CompletionLoop::dispose.
  virtual void mute() noexcept = 0;
  /// Kills the channel with `reason`: the QP goes to error and drains during polls; on_failure follows.
  virtual void fail(Status reason) noexcept = 0;
  [[nodiscard]] virtual bool alive() const noexcept = 0;
  /// True once nothing of it is in flight any more, after a failure: it can be destroyed without quarantine.
  [[nodiscard]] virtual bool drained() const noexcept = 0;
  [[nodiscard]] virtual Status failure() const noexcept = 0;
  /// Longest message that `send` takes: what the peer receives, and this side's own eager_bytes where the NIC's inline
  /// limit is smaller than that.
  [[nodiscard]] virtual std::uint32_t peer_eager_bytes() const noexcept = 0;
  /// Eager messages that could be sent now.
  [[nodiscard]] virtual std::uint32_t credits() const noexcept = 0;
  [[nodiscard]] virtual Result<nic::PeerProcess> peer() const = 0;
};

}  // namespace verbena::message
