// What tests of coroutines share.
#pragma once

#include <verbena/coroutines.hpp>

#include <result.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

namespace verbena::coroutine {

[[nodiscard]] inline Deadline soon() { return Deadline::after(std::chrono::seconds{20}); }
[[nodiscard]] inline Deadline in_ms(int count) { return Deadline::after(std::chrono::milliseconds{count}); }

[[nodiscard]] inline std::unique_ptr<Loop> loop_of(const LoopOptions& options = {}) {
  auto made = Loop::make(options);
  EXPECT_OK(made);
  return made ? std::move(*made) : nullptr;
}

}  // namespace verbena::coroutine
