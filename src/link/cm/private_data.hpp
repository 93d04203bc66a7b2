// The private data of RDMA CM's request, reply and reject. A peer sends these bytes, so everything is checked.
//
//   offset  bytes  hello             reject
//        0      2  magic "VB"        magic "VB"
//        2      1  version           version
//        3      1  type 1            type 2
//        4      1  bytes of user data, or of text
//        5      1  0                 status
//        6      2  receive depth     0
//        8      8  generation        text
//       16      -  user data
//
// All integers are little-endian. CM pads with zeros, so there is a length field. Magic and version stay at their
// places in every later version. CM's packets have their own checksum.
#pragma once

#include "link/frames.hpp"

#include <verbena/error.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace verbena::link::cm {

// Bytes that librdmacm leaves to the user in the TCP port space; rdma_connect(3), rdma_accept(3), rdma_reject(3).
inline constexpr std::size_t kRequestBytes = 56;
inline constexpr std::size_t kReplyBytes = 196;
inline constexpr std::size_t kRejectBytes = 148;

inline constexpr std::size_t kHelloHeadBytes = 16;
inline constexpr std::size_t kRejectHeadBytes = 8;
static_assert(kHelloHeadBytes + kMaxCmRequestBytes == kRequestBytes);
static_assert(kHelloHeadBytes + kMaxCmAnswerBytes == kReplyBytes);
inline constexpr std::size_t kMaxCmRejectText = kRejectBytes - kRejectHeadBytes;
static_assert(kMaxCmRejectText <= kMaxRejectText);

struct PrivateData {
  std::array<std::byte, kReplyBytes> data{};
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data.data(), size}; }
};

// \thread any  \alloc none
/// `endpoint` has at most kMaxCmAnswerBytes of user data, and a receive depth of 16 bits.
[[nodiscard]] PrivateData encode_cm_hello(const Endpoint& endpoint) noexcept;
/// Cuts longer text.
[[nodiscard]] PrivateData encode_cm_reject(Status status, std::string_view text) noexcept;

/// Fills in what the private data has: receive depth, generation and user data; CM itself gives the rest. kProtocol for
/// anything that encode_cm_hello of this version cannot have made.
[[nodiscard]] Result<void> decode_cm_hello(std::span<const std::byte> data, Endpoint& endpoint) noexcept;
[[nodiscard]] Result<Reject> decode_cm_reject(std::span<const std::byte> data) noexcept;

}  // namespace verbena::link::cm
