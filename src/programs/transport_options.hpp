// The command-line options of every program that connects: which NIC, and how.
#pragma once

#include <verbena/transport.hpp>

#include <CLI/CLI.hpp>

#include <sys/types.h>

#include <vector>

namespace verbena::programs {

/// -d, -S and --gid-index. `transport` outlives the parsing.
void add_transport_options(CLI::App& command, Transport& transport);
/// --allow-uid, one number an option, so that positional arguments may follow it. `uids` outlives the parsing.
void add_allowed_uids(CLI::App& command, std::vector<uid_t>& uids, const char* what);

}  // namespace verbena::programs
