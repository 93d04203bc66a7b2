// Sends large values: into a lease when the client has one; else the server READs them, if they are in registered
// memory, or they are streamed through the channel's lease.
#include "kv/client.hpp"

#include "base/ticks.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::kv {
namespace {

/// For importing a window: its memory is already mapped, so the import answers at once. On timeout treat the lease as
/// revoked.
constexpr std::chrono::milliseconds kImportTimeout{100};

}  // namespace

// --- into a lease

/// kNotFound: not possible by a lease, or not now. With any result but kOk nothing is left behind.
Status PollingClient::start_in_lease(Operation& operation, const Ask& ask) noexcept {
  channel::Connection& channel = channel_of(operation);
  // Neither the WRITE, which may take several work requests, nor the request after it may have to wait for room.
  const std::uint64_t writes = ask.value.size() / fabric_->nic().limits().max_message + 1;
  if (channel.credits() < writes + 1) return Status::kNotFound;
  while (const auto held = take_lease_for(operation, ask)) {
    const channel::RemoteSpan to{held->lease.address, ask.value.size(), held->lease.rkey};
    const Status written = channel.write_now(ask.value, to);
    if (written == Status::kOk) {
      operation.stage = Stage::kAwaiting;
      return send_adopt(operation, ask, held->lease);
    }
    // kAgain may also mean that the window is gone. Posting a WRITE to it would end the connection.
    if (written == Status::kAgain && !is_open(operation.worker, held->lease)) continue;
    const bool is_mine = written == Status::kAgain && is_registered(ask.value);
    const Status started =
        is_mine ? channel.start_write(local(ask.value), to, token_of(Piece::kBody, operation)) : written;
    if (started == Status::kAgain) {
      leases_.put_back(operation.worker, *held);
      return Status::kNotFound;
    }
    if (started != Status::kOk) return started;
    operation.transfer.pieces = 1;
    // From here on the channel reads the value, so a failure must end the operation together with the connection.
    if (const Status sent = send_adopt(operation, ask, held->lease); sent != Status::kOk)
      die(sent == Status::kAgain ? Status::kProtocol : sent, "a large value could not be sent");
    return Status::kOk;
  }
  return Status::kNotFound;
}

std::optional<HeldLeases::Held> PollingClient::take_lease_for(const Operation& operation, const Ask& ask) noexcept {
  if (ask.value.size() < wire::kLeastLease) return {};
  while (auto held = leases_.take(operation.worker, ask.value.size(), ticks_now()))
    if (is_open(operation.worker, held->lease)) return held;
  return {};
}

/// Makes the lease's window usable. False: the server has taken the lease back.
bool PollingClient::is_open(unsigned worker, const wire::Lease& lease) noexcept {
  channel::Connection& channel = *channels_[worker];
  const nic::Window window{.address = lease.address,
                           .length = lease.length,
                           .rkey = lease.rkey,
                           .access = IBV_ACCESS_REMOTE_WRITE,
                           .memory_id = leases_.memory_id(worker)};
  // Other NICs need no import, and report a window that was taken back only when a WRITE fails.
  nic::Nic& nic = fabric_->nic();
  if (nic.capabilities().maps_windows &&
      (channel.queue_pair() == nullptr ||
       !nic.import_window(channel.queue_pair(), window, Deadline::after(kImportTimeout))))
    return false;
  channel.lend_window(window);
  return true;
}

Status PollingClient::send_adopt(Operation& operation, const Ask& ask, const wire::Lease& lease) noexcept {
  std::array<std::byte, sizeof(wire::RequestHead) + sizeof ask.ttl_ns + sizeof(wire::AdoptHead)> front;
  const std::size_t bytes = wire::encode_front(
      {.op = wire::Op::kPutAdopt, .key_length = static_cast<std::uint16_t>(ask.key.size()), .id = operation.id},
      ask.ttl_ns, wire::AdoptHead{.expected = ask.expected, .value_length = ask.value.size(), .lease = lease.id},
      front);
  return channel_of(operation).send(std::span(front).first(bytes), ask.key);
}

/// Makes the rest of the reply a plain one.
void PollingClient::take_lease(const Operation& operation, wire::Reply& reply) noexcept {
  if (operation.op != wire::Op::kPut && operation.op != wire::Op::kCas) [[unlikely]]
    return;  // Its kind then does not fit the request.
  leases_.keep(operation.worker, reply.lease, operation.sent_ticks);
  reply.head.kind = wire::ReplyKind::kPlain;
}

// --- read by the server

/// The lease that the client gives up with this value; 0: none.
std::uint32_t PollingClient::give_up_lease_for(const Ask& ask, unsigned worker) noexcept {
  return ask.value.size() < wire::kLeastLease ? 0 : leases_.give_up_one(worker, ticks_now());
}

