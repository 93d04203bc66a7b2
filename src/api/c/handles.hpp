// The handles of verbena/rdma.h, over sessions, listeners and nodes.
#pragma once

#include "api/c/codes.hpp"
#include "api/session.hpp"
#include "base/threads.hpp"
#include "node/node.hpp"
#include "session/session.hpp"

#include <verbena/rdma.h>

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace verbena::api::c {

/// A callback in one of its two forms, or none.
template <class Plain, class Full>
struct Callback {
  Plain plain = nullptr;
  Full full = nullptr;
  void* user = nullptr;
  explicit operator bool() const noexcept { return plain != nullptr || full != nullptr; }
  /// Calls it; the plain form without `args`.
  template <class... Args>
  void operator()(RdmaConn* conn, Args... args) const noexcept {
    if (full != nullptr) {
      full(conn, args..., user);
    } else if (plain != nullptr) {
      plain(conn);
    }
  }
};
struct Callbacks {
  Callback<RdmaAcceptCallbackFunc, RdmaConnFunc> accepted;
  Callback<RdmaConnectedCallbackFunc, RdmaConnFunc> connected;
  Callback<RdmaRecvCallbackFunc, RdmaMessageFunc> message;
  Callback<RdmaDisconnectCallbackFunc, RdmaDisconnectFunc> disconnected;
  Callback<RdmaWriteCallbackFunc, RdmaCompletionFunc> written;
  Callback<RdmaReadCallbackFunc, RdmaCompletionFunc> read;
  /// For a client: whether a thread of the library has to call them.
  [[nodiscard]] bool any() const noexcept { return message || connected || disconnected || written || read; }
};

/// RdmaOptions, checked and owned.
struct Options {
  session::Settings settings;
  node::Endpoint endpoint;  ///< NIC, users and node.
  RdmaNode* node = nullptr;
  RdmaRecvMode recv_mode = RDMA_RECV_DISCARD;
};
[[nodiscard]] Result<Options> checked(const RdmaOptions& options);
[[nodiscard]] session::Delivery delivery_of(const Callbacks& callbacks, rdma::Receive otherwise) noexcept;

/// Memory registered through one handle, as its user sees it. \thread any
class Memories {
 public:
  const RdmaMemory* keep(const session::RegisteredMemory& memory);
  /// Null: `told` is not one of these.
  [[nodiscard]] const session::RegisteredMemory* find(const RdmaMemory* told) const noexcept;
  void forget(const RdmaMemory* told) noexcept;
  void clear() noexcept;

 private:
  struct Entry {
    RdmaMemory told;
    const session::RegisteredMemory* memory;
  };
  mutable Mutex mutex_;
  std::list<Entry> entries_;
};

[[nodiscard]] inline rdma::Window window_of(const RdmaWindow& window) noexcept {
  return {.address = window.addr,
          .length = window.length,
          .memory_id = window.memory_id,
          .rkey = window.rkey,
          .access = static_cast<rdma::Access>(window.access)};
}
[[nodiscard]] inline RdmaWindow window_of(const rdma::Window& window) noexcept {
  return {.addr = window.address,
          .length = window.length,
          .rkey = window.rkey,
          .access = static_cast<std::uint32_t>(window.access),
          .memory_id = window.memory_id};
}

[[nodiscard]] RdmaMemory told_of(const session::RegisteredMemory& memory, std::span<std::byte> bytes) noexcept;

/// Remembers a failure on the connection too; returns its code.
int note_on(const RdmaConn& conn, Status status) noexcept;
/// Converts `status` to a code; remembers a failure with its general sentence, or with the reason why the connection is
/// dead.
int result_of(RdmaConn& conn, Status status, const char* call) noexcept;
/// Converts to the structs that users get for messages and completions.
[[nodiscard]] RdmaMessage message_of(const rdma::Message& message) noexcept;
[[nodiscard]] RdmaCompletion completion_of(const rdma::Completion& completion) noexcept;
/// The memory that `told` names, of this connection, its listener or its node; null: it is none of theirs.
[[nodiscard]] const session::RegisteredMemory* memory_seen_by(const RdmaConn& conn, const RdmaMemory* told) noexcept;
/// `timeout_ms`; if negative, the connection's own timeout.
[[nodiscard]] session::Patience patience_of(const RdmaConn& conn, int timeout_ms) noexcept;

/// Events of sessions. A session's `user` is its handle; null: there was no memory for one.
class ConnEvents : public session::Events {
 public:
  void on_connect(session::Session& of) noexcept override;
  void on_message(session::Session& of, const rdma::Message& message) noexcept override;
  void on_complete(session::Session& of, const rdma::Completion& completion) noexcept override;
  void on_disconnect(session::Session& of, Status reason) noexcept override;
  void on_gone(session::Session& of) noexcept override;

 protected:
  ~ConnEvents() = default;
};

}  // namespace verbena::api::c

