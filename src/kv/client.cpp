#include "kv/client.hpp"

#include "base/cancellation.hpp"
#include "base/check.hpp"
#include "base/error.hpp"
#include "base/failure.hpp"
#include "base/limit.hpp"
#include "base/random.hpp"
#include "base/ticks.hpp"
#include "kv/index.hpp"
#include "kv/item.hpp"
#include "link/link.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace verbena::kv {
namespace {

/// The engine drains a failed channel within a second, or destroys its queue pair.
constexpr std::chrono::milliseconds kDrainTimeout{1500};
/// Polls without a completion between two checks of the age of pipelined operations.
constexpr unsigned kPollsPerExpiry = 64;
/// WRITEs of large values, large messages and READs beyond one for each operation.
constexpr std::uint32_t kSparePieces = 16;
/// How many of these are for READs ahead into registered memory: staged gets and puts have at most three each.
constexpr std::uint32_t kMostAhead = 8;
constexpr unsigned kMaxWorkers = 64;
/// READs in flight on one channel when gets use READs: enough for a few doorbells. NICs may allow less.
constexpr std::uint32_t kMostReads = 64;
constexpr std::size_t kMostKnown = std::size_t{1} << 24;

constexpr const char* kStopped = "the server has stopped: start it again, then connect again";

/// How often a large value may arrive without matching its checksum before the client distrusts the server.
constexpr unsigned kMostMismatches = 4;

constexpr Piece piece_of(std::uint64_t token) noexcept { return static_cast<Piece>(token >> 56); }
constexpr unsigned chunk_of(std::uint64_t token) noexcept { return static_cast<unsigned>(token >> 48) & 0xff; }

bool has_key(wire::Op op) noexcept { return op != wire::Op::kStatistics && !wire::is_scan(op); }
bool is_change(wire::Op op) noexcept { return op == wire::Op::kPut || op == wire::Op::kCas || op == wire::Op::kErase; }

// Checks a large value that is in place.
bool has_its_checksum(const Operation& operation) noexcept {
  return operation.source.checksum == 0 ||
         checksum_of_value(operation.out.first(operation.outcome.length)) == operation.source.checksum;
}

channel::Options channel_options(const ClientOptions& options) noexcept {
  // A lookup through the index READs both buckets at the same time.
  const bool looks_up = options.lookup == Lookup::kOneSided;
  return {.depth = wire::channel_depth(options.depth),
          .max_reads = looks_up ? kMostReads : channel::Options{}.max_reads,
          .max_operations = options.depth * (looks_up ? 2 : 1) + kSparePieces + kMostMarks,
          .max_larges = channel::Bounce::kChunks};
}

/// Sized before the server has said how many workers it has.
node::ShardOptions shard_options(const ClientOptions& options, const nic::Limits& limits) {
  return {.loop = {.max_connections = kMaxWorkers,
                   .cqe = std::min(channel::completions_needed(channel_options(options)) * kMaxWorkers, limits.max_cqe),
                   .wait = options.wait,
                   .spin = options.spin,
                   // A server may drop one connection and live on; no kernel reports that.
                   .keepalive_on = engine::KeepaliveOn::kEveryNic}};
}

}  // namespace

// --- setup

