#include "channel/transfers.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::channel {

using engine::QueuePair;

namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);
/// Transfers of a batch that are at most this long share one completion, that of the last.
constexpr std::uint64_t kShort = 4096;

/// The rest of a READ or WRITE whose first `done` bytes are done.
[[nodiscard]] Operation operation_of(Operation::Kind kind, const LocalSpan& local, const RemoteSpan& remote,
                                     std::uint64_t done) noexcept {
  const std::uint64_t left = remote.length - done;
  return {.local = local.data + done,
          .remote = {remote.address + done, left, remote.rkey},
          .total = left,
          .lkey = local.lkey,
          .kind = kind,
          .is_bounced = local.is_bounced};
}

}  // namespace

void Transfers::open(const nic::Buffer& memory, std::byte* begin) noexcept {
  results_ = begin;
  results_lkey_ = memory.lkey();
  max_message_ = pair_.nic().limits().max_message;
  has_atomics_ = pair_.nic().capabilities().has_atomics;
  most_inline_ = std::min(pair_.max_inline(), engine::kHeldInlineBytes);
  request_.sg_list = &sge_;
  request_.num_sge = 1;
}

Result<void> Transfers::import_window(const nic::Window& window, Deadline deadline) {
  constexpr const char* kCall = "import_window";
  if (pair_.get() == nullptr)
    return fail(pair_.reason(), kCall, 0, "the connection has failed, and its queue pair is gone: connect again");
  VERBENA_TRY(pair_.nic().import_window(pair_.get(), window, deadline));
  const Status added = windows_.add(window);
  if (added == Status::kOk) return {};
  (void)pair_.nic().release_window(pair_.get(), window);
  return fail(added, kCall, 0, "{}",
              added == Status::kLimit ? "a connection imports at most 64 windows: release one first"
                                      : "the window wraps around the end of the address space");
}

Result<void> Transfers::release_window(const nic::Window& window) {
  if (windows_.remove(window) != Status::kOk)
    return fail(Status::kNotFound, "release_window", 0, "the window with rkey {:#x} is not imported", window.rkey);
  // If the queue pair is gone, the NIC has already released the window.
  return pair_.get() != nullptr ? pair_.nic().release_window(pair_.get(), window) : Result<void>{};
}

Status Transfers::check_word(const RemoteSpan& word) noexcept {
  if (word.address % kWordBytes != 0 || word.length != kWordBytes) return Status::kBadArgument;
  if (max_reads_ == 0 || !has_atomics_) return Status::kUnsupported;
  return check_place(word, IBV_ACCESS_REMOTE_ATOMIC);
}

// --- at once ------------------------------------------------------------------------------------------------------

inline Status Transfers::move_now(nic::Direct::Move nic::Direct::* move, std::byte* local, std::uint32_t lkey,
                                  const RemoteSpan& remote, std::uint64_t& done) noexcept {
  do {
    const nic::Direct* const now = direct();
    if (now == nullptr) [[unlikely]]
      return Status::kAgain;
    const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(remote.length - done, max_message_));
    if (!(now->*move)(pair_.get(), local + done, lkey, bytes, remote.address + done, remote.rkey)) [[unlikely]]
      return Status::kAgain;
    done += bytes;
    pair_.went_directly(bytes);
  } while (done != remote.length);
  return Status::kOk;
}

Status Transfers::change_now(const Change& change, RemoteSpan word, std::uint64_t& old) noexcept {
  if (const Status checked = check_word(word); checked != Status::kOk) return checked;
  const nic::Direct* const now = direct();
  if (now == nullptr ||
      !now->atomic(pair_.get(), change.opcode, change.compare_add, change.swap, word.address, word.rkey, old))
    return Status::kAgain;
  pair_.went_directly(kWordBytes);
  return Status::kOk;
}

