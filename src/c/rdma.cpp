// The functions of verbena/rdma.h: arguments checked, failures noted, and the rest done by the classes beside.
#include <verbena/rdma.h>

#include "base/error.hpp"
#include "c/codes.hpp"
#include "c/conn.hpp"
#include "c/listener.hpp"

#include <new>
#include <type_traits>
#include <vector>

namespace verbena::c {
namespace {

/// The client connections of this process, for rdmaRuntimeStop; and those that were closed in a callback of their own
/// thread, which cannot end itself.
struct Clients {
  std::mutex mutex;
  std::vector<RdmaConn*> open;
  std::vector<RdmaConn*> buried;
};
Clients& clients() {
  // Never destroyed: threads of connections that were not closed may outlive static objects.
  static auto* const all = new Clients;
  return *all;
}

/// Ends the threads of connections that were closed by them.
void sweep() noexcept {
  std::vector<RdmaConn*> dead;
  {
    const std::lock_guard lock(clients().mutex);
    dead.swap(clients().buried);
  }
  for (RdmaConn* conn : dead) {
    if (conn->runtime()->is_driven_here()) {
      const std::lock_guard lock(clients().mutex);
      clients().buried.push_back(conn);
      continue;
    }
    conn->close();
    delete conn;
  }
}

/// What `body` returns as a Result, as a code; without memory, its code.
template <class Body>
int coded(const char* call, Body&& body) noexcept {
  try {
    const Result<void> result = body();
    return result ? RDMA_OK : note(result.error());
  } catch (const std::bad_alloc&) {
    return note(Status::kNoMemory, call);
  }
}

[[nodiscard]] Result<std::uint16_t> port_of(const char* call, int port) {
  if (port < 0 || port > 65535) return fail(Status::kBadArgument, call, 0, "port must be 0 to 65535; got {}", port);
  return static_cast<std::uint16_t>(port);
}

template <class Object, class Set>
int set_early(Object* object, bool is_early, const char* call, Set&& set) noexcept {
  if (object == nullptr) return note(Status::kBadArgument, call);
  if (!is_early) return note(format_error(Status::kBusy, call, 0, "{}: too late, it has been started", call));
  set(*object);
  return RDMA_OK;
}
template <class Set>
int set_on(RdmaListener* listener, const char* call, Set&& set) noexcept {
  return set_early(listener, listener != nullptr && !listener->is_running(), call, set);
}
template <class Set>
int set_on(RdmaConn* conn, const char* call, Set&& set) noexcept {
  return set_early(conn, conn != nullptr && conn->takes_callbacks(), call, set);
}

template <class Object>
int set_options(Object* object, const RdmaOptions& options, const char* call) noexcept {
  Settings settings;
  const int code = coded(call, [&]() -> Result<void> {
    VERBENA_ASSIGN(settings, settings_of(options));
    return {};
  });
  return code != RDMA_OK ? code : set_on(object, call, [&](Object& of) { of.settings = std::move(settings); });
}

/// Notes a failure on the connection, too.
int note_on(RdmaConn& conn, Status status, const char* call) noexcept {
  const int code = note(status, call);
  if (code != RDMA_OK) conn.last_code.store(code, std::memory_order_relaxed);
  return code;
}

int note_on(RdmaConn& conn, const Error& error) noexcept {
  const int code = note(error);
  conn.last_code.store(code, std::memory_order_relaxed);
  return code;
}

/// `timeout_ms` from now, or the connection's default below 0.
Deadline deadline_of(const RdmaConn& conn, int timeout_ms = -1) noexcept {
  const std::int64_t limit_ms =
      timeout_ms < 0 ? std::int64_t{conn.timeout_ms.load(std::memory_order_relaxed)} : timeout_ms;
  return Deadline::after(std::chrono::milliseconds{limit_ms});
}

/// Runs an operation within `timeout_ms`, or the connection's default below 0.
int run(RdmaConn* conn, Operation& operation, const char* call, int timeout_ms = -1) noexcept {
  if (conn == nullptr) return note(Status::kBadArgument, call);
  const bool takes_nothing = operation.kind == Request::Kind::kReceive || operation.kind == Request::Kind::kTake;
  if (!takes_nothing && operation.length != 0 && operation.from == nullptr && operation.to == nullptr)
    return note_on(*conn, Status::kBadArgument, call);
  if (conn->runtime() == nullptr) {
    // It was not connected.
    return note_on(*conn, Status::kClosed, call);
  }
  const bool is_transfer = operation.kind == Request::Kind::kWrite || operation.kind == Request::Kind::kRead;
  const std::size_t window = conn->peer_window_bytes();
  if (is_transfer && (operation.remote > window || operation.length > window - operation.remote))
    return note_on(*conn, Status::kOutOfRange, call);
  return note_on(*conn, conn->carry_out(operation, deadline_of(*conn, timeout_ms)), call);
}

bool may_go_now(const RdmaConn* conn, size_t offset, const void* data, size_t length) noexcept {
  return conn != nullptr && data != nullptr && conn->runtime() != nullptr && conn->may_go_now(offset, length);
}

/// A transfer between registered memory.
Request transfer(Request::Kind kind, Request::Remote space, uint64_t local, uint32_t lkey, uint64_t remote,
                 uint32_t rkey, uint32_t length) noexcept {
  auto* const data = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(local));
  Request request;
  request.kind = kind;
  request.local = Request::Local::kRegistered;
  request.space = space;
  request.from = request.to = data;
  request.length = length;
  request.remote = remote;
  request.lkey = lkey;
  request.rkey = rkey;
  return request;
}

/// What stands against it before the peer's side is looked at.
Status check(RdmaConn& conn, const Request& request) noexcept {
  if (request.length == 0 || request.to == nullptr) return Status::kBadArgument;
  if (conn.runtime() == nullptr) return Status::kClosed;  // It was not connected.
  if (request.local != Request::Local::kRegistered) return Status::kOk;
  const auto address = reinterpret_cast<std::uintptr_t>(request.to);
  return conn.is_registered(address, request.length, request.lkey) ? Status::kOk : Status::kLocalAccess;
}

/// Calls `attempt(deadline)`; where the key of its window is not known, once more when the peer has told of it.
template <class Attempt>
int with_window(RdmaConn& conn, const Request& request, const char* call, Attempt&& attempt) noexcept {
  if (const Status status = check(conn, request); status != Status::kOk) return note_on(conn, status, call);
  const Deadline deadline = deadline_of(conn);
  const Status first = attempt(deadline);
  if (first != Status::kNotFound || request.space != Request::Remote::kAddress) return note_on(conn, first, call);
  try {
    if (const auto found = conn.look_up(request.rkey, deadline); !found) return note_on(conn, found.error());
  } catch (const std::bad_alloc&) {
    return note_on(conn, Status::kNoMemory, call);
  }
  return note_on(conn, attempt(deadline), call);
}

/// Carries a transfer or an atomic out, and waits for it.
int wait_for(RdmaConn* conn, const Request& request, const char* call) noexcept {
  if (conn == nullptr) return note(Status::kBadArgument, call);
  return with_window(*conn, request, call, [&](Deadline deadline) {
    Operation operation;
    static_cast<Request&>(operation) = request;
    return conn->carry_out(operation, deadline);
  });
}

int start(RdmaConn* conn, const Request& request, uint64_t cookie, const char* call) noexcept {
  if (conn == nullptr) return note(Status::kBadArgument, call);
  return with_window(*conn, request, call,
                     [&](Deadline deadline) { return conn->start_transfer(request, cookie, deadline); });
}

inline int transfer_now(RdmaConn* conn, Request::Kind kind, uint64_t local, uint32_t lkey, uint64_t remote,
                        uint32_t rkey, uint32_t length, const char* call) noexcept {
  if (conn == nullptr || length == 0 || local == 0 || conn->runtime() == nullptr) [[unlikely]]
    return wait_for(conn, transfer(kind, Request::Remote::kAddress, local, lkey, remote, rkey, length), call);
  auto* const data = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(local));
  const Status status = conn->transfer_now(kind, {data, length, lkey}, {remote, length, rkey});
  if (status == Status::kOk) [[likely]]
    return RDMA_OK;
  if (status != Status::kAgain && status != Status::kNotFound) return note_on(*conn, status, call);
  return wait_for(conn, transfer(kind, Request::Remote::kAddress, local, lkey, remote, rkey, length), call);
}

