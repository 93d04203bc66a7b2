// Servers of verbena/rdma.h.
#include "api/c/handles.hpp"

#include <utility>

namespace verbena::api::c {

bool is_running(const RdmaListener* listener, const char* call) noexcept {
  if (!is_given(as_written(call), "listener", listener)) return false;
  if (listener->listener.is_running()) return true;
  (void)note(Status::kClosed, as_written(call), "the listener does not run: call rdmaServerStart first");
  return false;
}

namespace {

template <class Set>
int set_early(RdmaListener* listener, const char* call, Set&& set) noexcept {
  call = as_written(call);
  if (!is_given(call, "listener", listener)) return code_of(Status::kBadArgument);
  if (listener->listener.is_running())
    return code_of(note(Status::kBusy, call, "the listener runs already: this is for before rdmaServerStart"));
  set(*listener);
  return RDMA_OK;
}

}  // namespace
}  // namespace verbena::api::c

using namespace verbena;
using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Status;

// --- events: those of the handle that stands for the session

void verbena_RdmaListener::on_accept(verbena::session::Session& of) noexcept {
  auto* const conn = new (std::nothrow) RdmaConn;
  if (conn == nullptr) return of.close_in_callback();
  conn->session = &of;
  conn->listener = this;
  conn->callbacks = callbacks;
  of.user = conn;
  if (callbacks.accepted.full != nullptr) {
    callbacks.accepted.full(conn, callbacks.accepted.user);
  } else if (callbacks.accepted.plain != nullptr) {
    callbacks.accepted.plain(conn);
  }
  const bool queues = options.recv_mode == RDMA_RECV_QUEUE;
  of.set_delivery(
      delivery_of(conn->callbacks, queues ? verbena::rdma::Receive::kQueue : verbena::rdma::Receive::kDiscard));
}

void verbena_RdmaListener::on_connect(verbena::session::Session& of) noexcept {
  static_cast<RdmaConn*>(of.user)->on_connect(of);
}
void verbena_RdmaListener::on_message(verbena::session::Session& of, const verbena::rdma::Message& message) noexcept {
  static_cast<RdmaConn*>(of.user)->on_message(of, message);
}
void verbena_RdmaListener::on_complete(verbena::session::Session& of,
                                       const verbena::rdma::Completion& completion) noexcept {
  static_cast<RdmaConn*>(of.user)->on_complete(of, completion);
}
void verbena_RdmaListener::on_disconnect(verbena::session::Session& of, Status reason) noexcept {
  if (of.user != nullptr) static_cast<RdmaConn*>(of.user)->on_disconnect(of, reason);
}
void verbena_RdmaListener::on_gone(verbena::session::Session& of) noexcept {
  if (of.user != nullptr) static_cast<RdmaConn*>(of.user)->on_gone(of);
}

// --- calls

int rdmaServer(RdmaListener** listener, const char* ip, int port) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "listener", listener)) return code_of(Status::kBadArgument);
  if (port < 0 || port > 65535)
    return code_of(note(Status::kBadArgument, call, "port must be 0 to 65535; got {}", port));
  return coded(call, [&]() -> verbena::Result<void> {
    auto made = std::make_unique<RdmaListener>();
    made->address = ip != nullptr ? ip : "";
    made->port = static_cast<std::uint16_t>(port);
    *listener = made.release();
    return {};
  });
}

int rdmaServerSetOptions(RdmaListener* listener, const RdmaOptions* options) {
  if (!is_given(as_written(__func__), "options", options)) return code_of(Status::kBadArgument);
  return set_early(listener, __func__, [&](RdmaListener&) {}) != RDMA_OK
             ? code_of(last_failure().status())
             : coded(__func__, [&]() -> verbena::Result<void> {
                 VERBENA_ASSIGN(listener->options, checked(*options));
                 return {};
               });
}

int rdmaServerSetAcceptCallback(RdmaListener* listener, RdmaAcceptCallbackFunc func) {
  return set_early(listener, __func__, [&](RdmaListener& of) { of.callbacks.accepted = {.plain = func}; });
}
int rdmaServerOnAccept(RdmaListener* listener, RdmaConnFunc func, void* user) {
  return set_early(listener, __func__, [&](RdmaListener& of) { of.callbacks.accepted = {.full = func, .user = user}; });
}
int rdmaServerOnMessage(RdmaListener* listener, RdmaMessageFunc func, void* user) {
  return set_early(listener, __func__, [&](RdmaListener& of) { of.callbacks.message = {.full = func, .user = user}; });
}
int rdmaServerOnDisconnect(RdmaListener* listener, RdmaDisconnectFunc func, void* user) {
  return set_early(listener, __func__,
                   [&](RdmaListener& of) { of.callbacks.disconnected = {.full = func, .user = user}; });
}

