// verbena-kv: the key-value store's server and its clients.
#include "programs/client_defaults.hpp"
#include "programs/commands.hpp"
#include "programs/many_keys.hpp"
#include "programs/options.hpp"

#include <verbena/version.h>

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace verbena::programs {
namespace {

struct CommandLine {
  ConnectArguments where;
  ServeArguments serve;
  ItemArguments item;
  KeysArguments keys;
  FlushArguments flush;
  std::vector<std::string> words;  ///< mget, mput
  std::string step = "1";          ///< incr
  StatsArguments stats;
  TreeArguments tree;
  BenchArguments bench;
  Exit exit = Exit::kDone;  ///< Set by the subcommand's callback.
};

CLI::App& add_client_command(CLI::App& app, CommandLine& line, const char* name, const char* what) {
  CLI::App& command = *app.add_subcommand(name, what);
  add_address(command, line.where.options.address, "the server's address or name (default: this host)");
  command.add_option("-p,--port", line.where.options.port, "the server's port")
      ->check(whole_number(1, 65535))
      ->capture_default_str();
  add_timeout(command, line.where.options, "how long to wait for the server");
  add_transport_options(command, line.where.options.transport);
  add_wait_option(command, line.where.options.wait, "calls");
  command.add_flag("-v,--verbose", line.where.is_verbose, "say which NIC was taken, and why");
  add_allowed_uids(command, line.where.options.allowed_uids, "trust a server of this user too, by number");
  command.add_flag("--read-only", line.where.options.read_only,
                   "promise to change nothing; the server refuses changes");
  add_key_file(command, line.where.options.key_file, "file of keys, for a server that asks for one");
  add_key_name(command, line.where.options.key_name);
  // For the command at hand alone: CLI11's own means would set what all commands share, after it has. Options that a
  // command adds to these are not for the file.
  command.preparse_callback(
      [&command, names = long_names(command)](std::size_t) { take_client_defaults(command, names); });
  return command;
}

void add_depth(CLI::App& command, TreeArguments& tree) {
  add_number(command, "--depth", tree.depth, "files in flight", 1, 1024);
}

void add_serve(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand("serve", "serve until SIGINT or SIGTERM");
  kv::ServerOptions& server = line.serve.server;
  add_address(command, server.address, "address or name to listen on (default: the NIC's own)");
  command.add_option("-p,--port", server.port, "port to listen on; 0 takes any free one")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  add_transport_options(command, server.transport);
  add_serve_options(command, server);
  add_allowed_uids(command, server.allowed_uids, "a user besides this one who may connect, by number");
  add_grants(command, server.grants);
  add_key_file(command, server.key_file, "file of keys: only clients that prove one of them may connect");
  CLI::Option* const metrics =
      command
          .add_option("--metrics-port", line.serve.metrics.port,
                      "serve metrics to Prometheus at http://ADDRESS:PORT/metrics; 0 takes any free port")
          ->check(whole_number(0, 65535));
  command.add_option("--metrics-address", line.serve.metrics.address, "where to listen for that")
      ->needs(metrics)
      ->capture_default_str();
  command.add_option("--port-file", line.serve.port_file, "file to write the port to when ready");
  command.callback([&line] { line.exit = run_serve(line.serve); });
}

void add_ttl(CLI::App& command, ItemArguments& item, const char* what) {
  const auto take = [&item](std::int64_t ms) { item.ttl = std::chrono::milliseconds(ms); };
  command.add_option_function<std::int64_t>("--ttl", take, what)->transform(duration(kv::kMaxTimeToLive));
}

void add_item_commands(CLI::App& app, CommandLine& line) {
  ItemArguments& item = line.item;
  const auto value_or_file = [&item](CLI::App& command) {
    command.add_option("VALUE", item.value, "the value");
    command.add_option("-f,--file", item.file, "file with the value; - is stdin");
    add_ttl(command, item, "the key is absent after this time, by the server's clock");
  };
  const auto store = [&app, &line](Exit (*run)(const ConnectArguments&, const ItemArguments&)) {
    return [&app, &line, run] {
      const bool has_one = line.item.value.has_value() != line.item.file.has_value();
      line.exit = has_one ? run(line.where, line.item) : usage(app, "takes either VALUE or -f FILE");
    };
  };

  CLI::App& put = add_client_command(app, line, "put", "store a value, and print its version");
  put.add_option("KEY", item.key, "the key, 1 to 1024 bytes")->required();
  value_or_file(put);
  put.callback(store(run_put));

  CLI::App& cas = add_client_command(app, line, "cas", "store a value if the key's version is still VERSION");
  cas.add_option("KEY", item.key, "the key")->required();
  cas.add_option("VERSION", item.version, "the version it must have; 0: there must be no such key")->required();
  value_or_file(cas);
  cas.callback(store(run_cas));

  CLI::App& get = add_client_command(app, line, "get", "write a value to stdout, as it is; -v tells its version");
  get.add_option("KEY", item.key, "the key")->required();
  get.callback([&line] { line.exit = run_get(line.where, line.item); });

  CLI::App& del = add_client_command(app, line, "del", "delete a key");
  del.add_option("KEY", item.key, "the key")->required();
  del.callback([&line] { line.exit = run_del(line.where, line.item); });
}

void add_many_commands(CLI::App& app, CommandLine& line) {
  CLI::App& keys = add_client_command(app, line, "keys", "print the keys that begin with PREFIX, sorted");
  keys.add_option("PREFIX", line.keys.prefix, "what the keys begin with (default: all keys)");
  keys.add_flag("--count", line.keys.is_count, "print only their number");
  keys.add_flag("-0,--null", line.keys.is_raw, "print them as they are, each with a null byte behind it");
  keys.callback([&line] { line.exit = run_keys(line.where, line.keys); });

  CLI::App& flush = add_client_command(app, line, "flush", "erase the keys that begin with PREFIX, but no cells");
  flush.add_option("PREFIX", line.flush.prefix, "what the keys begin with");
  flush.add_flag("--all", line.flush.is_all, "erase all keys");
  flush.add_flag("-y,--yes", line.flush.is_sure, "do not ask");
  flush.callback([&app, &line] {
    const bool is_clear = line.flush.is_all == line.flush.prefix.empty();
    line.exit = is_clear ? run_flush(line.where, line.flush) : usage(app, "takes either PREFIX or --all");
  });

  CLI::App& mget = add_client_command(app, line, "mget", "print keys and their values, got in one call");
  mget.add_option("KEY", line.words, "the keys")->required();
  mget.callback([&line] { line.exit = run_mget(line.where, line.words); });

  CLI::App& mput = add_client_command(app, line, "mput", "store values in one call, and print their versions");
  mput.add_option("PAIRS", line.words, "keys, each with its value behind it: KEY VALUE ...")->required();
  add_ttl(mput, line.item, "the keys are absent after this time, by the server's clock");
  mput.callback([&app, &line] {
    line.exit = line.words.size() % 2 == 0 ? run_mput(line.where, line.words, {.time_to_live = line.item.ttl})
                                           : usage(app, "takes a VALUE behind each KEY, and the last one is missing");
  });
}

void add_cell_commands(CLI::App& app, CommandLine& line) {
  CLI::App& incr = add_client_command(app, line, "incr", "add N to a cell, which is made if need be; print the sum");
  incr.add_option("KEY", line.item.key, "the cell's key")->required();
  incr.add_option("N", line.step, "what to add, modulo 2^64; it may have a minus sign")->capture_default_str();
  incr.callback([&app, &line] {
    const auto step = parse_step(line.step);
    line.exit = step ? run_incr(line.where, line.item.key, *step)
                     : usage(app, "N: " + wrong_value("a whole number of 64 bits, such as 1 or -1", line.step));
  });

  CLI::App& cell = add_client_command(app, line, "cell", "print the number in a cell");
  cell.add_option("KEY", line.item.key, "the cell's key")->required();
  cell.callback([&line] { line.exit = run_cell(line.where, line.item.key); });
}

void add_tree_commands(CLI::App& app, CommandLine& line) {
  CLI::App& load = add_client_command(app, line, "load", "store each regular file under DIR by its relative path");
  load.add_option("DIR", line.tree.directory, "the directory")->required();
  add_depth(load, line.tree);
  load.callback([&line] { line.exit = run_load(line.where, line.tree); });

  CLI::App& verify = add_client_command(app, line, "verify", "compare each regular file under DIR with the store");
  verify.add_option("DIR", line.tree.directory, "the directory")->required();
  add_depth(verify, line.tree);
  verify.callback([&line] { line.exit = run_verify(line.where, line.tree); });
}

void add_other_commands(CLI::App& app, CommandLine& line) {
  CLI::App& stats = add_client_command(app, line, "stats", "print the server's statistics");
  stats.add_flag("--json", line.stats.json, "one JSON object instead of text");
  stats.add_option("--watch", line.stats.watch_s, "print the rates and times of each so many seconds, until stopped")
      ->check(whole_number(1, 86'400));
  stats.callback([&line] { line.exit = run_stats(line.where, line.stats); });

  CLI::App& bench = add_client_command(app, line, "bench", "measure puts and gets beside the bare cache line");
  add_bench_options(bench, line.bench);
  bench.callback([&app, &line] {
    const std::string wrong = check_bench_arguments(line.bench);
    line.exit = wrong.empty() ? run_bench(line.where, line.bench) : usage(app, wrong);
  });

  CLI::App& shell =
      add_client_command(app, line, "shell", "put, get and the others at a prompt, or from a script on stdin");
  shell.callback([&line] { line.exit = run_shell(line.where); });
}

Exit run_kv_program(int argc, char** argv) {
  CommandLine line;
  CLI::App app(
      "An in-memory key-value store over one-sided memory access.\n"
      "Exit codes: 0 done, 1 not found or version mismatch or files differ, 2 usage, 3 other error.\n",
      "verbena-kv");
  app.set_version_flag("--version", "verbena-kv " VERBENA_VERSION);
  app.require_subcommand(1);
  // Commands take the footer that is set when they are added, so that serve, which reads none of this, has none.
  add_serve(app, line);
  app.footer(client_defaults_help());
  add_item_commands(app, line);
  add_many_commands(app, line);
  add_cell_commands(app, line);
  add_tree_commands(app, line);
  add_other_commands(app, line);
  return run_parsed(app, argc, argv, line.exit);
}

}  // namespace
}  // namespace verbena::programs

int main(int argc, char** argv) {
  return verbena::programs::run_program("verbena-kv", verbena::programs::run_kv_program, argc, argv);
}
