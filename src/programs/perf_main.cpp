// verbena-perf: latency and bandwidth of the library's own calls between two processes.
#include "programs/perf.hpp"
#include "programs/transport_options.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <functional>
#include <string>

namespace verbena::programs {
namespace {

struct CommandLine {
  PerfServeArguments serve;
  PerfArguments perf;
  /// What to run once parsed; set by the subcommand's callback. A cold path: once a process.
  std::function<Exit()> run;
};

Exit usage(std::string_view text) {
  complain("{}; see verbena-perf --help", text);
  return Exit::kUsage;
}

void add_where(CLI::App& command, PerfWhere& where, int first_port) {
  command.add_option("-a,--address", where.address, "the server's address or name (default: this host)");
  command.add_option("-p,--port", where.port, "the server's port; a server's 0 is any free one")
      ->check(CLI::Range(first_port, 65535))
      ->capture_default_str();
  add_transport_options(command, where.transport);
  command.add_option("--cpu", where.cpu, "run on this cpu only")->check(CLI::Range(0, 65535));
  command.add_option("--timeout-ms", where.timeout_ms, "longest wait for the peer")
      ->check(CLI::Range(1, 86'400'000))
      ->capture_default_str();
}

void add_test(CLI::App& app, CommandLine& line, PerfTest test, const char* what) {
  CLI::App& command = *app.add_subcommand(to_string(test), what);
  PerfArguments& perf = line.perf;
  add_where(command, perf.where, 1);
  command.add_option("-s,--size", perf.bytes, "bytes of each operation (default 8; write-bw: 64 KiB)");
  command.add_option("-n,--iterations", perf.iterations, "operations that are measured")->capture_default_str();
  command.add_option("--warm-up", perf.warm_up, "operations before them")->capture_default_str();
  if (test == PerfTest::kWriteBw) {
    command.add_option("--in-flight", perf.in_flight, "operations in flight")
        ->check(CLI::Range(1U, perf_wire::kMaxInFlight))
        ->capture_default_str();
  }
  command.add_flag("--json", perf.json, "one JSON object instead of text");
  command.add_flag("--local", perf.local, "start the server too, each on a cpu of its own");
  command.callback([&line, &command, test] {
    line.run = [&line, &command, test] {
      line.perf.test = test;
      if (test == PerfTest::kWriteBw && command.count("--size") == 0) line.perf.bytes = 65536;
      const std::string wrong = check_perf_arguments(line.perf);
      return wrong.empty() ? run_perf(line.perf) : usage(wrong);
    };
  });
}

Exit run(int argc, char** argv) {
  CommandLine line;
  CLI::App app(
      "Latency and bandwidth of Verbena's calls between two processes: start a server, then a test.\n"
      "Exit codes: 0 done, 2 usage, 3 other error.\n",
      "verbena-perf");
  app.set_version_flag("--version", "verbena-perf " VERBENA_VERSION);
  app.require_subcommand(1);
  CLI::App& server = *app.add_subcommand("server", "serve one client after the other");
  add_where(server, line.serve.where, 0);
  server.add_flag("--once", line.serve.once, "end after one client");
  server.callback([&line] { line.run = [&line] { return run_perf_server(line.serve); }; });
  add_test(app, line, PerfTest::kRead, "blocking reads of the server's memory");
  add_test(app, line, PerfTest::kWrite, "blocking writes to the server's memory");
  add_test(app, line, PerfTest::kPingPong, "writes to and fro, seen by polling memory");
  add_test(app, line, PerfTest::kMessage, "messages to and fro");
  add_test(app, line, PerfTest::kWriteBw, "large writes, several in flight");
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
