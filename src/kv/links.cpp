#include "kv/links.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/limit.hpp"
#include "base/random.hpp"
#include "base/ticks.hpp"
#include "link/link.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace verbena::kv {
namespace {

/// The engine drains a failed channel within a second, or destroys its queue pair.
constexpr std::chrono::milliseconds kDrainTimeout{1500};
/// WRITEs of large values, large messages and READs beyond one for each operation.
constexpr std::uint32_t kSparePieces = 16;
constexpr unsigned kMaxWorkers = 64;
/// READs in flight on one channel when gets use READs: enough for a few doorbells. NICs may allow less.
constexpr std::uint32_t kMostReads = 64;
constexpr std::size_t kMostKnown = std::size_t{1} << 24;

}  // namespace

channel::Options channel_options(const ClientOptions& options) noexcept {
  // A lookup through the index READs both buckets at the same time.
  const bool looks_up = options.lookup == Lookup::kOneSided;
  return {.depth = wire::channel_depth(options.depth),
          .max_reads = looks_up ? kMostReads : channel::Options{}.max_reads,
          .max_operations = options.depth * (looks_up ? 2 : 1) + kSparePieces + kMostMarks,
          .max_larges = channel::Bounce::kChunks};
}

node::ShardOptions shard_options(const ClientOptions& options, const nic::Limits& limits) {
  return {.loop = {.max_connections = kMaxWorkers,
                   .cqe = std::min(channel::completions_needed(channel_options(options)) * kMaxWorkers, limits.max_cqe),
                   .wait = options.wait,
                   .spin = options.spin,
                   // A server may drop one connection and live on; no kernel reports that.
                   .keepalive_on = engine::KeepaliveOn::kEveryNic}};
}

// --- setup

Links::Links(const ClientOptions& options) : options_(options), id_(random_word() >> 16 | 1) {}

Result<void> Links::check_options() const {
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
  return {};
}

Result<void> Links::connect(channel::Handler& handler, Reader& reader) {
  VERBENA_TRY(check_options());
  if (may_read()) reader.know(options_.known_locations);
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
  // The transport chosen explains many errors, for example a server on another NIC.
  if (const auto first = connect_to(0, handler, reader, deadline); !first)
    return fail(first.error().status(), first.error().call(), first.error().system_errno(), "{}; tried by {}",
                first.error().text(), fabric_->reason());
  for (unsigned worker = 1; worker < server_.workers; ++worker)
    VERBENA_TRY(connect_to(worker, handler, reader, deadline));
  loop_->poll();  // Posts the receives, so that a goodbye can arrive before the first call.
  fmt::format_to_n(description_.data(), description_.size() - 1,
                   "{} port {}: {} worker{}, values up to {} bytes, depth {}; {}{}", fabric_->address(), options_.port,
                   server_.workers, server_.workers == 1 ? "" : "s", server_.max_value_bytes, depth(),
                   fabric_->reason(), is_by_message() ? "; all by message: this user may not read all keys" : "");
  return {};
}

Result<void> Links::connect_to(unsigned worker, channel::Handler& handler, Reader& reader, Deadline deadline) {
  VERBENA_ASSIGN(auto channel,
                 channel::Connection::create(*loop_, shard_->memory(), channel_options(options_), handler));
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
    take_limits(*hello, reader);
  } else if (hello->server != server_.server || hello->hash_seed != server_.hash_seed ||
             hello->flags != server_.flags) {
    return fail(Status::kPeerLost, "Client::connect", 0, "another server has taken its place meanwhile: connect again");
  }
  // Only to this server, and before it asks for the memory. All of its workers have the same NIC.
  if (has_source && worker == 0)
    VERBENA_TRY(nic.grant(region_.memory_id(), {.to = nic::Grant::To::kOneGid, .gid = channel->peer_gid()}));
  if (!is_by_message()) {
    channel->needs_window(wire::window_of(*hello));
    if (hello->marks_address != 0) channel->needs_window(wire::marks_of(*hello));
  }
  VERBENA_TRY(channel->connect(deadline));
  channel->attach();
  reader.add({.channel = channel.get(),
              .address = hello->window_address,
              .length = hello->window_length,
              .rkey = hello->window_rkey,
              .buckets = hello->index_buckets,
              .marks = hello->marks_address,
              .marks_rkey = hello->marks_rkey});
  channels_.push_back(std::move(channel));
  return {};
}

