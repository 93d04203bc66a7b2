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
#include <type_traits>
#include <utility>

namespace verbena::rdma {

using c::Operation;

namespace {

[[nodiscard]] unsigned whole_ms(std::chrono::milliseconds time) noexcept {
  return static_cast<unsigned>(std::clamp<std::int64_t>(time.count(), 0, std::numeric_limits<unsigned>::max()));
}

[[nodiscard]] Result<c::Settings> settings_of(const Options& options) {
  const bool wants_handler = options.receive == Receive::kHandler || options.complete == Complete::kHandler;
  if (wants_handler && options.handler == nullptr)
    return fail(Status::kBadArgument, "rdma::Options", 0,
                "messages or completions are to go to a handler: there is none");
  VERBENA_ASSIGN(c::Settings settings,
                 c::settings_of({.connect_timeout_ms = whole_ms(options.connect_timeout),
                                 .timeout_ms = whole_ms(options.timeout),
                                 .max_connections = options.max_connections,
                                 .recv_mode = options.receive == Receive::kQueue ? RDMA_RECV_QUEUE : RDMA_RECV_DISCARD,
                                 .window = options.window.empty() ? nullptr : options.window.data(),
                                 .window_bytes = options.window.empty() ? options.window_bytes : options.window.size(),
                                 .inbox_bytes = options.inbox_bytes,
                                 .max_message_bytes = options.max_message_bytes}));
  settings.transport = options.transport;
  return settings;
}

[[nodiscard]] constexpr Access access_of(std::uint32_t rights) noexcept { return static_cast<Access>(rights); }
static_assert(access_of(RDMA_ACCESS_LOCAL) == Access::kLocal && access_of(RDMA_ACCESS_REMOTE_READ) == Access::kRead);
static_assert(access_of(RDMA_ACCESS_REMOTE_WRITE) == Access::kWrite);
static_assert(access_of(RDMA_ACCESS_REMOTE_ATOMIC) == Access::kAtomic);
static_assert(access_of(RDMA_ACCESS_REMOTE_ALL) == Access::kAll);

[[nodiscard]] Window window_of(const RdmaWindow& window) noexcept {
  return {.address = window.addr,
          .length = window.length,
          .memory_id = window.memory_id,
          .rkey = window.rkey,
          .access = access_of(window.access)};
}
[[nodiscard]] RdmaWindow window_of(const Window& window) noexcept {
  return {.addr = window.address,
          .length = window.length,
          .rkey = window.rkey,
          .access = static_cast<std::uint32_t>(window.access),
          .memory_id = window.memory_id};
}

[[nodiscard]] Completion completion_of(const RdmaCompletion& completion) noexcept {
  return {.cookie = completion.cookie,
          .operation = completion.operation == RDMA_READ ? Completion::Operation::kRead : Completion::Operation::kWrite,
          .status = c::status_of(completion.code)};
}

[[nodiscard]] Message message_of(const RdmaMessage& message) noexcept {
  Message made{.kind = message.kind == RDMA_WRITTEN ? Message::Kind::kWritten : Message::Kind::kSent,
               .data = {static_cast<std::byte*>(message.data), message.length}};
  if (message.has_imm != 0) made.immediate = message.imm;
  return made;
}

/// What `body` returns as a Result; without memory, that: no exception leaves the library.
template <class Body>
[[nodiscard]] std::invoke_result_t<Body> guarded(const char* call, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, call, 0, "no memory");
  }
}

/// The object of a connection that is its listener's.
struct Owned final : c::Companion {
  explicit Owned(std::unique_ptr<Connection> owned) noexcept : connection(std::move(owned)) {}
  std::unique_ptr<Connection> connection;
};

}  // namespace

