#include "programs/perf_wire.hpp"

#include <cstring>
#include <type_traits>

namespace verbena::programs::perf_wire {
namespace {

/// Takes a message, and checks the magic and version that both messages have.
template <class Message>
std::expected<Message, Status> take(std::span<const std::byte> bytes) noexcept {
  static_assert(std::is_trivially_copyable_v<Message> && std::has_unique_object_representations_v<Message>);
  constexpr Message kWanted;
  Message message;
  if (bytes.size() != sizeof message) return std::unexpected(Status::kProtocol);
  std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof message);
  if (message.ask != kWanted.ask || message.version != kWanted.version || message.magic != kWanted.magic)
    return std::unexpected(Status::kProtocol);
  return message;
}

}  // namespace

std::expected<Request, Status> decode_request(std::span<const std::byte> message) noexcept {
  const auto request = take<Request>(message);
  if (!request) return request;
  if (request->test > PerfTest::kWake || !facts_of(request->test).has_peer()) return std::unexpected(Status::kProtocol);
  const PerfTestFacts& facts = facts_of(request->test);
  const std::uint32_t least_bytes = facts.has_size() ? 1 : facts.bytes;
  if (request->bytes < least_bytes || request->bytes > facts.most_bytes || request->connections > kMaxConnections ||
      request->reserved != Request().reserved)
    return std::unexpected(Status::kProtocol);
  return request;
}

std::expected<Reply, Status> decode_reply(std::span<const std::byte> message, std::uint32_t bytes) noexcept {
  const auto reply = take<Reply>(message);
  if (reply &&
      (reply->serving > Serving::kThread || reply->refusal.back() != '\0' || reply->physical > ~std::uint64_t{bytes}))
    return std::unexpected(Status::kProtocol);
  return reply;
}

}  // namespace verbena::programs::perf_wire
