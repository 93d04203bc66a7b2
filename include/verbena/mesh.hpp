// The mesh: N processes by T threads, thread i of each connected to thread i of all others.
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

/// A blob tells the others where a process listens, and its incarnation, before they are connected. Plain
/// bytes, the same length for all, for MPI_Allgather, PMIx, a file or a socket to carry.
inline constexpr std::size_t kBlobBytes = 256;
/// Such bytes.
using Blob = std::array<std::byte, kBlobBytes>;

/// Carries blobs between the processes. Its success proves nothing, so the mesh believes no more than where a process
/// may be found. Called by one thread at a time, which need not be the one that made it.
class Carrier {
 public:
  virtual ~Carrier() = default;
  /// Makes the blob of this process known, in place of an earlier life's.
  [[nodiscard]] virtual Result<void> publish(unsigned id, const Blob& blob, Deadline deadline) = 0;
  /// The newest blob of process `id`. kAgain: it is not known yet, ask again later. It waits for nobody.
  [[nodiscard]] virtual Result<Blob> find(unsigned id) = 0;
};

/// A directory that all processes see: a file for each of them. `directory` exists; others' meshes in it have another
/// `job` (1 to 64 letters, digits, '.', '-' and '_'). Errors: kBadArgument, kNotFound.
[[nodiscard]] Result<std::unique_ptr<Carrier>> directory_carrier(std::string_view directory, std::string_view job);
/// A list that all processes have: process i listens at entry i, "host:port" or "[address]:port". Nothing is carried;
/// Options::port must be the port of this process's entry. Errors: kBadArgument (which entry).
[[nodiscard]] Result<std::unique_ptr<Carrier>> host_list_carrier(std::span<const std::string> hosts);
/// All blobs by one collective call that the processes have already, such as MPI_Allgather: `all` has a place for each
/// process. `context` is handed to it.
using AllGather = Result<void> (*)(const Blob& mine, std::span<Blob> all, void* context);
[[nodiscard]] std::unique_ptr<Carrier> gather_carrier(unsigned processes, AllGather gather, void* context);

/// Options of a process. Those marked with * are the same in all processes, and a process with others is refused.
struct Options {
  unsigned id = 0;                   ///< This process. 0 to processes - 1.
  unsigned processes = 1;            ///< * 1 to kMaxProcesses.
  unsigned threads = 1;              ///< * Lanes of each process. 1 to kMaxThreads.
  std::string job{};                 ///< * Tells meshes apart that could find each other. 0 to 64 bytes.
  std::string device{};              ///< As Transport::device.
  std::string address{};             ///< To listen on. Empty: this host, by the device's own address, else by loopback.
  std::uint16_t port = 0;            ///< 0 takes any free port.
  std::size_t message_bytes = 1024;  ///< * Longest message. 1 to kMaxMessageBytes.
  unsigned depth = 8;         ///< Messages that each peer may have on the way to one lane, or kept there. 4 to 4096.
  unsigned operations = 32;   ///< Operations that one lane may have on the way to each peer. 1 to 2000.
  unsigned reservations = 8;  ///< Messages to each peer that are written in place at a time. 0 to 1024.
  unsigned batch = 1;         ///< Posts to one peer that share a doorbell. 1 to 32, at most `operations`.
  WaitPolicy wait = WaitPolicy::kAdaptive;  ///< How `wait`, `find` and `gather` wait.
  std::chrono::microseconds spin{50};       ///< With kAdaptive a lane polls this long before it sleeps. 0 to 1 s.
  std::chrono::milliseconds join_timeout{30'000};  ///< Deadline of Mesh::join.
  std::vector<uid_t> allowed_uids{};               ///< Users besides this one whose processes may connect (soft NIC).
  std::string key_file{};         ///< All processes have one, with a key in common, or none. docs/connections.md.
  std::uint64_t incarnation = 0;  ///< Must grow each time this process comes back. 0: the time of day, in ns.
};

/// A named window of a peer, as Lane::find returns it. Good until that peer leaves.
struct Window {
  unsigned peer = 0;              ///< Whose it is.
  rdma::Window memory{};          ///< Its place, length and rights.
  std::uint64_t incarnation = 0;  ///< The owner's. Calls with a window of an earlier life return kPeerLost.
};

/// Something that has ended, or arrived.
struct Completion {
  /// Kinds of completions.
  enum class Kind : std::uint8_t {
    kSend,     ///< `send` or `commit`: the peer's NIC has the message.
    kWrite,    ///< `write`: it is in the peer's memory.
    kRead,     ///< `read`: it is here.
    kAtomic,   ///< `fetch_add` or `compare_swap`: `old` is the value before.
    kReceive,  ///< A message. `bytes` is where it arrived, and stays as it is until `release`.
    kWritten,  ///< The peer wrote into this process's memory and said so, by an immediate. `bytes` is the place.
    kJoined,   ///< The peer is connected (after Mesh::join: has come back).
    kLeft,     ///< The peer is gone: kClosed, it said so; kPeerLost, it died or cannot be reached; or why it failed.
  };
  Kind kind = Kind::kSend;                   ///< Kind of the completion.
  Status status = Status::kOk;               ///< kOk, or why it failed.
  unsigned peer = 0;                         ///< With whom.
  std::uint64_t cookie = 0;                  ///< As the call had it.
  std::optional<std::uint32_t> immediate{};  ///< 0 is one, too.
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
  kReceives,  ///< What peers did.
};

/// One thread's end of the mesh: connections to the same lane of all other processes. Statuses besides those named:
/// kAgain (call `poll` or `wait`, then try again), kBadArgument (no such peer; `error_detail` says more),
/// kClosed or kPeerLost (it is gone, and may come back), kNotFound (it was never here). \thread owner: one at a time
/// \alloc none, except where it says setup
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

