#include "programs/perf_end.hpp"

#include "base/error.hpp"
#include "host/thread.hpp"
#include "host/topology.hpp"
#include "programs/line.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace verbena::programs {
namespace {

constexpr std::chrono::milliseconds kByeTimeout{1000};

/// Threads that are joined when this ends.
class Threads {
 public:
  explicit Threads(std::size_t most) { threads_.reserve(most); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }
  void add(std::thread thread) { threads_.push_back(std::move(thread)); }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace

std::vector<unsigned> perf_cpus(std::optional<unsigned> first, unsigned threads) {
  if (!first) return {};
  std::vector<unsigned> allowed = allowed_cpus();
  // One that is not allowed is for the thread to complain of.
  if (const auto at = std::ranges::find(allowed, *first); at == allowed.end()) {
    allowed.insert(allowed.begin(), *first);
  } else {
    std::ranges::rotate(allowed, at);
  }
  std::vector<unsigned> cpus;
  cpus.reserve(threads);
  for (unsigned i = 0; i < threads; ++i) cpus.push_back(allowed[i % allowed.size()]);
  return cpus;
}

// --- setup

PerfEnd::PerfEnd(PerfDevice& device, const perf_wire::RunHello& run, PerfRole role, std::chrono::milliseconds timeout)
    : device_(device), run_(run), role_(role), patience_(role, timeout) {}

Result<std::unique_ptr<PerfEnd>> PerfEnd::create(PerfDevice& device, const perf_wire::RunHello& run, PerfRole role,
                                                 std::chrono::milliseconds timeout) {
  std::unique_ptr<PerfEnd> made(new PerfEnd(device, run, role, timeout));
  VERBENA_TRY(made->create());
  return made;
}

Result<void> PerfEnd::create() {
  // Its thread has nothing to do while the lanes work.
  VERBENA_ASSIGN(
      loop_, engine::CompletionLoop::create(device_.nic(), {.max_connections = 1, .wait = engine::WaitPolicy::kEvent}));
  VERBENA_ASSIGN(control_, message::Channel::create(*loop_, device_.pd.get(), {.eager_bytes = 64}, *this));
  for (unsigned i = 0; i < run_.threads; ++i) {
    VERBENA_ASSIGN(auto lane, PerfLane::create(device_, run_, role_, patience_));
    lanes_.push_back(std::move(lane));
  }
  return {};
}

Result<void> PerfEnd::dial(std::uint16_t port) {
  VERBENA_ASSIGN(const link::Endpoint local, control_->local_endpoint(std::as_bytes(std::span(&run_, 1))));
  VERBENA_ASSIGN(auto control, device_.fabric->dial(port, local, patience_.now()));
  VERBENA_TRY(control_->connect(local, control.remote(), patience_.now(), control.how()));
  VERBENA_ASSIGN(link::Lifeline lifeline, control.finish(patience_.now()));
  control_->keep(std::move(lifeline));
  for (std::uint32_t i = 0; i < perf_wire::connections_of(run_); ++i)
    VERBENA_TRY(dial_one(port, static_cast<std::uint16_t>(i)));
  return {};
}

Result<link::Endpoint> PerfEnd::endpoint_of(std::uint16_t index) {
  return connection(index).local_endpoint(index, lanes_[index / run_.connections]->shared());
}

Result<void> PerfEnd::dial_one(std::uint16_t port, std::uint16_t index) {
  PerfConnection& one = connection(index);
  VERBENA_ASSIGN(const link::Endpoint local, endpoint_of(index));
  VERBENA_ASSIGN(auto dialed, device_.fabric->dial(port, local, patience_.now()));
  VERBENA_TRY(lanes_[index / run_.connections]->grant(dialed.remote()));
  VERBENA_TRY(one.connect(local, dialed.remote(), patience_.now(), dialed.how()));
  VERBENA_ASSIGN(link::Lifeline lifeline, dialed.finish(patience_.now()));
  return one.open(dialed.remote(), std::move(lifeline), patience_.now());
}

Result<void> PerfEnd::welcome(link::Incoming& control, link::Listener& listener) {
  VERBENA_ASSIGN(const link::Endpoint local, control_->local_endpoint(std::as_bytes(std::span(&run_, 1))));
  VERBENA_TRY(control_->connect(local, control.remote(), patience_.now(), control.how()));
  VERBENA_TRY(control.answer(local, patience_.now()));
  VERBENA_ASSIGN(link::Lifeline lifeline, control.finish(patience_.now()));
  control_->keep(std::move(lifeline));
  for (std::uint32_t i = 0; i < perf_wire::connections_of(run_); ++i) VERBENA_TRY(welcome_one(listener));
  return {};
}

Result<void> PerfEnd::welcome_one(link::Listener& listener) {
  std::uint16_t index = 0;
  VERBENA_ASSIGN(auto incoming, next_of_run(listener, index));
  PerfConnection& one = connection(index);
  VERBENA_ASSIGN(const link::Endpoint local, endpoint_of(index));
  VERBENA_TRY(lanes_[index / run_.connections]->grant(incoming.remote()));
  VERBENA_TRY(one.connect(local, incoming.remote(), patience_.now(), incoming.how()));
  VERBENA_TRY(incoming.answer(local, patience_.now()));
  VERBENA_ASSIGN(link::Lifeline lifeline, incoming.finish(patience_.now()));
  return one.open(incoming.remote(), std::move(lifeline), patience_.now());
}

Result<link::Incoming> PerfEnd::next_of_run(link::Listener& listener, std::uint16_t& index) {
  const Deadline deadline = patience_.now();
  for (;;) {
    VERBENA_ASSIGN(link::Incoming incoming, listener.next(deadline));
    const auto is = PerfConnection::index_in(run_, incoming.remote());
    if (is && !connection(*is).connected()) {
      index = *is;
      return incoming;
    }
    incoming.reject(Status::kBusy, "another run is going on: try again when it has ended");
  }
}

// --- the end of a run

Status PerfEnd::send_bye(Deadline deadline) noexcept {
  for (;;) {
    const Status status = control_->send(std::as_bytes(std::span("b", 1)));
    if (status != Status::kAgain) return status;
    if (loop_->wait(deadline) == 0 && deadline.passed()) return Status::kTimedOut;
  }
}

void PerfEnd::say_bye() noexcept {
  const Deadline deadline = Deadline::after(kByeTimeout);
  if (send_bye(deadline) != Status::kOk) return;
  // Everything is measured: a server that is gone before it answers has nothing to say any more.
  (void)loop_->wait_until([&] { return bye_ || failure_ != Status::kOk; }, deadline);
}

std::uint64_t PerfEnd::heard() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& lane : lanes_) sum += lane->heard();
  return sum;
}

