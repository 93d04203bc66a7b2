#include "c/conn.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "c/codes.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace verbena::c {
namespace {

/// Of a connection that says goodbye: for the peer's answer.
constexpr std::chrono::milliseconds kLinger{200};
/// A call of another thread is handed over within this, also when its own deadline is nearer.
constexpr std::chrono::milliseconds kHandOver{100};
/// Of one step of a server's handshake.
constexpr std::chrono::milliseconds kStepTimeout{1000};
/// In flight: one for the call under way, and some for calls that did not wait for theirs.
constexpr std::uint32_t kReceipts = 8;
constexpr int kWindowAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

template <class Plain, class Full, class... Args>
void call(const Callback<Plain, Full>& callback, RdmaConn& conn, Args... args) noexcept {
  if (callback.full != nullptr) {
    callback.full(&conn, args..., callback.user);
  } else if (callback.plain != nullptr) {
    callback.plain(&conn);
  }
}

[[nodiscard]] Result<void> check(const char* option, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value >= least && value <= most) return {};
  return fail(Status::kBadArgument, "RdmaOptions", 0, "{} must be {} to {}; got {}", option, least, most, value);
}

}  // namespace

Result<Settings> settings_of(const RdmaOptions& options) {
  VERBENA_TRY(check("connect_timeout_ms", options.connect_timeout_ms, 1, 1u << 30));
  VERBENA_TRY(check("timeout_ms", options.timeout_ms, 1, 1u << 30));
  VERBENA_TRY(check("max_connections", options.max_connections, 1, 1024));
  VERBENA_TRY(check("inbox_bytes", options.inbox_bytes, wire::kMinInboxBytes, wire::kMaxInboxBytes));
  VERBENA_TRY(check("window_bytes", options.window_bytes, 0, wire::kMaxWindowBytes));
  VERBENA_TRY(check("max_message_bytes", options.max_message_bytes, 1, std::uint64_t{1} << 40));
  if (options.bootstrap != RDMA_BOOTSTRAP_CM && options.bootstrap != RDMA_BOOTSTRAP_SOCKET)
    return fail(Status::kBadArgument, "RdmaOptions", 0, "bootstrap is none of RdmaBootstrap");
  if (options.recv_mode != RDMA_RECV_DISCARD && options.recv_mode != RDMA_RECV_QUEUE)
    return fail(Status::kBadArgument, "RdmaOptions", 0, "recv_mode is none of RdmaRecvMode");
  Settings settings;
  settings.transport.bootstrap = options.bootstrap == RDMA_BOOTSTRAP_SOCKET ? Bootstrap::kSocket : Bootstrap::kCm;
  if (options.device != nullptr) settings.transport.device = options.device;
  settings.connect_timeout = std::chrono::milliseconds{options.connect_timeout_ms};
  settings.timeout = std::chrono::milliseconds{options.timeout_ms};
  settings.max_connections = options.max_connections;
  settings.recv_mode = options.recv_mode;
  settings.window_bytes = (options.window_bytes + wire::kWindowUnit - 1) / wire::kWindowUnit * wire::kWindowUnit;
  settings.inbox_bytes = options.inbox_bytes;
  settings.max_message_bytes = options.max_message_bytes;
  return settings;
}

void OperationQueue::push(Operation& operation) noexcept {
  operation.next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = &operation;
  last_ = &operation;
}

void OperationQueue::remove(const Operation& operation) noexcept {
  Operation* before = nullptr;
  for (Operation* at = first_; at != nullptr; before = at, at = at->next) {
    if (at != &operation) continue;
    (before == nullptr ? first_ : before->next) = at->next;
    if (last_ == at) last_ = before;
    return;
  }
}

// --- setup --------------------------------------------------------------------------------------------------------

message::Options Conn::channel_options() noexcept {
  message::Options options;
  options.depth = 32;
  options.eager_bytes = 16 * 1024;
  options.max_operations = kChunks + kReceipts;
  options.attach = message::Attach::kByCaller;
  return options;
}

