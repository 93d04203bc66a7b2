// Connections between processes: messages of any length, and access to the peer's memory. The C++ form of rdma.h.
#pragma once

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>
#include <verbena/transport.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

// The C API's; opaque here.
struct verbena_RdmaConn;  // NOLINT(readability-identifier-naming)
struct RdmaMemory;

/// Who drives a connection:
///  - A listener has one thread of its own, pinned to a core that it claims; it drives all of its connections and calls
///    their handlers. Other threads may call any function of an accepted connection, also at the same time: it has the
///    call done by that thread, and waits.
///  - A client's connection with a handler has such a thread too.
///  - Any other client's connection is driven by the thread that calls, with no thread in between: a second thread that
///    calls meanwhile gets kBusy. What the peer sends waits, and the peer with it, until the next call.
///
/// Calls that wait end at a deadline; without one, after Options::timeout. Calls on data return a Status, or a value or
/// a Status; none of them allocates, registers or, on registered memory, calls the kernel. kBusy, kTimedOut, kClosed
/// (ended by this side or the other) and the reason of a dead connection can come from each of them, besides what is
/// named there.
///
/// After fork the child must not use what the parent made.
namespace verbena::rdma {

class Connection;

/// What becomes of messages that arrive.
enum class Receive : std::uint8_t {
  kQueue,    ///< They wait for Connection::receive.
  kHandler,  ///< They go to Handler::on_message.
  kDiscard,  ///< They are counted and dropped; for listeners only.
};

/// What becomes of completions.
enum class Complete : std::uint8_t {
  kQueue,    ///< They wait for Connection::complete.
  kHandler,  ///< They go to Handler::on_complete.
};

/// What arrived.
struct Message {
  /// What kind of thing arrived.
  enum class Kind : std::uint8_t {
    kSent,     ///< By `send`.
    kWritten,  ///< The peer wrote into this side's window by `write_with_immediate`.
  };
  Kind kind = Kind::kSent;                   ///< Sent, or written.
  std::optional<std::uint32_t> immediate{};  ///< The number that the sender gave with it.
  /// kSent: the bytes, the handler's until it returns; in `receive` the caller's. kWritten: the place in the window.
  std::span<std::byte> data{};
};

/// What a peer may do with memory; this side may always read and write it.
enum class Access : std::uint8_t { kLocal = 0, kRead = 1, kWrite = 2, kAtomic = 4, kAll = 7 };
/// Both rights.
[[nodiscard]] constexpr Access operator|(Access a, Access b) noexcept {
  return static_cast<Access>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
/// Whether `rights` has all that is `wanted`.
[[nodiscard]] constexpr bool includes(Access rights, Access wanted) noexcept {
  return (static_cast<unsigned>(rights) & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

/// All that is left behind an offset.
inline constexpr std::size_t kRest = std::numeric_limits<std::size_t>::max();

/// A part of the peer's memory.
struct Remote {
  std::uint64_t address = 0;  ///< Of its first byte, in the peer's process.
  std::uint64_t length = 0;   ///< Bytes.
  std::uint32_t rkey = 0;     ///< Of the window that it is in.
};

/// Memory that its owner has registered, as others reach it. Plain numbers: they may travel in a message.
struct Window {
  std::uint64_t address = 0;       ///< Of its first byte, in the owner's process.
  std::uint64_t length = 0;        ///< Bytes.
  std::uint64_t memory_id = 0;     ///< The software NIC's.
  std::uint32_t rkey = 0;          ///< What the peer names it by.
  Access access = Access::kLocal;  ///< What the peer may do with it.

  /// `length` bytes from `offset` on; an empty part, which every call refuses, where they are not inside.
  [[nodiscard]] constexpr Remote at(std::uint64_t offset = 0, std::uint64_t bytes = kRest) const noexcept {
    if (offset > length) return {};
    if (bytes == kRest) bytes = length - offset;
    return bytes <= length - offset ? Remote{.address = address + offset, .length = bytes, .rkey = rkey} : Remote{};
  }
};
static_assert(sizeof(Window) == 32);

/// Where the peer's memory is by its physical address: what it has exported, never more.
struct Physical {
  std::uint64_t address = 0;  ///< Of its first byte.
};

/// A part of this side's registered memory. Good while the registration is.
class Local {
 public:
  /// No bytes, which every call refuses.
  Local() noexcept = default;
  /// The memory itself.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// Bytes.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  /// For the raw queue pair, or the C API.
  [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }
  /// `length` bytes from `offset` on; an empty part, which every call refuses, where they are not inside.
  [[nodiscard]] Local at(std::size_t offset, std::size_t length = kRest) const noexcept {
    if (offset > size()) return {};
    if (length == kRest) length = size() - offset;
    return length <= size() - offset ? Local(bytes_.subspan(offset, length), lkey_) : Local();
  }

 private:
  friend class Connection;
  friend class Memory;
  Local(std::span<std::byte> bytes, std::uint32_t lkey) noexcept : bytes_(bytes), lkey_(lkey) {}

  std::span<std::byte> bytes_;
  std::uint32_t lkey_ = 0;
};

/// Registered memory, which the NIC reads and writes itself, without a copy through the library's own. Move-only; its
/// destruction takes the registration back, and frees what was allocated: no call of this side may be using it then,
/// and nobody at the other side does afterwards. It ends with its connection or listener at the latest: then its bytes
/// are gone, if they were allocated, and all that may be done with it is to destroy it. \thread any, one at a time
class Memory {
 public:
  /// An empty shell.
  Memory() noexcept = default;
  /// Leaves an empty shell behind.
  Memory(Memory&& other) noexcept { swap(other); }
  /// Takes back what was registered here before.
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }
  ~Memory();

  /// Whether it is more than an empty shell.
  [[nodiscard]] explicit operator bool() const noexcept { return registered_ != nullptr; }
  /// The memory itself.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return local_.bytes(); }
  /// As Local::at.
  [[nodiscard]] Local at(std::size_t offset = 0, std::size_t length = kRest) const noexcept {
    return local_.at(offset, length);
  }
  /// What a peer needs to reach it.
  [[nodiscard]] const Window& window() const noexcept { return window_; }
  /// What the destruction does, with its error: kTimedOut, where a peer sat in it for longer; allocated memory is not
  /// used again then.
  [[nodiscard]] Result<void> deregister(std::optional<Deadline> deadline = {});

 private:
  friend class Connection;
  friend class Listener;
  friend struct Callbacks;
  struct Owner;
  Memory(std::shared_ptr<Owner> owner, const RdmaMemory& memory) noexcept;
  void swap(Memory& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(registered_, other.registered_);
    std::swap(local_, other.local_);
    std::swap(window_, other.window_);
  }

  std::shared_ptr<Owner> owner_;
  const RdmaMemory* registered_ = nullptr;
  Local local_;
  Window window_;
};

/// How an operation ended that was started without waiting.
struct Completion {
  /// What was started.
  enum class Operation : std::uint8_t { kWrite, kRead };
  std::uint64_t cookie = 0;                 ///< As it was started with.
  Operation operation = Operation::kWrite;  ///< Which it was.
  Status status = Status::kOk;              ///< Its memory is the caller's again.
};

/// What the thread of a listener or of a client calls. Handlers outlive what they handle. They may call everything but
/// Listener::stop, Listener::wait and the destruction of their own listener, and may wait; the other connections of
/// the thread have their messages received and their calls done meanwhile, but their handlers are not called.
class Handler {
 public:
  /// A listener's: a client has connected; nothing of it was received yet. The connection is the listener's, and ends
  /// when on_disconnect has returned, unless it is kept here (Connection::keep).
  virtual void on_accept(Connection&) noexcept {}
  /// A client's: its connection is made.
  virtual void on_connect(Connection&) noexcept {}
  /// With Receive::kHandler.
  virtual void on_message(Connection&, const Message&) noexcept {}
  /// What was started is complete: with Complete::kHandler.
  virtual void on_complete(Connection&, const Completion&) noexcept {}
  /// The connection is dead, once. Not called when this side has closed or destroyed it.
  virtual void on_disconnect(Connection&, Status /*reason*/) noexcept {}

 protected:
  ~Handler() = default;
};

/// Of a listener and its connections, or of one client.
struct Options {
  Transport transport{};              ///< NIC and bootstrap; both ends the same.
  std::string address{};              ///< To listen on, or of the listener; an address or a name. Empty: this host.
  std::uint16_t port = 7471;          ///< 0, of a listener: any free one, which Listener::port tells.
  Handler* handler = nullptr;         ///< Of all connections. Without one a listener's are taken by Listener::accept.
  Receive receive = Receive::kQueue;  ///< Of all connections. A client cannot discard.
  Complete complete = Complete::kQueue;             ///< Of what was started without waiting.
  std::chrono::milliseconds connect_timeout{5000};  ///< Of `connect`. 1 ms to 12 days, as the next.
  std::chrono::milliseconds timeout{5000};          ///< Default deadline of each call.
  unsigned max_connections = 64;                    ///< Of a listener. 1 to 1024.
  /// Memory of this side that the peer of a connection reads, writes and changes by atomics: its window, one for each
  /// connection. 0: none. At most 64 GiB.
  std::size_t window_bytes = std::size_t{1} << 20;
  /// Memory of the caller's own instead, all of it, for all connections of a listener the same. A multiple of 64 bytes;
  /// it stays until they are closed. On the software NIC each access to it is a system call.
  std::span<std::byte> window{};
  /// Messages that arrived and were not taken; what is beyond waits at the sender. 64 KiB to 1 GiB.
  std::size_t inbox_bytes = std::size_t{1} << 20;
  /// Of a message to a handler: a longer one ends the connection with kTooLong. 1 B to 1 TiB.
  std::size_t max_message_bytes = std::size_t{64} << 20;
};

/// One end of a connection. Immovable; held by std::unique_ptr, whose destruction closes it: the peer is told, what is
/// under way ends, and what `send` accepted has arrived when the peer answers, for which this waits 200 ms at most.
/// In a handler it returns at once. No other call may be under way then. \thread any, as said above
class Connection {
 public:
  /// Connects to a listener. Errors: kNotFound (the name, or the device), kConnectionRefused, kRejected and others with
  /// the listener's text, kTimedOut (nothing answers), kOtherHost, kOtherNamespace, kNotAllowed, kBadArgument (an
  /// option; Receive::kHandler without a handler), kNoMemory, kLimit, kDevice.
  [[nodiscard]] static Result<std::unique_ptr<Connection>> connect(const Options& options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Makes an accepted connection the caller's: valid until it is destroyed, whatever happens. In on_accept only, and
  /// once; null elsewhere.
  [[nodiscard]] std::unique_ptr<Connection> keep() noexcept;
  /// Ends the connection, as its destruction does; calls return kClosed from then on. A connection that is the
  /// listener's is gone when the handler has returned; those are closed in handlers only.
  void close() noexcept;
  [[nodiscard]] bool is_connected() const noexcept;
  /// Why it is dead; kOk while it is not.
  [[nodiscard]] Status failure() const noexcept;

  // --- messages

  /// Sends a message of 1 byte to any length, in order with all that this connection sends. Any memory; it is free when
  /// the call returns. kOk once the NIC has or will get all of it within the peer's room. After kTimedOut the message
  /// will not arrive, and the connection goes on. kBadArgument: no bytes.
  [[nodiscard]] Status send(std::span<const std::byte> data, std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] Status send_with_immediate(std::span<const std::byte> data, std::uint32_t immediate,
                                           std::optional<Deadline> deadline = {}) noexcept;
  /// Takes the next message into `buffer`; Deadline::now() takes what is there. kTimedOut: nothing is lost.
  /// kBufferTooSmall: the message waits on, and `waiting_bytes` tells its length. kUnsupported: not Receive::kQueue.
  /// Once the connection is dead, what arrived before is still returned, then the reason.
  [[nodiscard]] std::expected<Message, Status> receive(std::span<std::byte> buffer,
                                                       std::optional<Deadline> deadline = {}) noexcept;
  /// Length of the message that the last `receive` had no room for.
  [[nodiscard]] std::size_t waiting_bytes() const noexcept;
  /// Messages that nobody wanted (Receive::kDiscard).
  [[nodiscard]] std::uint64_t discarded() const noexcept;

  // --- windows

  /// This side's window, zeroed at first; the peer may change it at any time. Valid while the connection object is.
  [[nodiscard]] std::span<std::byte> window() const noexcept;
  /// The same as registered memory.
  [[nodiscard]] Local window_memory() const noexcept;
  /// The peer's; of no bytes when it has none.
  [[nodiscard]] Window peer_window() const noexcept;
  /// Finds what the peer has published under `name`, and makes it usable; waits until it is published. kNotFound: not
  /// by then; kTimedOut: the peer did not answer (a client without a handler does so only during its calls); kLimit: a
  /// connection uses at most 63 windows.
  [[nodiscard]] Result<Window> find(std::string_view name, std::optional<Deadline> deadline = {});
  /// Makes a window usable of which the peer has told in some other way, and takes that back.
  [[nodiscard]] Result<void> import(const Window& window, std::optional<Deadline> deadline = {});
  [[nodiscard]] Result<void> release(const Window& window, std::optional<Deadline> deadline = {});

  /// Allocates `bytes`, 1 to 2^40, zeroed, and registers them with all rights, for this connection's peer. On the
  /// software NIC this memory, and windows, are accessed by peers directly; all else costs a system call each time.
  /// Registering waits for the system and, on a device, pins: not for data paths.
  [[nodiscard]] Result<Memory> allocate(std::size_t bytes);
  /// Registers memory of the caller's own, which stays mapped until it is deregistered.
  [[nodiscard]] Result<Memory> register_memory(std::span<std::byte> memory, Access access = Access::kLocal);
  /// Publishes memory of this connection under a name of 1 to 64 bytes, for its peer to find. kBusy: it is taken.
  [[nodiscard]] Result<void> publish(std::string_view name, const Memory& memory);
  /// Takes the name back. kNotFound: it was not published.
  [[nodiscard]] Result<void> unpublish(std::string_view name);

  // --- one-sided access
  //
  // Bytes between this side and a part of the peer's memory: in place when the call returns, without the peer's CPU. A
  // write is there before anything that is sent or written after it. Refused before anything is done, and the
  // connection goes on: kBadArgument (no bytes; the remote part is longer than what is read into, or shorter than what
  // is written), kNotFound (no window of the peer has the key), kOutOfRange, kRemoteAccess (the window lacks the
  // right), kLocalAccess (the memory is not registered, or not any more).

  /// With any memory on this side. Past the deadline the memory is the caller's again, the connection goes on, and a
  /// write may have happened in part. At an offset of the peer's window:
  [[nodiscard]] Status write(std::span<const std::byte> from, std::size_t offset = 0,
                             std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] Status read(std::span<std::byte> to, std::size_t offset = 0,
                            std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] Status write(std::span<const std::byte> from, const Remote& to,
                             std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] Status read(std::span<std::byte> to, const Remote& from,
                            std::optional<Deadline> deadline = {}) noexcept;
  /// As many bytes as are local. kOutOfRange: the peer did not export all of them. What crosses from one run of memory
  /// into the next is several operations, and may have happened in part when it fails.
  [[nodiscard]] Status write(std::span<const std::byte> from, Physical to,
                             std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] Status read(std::span<std::byte> to, Physical from, std::optional<Deadline> deadline = {}) noexcept;

  /// Between registered memory and the peer's, without a copy. Past the deadline the call cannot leave the memory to
  /// the NIC: the connection is drained, and dead with kTimedOut, before it returns; that may take one second more.
  [[nodiscard]] Status write(const Local& from, const Remote& to, std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] Status read(const Local& to, const Remote& from, std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] Status write(const Local& from, Physical to, std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] Status read(const Local& to, Physical from, std::optional<Deadline> deadline = {}) noexcept;

  /// Into the peer's window, which gets a Message::Kind::kWritten after the bytes. No bytes: only that message.
  [[nodiscard]] Status write_with_immediate(std::span<const std::byte> from, std::uint32_t immediate,
                                            std::size_t offset = 0, std::optional<Deadline> deadline = {}) noexcept;

  /// Atomics on eight bytes of the peer, aligned to 8 (else kBadArgument), which nobody changes but by atomics of NICs.
  /// The value is what was there. Past the deadline the connection goes on, and the change may have happened.
  /// kUnsupported: the device has none.
  [[nodiscard]] std::expected<std::uint64_t, Status> fetch_add(const Remote& word, std::uint64_t delta,
                                                               std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] std::expected<std::uint64_t, Status> fetch_add(Physical word, std::uint64_t delta,
                                                               std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] std::expected<std::uint64_t, Status> compare_swap(const Remote& word, std::uint64_t expected,
                                                                  std::uint64_t desired,
                                                                  std::optional<Deadline> deadline = {}) noexcept;
  [[nodiscard]] std::expected<std::uint64_t, Status> compare_swap(Physical word, std::uint64_t expected,
                                                                  std::uint64_t desired,
                                                                  std::optional<Deadline> deadline = {}) noexcept;

  // --- one-sided access without waiting

  /// The same between registered memory and the peer's: the memory is the NIC's until the completion with this cookie.
  /// No deadline; the end of the connection completes it. kAgain: kMaxStarted are under way, or complete and not taken.
  static constexpr std::size_t kMaxStarted = 64;
  [[nodiscard]] Status start_write(const Local& from, const Remote& to, std::uint64_t cookie) noexcept;
  [[nodiscard]] Status start_read(const Local& to, const Remote& from, std::uint64_t cookie) noexcept;
  [[nodiscard]] Status start_write(const Local& from, Physical to, std::uint64_t cookie) noexcept;
  [[nodiscard]] Status start_read(const Local& to, Physical from, std::uint64_t cookie) noexcept;
  /// Takes the completion that has been there longest; Deadline::now() takes what is there. kTimedOut: none came;
  /// kNotFound: nothing is under way.
  [[nodiscard]] std::expected<Completion, Status> complete(std::optional<Deadline> deadline = {}) noexcept;
  /// Takes completions that are there, without waiting; how many.
  [[nodiscard]] std::size_t poll(std::span<Completion> into) noexcept;

  // --- physical addresses. See docs/physical-addressing.md.

  /// Exports all of `memory`, registered by this connection or its listener, with its rights to this connection's peer,
  /// by physical address: that of its first byte. The peer knows of it before any message that is sent after it. Needs
  /// CAP_SYS_ADMIN (kPermission, and the text names it); what a peer exported is used without. kLimit: 16 in
  /// the life of a connection, those of deregistered memory among them.
  [[nodiscard]] Result<std::uint64_t> export_physical(const Memory& memory);
  /// The physical address of a byte of this process: that under which this connection exported it, or else what the
  /// kernel says, with the privilege. kNotFound: nothing is there yet; write to it first.
  [[nodiscard]] Result<std::uint64_t> physical_address_of(const void* local) const;

  /// Sets Options::timeout for the calls that follow.
  void set_timeout(std::chrono::milliseconds timeout) noexcept;

 private:
  friend class Listener;
  friend struct Callbacks;
  Connection(verbena_RdmaConn* conn, Handler* handler, std::shared_ptr<Memory::Owner> memory) noexcept
      : conn_(conn), handler_(handler), memory_(std::move(memory)) {}

  verbena_RdmaConn* conn_;  ///< Null once closed.
  Handler* handler_;
  std::shared_ptr<Memory::Owner> memory_;
  std::atomic<std::size_t> waiting_bytes_{0};
  bool is_ours_ = true;  ///< Else the listener's.
};

/// A running server. \thread any, one at a time, except where said
class Listener {
 public:
  /// Returns once clients can connect. Errors: those of the NIC and the address, kBadArgument (an option), kLimit,
  /// kNoMemory, kSystem (the address is in use).
  [[nodiscard]] static Result<std::unique_ptr<Listener>> start(const Options& options);
  /// Stops it. Connections that somebody keeps stay, dead.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// The port it listens on, also when 0 was asked for.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Without a handler: the next client's connection. One whose client has left already is among them while there is
  /// something to receive from it (of more than 64 such, the latest). kTimedOut, kClosed (stopped), kUnsupported (there
  /// is a handler). \thread any
  [[nodiscard]] std::expected<std::unique_ptr<Connection>, Status> accept(Deadline deadline) noexcept;
  /// As Connection::allocate and the others of these names, for all of its connections. The memory ends with `stop`.
  [[nodiscard]] Result<Memory> allocate(std::size_t bytes);
  [[nodiscard]] Result<Memory> register_memory(std::span<std::byte> memory, Access access = Access::kLocal);
  [[nodiscard]] Result<void> publish(std::string_view name, const Memory& memory);
  [[nodiscard]] Result<void> unpublish(std::string_view name);
  /// Waits, for ever if need be, until some other thread has stopped the listener. \thread any but its own
  void wait() noexcept;
  /// Ends all connections and the thread; calls under way in other threads return kClosed. Idempotent.
  void stop() noexcept;

 private:
  friend struct Callbacks;
  struct Impl;
  explicit Listener(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::rdma
