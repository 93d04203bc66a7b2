#include "channel/connection.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/limit.hpp"

#include <algorithm>

namespace verbena::channel {

using engine::QueuePair;

namespace {

constexpr std::uint32_t kMinFragmentBytes = 1024;
/// Marks the tokens of this layer's own operations, which no handler sees.
constexpr std::uint64_t kGoodbyeToken = ~std::uint64_t{0};

/// The peer has named the window and taken it back meanwhile, as it does at its end.
Result<void> lost_if_gone(const Result<void>& imported) {
  if (imported || imported.error().status() != Status::kNotFound) return imported;
  return fail(Status::kPeerLost, "connect", 0, "the peer has ended the connection while it was made; try again");
}

}  // namespace

// --- options ------------------------------------------------------------------------------------------------------

std::uint32_t sends_for(const Options& options) noexcept {
  // Twice the depth, so that a quarter waiting to be signaled does not delay messages that have credit.
  return 2 * wire::receives_for(options.depth) + options.max_reads;
}

engine::QueueOptions queues_needed(const Options& options) noexcept {
  return {.sends = sends_for(options),
          .receives = wire::receives_for(options.depth),
          .send_sge = 4,
          .max_inline = Messages::kCreditBytes + options.eager_bytes,
          .held = options.held,
          .first_position = options.first_count,
          .takes_messages = !options.keeps_messages};
}

std::uint32_t completions_needed(const Options& options) noexcept {
  const engine::QueueOptions queues = queues_needed(options);
  return QueuePair::completions_needed(queues.sends, queues.receives);
}

Result<void> check(const Options& options, const nic::Nic& nic) {
  constexpr const char* kCall = "connect";
  VERBENA_TRY(check_limit(kCall, "depth", options.depth, wire::kMinDepth, wire::kMaxDepth));
  VERBENA_TRY(check_limit(kCall, "eager_bytes", options.eager_bytes, wire::kMinEagerBytes, wire::kMaxEagerBytes));
  if (options.eager_bytes % wire::kUnit != 0)
    return fail(Status::kBadArgument, kCall, 0, "eager_bytes must be a multiple of {}; got {}", wire::kUnit,
                options.eager_bytes);
  if (options.lease_bytes != 0)
    VERBENA_TRY(check_limit(kCall, "lease_bytes, unless it is 0,", options.lease_bytes, wire::kMinLeaseBytes,
                            wire::kMaxLeaseBytes));
  VERBENA_TRY(check_limit(kCall, "fragment_bytes", options.fragment_bytes, kMinFragmentBytes, wire::kMaxLeaseBytes));
  VERBENA_TRY(check_limit(kCall, "max_reads", options.max_reads, 1, 4096));
  VERBENA_TRY(check_limit(kCall, "max_operations", options.max_operations, 1, 4096));
  VERBENA_TRY(check_limit(kCall, "max_larges", options.max_larges, 0, 4096));
  VERBENA_TRY(check_limit(kCall, "reservations", options.reservations, 0, 1024));
  VERBENA_TRY(check_limit(kCall, "staged", options.staged, 1, 32));
  VERBENA_TRY(check_limit(kCall, "held", options.held, 0, engine::HeldRequests::kMostPlaces));
  const std::uint32_t sends = sends_for(options) + QueuePair::kReserve;
  if (sends > nic.limits().max_qp_wr)
    return fail(Status::kLimit, kCall, 0,
                "depth {} and max_reads {} take {} work requests of one send queue, and {} has {}: lower one of them",
                options.depth, options.max_reads, sends, nic.name(), nic.limits().max_qp_wr);
  return {};
}

namespace {

[[nodiscard]] std::size_t memory_bytes(const Options& options, std::uint32_t max_inline) noexcept {
  return Messages::bytes_for(options, max_inline) + Transfers::bytes_for(options) + LargeSender::bytes_for(options);
}

}  // namespace

host::Footprint footprint(nic::Kind kind, const nic::Limits& limits, const Options& options) {
  using host::PoolKind;
  const engine::QueueOptions queues = queues_needed(options);
  const std::uint32_t max_inline = QueuePair::qp_options(queues, limits).max_inline;
  host::Footprint pools;
  pools.add({.name = "buffers",
             .kind = PoolKind::kRegistered,
             .bytes_each = memory_bytes(options, max_inline),
             .node = options.node});
  if (options.lease_bytes != 0)
    pools.add({.name = "lease",
               .kind = PoolKind::kRegistered,
               .bytes_each = (options.lease_bytes + wire::kUnit - 1) / wire::kUnit * wire::kUnit,
               .node = options.node});
  pools.add({.name = "connection", .bytes_each = sizeof(Connection)});
  pools.add({.name = "operations", .count = options.max_operations, .bytes_each = Operations::bytes_for(1)});
  pools.add({.name = "receive requests", .bytes_each = Messages::table_bytes_for(options, max_inline)});
  pools.add("queue pair", 1, QueuePair::footprint(kind, limits, queues));
  return pools;
}

// --- handlers -----------------------------------------------------------------------------------------------------

void Handler::on_fragment(Connection& connection, const Fragment& /*fragment*/) noexcept {
  connection.fail(Status::kProtocol);
}

// --- bring-up -----------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Connection>> Connection::create(engine::CompletionLoop& loop, const Memory& memory,
                                                       const Options& options, Handler& handler) {
  VERBENA_TRY(check(options, loop.nic()));
  std::unique_ptr<Connection> made(new Connection(loop, memory, options, handler));
  VERBENA_TRY(made->open(memory));
  return made;
}

