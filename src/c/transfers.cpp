// Of a connection: one-sided transfers, through chunks of ours or in the user's registered memory.
#include "base/check.hpp"
#include "c/codes.hpp"
#include "c/conn.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

namespace verbena::c {
namespace {

/// Set in the tokens of what is in the user's memory; the rest is the operation's address, which outlives its pieces.
constexpr std::uint64_t kRegisteredBit = std::uint64_t{1} << 63;

}  // namespace

// --- calls --------------------------------------------------------------------------------------------------------

template <class Task>
Status Conn::now(Task&& task) noexcept {
  if (runtime_->driver() != Driver::kCaller) return Status::kAgain;
  Exclusive::Mark* const mark = used_.enter();
  if (mark == nullptr) [[unlikely]]
    return Status::kBusy;
  Status status = reason_;
  if (status == Status::kOk) [[likely]]
    status = transfers_.first() == nullptr ? task() : Status::kAgain;
  Exclusive::leave(mark);
  return status;
}

Status Conn::transfer_now(Request::Kind kind, message::LocalSpan local, message::RemoteSpan remote) noexcept {
  return now([&] {
    if (!knows_local(local)) [[unlikely]]
      return Status::kLocalAccess;
    const std::chrono::milliseconds timeout{timeout_ms.load(std::memory_order_relaxed)};
    return kind == Request::Kind::kRead ? channel_->read(local, remote, timeout)
                                        : channel_->write(local, remote, timeout);
  });
}

Status Conn::read_now(std::span<std::byte> to, std::uint64_t offset) noexcept {
  return now([&] { return channel_->read_now(to, {peer_.window.address + offset, to.size(), peer_.window.rkey}); });
}

Status Conn::write_now(std::span<const std::byte> from, std::uint64_t offset) noexcept {
  return now(
      [&] { return channel_->write_now(from, {peer_.window.address + offset, from.size(), peer_.window.rkey}); });
}

Status Conn::change_now(const message::Change& change, message::RemoteSpan word, std::uint64_t& old) noexcept {
  return now([&] { return channel_->change_now(change, word, old); });
}

bool Conn::knows_local(const message::LocalSpan& local) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(local.data);
  Registry& registry = runtime_->registry();
  const std::uint64_t generation = registry.generation();
  if (local_generation_ == generation && local_key_.covers(address, local.length, local.lkey)) [[likely]]
    return true;
  const std::optional<LocalKey> found = registry.find_local(this, local.lkey);
  if (!found) return false;
  local_key_ = *found;
  local_generation_ = generation;
  return found->covers(address, local.length, local.lkey);
}

bool Conn::is_registered(std::uint64_t address, std::uint64_t bytes, std::uint32_t lkey) noexcept {
  const std::optional<LocalKey> found = runtime_->registry().find_local(this, lkey);
  return found && found->covers(address, bytes, lkey);
}

Status Conn::start_transfer(const Request& request, std::uint64_t cookie, Deadline deadline) noexcept {
  Status status = Status::kOk;
  const Status handed = run([&] { status = start_here(request, cookie); }, deadline);
  return handed != Status::kOk ? handed : status;
}

Status Conn::start_here(const Request& request, std::uint64_t cookie) noexcept {
  if (reason_ != Status::kOk) return reason_;
  if (untaken_ == Completions::kMost) return Status::kAgain;
  const auto free = std::find_if(&started_[0], &started_[0] + Completions::kMost,
                                 [](const Operation& operation) { return !operation.is_started; });
  std::destroy_at(free);
  Operation& operation = *std::construct_at(free);
  static_cast<Request&>(operation) = request;
  operation.cookie = cookie;
  start(operation);
  progress();
  // What was refused; completions come by polls only.
  if (operation.is_done.load(std::memory_order_relaxed)) return operation.status;
  operation.is_started = true;
  ++untaken_;
  ++under_way_;
  return Status::kOk;
}

void Conn::keep_completion(Operation& operation) noexcept {
  const bool is_read = operation.kind == Request::Kind::kRead;
  const RdmaCompletion completion{
      .cookie = operation.cookie, .operation = is_read ? RDMA_READ : RDMA_WRITE, .code = code_of(operation.status)};
  operation.is_started = false;
  --under_way_;
  const bool is_called = is_read ? static_cast<bool>(callbacks.read) : static_cast<bool>(callbacks.written);
  (is_called ? to_call_ : to_take_).push(completion);
  feed_takers();
}

void Conn::feed_takers() noexcept {
  while (Operation* const taker = takers_.first()) {
    if (to_take_.empty() && under_way_ != 0) return;
    if (to_take_.empty()) {
      finish(*taker, Status::kNotFound);
      continue;
    }
    taker->completion = to_take_.pop();
    --untaken_;
    finish(*taker, Status::kOk);
  }
}

// The bytes need no chunk of ours, and nobody but this call waits for them.
bool Conn::is_done_directly(const Operation& operation) noexcept {
  const bool is_transfer = operation.kind == Request::Kind::kRead || operation.kind == Request::Kind::kWrite;
  if (!is_transfer || operation.local == Request::Local::kRegistered || operation.tells_peer ||
      transfers_.first() != nullptr || reason_ != Status::kOk || is_detached_)
    return false;
  message::RemoteSpan remote;
  if (remote_of(operation, remote) != Status::kOk || remote.length != operation.length) return false;
  const Status status = operation.kind == Request::Kind::kRead
                            ? channel_->read_now({operation.to, operation.length}, remote)
                            : channel_->write_now({operation.from, operation.length}, remote);
  return status == Status::kOk;
}