/// Of memory: what it was registered by, until that ends.
struct Memory::Owner {
  /// Calls `body(registry, owner)`; kClosed where it has ended. What it calls ends before its owner does.
  template <class Body>
  [[nodiscard]] std::invoke_result_t<Body, c::Runtime&, const c::Conn*> with(const char* call, Body&& body) {
    const std::lock_guard lock(mutex);
    c::Runtime* const runtime = conn != nullptr ? conn->runtime() : listener != nullptr ? listener->runtime() : nullptr;
    if (runtime == nullptr) return fail(Status::kClosed, call, 0, "what it belongs to is closed");
    return guarded(call, [&] { return body(*runtime, conn); });
  }
  void end() noexcept {
    const std::lock_guard lock(mutex);
    conn = nullptr;
    listener = nullptr;
  }
  [[nodiscard]] Deadline deadline(const std::optional<Deadline>& wanted) const noexcept {
    if (wanted) return *wanted;
    return Deadline::after(conn != nullptr ? std::chrono::milliseconds{conn->timeout_ms.load(std::memory_order_relaxed)}
                                           : listener->settings.timeout);
  }

  std::mutex mutex;
  RdmaConn* conn = nullptr;
  verbena_RdmaListener* listener = nullptr;
};

struct Listener::Impl {
  explicit Impl(const Options& wanted)
      : handler(wanted.handler),
        receive(wanted.receive),
        complete(wanted.complete),
        listener(wanted.address, wanted.port) {}

  /// Takes out the connection that nobody has accepted, if there is one over `conn`. \thread any
  [[nodiscard]] std::unique_ptr<Connection> remove(const RdmaConn* conn) noexcept {
    const std::lock_guard lock(mutex);
    const auto found = std::ranges::find(waiting, conn, [](const auto& connection) { return connection->conn_; });
    if (found == waiting.end()) return nullptr;
    std::unique_ptr<Connection> removed = std::move(*found);
    waiting.erase(found);
    return removed;
  }

  /// One that nobody has accepted has ended. What its client sent before can still be received, so it waits on, unless
  /// that is nothing, or too many do already: of these the oldest goes. What it returns is to be destroyed.
  /// In a callback
  [[nodiscard]] std::unique_ptr<Connection> on_left(const RdmaConn& conn) noexcept {
    if (!conn.has_messages()) return remove(&conn);
    const std::lock_guard lock(mutex);
    if (!is_stopped && std::ranges::count_if(waiting, has_left) <= kMostLeft) return nullptr;
    const auto oldest = std::ranges::find_if(waiting, has_left);
    if (oldest == waiting.end()) return nullptr;
    std::unique_ptr<Connection> removed = std::move(*oldest);
    waiting.erase(oldest);
    return removed;
  }
  static bool has_left(const std::unique_ptr<Connection>& connection) noexcept { return !connection->is_connected(); }
  static constexpr std::ptrdiff_t kMostLeft = 64;

  Handler* const handler;
  const Receive receive;
  const Complete complete;
  verbena_RdmaListener listener;
  const std::shared_ptr<Memory::Owner> memory = std::make_shared<Memory::Owner>();
  std::mutex mutex;  ///< Of what follows.
  std::condition_variable changed;
  std::deque<std::unique_ptr<Connection>> waiting;  ///< For `accept`.
  bool is_stopped = false;
};

/// What the C API's connections call.
struct Callbacks {
  using Impl = Listener::Impl;

  [[nodiscard]] static std::shared_ptr<Memory::Owner> make_owner(RdmaConn* conn) {
    auto owner = std::make_shared<Memory::Owner>();
    owner->conn = conn;
    return owner;
  }

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
  static void on_complete(RdmaConn* /*conn*/, const RdmaCompletion* completion, void* user) {
    auto& connection = *static_cast<Connection*>(user);
    connection.handler_->on_complete(connection, completion_of(*completion));
  }
  static void set(RdmaConn& conn, Connection& connection, Receive receive, Complete complete) noexcept {
    if (receive == Receive::kHandler) conn.callbacks.message = {.full = on_message, .user = &connection};
    if (complete == Complete::kHandler)
      conn.callbacks.written = conn.callbacks.read = {.full = on_complete, .user = &connection};
    conn.callbacks.disconnected = {.full = on_disconnect, .user = &connection};
  }

  static void on_accept(RdmaConn* conn, void* user) {
    const auto& listener = *static_cast<Impl*>(user);
    try {
      std::unique_ptr<Connection> connection(new Connection(conn, listener.handler, make_owner(conn)));
      connection->is_ours_ = false;
      set(*conn, *connection, listener.receive, listener.complete);
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
      std::unique_ptr<Connection> connection(new Connection(conn, nullptr, make_owner(conn)));
      const std::lock_guard lock(listener.mutex);
      listener.waiting.push_back(nullptr);
      listener.waiting.back() = std::move(connection);
    } catch (const std::bad_alloc&) {
      return rdmaConnClose(conn);
    }
    listener.changed.notify_one();
  }
  static void on_left(RdmaConn* conn, int /*code*/, void* user) { (void)static_cast<Impl*>(user)->on_left(*conn); }
};

