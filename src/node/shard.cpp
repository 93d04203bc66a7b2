#include "node/shard.hpp"

#include "base/error.hpp"
#include "base/futex.hpp"
#include "host/thread.hpp"
#include "session/session.hpp"

#include <utility>

namespace verbena::node {

namespace {

/// Completion queue entries that one session's connection needs.
[[nodiscard]] std::uint64_t entries_of_each() noexcept {
  return channel::completions_needed(session::Session::connection_options());
}

}  // namespace

Result<std::unique_ptr<Shard>> Shard::create(std::shared_ptr<Device> device, const ShardOptions& options) {
  std::unique_ptr<Shard> shard(new Shard(std::move(device), options));
  VERBENA_ASSIGN(shard->loop_, engine::CompletionLoop::create(shard->device_->nic(), options.loop));
  VERBENA_TRY(shard->bounce_.open(shard->device_->buffers(), options.node));
  shard->memory_ = {.pd = shard->device_->pd(), .buffers = &shard->device_->buffers(), .bounce = &shard->bounce_};
  return shard;
}

host::Footprint Shard::footprint(nic::Kind kind, const ShardOptions& options) {
  host::Footprint pools;
  pools.add({.name = "shard", .bytes_each = sizeof(Shard)});
  pools.add("loop", 1, engine::CompletionLoop::footprint(kind, options.loop));
  pools.add("bounce", 1, channel::Bounce::footprint(options.node));
  return pools;
}

Result<void> Shard::start(engine::Duty& duty) {
  if (thread_.joinable()) return fail(Status::kBusy, "start", 0, "the thread runs already");
  stopping_.store(false, std::memory_order_relaxed);
  is_owned_.store(0, std::memory_order_relaxed);
  loop_->open_calls();
  auto started = host::start_thread(name_.c_str(), [this, &duty] {
    run(duty);
    if (at_end_ != nullptr) at_end_(at_end_context_);
  });
  if (!started) {
    loop_->end_calls();
    return std::unexpected(std::move(started).error());
  }
  thread_ = std::move(*started);
  (void)wait_while(is_owned_, 0, Deadline::never());  // The first thing that the thread does.
  return {};
}

void Shard::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  loop_->wake();
  thread_.join();
}

void Shard::stop_here(void (*at_end)(void*) noexcept, void* context) noexcept {
  at_end_ = at_end;
  at_end_context_ = context;
  stopping_.store(true, std::memory_order_release);
  thread_.detach();
}

void Shard::run(engine::Duty& duty) noexcept {
  if (cpu_) (void)host::pin_this_thread(*cpu_);
  loop_->become_owner();
  is_owned_.store(1, std::memory_order_release);
  wake_waiters(is_owned_);
  while (!stopping_.load(std::memory_order_acquire)) duty.after_wait(loop_->wait(duty.before_wait()));
  // Takes in arriving sessions first, so that all are told. Carries out calls until all sessions have left, so that a
  // caller whose deadline passes meanwhile can take back its operations.
  loop_->catch_up();
  duty.before_end();
  loop_->end_calls();
}

Result<std::shared_ptr<SessionShard>> SessionShard::open(std::shared_ptr<Device> device,
                                                         const SessionShardOptions& options) {
  nic::Nic& nic = device->nic();
  if (const unsigned most = most_connections(nic); options.max_connections > most)
    return fail(Status::kLimit, "start", 0,
                "max_connections is {}, and a completion queue of {} has room for {} connections: lower it",
                options.max_connections, nic.name(), most);
  const std::uint64_t entries = entries_of_each() * options.max_connections;
  std::shared_ptr<SessionShard> made(new SessionShard(options.driver, device->registrations()), &SessionShard::end);
  ShardOptions shard{.name = "verbena-rdma", .cpu = options.cpu, .node = {}, .loop = {}};
  shard.loop.max_connections = options.max_connections;
  shard.loop.cqe = static_cast<std::uint32_t>(entries);
  if (options.driver == session::DrivenBy::kThread && !options.cpu) {
    VERBENA_ASSIGN(made->placement_, host::claim_for_thread(nic.capabilities().locality_name));
    const host::PlacedPoller& place = made->placement_.plan.pollers.front();
    if (place.core) shard.cpu = place.core->cpu;
    shard.loop.wait = place.wait;
  }
  VERBENA_ASSIGN(made->shard_, Shard::create(std::move(device), shard));
  made->sessions_.emplace(made->loop(), options.max_connections);
  return made;
}

unsigned SessionShard::most_connections(const nic::Nic& nic) noexcept {
  return static_cast<unsigned>(nic.limits().max_cqe / entries_of_each());
}

SessionShard::~SessionShard() {
  if (shard_) stop();
}

// A thread cannot wait for its own end.
void SessionShard::end(SessionShard* shard) noexcept {
  if (is_forked()) return;
  if (!shard->shard_ || !shard->loop().is_owner()) return delete shard;
  shard->shard_->stop_here([](void* context) noexcept { delete static_cast<SessionShard*>(context); }, shard);
}

}  // namespace verbena::node