RdmaConn& Conn::handle() noexcept { return static_cast<RdmaConn&>(*this); }

std::span<std::byte> Conn::window() const noexcept {
  if (!memory_ || !memory_->window) return {};
  return {memory_->window.data(), settings.window_bytes};
}

Result<void> Conn::create(const std::shared_ptr<Runtime>& runtime) {
  runtime_ = runtime;
  timeout_ms = static_cast<unsigned>(settings.timeout.count());
  nic::Nic& nic = runtime->fabric().nic();
  inbox_ = std::make_unique<Inbox>(settings.inbox_bytes);
  memory_ = std::make_unique<Memory>();
  VERBENA_TRY(memory_->bounce.open(nic, runtime->pd(), {.size_bytes = kChunks * kChunkBytes, .name = "bounce"}, {},
                                   IBV_ACCESS_LOCAL_WRITE));
  if (settings.window_bytes != 0)
    VERBENA_TRY(memory_->window.open(
        nic, runtime->pd(), {.size_bytes = settings.window_bytes, .share = host::Share::kReadWrite, .name = "window"},
        {}, kWindowAccess));
  VERBENA_ASSIGN(channel_, message::Channel::create(runtime->loop(), runtime->pd(), channel_options(), *this));
  return {};
}

Result<link::Endpoint> Conn::describe() {
  const auto hello = wire::encode({.inbox_bytes = static_cast<std::uint32_t>(settings.inbox_bytes),
                                   .window = memory_->window ? memory_->window.window() : nic::Window{}});
  return channel_->local_endpoint(hello);
}

Result<void> Conn::meet(const link::Endpoint& remote) {
  VERBENA_ASSIGN(const auto data, message::Channel::user_data_of(remote));
  VERBENA_ASSIGN(peer_, wire::decode(data));
  if (!memory_->window) return {};
  return runtime_->fabric().nic().grant(memory_->window.memory_id(),
                                        {.to = nic::Grant::To::kOneGid, .gid = remote.qp.gid});
}

Result<void> Conn::connect(const std::string& address, std::uint16_t port) {
  const Deadline deadline = Deadline::after(settings.connect_timeout);
  auto connected = connect_over(address, port, deadline);
  if (!connected) undo();
  return connected;
}

Result<void> Conn::connect_over(const std::string& address, std::uint16_t port, Deadline deadline) {
  // Whoever runs as root could read this process anyway.
  constexpr std::array<uid_t, 1> kTrusted{0};
  const Driver driver =
      callbacks.message || callbacks.connected || callbacks.disconnected ? Driver::kThread : Driver::kCaller;
  VERBENA_ASSIGN(auto runtime, Runtime::open({.fabric = {.transport = settings.transport,
                                                         .role = link::Role::kClient,
                                                         .address = address,
                                                         .port = port,
                                                         .allowed_uids = kTrusted},
                                              .max_connections = 1,
                                              .deadline = deadline},
                                             driver));
  VERBENA_TRY(create(runtime));
  VERBENA_ASSIGN(const link::Endpoint local, describe());
  VERBENA_ASSIGN(auto dialed, runtime->fabric().dial(port, local, deadline));
  VERBENA_TRY(meet(dialed.remote()));
  VERBENA_TRY(channel_->connect(local, dialed.remote(), deadline, dialed.how()));
  VERBENA_ASSIGN(link::Lifeline lifeline, dialed.finish(deadline));
  channel_->keep(std::move(lifeline));
  if (peer_.window.length != 0) VERBENA_TRY(channel_->import_window(peer_.window, deadline));
  longest_piece_ = channel_->peer_eager_bytes() - sizeof(wire::Head);
  wants_receipts_ = driver == Driver::kCaller && runtime->fabric().nic().kind() == nic::Kind::kSoft;
  if (driver == Driver::kThread) VERBENA_TRY(runtime->start());
  is_kept_ = true;
  is_live_.store(true, std::memory_order_release);
  is_set_up_.store(true, std::memory_order_relaxed);
  if (driver == Driver::kThread) {
    runtime->adopt(handle());
  } else {
    runtime->adopt_here(handle());
  }
  return {};
}

