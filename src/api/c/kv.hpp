// Shared parts of verbena/kv.h's functions: handles, and failures in words.
#pragma once

#include "api/c/codes.hpp"
#include "api/c/transport.hpp"
#include "api/counted_values.hpp"

#include <verbena/kv.h>
#include <verbena/error.hpp>
#include <verbena/kv.hpp>

#include <atomic>
#include <memory>

// One thread at a time uses a client: the one that has set `is_busy`.
struct verbena_kv_client {
  explicit verbena_kv_client(verbena::Bootstrap mode) { options.transport.bootstrap = mode; }
  verbena::kv::ClientOptions options;
  std::unique_ptr<verbena::kv::Client> client;  ///< Null while not connected.
  verbena::api::CountedValues counted;
  std::atomic<bool> is_busy{false};
};

struct verbena_kv_server {
  verbena::kv::ServerOptions options;
  std::unique_ptr<verbena::kv::Server> server;  ///< Null while it is not running.
};

namespace verbena::api::c {

/// Cause and fix of a status in the store's words. \thread any
[[nodiscard]] const char* sentence_of_kv(Status status) noexcept;

/// The code of a call's outcome. Remembers a failure; its general sentence is made only on request, because a miss is a
/// failure too. \thread any  \alloc none
inline int tell(Status status, const char* call) noexcept {
  return code_of(status == Status::kOk ? status : note_later(status, as_written(call), sentence_of_kv));
}

/// Like `coded`, in the store's words.
template <class Body>
int told(const char* call, Body&& body) noexcept {
  return coded(call, body, sentence_of_kv);
}

/// Errors: kBadArgument.
[[nodiscard]] Result<kv::ClientOptions> kv_client_options_of(conn_mode_t mode, const kv_client_options_t& options);

}  // namespace verbena::api::c