host::Footprint PollingClient::footprint(nic::Kind kind, const nic::Limits& limits, const ClientOptions& options,
                                         unsigned workers) {
  host::Footprint pools;
  pools.add({.name = "places and buffers",
             .kind = host::PoolKind::kRegistered,
             .bytes_each = own_bytes(options) + options.buffer_bytes});
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

PollingClient::PollingClient(const ClientOptions& options) : options_(options), id_(random_word() >> 16 | 1) {}

PollingClient::~PollingClient() {
  if (loop_ != nullptr && !has_failed()) say_goodbye();
  channels_.clear();
  for (Operation& operation : operations_)
    if (operation.awaited != nullptr) end_awaited(operation, {Status::kClosed});
  end_waiting(Status::kClosed);
  if (awaited_.poller == nullptr) return;
  awaited_.poller->settle();
  awaited_.poller->~Poller();
}

Result<void> PollingClient::connect() {
  if (options_.port == 0) return fail(Status::kBadArgument, "Client::connect", 0, "port must be 1 to 65535; got 0");
  if (options_.depth == 0 || options_.depth > 1024)
    return fail(Status::kBadArgument, "Client::connect", 0, "depth is {}: it must be 1 to 1024", options_.depth);
  if (options_.buffer_bytes > std::size_t{1} << 40)
    return fail(Status::kBadArgument, "Client::connect", 0, "buffer_bytes is {}: it must be at most 1 TiB",
                options_.buffer_bytes);
  VERBENA_TRY(check_limit("Client::connect", "wait (a policy)", std::to_underlying(options_.wait), 0,
                          std::to_underlying(WaitPolicy::kEvent)));
  VERBENA_TRY(check_limit("Client::connect", "lookup (a choice)", std::to_underlying(options_.lookup), 0,
                          std::to_underlying(Lookup::kOneSided)));
  const std::size_t known = options_.known_locations;
  if (known != 0 && (!std::has_single_bit(known) || known < Locations::kWays || known > kMostKnown))
    return fail(Status::kBadArgument, "Client::connect", 0,
                "known_locations is {}: it must be 0, or a power of two of {} to {}", known, Locations::kWays,
                kMostKnown);
  if (may_read()) reader_.know(known);
  const Deadline deadline = Deadline::after(options_.connect_timeout);
  // A process of root could read this process anyway.
  std::vector<uid_t> trusted = options_.allowed_uids;
  trusted.push_back(0);
  VERBENA_ASSIGN(fabric_, link::Fabric::open({.transport = options_.transport,
                                              .role = link::Role::kClient,
                                              .address = options_.address,
                                              .port = options_.port,
                                              .allowed_uids = trusted,
                                              .key_file = options_.key_file,
                                              .key_name = options_.key_name},
                                             deadline));
  nic::Nic& nic = fabric_->nic();
  VERBENA_ASSIGN(device_, node::Device::of(fabric_->shared_nic()));
  VERBENA_ASSIGN(shard_, node::Shard::create(device_, shard_options(options_, nic.limits())));
  loop_ = &shard_->loop();
  VERBENA_TRY(
      region_.open(nic, device_->pd(),
                   {.size_bytes = own_bytes(options_) + options_.buffer_bytes,
                    .share = lends() ? host::Share::kReadOnly : host::Share::kNone,
                    .name = "client"},
                   {},
                   // Bulk data, as in the lease.
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING | (lends() ? int{IBV_ACCESS_REMOTE_READ} : 0)));
  allocated_ = own_bytes(options_);
  region_.data()[own_bytes(options_) - kLineBytes] = std::byte{1};
  way_.reads_now = may_read() && nic.direct() != nullptr;
  // The transport chosen explains many errors, for example a server on another NIC.
  if (const auto first = connect_to(0, deadline); !first)
    return fail(first.error().status(), first.error().call(), first.error().system_errno(), "{}; tried by {}",
                first.error().text(), fabric_->reason());
  for (unsigned worker = 1; worker < server_.workers; ++worker) VERBENA_TRY(connect_to(worker, deadline));
  loop_->poll();  // Posts the receives, so that a goodbye can arrive before the first call.
  fmt::format_to_n(description_.data(), description_.size() - 1,
                   "{} port {}: {} worker{}, values up to {} bytes, depth {}; {}{}", fabric_->address(), options_.port,
                   server_.workers, server_.workers == 1 ? "" : "s", server_.max_value_bytes, operations_.size(),
                   fabric_->reason(), way_.by_message ? "; all by message: this user may not read all keys" : "");
  return {};
}

Result<void> PollingClient::connect_to(unsigned worker, Deadline deadline) {
  VERBENA_ASSIGN(auto channel, channel::Connection::create(*loop_, shard_->memory(), channel_options(options_), *this));
  nic::Nic& nic = fabric_->nic();
  const bool has_source = lends() && nic.capabilities().maps_windows;
  wire::ClientHello mine{.worker = static_cast<std::uint8_t>(worker),
                         .client = id_,
                         .depth = static_cast<std::uint16_t>(options_.depth),
                         .flags = options_.read_only ? wire::kReadOnly : std::uint8_t{0}};
  if (has_source) {
    const nic::Window window = region_.window();
    if (window.memory_id > wire::kMostMemoryId)
      return fail(Status::kLimit, "Client::connect", 0,
                  "this process has registered memory {} times, which is too often", window.memory_id);
    mine.source = {.address = window.address, .memory_id = window.memory_id, .rkey = window.rkey};
  }
  VERBENA_TRY(channel->dial(*fabric_, options_.port, wire::encode(mine), deadline));
  const auto hello = wire::decode_server_hello(channel->peer_data());
  if (!hello)
    return fail(Status::kProtocol, "Client::connect", 0,
                "the server at {} port {} is not a key-value store of protocol version {}", fabric_->address(),
                options_.port, wire::kVersion);
  if (worker == 0) {
    take_limits(*hello);
  } else if (hello->server != server_.server || hello->hash_seed != server_.hash_seed ||
             hello->flags != server_.flags) {
    return fail(Status::kPeerLost, "Client::connect", 0, "another server has taken its place meanwhile: connect again");
  }
  // Only to this server, and before it asks for the memory. All of its workers have the same NIC.
  if (has_source && worker == 0)
    VERBENA_TRY(nic.grant(region_.memory_id(), {.to = nic::Grant::To::kOneGid, .gid = channel->peer_gid()}));
  if (!way_.by_message) {
    channel->needs_window(wire::window_of(*hello));
    if (hello->marks_address != 0) channel->needs_window(wire::marks_of(*hello));
  }
  VERBENA_TRY(channel->connect(deadline));
  channel->attach();
  reader_.add({.channel = channel.get(),
               .address = hello->window_address,
               .length = hello->window_length,
               .rkey = hello->window_rkey,
               .buckets = hello->index_buckets,
               .marks = hello->marks_address,
               .marks_rkey = hello->marks_rkey});
  channels_.push_back(std::move(channel));
  return {};
}

void PollingClient::take_limits(const wire::ServerHello& hello) {
  server_ = hello;
  way_.by_message = (hello.flags & wire::kByMessage) != 0;
  way_.reads_now = way_.reads_now && !way_.by_message;
  way_.is_guarded = (hello.flags & wire::kGuarded) != 0;
  if (way_.is_guarded) reader_.guard();
  // A quarter of the grace period is left for clocks that drift apart.
  read_ticks_ = ticks_in(std::chrono::nanoseconds(hello.grace_ns)) / 4 * 3;
  reader_.set_hash_seed(hello.hash_seed);
  channels_.reserve(hello.workers);
  cells_.windows.resize(hello.workers);
  const std::uint32_t depth = std::min(options_.depth, hello.depth);
  operations_.resize(depth);
  free_.reserve(depth);
  done_.reserve(depth);
  for (std::uint32_t slot = depth; slot-- > 0;) {
    operations_[slot].id = slot;
    free_.push_back(slot);
  }
}

// Announces an orderly leave, so the server does not count this client as crashed. Tells all workers, then waits
// until their NICs have it, at most for as long as a connection lingers.
void PollingClient::say_goodbye() noexcept {
  static constexpr wire::RequestHead kGoodbyeRequest{.op = wire::Op::kGoodbye};
  report_reads(1);
  is_leaving_ = true;
  for (auto& channel : channels_)
    if (channel->alive()) channel->leave(wire::bytes_of(kGoodbyeRequest));
  const auto is_over = [&] {
    return std::ranges::all_of(channels_, [](const auto& channel) { return channel->has_left(); });
  };
  (void)loop_->wait_until(is_over, Deadline::after(channel::Life::kLinger));
}

std::span<std::byte> PollingClient::allocate(std::size_t bytes) noexcept {
  const std::size_t all = own_bytes(options_) + options_.buffer_bytes;
  if (bytes == 0 || bytes > all - allocated_ || is_forked()) return {};
  const std::span<std::byte> out(region_.data() + allocated_, bytes);
  allocated_ = std::min(all, (allocated_ + bytes + 63) & ~std::size_t{63});
  return out;
}

bool PollingClient::is_registered(std::span<const std::byte> bytes) const noexcept {
  return bytes.data() >= region_.data() + own_bytes(options_) && region_.arena().contains(bytes.data(), bytes.size());
}

channel::LocalSpan PollingClient::local(std::span<const std::byte> bytes) const noexcept {
  return {.data = const_cast<std::byte*>(bytes.data()), .length = bytes.size(), .lkey = region_.lkey()};
}

// --- slots

// Requires a free slot.
Operation& PollingClient::take_slot() noexcept {
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return operations_[slot];
}

void PollingClient::free_slot(Operation& operation) noexcept {
  operation.stage = Stage::kFree;
  operation.id += 1u << 16;  // A reply with the old id finds nothing.
  free_.push_back(operation.slot());
}

Operation* PollingClient::find(std::uint32_t id) noexcept {
  const std::uint32_t slot = id & 0xffff;
  if (slot >= operations_.size() || operations_[slot].stage == Stage::kFree) return nullptr;
  return operations_[slot].id == id ? &operations_[slot] : nullptr;
}

// --- starting

Status PollingClient::check(const Ask& ask) const noexcept {
  if (has_failed()) [[unlikely]]
    return connection_error().status();
  if (!has_key(ask.op)) [[unlikely]]
    return check_whole(ask);
  const bool is_right = ask.key.size() - 1 < kMaxKeyBytes && ask.value.size() <= server_.max_value_bytes &&
                        (ask.op != wire::Op::kCas || ask.expected != wire::kAnyVersion) &&
                        (!options_.read_only || ask.op == wire::Op::kGet);
  return is_right ? Status::kOk : refuse(ask);
}

// A request that is not about one key.
Status PollingClient::check_whole(const Ask& ask) const noexcept {
  const char* const call = call_of(ask.op);
  if (ask.op == wire::Op::kFlush && options_.read_only) return refuse(ask);
  if (ask.key.size() > kMaxKeyBytes)
    return note(Status::kBadKey, call, "prefix must have 0 to {} bytes; got {}", kMaxKeyBytes, ask.key.size());
  if (ask.worker >= channels_.size())
    return note(Status::kBadArgument, call, "cursor is at worker {}, and the server has {}: begin with an empty one",
                ask.worker, channels_.size());
  return Status::kOk;
}

[[gnu::cold]] Status PollingClient::refuse(const Ask& ask) const noexcept {
  const char* const call = call_of(ask.op);
  if (options_.read_only && ask.op != wire::Op::kGet)
    return note(Status::kDenied, call, "this client is read-only by its own options (read_only): connect another one");
  if (ask.key.size() - 1 >= kMaxKeyBytes)
    return note(Status::kBadKey, call, "key must have 1 to {} bytes; got {}", kMaxKeyBytes, ask.key.size());
  if (ask.value.size() > server_.max_value_bytes)
    return note(
        Status::kTooLong, call,
        "value must have at most {} bytes, which is the server's limit; got {}: a worker needs room for it twice, "
        "as it is replaced by another one beside it; raise memory_bytes or max_value_bytes, or split the value",
        server_.max_value_bytes, ask.value.size());
  return note(Status::kBadArgument, call, "expected must be 0 to {}; got {}", wire::kAnyVersion - 1, ask.expected);
}

Status PollingClient::check_unblocked(const Ask& ask, const char* call) const noexcept {
  if (const Status checked = check(ask); checked != Status::kOk) [[unlikely]]
    return checked;
  if (ask.value.size() >= kEagerBytes && !is_registered(ask.value)) [[unlikely]]
    return note(Status::kBadArgument, call,
                "value has {} bytes; from {} bytes on it must be in memory that Client::allocate has returned",
                ask.value.size(), kEagerBytes);
  return Status::kOk;
}

// On success `started` is the new operation.
Status PollingClient::start(const Ask& ask, Operation*& started) noexcept {
  if (free_.empty()) return Status::kAgain;
  Operation& operation = take_slot();
  started = &operation;
  operation.op = ask.op;
  operation.is_pipelined = operation.is_abandoned = operation.is_bounced = operation.has_reply = false;
  operation.result = ask.result;
  const bool is_on_key = has_key(ask.op);
  operation.hash = is_on_key ? reader_.hash(ask.key) : 0;
  operation.worker = static_cast<std::uint16_t>(
      is_on_key ? worker_of(operation.hash, static_cast<unsigned>(channels_.size())) : ask.worker);
  operation.key_length = static_cast<std::uint16_t>(ask.key.size());
  operation.mismatches = 0;
  operation.source.way = Operation::Way::kMessage;
  operation.transfer = {.burst = kMostPieces};
  operation.outcome = {};
  operation.out = ask.out;
  if (ask.op == wire::Op::kGet) {
    std::memcpy(operation.key.data(), ask.key.data(), ask.key.size());
    operation.sent_ticks = ticks_now();
    if (may_read() && !ask.skips_reads && start_lookup(operation)) return Status::kOk;
  }
  const bool is_large = ask.value.size() >= kEagerBytes;
  operation.stage = is_large ? Stage::kSending : Stage::kAwaiting;
  Status status = Status::kOk;
  if (is_large) {
    if (!is_registered(ask.value)) return Status::kOk;  // The caller sends it in pieces.
    status = send_lent(operation, ask);
  } else {
    std::array<std::byte, 24> head;
    const std::size_t bytes = wire::encode_head({.op = ask.op, .key_length = operation.key_length, .id = operation.id},
                                                ask.expected, head, ask.ttl_ns);
    status = channel_of(operation).send(std::span(head).first(bytes), ask.key, ask.value);
  }
  if (status != Status::kOk) [[unlikely]] {
    free_slot(operation);
    return notice(operation.worker, status);
  }
  if (ask.op == wire::Op::kGet) ++lookups_.by_message;
  return status;
}

// --- blocking calls

Status take_options(const PutOptions& options, Ask& ask) noexcept {
  if (options.expected) {
    ask.op = wire::Op::kCas;
    ask.expected = *options.expected;
  }
  if (options.time_to_live) {
    const std::chrono::milliseconds ttl = *options.time_to_live;
    if (ttl.count() < 1 || ttl > kMaxTimeToLive) [[unlikely]]
      return note(Status::kBadArgument, call_of(ask.op), "time_to_live must be 1 to {} ms; got {}",
                  kMaxTimeToLive.count(), ttl.count());
    ask.ttl_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(ttl).count());
  }
  return Status::kOk;
}
Outcome PollingClient::put(Key key, std::span<const std::byte> value, Deadline deadline) noexcept {
  return run({.op = wire::Op::kPut, .key = key, .value = value}, deadline);
}
Outcome PollingClient::put(Key key, std::span<const std::byte> value, const PutOptions& options,
                           Deadline deadline) noexcept {
  Ask ask{.op = wire::Op::kPut, .key = key, .value = value};
  if (const Status status = take_options(options, ask); status != Status::kOk) [[unlikely]]
    return {status};
  return run(ask, deadline);
}
template <class Limit>
inline Outcome PollingClient::get_until(Key key, std::span<std::byte> out, Deadline of_reads, Limit&& limit) noexcept {
  Ask ask{.op = wire::Op::kGet, .key = key, .out = out};
  if (way_.reads_now && check(ask) == Status::kOk) [[likely]] {
    Outcome outcome;
    const Reader::Read read = reader_.get(key, out, of_reads, outcome);
    report_reads(kReadsPerReport);
    if (read == Reader::Read::kDone) [[likely]]
      return outcome;
    ask.skips_reads = read != Reader::Read::kNoWay;
  }
  return run(ask, limit());
}
Outcome PollingClient::get(Key key, std::span<std::byte> out, Deadline deadline) noexcept {
  return get_until(key, out, deadline, [deadline] { return deadline; });
}
Outcome PollingClient::get_in_default_time(Key key, std::span<std::byte> out) noexcept {
  // A reader looks at the time only between two pieces of a value.
  if (out.size() > kPieceBytes) return get(key, out, deadline());
  return get_until(key, out, Deadline::never(), [this] { return deadline(); });
}
Outcome PollingClient::run(const Ask& ask, Deadline deadline) noexcept {
  if (is_forked()) [[unlikely]]
    return {note_as(call_of(ask.op), connection_error())};
  for (;;) {
    bool is_resting = false;
    const Outcome outcome = attempt(ask, deadline, is_resting);
    if (!is_resting) [[likely]]
      return outcome;
    // The server has the memory, but readers may still use it. Some of it becomes free after an epoch, a sixteenth of
    // the grace period. Waits a little longer than that, so that the value is not sent in vain.
    const Deadline pause = Deadline::at_ticks(ticks_now() + read_ticks_ / 10);
    while (!pause.passed() && !deadline.passed() && !has_failed()) (void)loop_->wait(earlier(pause, deadline));
    if (has_failed()) return {error_.status()};
    if (deadline.passed())
      return {note(Status::kStoreFull, call_of(ask.op),
                   "the memory for a value of {} bytes waits out its grace period, and did not become free "
                   "before the deadline: give it more time, or raise memory_bytes",
                   ask.value.size())};
  }
}

