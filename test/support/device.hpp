// The NIC that the suites above the seam run on: the soft one, or the RDMA device that VERBENA_NIC names.
#pragma once

#include "nic/verbs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace verbena::test {

/// The RDMA device under test, by name; null: none.
[[nodiscard]] inline const char* device_under_test() { return std::getenv("VERBENA_NIC"); }

[[nodiscard]] inline Result<std::unique_ptr<nic::Nic>> open_device_under_test() {
  return nic::open_verbs({.device = device_under_test()});
}

/// The device under test, or without one the soft NIC.
[[nodiscard]] inline Result<std::unique_ptr<nic::Nic>> open_nic_under_test() {
  return device_under_test() != nullptr ? open_device_under_test() : nic::open_soft({});
}

/// The kernel's Soft-RoCE, which lacks some of what the specification says. Tests of that skip it, and say what.
[[nodiscard]] inline bool is_soft_roce(const nic::Nic& nic) {
  constexpr std::uint32_t kVendor = 0xFFFFFF;
  const nic::DeviceFacts* facts = nic::facts_of(nic);
  return facts != nullptr && facts->vendor_id == kVendor;
}

/// As many rounds as a NIC takes in some seconds; all of them where a round is cheap.
[[nodiscard]] inline std::uint64_t rounds(const nic::Nic& nic, std::uint64_t count) {
  // A round trip through an emulated machine's kernel is a thousand times one through memory.
  return is_soft_roce(nic) ? std::max<std::uint64_t>(count / 50, 1) : count;
}

}  // namespace verbena::test

/// For a test of what the soft NIC alone has: `why` says what.
#define VERBENA_SKIP_ON_A_DEVICE(why) \
  if (::verbena::test::device_under_test() != nullptr) GTEST_SKIP() << "on an RDMA device: " << (why)
