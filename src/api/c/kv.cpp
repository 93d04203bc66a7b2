// Codes, options and servers of verbena/kv.h.
#include "api/c/kv.hpp"

#include "api/c/transport.hpp"
#include "base/error.hpp"

#include <verbena/rdma.h>

#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace verbena::api::c {
namespace {

/// The call's name for arguments that several calls have.
constexpr const char* kOptions = "options";

static_assert(kv::kMaxKeyBytes == KV_MAX_KEY_BYTES);
static_assert(code_of(Status::kOk) == KV_OK && code_of(Status::kAgain) == KV_ERR_AGAIN);
static_assert(code_of(Status::kTimedOut) == KV_ERR_TIMED_OUT && code_of(Status::kNotFound) == KV_ERR_NOT_FOUND);
static_assert(code_of(Status::kVersionMismatch) == KV_ERR_VERSION_MISMATCH);
static_assert(code_of(Status::kBadKey) == KV_ERR_BAD_KEY && code_of(Status::kTooLong) == KV_ERR_TOO_LONG);
static_assert(code_of(Status::kBufferTooSmall) == KV_ERR_BUFFER_TOO_SMALL);
static_assert(code_of(Status::kStoreFull) == KV_ERR_STORE_FULL);
static_assert(code_of(Status::kIndexFull) == KV_ERR_INDEX_FULL && code_of(Status::kWrongKind) == KV_ERR_WRONG_KIND);
static_assert(code_of(Status::kBadArgument) == KV_ERR_BAD_ARGUMENT);
static_assert(code_of(Status::kOutOfRange) == KV_ERR_OUT_OF_RANGE);
static_assert(code_of(Status::kLocalAccess) == KV_ERR_LOCAL_ACCESS);
static_assert(code_of(Status::kUnsupported) == KV_ERR_UNSUPPORTED && code_of(Status::kBusy) == KV_ERR_BUSY);
// From here on the codes have the same order as those of rdma.h, which codes.cpp checks one by one.
static_assert(int{KV_ERR_PEER_LOST} == int{RDMA_ERR_PEER_LOST} && int{KV_ERR_CLOSED} == int{RDMA_ERR_CLOSED});
static_assert(int{KV_ERR_OTHER_HOST} == int{RDMA_ERR_OTHER_HOST} && int{KV_ERR_SYSTEM} == int{RDMA_ERR_SYSTEM});

static_assert(unsigned{KV_LOOKUP_AUTO} == std::to_underlying(kv::Lookup::kAuto));
static_assert(unsigned{KV_LOOKUP_MESSAGE} == std::to_underlying(kv::Lookup::kMessage));
static_assert(unsigned{KV_LOOKUP_ONE_SIDED} == std::to_underlying(kv::Lookup::kOneSided));

/// Checks the number that a C program gave.
Result<kv::Lookup> lookup_of(kv_lookup_t lookup) {
  const auto number = static_cast<unsigned>(lookup);
  if (number > KV_LOOKUP_ONE_SIDED)
    return fail(Status::kBadArgument, kOptions, 0, "lookup must be one of KV_LOOKUP_*, 0 to 2; got {}", number);
  return static_cast<kv::Lookup>(number);
}

static_assert(unsigned{KV_EVICT_NONE} == std::to_underlying(kv::Evict::kNone));
static_assert(unsigned{KV_EVICT_LRU} == std::to_underlying(kv::Evict::kLru));

Result<kv::Evict> evict_of(kv_evict_t evict) {
  const auto number = static_cast<unsigned>(evict);
  if (number > KV_EVICT_LRU)
    return fail(Status::kBadArgument, kOptions, 0, "evict must be one of KV_EVICT_*, 0 or 1; got {}", number);
  return static_cast<kv::Evict>(number);
}

static_assert(unsigned{KV_RIGHT_READ} == std::to_underlying(kv::Rights::kRead));
static_assert(unsigned{KV_RIGHT_WRITE} == std::to_underlying(kv::Rights::kWrite));
static_assert(unsigned{KV_RIGHT_ADMINISTER} == std::to_underlying(kv::Rights::kAdminister));

/// Checks only what C++ types cannot hold; the server checks the rest.
Result<std::vector<kv::Grant>> grants_of(const kv_grant_t* grants, std::size_t count) {
  if (grants == nullptr && count != 0)
    return fail(Status::kBadArgument, kOptions, 0, "grants must not be null where grant_count is not 0; got {}", count);
  if (count > kv::kMaxGrants)
    return fail(Status::kBadArgument, kOptions, 0, "grant_count must be 0 to {}; got {}", kv::kMaxGrants, count);
  std::vector<kv::Grant> out;
  for (const kv_grant_t& grant : std::span(grants, count)) {
    const std::size_t at = out.size();
    if (grant.rights > (KV_RIGHT_READ | KV_RIGHT_WRITE | KV_RIGHT_ADMINISTER))
      return fail(Status::kBadArgument, kOptions, 0, "grants[{}].rights must be a sum of KV_RIGHT_*, 0 to 7; got {}",
                  at, grant.rights);
    if (grant.prefix_length > kv::kMaxKeyBytes)
      return fail(Status::kBadArgument, kOptions, 0, "grants[{}].prefix_length must be 0 to {}; got {}", at,
                  kv::kMaxKeyBytes, grant.prefix_length);
    if (grant.prefix == nullptr && grant.prefix_length != 0)
      return fail(Status::kBadArgument, kOptions, 0,
                  "grants[{}].prefix must not be null where prefix_length is not 0; got {}", at, grant.prefix_length);
    out.push_back({.subject = {.uid = grant.uid},
                   .rights = static_cast<kv::Rights>(grant.rights),
                   .prefix = std::string(static_cast<const char*>(grant.prefix), grant.prefix_length),
                   .max_memory_bytes = grant.max_memory_bytes,
                   .max_items = grant.max_items});
  }
  return out;
}

/// Refuses a member that stays in kv_server_options_t for one version, because programs may still set it.
Result<void> check_removed(const char* name, std::int64_t value, std::int64_t unset) {
  if (value == unset) return {};
  return fail(Status::kUnsupported, kOptions, 0,
              "{} was removed in 0.1: the server reads large values itself, which is faster; leave it at its default, "
              "{}; got {}",
              name, unset, value);
}

Result<kv::ServerOptions> server_options_of(const kv_server_options_t& options) {
  kv::ServerOptions out;
  VERBENA_TRY(check_removed("trusted_clients", options.trusted_clients, 0));
  VERBENA_TRY(check_removed("client_leases", options.client_leases, out.client_leases));
  VERBENA_TRY(check_removed("lease_term_ms", options.lease_term_ms, out.lease_term.count()));
  VERBENA_ASSIGN(out.transport, transport_of(kModes, options.mode, options.device, options.gid_index));
  out.address = or_empty(options.address);
  VERBENA_TRY(check_port(options.port, 0));
  out.port = static_cast<std::uint16_t>(options.port);
  out.memory_bytes = options.memory_bytes;
  out.require_hugepages = options.require_hugepages != 0;
  out.workers = options.workers;
  out.max_clients = options.max_clients;
  out.max_clients_per_user = options.max_clients_per_user;
  out.depth = options.depth;
  out.max_value_bytes = options.max_value_bytes;
  out.lease_bytes = options.lease_bytes;
  out.max_items = options.max_items;
  VERBENA_ASSIGN(out.evict, evict_of(options.evict));
  out.checksum_large_values = options.checksum_large_values != 0;
  out.max_cells = options.max_cells;
  out.grace = std::chrono::milliseconds{options.grace_ms};
  out.spin = std::chrono::microseconds{options.spin_us};
  out.pin_workers = options.pin_workers != 0;
  VERBENA_ASSIGN(out.allowed_uids, users_of(options.allowed_uids, options.allowed_uid_count));
  VERBENA_ASSIGN(out.grants, grants_of(options.grants, options.grant_count));
  out.key_file = or_empty(options.key_file);
  return out;
}

}  // namespace