Outcome PollingClient::attempt(const Ask& ask, Deadline deadline, bool& is_resting) noexcept {
  if (const Status checked = check(ask); checked != Status::kOk) [[unlikely]]
    return {checked};
  Operation* operation = nullptr;
  Status status = start(ask, operation);
  // No credit, or slots taken by calls that timed out and wait for their replies: something has to complete first. Does
  // not wait for slots that only the caller's own `poll` frees.
  while (status == Status::kAgain && in_flight_.pipelined < operations_.size()) {
    if (loop_->wait(deadline) == 0 && deadline.passed()) return {Status::kTimedOut};
    if (has_failed()) break;
    status = start(ask, operation);
  }
  const bool is_started = status == Status::kOk;
  if (is_started && operation->stage == Stage::kSending) status = send_chunks(*operation, ask, deadline);
  const auto is_over = [&] { return operation->stage == Stage::kDone || has_failed(); };
  if (status == Status::kOk) status = loop_->wait_until(is_over, deadline);
  drain();
  if (!is_started) return {has_failed() ? error_.status() : status};
  if (operation->stage != Stage::kDone) return give_up(*operation);
  const Outcome outcome = operation->outcome;
  free_slot(*operation);
  is_resting = outcome.status == Status::kAgain;  // The server's answer: a full table of this side never gets here.
  return outcome;
}