int rdmaServerStart(RdmaListener* listener) {
  if (!is_given(as_written(__func__), "listener", listener)) return code_of(Status::kBadArgument);
  return coded(__func__, [&] {
    verbena::node::Endpoint at = listener->options.endpoint;
    at.address = listener->address;
    at.port = listener->port;
    return listener->listener.start(at, listener->options.settings, {}, *listener);
  });
}

int rdmaServerPort(const RdmaListener* listener) {
  return is_running(listener, __func__) ? listener->listener.port() : code_of(last_failure().status());
}

int rdmaServerAddress(const RdmaListener* listener, char* address, size_t length) {
  const char* const call = as_written(__func__);
  if (!is_running(listener, call) || !is_given(call, "address", address)) return code_of(last_failure().status());
  const std::string text = listener->listener.address_to_dial();
  if (text.size() >= length)
    return code_of(note(Status::kBufferTooSmall, call, "length must be at least {} for \"{}\"; got {}", text.size() + 1,
                        text, length));
  text.copy(address, text.size());
  address[text.size()] = '\0';
  return RDMA_OK;
}

void* rdmaServerWindow(const RdmaListener* listener, size_t* length) {
  const auto window = listener != nullptr ? listener->listener.window() : std::span<std::byte>{};
  if (length != nullptr) *length = window.size();
  return window.data();
}

int rdmaServerWait(RdmaListener* listener) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "listener", listener)) return code_of(Status::kBadArgument);
  if (listener->listener.is_in_callback())
    return code_of(note(Status::kBusy, call, "a callback cannot wait for its own listener"));
  listener->listener.wait();
  return RDMA_OK;
}

int rdmaServerStop(RdmaListener* listener) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "listener", listener)) return code_of(Status::kBadArgument);
  if (listener->listener.is_in_callback())
    return code_of(note(Status::kBusy, call, "a callback cannot stop its own listener: tell another thread"));
  listener->listener.stop();
  listener->memories.clear();
  return RDMA_OK;
}

void rdmaServerRelease(RdmaListener* listener) { delete listener; }

// --- registered memory

const RdmaMemory* rdmaServerRegMem(RdmaListener* listener, size_t size) {
  const char* const call = as_written(__func__);
  if (!is_running(listener, call) || !is_memory(call, "size", size)) return nullptr;
  return memory_of(listener->memories, call, [&] { return listener->listener.allocate(size); });
}

const RdmaMemory* rdmaServerRegister(RdmaListener* listener, void* addr, size_t length, unsigned access) {
  const char* const call = as_written(__func__);
  if (!is_running(listener, call) || !is_region(call, addr, length, access)) return nullptr;
  return memory_of(listener->memories, call, [&] {
    return listener->listener.add({static_cast<std::byte*>(addr), length}, static_cast<verbena::rdma::Access>(access));
  });
}

int rdmaServerDeregMem(RdmaListener* listener, const RdmaMemory* memory) {
  const char* const call = as_written(__func__);
  if (!is_running(listener, call) || !is_given(call, "memory", memory)) return code_of(last_failure().status());
  return coded(call, [&]() -> verbena::Result<void> {
    const auto removed = listener->listener.remove(listener->memories.find(memory),
                                                   verbena::Deadline::after(listener->options.settings.timeout));
    listener->memories.forget(memory);
    return removed;
  });
}

int rdmaServerPublish(RdmaListener* listener, const char* name, const RdmaMemory* memory) {
  const char* const call = as_written(__func__);
  if (!is_running(listener, call) || !is_name(call, name)) return code_of(last_failure().status());
  return coded(call, [&] { return publish_by(listener->listener, listener->memories, name, memory); });
}

int rdmaServerPublishPart(RdmaListener* listener, const char* name, const RdmaMemory* memory, size_t offset,
                          size_t length) {
  const char* const call = as_written(__func__);
  if (!is_running(listener, call) || !is_name(call, name) || !is_given(call, "memory", memory) ||
      !is_in_range(call, "length", length))
    return code_of(last_failure().status());
  return coded(call, [&] { return publish_by(listener->listener, listener->memories, name, memory, offset, length); });
}
