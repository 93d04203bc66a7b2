/// \file
/// Connections between processes: messages of any length, and access to the peer's memory. The C++ form of rdma.h.
#pragma once

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>
#include <verbena/rdma_types.hpp>
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
#include <vector>

#pragma GCC visibility push(default)

// Private to the library; opaque here.
namespace verbena::session {
class Session;
struct RegisteredMemory;
}  // namespace verbena::session
namespace verbena::typed::detail {
struct Inside;
}

/// Threads that drive a connection:
///  - A listener has one thread of its own, pinned to a core that it claims; that thread drives all of its connections
///    and calls their handlers. Other threads may call any function of an accepted connection, also at the same time:
///    the call hands the work to that thread, and waits.
///  - Clients' connections with a handler share such a thread. With a node (Options::node) its threads drive them, and
///    listeners' connections, in turn.
///  - The calling thread itself drives any other client's connection: a second thread that calls meanwhile gets kBusy.
///    Messages of the peer, and the peer that sends them, wait until the next call.
///
/// Calls that wait end at a deadline, by default after Options::timeout. Calls on data return a Status, or a value or a
/// Status; none of them allocates, registers or, on registered memory, calls the kernel. Each of them can return kBusy,
/// kTimedOut, kClosed (ended by this side or the other) and the reason of a dead connection, besides the codes that its
/// comment names.
///
/// A child that is forked while its parent has a connection, listener or node gets kForked from every call, and does
/// not harm its parent, whatever it destroys; it may exec. Memory that the library allocated is not mapped in the
/// child.
/// pthread_cancel takes effect only after a call has returned.
namespace verbena::rdma {

class Connection;
class Node;

/// A part of this side's registered memory. Valid while the memory is registered.
class Local {
 public:
  /// An empty part, which every call refuses.
  Local() noexcept = default;
  /// The memory itself.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// Length in bytes.
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  /// Local key, for the raw queue pair or the C API.
  [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }
  /// `length` bytes from `offset` on. If they are not inside: an empty part, which every call refuses.
  [[nodiscard]] Local at(std::size_t offset, std::size_t length = kRest) const noexcept {
    if (offset > size()) return {};
    if (length == kRest) length = size() - offset;
    return length <= size() - offset ? Local(bytes_.subspan(offset, length), lkey_) : Local();
  }

 private:
  friend class Connection;
  friend class Memory;
  friend struct typed::detail::Inside;
  Local(std::span<std::byte> bytes, std::uint32_t lkey) noexcept : bytes_(bytes), lkey_(lkey) {}

  std::span<std::byte> bytes_;
  std::uint32_t lkey_ = 0;
};

/// Registered memory, which the NIC reads and writes itself, without a copy through the library's own. Move-only. The
/// destructor ends the registration and frees allocated memory: no call of this side may be using it then, and the peer
/// cannot use it afterwards. It lasts until its connection, listener or node ends: then allocated bytes are gone, and
/// you may only destroy this object. \thread any, one at a time
class Memory {
 public:
  /// An empty object.
  Memory() noexcept = default;
  /// Leaves an empty object behind.
  Memory(Memory&& other) noexcept { swap(other); }
  /// Deregisters the memory that this object had before.
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }
  ~Memory();  ///< Ends the registration.

  /// Whether this object holds registered memory; false if it was made empty or moved from.
  [[nodiscard]] explicit operator bool() const noexcept { return registered_ != nullptr; }
  /// The memory itself.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return local_.bytes(); }
  /// As Local::at.
  [[nodiscard]] Local at(std::size_t offset = 0, std::size_t length = kRest) const noexcept {
    return local_.at(offset, length);
  }
  /// The window by which a peer reaches it.
  [[nodiscard]] const Window& window() const noexcept { return window_; }
  /// Does what the destructor does and returns its error. kTimedOut: a peer was still using the memory at the deadline;
  /// the library then never reuses allocated memory.
  [[nodiscard]] Result<void> deregister(std::optional<Deadline> deadline = {});

 private:
  friend class Connection;
  friend class Listener;
  friend class Node;
  struct Owner;
  Memory(std::shared_ptr<Owner> owner, const session::RegisteredMemory& memory) noexcept;
  void swap(Memory& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(registered_, other.registered_);
    std::swap(local_, other.local_);
    std::swap(window_, other.window_);
  }