// The deadline passed. Ends everything that may still touch the caller's memory before it returns.
Outcome PollingClient::give_up(Operation& operation) noexcept {
  if (!uses_memory(operation)) {
    abandon(operation);
    return {Status::kTimedOut};
  }
  die_late();
  drain();
  free_slot(operation);
  return {Status::kTimedOut};
}

bool PollingClient::uses_memory(const Operation& operation) noexcept {
  switch (operation.stage) {
    case Stage::kSending: return !operation.transfer.is_idle();
    case Stage::kReading: return !operation.is_bounced;
    default: return operation.stage == Stage::kLent;
  }
}

void PollingClient::abandon(Operation& operation) noexcept {
  operation.is_abandoned = true;
  operation.out = {};
  if (operation.stage != Stage::kReading && operation.stage != Stage::kOnWord) return;
  // The connection copies into memory of its own, and reports nothing of it here any more.
  const Piece piece = operation.stage == Stage::kReading ? Piece::kRead : Piece::kWord;
  (void)channel_of(operation).abandon(token_of(piece, operation));
  // READs beyond the first are counted for all gets together.
  if (operation.transfer.pieces > 1) in_flight_.ahead -= operation.transfer.pieces - 1;
  free_slot(operation);
}

void PollingClient::die_late() noexcept {
  die(Status::kTimedOut, "a large value was not transferred before its deadline; connect again, with a longer timeout");
}

