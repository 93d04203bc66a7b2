// The measuring end of verbena-perf.
#include "programs/files.hpp"
#include "programs/line.hpp"
#include "programs/perf.hpp"
#include "programs/perf_measure.hpp"
#include "programs/values.hpp"

#include "base/error.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

namespace verbena::programs {
namespace {

using Milliseconds = std::chrono::milliseconds;

std::uint32_t random_session() noexcept {
  std::uint32_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != static_cast<ssize_t>(sizeof word))
    word = static_cast<std::uint32_t>(ticks_now());
  return word | 1;
}

Result<void> print(std::string_view text) {
  return write_all(STDOUT_FILENO, "standard output", std::as_bytes(std::span(text)));
}

/// Sizes of a command, one after the other, and what is printed of them.
class PerfSession {
 public:
  explicit PerfSession(const PerfArguments& arguments)
      : arguments_(arguments), environment_(read_environment()), clock_ns_(clock_reading_ns()) {}

  Result<void> run() {
    if (facts().by != PerfBy::kNothing) VERBENA_TRY(find_server());
    for (const std::uint64_t bytes : arguments_.sizes) VERBENA_TRY(measure(bytes));
    if (is_table()) VERBENA_TRY(print(perf_configuration(*last_)));
    return {};
  }

 private:
  [[nodiscard]] const PerfTestFacts& facts() const noexcept { return facts_of(arguments_.test); }
  [[nodiscard]] bool is_table() const noexcept {
    return arguments_.format == PerfFormat::kText && arguments_.sizes.size() > 1;
  }

  /// Starts it, if it is to be local, and opens the NIC.
  Result<void> find_server() {
    PerfWhere& where = arguments_.where;
    if (arguments_.local) {
      PerfServeArguments of_server{
          .where = where,
          .clients = static_cast<std::uint32_t>(arguments_.sizes.size()) * (arguments_.idle_us == 0 ? 1 : 2)};
      choose_cpus(of_server.where);
      VERBENA_ASSIGN(auto started, PerfLocalServer::start(of_server));
      server_.emplace(std::move(started));
      where.port = server_->port();
    }
    const link::FabricOptions options{
        .transport = where.transport, .role = link::Role::kClient, .address = where.address, .port = where.port};
    VERBENA_ASSIGN(device_, PerfDevice::open(options, Deadline::after(Milliseconds{where.timeout_ms})));
    return {};
  }

  /// Both sides of `--local` on different cpus, where there are as many; in front of the server's start, which inherits
  /// none of it.
  void choose_cpus(PerfWhere& server) {
    const std::vector<unsigned> cpus = allowed_cpus();
    if (cpus.size() < 2) return;
    if (!arguments_.where.cpu) arguments_.where.cpu = cpus.front();
    server.cpu = perf_cpus(arguments_.where.cpu, arguments_.threads + 1).back();
  }

  Result<void> measure(std::uint64_t bytes) {
    // On the heap, because a histogram is large for a stack.
    auto result = std::make_unique<PerfResult>();
    result->arguments = arguments_;
    result->bytes = bytes;
    result->environment = environment_;
    result->clock_ns = clock_ns_;
    last_ = std::move(result);
    if (facts().by != PerfBy::kNothing) {
      last_->nic = device_.nic().name();
      last_->path = device_.path();
      last_->cpus = perf_cpus(arguments_.where.cpu, arguments_.threads);
    }
    VERBENA_TRY(measure_it());
    return report();
  }

  Result<void> measure_it() {
    if (facts().by == PerfBy::kNothing) {
      VERBENA_TRY(announce());
      return measure_bare(*last_);
    }
    return arguments_.idle_us == 0 ? measure_run(*last_) : measure_wake_up();
  }

  /// First with a receiver that spins, so that what sleeping adds can be told.
  Result<void> measure_wake_up() {
    const auto reference = std::make_unique<PerfResult>(*last_);
    reference->arguments.wait = engine::WaitPolicy::kSpin;
    VERBENA_TRY(measure_run(*reference));
    last_->idle.emplace();
    VERBENA_TRY(measure_run(*last_));
    const auto round_trip = [](const PerfResult& of, double percent) { return 2 * of.percentile_ns(percent); };
    last_->idle->reference_ns = round_trip(*reference, 50);
    last_->idle->round_trip_ns = round_trip(*last_, 50);
    last_->idle->p99_added_ns = round_trip(*last_, 99) - round_trip(*reference, 99);
    return {};
  }

  Result<void> measure_run(PerfResult& result) {
    perf_wire::RunHello run = run_of(result.arguments, result.bytes);
    run.session = random_session();
    VERBENA_ASSIGN(const auto end,
                   PerfEnd::create(device_, run, PerfRole::kClient, Milliseconds{arguments_.where.timeout_ms}));
    VERBENA_TRY(end->dial(arguments_.where.port));
    VERBENA_TRY(announce());
    VERBENA_TRY(measure_lanes(*end, result));
    if (result.idle) VERBENA_TRY(measure_idle(*end, *result.idle));
    end->say_bye();
    return {};
  }

  /// Once, in front of the first measurement: it may take long.
  Result<void> announce() {
    if (std::exchange(is_announced_, true)) return {};
    switch (arguments_.format) {
      case PerfFormat::kJson: return {};
      case PerfFormat::kCsv: return print(perf_csv_head());
      case PerfFormat::kText: break;
    }
    VERBENA_TRY(print(perf_announcement(*last_)));
    return is_table() ? print(perf_table_head(facts())) : Result<void>();
  }

  Result<void> report() {
    switch (arguments_.format) {
      case PerfFormat::kJson: return print(perf_json(*last_));
      case PerfFormat::kCsv: return print(perf_csv_row(*last_));
      case PerfFormat::kText: break;
    }
    return print(is_table() ? perf_table_row(*last_) : perf_text(*last_));
  }

  PerfArguments arguments_;
  const Environment environment_;
  const double clock_ns_;
  std::optional<PerfLocalServer> server_;  ///< Outlives the device's connections to it.
  PerfDevice device_;
  std::unique_ptr<PerfResult> last_;
  bool is_announced_ = false;
};

}  // namespace

Exit run_perf(const PerfArguments& arguments) {
  const auto done = PerfSession(arguments).run();
  if (done) return Exit::kDone;
  complain("{}: {}", to_string(done.error().status()), done.error().text());
  return Exit::kError;
}

}  // namespace verbena::programs
