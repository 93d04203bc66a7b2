#include "kv/requests.hpp"

#include "base/failure.hpp"
#include "base/ticks.hpp"
#include "kv/access.hpp"
#include "kv/gets.hpp"
#include "kv/puts.hpp"
#include "kv/scans.hpp"
#include "kv/words.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace verbena::kv {
namespace {

using Place = AwaitedCall::Place;

/// Polls without a completion between two checks of the age of pipelined operations.
constexpr unsigned kPollsPerExpiry = 64;
constexpr unsigned kMostPieces = 4;  ///< READs of one value at a time.

// A request of a batch that is not settled has outcome kAgain meanwhile, and this version if READs were tried.
constexpr std::uint64_t kSkipsReads = 1;

bool is_change(wire::Op op) noexcept { return op == wire::Op::kPut || op == wire::Op::kCas || op == wire::Op::kErase; }

// --- refusals, in words

/// Text in a fixed buffer, cut at its end.
class Line {
 public:
  void add(char c) noexcept {
    if (length_ < text_.size()) text_[length_++] = c;
  }
  [[nodiscard]] std::string_view view() const noexcept { return {text_.data(), length_}; }

 private:
  std::array<char, 4 * wire::kMostPrefixBytes + 8> text_{};
  std::size_t length_ = 0;
};

/// Quotes a peer's bytes; escapes control characters and quotes.
Line quoted(std::span<const std::byte> bytes, bool is_cut) noexcept {
  constexpr std::string_view kDigits = "0123456789abcdef";
  Line line;
  line.add('"');
  for (const std::byte each : bytes) {
    const auto c = std::to_integer<unsigned char>(each);
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
      line.add(static_cast<char>(c));
      continue;
    }
    for (const char part : {'\\', 'x', kDigits[c >> 4], kDigits[c & 0xf]}) line.add(part);
  }
  line.add('"');
  if (is_cut) std::ranges::for_each(std::string_view("..."), [&](char c) { line.add(c); });
  return line;
}

const char* name_of(Rights right) noexcept {
  switch (right) {
    case Rights::kRead: return "read";
    case Rights::kWrite: return "write";
    default: return "administer";
  }
}

Status tell_denied(const char* call, const wire::Refusal& refusal, std::span<const std::byte> prefix) noexcept {
  const char* const right = name_of(refusal.right);
  if (refusal.is_promised != 0)
    return note(Status::kDenied, call, "this client has promised to be read-only (read_only): it may not {}", right);
  if (refusal.right == Rights::kAdminister)
    return note(Status::kDenied, call, "uid {} has no right to administer: the server must grant it", refusal.uid);
  if (refusal.prefixes == 0)
    return note(Status::kDenied, call, "uid {} has no right to {}: the server must grant it", refusal.uid, right);
  if (refusal.prefix_length == 0)
    return note(Status::kDenied, call, "uid {} has no right to {} all keys, which cells need", refusal.uid, right);
  const Line line = quoted(prefix, refusal.prefix_length > prefix.size());
  const unsigned others = refusal.prefixes - 1u;
  if (others == 0)
    return note(Status::kDenied, call, "uid {} has the right to {} only keys that begin with {}", refusal.uid, right,
                line.view());
  return note(Status::kDenied, call, "uid {} has the right to {} only keys that begin with {}, or with one of {} more",
              refusal.uid, right, line.view(), others);
}

Status tell_over_quota(const char* call, const wire::Refusal& refusal) noexcept {
  const bool is_memory = refusal.quota == static_cast<std::uint8_t>(Quota::kMemory);
  return note(Status::kOverQuota, call,
              "uid {} has {} {} of its quota of {}, and this does not fit: delete some, or raise {}", refusal.uid,
              refusal.used, is_memory ? "bytes" : "items", refusal.most, is_memory ? "max_memory_bytes" : "max_items");
}

double mebibytes(std::uint64_t bytes) noexcept { return static_cast<double>(bytes) / 1048576; }

