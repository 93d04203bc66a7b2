// Checks of the APIs' arguments, with their sentences; the caller adds the name of the call.
#pragma once

#include "base/failure.hpp"
#include "base/limit.hpp"
#include "session/registrations.hpp"

#include <cstdint>
#include <string_view>

namespace verbena::api {

/// Refuses a null pointer, by name.
template <class T>
[[nodiscard]] Result<void> check_given(const char* name, T* pointer) noexcept {
  if (pointer != nullptr) [[likely]]
    return {};
  return fail(Status::kBadArgument, "", 0, "{} must not be null", name);
}
/// Refuses a 0, by name.
[[nodiscard]] inline Result<void> check_some(const char* name, std::uint64_t value) noexcept {
  if (value != 0) [[likely]]
    return {};
  return fail(Status::kBadArgument, "", 0, "{} must be at least 1; got 0", name);
}
/// Refuses, by name, a number of bytes that cannot be registered.
[[nodiscard]] inline Result<void> check_memory(const char* name, std::uint64_t bytes) noexcept {
  return check_limit("", name, bytes, 1, session::Registrations::kMaxBytes);
}
/// Refuses a port outside its range. \thread any
[[nodiscard]] inline Result<void> check_port(int port, int least) noexcept {
  if (port >= least && port <= 65535) return {};
  return fail(Status::kBadArgument, "", 0, "port must be {} to 65535; got {}", least, port);
}
/// Refuses a name that is null or invalid for a window.
[[nodiscard]] inline Result<void> check_name(const char* name) noexcept {
  constexpr std::size_t kMost = session::Registrations::kMaxNameBytes;
  VERBENA_TRY(check_given("name", name));
  if (const std::size_t length = std::string_view(name).size(); length == 0 || length > kMost)
    return fail(Status::kBadArgument, "", 0, "name must have 1 to {} bytes; got {}", kMost, length);
  return {};
}

/// The call's name as users write it, such as `verbena_rdmaConnect`.
[[nodiscard]] constexpr const char* as_written(const char* call) noexcept {
  constexpr std::string_view kPrefix = "verbena_";
  return std::string_view(call).starts_with(kPrefix) ? call + kPrefix.size() : call;
}

}  // namespace verbena::api