// --- connections --------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Connection>> Connection::connect(const Options& options) {
  constexpr const char* kCall = "rdma::Connection::connect";
  VERBENA_ASSIGN(c::Settings settings, guarded(kCall, [&] { return settings_of(options); }));
  if (options.receive == Receive::kDiscard)
    return fail(Status::kBadArgument, kCall, 0, "messages are discarded by listeners only");
  RdmaConn* const conn = rdmaConn();
  if (conn == nullptr) return fail(Status::kNoMemory, kCall, 0, "no memory for a connection");
  std::unique_ptr<Connection> connection;
  try {
    connection.reset(new Connection(conn, options.handler, Callbacks::make_owner(conn)));
  } catch (const std::bad_alloc&) {
    rdmaConnClose(conn);
    return fail(Status::kNoMemory, kCall, 0, "no memory for a connection");
  }
  conn->settings = std::move(settings);
  if (options.handler != nullptr) {
    Callbacks::set(*conn, *connection, options.receive, options.complete);
    conn->callbacks.connected = {.full = Callbacks::on_connect, .user = connection.get()};
  }
  VERBENA_TRY(conn->connect(options.address, options.port));
  return connection;
}

Connection::~Connection() {
  memory_->end();  // Of one that is the listener's, too: its memory may outlive it.
  if (is_ours_) close();
}

void Connection::close() noexcept {
  memory_->end();
  rdmaConnClose(std::exchange(conn_, nullptr));
}

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
Local Connection::window_memory() const noexcept {
  const RdmaMemory* const memory = conn_ != nullptr ? conn_->window_memory() : nullptr;
  return memory != nullptr ? Local(conn_->window(), memory->lkey) : Local();
}
Window Connection::peer_window() const noexcept {
  if (conn_ == nullptr || conn_->peer_window_bytes() == 0) return {};
  const nic::Window& window = conn_->peer_window();
  return {.address = window.address,
          .length = window.length,
          .memory_id = window.memory_id,
          .rkey = window.rkey,
          .access = Access::kAll};
}

// --- registered memory and windows --------------------------------------------------------------------------------

Memory::Memory(std::shared_ptr<Owner> owner, const RdmaMemory& memory) noexcept
    : owner_(std::move(owner)),
      registered_(&memory),
      local_({static_cast<std::byte*>(memory.addr), memory.length}, memory.lkey),
      window_({.address = reinterpret_cast<std::uintptr_t>(memory.addr),
               .length = memory.length,
               .memory_id = memory.memory_id,
               .rkey = memory.rkey,
               .access = access_of(memory.access)}) {}

Memory::~Memory() { (void)deregister(); }

Result<void> Memory::deregister(std::optional<Deadline> deadline) {
  if (registered_ == nullptr) return {};
  const RdmaMemory* const memory = std::exchange(registered_, nullptr);
  const std::shared_ptr<Owner> owner = std::move(owner_);
  local_ = {};
  window_ = {};
  const Result<void> removed = owner->with("rdma::Memory::deregister", [&](c::Runtime& runtime, const c::Conn* conn) {
    return runtime.registry().remove(conn, memory, owner->deadline(deadline));
  });
  // With its owner it has ended before.
  return !removed && removed.error().status() == Status::kClosed ? Result<void>{} : removed;
}

namespace {

[[nodiscard]] Deadline deadline_of(const RdmaConn& conn, const std::optional<Deadline>& deadline) noexcept {
  if (deadline) return *deadline;
  return Deadline::after(std::chrono::milliseconds{conn.timeout_ms.load(std::memory_order_relaxed)});
}

[[nodiscard]] std::unexpected<Error> closed(const char* call) { return fail(Status::kClosed, call, 0, "it is closed"); }

/// Who has asked for a name that was not there is answered.
[[nodiscard]] Result<void> publish_in(c::Runtime& runtime, const c::Conn* conn, std::string_view name,
                                      const RdmaMemory* memory) {
  VERBENA_TRY(runtime.registry().publish(conn, name, memory));
  runtime.loop().wake();
  return {};
}

}  // namespace

