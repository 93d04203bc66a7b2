// The tests of verbena-perf: one table, which the command line, the request of a run and both ends go by.
#pragma once

#include <cstdint>
#include <span>

namespace verbena::programs {

/// Longest window of a server, and longest operation on one.
inline constexpr std::uint32_t kPerfMostWindow = 64U << 20;
/// Longest message that a server takes, and most memory that a connection has it export: 1 GiB of all connections.
inline constexpr std::uint32_t kPerfMostMessage = 4U << 20;

/// A byte of the request.
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

/// What the measured operations use.
enum class PerfBy : std::uint8_t {
  kNothing,   ///< No peer and no NIC: a limit of the machine.
  kWindow,    ///< The peer's default window.
  kPhysical,  ///< Memory that the server exports by physical address.
  kMessages   ///< Messages.
};

enum class PerfPace : std::uint8_t {
  kCall,       ///< One call at a time, from call to return.
  kPingPong,   ///< To and fro: a latency is half of a round trip.
  kPipelined,  ///< Started without waiting, `depth` at a time: bandwidth and rate.
  kStream      ///< One call after the other in one direction, until the server has taken the last: bandwidth and rate.
};

struct PerfTestFacts {
  const char* name;  ///< Name of the subcommand.
  const char* what;  ///< One line of help.
  PerfBy by;
  PerfPace pace;
  std::uint32_t bytes;         ///< Bytes of an operation, unless the user says.
  std::uint32_t most_bytes;    ///< As many as `bytes`: nothing else.
  std::uint64_t iterations;    ///< Operations, unless the user says.
  std::uint32_t depth = 1;     ///< Operations in flight, unless the user says; 1 where there is no choice.
  const char* also = nullptr;  ///< What other tools call it: another name of the subcommand.
  [[nodiscard]] constexpr bool has_peer() const noexcept { return by != PerfBy::kNothing; }
  [[nodiscard]] constexpr bool has_size() const noexcept { return bytes != most_bytes; }
  [[nodiscard]] constexpr bool ping_pong() const noexcept { return pace == PerfPace::kPingPong; }
  [[nodiscard]] constexpr bool pipelined() const noexcept { return pace == PerfPace::kPipelined; }
  /// Several operations are under way at a time: a thread may have several connections.
  [[nodiscard]] constexpr bool overlaps() const noexcept { return pipelined() || pace == PerfPace::kStream; }
  /// The server takes part, instead of having its memory used only.
  [[nodiscard]] constexpr bool keeps_server_busy() const noexcept {
    return has_peer() && (ping_pong() || pace == PerfPace::kStream);
  }
};

/// In the order of PerfTest, which is the help's.
[[nodiscard]] std::span<const PerfTestFacts> perf_tests() noexcept;
/// `test` is in the table.
[[nodiscard]] const PerfTestFacts& facts_of(PerfTest test) noexcept;

}  // namespace verbena::programs
