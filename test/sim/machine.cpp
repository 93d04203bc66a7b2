// What src has of its own of a machine, simulated: the clock, random words, threads, waiting for a word, and cores.
#include "simulated_threads.hpp"
#include "tasks.hpp"

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/futex.hpp"
#include "base/random.hpp"
#include "base/relax.hpp"
#include "base/serving.hpp"
#include "base/simulation.hpp"
#include "host/memory_limits.hpp"
#include "host/placement.hpp"
#include "host/prefault.hpp"
#include "host/topology.hpp"

#include <verbena/deadline.hpp>

#include <array>
#include <cstring>

namespace verbena {

namespace {

using sim::Tasks;

constexpr double kTicksPerUs = 1000;
/// What reading the clock takes. Loops that do nothing else come to their deadline by it.
constexpr sim::Nanoseconds kReading = 10;
constexpr std::uint64_t kForEver = ~std::uint64_t{0};

[[nodiscard]] std::uint64_t end_of(Deadline deadline) noexcept {
  return deadline.is_never() ? kForEver : deadline.ticks();
}

}  // namespace

// --- clock: a tick is a nanosecond of the world ------------------------------------------------------------------

constinit std::atomic<bool> detail::counter_serves{false};

std::uint64_t detail::ticks_without_counter() noexcept {
  VERBENA_CHECK(Tasks::current() != nullptr);
  if (Tasks::is_inside()) Tasks::current()->spend(kReading);
  return Tasks::current()->now();
}
double ticks_per_us() noexcept { return kTicksPerUs; }
const char* clock_description() noexcept { return "the processor's counter, which is simulated"; }
void look_at_clock(std::uint64_t) noexcept {}
std::uint64_t processor_ticks() noexcept { return Tasks::current()->now(); }
std::uint64_t unix_time_ns() noexcept { return Tasks::current()->now(); }

// --- looks: a simulated thread that looks again lets the others run

const Looks& choose_looks() noexcept {
  static constexpr Looks kOne;
  return kOne;
}

// --- random words -------------------------------------------------------------------------------------------------

Result<void> fill_random(std::span<std::byte> bytes) noexcept {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_word());
  return {};
}
std::uint64_t random_word() noexcept {
  VERBENA_CHECK(Tasks::current() != nullptr);
  const std::uint64_t word = Tasks::current()->world().random().next();
  return word != 0 ? word : 1;
}
void wipe(std::span<std::byte> bytes) noexcept { explicit_bzero(bytes.data(), bytes.size()); }

// --- waiting for a word -------------------------------------------------------------------------------------------

bool changes_soon(const std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept {
  return word.load(std::memory_order_acquire) != value;
}
Status wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t value, Deadline deadline) noexcept {
  return sleep_while(word, value, deadline);
}
Status sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value, Deadline deadline) noexcept {
  VERBENA_CHECK(Tasks::is_inside());
  Tasks& tasks = *Tasks::current();
  const auto is_changed = [&] { return word.load(std::memory_order_acquire) != value; };
  if (Serving::is_due()) return Serving::wait_until(is_changed, deadline);
  while (!is_changed()) {
    if (deadline.passed()) return Status::kTimedOut;
    (void)tasks.sleep(&word, end_of(deadline));
  }
  return Status::kOk;
}

void wake_waiters(const std::atomic<std::uint32_t>& word) noexcept {
  if (Tasks::current() != nullptr) Tasks::current()->wake(&word);
}

// --- threads ------------------------------------------------------------------------------------------------------

void Mutex::lock() noexcept {
  while (!try_lock()) {
    VERBENA_CHECK(Tasks::is_inside());  // Nobody could give it back.
    (void)Tasks::current()->sleep(this, kForEver);
  }
}
bool Mutex::try_lock() noexcept { return !std::exchange(is_locked_, true); }
void Mutex::unlock() noexcept {
  is_locked_ = false;
  if (Tasks::current() != nullptr) Tasks::current()->wake(this);
}

std::uint64_t Condition::end_of(std::chrono::nanoseconds time) noexcept {
  return Tasks::current()->now() + static_cast<std::uint64_t>(time.count());
}
void Condition::wait(std::unique_lock<Mutex>& lock) noexcept { (void)wait_until(lock, kForEver); }
// Between the two nobody runs: who notifies finds this task asleep.
bool Condition::wait_until(std::unique_lock<Mutex>& lock, std::uint64_t until) noexcept {
  lock.unlock();
  const bool is_woken = Tasks::current()->sleep(this, until);
  lock.lock();
  return is_woken;
}
void Condition::notify_all() noexcept { Tasks::current()->wake(this); }

Thread::Thread(std::function<void()> body, int) {
  VERBENA_CHECK(Tasks::is_inside());
  Tasks& tasks = *Tasks::current();
  task_ = tasks.start(tasks.process(), fmt::format("thread {}", tasks.count()), std::move(body));
}
void Thread::join() noexcept { Tasks::current()->join(std::exchange(task_, kNone)); }

std::uintptr_t this_thread() noexcept {
  return Tasks::is_inside() ? Tasks::current()->number() + 1 : ~std::uintptr_t{0};
}
void*& word_of_thread() noexcept {
  static void* outside = nullptr;
  return Tasks::is_inside() ? Tasks::current()->word() : outside;
}
void yield_thread() noexcept {
  if (Tasks::is_inside()) Tasks::current()->pause();
}

// --- cores and memory: the same wherever a simulation runs. Threads have no core, and wait as the seed says ------

Result<host::Topology> host::Topology::read(const KernelFiles&) {
  static constexpr std::array kCpus{0U, 1U};
  return of(nullptr, kCpus, std::nullopt, false);
}
Result<void> host::pin_this_thread(unsigned) { return {}; }
void host::name_this_thread(std::string_view) noexcept {}
void host::block_signals_in_this_thread() noexcept {}

std::optional<host::Headroom> host::memory_headroom(std::optional<unsigned>, const KernelFiles&) {
  return std::nullopt;  // Nobody knows a limit.
}
int host::prefault(std::span<std::byte>, int, std::size_t, unsigned) noexcept {
  return 0;  // A run touches little of its memory: each page comes when it is touched.
}

Result<host::HeldPlacement> host::claim_for_thread(const char*) {
  VERBENA_CHECK(Tasks::is_inside());
  const bool is_busy = Tasks::current()->world().random().one_in(4);
  HeldPlacement held;
  held.plan.pollers.push_back({.wait = is_busy ? WaitPolicy::kAdaptive : WaitPolicy::kEvent});
  return held;
}

// --- the places of src/base/simulation.hpp ------------------------------------------------------------------------

void simulation::step() noexcept {
  if (Tasks::is_inside()) Tasks::current()->pause_between_stores();
}
void*& simulation::detail::of_process(const void* key, void (*remove)(void*)) {
  VERBENA_CHECK(Tasks::current() != nullptr);
  return Tasks::current()->object_of_process(key, remove);
}

}  // namespace verbena
