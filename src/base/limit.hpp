// One error text for all limits that are out of range.
#pragma once

#include "base/error.hpp"

#include <cstdint>

namespace verbena {

/// kBadArgument, with all the numbers, unless `value` is `least` to `most`. \thread any  \alloc none
[[nodiscard]] inline Result<void> check_limit(const char* call, const char* name, std::uint64_t value,
                                              std::uint64_t least, std::uint64_t most) {
  if (value >= least && value <= most) return {};
  return fail(Status::kBadArgument, call, 0, "{} must be {} to {}; got {}", name, least, most, value);
}

}  // namespace verbena