// Each kind of handle has the name that calls give it, and these functions:
//  - check: whether it can be used; check_early: whether it can still be set up;
//  - owner: its session, listener or node, which owns its memories;
//  - deadline: the end of a call without a time of its own;
//  - remember: returns the code, and keeps it if users can ask for it.

/// One end of a connection. An accepted one belongs to its session, unless it is kept.
struct verbena_RdmaConn final : verbena::api::c::ConnEvents {
  static constexpr const char* kName = "conn";
  verbena::api::c::Options options;
  verbena::api::c::Callbacks callbacks;
  std::unique_ptr<verbena::session::Session> own;  ///< Set for a client or a kept connection.
  /// Null before it is connected. rdmaRuntimeStop reads it from any thread.
  std::atomic<verbena::session::Session*> session{nullptr};
  mutable std::atomic<int> last_code{0};
  bool is_client = false;
  verbena_RdmaListener* listener = nullptr;  ///< For an accepted connection.
  verbena::api::c::Memories memories;
  RdmaMemory window{};  ///< As rdmaConnWindowMemory returns it.

  [[nodiscard]] verbena::Result<void> check() const noexcept;
  [[nodiscard]] verbena::Result<void> check_early() const noexcept;
  [[nodiscard]] verbena::session::Session& owner() const noexcept { return *session.load(std::memory_order_acquire); }
  [[nodiscard]] verbena::Deadline deadline() const noexcept { return owner().default_patience().begin(); }
  int remember(int code) const noexcept {
    if (code != RDMA_OK) last_code.store(code, std::memory_order_relaxed);
    return code;
  }
};

/// A server.
struct verbena_RdmaListener final : verbena::api::c::ConnEvents {
  static constexpr const char* kName = "listener";
  std::string address;
  std::uint16_t port = 0;
  verbena::api::c::Options options;
  verbena::api::c::Callbacks callbacks;
  verbena::node::Listener listener;
  verbena::api::c::Memories memories;

  [[nodiscard]] verbena::Result<void> check() const noexcept;
  [[nodiscard]] verbena::Result<void> check_early() const noexcept;
  [[nodiscard]] verbena::node::Listener& owner() noexcept { return listener; }
  [[nodiscard]] verbena::Deadline deadline() const noexcept {
    return verbena::Deadline::after(options.settings.timeout);
  }
  static int remember(int code) noexcept { return code; }

  void on_accept(verbena::session::Session& of) noexcept override;
};

struct verbena_RdmaNode final {
  static constexpr const char* kName = "node";
  std::shared_ptr<verbena::node::Node> node;
  verbena::api::c::Memories memories;

  [[nodiscard]] static verbena::Result<void> check() noexcept { return {}; }
  [[nodiscard]] verbena::node::Node& owner() const noexcept { return *node; }
  [[nodiscard]] static verbena::Deadline deadline() noexcept {
    return verbena::Deadline::after(std::chrono::seconds{5});
  }
  static int remember(int code) noexcept { return code; }
};

