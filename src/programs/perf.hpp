// verbena-perf: what a run is, what it measured, and the two ends of it.
#pragma once

#include "engine/engine.hpp"
#include "programs/environment.hpp"
#include "programs/exit_code.hpp"
#include "programs/histogram.hpp"
#include "programs/perf_wire.hpp"

#include <verbena/transport.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace verbena::programs {

/// Where the server is, and by which NIC.
struct PerfWhere {
  Transport transport;
  std::string address;  ///< Empty: this host.
  std::uint16_t port = 7471;
  std::optional<unsigned> cpu;      ///< To run on; anywhere without.
  std::uint32_t timeout_ms = 5000;  ///< Of each wait.
};

struct PerfArguments {
  PerfWhere where;
  PerfTest test = PerfTest::kRead;
  std::uint64_t bytes = 8;
  std::uint64_t iterations = 10'000;
  std::uint64_t warm_up = 1000;
  std::uint32_t in_flight = 32;  ///< Of write-bw.
  bool json = false;
  bool local = false;  ///< Start the server as well.
};
/// What is wrong with the arguments; empty when nothing is.
[[nodiscard]] std::string check_perf_arguments(const PerfArguments& arguments);

struct PerfServeArguments {
  PerfWhere where;
  bool once = false;  ///< End after one client.
};

struct PerfResult {
  PerfArguments arguments;
  std::string nic, path;  ///< Device, and what was chosen of it.
  Environment environment;
  Histogram ticks;        ///< Of a round trip, or of an operation.
  double seconds = 0;     ///< Of all iterations.
  double clock_ns = 0;    ///< What reading the clock adds to each latency.
  engine::Counters work;  ///< Of the iterations, at this side.
};
/// Several lines for people.
[[nodiscard]] std::string perf_text(const PerfResult& result);
/// One JSON object on one line.
[[nodiscard]] std::string perf_json(const PerfResult& result);

/// Measures and prints. \thread main
[[nodiscard]] Exit run_perf(const PerfArguments& arguments);
/// Serves one client after the other until a signal ends the process. \thread main
[[nodiscard]] Exit run_perf_server(const PerfServeArguments& arguments);

/// A `verbena-perf server --once` on a free port, for one run; its end is waited for, then forced.
class PerfLocalServer {
 public:
  /// Forks: \thread main, the process must have started no thread yet. Returns when it is ready.
  [[nodiscard]] static Result<PerfLocalServer> start(const PerfWhere& where);
  PerfLocalServer(PerfLocalServer&& other) noexcept;
  PerfLocalServer& operator=(PerfLocalServer&&) = delete;
  ~PerfLocalServer();
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

 private:
  PerfLocalServer(pid_t pid, int out) noexcept : pid_(pid), out_(out) {}
  pid_t pid_ = -1;
  int out_ = -1;  ///< Its standard output.
  std::uint16_t port_ = 0;
};

}  // namespace verbena::programs