int atomic(RdmaConn* conn, Request::Remote space, uint64_t remote, uint32_t rkey, const message::Change& change,
           uint64_t* old, const char* call) noexcept {
  uint64_t found = 0;
  Request request;
  request.kind = Request::Kind::kAtomic;
  request.space = space;
  request.to = reinterpret_cast<std::byte*>(&found);
  request.length = remote % sizeof found == 0 ? sizeof found : 0;
  request.remote = remote;
  request.rkey = rkey;
  request.change = change;
  if (space == Request::Remote::kAddress && conn != nullptr && conn->runtime() != nullptr && request.length != 0 &&
      conn->change_now(change, {remote, sizeof found, rkey}, found) == Status::kOk) {
    if (old != nullptr) *old = found;
    return RDMA_OK;
  }
  const int code = wait_for(conn, request, call);
  if (code == RDMA_OK && old != nullptr) *old = found;
  return code;
}

/// Memory of a connection or a listener; null, with the failure noted, without.
template <class Get>
const RdmaMemory* memory_of(RdmaConn* conn, Runtime* runtime, const char* call, Get&& get) noexcept {
  const RdmaMemory* memory = nullptr;
  if (runtime == nullptr) {
    const Status status = conn != nullptr ? Status::kClosed : Status::kBadArgument;
    static_cast<void>(conn != nullptr ? note_on(*conn, status, call) : note(status, call));
    return nullptr;
  }
  const int code = coded(call, [&]() -> Result<void> {
    VERBENA_ASSIGN(memory, get(runtime->registry()));
    return {};
  });
  if (code != RDMA_OK && conn != nullptr) conn->last_code.store(code, std::memory_order_relaxed);
  return memory;
}
Runtime* runtime_of(const RdmaConn* conn) noexcept { return conn != nullptr ? conn->runtime() : nullptr; }
Runtime* runtime_of(const RdmaListener* listener) noexcept {
  return listener != nullptr ? listener->runtime() : nullptr;
}

