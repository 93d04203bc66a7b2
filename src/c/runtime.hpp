// What connections run on: a NIC, its protection domain, and a loop, with a thread of its own or driven by callers.
#pragma once

#include "c/registry.hpp"
#include "engine/poller.hpp"
#include "host/placement.hpp"
#include "link/fabric.hpp"
#include "nic/nic.hpp"

#include <verbena/rdma.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace verbena::c {

struct RuntimeOptions {
  link::FabricOptions fabric;
  unsigned max_connections = 1;
  Deadline deadline = Deadline::never();  ///< Of opening the fabric.
};

/// Who polls the loop.
enum class Driver : std::uint8_t { kThread, kCaller };

/// Immovable. Outlives the connections on it. \thread setup, except where said
class Runtime final : private engine::Duty {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Runtime>> open(const RuntimeOptions& options, Driver driver);
  ~Runtime() { stop(); }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// With Driver::kThread only.
  [[nodiscard]] Result<void> start() { return poller_->start(); }
  /// Ends the thread: its connections are dead with kClosed, and freed unless somebody else keeps them. Idempotent.
  void stop() noexcept;
  [[nodiscard]] bool is_stopped() const noexcept { return is_stopped_; }

  [[nodiscard]] link::Fabric& fabric() noexcept { return *fabric_; }
  [[nodiscard]] ibv_pd* pd() noexcept { return pd_.get(); }
  /// \thread any
  [[nodiscard]] Registry& registry() noexcept { return *registry_; }
  [[nodiscard]] engine::Poller& poller() noexcept { return *poller_; }
  [[nodiscard]] engine::CompletionLoop& loop() noexcept { return poller_->loop(); }
  [[nodiscard]] Driver driver() const noexcept { return driver_; }
  /// Whether the calling thread may poll the loop, as far as the runtime's own thread goes. \thread any
  [[nodiscard]] bool is_driven_here() const noexcept { return driver_ == Driver::kCaller || poller_->is_this_thread(); }

  /// Takes a connection whose bootstrap is complete: its thread attaches it, and calls its callbacks. \thread any
  void adopt(RdmaConn& conn);
  /// The same with Driver::kCaller.
  void adopt_here(RdmaConn& conn);
  /// Takes one out, with Driver::kCaller.
  void release_here() noexcept { conns_.clear(); }
  /// Goes on with what the connections' calls wait for. No callbacks. \thread owner
  void progress() noexcept;

  /// Sets what another thread waits for, by `wait_for`. \thread owner
  template <class Set>
  void tell(Set&& set) noexcept {
    {
      const std::lock_guard lock(mutex_);
      set();
    }
    told_.notify_all();
  }
  /// Waits until `is_set`, which `tell` sets; false past the deadline. \thread any but the runtime's
  template <class IsSet>
  [[nodiscard]] bool wait_for(IsSet&& is_set, Deadline deadline) noexcept {
    constexpr std::chrono::hours kLongest{24 * 365};
    std::unique_lock lock(mutex_);
    // Asking only: a wait that is over before it begins would still go to the kernel, with the timer's slack.
    if (is_set()) return true;
    if (deadline.passed()) return false;
    if (!deadline.is_never())
      return told_.wait_for(lock, std::min<std::chrono::nanoseconds>(deadline.left(), kLongest), is_set);
    told_.wait(lock, is_set);
    return true;
  }

 private:
  explicit Runtime(Driver driver) : driver_(driver) {}
  // engine::Duty
  Deadline before_wait() noexcept override;
  void after_wait(unsigned handled) noexcept override;
  void before_end() noexcept override;
  void take_arrivals() noexcept;
  /// Out of the list, where it is over: freed, or its keeper's.
  void remove_ended() noexcept;

  const Driver driver_;
  bool is_stopped_ = false;
  std::unique_ptr<link::Fabric> fabric_;
  nic::Pd pd_;
  std::optional<Registry> registry_;
  host::HeldPlacement placement_;  ///< The thread's core is this runtime's while it lives.
  std::unique_ptr<engine::Poller> poller_;
  // Owner's, each with a capacity of max_connections.
  std::vector<RdmaConn*> conns_;
  std::vector<RdmaConn*> taken_;

  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<RdmaConn*> arrivals_;  ///< Under the mutex.
};

}  // namespace verbena::c
