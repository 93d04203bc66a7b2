// verbena-perf: what a run is, what it measured, and the two ends of it.
#pragma once

#include "engine/engine.hpp"
#include "programs/environment.hpp"
#include "programs/exit_code.hpp"
#include "programs/histogram.hpp"
#include "programs/perf_tests.hpp"
#include "programs/perf_wire.hpp"

#include <verbena/transport.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Where the server is, and by which NIC.
struct PerfWhere {
  Transport transport;
  std::string address;  ///< Empty: this host.
  std::uint16_t port = 7471;
  std::optional<unsigned> cpu;      ///< Of the first thread; anywhere without.
  std::uint32_t timeout_ms = 5000;  ///< Of each wait.
};

enum class PerfFormat : std::uint8_t { kText, kJson, kCsv };

struct PerfArguments {
  PerfWhere where;
  PerfTest test = PerfTest::kRead;
  std::vector<std::uint64_t> sizes;  ///< Bytes of an operation; a run each.
  std::uint64_t iterations = 0;      ///< Of each thread.
  std::uint64_t warm_up = 1000;
  std::uint64_t clock_every = 1;  ///< One reading of the clock in so many operations, where they are one at a time.
  std::uint32_t depth = 1;        ///< Operations in flight on a connection.
  std::uint32_t batch = 1;        ///< Of these, by one doorbell.
  std::uint32_t threads = 1;
  std::uint32_t connections = 1;  ///< Of each thread.
  engine::WaitPolicy wait = engine::WaitPolicy::kSpin;
  std::uint64_t idle_us = 0;  ///< Of silence before each message; 0: none.
  PerfFormat format = PerfFormat::kText;
  bool local = false;  ///< Start the server as well.
};

/// "8", "64K", "1M", "1G": bytes in binary units. Empty when it is none.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text) noexcept;
/// "1..1M": the powers of two from the first to the last, and both of them. Empty when it is none.
[[nodiscard]] std::vector<std::uint64_t> parse_sweep(std::string_view text);
/// What is wrong with the arguments; empty when nothing is.
[[nodiscard]] std::string check_perf_arguments(const PerfArguments& arguments);
/// The hello of a run of these.
[[nodiscard]] perf_wire::RunHello run_of(const PerfArguments& arguments, std::uint64_t bytes) noexcept;

struct PerfServeArguments {
  PerfWhere where;
  std::uint32_t clients = 0;  ///< End after so many whole runs; 0: never.
};

/// So long nothing is sent to see what an idle receiver uses.
inline constexpr std::chrono::milliseconds kPerfIdleInterval{500};

/// Of a receiver that has fallen asleep.
struct PerfIdle {
  double reference_ns = 0;     ///< Median of the round trip with a receiver that spins.
  double round_trip_ns = 0;    ///< With the policy asked for.
  double p99_added_ns = 0;     ///< Of its 99th percentile over the reference's.
  double thread_percent = 0;   ///< Of a core, that a receiver uses to which nothing comes: its thread,
  double process_percent = 0;  ///< and the whole process.
  std::uint64_t sleeps = 0;    ///< Of its thread meanwhile.
  std::chrono::milliseconds interval{0};
  [[nodiscard]] double added_ns() const noexcept { return round_trip_ns - reference_ns; }
};

struct PerfResult {
  PerfArguments arguments;
  std::uint64_t bytes = 0;
  std::string nic, path;  ///< Device, and what was chosen of it; of tests without one, what was used.
  Environment environment;
  Histogram ticks;  ///< Of a round trip, or of an operation, in units of kPerfTick.
  std::uint64_t operations = 0;
  double seconds = 0;          ///< Of all of them.
  double clock_ns = 0;         ///< What reading the clock adds to each latency.
  engine::Counters work;       ///< Of the operations, at this side.
  std::vector<unsigned> cpus;  ///< Of this side's threads; empty: anywhere.
  std::optional<PerfIdle> idle;
  double memory_bytes_per_s = 0;  ///< Of memcpy: through memory, instead of caches.

  [[nodiscard]] const PerfTestFacts& facts() const noexcept { return facts_of(arguments.test); }
  /// One way where the test is a ping-pong: half of the round trip.
  [[nodiscard]] double ns(double recorded) const noexcept;
  [[nodiscard]] double percentile_ns(double percent) const noexcept;
  [[nodiscard]] double operations_per_s() const noexcept;
  [[nodiscard]] double bytes_per_s() const noexcept;
};

/// What is measured, one line in front of the measurement.
[[nodiscard]] std::string perf_announcement(const PerfResult& result);
/// Several lines for people, with a histogram.
[[nodiscard]] std::string perf_text(const PerfResult& result);
/// A table: one line a size, below its head, and what they were measured on.
[[nodiscard]] std::string perf_table_head(const PerfTestFacts& facts);
[[nodiscard]] std::string perf_table_row(const PerfResult& result);
[[nodiscard]] std::string perf_configuration(const PerfResult& result);
/// One JSON object on one line.
[[nodiscard]] std::string perf_json(const PerfResult& result);
[[nodiscard]] std::string perf_csv_head();
[[nodiscard]] std::string perf_csv_row(const PerfResult& result);

/// Measures and prints. \thread main
[[nodiscard]] Exit run_perf(const PerfArguments& arguments);
/// Serves one client after the other until a signal ends the process. \thread main
[[nodiscard]] Exit run_perf_server(const PerfServeArguments& arguments);

/// A `verbena-perf server` on a free port, for so many runs; its end is waited for, then forced.
class PerfLocalServer {
 public:
  /// Forks: \thread main, the process must have started no thread yet. Returns when it is ready.
  [[nodiscard]] static Result<PerfLocalServer> start(const PerfServeArguments& arguments);
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
