// The tests of verbena-perf without a peer: what the machine itself can do.
#include "programs/line.hpp"
#include "programs/perf.hpp"

#include "base/error.hpp"
#include "base/fd.hpp"
#include "base/relax.hpp"
#include "base/ticks.hpp"
#include "host/topology.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

namespace verbena::programs {
namespace {

/// For all batches together, including time that another process takes from it.
constexpr std::chrono::seconds kLongestLine{30};

/// The requested cpu and another one; the same one twice if there is no other.
std::pair<unsigned, unsigned> two_cpus(const PerfArguments& a) {
  const std::vector<unsigned> cpus = allowed_cpus();
  const unsigned first = a.cpu.value_or(cpus.front());
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
    const double round_trip_ns = line.batches_ns[i] * 2;
    result.ticks.record(static_cast<std::uint64_t>(round_trip_ns * ticks_per_us() / 1e3 * kPerfTick));
    result.seconds += round_trip_ns * kLineTurnsPerBatch * 1e-9;
  }
  result.operations = (line.batches_ns.size() - warm_up) * kLineTurnsPerBatch;
  result.cpus = {first, second};
  result.path = fmt::format("one cache line between cpu {} and cpu {}", first, second);
  return {};
}

/// A small copy takes less than a reading of the clock, so one reading covers a group of copies.
Result<void> copy_blocks(PerfResult& result) {
  constexpr std::uint64_t kGroupBytes = 4096;
  constexpr std::uint64_t kMemoryBytes = std::uint64_t{256} << 20;
  const PerfArguments& a = result.arguments;
  if (a.cpu) VERBENA_TRY(host::pin_this_thread(*a.cpu));
  const std::size_t bytes = result.bytes;
  std::vector<std::byte> source(bytes, std::byte{1}), target(bytes, std::byte{2});
  const auto copy = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      std::memcpy(target.data(), source.data(), bytes);
      asm volatile("" : : "r"(target.data()) : "memory");  // Keeps the compiler from removing the copy.
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
  if (a.cpu) result.cpus = {*a.cpu};
  result.path = "the same block again and again";
  const std::size_t blocks = std::clamp<std::uint64_t>(kMemoryBytes / bytes, 2, 1 << 16);
  result.memory_bytes_per_s =
      measure_memcpy(bytes, {.sources = blocks, .targets = blocks}, std::chrono::milliseconds{200});
  return {};
}

/// The kernel's time to wake a thread on another cpu: a sleeping receiver cannot learn of a message earlier.
Result<void> wake_sleeper(PerfResult& result) {
  const PerfArguments& a = result.arguments;
  const auto [first, second] = two_cpus(a);
  if (first == second) return fail(Status::kUnsupported, "verbena-perf", 0, "a wake-up needs two cpus");
  VERBENA_ASSIGN(const Fd event, make_eventfd());
  alignas(128) std::atomic<std::uint64_t> woken{0};
  const std::jthread sleeper([&, cpu = second](const std::stop_token& stop) {
    const std::stop_callback end(stop, [&] { signal_eventfd(event.get()); });
    const bool is_pinned = host::pin_this_thread(cpu).has_value();
    // No deadline: the end signals too.
    while (is_pinned && wait_readable(event.get(), Deadline::never()) && !stop.stop_requested()) {
      if (drain_eventfd(event.get())) woken.fetch_add(1, std::memory_order_release);
    }
  });
  VERBENA_TRY(host::pin_this_thread(first));
  const std::uint64_t silence = ticks_in(std::chrono::microseconds{a.idle_us});
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < a.warm_up + a.iterations; ++i) {
    for (const Deadline quiet = Deadline::at_ticks(ticks_now() + silence); !quiet.passed();) relax();
    const Deadline deadline = Deadline::after(a.where.timeout);
    const std::uint64_t start = ticks_now();
    signal_eventfd(event.get());
    while (woken.load(std::memory_order_acquire) == i && !deadline.passed()) relax();
    const std::uint64_t ticks = ticks_now() - start;
    if (woken.load(std::memory_order_acquire) == i)
      return fail(Status::kTimedOut, "verbena-perf", 0, "the thread on cpu {} did not wake after {} wake-ups", second,
                  i);
    if (i < a.warm_up) continue;
    // Counts as two ways: the other tests of this pace show one way.
    result.ticks.record(ticks * 2 * kPerfTick);
    sum += ticks * 2;
  }
  result.operations = a.iterations;
  result.seconds = static_cast<double>(sum) / ticks_per_us() / 1e6;
  result.cpus = {first, second};
  result.path = fmt::format("a thread asleep on cpu {}, woken from cpu {} after {} us", second, first, a.idle_us);
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
