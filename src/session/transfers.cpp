#include "session/transfers.hpp"

#include <algorithm>
#include <memory>
#include <span>

namespace verbena::session {

namespace {

constexpr std::uint32_t kNoPart = ~std::uint32_t{0};

}  // namespace

// --- parts --------------------------------------------------------------------------------------------------------

std::uint32_t Transfers::take_part() noexcept {
  if (parts_ == kParts) return kNoPart;
  ++parts_;
  // As many as are in use were handed out once, or the list has one.
  if (parts_ > fresh_) return fresh_++;
  const std::uint32_t part = first_free_;
  first_free_ = table_[part].next_free;
  return part;
}

void Transfers::free_part(std::uint32_t part) noexcept {
  --parts_;
  table_[part].call = nullptr;
  ++table_[part].generation;
  table_[part].next_free = first_free_;
  first_free_ = part;
}

Status Transfers::start_part(TransferCall& call, channel::Connection& connection) noexcept {
  const channel::RemoteSpan rest{call.remote.address + call.started, call.remote.length - call.started,
                                 call.remote.rkey};
  channel::RemoteSpan remote;
  if (const Status found = places_.find(call.space, rest, remote); found != Status::kOk) return found;
  const std::uint32_t part = take_part();
  if (part == kNoPart) return Status::kAgain;
  const std::uint64_t token = token_of(part, table_[part].generation);
  std::byte* const at = call.local + call.started;
  const auto bytes = static_cast<std::size_t>(remote.length);
  const channel::LocalSpan registered{at, bytes, call.lkey};
  const Status status = [&] {
    switch (call.kind) {
      case TransferCall::Kind::kAtomic: return connection.start_change(call.change, remote, token);
      case TransferCall::Kind::kRead:
        return call.is_registered ? connection.start_read(registered, remote, token)
                                  : connection.start_read(std::span<std::byte>(at, bytes), remote, token);
      case TransferCall::Kind::kWrite: break;
    }
    return call.is_registered ? connection.start_write(registered, remote, token)
                              : connection.start_write(std::span<const std::byte>(at, bytes), remote, token);
  }();
  if (status != Status::kOk) {
    free_part(part);
    return status;
  }
  table_[part].call = &call;
  call.started += remote.length;
  ++call.parts;
  return Status::kOk;
}

void Transfers::progress(channel::Connection& connection) noexcept {
  while (TransferCall* const call = waiting_.first()) {
    // What crosses a border of physical memory leaves by one doorbell.
    const engine::Batch<channel::Connection> batch(connection);
    Status status = Status::kOk;
    while (status == Status::kOk && call->started < call->remote.length) status = start_part(*call, connection);
    if (status == Status::kAgain) return;
    if (status != Status::kOk) {
      cut(*call, status);
    } else {
      waiting_.remove(*call);
      if (call->parts == 0) finish(*call);  // They have completed meanwhile.
    }
  }
}

void Transfers::on_part(const channel::Completion& completion) noexcept {
  const auto part = static_cast<std::uint32_t>(completion.token);
  const auto generation = static_cast<std::uint16_t>(completion.token >> 32);
  if (part >= kParts || table_[part].generation != generation || table_[part].call == nullptr) return;
  TransferCall& call = *table_[part].call;
  free_part(part);
  --call.parts;
  call.old = completion.old;
  if (call.status == Status::kOk) call.status = completion.status;
  if (call.parts != 0) return;
  if (call.started == call.remote.length) {
    waiting_.remove(call);
    finish(call);
  }
}

void Transfers::cut(TransferCall& call, Status status) noexcept {
  waiting_.remove(call);
  if (call.status == Status::kOk) call.status = status;
  call.remote.length = call.started;
  if (call.parts == 0) finish(call);
}

void Transfers::finish(TransferCall& call) noexcept {
  if (!call.is_started) return call.finish(call.status);
  const bool is_read = call.kind == TransferCall::Kind::kRead;
  const rdma::Completion completion{.cookie = call.cookie,
                                    .operation = is_read ? rdma::Completion::Operation::kRead
                                                 : call.kind == TransferCall::Kind::kWrite
                                                     ? rdma::Completion::Operation::kWrite
                                                     : rdma::Completion::Operation::kAtomic,
                                    .status = call.status,
                                    .old = call.old};
  call.is_started = false;
  --under_way_;
  const bool is_called = (is_read ? reads_ : writes_) == rdma::Complete::kHandler;
  (is_called ? to_handler_ : to_take_).push(completion);
  feed_takers();
}

bool Transfers::cancel(TransferCall& call, channel::Connection& connection) noexcept {
  if (call.parts != 0 && call.is_registered) {
    cut(call, Status::kTimedOut);
    return false;
  }
  waiting_.remove(call);
  for (std::uint32_t part = 0; part < fresh_ && call.parts != 0; ++part) {
    if (table_[part].call != &call) continue;
    (void)connection.abandon(token_of(part, table_[part].generation));
    free_part(part);
    --call.parts;
  }
  call.finish(Status::kTimedOut);
  return true;
}

void Transfers::end(Status reason) noexcept {
  while (!waiting_.empty()) cut(*waiting_.first(), reason);
  feed_takers();
}

// --- started ------------------------------------------------------------------------------------------------------

Status Transfers::start(const TransferCall& like, channel::Connection& connection) noexcept {
  if (untaken_ == Completions::kMost) return Status::kAgain;
  TransferCall* const free = std::find_if(&started_[0], &started_[0] + Completions::kMost,
                                          [](const TransferCall& call) { return !call.is_started; });
  std::destroy_at(free);
  TransferCall& call = *std::construct_at(free);
  call.kind = like.kind;
  call.space = like.space;
  call.is_registered = like.is_registered;
  call.local = like.local;
  call.lkey = like.lkey;
  call.remote = like.remote;
  call.change = like.change;
  call.cookie = like.cookie;
  waiting_.push(call);
  progress(connection);
  // It was refused; completions come by polls only.
  if (call.done()) return call.status;
  call.is_started = true;
  ++untaken_;
  ++under_way_;
  return Status::kOk;
}

void Transfers::feed_takers() noexcept {
  while (TakeCall* const taker = takers_.first()) {
    if (to_take_.empty() && under_way_ != 0) return;
    if (to_take_.empty()) {
      takers_.finish(*taker, Status::kNotFound);
      continue;
    }
    taker->completion = to_take_.pop();
    --untaken_;
    takers_.finish(*taker, Status::kOk);
  }
}

bool Transfers::take_for_handler(rdma::Completion& completion) noexcept {
  if (to_handler_.empty()) return false;
  completion = to_handler_.pop();
  --untaken_;
  return true;
}

}  // namespace verbena::session