Error PollingClient::connection_error() const noexcept {
  const Result<void> in_parent = check_process();
  return in_parent ? error_ : in_parent.error();
}

Result<ServerStatistics> PollingClient::server_statistics(Deadline deadline) noexcept {
  report_reads(1);
  Result<ServerStatistics> statistics;
  wanted_.out = &*statistics;
  Outcome outcome;
  for (std::uint64_t part = 0; part < kStatisticsParts && outcome.status == Status::kOk; ++part) {
    wanted_.part = static_cast<StatisticsPart>(part);
    outcome = run({.op = wire::Op::kStatistics, .expected = part}, deadline);
  }
  wanted_.out = nullptr;
  if (outcome.status == Status::kOk) return statistics;
  if (has_failed()) return std::unexpected(connection_error());
  if (outcome.status == Status::kDenied) return std::unexpected(last_failure());
  return fail(outcome.status, "server_statistics", 0, "the server did not answer with its statistics: {}",
              to_string(outcome.status));
}

// --- pipelined calls

Status PollingClient::start_pipelined(Ask ask, std::uint64_t cookie) noexcept {
  if (const Status checked = check_unblocked(ask, "kv::Client::start_put"); checked != Status::kOk) [[unlikely]]
    return checked;
  Reader::Read read = Reader::Read::kNoWay;
  Outcome outcome;
  if (ask.op == wire::Op::kGet && way_.reads_now) {
    if (free_.empty()) return Status::kAgain;
    // No deadline: nothing waits here.
    read = reader_.get(ask.key, ask.out, Deadline::never(), outcome);
    report_reads(kReadsPerReport);
    ask.skips_reads = read != Reader::Read::kNoWay;
  }
  const bool is_over = read == Reader::Read::kDone;
  Operation* operation = nullptr;
  if (is_over) {
    operation = &take_slot();
    operation->is_abandoned = false;
    operation->result = nullptr;
  } else if (const Status status = start(ask, operation); status != Status::kOk) {
    return status;
  }
  operation->is_pipelined = true;
  operation->cookie = cookie;
  operation->started_ticks = ask.op == wire::Op::kGet ? operation->sent_ticks : ticks_now();
  ++in_flight_.pipelined;
  if (is_over) finish(*operation, outcome);
  return Status::kOk;
}

