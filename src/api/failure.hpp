// Checks of arguments of the APIs, with their sentences.
#pragma once

#include "base/failure.hpp"
#include "session/registrations.hpp"

#include <cstdint>
#include <string_view>

namespace verbena::api {

/// Refuses a number outside its range, by name.
[[nodiscard]] inline bool is_in_range(const char* call, const char* name, std::uint64_t value, std::uint64_t least,
                                      std::uint64_t most) noexcept {
  if (value >= least && value <= most) [[likely]]
    return true;
  (void)note(Status::kBadArgument, call, "{} must be {} to {}; got {}", name, least, most, value);
  return false;
}
/// The same for one that is 1 or more.
[[nodiscard]] inline bool is_in_range(const char* call, const char* name, std::uint64_t value) noexcept {
  if (value >= 1) [[likely]]
    return true;
  (void)note(Status::kBadArgument, call, "{} must be at least 1; got 0", name);
  return false;
}
/// Refuses a null pointer, by name.
template <class T>
[[nodiscard]] inline bool is_given(const char* call, const char* name, T* pointer) noexcept {
  if (pointer != nullptr) [[likely]]
    return true;
  (void)note(Status::kBadArgument, call, "{} must not be null", name);
  return false;
}
/// Refuses a name that no window can have. \thread any
[[nodiscard]] inline bool is_name(const char* call, std::string_view name) noexcept {
  if (!name.empty() && name.size() <= session::Registrations::kMaxNameBytes) return true;
  (void)note(Status::kBadArgument, call, "name must have 1 to {} bytes; got {}", session::Registrations::kMaxNameBytes,
             name.size());
  return false;
}
/// Refuses a number of bytes that cannot be registered, by name.
[[nodiscard]] inline bool is_memory(const char* call, const char* name, std::uint64_t bytes) noexcept {
  return is_in_range(call, name, bytes, 1, session::Registrations::kMaxBytes);
}

/// `verbena_rdmaConnect` as users write it.
[[nodiscard]] constexpr const char* as_written(const char* call) noexcept {
  constexpr std::string_view kPrefix = "verbena_";
  return std::string_view(call).starts_with(kPrefix) ? call + kPrefix.size() : call;
}

}  // namespace verbena::api