// Says what a reply refuses, and makes the rest of the reply a plain one.
[[gnu::cold]] void take_full(const Operation& operation, wire::Reply& reply) noexcept {
  reply.head.kind = wire::ReplyKind::kPlain;
  if (Requests::is_abandoned(operation)) return;
  const wire::Fullness& full = reply.full;
  (void)note(
      Status::kStoreFull, call_of(operation.op),
      "the key's worker has no room for a value of {} bytes: of {:.1f} MiB, keys and values take {:.1f} (most of "
      "it, {:.1f}, in blocks of up to {} bytes), values that wait out their grace period {:.1f}; "
      "{} of its items are cells: erase some, or raise memory_bytes",
      full.needed, mebibytes(full.capacity), mebibytes(full.used), mebibytes(full.class_used), full.class_block,
      mebibytes(full.resting), full.cells);
}

// The same of rights and quotas. Makes the rest of the reply a plain one.
[[gnu::cold]] void take_refusal(const Operation& operation, wire::Reply& reply) noexcept {
  reply.head.kind = wire::ReplyKind::kPlain;
  if (Requests::is_abandoned(operation)) return;
  const char* const call = call_of(operation.op);
  (void)(reply.head.status == Status::kDenied ? tell_denied(call, reply.refusal, reply.value)
                                              : tell_over_quota(call, reply.refusal));
}

}  // namespace

// --- the table

Result<void> Requests::connect() {
  VERBENA_TRY(links_.connect(*this, gets_.reader()));
  const std::uint32_t depth = links_.depth();
  operations_.resize(depth);
  free_.reserve(depth);
  done_.reserve(depth);
  for (std::uint32_t slot = depth; slot-- > 0;) {
    operations_[slot].id = slot;
    free_.push_back(slot);
  }
  return {};
}

void Requests::close() noexcept {
  for (Operation& operation : operations_)
    if (operation.is_running() && is_awaited(operation)) finish(operation, {Status::kClosed});
  end_waiting(Status::kClosed);
}

// Requires a free slot.
Operation& Requests::take_slot(Operation::Tell tell) noexcept {
  Operation& operation = operations_[free_.back()];
  free_.pop_back();
  operation.tell = tell;
  operation.is_bounced = operation.has_reply = false;
  operation.outcome = {};
  return operation;
}

void Requests::free_slot(Operation& operation) noexcept {
  operation.stage = Stage::kFree;
  operation.id += 1u << 16;  // A reply with the old id finds nothing.
  free_.push_back(operation.slot());
}

Operation* Requests::find(std::uint32_t id) noexcept {
  const std::uint32_t slot = id & 0xffff;
  if (slot >= operations_.size() || operations_[slot].stage == Stage::kFree) return nullptr;
  return operations_[slot].id == id ? &operations_[slot] : nullptr;
}

// --- starting

// A request that is not about one key.
Status Requests::check_whole(const Ask& ask) const noexcept {
  const char* const call = call_of(ask.op);
  if (ask.op == wire::Op::kFlush && links_.options().read_only) return refuse(ask);
  if (ask.key.size() > kMaxKeyBytes)
    return note(Status::kBadKey, call, "prefix must have 0 to {} bytes; got {}", kMaxKeyBytes, ask.key.size());
  if (ask.worker >= links_.workers())
    return note(Status::kBadArgument, call, "cursor is at worker {}, and the server has {}: begin with an empty one",
                ask.worker, links_.workers());
  return Status::kOk;
}

[[gnu::cold]] Status Requests::refuse(const Ask& ask) const noexcept {
  const char* const call = call_of(ask.op);
  if (links_.options().read_only && ask.op != wire::Op::kGet)
    return note(Status::kDenied, call, "this client is read-only by its own options (read_only): connect another one");
  if (ask.key.size() - 1 >= kMaxKeyBytes)
    return note(Status::kBadKey, call, "key must have 1 to {} bytes; got {}", kMaxKeyBytes, ask.key.size());
  if (ask.value.size() > links_.server().max_value_bytes)
    return note(
        Status::kTooLong, call,
        "value must have at most {} bytes, which is the server's limit; got {}: a worker needs room for it twice, "
        "as it is replaced by another one beside it; raise memory_bytes or max_value_bytes, or split the value",
        links_.server().max_value_bytes, ask.value.size());
  return note(Status::kBadArgument, call, "expected must be 0 to {}; got {}", wire::kAnyVersion - 1, ask.expected);
}

