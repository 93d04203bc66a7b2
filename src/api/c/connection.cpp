// Connections of verbena/rdma.h: their setup, their events and their end.
#include "api/c/arguments.hpp"
#include "api/c/handles.hpp"
#include "base/simulation.hpp"
#include "base/threads.hpp"

#include <algorithm>
#include <utility>

namespace verbena::api::c {
namespace {

/// The client connections of this process, for rdmaRuntimeStop.
struct Clients {
  Mutex mutex;
  std::vector<RdmaConn*> open;
};
Clients& clients() {
  return simulation::once_a_process([] { return new Clients; });
}

static_assert(RDMA_WRITE == static_cast<unsigned>(rdma::Completion::Operation::kWrite));
static_assert(RDMA_READ == static_cast<unsigned>(rdma::Completion::Operation::kRead));
static_assert(RDMA_ATOMIC == static_cast<unsigned>(rdma::Completion::Operation::kAtomic));

void close_in_callback(RdmaConn* conn) noexcept {
  session::Session& session = conn->owner();
  // A kept connection that the thread is done with.
  if (conn->own && session.is_detached()) return static_cast<void>(delete conn);
  if (conn->own) {
    session.give_back();
    static_cast<void>(conn->own.release());
  }
  session.close_in_callback();
}

[[nodiscard]] RdmaConn* conn_of(const session::Session& session) noexcept {
  return static_cast<RdmaConn*>(session.user);
}

}  // namespace

// --- events

void ConnEvents::on_connect(session::Session& of) noexcept {
  RdmaConn* const conn = conn_of(of);
  conn->callbacks.connected(conn);
}

void ConnEvents::on_message(session::Session& of, const rdma::Message& message) noexcept {
  RdmaConn* const conn = conn_of(of);
  const auto& callback = conn->callbacks.message;
  const RdmaMessage told = message_of(message);
  if (callback.full != nullptr) {
    callback.full(conn, &told, callback.user);
  } else if (callback.plain != nullptr) {
    callback.plain(conn, told.data, told.length);
  }
}

void ConnEvents::on_complete(session::Session& of, const rdma::Completion& completion) noexcept {
  RdmaConn* const conn = conn_of(of);
  const RdmaCompletion told = completion_of(completion);
  const auto& callback = told.operation == RDMA_READ ? conn->callbacks.read : conn->callbacks.written;
  callback(conn, &told);
}

void ConnEvents::on_disconnect(session::Session& of, Status reason) noexcept {
  RdmaConn* const conn = conn_of(of);
  if (conn == nullptr) return;
  conn->last_code.store(code_of(reason), std::memory_order_relaxed);
  conn->callbacks.disconnected(conn, code_of(reason));
}

void ConnEvents::on_gone(session::Session& of) noexcept { delete conn_of(of); }

// --- state for users

RdmaMessage message_of(const rdma::Message& message) noexcept {
  return {.kind = message.kind == rdma::Message::Kind::kWritten ? RDMA_WRITTEN : RDMA_MESSAGE,
          .has_imm = message.immediate ? 1 : 0,
          .imm = message.immediate.value_or(0),
          .data = message.data.data(),
          .length = message.data.size()};
}

RdmaCompletion completion_of(const rdma::Completion& completion) noexcept {
  return {.cookie = completion.cookie,
          .operation = static_cast<RdmaOperation>(completion.operation),
          .code = code_of(completion.status),
          .old = completion.old};
}

const session::RegisteredMemory* memory_seen_by(const RdmaConn& conn, const RdmaMemory* told) noexcept {
  if (const auto* memory = conn.memories.find(told)) return memory;
  if (told == &conn.window) return conn.owner().window_memory();
  const Options& options = conn.listener != nullptr ? conn.listener->options : conn.options;
  if (conn.listener != nullptr)
    if (const auto* memory = conn.listener->memories.find(told)) return memory;
  return options.node != nullptr ? options.node->memories.find(told) : nullptr;
}

int note_on(const RdmaConn& conn, Status status) noexcept { return conn.remember(code_of(status)); }

int result_of(RdmaConn& conn, Status status, const char* call) noexcept {
  if (status == Status::kOk) [[likely]]
    return RDMA_OK;
  return note_on(conn, note_general(conn.owner(), as_written(call), status));
}

session::Patience patience_of(const RdmaConn& conn, int timeout_ms) noexcept {
  return timeout_ms < 0 ? conn.owner().default_patience()
                        : session::Patience(Deadline::after(std::chrono::milliseconds{timeout_ms}));
}

}  // namespace verbena::api::c