Result<Memory> Connection::allocate(std::size_t bytes) {
  VERBENA_ASSIGN(
      const RdmaMemory* const memory,
      memory_->with("rdma::Connection::allocate", [&](c::Runtime&, const c::Conn*) { return conn_->allocate(bytes); }));
  return Memory(memory_, *memory);
}

Result<Memory> Connection::register_memory(std::span<std::byte> memory, Access access) {
  VERBENA_ASSIGN(const RdmaMemory* const made,
                 memory_->with("rdma::Connection::register_memory", [&](c::Runtime& runtime, const c::Conn* conn) {
                   return runtime.registry().add(conn, memory.data(), memory.size(), static_cast<unsigned>(access));
                 }));
  return Memory(memory_, *made);
}

Result<void> Connection::publish(std::string_view name, const Memory& memory) {
  if (!memory) return fail(Status::kBadArgument, "rdma::Connection::publish", 0, "the memory is not registered");
  return memory_->with("rdma::Connection::publish", [&](c::Runtime& runtime, const c::Conn* conn) {
    return publish_in(runtime, conn, name, memory.registered_);
  });
}
Result<void> Connection::unpublish(std::string_view name) {
  return memory_->with("rdma::Connection::unpublish", [&](c::Runtime& runtime, const c::Conn* conn) {
    return publish_in(runtime, conn, name, nullptr);
  });
}

Result<Window> Connection::find(std::string_view name, std::optional<Deadline> deadline) {
  constexpr const char* kCall = "rdma::Connection::find";
  if (conn_ == nullptr) return closed(kCall);
  VERBENA_ASSIGN(const RdmaWindow window,
                 guarded(kCall, [&] { return conn_->look_up(name, deadline_of(*conn_, deadline)); }));
  return window_of(window);
}
Result<void> Connection::import(const Window& window, std::optional<Deadline> deadline) {
  constexpr const char* kCall = "rdma::Connection::import";
  if (conn_ == nullptr) return closed(kCall);
  return guarded(kCall, [&] { return conn_->import_window(window_of(window), deadline_of(*conn_, deadline)); });
}
Result<void> Connection::release(const Window& window, std::optional<Deadline> deadline) {
  constexpr const char* kCall = "rdma::Connection::release";
  if (conn_ == nullptr) return closed(kCall);
  return guarded(kCall, [&] { return conn_->release_window(window_of(window), deadline_of(*conn_, deadline)); });
}

// --- data

