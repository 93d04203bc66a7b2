// serve: the server as a process.
#include "host/prefault.hpp"
#include "programs/commands.hpp"
#include "programs/environment.hpp"
#include "programs/files.hpp"
#include "programs/progress.hpp"
#include "programs/server_process.hpp"
#include "programs/statistics.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>

namespace verbena::programs {
namespace {

/// Removes the port file, unless somebody has put something else in its place.
void remove_quietly(const std::string& path) {
  std::error_code ignored;
  if (!path.empty() && check_replaceable(path)) std::filesystem::remove(path, ignored);
}

/// Draws how much of the memory is there, on a terminal, while it lives.
class MemoryBar {
 public:
  explicit MemoryBar(std::size_t bytes)
      : drawer_([this, bytes, before = host::prefaulted_bytes()](const std::stop_token& stop) {
          constexpr std::chrono::milliseconds kEvery{100};
          Progress bar("memory");
          std::unique_lock lock(mutex_);
          do {
            const std::uint64_t there = std::min<std::uint64_t>(host::prefaulted_bytes() - before, bytes);
            bar.draw(static_cast<double>(there) / static_cast<double>(bytes),
                     fmt::format("{} of {}", human_bytes(there), human_bytes(bytes)));
          } while (!ended_.wait_for(lock, stop, kEvery, [&] { return stop.stop_requested(); }));
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread drawer_;  // Last: it uses the others.
};

Result<std::unique_ptr<kv::Server>> start_with_bar(const kv::ServerOptions& options) {
  const MemoryBar bar(options.memory_bytes);
  return kv::Server::start(options);
}

/// Announces on stdout and in the port file that clients may connect.
Exit announce(const ServeArguments& arguments, const kv::Server& server, const MetricsEndpoint* metrics) {
  fmt::print("verbena-kv: serving on {}; {}{}{}\n", endpoint(server.address(), server.port()), server.description(),
             metrics != nullptr ? "; metrics at " : "", metrics != nullptr ? metrics->url() : "");
  std::fflush(stdout);
  if (arguments.port_file.empty()) return Exit::kDone;
  const auto written = replace_file(arguments.port_file, fmt::format("{}\n", server.port()));
  return written ? Exit::kDone : error_exit("{}", written.error().text());
}

}  // namespace

Exit run_serve(const ServeArguments& arguments) {
  StopSignals signals;
  if (!arguments.port_file.empty()) {
    const auto replaceable = check_replaceable(arguments.port_file);
    if (!replaceable) return error_exit("--port-file: {}", replaceable.error().text());
  }
  raise_descriptor_limit();
  // An old port file would send clients to a port where nothing listens yet.
  remove_quietly(arguments.port_file);

  // Before the server starts, which takes time and memory.
  std::unique_ptr<MetricsEndpoint> metrics;
  if (arguments.metrics.port) {
    auto listening = MetricsEndpoint::listen(arguments.metrics);
    if (!listening) return error_exit("cannot serve metrics: {}", listening.error().text());
    metrics = std::move(*listening);
  }
  auto server = start_with_bar(arguments.server);
  if (!server) {
    return error_exit("cannot serve on {}: {}: {}", endpoint(arguments.server.address, arguments.server.port),
                      to_string(server.error().status()), by_option(server.error().text()));
  }
  if (metrics) {
    const auto started = metrics->start(**server, arguments.server.workers);
    if (!started) return error_exit("cannot serve metrics: {}", started.error().text());
  }
  Exit exit = announce(arguments, **server, metrics.get());
  if (exit == Exit::kDone) {
    const int signal = signals.await();
    fmt::print("verbena-kv: stopping on {}\n", signal == SIGINT ? "SIGINT" : "SIGTERM");
    std::fflush(stdout);
  }
  metrics.reset();
  const kv::ServerStatistics statistics = (*server)->statistics();
  (*server)->stop();
  remove_quietly(arguments.port_file);
  fmt::print("{}verbena-kv: stopped\n", statistics_text(statistics));
  if (std::fflush(stdout) != 0) exit = worse(exit, Exit::kError);
  return exit;
}

}  // namespace verbena::programs