  std::shared_ptr<Owner> owner_;
  const session::RegisteredMemory* registered_ = nullptr;
  Local local_;
  Window window_;
};

/// Callbacks, called by the thread of a listener or of a client. A handler must outlive its connections. Callbacks may
/// wait, and may call everything except Listener::stop, Listener::wait and the destructor of their own listener.
/// Whatever they wait for in this library, the thread's other connections receive messages and carry out calls
/// meanwhile; their handlers are called when the one at hand has returned.
class Handler {
 public:
  /// Listeners: a client has connected, and the connection has received nothing yet. The listener owns the connection
  /// and destroys it when on_disconnect has returned, unless you keep it here (Connection::keep).
  virtual void on_accept(Connection&) noexcept {}
  /// Clients: the connection is made.
  virtual void on_connect(Connection&) noexcept {}
  /// A message arrived. With Receive::kHandler only.
  virtual void on_message(Connection&, const Message&) noexcept {}
  /// A started operation is complete. With Complete::kHandler only.
  virtual void on_complete(Connection&, const Completion&) noexcept {}
  /// The connection is dead. Called once; not called if this side has closed or destroyed it.
  virtual void on_disconnect(Connection&, Status /*reason*/) noexcept {}

 protected:
  ~Handler() = default;
};

/// Options of a listener and its connections, or of one client.
struct Options {
  Transport transport{};                 ///< NIC and bootstrap. Both ends must choose the same bootstrap.
  std::string address{};                 ///< Address or name to listen on, or to connect to. Empty: this host.
  std::uint16_t port = 7471;             ///< Listeners: 0 takes any free one; Listener::port returns it.
  Handler* handler = nullptr;            ///< Handler of all connections. A listener without one needs Listener::accept.
  Receive receive = Receive::kQueue;     ///< Where messages of all connections go. Clients cannot discard.
  Complete complete = Complete::kQueue;  ///< Where completions of started operations go.
  std::chrono::milliseconds connect_timeout{5000};  ///< Deadline of `connect`. 1 ms to 12 days.
  std::chrono::milliseconds timeout{5000};          ///< Default deadline of each call. 1 ms to 12 days.
  unsigned max_connections = 64;                    ///< Listeners without a node only. 1 to 65536.
  /// Length of each connection's window: memory of this side that the peer reads, writes and changes by atomics. 0:
  /// none. At most 64 GiB.
  std::size_t window_bytes = std::size_t{1} << 20;
  /// Memory of your own as the window, all of it. A multiple of 64 bytes. All connections of a listener share it. Keep
  /// it until they are closed. On the software NIC each access to it costs a system call, unless Node::allocate
  /// allocated it.
  std::span<std::byte> window{};
  /// Listeners only. true: all of its connections share one allocated window of window_bytes; see Listener::window.
  bool shared_window = false;
  /// Room for messages that have arrived and wait to be received; further ones wait at the sender. 64 KiB to 1 GiB.
  std::size_t inbox_bytes = std::size_t{1} << 20;
  /// Longest message to a handler: a longer one ends the connection with kTooLong. 1 B to 1 TiB. A connection with a
  /// handler reserves so much address space; memory is used only as messages come.
  std::size_t max_message_bytes = std::size_t{64} << 20;
  /// Users besides this one, and root, whose processes may connect (software NIC).
  std::vector<unsigned> allowed_uids{};
  /// File of keys, one a line (docs/connections.md). A listener accepts only clients that prove that they have one of
  /// them; a client proves that it has one, and makes the listener prove the same. Each `start` and `connect` reads the
  /// file. Empty: none, and on a device anybody who reaches the port may connect.
  std::string key_file{};
  std::string key_name{};  ///< Clients only: which key of key_file. Empty: the first.
  /// The node to use; it replaces `transport` and `allowed_uids`, and must outlive everything that uses it. Null: the
  /// process's own node for that NIC.
  Node* node = nullptr;
};

