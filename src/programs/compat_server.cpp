// kv_server and application: servers with the command lines and the output of the systems that Verbena replaces.
#include "programs/compat.hpp"
#include "programs/files.hpp"
#include "programs/options.hpp"
#include "programs/server_process.hpp"

#include "base/units.hpp"

#include <verbena/version.h>

#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

namespace verbena::programs {
namespace {

/// rdma_kv prints its statistics so often.
constexpr std::chrono::seconds kStatisticsEvery{10};

struct KvServerArguments {
  kv::ServerOptions server{.address = "0.0.0.0", .port = kRdmaKvPort};
  std::size_t table = 65536;
  bool hugepages = false;
};

/// Starts a server; null after a complaint.
std::unique_ptr<kv::Server> serve_or_complain(const kv::ServerOptions& options) {
  raise_descriptor_limit();
  auto server = kv::Server::start(options);
  if (server) return std::move(*server);
  complain("cannot serve on {}: {}: {}", endpoint(options.address, options.port), to_string(server.error().status()),
           by_option(server.error().text()));
  return nullptr;
}

void print_banner(const KvServerArguments& a) {
  const kv::ServerOptions& server = a.server;
  const bool is_socket = server.transport.bootstrap == Bootstrap::kSocket;
  fmt::print("=== RDMA KV Store Server ===\n");
  fmt::print("Bind address: {}:{}\n", server.address, server.port);
  fmt::print("Memory pool: {} MB\n", server.memory_bytes / kMebi);
  fmt::print("Hash table size: {}\n", a.table);
  fmt::print("Worker threads: {}\n", server.workers);
  fmt::print("Huge pages: {}\n", a.hugepages || server.require_hugepages ? "enabled" : "disabled");
  fmt::print("Connection mode: {}\n", is_socket ? "Socket" : "RDMA CM");
  if (!server.transport.device.empty()) fmt::print("IB device: {}\n", server.transport.device);
  fmt::print("============================\n\n");
  std::fflush(stdout);
}

void print_statistics(const kv::ServerStatistics& s) {
  fmt::print("\n=== Hash Table Statistics ===\n");
  fmt::print("Number of entries: {}\n", s.items);
  fmt::print("GET operations: {}\n", s.gets);
  fmt::print("PUT operations: {}\n", s.puts);
  fmt::print("DELETE operations: {}\n", s.erases);
  fmt::print("CAS operations: {}\n", s.compare_and_swaps);
  fmt::print("=============================\n\n");
  fmt::print("\n=== Memory Pool Statistics ===\n");
  fmt::print("Total size: {} bytes\n", s.capacity_bytes);
  fmt::print("Used: {} bytes\n", s.used_bytes);
  fmt::print("==============================\n\n");
  std::fflush(stdout);
}

Exit serve_until_signal(KvServerArguments& a) {
  StopSignals signals;
  // As rdma_kv's, the table grows: its size only raises the number of keys that the memory gives by itself.
  if (a.table > a.server.memory_bytes / 128) a.server.max_items = a.table;
  print_banner(a);
  const auto server = serve_or_complain(a.server);
  if (!server) return Exit::kError;
  fmt::print("Listening on {}; {}\n", endpoint(server->address(), server->port()), server->description());
  fmt::print("Server is running. Press Ctrl+C to stop.\n\n");
  std::fflush(stdout);
  int signal = 0;
  while (signal == 0) {
    signal = signals.await_for(kStatisticsEvery);
    if (signal == 0) print_statistics(server->statistics());
  }
  fmt::print("\nReceived signal {}, shutting down...\n", signal);
  std::fflush(stdout);
  server->stop();
  fmt::print("Server shutdown complete.\n");
  return std::fflush(stdout) == 0 ? Exit::kDone : Exit::kError;
}

void add_memory_option(CLI::App& app, kv::ServerOptions& server) {
  app.add_option_function<std::size_t>(
         "-m,--memory", [&server](std::size_t mib) { server.memory_bytes = mib * kMebi; }, "memory for items, in MiB")
      ->check(whole_number(1, kMebi))
      ->default_str("1024");
}

void add_port_option(CLI::App& app, std::uint16_t& port) {
  app.add_option("-p,--port", port, "port to listen on; 0 takes any free one")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
}

}  // namespace

Exit run_kv_server(int argc, char** argv) {
  KvServerArguments a;
  Exit exit = Exit::kDone;
  CLI::App app("A key-value store, with the command line of rdma_kv's server.\n", "kv_server");
  app.set_version_flag("--version", "kv_server " VERBENA_VERSION);
  add_address(app, a.server.address, "address or name to listen on (default: 0.0.0.0)");
  add_port_option(app, a.server.port);
  add_memory_option(app, a.server);
  app.add_option("-t,--table", a.table, "keys that fit at least")
      ->check(whole_number(1, kMebi * kMebi / 64))
      ->capture_default_str();
  app.add_option("-w,--workers", a.server.workers, "polling threads")
      ->check(whole_number(1, 64))
      ->capture_default_str();
  app.add_flag("-H,--hugepages", a.hugepages, "prefer hugepages; the server says which pages it got");
  app.add_flag("--require-hugepages", a.server.require_hugepages, "refuse to start without hugepages");
  add_transport_options(app, a.server.transport);
  app.callback([&] { exit = serve_until_signal(a); });
  return run_parsed(app, argc, argv, exit);
}

Exit run_application(int argc, char** argv) {
  kv::ServerOptions options;
  Exit exit = Exit::kDone;
  CLI::App app("A key-value store, in place of the RDMA Key-Value Store's server; `client SERVER` measures it.\n",
               "application");
  app.set_version_flag("--version", "application " VERBENA_VERSION);
  add_address(app, options.address, "address or name to listen on (default: the NIC's own)");
  add_port_option(app, options.port);
  add_memory_option(app, options);
  app.add_option_function<std::size_t>(
         "--max-value-mib", [&options](std::size_t mib) { options.max_value_bytes = mib * kMebi; },
         "longest value (default: nearly half of the memory)")
      ->check(whole_number(1, kMebi));
  add_transport_options(app, options.transport);
  app.callback([&] {
    StopSignals signals;
    const auto server = serve_or_complain(options);
    exit = server ? Exit::kDone : Exit::kError;
    if (!server) return;
    fmt::print("serving on {}; {}\n", endpoint(server->address(), server->port()), server->description());
    std::fflush(stdout);
    (void)signals.await();
    server->stop();
  });
  return run_parsed(app, argc, argv, exit);
}

}  // namespace verbena::programs