Connection::Connection(engine::CompletionLoop& loop, const Memory& memory, const Options& options, Handler& handler)
    : Transfers(pair_, operations_, *memory.bounce),
      options_(options),
      handler_(handler),
      pair_(loop, *this),
      messages_(pair_, credits_),
      operations_(options.max_operations),
      larges_(pair_, credits_, operations_),
      larges_in_(credits_),
      life_(pair_) {}

// Bounce chunks become free only now, when nothing is in flight.
Connection::~Connection() {
  pair_.shut();
  Transfers::on_drained();
}

Result<void> Connection::open(const Memory& memory) {
  VERBENA_TRY(pair_.open(memory.pd, queues_needed(options_)));
  VERBENA_ASSIGN(memory_, memory.buffers->acquire(memory_bytes(options_, pair_.max_inline()), options_.node));
  std::byte* at = memory_.data();
  messages_.open(options_, memory_);
  at += Messages::bytes_for(options_, pair_.max_inline());
  Transfers::open(memory_, at);
  at += Transfers::bytes_for(options_);
  if (options_.max_larges != 0) larges_.open(options_, memory_, at);
  VERBENA_TRY(larges_in_.open(pair_.nic(), memory.pd, options_));
  credits_.open(options_.depth, options_.first_count, larges_in_.units());
  return {};
}

Result<link::Endpoint> Connection::describe(std::span<const std::byte> user_data) {
  const wire::Handshake mine{.depth = options_.depth,
                             .eager_bytes = options_.eager_bytes,
                             .first_count = options_.first_count,
                             .lease = larges_in_.has_lease() ? larges_in_.lease().window() : nic::Window{}};
  VERBENA_TRY(life_.describe(mine, credits_.buffers(), user_data));
  return life_.local();
}

Result<std::span<const std::byte>> Connection::user_data_of(const link::Endpoint& remote) {
  VERBENA_ASSIGN(const wire::Handshake handshake, wire::decode(remote.user_data()));
  return remote.user_data().subspan(handshake.bytes);
}

Result<void> Connection::dial(link::Fabric& fabric, std::uint16_t port, std::span<const std::byte> user_data,
                              Deadline deadline) {
  VERBENA_ASSIGN(const link::Endpoint local, describe(user_data));
  VERBENA_ASSIGN(auto handshake, fabric.dial(port, local, deadline));
  return dialed(std::move(handshake));
}

Result<void> Connection::dialed(std::unique_ptr<link::Handshake> handshake) {
  VERBENA_TRY(life_.meet(std::move(handshake), link::Role::kClient));
  return take_peer();
}

Result<void> Connection::answer(std::unique_ptr<link::Handshake> handshake, std::span<const std::byte> user_data) {
  VERBENA_TRY(describe(user_data));
  VERBENA_TRY(life_.meet(std::move(handshake), link::Role::kServer));
  return take_peer();
}

Result<void> Connection::meet(const link::Endpoint& remote) {
  VERBENA_TRY(life_.meet(remote));
  return take_peer();
}

