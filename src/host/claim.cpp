// Claims a core for a thread on the real machine.
#include "host/placement.hpp"

namespace verbena::host {

Result<HeldPlacement> claim_for_thread(const char* device) {
  VERBENA_ASSIGN(const Topology topology, Topology::read());
  const Locality locality = device != nullptr ? topology.locality_of(device) : Locality{};
  return claim_placement(topology, {.pollers = 1, .device = locality});
}

}  // namespace verbena::host