using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Status;
using verbena::session::Session;

verbena::Result<void> verbena_RdmaConn::check() const noexcept {
  if (session != nullptr) [[likely]]
    return {};
  return verbena::fail(Status::kClosed, "", 0, "the connection was never made: call rdmaConnect first");
}
verbena::Result<void> verbena_RdmaConn::check_early() const noexcept {
  if (session == nullptr || (!is_client && owner().is_being_set_up())) return {};
  return verbena::fail(Status::kBusy, "", 0,
                       "the connection is made: call this before rdmaConnect, or in an accept callback");
}

// --- connecting

RdmaConn* rdmaConn(void) {
  std::unique_ptr<RdmaConn> conn;
  const int code = coded(__func__, [&]() -> verbena::Result<void> {
    conn = std::make_unique<RdmaConn>();
    conn->is_client = true;
    const std::lock_guard lock(clients().mutex);
    clients().open.push_back(conn.get());
    return {};
  });
  return code == RDMA_OK ? conn.release() : nullptr;
}

int rdmaConnSetOptions(RdmaConn* conn, const RdmaOptions* options) { return set_options(conn, __func__, options); }
int rdmaConnSetRecvCallback(RdmaConn* conn, RdmaRecvCallbackFunc func) {
  return set_callback(conn, __func__, &Callbacks::message, {.plain = func});
}
int rdmaConnSetConnectedCallback(RdmaConn* conn, RdmaConnectedCallbackFunc func) {
  return set_callback(conn, __func__, &Callbacks::connected, {.plain = func});
}
int rdmaConnSetDisconnectCallback(RdmaConn* conn, RdmaDisconnectCallbackFunc func) {
  return set_callback(conn, __func__, &Callbacks::disconnected, {.plain = func});
}
int rdmaConnSetWriteCallback(RdmaConn* conn, RdmaWriteCallbackFunc func) {
  return set_callback(conn, __func__, &Callbacks::written, {.plain = func});
}
int rdmaConnSetReadCallback(RdmaConn* conn, RdmaReadCallbackFunc func) {
  return set_callback(conn, __func__, &Callbacks::read, {.plain = func});
}
int rdmaConnOnWrite(RdmaConn* conn, RdmaCompletionFunc func, void* user) {
  return set_callback(conn, __func__, &Callbacks::written, {.full = func, .user = user});
}
int rdmaConnOnRead(RdmaConn* conn, RdmaCompletionFunc func, void* user) {
  return set_callback(conn, __func__, &Callbacks::read, {.full = func, .user = user});
}
int rdmaConnOnConnect(RdmaConn* conn, RdmaConnFunc func, void* user) {
  return set_callback(conn, __func__, &Callbacks::connected, {.full = func, .user = user});
}
int rdmaConnOnMessage(RdmaConn* conn, RdmaMessageFunc func, void* user) {
  return set_callback(conn, __func__, &Callbacks::message, {.full = func, .user = user});
}
int rdmaConnOnDisconnect(RdmaConn* conn, RdmaDisconnectFunc func, void* user) {
  return set_callback(conn, __func__, &Callbacks::disconnected, {.full = func, .user = user});
}

