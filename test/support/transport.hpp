// The NIC and bootstrap that suites of whole programs use: VERBENA_NIC (soft, or a device; default soft) and
// VERBENA_BOOTSTRAP (cm or socket; default cm).
#pragma once

#include <verbena/transport.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace verbena::test {

[[nodiscard]] inline Transport transport_under_test() {
  const char* nic = std::getenv("VERBENA_NIC");
  const char* bootstrap = std::getenv("VERBENA_BOOTSTRAP");
  Transport transport{.device = nic != nullptr ? nic : "soft", .gid_index = {}};
  if (bootstrap == nullptr || std::string_view(bootstrap) == "cm") return transport;
  if (std::string_view(bootstrap) != "socket") ADD_FAILURE() << "VERBENA_BOOTSTRAP is " << bootstrap;
  transport.bootstrap = Bootstrap::kSocket;
  return transport;
}
[[nodiscard]] inline bool is_soft_under_test() { return transport_under_test().device == "soft"; }

#define VERBENA_SKIP_ON_A_DEVICE(why) \
  if (!::verbena::test::is_soft_under_test()) GTEST_SKIP() << why

}  // namespace verbena::test
