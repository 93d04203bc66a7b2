// Handshake frames: their bytes, without input or output. Only this file decodes a peer's frames.
//
//   offset  bytes  field            offset  bytes  field
//        0      4  magic "VRBN"          8      4  bytes of body
//        4      2  version              12      -  body
//        6      1  type             12+body     8  XXH3-64 of everything before it
//        7      1  1: sealed, 0: open
//
// A sealed frame's last 32 bytes of body are its seal (link/seal.hpp). All integers are little-endian. Magic and
// version stay at their places in every later version, so that programs of different versions can detect that.
#pragma once

#include "base/error.hpp"
#include "base/mac.hpp"
#include "link/keys.hpp"
#include "link/link.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace verbena::link {

enum class FrameType : std::uint8_t {
  kHello = 1,
  kReject = 2,  ///< Never sealed, because a side that refuses usually has no common key.
  kReady = 3,
  kKey = 4,        ///< A client's first frame if it has a key. Never sealed.
  kChallenge = 5,  ///< The server's answer to KEY. Always sealed.
};
/// Whether a frame has a seal. In a handshake with a key all frames have one whose types allow it.
enum class Cover : std::uint8_t { kOpen = 0, kSealed = 1 };

inline constexpr std::size_t kHeaderBytes = 12;
inline constexpr std::size_t kChecksumBytes = 8;
/// nic 1, mtu 1, READ depth 1, network 1, lid 2, private bytes 2, gid 16, QP number 4, psn 4,
/// receive depth 4, generation 8; the private data follows.
inline constexpr std::size_t kHelloFixedBytes = 44;
/// status 1, reserved 1, text bytes 2; the text follows.
inline constexpr std::size_t kRejectFixedBytes = 4;
inline constexpr std::size_t kMaxRejectText = 200;
inline constexpr std::size_t kReadyBytes = 8;  ///< The sender's generation.
inline constexpr std::size_t kSealBytes = kMacBytes;
inline constexpr std::size_t kNonceBytes = 32;
using Nonce = std::array<std::byte, kNonceBytes>;
/// nonce 32, name bytes 1; the name follows.
inline constexpr std::size_t kKeyFixedBytes = kNonceBytes + 1;
inline constexpr std::size_t kMaxBodyBytes = kHelloFixedBytes + kMaxPrivateBytes + kSealBytes;
inline constexpr std::size_t kMaxFrameBytes = kHeaderBytes + kMaxBodyBytes + kChecksumBytes;
// HELLO is the longest frame, and a blob is a padded HELLO.
static_assert(kRejectFixedBytes + kMaxRejectText <= kMaxBodyBytes && kReadyBytes <= kMaxBodyBytes);
static_assert(kMaxFrameBytes <= kBlobBytes);

/// The error for a malformed or unexpected frame.
template <class... Args>
[[nodiscard]] std::unexpected<Error> broken(fmt::format_string<Args...> format, Args&&... args) noexcept {
  return fail(Status::kProtocol, "handshake", 0, format, std::forward<Args>(args)...);
}

// Little-endian integers at an offset, which must be inside.
template <std::unsigned_integral T>
void store(std::span<std::byte> out, std::size_t at, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) out[at + i] = static_cast<std::byte>(value >> (8 * i));
}
template <std::unsigned_integral T>
[[nodiscard]] T load(std::span<const std::byte> in, std::size_t at) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(in[at + i]) << (8 * i)));
  return value;
}

/// An encoded frame. A value.
struct Frame {
  std::array<std::byte, kMaxFrameBytes> data{};
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data.data(), size}; }
};

/// Why the peer refused. The text is always printable ASCII, because terminals and logs show it.
struct Reject {
  Status status = Status::kRejected;
  std::array<char, kMaxRejectText> text{};
  std::size_t text_bytes = 0;
  [[nodiscard]] std::string_view reason() const noexcept { return {text.data(), text_bytes}; }
};

