#include "kv/worker.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/ticks.hpp"
#include "kv/access.hpp"

#include <algorithm>

namespace verbena::kv {
namespace {

/// A worker without work wakes up this often, to free items whose grace period is over.
constexpr std::chrono::milliseconds kIdleWait{100};
/// With work or without, items whose grace period is over are freed at this pace: 4 us of each millisecond (see
/// Store::kMostReclaimed). After a longer wait the worker catches up for the time that it took.
constexpr std::chrono::milliseconds kReclaimStep{1};
constexpr unsigned kReclaimPerStep = 40;
/// Buckets of the index that are looked through for items whose time to live is over, at the same pace, while there may
/// be some: 10 us of each millisecond where all items are cold.
constexpr unsigned kSweptPerStep = 16;
constexpr std::uint64_t kMostReclaimSteps = kIdleWait / kReclaimStep;
/// For the goodbyes at the end: without credit, or on a slow NIC, they need further polls. A live client takes them
/// within a round trip, and a dead one must not delay the end.
constexpr std::chrono::milliseconds kLastWords{100};

node::ShardOptions shard_options(const WorkerOptions& options) {
  return {.name = fmt::format("verbena-kv-{}", options.index),
          .cpu = options.cpu,
          .node = options.node,
          .loop = {.max_connections = options.max_sessions,
                   .cqe = channel::completions_needed(options.channel) * options.max_sessions,
                   .wait = options.wait,
                   .spin = options.spin,
                   // A client whose side of the queue pair failed may live on; no kernel reports that.
                   .keepalive_on = engine::KeepaliveOn::kEveryNic}};
}

}  // namespace

host::Footprint Worker::footprint(nic::Kind kind, const nic::Limits& limits, const WorkerOptions& options) {
  host::Footprint pools;
  pools.add({.name = "items", .kind = host::PoolKind::kRegistered, .bytes_each = options.memory_bytes});
  pools.add({.name = "index",
             .kind = host::PoolKind::kRegistered,
             .bytes_each = index_bytes(buckets_for(options.max_items))});
  if (options.evict != Evict::kNone)
    pools.add({.name = "marks",
               .kind = host::PoolKind::kRegistered,
               .bytes_each = mark_bytes(buckets_for(options.max_items))});
  if (options.max_cells != 0)
    pools.add(
        {.name = "cells", .kind = host::PoolKind::kRegistered, .bytes_each = options.max_cells * Cells::kBytesEach});
  pools.add({.name = "spare place", .kind = host::PoolKind::kRegistered, .bytes_each = SparePlace::kBytes});
  pools.add({.name = "worker", .bytes_each = sizeof(Worker)});
  pools.add({.name = "lists of sessions",
             .count = options.max_sessions,
             // sessions_ and dead_.
             .bytes_each = sizeof(std::unique_ptr<Session>) + sizeof(Session*)});
  pools.add("store", 1,
            Store::footprint(options.memory_bytes, has_quotas(options) ? Store::Owners::kYes : Store::Owners::kNo));
  pools.add("shard", 1, node::Shard::footprint(kind, shard_options(options)));
  host::Footprint session = Session::footprint(options.session_depth());
  session.add("channel", 1, channel::footprint(kind, limits, options.channel));
  pools.add("sessions", options.max_sessions, session, {}, "a client connects");
  return pools;
}

Result<std::unique_ptr<Worker>> Worker::create(std::shared_ptr<node::Device> device, const WorkerOptions& options,
                                               WorkerHost& host) {
  std::unique_ptr<Worker> worker(new Worker(options, host));
  nic::Nic& nic = device->nic();
  ibv_pd* const pd = device->pd();
  const std::size_t window_bytes = Store::window_bytes(options.memory_bytes, options.max_items);
  VERBENA_TRY(worker->region_.open(
      nic, pd,
      {.size_bytes = window_bytes,
       .node = options.node,
       .huge = options.require_hugepages ? host::HugePolicy::kRequire : host::HugePolicy::kBestEffort,
       .share = host::Share::kReadOnly,
       .name = "items"},
      options.items_to, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
  worker->window_ = worker->region_.window();
  const std::size_t marks = options.evict == Evict::kNone ? 0 : mark_bytes(buckets_for(options.max_items));
  // A client that writes other bytes there can only keep keys, or let them go.
  if (marks != 0)
    VERBENA_TRY(worker->marks_.open(
        nic, pd, {.size_bytes = marks, .node = options.node, .share = host::Share::kReadWrite, .name = "marks"},
        options.items_to, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  VERBENA_ASSIGN(worker->store_, Store::create({.window = worker->region_.arena().bytes().first(window_bytes),
                                                .max_items = options.max_items,
                                                .max_value_bytes = options.max_value_bytes,
                                                .checksum_large_values = options.checksum_large_values,
                                                .grace_ticks = ticks_in(options.grace),
                                                .hash_seed = options.hash_seed,
                                                .versions = options.versions,
                                                .begin_ticks = options.begin_ticks,
                                                .marks = {worker->marks_ ? worker->marks_.data() : nullptr, marks},
                                                .accounts = options.accounts}));
  if (options.max_cells != 0)
    VERBENA_TRY(worker->cells_.open(nic, pd, options.max_cells, options.node, options.cells_to));
  VERBENA_ASSIGN(worker->shard_, node::Shard::create(std::move(device), shard_options(options)));
  VERBENA_TRY(worker->spare_.open(*worker->memory().buffers, options.node));
  worker->sessions_.reserve(options.max_sessions);
  worker->dead_.reserve(options.max_sessions);
  const StoreStatistics limits = worker->store_->statistics();
  worker->counters_.capacity_bytes = limits.capacity_bytes;
  worker->counters_.max_items = limits.max_items;
  worker->counters_.index_entries = limits.index_entries;
  worker->publish();
  return worker;
}

Worker::Worker(const WorkerOptions& options, WorkerHost& host)
    : options_(options), host_(host), idle_ticks_(ticks_in(kIdleWait)), reclaim_step_ticks_(ticks_in(kReclaimStep)) {}

Worker::~Worker() {
  if (shard_) stop();
}

void Worker::take_in(Session& session) noexcept {
  sessions_.emplace_back(&session);
  counters_.sessions = sessions_.size();
  session.connection().attach();
}

Deadline Worker::before_wait() noexcept {
  // Reads the clock once for each batch of completions, after the replies went out.
  now_ = ticks_now();
  store_->set_now(now_);
  reclaim();
  return Deadline::at_ticks(now_ + idle_ticks_);
}

void Worker::after_wait(unsigned /*handled*/) noexcept {
  if (!dead_.empty()) [[unlikely]]
    part_with_dead();
  // A change that no reply tells, such as an item that expired, may show one wait later.
  if (!is_published_) publish();
  is_published_ = false;
}

void Worker::reclaim() noexcept {
  const std::uint64_t since = now_ - reclaimed_ticks_;
  if (since < reclaim_step_ticks_) return;
  reclaimed_ticks_ = now_;
  const std::uint64_t steps = std::min(since / reclaim_step_ticks_, kMostReclaimSteps);
  store_->reclaim(static_cast<unsigned>(steps) * kReclaimPerStep);
  (void)store_->sweep(static_cast<unsigned>(steps) * kSweptPerStep);
}

void Worker::publish() noexcept {
  is_published_ = true;
  const StoreStatistics now = store_->statistics();
  counters_.items = now.items;
  counters_.cells = cells_.made();
  counters_.used_bytes = now.used_bytes;
  counters_.resting_bytes = now.resting_bytes;
  counters_.expired = now.expired;
  counters_.evicted = now.evicted;
}

void Worker::add_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept {
  if (part == StatisticsPart::kTotals) return counters_.add_totals(sum);
  if (part == StatisticsPart::kMemory) return store_->add_memory(sum);
  if (kind_of(part) < kOperations) counters_.add_operation(static_cast<OperationKind>(kind_of(part)), sum);
}

// Only this thread may remove a connection from its loop. The rest of its end would hold up the other clients.
void Worker::part_with_dead() noexcept {
  for (Session* dead : dead_) dead->part();
  parted_ += dead_.size();
  dead_.clear();
}

void Worker::bury(const Session& session) noexcept {
  const auto at = std::ranges::find(sessions_, &session, &std::unique_ptr<Session>::get);
  VERBENA_CHECK(at != sessions_.end());
  const std::uint64_t client = session.client();
  const bool has_left = session.has_left();
  std::swap(*at, sessions_.back());
  sessions_.pop_back();
  --parted_;
  counters_.sessions = sessions_.size();
  host_.session_ended(client, options_.index, has_left);
}

void Worker::before_end() noexcept {
  const auto is_told = [&] {
    bool are_all = true;
    for (auto& session : sessions_) are_all &= session->leave();
    return are_all;
  };
  (void)loop().wait_until(is_told, Deadline::after(kLastWords));
  // The acceptor's thread ends them without waiting for anybody.
  (void)loop().wait_until([&] { return parted_ == 0; }, Deadline::never());
  dead_.clear();
  sessions_.clear();
  counters_.sessions = 0;
}

}  // namespace verbena::kv