Status Requests::check_unblocked(const Ask& ask, const char* call) const noexcept {
  if (const Status checked = check(ask); checked != Status::kOk) [[unlikely]]
    return checked;
  if (ask.value.size() >= kEagerBytes && !links_.is_registered(ask.value)) [[unlikely]]
    return note(Status::kBadArgument, call,
                "value has {} bytes; from {} bytes on it must be in memory that Client::allocate has returned",
                ask.value.size(), kEagerBytes);
  return Status::kOk;
}

// On success `started` is the new operation.
Status Requests::start(const Ask& ask, Operation::Tell tell, Operation*& started) noexcept {
  if (free_.empty()) return Status::kAgain;
  Operation& operation = take_slot(tell);
  started = &operation;
  operation.op = ask.op;
  const bool is_on_key = has_key(ask.op);
  operation.hash = is_on_key ? gets_.reader().hash(ask.key) : 0;
  operation.worker = static_cast<std::uint16_t>(
      is_on_key ? worker_of(operation.hash, static_cast<unsigned>(links_.workers())) : ask.worker);
  operation.key_length = static_cast<std::uint16_t>(ask.key.size());
  operation.mismatches = 0;
  operation.source.way = Operation::Way::kMessage;
  operation.transfer = {.burst = kMostPieces};
  operation.out = ask.out;
  if (ask.op == wire::Op::kGet) {
    std::memcpy(operation.key.data(), ask.key.data(), ask.key.size());
    operation.sent_ticks = ticks_now();
    if (!ask.skips_reads && gets_.start(operation)) return Status::kOk;
  }
  const Status status = send(ask, operation);
  if (status != Status::kOk) [[unlikely]] {
    free_slot(operation);
    return links_.notice(operation.worker, status);
  }
  if (ask.op == wire::Op::kGet) ++gets_.counts().by_message;
  return status;
}

inline Status Requests::send(const Ask& ask, Operation& operation) noexcept {
  if (ask.value.size() >= kEagerBytes) {
    operation.stage = Stage::kSending;
    // The caller sends others in pieces.
    return links_.is_registered(ask.value) ? puts_.send_lent(operation, ask) : Status::kOk;
  }
  operation.stage = Stage::kAwaiting;
  std::array<std::byte, 24> head;
  const std::size_t bytes = wire::encode_head({.op = ask.op, .key_length = operation.key_length, .id = operation.id},
                                              ask.expected, head, ask.ttl_ns);
  return channel_of(operation).send(std::span(head).first(bytes), ask.key, ask.value);
}

void Requests::end_unless_sent(Operation& operation, Status status) noexcept {
  if (status == Status::kOk) return;
  const Status noticed = links_.notice(operation.worker, status);
  if (!links_.has_failed()) finish(operation, {noticed});  // Otherwise it ends with the connection.
}

// --- blocking calls

Outcome Requests::put(Ask ask, const PutOptions& options, Deadline deadline) noexcept {
  if (const Status status = take_options(options, ask); status != Status::kOk) [[unlikely]]
    return {status};
  return run(ask, deadline);
}

Outcome Requests::run(const Ask& ask, Deadline deadline) noexcept {
  if (is_forked()) [[unlikely]]
    return {note_as(call_of(ask.op), links_.connection_error())};
  for (;;) {
    bool is_resting = false;
    const Outcome outcome = attempt(ask, deadline, is_resting);
    if (!is_resting) [[likely]]
      return outcome;
    // The server has the memory, but readers may still use it. Some of it becomes free after an epoch, a sixteenth of
    // the grace period. Waits a little longer than that, so that the value is not sent in vain.
    const Deadline pause = Deadline::at_ticks(ticks_now() + links_.read_ticks() / 10);
    while (!pause.passed() && !deadline.passed() && !links_.has_failed())
      (void)links_.loop().wait(earlier(pause, deadline));
    if (links_.has_failed()) return {links_.failure()};
    if (deadline.passed())
      return {note(Status::kStoreFull, call_of(ask.op),
                   "the memory for a value of {} bytes waits out its grace period, and did not become free "
                   "before the deadline: give it more time, or raise memory_bytes",
                   ask.value.size())};
  }
}

