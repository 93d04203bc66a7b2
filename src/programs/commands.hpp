// The subcommands of verbena-kv: their options, and the functions that run them after parsing.
#pragma once

#include "programs/exit_code.hpp"
#include "programs/metrics.hpp"

#include <verbena/kv.hpp>

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace verbena::programs {

/// The server's address, and how to use it.
struct ConnectArguments {
  kv::ClientOptions options;
  bool is_verbose = false;  ///< Prints on stderr the server, the NIC and the reason for it.
};

/// Connects; on failure complains and returns null.
[[nodiscard]] std::unique_ptr<kv::Client> connect_or_complain(const ConnectArguments& where);

struct ServeArguments {
  kv::ServerOptions server;
  MetricsArguments metrics;
  std::string port_file;
};
/// Serves until SIGINT or SIGTERM. \thread main: the process must not have started a thread yet
[[nodiscard]] Exit run_serve(const ServeArguments& arguments);

struct ItemArguments {
  std::string key;
  std::optional<std::string> value;
  std::optional<std::string> file;  ///< "-" is stdin.
  std::uint64_t version = 0;
  std::optional<std::chrono::milliseconds> ttl{};  ///< put, cas
};
[[nodiscard]] Exit run_put(const ConnectArguments& where, const ItemArguments& item);
[[nodiscard]] Exit run_get(const ConnectArguments& where, const ItemArguments& item);
[[nodiscard]] Exit run_cas(const ConnectArguments& where, const ItemArguments& item);
[[nodiscard]] Exit run_del(const ConnectArguments& where, const ItemArguments& item);

struct StatsArguments {
  bool json = false;
  std::optional<std::uint32_t> watch_s;  ///< Repeats, once in this many seconds.
};
[[nodiscard]] Exit run_stats(const ConnectArguments& where, const StatsArguments& stats);

struct TreeArguments {
  std::string directory;
  unsigned depth = 32;
};
[[nodiscard]] Exit run_load(const ConnectArguments& where, const TreeArguments& tree);
[[nodiscard]] Exit run_verify(const ConnectArguments& where, const TreeArguments& tree);

struct BenchArguments {
  double seconds = 3;
  std::uint64_t count = 0;  ///< Operations; 0: `seconds` decides.
  std::size_t key_bytes = 16;
  std::size_t value_bytes = 64;
  unsigned read_percent = 50;
  unsigned depth = 1;
  unsigned batch = 1;  ///< Keys per call of get or put, at depth 1.
  kv::Lookup lookup = kv::Lookup::kAuto;
  std::size_t known_locations = kv::ClientOptions{}.known_locations;
  unsigned clock_every = 1;  ///< Operations between two readings of the clock, at depth 1.
  std::size_t keys = 0;      ///< 0: 10,000, but not more than 64 MiB of values, and at least 16.
  unsigned rounds = 5;
  bool no_fill = false;   ///< The keys exist, from a bench that left them.
  bool no_erase = false;  ///< Leaves the keys.
  bool json = false;
};
/// More bytes than any of our machines has; sums of sizes up to it don't overflow.
inline constexpr std::size_t kMostBytes = std::size_t{1} << 40;
/// Says which arguments don't go together; empty: all do. Each argument is in its own range.
[[nodiscard]] std::string check_bench_arguments(const BenchArguments& arguments);
[[nodiscard]] Exit run_bench(const ConnectArguments& where, const BenchArguments& arguments);

[[nodiscard]] Exit run_shell(const ConnectArguments& where);

}  // namespace verbena::programs
