#include "kv/client.hpp"

#include "base/cancellation.hpp"
#include "base/error.hpp"
#include "base/failure.hpp"

#include <new>

namespace verbena::kv {

host::Footprint PollingClient::footprint(nic::Kind kind, const nic::Limits& limits, const ClientOptions& options,
                                         unsigned workers) {
  host::Footprint pools;
  pools.add({.name = "places and buffers",
             .kind = host::PoolKind::kRegistered,
             .bytes_each = Links::own_bytes(options) + options.buffer_bytes});
  pools.add({.name = "client", .bytes_each = sizeof(PollingClient)});
  if (options.lookup != Lookup::kMessage && options.known_locations != 0)
    pools.add({.name = "known locations", .bytes_each = Locations::bytes(options.known_locations)});
  // The operation, and its places in free_ and done_.
  pools.add(
      {.name = "operations", .count = options.depth, .bytes_each = sizeof(Operation) + 2 * sizeof(std::uint32_t)});
  pools.add({.name = "tables of the workers", .count = workers, .bytes_each = sizeof(Part) + sizeof(nic::Window)});
  pools.add("shard", 1, node::Shard::footprint(kind, shard_options(options, limits)));
  pools.add("channels", workers, channel::footprint(kind, limits, channel_options(options)));
  return pools;
}

PollingClient::~PollingClient() {
  if (links_.workers() != 0 && !links_.has_failed()) {
    scans_.report_reads(1);
    links_.say_goodbye();
  }
  links_.close();
  requests_.close();
  if (poller_ == nullptr) return;
  poller_->settle();
  poller_->~Poller();
}

Result<void> PollingClient::connect() {
  VERBENA_TRY(requests_.connect());
  gets_.open();
  words_.open();
  return {};
}

template <class Limit>
inline Outcome PollingClient::get_until(Key key, std::span<std::byte> out, Deadline of_reads, Limit&& limit) noexcept {
  Ask ask{.op = wire::Op::kGet, .key = key, .out = out};
  if (gets_.reads_now() && requests_.check(ask) == Status::kOk) [[likely]] {
    Outcome outcome;
    const Reader::Read read = gets_.reader().get(key, out, of_reads, outcome);
    scans_.report_reads();
    if (read == Reader::Read::kDone) [[likely]]
      return outcome;
    ask.skips_reads = read != Reader::Read::kNoWay;
  }
  return requests_.run(ask, limit());
}

Outcome PollingClient::get(Key key, std::span<std::byte> out, Deadline deadline) noexcept {
  return get_until(key, out, deadline, [deadline] { return deadline; });
}

Outcome PollingClient::get_in_default_time(Key key, std::span<std::byte> out) noexcept {
  // A reader looks at the time only between two pieces of a value.
  if (out.size() > kPieceBytes) return get(key, out, deadline());
  return get_until(key, out, Deadline::never(), [this] { return deadline(); });
}

Status PollingClient::start_put(Key key, std::span<const std::byte> value, const PutOptions& options,
                                std::uint64_t cookie) noexcept {
  Ask ask{.op = wire::Op::kPut, .key = key, .value = value};
  if (const Status status = take_options(options, ask); status != Status::kOk) [[unlikely]]
    return status;
  return requests_.start_pipelined(ask, cookie);
}

LookupCounters PollingClient::lookups() const noexcept {
  const Lookups& counts = gets_.counts();
  return {counts.by_location, counts.by_index, counts.by_message, counts.stale, counts.retries, counts.overtaken};
}

const char* to_string(Evict evict) noexcept {
  switch (evict) {
    case Evict::kNone: return "none";
    case Evict::kLru: return "lru";
  }
  return "no policy";
}

const char* to_string(Lookup lookup) noexcept {
  switch (lookup) {
    case Lookup::kAuto: return "auto";
    case Lookup::kMessage: return "message";
    case Lookup::kOneSided: return "one-sided";
  }
  return "no lookup";
}

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options) {
  VERBENA_TRY(check_process());
  const CancellationHeld held;
  try {
    auto client = std::make_unique<PollingClient>(options);
    VERBENA_TRY(client->connect());
    return client;
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, "Client::connect", 0, "no memory for the client's own tables: lower its depth");
  }
}

}  // namespace verbena::kv
