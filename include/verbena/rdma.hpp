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
#include <memory>
#include <optional>
#include <span>
#include <string>

/// What the C API holds; opaque.
struct verbena_RdmaConn;

/// Who drives a connection:
///  - A listener has one thread of its own, pinned to a core that it claims; it drives all of its connections and calls
///    their handlers. Other threads may call any function of an accepted connection, also at the same time: it has the
///    call done by that thread, and waits.
///  - A client's connection with a handler has such a thread too.
///  - Any other client's connection is driven by the thread that calls, with no thread in between: a second thread that
///    calls meanwhile gets kBusy. What the peer sends waits, and the peer with it, until the next call.
///
/// Calls that wait take a deadline; the same without one have Options::timeout. Calls on data return a Status, or a
/// value or a Status; none of them allocates, but the first that a thread makes. kBusy, kTimedOut, kClosed (not
/// connected, or ended by this side) and the reason of a dead connection can come from each of them, besides those
/// named.
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

/// What arrived.
struct Message {
  enum class Kind : std::uint8_t {
    kSent,     ///< By `send`.
    kWritten,  ///< The peer wrote into this side's window by `write_with_immediate`.
  };
  Kind kind = Kind::kSent;
  std::optional<std::uint32_t> immediate{};
  /// kSent: the bytes, the handler's until it returns; in `receive` the caller's. kWritten: the place in the window.
  std::span<std::byte> data{};
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
  /// The connection is dead, once. Not called when this side has closed or destroyed it.
  virtual void on_disconnect(Connection&, Status /*reason*/) noexcept {}

 protected:
  ~Handler() = default;
};

/// Of a listener and its connections, or of one client.
struct Options {
  Transport transport;         ///< NIC and bootstrap; both ends the same.
  std::string address;         ///< To listen on, or of the listener; an address or a name. Empty: this host.
  std::uint16_t port = 7471;   ///< 0, of a listener: any free one, which Listener::port tells.
  Handler* handler = nullptr;  ///< Of all connections. Without one a listener's are taken by Listener::accept.
  Receive receive = Receive::kQueue;
  std::chrono::milliseconds connect_timeout{5000};  ///< Of `connect`. 1 ms to 12 days, as the next.
  std::chrono::milliseconds timeout{5000};          ///< Default deadline of each call.
  unsigned max_connections = 64;                    ///< Of a listener. 1 to 1024.
  /// Memory of this side that the peer of a connection reads and writes, its window, one for each connection. 0: none.
  /// At most 1 GiB.
  std::size_t window_bytes = std::size_t{1} << 20;
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
  [[nodiscard]] Status send(std::span<const std::byte> data, Deadline deadline) noexcept;
  [[nodiscard]] Status send(std::span<const std::byte> data) noexcept { return send(data, deadline()); }
  [[nodiscard]] Status send(std::span<const std::byte> data, std::uint32_t immediate, Deadline deadline) noexcept;
  [[nodiscard]] Status send(std::span<const std::byte> data, std::uint32_t immediate) noexcept {
    return send(data, immediate, deadline());
  }
  /// Takes the next message into `buffer`; Deadline::now() takes what is there. kTimedOut: nothing is lost.
  /// kBufferTooSmall: the message waits on, and `waiting_bytes` tells its length. kUnsupported: not Receive::kQueue.
  /// Once the connection is dead, what arrived before is still returned, then the reason.
  [[nodiscard]] std::expected<Message, Status> receive(std::span<std::byte> buffer, Deadline deadline) noexcept;
  [[nodiscard]] std::expected<Message, Status> receive(std::span<std::byte> buffer) noexcept {
    return receive(buffer, deadline());
  }
  /// Length of the message that the last `receive` had no room for.
  [[nodiscard]] std::size_t waiting_bytes() const noexcept;
  /// Messages that nobody wanted (Receive::kDiscard).
  [[nodiscard]] std::uint64_t discarded() const noexcept;

  // --- the peer's window

  /// Writes to and reads from the peer's window at `offset`: in place at the peer when this returns, without its CPU.
  /// Any memory. Past the deadline the memory is the caller's again, the connection goes on, and a write may have
  /// happened in part. A write is there before anything that is sent after it. kOutOfRange: not inside the window;
  /// nothing was done. kBadArgument: no bytes.
  [[nodiscard]] Status write(std::span<const std::byte> from, std::size_t offset, Deadline deadline) noexcept;
  [[nodiscard]] Status write(std::span<const std::byte> from, std::size_t offset = 0) noexcept {
    return write(from, offset, deadline());
  }
  [[nodiscard]] Status read(std::span<std::byte> to, std::size_t offset, Deadline deadline) noexcept;
  [[nodiscard]] Status read(std::span<std::byte> to, std::size_t offset = 0) noexcept {
    return read(to, offset, deadline());
  }
  /// The peer gets a Message::Kind::kWritten after the bytes. No bytes: only that message.
  [[nodiscard]] Status write_with_immediate(std::span<const std::byte> from, std::uint32_t immediate,
                                            std::size_t offset, Deadline deadline) noexcept;
  [[nodiscard]] Status write_with_immediate(std::span<const std::byte> from, std::uint32_t immediate,
                                            std::size_t offset = 0) noexcept {
    return write_with_immediate(from, immediate, offset, deadline());
  }
  /// This side's window, zeroed at first; the peer may change it at any time. Valid while the connection object is.
  [[nodiscard]] std::span<std::byte> window() const noexcept;
  [[nodiscard]] std::size_t peer_window_bytes() const noexcept;

  /// What the calls without a deadline have from now.
  [[nodiscard]] Deadline deadline() const noexcept;
  /// Sets Options::timeout for the calls that follow.
  void set_timeout(std::chrono::milliseconds timeout) noexcept;

 private:
  friend class Listener;
  friend struct Callbacks;
  Connection(verbena_RdmaConn* conn, Handler* handler) noexcept : conn_(conn), handler_(handler) {}

  verbena_RdmaConn* conn_;  ///< Null once closed.
  Handler* handler_;
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

  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Without a handler: the next client's connection. One whose client has left before is not among them. kTimedOut,
  /// kClosed (stopped), kUnsupported (there is a handler). \thread any
  [[nodiscard]] std::expected<std::unique_ptr<Connection>, Status> accept(Deadline deadline) noexcept;
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
