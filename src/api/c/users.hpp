// Users that options of the C API allow.
#pragma once

#include "base/error.hpp"

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace verbena::api::c {

/// A copy of `allowed_uids`. kBadArgument when it is null, and the count is not 0. \thread any
[[nodiscard]] inline Result<std::vector<uid_t>> users_of(const uid_t* users, std::size_t count) {
  if (users == nullptr && count != 0)
    return fail(Status::kBadArgument, "options", 0,
                "allowed_uids must not be null where allowed_uid_count is not 0; got {}", count);
  return std::vector<uid_t>(users, users + count);
}

}  // namespace verbena::api::c
