// verbena-info --plan: what a server with given options would do on this machine, before it allocates anything.
#pragma once

#include "host/footprint.hpp"
#include "host/placement.hpp"

#include <verbena/error.hpp>
#include <verbena/kv.hpp>

#include <string>

namespace verbena::programs {

struct ServerPlan {
  std::string nic, nic_reason;
  host::Placement placement;
  host::Footprint server, client;  ///< With as many clients as it lets in; one client of it.
  std::string resting;             ///< How much of the items' memory may wait out a grace period.
  std::string memory;              ///< A sentence when memory does not do for all clients,
  std::string descriptors;         ///< and when file descriptors do not. `serve` raises its soft limit.
  std::string refused;             ///< Why a server would not start; empty when it would, as far as can be told.
};

/// Opens the NIC as such a server would, and closes it again. Claims no core. Errors: those of the options and of
/// opening the NIC.
[[nodiscard]] Result<ServerPlan> plan_server(const kv::ServerOptions& options);

[[nodiscard]] std::string plan_text(const ServerPlan& plan);
/// One JSON object and a line break.
[[nodiscard]] std::string plan_json(const ServerPlan& plan);

}  // namespace verbena::programs
