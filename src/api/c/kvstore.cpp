// The functions of verbena/compat/kvstore.h, over those of verbena/rdma.h and verbena/kv.h.
#include <verbena/compat/kvstore.h>

#include "api/c/arguments.hpp"
#include "api/c/codes.hpp"
#include "api/c/entrance.hpp"
#include "api/c/kv.hpp"
#include "api/sweep.hpp"
#include "base/simulation.hpp"
#include "base/threads.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::api::c {
namespace {

/// The kind of a message, sent as its immediate.
constexpr std::uint32_t kPacket = 0x4b56504b;
constexpr std::uint32_t kFin = 0x4b564649;
/// Values pass through the context's registered memory in pieces of this size.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
/// A wait without a deadline consists of waits of this length.
constexpr int kLookMs = 60'000;

struct Packet {
  alignas(64) std::array<char, KVSTORE_PACKET_BYTES> bytes{};
};

/// The entrances by port, as long as somebody holds them.
struct Entrances {
  Mutex mutex;
  std::map<int, std::weak_ptr<Entrance>> open;
};
Entrances& entrances() {
  return simulation::once_a_process([] { return new Entrances; });
}

struct Context : verbena_PingpongContext {
  ~Context() { rdmaConnClose(conn); }
  std::shared_ptr<Entrance> entrance;  ///< For a listening call; released after the connection.
  std::array<Packet, KVSTORE_BUFFERS> packets;
  const RdmaMemory* staging = nullptr;
  std::deque<int> given;  ///< Buffers passed to receive_packet_async.
  std::vector<const RdmaMemory*> registered;
};

int no_memory(const char* call) noexcept { return code_of(note_later(Status::kNoMemory, call, sentence_of)); }

/// Calls `body(context)` and returns its code, if the context can be used.
template <class Body>
int on_context(PingpongContext* ctx, const char* call, Body&& body) noexcept {
  if (ctx == nullptr) return refuse(call, "ctx must not be null");
  if (verbena::is_forked()) return refuse_forked(call);
  const verbena::CancellationHeld held;
  if (ctx->currBuffer < 0 || ctx->currBuffer >= KVSTORE_BUFFERS)
    return refuse(call, "ctx->currBuffer must be 0 to {}; got {}", KVSTORE_BUFFERS - 1, ctx->currBuffer);
  try {
    return body(static_cast<Context&>(*ctx));
  } catch (const std::bad_alloc&) {
    return no_memory(as_written(call));
  }
}

int listen(int port, const RdmaOptions& options, Context& context) {
  {
    const std::lock_guard lock(entrances().mutex);
    std::weak_ptr<Entrance>& known = entrances().open[port];
    context.entrance = known.lock();
    if (!context.entrance) {
      auto entrance = std::make_shared<Entrance>();
      if (const int code = entrance->open(nullptr, port, options); code != RDMA_OK) return code;
      known = context.entrance = std::move(entrance);
    }
  }
  context.conn = context.entrance->next(Deadline::never());
  return RDMA_OK;
}

int dial(std::string_view server, int port, const RdmaOptions& options, Context& context) {
  std::string host(server);
  if (const std::size_t colon = server.rfind(':'); colon != std::string_view::npos && server.find(':') == colon) {
    host.resize(colon);
    const std::string_view digits = server.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (error != std::errc{} || end != digits.data() + digits.size() || port < 1 || port > 65'535)
      return refuse("RDMA_connect", "port must be 1 to 65535; got {}", digits);
  }
  context.conn = rdmaConn();
  if (context.conn == nullptr) return no_memory("RDMA_connect");
  if (const int code = rdmaConnSetOptions(context.conn, &options); code != RDMA_OK) return code;
  return rdmaConnect(context.conn, host.c_str(), port);
}

int connect(const char* servername, int port, const RdmaOptions* options, PingpongContext** save_ctx) {
  if (verbena::is_forked()) return refuse_forked("RDMA_connect");
  RdmaOptions used;
  rdmaOptionsInit(&used);
  if (options != nullptr) {
    used.device = options->device;
    used.bootstrap = options->bootstrap;
    used.connect_timeout_ms = options->connect_timeout_ms;
    used.timeout_ms = options->timeout_ms;
    used.key_file = options->key_file;
    used.key_name = options->key_name;
  }
  used.recv_mode = RDMA_RECV_QUEUE;
  used.window_bytes = 0;
  auto context = std::make_unique<Context>();
  context->currBuffer = 0;
  context->conn = nullptr;
  for (int i = 0; i < KVSTORE_BUFFERS; ++i)
    context->buf[i] = context->packets[static_cast<std::size_t>(i)].bytes.data();
  const int code = servername != nullptr ? dial(servername, port, used, *context) : listen(port, used, *context);
  if (code != RDMA_OK) return code;
  context->staging = rdmaConnRegMem(context->conn, kPieceBytes);
  if (context->staging == nullptr) return rdmaConnError(context->conn);
  *save_ctx = context.release();
  return RDMA_OK;
}

int send(Context& context, std::uint32_t what, const char* bytes, std::size_t length) noexcept {
  return rdmaConnSendWithImm(context.conn, what, bytes, length) == length ? RDMA_OK : rdmaConnError(context.conn);
}

/// Waits for the next message, without a deadline.
int receive(Context& context, std::uint32_t what, char* into, std::size_t room, const char* call) noexcept {
  RdmaMessage message;
  int code = RDMA_ERR_TIMED_OUT;
  // A connection that a deadline has ended keeps returning this code.
  for (bool is_live = true; code == RDMA_ERR_TIMED_OUT && is_live;) {
    is_live = rdmaConnIsConnected(context.conn) != 0;
    code = rdmaConnRecv(context.conn, into, room, &message, kLookMs);
  }
  if (code != RDMA_OK) return code;
  if (message.kind != RDMA_MESSAGE || message.has_imm == 0 || message.imm != what)
    return code_of(
        note(Status::kProtocol, as_written(call), "the peer sent something else: look at the order of calls"));
  std::memset(into + message.length, 0, room - message.length);
  return RDMA_OK;
}

int receive_given(Context& context, const char* call) noexcept {
  const int buffer = context.given.front();
  context.given.pop_front();
  return receive(context, kPacket, context.buf[buffer], KVSTORE_PACKET_BYTES, call);
}

/// Moves memory through the staging memory: calls `move(offset, bytes)` for each piece.
template <class Move>
int in_pieces(std::size_t length, Move&& move) noexcept {
  for (std::size_t done = 0; done < length; done += kPieceBytes) {
    const int code = move(done, static_cast<std::uint32_t>(std::min(kPieceBytes, length - done)));
    if (code != RDMA_OK) return code;
  }
  return RDMA_OK;
}

std::uint64_t address_of(const void* at) noexcept { return reinterpret_cast<std::uintptr_t>(at); }

/// Prints a sweep of the store, as the client program that it stands for does.
int print_sweep(verbena_kv_client& handle) {
  constexpr std::chrono::milliseconds kEach{50};
  kv::Client& client = *handle.client;
  Sweep sweep(client, Sweep::kMostBytes);
  (void)std::fputs(Sweep::kHead, stdout);
  for (std::size_t length = Sweep::kLeastBytes; length <= Sweep::kMostBytes; length *= 2) {
    SweepRow row;
    const kv::Outcome outcome = sweep.measure(length, kEach, row);
    if (outcome.status != Status::kOk) return tell(outcome.status, "run_client");
    (void)std::fputs(Sweep::text(row).c_str(), stdout);
  }
  return KV_OK;
}

}  // namespace
}  // namespace verbena::api::c