/// What `body(registry)` comes to.
template <class Object, class Body>
int with_registry(Object* object, const char* call, Body&& body) noexcept {
  Runtime* const runtime = runtime_of(object);
  const int code = runtime != nullptr ? coded(call, [&] { return body(*runtime); })
                                      : note(object == nullptr ? Status::kBadArgument : Status::kClosed, call);
  if constexpr (std::is_same_v<Object, RdmaConn>) {
    if (code != RDMA_OK && object != nullptr) object->last_code.store(code, std::memory_order_relaxed);
  }
  return code;
}

/// An owner's memory under a name; connections that were asked for it answer.
template <class Object>
int publish(Object* object, const Conn* owner, const char* name, const RdmaMemory* memory, const char* call) noexcept {
  if (name == nullptr) return note(Status::kBadArgument, call);
  return with_registry(object, call, [&](Runtime& runtime) -> Result<void> {
    VERBENA_TRY(runtime.registry().publish(owner, name, memory));
    runtime.loop().wake();
    return {};
  });
}

size_t send(RdmaConn* conn, Operation& operation, const void* data, size_t length, const char* call) noexcept {
  operation.from = static_cast<const std::byte*>(data);
  operation.length = length;
  if (conn != nullptr && length == 0) return static_cast<void>(note_on(*conn, Status::kBadArgument, call)), 0;
  return run(conn, operation, call) == RDMA_OK ? length : 0;
}

int write_with_immediate(RdmaConn* conn, uint32_t immediate, size_t offset, const void* data, size_t length,
                         const char* call) noexcept {
  Operation operation;
  operation.kind = Operation::Kind::kWrite;
  operation.tells_peer = true;
  operation.immediate = immediate;
  operation.from = static_cast<const std::byte*>(data);
  operation.length = length;
  operation.remote = offset;
  return run(conn, operation, call);
}

