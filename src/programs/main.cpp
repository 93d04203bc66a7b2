// verbena-kv: the key-value store's server and its clients.
#include "programs/bench_arguments.hpp"
#include "programs/commands.hpp"
#include "programs/serve_options.hpp"
#include "programs/transport_options.hpp"
#include "programs/wait_option.hpp"

#include <fmt/core.h>
#include <verbena/version.h>

#include <CLI/CLI.hpp>

#include <functional>
#include <limits>
#include <string>

namespace verbena::programs {
namespace {

struct CommandLine {
  ConnectArguments where;
  ServeArguments serve;
  ServeUnits units;
  ItemArguments item;
  StatsArguments stats;
  TreeArguments tree;
  BenchArguments bench;
  /// What to run once parsed; set by the subcommand's callback. A cold path: once a process.
  std::function<Exit()> run;
};

Exit usage(std::string_view text, std::string_view subcommand) {
  complain("{}; see verbena-kv {}--help", text, subcommand.empty() ? "" : fmt::format("{} ", subcommand));
  return Exit::kUsage;
}

CLI::App& add_client_command(CLI::App& app, CommandLine& line, const char* name, const char* what) {
  CLI::App& command = *app.add_subcommand(name, what);
  command.add_option("-a,--address", line.where.address, "the server's address or name (default: this host)");
  command.add_option("-p,--port", line.where.port, "the server's port")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  command.add_option("--timeout-ms", line.where.timeout_ms, "how long to wait for the server")
      ->check(CLI::Range(1, 86'400'000))
      ->capture_default_str();
  add_transport_options(command, line.where.transport);
  add_wait_option(command, line.where.wait, "calls");
  command.add_flag("-v,--verbose", line.where.is_verbose, "say which NIC was taken, and why");
  add_allowed_uids(command, line.where.allowed_uids, "trust a server of this user too, by number");
  return command;
}

void add_depth(CLI::App& command, TreeArguments& tree) {
  command.add_option("--depth", tree.depth, "files in flight")->check(CLI::Range(1, 1024))->capture_default_str();
}

Exit serve(const CommandLine& line) {
  ServeArguments arguments = line.serve;
  settle(line.units, arguments.server);
  return run_serve(arguments);
}

void add_serve(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand("serve", "serve until SIGINT or SIGTERM");
  kv::ServerOptions& server = line.serve.server;
  command.add_option("-a,--address", server.address, "address or name to listen on (default: the NIC's own)");
  command.add_option("-p,--port", server.port, "port to listen on; 0 takes any free one")->capture_default_str();
  add_transport_options(command, server.transport);
  add_serve_options(command, server, line.units);
  add_allowed_uids(command, server.allowed_uids, "a user besides this one who may connect, by number");
  CLI::Option* const metrics = command
                                   .add_option("--metrics-port", line.serve.metrics.port,
                                               "tell Prometheus at http://ADDRESS:PORT/metrics; 0 takes any free port")
                                   ->check(CLI::Range(0, 65535));
  command.add_option("--metrics-address", line.serve.metrics.address, "where to listen for that")
      ->needs(metrics)
      ->capture_default_str();
  command.add_option("--port-file", line.serve.port_file, "file to write the port to when ready");
  command.callback([&line] { line.run = [&line] { return serve(line); }; });
}

void add_item_commands(CLI::App& app, CommandLine& line) {
  ItemArguments& item = line.item;
  const auto value_or_file = [&item](CLI::App& command) {
    command.add_option("VALUE", item.value, "the value");
    command.add_option("-f,--file", item.file, "file with the value; - is stdin");
  };
  const auto run = [&line](const char* name, Exit (*function)(const ConnectArguments&, const ItemArguments&)) {
    return [&line, name, function] {
      line.run = [&line, name, function] {
        if (line.item.value.has_value() == line.item.file.has_value()) {
          return usage("takes either VALUE or -f FILE", name);
        }
        return function(line.where, line.item);
      };
    };
  };

  CLI::App& put = add_client_command(app, line, "put", "store a value, and print its version");
  put.add_option("KEY", item.key, "the key, 1 to 1024 bytes")->required();
  value_or_file(put);
  put.callback(run("put", run_put));

  CLI::App& cas = add_client_command(app, line, "cas", "store a value if the key's version is still VERSION");
  cas.add_option("KEY", item.key, "the key")->required();
  cas.add_option("VERSION", item.version, "the version it must have; 0: there must be no such key")->required();
  value_or_file(cas);
  cas.callback(run("cas", run_cas));

  CLI::App& get = add_client_command(app, line, "get", "write a value to stdout, as it is");
  get.add_option("KEY", item.key, "the key")->required();
  get.callback([&line] { line.run = [&line] { return run_get(line.where, line.item); }; });

  CLI::App& del = add_client_command(app, line, "del", "delete a key");
  del.add_option("KEY", item.key, "the key")->required();
  del.callback([&line] { line.run = [&line] { return run_del(line.where, line.item); }; });
}

void add_tree_commands(CLI::App& app, CommandLine& line) {
  CLI::App& load = add_client_command(app, line, "load", "store each regular file under DIR by its relative path");
  load.add_option("DIR", line.tree.directory, "the directory")->required();
  add_depth(load, line.tree);
  load.callback([&line] { line.run = [&line] { return run_load(line.where, line.tree); }; });

  CLI::App& verify = add_client_command(app, line, "verify", "compare each regular file under DIR with the store");
  verify.add_option("DIR", line.tree.directory, "the directory")->required();
  add_depth(verify, line.tree);
  verify.callback([&line] { line.run = [&line] { return run_verify(line.where, line.tree); }; });
}

void add_other_commands(CLI::App& app, CommandLine& line) {
  CLI::App& stats = add_client_command(app, line, "stats", "print the server's statistics");
  stats.add_flag("--json", line.stats.json, "one JSON object instead of text");
  stats.add_option("--watch", line.stats.watch_s, "print the rates and times of each so many seconds, until stopped")
      ->check(CLI::Range(1, 86'400));
  stats.callback([&line] { line.run = [&line] { return run_stats(line.where, line.stats); }; });

  CLI::App& bench = add_client_command(app, line, "bench", "measure puts and gets beside the bare cache line");
  add_bench_options(bench, line.bench);
  bench.callback([&line] {
    line.run = [&line] {
      const std::string wrong = check_bench_arguments(line.bench);
      return wrong.empty() ? run_bench(line.where, line.bench) : usage(wrong, "bench");
    };
  });

  CLI::App& shell =
      add_client_command(app, line, "shell", "put, get and the others at a prompt, or from a script on stdin");
  shell.callback([&line] { line.run = [&line] { return run_shell(line.where); }; });
}

std::string subcommand_of(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? std::string() : parsed.front()->get_name();
}

Exit run(int argc, char** argv) {
  CommandLine line;
  CLI::App app(
      "An in-memory key-value store over one-sided memory access.\n"
      "Exit codes: 0 done, 1 not found or version mismatch or files differ, 2 usage, 3 other error.\n",
      "verbena-kv");
  app.set_version_flag("--version", "verbena-kv " VERBENA_VERSION);
  app.require_subcommand(1);
  add_serve(app, line);
  add_item_commands(app, line);
  add_tree_commands(app, line);
  add_other_commands(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success) == 0 ? Exit::kDone : Exit::kError;  // --help and --version.
  } catch (const CLI::ParseError& error) {
    return usage(error.what(), subcommand_of(app));
  }
  return line.run();
}

}  // namespace
}  // namespace verbena::programs

int main(int argc, char** argv) {
  return verbena::programs::run_program("verbena-kv", verbena::programs::run, argc, argv);
}