Outcome Requests::attempt(const Ask& ask, Deadline deadline, bool& is_resting) noexcept {
  if (const Status checked = check(ask); checked != Status::kOk) [[unlikely]]
    return {checked};
  Operation* operation = nullptr;
  Status status = start(ask, nullptr, operation);
  // No credit, or slots taken by calls that timed out and wait for their replies: something has to complete first. Does
  // not wait for slots that only the caller's own `poll` frees.
  while (status == Status::kAgain && pipelined_ < operations_.size()) {
    if (links_.loop().wait(deadline) == 0 && deadline.passed()) return {Status::kTimedOut};
    if (links_.has_failed()) break;
    status = start(ask, nullptr, operation);
  }
  const bool is_started = status == Status::kOk;
  if (is_started && operation->stage == Stage::kSending) status = puts_.send_chunks(*operation, ask, deadline);
  const auto is_over = [&] { return operation->stage == Stage::kDone || links_.has_failed(); };
  if (status == Status::kOk) status = links_.loop().wait_until(is_over, deadline);
  drain();
  if (!is_started) return {links_.has_failed() ? links_.failure() : status};
  if (operation->stage != Stage::kDone) return give_up(*operation);
  const Outcome outcome = operation->outcome;
  std::erase(done_, operation->slot());
  free_slot(*operation);
  is_resting = outcome.status == Status::kAgain;  // The server's answer: a full table of this side never gets here.
  return outcome;
}

// The deadline passed. Ends everything that may still touch the caller's memory before it returns.
Outcome Requests::give_up(Operation& operation) noexcept {
  if (!uses_memory(operation)) {
    abandon(operation);
    return {Status::kTimedOut};
  }
  links_.die_late();
  drain();
  std::erase(done_, operation.slot());
  free_slot(operation);
  return {Status::kTimedOut};
}

bool Requests::uses_memory(const Operation& operation) noexcept {
  switch (operation.stage) {
    case Stage::kSending: return !operation.transfer.is_idle();
    case Stage::kReading: return !operation.is_bounced;
    default: return operation.stage == Stage::kLent;
  }
}

void Requests::abandon(Operation& operation) noexcept {
  operation.tell = tell_nobody;
  operation.out = {};
  if (operation.stage != Stage::kReading && operation.stage != Stage::kOnWord) return;
  // The connection copies into memory of its own, and reports nothing of it here any more.
  const Piece piece = operation.stage == Stage::kReading ? Piece::kRead : Piece::kWord;
  (void)channel_of(operation).abandon(token_of(piece, operation));
  if (operation.transfer.pieces > 1) gets_.give_back_ahead(operation.transfer.pieces - 1);
  free_slot(operation);
}

// --- pipelined calls

Status Requests::start_pipelined(Ask ask, std::uint64_t cookie) noexcept {
  if (const Status checked = check_unblocked(ask, "kv::Client::start_put"); checked != Status::kOk) [[unlikely]]
    return checked;
  Reader::Read read = Reader::Read::kNoWay;
  Outcome outcome;
  if (ask.op == wire::Op::kGet && gets_.reads_now()) {
    if (free_.empty()) return Status::kAgain;
    // No deadline: nothing waits here.
    read = gets_.reader().get(ask.key, ask.out, Deadline::never(), outcome);
    scans_.report_reads();
    ask.skips_reads = read != Reader::Read::kNoWay;
  }
  const bool is_over = read == Reader::Read::kDone;
  Operation* operation = nullptr;
  if (is_over) {
    operation = &take_slot(nullptr);
  } else if (const Status status = start(ask, nullptr, operation); status != Status::kOk) {
    return status;
  }
  operation->cookie = cookie;
  operation->started_ticks = ask.op == wire::Op::kGet ? operation->sent_ticks : ticks_now();
  ++pipelined_;
  if (is_over) finish(*operation, outcome);
  return Status::kOk;
}

