// The wire format of sessions: each side's part of the handshake, and the head of each message.
#pragma once

#include "nic/nic.hpp"

#include <verbena/error.hpp>
#include <verbena/rdma_types.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace verbena::session::wire {

/// Part of the handshake, after the message layer's part. Little-endian, of exactly this length: with the message
/// layer's 10 bytes it fills RDMA CM's private data.
///
///   offset  bytes  field                        offset  bytes  field
///        0      1  magic 'C'                         14      4  window: units of 64 bytes; 0: none
///        1      1  version 1                         18      4  window: rkey
///        2      4  inbox, in bytes                   22      8  window: memory id (soft NIC)
///        6      8  window: address
struct Hello {
  std::uint32_t inbox_bytes = 0;
  nic::Window window;  ///< Sent without its rights: a peer may always read, write and use atomics.
};
inline constexpr std::size_t kHelloBytes = 30;
inline constexpr std::uint32_t kMinInboxBytes = 64 * 1024;
inline constexpr std::uint32_t kMaxInboxBytes = 1u << 30;
inline constexpr std::uint64_t kWindowUnit = 64;
inline constexpr std::uint64_t kMaxWindowBytes = std::uint64_t{1} << 36;
[[nodiscard]] std::array<std::byte, kHelloBytes> encode(const Hello& hello) noexcept;
/// Errors: kProtocol for anything that `encode` of this version cannot have made.
[[nodiscard]] Result<Hello> decode(std::span<const std::byte> data);

enum class Kind : std::uint8_t {
  kData = 1,         ///< A piece of a message.
  kWritten = 2,      ///< The peer's window was written to: `total` bytes from `offset`.
  kConsumed = 3,     ///< Carries `consumed`, and nothing else.
  kGoodbye = 4,      ///< The last message: the sender is closing.
  kGoodbyeSeen = 5,  ///< Answer to kGoodbye; earlier releases send it and wait for it.
  kTable = 6,        ///< A piece of a PhysicalTable's bytes: `total` and `offset` as in kData.
  kAsk = 7,          ///< Asks for a window, by the name that follows, else by the key in `immediate`.
  kAnswer = 8        ///< Answers kAsk: a window, or nothing if there is none. A name may get more answers later.
};
/// Tables that one side may send.
inline constexpr std::size_t kMaxTables = 16;
inline constexpr std::size_t kMaxNameBytes = 64;
inline constexpr std::uint8_t kHasImmediate = 1;

/// Starts each message of the connection. Little-endian, like the machine (the message layer's magic and version check
/// that).
struct Head {
  Kind kind = Kind::kData;
  std::uint8_t flags = 0;
  std::uint16_t zero = 0;
  std::uint32_t immediate = 0;
  std::uint64_t consumed = 0;  ///< Total bytes of the peer's inbox records that this side has taken.
  std::uint64_t total = 0;     ///< Bytes of the whole message.
  std::uint64_t offset = 0;    ///< Offset of this piece in the message. 0 starts a message, and drops an unfinished
                               ///< one. In kAsk a number, which kAnswer repeats.
};
static_assert(sizeof(Head) == 32);

/// Answers a kAsk, after its head: a window.
inline constexpr std::size_t kFoundBytes = 32;
[[nodiscard]] std::array<std::byte, kFoundBytes> encode_found(const rdma::Window& window) noexcept;
/// None for anything that cannot be a window.
[[nodiscard]] std::optional<rdma::Window> decode_found(std::span<const std::byte> data) noexcept;

}  // namespace verbena::session::wire
