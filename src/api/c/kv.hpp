// Shared parts of verbena/kv.h's functions: handles, and failures in words.
#pragma once

#include "api/c/codes.hpp"
#include "api/failure.hpp"

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

namespace verbena::api::c {

/// Remembers that an argument of `call` is wrong, by name; the code.
template <class... Args>
[[gnu::cold]] int refuse(const char* call, fmt::format_string<Args...> format, Args&&... args) noexcept {
  return code_of(note(Status::kBadArgument, call, format, std::forward<Args>(args)...));
}
[[gnu::cold]] inline int refuse_null(const char* call, const char* name) noexcept {
  return refuse(call, "{} must not be null", name);
}

/// Cause and fix of a status, as the store has it. \thread any
[[nodiscard]] const char* sentence_of_kv(Status status) noexcept;

/// The code of what a call came to. A failure is remembered with its general sentence, which is made when it is asked
/// for, because a miss is one. \thread any  \alloc none
inline int tell(Status status, const char* call) noexcept {
  return code_of(status == Status::kOk ? status : note_later(status, call, sentence_of_kv));
}

/// Runs `body`, which returns a Result, and returns its code; that of kNoMemory if memory ran out.
template <class Body>
int told(const char* call, Body&& body) noexcept {
  try {
    const Result<void> result = body();
    return result ? KV_OK : code_of(note_as(call, result.error()));
  } catch (const std::bad_alloc&) {
    return tell(Status::kNoMemory, call);
  }
}

/// Errors: kBadArgument.
[[nodiscard]] Result<std::uint16_t> kv_port(int port) noexcept;
[[nodiscard]] Result<kv::ClientOptions> kv_client_options_of(conn_mode_t mode, const kv_client_options_t& options);
/// Connects `client`, which no other thread knows or whose `is_busy` is ours. Errors: as kv_client_connect.
[[nodiscard]] Result<void> connect_kv(verbena_kv_client& client, const char* address, int port);

[[nodiscard]] inline const char* or_empty(const char* text) noexcept { return text != nullptr ? text : ""; }
/// Bytes as a caller passed them.
[[nodiscard]] inline std::span<const std::byte> bytes_at(const void* data, std::size_t length) noexcept {
  return {static_cast<const std::byte*>(data), length};
}

}  // namespace verbena::api::c