Result<void> Connection::take_peer() {
  credits_.meet(life_.peer());
  messages_.meet(life_.peer());
  larges_.meet(life_.peer(), options_.fragment_bytes);
  larges_in_.meet(life_.peer());
  const std::uint32_t depth = std::min(life_.local().qp.max_rd_atomic, life_.remote().qp.max_rd_atomic);
  Transfers::meet(std::min(options_.max_reads, depth));
  if (!larges_in_.has_lease()) return {};
  // Grants before the peer gets this side's endpoint, so that it may map the lease as soon as both are connected.
  return pair_.nic().grant(larges_in_.lease().memory_id(),
                           {.to = nic::Grant::To::kOneGid, .gid = life_.remote().qp.gid});
}

void Connection::needs_window(const nic::Window& window) noexcept {
  VERBENA_CHECK(needed_ != needs_.size());
  needs_[needed_++] = window;
}

Result<void> Connection::import_needs(Deadline deadline) {
  VERBENA_TRY(lost_if_gone(open_lease(deadline)));
  for (; needed_ != 0; --needed_) {
    const nic::Window& window = needs_[needed_ - 1];
    VERBENA_TRY(lost_if_gone(window.length == 0 ? pair_.nic().import_window(pair_.get(), window, deadline)
                                                : import_window(window, deadline)));
  }
  return {};
}

Result<void> Connection::connect(Deadline deadline) {
  if (life_.has_handshake() && !life_.is_open()) {
    VERBENA_TRY(life_.hear(deadline));
    // The peer waits for this side's READY, and learns instead what is wrong with its memory.
    const Result<void> imported = import_needs(deadline);
    if (!imported && imported.error().status() != Status::kAgain) life_.refuse(imported.error());
    VERBENA_TRY(imported);
  }
  return life_.connect(deadline);
}

void Connection::on_attached() noexcept {
  if (pair_.reason() == Status::kOk) messages_.post_receives();
}

// --- completions --------------------------------------------------------------------------------------------------

void Connection::handle(std::span<const ibv_wc> completions) noexcept {
  // Answers to completions that came together leave together.
  const bool is_batch = completions.size() > 1 && pair_.loop().batches();
  if (is_batch) pair_.hold();
  for (const ibv_wc& completion : completions) {
    if (completion.status != IBV_WC_SUCCESS || pair_.reason() != Status::kOk) [[unlikely]] {
      on_failed(completion);
    } else if (engine::wr::is_receive(completion.wr_id)) {
      on_receive(completion);
    } else {
      on_sent(completion);
    }
  }
  on_polled();
  if (is_batch) pair_.release();
}

void Connection::take(std::span<const std::byte> message) noexcept {
  std::span<const std::byte> body;
  if (const Status status = messages_.take(message, body); status != Status::kOk) [[unlikely]] {
    pair_.fail(status);
  } else if (!body.empty()) {
    handler_.on_message(*this, body);
  }
  on_polled();
}

void Connection::on_polled() noexcept {
  if (pair_.reason() == Status::kOk) [[likely]]
    progress();
  if (wants_room_) [[unlikely]] {
    wants_room_ = false;
    handler_.on_room(*this);
  }
}

void Connection::on_receive(const ibv_wc& completion) noexcept {
  pair_.took_receive();
  Status status = Status::kProtocol;
  if (completion.opcode == IBV_WC_RECV && (completion.wc_flags & IBV_WC_WITH_IMM) == 0) [[likely]] {
    std::span<const std::byte> body;
    status = messages_.take(completion, body);
    if (status == Status::kOk && !body.empty()) handler_.on_message(*this, body);
  } else if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    status = on_fragment(completion);
  }
  messages_.consumed(completion);
  if (status != Status::kOk) [[unlikely]]
    pair_.fail(status);
}

Status Connection::on_fragment(const ibv_wc& completion) noexcept {
  Fragment fragment;
  const Status status = larges_in_.take(completion, fragment);
  if (status != Status::kOk) return status;
  handler_.on_fragment(*this, fragment);
  larges_in_.done();
  return Status::kOk;
}