/// NIC, threads and limits of a node.
struct NodeOptions {
  Transport transport{};                 ///< NIC and bootstrap.
  std::string address{};                 ///< Without a device in `transport`: selects the NIC that has this address.
  unsigned shards = 1;                   ///< Threads that drive connections, 1 to 256.
  unsigned connections = 256;            ///< Most connections of each shard. 1 to 65536.
  std::vector<unsigned> cpus{};          ///< One core number for each shard. Empty: claims free cores.
  std::vector<unsigned> allowed_uids{};  ///< As Options::allowed_uids.
};

/// A NIC, opened once for the process, with threads that drive connections and memory that all of them use. Without
/// one, connections and listeners use the process's own node for that NIC. Destroy connections, listeners and memory
/// that use a node before the node. \thread any
class Node {
 public:
  /// Errors: those of the NIC, kBadArgument (an option), kLimit, kNoMemory.
  [[nodiscard]] static Result<std::unique_ptr<Node>> open(const NodeOptions& options = {});
  ~Node();  ///< Nothing may use the node any more.
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// As Connection::allocate, for all connections of the node and their peers.
  [[nodiscard]] Result<Memory> allocate(std::size_t bytes);
  /// As Connection::register_memory, for all connections of the node and their peers.
  [[nodiscard]] Result<Memory> register_memory(std::span<std::byte> memory, Access access = Access::kLocal);
  /// As Connection::publish, for all connections of the node and their peers.
  [[nodiscard]] Result<void> publish(std::string_view name, const Memory& memory, std::size_t offset = 0,
                                     std::size_t length = kRest);
  /// As Connection::unpublish, for all connections of the node and their peers.
  [[nodiscard]] Result<void> unpublish(std::string_view name);
  /// One line: the NIC, and why it was chosen.
  [[nodiscard]] const std::string& description() const noexcept;

