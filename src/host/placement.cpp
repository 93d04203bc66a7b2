#include "host/placement.hpp"

#include "base/error.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <tuple>
#include <utility>

namespace verbena::host {

unsigned Placement::cores() const noexcept {
  return static_cast<unsigned>(
      std::ranges::count_if(pollers, [](const auto& poller) { return poller.core.has_value(); }));
}

namespace {

constexpr unsigned kMaxPollers = 1024;

bool has(std::span<const unsigned> values, unsigned value) noexcept {
  return std::ranges::find(values, value) != values.end();
}

const char* plural(std::size_t count) noexcept { return count == 1 ? "" : "s"; }

/// "0, 2 and 3".
std::string list(std::span<const unsigned> values) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == values.size() ? " and " : ", ", values[i]);
  return text;
}

class Planner {
 public:
  Planner(const Topology& topology, const PlacementRequest& request) noexcept
      : topology_(topology), request_(request) {}

  [[nodiscard]] Placement plan() {
    describe_cpus();
    describe_device();
    const std::vector<Core> free = free_cores();
    const std::size_t count = cores_to_take(free.size());
    for (unsigned i = 0; i < request_.pollers; ++i) i < count ? place_on(free[i]) : place_nowhere();
    if (count < request_.pollers) describe_rest(count);
    return std::move(placement_);
  }

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    placement_.words.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void describe_cpus() {
    const CpuCounts& cpus = topology_.counts();
    const std::size_t cores = topology_.cores().size();
    std::string why;
    if (cpus.online < cpus.there) why += fmt::format(", {} of them offline", cpus.there - cpus.online);
    if (cpus.allowed < cpus.online) why += fmt::format(", {} kept by the cgroup's cpuset", cpus.online - cpus.allowed);
    if (cpus.usable < cpus.allowed) why += fmt::format(", {} outside the affinity mask", cpus.allowed - cpus.usable);
    say("The machine has {} cpu{}{}; this process may use {}: {} core{} on {} NUMA node{}.", cpus.there,
        plural(cpus.there), why, cpus.usable, cores, plural(cores), topology_.node_count(),
        plural(topology_.node_count()));
    if (std::ranges::any_of(topology_.cores(), [](const Core& core) { return core.threads_there > 1; }))
      say("Cores have hyper-threads: one thread of a core polls, the others stay free of pollers.");
    const auto [slowest, fastest] = std::ranges::minmax(topology_.cores(), {}, &Core::speed);
    if (slowest.speed != fastest.speed) say("Cores are of several kinds: pollers take the fastest first.");
    if (const auto quota = topology_.quota_percent())
      say("The cgroup grants the time of {}.{:02} cpus.", *quota / 100, *quota % 100);
    if (topology_.node_count() > 1 && !topology_.can_bind_memory() && request_.pin == Pin::kYes)
      say("Memory cannot be bound to a NUMA node (mbind is denied, as in many containers): the kernel chooses where it "
          "comes from.");
  }

  void describe_device() {
    const Locality& device = request_.device;
    if (device.device.empty()) return;
    if (topology_.node_count() == 1) return;
    if (device.nodes.empty()) {
      say("{} is as near to one NUMA node as to any other, or the firmware does not say.", device.device);
    } else {
      say("{} is near NUMA node{} {}.", device.device, plural(device.nodes.size()), list(device.nodes));
    }
  }

  /// 0 beside the device, 1 on its socket, 2 elsewhere.
  [[nodiscard]] unsigned distance(const Core& core) const noexcept {
    const auto& near = request_.device.nodes;
    if (near.empty() || has(near, core.node)) return 0;
    const bool same_package = std::ranges::any_of(
        topology_.cores(), [&](const Core& other) { return other.package == core.package && has(near, other.node); });
    return same_package ? 1 : 2;
  }

  /// The free cores, in the order in which pollers take them.
  [[nodiscard]] std::vector<Core> free_cores() {
    std::vector<Core> free;
    std::vector<unsigned> taken;
    for (const Core& core : topology_.cores())
      has(request_.claimed, core.id) ? taken.push_back(core.cpu) : free.push_back(core);
    if (!taken.empty() && is_pinning())
      say("Core{} of cpu{} {} {} claimed already.", plural(taken.size()), plural(taken.size()), list(taken),
          taken.size() == 1 ? "is" : "are");
    std::ranges::sort(free, [&](const Core& a, const Core& b) {
      return std::tuple(b.speed, distance(a), b.node, b.package, b.cpu) <
             std::tuple(a.speed, distance(b), a.node, a.package, a.cpu);
    });
    return free;
  }

  [[nodiscard]] bool is_pinning() const noexcept {
    return request_.pin == Pin::kYes && request_.wait != WaitPolicy::kEvent && !is_one_cpu();
  }

