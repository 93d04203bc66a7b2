// A server's plan from its options: the limits, checked as a whole, and each worker's part. The server builds itself
// from it, and verbena-info prints it.
#pragma once

#include "host/memory_limits.hpp"
#include "host/placement.hpp"
#include "kv/worker.hpp"
#include "nic/nic.hpp"

#include <verbena/kv.hpp>

#include <optional>
#include <string>

namespace verbena::kv {

/// Settings for tests; users cannot set them.
struct ServerInternals {
  std::uint64_t first_version = 1;  ///< Versions end at kMaxVersion.
};
/// As Server::start, which uses the default internals.
[[nodiscard]] Result<std::unique_ptr<Server>> start_server(const ServerOptions& options,
                                                           const ServerInternals& internals);

/// Checks each limit, and the limits against each other. Errors: kBadArgument, with the sum that does not fit.
/// \alloc none
[[nodiscard]] Result<void> check_options(const ServerOptions& options);
/// ServerOptions::max_value_bytes, or its derived default. Requires valid options.
[[nodiscard]] std::size_t max_value_of(const ServerOptions& options) noexcept;
/// ServerOptions::max_items, or its derived default. For any options.
[[nodiscard]] std::size_t most_items_of(const ServerOptions& options) noexcept;
/// ServerOptions::max_clients_per_user, or its derived default. Requires valid options.
[[nodiscard]] unsigned most_of_a_stranger(const ServerOptions& options) noexcept;
/// Checks the options against the device's limits. Requires checked options. Errors: kLimit, with the sum that does not
/// fit.
/// \alloc none
[[nodiscard]] Result<void> check_device(const ServerOptions& options, const nic::Limits& limits);
/// Whether the device can identify what the options require. Errors: kUnsupported. \alloc none
[[nodiscard]] Result<void> check_capabilities(const ServerOptions& options, const nic::Nic& nic);

/// The request for a placement: workers near the device, if there is one. \alloc setup
[[nodiscard]] host::PlacementRequest placement_request(const ServerOptions& options, const host::Topology& topology,
                                                       const nic::Nic& nic);

/// Options of worker `index`. Requires checked options; leaves out what all workers share. \alloc setup
[[nodiscard]] WorkerOptions worker_options(const ServerOptions& options, unsigned index,
                                           const host::PlacedPoller& place);

/// Every pool of a server with this placement and as many clients as it accepts. \alloc setup
[[nodiscard]] host::Footprint footprint(const ServerOptions& options, const host::Placement& placement, nic::Kind kind,
                                        const nic::Limits& limits);
/// Whether the memory for the start and for one client fits what the machine's limits leave. Does not count memory
/// allocated on use. Errors: kNoMemory, with the sum and its largest part. \alloc setup
[[nodiscard]] Result<void> check_memory(const ServerOptions& options, const host::Footprint& footprint,
                                        const std::optional<host::Headroom>& headroom);
/// A sentence if the pools do not fit with all clients; empty if they do, as far as is known. \alloc setup
[[nodiscard]] std::string memory_warning(const ServerOptions& options, const host::Footprint& footprint,
                                         const std::optional<host::Headroom>& headroom);
/// How much of the item memory replaced large values may keep for their grace period. For options that are right.
/// \alloc setup
[[nodiscard]] std::string resting_words(const ServerOptions& options);
/// A sentence when this process may not open as many file descriptors as all clients take; empty when it may, as far as
/// is known. `now` has those of a server without clients.
[[nodiscard]] std::string descriptor_warning(const ServerOptions& options, const nic::Capabilities& nic,
                                             const std::optional<host::Descriptors>& now);

}  // namespace verbena::kv