int rdmaConnect(RdmaConn* conn, const char* ip, int port) {
  return coded_on(conn, __func__, [&]() -> verbena::Result<void> {
    if (!conn->is_client || conn->session != nullptr)
      return verbena::fail(Status::kBusy, "", 0, "the connection was already made: use another one");
    VERBENA_TRY(check_port(port, 1));
    verbena::node::Endpoint at = conn->options.endpoint;
    at.address = ip != nullptr ? ip : "";
    at.port = static_cast<std::uint16_t>(port);
    const auto delivery = delivery_of(conn->callbacks, verbena::rdma::Receive::kQueue);
    VERBENA_ASSIGN(conn->own,
                   verbena::node::connect(at, conn->options.settings, delivery, *conn, conn->callbacks.any()));
    conn->own->user = conn;
    conn->session = conn->own.get();
    conn->owner().adopt();
    return {};
  });
}

int rdmaConnKeep(RdmaConn* conn) {
  return coded_on(conn, __func__, [&]() -> verbena::Result<void> {
    if (conn->is_client || conn->own || !conn->owner().is_being_set_up())
      return verbena::fail(Status::kBusy, "", 0, "only an accept callback can keep a connection, and only once");
    conn->owner().keep();
    conn->own.reset(conn->session);
    return {};
  });
}

// --- the end

void rdmaConnClose(RdmaConn* conn) {
  if (conn == nullptr || verbena::is_forked()) return;
  const verbena::CancellationHeld held;
  if (conn->is_client) {
    const std::lock_guard lock(clients().mutex);
    std::erase(clients().open, conn);
  }
  if (conn->session == nullptr) return static_cast<void>(delete conn);
  if (is_in_callback(conn->owner())) return close_in_callback(conn);
  if (conn->own) {
    conn->owner().close();
    return static_cast<void>(delete conn);
  }
  // It belongs to its listener, whose thread ends it.
  Session& session = conn->owner();
  (void)session.home().loop().call([&] { session.close_in_callback(); }, verbena::Deadline::never());
}

void rdmaRuntimeStop(void) {
  if (verbena::is_forked()) return;
  const verbena::CancellationHeld held;
  std::vector<RdmaConn*> open;
  {
    const std::lock_guard lock(clients().mutex);
    open = clients().open;
  }
  // Threads first: they call back before they end, and a callback may close connections.
  for (RdmaConn* conn : open) {
    std::shared_ptr<verbena::session::Home> home;  // The thread may close the last connection on it.
    bool is_of_node = false;
    {
      const std::lock_guard lock(clients().mutex);
      if (std::ranges::find(clients().open, conn) == clients().open.end() || conn->session == nullptr) continue;
      if (is_in_callback(conn->owner())) continue;
      home = conn->owner().home().shared_from_this();
      is_of_node = conn->options.endpoint.node != nullptr;
    }
    if (home->driver() == verbena::session::DrivenBy::kThread && !is_of_node) {
      static_cast<verbena::node::SessionShard&>(*home).stop();
    } else {
      conn->owner().close();
    }
  }
}

// --- state

int rdmaConnSetTimeout(RdmaConn* conn, unsigned timeout_ms) {
  return coded_on(conn, __func__, [&]() -> verbena::Result<void> {
    VERBENA_TRY(verbena::check_limit("", "timeout_ms", timeout_ms, 1, 1u << 30));
    conn->options.settings.timeout = std::chrono::milliseconds{timeout_ms};
    if (conn->session != nullptr) conn->owner().timeout_ms.store(timeout_ms, std::memory_order_relaxed);
    return {};
  });
}

int rdmaConnError(const RdmaConn* conn) {
  if (conn == nullptr) return RDMA_ERR_BAD_ARGUMENT;
  const Status reason = conn->session != nullptr ? conn->owner().reason() : Status::kOk;
  return reason != Status::kOk ? code_of(reason) : conn->last_code.load(std::memory_order_relaxed);
}
int rdmaConnIsConnected(const RdmaConn* conn) {
  return conn != nullptr && conn->session != nullptr && conn->owner().is_live() ? 1 : 0;
}
uint64_t rdmaConnDiscarded(const RdmaConn* conn) {
  return conn != nullptr && conn->session != nullptr ? conn->owner().discarded() : 0;
}

// --- windows and memory