  /// With one core of two hyper-threads, one thread may poll and leave the other to everybody else.
  [[nodiscard]] bool is_one_cpu() const noexcept { return topology_.counts().usable == 1; }

  [[nodiscard]] std::size_t cores_to_take(std::size_t free) {
    if (!is_pinning()) return 0;
    // Leaves one of two or more free cores to the application. Takes a single free core: then other processes have the
    // others.
    std::size_t most = free < 2 || !request_.leave_a_core ? free : free - 1;
    if (const auto quota = topology_.quota_percent()) {
      // Leaves one cpu's time for everything else in the process: a process that uses up its quota is stopped.
      const std::size_t fed = *quota < 200 ? 0 : *quota / 100 - 1;
      is_short_of_time_ = fed < most;
      most = std::min(most, fed);
    }
    if (most < free && !is_short_of_time_ && request_.pollers >= most) say("One core is left to the application.");
    return std::min<std::size_t>(most, request_.pollers);
  }

  /// The node for memory of threads on `node`; empty if there is only one node.
  [[nodiscard]] std::optional<unsigned> memory_of(unsigned node) {
    if (topology_.node_count() == 1 || !topology_.can_bind_memory()) return std::nullopt;
    const Node* known = topology_.find_node(node);
    if (known != nullptr && known->has_memory()) return node;
    say("NUMA node {} has no memory for this process: the kernel chooses where it comes from.", node);
    return std::nullopt;
  }

  void place_on(const Core& core) {
    const std::size_t number = placement_.pollers.size();
    const auto node = memory_of(core.node);
    static constexpr const char* kWhere[] = {"near the device", "on the device's socket", "far from the device"};
    const bool has_place = topology_.node_count() > 1;
    say("Poller {} has the core of cpu {} to itself{}{}, and waits by the policy `{}`.", number, core.cpu,
        has_place ? fmt::format(", on node {}", core.node) : "",
        has_place && !request_.device.nodes.empty() ? fmt::format(" {}", kWhere[distance(core)]) : "",
        to_string(request_.wait));
    if (node) say("Its arenas are on node {} too.", *node);
    placement_.pollers.push_back({.core = core, .node = node, .wait = request_.wait});
  }

  void place_nowhere() {
    WaitPolicy wait = WaitPolicy::kEvent;
    // Without pinning the scheduler distributes cores, so the policy applies unless there is only one cpu.
    if (request_.pin == Pin::kNo && !is_one_cpu()) wait = request_.wait;
    std::optional<unsigned> node;
    if (request_.pin == Pin::kNo) {
      // Without pinning memory is not bound either.
    } else if (topology_.cores().size() == 1) {
      node = memory_of(topology_.cores()[0].node);
    } else if (!request_.device.nodes.empty()) {
      node = memory_of(request_.device.nodes[0]);
    }
    placement_.pollers.push_back({.core = std::nullopt, .node = node, .wait = wait});
  }

  /// Why pollers from `first` on have no core.
  void describe_rest(std::size_t first) {
    const std::size_t last = request_.pollers - 1;
    const std::string who =
        first == last ? fmt::format("Poller {}", first) : fmt::format("Pollers {} to {}", first, last);
    const char* const verb = first == last ? "waits" : "wait";
    const PlacedPoller& poller = placement_.pollers.back();
    if (poller.node) say("Memory of pollers without a core is on node {}.", *poller.node);
    if (is_one_cpu()) {
      say("{} {} by the policy `event`: there is one cpu, and a poller would keep it from all other threads.", who,
          verb);
    } else if (request_.pin == Pin::kNo) {
      say("{} {} by the policy `{}`, and the scheduler chooses the cores: pinning is off.", who, verb,
          to_string(poller.wait));
    } else if (request_.wait == WaitPolicy::kEvent) {
      say("{} {} by the policy `event`, as asked for, which needs no core of its own.", who, verb);
    } else if (is_short_of_time_) {
      say("{} {} by the policy `event`: the cgroup grants the time of {}.{:02} cpus, one of which is left for "
          "everything else.",
          who, verb, *topology_.quota_percent() / 100, *topology_.quota_percent() % 100);
    } else {
      say("{} {} by the policy `event`: no core of its own is left for it.", who, verb);
    }
    placement_.why_no_core = placement_.words.back();
  }

  const Topology& topology_;
  const PlacementRequest& request_;
  Placement placement_;
  bool is_short_of_time_ = false;  ///< The cgroup's quota allows fewer pollers than there are cores.
};

/// Makes the abstract address of a core. Returns its length, or 0 if the scope is too long.
socklen_t address_of(unsigned core, std::string_view scope, sockaddr_un& address) noexcept {
  constexpr std::size_t kMaxScope = 64;
  address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (scope.size() > kMaxScope) return 0;
  const auto end =
      fmt::format_to_n(address.sun_path + 1, sizeof address.sun_path - 1, "verbena-core-{}-{}", scope, core);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + end.size);
}

