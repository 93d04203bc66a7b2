// The tests of verbena-perf that need no peer: what the machine itself can do.
#include "base/error.hpp"
#include "base/fd.hpp"
#include "base/relax.hpp"
#include "base/ticks.hpp"
#include "host/thread.hpp"
#include "host/topology.hpp"
#include "programs/line.hpp"
#include "programs/perf_connection.hpp"
#include "programs/perf_measure.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace verbena::programs {
namespace {

/// Of all batches together; also what another process may take from it.
constexpr std::chrono::seconds kLongestLine{30};

/// The one asked for, and another; the same where there is no other.
std::pair<unsigned, unsigned> two_cpus(const PerfArguments& a) {
  const std::vector<unsigned> cpus = allowed_cpus();
  const unsigned first = a.where.cpu.value_or(cpus.front());
  return {first, cpus.front() == first ? cpus.back() : cpus.front()};
}

Result<void> bounce_line(PerfResult& result) {
  const PerfArguments& a = result.arguments;
  const auto [first, second] = two_cpus(a);
  const auto batches_of = [](std::uint64_t turns) { return (turns + kLineTurnsPerBatch - 1) / kLineTurnsPerBatch; };
  const std::size_t warm_up = batches_of(a.warm_up);
  VERBENA_ASSIGN(const Line line, measure_line(first, second, kLongestLine, warm_up + batches_of(a.iterations)));
  if (line.batches_ns.size() <= warm_up)
    return fail(Status::kTimedOut, "verbena-perf", 0, "the time was over in the warm-up; ask for fewer iterations");
  for (std::size_t i = warm_up; i < line.batches_ns.size(); ++i) {
    const double round_trip_ticks = line.batches_ns[i] * 2 * ticks_per_us() / 1e3;
    result.ticks.record(static_cast<std::uint64_t>(round_trip_ticks * kPerfTick));
    result.seconds += line.batches_ns[i] * 2 * kLineTurnsPerBatch * 1e-9;
  }
  result.operations = (line.batches_ns.size() - warm_up) * kLineTurnsPerBatch;
  result.cpus = {first, second};
  result.path = fmt::format("one cache line between cpu {} and cpu {}", first, second);
  return {};
}

/// Of so many copies, in a group of one reading of the clock: a small copy takes less than that.
Result<void> copy_blocks(PerfResult& result) {
  constexpr std::uint64_t kGroupBytes = 4096;
  constexpr std::uint64_t kMemoryBytes = std::uint64_t{256} << 20;
  const PerfArguments& a = result.arguments;
  if (a.where.cpu) VERBENA_TRY(host::pin_this_thread(*a.where.cpu));
  const std::size_t bytes = result.bytes;
  std::vector<std::byte> source(bytes, std::byte{1}), target(bytes, std::byte{2});
  const auto copy = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      std::memcpy(target.data(), source.data(), bytes);
      asm volatile("" : : "r"(target.data()) : "memory");  // The copy is not dead code.
    }
  };
  copy(a.warm_up);
  const std::uint64_t most = std::max<std::uint64_t>(1, kGroupBytes / bytes);
  const std::uint64_t begin = ticks_now();
  std::uint64_t start = begin;
  for (std::uint64_t left = a.iterations; left != 0;) {
    const std::uint64_t group = std::min(left, most);
    copy(group);
    const std::uint64_t now = ticks_now();
    result.ticks.record((now - start) * kPerfTick / group);
    start = now;
    left -= group;
  }
  result.operations = a.iterations;
  result.seconds = static_cast<double>(start - begin) / ticks_per_us() / 1e6;
  if (a.where.cpu) result.cpus = {*a.where.cpu};
  result.path = "the same block again and again";
  const std::size_t blocks = std::clamp<std::uint64_t>(kMemoryBytes / bytes, 2, 1 << 16);
  result.memory_bytes_per_s =
      measure_memcpy(bytes, {.sources = blocks, .targets = blocks}, std::chrono::milliseconds{200});
  return {};
}