namespace {

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
  operation.remote = offset;
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

namespace {

/// Out of the way of what goes at once, which needs little of the stack.
[[gnu::noinline]] Status start_in_window(verbena_RdmaConn* conn, Operation::Kind kind, std::span<const std::byte> bytes,
                                         std::size_t offset, const std::optional<Deadline>& deadline) noexcept {
  Operation operation;
  operation.kind = kind;
  operation.from = bytes.data();
  operation.to = const_cast<std::byte*>(bytes.data());  // A read's is not const at its caller.
  operation.length = bytes.size();
  return run_in_window(conn, operation, offset, deadline);
}

}  // namespace

// What is carried out at once waits for nothing, whatever the deadline.
Status Connection::write(std::span<const std::byte> from, std::size_t offset,
                         std::optional<Deadline> deadline) noexcept {
  if (conn_ != nullptr && conn_->may_go_now(offset, from.size()) && conn_->write_now(from, offset) == Status::kOk)
      [[likely]]
    return Status::kOk;
  return start_in_window(conn_, Operation::Kind::kWrite, from, offset, deadline);
}

Status Connection::read(std::span<std::byte> to, std::size_t offset, std::optional<Deadline> deadline) noexcept {
  if (conn_ != nullptr && conn_->may_go_now(offset, to.size()) && conn_->read_now(to, offset) == Status::kOk) [[likely]]
    return Status::kOk;
  return start_in_window(conn_, Operation::Kind::kRead, to, offset, deadline);
}

namespace {

using Kind = c::Request::Kind;
using Space = c::Request::Remote;

/// A part of the peer's memory, as requests have it.
struct Place {
  Space space = Space::kAddress;
  std::uint64_t at = 0;
  std::uint32_t rkey = 0;
};
[[nodiscard]] Place place_of(const Remote& remote) noexcept { return {.at = remote.address, .rkey = remote.rkey}; }
[[nodiscard]] Place place_of(Physical physical) noexcept { return {.space = Space::kPhysical, .at = physical.address}; }

/// Of `length` bytes. `data` is written to by reads only.
[[nodiscard]] c::Request request_of(Kind kind, const std::byte* data, std::size_t length, Place place) noexcept {
  c::Request request;
  request.kind = kind;
  request.space = place.space;
  request.from = data;
  request.to = const_cast<std::byte*>(data);
  request.length = length;
  request.remote = place.at;
  request.rkey = place.rkey;
  return request;
}
[[nodiscard]] c::Request request_of(Kind kind, const Local& local, std::size_t length, Place place) noexcept {
  c::Request request = request_of(kind, local.bytes().data(), length, place);
  request.local = c::Request::Local::kRegistered;
  request.lkey = local.lkey();
  return request;
}

/// Calls `attempt(deadline)`; where the key of its window is not known, once more when the peer has told of it.
template <class Attempt>
[[nodiscard]] Status with_window(RdmaConn* conn, const c::Request& request, const std::optional<Deadline>& deadline,
                                 Attempt&& attempt) noexcept {
  if (request.length == 0) return Status::kBadArgument;
  if (conn == nullptr) return Status::kClosed;
  const auto address = reinterpret_cast<std::uintptr_t>(request.to);
  if (request.local == c::Request::Local::kRegistered && !conn->is_registered(address, request.length, request.lkey))
    return Status::kLocalAccess;
  const Deadline until = deadline_of(*conn, deadline);
  const Status first = attempt(until);
  if (first != Status::kNotFound || request.space != Space::kAddress) return first;
  try {
    if (const auto found = conn->look_up(request.rkey, until); !found) return found.error().status();
  } catch (const std::bad_alloc&) {
    return Status::kNoMemory;
  }
  return attempt(until);
}

[[nodiscard]] Status carry_out(RdmaConn* conn, const c::Request& request,
                               const std::optional<Deadline>& deadline) noexcept {
  return with_window(conn, request, deadline, [&](Deadline until) {
    Operation operation;
    static_cast<c::Request&>(operation) = request;
    return conn->carry_out(operation, until);
  });
}

[[nodiscard]] Status start(RdmaConn* conn, const c::Request& request, std::uint64_t cookie) noexcept {
  return with_window(conn, request, {}, [&](Deadline until) { return conn->start_transfer(request, cookie, until); });
}

[[nodiscard]] std::expected<std::uint64_t, Status> change(RdmaConn* conn, Place word, std::uint64_t bytes,
                                                          const message::Change& change,
                                                          const std::optional<Deadline>& deadline) noexcept {
  std::uint64_t old = 0;
  if (bytes != sizeof old || word.at % sizeof old != 0) return std::unexpected(Status::kBadArgument);
  if (!deadline && conn != nullptr && word.space == Space::kAddress &&
      conn->change_now(change, {word.at, sizeof old, word.rkey}, old) == Status::kOk) [[likely]]
    return old;
  c::Request request = request_of(Kind::kAtomic, reinterpret_cast<std::byte*>(&old), sizeof old, word);
  request.change = change;
  const Status status = carry_out(conn, request, deadline);
  if (status != Status::kOk) return std::unexpected(status);
  return old;
}
constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);

/// Whether the calling thread may do a transfer itself, and has: kAgain where it did not.
[[nodiscard]] bool is_left_over(Status status) noexcept {
  return status == Status::kAgain || status == Status::kNotFound;
}

}  // namespace

// --- any memory