/// Abstract sockets need no user's permission, so a container or a security module has denied them.
std::unexpected<Error> denied(const char* call, int system_errno) noexcept {
  return fail(Status::kPermission, call, system_errno, "abstract Unix sockets are denied to this process");
}

/// Keeps the claims that a plan uses, and takes those that it lacks.
class Claimer {
 public:
  Claimer(const Topology& topology, const PlacementRequest& request, std::string_view scope)
      : topology_(topology), request_(request), scope_(scope), taken_(claimed_cores(topology, scope)) {
    taken_.insert(taken_.end(), request.claimed.begin(), request.claimed.end());
  }

  [[nodiscard]] Result<HeldPlacement> claim() {
    // Bounded: each round but the last finds one more core that is taken, and without free cores there is nothing to
    // claim.
    for (;;) {
      PlacementRequest request = request_;
      request.claimed = taken_;
      VERBENA_ASSIGN(Placement plan, plan_placement(topology_, request));
      if (!take_all(plan)) continue;
      std::erase_if(claims_, [&](const CoreClaim& claim) { return !uses(plan, claim.core()); });
      return HeldPlacement{.plan = std::move(plan), .claims = std::move(claims_)};
    }
  }

 private:
  [[nodiscard]] static bool uses(const Placement& plan, unsigned core) noexcept {
    return std::ranges::any_of(plan.pollers,
                               [&](const auto& poller) { return poller.core && poller.core->id == core; });
  }

  /// False if another process has one of the plan's cores.
  [[nodiscard]] bool take_all(Placement& plan) {
    for (const PlacedPoller& poller : plan.pollers) {
      if (!poller.core || std::ranges::find(claims_, poller.core->id, &CoreClaim::core) != claims_.end()) continue;
      auto claim = CoreClaim::take(poller.core->id, scope_);
      if (claim) {
        claims_.push_back(std::move(*claim));
      } else if (claim.error().status() == Status::kBusy) {
        taken_.push_back(poller.core->id);
        return false;
      } else {
        plan.words.push_back(fmt::format("The core of cpu {} is not claimed, so others may poll there too: {}.",
                                         poller.core->cpu, claim.error().text()));
      }
    }
    return true;
  }

  const Topology& topology_;
  const PlacementRequest& request_;
  std::string_view scope_;
  std::vector<unsigned> taken_;
  std::vector<CoreClaim> claims_;
};

/// Turns a failed allocation into an error.
template <class Value, class Body>
Result<Value> without_throwing(const char* call, Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, call, ENOMEM, "no memory for a placement");
  }
}

}  // namespace

Result<Placement> plan_placement(const Topology& topology, const PlacementRequest& request) {
  if (request.pollers == 0 || request.pollers > kMaxPollers)
    return fail(Status::kBadArgument, "plan_placement", 0, "{} pollers were asked for: it must be 1 to {}",
                request.pollers, kMaxPollers);
  return without_throwing<Placement>("plan_placement", [&] { return Planner(topology, request).plan(); });
}

Result<CoreClaim> CoreClaim::take(unsigned core, std::string_view scope) {
  sockaddr_un address;
  const socklen_t length = address_of(core, scope, address);
  if (length == 0) return fail(Status::kBadArgument, "CoreClaim::take", 0, "a scope has at most 64 bytes");
  // A datagram socket, because a check whether it exists leaves nothing in its owner's queues.
  Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd && (errno == EPERM || errno == EACCES)) return denied("socket", errno);
  if (!fd) return fail_system("socket", errno, "claiming a core");
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EPERM || errno == EACCES) return denied("bind", errno);
    if (errno != EADDRINUSE) return fail_system("bind", errno, "claiming a core");
    return fail(Status::kBusy, "bind", errno,
                "the core of cpu {} is claimed: `ss -xap | grep verbena-core` says by whom", core);
  }
  return CoreClaim(std::move(fd), core);
}

bool CoreClaim::is_taken(unsigned core, std::string_view scope) noexcept {
  sockaddr_un address;
  const socklen_t length = address_of(core, scope, address);
  const Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return length != 0 && fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
}

std::vector<unsigned> claimed_cores(const Topology& topology, std::string_view scope) {
  std::vector<unsigned> claimed;
  for (const Core& core : topology.cores())
    if (CoreClaim::is_taken(core.id, scope)) claimed.push_back(core.id);
  return claimed;
}

Result<HeldPlacement> claim_placement(const Topology& topology, const PlacementRequest& request,
                                      std::string_view scope) {
  return without_throwing<HeldPlacement>("claim_placement", [&] { return Claimer(topology, request, scope).claim(); });
}

}  // namespace verbena::host
