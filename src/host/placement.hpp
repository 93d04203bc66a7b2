// Chooses cores and memory nodes of polling threads, and explains why; and lets the processes of a host claim cores.
#pragma once

#include "base/fd.hpp"
#include "base/fork.hpp"
#include "host/topology.hpp"

#include <verbena/error.hpp>
#include <verbena/wait_policy.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::host {

enum class Pin : std::uint8_t { kNo, kYes };

struct PlacementRequest {
  unsigned pollers = 1;                     ///< 1 to 1024.
  WaitPolicy wait = WaitPolicy::kAdaptive;  ///< Policy of a poller that has a core of its own.
  Pin pin = Pin::kYes;                      ///< Otherwise pollers have no cores, claim none, and bind no memory.
  bool leave_a_core = true;  ///< To the application, if two or more are free. Turn it off if the process only polls.
  Locality device{};
  std::span<const unsigned> claimed{};  ///< Core::id of the cores that other processes have.
};

struct PlacedPoller {
  std::optional<Core> core;      ///< The core that it is pinned to.
  std::optional<unsigned> node;  ///< Node of its arenas; empty: the kernel chooses.
  WaitPolicy wait = WaitPolicy::kEvent;
};

/// A plan only: it holds, pins and allocates nothing.
struct Placement {
  std::vector<PlacedPoller> pollers;  ///< The requested number. Those without a core wait for events.
  std::vector<std::string> words;     ///< A sentence for each decision.
  std::string why_no_core;            ///< The sentence that tells why pollers have no core; empty if all have one.
  [[nodiscard]] unsigned cores() const noexcept;
};

/// Plans cores for pollers, one hardware thread of a core each. It takes the fastest kind first; within a kind, cores
/// near the device, then on its socket, then elsewhere; from the last core down, because the first ones usually take
/// the interrupts. It gives out at most the free cores, and at most what the cgroup's processor time allows with one
/// cpu's time to spare. If two or more cores are free it leaves one to the application (`leave_a_core`). A poller
/// without a core waits for events; so do all if there is one cpu (hardware thread). Arenas are on the node of their
/// poller. Errors: kBadArgument (pollers). \thread any  \alloc setup
[[nodiscard]] Result<Placement> plan_placement(const Topology& topology, const PlacementRequest& request);

/// A process's claim on a core for polling. It binds an abstract Unix socket to the core's name: the kernel lets only
/// one process have the name, and frees it when the process dies in any way. Abstract names are per network namespace:
/// processes in different ones (containers) do not see each other's claims. `ss -xap | grep verbena-core` lists claims
/// with their processes.
/// It protects nothing: it is an agreement between processes that use this library. \thread any, one at a time
class CoreClaim {
 public:
  /// Part of the names; tests have their own.
  static constexpr std::string_view kHostScope = "host";

  /// Errors: kBusy (some process has it, perhaps this one), kBadArgument (a scope of more than 64 bytes), kLimit (open
  /// files), kPermission. \alloc none
  [[nodiscard]] static Result<CoreClaim> take(unsigned core, std::string_view scope = kHostScope);
  /// Whether some process has it now. False if that cannot be found out. \alloc none
  [[nodiscard]] static bool is_taken(unsigned core, std::string_view scope = kHostScope) noexcept;
  [[nodiscard]] unsigned core() const noexcept { return core_; }

 private:
  CoreClaim(Fd fd, unsigned core) noexcept : fd_(std::move(fd)), closed_(fd_.get()), core_(core) {}
  Fd fd_;
  ClosedInChildren closed_;
  unsigned core_;
};

/// Core::id of the topology's cores that are claimed. \thread any  \alloc setup
[[nodiscard]] std::vector<unsigned> claimed_cores(const Topology& topology,
                                                  std::string_view scope = CoreClaim::kHostScope);

struct HeldPlacement {
  Placement plan;
  std::vector<CoreClaim> claims;  ///< This process has the plan's cores as long as these live.
};

/// Plans, and claims the plan's cores. If it loses a race for a core, it plans again without that core.
/// `request.claimed` adds to the cores that others have. If claims are impossible (a seccomp filter), the plan does
/// without them and says so. Errors: those of plan_placement. \thread any  \alloc setup
[[nodiscard]] Result<HeldPlacement> claim_placement(const Topology& topology, const PlacementRequest& request,
                                                    std::string_view scope = CoreClaim::kHostScope);

/// The same for one thread that polls the device of this name; null: no device. Errors: those of Topology::read and of
/// claim_placement. \thread any  \alloc setup
[[nodiscard]] Result<HeldPlacement> claim_for_thread(const char* device);

}  // namespace verbena::host
