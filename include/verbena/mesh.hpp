/// \file
/// The mesh: N processes by T threads, thread i of each connected to thread i of all others.
#pragma once

#include <verbena/counters.hpp>
#include <verbena/deadline.hpp>
#include <verbena/error.hpp>
#include <verbena/rdma_types.hpp>
#include <verbena/transport.hpp>
#include <verbena/wait_policy.hpp>

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace verbena::mesh {

/// Most processes of a mesh.
inline constexpr unsigned kMaxProcesses = 16'384;
/// Most threads of each process.
inline constexpr unsigned kMaxThreads = 256;
/// Longest message in bytes.
inline constexpr std::size_t kMaxMessageBytes = 16 * 1024 - 64;
/// Longest value that Lane::gather exchanges.
inline constexpr std::size_t kMaxGatherBytes = 64;

/// A blob tells the others where a process listens, and its incarnation, before they are connected. Plain bytes of one
/// length, so that MPI_Allgather, PMIx, a file or a socket can carry them.
inline constexpr std::size_t kBlobBytes = 256;
/// The bytes of a blob.
using Blob = std::array<std::byte, kBlobBytes>;

/// Carries blobs between the processes. The mesh trusts it only with where a process may be found; it checks everything
/// else itself. One thread at a time calls it, not always the one that made it.
class Carrier {
 public:
  virtual ~Carrier() = default;
  /// Publishes the blob of this process. It replaces the one from before a restart.
  [[nodiscard]] virtual Result<void> publish(unsigned id, const Blob& blob, Deadline deadline) = 0;
  /// The newest blob of process `id`. kAgain: not known yet, ask again later. Does not wait.
  [[nodiscard]] virtual Result<Blob> find(unsigned id) = 0;
};

/// Uses a directory that all processes see, with a file for each of them. `directory` must exist. Other meshes in it
/// must have another `job` (1 to 64 letters, digits, '.', '-' and '_'). Errors: kBadArgument, kNotFound.
[[nodiscard]] Result<std::unique_ptr<Carrier>> directory_carrier(std::string_view directory, std::string_view job);
/// Uses a list that all processes have: process i listens at entry i, "host:port" or "[address]:port". Options::port
/// must be the port of this process's entry. Errors: kBadArgument (the text names the entry).
[[nodiscard]] Result<std::unique_ptr<Carrier>> host_list_carrier(std::span<const std::string> hosts);
/// A collective call of your program, such as MPI_Allgather: gives all processes `mine`, and puts those of all, by id,
/// into `all`.
using AllGather = Result<void> (*)(const Blob& mine, std::span<Blob> all, void* context);
/// Exchanges all blobs by one call of `gather`, which gets `context`.
[[nodiscard]] std::unique_ptr<Carrier> gather_carrier(unsigned processes, AllGather gather, void* context);

/// Options of a process. Those marked with * must be the same in all processes; a process with other ones is refused.
struct Options {
  unsigned id = 0;                   ///< This process. 0 to processes - 1.
  unsigned processes = 1;            ///< * 1 to kMaxProcesses.
  unsigned threads = 1;              ///< * Lanes of each process. 1 to kMaxThreads.
  std::string job{};                 ///< * Distinguishes meshes that could find each other. 0 to 64 bytes.
  std::string device{};              ///< As Transport::device.
  std::string address{};             ///< Listens there. Empty: the device's own address, else loopback.
  std::uint16_t port = 0;            ///< 0 takes any free port.
  std::size_t message_bytes = 1024;  ///< * Longest message. 1 to kMaxMessageBytes.
  unsigned depth = 8;                ///< Messages of each peer on the way to one lane, or unreleased there. 4 to 4096.
  unsigned operations = 32;          ///< Operations that one lane may have in flight to each peer. 1 to 2000.
  unsigned reservations = 8;         ///< Reservations that a lane may hold for each peer. 0 to 1024.
  unsigned batch = 1;                ///< Posts to one peer that share a doorbell. 1 to 32, at most `operations`.
  WaitPolicy wait = WaitPolicy::kAdaptive;  ///< How `wait`, `find` and `gather` wait.
  std::chrono::microseconds spin{50};       ///< With kAdaptive a lane polls this long before it sleeps. 0 to 1 s.
  std::chrono::milliseconds join_timeout{30'000};  ///< Deadline of Mesh::join.
  std::vector<uid_t> allowed_uids{};               ///< Users besides this one whose processes may connect (soft NIC).
  std::string key_file{};         ///< For all processes, with a common key, or none. docs/connections.md.
  std::uint64_t incarnation = 0;  ///< Must grow each time this process comes back. 0: the time of day, in ns.
};

/// A named window of a peer, as Lane::find returns it. Valid until that peer leaves.
struct Window {
  unsigned peer = 0;              ///< The process that published it.
  rdma::Window memory{};          ///< Its place, length and rights.
  std::uint64_t incarnation = 0;  ///< The owner's. After its restart calls return kPeerLost.
};

/// An operation that has ended, or an event from a peer.
struct Completion {
  /// Kinds of completions.
  enum class Kind : std::uint8_t {
    kSend,     ///< `send` or `commit`: the peer's NIC has the message.
    kWrite,    ///< `write`: the bytes are in the peer's memory.
    kRead,     ///< `read`: the bytes have arrived.
    kAtomic,   ///< `fetch_add` or `compare_swap`: `old` is the value before.
    kReceive,  ///< A message. `bytes` is where it arrived; it stays unchanged until `release`.
    kWritten,  ///< The peer wrote into this process's memory with an immediate. `bytes` is the place.
    kJoined,   ///< The peer is connected (after Mesh::join: it has come back).
    kLeft,     ///< The peer is gone: kClosed, it left in order; kPeerLost, it died or cannot be reached; or why it
               ///< failed.
  };
  Kind kind = Kind::kSend;                   ///< Kind of the completion.
  Status status = Status::kOk;               ///< kOk, or why it failed.
  unsigned peer = 0;                         ///< The other side.
  std::uint64_t cookie = 0;                  ///< The call's cookie.
  std::optional<std::uint32_t> immediate{};  ///< May be 0.
  std::span<std::byte> bytes{};              ///< The memory that the call named, or what arrived.
  std::uint64_t old = 0;                     ///< The value before an atomic.
  /// For `release`.
  struct Handle {
    std::uint64_t place = 0;       ///< The lane's own.
    std::uint32_t generation = 0;  ///< The lane's own.
  };
  Handle handle{};  ///< Names a received message for `release`.
};

/// Selects the completions that `poll` and `wait` return.
enum class Which : std::uint8_t {
  kAll,       ///< Both.
  kSends,     ///< Ends of this side's own operations.
  kReceives,  ///< Messages and other events from peers.
};

/// One thread's end of the mesh: connections to the same lane of all other processes. Statuses besides those named:
/// kAgain (call `poll` or `wait`, then try again), kBadArgument (no such peer; `error_detail` says more), kClosed or
/// kPeerLost (the peer is gone, and may come back), kNotFound (the peer has never connected). \thread owner: one at a
/// time \alloc none, except where it says setup
class Lane {
 public:
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Its number, 0 to Options::threads - 1.
  [[nodiscard]] virtual unsigned thread() const noexcept = 0;
  /// Whether the peer is connected.
  [[nodiscard]] virtual bool is_here(unsigned peer) const noexcept = 0;

  // --- messages. Messages and writes to one peer arrive in the order of the calls.

  /// Reserves room for a message of up to Options::message_bytes. Empty: none is free now, or no such peer is
  /// connected. The caller owns it until `commit` or `cancel`.
  [[nodiscard]] virtual std::span<std::byte> reserve(unsigned peer) noexcept = 0;
  /// Sends the first bytes of a reservation, without a copy. Unless it returns kOk the caller keeps the reservation.
  [[nodiscard]] virtual Status commit(unsigned peer, std::span<std::byte> message, std::uint64_t cookie,
                                      std::optional<std::uint32_t> immediate = {}) noexcept = 0;
  /// Gives a reservation back. Call it also if the peer has gone: the reservation's memory stays until then.
  /// kBadArgument: not a reservation.
  virtual Status cancel(unsigned peer, std::span<std::byte> message) noexcept = 0;
  /// Sends a copy of a message. kTooLong.
  [[nodiscard]] virtual Status send(unsigned peer, std::span<const std::byte> message, std::uint64_t cookie,
                                    std::optional<std::uint32_t> immediate = {}) noexcept = 0;

  // --- one-sided. Any memory of this process works; memory from Mesh::allocate or Mesh::add is not copied. Don't touch
  // it until you have collected the completion. kOutOfRange, kRemoteAccess (the window lacks the right).

  /// Finds a window of the peer by name; polls until the peer has published it. Errors: kNotFound (not within the
  /// deadline), kBadArgument, and the lane's statuses for a peer that is gone. \alloc setup
  [[nodiscard]] virtual Result<Window> find(unsigned peer, std::string_view name, Deadline deadline) = 0;
  /// Writes to the peer's window. With an immediate the peer's lane gets a kWritten after the bytes.
  [[nodiscard]] virtual Status write(const Window& to, std::uint64_t offset, std::span<const std::byte> from,
                                     std::uint64_t cookie, std::optional<std::uint32_t> immediate = {}) noexcept = 0;
  /// Reads into memory of this process.
  [[nodiscard]] virtual Status read(const Window& from, std::uint64_t offset, std::span<std::byte> to,
                                    std::uint64_t cookie) noexcept = 0;
  /// Adds to 8 aligned bytes of the peer. kUnsupported where the NIC has no atomics.
  [[nodiscard]] virtual Status fetch_add(const Window& at, std::uint64_t offset, std::uint64_t add,
                                         std::uint64_t cookie) noexcept = 0;
  /// Replaces 8 aligned bytes of the peer if they are `expected`; the completion's `old` tells whether they were.
  /// kUnsupported.
  [[nodiscard]] virtual Status compare_swap(const Window& at, std::uint64_t offset, std::uint64_t expected,
                                            std::uint64_t desired, std::uint64_t cookie) noexcept = 0;

  /// Posts what Options::batch holds back. `poll` does so, too.
  virtual void flush() noexcept = 0;
  /// The same for one peer.
  virtual void flush(unsigned peer) noexcept = 0;

  // --- completions

  /// Moves completions into `out` without waiting, and returns how many.
  [[nodiscard]] virtual std::size_t poll(std::span<Completion> out, Which which = Which::kAll) noexcept = 0;
  /// The same, but waits until there is a completion. Returns 0 when the deadline has passed, or before that when you
  /// may repeat a call that returned kAgain.
  [[nodiscard]] virtual std::size_t wait(std::span<Completion> out, Deadline deadline,
                                         Which which = Which::kAll) noexcept = 0;
  /// Calls `handle` for each completion. `handle` may post and poll. Releases a message after `handle` has returned;
  /// call `poll` to keep messages.
  template <class Handle>
  std::size_t poll_each(Handle&& handle, Which which = Which::kAll) {
    std::array<Completion, 16> batch;
    const std::size_t count = poll(batch, which);
    for (std::size_t i = 0; i < count; ++i) {
      handle(static_cast<const Completion&>(batch[i]));
      if (batch[i].kind == Completion::Kind::kReceive) (void)release(batch[i]);
    }
    return count;
  }
  /// Gives a received message's memory back, so that the peer can send another one. In any order. kBadArgument: it is
  /// released already, or no message.
  virtual Status release(const Completion& message) noexcept = 0;

  // --- all processes. For starting and stopping. Use lane 0 only, and the same calls in the same order in all
  // processes.

  /// Each process gives `mine`, at most kMaxGatherBytes, and gets those of all, by id, in `all`: mine.size() bytes
  /// each. Polls meanwhile. Errors: kTimedOut and kPeerLost (the text names the process), kBadArgument. \alloc setup
  [[nodiscard]] virtual Result<void> gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                            Deadline deadline) = 0;
  /// Waits until all processes have called it.
  [[nodiscard]] Result<void> barrier(Deadline deadline) { return gather({}, {}, deadline); }

  /// Counts of the lane's work. \thread any
  [[nodiscard]] virtual Counters counters() const noexcept = 0;

 protected:
  Lane() = default;
};

/// This process's part of a mesh. \thread any, except where said  \alloc setup
class Mesh {
 public:
  /// Publishes this process, and waits up to Options::join_timeout until all processes are connected with each other.
  /// Errors: kBadArgument (the text names the option), kTimedOut (the text tells which processes are missing, and why),
  /// kRejected (another process has other limits, or there is a second process with this id), those of the carrier, of
  /// the NIC and of memory. The mesh asks `carrier` again when a peer is gone.
  [[nodiscard]] static Result<std::unique_ptr<Mesh>> join(const Options& options, std::unique_ptr<Carrier> carrier);
  /// Tells all peers. No thread may use a lane any more.
  virtual ~Mesh() = default;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  /// The options of `join`.
  [[nodiscard]] virtual const Options& options() const noexcept = 0;
  /// The lane of a thread, 0 to Options::threads - 1.
  [[nodiscard]] virtual Lane& lane(unsigned thread) noexcept = 0;
  /// Allocates memory, zeroed and registered for all lanes and peers. It lives as long as the mesh.
  [[nodiscard]] virtual Result<std::span<std::byte>> allocate(std::size_t bytes) = 0;
  /// Registers memory of your own. Keep it until the mesh ends. On the software NIC peers reach it through the kernel,
  /// which is slower than memory that `allocate` returned.
  [[nodiscard]] virtual Result<void> add(std::span<std::byte> memory, rdma::Access access) = 0;
  /// Publishes registered memory under a name of 1 to 64 bytes, to all peers, also to later ones. A name can be used
  /// once. Errors: kBadArgument, kBusy (the name is taken), kOutOfRange (the memory is not registered).
  [[nodiscard]] virtual Result<void> publish(std::string_view name, std::span<std::byte> memory) = 0;
  /// One line: the NIC and why it was chosen, the port, limits. Valid as long as the mesh.
  [[nodiscard]] virtual const char* description() const noexcept = 0;

 protected:
  Mesh() = default;
};

}  // namespace verbena::mesh

#pragma GCC visibility pop
