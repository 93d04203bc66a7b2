// Options of verbena-kv's clients that a user need not repeat: from the environment, and from a file.
#pragma once

#include <CLI/CLI.hpp>

#include <span>
#include <string>
#include <vector>

namespace verbena::programs {

/// Long names of the options that `command` has by now, without --help.
[[nodiscard]] std::vector<std::string> long_names(const CLI::App& command);

/// The end of the help of clients: the variables and the file that take_client_defaults reads.
[[nodiscard]] std::string client_defaults_help();

/// Gives the options of a client command the values that are kept for them, before the command line is parsed: from the
/// file that VERBENA_KV_CONFIG names (empty: none), else from ~/.config/verbena/kv.toml if it is there; over them from
/// VERBENA_KV_ADDRESS, VERBENA_KV_PORT, VERBENA_KV_DEVICE and VERBENA_KV_KEY_FILE. The file has lines `name = value`,
/// with the options in `names`. Throws CLI::ParseError, which names the variable or the file. \thread main
void take_client_defaults(CLI::App& command, std::span<const std::string> names);

}  // namespace verbena::programs