Status PollingClient::start_put(Key key, std::span<const std::byte> value, const PutOptions& options,
                                std::uint64_t cookie) noexcept {
  Ask ask{.op = wire::Op::kPut, .key = key, .value = value};
  if (const Status status = take_options(options, ask); status != Status::kOk) [[unlikely]]
    return status;
  return start_pipelined(ask, cookie);
}

std::size_t PollingClient::poll(std::span<Completion> completions) noexcept {
  if (is_forked()) [[unlikely]]
    return 0;
  if (!channels_.empty() && done_.size() < completions.size()) work();
  const std::size_t count = std::min(completions.size(), done_.size());
  for (std::size_t i = 0; i < count; ++i) {
    Operation& operation = operations_[done_[i]];
    completions[i] = {operation.cookie, operation.outcome};
    free_slot(operation);
  }
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
  in_flight_.pipelined -= count;
  return count;
}

std::size_t PollingClient::wait(std::span<Completion> completions, Deadline deadline) noexcept {
  const auto is_over = [&] {
    return !done_.empty() || in_flight_.pipelined == 0 || completions.empty() || has_failed();
  };
  while (!is_over() && loop_->wait_until(is_over, earlier(deadline, pipeline_deadline())) != Status::kOk) {
    expire();
    if (deadline.passed()) break;
  }
  return poll(completions);
}

void PollingClient::work() noexcept {
  if (loop_->poll() != 0) {
    in_flight_.empty_polls = 0;
  } else if (++in_flight_.empty_polls >= kPollsPerExpiry) {
    in_flight_.empty_polls = 0;
    expire();
  }
  drain();
}

// The default deadline of the oldest pipelined operation.
Deadline PollingClient::pipeline_deadline() const noexcept {
  std::uint64_t oldest = ticks_now();
  for (const Operation& operation : operations_)
    if (operation.is_running() && operation.is_pipelined) oldest = std::min(oldest, operation.started_ticks);
  return Deadline::at_ticks(oldest + ticks_in(options_.timeout));
}

void PollingClient::expire() noexcept {
  if (in_flight_.pipelined == done_.size() || !pipeline_deadline().passed()) return;
  die(Status::kTimedOut, "a pipelined operation had no answer in time; connect again, with a longer timeout");
}

// --- replies

void PollingClient::on_message(channel::Connection& channel, std::span<const std::byte> body) noexcept {
  wire::Reply reply;
  if (wire::decode_reply(body, reply) != Status::kOk) [[unlikely]]
    return die(Status::kProtocol, "the server sent a reply that makes no sense");
  if (reply.head.kind == wire::ReplyKind::kGoodbye) [[unlikely]] {
    // The server answers nothing any more but may live on for long; operations in flight would wait for their
    // deadlines.
    if (!is_leaving_) die(Status::kClosed, kStopped);
    return;
  }
  Operation* const operation = find(reply.head.id);
  if (operation == nullptr || &channel_of(*operation) != &channel) [[unlikely]]
    return die(Status::kProtocol, "the server answered a request that the client did not make");
  if (reply.head.kind == wire::ReplyKind::kRefusal) [[unlikely]]
    take_refusal(*operation, reply);
  if (reply.head.kind == wire::ReplyKind::kFull) [[unlikely]]
    take_full(*operation, reply);
  on_reply(*operation, reply);
}