Status Transfers::read_list_now(std::span<const nic::PlainRead> reads, std::uint32_t rkey) noexcept {
  std::uint64_t bytes = 0;
  for (const nic::PlainRead& read : reads) {
    const RemoteSpan from{.address = read.from, .length = read.bytes, .rkey = rkey};
    if (const Status checked = check_read(from, read.bytes); checked != Status::kOk) [[unlikely]]
      return checked;
    bytes += read.bytes;
  }
  const nic::Direct* const now = direct();
  if (now == nullptr || !now->read_list(pair_.get(), reads.data(), reads.size(), rkey)) [[unlikely]]
    return Status::kAgain;
  pair_.went_directly(bytes, reads.size());
  return Status::kOk;
}

// --- started ------------------------------------------------------------------------------------------------------

Operation* Transfers::begin(const Operation& operation) noexcept {
  Operation* const begun = operations_.begin(operation);
  if (begun == nullptr) return nullptr;
  waiting_.push(*begun);
  waiting_writes_ += operation.kind == Kind::kWrite ? 1 : 0;
  progress();
  return begun;
}

template <Operation::Kind kKind>
Status Transfers::start(const LocalSpan& local, RemoteSpan remote, std::uint64_t token) noexcept {
  if (const Status checked = check_spans<kKind>(remote, local.length); checked != Status::kOk) return checked;
  Operation operation = operation_of(kKind, local, remote, 0);
  operation.token = token;
  return begin(operation) != nullptr ? Status::kOk : Status::kAgain;
}
template Status Transfers::start<Operation::Kind::kRead>(const LocalSpan&, RemoteSpan, std::uint64_t) noexcept;
template Status Transfers::start<Operation::Kind::kWrite>(const LocalSpan&, RemoteSpan, std::uint64_t) noexcept;

Status Transfers::start_change(const Change& change, RemoteSpan word, std::uint64_t token) noexcept {
  if (const Status checked = check_word(word); checked != Status::kOk) return checked;
  const Operation operation{
      .token = token, .remote = word, .change = change, .total = kWordBytes, .kind = Kind::kAtomic};
  return begin(operation) != nullptr ? Status::kOk : Status::kAgain;
}

void Transfers::progress() noexcept {
  while (!waiting_.empty() && pair_.room() != 0 && pair_.reason() == Status::kOk) {
    Operation& operation = *waiting_.first();
    const bool is_write = operation.kind == Kind::kWrite;
    if (!is_write && reads_out_ >= max_reads_) return;
    if (!(operation.kind == Kind::kAtomic ? post_atomic(operation) : post_piece(operation))) return;
    reads_out_ += is_write ? 0 : 1;
    if (operation.posted != operation.total) continue;
    waiting_writes_ -= is_write ? 1 : 0;
    waiting_.pop();
    operation.last_position = pair_.sends().position();
    posted_.push(operation);
  }
}

bool Transfers::post_piece(Operation& operation) noexcept {
  auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(operation.total - operation.posted, max_message_));
  const bool is_short = is_inline(operation, bytes);
  sge_ = {.addr = reinterpret_cast<std::uintptr_t>(operation.local + operation.posted), .lkey = operation.lkey};
  if (operation.is_bounced && !is_short) {
    if (!fill_chunk(operation, bytes)) return false;
    sge_ = {.addr = reinterpret_cast<std::uintptr_t>(bounce_.data(operation.last_chunk)), .lkey = bounce_.lkey()};
  }
  sge_.length = bytes;
  request_.opcode = operation.kind == Kind::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  request_.send_flags = is_short ? IBV_SEND_INLINE : 0;
  request_.wr.rdma = {.remote_addr = operation.remote.address + operation.posted, .rkey = operation.remote.rkey};
  pair_.count().inline_sends += is_short ? 1 : 0;
  operation.posted += bytes;
  ++operation.outstanding;
  pair_.count().bytes += bytes;
  if (operation.posted != operation.total)
    return pair_.post(request_, operations_.tag(operation), QueuePair::Signal::kAlways);
  return pair_.post(request_, kNoTag,
                    operation.total <= kShort ? QueuePair::Signal::kWithDoorbell : QueuePair::Signal::kAlways);
}

