// verbena-perf mesh: what a run over N processes is, and what it measured.
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

/// Most processes that this program takes part with, or starts.
inline constexpr unsigned kPerfMostProcesses = 1024;
/// Longest write to a peer.
inline constexpr std::uint64_t kPerfMostMeshWrite = 4U << 20;

/// What the processes do.
enum class MeshPattern : std::uint8_t {
  kPingPong,  ///< Processes 0 and 1 play; the others sleep.
  kExchange,  ///< Each sends to all others, and waits for all of theirs: an operation is a round.
  kStream,    ///< Each sends to all others as fast as they take it.
  kPoll,      ///< Process 0 polls, and nothing comes; the others sleep.
  kJoin       ///< Nothing but joining.
};
[[nodiscard]] const char* to_string(MeshPattern pattern) noexcept;

/// How the bytes get to the peer.
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
  std::chrono::milliseconds timeout{30'000};  ///< To join, and longest silence of a peer that is to play.
  std::optional<unsigned> id;                 ///< This process alone; without, all of them are started here.
  std::string directory;                      ///< Where the processes find each other,
  std::vector<std::string> hosts;             ///< or where each listens.
  std::optional<unsigned> cpu;                ///< The first process's, or this one's.
  bool yields = false;                        ///< Instead of mesh.wait: polls, and yields in between.
  bool json = false;

  [[nodiscard]] bool one_way() const noexcept { return pattern == MeshPattern::kPingPong; }
  [[nodiscard]] bool moves_bytes() const noexcept { return pattern < MeshPattern::kPoll; }
  [[nodiscard]] const char* wait() const noexcept { return yields ? "yield" : to_string(mesh.wait); }
  /// As chosen; else by messages as long as they can be.
  [[nodiscard]] MeshBy by() const noexcept {
    return chosen_by.value_or(bytes <= mesh::kMaxMessageBytes ? MeshBy::kMessage : MeshBy::kWrite);
  }
};

/// Adds the subcommand. `exit` is what running it came to.
void add_mesh(CLI::App& app, MeshArguments& arguments, Exit& exit);
/// What is wrong with the arguments together, or on this machine; empty when nothing is. Each is in its own range.
[[nodiscard]] std::string check_mesh_arguments(const MeshArguments& arguments);

struct MeshResult {
  MeshArguments arguments;
  std::string description;  ///< The mesh's own.
  Environment environment;
  Histogram ticks;                 ///< Process 0's: of a round trip, a round or a poll, in units of kPerfTick.
  std::uint64_t operations = 0;    ///< Round trips, rounds or polls; of a stream, messages of all processes.
  std::uint64_t messages = 0;      ///< Messages or writes of all processes.
  double seconds = 0;              ///< The slowest process's.
  double clock_ns = 0;             ///< What reading the clock adds to each latency.
  double join_seconds = 0;         ///< The slowest process's.
  std::uint64_t memory_bytes = 0;  ///< What joining added to a process, with its share of shared pages: the mean.
  std::vector<unsigned> cpus;      ///< Of the processes that this program started; empty: anywhere.

  [[nodiscard]] PerfLatency latency() const noexcept { return {.ticks = ticks, .one_way = arguments.one_way()}; }
  [[nodiscard]] double per_s(std::uint64_t count) const noexcept {
    return static_cast<double>(count) / std::max(seconds, 1e-9);
  }
  [[nodiscard]] double bytes_per_s() const noexcept { return per_s(messages) * static_cast<double>(arguments.bytes); }
};

/// What is measured, one line in front of the measurement; several lines of what came out; one JSON object on a line.
[[nodiscard]] std::string mesh_announcement(const MeshArguments& arguments);
[[nodiscard]] std::string mesh_text(const MeshResult& result);
[[nodiscard]] std::string mesh_json(const MeshResult& result);

/// Joins as process `mesh.id`, calls `joined`, measures, and gathers what all have measured: process 0 has the result.
/// Errors: those of Mesh::join and `joined`, and why the run broke. \thread main
[[nodiscard]] Result<std::unique_ptr<MeshResult>> measure_mesh(const MeshArguments& arguments,
                                                               const std::function<Result<void>()>& joined);
/// Runs one process, or starts all and waits for them; process 0 prints. Forks: \thread main, the process must have
/// started no thread yet.
[[nodiscard]] Exit run_mesh(const MeshArguments& arguments);

}  // namespace verbena::programs