Status Connection::write(std::span<const std::byte> from, const Remote& to, std::optional<Deadline> deadline) noexcept {
  if (to.length < from.size()) return Status::kBadArgument;
  return carry_out(conn_, request_of(Kind::kWrite, from.data(), from.size(), place_of(to)), deadline);
}
Status Connection::read(std::span<std::byte> to, const Remote& from, std::optional<Deadline> deadline) noexcept {
  if (to.size() < from.length) return Status::kBadArgument;
  return carry_out(conn_, request_of(Kind::kRead, to.data(), from.length, place_of(from)), deadline);
}
Status Connection::write(std::span<const std::byte> from, Physical to, std::optional<Deadline> deadline) noexcept {
  return carry_out(conn_, request_of(Kind::kWrite, from.data(), from.size(), place_of(to)), deadline);
}
Status Connection::read(std::span<std::byte> to, Physical from, std::optional<Deadline> deadline) noexcept {
  return carry_out(conn_, request_of(Kind::kRead, to.data(), to.size(), place_of(from)), deadline);
}

// --- registered memory. The short way is that of a client that drives its connection itself.

Status Connection::write(const Local& from, const Remote& to, std::optional<Deadline> deadline) noexcept {
  if (to.length < from.size()) [[unlikely]]
    return Status::kBadArgument;
  if (!deadline && conn_ != nullptr) [[likely]] {
    const Status status = conn_->transfer_now(Kind::kWrite, {from.bytes_.data(), from.size(), from.lkey_},
                                              {to.address, from.size(), to.rkey});
    if (!is_left_over(status)) [[likely]]
      return status;
  }
  return carry_out(conn_, request_of(Kind::kWrite, from, from.size(), place_of(to)), deadline);
}
Status Connection::read(const Local& to, const Remote& from, std::optional<Deadline> deadline) noexcept {
  if (to.size() < from.length) [[unlikely]]
    return Status::kBadArgument;
  if (!deadline && conn_ != nullptr) [[likely]] {
    const Status status = conn_->transfer_now(Kind::kRead, {to.bytes_.data(), from.length, to.lkey_},
                                              {from.address, from.length, from.rkey});
    if (!is_left_over(status)) [[likely]]
      return status;
  }
  return carry_out(conn_, request_of(Kind::kRead, to, from.length, place_of(from)), deadline);
}
Status Connection::write(const Local& from, Physical to, std::optional<Deadline> deadline) noexcept {
  return carry_out(conn_, request_of(Kind::kWrite, from, from.size(), place_of(to)), deadline);
}
Status Connection::read(const Local& to, Physical from, std::optional<Deadline> deadline) noexcept {
  return carry_out(conn_, request_of(Kind::kRead, to, to.size(), place_of(from)), deadline);
}

// --- atomics

std::expected<std::uint64_t, Status> Connection::fetch_add(const Remote& word, std::uint64_t delta,
                                                           std::optional<Deadline> deadline) noexcept {
  return change(conn_, place_of(word), word.length, {.compare_add = delta}, deadline);
}
std::expected<std::uint64_t, Status> Connection::fetch_add(Physical word, std::uint64_t delta,
                                                           std::optional<Deadline> deadline) noexcept {
  return change(conn_, place_of(word), kWordBytes, {.compare_add = delta}, deadline);
}
std::expected<std::uint64_t, Status> Connection::compare_swap(const Remote& word, std::uint64_t expected,
                                                              std::uint64_t desired,
                                                              std::optional<Deadline> deadline) noexcept {
  return change(conn_, place_of(word), word.length,
                {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}, deadline);
}
std::expected<std::uint64_t, Status> Connection::compare_swap(Physical word, std::uint64_t expected,
                                                              std::uint64_t desired,
                                                              std::optional<Deadline> deadline) noexcept {
  return change(conn_, place_of(word), kWordBytes,
                {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}, deadline);
}

// --- without waiting

Status Connection::start_write(const Local& from, const Remote& to, std::uint64_t cookie) noexcept {
  if (to.length < from.size()) return Status::kBadArgument;
  return start(conn_, request_of(Kind::kWrite, from, from.size(), place_of(to)), cookie);
}
Status Connection::start_read(const Local& to, const Remote& from, std::uint64_t cookie) noexcept {
  if (to.size() < from.length) return Status::kBadArgument;
  return start(conn_, request_of(Kind::kRead, to, from.length, place_of(from)), cookie);
}
Status Connection::start_write(const Local& from, Physical to, std::uint64_t cookie) noexcept {
  return start(conn_, request_of(Kind::kWrite, from, from.size(), place_of(to)), cookie);
}
Status Connection::start_read(const Local& to, Physical from, std::uint64_t cookie) noexcept {
  return start(conn_, request_of(Kind::kRead, to, to.size(), place_of(from)), cookie);
}

