// The NIC of a simulated process, by the name that the library opens its own by.
#include "sim_nic.hpp"
#include "tasks.hpp"

#include "base/check.hpp"
#include "nic/footprint.hpp"

namespace verbena::nic {

// Whoever opens a NIC is a task of a process, which has one.
Result<std::unique_ptr<Nic>> open_soft(const SoftOptions&) {
  VERBENA_CHECK(sim::Tasks::is_inside());
  return std::make_unique<sim::SimNic>(sim::Tasks::current()->process());
}

// What hardware has of its own is no memory of the host.
host::Footprint qp_footprint(Kind, const QpOptions&) { return {}; }
host::Footprint cq_footprint(Kind, std::uint32_t) { return {}; }
host::Footprint mw_footprint(Kind) { return {}; }

}  // namespace verbena::nic
