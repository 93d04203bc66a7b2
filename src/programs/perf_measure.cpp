#include "programs/perf_measure.hpp"

#include "base/error.hpp"
#include "base/ticks.hpp"
#include "host/thread.hpp"
#include "host/topology.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <limits>
#include <memory>
#include <utility>

namespace verbena::programs {
namespace {

engine::Counters combine(const engine::Counters& a, const engine::Counters& b, auto&& operation) noexcept {
  using engine::Counters;
  constexpr std::array kMembers{&Counters::work_requests, &Counters::direct,       &Counters::doorbells,
                                &Counters::completions,   &Counters::inline_sends, &Counters::receive_refills,
                                &Counters::empty_polls,   &Counters::sleeps,       &Counters::quarantined,
                                &Counters::bytes,         &Counters::strays,       &Counters::keepalives};
  Counters combined;
  for (const auto member : kMembers) combined.*member = operation(a.*member, b.*member);
  return combined;
}

/// One thread's part of a run.
class LaneRun {
 public:
  LaneRun(PerfLane& lane, const PerfArguments& arguments) noexcept : lane_(lane), arguments_(arguments) {}

  /// Warms up, meets the others, and measures.
  void run(std::optional<unsigned> cpu, std::barrier<>& start) noexcept {
    if (cpu) pinned_ = host::pin_this_thread(*cpu);
    status_ = pinned_ ? warm_up() : pinned_.error().status();
    if (status_ != Status::kOk) {
      start.arrive_and_drop();
      return;
    }
    start.arrive_and_wait();
    status_ = measure();
  }
  [[nodiscard]] Result<void> outcome() const {
    if (!pinned_) return std::unexpected(pinned_.error());
    if (status_ == Status::kOk) return {};
    return fail(status_, "verbena-perf", 0, "the run broke after {} of {} operations; see that the server still runs",
                done_, arguments_.warm_up + arguments_.iterations);
  }
  [[nodiscard]] std::uint64_t begin() const noexcept { return begin_; }
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }
  [[nodiscard]] const engine::Counters& work() const noexcept { return work_; }
  [[nodiscard]] const Histogram& ticks() const noexcept { return ticks_; }

 private:
  Status warm_up() noexcept {
    if (facts_of(arguments_.test).pipelined()) return many(arguments_.warm_up);
    return one_at_a_time(arguments_.warm_up, [](std::uint64_t) noexcept {});
  }

  Status measure() noexcept {
    const engine::Counters before = lane_.counters();
    begin_ = ticks_now();
    const Status status = measure_operations();
    end_ = ticks_now();
    work_ = combine(lane_.counters(), before, [](std::uint64_t now, std::uint64_t then) { return now - then; });
    return status;
  }

  Status measure_operations() noexcept {
    if (!facts_of(arguments_.test).pipelined())
      return one_at_a_time(arguments_.iterations, [this](std::uint64_t ticks) noexcept { ticks_.record(ticks); });
    lane_.record_to(&ticks_);
    const Status status = many(arguments_.iterations);
    lane_.record_to(nullptr);
    return status;
  }

  Status many(std::uint64_t count) noexcept {
    const Status status = arguments_.test == PerfTest::kMessageBw ? lane_.stream(count, arguments_.batch)
                                                                  : lane_.pipeline(count, arguments_.batch);
    if (status == Status::kOk) done_ += count;
    return status;
  }

  /// The test is looked at once, not in every round.
  template <class Record>
  Status one_at_a_time(std::uint64_t count, Record&& record) noexcept {
    if (arguments_.idle_us != 0) return after_silence(count, record);
    const auto rounds = [&](auto&& round) noexcept { return measure_rounds(count, round, record); };
    switch (arguments_.test) {
      case PerfTest::kRead:
        return rounds([this](std::uint64_t, Deadline deadline) noexcept { return lane_.read(deadline); });
      case PerfTest::kWrite:
        return rounds([this](std::uint64_t, Deadline deadline) noexcept { return lane_.write(deadline); });
      case PerfTest::kPaRead:
        return rounds([this](std::uint64_t, Deadline deadline) noexcept { return lane_.pa_read(deadline); });
      case PerfTest::kPaWrite:
        return rounds([this](std::uint64_t, Deadline deadline) noexcept { return lane_.pa_write(deadline); });
      case PerfTest::kFetchAdd:
        return rounds([this](std::uint64_t, Deadline deadline) noexcept { return lane_.fetch_add(deadline); });
      case PerfTest::kCompareSwap:
        return rounds([this](std::uint64_t, Deadline deadline) noexcept { return lane_.compare_swap(deadline); });
      case PerfTest::kPingPong:
        return rounds([this](std::uint64_t i, Deadline deadline) noexcept { return lane_.ping_pong(i, deadline); });
      case PerfTest::kMessage:
      case PerfTest::kWriteImm:
        return rounds([this](std::uint64_t, Deadline deadline) noexcept { return lane_.ask(deadline); });
      default: return Status::kBadArgument;
    }
  }

