// The tests of verbena-perf: one table, which the command line, the handshake and both ends go by.
#pragma once

#include <cstdint>
#include <span>

namespace verbena::programs {

/// A byte of the handshake: numbers stay as they are.
enum class PerfTest : std::uint8_t {
  kRead = 1,
  kWrite = 2,
  kPingPong = 3,
  kMessage = 4,
  kWriteBw = 5,
  kReadBw = 6,
  kWriteImm = 7,
  kWriteImmBw = 8,
  kFetchAdd = 9,
  kFetchAddBw = 10,
  kCompareSwap = 11,
  kCompareSwapBw = 12,
  kMessageBw = 13,
  kLargeBw = 14,
  kLine = 15,
  kMemcpy = 16,
  kWake = 17,
  kPaRead = 18,
  kPaWrite = 19,
};

/// The two ends of a run.
enum class PerfRole : std::uint8_t { kClient, kServer };

/// What the measured operations go over.
enum class PerfBy : std::uint8_t {
  kNothing,   ///< No peer and no NIC: a limit of the machine.
  kLink,      ///< remote::Link.
  kPhysical,  ///< The same with remote::PhysicalMap on it: the server's memory by physical address.
  kChannel,   ///< message::Channel.
};

enum class PerfPace : std::uint8_t {
  kCall,       ///< One at a time, from call to return.
  kPingPong,   ///< To and fro: a latency is half of a round trip.
  kPipelined,  ///< `depth` at a time: bandwidth and rate.
};

struct PerfTestFacts {
  PerfTest test;
  const char* name;  ///< Of the subcommand.
  const char* what;  ///< One line of help.
  PerfBy by;
  PerfPace pace;
  bool keeps_server_busy;      ///< Instead of having its memory used only.
  std::uint32_t bytes;         ///< Of an operation, unless the user says.
  std::uint32_t most_bytes;    ///< As many as `bytes`: nothing else.
  std::uint32_t depth;         ///< The same of operations in flight; 1 where there is no choice.
  std::uint64_t iterations;    ///< And of operations.
  const char* also = nullptr;  ///< What other tools call it: another name of the subcommand.
  /// Whether the peer's memory is used, through a link.
  [[nodiscard]] constexpr bool one_sided() const noexcept { return by == PerfBy::kLink || by == PerfBy::kPhysical; }
  [[nodiscard]] constexpr bool pipelined() const noexcept { return pace == PerfPace::kPipelined; }
  [[nodiscard]] constexpr bool ping_pong() const noexcept { return pace == PerfPace::kPingPong; }
  [[nodiscard]] constexpr bool has_size() const noexcept { return bytes != most_bytes; }
};

[[nodiscard]] std::span<const PerfTestFacts> perf_tests() noexcept;
/// Null for a number of none.
[[nodiscard]] const PerfTestFacts* find_perf_test(PerfTest test) noexcept;
/// Of a test that is one.
[[nodiscard]] const PerfTestFacts& facts_of(PerfTest test) noexcept;
/// The subcommand's name. Static storage.
[[nodiscard]] const char* to_string(PerfTest test) noexcept;

}  // namespace verbena::programs
