// The command-line options that say how large a server is: of the program that is one, and of the one that plans it.
#pragma once

#include <verbena/kv.hpp>

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdint>

namespace verbena::programs {

/// Limits in the units of the command line.
struct ServeUnits {
  std::size_t memory_mib = 1024, max_value_mib = 0, lease_kib = 2048;
  std::uint32_t grace_ms = 500;
  bool trusted_clients = false;
};

/// -m, -H, -w, --wait, --max-clients, --max-value-mib, --lease-kib, --max-items, --max-cells,
/// --checksum-large-values, --trusted-clients, --grace-ms and --depth. Both outlive the parsing.
void add_serve_options(CLI::App& command, kv::ServerOptions& server, ServeUnits& units);

/// After the parsing: the units' values into the options.
void settle(const ServeUnits& units, kv::ServerOptions& server) noexcept;

}  // namespace verbena::programs
