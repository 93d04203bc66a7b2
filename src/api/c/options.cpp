// Options of verbena/rdma.h, and the memory that handles have registered.
#include "api/c/handles.hpp"
#include "api/c/transport.hpp"
#include "base/limit.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace verbena::api::c {

Result<Options> checked(const RdmaOptions& options) {
  constexpr const char* kCall = "options";
  Options made;
  VERBENA_ASSIGN(made.endpoint.transport,
                 transport_of(kBootstraps, options.bootstrap, options.device, options.gid_index));
  if (options.recv_mode != RDMA_RECV_DISCARD && options.recv_mode != RDMA_RECV_QUEUE)
    return fail(Status::kBadArgument, kCall, 0,
                "recv_mode must be RDMA_RECV_DISCARD (0) or RDMA_RECV_QUEUE (1); got {}",
                static_cast<unsigned>(options.recv_mode));
  VERBENA_TRY(check_limit(kCall, "connect_timeout_ms", options.connect_timeout_ms, 1, 1u << 30));
  VERBENA_TRY(check_limit(kCall, "timeout_ms", options.timeout_ms, 1, 1u << 30));
  if (options.window != nullptr && options.window_bytes == 0)
    return fail(Status::kBadArgument, kCall, 0, "window_bytes must be at least 64 with a window of your own; got 0");
  if (options.window != nullptr && options.window_bytes % session::wire::kWindowUnit != 0)
    return fail(Status::kBadArgument, kCall, 0,
                "window_bytes must be a multiple of {} with a window of your own; got {}",
                std::size_t{session::wire::kWindowUnit}, options.window_bytes);
  session::Settings settings{.connect_timeout = std::chrono::milliseconds{options.connect_timeout_ms},
                             .timeout = std::chrono::milliseconds{options.timeout_ms},
                             .max_connections = options.max_connections,
                             .is_window_shared = options.shared_window != 0,
                             .inbox_bytes = options.inbox_bytes,
                             .max_message_bytes = options.max_message_bytes};
  if (options.window != nullptr) {
    settings.window = {static_cast<std::byte*>(options.window), options.window_bytes};
  } else {
    settings.window_bytes = options.window_bytes;
  }
  VERBENA_ASSIGN(made.settings, session::checked(settings));
  VERBENA_ASSIGN(made.endpoint.allowed_uids, users_of(options.allowed_uids, options.allowed_uid_count));
  made.endpoint.key_file = or_empty(options.key_file);
  made.endpoint.key_name = or_empty(options.key_name);
  made.node = options.node;
  if (options.node != nullptr) made.endpoint.node = options.node->node;
  made.recv_mode = options.recv_mode;
  return made;
}

session::Delivery delivery_of(const Callbacks& callbacks, rdma::Receive otherwise) noexcept {
  const auto to = [](bool is_called) { return is_called ? rdma::Complete::kHandler : rdma::Complete::kQueue; };
  return {.receive = callbacks.message ? rdma::Receive::kHandler : otherwise,
          .reads = to(static_cast<bool>(callbacks.read)),
          .writes = to(static_cast<bool>(callbacks.written))};
}

RdmaMemory told_of(const session::RegisteredMemory& memory, std::span<std::byte> bytes) noexcept {
  return {.addr = bytes.data(),
          .length = bytes.size(),
          .lkey = memory.lkey,
          .rkey = memory.rkey,
          .access = static_cast<std::uint32_t>(memory.access),
          .memory_id = memory.memory_id};
}

const RdmaMemory* Memories::keep(const session::RegisteredMemory& memory) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({.told = told_of(memory, {memory.address, memory.length}), .memory = &memory});
  return &entries_.back().told;
}

const session::RegisteredMemory* Memories::find(const RdmaMemory* told) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, told, [](const Entry& entry) { return &entry.told; });
  return found != entries_.end() ? found->memory : nullptr;
}

void Memories::forget(const RdmaMemory* told) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const Entry& entry) { return &entry.told == told; });
}

void Memories::clear() noexcept {
  const std::lock_guard lock(mutex_);
  entries_.clear();
}

}  // namespace verbena::api::c

void rdmaOptionsInit(RdmaOptions* options) {
  if (options == nullptr) return;
  const verbena::session::Settings defaults;
  *options = {};  // Null, 0, RDMA CM and RDMA_RECV_DISCARD, except for these.
  options->connect_timeout_ms = static_cast<unsigned>(defaults.connect_timeout.count());
  options->timeout_ms = static_cast<unsigned>(defaults.timeout.count());
  options->max_connections = defaults.max_connections;
  options->window_bytes = defaults.window_bytes;
  options->inbox_bytes = defaults.inbox_bytes;
  options->max_message_bytes = defaults.max_message_bytes;
  options->gid_index = -1;
}
