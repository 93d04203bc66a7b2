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
#include <span>
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

struct KeysArguments {
  std::string prefix;
  bool is_count = false;  ///< Prints only the number of keys.
  bool is_raw = false;    ///< Keys as they are, each with a null byte behind it.
};
[[nodiscard]] Exit run_keys(const ConnectArguments& where, const KeysArguments& keys);

struct FlushArguments {
  std::string prefix;  ///< Not empty, or `is_all`: an empty variable of a script does not erase everything.
  bool is_all = false;
  bool is_sure = false;  ///< Does not ask.
};
[[nodiscard]] Exit run_flush(const ConnectArguments& where, const FlushArguments& flush);

[[nodiscard]] Exit run_mget(const ConnectArguments& where, std::span<const std::string> keys);
/// `words`: keys, each with its value behind it.
[[nodiscard]] Exit run_mput(const ConnectArguments& where, std::span<const std::string> words,
                            const kv::PutOptions& options);

[[nodiscard]] Exit run_incr(const ConnectArguments& where, const std::string& key, std::uint64_t by);
[[nodiscard]] Exit run_cell(const ConnectArguments& where, const std::string& key);

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
  bool sweep = false;  ///< Measures values of 1 B to 16 MiB instead: see sweep.hpp.
  std::string plot;    ///< With `sweep`: a file for a drawing; empty: none.
};
/// More bytes than any of our machines has; sums of sizes up to it don't overflow.
inline constexpr std::size_t kMostBytes = std::size_t{1} << 40;
/// Says which arguments don't go together; empty: all do. Each argument is in its own range.
[[nodiscard]] std::string check_bench_arguments(const BenchArguments& arguments);
[[nodiscard]] Exit run_bench(const ConnectArguments& where, const BenchArguments& arguments);

[[nodiscard]] Exit run_shell(const ConnectArguments& where);

}  // namespace verbena::programs
