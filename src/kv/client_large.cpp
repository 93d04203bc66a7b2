// Large values on their way out: into a lease when the client has one, else streamed through the channel's own.
#include "kv/client.hpp"

#include "base/ticks.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::kv {
namespace {

/// Of a window whose memory is mapped already. What is not at once is not at all.
constexpr std::chrono::milliseconds kImportTimeout{100};

}  // namespace

// --- into a lease

/// kNotFound: not this way, or not now. Anything but kOk has left nothing behind.
Status PollingClient::start_in_lease(std::uint32_t slot, const Ask& ask) noexcept {
  Operation& operation = operations_[slot];
  channel::Connection& channel = *channels_[operation.worker];
  // Neither the WRITE, which may be several work requests, nor the request behind it may have to wait for room.
  const std::uint64_t writes = ask.value.size() / fabric_->nic().limits().max_message + 1;
  if (channel.credits() < writes + 1) return Status::kNotFound;
  HeldLeases::Held held;
  while (take_lease_for(slot, ask, held)) {
    const channel::RemoteSpan to{held.lease.address, ask.value.size(), held.lease.rkey};
    const Status written = channel.write_now(ask.value, to);
    if (written == Status::kOk) {
      operation.stage = Stage::kAwaiting;
      return send_adopt(slot, ask, held.lease);
    }
    // A window that is gone looks the same. Posted, it would end the connection.
    if (written == Status::kAgain && !is_open(operation.worker, held.lease)) continue;
    const bool is_mine = written == Status::kAgain && is_registered(ask.value);
    const Status started =
        is_mine ? channel.start_write(local(ask.value), to, token_of(Piece::kBody, 0, id_of(slot))) : written;
    if (started == Status::kAgain) {
      leases_.put_back(operation.worker, held);
      return Status::kNotFound;
    }
    if (started != Status::kOk) return started;
    operation.transfer.pieces = 1;
    // From here on the channel reads the value: a failure ends the operation with the connection.
    if (const Status sent = send_adopt(slot, ask, held.lease); sent != Status::kOk)
      die(sent == Status::kAgain ? Status::kProtocol : sent, "a large value could not be sent");
    return Status::kOk;
  }
  return Status::kNotFound;
}

bool PollingClient::take_lease_for(std::uint32_t slot, const Ask& ask, HeldLeases::Held& held) noexcept {
  const unsigned worker = operations_[slot].worker;
  if (ask.value.size() < wire::kLeastLease) return false;
  while (leases_.take(worker, ask.value.size(), ticks_now(), held))
    if (is_open(worker, held.lease)) return true;
  return false;
}

/// Makes the lease's window usable. False: the server has taken it back.
bool PollingClient::is_open(unsigned worker, const wire::Lease& lease) noexcept {
  channel::Connection& channel = *channels_[worker];
  const nic::Window window{.address = lease.address,
                           .length = lease.length,
                           .rkey = lease.rkey,
                           .access = IBV_ACCESS_REMOTE_WRITE,
                           .memory_id = leases_.memory_id(worker)};
  // Another NIC needs no import, and reports a window that was taken back only when a WRITE fails.
  nic::Nic& nic = fabric_->nic();
  if (nic.capabilities().maps_windows &&
      (channel.queue_pair() == nullptr ||
       !nic.import_window(channel.queue_pair(), window, Deadline::after(kImportTimeout))))
    return false;
  channel.lend_window(window);
  return true;
}

Status PollingClient::send_adopt(std::uint32_t slot, const Ask& ask, const wire::Lease& lease) noexcept {
  struct Front {
    wire::RequestHead head;
    wire::AdoptHead adopt;
  };
  static_assert(sizeof(Front) == sizeof(wire::RequestHead) + sizeof(wire::AdoptHead));
  const Front front{
      .head = {.op = wire::Op::kPutAdopt, .key_length = static_cast<std::uint16_t>(ask.key.size()), .id = id_of(slot)},
      .adopt = {.expected = ask.expected, .value_length = ask.value.size(), .lease = lease.id}};
  return channels_[operations_[slot].worker]->send(wire::bytes_of(front), ask.key);
}

/// The rest of the reply is a plain one.
void PollingClient::take_lease(const Operation& operation, wire::Reply& reply) noexcept {
  if (operation.op != wire::Op::kPut && operation.op != wire::Op::kCas) [[unlikely]]
    return;  // Its kind does not fit the request, then.
  leases_.keep(operation.worker, reply.lease, operation.sent_ticks);
  reply.head.kind = wire::ReplyKind::kPlain;
}

