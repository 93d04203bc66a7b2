// The functions of verbena/rdma.h: arguments checked, failures noted, and the rest done by the classes beside.
#include <verbena/rdma.h>

#include "base/error.hpp"
#include "c/codes.hpp"
#include "c/conn.hpp"
#include "c/listener.hpp"

#include <new>
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

/// Runs an operation within `timeout_ms`, or the connection's default below 0.
int run(RdmaConn* conn, Operation& operation, const char* call, int timeout_ms = -1) noexcept {
  if (conn == nullptr) return note(Status::kBadArgument, call);
  const bool is_receive = operation.kind == Operation::Kind::kReceive;
  if (!is_receive && operation.length != 0 && operation.from == nullptr && operation.to == nullptr)
    return note_on(*conn, Status::kBadArgument, call);
  if (conn->runtime() == nullptr) {
    // It was not connected.
    return note_on(*conn, Status::kClosed, call);
  }
  const bool is_transfer = operation.kind == Operation::Kind::kWrite || operation.kind == Operation::Kind::kRead;
  const std::size_t window = conn->peer_window_bytes();
  if (is_transfer && (operation.offset > window || operation.length > window - operation.offset))
    return note_on(*conn, Status::kOutOfRange, call);
  const std::int64_t limit_ms =
      timeout_ms < 0 ? std::int64_t{conn->timeout_ms.load(std::memory_order_relaxed)} : timeout_ms;
  const Status status = conn->carry_out(operation, Deadline::after(std::chrono::milliseconds{limit_ms}));
  return note_on(*conn, status, call);
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
  operation.offset = offset;
  return run(conn, operation, call);
}

/// Ends a client's connection; its handle stays.
void end_client(RdmaConn& conn) noexcept {
  if (conn.runtime() == nullptr) return;
  if (conn.runtime()->driver() == Driver::kCaller) return conn.close();
  if (!conn.runtime()->is_driven_here()) conn.runtime()->stop();
}

}  // namespace
}  // namespace verbena::c

using namespace verbena::c;
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
  {
    const std::lock_guard lock(clients().mutex);
    for (RdmaConn* conn : clients().open) end_client(*conn);
  }
  sweep();
}

int rdmaConnSetTimeout(RdmaConn* conn, unsigned timeout_ms) {
  if (conn == nullptr || timeout_ms == 0) return note(Status::kBadArgument, __func__);
  conn->timeout_ms.store(timeout_ms, std::memory_order_relaxed);
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
  Operation operation;
  operation.kind = Operation::Kind::kWrite;
  operation.offset = offset;
  return send(conn, operation, data, data_len, __func__);
}
size_t rdmaConnWrite(RdmaConn* conn, const void* data, size_t data_len) {
  return rdmaConnWriteAt(conn, 0, data, data_len);
}

int rdmaConnReadAt(RdmaConn* conn, size_t offset, void* data_buf, size_t buf_len) {
  if (conn != nullptr && buf_len == 0) return note_on(*conn, Status::kBadArgument, __func__);
  Operation operation;
  operation.kind = Operation::Kind::kRead;
  operation.to = static_cast<std::byte*>(data_buf);
  operation.length = buf_len;
  operation.offset = offset;
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
