#include "base/clock.hpp"

#include "base/cancellation.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/ticks.hpp"

#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <span>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace verbena {

constinit std::atomic<bool> detail::counter_serves{false};

// --- following the counter

void CounterWatch::begin(const Reading& reading, double ticks_per_us) noexcept {
  ticks_per_us_ = ticks_per_us;
  counter_.store(reading.counter, std::memory_order_relaxed);
  ns_.store(reading.ns, std::memory_order_relaxed);
  interval_.store(static_cast<std::uint64_t>(kIntervalUs * ticks_per_us), std::memory_order_relaxed);
}

bool CounterWatch::agrees(const Reading& reading) noexcept {
  // Signed, since either clock may be behind its last reading.
  const auto ticks = static_cast<std::int64_t>(reading.counter - counter_.load(std::memory_order_relaxed));
  const auto passed_ns = static_cast<std::int64_t>(reading.ns - ns_.load(std::memory_order_relaxed));
  const double by_counter_ns = static_cast<double>(ticks) * 1e3 / ticks_per_us_;
  const double tolerance_ns = static_cast<double>(kToleranceNs) +
                              std::abs(static_cast<double>(passed_ns)) / static_cast<double>(kTolerancePart);
  if (std::abs(by_counter_ns - static_cast<double>(passed_ns)) > tolerance_ns) return false;
  counter_.store(reading.counter, std::memory_order_relaxed);
  ns_.store(reading.ns, std::memory_order_relaxed);
  return true;
}

std::uint64_t CounterWatch::ticks_at(std::uint64_t ns) const noexcept {
  const std::uint64_t from = ns_.load(std::memory_order_relaxed);
  const double passed_us = ns > from ? static_cast<double>(ns - from) * 1e-3 : 0.0;
  return counter_.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(passed_us * ticks_per_us_);
}

namespace {

// --- the machine's clocks

constexpr double kNsPerUs = 1e3;
constexpr const char* kByCounter = "the processor's counter, which is invariant and synchronized";
constexpr const char* kGivenUp =
    "CLOCK_MONOTONIC (slower): the processor's counter has jumped or stopped, as in a virtual machine that was moved";

/// The verdict on the counter at the first use of the clock.
struct Decision {
  bool counter_serves;
  const char* description;
  double ticks_per_us;
};

constinit CounterWatch counter_watch;

[[nodiscard]] std::uint64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

/// The tightest of three readings of (clock, counter), and how long it took. An interrupt between clock and counter
/// would look like a difference between them.
struct Pair {
  CounterWatch::Reading at;
  std::uint64_t width;
};
[[nodiscard]] Pair read_both() noexcept {
  Pair best{.at = {0, 0}, .width = ~std::uint64_t{0}};
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t before = counter_now();
    const std::uint64_t ns = monotonic_ns();
    const std::uint64_t width = counter_now() - before;
    if (width < best.width) best = {.at = {.counter = before + width / 2, .ns = ns}, .width = width};
  }
  return best;
}

#if defined(__x86_64__)
/// The processor says whether the counter has a constant rate. The kernel compares the counters of all processors while
/// it runs, and says whether they agree.
[[nodiscard]] const char* flaw_of_counter() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kPowerLeaf = 0x8000'0007, kInvariant = 1U << 8;
  if (__get_cpuid(kPowerLeaf, &a, &b, &c, &d) == 0 || (d & kInvariant) == 0)
    return "CLOCK_MONOTONIC (slower): this processor's time-stamp counter is not invariant";
  const CancellationHeld held;
  std::array<char, 256> text{' '};  // Puts a blank before and after each name.
  const auto file = File::open("/sys/devices/system/clocksource/clocksource0/available_clocksource", File::How::kRead);
  const std::size_t length = file ? file->read(0, std::as_writable_bytes(std::span(text)).subspan(1)).value_or(0) : 0;
  if (length == 0) return "CLOCK_MONOTONIC (slower): /sys does not tell whether the time-stamp counter is synchronized";
  if (std::string_view(text.data(), 1 + length).contains(" tsc ")) return nullptr;
  return "CLOCK_MONOTONIC (slower): the kernel found the time-stamp counter unstable";
}