void Conn::undo() noexcept {
  channel_.reset();
  memory_.reset();
  inbox_.reset();
  runtime_.reset();
}

Result<void> Conn::accept(std::shared_ptr<Runtime> runtime, link::Incoming& incoming) {
  VERBENA_TRY(create(runtime));
  VERBENA_ASSIGN(const link::Endpoint local, describe());
  VERBENA_TRY(meet(incoming.remote()));
  VERBENA_TRY(channel_->connect(local, incoming.remote(), Deadline::after(kStepTimeout), incoming.how()));
  VERBENA_TRY(incoming.answer(local, Deadline::after(kStepTimeout)));
  VERBENA_ASSIGN(link::Lifeline lifeline, incoming.finish(Deadline::after(kStepTimeout)));
  channel_->keep(std::move(lifeline));
  if (peer_.window.length != 0) VERBENA_TRY(channel_->import_window(peer_.window, Deadline::after(kStepTimeout)));
  longest_piece_ = channel_->peer_eager_bytes() - sizeof(wire::Head);
  is_live_.store(true, std::memory_order_release);
  return {};
}

void Conn::begin() noexcept {
  channel_->attach();
  if (is_set_up_.load(std::memory_order_relaxed)) return;
  call(callbacks.accepted, handle());
  discards_ = !callbacks.message && settings.recv_mode == RDMA_RECV_DISCARD;
  is_set_up_.store(true, std::memory_order_relaxed);
  // What came while the callback waited.
  for (; discards_ && !inbox_->empty(); inbox_->pop()) count_discarded(inbox_->head(), inbox_->length());
}