/// Ends the clients' connections that have no thread; their handles stay. One that has a thread which runs: null when
/// there is none.
std::shared_ptr<Runtime> end_clients() noexcept {
  const std::lock_guard lock(clients().mutex);
  for (RdmaConn* conn : clients().open) {
    if (conn->runtime() == nullptr || conn->runtime()->is_stopped()) continue;
    if (conn->runtime()->driver() == Driver::kCaller) {
      conn->close();
    } else if (!conn->runtime()->is_driven_here()) {
      return conn->shared_runtime();
    }
  }
  return nullptr;
}

}  // namespace
}  // namespace verbena::c

using namespace verbena::c;
using verbena::Deadline;
using verbena::Status;

void rdmaOptionsInit(RdmaOptions* options) {
  if (options == nullptr) return;
  const Settings defaults;
  *options = {.device = nullptr,
              .bootstrap = RDMA_BOOTSTRAP_CM,
              .connect_timeout_ms = static_cast<unsigned>(defaults.connect_timeout.count()),
              .timeout_ms = static_cast<unsigned>(defaults.timeout.count()),
              .max_connections = defaults.max_connections,
              .recv_mode = defaults.recv_mode,
              .window = nullptr,
              .window_bytes = defaults.window_bytes,
              .inbox_bytes = defaults.inbox_bytes,
              .max_message_bytes = defaults.max_message_bytes};
}

// --- servers

int rdmaServer(RdmaListener** listener, const char* ip, int port) {
  if (listener == nullptr) return note(Status::kBadArgument, __func__);
  return coded(__func__, [&]() -> verbena::Result<void> {
    VERBENA_ASSIGN(const std::uint16_t checked, port_of("rdmaServer", port));
    *listener = new RdmaListener(ip != nullptr ? ip : "", checked);
    return {};
  });
}

int rdmaServerSetOptions(RdmaListener* listener, const RdmaOptions* options) {
  if (options == nullptr) return note(Status::kBadArgument, __func__);
  return set_options(listener, *options, __func__);
}

int rdmaServerSetAcceptCallback(RdmaListener* listener, RdmaAcceptCallbackFunc func) {
  return set_on(listener, __func__, [&](RdmaListener& of) { of.callbacks.accepted = {.plain = func}; });
}
int rdmaServerOnAccept(RdmaListener* listener, RdmaConnFunc func, void* user) {
  return set_on(listener, __func__, [&](RdmaListener& of) { of.callbacks.accepted = {.full = func, .user = user}; });
}
int rdmaServerOnMessage(RdmaListener* listener, RdmaMessageFunc func, void* user) {
  return set_on(listener, __func__, [&](RdmaListener& of) { of.callbacks.message = {.full = func, .user = user}; });
}
int rdmaServerOnDisconnect(RdmaListener* listener, RdmaDisconnectFunc func, void* user) {
  return set_on(listener, __func__,
                [&](RdmaListener& of) { of.callbacks.disconnected = {.full = func, .user = user}; });
}

int rdmaServerStart(RdmaListener* listener) {
  if (listener == nullptr) return note(Status::kBadArgument, __func__);
  return coded(__func__, [&] { return listener->start(); });
}

int rdmaServerPort(const RdmaListener* listener) {
  if (listener == nullptr || !listener->is_running()) return note(Status::kBadArgument, __func__);
  return listener->port();
}

int rdmaServerWait(RdmaListener* listener) {
  if (listener == nullptr) return note(Status::kBadArgument, __func__);
  if (listener->is_in_callback()) return note(Status::kBusy, __func__);
  listener->wait();
  return RDMA_OK;
}

int rdmaServerStop(RdmaListener* listener) {
  if (listener == nullptr) return note(Status::kBadArgument, __func__);
  if (listener->is_in_callback()) return note(Status::kBusy, __func__);
  listener->stop();
  return RDMA_OK;
}

void rdmaServerRelease(RdmaListener* listener) { delete listener; }

// --- connections