// --- carried out --------------------------------------------------------------------------------------------------

void Conn::start_transfers() noexcept {
  for (Operation* operation = transfers_.first(); operation != nullptr;) {
    Operation* const next = operation->next;
    // The message leaves with the last piece of what it is about, by one doorbell.
    const engine::Batch<message::Channel> batch(*channel_);
    Status status = Status::kOk;
    while (status == Status::kOk && operation->started < operation->length) status = start_piece(*operation);
    if (status == Status::kAgain) return;
    if (status != Status::kOk) {
      cut(*operation, status);
    } else if (operation->tells_peer) {
      if (!tell_of_write(*operation)) return;
      // Its bytes may be in place already.
      if (operation->finished == operation->length && operation->receipt == 0) finish(*operation, Status::kOk);
    }
    operation = next;
  }
}

Status Conn::start_piece(Operation& operation) noexcept {
  message::RemoteSpan remote;
  if (const Status status = remote_of(operation, remote); status != Status::kOk) return status;
  return operation.local == Request::Local::kRegistered ? start_registered(operation, remote)
                                                        : start_chunk(operation, remote);
}

Status Conn::remote_of(const Operation& operation, message::RemoteSpan& remote) noexcept {
  const std::uint64_t at = operation.remote + operation.started;
  const std::uint64_t left = operation.length - operation.started;
  switch (operation.space) {
    case Request::Remote::kDefaultWindow: remote = {peer_.window.address + at, left, peer_.window.rkey}; break;
    case Request::Remote::kAddress: remote = {at, left, operation.rkey}; break;
    case Request::Remote::kPhysical: return find_physical(at, left, remote);
  }
  return Status::kOk;
}

Status Conn::start_chunk(Operation& operation, message::RemoteSpan remote) noexcept {
  const auto free = std::ranges::find(chunks_, false, &Chunk::is_busy);
  if (free == chunks_.end()) return Status::kAgain;
  const auto number = static_cast<std::size_t>(free - chunks_.begin());
  remote.length = std::min<std::uint64_t>(remote.length, kChunkBytes);
  const message::LocalSpan local{memory_of(number), remote.length, bounce_->lkey()};
  if (operation.kind == Request::Kind::kWrite)
    std::memcpy(local.data, operation.from + operation.started, remote.length);
  const Status status = [&] {
    switch (operation.kind) {
      case Request::Kind::kWrite: return channel_->start_write(local, remote, number);
      case Request::Kind::kAtomic: return channel_->start_atomic(operation.change, local, remote, number);
      default: return channel_->start_read(local, remote, number);
    }
  }();
  if (status != Status::kOk) return status;
  *free = {.operation = &operation, .at = operation.started, .length = remote.length, .is_busy = true};
  operation.started += remote.length;
  return Status::kOk;
}

Status Conn::start_registered(Operation& operation, message::RemoteSpan remote) noexcept {
  if (pieces_ == kPieces) return Status::kAgain;
  const bool is_read = operation.kind == Request::Kind::kRead;
  std::byte* const data = is_read ? operation.to : const_cast<std::byte*>(operation.from);
  const message::LocalSpan local{data + operation.started, remote.length, operation.lkey};
  const std::uint64_t token = kRegisteredBit | reinterpret_cast<std::uintptr_t>(&operation);
  const Status status =
      is_read ? channel_->start_read(local, remote, token) : channel_->start_write(local, remote, token);
  if (status != Status::kOk) return status;
  operation.started += remote.length;
  ++operation.pieces;
  ++pieces_;
  return Status::kOk;
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
                        .offset = operation.remote};
  if (!send_last(operation, head, {})) return false;
  sent_ += Inbox::bytes_of(0);
  operation.tells_peer = false;
  return true;
}

void Conn::on_complete(message::Channel& /*channel*/, std::uint64_t token, Status status) noexcept {
  if ((token & kRegisteredBit) != 0)
    return on_piece(*reinterpret_cast<Operation*>(static_cast<std::uintptr_t>(token & ~kRegisteredBit)), status);
  if (token >= kChunks) return on_receipt(token - kChunks, status);
  Chunk& chunk = chunks_[token];
  Operation* const operation = chunk.operation;
  chunk.is_busy = false;
  chunk.operation = nullptr;
  if (operation == nullptr) return;
  if (status != Status::kOk) return finish(*operation, status);
  if (operation->kind != Request::Kind::kWrite) std::memcpy(operation->to + chunk.at, memory_of(token), chunk.length);
  operation->finished += chunk.length;
  const bool is_told = !operation->tells_peer && operation->receipt == 0;
  if (operation->finished == operation->length && is_told) finish(*operation, Status::kOk);
}

void Conn::on_piece(Operation& operation, Status status) noexcept {
  --operation.pieces;
  --pieces_;
  if (operation.status == Status::kOk) operation.status = status;
  if (operation.pieces != 0) return;
  if (operation.started == operation.length || operation.status != Status::kOk) finish(operation, operation.status);
}

void Conn::cut(Operation& operation, Status status) noexcept {
  if (operation.pieces == 0) return finish(operation, status);
  operation.length = operation.started;
  if (operation.status == Status::kOk) operation.status = status;
}

}  // namespace verbena::c
