// The command-line options that several programs and subcommands share.
#pragma once

#include "programs/commands.hpp"

#include <verbena/kv.hpp>

#include <CLI/CLI.hpp>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::programs {

/// Complains about the command line, and names the help of the program, or of the subcommand that was met.
[[nodiscard]] Exit usage(const CLI::App& app, std::string_view text);
/// Parses the command line, which calls the callback of what was met: `exit` is what that came to. \thread main
[[nodiscard]] Exit run_parsed(CLI::App& app, int argc, char** argv, const Exit& exit);

// What an option is bound to outlives the parsing.

/// -d, -S and --gid-index: which NIC, and how.
void add_transport_options(CLI::App& command, Transport& transport);
/// --allow-uid, one number an option, so that positional arguments may follow it.
void add_allowed_uids(CLI::App& command, std::vector<uid_t>& uids, const char* what);
/// --timeout-ms, to connect and for each call; `what` says what it is the longest wait for.
template <class Options>
void add_timeout(CLI::App& command, Options& options, const char* what) {
  const auto take = [&options](std::uint32_t ms) {
    options.connect_timeout = options.timeout = std::chrono::milliseconds{ms};
  };
  command.add_option_function<std::uint32_t>("--timeout-ms", take, what)
      ->check(CLI::Range(1, 86'400'000))
      ->default_str(std::to_string(options.timeout.count()));
}
/// --wait; `whose` says who waits so. The value before is the default.
void add_wait_option(CLI::App& command, WaitPolicy& wait, const std::string& whose);

/// What says how large a server is: of the program that is one, and of the one that plans it. -m, -H, -w, --wait,
/// --max-clients,
/// --max-value-mib, --lease-kib, --max-items, --max-cells, --checksum-large-values, --trusted-clients, --grace-ms and
/// --depth.
void add_serve_options(CLI::App& command, kv::ServerOptions& server);

/// Adds --seconds and the others of bench.
void add_bench_options(CLI::App& command, BenchArguments& arguments);
/// The arguments of a shell's bench line, or what is wrong with them.
[[nodiscard]] std::expected<BenchArguments, std::string> parse_bench_words(std::span<const std::string> words);

}  // namespace verbena::programs