void* rdmaConnWindow(RdmaConn* conn, size_t* length) {
  const auto window = conn != nullptr && conn->session != nullptr ? conn->owner().window() : std::span<std::byte>{};
  if (length != nullptr) *length = window.size();
  return window.data();
}
size_t rdmaConnPeerWindowBytes(const RdmaConn* conn) {
  return conn != nullptr && conn->session != nullptr ? conn->owner().peer_window().length : 0;
}

int rdmaConnPeerWindow(const RdmaConn* conn, RdmaWindow* window) {
  clear(window);
  return on(conn, __func__, [&](const Session& session) -> verbena::Result<void> {
    VERBENA_TRY(check_given("window", window));
    if (session.peer_window().length == 0)
      return verbena::fail(Status::kNotFound, "", 0, "the peer has no default window: it must set window_bytes");
    *window = window_of(peer_window_of(session));
    return {};
  });
}

const RdmaMemory* rdmaConnWindowMemory(RdmaConn* conn) {
  if (conn == nullptr || conn->session == nullptr) return nullptr;
  const verbena::session::RegisteredMemory* const memory = conn->owner().window_memory();
  if (memory == nullptr) return nullptr;
  conn->window = told_of(*memory, conn->owner().window());
  return &conn->window;
}

int rdmaConnDeregMem(RdmaConn* conn, const RdmaMemory* memory) {
  if (conn == nullptr || memory != &conn->window) return remove(conn, __func__, memory);
  return note_on(*conn, note(Status::kBadArgument, as_written(__func__),
                             "memory is the connection's own window, which ends with it"));
}
const RdmaMemory* rdmaConnRegMem(RdmaConn* conn, size_t size) { return allocate(conn, __func__, size); }
const RdmaMemory* rdmaConnRegister(RdmaConn* conn, void* addr, size_t length, unsigned access) {
  return add(conn, __func__, addr, length, access);
}
int rdmaConnPublish(RdmaConn* conn, const char* name, const RdmaMemory* memory) {
  return publish(conn, __func__, name, memory);
}
int rdmaConnPublishPart(RdmaConn* conn, const char* name, const RdmaMemory* memory, size_t offset, size_t length) {
  return publish_part(conn, __func__, name, memory, offset, length);
}

int rdmaConnLookup(RdmaConn* conn, const char* name, RdmaWindow* window, int timeout_ms) {
  clear(window);
  return on(conn, __func__, [&](Session& session) -> verbena::Result<void> {
    VERBENA_TRY(check_name(name));
    VERBENA_TRY(check_given("window", window));
    VERBENA_ASSIGN(const verbena::rdma::Window found, session.find(name, patience_of(*conn, timeout_ms)));
    *window = window_of(found);
    return {};
  });
}

int rdmaConnImportWindow(RdmaConn* conn, const RdmaWindow* window) {
  return on(conn, __func__, [&](Session& session) -> verbena::Result<void> {
    VERBENA_TRY(check_given("window", window));
    return session.import_window(window_of(*window), session.default_patience());
  });
}
int rdmaConnReleaseWindow(RdmaConn* conn, const RdmaWindow* window) {
  return on(conn, __func__, [&](Session& session) -> verbena::Result<void> {
    VERBENA_TRY(check_given("window", window));
    return session.release_window(window_of(*window), session.default_patience());
  });
}

// --- physical addresses

int rdmaPAExport(RdmaConn* conn, const RdmaMemory* memory, uint64_t* physical) {
  clear(physical);
  return on(conn, __func__, [&](Session& session) -> verbena::Result<void> {
    VERBENA_TRY(check_given("memory", memory));
    VERBENA_ASSIGN(const std::uint64_t first,
                   session.export_physical(memory_seen_by(*conn, memory), session.default_patience()));
    if (physical != nullptr) *physical = first;
    return {};
  });
}

int rdmaPAAddress(RdmaConn* conn, const void* local, uint64_t* physical) {
  clear(physical);
  return coded(__func__, [&]() -> verbena::Result<void> {
    VERBENA_TRY(check_given("local", local));
    VERBENA_TRY(check_given("physical", physical));
    VERBENA_ASSIGN(*physical,
                   verbena::session::physical_address_of(conn != nullptr ? conn->session.load() : nullptr, local));
    return {};
  });
}
