// Connections of verbena/rdma.h: their making, their events and their end.
#include "api/c/handles.hpp"

#include <algorithm>
#include <utility>

namespace verbena::api::c {
namespace {

/// The client connections of this process, for rdmaRuntimeStop.
struct Clients {
  std::mutex mutex;
  std::vector<RdmaConn*> open;
};
Clients& clients() {
  // Never destroyed: threads of connections that were not closed may outlive static objects.
  static auto* const all = new Clients;
  return *all;
}

[[nodiscard]] bool takes_options(const RdmaConn& conn) noexcept {
  return conn.session == nullptr || (!conn.is_client && conn.session->is_being_set_up());
}

template <class Set>
int set_early(RdmaConn* conn, const char* call, Set&& set) noexcept {
  call = as_written(call);
  if (!is_given(call, "conn", conn)) return code_of(Status::kBadArgument);
  if (!takes_options(*conn))
    return note_on(*conn, note(Status::kBusy, call,
                               "the connection is made: this is for before rdmaConnect, or for an accept callback"));
  set(*conn);
  return RDMA_OK;
}

template <class Plain, class Full, class... Args>
void call_plainly(const Callback<Plain, Full>& callback, RdmaConn& conn, Args... args) noexcept {
  if (callback.full != nullptr) {
    callback.full(&conn, args..., callback.user);
  } else if (callback.plain != nullptr) {
    callback.plain(&conn);
  }
}

[[nodiscard]] RdmaOperation operation_of(rdma::Completion::Operation operation) noexcept {
  switch (operation) {
    case rdma::Completion::Operation::kWrite: return RDMA_WRITE;
    case rdma::Completion::Operation::kRead: return RDMA_READ;
    case rdma::Completion::Operation::kAtomic: break;
  }
  return RDMA_ATOMIC;
}

/// Notes the last failure on the connection, too.
const RdmaMemory* refused(const RdmaConn& conn) noexcept {
  (void)note_on(conn, last_failure().status());
  return nullptr;
}

/// What `body` returns as a Result, as a code, which the connection remembers.
template <class Body>
int coded_on(RdmaConn& conn, const char* call, Body&& body) noexcept {
  const int code = coded(call, body);
  if (code != RDMA_OK) conn.last_code.store(code, std::memory_order_relaxed);
  return code;
}

[[nodiscard]] bool is_in_callback(const session::Session& session) noexcept {
  session::Home& home = session.home();
  return home.driver() == session::Driver::kThread && home.loop().is_owner();
}

void close_in_callback(RdmaConn* conn) noexcept {
  session::Session& session = *conn->session;
  // One that was kept, and that the thread is done with.
  if (conn->own && session.is_detached()) return static_cast<void>(delete conn);
  if (conn->own) {
    session.give_back();
    static_cast<void>(conn->own.release());
  }
  session.close_in_callback();
}

}  // namespace

RdmaMessage message_of(const rdma::Message& message) noexcept {
  return {.kind = message.kind == rdma::Message::Kind::kWritten ? RDMA_WRITTEN : RDMA_MESSAGE,
          .has_imm = message.immediate ? 1 : 0,
          .imm = message.immediate.value_or(0),
          .data = message.data.data(),
          .length = message.data.size()};
}

RdmaCompletion completion_of(const rdma::Completion& completion) noexcept {
  return {.cookie = completion.cookie,
          .operation = operation_of(completion.operation),
          .code = code_of(completion.status),
          .old = completion.old};
}

const session::RegisteredMemory* memory_seen_by(const RdmaConn& conn, const RdmaMemory* told) noexcept {
  if (const auto* memory = conn.memories.find(told)) return memory;
  if (told == &conn.window) return conn.session->window_memory();
  const Options& options = conn.listener != nullptr ? conn.listener->options : conn.options;
  if (conn.listener != nullptr)
    if (const auto* memory = conn.listener->memories.find(told)) return memory;
  return options.node != nullptr ? options.node->memories.find(told) : nullptr;
}

bool is_usable(const RdmaConn* conn, const char* call) noexcept {
  call = as_written(call);
  if (!is_given(call, "conn", conn)) return false;
  if (conn->session != nullptr) [[likely]]
    return true;
  (void)note_on(*conn, note(Status::kClosed, call, "the connection was never made: call rdmaConnect first"));
  return false;
}

int note_on(const RdmaConn& conn, Status status) noexcept {
  const int code = code_of(status);
  if (code != RDMA_OK) conn.last_code.store(code, std::memory_order_relaxed);
  return code;
}

int result_of(RdmaConn& conn, Status status, const char* call) noexcept {
  if (status == Status::kOk) [[likely]]
    return RDMA_OK;
  const session::Words words = session::words_of(*conn.session, status);
  return note_on(conn, note(status, as_written(call), "{}{}", words.front, words.sentence));
}

session::Patience patience_of(const RdmaConn& conn, int timeout_ms) noexcept {
  return timeout_ms < 0 ? conn.session->default_patience()
                        : session::Patience(Deadline::after(std::chrono::milliseconds{timeout_ms}));
}

}  // namespace verbena::api::c