/// A client's claim: the name of a key, and its random number. The name satisfies is_key_name.
struct KeyClaim {
  Nonce nonce{};
  std::array<char, kMaxKeyNameBytes> text{};
  std::size_t text_bytes = 0;
  [[nodiscard]] std::string_view name() const noexcept { return {text.data(), text_bytes}; }
};

/// Makes a Reject from a peer's bytes: a status that this version does not know, or kOk, becomes kRejected. `text` has
/// at most kMaxRejectText bytes. \thread any  \alloc none
[[nodiscard]] Reject make_reject(std::uint8_t status, std::span<const std::byte> text) noexcept;

/// Why an endpoint is invalid, or nullptr: unknown NIC kind, network or MTU, psn or QP number of more than 24 bits, too
/// many private bytes. \thread any  \alloc none
[[nodiscard]] const char* fault_of(const Endpoint& endpoint) noexcept;

/// kTooLong if an endpoint has more user data than `most`. \thread any  \alloc none
[[nodiscard]] Result<void> check_user_data(const Endpoint& endpoint, std::size_t most, const char* call) noexcept;
/// The same, and kBadArgument for a local endpoint with a fault. \thread any  \alloc none
[[nodiscard]] Result<void> check_local(const Endpoint& local, std::size_t most, const char* call) noexcept;

// Encoders. They cut private data or text that is too long. \thread any  \alloc none
[[nodiscard]] Frame encode_hello(const Endpoint& endpoint) noexcept;
[[nodiscard]] Frame encode_reject(Status status, std::string_view text) noexcept;
[[nodiscard]] Frame encode_ready(std::uint64_t generation) noexcept;
[[nodiscard]] Frame encode_key(std::string_view name, const Nonce& nonce) noexcept;
/// Must be sealed before it is sent.
[[nodiscard]] Frame encode_challenge(const Nonce& nonce) noexcept;

// The seal of a frame, and the bytes that it covers: all of the frame before it. with_room_for_seal takes an open
// frame; the others take its result, or a frame that a decoder has accepted as sealed. \thread any  \alloc none
[[nodiscard]] Frame with_room_for_seal(const Frame& open) noexcept;
[[nodiscard]] std::span<const std::byte> covered_by_seal(std::span<const std::byte> sealed) noexcept;
void set_seal(Frame& sealed, const Mac& seal) noexcept;
[[nodiscard]] Mac seal_of(std::span<const std::byte> sealed) noexcept;

// Decoders. They accept any bytes of any length, and never read past the span. All errors are kProtocol, with a text
// that names the fault. \thread any  \alloc none

/// Bytes of the frame that begins with `have`, as far as known: kHeaderBytes until the header is complete, then all of
/// it. Fails as soon as `have` cannot be the beginning of a frame.
[[nodiscard]] Result<std::size_t> bytes_needed(std::span<const std::byte> have) noexcept;
/// The sender's protocol version; nothing if `have` is too short or not from Verbena.
[[nodiscard]] std::optional<std::uint16_t> version_of(std::span<const std::byte> have) noexcept;
/// Checks header, length and checksum of a whole frame, and returns its type.
[[nodiscard]] Result<FrameType> decode_type(std::span<const std::byte> frame) noexcept;
/// These check all that decode_type does, their type, and that there is a seal if and only if there must be one. Seal
/// checks the seal itself.
[[nodiscard]] Result<Endpoint> decode_hello(std::span<const std::byte> frame, Cover cover = Cover::kOpen) noexcept;
[[nodiscard]] Result<Reject> decode_reject(std::span<const std::byte> frame) noexcept;
[[nodiscard]] Result<std::uint64_t> decode_ready(std::span<const std::byte> frame, Cover cover = Cover::kOpen) noexcept;
[[nodiscard]] Result<KeyClaim> decode_key(std::span<const std::byte> frame) noexcept;
[[nodiscard]] Result<Nonce> decode_challenge(std::span<const std::byte> frame) noexcept;

}  // namespace verbena::link
