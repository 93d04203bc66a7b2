// One polling thread of a server with its share of the keys: a store, a loop, and its clients' sessions.
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

/// A worker's view of its server. Workers call it from their threads.
class WorkerHost {
 public:
  /// Adds one part of the statistics.
  virtual void add_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept = 0;
  /// A session of `client` at worker `worker` has ended.
  virtual void session_ended(std::uint64_t client, unsigned worker, bool has_left) noexcept = 0;
  /// Lets the acceptor's thread free what a client leaves behind.
  virtual void see_off(node::Acceptor::Leaver& leaver) noexcept = 0;

 protected:
  ~WorkerHost() = default;
};

/// A worker's options: the server's, with this worker's share of the memory, items and cells.
struct WorkerOptions : ServerOptions {
  unsigned index = 0;
  std::optional<unsigned> cpu{};   ///< The thread is pinned there.
  std::optional<unsigned> node{};  ///< The memory comes from there.
  unsigned max_sessions = 0;
  channel::Options channel{};
  std::uint64_t hash_seed = 0;
  std::atomic<std::uint64_t>* versions = nullptr;
  std::uint64_t begin_ticks = 0;                        ///< When the server's clock began, which all workers share.
  Accounts accounts{};                                  ///< Shared by all workers.
  nic::Grant items_to{.to = nic::Grant::To::kAnyPeer};  ///< The users with access to the items' memory.
  nic::Grant cells_to{.to = nic::Grant::To::kAnyPeer};  ///< The users with access to the cells' memory.

  /// Replies that may wait at a time: one per request that a client may have in flight, and two of the worker's own.
  [[nodiscard]] unsigned session_depth() const noexcept { return depth + 2; }
};

/// One worker; immovable. \thread setup, except where said  \alloc setup
class Worker final : private engine::Duty {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Worker>> create(std::shared_ptr<node::Device> device,
                                                              const WorkerOptions& options, WorkerHost& host);
  /// The memory that `create` allocates, and that all its sessions allocate at most. \thread any  \alloc setup
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const nic::Limits& limits,
                                                 const WorkerOptions& options);
  ~Worker();

  [[nodiscard]] Result<void> start() { return shard_->start(*this); }
  /// Tells the clients and ends the thread. Idempotent.
  void stop() noexcept { shard_->stop(); }

  [[nodiscard]] engine::CompletionLoop& loop() noexcept { return shard_->loop(); }
  [[nodiscard]] const engine::CompletionLoop& loop() const noexcept { return std::as_const(*shard_).loop(); }
  /// Where its sessions' connections get their memory.
  [[nodiscard]] const channel::Memory& memory() const noexcept { return shard_->memory(); }
  [[nodiscard]] const WorkerOptions& options() const noexcept { return options_; }
  /// The memory that clients READ: the index, and the items behind it.
  [[nodiscard]] const nic::Window& window() const noexcept { return window_; }
  [[nodiscard]] std::uint64_t index_buckets() const noexcept { return store_->index_buckets(); }
  /// The marks that clients WRITE; empty in a server that evicts nothing.
  [[nodiscard]] nic::Window marks() const noexcept { return marks_ ? marks_.window() : nic::Window{}; }
  [[nodiscard]] const host::PageReport& page_report() const noexcept { return region_.arena().page_report(); }
  /// Adds one part of this worker's statistics. \thread any
  void add_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept;

  // For its sessions, in the worker's thread.
  [[nodiscard]] Store& store() noexcept { return *store_; }
  [[nodiscard]] Cells& cells() noexcept { return cells_; }
  [[nodiscard]] SparePlace& spare_place() noexcept { return spare_; }
  [[nodiscard]] std::uint32_t window_lkey() const noexcept { return region_.lkey(); }
  [[nodiscard]] Counters& counters() noexcept { return counters_; }
  void add_server_statistics(StatisticsPart part, ServerStatistics& sum) const noexcept {
    host_.add_statistics(part, sum);
  }
  /// Shows the store's present figures in the counters. Sessions call it before the reply that acknowledges a change:
  /// who has the reply finds the change in the statistics.
  void publish() noexcept;
  /// Takes over a session whose client is connected.
  void take_in(Session& session) noexcept;
  /// The session's connection is drained: parts with it after this poll.
  void lose(Session& session) noexcept { dead_.push_back(&session); }
  void see_off(node::Acceptor::Leaver& leaver) noexcept { host_.see_off(leaver); }
  /// The session's connection has ended: destroys the session.
  void bury(const Session& session) noexcept;

 private:
  Worker(const WorkerOptions& options, WorkerHost& host);
  // engine::Duty
  Deadline before_wait() noexcept override;
  void after_wait(unsigned handled) noexcept override;
  void before_end() noexcept override;
  void part_with_dead() noexcept;
  /// Frees some of the items whose grace period, or time to live, is over.
  void reclaim() noexcept;

  WorkerOptions options_;
  WorkerHost& host_;
  nic::RegisteredArena region_;
  nic::Window window_;
  nic::RegisteredArena marks_;  ///< Not open in a server that evicts nothing.
  std::unique_ptr<Store> store_;
  Cells cells_;
  std::unique_ptr<node::Shard> shard_;
  SparePlace spare_;
  // Each has room for max_sessions and never grows.
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<Session*> dead_;
  std::size_t parted_ = 0;  ///< Sessions whose connections the acceptor's thread ends.

  alignas(64) Counters counters_;
  bool is_published_ = false;          ///< A session has published since the last wait began.
  std::uint64_t now_ = 0;              ///< Ticks before the current wait.
  std::uint64_t reclaimed_ticks_ = 0;  ///< When items were last freed after their grace period.
  const std::uint64_t idle_ticks_;
  const std::uint64_t reclaim_step_ticks_;
};

}  // namespace verbena::kv