RdmaConn* rdmaConn(void) {
  sweep();
  try {
    const Settings settings;
    auto conn = std::make_unique<RdmaConn>(settings, Callbacks{});
    const std::lock_guard lock(clients().mutex);
    clients().open.push_back(conn.get());
    conn->is_client = true;
    return conn.release();
  } catch (const std::bad_alloc&) {
    (void)note(Status::kNoMemory, __func__);
    return nullptr;
  }
}

int rdmaConnSetOptions(RdmaConn* conn, const RdmaOptions* options) {
  if (options == nullptr) return note(Status::kBadArgument, __func__);
  return set_options(conn, *options, __func__);
}

int rdmaConnSetRecvCallback(RdmaConn* conn, RdmaRecvCallbackFunc func) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.message = {.plain = func}; });
}
int rdmaConnSetConnectedCallback(RdmaConn* conn, RdmaConnectedCallbackFunc func) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.connected = {.plain = func}; });
}
int rdmaConnSetDisconnectCallback(RdmaConn* conn, RdmaDisconnectCallbackFunc func) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.disconnected = {.plain = func}; });
}
int rdmaConnSetWriteCallback(RdmaConn* conn, RdmaWriteCallbackFunc func) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.written = {.plain = func}; });
}
int rdmaConnSetReadCallback(RdmaConn* conn, RdmaReadCallbackFunc func) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.read = {.plain = func}; });
}
int rdmaConnOnWrite(RdmaConn* conn, RdmaCompletionFunc func, void* user) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.written = {.full = func, .user = user}; });
}
int rdmaConnOnRead(RdmaConn* conn, RdmaCompletionFunc func, void* user) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.read = {.full = func, .user = user}; });
}
int rdmaConnOnConnect(RdmaConn* conn, RdmaConnFunc func, void* user) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.connected = {.full = func, .user = user}; });
}
int rdmaConnOnMessage(RdmaConn* conn, RdmaMessageFunc func, void* user) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.message = {.full = func, .user = user}; });
}
int rdmaConnOnDisconnect(RdmaConn* conn, RdmaDisconnectFunc func, void* user) {
  return set_on(conn, __func__, [&](RdmaConn& of) { of.callbacks.disconnected = {.full = func, .user = user}; });
}

int rdmaConnect(RdmaConn* conn, const char* ip, int port) {
  if (conn == nullptr) return note(Status::kBadArgument, __func__);
  if (!conn->takes_callbacks()) return note_on(*conn, Status::kBusy, __func__);
  const int code = coded(__func__, [&]() -> verbena::Result<void> {
    VERBENA_ASSIGN(const std::uint16_t checked, port_of("rdmaConnect", port));
    return conn->connect(ip != nullptr ? ip : "", checked);
  });
  if (code != RDMA_OK) conn->last_code.store(code, std::memory_order_relaxed);
  return code;
}

int rdmaConnKeep(RdmaConn* conn) {
  return set_on(conn, __func__, [](RdmaConn& of) { of.keep(); });
}

void rdmaConnClose(RdmaConn* conn) {
  if (conn == nullptr) return;
  verbena::c::Runtime* const runtime = conn->runtime();
  const bool is_in_callback = runtime != nullptr && runtime->driver() == Driver::kThread && runtime->is_driven_here();
  if (conn->is_client) {
    const std::lock_guard lock(clients().mutex);
    std::erase(clients().open, conn);
    if (is_in_callback) clients().buried.push_back(conn);
  }
  if (is_in_callback) {
    // One that was kept, and that the thread is done with.
    if (!conn->is_client && conn->is_detached()) return static_cast<void>(delete conn);
    if (!conn->is_client) conn->give_back();
    conn->end_in_callback();
    return;
  }
  conn->close();
  delete conn;
  sweep();
}

void rdmaRuntimeStop(void) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  // A thread calls back before it ends, and a callback may close connections: the list is not locked meanwhile.
  while (const auto runtime = end_clients()) runtime->stop();
  sweep();
}

int rdmaConnSetTimeout(RdmaConn* conn, unsigned timeout_ms) {
  if (conn == nullptr || timeout_ms == 0) return note(Status::kBadArgument, __func__);
  conn->timeout_ms.store(timeout_ms, std::memory_order_relaxed);
  if (conn->runtime() == nullptr) conn->settings.timeout = std::chrono::milliseconds{timeout_ms};
  return RDMA_OK;
}

