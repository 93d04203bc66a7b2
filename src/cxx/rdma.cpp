// The C++ API over the connections and listeners of the C API.
#include <verbena/rdma.hpp>

#include "base/error.hpp"
#include "c/codes.hpp"
#include "c/conn.hpp"
#include "c/listener.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

namespace verbena::rdma {

using c::Operation;

namespace {

[[nodiscard]] unsigned whole_ms(std::chrono::milliseconds time) noexcept {
  return static_cast<unsigned>(std::clamp<std::int64_t>(time.count(), 0, std::numeric_limits<unsigned>::max()));
}

[[nodiscard]] Result<c::Settings> settings_of(const Options& options) {
  if (options.receive == Receive::kHandler && options.handler == nullptr)
    return fail(Status::kBadArgument, "rdma::Options", 0, "messages are to go to a handler, and there is none");
  VERBENA_ASSIGN(c::Settings settings,
                 c::settings_of({.connect_timeout_ms = whole_ms(options.connect_timeout),
                                 .timeout_ms = whole_ms(options.timeout),
                                 .max_connections = options.max_connections,
                                 .recv_mode = options.receive == Receive::kQueue ? RDMA_RECV_QUEUE : RDMA_RECV_DISCARD,
                                 .window_bytes = options.window_bytes,
                                 .inbox_bytes = options.inbox_bytes,
                                 .max_message_bytes = options.max_message_bytes}));
  settings.transport = options.transport;
  return settings;
}

[[nodiscard]] Message message_of(const RdmaMessage& message) noexcept {
  Message made{.kind = message.kind == RDMA_WRITTEN ? Message::Kind::kWritten : Message::Kind::kSent,
               .data = {static_cast<std::byte*>(message.data), message.length}};
  if (message.has_imm != 0) made.immediate = message.imm;
  return made;
}

/// The object of a connection that is its listener's.
struct Owned final : c::Companion {
  explicit Owned(std::unique_ptr<Connection> owned) noexcept : connection(std::move(owned)) {}
  std::unique_ptr<Connection> connection;
};

}  // namespace

struct Listener::Impl {
  Impl(const Options& wanted)
      : handler(wanted.handler), receive(wanted.receive), listener(wanted.address, wanted.port) {}

  /// Takes out the connection that nobody has accepted, if there is one over `conn`. \thread any
  [[nodiscard]] std::unique_ptr<Connection> remove(const RdmaConn* conn) noexcept {
    const std::lock_guard lock(mutex);
    const auto found = std::ranges::find(waiting, conn, [](const auto& connection) { return connection->conn_; });
    if (found == waiting.end()) return nullptr;
    std::unique_ptr<Connection> removed = std::move(*found);
    waiting.erase(found);
    return removed;
  }

  Handler* const handler;
  const Receive receive;
  verbena_RdmaListener listener;
  std::mutex mutex;  ///< Of what follows.
  std::condition_variable changed;
  std::deque<std::unique_ptr<Connection>> waiting;  ///< For `accept`.
  bool is_stopped = false;
};

/// What the C API's connections call.
struct Callbacks {
  using Impl = Listener::Impl;

  static void on_message(RdmaConn* /*conn*/, const RdmaMessage* message, void* user) {
    auto& connection = *static_cast<Connection*>(user);
    connection.handler_->on_message(connection, message_of(*message));
  }
  static void on_connect(RdmaConn* /*conn*/, void* user) {
    auto& connection = *static_cast<Connection*>(user);
    connection.handler_->on_connect(connection);
  }
  static void on_disconnect(RdmaConn* /*conn*/, int code, void* user) {
    auto& connection = *static_cast<Connection*>(user);
    connection.handler_->on_disconnect(connection, c::status_of(code));
  }
  static void set(RdmaConn& conn, Connection& connection, Receive receive) noexcept {
    if (receive == Receive::kHandler) conn.callbacks.message = {.full = on_message, .user = &connection};
    conn.callbacks.disconnected = {.full = on_disconnect, .user = &connection};
  }

