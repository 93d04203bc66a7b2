// Where polling threads and their memory go, and why, in words; and the cores that processes of a host claim.
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
  WaitPolicy wait = WaitPolicy::kAdaptive;  ///< Of a poller that has a core of its own.
  Pin pin = Pin::kYes;                      ///< Otherwise they have no cores and claim none, and no memory is bound.
  bool leave_a_core = true;  ///< To the application, where two or more are free. Off where the pollers are all of it.
  Locality device{};
  std::span<const unsigned> claimed{};  ///< Core::id of the cores that others have.
};

struct PlacedPoller {
  std::optional<Core> core;      ///< Pinned there.
  std::optional<unsigned> node;  ///< Its arenas come from there; empty: wherever the kernel takes them from.
  WaitPolicy wait = WaitPolicy::kEvent;
};

/// A value: nothing is held, pinned or allocated by it.
struct Placement {
  std::vector<PlacedPoller> pollers;  ///< As many as were asked for. Those without a core wait for events.
  std::vector<std::string> words;     ///< A sentence for each decision.
  std::string why_no_core;            ///< The one of them why pollers have no core; empty when all have one.
  [[nodiscard]] unsigned cores() const noexcept;
};

/// Pollers get cores of their own: the fastest kind first where there are several, and of a kind near the device first,
/// then on its socket, then elsewhere; from the last core down, because the first ones usually take the interrupts; one
/// hardware thread of a core. There are never more of them than free cores or than the cgroup's processor time feeds
/// with one cpu's time to spare, and where two cores or more are free one is left to the application that wants it. A
/// poller without a core waits for events, as all do where there is one cpu (hardware thread). Arenas are on the node
/// of their poller. Errors: kBadArgument (pollers). \thread any
/// \alloc setup
[[nodiscard]] Result<Placement> plan_placement(const Topology& topology, const PlacementRequest& request);

/// A poller core as one process's own: an abstract Unix socket is bound to the core's name, which the kernel lets only
/// one have at a time and frees when the process dies, however it dies. Abstract names are per network namespace:
/// processes in different ones (containers) do not see each other's claims. `ss -xap | grep verbena-core` lists claims
/// with their processes.
/// Nothing is protected by it: it is an agreement between processes of this library. \thread any, one at a time
class CoreClaim {
 public:
  /// Of names; tests have their own.
  static constexpr std::string_view kHostScope = "host";

  /// Errors: kBusy (somebody has it, this process perhaps), kBadArgument (a scope of more than 64 bytes), kLimit (open
  /// files), kPermission. \alloc none
  [[nodiscard]] static Result<CoreClaim> take(unsigned core, std::string_view scope = kHostScope);
  /// Whether somebody has it now. False when that cannot be found out. \alloc none
  [[nodiscard]] static bool is_taken(unsigned core, std::string_view scope = kHostScope) noexcept;
  [[nodiscard]] unsigned core() const noexcept { return core_; }

 private:
  CoreClaim(Fd fd, unsigned core) noexcept : fd_(std::move(fd)), closed_(fd_.get()), core_(core) {}
  Fd fd_;
  ClosedInChildren closed_;
  unsigned core_;
};

/// Core::id of the topology's cores that somebody has. \thread any  \alloc setup
[[nodiscard]] std::vector<unsigned> claimed_cores(const Topology& topology,
                                                  std::string_view scope = CoreClaim::kHostScope);

struct HeldPlacement {
  Placement plan;
  std::vector<CoreClaim> claims;  ///< The plan's cores are this process's as long as these live.
};

/// Plans, and claims the plan's cores; loses a race for one and it plans anew without it. `request.claimed` is added to
/// what others have. Where claims cannot be made (a seccomp filter), the plan goes without them and says so. Errors:
/// those of plan_placement. \thread any  \alloc setup
[[nodiscard]] Result<HeldPlacement> claim_placement(const Topology& topology, const PlacementRequest& request,
                                                    std::string_view scope = CoreClaim::kHostScope);

/// The same for one thread that polls the device of this name; null: it has none. Errors: those of Topology::read and
/// of claim_placement. \thread any  \alloc setup
[[nodiscard]] Result<HeldPlacement> claim_for_thread(const char* device);

}  // namespace verbena::host