namespace verbena::api::c {

/// Runs `body` if the caller passed a handle, and converts its Result to a code. Remembers a failure.
template <class Handle, class Body>
int coded_on(Handle* handle, const char* call, Body&& body) noexcept {
  const int code = coded(call, [&]() -> Result<void> {
    VERBENA_TRY(check_given(Handle::kName, handle));
    return body();
  });
  return handle != nullptr ? handle->remember(code) : code;
}
/// The same for `body(owner)`, if the handle can be used.
template <class Handle, class Body>
int on(Handle* handle, const char* call, Body&& body) noexcept {
  return coded_on(handle, call, [&]() -> Result<void> {
    VERBENA_TRY(handle->check());
    return body(handle->owner());
  });
}

template <class Handle>
int set_options(Handle* handle, const char* call, const RdmaOptions* options) noexcept {
  return coded_on(handle, call, [&]() -> Result<void> {
    VERBENA_TRY(check_given("options", options));
    VERBENA_TRY(handle->check_early());
    VERBENA_ASSIGN(handle->options, checked(*options));
    return {};
  });
}
template <class Handle, class Form>
int set_callback(Handle* handle, const char* call, Form Callbacks::* which, const Form& callback) noexcept {
  return coded_on(handle, call, [&]() -> Result<void> {
    VERBENA_TRY(handle->check_early());
    handle->callbacks.*which = callback;
    return {};
  });
}

// --- registered memory of any owner

/// Calls `get(owner)`, which registers memory and returns a Result. Returns the memory as its user sees it, or null and
/// remembers the failure.
template <class Handle, class Get>
const RdmaMemory* memory_of(Handle* handle, const char* call, Get&& get) noexcept {
  const RdmaMemory* told = nullptr;
  (void)on(handle, call, [&](auto& owner) -> Result<void> {
    VERBENA_ASSIGN(const session::RegisteredMemory* const memory, get(owner));
    told = handle->memories.keep(*memory);
    return {};
  });
  return told;
}
template <class Handle>
const RdmaMemory* allocate(Handle* handle, const char* call, std::size_t size) noexcept {
  return memory_of(handle, call, [&](auto& owner) -> Result<const session::RegisteredMemory*> {
    VERBENA_TRY(check_memory("size", size));
    return owner.allocate(size);
  });
}
template <class Handle>
const RdmaMemory* add(Handle* handle, const char* call, void* addr, std::size_t length, unsigned access) noexcept {
  return memory_of(handle, call, [&](auto& owner) -> Result<const session::RegisteredMemory*> {
    VERBENA_TRY(check_given("addr", addr));
    VERBENA_TRY(check_memory("length", length));
    VERBENA_TRY(check_limit(call, "access", access, 0, RDMA_ACCESS_REMOTE_ALL));
    return add_to(owner, {static_cast<std::byte*>(addr), length}, static_cast<rdma::Access>(access));
  });
}
template <class Handle>
int remove(Handle* handle, const char* call, const RdmaMemory* memory) noexcept {
  return on(handle, call, [&](auto& owner) -> Result<void> {
    VERBENA_TRY(check_given("memory", memory));
    const auto removed = remove_from(owner, handle->memories.find(memory), handle->deadline());
    handle->memories.forget(memory);
    return removed;
  });
}
/// Publishes a part of one of a handle's memories, or takes the name back (null).
template <class Handle>
int publish(Handle* handle, const char* call, const char* name, const RdmaMemory* told, std::size_t offset = 0,
            std::size_t length = rdma::kRest) noexcept {
  return on(handle, call, [&](auto& owner) -> Result<void> {
    VERBENA_TRY(check_name(name));
    const session::RegisteredMemory* const memory = told != nullptr ? handle->memories.find(told) : nullptr;
    if (told != nullptr && memory == nullptr)
      return fail(Status::kBadArgument, call, 0, "memory is not registered here, or not any more: register it first");
    return owner.publish(name, {.memory = memory, .offset = offset, .length = length});
  });
}
template <class Handle>
int publish_part(Handle* handle, const char* call, const char* name, const RdmaMemory* memory, std::size_t offset,
                 std::size_t length) noexcept {
  const int code = on(handle, call, [&](auto& /*owner*/) -> Result<void> {
    VERBENA_TRY(check_name(name));
    VERBENA_TRY(check_given("memory", memory));
    return check_some("length", length);
  });
  return code == RDMA_OK ? publish(handle, call, name, memory, offset, length) : code;
}

}  // namespace verbena::api::c