void PollingClient::on_reply(Operation& operation, const wire::Reply& reply) noexcept {
  if (operation.stage == Stage::kSending && !operation.has_reply && reply.head.kind == wire::ReplyKind::kPlain) {
    operation.has_reply = true;
    note_location(operation, reply.head);
    operation.outcome = {reply.head.status, reply.head.version, 0};
    return settle(operation);
  }
  if (operation.stage != Stage::kAwaiting && operation.stage != Stage::kLent) [[unlikely]]
    return die(Status::kProtocol, "the server answered a request twice");
  if (operation.is_abandoned) [[unlikely]]
    return free_slot(operation);
  if (operation.op == wire::Op::kGet && reply.expiry.until_ns != 0) [[unlikely]]
    reader_.clock().set(reply.expiry.clock_ns, operation.sent_ticks);
  const bool is_failure = reply.head.status != Status::kOk;
  note_location(operation, reply.head);
  if (reply.head.kind == wire::ReplyKind::kPlain && (is_failure || is_change(operation.op)))
    return finish(operation, {reply.head.status, reply.head.version, 0});
  if (operation.op == wire::Op::kGet && reply.head.kind == wire::ReplyKind::kValue) {
    const std::size_t length = reply.value.size();
    const bool fits = length <= operation.out.size();
    if (fits && length != 0) std::memcpy(operation.out.data(), reply.value.data(), length);
    return finish(operation,
                  {fits ? Status::kOk : Status::kBufferTooSmall, reply.head.version, length, time_left(reply)});
  }
  if (operation.op == wire::Op::kGet && reply.head.kind == wire::ReplyKind::kLocation)
    return take_location(operation, reply);
  if (operation.op == wire::Op::kGet && reply.head.kind == wire::ReplyKind::kPart) return take_part(operation, reply);
  if (operation.op == wire::Op::kStatistics && reply.head.kind == wire::ReplyKind::kStatistics) {
    // Calls that gave up never get here, so this is the blocked one.
    take_words(reply.value, wanted_.part, *wanted_.out);
    return finish(operation, {});
  }
  if (operation.op == wire::Op::kCell && reply.head.kind == wire::ReplyKind::kCell) {
    // The frame is sound, and it answers the only open_cell that somebody waits for.
    cells_.place = reply.cell;
    cells_.worker = operation.worker;
    return finish(operation, {Status::kOk, reply.head.version, 0});
  }
  if (wire::is_scan(operation.op) && reply.head.kind == wire::ReplyKind::kScanned)
    return take_scanned(operation, reply);
  die(Status::kProtocol, "the server's reply does not fit the request");
}

std::chrono::nanoseconds PollingClient::time_left(const wire::Reply& reply) noexcept {
  const auto [clock_ns, until_ns] = reply.expiry;
  return std::chrono::nanoseconds(until_ns > clock_ns ? static_cast<std::int64_t>(until_ns - clock_ns) : 0);
}

// Caches the reply's location; entry 0 removes a stale one.
void PollingClient::note_location(const Operation& operation, const wire::ReplyHead& head) noexcept {
  if (!has_key(operation.op) || !may_read()) return;
  const bool is_known = head.status == Status::kOk || head.status == Status::kNotFound;
  if (is_known) reader_.locations().note(operation.hash, head.entry);
}

void PollingClient::take_location(Operation& operation, const wire::Reply& reply) noexcept {
  const auto length = static_cast<std::size_t>(reply.location.length);
  if (length > server_.max_value_bytes) return die(Status::kProtocol, "the server names a value longer than its limit");
  if (length > operation.out.size())
    return finish(operation, {Status::kBufferTooSmall, reply.head.version, length, time_left(reply)});
  const bool goes_on = reply.head.version == operation.outcome.version && length == operation.outcome.length;
  if (!goes_on) operation.transfer.copied = 0;
  operation.outcome = {Status::kOk, reply.head.version, length, time_left(reply)};
  start_reading(operation, reply.location.address, reply.location.rkey, reply.location.checksum);
}

void PollingClient::finish(Operation& operation, const Outcome& outcome) noexcept {
  if (operation.is_abandoned) return free_slot(operation);
  if (operation.result != nullptr) {
    *std::exchange(operation.result, nullptr) = outcome;
    --in_flight_.batched;
    return free_slot(operation);
  }
  if (operation.awaited != nullptr) return end_awaited(operation, outcome);
  operation.outcome = outcome;
  operation.stage = Stage::kDone;
  if (operation.is_pipelined) done_.push_back(operation.slot());
}

// A large put is complete when the reply is here and the channel no longer reads the value.
void PollingClient::settle(Operation& operation) noexcept {
  if (operation.has_reply && operation.transfer.is_idle()) finish(operation, operation.outcome);
}

// --- large values in

// Starts with the first byte that is not in place yet.
void PollingClient::start_reading(Operation& operation, std::uint64_t address, std::uint32_t rkey,
                                  std::uint64_t checksum) noexcept {
  operation.source.address = address;
  operation.source.rkey = rkey;
  operation.source.checksum = checksum;
  operation.transfer.posted = operation.transfer.copied;
  operation.is_late = false;
  // An awaited get may be given up at any time, and its memory is not the NIC's then.
  operation.is_bounced = operation.awaited != nullptr || !is_registered(operation.out.first(operation.outcome.length));
  operation.stage = Stage::kReading;
  read_pieces(operation);
}

// The pieces of one get go through one connection, so they complete in order.
void PollingClient::read_pieces(Operation& operation) noexcept {
  const std::uint64_t length = operation.outcome.length;
  while (operation.transfer.pieces < operation.transfer.burst && operation.transfer.posted < length) {
    const bool is_ahead = operation.transfer.pieces != 0;
    if (is_ahead && in_flight_.ahead == kMostAhead) return;  // Continues when its own pieces have arrived.
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(operation.piece_bytes(), length - operation.transfer.posted));
    const std::span<std::byte> to = operation.out.subspan(operation.transfer.posted, bytes);
    const channel::RemoteSpan from{operation.source.address + operation.transfer.posted, bytes, operation.source.rkey};
    const std::uint64_t token = token_of(Piece::kRead, operation);
    channel::Connection& channel = channel_of(operation);
    const Status status =
        operation.is_bounced ? channel.start_read(to, from, token) : channel.start_read(local(to), from, token);
    if (status != Status::kOk) {
      (void)notice(operation.worker, status);
      return die(Status::kProtocol, "the server names a location outside its window");
    }
    operation.transfer.posted += bytes;
    ++operation.transfer.pieces;
    if (is_ahead) ++in_flight_.ahead;
  }
}

