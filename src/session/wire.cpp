#include "session/wire.hpp"

#include "base/error.hpp"

#include <bit>
#include <cstring>

namespace verbena::session::wire {
namespace {

constexpr std::uint32_t kWindowRights = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// Laid out as the header's table says.
struct [[gnu::packed]] HelloBytes {
  char magic = 'C';
  std::uint8_t version = 1;
  std::uint32_t inbox_bytes = 0;
  std::uint64_t address = 0;
  std::uint32_t units = 0;
  std::uint32_t rkey = 0;
  std::uint64_t memory_id = 0;
};
static_assert(sizeof(HelloBytes) == kHelloBytes);

/// The answer to a kAsk.
struct Found {
  std::uint64_t address = 0;
  std::uint64_t length = 0;
  std::uint32_t rkey = 0;
  std::uint32_t access = 0;  ///< rdma::Access
  std::uint64_t memory_id = 0;
};
static_assert(sizeof(Found) == kFoundBytes);

}  // namespace

std::array<std::byte, kHelloBytes> encode(const Hello& hello) noexcept {
  return std::bit_cast<std::array<std::byte, kHelloBytes>>(
      HelloBytes{.inbox_bytes = hello.inbox_bytes,
                 .address = hello.window.address,
                 .units = static_cast<std::uint32_t>(hello.window.length / kWindowUnit),
                 .rkey = hello.window.rkey,
                 .memory_id = hello.window.memory_id});
}

Result<Hello> decode(std::span<const std::byte> data) {
  constexpr HelloBytes kWanted;
  HelloBytes bytes;
  if (data.size() == sizeof bytes) std::memcpy(static_cast<void*>(&bytes), data.data(), sizeof bytes);
  if (data.size() != sizeof bytes || bytes.magic != kWanted.magic || bytes.version != kWanted.version)
    return fail(Status::kProtocol, "connect", 0,
                "the other end is not a connection of this kind and version: start the same program on both sides");
  Hello hello{.inbox_bytes = bytes.inbox_bytes,
              .window = {.address = bytes.address,
                         .length = bytes.units * kWindowUnit,
                         .rkey = bytes.rkey,
                         .access = kWindowRights,
                         .memory_id = bytes.memory_id}};
  if (hello.inbox_bytes < kMinInboxBytes || hello.inbox_bytes > kMaxInboxBytes)
    return fail(Status::kProtocol, "connect", 0, "the peer says its inbox has {} bytes: it must be {} to {}",
                hello.inbox_bytes, kMinInboxBytes, kMaxInboxBytes);
  if (hello.window.length > kMaxWindowBytes || hello.window.address + hello.window.length < hello.window.address)
    return fail(Status::kProtocol, "connect", 0, "the peer's window of {} bytes at {:#x} is impossible",
                hello.window.length, hello.window.address);
  return hello;
}

std::array<std::byte, kFoundBytes> encode_found(const rdma::Window& window) noexcept {
  return std::bit_cast<std::array<std::byte, kFoundBytes>>(Found{.address = window.address,
                                                                 .length = window.length,
                                                                 .rkey = window.rkey,
                                                                 .access = static_cast<std::uint32_t>(window.access),
                                                                 .memory_id = window.memory_id});
}

std::optional<rdma::Window> decode_found(std::span<const std::byte> data) noexcept {
  if (data.size() != sizeof(Found)) return std::nullopt;
  Found found;
  std::memcpy(static_cast<void*>(&found), data.data(), sizeof found);
  const bool wraps = found.address + found.length < found.address;
  if (wraps || found.length == 0 || (found.access & ~static_cast<std::uint32_t>(rdma::Access::kAll)) != 0)
    return std::nullopt;
  return rdma::Window{.address = found.address,
                      .length = found.length,
                      .memory_id = found.memory_id,
                      .rkey = found.rkey,
                      .access = static_cast<rdma::Access>(found.access)};
}

}  // namespace verbena::session::wire