bool Transfers::post_atomic(Operation& operation) noexcept {
  sge_ = {.addr = reinterpret_cast<std::uintptr_t>(result_of(operation)), .length = kWordBytes, .lkey = results_lkey_};
  request_.opcode = operation.change.opcode;
  request_.send_flags = 0;
  request_.wr.atomic = {.remote_addr = operation.remote.address,
                        .compare_add = operation.change.compare_add,
                        .swap = operation.change.swap,
                        .rkey = operation.remote.rkey};
  operation.posted = operation.total;
  ++operation.outstanding;
  pair_.count().bytes += kWordBytes;
  return pair_.post(request_, kNoTag, QueuePair::Signal::kWithDoorbell);
}

bool Transfers::fill_chunk(Operation& operation, std::uint32_t& bytes) noexcept {
  const std::uint32_t chunk = bounce_.take();
  if (chunk == Bounce::kNone) {
    bounce_.wait(*this);
    return false;
  }
  bytes = std::min(bytes, static_cast<std::uint32_t>(Bounce::kChunkBytes));
  if (operation.kind == Kind::kWrite) std::memcpy(bounce_.data(chunk), operation.local + operation.posted, bytes);
  bounce_[chunk] = {.next = Bounce::kNone, .length = bytes};
  (operation.chunks == kNoSlot ? operation.chunks : bounce_[operation.last_chunk].next) = chunk;
  operation.last_chunk = chunk;
  return true;
}
static_assert(Bounce::kNone == kNoSlot, "an operation's list of chunks ends as the chunks' own does");

// Pieces of one operation complete in post order, so the oldest chunk is the one to free.
void Transfers::empty_chunk(Operation& operation) noexcept {
  const std::uint32_t chunk = operation.chunks;
  const Bounce::Chunk piece = bounce_[chunk];
  const bool is_wanted = operation.kind == Kind::kRead && operation.waiter != Operation::Waiter::kNobody;
  if (is_wanted) std::memcpy(operation.local + operation.finished, bounce_.data(chunk), piece.length);
  operation.finished += piece.length;
  operation.chunks = piece.next;
  bounce_.give_back(chunk);
}

void Transfers::finish_piece(Operation& operation) noexcept {
  reads_out_ -= operation.kind != Kind::kWrite ? 1 : 0;
  --operation.outstanding;
  if (operation.chunks != kNoSlot) empty_chunk(operation);
}

bool Transfers::on_piece(Operation& operation) noexcept {
  finish_piece(operation);
  if (operation.outstanding != 0 || operation.posted != operation.total) return false;
  if (operation.waiter == Operation::Waiter::kNobody) --pair_.count().quarantined;
  return true;
}

void Transfers::finish(Operation& operation) noexcept {
  finish_piece(operation);
  if (operation.kind == Kind::kAtomic) std::memcpy(&operation.old, result_of(operation), kWordBytes);
  if (operation.waiter == Operation::Waiter::kNobody) --pair_.count().quarantined;
}

void Transfers::on_drained() noexcept {
  waiting_writes_ = reads_out_ = 0;
  bounce_.forget(*this);
  operations_.for_each([this](Operation& operation) {
    for (std::uint32_t chunk = operation.chunks; chunk != kNoSlot;) {
      const std::uint32_t behind = bounce_[chunk].next;
      bounce_.give_back(chunk);
      chunk = behind;
    }
    operation.chunks = kNoSlot;
    const bool is_transfer = operation.kind < Kind::kLarge;
    if (is_transfer && operation.waiter == Operation::Waiter::kNobody) --pair_.count().quarantined;
  });
}

Operation* Transfers::take_unfinished() noexcept {
  engine::Fifo<Operation>& queue = posted_.empty() ? waiting_ : posted_;
  Operation* const oldest = queue.first();
  if (oldest != nullptr) queue.pop();
  return oldest;
}

