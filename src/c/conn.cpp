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
/// Of one step of a server's handshake.
constexpr std::chrono::milliseconds kStepTimeout{1000};
/// In flight: one for the call under way, and some for calls that did not wait for theirs.
constexpr std::uint32_t kReceipts = 8;

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
  if (options.window != nullptr && (options.window_bytes == 0 || options.window_bytes % wire::kWindowUnit != 0))
    return fail(Status::kBadArgument, "RdmaOptions", 0, "window_bytes of a window of your own must be a multiple of {}",
                wire::kWindowUnit);
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
  settings.window = options.window;
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
  options.max_operations = kChunks + kPieces + kReceipts;
  options.attach = message::Attach::kByCaller;
  return options;
}

RdmaConn& Conn::handle() noexcept { return static_cast<RdmaConn&>(*this); }

std::span<std::byte> Conn::window() const noexcept {
  if (window_ == nullptr) return {};
  return {static_cast<std::byte*>(window_->addr), window_->length};
}

Result<void> Conn::create(const std::shared_ptr<Runtime>& runtime) {
  runtime_ = runtime;
  timeout_ms = static_cast<unsigned>(settings.timeout.count());
  inbox_ = std::make_unique<Inbox>(settings.inbox_bytes);
  started_ = std::make_unique<Operation[]>(Completions::kMost);
  questions_.reserve(kQuestions);
  VERBENA_TRY(open_memory());
  VERBENA_ASSIGN(channel_, message::Channel::create(runtime->loop(), runtime->pd(), channel_options(), *this));
  return {};
}

Result<void> Conn::open_memory() {
  bounce_ = std::make_unique<nic::RegisteredArena>();
  VERBENA_TRY(bounce_->open(runtime_->fabric().nic(), runtime_->pd(),
                            {.size_bytes = kChunks * kChunkBytes, .name = "bounce"}, {}, IBV_ACCESS_LOCAL_WRITE));
  if (settings.window != nullptr) {
    VERBENA_ASSIGN(window_,
                   runtime_->registry().add(this, settings.window, settings.window_bytes, RDMA_ACCESS_REMOTE_ALL));
  } else if (settings.window_bytes != 0) {
    VERBENA_ASSIGN(window_, runtime_->registry().allocate(this, settings.window_bytes, {}));
  }
  return {};
}

void Conn::forget_memory() noexcept {
  window_ = nullptr;
  if (runtime_) runtime_->registry().remove_all(this);
}

Result<link::Endpoint> Conn::describe() {
  wire::Hello hello{.inbox_bytes = static_cast<std::uint32_t>(settings.inbox_bytes), .window = {}};
  if (window_ != nullptr)
    hello.window = {.address = reinterpret_cast<std::uintptr_t>(window_->addr),
                    .length = window_->length,
                    .rkey = window_->rkey,
                    .access = 0,
                    .memory_id = window_->memory_id};
  return channel_->local_endpoint(wire::encode(hello));
}

Result<void> Conn::meet(const link::Endpoint& remote) {
  VERBENA_ASSIGN(const auto data, message::Channel::user_data_of(remote));
  VERBENA_ASSIGN(peer_, wire::decode(data));
  peer_gid_ = remote.qp.gid;
  if (window_ == nullptr || settings.window != nullptr) return {};
  return runtime_->fabric().nic().grant(window_->memory_id, {.to = nic::Grant::To::kOneGid, .gid = peer_gid_});
}

Result<void> Conn::connect(const std::string& address, std::uint16_t port) {
  const Deadline deadline = Deadline::after(settings.connect_timeout);
  const auto connected = [&]() -> Result<void> {
    try {
      return connect_over(address, port, deadline);
    } catch (const std::bad_alloc&) {
      return fail(Status::kNoMemory, "rdmaConnect", 0, "no memory for a connection");
    }
  }();
  if (!connected) undo();
  return connected;
}

Result<void> Conn::connect_over(const std::string& address, std::uint16_t port, Deadline deadline) {
  // Whoever runs as root could read this process anyway.
  constexpr std::array<uid_t, 1> kTrusted{0};
  const Driver driver = callbacks.any() ? Driver::kThread : Driver::kCaller;
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
  is_callers_ = driver == Driver::kCaller;
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
  forget_memory();
  bounce_.reset();
  started_.reset();
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
  const bool discards = !callbacks.message && settings.recv_mode == RDMA_RECV_DISCARD;
  discards_.store(discards, std::memory_order_relaxed);
  is_set_up_.store(true, std::memory_order_relaxed);
  // What came while the callback waited.
  for (; discards && !inbox_->empty(); inbox_->pop()) count_discarded(inbox_->head(), inbox_->length());
}

