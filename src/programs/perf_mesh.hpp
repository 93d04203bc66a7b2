// verbena-perf mesh: the arguments and the results of a run over N processes.
#pragma once

#include "programs/environment.hpp"
#include "programs/exit_code.hpp"
#include "programs/histogram.hpp"
#include "programs/perf_latency.hpp"

#include <verbena/mesh.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace verbena::programs {

/// Most processes that this program joins or starts.
inline constexpr unsigned kPerfMostProcesses = 1024;
/// Longest write to a peer.
inline constexpr std::uint64_t kPerfMostMeshWrite = 4U << 20;

/// The traffic between the processes.
enum class MeshPattern : std::uint8_t {
  kPingPong,  ///< Processes 0 and 1 exchange messages; the others sleep.
  kExchange,  ///< Each sends to all others and waits for theirs: an operation is a round.
  kStream,    ///< Each sends to all others as fast as they take it.
  kPoll,      ///< Process 0 polls while nothing arrives; the others sleep.
  kJoin       ///< Joins, and does nothing else.
};
[[nodiscard]] const char* to_string(MeshPattern pattern) noexcept;

/// How the bytes reach the peer.
enum class MeshBy : std::uint8_t { kMessage, kWrite };
[[nodiscard]] const char* to_string(MeshBy by) noexcept;

struct MeshArguments {
  mesh::Options mesh{};
  MeshPattern pattern = MeshPattern::kPingPong;
  std::optional<MeshBy> chosen_by;
  std::uint64_t bytes = 64;
  std::uint64_t iterations = 10'000;
  std::uint64_t warm_up = 1000;
  std::uint64_t clock_every = 1;
  std::chrono::milliseconds timeout{30'000};  ///< Limit for joining, and for the silence of a peer that takes part.
  std::optional<unsigned> id;                 ///< Run as this process only; without it, start all processes here.
  std::string directory;                      ///< Directory where the processes find each other,
  std::vector<std::string> hosts;             ///< or the addresses where they listen.
  std::optional<unsigned> cpu;                ///< The first process's cpu, or this one's.
  bool yields = false;                        ///< Polls and yields in between, instead of mesh.wait.
  bool json = false;

  [[nodiscard]] bool one_way() const noexcept { return pattern == MeshPattern::kPingPong; }
  [[nodiscard]] bool moves_bytes() const noexcept { return pattern < MeshPattern::kPoll; }
  [[nodiscard]] const char* wait() const noexcept { return yields ? "yield" : to_string(mesh.wait); }
  /// The chosen way; by default messages up to their longest size.
  [[nodiscard]] MeshBy by() const noexcept {
    return chosen_by.value_or(bytes <= mesh::kMaxMessageBytes ? MeshBy::kMessage : MeshBy::kWrite);
  }
};

/// Adds the subcommand. Sets `exit` to the result of running it.
void add_mesh(CLI::App& app, MeshArguments& arguments, Exit& exit);
/// Says what is wrong with the arguments together, or on this machine; empty: nothing. Each argument is in its own
/// range.
[[nodiscard]] std::string check_mesh_arguments(const MeshArguments& arguments);

struct MeshResult {
  MeshArguments arguments;
  std::string description;  ///< The mesh's own description.
  Environment environment;
  Histogram ticks;                 ///< Process 0's times: of a round trip, a round or a poll, in units of kPerfTick.
  std::uint64_t operations = 0;    ///< Round trips, rounds or polls; for a stream, messages of all processes.
  std::uint64_t messages = 0;      ///< Messages or writes of all processes.
  double seconds = 0;              ///< The slowest process's.
  double clock_ns = 0;             ///< Time for reading the clock, which each latency includes.
  double join_seconds = 0;         ///< The slowest process's.
  std::uint64_t memory_bytes = 0;  ///< Memory that joining added to a process, with its share of shared pages; the
                                   ///< mean.
  std::vector<unsigned> cpus;      ///< Cpus of the processes that this program started; empty: any.

  [[nodiscard]] PerfLatency latency() const noexcept { return {.ticks = ticks, .one_way = arguments.one_way()}; }
  [[nodiscard]] double per_s(std::uint64_t count) const noexcept {
    return static_cast<double>(count) / std::max(seconds, 1e-9);
  }
  [[nodiscard]] double bytes_per_s() const noexcept { return per_s(messages) * static_cast<double>(arguments.bytes); }
};

/// `mesh_announcement`: one line before the measurement. `mesh_text`: the result in several lines. `mesh_json`: one
/// JSON object on a line.
[[nodiscard]] std::string mesh_announcement(const MeshArguments& arguments);
[[nodiscard]] std::string mesh_text(const MeshResult& result);
[[nodiscard]] std::string mesh_json(const MeshResult& result);

/// Joins as process `mesh.id`, calls `joined`, measures, and gathers all measurements: process 0 gets the result.
/// Errors: those of Mesh::join and `joined`, and the reason why the run broke. \thread main
[[nodiscard]] Result<std::unique_ptr<MeshResult>> measure_mesh(const MeshArguments& arguments,
                                                               const std::function<Result<void>()>& joined);
/// Runs one process, or starts all and waits for them; process 0 prints. Forks: \thread main, the process must not have
/// started a thread yet.
[[nodiscard]] Exit run_mesh(const MeshArguments& arguments);

}  // namespace verbena::programs
