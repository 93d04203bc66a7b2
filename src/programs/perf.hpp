// verbena-perf: what a run is, what it measured, and the two ends of it.
#pragma once

#include "base/fd.hpp"
#include "programs/environment.hpp"
#include "programs/exit_code.hpp"
#include "programs/histogram.hpp"
#include "programs/perf_latency.hpp"
#include "programs/perf_tests.hpp"
#include "programs/perf_wire.hpp"

#include <verbena/rdma.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace verbena::programs {

/// Who answers at the server, in words.
[[nodiscard]] const char* explain(perf_wire::Serving serving) noexcept;

struct PerfServeArguments {
  rdma::Options where{};  ///< Where to listen, by which NIC, and each connection's window.
  perf_wire::Serving serving = perf_wire::Serving::kHandler;
  std::uint32_t clients = 0;     ///< End after so many whole runs; 0: never.
  std::optional<int> port_to{};  ///< Descriptor that gets the port, instead of a line on standard output.
};

struct PerfArguments {
  rdma::Options where{};  ///< Where the server is, and by which NIC.
  PerfTest test = PerfTest::kRead;
  std::vector<std::uint64_t> sizes;  ///< Bytes of an operation; a run each.
  std::uint64_t iterations = 0;      ///< Operations of each thread.
  std::uint64_t warm_up = 1000;      ///< Operations before them.
  std::uint64_t clock_every = 1;     ///< One reading of the clock in so many operations, one at a time.
  std::uint64_t idle_us = 0;         ///< Silence before each operation; 0: none.
  std::uint32_t depth = 1;           ///< Operations in flight on a connection.
  std::uint32_t threads = 1;
  std::uint32_t connections = 1;                              ///< Connections of each thread.
  std::optional<unsigned> cpu;                                ///< The first thread's; anywhere without.
  bool json = false;                                          ///< A JSON object a size, instead of text.
  bool local = false;                                         ///< Start the server as well,
  perf_wire::Serving serving = perf_wire::Serving::kHandler;  ///< which serves so.
  [[nodiscard]] std::uint32_t all_connections() const noexcept { return threads * connections; }
};

/// "1..1M": the powers of two from the first to the last, and both of them. Empty when it is none.
[[nodiscard]] std::vector<std::uint64_t> parse_sweep(const std::string& text);
/// What is wrong with the arguments together, or on this machine; empty when nothing is. Each is in its own range.
[[nodiscard]] std::string check_perf_arguments(const PerfArguments& arguments);
/// As many cpus as there are threads, the allowed ones in turn, from `first`, one of them, on; empty without `first`.
[[nodiscard]] std::vector<unsigned> perf_cpus(std::optional<unsigned> first, unsigned threads);

struct PerfResult {
  PerfArguments arguments;
  std::uint64_t bytes = 0;
  std::string nic, path;  ///< The device, and how the connection was made; of tests without one, what was used.
  perf_wire::Serving serving = perf_wire::Serving::kHandler;
  Environment environment;
  Histogram ticks;  ///< Time of a round trip, or of an operation, in units of kPerfTick.
  std::uint64_t operations = 0;
  double seconds = 0;             ///< All of them together.
  double clock_ns = 0;            ///< What reading the clock adds to each latency.
  std::vector<unsigned> cpus;     ///< Where this side's threads ran; empty: anywhere.
  double server_percent = 0;      ///< What the server's process used of a core.
  std::uint64_t other_runs = 0;   ///< Runs that it served at the same time.
  double memory_bytes_per_s = 0;  ///< memcpy through memory, instead of caches.

  [[nodiscard]] const PerfTestFacts& facts() const noexcept { return facts_of(arguments.test); }
  [[nodiscard]] PerfLatency latency() const noexcept { return {.ticks = ticks, .one_way = facts().ping_pong()}; }
  [[nodiscard]] double operations_per_s() const noexcept;
  [[nodiscard]] double bytes_per_s() const noexcept;
};

/// What is measured, one line in front of the measurement.
[[nodiscard]] std::string perf_announcement(const PerfResult& result);
/// Several lines for people, with a histogram.
[[nodiscard]] std::string perf_text(const PerfResult& result);
/// A table: one line a size, below its head, and what they were measured on.
[[nodiscard]] std::string perf_table_head(const PerfResult& result);
[[nodiscard]] std::string perf_table_row(const PerfResult& result);
[[nodiscard]] std::string perf_configuration(const PerfResult& result);
/// One JSON object on one line.
[[nodiscard]] std::string perf_json(const PerfResult& result);

/// Measures and prints. \thread main
[[nodiscard]] Exit run_perf(const PerfArguments& arguments);
/// Serves whoever comes until a signal ends the process, or so many runs. \thread main
[[nodiscard]] Exit run_perf_server(const PerfServeArguments& arguments);
/// A test without a peer. \thread main
[[nodiscard]] Result<void> measure_bare(PerfResult& result);

/// A server on a free port, in a process of its own, for so many runs; its end is waited for, then forced.
class PerfLocalServer {
 public:
  /// Forks: \thread main, the process must have started no thread yet. Returns when it is ready.
  [[nodiscard]] static Result<PerfLocalServer> start(PerfServeArguments arguments);
  PerfLocalServer(PerfLocalServer&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pipe_(std::move(other.pipe_)), port_(other.port_) {}
  PerfLocalServer& operator=(PerfLocalServer&&) = delete;
  ~PerfLocalServer();
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

 private:
  explicit PerfLocalServer(Fd pipe) noexcept : pipe_(std::move(pipe)) {}
  pid_t pid_ = -1;
  Fd pipe_;  ///< Brings the port, and is closed with the process.
  std::uint16_t port_ = 0;
};

}  // namespace verbena::programs
