#include "kv/puts.hpp"

#include "base/failure.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace verbena::kv {

Status take_options(const PutOptions& options, Ask& ask) noexcept {
  if (options.expected) {
    ask.op = wire::Op::kCas;
    ask.expected = *options.expected;
  }
  if (options.time_to_live) {
    const std::chrono::milliseconds ttl = *options.time_to_live;
    if (ttl.count() < 1 || ttl > kMaxTimeToLive) [[unlikely]]
      return note(Status::kBadArgument, call_of(ask.op), "time_to_live must be 1 to {} ms; got {}",
                  kMaxTimeToLive.count(), ttl.count());
    ask.ttl_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(ttl).count());
  }
  return Status::kOk;
}

// --- read by the server

Status Puts::send_lent(Operation& operation, const Ask& ask) noexcept {
  std::array<std::byte, sizeof(wire::RequestHead) + sizeof ask.ttl_ns + sizeof(wire::ReadHead)> front;
  const std::size_t bytes =
      wire::encode_front({.op = wire::Op::kPutRead, .key_length = operation.key_length, .id = operation.id}, ask.ttl_ns,
                         wire::ReadHead{.expected = ask.expected,
                                        .value_length = ask.value.size(),
                                        .address = reinterpret_cast<std::uintptr_t>(ask.value.data()),
                                        .rkey = links_.rkey()},
                         front);
  operation.stage = Operation::Stage::kLent;
  return channel_of(operation).send(std::span(front).first(bytes), ask.key);
}

// --- streamed

Status Puts::send_head(Operation& operation, const Ask& ask, channel::LocalSpan body, std::uint64_t token) noexcept {
  std::array<std::byte, wire::kMaxLargeHeadBytes> head;
  const wire::RequestHead front{
      .op = wire::Op::kPutLarge, .key_length = static_cast<std::uint16_t>(ask.key.size()), .id = operation.id};
  const wire::LargeHead large{.expected = ask.expected, .value_length = ask.value.size()};
  const std::size_t bytes = wire::encode_front(front, ask.ttl_ns, large, head);
  std::memcpy(head.data() + bytes, ask.key.data(), ask.key.size());
  return channel_of(operation).start_large(std::span(head).first(bytes + ask.key.size()), body, token);
}

// Copies the value through a few chunks, small enough to stay in the cache: each is a large message of its own.
Status Puts::send_chunks(Operation& operation, const Ask& ask, Deadline deadline) noexcept {
  const wire::RequestHead more{.op = wire::Op::kMoreLarge, .id = operation.id};
  channel::Bounce& bounce = links_.bounce();
  operation.transfer.posted = ask.value.size();
  for (std::size_t done = 0; done < ask.value.size();) {
    std::uint32_t chunk = channel::Bounce::kNone;
    const auto has_chunk = [&] {
      if (chunk == channel::Bounce::kNone) chunk = bounce.take();
      return chunk != channel::Bounce::kNone || links_.has_failed();
    };
    const Status waited = links_.loop().wait_until(has_chunk, deadline);
    if (links_.has_failed() && chunk != channel::Bounce::kNone) bounce.give_back(chunk);
    if (waited != Status::kOk) return Status::kTimedOut;
    if (links_.has_failed()) return links_.failure();
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
      links_.die(status == Status::kAgain ? Status::kProtocol : status, "a large value could not be sent");
      return status;
    }
    done += piece.size();
    operation.transfer.copied = done;
  }
  return Status::kOk;
}

}  // namespace verbena::kv