  static void on_accept(RdmaConn* conn, void* user) {
    const auto& listener = *static_cast<Impl*>(user);
    try {
      std::unique_ptr<Connection> connection(new Connection(conn, listener.handler));
      connection->is_ours_ = false;
      set(*conn, *connection, listener.receive);
      conn->companion = std::make_unique<Owned>(std::move(connection));
    } catch (const std::bad_alloc&) {
      return rdmaConnClose(conn);
    }
    Connection& connection = *static_cast<Owned*>(conn->companion.get())->connection;
    listener.handler->on_accept(connection);
  }
  // Without a handler.
  static void on_waiting(RdmaConn* conn, void* user) {
    auto& listener = *static_cast<Impl*>(user);
    conn->keep();
    try {
      std::unique_ptr<Connection> connection(new Connection(conn, nullptr));
      const std::lock_guard lock(listener.mutex);
      listener.waiting.push_back(nullptr);
      listener.waiting.back() = std::move(connection);
    } catch (const std::bad_alloc&) {
      return rdmaConnClose(conn);
    }
    listener.changed.notify_one();
  }
  static void on_left(RdmaConn* conn, int /*code*/, void* user) { (void)static_cast<Impl*>(user)->remove(conn); }
};

// --- connections --------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Connection>> Connection::connect(const Options& options) {
  constexpr const char* kCall = "rdma::Connection::connect";
  VERBENA_ASSIGN(c::Settings settings, settings_of(options));
  if (options.receive == Receive::kDiscard)
    return fail(Status::kBadArgument, kCall, 0, "messages are discarded by listeners only");
  RdmaConn* const conn = rdmaConn();
  if (conn == nullptr) return fail(Status::kNoMemory, kCall, 0, "no memory for a connection");
  std::unique_ptr<Connection> connection(new (std::nothrow) Connection(conn, options.handler));
  if (connection == nullptr) {
    rdmaConnClose(conn);
    return fail(Status::kNoMemory, kCall, 0, "no memory for a connection");
  }
  conn->settings = std::move(settings);
  if (options.handler != nullptr) {
    Callbacks::set(*conn, *connection, options.receive);
    conn->callbacks.connected = {.full = Callbacks::on_connect, .user = connection.get()};
  }
  VERBENA_TRY(conn->connect(options.address, options.port));
  return connection;
}

Connection::~Connection() {
  if (is_ours_) close();
}

void Connection::close() noexcept { rdmaConnClose(std::exchange(conn_, nullptr)); }

std::unique_ptr<Connection> Connection::keep() noexcept {
  if (conn_ == nullptr || is_ours_ || !conn_->takes_callbacks()) return nullptr;
  conn_->keep();
  is_ours_ = true;
  return std::move(static_cast<Owned*>(conn_->companion.get())->connection);
}

bool Connection::is_connected() const noexcept { return conn_ != nullptr && conn_->is_connected(); }

Status Connection::failure() const noexcept {
  if (conn_ == nullptr) return Status::kClosed;
  // No call of this API notes what it came to: what is there is the reason.
  return conn_->is_connected() ? Status::kOk : c::status_of(conn_->last_code.load(std::memory_order_relaxed));
}

void Connection::set_timeout(std::chrono::milliseconds timeout) noexcept {
  if (conn_ != nullptr) conn_->timeout_ms.store(std::max(whole_ms(timeout), 1u), std::memory_order_relaxed);
}

std::size_t Connection::waiting_bytes() const noexcept { return waiting_bytes_.load(std::memory_order_relaxed); }
std::uint64_t Connection::discarded() const noexcept { return conn_ != nullptr ? conn_->discarded() : 0; }
std::span<std::byte> Connection::window() const noexcept {
  return conn_ != nullptr ? conn_->window() : std::span<std::byte>{};
}
Window Connection::peer_window() const noexcept {
  return {.length = conn_ != nullptr ? conn_->peer_window_bytes() : 0};
}

// --- data

namespace {

[[nodiscard]] Deadline deadline_of(const RdmaConn& conn, const std::optional<Deadline>& deadline) noexcept {
  if (deadline) return *deadline;
  return Deadline::after(std::chrono::milliseconds{conn.timeout_ms.load(std::memory_order_relaxed)});
}

[[nodiscard]] Status run(RdmaConn* conn, Operation& operation, const std::optional<Deadline>& deadline) noexcept {
  return conn != nullptr ? conn->carry_out(operation, deadline_of(*conn, deadline)) : Status::kClosed;
}

[[nodiscard]] Status run_send(RdmaConn* conn, Operation& operation, std::span<const std::byte> data,
                              const std::optional<Deadline>& deadline) noexcept {
  if (data.empty()) return Status::kBadArgument;
  operation.from = data.data();
  operation.length = data.size();
  return run(conn, operation, deadline);
}

/// Of the peer's window. `operation` has what is local.
[[nodiscard]] Status run_in_window(RdmaConn* conn, Operation& operation, std::size_t offset,
                                   const std::optional<Deadline>& deadline) noexcept {
  if (operation.length == 0 && !operation.tells_peer) return Status::kBadArgument;
  const std::size_t window = conn != nullptr ? conn->peer_window_bytes() : 0;
  if (conn != nullptr && (offset > window || operation.length > window - offset)) return Status::kOutOfRange;
  operation.offset = offset;
  return run(conn, operation, deadline);
}

}  // namespace

