// The measuring end of verbena-perf: runs the sizes of a command one after the other, and prints the results.
#include "base/text.hpp"
#include "programs/files.hpp"
#include "programs/line.hpp"
#include "programs/perf.hpp"
#include "programs/perf_run.hpp"

#include "base/error.hpp"

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

namespace verbena::programs {
namespace {

Result<void> print(std::string_view text) { return write_all(STDOUT_FILENO, "standard output", bytes_of_text(text)); }

class PerfSession {
 public:
  explicit PerfSession(const PerfArguments& arguments)
      : arguments_(arguments), environment_(read_environment()), clock_ns_(clock_reading_ns()) {}

  Result<void> run() {
    if (arguments_.local) VERBENA_TRY(start_server());
    for (const std::uint64_t bytes : arguments_.sizes) VERBENA_TRY(measure(bytes));
    if (is_table()) VERBENA_TRY(print(perf_configuration(*last_)));
    return {};
  }

 private:
  [[nodiscard]] const PerfTestFacts& facts() const noexcept { return facts_of(arguments_.test); }
  [[nodiscard]] bool is_table() const noexcept { return !arguments_.json && arguments_.sizes.size() > 1; }

  Result<void> start_server() {
    // The listener takes the last free core for its thread, the client the first, if there are two.
    if (const std::vector<unsigned> cpus = allowed_cpus(); cpus.size() > 1 && !arguments_.cpu)
      arguments_.cpu = cpus.front();
    rdma::Options where = arguments_.where;
    where.window_bytes = facts().by == PerfBy::kWindow ? arguments_.sizes.back() : 0;
    VERBENA_ASSIGN(auto started,
                   PerfLocalServer::start({.where = where,
                                           .serving = arguments_.serving,
                                           .clients = static_cast<std::uint32_t>(arguments_.sizes.size())}));
    server_.emplace(std::move(started));
    arguments_.where.port = server_->port();
    return {};
  }

  Result<void> measure(std::uint64_t bytes) {
    // On the heap, because a histogram is large for a stack.
    last_ = std::make_unique<PerfResult>();
    last_->arguments = arguments_;
    last_->bytes = bytes;
    last_->environment = environment_;
    last_->clock_ns = clock_ns_;
    VERBENA_TRY(measure_it());
    return report();
  }

  Result<void> measure_it() {
    if (!facts().has_peer()) {
      VERBENA_TRY(announce());
      return measure_bare(*last_);
    }
    last_->cpus = perf_cpus(arguments_.cpu, arguments_.threads);
    VERBENA_ASSIGN(PerfRun run, open_run(arguments_, static_cast<std::uint32_t>(last_->bytes)));
    describe(run);
    VERBENA_TRY(announce());
    VERBENA_TRY(measure_run(run, *last_));
    end_run(run, *last_);
    return {};
  }

  /// Describes the connection: only the software NIC's memory has an id.
  void describe(const PerfRun& run) {
    const Transport& transport = arguments_.where.transport;
    const bool is_soft = run.peers.front().own.window().memory_id != 0;
    const bool is_cm = transport.bootstrap == Bootstrap::kCm && !is_soft;
    last_->nic = is_soft ? "soft" : transport.device.empty() ? "an RDMA device" : transport.device;
    last_->path = is_cm ? "connected by RDMA CM" : "connected over TCP";
    if (transport.gid_index) last_->path += fmt::format(", GID index {}", *transport.gid_index);
    last_->serving = run.serving;
  }

  /// Announces the measurement once, before the first one, because it may take long.
  Result<void> announce() {
    if (std::exchange(is_announced_, true) || arguments_.json) return {};
    VERBENA_TRY(print(perf_announcement(*last_)));
    return is_table() ? print(perf_table_head(*last_)) : Result<void>();
  }

  Result<void> report() {
    if (arguments_.json) return print(perf_json(*last_));
    return print(is_table() ? perf_table_row(*last_) : perf_text(*last_));
  }

  PerfArguments arguments_;
  const Environment environment_;
  const double clock_ns_;
  std::optional<PerfLocalServer> server_;
  std::unique_ptr<PerfResult> last_;
  bool is_announced_ = false;
};

}  // namespace

Exit run_perf(const PerfArguments& arguments) {
  const auto done = PerfSession(arguments).run();
  return done ? Exit::kDone : error_exit("{}: {}", to_string(done.error().status()), done.error().text());
}

// --- the server that --local starts, in a process of its own

Result<PerfLocalServer> PerfLocalServer::start(PerfServeArguments arguments) {
  constexpr std::chrono::seconds kStartTimeout{20};
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_system("pipe2", errno, "starting a server");
  PerfLocalServer server{Fd(ends[0])};
  Fd theirs(ends[1]);
  std::fflush(nullptr);  // Otherwise the child would print it again.
  server.pid_ = ::fork();
  if (server.pid_ < 0) return fail_system("fork", errno, "starting a server");
  if (server.pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    arguments.where.port = 0;
    arguments.port_to = theirs.get();
    ::_exit(static_cast<int>(run_perf_server(arguments)));
  }
  theirs.reset();
  const bool in_time = wait_readable(server.pipe_.get(), Deadline::after(kStartTimeout));
  if (!in_time || ::read(server.pipe_.get(), &server.port_, sizeof server.port_) != sizeof server.port_)
    return fail(in_time ? Status::kPeerLost : Status::kTimedOut, "verbena-perf", 0,
                "the server that --local starts did not get ready; its own message says why");
  return server;
}

PerfLocalServer::~PerfLocalServer() {
  constexpr std::chrono::seconds kEndTimeout{2};
  if (pid_ <= 0) return;
  if (!wait_readable(pipe_.get(), Deadline::after(kEndTimeout))) ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace verbena::programs