void Conn::count_discarded(const wire::Head& head, std::size_t piece) noexcept {
  if (head.kind == wire::Kind::kData && head.offset + piece != head.total) return;
  discarded_.store(discarded_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// --- calls --------------------------------------------------------------------------------------------------------

Status Conn::carry_out(Operation& operation, Deadline deadline) noexcept {
  // Nobody else drives it then, and nothing is waited for.
  if (is_detached_.load(std::memory_order_acquire)) return carry_out_here(operation, Deadline::now());
  if (!runtime_->is_driven_here()) {
    operation.is_awaited = true;
    bool is_late = false;
    const Status handed = runtime_->poller().run(
        [&] {
          // Detached since this thread looked: another one may be at it already.
          is_late = is_detached_;
          if (is_late) return;
          start(operation);
          progress();
        },
        hand_over_by(deadline));
    if (handed != Status::kOk) return handed;
    if (is_late) return carry_out_here(operation, Deadline::now());
    const auto is_done = [&] { return operation.is_done.load(std::memory_order_relaxed); };
    if (runtime_->wait_for(is_done, deadline)) return operation.status;
    // Where the thread ends instead, it ends the operation too, before it is gone. What is with the NIC in the caller's
    // memory takes the time of a drain.
    (void)runtime_->poller().run([&] { cancel(operation); }, Deadline::never());
    (void)runtime_->wait_for(is_done, Deadline::never());
    return operation.status;
  }
  return carry_out_here(operation, deadline);
}

Status Conn::carry_out_here(Operation& operation, Deadline deadline) noexcept {
  const bool is_shared = runtime_->driver() == Driver::kCaller || is_detached_;
  Exclusive::Mark* const mark = is_shared ? used_.enter() : nullptr;
  if (is_shared && mark == nullptr) return Status::kBusy;
  if (is_done_directly(operation)) {
    if (mark != nullptr) Exclusive::leave(mark);
    return Status::kOk;
  }
  start(operation);
  const auto is_done = [&] {
    runtime_->progress();
    return operation.is_done.load(std::memory_order_relaxed);
  };
  if (is_detached_) {
    progress();
  } else {
    (void)runtime_->loop().wait_until(is_done, deadline);
  }
  if (!operation.is_done.load(std::memory_order_relaxed)) cancel(operation);
  // Bounded by the drain.
  if (!operation.is_done.load(std::memory_order_relaxed)) (void)runtime_->loop().wait_until(is_done, Deadline::never());
  if (mark != nullptr) Exclusive::leave(mark);
  return operation.status;
}

OperationQueue& Conn::queue_of(const Operation& operation) noexcept {
  switch (operation.kind) {
    case Operation::Kind::kSend: return sends_;
    case Operation::Kind::kReceive: return receives_;
    case Operation::Kind::kAsk: return asks_;
    case Operation::Kind::kTake: return takers_;
    case Operation::Kind::kWrite:
    case Operation::Kind::kRead:
    case Operation::Kind::kAtomic: break;
  }
  return transfers_;
}

void Conn::start(Operation& operation) noexcept {
  queue_of(operation).push(operation);
  const bool is_of_the_past = operation.kind == Operation::Kind::kReceive || operation.kind == Operation::Kind::kTake;
  if (reason_ != Status::kOk && !is_of_the_past) finish(operation, reason_);
}

void Conn::finish(Operation& operation, Status status) noexcept {
  queue_of(operation).remove(operation);
  for (Chunk& chunk : chunks_)
    if (chunk.operation == &operation) chunk.operation = nullptr;
  operation.status = operation.is_given_up ? Status::kTimedOut : status;
  if (operation.is_started) return keep_completion(operation);
  const auto set = [&] { operation.is_done.store(true, std::memory_order_relaxed); };
  // After this a waiting thread may have taken the operation away.
  operation.is_awaited ? runtime_->tell(set) : set();
}

// The caller's memory is not looked at any more once the operation is done: what is in flight goes through chunks of
// ours, which stay busy until the NIC is done with them; or else the connection dies, and the operation is done when
// its pieces have come back.
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
  if (operation.pieces != 0) {
    operation.is_given_up = true;
    return kill(Status::kTimedOut);
  }
  finish(operation, operation.is_absent ? Status::kNotFound : Status::kTimedOut);
}

void Conn::kill(Status reason) noexcept {
  channel_->fail(reason);
  end(reason);
}

void Conn::end(Status reason) noexcept {
  if (reason_ != Status::kOk) return;
  reason_ = reason;
  last_code.store(code_of(reason), std::memory_order_relaxed);
  is_live_.store(false, std::memory_order_release);  // Who sees this sees why.
  while (sends_.first() != nullptr) finish(*sends_.first(), reason);
  while (asks_.first() != nullptr) finish(*asks_.first(), reason);
  for (Operation* operation = transfers_.first(); operation != nullptr;) {
    Operation* const next = operation->next;
    cut(*operation, reason);
    operation = next;
  }
  feed_receives();
  feed_takers();
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

bool Conn::is_quiet() const noexcept { return has_said_goodbye() && pieces_ == 0; }

void Conn::progress() noexcept {
  feed_receives();
  feed_takers();
  if (channel_ == nullptr) return;  // Detached: what has arrived can still be taken.
  send_what_is_due();
  if (reason_ != Status::kOk) {
    // The user's memory is the NIC's until then.
    if (pieces_ != 0 && has_said_goodbye()) channel_->fail(reason_);
    return;
  }
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
    // The peer takes what is not a user's message at once: that needs no room.
    const bool is_message = operation->wire_kind == wire::Kind::kData;
    if (bytes == 0 || (is_message && !has_room(bytes))) return;  // Its receipt is to come, or room.
    const wire::Head head{.kind = operation->wire_kind,
                          .flags = operation->has_immediate ? wire::kHasImmediate : std::uint8_t{0},
                          .immediate = operation->immediate,
                          .total = operation->length,
                          .offset = operation->started};
    const std::span<const std::byte> piece(operation->from + operation->started, bytes);
    const bool is_last = operation->started + bytes == operation->length;
    if (!(is_last ? send_last(*operation, head, piece) : send(head, piece))) return;
    if (is_message) sent_ += Inbox::bytes_of(bytes);
    operation->started += bytes;
    if (is_last && operation->receipt == 0) finish(*operation, Status::kOk);
  }
}

void Conn::send_what_is_due() noexcept {
  if (!channel_->alive()) return;
  if (is_goodbye_due_) is_goodbye_due_ = !send({.kind = wire::Kind::kGoodbye}, {});
  if (is_telling_due()) (void)send({.kind = wire::Kind::kConsumed}, {});
  if (reason_ != Status::kOk) return;
  if (!questions_.empty()) answer_questions();
  if (asks_.first() != nullptr) send_asks();
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
    case wire::Kind::kTable: is_right = on_table(head, piece); break;
    case wire::Kind::kAsk: is_right = on_question(head, piece); break;
    case wire::Kind::kAnswer: is_right = on_answer(head, piece); break;
    case wire::Kind::kGoodbye:
      // Not sent when there is no credit: then the peer waits for its linger.
      (void)send({.kind = wire::Kind::kGoodbyeSeen}, {});
      end(Status::kClosed);
      break;
    case wire::Kind::kGoodbyeSeen: is_goodbye_seen_ = true; break;
    default: is_right = false;
  }
  if (!is_right) return channel.fail(Status::kProtocol);
  // Of calls that go the short way this is all that looks at what the peer waits for.
  if (is_callers_) send_what_is_due();
}

