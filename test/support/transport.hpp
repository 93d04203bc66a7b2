// The NIC and bootstrap that suites of whole programs use: VERBENA_NIC (a device; default the soft NIC) and
// VERBENA_BOOTSTRAP (cm or socket; default cm).
#pragma once

#include "device.hpp"

#include <verbena/transport.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace verbena::test {

[[nodiscard]] inline Transport transport_under_test() {
  const char* nic = device_under_test();
  const char* bootstrap = std::getenv("VERBENA_BOOTSTRAP");
  Transport transport{.device = nic != nullptr ? nic : "soft", .gid_index = {}};
  if (bootstrap == nullptr || std::string_view(bootstrap) == "cm") return transport;
  if (std::string_view(bootstrap) != "socket") ADD_FAILURE() << "VERBENA_BOOTSTRAP is " << bootstrap;
  transport.bootstrap = Bootstrap::kSocket;
  return transport;
}
[[nodiscard]] inline bool is_soft_under_test() { return device_under_test() == nullptr; }

}  // namespace verbena::test