const char* sentence_of_kv(Status status) noexcept {
  switch (status) {
    case Status::kAgain: return "everything is in flight already: wait for something, then try again";
    case Status::kTimedOut:
      return "the deadline passed, and whether the change happened is not known: the server is slow, stopped or not "
             "there; raise timeout_ms, or look at the server";
    case Status::kNotFound: return "no such key: nobody has put it, or it was deleted";
    case Status::kVersionMismatch:
      return "the key has another version, which is returned: read it again, and compare with that one";
    case Status::kBadKey: return "the key is empty or longer than 1024 bytes: hash long names into a key";
    case Status::kTooLong:
      return "the value is longer than the server's limit: raise its max_value_bytes, or split the value";
    case Status::kBufferTooSmall: return "the buffer cannot hold the value: call again with the length returned";
    case Status::kStoreFull:
      return "no memory of the store is free for this value: delete some, or raise the server's memory_bytes";
    case Status::kIndexFull:
      return "the store holds as many keys as it may: delete some, or raise the server's max_items";
    case Status::kWrongKind: return "the key is a cell's and the call is for values, or the other way round";
    case Status::kBadArgument:
      return "an argument is null, zero or outside its range: compare it with what the call takes";
    case Status::kOutOfRange: return "an access was outside of its memory: report it, the store never asks for one";
    case Status::kUnsupported: return "this device or release does not have it: use another device";
    case Status::kBusy:
      return "another thread uses this client, or it is too late for this call: a client for each thread, options "
             "before connecting, disconnect before connecting again";
    case Status::kFlushed: return "the connection failed before this was done: disconnect, then connect again";
    case Status::kClosed: return "there is no connection, or no server runs: connect or start first";
    case Status::kDenied: return "this user has no right to do that: have the server grant it";
    case Status::kOverQuota: return "this user's quota is used up: delete some, or have the server raise it";
    case Status::kNoMemory: return "there is not enough memory: free some, lower the options, or raise ulimit -l";
    default: return sentence_of(status);
  }
}

