// verbena-perf: latency, bandwidth and rate of the library's own calls between two processes.
#include "programs/options.hpp"
#include "programs/perf.hpp"
#include "programs/perf_mesh.hpp"

#include <verbena/version.h>
#include <verbena/rdma.hpp>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <string>

namespace verbena::programs {
namespace {

constexpr std::uint64_t kMaxIterations = std::uint64_t{1} << 40;
constexpr std::uint64_t kMaxIdleUs = 1'000'000;
constexpr std::uint64_t kDefaultWakeIdleUs = 1000;

struct PerfCommandLine {
  PerfServeArguments serve;
  PerfArguments perf;
  MeshArguments mesh;
  std::uint64_t size = 0;
  Exit exit = Exit::kDone;  ///< Set by the subcommand's callback.
};

CLI::Option* add_serve(CLI::App& command, perf_wire::Serving& serving) {
  using perf_wire::Serving;
  return add_choice(command, "--serve", serving, {Serving::kHandler, Serving::kThread}, "handler or thread",
                    "who answers: handler (in the listener's thread), or thread (each connection's)");
}

void add_where(CLI::App& command, rdma::Options& where, std::uint64_t first_port) {
  add_address(command, where.address, "the server's address or name (default: this host)");
  add_number(command, "-p,--port", where.port, "the server's port; a server's 0 is any free one", first_port, 65535);
  add_transport_options(command, where.transport);
  add_allowed_uids(command, where.allowed_uids, "let the other side be of this user too, by number");
  add_key_file(command, where.key_file, "file of keys, at both sides: each proves that it has one");
  add_key_name(command, where.key_name);
  add_timeout(command, where, "longest wait for the peer");
}

void add_peer(CLI::App& command, PerfArguments& perf, const PerfTestFacts& facts) {
  add_where(command, perf.where, 1);
  add_number(command, "--threads", perf.threads, "threads of the client, each with connections and a cpu of its own", 1,
             perf_wire::kMaxConnections);
  if (facts.pipelined())
    add_number(command, "--depth,--in-flight", perf.depth, "operations in flight on a connection", 1,
               rdma::Connection::kMaxStarted);
  if (facts.overlaps())
    add_number(command, "--connections", perf.connections, "connections of each thread", 1, perf_wire::kMaxConnections);
  else
    add_number(command, "--clock-every", perf.clock_every, "operations to one reading of the clock", 1, 1000);
  CLI::Option* local = command.add_flag("--local", perf.local, "start the server too");
  if (facts.keeps_server_busy()) add_serve(command, perf.serving)->needs(local);
}

void add_test(CLI::App& app, PerfCommandLine& line, PerfTest test) {
  PerfArguments& perf = line.perf;
  const PerfTestFacts& facts = facts_of(test);
  CLI::App& command = *app.add_subcommand(facts.name, facts.what);
  if (facts.also != nullptr) command.alias(facts.also);
  // The defaults: set now for the help, and again when this subcommand is parsed.
  const auto take_defaults = [&line, &perf, &facts, test](std::size_t) {
    perf.test = test;
    perf.iterations = facts.iterations;
    perf.depth = facts.depth;
    perf.idle_us = test == PerfTest::kWake ? kDefaultWakeIdleUs : 0;
    line.size = facts.bytes;
  };
  take_defaults(0);
  command.preparse_callback(take_defaults);
  if (facts.has_size()) {
    CLI::Option* size = command.add_option("-s,--size", line.size, "bytes of an operation, such as 64K")
                            ->transform(byte_size(1, facts.most_bytes))
                            ->capture_default_str();
    const auto take_sweep = [&perf, &facts](const std::string& text) {
      perf.sizes = parse_sweep(text);
      if (perf.sizes.empty() || perf.sizes.back() > facts.most_bytes)
        throw CLI::ValidationError(
            "--sweep", wrong_value(fmt::format("FIRST..LAST of 1 to {} bytes, such as 1..1M", facts.most_bytes), text));
    };
    command.add_option_function<std::string>("--sweep", take_sweep, "powers of two, such as 1..1M: a run each")
        ->type_name("FIRST..LAST")
        ->excludes(size);
  }
  add_number(command, "-n,--iterations", perf.iterations, "operations of each thread that are measured", 1,
             kMaxIterations);
  add_number(command, "--warm-up", perf.warm_up, "operations before them", 0, kMaxIterations);
  command.add_option("--cpu", perf.cpu, "run on this cpu only; more threads on those that follow")
      ->check(whole_number(0, 65535));
  if (facts.has_peer()) add_peer(command, perf, facts);
  if (test == PerfTest::kMessage || test == PerfTest::kWake)
    add_number(command, "--idle-us", perf.idle_us, "silence before each, in which the other side falls asleep",
               test == PerfTest::kWake ? 1 : 0, kMaxIdleUs);
  command.add_flag("--json", perf.json, "a JSON object a size on a line, instead of text");
  command.callback([&app, &line, &perf] {
    if (perf.sizes.empty()) perf.sizes = {line.size};  // Without --sweep.
    const std::string wrong = check_perf_arguments(perf);
    line.exit = wrong.empty() ? run_perf(perf) : usage(app, wrong);
  });
}

void add_server(CLI::App& app, PerfCommandLine& line) {
  PerfServeArguments& serve = line.serve;
  CLI::App& server = *app.add_subcommand("server", "serve clients");
  add_where(server, serve.where, 0);
  add_serve(server, serve.serving);
  server
      .add_option("--window", serve.where.window_bytes,
                  "bytes of a connection's window: the longest write to it, or read")
      ->transform(byte_size(1, kPerfMostWindow))
      ->default_str("1M");
  CLI::Option* clients = add_number(server, "--clients", serve.clients, "end after so many whole runs", 1, 1'000'000);
  server.add_flag_callback("--once", [&serve] { serve.clients = 1; }, "end after one whole run")->excludes(clients);
  server.callback([&line] { line.exit = run_perf_server(line.serve); });
}

Exit run_perf_program(int argc, char** argv) {
  PerfCommandLine line;
  CLI::App app(
      "Latency, bandwidth and rate of Verbena's calls between two processes: start a server, then a test.\n"
      "Exit codes: 0 done, 2 usage, 3 other error.\n",
      "verbena-perf");
  app.set_version_flag("--version", "verbena-perf " VERBENA_VERSION);
  app.require_subcommand(1);
  add_server(app, line);
  for (std::size_t i = 0; i < perf_tests().size(); ++i) add_test(app, line, static_cast<PerfTest>(i));
  add_mesh(app, line.mesh, line.exit);
  return run_parsed(app, argc, argv, line.exit);
}

}  // namespace
}  // namespace verbena::programs

int main(int argc, char** argv) {
  return verbena::programs::run_program("verbena-perf", verbena::programs::run_perf_program, argc, argv);
}
