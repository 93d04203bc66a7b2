// serve: the server as a process.
#include "programs/commands.hpp"
#include "programs/files.hpp"
#include "programs/option_words.hpp"
#include "programs/statistics.hpp"
#include "programs/values.hpp"

#include <fmt/core.h>

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace verbena::programs {
namespace {

sigset_t stop_signals() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

/// Waits for ever, as a server does, until one of `set` is pending.
int await_signal(const sigset_t& set) noexcept {
  for (;;) {
    const int signal = ::sigwaitinfo(&set, nullptr);
    if (signal > 0) return signal;
    if (errno != EINTR) return SIGTERM;
  }
}

void remove_quietly(const std::string& path) noexcept {
  std::error_code ignored;
  if (!path.empty()) std::filesystem::remove(path, ignored);
}

/// Takes the port for metrics, when they are asked for. Before the server starts: that takes its time and memory.
Result<std::unique_ptr<MetricsEndpoint>> listen_for_metrics(const MetricsArguments& arguments) {
  if (!arguments.port) return nullptr;
  return MetricsEndpoint::listen(arguments);
}

Result<void> start_metrics(MetricsEndpoint* metrics, const kv::Server& server, unsigned workers) {
  return metrics == nullptr ? Result<void>() : metrics->start(server, workers);
}

/// Says on stdout, and in the port file, that clients may come.
Exit announce(const ServeArguments& arguments, const kv::Server& server, const MetricsEndpoint* metrics) {
  fmt::print("verbena-kv: serving on {}; {}{}{}\n", endpoint(server.address(), server.port()), server.description(),
             metrics != nullptr ? "; metrics at " : "", metrics != nullptr ? metrics->url() : "");
  std::fflush(stdout);
  if (arguments.port_file.empty()) return Exit::kDone;
  const auto written = replace_file(arguments.port_file, fmt::format("{}\n", server.port()));
  if (written) return Exit::kDone;
  complain("{}", written.error().text());
  return Exit::kError;
}

}  // namespace

Exit run_serve(const ServeArguments& arguments) {
  // Blocked before any thread exists, so that every thread inherits it and only sigwaitinfo takes the signals.
  const sigset_t set = stop_signals();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  // A port file of an earlier server would send clients to a port where nothing listens yet.
  remove_quietly(arguments.port_file);

  auto metrics = listen_for_metrics(arguments.metrics);
  if (!metrics) {
    complain("cannot tell metrics: {}", metrics.error().text());
    return Exit::kError;
  }
  auto server = kv::Server::start(arguments.server);
  if (!server) {
    complain("cannot serve on {}: {}: {}", endpoint(arguments.server.address, arguments.server.port),
             to_string(server.error().status()), by_option(server.error().text()));
    return Exit::kError;
  }
  if (const auto started = start_metrics(metrics->get(), **server, arguments.server.workers); !started) {
    complain("cannot tell metrics: {}", started.error().text());
    return Exit::kError;
  }
  Exit exit = announce(arguments, **server, metrics->get());
  if (exit == Exit::kDone) {
    const int signal = await_signal(set);
    // A second signal ends the process at once, should stopping take too long for someone.
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    fmt::print("verbena-kv: stopping on {}\n", signal == SIGINT ? "SIGINT" : "SIGTERM");
    std::fflush(stdout);
  }
  metrics->reset();
  const kv::ServerStatistics statistics = (*server)->statistics();
  (*server)->stop();
  remove_quietly(arguments.port_file);
  fmt::print("{}verbena-kv: stopped\n", statistics_text(statistics));
  if (std::fflush(stdout) != 0) exit = worse(exit, Exit::kError);
  return exit;
}

}  // namespace verbena::programs
