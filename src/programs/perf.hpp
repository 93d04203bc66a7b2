// verbena-perf: the arguments and results of a run, and its two ends.
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

/// Says in words who answers at the server.
[[nodiscard]] const char* explain(perf_wire::Serving serving) noexcept;

struct PerfServeArguments {
  rdma::Options where{};  ///< Where to listen, by which NIC, and each connection's window.
  perf_wire::Serving serving = perf_wire::Serving::kHandler;
  std::uint32_t clients = 0;     ///< Ends after this many complete runs; 0: never.
  std::optional<int> port_to{};  ///< Descriptor that gets the port, instead of standard output.
};

struct PerfArguments {
  rdma::Options where{};  ///< Where the server is, and by which NIC.
  PerfTest test = PerfTest::kRead;
  std::vector<std::uint64_t> sizes;  ///< Bytes of an operation; one run for each size.
  std::uint64_t iterations = 0;      ///< Operations per thread.
  std::uint64_t warm_up = 1000;      ///< Operations before them.
  std::uint64_t clock_every = 1;     ///< One reading of the clock per this many operations, one at a time.
  std::uint64_t idle_us = 0;         ///< Silence before each operation; 0: none.
  std::uint32_t depth = 1;           ///< Operations in flight per connection.
  std::uint32_t threads = 1;
  std::uint32_t connections = 1;                              ///< Connections per thread.
  std::optional<unsigned> cpu;                                ///< The first thread's; without it, any.
  bool json = false;                                          ///< One JSON object per size, instead of text.
  bool local = false;                                         ///< Also start the server,
  perf_wire::Serving serving = perf_wire::Serving::kHandler;  ///< which answers this way.
  [[nodiscard]] std::uint32_t all_connections() const noexcept { return threads * connections; }
};

/// "1..1M": the first, the last, and all powers of two between them. Empty if `text` is not a sweep.
[[nodiscard]] std::vector<std::uint64_t> parse_sweep(const std::string& text);
/// Says what is wrong with the arguments together, or on this machine; empty: nothing. Each argument is in its own
/// range.
[[nodiscard]] std::string check_perf_arguments(const PerfArguments& arguments);
/// One cpu per thread: the allowed ones in turn, starting at `first`, which must be one of them; empty without `first`.
[[nodiscard]] std::vector<unsigned> perf_cpus(std::optional<unsigned> first, unsigned threads);

struct PerfResult {
  PerfArguments arguments;
  std::uint64_t bytes = 0;
  std::string nic, path;  ///< The device, and how the connection was made; without a connection, what the test used.
  perf_wire::Serving serving = perf_wire::Serving::kHandler;
  Environment environment;
  Histogram ticks;  ///< Times of round trips or operations, in units of kPerfTick.
  std::uint64_t operations = 0;
  double seconds = 0;             ///< Length of the run.
  double clock_ns = 0;            ///< Time for reading the clock, which each latency includes.
  std::vector<unsigned> cpus;     ///< Cpus of this side's threads; empty: any.
  double server_percent = 0;      ///< Processor time of the server's process, in percent of a core.
  std::uint64_t other_runs = 0;   ///< Runs that it served at the same time.
  double memory_bytes_per_s = 0;  ///< memcpy through memory, not caches.

  [[nodiscard]] const PerfTestFacts& facts() const noexcept { return facts_of(arguments.test); }
  [[nodiscard]] PerfLatency latency() const noexcept { return {.ticks = ticks, .one_way = facts().ping_pong()}; }
  [[nodiscard]] double operations_per_s() const noexcept;
  [[nodiscard]] double bytes_per_s() const noexcept;
};

/// Announces the measurement in one line.
[[nodiscard]] std::string perf_announcement(const PerfResult& result);
/// Several lines for people, with a histogram.
[[nodiscard]] std::string perf_text(const PerfResult& result);
/// A table: a head, with the environment, and one line per size.
[[nodiscard]] std::string perf_table_head(const PerfResult& result);
[[nodiscard]] std::string perf_table_row(const PerfResult& result);
[[nodiscard]] std::string perf_configuration(const PerfResult& result);
/// One JSON object on one line.
[[nodiscard]] std::string perf_json(const PerfResult& result);

/// Measures and prints. \thread main
[[nodiscard]] Exit run_perf(const PerfArguments& arguments);
/// Serves clients until a signal ends the process, or for the given number of runs. \thread main
[[nodiscard]] Exit run_perf_server(const PerfServeArguments& arguments);
/// A test without a peer. \thread main
[[nodiscard]] Result<void> measure_bare(PerfResult& result);

/// A server on a free port, in its own process, for a given number of runs. Waits for its end, and then forces it.
class PerfLocalServer {
 public:
  /// Forks: \thread main, the process must not have started a thread yet. Returns when the server is ready.
  [[nodiscard]] static Result<PerfLocalServer> start(PerfServeArguments arguments);
  PerfLocalServer(PerfLocalServer&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pipe_(std::move(other.pipe_)), port_(other.port_) {}
  PerfLocalServer& operator=(PerfLocalServer&&) = delete;
  ~PerfLocalServer();
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

 private:
  explicit PerfLocalServer(Fd pipe) noexcept : pipe_(std::move(pipe)) {}
  pid_t pid_ = -1;
  Fd pipe_;  ///< Brings the port; closes with the process.
  std::uint16_t port_ = 0;
};

}  // namespace verbena::programs
