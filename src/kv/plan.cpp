#include "kv/plan.hpp"

#include "base/error.hpp"
#include "base/limit.hpp"
#include "kv/access.hpp"
#include "kv/item.hpp"
#include "kv/wire.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace verbena::kv {
namespace {

/// Sessions beyond the number of clients: for clients that died and are not cleaned up yet, and for handshakes that
/// fail.
constexpr unsigned kSpareSessions = 8;
/// Assumed bytes of item memory per item if max_items is not given: a value of 64 bytes.
constexpr std::size_t kBytesPerItem = 128;
/// An item takes a block of the block pool: this is the smallest, of a key of one byte without a value.
constexpr std::size_t kLeastItemBytes = ItemShape{.value_length = 0, .key_length = 1}.lines() * kLineBytes;

constexpr std::size_t kMib = std::size_t{1} << 20;
/// The stage at which pools are allocated that do not come with a client.
constexpr std::string_view kAtStart = "start";

std::size_t share_of(const ServerOptions& options) noexcept {
  return options.memory_bytes / options.workers / 4096 * 4096;
}

unsigned sessions_of(const ServerOptions& options) noexcept { return options.max_clients + kSpareSessions; }

channel::Options channel_options(const ServerOptions& options) noexcept {
  return {.depth = wire::channel_depth(options.depth),
          .lease_bytes = options.lease_bytes,
          .max_reads = PutReads::kMostPieces,
          // The server's own operations: READs of one value, and the goodbye.
          .max_operations = PutReads::kMostPieces + 1,
          .max_larges = 0};
}

/// One worker's share of something that keys have: hashing spreads keys unevenly, so a quarter more than an equal part.
std::size_t part_of(std::size_t all, unsigned workers) noexcept {
  return workers == 1 ? all : std::min(all, all / workers * 5 / 4 + 64);
}

std::size_t items_of(const ServerOptions& options) noexcept { return part_of(most_items_of(options), options.workers); }

std::size_t cells_of(const ServerOptions& options) noexcept { return part_of(options.max_cells, options.workers); }

/// Bytes of a server's pools, without those allocated on use.
struct Need {
  Need(const ServerOptions& options, const host::Footprint& footprint) {
    for (const host::Pool& pool : footprint.pools()) {
      if (pool.kind == host::PoolKind::kAsUsed) continue;
      all += pool.bytes();
      const std::uint64_t bytes = pool.when == kAtStart ? pool.bytes() : pool.bytes() / sessions_of(options);
      least += bytes;
      if (bytes > largest_bytes) {
        largest_bytes = bytes;
        largest = pool.name;
      }
    }
  }
  std::uint64_t all = 0;    ///< With all clients.
  std::uint64_t least = 0;  ///< At the start, and for one client.
  std::uint64_t largest_bytes = 0;
  std::string_view largest;  ///< The largest part of `least`.
};

std::uint64_t room_of(const host::Headroom& headroom) { return headroom.bytes + headroom.hugepage_bytes; }

/// Refuses options that stay in ServerOptions for one version, because programs may still set them.
Result<void> check_removed(const ServerOptions& options) {
  constexpr const char* kCall = "Server::start";
  constexpr const char* kWhy = "the server reads large values itself, which is faster";
  if (options.large_put == LargePut::kAdopt)
    return fail(Status::kUnsupported, kCall, 0,
                "large_put kAdopt was removed in 0.1: {}; leave large_put at its default", kWhy);
  VERBENA_TRY(check_limit(kCall, "large_put (a way)", std::to_underlying(options.large_put), 0, 0));
  const ServerOptions defaults;
  if (options.client_leases != defaults.client_leases)
    return fail(Status::kUnsupported, kCall, 0,
                "client_leases was removed in 0.1: {}; leave it at its default, {}; got {}", kWhy,
                defaults.client_leases, options.client_leases);
  if (options.lease_term != defaults.lease_term)
    return fail(Status::kUnsupported, kCall, 0,
                "lease_term (ms) was removed in 0.1: {}; leave it at its default, {}; got {}", kWhy,
                defaults.lease_term.count(), options.lease_term.count());
  return {};
}

}  // namespace

std::size_t most_items_of(const ServerOptions& options) noexcept {
  return options.max_items != 0 ? options.max_items : options.memory_bytes / kBytesPerItem;
}

unsigned most_of_a_stranger(const ServerOptions& options) noexcept {
  return options.max_clients_per_user != 0 ? options.max_clients_per_user : (options.max_clients + 1) / 2;
}