using namespace verbena;
using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Status;
using verbena::session::Session;

// --- events

void verbena_RdmaConn::on_connect(Session& of) noexcept {
  session = &of;
  call_plainly(callbacks.connected, *this);
}

void verbena_RdmaConn::on_message(Session& /*of*/, const verbena::rdma::Message& message) noexcept {
  const RdmaMessage told = message_of(message);
  if (callbacks.message.full != nullptr) {
    callbacks.message.full(this, &told, callbacks.message.user);
  } else if (callbacks.message.plain != nullptr) {
    callbacks.message.plain(this, told.data, told.length);
  }
}

void verbena_RdmaConn::on_complete(Session& /*of*/, const verbena::rdma::Completion& completion) noexcept {
  const RdmaCompletion told = completion_of(completion);
  if (told.operation == RDMA_READ) {
    call_plainly(callbacks.read, *this, static_cast<const RdmaCompletion*>(&told));
  } else {
    call_plainly(callbacks.written, *this, static_cast<const RdmaCompletion*>(&told));
  }
}

void verbena_RdmaConn::on_disconnect(Session& /*of*/, Status reason) noexcept {
  last_code.store(code_of(reason), std::memory_order_relaxed);
  call_plainly(callbacks.disconnected, *this, code_of(reason));
}

void verbena_RdmaConn::on_gone(Session& /*of*/) noexcept { delete this; }

// --- making

RdmaConn* rdmaConn(void) {
  try {
    auto conn = std::make_unique<RdmaConn>();
    conn->is_client = true;
    const std::lock_guard lock(clients().mutex);
    clients().open.push_back(conn.get());
    return conn.release();
  } catch (const std::bad_alloc&) {
    (void)note(Status::kNoMemory, as_written(__func__), "{}", sentence_of(Status::kNoMemory));
    return nullptr;
  }
}

int rdmaConnSetOptions(RdmaConn* conn, const RdmaOptions* options) {
  if (!is_given(as_written(__func__), "options", options)) return code_of(Status::kBadArgument);
  int code = RDMA_OK;
  const int set = set_early(conn, __func__, [&](RdmaConn& of) {
    code = coded_on(of, "rdmaConnSetOptions", [&]() -> verbena::Result<void> {
      VERBENA_ASSIGN(of.options, checked(*options));
      return {};
    });
  });
  return set != RDMA_OK ? set : code;
}

int rdmaConnSetRecvCallback(RdmaConn* conn, RdmaRecvCallbackFunc func) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.message = {.plain = func}; });
}
int rdmaConnSetConnectedCallback(RdmaConn* conn, RdmaConnectedCallbackFunc func) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.connected = {.plain = func}; });
}
int rdmaConnSetDisconnectCallback(RdmaConn* conn, RdmaDisconnectCallbackFunc func) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.disconnected = {.plain = func}; });
}
int rdmaConnSetWriteCallback(RdmaConn* conn, RdmaWriteCallbackFunc func) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.written = {.plain = func}; });
}
int rdmaConnSetReadCallback(RdmaConn* conn, RdmaReadCallbackFunc func) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.read = {.plain = func}; });
}
int rdmaConnOnWrite(RdmaConn* conn, RdmaCompletionFunc func, void* user) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.written = {.full = func, .user = user}; });
}
int rdmaConnOnRead(RdmaConn* conn, RdmaCompletionFunc func, void* user) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.read = {.full = func, .user = user}; });
}
int rdmaConnOnConnect(RdmaConn* conn, RdmaConnFunc func, void* user) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.connected = {.full = func, .user = user}; });
}
int rdmaConnOnMessage(RdmaConn* conn, RdmaMessageFunc func, void* user) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.message = {.full = func, .user = user}; });
}
int rdmaConnOnDisconnect(RdmaConn* conn, RdmaDisconnectFunc func, void* user) {
  return set_early(conn, __func__, [&](RdmaConn& of) { of.callbacks.disconnected = {.full = func, .user = user}; });
}

