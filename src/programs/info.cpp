// The whole of the facts, and what follows from them for a program.
#include "programs/info.hpp"

#include "programs/environment.hpp"

#include <fmt/format.h>

namespace verbena::programs {

NicChoice choose_nic(const HostFacts& facts) {
  if (!facts.permissions.soft_nic.works) return {.name = "none", .reason = facts.permissions.soft_nic.detail};
  NicChoice choice{.name = "soft",
                   .reason = "this release has the software NIC only, which joins processes of one host"};
  if (facts.devices.empty()) return choice;
  choice.reason += fmt::format("; {} {} there, and not used yet", facts.devices.front().name,
                               facts.devices.size() == 1 ? "is" : "and others are");
  return choice;
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
  facts.nic = choose_nic(facts);
  return facts;
}

}  // namespace verbena::programs