// Cancels what is not posted; pieces in flight, in our chunks, keep their slot until they complete.
void Transfers::give_away(Operation& operation) noexcept {
  if (operation.posted != operation.total) {
    waiting_.remove(operation);
    waiting_writes_ -= operation.kind == Kind::kWrite ? 1 : 0;
    operation.total = operation.posted;
  }
  if (operation.outstanding == 0) return operations_.end(operation);
  operation.waiter = Operation::Waiter::kNobody;
  ++pair_.count().quarantined;
}

bool Transfers::abandon(std::uint64_t token) noexcept {
  bool are_all = true;
  operations_.for_each([&](Operation& operation) {
    if (operation.waiter != Operation::Waiter::kHandler || operation.token != token) return;
    const bool is_safe = operation.is_bounced || operation.kind == Kind::kAtomic || operation.outstanding == 0;
    if (is_safe) give_away(operation);
    are_all &= is_safe;
  });
  return are_all;
}

// --- blocking -----------------------------------------------------------------------------------------------------

Status Transfers::run(Operation operation, const Patience& patience, std::uint64_t* old) noexcept {
  engine::CompletionLoop& loop = pair_.loop();
  if (loop.in_handler()) return Status::kAgain;
  // Takes what the peer sent earlier first: if it has left, this call must not wait for it.
  loop.poll();
  if (operations_.is_full()) {
    const auto has_room = [this] { return !operations_.is_full() || pair_.reason() != Status::kOk; };
    if (loop.wait_until(has_room, patience.begin()) != Status::kOk) return Status::kTimedOut;
  }
  if (pair_.reason() != Status::kOk) return pair_.reason();
  operation.waiter = Operation::Waiter::kCall;
  Operation& begun = *begin(operation);
  loop.poll();
  const auto is_over = [&] { return begun.is_over; };
  if (!is_over() && loop.wait_until(is_over, patience.begin()) != Status::kOk) return give_up(begun);
  const Status status = begun.status;
  if (old != nullptr && status == Status::kOk) *old = begun.old;
  operations_.end(begun);
  return status;
}

Status Transfers::give_up(Operation& operation) noexcept {
  // The post has copied inline data, and an atomic's result lands in our memory.
  const bool is_free = operation.is_bounced || operation.kind == Kind::kAtomic || operation.outstanding == 0 ||
                       is_inline(operation, operation.total);
  if (is_free) {
    give_away(operation);
    return Status::kTimedOut;
  }
  pair_.fail(Status::kTimedOut);
  // The drain's own time limit bounds this.
  (void)pair_.loop().wait_until([&] { return operation.is_over; }, Deadline::never());
  operations_.end(operation);
  return Status::kTimedOut;
}

template <Operation::Kind kKind>
Status Transfers::move(const LocalSpan& local, RemoteSpan remote, const Patience& patience) noexcept {
  if (const Status checked = check_spans<kKind>(remote, local.length); checked != Status::kOk) [[unlikely]]
    return checked;
  constexpr auto kPlain = kKind == Kind::kRead ? &nic::Direct::read_plain : &nic::Direct::write_plain;
  const auto registered = kKind == Kind::kRead ? &nic::Direct::read : way_of_write(remote.length);
  std::uint64_t done = 0;
  if (move_now(local.is_bounced ? kPlain : registered, local.data, local.lkey, remote, done) == Status::kOk) [[likely]]
    return Status::kOk;
  return run(operation_of(kKind, local, remote, done), patience);
}
template Status Transfers::move<Operation::Kind::kRead>(const LocalSpan&, RemoteSpan, const Patience&) noexcept;
template Status Transfers::move<Operation::Kind::kWrite>(const LocalSpan&, RemoteSpan, const Patience&) noexcept;

Status Transfers::change(const Change& change, RemoteSpan word, std::uint64_t& old, const Patience& patience) noexcept {
  const Status now = change_now(change, word, old);
  if (now != Status::kAgain) [[likely]]
    return now;
  return run({.remote = word, .change = change, .total = kWordBytes, .kind = Kind::kAtomic}, patience, &old);
}

}  // namespace verbena::channel