Status Connection::send(std::span<const std::byte> data, std::optional<Deadline> deadline) noexcept {
  Operation operation;
  return run_send(conn_, operation, data, deadline);
}

Status Connection::send_with_immediate(std::span<const std::byte> data, std::uint32_t immediate,
                                       std::optional<Deadline> deadline) noexcept {
  Operation operation;
  operation.has_immediate = true;
  operation.immediate = immediate;
  return run_send(conn_, operation, data, deadline);
}

std::expected<Message, Status> Connection::receive(std::span<std::byte> buffer,
                                                   std::optional<Deadline> deadline) noexcept {
  if (conn_ == nullptr) return std::unexpected(Status::kClosed);
  if (!conn_->receives()) return std::unexpected(Status::kUnsupported);
  Operation operation;
  operation.kind = Operation::Kind::kReceive;
  operation.to = buffer.data();
  operation.length = buffer.size();
  const Status status = run(conn_, operation, deadline);
  if (status == Status::kOk) return message_of(operation.message);
  if (status == Status::kBufferTooSmall) waiting_bytes_.store(operation.message.length, std::memory_order_relaxed);
  return std::unexpected(status);
}

Status Connection::write(std::span<const std::byte> from, std::size_t offset,
                         std::optional<Deadline> deadline) noexcept {
  Operation operation;
  operation.kind = Operation::Kind::kWrite;
  operation.from = from.data();
  operation.length = from.size();
  return run_in_window(conn_, operation, offset, deadline);
}

Status Connection::read(std::span<std::byte> to, std::size_t offset, std::optional<Deadline> deadline) noexcept {
  Operation operation;
  operation.kind = Operation::Kind::kRead;
  operation.to = to.data();
  operation.length = to.size();
  return run_in_window(conn_, operation, offset, deadline);
}

Status Connection::write_with_immediate(std::span<const std::byte> from, std::uint32_t immediate, std::size_t offset,
                                        std::optional<Deadline> deadline) noexcept {
  Operation operation;
  operation.kind = Operation::Kind::kWrite;
  operation.tells_peer = true;
  operation.immediate = immediate;
  operation.from = from.data();
  operation.length = from.size();
  return run_in_window(conn_, operation, offset, deadline);
}

// --- listeners ----------------------------------------------------------------------------------------------------

Listener::Listener(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

Result<std::unique_ptr<Listener>> Listener::start(const Options& options) {
  VERBENA_ASSIGN(c::Settings settings, settings_of(options));
  try {
    auto impl = std::make_unique<Impl>(options);
    impl->listener.settings = std::move(settings);
    impl->listener.callbacks.accepted = {
        .full = options.handler != nullptr ? Callbacks::on_accept : Callbacks::on_waiting, .user = impl.get()};
    if (options.handler == nullptr)
      impl->listener.callbacks.disconnected = {.full = Callbacks::on_left, .user = impl.get()};
    std::unique_ptr<Listener> made(new Listener(std::move(impl)));
    VERBENA_TRY(made->impl_->listener.start());
    return made;
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "rdma::Listener::start", 0, "no memory for a listener");
  }
}

Listener::~Listener() { stop(); }

std::uint16_t Listener::port() const noexcept { return impl_->listener.port(); }

std::expected<std::unique_ptr<Connection>, Status> Listener::accept(Deadline deadline) noexcept {
  if (impl_->handler != nullptr) return std::unexpected(Status::kUnsupported);
  constexpr std::chrono::hours kLongest{24 * 365};
  std::unique_lock lock(impl_->mutex);
  const auto is_over = [&] { return impl_->is_stopped || !impl_->waiting.empty(); };
  if (!impl_->changed.wait_for(lock, std::min<std::chrono::nanoseconds>(deadline.left(), kLongest), is_over))
    return std::unexpected(Status::kTimedOut);
  if (impl_->is_stopped) return std::unexpected(Status::kClosed);
  std::unique_ptr<Connection> connection = std::move(impl_->waiting.front());
  impl_->waiting.pop_front();
  return connection;
}

void Listener::wait() noexcept {
  if (!impl_->listener.is_in_callback()) impl_->listener.wait();
}

void Listener::stop() noexcept {
  if (impl_->listener.is_in_callback()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->is_stopped = true;
  }
  impl_->changed.notify_all();
  impl_->listener.stop();
  // Their disconnect callbacks have taken out those that nobody has accepted.
}

}  // namespace verbena::rdma
