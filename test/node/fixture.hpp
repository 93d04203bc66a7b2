// Devices of a test: each has the NIC that is under test, opened for it.
#pragma once

#include "link/shared_nic.hpp"
#include "node/device.hpp"
#include "node/shard.hpp"

#include <device.hpp>
#include <result.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

namespace verbena::node::test {

using namespace verbena::test;
using namespace std::chrono_literals;

[[nodiscard]] inline Deadline patience() { return Deadline::after(20s); }

[[nodiscard]] inline std::shared_ptr<Device> open_device() {
  auto nic = open_nic_under_test();
  EXPECT_OK(nic);
  const auto shared =
      std::make_shared<link::SharedNic>(std::move(*nic), [](nic::Nic& of) { return link::cm::start(of); });
  auto device = Device::of(shared);
  EXPECT_OK(device);
  return *device;
}

}  // namespace verbena::node::test
