#include "link/cm/private_data.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::link::cm {

namespace {

constexpr std::array<std::byte, 2> kMagic{std::byte{'V'}, std::byte{'B'}};
constexpr auto kVersion = static_cast<std::uint8_t>(kProtocolVersion);
static_assert(kVersion == kProtocolVersion);
constexpr std::size_t kVersionAt = 2, kTypeAt = 3, kLengthAt = 4, kStatusAt = 5, kDepthAt = 6, kGenerationAt = 8;
constexpr std::uint8_t kHello = 1, kReject = 2;

PrivateData begin(std::uint8_t type, std::size_t head, std::span<const std::byte> tail) noexcept {
  PrivateData out;
  std::ranges::copy(kMagic, out.data.begin());
  store(out.data, kVersionAt, kVersion);
  store(out.data, kTypeAt, type);
  store(out.data, kLengthAt, static_cast<std::uint8_t>(tail.size()));
  std::ranges::copy(tail, out.data.begin() + static_cast<std::ptrdiff_t>(head));
  out.size = head + tail.size();
  return out;
}

/// Checks the head of `data` for `type`, and returns the bytes that follow it.
Result<std::span<const std::byte>> tail_of(std::span<const std::byte> data, std::uint8_t type, std::size_t head,
                                           std::size_t most) noexcept {
  if (data.size() <= kVersionAt || !std::ranges::equal(data.first(kMagic.size()), kMagic))
    return broken("this is not a Verbena handshake: its private data begins with another magic number");
  const auto version = load<std::uint8_t>(data, kVersionAt);
  if (version != kVersion)
    return broken(
        "the other side speaks version {} of Verbena's handshake and this side version {}: run the same release on "
        "both",
        version, kVersion);
  if (data.size() < head || load<std::uint8_t>(data, kTypeAt) != type)
    return broken("the private data is too short, or of another type");
  const std::size_t length = load<std::uint8_t>(data, kLengthAt);
  if (length > most || length > data.size() - head)
    return broken("the private data says that {} bytes follow, and {} do", length, data.size() - head);
  return data.subspan(head, length);
}

}  // namespace

PrivateData encode_cm_hello(const Endpoint& endpoint) noexcept {
  VERBENA_CHECK(endpoint.private_bytes <= kMaxCmAnswerBytes && endpoint.recv_depth <= 0xFFFF);
  PrivateData out = begin(kHello, kHelloHeadBytes, endpoint.user_data());
  store(out.data, kDepthAt, static_cast<std::uint16_t>(endpoint.recv_depth));
  store(out.data, kGenerationAt, endpoint.generation);
  return out;
}

PrivateData encode_cm_reject(Status status, std::string_view text) noexcept {
  text = text.substr(0, kMaxCmRejectText);
  PrivateData out = begin(kReject, kRejectHeadBytes, bytes_of_text(text));
  store(out.data, kStatusAt, static_cast<std::uint8_t>(status));
  return out;
}

Result<void> decode_cm_hello(std::span<const std::byte> data, Endpoint& endpoint) noexcept {
  VERBENA_ASSIGN(const auto user_data, tail_of(data, kHello, kHelloHeadBytes, kMaxCmAnswerBytes));
  if (data[kStatusAt] != std::byte{0}) return broken("a reserved byte of a handshake is not 0");
  endpoint.recv_depth = load<std::uint16_t>(data, kDepthAt);
  endpoint.generation = load<std::uint64_t>(data, kGenerationAt);
  VERBENA_CHECK(endpoint.set_user_data(user_data) == Status::kOk);
  return {};
}

Result<Reject> decode_cm_reject(std::span<const std::byte> data) noexcept {
  VERBENA_ASSIGN(const auto text, tail_of(data, kReject, kRejectHeadBytes, kMaxCmRejectText));
  if (load<std::uint16_t>(data, kDepthAt) != 0) return broken("a reserved byte of a reject is not 0");
  return make_reject(load<std::uint8_t>(data, kStatusAt), text);
}

}  // namespace verbena::link::cm
