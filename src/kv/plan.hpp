// What a server of given options is made of: its limits, checked as a whole, and each worker's part. The server builds
// itself from it, and verbena-info prints it.
#pragma once

#include "host/memory_limits.hpp"
#include "host/placement.hpp"
#include "kv/worker.hpp"
#include "nic/nic.hpp"

#include <verbena/kv.hpp>

#include <optional>
#include <string>

namespace verbena::kv {

/// What no user sets, and tests do.
struct ServerInternals {
  std::uint64_t first_version = 1;  ///< Versions end at kMaxVersion.
};
/// As Server::start, which takes the defaults.
[[nodiscard]] Result<std::unique_ptr<Server>> start_server(const ServerOptions& options,
                                                           const ServerInternals& internals);

/// The limits by themselves and among each other. Errors: kBadArgument, with the sum that does not fit. \alloc none
[[nodiscard]] Result<void> check_options(const ServerOptions& options);
/// ServerOptions::max_value_bytes, or what is derived for it. Of options that are right.
[[nodiscard]] std::size_t max_value_of(const ServerOptions& options) noexcept;
/// ServerOptions::max_items, or what is derived for it. Of any options.
[[nodiscard]] std::size_t most_items_of(const ServerOptions& options) noexcept;
/// ServerOptions::max_clients_per_user, or what is derived for it. Of options that are right.
[[nodiscard]] unsigned most_of_a_stranger(const ServerOptions& options) noexcept;
/// What of the device they would exceed. Of checked options. Errors: kLimit, with the sum that does not fit.
/// \alloc none
[[nodiscard]] Result<void> check_device(const ServerOptions& options, const nic::Limits& limits);
/// Whether the device can tell what the options ask of it. Errors: kUnsupported. \alloc none
[[nodiscard]] Result<void> check_capabilities(const ServerOptions& options, const nic::Nic& nic);

/// What to ask a placement for: workers near the device, where there is one. \alloc setup
[[nodiscard]] host::PlacementRequest placement_request(const ServerOptions& options, const host::Topology& topology,
                                                       const nic::Nic& nic);

/// Worker `index` of a server with checked options; what all workers share is not in it. \alloc setup
[[nodiscard]] WorkerOptions worker_options(const ServerOptions& options, unsigned index,
                                           const host::PlacedPoller& place);

/// Every pool of a server, its workers placed like that, with as many clients as it lets in. \alloc setup
[[nodiscard]] host::Footprint footprint(const ServerOptions& options, const host::Placement& placement, nic::Kind kind,
                                        const nic::Limits& limits);
/// Whether what of them is allocated at the start, and by one client, can be had beside what the machine's limits
/// leave. What comes as used is not counted. Errors: kNoMemory, with the sum and its largest part. \alloc setup
[[nodiscard]] Result<void> check_memory(const ServerOptions& options, const host::Footprint& footprint,
                                        const std::optional<host::Headroom>& headroom);
/// A sentence when they cannot be had with all clients; empty when they can, as far as is known. \alloc setup
[[nodiscard]] std::string memory_warning(const ServerOptions& options, const host::Footprint& footprint,
                                         const std::optional<host::Headroom>& headroom);
/// How much of the item memory may rest: large values that were told by message and replaced. Of options that are
/// right. \alloc setup
[[nodiscard]] std::string resting_words(const ServerOptions& options);
/// A sentence when this process may not open as many file descriptors as all clients take; empty when it may, as far as
/// is known. `now` has those of a server without clients.
[[nodiscard]] std::string descriptor_warning(const ServerOptions& options, const nic::Capabilities& nic,
                                             const std::optional<host::Descriptors>& now);

}  // namespace verbena::kv