std::size_t Requests::poll(std::span<Completion> completions) noexcept {
  if (is_forked()) [[unlikely]]
    return 0;
  if (links_.workers() != 0 && done_.size() < completions.size()) work();
  const std::size_t count = std::min(completions.size(), done_.size());
  for (std::size_t i = 0; i < count; ++i) {
    Operation& operation = operations_[done_[i]];
    completions[i] = {operation.cookie, operation.outcome};
    free_slot(operation);
  }
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
  pipelined_ -= count;
  return count;
}

std::size_t Requests::wait(std::span<Completion> completions, Deadline deadline) noexcept {
  const auto is_over = [&] { return !done_.empty() || pipelined_ == 0 || completions.empty() || links_.has_failed(); };
  while (!is_over() && links_.loop().wait_until(is_over, earlier(deadline, pipeline_deadline())) != Status::kOk) {
    expire();
    if (deadline.passed()) break;
  }
  return poll(completions);
}

void Requests::work() noexcept {
  if (links_.loop().poll() != 0) {
    empty_polls_ = 0;
  } else if (++empty_polls_ >= kPollsPerExpiry) {
    empty_polls_ = 0;
    expire();
  }
  drain();
}

// The default deadline of the oldest pipelined operation. No call is blocked meanwhile.
Deadline Requests::pipeline_deadline() const noexcept {
  std::uint64_t oldest = ticks_now();
  for (const Operation& operation : operations_)
    if (operation.is_running() && operation.tell == nullptr) oldest = std::min(oldest, operation.started_ticks);
  return Deadline::at_ticks(oldest + ticks_in(links_.options().timeout));
}

void Requests::expire() noexcept {
  if (pipelined_ == done_.size() || !pipeline_deadline().passed()) return;
  links_.die(Status::kTimedOut, "a pipelined operation had no answer in time; connect again, with a longer timeout");
}

// --- replies

void Requests::on_message(channel::Connection& channel, std::span<const std::byte> body) noexcept {
  wire::Reply reply;
  if (wire::decode_reply(body, reply) != Status::kOk) [[unlikely]]
    return links_.die(Status::kProtocol, "the server sent a reply that makes no sense");
  if (reply.head.kind == wire::ReplyKind::kGoodbye) [[unlikely]]
    return links_.on_goodbye();
  Operation* const operation = find(reply.head.id);
  if (operation == nullptr || &channel_of(*operation) != &channel) [[unlikely]]
    return links_.die(Status::kProtocol, "the server answered a request that the client did not make");
  if (reply.head.kind == wire::ReplyKind::kRefusal) [[unlikely]]
    take_refusal(*operation, reply);
  if (reply.head.kind == wire::ReplyKind::kFull) [[unlikely]]
    take_full(*operation, reply);
  on_reply(*operation, reply);
}

void Requests::on_reply(Operation& operation, const wire::Reply& reply) noexcept {
  const bool is_plain = reply.head.kind == wire::ReplyKind::kPlain;
  if (operation.stage == Stage::kSending && !operation.has_reply && is_plain) {
    operation.has_reply = true;
    gets_.note(operation, reply);
    operation.outcome = {reply.head.status, reply.head.version, 0};
    return settle(operation);
  }
  if (operation.stage != Stage::kAwaiting && operation.stage != Stage::kLent) [[unlikely]]
    return links_.die(Status::kProtocol, "the server answered a request twice");
  if (is_abandoned(operation)) [[unlikely]]
    return free_slot(operation);
  gets_.note(operation, reply);
  if (is_plain && (reply.head.status != Status::kOk || is_change(operation.op)))
    return finish(operation, {reply.head.status, reply.head.version, 0});
  bool fits = false;
  switch (operation.op) {
    case wire::Op::kGet: fits = gets_.take_reply(operation, reply); break;
    case wire::Op::kCell: fits = words_.take_reply(operation, reply); break;
    default: fits = scans_.take_reply(operation, reply);
  }
  if (!fits) links_.die(Status::kProtocol, "the server's reply does not fit the request");
}