int rdmaConnError(const RdmaConn* conn) {
  return conn != nullptr ? conn->last_code.load(std::memory_order_relaxed) : RDMA_ERR_BAD_ARGUMENT;
}
int rdmaConnIsConnected(const RdmaConn* conn) { return conn != nullptr && conn->is_connected() ? 1 : 0; }
uint64_t rdmaConnDiscarded(const RdmaConn* conn) { return conn != nullptr ? conn->discarded() : 0; }

// --- data

size_t rdmaConnSend(RdmaConn* conn, const void* data, size_t data_len) {
  Operation operation;
  return send(conn, operation, data, data_len, __func__);
}

size_t rdmaConnSendWithImm(RdmaConn* conn, uint32_t imm_data, const void* data, size_t data_len) {
  Operation operation;
  operation.has_immediate = true;
  operation.immediate = imm_data;
  return send(conn, operation, data, data_len, __func__);
}

int rdmaConnRecv(RdmaConn* conn, void* buffer, size_t buffer_len, RdmaMessage* message, int timeout_ms) {
  if (conn == nullptr || (buffer == nullptr && buffer_len != 0)) return note(Status::kBadArgument, __func__);
  if (!conn->receives()) return note_on(*conn, Status::kUnsupported, __func__);
  Operation operation;
  operation.kind = Operation::Kind::kReceive;
  operation.to = static_cast<std::byte*>(buffer);
  operation.length = buffer_len;
  const int code = run(conn, operation, __func__, timeout_ms);
  if (message != nullptr) *message = operation.message;
  return code;
}

size_t rdmaConnWriteAt(RdmaConn* conn, size_t offset, const void* data, size_t data_len) {
  if (may_go_now(conn, offset, data, data_len) &&
      conn->write_now({static_cast<const std::byte*>(data), data_len}, offset) == Status::kOk) [[likely]]
    return data_len;
  Operation operation;
  operation.kind = Operation::Kind::kWrite;
  operation.remote = offset;
  return send(conn, operation, data, data_len, __func__);
}
size_t rdmaConnWrite(RdmaConn* conn, const void* data, size_t data_len) {
  return rdmaConnWriteAt(conn, 0, data, data_len);
}

int rdmaConnReadAt(RdmaConn* conn, size_t offset, void* data_buf, size_t buf_len) {
  if (may_go_now(conn, offset, data_buf, buf_len) &&
      conn->read_now({static_cast<std::byte*>(data_buf), buf_len}, offset) == Status::kOk) [[likely]]
    return RDMA_OK;
  if (conn != nullptr && buf_len == 0) return note_on(*conn, Status::kBadArgument, __func__);
  Operation operation;
  operation.kind = Operation::Kind::kRead;
  operation.to = static_cast<std::byte*>(data_buf);
  operation.length = buf_len;
  operation.remote = offset;
  return run(conn, operation, __func__);
}
int rdmaConnRead(RdmaConn* conn, void* data_buf, size_t buf_len) { return rdmaConnReadAt(conn, 0, data_buf, buf_len); }

int rdmaConnWriteWithImmAt(RdmaConn* conn, uint32_t imm_data, size_t offset, const void* data, size_t data_len) {
  return write_with_immediate(conn, imm_data, offset, data, data_len, __func__);
}
int rdmaConnWriteWithImm(RdmaConn* conn, uint32_t imm_data, const void* data, size_t data_len) {
  return write_with_immediate(conn, imm_data, 0, data, data_len, __func__);
}

void* rdmaConnWindow(RdmaConn* conn, size_t* length) {
  const std::span<std::byte> window = conn != nullptr ? conn->window() : std::span<std::byte>{};
  if (length != nullptr) *length = window.size();
  return window.data();
}
size_t rdmaConnPeerWindowBytes(const RdmaConn* conn) { return conn != nullptr ? conn->peer_window_bytes() : 0; }

