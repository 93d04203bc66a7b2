#include "session/settings.hpp"

#include "base/error.hpp"
#include "base/limit.hpp"
#include "session/wire.hpp"

namespace verbena::session {

Result<Settings> checked(Settings settings) {
  constexpr const char* kCall = "options";
  constexpr std::int64_t kLongestMs = 1 << 30;
  const auto check_time = [&](const char* name, std::chrono::milliseconds time) -> Result<void> {
    if (time.count() >= 1 && time.count() <= kLongestMs) return {};
    return fail(Status::kBadArgument, kCall, 0, "{} must be 1 to {} ms; got {}", name, kLongestMs, time.count());
  };
  VERBENA_TRY(check_time("connect_timeout", settings.connect_timeout));
  VERBENA_TRY(check_time("timeout", settings.timeout));
  VERBENA_TRY(check_limit(kCall, "max_connections", settings.max_connections, 1, 65536));
  VERBENA_TRY(check_limit(kCall, "inbox_bytes", settings.inbox_bytes, wire::kMinInboxBytes, wire::kMaxInboxBytes));
  VERBENA_TRY(check_limit(kCall, "window_bytes", settings.window_bytes, 0, wire::kMaxWindowBytes));
  VERBENA_TRY(check_limit(kCall, "max_message_bytes", settings.max_message_bytes, 1, std::uint64_t{1} << 40));
  if (settings.window.size() % wire::kWindowUnit != 0)
    return fail(Status::kBadArgument, kCall, 0, "window must have a multiple of {} bytes; got {}", wire::kWindowUnit,
                settings.window.size());
  settings.window_bytes = (settings.window_bytes + wire::kWindowUnit - 1) / wire::kWindowUnit * wire::kWindowUnit;
  return settings;
}

}  // namespace verbena::session
