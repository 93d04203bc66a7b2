// The handles of verbena/rdma.h, over sessions, listeners and nodes.
#pragma once

#include "api/c/codes.hpp"
#include "node/node.hpp"
#include "session/session.hpp"

#include <verbena/rdma.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
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
};
struct Callbacks {
  Callback<RdmaAcceptCallbackFunc, RdmaConnFunc> accepted;
  Callback<RdmaConnectedCallbackFunc, RdmaConnFunc> connected;
  Callback<RdmaRecvCallbackFunc, RdmaMessageFunc> message;
  Callback<RdmaDisconnectCallbackFunc, RdmaDisconnectFunc> disconnected;
  Callback<RdmaWriteCallbackFunc, RdmaCompletionFunc> written;
  Callback<RdmaReadCallbackFunc, RdmaCompletionFunc> read;
  /// A client's: a thread of the library is to call them.
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
/// Refuses a name that is null, or that no window can have.
[[nodiscard]] inline bool is_name(const char* call, const char* name) noexcept {
  return is_given(call, "name", name) && api::is_name(call, std::string_view(name));
}
/// Refuses memory that cannot be registered, or rights that are none.
[[nodiscard]] inline bool is_region(const char* call, const void* addr, std::size_t length, unsigned access) noexcept {
  return is_given(call, "addr", addr) && is_memory(call, "length", length) &&
         is_in_range(call, "access", access, 0, RDMA_ACCESS_REMOTE_ALL);
}
[[nodiscard]] session::Delivery delivery_of(const Callbacks& callbacks, rdma::Receive otherwise) noexcept;

/// Memory that one handle has registered, as its user is told of it. \thread any
class Memories {
 public:
  const RdmaMemory* keep(const session::RegisteredMemory& memory);
  /// Null: it is none of these.
  [[nodiscard]] const session::RegisteredMemory* find(const RdmaMemory* told) const noexcept;
  void forget(const RdmaMemory* told) noexcept;
  void clear() noexcept;

 private:
  struct Entry {
    RdmaMemory told;
    const session::RegisteredMemory* memory;
  };
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

/// Publishes a part of one of a handle's memories by its owner, or takes the name back (null).
template <class Owner>
[[nodiscard]] Result<void> publish_by(Owner& owner, const Memories& memories, const char* name, const RdmaMemory* told,
                                      std::size_t offset = 0, std::size_t length = rdma::kRest) {
  const session::RegisteredMemory* const memory = told != nullptr ? memories.find(told) : nullptr;
  if (told != nullptr && memory == nullptr)
    return fail(Status::kBadArgument, "publish", 0,
                "memory is not registered here, or not any more: register it first");
  return owner.publish(name, {.memory = memory, .offset = offset, .length = length});
}

/// Runs `body`, which returns a Result, and returns its code; remembers a failure as this call's.
template <class Body>
int coded(const char* call, Body&& body) noexcept {
  try {
    const Result<void> result = body();
    return result ? RDMA_OK : code_of(note_as(as_written(call), result.error()));
  } catch (const std::bad_alloc&) {
    return code_of(note(Status::kNoMemory, as_written(call), "{}", sentence_of(Status::kNoMemory)));
  }
}

/// The memory that `get`, which returns a Result, registers, as its user is told of it; null, with the failure
/// remembered, without.
template <class Get>
const RdmaMemory* memory_of(Memories& memories, const char* call, Get&& get) noexcept {
  const RdmaMemory* told = nullptr;
  (void)coded(call, [&]() -> Result<void> {
    VERBENA_ASSIGN(const session::RegisteredMemory* const memory, get());
    told = memories.keep(*memory);
    return {};
  });
  return told;
}

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

/// Whether `conn` was given and is connected, or was; else the failure is remembered.
[[nodiscard]] bool is_usable(const RdmaConn* conn, const char* call) noexcept;
[[nodiscard]] bool is_running(const RdmaListener* listener, const char* call) noexcept;
/// Remembers a failure on the connection, too; its code.
int note_on(const RdmaConn& conn, Status status) noexcept;
/// `status` as a code; a failure is remembered with its general sentence, or why the connection is dead.
int result_of(RdmaConn& conn, Status status, const char* call) noexcept;
/// The structs that users get for messages and completions.
[[nodiscard]] RdmaMessage message_of(const rdma::Message& message) noexcept;
[[nodiscard]] RdmaCompletion completion_of(const rdma::Completion& completion) noexcept;
/// The memory that `told` stands for, of this connection, its listener or its node; null: it is none of theirs.
[[nodiscard]] const session::RegisteredMemory* memory_seen_by(const RdmaConn& conn, const RdmaMemory* told) noexcept;
/// `timeout_ms`, or the connection's own below 0.
[[nodiscard]] session::Patience patience_of(const RdmaConn& conn, int timeout_ms) noexcept;

}  // namespace verbena::api::c

namespace verbena::api::c {

/// The session of a handle. The thread that calls back and the one that connects both set it, to the same.
class SessionOf {
 public:
  SessionOf& operator=(session::Session* session) noexcept {
    session_.store(session, std::memory_order_release);
    return *this;
  }
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions): it stands for the pointer.
  operator session::Session*() const noexcept { return session_.load(std::memory_order_acquire); }
  session::Session* operator->() const noexcept { return *this; }

 private:
  std::atomic<session::Session*> session_{nullptr};
};

}  // namespace verbena::api::c

/// One end of a connection. An accepted one is its session's, unless it is kept.
struct verbena_RdmaConn final : verbena::session::Events {
  verbena::api::c::Options options;
  verbena::api::c::Callbacks callbacks;
  std::unique_ptr<verbena::session::Session> own;  ///< A client's, or kept.
  verbena::api::c::SessionOf session;              ///< Null before it is connected.
  mutable std::atomic<int> last_code{0};
  bool is_client = false;
  verbena_RdmaListener* listener = nullptr;  ///< An accepted one's.
  verbena::api::c::Memories memories;
  RdmaMemory window{};  ///< As rdmaConnWindowMemory tells it.

  void on_connect(verbena::session::Session& of) noexcept override;
  void on_message(verbena::session::Session& of, const verbena::rdma::Message& message) noexcept override;
  void on_complete(verbena::session::Session& of, const verbena::rdma::Completion& completion) noexcept override;
  void on_disconnect(verbena::session::Session& of, verbena::Status reason) noexcept override;
  void on_gone(verbena::session::Session& of) noexcept override;
};

/// A server, which passes the events of its sessions on to their handles.
struct verbena_RdmaListener final : verbena::session::Events {
  std::string address;
  std::uint16_t port = 0;
  verbena::api::c::Options options;
  verbena::api::c::Callbacks callbacks;
  verbena::node::Listener listener;
  verbena::api::c::Memories memories;

  void on_accept(verbena::session::Session& of) noexcept override;
  void on_connect(verbena::session::Session& of) noexcept override;
  void on_message(verbena::session::Session& of, const verbena::rdma::Message& message) noexcept override;
  void on_complete(verbena::session::Session& of, const verbena::rdma::Completion& completion) noexcept override;
  void on_disconnect(verbena::session::Session& of, verbena::Status reason) noexcept override;
  void on_gone(verbena::session::Session& of) noexcept override;
};

struct verbena_RdmaNode final {
  std::shared_ptr<verbena::node::Node> node;
  verbena::api::c::Memories memories;
};