int rdmaConnect(RdmaConn* conn, const char* ip, int port) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "conn", conn)) return code_of(Status::kBadArgument);
  if (!conn->is_client || conn->session != nullptr)
    return note_on(*conn, note(Status::kBusy, call, "the connection was made already: use another one"));
  if (port < 1 || port > 65535)
    return note_on(*conn, note(Status::kBadArgument, call, "port must be 1 to 65535; got {}", port));
  return coded_on(*conn, call, [&]() -> verbena::Result<void> {
    verbena::node::Endpoint at = conn->options.endpoint;
    at.address = ip != nullptr ? ip : "";
    at.port = static_cast<std::uint16_t>(port);
    const auto delivery = delivery_of(conn->callbacks, verbena::rdma::Receive::kQueue);
    VERBENA_ASSIGN(conn->own,
                   verbena::node::connect(at, conn->options.settings, delivery, *conn, conn->callbacks.any()));
    conn->session = conn->own.get();
    conn->session->adopt();
    return {};
  });
}

int rdmaConnKeep(RdmaConn* conn) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "conn", conn)) return code_of(Status::kBadArgument);
  if (conn->is_client || conn->own || !conn->session->is_being_set_up())
    return note_on(*conn, note(Status::kBusy, call, "only an accept callback keeps a connection, and once"));
  conn->session->keep();
  conn->own.reset(conn->session);
  return RDMA_OK;
}

// --- the end

void rdmaConnClose(RdmaConn* conn) {
  if (conn == nullptr) return;
  if (conn->is_client) {
    const std::lock_guard lock(clients().mutex);
    std::erase(clients().open, conn);
  }
  if (conn->session == nullptr) return static_cast<void>(delete conn);
  if (is_in_callback(*conn->session)) return close_in_callback(conn);
  if (conn->own) {
    conn->session->close();
    return static_cast<void>(delete conn);
  }
  // It is its listener's, whose thread ends it.
  Session& session = *conn->session;
  (void)session.home().loop().call([&] { session.close_in_callback(); }, verbena::Deadline::never());
}

void rdmaRuntimeStop(void) {
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
      if (is_in_callback(*conn->session)) continue;
      home = conn->session->home().shared_from_this();
      is_of_node = conn->options.endpoint.node != nullptr;
    }
    if (home->driver() == verbena::session::Driver::kThread && !is_of_node) {
      static_cast<verbena::node::SessionShard&>(*home).stop();
    } else {
      conn->session->close();
    }
  }
}

// --- what it is

int rdmaConnSetTimeout(RdmaConn* conn, unsigned timeout_ms) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "conn", conn) || !is_in_range(call, "timeout_ms", timeout_ms, 1, 1u << 30))
    return code_of(Status::kBadArgument);
  conn->options.settings.timeout = std::chrono::milliseconds{timeout_ms};
  if (conn->session != nullptr) conn->session->timeout_ms.store(timeout_ms, std::memory_order_relaxed);
  return RDMA_OK;
}

int rdmaConnError(const RdmaConn* conn) {
  if (conn == nullptr) return RDMA_ERR_BAD_ARGUMENT;
  const Status reason = conn->session != nullptr ? conn->session->reason() : Status::kOk;
  return reason != Status::kOk ? code_of(reason) : conn->last_code.load(std::memory_order_relaxed);
}
int rdmaConnIsConnected(const RdmaConn* conn) {
  return conn != nullptr && conn->session != nullptr && conn->session->is_live() ? 1 : 0;
}
uint64_t rdmaConnDiscarded(const RdmaConn* conn) {
  return conn != nullptr && conn->session != nullptr ? conn->session->discarded() : 0;
}

// --- windows and memory

void* rdmaConnWindow(RdmaConn* conn, size_t* length) {
  const auto window = conn != nullptr && conn->session != nullptr ? conn->session->window() : std::span<std::byte>{};
  if (length != nullptr) *length = window.size();
  return window.data();
}
size_t rdmaConnPeerWindowBytes(const RdmaConn* conn) {
  return conn != nullptr && conn->session != nullptr ? conn->session->peer_window().length : 0;
}

int rdmaConnPeerWindow(const RdmaConn* conn, RdmaWindow* window) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || !is_given(call, "window", window)) return code_of(last_failure().status());
  const verbena::nic::Window& of = conn->session->peer_window();
  if (of.length == 0)
    return code_of(note(Status::kNotFound, call, "the peer has no default window: it sets window_bytes"));
  *window = {.addr = of.address,
             .length = of.length,
             .rkey = of.rkey,
             .access = RDMA_ACCESS_REMOTE_ALL,
             .memory_id = of.memory_id};
  return RDMA_OK;
}