std::expected<Completion, Status> Connection::complete(std::optional<Deadline> deadline) noexcept {
  Operation operation;
  operation.kind = Kind::kTake;
  const Status status = run(conn_, operation, deadline);
  if (status != Status::kOk) return std::unexpected(status);
  return completion_of(operation.completion);
}

std::size_t Connection::poll(std::span<Completion> into) noexcept {
  std::size_t count = 0;
  for (Completion& each : into) {
    const auto completion = complete(Deadline::now());
    if (!completion) break;
    each = *completion;
    ++count;
  }
  return count;
}

// --- physical addresses

Result<std::uint64_t> Connection::export_physical(const Memory& memory) {
  constexpr const char* kCall = "rdma::Connection::export_physical";
  if (!memory || conn_ == nullptr)
    return fail(memory ? Status::kClosed : Status::kBadArgument, kCall, 0,
                "the memory is not registered, or the connection is closed");
  return guarded(kCall, [&] { return conn_->export_physical(memory.registered_, deadline_of(*conn_, {})); });
}

Result<std::uint64_t> Connection::physical_address_of(const void* local) const {
  if (local == nullptr) return fail(Status::kBadArgument, "rdma::Connection::physical_address_of", 0, "null");
  return c::physical_address_of(conn_, local);
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
  constexpr const char* kCall = "rdma::Listener::start";
  VERBENA_ASSIGN(c::Settings settings, guarded(kCall, [&] { return settings_of(options); }));
  return guarded(kCall, [&]() -> Result<std::unique_ptr<Listener>> {
    auto impl = std::make_unique<Impl>(options);
    impl->listener.settings = std::move(settings);
    impl->listener.callbacks.accepted = {
        .full = options.handler != nullptr ? Callbacks::on_accept : Callbacks::on_waiting, .user = impl.get()};
    if (options.handler == nullptr)
      impl->listener.callbacks.disconnected = {.full = Callbacks::on_left, .user = impl.get()};
    std::unique_ptr<Listener> made(new Listener(std::move(impl)));
    VERBENA_TRY(made->impl_->listener.start());
    made->impl_->memory->listener = &made->impl_->listener;
    return made;
  });
}

Listener::~Listener() { stop(); }

Result<Memory> Listener::allocate(std::size_t bytes) {
  VERBENA_ASSIGN(const RdmaMemory* const memory,
                 impl_->memory->with("rdma::Listener::allocate", [&](c::Runtime& runtime, const c::Conn*) {
                   return runtime.registry().allocate(nullptr, bytes, {.to = nic::Grant::To::kAnyPeer});
                 }));
  return Memory(impl_->memory, *memory);
}

Result<Memory> Listener::register_memory(std::span<std::byte> memory, Access access) {
  VERBENA_ASSIGN(const RdmaMemory* const made,
                 impl_->memory->with("rdma::Listener::register_memory", [&](c::Runtime& runtime, const c::Conn*) {
                   return runtime.registry().add(nullptr, memory.data(), memory.size(), static_cast<unsigned>(access));
                 }));
  return Memory(impl_->memory, *made);
}

Result<void> Listener::publish(std::string_view name, const Memory& memory) {
  if (!memory) return fail(Status::kBadArgument, "rdma::Listener::publish", 0, "the memory is not registered");
  return impl_->memory->with("rdma::Listener::publish", [&](c::Runtime& runtime, const c::Conn*) {
    return publish_in(runtime, nullptr, name, memory.registered_);
  });
}
Result<void> Listener::unpublish(std::string_view name) {
  return impl_->memory->with("rdma::Listener::unpublish", [&](c::Runtime& runtime, const c::Conn*) {
    return publish_in(runtime, nullptr, name, nullptr);
  });
}

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
  impl_->memory->end();
  impl_->listener.stop();
  // Of those that nobody has accepted, the ones that had ended before. The others went with their disconnect callbacks.
  const std::lock_guard lock(impl_->mutex);
  impl_->waiting.clear();
}

}  // namespace verbena::rdma
