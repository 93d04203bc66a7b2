// The functions of verbena/compat/rdma_common.h, over those of verbena/rdma.h.
#include <verbena/compat/rdma_common.h>

#include "api/c/arguments.hpp"
#include "api/c/entrance.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace verbena::api::c {
namespace {

/// Behind rdma_context::state, from rdma_init_context on.
struct CommonState {
  std::unique_ptr<Entrance> entrance;        ///< For a listener.
  std::deque<std::span<std::byte>> offered;  ///< For the next messages.
};

CommonState& state_of(const rdma_context_t& ctx) noexcept { return *static_cast<CommonState*>(ctx.state); }

/// Calls `body(ctx)` and returns its code, if the context was set up.
template <class Body>
int on_common(rdma_context_t* ctx, const char* call, Body&& body) noexcept {
  if (!is_given(call, {"ctx", ctx})) return RDMA_ERR_BAD_ARGUMENT;
  if (ctx->state == nullptr) return refuse(call, "ctx must be set up by rdma_init_context first");
  if (is_forked()) return refuse_forked(call);
  try {
    return body(*ctx);
  } catch (const std::bad_alloc&) {
    return code_of(note_later(Status::kNoMemory, as_written(call), sentence_of));
  }
}

/// The same for a context that has a connection.
template <class Body>
int on_connected(rdma_context_t* ctx, const char* call, Body&& body) noexcept {
  return on_common(ctx, call, [&](rdma_context_t& of) {
    if (of.conn == nullptr) return code_of(note(Status::kClosed, as_written(call), "ctx has no connection"));
    return body(of);
  });
}

int refuse_used(const char* call) noexcept {
  return code_of(note(Status::kBusy, as_written(call), "the context is in use: rdma_disconnect first"));
}

RdmaOptions options_of(const rdma_context_t& ctx, const char* device) noexcept {
  RdmaOptions options;
  rdmaOptionsInit(&options);
  if (device != nullptr) options.device = device;
  options.bootstrap = ctx.conn_mode == CONN_MODE_SOCKET ? RDMA_BOOTSTRAP_SOCKET : RDMA_BOOTSTRAP_CM;
  options.recv_mode = RDMA_RECV_QUEUE;
  options.window_bytes = 0;
  options.connect_timeout_ms = options.timeout_ms = RDMA_TIMEOUT_MS;
  return options;
}

int register_now(rdma_context_t& ctx) noexcept {
  ctx.mr = rdmaConnRegister(ctx.conn, ctx.buf, ctx.buf_size, RDMA_ACCESS_REMOTE_ALL);
  return ctx.mr != nullptr ? RDMA_OK : rdmaConnError(ctx.conn);
}

/// Makes `conn` the context's, with the memory that waits to be registered. On failure it is closed.
int settle(rdma_context_t& ctx, RdmaConn* conn) noexcept {
  ctx.conn = conn;
  ctx.connected = true;
  const int code = ctx.buf != nullptr ? register_now(ctx) : RDMA_OK;
  if (code != RDMA_OK) rdma_disconnect(&ctx);
  return code;
}

int connect_common(rdma_context_t* ctx, const char* call, const char* server_ip, int port,
                   const char* device) noexcept {
  return on_common(ctx, call, [&](rdma_context_t& of) {
    if (of.connected) return refuse_used(call);
    RdmaConn* const conn = rdmaConn();
    if (conn == nullptr) return last_code();
    const RdmaOptions options = options_of(of, device);
    int code = rdmaConnSetOptions(conn, &options);
    if (code == RDMA_OK) code = rdmaConnect(conn, server_ip, port);
    if (code == RDMA_OK) return settle(of, conn);
    rdmaConnClose(conn);
    return code;
  });
}

int listen_common(rdma_context_t* ctx, const char* call, const char* bind_ip, int port, const char* device) noexcept {
  return on_common(ctx, call, [&](rdma_context_t& of) {
    if (of.connected) return refuse_used(call);
    auto entrance = std::make_unique<Entrance>();
    const bool is_anywhere = bind_ip == nullptr || *bind_ip == '\0';
    if (const int code = entrance->open(is_anywhere ? nullptr : bind_ip, port, options_of(of, device)); code != RDMA_OK)
      return code;
    state_of(of).entrance = std::move(entrance);
    of.connected = true;
    return int{RDMA_OK};
  });
}

/// Moves `size` bytes of registered memory by `move`, in pieces that a call takes.
template <class Move>
int transfer(rdma_context_t* ctx, const char* call, void* local_buf, std::size_t size, Move&& move) noexcept {
  return on_connected(ctx, call, [&](rdma_context_t& of) {
    constexpr std::size_t kPiece = std::size_t{1} << 30;
    const auto local = reinterpret_cast<std::uintptr_t>(local_buf);
    const auto begin = of.mr != nullptr ? reinterpret_cast<std::uintptr_t>(of.mr->addr) : 0;
    if (of.mr == nullptr || local < begin || size > of.mr->length || local - begin > of.mr->length - size)
      return refuse(call, "local_buf must lie in the memory of rdma_register_memory, with all of its {} bytes", size);
    if (size == 0) return refuse(call, "size must be at least 1; got 0");
    int code = RDMA_OK;
    for (std::size_t done = 0; done < size && code == RDMA_OK; done += kPiece)
      code = move(of, local + done, done, static_cast<std::uint32_t>(std::min(kPiece, size - done)));
    return code;
  });
}

}  // namespace
}  // namespace verbena::api::c