const RdmaMemory* rdmaConnWindowMemory(RdmaConn* conn) {
  if (conn == nullptr || conn->session == nullptr) return nullptr;
  const verbena::session::RegisteredMemory* const memory = conn->session->window_memory();
  if (memory == nullptr) return nullptr;
  const auto window = conn->session->window();
  conn->window = {.addr = window.data(),
                  .length = window.size(),
                  .lkey = memory->lkey,
                  .rkey = memory->rkey,
                  .access = static_cast<std::uint32_t>(memory->access),
                  .memory_id = memory->memory_id};
  return &conn->window;
}

const RdmaMemory* rdmaConnRegMem(RdmaConn* conn, size_t size) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call)) return nullptr;
  if (!is_memory(call, "size", size)) return refused(*conn);
  const RdmaMemory* const told = memory_of(conn->memories, call, [&] { return conn->session->allocate(size); });
  return told != nullptr ? told : refused(*conn);
}

const RdmaMemory* rdmaConnRegister(RdmaConn* conn, void* addr, size_t length, unsigned access) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call)) return nullptr;
  if (!is_region(call, addr, length, access)) return refused(*conn);
  Session& of = *conn->session;
  const RdmaMemory* const told = memory_of(conn->memories, call, [&] {
    return of.home().registrations().add(&of, {static_cast<std::byte*>(addr), length},
                                         static_cast<verbena::rdma::Access>(access));
  });
  return told != nullptr ? told : refused(*conn);
}

int rdmaConnDeregMem(RdmaConn* conn, const RdmaMemory* memory) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || !is_given(call, "memory", memory)) return code_of(last_failure().status());
  if (memory == &conn->window)
    return note_on(*conn,
                   note(Status::kBadArgument, call, "memory is the connection's own window, which ends with it"));
  return coded_on(*conn, call, [&] {
    const auto removed = conn->session->home().registrations().remove(conn->session, conn->memories.find(memory),
                                                                      patience_of(*conn, -1).begin());
    conn->memories.forget(memory);
    return removed;
  });
}

int rdmaConnPublish(RdmaConn* conn, const char* name, const RdmaMemory* memory) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || !is_name(call, name)) return code_of(last_failure().status());
  return coded_on(*conn, call, [&] { return publish_by(*conn->session, conn->memories, name, memory); });
}

int rdmaConnPublishPart(RdmaConn* conn, const char* name, const RdmaMemory* memory, size_t offset, size_t length) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || !is_name(call, name) || !is_given(call, "memory", memory) ||
      !is_in_range(call, "length", length))
    return code_of(last_failure().status());
  return coded_on(*conn, call,
                  [&] { return publish_by(*conn->session, conn->memories, name, memory, offset, length); });
}

int rdmaConnLookup(RdmaConn* conn, const char* name, RdmaWindow* window, int timeout_ms) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || !is_name(call, name) || !is_given(call, "window", window))
    return code_of(last_failure().status());
  return coded_on(*conn, call, [&]() -> verbena::Result<void> {
    VERBENA_ASSIGN(const verbena::rdma::Window found, conn->session->find(name, patience_of(*conn, timeout_ms)));
    *window = window_of(found);
    return {};
  });
}

int rdmaConnImportWindow(RdmaConn* conn, const RdmaWindow* window) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || !is_given(call, "window", window)) return code_of(last_failure().status());
  return coded_on(*conn, call,
                  [&] { return conn->session->import_window(window_of(*window), patience_of(*conn, -1)); });
}
int rdmaConnReleaseWindow(RdmaConn* conn, const RdmaWindow* window) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || !is_given(call, "window", window)) return code_of(last_failure().status());
  return coded_on(*conn, call,
                  [&] { return conn->session->release_window(window_of(*window), patience_of(*conn, -1)); });
}

// --- physical addresses

int rdmaPAExport(RdmaConn* conn, const RdmaMemory* memory, uint64_t* physical) {
  const char* const call = as_written(__func__);
  if (!is_usable(conn, call) || !is_given(call, "memory", memory)) return code_of(last_failure().status());
  return coded_on(*conn, call, [&]() -> verbena::Result<void> {
    VERBENA_ASSIGN(const std::uint64_t first,
                   conn->session->export_physical(memory_seen_by(*conn, memory), patience_of(*conn, -1)));
    if (physical != nullptr) *physical = first;
    return {};
  });
}

int rdmaPAAddress(RdmaConn* conn, const void* local, uint64_t* physical) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "local", local) || !is_given(call, "physical", physical)) return code_of(Status::kBadArgument);
  return coded(call, [&]() -> verbena::Result<void> {
    Session* session = nullptr;
    if (conn != nullptr) session = conn->session;
    VERBENA_ASSIGN(*physical, verbena::session::physical_address_of(session, local));
    return {};
  });
}