Result<void> check_options(const ServerOptions& options) {
  constexpr const char* kCall = "Server::start";
  // A negative time becomes an absurdly large count.
  const auto count_of = [](auto time) { return static_cast<std::uint64_t>(time.count()); };
  VERBENA_TRY(check_limit(kCall, "memory_bytes", options.memory_bytes, kMib, kMib << 20));
  VERBENA_TRY(check_limit(kCall, "workers", options.workers, 1, 64));
  VERBENA_TRY(check_limit(kCall, "max_clients", options.max_clients, 1, 1024));
  VERBENA_TRY(check_limit(kCall, "max_clients_per_user", options.max_clients_per_user, 0, options.max_clients));
  VERBENA_TRY(check_limit(kCall, "depth", options.depth, 1, 1024));
  VERBENA_TRY(check_limit(kCall, "lease_bytes", options.lease_bytes, 64 << 10, kMib << 10));
  VERBENA_TRY(check_removed(options));
  VERBENA_TRY(
      check_limit(kCall, "evict (a policy)", std::to_underlying(options.evict), 0, std::to_underlying(Evict::kLru)));
  VERBENA_TRY(check_limit(kCall, "grace (ms)", count_of(options.grace), 1, 60'000));
  VERBENA_TRY(check_limit(kCall, "wait (a policy)", std::to_underlying(options.wait), 0,
                          std::to_underlying(WaitPolicy::kEvent)));
  VERBENA_TRY(check_limit(kCall, "spin (us)", count_of(options.spin), 0, 1'000'000));
  const std::size_t share = share_of(options);
  if (const std::size_t longest = Store::longest_value(share); options.max_value_bytes > longest)
    return fail(
        Status::kBadArgument, "Server::start", 0,
        "max_value_bytes is {}: it must be 1 to {}; a value is replaced by another one beside it, and 2 x {} with what "
        "names them are more than a worker's share of the memory, {} ({} bytes over {} workers)",
        options.max_value_bytes, longest, options.max_value_bytes, share, options.memory_bytes, options.workers);
  constexpr std::size_t kItems = kMib / kLeastItemBytes;  // For a MiB: no product that overflows.
  if (options.max_items > options.memory_bytes / kLeastItemBytes)
    return fail(Status::kBadArgument, "Server::start", 0,
                "max_items is {}: with at least {} bytes an item they take {} MiB, and memory_bytes is {} MiB",
                options.max_items, kLeastItemBytes,
                options.max_items / kItems + (options.max_items % kItems != 0 ? 1 : 0), options.memory_bytes / kMib);
  const std::size_t window = Store::window_bytes(share_of(options), items_of(options));
  if (window > kMaxWindowBytes)
    return fail(Status::kBadArgument, "Server::start", 0,
                "a worker's items and its index take {} GiB, and one can have {}: lower memory_bytes or max_items, or "
                "raise workers",
                window >> 30, kMaxWindowBytes >> 30);
  if (options.max_cells > most_items_of(options))
    return fail(Status::kBadArgument, kCall, 0,
                "max_cells is {}: each is an item, too, and max_items is {}: lower max_cells, or raise max_items",
                options.max_cells, most_items_of(options));
  // Its item's value is the word's place, which the store refuses as any value that is too long.
  if (options.max_cells != 0 && max_value_of(options) < sizeof(std::uint64_t))
    return fail(Status::kBadArgument, kCall, 0,
                "max_value_bytes is {}, and max_cells is {}: a cell is an item with a value of {} bytes: raise "
                "max_value_bytes to that, or set max_cells to 0",
                options.max_value_bytes, options.max_cells, sizeof(std::uint64_t));
  return Access::check(options);
}

std::size_t max_value_of(const ServerOptions& options) noexcept {
  if (options.max_value_bytes != 0) return options.max_value_bytes;
  return Store::longest_value(share_of(options));
}

Result<void> check_capabilities(const ServerOptions& options, const nic::Nic& nic) {
  if (options.grants.empty() || nic.capabilities().knows_users) return {};
  return fail(Status::kUnsupported, "Server::start", 0,
              "grants must be empty on {}, which cannot tell users; got {}: use the software NIC", nic.name(),
              options.grants.size());
}

Result<void> check_device(const ServerOptions& options, const nic::Limits& limits) {
  const channel::Options channel = channel_options(options);
  const std::uint64_t sessions = sessions_of(options);
  const std::uint64_t entries = channel::completions_needed(channel);
  const engine::QueueOptions queues = channel::queues_needed(channel);
  const auto too_much = [](const char* what, std::uint64_t sum, std::uint64_t most, const char* how,
                           const auto&... parts) -> Result<void> {
    return fail(Status::kLimit, "Server::start", 0, "{} {} are needed ({}), and the device has {}: lower {}", sum, what,
                fmt::format("{} x {}", parts...), most, how);
  };
  // Receives have a queue of their own; sends include the reserve that every connection keeps.
  const std::uint64_t requests = std::max(queues.sends + engine::QueuePair::kReserve, queues.receives);
  if (requests > limits.max_qp_wr)
    return fail(Status::kLimit, "Server::start", 0,
                "depth is {}: a client's queue pair needs {} work requests in one queue, and the device has {}: lower "
                "depth",
                options.depth, requests, limits.max_qp_wr);
  if (sessions * entries > limits.max_cqe)
    return too_much("completion entries of one worker", sessions * entries, limits.max_cqe, "max_clients or depth",
                    sessions, entries);
  if (options.workers > limits.max_cq)
    return too_much("completion queues", options.workers, limits.max_cq, "workers", options.workers, 1);
  // Does not count spare sessions, which are for the moments in which clients come and go: they may find nothing left.
  const std::uint64_t clients = options.max_clients;
  if (options.workers * clients > limits.max_qp)
    return too_much("queue pairs", options.workers * clients, limits.max_qp, "max_clients or workers", options.workers,
                    clients);
  // Regions for a worker's items, cells and marks, and for each session's buffers and lease.
  const std::uint64_t regions =
      1 + (options.max_cells != 0 ? 1 : 0) + (options.evict != Evict::kNone ? 1 : 0) + 2 * clients;
  if (options.workers * regions > limits.max_mr)
    return too_much("memory regions", options.workers * regions, limits.max_mr, "max_clients or workers",
                    options.workers, regions);
  return {};
}

host::PlacementRequest placement_request(const ServerOptions& options, const host::Topology& topology,
                                         const nic::Nic& nic) {
  const char* const device = nic.capabilities().locality_name;
  return {.pollers = options.workers,
          .wait = options.wait,
          .pin = options.pin_workers ? host::Pin::kYes : host::Pin::kNo,
          .leave_a_core = false,  // The workers are the application.
          .device = device != nullptr ? topology.locality_of(device) : host::Locality{}};
}

WorkerOptions worker_options(const ServerOptions& options, unsigned index, const host::PlacedPoller& place) {
  WorkerOptions worker{options};
  worker.index = index;
  worker.memory_bytes = share_of(options);
  worker.max_items = items_of(options);
  worker.max_cells = cells_of(options);
  worker.max_value_bytes = max_value_of(options);
  worker.node = place.node;
  worker.wait = place.wait;
  worker.max_sessions = sessions_of(options);
  worker.channel = channel_options(options);
  if (place.core) worker.cpu = place.core->cpu;
  worker.channel.node = place.node;
  return worker;
}

host::Footprint footprint(const ServerOptions& options, const host::Placement& placement, nic::Kind kind,
                          const nic::Limits& limits) {
  host::Footprint pools;
  for (unsigned first = 0; first < options.workers;) {
    // Workers on one node have the same pools.
    const host::PlacedPoller& place = placement.pollers[first];
    unsigned end = first + 1;
    while (end < options.workers && placement.pollers[end].node == place.node) ++end;
    pools.add(end - first == 1 ? fmt::format("worker {}", first) : fmt::format("workers {} to {}", first, end - 1),
              end - first, Worker::footprint(kind, limits, worker_options(options, first, place)), place.node,
              kAtStart);
    first = end;
  }
  return pools;
}

Result<void> check_memory(const ServerOptions& options, const host::Footprint& footprint,
                          const std::optional<host::Headroom>& headroom) {
  const Need need(options, footprint);
  if (!headroom || need.least <= room_of(*headroom)) return {};
  return fail(
      Status::kNoMemory, "Server::start", ENOMEM,
      "the pools at the start and of one client take {} MiB, most of it {} ({} MiB), and {} MiB are left by {}: "
      "lower memory_bytes, max_clients, depth or lease_bytes; `verbena-info --plan` lists them",
      need.least / kMib, need.largest, need.largest_bytes / kMib, headroom->bytes / kMib, headroom->limit);
}

std::string memory_warning(const ServerOptions& options, const host::Footprint& footprint,
                           const std::optional<host::Headroom>& headroom) {
  const Need need(options, footprint);
  if (!headroom || need.all <= room_of(*headroom)) return {};
  return fmt::format(
      "With all {} clients the pools take {} MiB, and {} MiB are left by {}: clients may be refused before there are "
      "so many.",
      options.max_clients, need.all / kMib, headroom->bytes / kMib, headroom->limit);
}

std::string resting_words(const ServerOptions& options) {
  const auto grace_ms = static_cast<std::uint64_t>(options.grace.count());
  const std::uint64_t half = options.memory_bytes / 2;
  return fmt::format(
      "A large value that is replaced keeps its memory for a grace period of {} ms if a message told its place lately. "
      "Where {} MiB/s are replaced, such values fill half of the {} MiB of items; `verbena-kv stats` tells how much "
      "memory waits.",
      grace_ms, half / kMib * 1000 / grace_ms, options.memory_bytes / kMib);
}

std::string descriptor_warning(const ServerOptions& options, const nic::Capabilities& nic,
                               const std::optional<host::Descriptors>& now) {
  // A connection has what its handshake was carried by, and the memfd of its lease where windows are mapped. There a
  // client has two conversations of the NICs, a pidfd and a bell besides.
  const std::uint64_t of_connection = nic.maps_windows ? 2 : 1;
  const std::uint64_t of_process = nic.maps_windows ? 4 : 0;
  const std::uint64_t clients = options.max_clients * (options.workers * of_connection + of_process);
  if (!now || now->open + clients <= now->limit) return {};
  return fmt::format(
      "With all {} clients the server takes {} file descriptors, and RLIMIT_NOFILE is {}: clients may be refused "
      "before "
      "there are so many; raise it (ulimit -n).",
      options.max_clients, now->open + clients, now->limit);
}

}  // namespace verbena::kv
