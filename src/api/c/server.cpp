// Servers of verbena/rdma.h.
#include "api/c/arguments.hpp"
#include "api/c/handles.hpp"

#include <utility>

using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Status;

verbena::Result<void> verbena_RdmaListener::check() const noexcept {
  if (listener.is_running()) return {};
  return verbena::fail(Status::kClosed, "", 0, "the listener does not run: call rdmaServerStart first");
}
verbena::Result<void> verbena_RdmaListener::check_early() const noexcept {
  if (!listener.is_running()) return {};
  return verbena::fail(Status::kBusy, "", 0, "the listener runs already: call this before rdmaServerStart");
}

void verbena_RdmaListener::on_accept(verbena::session::Session& of) noexcept {
  auto* const conn = new (std::nothrow) RdmaConn;
  if (conn == nullptr) return of.close_in_callback();
  conn->session = &of;
  conn->listener = this;
  conn->callbacks = callbacks;
  of.user = conn;
  const bool queues = options.recv_mode == RDMA_RECV_QUEUE;
  const auto deliver = [&] {
    of.set_delivery(
        delivery_of(conn->callbacks, queues ? verbena::rdma::Receive::kQueue : verbena::rdma::Receive::kDiscard));
  };
  deliver();  // Before the callback: a thread that gets the connection from it may receive at once.
  callbacks.accepted(conn);
  deliver();  // Again, for callbacks of its own that it may have got.
}

// --- calls

int rdmaServer(RdmaListener** listener, const char* ip, int port) {
  clear(listener);
  return coded(__func__, [&]() -> verbena::Result<void> {
    VERBENA_TRY(check_given("listener", listener));
    VERBENA_TRY(check_port(port, 0));
    auto made = std::make_unique<RdmaListener>();
    made->address = ip != nullptr ? ip : "";
    made->port = static_cast<std::uint16_t>(port);
    *listener = made.release();
    return {};
  });
}

int rdmaServerSetOptions(RdmaListener* listener, const RdmaOptions* options) {
  return set_options(listener, __func__, options);
}
int rdmaServerSetAcceptCallback(RdmaListener* listener, RdmaAcceptCallbackFunc func) {
  return set_callback(listener, __func__, &Callbacks::accepted, {.plain = func});
}
int rdmaServerOnAccept(RdmaListener* listener, RdmaConnFunc func, void* user) {
  return set_callback(listener, __func__, &Callbacks::accepted, {.full = func, .user = user});
}
int rdmaServerOnMessage(RdmaListener* listener, RdmaMessageFunc func, void* user) {
  return set_callback(listener, __func__, &Callbacks::message, {.full = func, .user = user});
}
int rdmaServerOnDisconnect(RdmaListener* listener, RdmaDisconnectFunc func, void* user) {
  return set_callback(listener, __func__, &Callbacks::disconnected, {.full = func, .user = user});
}

int rdmaServerStart(RdmaListener* listener) {
  return coded_on(listener, __func__, [&] {
    verbena::node::Endpoint at = listener->options.endpoint;
    at.address = listener->address;
    at.port = listener->port;
    return listener->listener.start(at, listener->options.settings, {}, *listener);
  });
}

int rdmaServerPort(const RdmaListener* listener) {
  const int code = coded_on(listener, __func__, [&] { return listener->check(); });
  return code == RDMA_OK ? listener->listener.port() : code;
}

int rdmaServerAddress(const RdmaListener* listener, char* address, size_t length) {
  if (length != 0) clear(address);
  return coded_on(listener, __func__, [&]() -> verbena::Result<void> {
    VERBENA_TRY(listener->check());
    VERBENA_TRY(check_given("address", address));
    const std::string text = listener->listener.address_to_dial();
    if (text.size() >= length)
      return verbena::fail(Status::kBufferTooSmall, "", 0, "length must be at least {} for \"{}\"; got {}",
                           text.size() + 1, text, length);
    text.copy(address, text.size());
    address[text.size()] = '\0';
    return {};
  });
}

void* rdmaServerWindow(const RdmaListener* listener, size_t* length) {
  const auto window = listener != nullptr ? listener->listener.window() : std::span<std::byte>{};
  if (length != nullptr) *length = window.size();
  return window.data();
}

int rdmaServerWait(RdmaListener* listener) {
  return coded_on(listener, __func__, [&]() -> verbena::Result<void> {
    if (listener->listener.is_in_callback())
      return verbena::fail(Status::kBusy, "", 0, "a callback cannot wait for its own listener");
    listener->listener.wait();
    return {};
  });
}

int rdmaServerStop(RdmaListener* listener) {
  return coded_on(listener, __func__, [&]() -> verbena::Result<void> {
    if (listener->listener.is_in_callback())
      return verbena::fail(Status::kBusy, "", 0, "a callback cannot stop its own listener: tell another thread");
    listener->listener.stop();
    listener->memories.clear();
    return {};
  });
}

void rdmaServerRelease(RdmaListener* listener) {
  if (listener != nullptr) verbena::delete_unless_forked(listener);
}

// --- registered memory

const RdmaMemory* rdmaServerRegMem(RdmaListener* listener, size_t size) { return allocate(listener, __func__, size); }
const RdmaMemory* rdmaServerRegister(RdmaListener* listener, void* addr, size_t length, unsigned access) {
  return add(listener, __func__, addr, length, access);
}
int rdmaServerDeregMem(RdmaListener* listener, const RdmaMemory* memory) { return remove(listener, __func__, memory); }
int rdmaServerPublish(RdmaListener* listener, const char* name, const RdmaMemory* memory) {
  return publish(listener, __func__, name, memory);
}
int rdmaServerPublishPart(RdmaListener* listener, const char* name, const RdmaMemory* memory, size_t offset,
                          size_t length) {
  return publish_part(listener, __func__, name, memory, offset, length);
}
