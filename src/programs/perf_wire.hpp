// The handshake of verbena-perf: what the two ends tell each other in the user data of the bootstrap.
//
// Everything of a run is under one random session. A client first makes the control channel, whose hello says what is
// to be run; then every connection that is measured, each with its place in the run: links with the window of the
// memory that is used through them, or channels.
#pragma once

#include "message/message.hpp"
#include "nic/nic.hpp"
#include "programs/perf_tests.hpp"
#include "remote/remote.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>

namespace verbena::programs::perf_wire {

static_assert(std::endian::native == std::endian::little, "hellos are copied as they lie in memory");

inline constexpr std::uint16_t kMagic = 0x5056;  // "VP"
inline constexpr std::uint8_t kVersion = 2;
inline constexpr std::uint32_t kMaxDepth = 1024;
inline constexpr std::uint32_t kMaxThreads = 64;
inline constexpr std::uint32_t kMaxConnections = 256;  ///< Of one thread.
/// Operations in flight of one thread, all its connections together: its completion queue holds them.
inline constexpr std::uint32_t kMaxInFlight = 16384;
/// That one end sets aside for a run: 1 GiB.
inline constexpr std::uint64_t kMaxMemory = std::uint64_t{1} << 30;

// Both fit what RDMA CM carries of a client: 40 bytes, of which a channel takes 10.

/// Client to server, on the control channel; the server repeats it.
struct RunHello {
  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t kind = 1;  ///< Of hello.
  PerfTest test = PerfTest::kRead;
  engine::WaitPolicy wait = engine::WaitPolicy::kSpin;  ///< Of an end that has something to do.
  std::uint16_t depth = 1;                              ///< Operations in flight on a connection; 1 to kMaxDepth.
  std::uint32_t session = 0;                            ///< Random, not 0.
  std::uint32_t bytes = 0;                              ///< Of each operation; 1 to the test's most.
  std::uint16_t connections = 1;                        ///< Of each thread; 1 to kMaxConnections.
  std::uint8_t threads = 1;                             ///< Of each end; 1 to kMaxThreads.
  std::uint8_t reserved = 0;
  friend bool operator==(const RunHello&, const RunHello&) = default;
};
static_assert(sizeof(RunHello) == 20);

[[nodiscard]] constexpr std::uint32_t connections_of(const RunHello& run) noexcept {
  return std::uint32_t{run.threads} * run.connections;
}
/// One connection of a run over channels, or over links (whose handler is not set).
[[nodiscard]] message::Options channel_options(const RunHello& run, PerfRole role) noexcept;
[[nodiscard]] remote::LinkOptions link_options(const RunHello& run) noexcept;
/// The loop of one thread's connections, which waits by `wait`.
[[nodiscard]] engine::LoopOptions loop_options(const RunHello& run, engine::WaitPolicy wait) noexcept;

/// Where a server that exports its memory by physical address puts the table of it, behind the bytes that are used: its
/// length in 8 bytes, then the table. The client reads it there.
[[nodiscard]] constexpr std::uint64_t table_offset(const RunHello& run) noexcept {
  return (std::uint64_t{run.bytes} + 7) / 8 * 8;
}
/// An end's memory that its peer uses, in one thread.
[[nodiscard]] std::uint64_t shared_bytes(const RunHello& run) noexcept;
/// That one end sets aside at most, its queue pairs included, as the soft NIC has them: a device's are its driver's.
/// \alloc setup
[[nodiscard]] std::uint64_t memory_needed(const RunHello& run);

/// Each to the other, on a link: the window of `shared_bytes` bytes in which the sender has the peer's operations
/// happen.
struct LinkHello {
  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t kind = 2;
  std::uint32_t session = 0;
  std::uint64_t address = 0;
  std::uint64_t memory = 0;
  std::uint32_t rkey = 0;
  std::uint16_t index = 0;  ///< Of the connection: thread * connections + connection.
  std::uint16_t reserved = 0;
};
static_assert(sizeof(LinkHello) == 32);

/// Each to the other, on a channel.
struct ChannelHello {
  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t kind = 3;
  std::uint32_t session = 0;
  std::uint16_t index = 0;
  std::uint16_t reserved = 0;
};
static_assert(sizeof(ChannelHello) == 12);

/// How the peer may use a window of a run.
[[nodiscard]] int window_access(const RunHello& run) noexcept;
[[nodiscard]] nic::Window window_of(const LinkHello& hello, const RunHello& run) noexcept;

/// kProtocol for anything that is not a hello of this version with every field in its range.
[[nodiscard]] std::expected<RunHello, Status> decode_run(std::span<const std::byte> data);
/// The same, and kProtocol for one that does not belong to `run`.
[[nodiscard]] std::expected<LinkHello, Status> decode_link(std::span<const std::byte> data,
                                                           const RunHello& run) noexcept;
[[nodiscard]] std::expected<ChannelHello, Status> decode_channel(std::span<const std::byte> data,
                                                                 const RunHello& run) noexcept;

}  // namespace verbena::programs::perf_wire