Status PerfEnd::await_bye() noexcept {
  // A client that reads and writes says nothing meanwhile, and may take as long as it wants to.
  const bool is_heard = facts_of(run_.test).keeps_server_busy;
  const auto is_over = [&] {
    return bye_ || failure_ != Status::kOk || lane_failure_.load(std::memory_order_acquire) != Status::kOk;
  };
  for (std::uint64_t before = heard(); !is_over() && !patience_.ended();) {
    (void)loop_->wait_until(is_over, patience_.now());
    const std::uint64_t now = heard();
    if (is_heard && now == before) break;
    before = now;
  }
  const Status of_lane = lane_failure_.load(std::memory_order_acquire);
  if (of_lane != Status::kOk && !bye_) return of_lane;
  if (failure_ != Status::kOk) return failure_;
  return bye_ ? Status::kOk : Status::kTimedOut;
}

void PerfEnd::serve_lane(PerfLane& lane, std::optional<unsigned> cpu) noexcept {
  Status status = Status::kOk;
  if (cpu && !host::pin_this_thread(*cpu)) status = Status::kBadArgument;
  if (status == Status::kOk) status = lane.serve(stop_);
  Status none = Status::kOk;
  if (status != Status::kOk) lane_failure_.compare_exchange_strong(none, status, std::memory_order_acq_rel);
  loop_->wake();
}

Result<void> PerfEnd::serve(std::span<const unsigned> cpus) {
  Status status = Status::kOk;
  {
    Threads threads(lanes_.size());
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      auto started = host::start_thread(
          "perf-serve", [this, lane = lanes_[i].get(), cpu = cpus.empty() ? std::nullopt : std::optional(cpus[i])] {
            serve_lane(*lane, cpu);
          });
      if (!started) {
        stop_lanes();
        return std::unexpected(started.error());
      }
      threads.add(std::move(*started));
    }
    status = await_bye();
    stop_lanes();
  }
  if (status == Status::kOk) status = send_bye(patience_.now());
  if (status == Status::kOk) return {};
  return fail(status, "verbena-perf", 0, "a run of {} with {} B broke", to_string(run_.test), run_.bytes);
}

void PerfEnd::stop_lanes() noexcept {
  stop_.store(true, std::memory_order_release);
  for (const auto& lane : lanes_) lane->wake();
}

}  // namespace verbena::programs