Result<kv::ClientOptions> kv_client_options_of(conn_mode_t mode, const kv_client_options_t& options) {
  if (options.connect_timeout_ms == 0 || options.timeout_ms == 0)
    return fail(Status::kBadArgument, kOptions, 0, "{} must be at least 1; got 0: begin with kv_client_options_init",
                options.connect_timeout_ms == 0 ? "connect_timeout_ms" : "timeout_ms");
  kv::ClientOptions out;
  VERBENA_ASSIGN(out.transport, transport_of(kModes, mode, options.device, options.gid_index));
  out.connect_timeout = std::chrono::milliseconds{options.connect_timeout_ms};
  out.timeout = std::chrono::milliseconds{options.timeout_ms};
  out.depth = options.depth;
  out.buffer_bytes = options.buffer_bytes;
  out.spin = std::chrono::microseconds{options.spin_us};
  VERBENA_ASSIGN(out.allowed_uids, users_of(options.allowed_uids, options.allowed_uid_count));
  out.key_file = or_empty(options.key_file);
  out.key_name = or_empty(options.key_name);
  VERBENA_ASSIGN(out.lookup, lookup_of(options.lookup));
  out.known_locations = options.known_locations;
  out.read_only = options.read_only != 0;
  return out;
}

}  // namespace verbena::api::c

using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Result;
using verbena::Status;

const char* kv_error_string(int code) {
  return is_code(code) ? sentence_of_kv(status_of(code)) : rdmaErrorString(code);
}

const char* kv_error_detail(void) { return verbena::last_failure_text(); }

int kv_client_options_init(kv_client_options_t* options) {
  if (options == nullptr) return refuse(__func__, "options must not be null");
  const verbena::kv::ClientOptions defaults;
  *options = {};  // Null, 0 and CONN_MODE_CM, except for these.
  options->gid_index = -1;
  options->connect_timeout_ms = static_cast<unsigned>(defaults.connect_timeout.count());
  options->timeout_ms = static_cast<unsigned>(defaults.timeout.count());
  options->depth = defaults.depth;
  options->buffer_bytes = defaults.buffer_bytes;
  options->spin_us = static_cast<unsigned>(defaults.spin.count());
  options->lookup = static_cast<kv_lookup_t>(defaults.lookup);
  options->known_locations = defaults.known_locations;
  return KV_OK;
}

int kv_server_options_init(kv_server_options_t* options) {
  if (options == nullptr) return refuse(__func__, "options must not be null");
  const verbena::kv::ServerOptions defaults;
  *options = {};  // Null, 0 and CONN_MODE_CM, except for these.
  options->gid_index = -1;
  options->port = defaults.port;
  options->memory_bytes = defaults.memory_bytes;
  options->require_hugepages = defaults.require_hugepages ? 1 : 0;
  options->workers = defaults.workers;
  options->max_clients = defaults.max_clients;
  options->max_clients_per_user = defaults.max_clients_per_user;
  options->depth = defaults.depth;
  options->max_value_bytes = defaults.max_value_bytes;
  options->lease_bytes = defaults.lease_bytes;
  options->client_leases = defaults.client_leases;
  options->lease_term_ms = static_cast<unsigned>(defaults.lease_term.count());
  options->max_items = defaults.max_items;
  options->checksum_large_values = defaults.checksum_large_values ? 1 : 0;
  options->grace_ms = static_cast<unsigned>(defaults.grace.count());
  options->spin_us = static_cast<unsigned>(defaults.spin.count());
  options->pin_workers = defaults.pin_workers ? 1 : 0;
  options->max_cells = defaults.max_cells;
  options->evict = static_cast<kv_evict_t>(defaults.evict);
  return KV_OK;
}

kv_server_t* kv_server_create(const kv_server_options_t* options) {
  kv_server_t* made = nullptr;
  (void)told(__func__, [&]() -> Result<void> {
    auto server = std::make_unique<verbena_kv_server>();
    if (options != nullptr) {
      VERBENA_ASSIGN(server->options, server_options_of(*options));
    }
    made = server.release();
    return {};
  });
  return made;
}

int kv_server_start(kv_server_t* server) {
  return told(__func__, [&]() -> Result<void> {
    VERBENA_TRY(check_given("server", server));
    if (server->server) return fail(Status::kBusy, "", 0, "the server runs already: kv_server_stop first");
    VERBENA_ASSIGN(server->server, verbena::kv::Server::start(server->options));
    return {};
  });
}

int kv_server_port(const kv_server_t* server) {
  if (server == nullptr) return refuse(__func__, "server must not be null");
  if (verbena::is_forked()) return refuse_forked(__func__);
  if (server->server) return server->server->port();
  return code_of(note(Status::kClosed, as_written(__func__), "the server does not run: call kv_server_start first"));
}

int kv_server_stop(kv_server_t* server) {
  if (server == nullptr) return refuse(__func__, "server must not be null");
  if (verbena::is_forked()) return refuse_forked(__func__);
  server->server.reset();
  return KV_OK;
}

void kv_server_destroy(kv_server_t* server) { delete server; }