using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Deadline;
using verbena::Status;

int rdma_init_context(rdma_context_t* ctx, conn_mode_t mode) {
  if (!is_given(__func__, {"ctx", ctx})) return RDMA_ERR_BAD_ARGUMENT;
  *ctx = {};
  if (const auto number = static_cast<unsigned>(mode); number > CONN_MODE_SOCKET)
    return refuse(__func__, "mode must be CONN_MODE_CM (0) or CONN_MODE_SOCKET (1); got {}", number);
  ctx->conn_mode = mode;
  ctx->state = new (std::nothrow) CommonState;
  return ctx->state != nullptr ? int{RDMA_OK}
                               : code_of(note_later(Status::kNoMemory, as_written(__func__), verbena::sentence_of));
}

void rdma_destroy_context(rdma_context_t* ctx) {
  if (ctx == nullptr || ctx->state == nullptr) return;
  rdma_disconnect(ctx);
  delete static_cast<CommonState*>(ctx->state);
  *ctx = {};
}

int rdma_connect(rdma_context_t* ctx, const char* server_ip, int port) {
  return connect_common(ctx, __func__, server_ip, port, nullptr);
}

int rdma_socket_connect(rdma_context_t* ctx, const char* server_ip, int port, const char* ib_dev) {
  return connect_common(ctx, __func__, server_ip, port, ib_dev);
}

int rdma_listen(rdma_context_t* ctx, const char* bind_ip, int port) {
  return listen_common(ctx, __func__, bind_ip, port, nullptr);
}

int rdma_socket_listen(rdma_context_t* ctx, const char* bind_ip, int port, const char* ib_dev) {
  return listen_common(ctx, __func__, bind_ip, port, ib_dev);
}

int rdma_listen_port(rdma_context_t* ctx) {
  return on_common(ctx, __func__, [](rdma_context_t& of) {
    if (!state_of(of).entrance) return code_of(note(Status::kClosed, "rdma_listen_port", "ctx does not listen"));
    return state_of(of).entrance->port();
  });
}

int rdma_accept(rdma_context_t* ctx, rdma_context_t* client_ctx) {
  const char* const call = __func__;
  return on_common(ctx, call, [&](rdma_context_t& of) {
    if (!is_given(call, {"client_ctx", client_ctx})) return int{RDMA_ERR_BAD_ARGUMENT};
    if (!state_of(of).entrance) return code_of(note(Status::kClosed, as_written(call), "ctx does not listen"));
    RdmaConn* const conn = state_of(of).entrance->next(Deadline::after(std::chrono::milliseconds{RDMA_TIMEOUT_MS}));
    if (conn == nullptr) return code_of(note(Status::kTimedOut, as_written(call), "no client came: call it again"));
    if (const int code = rdma_init_context(client_ctx, of.conn_mode); code != RDMA_OK) {
      rdmaConnClose(conn);
      return code;
    }
    client_ctx->buf = of.buf;
    client_ctx->buf_size = of.buf_size;
    return settle(*client_ctx, conn);
  });
}