int rdmaConnPeerWindow(const RdmaConn* conn, RdmaWindow* window) {
  if (conn == nullptr || window == nullptr) return note(Status::kBadArgument, __func__);
  if (conn->peer_window_bytes() == 0) return note(Status::kNotFound, __func__);
  const verbena::nic::Window& of = conn->peer_window();
  *window = {.addr = of.address,
             .length = of.length,
             .rkey = of.rkey,
             .access = RDMA_ACCESS_REMOTE_ALL,
             .memory_id = of.memory_id};
  return RDMA_OK;
}
const RdmaMemory* rdmaConnWindowMemory(RdmaConn* conn) { return conn != nullptr ? conn->window_memory() : nullptr; }

// --- registered memory

const RdmaMemory* rdmaConnRegMem(RdmaConn* conn, size_t size) {
  return memory_of(conn, runtime_of(conn), __func__, [&](Registry&) { return conn->allocate(size); });
}
const RdmaMemory* rdmaServerRegMem(RdmaListener* listener, size_t size) {
  return memory_of(nullptr, runtime_of(listener), __func__, [&](Registry& registry) {
    return registry.allocate(nullptr, size, {.to = verbena::nic::Grant::To::kAnyPeer});
  });
}

const RdmaMemory* rdmaConnRegister(RdmaConn* conn, void* addr, size_t length, unsigned access) {
  return memory_of(conn, runtime_of(conn), __func__,
                   [&](Registry& registry) { return registry.add(conn, addr, length, access); });
}
const RdmaMemory* rdmaServerRegister(RdmaListener* listener, void* addr, size_t length, unsigned access) {
  return memory_of(nullptr, runtime_of(listener), __func__,
                   [&](Registry& registry) { return registry.add(nullptr, addr, length, access); });
}

int rdmaConnDeregMem(RdmaConn* conn, const RdmaMemory* memory) {
  if (conn == nullptr || memory == nullptr || memory == conn->window_memory())
    return note(Status::kBadArgument, __func__);
  return with_registry(conn, __func__, [&](verbena::c::Runtime& runtime) {
    return runtime.registry().remove(conn, memory, deadline_of(*conn));
  });
}
int rdmaServerDeregMem(RdmaListener* listener, const RdmaMemory* memory) {
  if (listener == nullptr || memory == nullptr) return note(Status::kBadArgument, __func__);
  return with_registry(listener, __func__, [&](verbena::c::Runtime& runtime) {
    return runtime.registry().remove(nullptr, memory, Deadline::after(listener->settings.timeout));
  });
}

int rdmaServerPublish(RdmaListener* listener, const char* name, const RdmaMemory* memory) {
  return publish(listener, nullptr, name, memory, __func__);
}
int rdmaConnPublish(RdmaConn* conn, const char* name, const RdmaMemory* memory) {
  return publish(conn, conn, name, memory, __func__);
}

int rdmaConnLookup(RdmaConn* conn, const char* name, RdmaWindow* window, int timeout_ms) {
  if (conn == nullptr || name == nullptr || window == nullptr) return note(Status::kBadArgument, __func__);
  if (conn->runtime() == nullptr) return note_on(*conn, Status::kClosed, __func__);
  const int code = coded(__func__, [&]() -> verbena::Result<void> {
    VERBENA_ASSIGN(*window, conn->look_up(name, deadline_of(*conn, timeout_ms)));
    return {};
  });
  if (code != RDMA_OK) conn->last_code.store(code, std::memory_order_relaxed);
  return code;
}

int rdmaConnImportWindow(RdmaConn* conn, const RdmaWindow* window) {
  if (window == nullptr) return note(Status::kBadArgument, __func__);
  return with_registry(conn, __func__,
                       [&](verbena::c::Runtime&) { return conn->import_window(*window, deadline_of(*conn)); });
}
int rdmaConnReleaseWindow(RdmaConn* conn, const RdmaWindow* window) {
  if (window == nullptr) return note(Status::kBadArgument, __func__);
  return with_registry(conn, __func__,
                       [&](verbena::c::Runtime&) { return conn->release_window(*window, deadline_of(*conn)); });
}

