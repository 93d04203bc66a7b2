#include "c/runtime.hpp"

#include "base/error.hpp"
#include "c/conn.hpp"
#include "host/topology.hpp"

#include <utility>

namespace verbena::c {

Result<std::shared_ptr<Runtime>> Runtime::open(const RuntimeOptions& options, Driver driver) {
  std::shared_ptr<Runtime> runtime(new Runtime(driver));
  VERBENA_ASSIGN(runtime->fabric_, link::Fabric::open(options.fabric, options.deadline));
  nic::Nic& nic = runtime->fabric_->nic();
  VERBENA_ASSIGN(ibv_pd * pd, nic.alloc_pd());
  runtime->pd_ = nic::Pd(nic, pd);
  runtime->registry_.emplace(nic, pd);
  const std::uint64_t entries =
      std::uint64_t{message::completions_needed(Conn::channel_options())} * options.max_connections;
  if (entries > nic.limits().max_cqe)
    return fail(Status::kLimit, "rdmaServerStart", 0,
                "{} connections need {} entries of a completion queue, and {} has {}: lower max_connections",
                options.max_connections, entries, nic.name(), nic.limits().max_cqe);
  engine::PollerOptions poller{.name = "verbena-rdma", .cpu = {}, .loop = {}};
  poller.loop.max_connections = options.max_connections;
  poller.loop.cqe = static_cast<std::uint32_t>(entries);
  if (driver == Driver::kThread) {
    VERBENA_ASSIGN(const host::Topology topology, host::Topology::read());
    const host::Locality device = nic.kind() == nic::Kind::kSoft ? host::Locality{} : topology.locality_of(nic.name());
    VERBENA_ASSIGN(runtime->placement_, host::claim_placement(topology, {.pollers = 1, .device = device}));
    const host::PlacedPoller& place = runtime->placement_.plan.pollers.front();
    if (place.core) poller.cpu = place.core->cpu;
    poller.loop.wait = place.wait;
  }
  VERBENA_ASSIGN(runtime->poller_, engine::Poller::create(nic, std::move(poller), runtime.get()));
  runtime->conns_.reserve(options.max_connections);
  runtime->arrivals_.reserve(options.max_connections);
  runtime->taken_.reserve(options.max_connections);
  return runtime;
}

void Runtime::stop() noexcept {
  if (poller_) poller_->stop();
  is_stopped_ = true;
}

void Runtime::adopt(RdmaConn& conn) {
  {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(&conn);
  }
  loop().wake();
}

void Runtime::adopt_here(RdmaConn& conn) {
  conn.begin();
  conns_.push_back(&conn);
}

void Runtime::progress() noexcept {
  for (RdmaConn* conn : conns_) conn->progress();
}

Deadline Runtime::before_wait() noexcept {
  Deadline next = Deadline::never();
  for (const RdmaConn* conn : conns_) next = earlier(next, conn->look_again());
  return next;
}

void Runtime::after_wait(unsigned /*handled*/) noexcept {
  take_arrivals();
  progress();
  for (std::size_t i = 0; i < conns_.size(); ++i) conns_[i]->call_back();
  remove_ended();
}

void Runtime::take_arrivals() noexcept {
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(arrivals_);
  }
  for (RdmaConn* conn : taken_) {
    conns_.push_back(conn);
    conn->begin();
  }
  taken_.clear();
}

void Runtime::remove_ended() noexcept {
  for (std::size_t i = 0; i < conns_.size();) {
    RdmaConn* const conn = conns_[i];
    if (!conn->is_over()) {
      ++i;
      continue;
    }
    conns_[i] = conns_.back();
    conns_.pop_back();
    const bool is_kept = conn->is_kept();
    conn->detach();  // A kept one may be gone after this.
    if (!is_kept) delete conn;
  }
}

void Runtime::before_end() noexcept {
  take_arrivals();
  for (RdmaConn* conn : conns_) conn->end_with_runtime();
  // Bounded by their linger.
  const auto is_over = [this] {
    progress();
    return std::ranges::all_of(conns_, [](const RdmaConn* conn) { return conn->is_quiet(); });
  };
  while (!is_over()) (void)loop().wait(before_wait());
  // Callbacks find their connections dead: nothing waits.
  for (RdmaConn* conn : conns_) conn->call_back();
  for (RdmaConn* conn : std::exchange(conns_, {})) {
    const bool is_kept = conn->is_kept();
    conn->detach();
    if (!is_kept) delete conn;
  }
}

}  // namespace verbena::c