using namespace verbena::api::c;
using verbena::Status;

int RDMA_connect_with(const char* servername, int port, const RdmaOptions* options, PingpongContext** save_ctx) {
  clear(save_ctx);
  if (save_ctx == nullptr) return refuse("RDMA_connect", "save_ctx must not be null");
  try {
    return connect(servername, port, options, save_ctx);
  } catch (const std::bad_alloc&) {
    return no_memory("RDMA_connect");
  }
}

int RDMA_connect(const char* servername, PingpongContext** save_ctx) {
  return RDMA_connect_with(servername, KVSTORE_PORT, nullptr, save_ctx);
}

int RDMA_disconnect(PingpongContext* ctx) {
  delete static_cast<Context*>(ctx);
  return RDMA_OK;
}

int RDMA_register(PingpongContext* ctx, void* addr, size_t size, uint32_t* key) {
  clear(key);
  return on_context(ctx, __func__, [&](Context& context) {
    if (key == nullptr) return refuse("RDMA_register", "key must not be null");
    context.registered.reserve(context.registered.size() + 1);
    const RdmaMemory* const memory =
        rdmaConnRegister(context.conn, addr, size, RDMA_ACCESS_REMOTE_READ | RDMA_ACCESS_REMOTE_WRITE);
    if (memory == nullptr) return rdmaConnError(context.conn);
    *key = memory->rkey;
    context.registered.push_back(memory);
    return int{RDMA_OK};
  });
}

