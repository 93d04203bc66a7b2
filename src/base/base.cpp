#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"

#include <verbena/deadline.hpp>
#include <verbena/wait_policy.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace verbena {

const char* to_string(WaitPolicy policy) noexcept {
  switch (policy) {
    case WaitPolicy::kSpin: return "spin";
    case WaitPolicy::kAdaptive: return "adaptive";
    case WaitPolicy::kEvent: return "event";
  }
  return "?";
}

namespace {
/// In the order of Status.
constexpr const char* kStatusNames[] = {
    "ok",
    // Nothing is damaged.
    "try again", "timed out",
    // The operation failed.
    "not found", "version mismatch", "bad key", "too long", "buffer too small", "store full", "index full",
    "wrong kind", "bad argument", "out of range", "local access", "unsupported", "busy",
    // The connection is damaged.
    "peer lost", "connection refused", "rejected", "protocol error", "remote access", "remote invalid request",
    "retries exceeded", "receiver-not-ready retries exceeded", "flushed", "closed", "not allowed", "other namespace",
    "other host",
    // The device, the process or the machine lacks something.
    "no memory", "limit reached", "permission denied", "device failed", "system error", "forked",
    // The operation failed, too.
    "denied", "over quota", "cancelled"};
static_assert(std::size(kStatusNames) == static_cast<std::size_t>(Status::kCancelled) + 1);
}  // namespace

const char* to_string(Status status) noexcept {
  const auto at = static_cast<std::size_t>(status);
  return at < std::size(kStatusNames) ? kStatusNames[at] : "unknown status";
}

Error::Error(Status status, const char* call, int system_errno, std::string_view text) noexcept
    : status_(status), errno_(system_errno), call_(call) {
  const std::size_t length = std::min(text.size(), kTextBytes - 1);
  std::ranges::copy(text.substr(0, length), text_.begin());
  text_[length] = '\0';
}

namespace {
/// The status that an errno of a system call stands for, and its usual fix.
struct Errno {
  int number;
  Status status = Status::kSystem;
  const char* fix = "";
};
constexpr const char* kPermissionFix = "; run as the user that owns it, or with the capability that it needs";
constexpr Errno kErrnos[] = {
    {ENOMEM, Status::kNoMemory, "; free memory, or ask for less"},
    {EPERM, Status::kPermission, kPermissionFix},
    {EACCES, Status::kPermission, kPermissionFix},
    {EMFILE, Status::kLimit, "; raise the process's limit of open files (ulimit -n)"},
    {ENFILE, Status::kLimit, "; raise the system's limit of open files (sysctl fs.file-max)"},
    {ENOSPC, Status::kLimit},
    {ECONNREFUSED, Status::kConnectionRefused},
    {ECONNRESET, Status::kPeerLost},
    {EPIPE, Status::kPeerLost},
    {ETIMEDOUT, Status::kTimedOut},
    {ENOSYS, Status::kUnsupported, "; this kernel does not have the call, or seccomp denies it"},
    {EOPNOTSUPP, Status::kUnsupported},
    {EADDRINUSE, Status::kSystem, "; choose another port, or stop what listens there"},
};
Errno known_errno(int number) noexcept {
  const auto* const found = std::ranges::find(kErrnos, number, &Errno::number);
  return found != std::end(kErrnos) ? *found : Errno{number};
}
}  // namespace

Status status_of_errno(int system_errno) noexcept { return known_errno(system_errno).status; }

Error system_error(const char* call, int system_errno, std::string_view what) noexcept {
  const char* description = strerrordesc_np(system_errno);
  return format_error(status_of_errno(system_errno), call, system_errno, "{}: {} failed: {}{}", what, call,
                      description != nullptr ? description : "unknown errno", known_errno(system_errno).fix);
}

void check_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "verbena: broken invariant: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

Deadline Deadline::after(std::chrono::nanoseconds in) noexcept {
  if (in <= std::chrono::nanoseconds::zero()) return now();
  if (in == std::chrono::nanoseconds::max()) return never();
  const double ticks = static_cast<double>(in.count()) * 1e-3 * ticks_per_us();
  const std::uint64_t start = ticks_now();
  constexpr double kFarthest = 9e18;  // Below 2^63: a sum with any counter value stays below never().
  return Deadline{start + static_cast<std::uint64_t>(std::min(ticks, kFarthest))};
}

std::chrono::nanoseconds Deadline::left() const noexcept {
  if (is_never()) return std::chrono::nanoseconds::max();
  const std::uint64_t at = ticks_now();
  look_at_clock(at);  // The caller is about to sleep.
  if (ticks_ <= at) return std::chrono::nanoseconds::zero();
  const double ns = static_cast<double>(ticks_ - at) * 1e3 / ticks_per_us();
  return std::chrono::nanoseconds{static_cast<std::int64_t>(std::min(ns, 9e18))};
}

int Deadline::left_ms() const noexcept {
  if (is_never()) return -1;
  const auto ns = left().count();
  constexpr std::int64_t kMost = 1'000'000'000;
  return static_cast<int>(std::min((ns + 999'999) / 1'000'000, kMost));
}

}  // namespace verbena
