// The whole of the facts, and what follows from them for a program.
#include "programs/info.hpp"

#include "link/fabric.hpp"
#include "programs/environment.hpp"

#include <fmt/core.h>

namespace verbena::programs {

namespace {
/// No name is resolved and no path sought.
constexpr std::chrono::seconds kChoiceTimeout{5};
}  // namespace

NicChoice choose_nic() {
  const auto fabric = link::Fabric::open({}, Deadline::after(kChoiceTimeout));
  if (fabric) return {.name = (*fabric)->nic().name(), .reason = (*fabric)->reason()};
  return {.name = "none", .reason = fabric.error().text()};
}

HostFacts read_host(const SystemFiles& files) {
  HostFacts facts{.kernel = read_environment().kernel,
                  .devices = read_devices(files),
                  .modules = read_modules(files),
                  .memory = read_memory(files),
                  .limits = read_limits(files),
                  .permissions = probe_permissions(files),
                  .nic = {}};
  if (!facts.devices.empty()) explain_atomics(facts.devices, nic::list_devices());
  facts.nic = choose_nic();
  return facts;
}

}  // namespace verbena::programs