void Connection::on_sent(const ibv_wc& completion) noexcept {
  pair_.retire(completion.wr_id);
  complete_retired();
  Operation* const operation = operations_.find(completion.wr_id);
  if (operation == nullptr) return;
  const bool is_transfer = operation->kind < Operation::Kind::kLarge;
  if (is_transfer ? on_piece(*operation) : --operation->outstanding == 0) complete(*operation, Status::kOk);
}

void Connection::complete_retired() noexcept {
  while (Operation* const operation = take_retired()) complete(*operation, Status::kOk);
}

// Requests complete in order, and an error completes whether signaled or not: everything posted before the first failed
// request has been carried out.
void Connection::on_failed(const ibv_wc& completion) noexcept {
  if (!engine::wr::is_receive(completion.wr_id) && pair_.reason() == Status::kOk) {
    pair_.retire_before(completion.wr_id);
    complete_retired();
  }
  pair_.handle_failed(completion);
}

void Connection::complete(Operation& operation, Status status) noexcept {
  if (operation.kind == Operation::Kind::kLarge) larges_.ended();
  if (operation.waiter == Operation::Waiter::kCall) {
    operation.status = status;
    operation.is_over = true;
    return;
  }
  const bool is_told = operation.waiter == Operation::Waiter::kHandler;
  const Completion completion{.token = operation.token, .status = status, .old = operation.old};
  operations_.end(operation);
  if (is_told) return handler_.on_complete(*this, completion);
  if (completion.token == kGoodbyeToken && status == Status::kOk) life_.arrived();
}

void Connection::progress() noexcept {
  messages_.progress();
  Transfers::progress();
  if (larges_.is_waiting() && !is_write_waiting()) larges_.progress();
  if (life_.has_words()) [[unlikely]]
    say_goodbye();
}

void Connection::on_drained() noexcept {
  Transfers::on_drained();
  larges_.forget_waiting();
  while (Operation* const operation = take_unfinished()) complete(*operation, pair_.reason());
  operations_.for_each([this](Operation& operation) { complete(operation, pair_.reason()); });
  handler_.on_end(*this, pair_.reason());
}

// --- calls --------------------------------------------------------------------------------------------------------

template <class Post>
Status Connection::start_posted(std::uint64_t total, std::uint64_t token, Post&& post) noexcept {
  if (const Status checked = check_message(total); checked != Status::kOk) return checked;
  Operation* const begun = operations_.begin(
      {.token = token, .total = total, .posted = total, .outstanding = 1, .kind = Operation::Kind::kPosted});
  if (begun == nullptr) return Status::kAgain;
  const Status posted = post(operations_.tag(*begun));
  // The drain completes what is in the table; it must not report this one.
  if (posted != Status::kOk) operations_.end(*begun);
  return posted;
}

Status Connection::start_send(std::span<const std::byte> a, std::span<const std::byte> b,
                              std::uint64_t token) noexcept {
  return start_posted(a.size() + b.size(), token,
                      [&](std::uint32_t tag) { return messages_.post(tag, QueuePair::Signal::kAlways, a, b, {}); });
}

Status Connection::start_reserved(std::span<const std::byte> body, std::uint64_t token) noexcept {
  return start_posted(body.size(), token,
                      [&](std::uint32_t tag) { return messages_.post_reserved(tag, body.data(), body.size()); });
}

Status Connection::start_large(std::span<const std::byte> head, LocalSpan body, std::uint64_t token) noexcept {
  const Status started = larges_.start(head, body, token);
  if (started == Status::kOk && !is_write_waiting()) larges_.progress();
  return started;
}

// --- the end ------------------------------------------------------------------------------------------------------

void Connection::leave(std::span<const std::byte> words) noexcept {
  words_ = words;
  life_.leave();
  if (life_.has_words()) say_goodbye();
}

// Without credit, or behind a waiting WRITE, the goodbye goes out after one of the next polls.
void Connection::say_goodbye() noexcept {
  if (check_message(words_.size()) != Status::kOk) return;
  Operation* const begun = operations_.begin({.token = kGoodbyeToken,
                                              .outstanding = 1,
                                              .kind = Operation::Kind::kPosted,
                                              .waiter = Operation::Waiter::kNobody});
  if (begun == nullptr) return;
  if (messages_.post(operations_.tag(*begun), QueuePair::Signal::kAlways, words_, {}, {}) == Status::kOk) {
    life_.said();
  } else {
    operations_.end(*begun);
  }
}

}  // namespace verbena::channel