 private:
  friend class Connection;
  friend class Listener;
  friend struct typed::detail::Inside;
  struct Impl;
  explicit Node(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// One end of a connection. Immovable; std::unique_ptr holds it. The destructor closes it: it tells the peer, ends the
/// operations under way, and returns once the messages that `send` accepted have arrived, unless the peer takes longer
/// than 336 ms.
/// In a handler it returns at once. No other call may be under way then. \thread any, as said above
class Connection {
 public:
  /// Connects to a listener. Errors: kNotFound (the name, or the device), kConnectionRefused, kRejected and others with
  /// the listener's text, kTimedOut (no answer), kOtherHost, kOtherNamespace, kNotAllowed, kBadArgument (an option;
  /// Receive::kHandler without a handler), kNoMemory, kLimit, kDevice.
  [[nodiscard]] static Result<std::unique_ptr<Connection>> connect(const Options& options);
  ~Connection();  ///< Closes it.
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Gives the caller ownership of an accepted connection: it stays valid until destroyed, whatever happens. Works in
  /// on_accept only, and once; returns null elsewhere.
  [[nodiscard]] std::unique_ptr<Connection> keep() noexcept;
  /// Ends the connection, as its destructor does; calls return kClosed from then on. A connection that its listener
  /// owns is destroyed when the handler has returned; close such a connection only in handlers.
  void close() noexcept;
  /// Whether calls can work. A client without a handler checks in this call whether the peer has left.
  [[nodiscard]] bool is_connected() const noexcept;
  /// The reason why it is dead; kOk while it is not.
  [[nodiscard]] Status failure() const noexcept;

  // --- messages

  /// Sends a message of 1 byte to any length, in order with everything that this connection sends. `data` may be any
  /// memory; you may reuse it when the call returns. kOk once the NIC has all of it, or will get it within the peer's
  /// room. After kTimedOut the message will not arrive, and the connection goes on. kBadArgument: no bytes.
  [[nodiscard]] Status send(std::span<const std::byte> data, std::optional<Deadline> deadline = {}) noexcept;
  /// The same, with a number for the receiver.
  [[nodiscard]] Status send_with_immediate(std::span<const std::byte> data, std::uint32_t immediate,
                                           std::optional<Deadline> deadline = {}) noexcept;
  /// Takes the next message into `buffer`; Deadline::now() does not wait for one. kTimedOut: nothing is lost.
  /// kBufferTooSmall: the message stays queued, and `waiting_bytes` tells its length. kUnsupported: not
  /// Receive::kQueue. Once the connection is dead, it first returns the messages that had arrived, then the reason.
  [[nodiscard]] std::expected<Message, Status> receive(std::span<std::byte> buffer,
                                                       std::optional<Deadline> deadline = {}) noexcept;
  /// Length of the message that the last `receive` had no room for.
  [[nodiscard]] std::size_t waiting_bytes() const noexcept;
  /// Number of messages that were dropped (Receive::kDiscard).
  [[nodiscard]] std::uint64_t discarded() const noexcept;

  // --- windows

  /// This side's window, zeroed at first; the peer may change it at any time. Valid as long as the connection object.
  [[nodiscard]] std::span<std::byte> window() const noexcept;
  /// This side's window as registered memory.
  [[nodiscard]] Local window_memory() const noexcept;
  /// The peer's window; empty if it has none.
  [[nodiscard]] Window peer_window() const noexcept;
  /// Finds the window that the peer has published under `name`, and imports it; waits until the peer has published it.
  /// kNotFound: not published by the deadline; kTimedOut: the peer did not answer (a client without a handler answers
  /// only during its calls); kLimit: a connection uses at most 63 windows.
  [[nodiscard]] Result<Window> find(std::string_view name, std::optional<Deadline> deadline = {});
  /// Imports a window that the peer told you about in some other way.
  [[nodiscard]] Result<void> import(const Window& window, std::optional<Deadline> deadline = {});
  /// Releases a window that was imported or found.
  [[nodiscard]] Result<void> release(const Window& window, std::optional<Deadline> deadline = {});

  /// Allocates `bytes`, 1 to 2^40, zeroed, and registers them with all rights, for this connection's peer. On the
  /// software NIC peers access this memory, and windows, directly; access to other memory costs a system call each
  /// time. Registering waits for the system and, on a device, pins memory: don't do it on a data path.
  [[nodiscard]] Result<Memory> allocate(std::size_t bytes);
  /// Registers memory of your own. Keep it mapped until you deregister it.
  [[nodiscard]] Result<Memory> register_memory(std::span<std::byte> memory, Access access = Access::kLocal);
  /// Publishes memory of this connection, or a part of it, under a name of 1 to 64 bytes, for its peer to find. The
  /// peer's own library keeps the peer inside the part; its NIC would allow access to all of the memory. kBusy: the
  /// name is taken; kOutOfRange: the part is not inside the memory.
  [[nodiscard]] Result<void> publish(std::string_view name, const Memory& memory, std::size_t offset = 0,
                                     std::size_t length = kRest);
  /// Removes the name. kNotFound: it was not published.
  [[nodiscard]] Result<void> unpublish(std::string_view name);

  // --- one-sided access
  //
  // These move bytes between this side and a part of the peer's memory, without the peer's CPU, and return when all are
  // in place. A write arrives before anything that you send or write after it. These errors have no effect, and the
  // connection goes on: kBadArgument (no bytes; the remote part is longer than the local one of a read, or shorter than
  // that of a write), kNotFound (no window of the peer has the key), kOutOfRange, kRemoteAccess (the window lacks the
  // right), kLocalAccess (the memory is not registered, or not any more).

  /// Writes from any memory on this side to the peer's window, from `offset` on. If the deadline passes you may reuse
  /// the memory, the connection goes on, and the write may have happened in part.
  [[nodiscard]] Status write(std::span<const std::byte> from, std::size_t offset = 0,
                             std::optional<Deadline> deadline = {}) noexcept;
  /// Reads from the peer's window, from `offset` on, into any memory on this side.
  [[nodiscard]] Status read(std::span<std::byte> to, std::size_t offset = 0,
                            std::optional<Deadline> deadline = {}) noexcept;
  /// Writes from any memory on this side to a part of the peer's memory.
  [[nodiscard]] Status write(std::span<const std::byte> from, const Remote& to,
                             std::optional<Deadline> deadline = {}) noexcept;
  /// Reads a part of the peer's memory into any memory on this side.
  [[nodiscard]] Status read(std::span<std::byte> to, const Remote& from,
                            std::optional<Deadline> deadline = {}) noexcept;
  /// Writes all of `from` to physical memory of the peer. kOutOfRange: the peer did not export all of them. A transfer
  /// that crosses from one run of physical memory into the next is several operations; when it fails, some may have
  /// happened.
  [[nodiscard]] Status write(std::span<const std::byte> from, Physical to,
                             std::optional<Deadline> deadline = {}) noexcept;
  /// Reads as many bytes as `to` has from physical memory of the peer. It fails as the write does.
  [[nodiscard]] Status read(std::span<std::byte> to, Physical from, std::optional<Deadline> deadline = {}) noexcept;

  /// Writes from registered memory to the peer's, without a copy. The call must not return while the NIC uses your
  /// memory: if the deadline passes, it drains the connection, which is then dead with kTimedOut. This may take one
  /// second more.
  [[nodiscard]] Status write(const Local& from, const Remote& to, std::optional<Deadline> deadline = {}) noexcept;
  /// The same for a read.
  [[nodiscard]] Status read(const Local& to, const Remote& from, std::optional<Deadline> deadline = {}) noexcept;
  /// The same to physical memory of the peer.
  [[nodiscard]] Status write(const Local& from, Physical to, std::optional<Deadline> deadline = {}) noexcept;
  /// The same for a read from physical memory of the peer.
  [[nodiscard]] Status read(const Local& to, Physical from, std::optional<Deadline> deadline = {}) noexcept;

  /// Writes into the peer's window; the peer gets a Message::Kind::kWritten after the bytes. No bytes: only the
  /// message. You may reuse `from` when it returns; it does not wait for the bytes to be in place.
  [[nodiscard]] Status write_with_immediate(std::span<const std::byte> from, std::uint32_t immediate,
                                            std::size_t offset = 0, std::optional<Deadline> deadline = {}) noexcept;

  /// Adds `delta` to eight bytes of the peer, aligned to 8 (else kBadArgument). Returns the value before. Change these
  /// bytes only by atomics of NICs. If the deadline passes the connection goes on, and the change may have happened.
  /// kUnsupported: the device has no atomics.
  [[nodiscard]] std::expected<std::uint64_t, Status> fetch_add(const Remote& word, std::uint64_t delta,
                                                               std::optional<Deadline> deadline = {}) noexcept;
  /// The same on physical memory of the peer.
  [[nodiscard]] std::expected<std::uint64_t, Status> fetch_add(Physical word, std::uint64_t delta,
                                                               std::optional<Deadline> deadline = {}) noexcept;
  /// Sets the eight bytes to `desired` if they are `expected`. Otherwise as fetch_add.
  [[nodiscard]] std::expected<std::uint64_t, Status> compare_swap(const Remote& word, std::uint64_t expected,
                                                                  std::uint64_t desired,
                                                                  std::optional<Deadline> deadline = {}) noexcept;
  /// The same on physical memory of the peer.
  [[nodiscard]] std::expected<std::uint64_t, Status> compare_swap(Physical word, std::uint64_t expected,
                                                                  std::uint64_t desired,
                                                                  std::optional<Deadline> deadline = {}) noexcept;

  // --- one-sided access without waiting

  /// Operations that may be under way, or complete and not collected.
  static constexpr std::size_t kMaxStarted = 64;
  /// Starts a write from registered memory to the peer's, and returns. Don't touch the memory until the completion with
  /// this cookie. It has no deadline; the end of the connection completes it. kAgain: there are kMaxStarted already.
  [[nodiscard]] Status start_write(const Local& from, const Remote& to, std::uint64_t cookie) noexcept;
  /// The same for a read.
  [[nodiscard]] Status start_read(const Local& to, const Remote& from, std::uint64_t cookie) noexcept;
  /// The same to physical memory of the peer.
  [[nodiscard]] Status start_write(const Local& from, Physical to, std::uint64_t cookie) noexcept;
  /// The same for a read from physical memory of the peer.
  [[nodiscard]] Status start_read(const Local& to, Physical from, std::uint64_t cookie) noexcept;
  /// Starts fetch_add and returns; Completion::old is the value before. Atomics and transfers complete in the order in
  /// which they were started.
  [[nodiscard]] Status start_fetch_add(const Remote& word, std::uint64_t delta, std::uint64_t cookie) noexcept;
  /// Starts compare_swap; otherwise as start_fetch_add.
  [[nodiscard]] Status start_compare_swap(const Remote& word, std::uint64_t expected, std::uint64_t desired,
                                          std::uint64_t cookie) noexcept;
  /// Collects the oldest completion; Deadline::now() does not wait for one. kTimedOut: none came; kNotFound: nothing is
  /// under way.
  [[nodiscard]] std::expected<Completion, Status> complete(std::optional<Deadline> deadline = {}) noexcept;
  /// Collects the completions that have come, without waiting. Returns how many.
  [[nodiscard]] std::size_t poll(std::span<Completion> into) noexcept;

  // --- physical addresses. See docs/physical-addressing.md.

  /// Exports all of `memory`, which this connection or its listener has registered, to this connection's peer with the
  /// memory's rights, and returns the physical address of its first byte. The peer learns of it before any message that
  /// you send afterwards. Exporting needs CAP_SYS_ADMIN (kPermission, and the text names it); using an export needs no
  /// privilege. kLimit: a connection can make 16 exports in its life, those of deregistered memory included.
  [[nodiscard]] Result<std::uint64_t> export_physical(const Memory& memory);
  /// The physical address of a byte of this process: the one under which this connection exported it, or else the
  /// kernel's, which needs the privilege. kNotFound: there is no page yet; write to it first.
  [[nodiscard]] Result<std::uint64_t> physical_address_of(const void* local) const;

  /// Sets Options::timeout for later calls.
  void set_timeout(std::chrono::milliseconds timeout) noexcept;

 private:
  friend class Listener;
  friend struct typed::detail::Inside;
  struct Client;
  explicit Connection(session::Session& session);

  session::Session* session_;                      ///< Null once closed.
  std::unique_ptr<session::Session> own_session_;  ///< Null while the listener owns the session.
  std::shared_ptr<Memory::Owner> memory_;
  std::unique_ptr<Client> client_;  ///< For clients: gets the session's events.
  std::atomic<std::size_t> waiting_bytes_{0};
};

/// A running server. \thread any, one at a time, except where said
class Listener {
 public:
  /// Starts a listener, and returns once clients can connect. Errors: those of the NIC and the address, kBadArgument
  /// (an option), kLimit, kNoMemory, kSystem (the address is in use).
  [[nodiscard]] static Result<std::unique_ptr<Listener>> start(const Options& options);
  /// Stops it. Kept connections remain as objects, but dead.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// The port it listens on, also if the option was 0.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// The address for Connection::connect of a peer, on any host; this host's name if it listens on all addresses.
  [[nodiscard]] std::string address() const;
  /// One line: the NIC and why, and who may connect; "" once it has stopped.
  [[nodiscard]] std::string description() const;
  /// The window that all connections share (Options::shared_window, Options::window); empty if there is none. Valid
  /// until `stop`.
  [[nodiscard]] std::span<std::byte> window() const noexcept;
  /// Without a handler: returns the next client's connection. It also returns connections whose clients have left
  /// already, if they have something to receive (at most the latest 64 of these). kTimedOut, kClosed (stopped),
  /// kUnsupported (there is a handler). \thread any
  [[nodiscard]] std::expected<std::unique_ptr<Connection>, Status> accept(Deadline deadline) noexcept;
  /// As Connection::allocate, for all connections of the listener. The memory lasts until `stop`.
  [[nodiscard]] Result<Memory> allocate(std::size_t bytes);
  /// As Connection::register_memory, for all connections of the listener.
  [[nodiscard]] Result<Memory> register_memory(std::span<std::byte> memory, Access access = Access::kLocal);
  /// As Connection::publish, for all connections of the listener.
  [[nodiscard]] Result<void> publish(std::string_view name, const Memory& memory, std::size_t offset = 0,
                                     std::size_t length = kRest);
  /// As Connection::unpublish, for all connections of the listener.
  [[nodiscard]] Result<void> unpublish(std::string_view name);
  /// Waits without a deadline until another thread has stopped the listener. \thread any but its own
  void wait() noexcept;
  /// Ends all connections and the thread; calls under way in other threads return kClosed. Idempotent.
  void stop() noexcept;

 private:
  friend struct typed::detail::Inside;
  struct Impl;
  explicit Listener(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::rdma

#pragma GCC visibility pop
