// The command-line options of every program that connects: which NIC, and how.
#pragma once

#include <verbena/transport.hpp>

#include <CLI/CLI.hpp>

namespace verbena::programs {

/// -d, -S and --gid-index. `transport` outlives the parsing.
void add_transport_options(CLI::App& command, Transport& transport);

}  // namespace verbena::programs