Status PollingClient::send_lent(Operation& operation, const Ask& ask) noexcept {
  channel::Connection& channel = channel_of(operation);
  if (channel.alive() && channel.credits() == 0) return Status::kAgain;  // Before a lease is given up.
  std::array<std::byte, sizeof(wire::RequestHead) + sizeof ask.ttl_ns + sizeof(wire::ReadHead)> front;
  const std::size_t bytes =
      wire::encode_front({.op = wire::Op::kPutRead, .key_length = operation.key_length, .id = operation.id}, ask.ttl_ns,
                         wire::ReadHead{.expected = ask.expected,
                                        .value_length = ask.value.size(),
                                        .address = reinterpret_cast<std::uintptr_t>(ask.value.data()),
                                        .rkey = region_.mr()->rkey,
                                        .returned = give_up_lease_for(ask, operation.worker)},
                         front);
  operation.stage = Stage::kLent;
  return channel.send(std::span(front).first(bytes), ask.key);
}

// --- streamed

Status PollingClient::send_head(Operation& operation, const Ask& ask, channel::LocalSpan body,
                                std::uint64_t token) noexcept {
  std::array<std::byte, wire::kMaxLargeHeadBytes> head;
  const unsigned worker = operation.worker;
  const wire::RequestHead front{
      .op = wire::Op::kPutLarge, .key_length = static_cast<std::uint16_t>(ask.key.size()), .id = operation.id};
  const wire::LargeHead large{
      .expected = ask.expected, .value_length = ask.value.size(), .returned = give_up_lease_for(ask, worker)};
  const std::size_t bytes = wire::encode_front(front, ask.ttl_ns, large, head);
  std::memcpy(head.data() + bytes, ask.key.data(), ask.key.size());
  return channels_[worker]->start_large(std::span(head).first(bytes + ask.key.size()), body, token);
}

Status PollingClient::send_staged(Operation& operation, const Ask& ask, Deadline deadline) noexcept {
  operation.transfer.posted = ask.value.size();
  const auto held = take_lease_for(operation, ask);
  if (!held) return send_chunks(operation, ask, deadline);
  const channel::RemoteSpan to{held->lease.address, ask.value.size(), held->lease.rkey};
  const Status started = channel_of(operation).start_write(ask.value, to, token_of(Piece::kBody, operation));
  if (started != Status::kOk) {
    die(started == Status::kAgain ? Status::kProtocol : started, "a large value could not be sent");
    return started;
  }
  operation.transfer.pieces = 1;
  for (;;) {  // The request gets kAgain until all of the value is on its way.
    const Status sent = send_adopt(operation, ask, held->lease);
    if (sent != Status::kAgain) {
      if (sent == Status::kOk) operation.transfer.copied = ask.value.size();
      return sent;
    }
    if (loop_->wait(deadline) == 0 && deadline.passed()) return Status::kTimedOut;
    if (has_failed()) return error_.status();
  }
}

// Copies the value through a few chunks, small enough to stay in the cache: each is a large message of its own.
Status PollingClient::send_chunks(Operation& operation, const Ask& ask, Deadline deadline) noexcept {
  const wire::RequestHead more{.op = wire::Op::kMoreLarge, .id = operation.id};
  channel::Bounce& bounce = *shard_->memory().bounce;
  for (std::size_t done = 0; done < ask.value.size();) {
    std::uint32_t chunk = channel::Bounce::kNone;
    const auto has_chunk = [&] {
      if (chunk == channel::Bounce::kNone) chunk = bounce.take();
      return chunk != channel::Bounce::kNone || has_failed();
    };
    const Status waited = loop_->wait_until(has_chunk, deadline);
    if (has_failed() && chunk != channel::Bounce::kNone) bounce.give_back(chunk);
    if (waited != Status::kOk) return Status::kTimedOut;
    if (has_failed()) return error_.status();
    const std::span piece = ask.value.subspan(done, std::min(channel::Bounce::kChunkBytes, ask.value.size() - done));
    std::memcpy(bounce.data(chunk), piece.data(), piece.size());
    ++operation.transfer.pieces;
    const channel::LocalSpan body{bounce.data(chunk), piece.size(), bounce.lkey()};
    const std::uint64_t token = token_of(Piece::kBodyChunk, operation, chunk);
    const Status status = done == 0 ? send_head(operation, ask, body, token)
                                    : channel_of(operation).start_large(wire::bytes_of(more), body, token);
    if (status != Status::kOk) {
      bounce.give_back(chunk);
      --operation.transfer.pieces;
      die(status == Status::kAgain ? Status::kProtocol : status, "a large value could not be sent");
      return status;
    }
    done += piece.size();
    operation.transfer.copied = done;
  }
  return Status::kOk;
}

}  // namespace verbena::kv