// A large put is complete when the reply is here and the channel no longer reads the value.
void Requests::settle(Operation& operation) noexcept {
  if (operation.has_reply && operation.transfer.is_idle()) finish(operation, operation.outcome);
}

void Requests::on_complete(channel::Connection&, const channel::Completion& completion) noexcept {
  const Piece piece = piece_of(completion.token);
  if (piece == Piece::kMark) return gets_.on_mark();
  if (piece == Piece::kBodyChunk) links_.bounce().give_back(chunk_of(completion.token));
  Operation* const found = find(static_cast<std::uint32_t>(completion.token));
  if (found == nullptr) return;
  Operation& operation = *found;
  --operation.transfer.pieces;
  if (piece == Piece::kRead && operation.transfer.pieces != 0) gets_.give_back_ahead(1);
  if (completion.status != Status::kOk) return;  // The connection is failing; the operation ends with it.
  switch (piece) {
    case Piece::kBodyChunk: return settle(operation);
    case Piece::kRead: return gets_.on_piece_read(operation);
    case Piece::kLookup: return gets_.on_lookup_read(operation);
    case Piece::kWord: return words_.on_word(operation, completion.old);
    case Piece::kMark: return;
  }
}

void Requests::end_operations() noexcept {
  links_.drain();
  for (Operation& operation : operations_)
    if (operation.is_running()) finish(operation, {links_.failure()});
  end_waiting(links_.failure());
}

// --- batches

void Requests::get(std::span<GetRequest> requests, Deadline deadline) noexcept {
  bool is_over = true;
  for (std::size_t from = 0; from < requests.size(); from += Reader::kMostAtOnce) {
    const std::span some = requests.subspan(from, std::min(Reader::kMostAtOnce, requests.size() - from));
    Reader::Left left{.by_queue = ~std::uint32_t{0}};
    if (gets_.reads_now() && !links_.is_guarded() && !links_.has_failed())
      left = gets_.reader().get_some(some, deadline);
    if ((left.by_message | left.by_queue) == 0) [[likely]]
      continue;
    is_over = false;
    for (std::size_t i = 0; i < some.size(); ++i) {
      if ((left.by_queue >> i & 1) != 0) some[i].outcome = {Status::kAgain};
      if ((left.by_message >> i & 1) != 0) some[i].outcome = {Status::kAgain, kSkipsReads};
    }
  }
  scans_.report_reads();
  if (is_over) return;
  run_batch(requests, deadline);
  for (GetRequest& request : requests)
    if (request.outcome.status == Status::kAgain) request.outcome.version = 0;
}

void Requests::put(std::span<PutRequest> requests, Deadline deadline) noexcept {
  for (PutRequest& request : requests) request.outcome = {Status::kAgain};
  run_batch(requests, deadline);
  // These found memory still in its grace period; the blocking call waits for that.
  for (PutRequest& request : requests)
    if (request.outcome.status == Status::kAgain)
      request.outcome =
          put({.op = wire::Op::kPut, .key = request.key, .value = request.value}, request.options, deadline);
}

// False: there is no room for it now. Otherwise its outcome is set, or will be.
bool Requests::start_one(GetRequest& request, Deadline) noexcept {
  return start_in_batch({.op = wire::Op::kGet,
                         .key = request.key,
                         .out = request.out,
                         .skips_reads = request.outcome.version == kSkipsReads},
                        request.outcome);
}

bool Requests::start_one(PutRequest& request, Deadline deadline) noexcept {
  Ask ask{.op = wire::Op::kPut, .key = request.key, .value = request.value};
  if (request.value.size() >= kEagerBytes && !links_.is_registered(request.value)) {
    // Goes through the loop's chunks, in a call of its own; the others proceed meanwhile.
    request.outcome = put(ask, request.options, deadline);
    return true;
  }
  if (const Status status = take_options(request.options, ask); status != Status::kOk) [[unlikely]] {
    request.outcome = {status};
    return true;
  }
  return start_in_batch(ask, request.outcome);
}

