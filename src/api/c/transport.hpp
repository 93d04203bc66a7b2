// Options that both C APIs have: how ends find each other, and which users may connect.
#pragma once

#include "base/error.hpp"

#include <verbena/transport.hpp>

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace verbena::api::c {

/// The rule for the bootstrap option, under each API's names: 0 is RDMA CM, 1 a socket.
inline constexpr const char* kBootstraps = "bootstrap must be RDMA_BOOTSTRAP_CM (0) or RDMA_BOOTSTRAP_SOCKET (1)";
inline constexpr const char* kModes = "mode must be CONN_MODE_CM (0) or CONN_MODE_SOCKET (1)";

/// Converts the options for device, bootstrap and GID. `device` may be null. Errors: kBadArgument (a caller may pass
/// any number). \thread any
[[nodiscard]] inline Result<Transport> transport_of(const char* rule, unsigned bootstrap, const char* device,
                                                    int gid_index) {
  if (bootstrap > 1) return fail(Status::kBadArgument, "options", 0, "{}; got {}", rule, bootstrap);
  if (gid_index < -1 || gid_index > 255)
    return fail(Status::kBadArgument, "options", 0, "gid_index must be 0 to 255, or -1 for the best; got {}",
                gid_index);
  Transport transport{.bootstrap = bootstrap == 1 ? Bootstrap::kSocket : Bootstrap::kCm};
  if (device != nullptr) transport.device = device;
  if (gid_index >= 0) transport.gid_index = static_cast<std::uint32_t>(gid_index);
  return transport;
}

/// The text of an option; null stands for none. \thread any  \alloc none
[[nodiscard]] inline const char* or_empty(const char* text) noexcept { return text != nullptr ? text : ""; }

/// A copy of `allowed_uids`. Errors: kBadArgument if it is null and the count is not 0. \thread any
[[nodiscard]] inline Result<std::vector<uid_t>> users_of(const uid_t* users, std::size_t count) {
  if (users == nullptr && count != 0)
    return fail(Status::kBadArgument, "options", 0,
                "allowed_uids must not be null where allowed_uid_count is not 0; got {}", count);
  return std::vector<uid_t>(users, users + count);
}

}  // namespace verbena::api::c
