// One polling thread of a server with its share of the keys: a store, a loop, and the sessions of its clients.
#pragma once

#include "base/ticks.hpp"
#include "engine/duty.hpp"
#include "kv/cells.hpp"
#include "kv/session.hpp"
#include "kv/statistics.hpp"
#include "kv/store.hpp"
#include "nic/registered_arena.hpp"
#include "node/shard.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace verbena::kv {

/// What a worker needs of its server. Called from worker threads.
class WorkerHost {
 public:
  /// Adds one part of the statistics.
  virtual void add_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept = 0;
  /// A session of `client` at worker `worker` is gone.
  virtual void session_ended(std::uint64_t client, unsigned worker, bool has_left) noexcept = 0;

 protected:
  ~WorkerHost() = default;
};

/// What a worker is made of: the server's options, with its share of the memory, the items and the cells in place of
/// all.
struct WorkerOptions : ServerOptions {
  unsigned index = 0;
  std::optional<unsigned> cpu{};   ///< Pinned there.
  std::optional<unsigned> node{};  ///< Memory from there.
  unsigned max_sessions = 0;
  channel::Options channel{};
  std::uint64_t hash_seed = 0;
  std::atomic<std::uint64_t>* versions = nullptr;
  Accounts accounts{};                                  ///< Of all workers.
  nic::Grant items_to{.to = nic::Grant::To::kAnyPeer};  ///< Who is given the memory of items,
  nic::Grant cells_to{.to = nic::Grant::To::kAnyPeer};  ///< and of cells.

  /// Replies that wait at most: to as many requests as a client may have under way, and two of its own.
  [[nodiscard]] unsigned session_depth() const noexcept { return depth + 2; }
};

/// Immovable. \thread setup, except where said  \alloc setup
class Worker final : private engine::Duty {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Worker>> create(std::shared_ptr<node::Device> device,
                                                              const WorkerOptions& options, WorkerHost& host);
  /// What `create` allocates, and at most all its sessions. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const nic::Limits& limits,
                                                 const WorkerOptions& options);
  ~Worker();

  [[nodiscard]] Result<void> start() { return shard_->start(*this); }
  /// Tells clients, ends the thread. Idempotent.
  void stop() noexcept { shard_->stop(); }

  [[nodiscard]] engine::CompletionLoop& loop() noexcept { return shard_->loop(); }
  [[nodiscard]] const engine::CompletionLoop& loop() const noexcept { return std::as_const(*shard_).loop(); }
  /// What its sessions' connections are made of.
  [[nodiscard]] const channel::Memory& memory() const noexcept { return shard_->memory(); }
  [[nodiscard]] const WorkerOptions& options() const noexcept { return options_; }
  /// What clients READ: the index, and the items behind it.
  [[nodiscard]] const nic::Window& window() const noexcept { return window_; }
  [[nodiscard]] std::uint64_t index_buckets() const noexcept { return store_->index_buckets(); }
  [[nodiscard]] const host::PageReport& page_report() const noexcept { return region_.arena().page_report(); }
  /// Adds one part of this worker's statistics. \thread any
  void add_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept;

  // For its sessions, in its thread.
  [[nodiscard]] Store& store() noexcept { return *store_; }
  [[nodiscard]] Cells& cells() noexcept { return cells_; }
  [[nodiscard]] LeasePolicy& lease_policy() noexcept { return lease_policy_; }
  /// Leases have memory that a PUT needs.
  void call_leases_in() noexcept { lease_policy_.scarce_until_ticks = ticks_now() + lease_policy_.term_ticks; }
  [[nodiscard]] Counters& counters() noexcept { return counters_; }
  void add_server_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept {
    host_.add_statistics(part, sum);
  }
  void publish() noexcept;
  /// A session whose client is connected, which is the worker's from now on.
  void take_in(Session& session) noexcept;
  /// The session's connection is drained; it goes after this poll.
  void bury(Session& session) noexcept { dead_.push_back(&session); }

 private:
  Worker(const WorkerOptions& options, WorkerHost& host);
  // engine::Duty
  Deadline before_wait() noexcept override;
  void after_wait(unsigned handled) noexcept override;
  void before_end() noexcept override;
  void remove_dead() noexcept;
  void expire_leases() noexcept;
  /// Frees some of what has rested long enough.
  void reclaim() noexcept;

  WorkerOptions options_;
  WorkerHost& host_;
  nic::RegisteredArena region_;
  nic::Window window_;
  std::unique_ptr<Store> store_;
  Cells cells_;
  LeasePolicy lease_policy_;
  std::uint64_t lease_look_ticks_ = 0;  ///< When leases were looked through last.
  std::unique_ptr<node::Shard> shard_;
  // Each holds max_sessions without growing.
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<Session*> dead_;

  alignas(64) Counters counters_;
  std::uint64_t now_ = 0;              ///< Ticks before the wait at hand.
  std::uint64_t reclaimed_ticks_ = 0;  ///< When items that had rested were freed last.
  const std::uint64_t idle_ticks_;
  const std::uint64_t reclaim_step_ticks_;
};

}  // namespace verbena::kv
