// The tests of verbena-perf: one table for the command line, the request of a run and both ends.
#pragma once

#include <cstdint>
#include <span>

namespace verbena::programs {

/// Longest window of a server, and longest operation on one.
inline constexpr std::uint32_t kPerfMostWindow = 64U << 20;
/// Longest message that a server accepts, and most memory that it exports for one connection: 1 GiB for all
/// connections.
inline constexpr std::uint32_t kPerfMostMessage = 4U << 20;

/// A byte in the request.
enum class PerfTest : std::uint8_t {
  kRead,
  kWrite,
  kPingPong,
  kMessage,
  kWriteImm,
  kFetchAdd,
  kCompareSwap,
  kPaRead,
  kPaWrite,
  kReadBw,
  kWriteBw,
  kWriteImmBw,
  kMessageBw,
  kFetchAddBw,
  kCompareSwapBw,
  kLine,
  kMemcpy,
  kWake
};

/// The target of the measured operations.
enum class PerfBy : std::uint8_t {
  kNothing,   ///< No peer and no NIC: a limit of the machine.
  kWindow,    ///< The peer's default window.
  kPhysical,  ///< Memory that the server exports by physical address.
  kMessages   ///< Messages.
};

enum class PerfPace : std::uint8_t {
  kCall,       ///< One call at a time, from call to return.
  kPingPong,   ///< To and fro; the latency is half of a round trip.
  kPipelined,  ///< Started without waiting, `depth` at a time: bandwidth and rate.
  kStream      ///< Back to back in one direction, until the server has taken the last one: bandwidth and rate.
};

struct PerfTestFacts {
  const char* name;  ///< Name of the subcommand.
  const char* what;  ///< One line of help.
  PerfBy by;
  PerfPace pace;
  std::uint32_t bytes;         ///< Default bytes of an operation.
  std::uint32_t most_bytes;    ///< Largest size; if equal to `bytes`, the only one.
  std::uint64_t iterations;    ///< Default number of operations.
  std::uint32_t depth = 1;     ///< Default number of operations in flight; 1: there is no choice.
  const char* also = nullptr;  ///< Other tools' name for it: an alias of the subcommand.
  [[nodiscard]] constexpr bool has_peer() const noexcept { return by != PerfBy::kNothing; }
  [[nodiscard]] constexpr bool has_size() const noexcept { return bytes != most_bytes; }
  [[nodiscard]] constexpr bool ping_pong() const noexcept { return pace == PerfPace::kPingPong; }
  [[nodiscard]] constexpr bool pipelined() const noexcept { return pace == PerfPace::kPipelined; }
  /// Whether several operations are in flight at a time: a thread may then have several connections.
  [[nodiscard]] constexpr bool overlaps() const noexcept { return pipelined() || pace == PerfPace::kStream; }
  /// Whether the server takes part, beyond offering its memory.
  [[nodiscard]] constexpr bool keeps_server_busy() const noexcept {
    return has_peer() && (ping_pong() || pace == PerfPace::kStream);
  }
};

/// In the order of PerfTest, as in the help.
[[nodiscard]] std::span<const PerfTestFacts> perf_tests() noexcept;
/// Requires `test` to be in the table.
[[nodiscard]] const PerfTestFacts& facts_of(PerfTest test) noexcept;

}  // namespace verbena::programs