// 2 ms at 50 ns of uncertainty is 25 ppm.
[[nodiscard]] double measure_ticks_per_us() noexcept {
  const CounterWatch::Reading begin = read_both().at;
  while (monotonic_ns() - begin.ns < 2'000'000) {}
  const CounterWatch::Reading end = read_both().at;
  return static_cast<double>(end.counter - begin.counter) * kNsPerUs / static_cast<double>(end.ns - begin.ns);
}
#elif defined(__aarch64__)
// The architecture guarantees an invariant and synchronized counter (Arm ARM, D12.1.2).
[[nodiscard]] const char* flaw_of_counter() noexcept { return nullptr; }
[[nodiscard]] double measure_ticks_per_us() noexcept {
  std::uint64_t per_second = 0;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(per_second));
  return static_cast<double>(per_second) * 1e-6;
}
#else
[[nodiscard]] const char* flaw_of_counter() noexcept {
  return "CLOCK_MONOTONIC (slower): Verbena knows no counter of this processor";
}
[[nodiscard]] double measure_ticks_per_us() noexcept { return kNsPerUs; }
#endif

[[nodiscard]] Decision decide() noexcept {
  const char* const wanted = std::getenv("VERBENA_CLOCK");
  const bool is_forbidden = wanted != nullptr && std::string_view(wanted) == "monotonic";
  const char* const flaw =
      is_forbidden ? "CLOCK_MONOTONIC (slower), as VERBENA_CLOCK in the environment asks" : flaw_of_counter();
  if (flaw != nullptr) return {.counter_serves = false, .description = flaw, .ticks_per_us = kNsPerUs};
  const double ticks_per_us = measure_ticks_per_us();
  counter_watch.begin(read_both().at, ticks_per_us);
  detail::counter_serves.store(true, std::memory_order_release);
  return {.counter_serves = true, .description = kByCounter, .ticks_per_us = ticks_per_us};
}

[[nodiscard]] const Decision& decision() noexcept {
  static const Decision decided = decide();
  return decided;
}

}  // namespace

// When the counter was in use at first and has been given up, the time goes on from the watch's last reading.
std::uint64_t detail::ticks_without_counter() noexcept {
  const Decision& decided = decision();
  if (!decided.counter_serves) return monotonic_ns();
  return counter_serves.load(std::memory_order_acquire) ? counter_now() : counter_watch.ticks_at(monotonic_ns());
}

void look_at_clock(std::uint64_t now) noexcept {
  if (!detail::counter_serves.load(std::memory_order_relaxed) || !counter_watch.is_due(now)) return;
  static constinit std::atomic_flag is_comparing;
  if (is_comparing.test_and_set(std::memory_order_acquire)) return;
  const Pair both = read_both();
  // A wide reading says nothing: the thread lost its core during each of the three.
  const bool is_sharp = static_cast<double>(both.width) < decision().ticks_per_us * 1e-3 * CounterWatch::kToleranceNs;
  if (is_sharp && detail::counter_serves.load(std::memory_order_relaxed) && !counter_watch.agrees(both.at)) {
    detail::counter_serves.store(false, std::memory_order_release);
    log(VERBENA_LOG_WARNING, "the clock is {}", kGivenUp);
  }
  is_comparing.clear(std::memory_order_release);
}

double ticks_per_us() noexcept { return decision().ticks_per_us; }

const char* clock_description() noexcept {
  const Decision& decided = decision();
  const bool is_given_up = decided.counter_serves && !detail::counter_serves.load(std::memory_order_relaxed);
  return is_given_up ? kGivenUp : decided.description;
}

std::uint64_t processor_ticks() noexcept {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return ticks_in(std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec));
}

std::uint64_t unix_time_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace verbena