bool Requests::start_in_batch(const Ask& ask, Outcome& result) noexcept {
  Operation* operation = nullptr;
  Status status = check(ask);
  if (status == Status::kOk) status = start(ask, tell_batch, operation);
  if (status == Status::kAgain) return false;
  if (status == Status::kOk) {
    operation->result = &result;
    ++batched_;
  } else {
    result = {status};
  }
  return true;
}

template <class Request>
void Requests::run_batch(std::span<Request> requests, Deadline deadline) noexcept {
  if (is_forked()) [[unlikely]] {
    for (Request& request : requests) request.outcome = {Status::kForked};
    return;
  }
  std::size_t next = 0;
  for (;;) {
    for (const auto& channel : links_.channels()) channel->hold();
    while (next < requests.size() &&
           (requests[next].outcome.status != Status::kAgain || start_one(requests[next], deadline)))
      ++next;
    for (const auto& channel : links_.channels()) channel->release();
    if (next == requests.size() && batched_ == 0) break;
    // Does not wait for slots that only the caller's own `poll` frees.
    if (batched_ == 0 && pipelined_ == operations_.size()) return;
    const bool is_late = links_.loop().wait(deadline) == 0 && deadline.passed();
    drain();
    if (!is_late || links_.has_failed()) continue;
    give_up_batch();
    for (; next < requests.size(); ++next)
      if (requests[next].outcome.status == Status::kAgain) requests[next].outcome = {Status::kTimedOut};
  }
  // No request was started, because the connection had already failed.
  drain();
}

// The deadline passed: ends each request like a single call.
void Requests::give_up_batch() noexcept {
  const auto is_ours = [](const Operation& operation) {
    return operation.is_running() && operation.tell == tell_batch;
  };
  if (std::ranges::any_of(operations_, [&](const Operation& one) { return is_ours(one) && uses_memory(one); })) {
    links_.die_late();
    drain();
  }
  for (Operation& operation : operations_)
    if (is_ours(operation)) {
      *operation.result = {Status::kTimedOut};
      abandon(operation);
    }
  batched_ = 0;
}

void Requests::tell_batch(Requests& requests, Operation& operation) noexcept {
  *operation.result = operation.outcome;
  --requests.batched_;
  requests.free_slot(operation);
}

// --- awaited calls: begun, queued for room, told, and taken back at any time. After that nothing of the caller's
// memory is used: gets copy out of the client's own, and the channel forgets what it was to fill. Only a large put goes
// on, out of memory of the client's.

bool Requests::carry_out_now(AwaitedCall& call) noexcept {
  if (call.word != AwaitedCall::Word::kNone) return words_.carry_out_now(call);
  if (const Status checked = check_unblocked(call.ask, call_of(call.ask.op)); checked != Status::kOk) [[unlikely]] {
    call.outcome = {checked};
    return true;
  }
  if (call.ask.op != wire::Op::kGet || !gets_.reads_now()) return false;
  // No deadline: nothing waits here.
  const Reader::Read read = gets_.reader().get(call.ask.key, call.ask.out, Deadline::never(), call.outcome);
  if (read == Reader::Read::kDone) return true;
  call.outcome = {};
  call.ask.skips_reads = read != Reader::Read::kNoWay;
  return false;
}

bool Requests::begin(AwaitedCall& call, const void* who) noexcept {
  // Behind those that wait for room.
  const Status status = awaited_.queued.first != nullptr ? Status::kAgain : start_awaited(call);
  if (status != Status::kOk && status != Status::kAgain) {
    call.outcome = {status};
    return false;
  }
  if (status == Status::kAgain) {
    call.place = Place::kQueued;
    awaited_.queued.push_back(call);
  }
  awaited_.who.store(who, std::memory_order_relaxed);
  ++awaited_.count;
  return true;
}

Status Requests::start_awaited(AwaitedCall& call) noexcept {
  if (links_.has_failed()) [[unlikely]]
    return links_.connection_error().status();
  Operation* operation = nullptr;
  const Status status =
      call.word == AwaitedCall::Word::kNone ? start(call.ask, tell_awaited, operation) : start_on_word(call, operation);
  if (status != Status::kOk) return status;
  operation->awaited = &call;
  call.operation = operation;
  call.place = Place::kUnderWay;
  return status;
}