int RDMA_deregister(PingpongContext* ctx, void* addr) {
  return on_context(ctx, __func__, [&](Context& context) {
    const auto at = std::ranges::find(context.registered, addr, &RdmaMemory::addr);
    if (at == context.registered.end())
      return refuse("RDMA_deregister", "addr {} was not registered by RDMA_register, or not any more", addr);
    const RdmaMemory* const memory = *at;
    context.registered.erase(at);
    return rdmaConnDeregMem(context.conn, memory);
  });
}

int send_packet(PingpongContext* ctx) {
  return on_context(ctx, __func__, [](Context& context) {
    const char* const packet = context.buf[context.currBuffer];
    const std::size_t last = std::string_view(packet, KVSTORE_PACKET_BYTES).find_last_not_of('\0');
    return send(context, kPacket, packet, last != std::string_view::npos ? last + 1 : 1);
  });
}

int receive_packet_async(PingpongContext* ctx) {
  return on_context(ctx, __func__, [](Context& context) {
    if (context.given.size() == KVSTORE_BUFFERS)
      return code_of(
          note(Status::kAgain, "receive_packet_async", "{} buffers wait for packets already", +KVSTORE_BUFFERS));
    context.given.push_back(context.currBuffer);
    return int{RDMA_OK};
  });
}

int pp_wait_completions(PingpongContext* ctx, int iters) {
  const char* const call = __func__;
  return on_context(ctx, call, [=](Context& context) {
    if (iters < 0 || static_cast<std::size_t>(iters) > context.given.size())
      return refuse(call, "iters must be 0 to {}, the buffers that wait for packets; got {}", context.given.size(),
                    iters);
    int code = RDMA_OK;
    for (int i = 0; i < iters && code == RDMA_OK; ++i) code = receive_given(context, call);
    return code;
  });
}

int receive_packet(PingpongContext* ctx) {
  const char* const call = __func__;
  return on_context(ctx, call, [=](Context& context) {
    int code = RDMA_OK;
    while (code == RDMA_OK && !context.given.empty()) code = receive_given(context, call);
    if (code != RDMA_OK) return code;
    return receive(context, kPacket, context.buf[context.currBuffer], KVSTORE_PACKET_BYTES, call);
  });
}

int send_RDMA_read(PingpongContext* ctx, char* target, unsigned long size, void* remote_addr, uint32_t remote_key) {
  return on_context(ctx, __func__, [&](Context& context) {
    if (target == nullptr) return refuse("send_RDMA_read", "target must not be null");
    if (size == 0) return refuse("send_RDMA_read", "size must be at least 1; got 0");
    const RdmaMemory& staging = *context.staging;
    return in_pieces(size, [&](std::size_t done, std::uint32_t bytes) {
      const int code = rdmaSyncReadSignaled(context.conn, address_of(staging.addr), staging.lkey,
                                            address_of(remote_addr) + done, remote_key, bytes);
      if (code == RDMA_OK) std::memcpy(target + done, staging.addr, bytes);
      return code;
    });
  });
}

int send_RDMA_write(PingpongContext* ctx, const char* value, void* remote_addr, uint32_t remote_key) {
  return on_context(ctx, __func__, [&](Context& context) {
    if (value == nullptr) return refuse("send_RDMA_write", "value must not be null");
    const RdmaMemory& staging = *context.staging;
    return in_pieces(std::strlen(value) + 1, [&](std::size_t done, std::uint32_t bytes) {
      std::memcpy(staging.addr, value + done, bytes);
      return rdmaSyncWriteSignaled(context.conn, address_of(staging.addr), staging.lkey, address_of(remote_addr) + done,
                                   remote_key, bytes);
    });
  });
}

int send_fin(PingpongContext* ctx) {
  return on_context(ctx, __func__, [](Context& context) { return send(context, kFin, "", 1); });
}

int receive_fin(PingpongContext* ctx) {
  const char* const call = __func__;
  return on_context(ctx, call, [=](Context& context) {
    Packet packet;  // The peer may have sent a packet, which must fit to be recognized.
    return receive(context, kFin, packet.bytes.data(), packet.bytes.size(), call);
  });
}

int run_server_with(const kv_server_options_t* options) {
  kv_server_t* const server = kv_server_create(options);
  if (server == nullptr) return last_code();
  const int code = kv_server_start(server);
  if (code == KV_OK) (void)pause();
  kv_server_destroy(server);
  return code;
}

int run_server(void) { return run_server_with(nullptr); }

int run_client(const char* servername) {
  void* handle = nullptr;
  int code = kv_open(servername, &handle);
  try {
    if (code == KV_OK) code = print_sweep(*static_cast<verbena_kv_client*>(handle));
  } catch (const std::bad_alloc&) {
    code = no_memory("run_client");
  }
  (void)kv_close(handle);
  return code;
}
