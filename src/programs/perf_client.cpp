// The measuring end of verbena-perf.
#include "programs/files.hpp"
#include "programs/perf.hpp"
#include "programs/perf_end.hpp"
#include "programs/values.hpp"

#include "base/error.hpp"
#include "host/topology.hpp"
#include "programs/line.hpp"

#include <fmt/format.h>

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace verbena::programs {
namespace {

std::uint32_t random_session() noexcept {
  std::uint32_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != static_cast<ssize_t>(sizeof word))
    word = static_cast<std::uint32_t>(ticks_now());
  return word | 1;
}

engine::Counters since(const engine::Counters& before, const engine::Counters& now) noexcept {
  return {.work_requests = now.work_requests - before.work_requests,
          .doorbells = now.doorbells - before.doorbells,
          .completions = now.completions - before.completions,
          .inline_sends = now.inline_sends - before.inline_sends,
          .receive_refills = now.receive_refills - before.receive_refills,
          .empty_polls = now.empty_polls - before.empty_polls,
          .sleeps = now.sleeps - before.sleeps,
          .quarantined = now.quarantined,
          .bytes = now.bytes - before.bytes,
          .strays = now.strays - before.strays};
}

/// Ticks between two readings of the clock with nothing between them.
double clock_ticks() noexcept {
  constexpr int kReadings = 1000;
  const std::uint64_t begin = ticks_now();
  std::uint64_t now = begin;
  for (int i = 0; i < kReadings; ++i) now = ticks_now();
  return static_cast<double>(now - begin) / kReadings;
}

class PerfRun {
 public:
  PerfRun(PerfEnd& end, PerfResult& result) : end_(end), result_(result), arguments_(result.arguments) {}

  Status run() noexcept {
    switch (arguments_.test) {
      case PerfTest::kRead:
        return measure([this](std::uint64_t, Deadline deadline) noexcept { return end_.read(deadline); });
      case PerfTest::kWrite:
        return measure([this](std::uint64_t, Deadline deadline) noexcept { return end_.write(deadline); });
      case PerfTest::kPingPong:
        return measure([this](std::uint64_t i, Deadline deadline) noexcept { return end_.ping_pong(i, deadline); });
      case PerfTest::kMessage:
        return measure([this](std::uint64_t i, Deadline deadline) noexcept { return end_.message(i, deadline); });
      case PerfTest::kWriteBw: return measure_large();
    }
    return Status::kBadArgument;
  }
  /// Of the warm-up too.
  [[nodiscard]] std::uint64_t rounds_done() const noexcept { return done_; }

 private:
  template <class Round>
  Status measure(Round&& round) noexcept {
    for (; done_ < arguments_.warm_up; ++done_) {
      if (const Status status = round(done_ + 1, end_.patience()); status != Status::kOk) return status;
    }
    const engine::Counters before = end_.counters();
    // One reading a round, which ends one latency and begins the next.
    const std::uint64_t begin = ticks_now();
    std::uint64_t start = begin;
    for (const std::uint64_t last = done_ + arguments_.iterations; done_ < last; ++done_) {
      if (const Status status = round(done_ + 1, end_.patience(start)); status != Status::kOk) return status;
      const std::uint64_t now = ticks_now();
      result_.ticks.record(now - start);
      start = now;
    }
    finish(before, begin, start);
    return Status::kOk;
  }

  Status measure_large() noexcept {
    const auto ignore = [](std::uint64_t) noexcept {};
    if (const Status status = end_.write_large(arguments_.warm_up, ignore); status != Status::kOk) return status;
    done_ = arguments_.warm_up;
    const engine::Counters before = end_.counters();
    const std::uint64_t begin = ticks_now();
    const auto record = [this](std::uint64_t ticks) noexcept {
      result_.ticks.record(ticks);
      ++done_;
    };
    if (const Status status = end_.write_large(arguments_.iterations, record); status != Status::kOk) return status;
    finish(before, begin, ticks_now());
    return Status::kOk;
  }

  void finish(const engine::Counters& before, std::uint64_t begin, std::uint64_t now) noexcept {
    result_.work = since(before, end_.counters());
    result_.seconds = static_cast<double>(now - begin) / ticks_per_us() / 1e6;
  }

  PerfEnd& end_;
  PerfResult& result_;
  const PerfArguments& arguments_;
  std::uint64_t done_ = 0;
};

/// Both sides of `--local` on different cpus, where there are two; in front of the server's start, which inherits none
/// of it.
void choose_cpus(PerfWhere& client, PerfWhere& server) {
  const std::vector<unsigned> cpus = allowed_cpus();
  if (cpus.size() < 2) return;
  if (!client.cpu) client.cpu = cpus[0];
  server.cpu = cpus[0] == *client.cpu ? cpus[1] : cpus[0];
}

/// What is measured, in front of the measurement: it may take long.
void announce(const PerfResult& result) {
  const PerfArguments& a = result.arguments;
  fmt::print("verbena-perf: {} of {} B, {} iterations after {} to warm up, to {} by {}\n", to_string(a.test), a.bytes,
             a.iterations, a.warm_up, endpoint(a.where.address, a.where.port), result.nic);
  std::fflush(stdout);
}

Result<void> measure(PerfResult& result) {
  const PerfArguments& a = result.arguments;
  const link::FabricOptions options{
      .transport = a.where.transport, .role = link::Role::kClient, .address = a.where.address, .port = a.where.port};
  VERBENA_ASSIGN(PerfDevice device,
                 PerfDevice::open(options, Deadline::after(std::chrono::milliseconds{a.where.timeout_ms})));
  result.nic = device.nic().name();
  result.path = device.path();
  const perf_wire::RunHello run{.test = a.test,
                                .in_flight = static_cast<std::uint16_t>(a.in_flight),
                                .session = random_session(),
                                .bytes = static_cast<std::uint32_t>(a.bytes),
                                .rounds = a.warm_up + a.iterations};
  VERBENA_ASSIGN(const auto end,
                 PerfEnd::create(device, run, PerfRole::kClient, std::chrono::milliseconds{a.where.timeout_ms}));
  VERBENA_TRY(end->dial(a.where.port));
  // Only now: the threads of the NIC inherited the affinity otherwise.
  if (a.where.cpu) VERBENA_TRY(host::pin_this_thread(*a.where.cpu));
  if (!a.json) announce(result);
  PerfRun measurement(*end, result);
  const Status status = measurement.run();
  if (status != Status::kOk)
    return fail(status, "verbena-perf", 0, "the run broke after {} of {} rounds; see that the server still runs",
                measurement.rounds_done(), run.rounds);
  end->say_bye();
  return {};
}

}  // namespace

