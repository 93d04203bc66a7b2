#include "session/wire.hpp"

#include "base/error.hpp"
#include "channel/wire.hpp"

#include <verbena/rdma_types.hpp>

namespace verbena::session::wire {
namespace {

constexpr std::byte kMagic{'C'};
constexpr std::byte kVersion{1};
constexpr std::uint32_t kWindowRights = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

template <class T>
void put(std::byte* at, T value) noexcept {
  value = channel::wire::little(value);
  std::memcpy(at, &value, sizeof value);
}
template <class T>
T get(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return channel::wire::little(value);
}

}  // namespace

std::array<std::byte, kHelloBytes> encode(const Hello& hello) noexcept {
  std::array<std::byte, kHelloBytes> data;
  data[0] = kMagic;
  data[1] = kVersion;
  put(&data[2], hello.inbox_bytes);
  put(&data[6], hello.window.address);
  put(&data[14], static_cast<std::uint32_t>(hello.window.length / kWindowUnit));
  put(&data[18], hello.window.rkey);
  put(&data[22], hello.window.memory_id);
  return data;
}

Result<Hello> decode(std::span<const std::byte> data) {
  if (data.size() != kHelloBytes || data[0] != kMagic || data[1] != kVersion)
    return fail(Status::kProtocol, "connect", 0,
                "the other end is no connection of this kind and version: start the same program on both sides");
  Hello hello{.inbox_bytes = get<std::uint32_t>(&data[2]),
              .window = {.address = get<std::uint64_t>(&data[6]),
                         .length = get<std::uint32_t>(&data[14]) * kWindowUnit,
                         .rkey = get<std::uint32_t>(&data[18]),
                         .access = kWindowRights,
                         .memory_id = get<std::uint64_t>(&data[22])}};
  if (hello.inbox_bytes < kMinInboxBytes || hello.inbox_bytes > kMaxInboxBytes)
    return fail(Status::kProtocol, "connect", 0, "the peer says its inbox has {} bytes: it must be {} to {}",
                hello.inbox_bytes, kMinInboxBytes, kMaxInboxBytes);
  if (hello.window.length > kMaxWindowBytes || hello.window.address + hello.window.length < hello.window.address)
    return fail(Status::kProtocol, "connect", 0, "the peer's window of {} bytes at {:#x} cannot be",
                hello.window.length, hello.window.address);
  return hello;
}

std::optional<Found> decode_found(std::span<const std::byte> data) noexcept {
  if (data.size() != sizeof(Found)) return std::nullopt;
  Found found;
  std::memcpy(&found, data.data(), sizeof found);
  const bool wraps = found.address + found.length < found.address;
  if (wraps || found.length == 0 || (found.access & ~static_cast<std::uint32_t>(rdma::Access::kAll)) != 0)
    return std::nullopt;
  return found;
}

}  // namespace verbena::session::wire