  /// One reading of the clock a group of rounds, which ends one and begins the next. What it came to is noted, and
  /// recorded some groups later, outside of what is timed: a store to a bucket that is not in the cache would delay the
  /// next round's stores, which other cores see in order.
  template <class Round, class Record>
  Status measure_rounds(std::uint64_t count, Round&& round, Record&& record) noexcept {
    std::array<std::uint64_t, 64> noted;
    std::size_t notes = 0;
    std::uint64_t group = arguments_.clock_every;
    const auto record_noted = [&]() noexcept {
      for (std::size_t i = 0; i < notes; ++i) record(noted[i] * kPerfTick / group);
      notes = 0;
    };
    std::uint64_t start = ticks_now();
    for (std::uint64_t left = count; left != 0; left -= group) {
      if (left < group) {  // The last.
        record_noted();
        group = left;
        start = ticks_now();
      }
      const Deadline deadline = lane_.patience().from(start);
      for (std::uint64_t i = 0; i < group; ++i) {
        if (const Status status = round(done_ + 1, deadline); status != Status::kOk) return status;
        ++done_;
      }
      const std::uint64_t now = ticks_now();
      noted[notes++] = now - start;
      start = now;
      if (notes == noted.size()) {
        record_noted();
        start = ticks_now();
      }
    }
    record_noted();
    return Status::kOk;
  }

  template <class Record>
  Status after_silence(std::uint64_t count, Record&& record) noexcept {
    const std::uint64_t idle_ticks = ticks_in(std::chrono::microseconds{arguments_.idle_us});
    for (std::uint64_t i = 0; i < count; ++i, ++done_) {
      std::uint64_t ticks = 0;
      if (const Status status = lane_.ask_after(idle_ticks, ticks); status != Status::kOk) return status;
      record(ticks * kPerfTick);
    }
    return Status::kOk;
  }

  PerfLane& lane_;
  const PerfArguments& arguments_;
  Result<void> pinned_;
  Status status_ = Status::kOk;
  std::uint64_t done_ = 0;  ///< Of the warm-up too.
  std::uint64_t begin_ = 0, end_ = 0;
  engine::Counters work_;
  Histogram ticks_;
};

using LaneRuns = std::vector<std::unique_ptr<LaneRun>>;

/// Each in its thread; returns when all have ended.
Result<void> run_all(const LaneRuns& runs, std::span<const unsigned> cpus) {
  std::barrier<> start(static_cast<std::ptrdiff_t>(runs.size()));
  std::vector<std::thread> threads;
  threads.reserve(runs.size());
  Result<void> all;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto cpu = cpus.empty() ? std::nullopt : std::optional(cpus[i]);
    auto thread = host::start_thread("perf-client", [run = runs[i].get(), cpu, &start] { run->run(cpu, start); });
    if (thread) {
      threads.push_back(std::move(*thread));
    } else {
      all = std::unexpected(thread.error());
      start.arrive_and_drop();  // In its place, so that the others come to an end.
    }
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

double cpu_seconds(int who) noexcept {
  rusage used{};
  ::getrusage(who, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

double clock_reading_ns() noexcept {
  constexpr int kReadings = 1000;
  const std::uint64_t begin = ticks_now();
  std::uint64_t now = begin;
  for (int i = 0; i < kReadings; ++i) now = ticks_now();
  return static_cast<double>(now - begin) / kReadings / ticks_per_us() * 1e3;
}

Result<void> measure_lanes(PerfEnd& end, PerfResult& result) {
  LaneRuns runs;
  for (const auto& lane : end.lanes()) runs.push_back(std::make_unique<LaneRun>(*lane, result.arguments));
  VERBENA_TRY(run_all(runs, result.cpus));
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max(), last = 0;
  for (const auto& run : runs) {
    VERBENA_TRY(run->outcome());
    first = std::min(first, run->begin());
    last = std::max(last, run->end());
    result.work = combine(result.work, run->work(), std::plus<>());
    result.ticks.merge(run->ticks());
  }
  result.operations = result.arguments.iterations * runs.size();
  result.seconds = static_cast<double>(last - first) / ticks_per_us() / 1e6;
  return {};
}

Result<void> measure_idle(PerfEnd& end, PerfIdle& idle) {
  PerfLane& lane = *end.lanes().front();
  const std::uint64_t begin = ticks_now();
  const std::uint64_t sleeps = lane.counters().sleeps;
  const double thread = cpu_seconds(RUSAGE_THREAD), process = cpu_seconds(RUSAGE_SELF);
  if (const Status status = lane.idle(Deadline::after(kPerfIdleInterval)); status != Status::kOk)
    return fail(status, "verbena-perf", 0, "the connection broke while nothing was sent");
  const double seconds = static_cast<double>(ticks_now() - begin) / ticks_per_us() / 1e6;
  idle.thread_percent = (cpu_seconds(RUSAGE_THREAD) - thread) / seconds * 100;
  idle.process_percent = (cpu_seconds(RUSAGE_SELF) - process) / seconds * 100;
  idle.sleeps = lane.counters().sleeps - sleeps;
  idle.interval = kPerfIdleInterval;
  return {};
}

}  // namespace verbena::programs