void Links::take_limits(const wire::ServerHello& hello, Reader& reader) {
  server_ = hello;
  if (is_guarded()) reader.guard();
  // A quarter of the grace period is left for clocks that drift apart.
  read_ticks_ = ticks_in(std::chrono::nanoseconds(hello.grace_ns)) / 4 * 3;
  reader.set_hash_seed(hello.hash_seed);
  channels_.reserve(hello.workers);
}

// Tells all workers, then waits until their NICs have it, at most for as long as a connection lingers.
void Links::say_goodbye() noexcept {
  static constexpr wire::RequestHead kGoodbyeRequest{.op = wire::Op::kGoodbye};
  is_leaving_ = true;
  for (auto& channel : channels_)
    if (channel->alive()) channel->leave(wire::bytes_of(kGoodbyeRequest));
  const auto is_over = [&] {
    return std::ranges::all_of(channels_, [](const auto& channel) { return channel->has_left(); });
  };
  (void)loop_->wait_until(is_over, Deadline::after(channel::Life::kLinger));
}

// --- memory

std::span<std::byte> Links::allocate(std::size_t bytes) noexcept {
  const std::size_t all = own_bytes(options_) + options_.buffer_bytes;
  if (bytes == 0 || bytes > all - allocated_ || is_forked()) return {};
  const std::span<std::byte> out(region_.data() + allocated_, bytes);
  allocated_ = std::min(all, (allocated_ + bytes + 63) & ~std::size_t{63});
  return out;
}

bool Links::is_registered(std::span<const std::byte> bytes) const noexcept {
  return bytes.data() >= region_.data() + own_bytes(options_) && region_.arena().contains(bytes.data(), bytes.size());
}

channel::LocalSpan Links::local(std::span<const std::byte> bytes) const noexcept {
  return {.data = const_cast<std::byte*>(bytes.data()), .length = bytes.size(), .lkey = region_.lkey()};
}

// --- failure

Error Links::connection_error() const noexcept {
  const Result<void> in_parent = check_process();
  return in_parent ? error_ : in_parent.error();
}

// A worker that got the goodbye ends its connection. The others may not have got it yet.
void Links::on_end(Status reason) noexcept {
  if (is_leaving_) return;
  if (reason == Status::kProtocol) return die(reason, "the server broke the protocol of messages");
  // From here the loss of the peer looks like flushes and unanswered retries.
  die(Status::kPeerLost, "the server is gone: it was killed or crashed; see its log, then connect again");
}

// A channel that began to fail reports it only once it is drained, which takes polls.
Status Links::notice(unsigned worker, Status status) noexcept {
  channel::Connection& channel = *channels_[worker];
  if (status == Status::kOk || channel.alive()) [[likely]]
    return status;
  on_end(status);
  return error_.status();
}

void Links::die(Status reason, const char* what) noexcept {
  if (has_failed()) return;
  error_ = Error(reason, "kv client", 0, what);
  for (auto& channel : channels_)
    if (channel->alive()) channel->fail(reason);
}

void Links::drain() noexcept {
  const auto is_drained = [&] {
    return std::ranges::all_of(channels_, [](const auto& channel) { return channel->drained(); });
  };
  (void)loop_->wait_until(is_drained, Deadline::after(kDrainTimeout));
  close();  // Destroying a queue pair ends everything left on it.
}

void Links::on_goodbye() noexcept {
  // The server answers nothing any more but may live on for long; operations in flight would wait for their
  // deadlines.
  if (!is_leaving_) die(Status::kClosed, "the server has stopped: start it again, then connect again");
}

void Links::die_late() noexcept {
  die(Status::kTimedOut, "a large value was not transferred before its deadline; connect again, with a longer timeout");
}

}  // namespace verbena::kv