/// A thread that sleeps in epoll_wait until its eventfd is signalled, and counts its wake-ups; ends with this.
class Sleeper {
 public:
  Sleeper() = default;
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() {
    stop_.store(true, std::memory_order_release);
    if (event_) signal_eventfd(event_.get());
    if (thread_.joinable()) thread_.join();
  }

  Result<void> start(unsigned cpu) {
    VERBENA_ASSIGN(event_, make_eventfd());
    poll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event readable{.events = EPOLLIN, .data = {}};
    if (!poll_ || ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, event_.get(), &readable) != 0)
      return fail_system("epoll_ctl", errno, "for a thread that sleeps");
    VERBENA_ASSIGN(thread_, host::start_thread("perf-sleep", [this, cpu] { sleep(cpu); }));
    return {};
  }

  /// One wake-up, until this thread sees that the other is awake. kTimedOut; kBadArgument: its cpu is not allowed.
  Status wake(Deadline deadline) noexcept {
    const std::uint64_t before = woken_.load(std::memory_order_relaxed);
    signal_eventfd(event_.get());
    while (woken_.load(std::memory_order_acquire) == before) {
      if (failed_.load(std::memory_order_relaxed)) return Status::kBadArgument;
      if (deadline.passed()) return Status::kTimedOut;
      relax();
    }
    return Status::kOk;
  }

 private:
  void sleep(unsigned cpu) noexcept {
    if (!host::pin_this_thread(cpu)) {
      failed_.store(true, std::memory_order_relaxed);
      return;
    }
    while (!stop_.load(std::memory_order_acquire)) {
      epoll_event readable;
      // For ever: the destructor signals.
      if (::epoll_wait(poll_.get(), &readable, 1, -1) <= 0 || !drain_eventfd(event_.get())) continue;
      woken_.fetch_add(1, std::memory_order_release);
    }
  }

  Fd event_, poll_;
  std::atomic<bool> stop_{false}, failed_{false};
  alignas(128) std::atomic<std::uint64_t> woken_{0};
  std::thread thread_;
};

/// What the kernel takes to wake a thread on another cpu: no receiver that sleeps hears of a message earlier.
Result<void> wake_sleeper(PerfResult& result) {
  const PerfArguments& a = result.arguments;
  const auto [first, second] = two_cpus(a);
  if (first == second) return fail(Status::kUnsupported, "verbena-perf", 0, "a wake-up needs two cpus");
  Sleeper sleeper;
  VERBENA_TRY(sleeper.start(second));
  VERBENA_TRY(host::pin_this_thread(first));
  const std::uint64_t silence = ticks_in(std::chrono::microseconds{a.idle_us});
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < a.warm_up + a.iterations; ++i) {
    for (const Deadline end = Deadline::at_ticks(ticks_now() + silence); !end.passed();) relax();
    const std::uint64_t start = ticks_now();
    const Status status = sleeper.wake(Deadline::after(std::chrono::milliseconds{a.where.timeout_ms}));
    const std::uint64_t ticks = ticks_now() - start;
    if (status != Status::kOk)
      return fail(status, "verbena-perf", 0, "the thread on cpu {} did not wake after {} wake-ups", second, i);
    if (i < a.warm_up) continue;
    // As if of two ways: one way is what the other tests of that pace show.
    result.ticks.record(ticks * 2 * kPerfTick);
    sum += ticks * 2;
  }
  result.operations = a.iterations;
  result.seconds = static_cast<double>(sum) / ticks_per_us() / 1e6;
  result.cpus = {first, second};
  result.path =
      fmt::format("a thread in epoll_wait on cpu {}, woken from cpu {} after {} us", second, first, a.idle_us);
  return {};
}

}  // namespace

Result<void> measure_bare(PerfResult& result) {
  result.nic = "none";
  switch (result.arguments.test) {
    case PerfTest::kLine: return bounce_line(result);
    case PerfTest::kWake: return wake_sleeper(result);
    default: return copy_blocks(result);
  }
}

}  // namespace verbena::programs
