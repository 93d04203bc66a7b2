// What the functions of verbena/kv.h share: handles, and how a failure is told.
#pragma once

#include <verbena/kv.h>
#include <verbena/error.hpp>
#include <verbena/kv.hpp>

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <span>

// A client is one thread's at a time: whoever has set `is_busy`.
struct verbena_kv_client {
  explicit verbena_kv_client(verbena::Bootstrap mode) { options.transport.bootstrap = mode; }
  verbena::kv::ClientOptions options;
  std::unique_ptr<verbena::kv::Client> client;  ///< Null while not connected.
  std::atomic<bool> is_busy{false};
};

struct verbena_kv_server {
  verbena::kv::ServerOptions options;
  std::unique_ptr<verbena::kv::Server> server;  ///< Null while it does not run.
};

namespace verbena::c {

/// Remembers the failure of a call as this thread's last; its code. Costs little for a status alone, which a miss is:
/// its sentence is made when it is asked for. \thread any  \alloc none
int tell(Status status, const char* call) noexcept;
int tell(const Error& error) noexcept;

/// What `body` returns as a Result, as a code; without memory, its code.
template <class Body>
int told(const char* call, Body&& body) noexcept {
  try {
    const Result<void> result = body();
    return result ? KV_OK : tell(result.error());
  } catch (const std::bad_alloc&) {
    return tell(Status::kNoMemory, call);
  }
}

/// Errors: kBadArgument.
[[nodiscard]] Result<std::uint16_t> kv_port(const char* call, int port) noexcept;
[[nodiscard]] Result<Transport> kv_transport(const char* call, conn_mode_t mode, const char* device, int gid_index);
[[nodiscard]] Result<kv::ClientOptions> kv_client_options_of(const char* call, conn_mode_t mode,
                                                             const kv_client_options_t& options);
/// Connects `client`, which no other thread knows or whose `is_busy` is ours. Errors: as kv_client_connect.
[[nodiscard]] Result<void> connect_kv(verbena_kv_client& client, const char* call, const char* address, int port);

[[nodiscard]] inline const char* or_empty(const char* text) noexcept { return text != nullptr ? text : ""; }
/// Bytes as a caller passed them.
[[nodiscard]] inline std::span<const std::byte> bytes_at(const void* data, std::size_t length) noexcept {
  return {static_cast<const std::byte*>(data), length};
}

}  // namespace verbena::c