void rdma_disconnect(rdma_context_t* ctx) {
  if (ctx == nullptr || ctx->state == nullptr) return;
  if (ctx->conn != nullptr) rdmaConnClose(ctx->conn);
  state_of(*ctx).entrance.reset();
  state_of(*ctx).offered.clear();
  ctx->conn = nullptr;
  ctx->mr = nullptr;
  ctx->connected = false;
}

int rdma_register_memory(rdma_context_t* ctx, void* buf, size_t size) {
  const char* const call = __func__;
  return on_common(ctx, call, [&](rdma_context_t& of) {
    if (!is_given(call, {"buf", buf})) return int{RDMA_ERR_BAD_ARGUMENT};
    if (size == 0) return refuse(call, "size must be at least 1; got 0");
    if (of.buf != nullptr)
      return code_of(note(Status::kBusy, as_written(call), "ctx has memory already: rdma_deregister_memory first"));
    of.buf = buf;
    of.buf_size = size;
    const int code = of.conn != nullptr ? register_now(of) : RDMA_OK;
    if (code != RDMA_OK) of.buf = nullptr;
    return code;
  });
}

void rdma_deregister_memory(rdma_context_t* ctx) {
  if (ctx == nullptr) return;
  if (ctx->mr != nullptr) (void)rdmaConnDeregMem(ctx->conn, ctx->mr);
  ctx->mr = nullptr;
  ctx->buf = nullptr;
  ctx->buf_size = 0;
}

int rdma_send(rdma_context_t* ctx, void* buf, size_t size) {
  return on_connected(ctx, __func__, [&](rdma_context_t& of) {
    return rdmaConnSend(of.conn, buf, size) == size && size != 0 ? int{RDMA_OK} : last_code();
  });
}

int rdma_recv(rdma_context_t* ctx, void* buf, size_t size) {
  const char* const call = __func__;
  return on_connected(ctx, call, [&](rdma_context_t& of) {
    if (!is_given(call, {"buf", buf, "size", size})) return int{RDMA_ERR_BAD_ARGUMENT};
    if (state_of(of).offered.size() == RDMA_MAX_WR)
      return code_of(note(Status::kAgain, as_written(call), "{} receives are posted already", RDMA_MAX_WR));
    state_of(of).offered.push_back(bytes_at(buf, size));
    return int{RDMA_OK};
  });
}

int rdma_poll_completion(rdma_context_t* ctx, int timeout_ms) {
  const char* const call = __func__;
  return on_connected(ctx, call, [&](rdma_context_t& of) {
    auto& offered = state_of(of).offered;
    if (offered.empty()) return refuse(call, "there is nothing to wait for: no receive is posted");
    const int code = rdmaConnRecv(of.conn, offered.front().data(), offered.front().size(), nullptr, timeout_ms);
    if (code == RDMA_OK || code == RDMA_ERR_BUFFER_TOO_SMALL) offered.pop_front();
    return code;
  });
}

int rdma_read(rdma_context_t* ctx, void* local_buf, size_t size, uint64_t remote_addr, uint32_t rkey) {
  return transfer(ctx, __func__, local_buf, size,
                  [=](const rdma_context_t& of, std::uintptr_t local, std::size_t done, std::uint32_t bytes) {
                    return rdmaSyncReadSignaled(of.conn, local, of.mr->lkey, remote_addr + done, rkey, bytes);
                  });
}

int rdma_write(rdma_context_t* ctx, void* local_buf, size_t size, uint64_t remote_addr, uint32_t rkey) {
  return transfer(ctx, __func__, local_buf, size,
                  [=](const rdma_context_t& of, std::uintptr_t local, std::size_t done, std::uint32_t bytes) {
                    return rdmaSyncWriteSignaled(of.conn, local, of.mr->lkey, remote_addr + done, rkey, bytes);
                  });
}

int rdma_cas(rdma_context_t* ctx, uint64_t remote_addr, uint32_t rkey, uint64_t expected, uint64_t desired,
             uint64_t* result) {
  clear(result);
  return on_connected(ctx, __func__, [&](rdma_context_t& of) {
    return rdmaSyncCompareSwap(of.conn, remote_addr, rkey, expected, desired, result);
  });
}