Status Requests::start_on_word(AwaitedCall& call, Operation*& started) noexcept {
  if (free_.empty()) return Status::kAgain;
  Operation& operation = take_slot(tell_awaited);
  started = &operation;
  operation.op = wire::Op::kCell;
  operation.key_length = 0;
  operation.out = {};
  operation.awaited = &call;
  const Status status = words_.start(call, operation);
  if (status == Status::kOk) [[likely]]
    return status;
  free_slot(operation);
  return status == Status::kAgain ? status : words_.end(status);
}

void Requests::tell_awaited(Requests& requests, Operation& operation) noexcept {
  AwaitedCall& call = *operation.awaited;
  const Outcome outcome = operation.outcome;
  requests.free_slot(operation);
  if (outcome.status != Status::kAgain) return requests.end_awaited(call, outcome);
  // As for blocking puts: the server has the memory, but readers may still use it. See `run`.
  call.rests_until = ticks_now() + requests.links_.read_ticks() / 10;
  call.place = Place::kResting;
  requests.awaited_.resting.push_back(call);
}

void Requests::end_awaited(AwaitedCall& call, const Outcome& outcome) noexcept {
  call.outcome = outcome;
  forget(call);
  call.finish(outcome.status);
}

void Requests::forget(AwaitedCall& call) noexcept {
  call.place = Place::kNowhere;
  if (--awaited_.count == 0) awaited_.who.store(nullptr, std::memory_order_relaxed);
}

bool Requests::withdraw(AwaitedCall& call) noexcept {
  switch (call.place) {
    case Place::kNowhere: return false;
    case Place::kQueued: awaited_.queued.remove(call); break;
    case Place::kResting:
      awaited_.resting.remove(call);
      call.outcome = {Status::kStoreFull};
      break;
    case Place::kUnderWay: abandon(*call.operation); break;
  }
  forget(call);
  return true;
}

// The connection has ended. Those under way were told.
void Requests::end_waiting(Status reason) noexcept {
  for (AwaitedCalls* calls : {&awaited_.queued, &awaited_.resting})
    while (calls->first != nullptr) {
      AwaitedCall& call = *calls->first;
      calls->remove(call);
      end_awaited(call, {reason});
    }
}

// --- polling

void Requests::look() noexcept {
  if (is_forked()) [[unlikely]]
    return;  // Their deadlines end them.
  if (links_.workers() != 0) work();
  go_on_awaited();
}

void Requests::sleep(Deadline deadline) noexcept {
  if (is_forked()) [[unlikely]]
    return;
  const AwaitedCall* const resting = awaited_.resting.first;
  if (resting != nullptr) deadline = earlier(deadline, Deadline::at_ticks(resting->rests_until));
  (void)links_.loop().wait(deadline);
  drain();
  go_on_awaited();
}

// A start may end the connection, and with that all that wait.
void Requests::go_on_awaited() noexcept {
  while (awaited_.resting.first != nullptr && awaited_.resting.first->rests_until <= ticks_now()) {
    AwaitedCall& call = *awaited_.resting.first;
    awaited_.resting.remove(call);
    call.place = Place::kQueued;
    awaited_.queued.push_back(call);
  }
  while (awaited_.queued.first != nullptr) {
    AwaitedCall& call = *awaited_.queued.first;
    awaited_.queued.remove(call);
    const Status status = start_awaited(call);
    if (status == Status::kAgain) return awaited_.queued.push_front(call);
    if (status != Status::kOk) end_awaited(call, {status});
  }
}

// --- what was given up

Status Requests::settle(Deadline deadline) noexcept {
  if (is_forked()) [[unlikely]]
    return note_as("kv::Client::settle", links_.connection_error());
  const auto is_settled = [&] {
    const auto is_left = [](const Operation& one) { return one.is_running() && is_abandoned(one); };
    return links_.has_failed() || std::ranges::none_of(operations_, is_left);
  };
  const Status status = links_.loop().wait_until(is_settled, deadline);
  drain();
  return status;
}

}  // namespace verbena::kv
