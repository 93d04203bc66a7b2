// verbena-perf: latency, bandwidth and rate of the library's own calls between two processes.
#include "programs/perf.hpp"
#include "programs/transport_options.hpp"
#include "programs/wait_option.hpp"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <functional>
#include <string>

namespace verbena::programs {
namespace {

constexpr std::uint64_t kDefaultWakeIdleUs = 1000;

struct CommandLine {
  PerfServeArguments serve;
  PerfArguments perf;
  std::string size, sweep;  ///< As they were said.
  /// What to run once parsed; set by the subcommand's callback. A cold path: once a process.
  std::function<Exit()> run;
};

Exit usage(std::string_view text) {
  complain("{}; see verbena-perf --help", text);
  return Exit::kUsage;
}

void add_cpu(CLI::App& command, PerfWhere& where) {
  command.add_option("--cpu", where.cpu, "run on this cpu only; more threads on those that follow")
      ->check(CLI::Range(0, 65535));
}

void add_where(CLI::App& command, PerfWhere& where, int first_port) {
  command.add_option("-a,--address", where.address, "the server's address or name (default: this host)");
  command.add_option("-p,--port", where.port, "the server's port; a server's 0 is any free one")
      ->check(CLI::Range(first_port, 65535))
      ->capture_default_str();
  add_transport_options(command, where.transport);
  add_cpu(command, where);
  command.add_option("--timeout-ms", where.timeout_ms, "longest wait for the peer")
      ->check(CLI::Range(1, 86'400'000))
      ->capture_default_str();
}

void add_size(CLI::App& command, CommandLine& line, const PerfTestFacts& facts) {
  CLI::Option* size = command.add_option("-s,--size", line.size,
                                         fmt::format("bytes of an operation, such as 64K (default {})", facts.bytes));
  command.add_option("--sweep", line.sweep, "powers of two, such as 1..1M: a run each")->excludes(size);
}

void add_counts(CLI::App& command, PerfArguments& perf, const PerfTestFacts& facts) {
  command.add_option("-n,--iterations", perf.iterations,
                     fmt::format("operations of each thread that are measured (default {})", facts.iterations));
  command.add_option("--warm-up", perf.warm_up, "operations before them")->capture_default_str();
}

void add_pipeline(CLI::App& command, PerfArguments& perf, const PerfTestFacts& facts) {
  command.add_option("--depth,--in-flight", perf.depth,
                     fmt::format("operations in flight on a connection (default {})", facts.depth));
  command.add_option("--batch", perf.batch, "operations that go out by one doorbell")->capture_default_str();
  command.add_option("--connections", perf.connections, "connections of each thread, on one polling loop")
      ->capture_default_str();
}

void add_peer(CLI::App& command, CommandLine& line, const PerfTestFacts& facts) {
  PerfArguments& perf = line.perf;
  add_where(command, perf.where, 1);
  if (facts.pipelined()) {
    add_pipeline(command, perf, facts);
  } else {
    command.add_option("--clock-every", perf.clock_every, "operations to one reading of the clock")
        ->capture_default_str();
  }
  command.add_option("--threads", perf.threads, "at each end, each with connections and a cpu of its own")
      ->capture_default_str();
  add_wait_option(command, perf.wait, "both ends");
  if (facts.test == PerfTest::kMessage)
    command.add_option("--idle-us", perf.idle_us, "silence before each message, in which the server falls asleep");
  command.add_flag("--local", perf.local, "start the server too, each on a cpu of its own");
}

void add_format(CLI::App& command, PerfArguments& perf) {
  CLI::Option* json = command.add_flag_callback(
      "--json", [&perf] { perf.format = PerfFormat::kJson; }, "a JSON object a size instead of text");
  command
      .add_flag_callback(
          "--csv", [&perf] { perf.format = PerfFormat::kCsv; }, "a line a size of comma-separated values, below a head")
      ->excludes(json);
}

/// What the test's own numbers are where none was said, and the sizes. Empty, or what is wrong.
std::string complete(CommandLine& line, const CLI::App& command, const PerfTestFacts& facts) {
  PerfArguments& perf = line.perf;
  perf.test = facts.test;
  if (command.count("--iterations") == 0) perf.iterations = facts.iterations;
  if (facts.test == PerfTest::kWake && command.count("--idle-us") == 0) perf.idle_us = kDefaultWakeIdleUs;
  if (facts.pipelined() && command.count("--depth") == 0) perf.depth = facts.depth;
  if (!line.sweep.empty()) {
    perf.sizes = parse_sweep(line.sweep);
    if (perf.sizes.empty()) return fmt::format("--sweep {}: takes FIRST..LAST, such as 1..1M", line.sweep);
  } else if (!line.size.empty()) {
    const auto bytes = parse_bytes(line.size);
    if (!bytes) return fmt::format("--size {}: takes bytes, with K, M or G if you like", line.size);
    perf.sizes = {*bytes};
  } else {
    perf.sizes = {facts.bytes};
  }
  return check_perf_arguments(perf);
}

void add_test(CLI::App& app, CommandLine& line, const PerfTestFacts& facts) {
  CLI::App& command = *app.add_subcommand(facts.name, facts.what);
  if (facts.also != nullptr) command.alias(facts.also);
  PerfArguments& perf = line.perf;
  if (facts.has_size()) add_size(command, line, facts);
  add_counts(command, perf, facts);
  if (facts.by == PerfBy::kNothing) {
    add_cpu(command, perf.where);
    if (facts.test == PerfTest::kWake)
      command.add_option("--idle-us", perf.idle_us,
                         fmt::format("silence before each wake-up (default {})", kDefaultWakeIdleUs));
  } else {
    add_peer(command, line, facts);
  }
  add_format(command, perf);
  command.callback([&line, &command, &facts] {
    line.run = [&line, &command, &facts] {
      const std::string wrong = complete(line, command, facts);
      return wrong.empty() ? run_perf(line.perf) : usage(wrong);
    };
  });
}

void add_server(CLI::App& app, CommandLine& line) {
  CLI::App& server = *app.add_subcommand("server", "serve one client after the other");
  add_where(server, line.serve.where, 0);
  CLI::Option* clients = server.add_option("--clients", line.serve.clients, "end after so many whole runs")
                             ->check(CLI::Range(1U, 1'000'000U));
  server.add_flag_callback("--once", [&line] { line.serve.clients = 1; }, "end after one whole run")->excludes(clients);
  server.callback([&line] { line.run = [&line] { return run_perf_server(line.serve); }; });
}

Exit run(int argc, char** argv) {
  CommandLine line;
  CLI::App app(
      "Latency, bandwidth and rate of Verbena's calls between two processes: start a server, then a test.\n"
      "Exit codes: 0 done, 2 usage, 3 other error.\n",
      "verbena-perf");
  app.set_version_flag("--version", "verbena-perf " VERBENA_VERSION);
  app.require_subcommand(1);
  add_server(app, line);
  for (const PerfTestFacts& facts : perf_tests()) add_test(app, line, facts);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success) == 0 ? Exit::kDone : Exit::kError;  // --help and --version.
  } catch (const CLI::ParseError& error) {
    return usage(error.what());
  }
  return line.run();
}

}  // namespace
}  // namespace verbena::programs

int main(int argc, char** argv) {
  return verbena::programs::run_program("verbena-perf", verbena::programs::run, argc, argv);
}
