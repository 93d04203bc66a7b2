#include "programs/line.hpp"

#include "base/error.hpp"
#include "base/relax.hpp"
#include "host/topology.hpp"

#include <verbena/deadline.hpp>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

namespace verbena::programs {
namespace {

// 128: many processors fetch the neighbouring cache line along with one.
struct SharedLine {
  alignas(128) std::atomic<std::uint64_t> turn{0};
  alignas(128) std::atomic<bool> stop{false};
};

/// Waits until the cache line holds `wanted`. False: the other side has stopped, or the deadline has passed.
bool await(const SharedLine& line, std::uint64_t wanted, Deadline deadline) noexcept {
  constexpr std::uint32_t kLookEvery = 1024;  // Rare enough that the look does not show in the figure.
  for (std::uint32_t polls = 1;; ++polls) {
    if (line.turn.load(std::memory_order_acquire) == wanted) return true;
    relax();
    if (polls % kLookEvery != 0) continue;
    if (line.stop.load(std::memory_order_relaxed) || deadline.passed()) return false;
  }
}

/// The answering side: the odd turns are its own.
void answer(SharedLine& line, Deadline deadline) noexcept {
  for (std::uint64_t turn = 1; await(line, turn, deadline); turn += 2) {
    line.turn.store(turn + 1, std::memory_order_release);
  }
}

/// The measuring side.
std::vector<double> ask(SharedLine& line, std::chrono::milliseconds span, std::size_t most, Deadline deadline) {
  std::vector<double> one_way_ns;
  one_way_ns.reserve(most);
  const Deadline end = Deadline::after(span);
  std::uint64_t turn = 0;
  while (one_way_ns.size() < most && (one_way_ns.size() < 2 || !end.passed())) {
    const std::uint64_t begin = ticks_now();
    for (std::size_t i = 0; i < kLineTurnsPerBatch; ++i) {
      line.turn.store(turn + 1, std::memory_order_release);
      if (!await(line, turn + 2, deadline)) return one_way_ns;
      turn += 2;
    }
    one_way_ns.push_back(static_cast<double>(ticks_now() - begin) / ticks_per_us() * 1e3 / (2.0 * kLineTurnsPerBatch));
  }
  return one_way_ns;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::vector<unsigned> allowed_cpus() {
  std::vector<unsigned> cpus;
  if (const auto topology = host::Topology::read()) {
    for (const host::Core& core : topology->cores()) cpus.push_back(core.cpu);
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set) && std::ranges::find(cpus, cpu) == cpus.end()) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

Result<Line> measure_line(unsigned first_cpu, unsigned second_cpu, std::chrono::milliseconds span,
                          std::size_t most_batches) {
  if (first_cpu == second_cpu) {
    return fail(Status::kUnsupported, "measure_line", 0,
                "the cache-line ping-pong needs two cpus, and this process has one; allow it a second with taskset");
  }
  choose_looks();
  SharedLine line;
  const Deadline deadline = Deadline::after(span + std::chrono::seconds{2});
  std::vector<double> batches;
  Result<void> pinned[2];
  {
    const auto side = [&](std::size_t index, unsigned cpu, auto&& play) {
      pinned[index] = host::pin_this_thread(cpu);
      if (pinned[index]) play();
      line.stop.store(true, std::memory_order_relaxed);
    };
    const std::jthread second([&] { side(1, second_cpu, [&] { answer(line, deadline); }); });
    const std::jthread first([&] { side(0, first_cpu, [&] { batches = ask(line, span, most_batches, deadline); }); });
  }
  for (const auto& result : pinned) VERBENA_TRY(Result<void>(result));
  if (batches.empty()) {
    return fail(Status::kTimedOut, "measure_line", 0,
                "the cache-line ping-pong did not get two cpus at once within its time; try on an idler machine");
  }
  return Line{first_cpu, second_cpu, median(batches), std::move(batches)};
}

double measure_memcpy(std::size_t block_bytes, CopyBlocks blocks, std::chrono::milliseconds span) {
  const std::size_t sources = std::max<std::size_t>(blocks.sources, 1);
  const std::size_t targets = std::max<std::size_t>(blocks.targets, 1);
  const std::vector<std::byte> source(block_bytes * sources, std::byte{1});
  std::vector<std::byte> target(block_bytes * targets, std::byte{2});
  std::vector<double> rates;
  const Deadline end = Deadline::after(span);
  constexpr std::size_t kMostSamples = 100'000;
  for (std::size_t i = 0; rates.size() < kMostSamples && (rates.size() < 3 || !end.passed()); ++i) {
    const std::uint64_t begin = ticks_now();
    std::memcpy(target.data() + i % targets * block_bytes, source.data() + i % sources * block_bytes, block_bytes);
    asm volatile("" : : "r"(target.data()) : "memory");  // Keeps the compiler from removing the copy.
    const double us = static_cast<double>(std::max<std::uint64_t>(1, ticks_now() - begin)) / ticks_per_us();
    rates.push_back(static_cast<double>(block_bytes) / us * 1e6);
  }
  return median(std::move(rates));
}

}  // namespace verbena::programs