// The block at the location is not reused before the grace period ends, which began after the request was sent: a piece
// that arrived within three quarters of it belongs to the value. A later piece may hold anything. The client then asks
// for the location again, and goes on reading where it was if the version is still the same.
void PollingClient::on_piece_read(Operation& operation) noexcept {
  if (!operation.is_late) {
    // For an item that was READ itself another READ tells whether it is still live: start_check.
    operation.is_late =
        operation.source.way == Operation::Way::kMessage && ticks_now() - operation.sent_ticks > read_ticks_;
    if (!operation.is_late)
      operation.transfer.copied +=
          std::min<std::uint64_t>(operation.piece_bytes(), operation.outcome.length - operation.transfer.copied);
  }
  if (!operation.is_late && operation.transfer.copied != operation.outcome.length) return read_pieces(operation);
  if (operation.transfer.pieces == 0) end_read(operation);
}

void PollingClient::end_read(Operation& operation) noexcept {
  if (operation.source.way != Operation::Way::kMessage) {
    has_its_checksum(operation) ? start_check(operation) : on_overtaken(operation);
  } else if (!operation.is_late && has_its_checksum(operation)) {
    finish(operation, operation.outcome);
  } else if (!operation.is_late && ++operation.mismatches == kMostMismatches) {
    die(Status::kProtocol, "a value does not match the checksum that the server sent");
  } else {
    if (!operation.is_late) operation.outcome.version = 0;  // Starts over.
    operation.transfer.burst = 1;                           // There may be time for no more than the next piece.
    ask_again(operation);
  }
}

void PollingClient::ask_again(Operation& operation) noexcept {
  operation.stage = Stage::kAwaiting;
  operation.sent_ticks = ticks_now();
  const wire::RequestHead head{.op = wire::Op::kGet, .key_length = operation.key_length, .id = operation.id};
  const Status status = channel_of(operation).send(wire::bytes_of(head), operation.key_bytes());
  if (status == Status::kOk) return;
  const Status noticed = notice(operation.worker, status);
  if (!has_failed()) finish(operation, {noticed});  // Otherwise it ends with the connection.
}

void PollingClient::on_complete(channel::Connection&, const channel::Completion& completion) noexcept {
  const Piece piece = piece_of(completion.token);
  if (piece == Piece::kMark) {
    --in_flight_.marks;
    return;
  }
  if (piece == Piece::kBodyChunk) shard_->memory().bounce->give_back(chunk_of(completion.token));
  Operation* const found = find(static_cast<std::uint32_t>(completion.token));
  if (found == nullptr) return;
  Operation& operation = *found;
  --operation.transfer.pieces;
  if (piece == Piece::kRead && operation.transfer.pieces != 0) --in_flight_.ahead;
  if (completion.status != Status::kOk) return;  // The connection is failing; the operation ends with it.
  switch (piece) {
    case Piece::kBodyChunk: return settle(operation);
    case Piece::kRead: return on_piece_read(operation);
    case Piece::kLookup: return on_lookup_read(operation);
    case Piece::kWord: return on_word(operation, completion.old);
    case Piece::kMark: return;
  }
}

// --- the end of the connection

// A worker that got the goodbye ends its connection. The others may not have got it yet.
void PollingClient::on_end(channel::Connection&, Status reason) noexcept {
  if (is_leaving_) return;
  if (reason == Status::kProtocol) return die(reason, "the server broke the protocol of messages");
  // From here the loss of the peer looks like flushes and unanswered retries.
  die(Status::kPeerLost, "the server is gone: it was killed or crashed; see its log, then connect again");
}

// A channel that began to fail in an earlier call's poll reports it only once it is drained, which takes polls. Until
// then the status of a post to it is the first sign.
Status PollingClient::notice(unsigned worker, Status status) noexcept {
  channel::Connection& channel = *channels_[worker];
  if (status == Status::kOk || channel.alive()) [[likely]]
    return status;
  on_end(channel, status);
  return error_.status();
}

// Acts once; operations end in `drain`, because this may run inside a poll.
void PollingClient::die(Status reason, const char* what) noexcept {
  if (has_failed()) return;
  error_ = Error(reason, "kv client", 0, what);
  for (auto& channel : channels_)
    if (channel->alive()) channel->fail(reason);
}

void PollingClient::end_operations() noexcept {
  const auto is_drained = [&] {
    return std::ranges::all_of(channels_, [](const auto& channel) { return channel->drained(); });
  };
  (void)loop_->wait_until(is_drained, Deadline::after(kDrainTimeout));
  // Destroying a queue pair ends everything left on it, so no buffer of a caller is touched from here on.
  channels_.clear();
  for (Operation& operation : operations_)
    if (operation.is_running()) finish(operation, {error_.status()});
  end_waiting(error_.status());
}

LookupCounters PollingClient::lookups() const noexcept {
  return {lookups_.by_location, lookups_.by_index, lookups_.by_message,
          lookups_.stale,       lookups_.retries,  lookups_.overtaken};
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
