// Wire formats: this layer's part of the handshake, the credit header, the fragment header and its immediate.
#pragma once

#include "nic/nic.hpp"

#include <verbena/error.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace verbena::channel::wire {

inline constexpr std::uint32_t kMinDepth = 4;
inline constexpr std::uint32_t kMaxDepth = 4096;
inline constexpr std::uint32_t kMinEagerBytes = 64;
inline constexpr std::uint32_t kMaxEagerBytes = 16 * 1024;
inline constexpr std::uint64_t kUnit = 64;  ///< Fragments start at multiples of this; lease credits count in it.
inline constexpr std::uint64_t kMinLeaseBytes = 4096;
inline constexpr std::uint64_t kMaxLeaseBytes = std::uint64_t{1} << 36;
static_assert(kMaxLeaseBytes / kUnit <= (1u << 30), "differences of wrapping 32-bit counts must stay unambiguous");

/// Receives beyond the depth: room for credit updates and for the fragments of one large message.
inline constexpr std::uint32_t kMargin = 4;
[[nodiscard]] constexpr std::uint32_t receives_for(std::uint32_t depth) noexcept { return depth + kMargin; }

static_assert(std::endian::native == std::endian::little, "the wire formats are little-endian, as memory is");

/// Starts each eager message and fragment: both credits, as counts that only grow. An eager message of just these 8
/// bytes is a credit update.
struct Credits {
  std::uint32_t receives_posted = 0;
  std::uint32_t lease_consumed = 0;  ///< In units of kUnit.
};
static_assert(sizeof(Credits) == 8);

/// Starts each fragment, in the lease.
struct FragmentHeader {
  Credits credits;
  std::uint64_t total = 0;  ///< Bytes of the whole message, without headers.
};
static_assert(sizeof(FragmentHeader) == 16);

/// A fragment's immediate: flags and a running number.
inline constexpr std::uint32_t kFirst = 1u << 31;
inline constexpr std::uint32_t kLast = 1u << 30;
inline constexpr std::uint32_t kNumberMask = 0x00ff'ffff;

/// Where a fragment goes: behind the one before it, or at the start of the lease when it does not fit before the end.
/// The units skipped at the end count as used. Both sides compute this.
struct Placement {
  std::uint32_t at = 0;     ///< First unit.
  std::uint32_t next = 0;   ///< Cursor for the fragment after it.
  std::uint32_t taken = 0;  ///< Units used, skipped ones included.
};
[[nodiscard]] constexpr Placement place(std::uint32_t cursor, std::uint32_t units, std::uint32_t lease_units) noexcept {
  const std::uint32_t left = lease_units - cursor;
  const std::uint32_t skipped = units > left ? left : 0;
  const std::uint32_t at = skipped != 0 ? 0 : cursor;
  return {at, at + units == lease_units ? 0 : at + units, units + skipped};
}
[[nodiscard]] constexpr std::uint32_t units_of(std::uint64_t bytes) noexcept {
  return static_cast<std::uint32_t>((bytes + kUnit - 1) / kUnit);
}

/// This layer's part of the handshake, in front of the user's data. Short, because RDMA CM carries few bytes:
///
///   offset  bytes  field                          offset  bytes  field
///        0      1  magic 'M'                          10      8  lease: address
///        1      1  version 2 | what follows           18      4  lease: units of 64 bytes
///        2      2  depth                              22      4  lease: rkey
///        4      2  eager limit, in 64 bytes           26      8  lease: memory id (soft NIC)
///        6      4  first count
struct Handshake {
  std::uint32_t depth = 0;
  std::uint32_t eager_bytes = 0;
  std::uint32_t first_count = 0;
  nic::Window lease;      ///< Length 0: none.
  std::size_t bytes = 0;  ///< Length of the encoding; set by `decode`.
};
inline constexpr std::size_t kMinHandshakeBytes = 10;
inline constexpr std::size_t kMaxHandshakeBytes = 34;
struct EncodedHandshake {
  std::array<std::byte, kMaxHandshakeBytes> data{};
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data.data(), size}; }
};
/// Leaves out the lease's rights: a peer may only ever write to it.
[[nodiscard]] EncodedHandshake encode(const Handshake& handshake) noexcept;
/// Errors: kProtocol, naming what is wrong, for anything that `encode` of this version cannot have made.
[[nodiscard]] Result<Handshake> decode(std::span<const std::byte> data);

}  // namespace verbena::channel::wire
