#include "programs/serve_options.hpp"

#include "base/units.hpp"
#include "programs/wait_option.hpp"

#include <chrono>

namespace verbena::programs {

void add_serve_options(CLI::App& command, kv::ServerOptions& server, ServeUnits& units) {
  command.add_option("-m,--memory", units.memory_mib, "memory for items, in MiB")
      ->check(CLI::Range(std::size_t{1}, kMebi))
      ->capture_default_str();
  command.add_flag("-H,--hugepages", server.require_hugepages, "refuse to start without hugepages");
  command.add_option("-w,--workers", server.workers, "pinned polling threads")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_wait_option(command, server.wait, "workers that have cores of their own");
  command.add_option("--max-clients", server.max_clients, "clients at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--max-value-mib", units.max_value_mib, "longest value (default: 64, or half a worker's memory)")
      ->check(CLI::Range(std::size_t{1}, kMebi));
  command.add_option("--lease-kib", units.lease_kib, "window that each client writes large values into")
      ->check(CLI::Range(std::size_t{64}, kMebi))
      ->capture_default_str();
  command.add_option("--max-items", server.max_items, "keys there may be (default: one for every 128 bytes of memory)");
  command.add_option("--max-cells", server.max_cells, "cells there may be (default: none)");
  command.add_flag("--checksum-large-values", server.checksum_large_values,
                   "readers check all bytes of values of 4 KiB and more");
  command.add_flag("--trusted-clients", units.trusted_clients,
                   "clients write values of 64 KiB and more where they stay; they must trust each other");
  command.add_option("--grace-ms", units.grace_ms, "how long freed memory rests")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  command.add_option("--depth", server.depth, "operations in flight of one client")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void settle(const ServeUnits& units, kv::ServerOptions& server) noexcept {
  server.memory_bytes = units.memory_mib * kMebi;
  server.lease_bytes = units.lease_kib * kKibi;
  if (units.trusted_clients) server.large_put = kv::LargePut::kAdopt;
  server.grace = std::chrono::milliseconds{units.grace_ms};
  server.max_value_bytes = units.max_value_mib * kMebi;
}

}  // namespace verbena::programs
