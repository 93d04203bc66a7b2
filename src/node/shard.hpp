// Shards: polling loops that connections join, each with a thread of its own or driven by callers.
#pragma once

#include "base/threads.hpp"
#include "channel/bounce.hpp"
#include "channel/connection.hpp"
#include "engine/duty.hpp"
#include "engine/loop.hpp"
#include "host/placement.hpp"
#include "node/device.hpp"
#include "session/home.hpp"
#include "session/sessions.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <string>

namespace verbena::node {

struct ShardOptions {
  std::string name = "verbena-poll";  ///< The thread's name, cut at 15 characters.
  std::optional<unsigned> cpu;        ///< The thread is pinned there; if the kernel refuses, it runs unpinned.
  std::optional<unsigned> node;       ///< NUMA node of the shard's memory.
  engine::LoopOptions loop;
};

/// A loop with the memory of its connections. Immovable. \thread setup, except where said
class Shard {
 public:
  /// Errors: those of CompletionLoop::create and Bounce::open.
  [[nodiscard]] static Result<std::unique_ptr<Shard>> create(std::shared_ptr<Device> device,
                                                             const ShardOptions& options);
  /// Memory that `create` allocates. \thread any
  [[nodiscard]] static host::Footprint footprint(nic::Kind kind, const ShardOptions& options);
  ~Shard() { stop(); }
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  /// Starts the thread, which polls the loop, does `duty` and carries out other threads' calls. `duty` must outlive the
  /// thread. Errors: kLimit (threads), kBusy (it is running already).
  [[nodiscard]] Result<void> start(engine::Duty& duty);
  /// Ends the thread after its current work. Operations in flight stay in flight; the caller then owns the loop.
  /// Idempotent. Don't call it from the thread itself.
  void stop() noexcept;
  /// True until `stop` is called. \thread any
  [[nodiscard]] bool is_running() const noexcept { return !stopping_.load(std::memory_order_acquire); }
  /// Call in the thread itself: ends the thread, which calls `at_end(context)` last; that may destroy this object.
  void stop_here(void (*at_end)(void*) noexcept, void* context) noexcept;

  [[nodiscard]] engine::CompletionLoop& loop() noexcept { return *loop_; }
  [[nodiscard]] const engine::CompletionLoop& loop() const noexcept { return *loop_; }
  [[nodiscard]] const channel::Memory& memory() const noexcept { return memory_; }
  [[nodiscard]] Device& device() const noexcept { return *device_; }

 private:
  Shard(std::shared_ptr<Device> device, const ShardOptions& options)
      : device_(std::move(device)), name_(options.name), cpu_(options.cpu) {}
  void run(engine::Duty& duty) noexcept;

  const std::shared_ptr<Device> device_;
  const std::string name_;
  const std::optional<unsigned> cpu_;
  std::unique_ptr<engine::CompletionLoop> loop_;
  channel::Bounce bounce_;
  channel::Memory memory_;
  std::atomic<bool> stopping_{false};
  void (*at_end_)(void*) noexcept = nullptr;
  void* at_end_context_ = nullptr;
  Thread thread_;
  /// The thread sets it once it is pinned and owns the loop; before that it still makes system calls.
  std::atomic<std::uint32_t> is_owned_{0};  ///< Whether the thread owns the loop.
};

struct SessionShardOptions {
  session::DrivenBy driver = session::DrivenBy::kThread;
  unsigned max_connections = 1;
  std::optional<unsigned> cpu{};  ///< The thread's core; empty: claims a free one.
};

/// A shard whose connections are sessions. Immovable, shared by them: the last one may end in the shard's own thread.
class SessionShard final : public session::Home {
 public:
  /// Errors: those of Shard::create and of claim_for_thread, kLimit (more connections than the NIC has room for).
  [[nodiscard]] static Result<std::shared_ptr<SessionShard>> open(std::shared_ptr<Device> device,
                                                                  const SessionShardOptions& options);
  ~SessionShard() override;
  /// Most connections that one shard of this NIC can have: each needs entries of the completion queue. \thread any
  [[nodiscard]] static unsigned most_connections(const nic::Nic& nic) noexcept;

  /// With Driver::kThread: starts the thread. \thread setup
  [[nodiscard]] Result<void> start() { return shard_->start(sessions()); }
  /// Ends the thread and all sessions with kClosed, and tells the peers. Idempotent. Don't call it from the thread
  /// itself.
  void stop() noexcept { shard_->stop(); }
  [[nodiscard]] bool is_running() const noexcept { return shard_->is_running(); }
  [[nodiscard]] Device& device() const noexcept { return shard_->device(); }

  [[nodiscard]] engine::CompletionLoop& loop() noexcept override { return shard_->loop(); }
  [[nodiscard]] const channel::Memory& memory() const noexcept override { return shard_->memory(); }
  [[nodiscard]] session::Sessions& sessions() noexcept override { return *sessions_; }

 private:
  using Home::Home;
  /// The deleter of the shared pointer.
  static void end(SessionShard* shard) noexcept;

  host::HeldPlacement placement_;  ///< Reserves the thread's core for this shard's lifetime.
  std::unique_ptr<Shard> shard_;
  std::optional<session::Sessions> sessions_;
};

}  // namespace verbena::node
