// The tests of verbena-perf that need no peer: what the machine itself can do.
#include "base/error.hpp"
#include "host/topology.hpp"
#include "programs/line.hpp"
#include "programs/perf_connection.hpp"
#include "programs/perf_measure.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::programs {
namespace {

/// Of all batches together; also what another process may take from it.
constexpr std::chrono::seconds kLongestLine{30};

Result<void> bounce_line(PerfResult& result) {
  const PerfArguments& a = result.arguments;
  const std::vector<unsigned> cpus = allowed_cpus();
  const unsigned first = a.where.cpu.value_or(cpus.front());
  const unsigned second = cpus.front() == first ? cpus.back() : cpus.front();
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
  result.memory_bytes_per_s = measure_memcpy(bytes, std::clamp<std::uint64_t>(kMemoryBytes / bytes, 2, 1 << 16),
                                             std::chrono::milliseconds{200});
  return {};
}

}  // namespace

Result<void> measure_bare(PerfResult& result) {
  result.nic = "none";
  return result.arguments.test == PerfTest::kLine ? bounce_line(result) : copy_blocks(result);
}

}  // namespace verbena::programs