void Conn::count_discarded(const wire::Head& head, std::size_t piece) noexcept {
  if (head.kind == wire::Kind::kData && head.offset + piece != head.total) return;
  discarded_.store(discarded_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// --- calls --------------------------------------------------------------------------------------------------------

Status Conn::carry_out(Operation& operation, Deadline deadline) noexcept {
  // Nobody else drives it then, and nothing is waited for.
  if (runtime_->wait_for([this] { return is_detached_; }, Deadline::now()))
    return carry_out_here(operation, Deadline::now());
  if (!runtime_->is_driven_here()) {
    operation.is_awaited = true;
    const Status handed = runtime_->poller().run(
        [&] {
          start(operation);
          progress();
        },
        deadline.is_never() ? deadline
                            : Deadline::after(std::max<std::chrono::nanoseconds>(deadline.left(), kHandOver)));
    if (handed != Status::kOk) return handed;
    const auto is_done = [&] { return operation.is_done.load(std::memory_order_relaxed); };
    if (runtime_->wait_for(is_done, deadline)) return operation.status;
    // Where the thread ends instead, it ends the operation too, before it is gone.
    if (runtime_->poller().run([&] { cancel(operation); }, Deadline::never()) != Status::kOk)
      (void)runtime_->wait_for(is_done, Deadline::never());
    return operation.status;
  }
  return carry_out_here(operation, deadline);
}

Status Conn::carry_out_here(Operation& operation, Deadline deadline) noexcept {
  const bool is_shared = runtime_->driver() == Driver::kCaller || is_detached_;
  if (is_shared && is_used_.exchange(true, std::memory_order_acquire)) return Status::kBusy;
  start(operation);
  if (is_detached_) {
    feed_receives();
  } else {
    const auto is_done = [&] {
      runtime_->progress();
      return operation.is_done.load(std::memory_order_relaxed);
    };
    (void)runtime_->loop().wait_until(is_done, deadline);
  }
  if (!operation.is_done.load(std::memory_order_relaxed)) cancel(operation);
  if (is_shared) is_used_.store(false, std::memory_order_release);
  return operation.status;
}

OperationQueue& Conn::queue_of(const Operation& operation) noexcept {
  switch (operation.kind) {
    case Operation::Kind::kSend: return sends_;
    case Operation::Kind::kReceive: return receives_;
    case Operation::Kind::kWrite:
    case Operation::Kind::kRead: break;
  }
  return transfers_;
}

void Conn::start(Operation& operation) noexcept {
  queue_of(operation).push(operation);
  if (reason_ != Status::kOk && operation.kind != Operation::Kind::kReceive) finish(operation, reason_);
}

void Conn::finish(Operation& operation, Status status) noexcept {
  queue_of(operation).remove(operation);
  for (Chunk& chunk : chunks_)
    if (chunk.operation == &operation) chunk.operation = nullptr;
  operation.status = status;
  const auto set = [&] { operation.is_done.store(true, std::memory_order_relaxed); };
  // After this a waiting thread may have taken the operation away.
  operation.is_awaited ? runtime_->tell(set) : set();
}

// The caller's memory is not looked at any more afterwards: what is in flight goes through chunks of ours, which stay
// busy until the NIC is done with them.
void Conn::cancel(Operation& operation) noexcept {
  if (operation.is_done.load(std::memory_order_relaxed)) return;
  // All of it is with the NIC.
  if (operation.kind == Operation::Kind::kSend && operation.receipt != 0) return finish(operation, Status::kOk);
  if (operation.kind == Operation::Kind::kReceive && operation.finished != 0) {
    // What it has taken is the start of a message that the next receive goes on with.
    try {
      partial_.assign(operation.to, operation.to + operation.finished);
    } catch (const std::bad_alloc&) {
      say_goodbye(Status::kNoMemory);
      return;
    }
  }
  finish(operation, Status::kTimedOut);
}

void Conn::end(Status reason) noexcept {
  if (reason_ != Status::kOk) return;
  reason_ = reason;
  is_live_.store(false, std::memory_order_release);
  last_code.store(code_of(reason), std::memory_order_relaxed);
  while (sends_.first() != nullptr) finish(*sends_.first(), reason);
  while (transfers_.first() != nullptr) finish(*transfers_.first(), reason);
  feed_receives();
}

void Conn::say_goodbye(Status reason) noexcept {
  if (reason_ != Status::kOk) return;
  is_goodbye_due_ = is_answer_awaited_ = true;
  linger_ = Deadline::after(kLinger);
  end(reason);
}

bool Conn::has_said_goodbye() const noexcept {
  return !is_answer_awaited_ || is_goodbye_seen_ || !channel_->alive() || linger_.passed();
}

void Conn::progress() noexcept {
  if (channel_ == nullptr) return;
  feed_receives();
  send_what_is_due();
  if (reason_ != Status::kOk) return;
  start_transfers();
  send_messages();
}

// --- sending ------------------------------------------------------------------------------------------------------

bool Conn::has_room(std::size_t piece) const noexcept {
  return Inbox::bytes_of(piece) <= peer_.inbox_bytes - (sent_ - peer_consumed_);
}

bool Conn::send(wire::Head head, std::span<const std::byte> piece) noexcept {
  head.consumed = inbox_->consumed();
  if (channel_->send(std::as_bytes(std::span(&head, 1)), piece) != Status::kOk) return false;
  told_ = head.consumed;
  return true;
}

bool Conn::send_last(Operation& operation, wire::Head head, std::span<const std::byte> piece) noexcept {
  if (!wants_receipts_) return send(head, piece);
  head.consumed = inbox_->consumed();
  const std::uint64_t receipt = last_receipt_ + 1;
  if (channel_->start_send(std::as_bytes(std::span(&head, 1)), piece, kChunks + receipt) != Status::kOk) return false;
  told_ = head.consumed;
  operation.receipt = last_receipt_ = receipt;
  return true;
}

void Conn::on_receipt(std::uint64_t receipt, Status status) noexcept {
  for (const OperationQueue* queue : {&sends_, &transfers_}) {
    Operation* const operation = queue->first();
    if (operation == nullptr || operation->receipt != receipt) continue;
    operation->receipt = 0;
    // A write's bytes went before its message.
    finish(*operation, status);
    return;
  }
}

void Conn::send_messages() noexcept {
  while (Operation* const operation = sends_.first()) {
    const std::size_t bytes = std::min(operation->length - operation->started, longest_piece_);
    if (bytes == 0 || !has_room(bytes)) return;  // Its receipt is to come, or room.
    const wire::Head head{.flags = operation->has_immediate ? wire::kHasImmediate : std::uint8_t{0},
                          .immediate = operation->immediate,
                          .total = operation->length,
                          .offset = operation->started};
    const std::span<const std::byte> piece(operation->from + operation->started, bytes);
    const bool is_last = operation->started + bytes == operation->length;
    if (!(is_last ? send_last(*operation, head, piece) : send(head, piece))) return;
    sent_ += Inbox::bytes_of(bytes);
    operation->started += bytes;
    if (is_last && operation->receipt == 0) finish(*operation, Status::kOk);
  }
}

void Conn::send_what_is_due() noexcept {
  if (!channel_->alive()) return;
  if (is_goodbye_due_) is_goodbye_due_ = !send({.kind = wire::Kind::kGoodbye}, {});
  if (is_telling_due()) (void)send({.kind = wire::Kind::kConsumed}, {});
}

// --- transfers ----------------------------------------------------------------------------------------------------

void Conn::start_transfers() noexcept {
  for (Operation* operation = transfers_.first(); operation != nullptr;) {
    Operation* const next = operation->next;
    // The message leaves with the last piece of what it is about, by one doorbell.
    const engine::Batch<message::Channel> batch(*channel_);
    while (operation->started < operation->length)
      if (!start_chunk(*operation)) return;
    if (operation->tells_peer) {
      if (!tell_of_write(*operation)) return;
      // Its bytes may be in place already.
      if (operation->finished == operation->length && operation->receipt == 0) finish(*operation, Status::kOk);
    }
    operation = next;
  }
}

bool Conn::start_chunk(Operation& operation) noexcept {
  const auto free = std::ranges::find(chunks_, false, &Chunk::is_busy);
  if (free == chunks_.end()) return false;
  const auto number = static_cast<std::size_t>(free - chunks_.begin());
  const std::size_t bytes = std::min(operation.length - operation.started, kChunkBytes);
  const message::LocalSpan local{memory_of(number), bytes, memory_->bounce.lkey()};
  const message::RemoteSpan remote{peer_.window.address + operation.offset + operation.started, bytes,
                                   peer_.window.rkey};
  const bool is_read = operation.kind == Operation::Kind::kRead;
  if (!is_read) std::memcpy(local.data, operation.from + operation.started, bytes);
  const Status status =
      is_read ? channel_->start_read(local, remote, number) : channel_->start_write(local, remote, number);
  // Dead: on_failure ends it.
  if (status != Status::kOk) return false;
  *free = {.operation = &operation, .at = operation.started, .length = bytes, .is_busy = true};
  operation.started += bytes;
  return true;
}

bool Conn::tell_of_write(Operation& operation) noexcept {
  // Not between the pieces of a message, which it would drop at the receiver.
  const Operation* const sending = sends_.first();
  const bool is_between = sending != nullptr && sending->started != 0 && sending->started != sending->length;
  if (is_between || !has_room(0)) return false;
  const wire::Head head{.kind = wire::Kind::kWritten,
                        .flags = wire::kHasImmediate,
                        .immediate = operation.immediate,
                        .total = operation.length,
                        .offset = operation.offset};
  if (!send_last(operation, head, {})) return false;
  sent_ += Inbox::bytes_of(0);
  operation.tells_peer = false;
  return true;
}

void Conn::on_complete(message::Channel& /*channel*/, std::uint64_t token, Status status) noexcept {
  if (token >= kChunks) return on_receipt(token - kChunks, status);
  Chunk& chunk = chunks_[token];
  Operation* const operation = chunk.operation;
  chunk.is_busy = false;
  chunk.operation = nullptr;
  if (operation == nullptr) return;
  if (status != Status::kOk) return finish(*operation, status);
  if (operation->kind == Operation::Kind::kRead) std::memcpy(operation->to + chunk.at, memory_of(token), chunk.length);
  operation->finished += chunk.length;
  const bool is_told = !operation->tells_peer && operation->receipt == 0;
  if (operation->finished == operation->length && is_told) finish(*operation, Status::kOk);
}

// --- receiving ----------------------------------------------------------------------------------------------------

// Everything of the head is the peer's claim.
void Conn::on_message(message::Channel& channel, std::span<const std::byte> body) noexcept {
  wire::Head head;
  if (body.size() < sizeof head) return channel.fail(Status::kProtocol);
  std::memcpy(&head, body.data(), sizeof head);
  if (head.consumed < peer_consumed_ || head.consumed > sent_) return channel.fail(Status::kProtocol);
  peer_consumed_ = head.consumed;
  const auto piece = body.subspan(sizeof head);
  bool is_right = piece.empty();
  switch (head.kind) {
    case wire::Kind::kData:
    case wire::Kind::kWritten: is_right = accept_piece(head, piece); break;
    case wire::Kind::kConsumed: break;
    case wire::Kind::kGoodbye:
      // Not sent when there is no credit: then the peer waits for its linger.
      (void)send({.kind = wire::Kind::kGoodbyeSeen}, {});
      end(Status::kClosed);
      break;
    case wire::Kind::kGoodbyeSeen: is_goodbye_seen_ = true; break;
    default: is_right = false;
  }
  if (!is_right) channel.fail(Status::kProtocol);
}

bool Conn::accept_piece(const wire::Head& head, std::span<const std::byte> piece) noexcept {
  if (head.kind == wire::Kind::kWritten) {
    const std::uint64_t window = memory_->window ? settings.window_bytes : 0;
    if (!piece.empty() || head.offset > window || head.total > window - head.offset) return false;
    in_total_ = 0;  // A message that was not finished is dropped.
  } else {
    if (piece.empty() || head.offset > head.total || piece.size() > head.total - head.offset) return false;
    if (head.offset != 0 && (head.total != in_total_ || head.offset != in_next_)) return false;
    in_next_ = head.offset + piece.size();
    in_total_ = in_next_ == head.total ? 0 : head.total;
  }
  if (!discards_ && reason_ == Status::kOk) return inbox_->push(head, piece);
  inbox_->skip(piece.size());
  if (discards_) count_discarded(head, piece.size());
  return true;
}

void Conn::on_fragment(message::Channel& channel, const message::Fragment& /*fragment*/) noexcept {
  channel.fail(Status::kProtocol);  // There is no lease.
}

void Conn::on_failure(message::Channel& /*channel*/, Status reason) noexcept { end(reason); }

RdmaMessage Conn::written(const wire::Head& head) const noexcept {
  return {.kind = RDMA_WRITTEN,
          .has_imm = 1,
          .imm = head.immediate,
          .data = window().data() + head.offset,
          .length = static_cast<std::size_t>(head.total)};
}

void Conn::feed_receives() noexcept {
  while (receives_.first() != nullptr && !inbox_->empty()) feed(*receives_.first());
  if (reason_ == Status::kOk) return;
  while (receives_.first() != nullptr) finish(*receives_.first(), reason_);
}

// Moves one record, or finishes the operation, or both.
void Conn::feed(Operation& operation) noexcept {
  const wire::Head head = inbox_->head();
  if (head.kind == wire::Kind::kWritten) {
    partial_.clear();
    operation.message = written(head);
    inbox_->pop();
    finish(operation, Status::kOk);
    return;
  }
  if (head.offset == 0) {
    operation.finished = 0;
    partial_.clear();
  }
  if (head.total > operation.length) {
    operation.message = {.kind = RDMA_MESSAGE, .length = static_cast<std::size_t>(head.total)};
    finish(operation, Status::kBufferTooSmall);
    return;
  }
  if (operation.finished != head.offset) {
    VERBENA_CHECK(partial_.size() == head.offset);
    std::memcpy(operation.to, partial_.data(), partial_.size());
    operation.finished = partial_.size();
    partial_.clear();
  }
  inbox_->copy(operation.to + operation.finished);
  operation.finished += inbox_->length();
  inbox_->pop();
  if (operation.finished != head.total) return;
  operation.message = {.kind = RDMA_MESSAGE,
                       .has_imm = (head.flags & wire::kHasImmediate) != 0 ? 1 : 0,
                       .imm = head.immediate,
                       .data = operation.to,
                       .length = operation.finished};
  finish(operation, Status::kOk);
}

bool Conn::assemble(RdmaMessage& message) noexcept {
  while (!inbox_->empty()) {
    const wire::Head head = inbox_->head();
    if (head.kind == wire::Kind::kWritten) {
      partial_.clear();
      message = written(head);
      inbox_->pop();
      return true;
    }
    if (head.offset == 0) partial_.clear();
    Status status = head.total > settings.max_message_bytes ? Status::kTooLong : Status::kOk;
    try {
      // Grows with what arrives, not with what is claimed.
      if (status == Status::kOk) partial_.resize(head.offset + inbox_->length());
    } catch (const std::bad_alloc&) {
      status = Status::kNoMemory;
    }
    if (status != Status::kOk) {
      while (!inbox_->empty()) inbox_->pop();
      say_goodbye(status);
      progress();
      return false;
    }
    inbox_->copy(partial_.data() + head.offset);
    inbox_->pop();
    if (partial_.size() != head.total) continue;
    message = {.kind = RDMA_MESSAGE,
               .has_imm = (head.flags & wire::kHasImmediate) != 0 ? 1 : 0,
               .imm = head.immediate,
               .data = partial_.data(),
               .length = partial_.size()};
    return true;
  }
  return false;
}

// --- callbacks and the end ----------------------------------------------------------------------------------------

void Conn::call_back() noexcept {
  if (!has_announced_ && !is_leaving_) {
    has_announced_ = true;
    call(callbacks.connected, handle());
  }
  RdmaMessage message;
  while (callbacks.message && !is_leaving_ && assemble(message)) {
    if (callbacks.message.full != nullptr) {
      callbacks.message.full(&handle(), &message, callbacks.message.user);
    } else {
      callbacks.message.plain(&handle(), message.data, message.length);
    }
    progress();
  }
  if (reason_ == Status::kOk || has_told_end_) return;
  has_told_end_ = true;
  if (!is_leaving_) call(callbacks.disconnected, handle(), code_of(reason_));
}

void Conn::end_in_callback() noexcept {
  if (is_leaving_) return;
  is_leaving_ = true;
  say_goodbye(Status::kClosed);
  progress();
}

void Conn::end_with_runtime() noexcept {
  say_goodbye(Status::kClosed);
  progress();
}

bool Conn::is_over() const noexcept {
  return reason_ != Status::kOk && (is_leaving_ || has_told_end_) && has_said_goodbye();
}

void Conn::detach() noexcept {
  channel_.reset();
  runtime_->tell([this] { is_detached_ = true; });
}

void Conn::close() noexcept {
  if (!runtime_) return;
  if (runtime_->driver() == Driver::kThread) {
    const auto is_detached = [this] { return is_detached_; };
    (void)runtime_->poller().run(
        [&] {
          if (!is_detached_) end_in_callback();
        },
        Deadline::never());
    // Within the linger; where the thread has ended or ends, at once.
    (void)runtime_->wait_for(is_detached, Deadline::never());
    return;
  }
  if (channel_ == nullptr) return;
  end_in_callback();
  const auto is_gone = [this] {
    progress();
    return is_over();
  };
  (void)runtime_->loop().wait_until(is_gone, Deadline::after(kLinger));
  runtime_->release_here();
  detach();
}

}  // namespace verbena::c