// --- streamed

Status PollingClient::send_head(std::uint32_t slot, const Ask& ask, channel::LocalSpan body,
                                std::uint64_t token) noexcept {
  std::array<std::byte, wire::kMaxLargeHeadBytes> head;
  const unsigned worker = operations_[slot].worker;
  const wire::RequestHead front{
      .op = wire::Op::kPutLarge, .key_length = static_cast<std::uint16_t>(ask.key.size()), .id = id_of(slot)};
  const wire::LargeHead large{
      .expected = ask.expected,
      .value_length = ask.value.size(),
      .returned = ask.value.size() < wire::kLeastLease ? 0 : leases_.give_up_one(worker, ticks_now())};
  std::byte* at = head.data();
  std::memcpy(at, &front, sizeof front);
  std::memcpy(at + sizeof front, &large, sizeof large);
  std::memcpy(at + sizeof front + sizeof large, ask.key.data(), ask.key.size());
  const std::size_t bytes = sizeof front + sizeof large + ask.key.size();
  return channels_[worker]->start_large(std::span(head).first(bytes), body, token);
}

Status PollingClient::send_staged(std::uint32_t slot, const Ask& ask, Deadline deadline) noexcept {
  HeldLeases::Held held;
  if (!take_lease_for(slot, ask, held)) return send_chunks(slot, ask, nullptr, deadline);
  if (const Status status = send_chunks(slot, ask, &held.lease, deadline); status != Status::kOk) return status;
  for (;;) {
    const Status sent = send_adopt(slot, ask, held.lease);
    if (sent != Status::kAgain) {
      if (sent == Status::kOk) operations_[slot].transfer.copied = ask.value.size();
      return sent;
    }
    if (loop_->wait(deadline) == 0 && deadline.passed()) return Status::kTimedOut;
    if (error_.status() != Status::kOk) return error_.status();
  }
}

// Copies the value through a few chunks, small enough to stay in the cache: each is a WRITE into the lease, or a large
// message of its own.
Status PollingClient::send_chunks(std::uint32_t slot, const Ask& ask, const wire::Lease* lease,
                                  Deadline deadline) noexcept {
  Operation& operation = operations_[slot];
  channel::Connection& channel = *channels_[operation.worker];
  operation.transfer.posted = ask.value.size();
  std::size_t done = 0;
  const auto start = [&](channel::LocalSpan body, std::uint64_t token) {
    if (lease != nullptr) {
      if (!is_open(operation.worker, *lease)) return Status::kRemoteAccess;
      return channel.start_write(body, {lease->address + done, body.length, lease->rkey}, token);
    }
    const wire::RequestHead more{.op = wire::Op::kMoreLarge, .id = id_of(slot)};
    return done == 0 ? send_head(slot, ask, body, token) : channel.start_large(wire::bytes_of(more), body, token);
  };
  channel::Bounce& bounce = *shard_->memory().bounce;
  while (done < ask.value.size()) {
    std::uint32_t chunk = channel::Bounce::kNone;
    const auto has_chunk = [&] {
      if (chunk == channel::Bounce::kNone) chunk = bounce.take();
      return chunk != channel::Bounce::kNone || error_.status() != Status::kOk;
    };
    const Status waited = loop_->wait_until(has_chunk, deadline);
    if (error_.status() != Status::kOk && chunk != channel::Bounce::kNone) bounce.give_back(chunk);
    if (waited != Status::kOk) return Status::kTimedOut;
    if (error_.status() != Status::kOk) return error_.status();
    const std::span piece = ask.value.subspan(done, std::min(channel::Bounce::kChunkBytes, ask.value.size() - done));
    std::memcpy(bounce.data(chunk), piece.data(), piece.size());
    ++operation.transfer.pieces;
    const Status status =
        start({bounce.data(chunk), piece.size(), bounce.lkey()}, token_of(Piece::kBodyChunk, chunk, id_of(slot)));
    if (status != Status::kOk) {
      bounce.give_back(chunk);
      --operation.transfer.pieces;
      die(status == Status::kAgain ? Status::kProtocol : status, "a large value could not be sent");
      return status;
    }
    done += piece.size();
    // With a lease the request is still to come: until then the operation is not through.
    if (lease == nullptr) operation.transfer.copied = done;
  }
  return Status::kOk;
}

}  // namespace verbena::kv