// --- transfers between registered memory

int rdmaSyncWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                          uint32_t length) {
  return transfer_now(conn, Request::Kind::kWrite, local_addr, lkey, remote_addr, rkey, length, __func__);
}
int rdmaSyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                         uint32_t length) {
  return transfer_now(conn, Request::Kind::kRead, local_addr, lkey, remote_addr, rkey, length, __func__);
}

int rdmaSyncFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t add, uint64_t* old) {
  return atomic(conn, Request::Remote::kAddress, remote_addr, rkey, {.compare_add = add}, old, __func__);
}
int rdmaSyncCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint32_t rkey, uint64_t expected, uint64_t desired,
                        uint64_t* old) {
  return atomic(conn, Request::Remote::kAddress, remote_addr, rkey,
                {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}, old, __func__);
}

int rdmaStartWrite(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                   uint32_t length, uint64_t cookie) {
  return start(conn,
               transfer(Request::Kind::kWrite, Request::Remote::kAddress, local_addr, lkey, remote_addr, rkey, length),
               cookie, __func__);
}
int rdmaStartRead(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t rkey,
                  uint32_t length, uint64_t cookie) {
  return start(conn,
               transfer(Request::Kind::kRead, Request::Remote::kAddress, local_addr, lkey, remote_addr, rkey, length),
               cookie, __func__);
}

int rdmaConnComplete(RdmaConn* conn, RdmaCompletion* completion, int timeout_ms) {
  if (conn == nullptr || completion == nullptr) return note(Status::kBadArgument, __func__);
  Operation operation;
  operation.kind = Request::Kind::kTake;
  const int code = run(conn, operation, __func__, timeout_ms);
  *completion = operation.completion;
  return code;
}

// --- physical addresses

int rdmaPAExport(RdmaConn* conn, const RdmaMemory* memory, uint64_t* physical) {
  if (conn == nullptr || memory == nullptr) return note(Status::kBadArgument, __func__);
  return with_registry(conn, __func__, [&](verbena::c::Runtime&) -> verbena::Result<void> {
    VERBENA_ASSIGN(const std::uint64_t first, conn->export_physical(memory, deadline_of(*conn)));
    if (physical != nullptr) *physical = first;
    return {};
  });
}

int rdmaPAAddress(RdmaConn* conn, const void* local, uint64_t* physical) {
  if (local == nullptr || physical == nullptr) return note(Status::kBadArgument, __func__);
  return coded(__func__, [&]() -> verbena::Result<void> {
    VERBENA_ASSIGN(*physical, physical_address_of(conn, local));
    return {};
  });
}

int rdmaPASyncWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return wait_for(conn,
                  transfer(Request::Kind::kWrite, Request::Remote::kPhysical, local_addr, lkey, remote_addr, 0, length),
                  __func__);
}
int rdmaPASyncReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return wait_for(conn,
                  transfer(Request::Kind::kRead, Request::Remote::kPhysical, local_addr, lkey, remote_addr, 0, length),
                  __func__);
}
int rdmaPASyncFetchAdd(RdmaConn* conn, uint64_t remote_addr, uint64_t add, uint64_t* old) {
  return atomic(conn, Request::Remote::kPhysical, remote_addr, 0, {.compare_add = add}, old, __func__);
}
int rdmaPASyncCompareSwap(RdmaConn* conn, uint64_t remote_addr, uint64_t expected, uint64_t desired, uint64_t* old) {
  return atomic(conn, Request::Remote::kPhysical, remote_addr, 0,
                {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = expected, .swap = desired}, old, __func__);
}
int rdmaPAWriteSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return start(conn,
               transfer(Request::Kind::kWrite, Request::Remote::kPhysical, local_addr, lkey, remote_addr, 0, length),
               local_addr, __func__);
}
int rdmaPAReadSignaled(RdmaConn* conn, uint64_t local_addr, uint32_t lkey, uint64_t remote_addr, uint32_t length) {
  return start(conn,
               transfer(Request::Kind::kRead, Request::Remote::kPhysical, local_addr, lkey, remote_addr, 0, length),
               local_addr, __func__);
}