  /// Room for a message of up to Options::message_bytes, for the caller to write. Empty: none is free now; or no such
  /// peer is here. It is the caller's until `commit` or `cancel`.
  [[nodiscard]] virtual std::span<std::byte> reserve(unsigned peer) noexcept = 0;
  /// Sends the first bytes of a reservation, without a copy. Unless it returns kOk the reservation stays.
  [[nodiscard]] virtual Status commit(unsigned peer, std::span<std::byte> message, std::uint64_t cookie,
                                      std::optional<std::uint32_t> immediate = {}) noexcept = 0;
  /// Gives a reservation back, also when its peer has gone, whose memory stays until then. kBadArgument: it is none.
  virtual Status cancel(unsigned peer, std::span<std::byte> message) noexcept = 0;
  /// Sends a message, whose bytes are the caller's again when it returns. kTooLong.
  [[nodiscard]] virtual Status send(unsigned peer, std::span<const std::byte> message, std::uint64_t cookie,
                                    std::optional<std::uint32_t> immediate = {}) noexcept = 0;

  // --- one-sided. Any memory of this process; what Mesh::allocate returned or Mesh::add was given goes without a copy.
  // Don't touch it until you have collected the completion. kOutOfRange, kRemoteAccess (the window lacks the right).

  /// A window that the peer has published. Waits until it has, polling meanwhile. Errors: kNotFound (not within the
  /// deadline), kBadArgument, those of the peer's end. \alloc setup
  [[nodiscard]] virtual Result<Window> find(unsigned peer, std::string_view name, Deadline deadline) = 0;
  /// With an immediate the peer's lane gets a kWritten behind the bytes.
  [[nodiscard]] virtual Status write(const Window& to, std::uint64_t offset, std::span<const std::byte> from,
                                     std::uint64_t cookie, std::optional<std::uint32_t> immediate = {}) noexcept = 0;
  /// Reads into memory of this process.
  [[nodiscard]] virtual Status read(const Window& from, std::uint64_t offset, std::span<std::byte> to,
                                    std::uint64_t cookie) noexcept = 0;
  /// Adds to 8 aligned bytes of the peer. kUnsupported where the NIC has no atomics.
  [[nodiscard]] virtual Status fetch_add(const Window& at, std::uint64_t offset, std::uint64_t add,
                                         std::uint64_t cookie) noexcept = 0;
  /// Replaces 8 aligned bytes of the peer if they are `expected`; the completion's `old` tells. kUnsupported.
  [[nodiscard]] virtual Status compare_swap(const Window& at, std::uint64_t offset, std::uint64_t expected,
                                            std::uint64_t desired, std::uint64_t cookie) noexcept = 0;