bool Conn::accept_piece(const wire::Head& head, std::span<const std::byte> piece) noexcept {
  if (head.kind == wire::Kind::kWritten) {
    const std::uint64_t window = window_ != nullptr ? window_->length : 0;
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
  while (!to_call_.empty() && !is_leaving_) {
    const RdmaCompletion completion = to_call_.pop();
    --untaken_;
    const bool is_read = completion.operation == RDMA_READ;
    const auto call_it = [&](const auto& callback) {
      callback.full != nullptr ? callback.full(&handle(), &completion, callback.user) : callback.plain(&handle());
    };
    is_read ? call_it(callbacks.read) : call_it(callbacks.written);
    progress();
  }
  if (reason_ == Status::kOk || has_told_end_ || (pieces_ != 0 && !is_leaving_)) return;
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

bool Conn::is_over() const noexcept { return reason_ != Status::kOk && (is_leaving_ || has_told_end_) && is_quiet(); }

void Conn::detach() noexcept {
  is_callers_ = false;  // The handle may stay (rdmaRuntimeStop), and the short way needs the channel.
  channel_.reset();
  runtime_->tell([this] { is_detached_ = true; });
}

void Conn::close() noexcept {
  if (!runtime_) return;
  if (runtime_->driver() == Driver::kThread) {
    const auto is_detached = [this] { return is_detached_.load(std::memory_order_relaxed); };
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
  (void)runtime_->loop().wait_until(is_gone, Deadline::after(kLinger + engine::Connection::kDrainTimeout));
  runtime_->release_here();
  detach();
}

}  // namespace verbena::c
