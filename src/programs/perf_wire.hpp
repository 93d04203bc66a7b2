// The handshake of verbena-perf: what the two ends tell each other in the user data of the bootstrap.
//
// A client makes two connections, under one random session: first the control channel, whose hello says what is to be
// run, then, where the test needs it, the link for one-sided access, whose hello has the window of its memory.
#pragma once

#include "nic/nic.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string_view>

namespace verbena::programs {

static_assert(std::endian::native == std::endian::little, "hellos are copied as they lie in memory");

enum class PerfTest : std::uint8_t {
  kRead = 1,      ///< Blocking READs by the client.
  kWrite = 2,     ///< Blocking WRITEs by the client.
  kPingPong = 3,  ///< WRITEs to and fro; each side polls its memory for the other's.
  kMessage = 4,   ///< Messages to and fro.
  kWriteBw = 5,   ///< Large messages (WRITE_WITH_IMM) by the client, several in flight.
};
/// The subcommand's name. Static storage.
[[nodiscard]] const char* to_string(PerfTest test) noexcept;
[[nodiscard]] constexpr bool uses_link(PerfTest test) noexcept {
  return test == PerfTest::kRead || test == PerfTest::kWrite || test == PerfTest::kPingPong;
}
/// Both ends work all the time, instead of one that only has its memory used.
[[nodiscard]] constexpr bool keeps_both_busy(PerfTest test) noexcept {
  return test != PerfTest::kRead && test != PerfTest::kWrite;
}
[[nodiscard]] constexpr bool is_ping_pong(PerfTest test) noexcept {
  return test == PerfTest::kPingPong || test == PerfTest::kMessage;
}

namespace perf_wire {

inline constexpr std::uint16_t kMagic = 0x5056;  // "VP"
inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;         ///< Of an operation on a link.
inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{16} << 10;  ///< An eager message's limit.
inline constexpr std::uint64_t kMaxLargeBytes = std::uint64_t{1} << 20;     ///< Of write-bw: the lease holds many.
inline constexpr std::uint32_t kMaxInFlight = 64;
inline constexpr std::uint64_t kMaxRounds = std::uint64_t{1} << 40;

[[nodiscard]] constexpr std::uint64_t most_bytes(PerfTest test) noexcept {
  if (test == PerfTest::kMessage) return kMaxMessageBytes;
  return test == PerfTest::kWriteBw ? kMaxLargeBytes : kMaxBytes;
}

// Both fit what RDMA CM carries of a client: 40 bytes, of which the channel takes 10.

/// Client to server, on the channel; the server repeats it.
struct RunHello {
  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t kind = 1;  ///< Of hello.
  PerfTest test = PerfTest::kRead;
  std::uint8_t reserved = 0;
  std::uint16_t in_flight = 0;  ///< 1 to kMaxInFlight.
  std::uint32_t session = 0;    ///< Random, not 0.
  std::uint32_t bytes = 0;      ///< Of each operation; 1 to most_bytes.
  std::uint64_t rounds = 0;     ///< Warm-up and iterations; 1 to kMaxRounds.
  friend bool operator==(const RunHello&, const RunHello&) = default;
};
static_assert(sizeof(RunHello) == 24);

/// Each to the other, on the link: the window of `bytes` bytes, readable and writable, in which the sender has its
/// operations land.
struct LinkHello {
  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t kind = 2;
  std::uint32_t session = 0;
  std::uint64_t address = 0;
  std::uint64_t memory = 0;
  std::uint32_t length = 0;
  std::uint32_t rkey = 0;

  [[nodiscard]] nic::Window window() const noexcept {
    return {.address = address,
            .length = length,
            .rkey = rkey,
            .access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
            .memory_id = memory};
  }
};
static_assert(sizeof(LinkHello) == 32);

/// kProtocol for anything that is not a hello of this version with every field in its range.
[[nodiscard]] std::expected<RunHello, Status> decode_run(std::span<const std::byte> data) noexcept;
/// The same, and kProtocol for one that does not belong to `run`.
[[nodiscard]] std::expected<LinkHello, Status> decode_link(std::span<const std::byte> data,
                                                           const RunHello& run) noexcept;

}  // namespace perf_wire
}  // namespace verbena::programs