std::string check_perf_arguments(const PerfArguments& a) {
  const std::uint64_t most = perf_wire::most_bytes(a.test);
  if (a.bytes == 0 || a.bytes > most) return fmt::format("--size {}: takes 1 to {} for this test", a.bytes, most);
  if (a.iterations == 0 || a.iterations > perf_wire::kMaxRounds / 2)
    return fmt::format("--iterations {}: takes 1 to {}", a.iterations, perf_wire::kMaxRounds / 2);
  if (a.warm_up > perf_wire::kMaxRounds / 2)
    return fmt::format("--warm-up {}: takes 0 to {}", a.warm_up, perf_wire::kMaxRounds / 2);
  return {};
}

Exit run_perf(const PerfArguments& arguments) {
  // On the heap, because a histogram is large for a stack.
  const auto result = std::make_unique<PerfResult>();
  result->arguments = arguments;
  result->environment = read_environment();
  result->clock_ns = clock_ticks() / ticks_per_us() * 1e3;
  std::optional<PerfLocalServer> server;
  if (arguments.local) {
    PerfWhere& where = result->arguments.where;
    PerfWhere of_server = where;
    choose_cpus(where, of_server);
    auto started = PerfLocalServer::start(of_server);
    if (!started) {
      complain("{}: {}", to_string(started.error().status()), started.error().text());
      return Exit::kError;
    }
    server.emplace(std::move(*started));
    where.port = server->port();
  }
  const auto measured = measure(*result);
  if (!measured) {
    complain("{}: {}", to_string(measured.error().status()), measured.error().text());
    return Exit::kError;
  }
  const std::string text = arguments.json ? perf_json(*result) : perf_text(*result);
  const auto written = write_all(STDOUT_FILENO, "standard output", std::as_bytes(std::span(text)));
  if (written) return Exit::kDone;
  complain("{}", written.error().text());
  return Exit::kError;
}

}  // namespace verbena::programs