  /// Rings the doorbells of what Options::batch holds back. `poll` does so, too.
  virtual void flush() noexcept = 0;
  /// The same for one peer.
  virtual void flush(unsigned peer) noexcept = 0;

  // --- completions

  /// Takes what has ended or arrived, at most so many; 0: nothing. It waits for nothing.
  [[nodiscard]] virtual std::size_t poll(std::span<Completion> out, Which which = Which::kAll) noexcept = 0;
  /// The same, once there is something, or the deadline has passed; and 0 before that when a call that was told kAgain
  /// may be tried again.
  [[nodiscard]] virtual std::size_t wait(std::span<Completion> out, Deadline deadline,
                                         Which which = Which::kAll) noexcept = 0;
  /// Calls `handle` for each, which may post and poll: nothing of this call is under way then. A message is released
  /// after it; who keeps messages calls `poll`.
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
  /// Gives a received message's memory back, which lets the peer send another. In any order. kBadArgument: it is back
  /// already, or no message.
  virtual Status release(const Completion& message) noexcept = 0;

  // --- all processes. For starting and stopping; lane 0 only, the same calls in the same order in all processes.

  /// Each process gives `mine`, at most kMaxGatherBytes, and gets those of all, by id, in `all`: mine.size() bytes
  /// each. Polls meanwhile. Errors: kTimedOut (who is missing), kPeerLost (who), kBadArgument. \alloc setup
  [[nodiscard]] virtual Result<void> gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                            Deadline deadline) = 0;
  /// Waits until all processes are here.
  [[nodiscard]] Result<void> barrier(Deadline deadline) { return gather({}, {}, deadline); }

  /// What the lane did. \thread any
  [[nodiscard]] virtual Counters counters() const noexcept = 0;

 protected:
  Lane() = default;
};

/// This process's part of a mesh. \thread any, except where said  \alloc setup
class Mesh {
 public:
  /// Publishes this process, and waits until all others are here and have found all others, within
  /// Options::join_timeout. Errors: kBadArgument (the option), kTimedOut (which processes are missing, and why),
  /// kRejected (another process has other limits, or there is a second process with this id), those of the carrier, of
  /// the NIC and of memory. `carrier` is asked again when a peer is gone.
  [[nodiscard]] static Result<std::unique_ptr<Mesh>> join(const Options& options, std::unique_ptr<Carrier> carrier);
  /// Says goodbye to all peers. No lane is in use any more.
  virtual ~Mesh() = default;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  /// As `join` had them.
  [[nodiscard]] virtual const Options& options() const noexcept = 0;
  /// The lane of a thread, 0 to Options::threads - 1.
  [[nodiscard]] virtual Lane& lane(unsigned thread) noexcept = 0;
  /// Memory, zeroed, registered for all lanes and peers. Lives as long as the mesh.
  [[nodiscard]] virtual Result<std::span<std::byte>> allocate(std::size_t bytes) = 0;
  /// Registers memory of the user's own, which stays until the mesh ends. On the software NIC peers reach it through
  /// the kernel, which is slower than memory that `allocate` returned.
  [[nodiscard]] virtual Result<void> add(std::span<std::byte> memory, rdma::Access access) = 0;
  /// Publishes registered memory under a name of 1 to 64 bytes, to all peers, those that come later too. A name is
  /// given once. Errors: kBadArgument, kBusy (the name is taken), kOutOfRange (it is not registered memory).
  [[nodiscard]] virtual Result<void> publish(std::string_view name, std::span<std::byte> memory) = 0;
  /// The NIC and why, the port, limits. Valid as long as the mesh.
  [[nodiscard]] virtual const char* description() const noexcept = 0;

 protected:
  Mesh() = default;
};

}  // namespace verbena::mesh

#pragma GCC visibility pop
