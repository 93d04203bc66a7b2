#include "base/check.hpp"
#include "base/error.hpp"

#include <verbena/deadline.hpp>
#include <verbena/wait_policy.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace verbena {

const char* to_string(WaitPolicy policy) noexcept {
  switch (policy) {
    case WaitPolicy::kSpin: return "spin";
    case WaitPolicy::kAdaptive: return "adaptive";
    case WaitPolicy::kEvent: return "event";
  }
  return "?";
}

const char* to_string(Status status) noexcept {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kAgain: return "try again";
    case Status::kTimedOut: return "timed out";
    case Status::kNotFound: return "not found";
    case Status::kVersionMismatch: return "version mismatch";
    case Status::kBadKey: return "bad key";
    case Status::kTooLong: return "too long";
    case Status::kBufferTooSmall: return "buffer too small";
    case Status::kStoreFull: return "store full";
    case Status::kIndexFull: return "index full";
    case Status::kWrongKind: return "wrong kind";
    case Status::kBadArgument: return "bad argument";
    case Status::kOutOfRange: return "out of range";
    case Status::kLocalAccess: return "local access";
    case Status::kUnsupported: return "unsupported";
    case Status::kBusy: return "busy";
    case Status::kPeerLost: return "peer lost";
    case Status::kConnectionRefused: return "connection refused";
    case Status::kRejected: return "rejected";
    case Status::kProtocol: return "protocol error";
    case Status::kRemoteAccess: return "remote access";
    case Status::kRemoteInvalid: return "remote invalid request";
    case Status::kRetryExceeded: return "retries exceeded";
    case Status::kRnrExceeded: return "receiver-not-ready retries exceeded";
    case Status::kFlushed: return "flushed";
    case Status::kClosed: return "closed";
    case Status::kNotAllowed: return "not allowed";
    case Status::kOtherNamespace: return "other namespace";
    case Status::kOtherHost: return "other host";
    case Status::kNoMemory: return "no memory";
    case Status::kLimit: return "limit reached";
    case Status::kPermission: return "permission denied";
    case Status::kDevice: return "device failed";
    case Status::kSystem: return "system error";
  }
  return "unknown status";
}

Error::Error(Status status, const char* call, int system_errno, std::string_view text) noexcept
    : status_(status), errno_(system_errno), call_(call) {
  const std::size_t length = std::min(text.size(), kTextBytes - 1);
  std::ranges::copy(text.substr(0, length), text_.begin());
  text_[length] = '\0';
}

Status status_of_errno(int system_errno) noexcept {
  switch (system_errno) {
    case ENOMEM: return Status::kNoMemory;
    case EPERM:
    case EACCES: return Status::kPermission;
    case EMFILE:
    case ENFILE:
    case ENOSPC: return Status::kLimit;
    case ECONNREFUSED: return Status::kConnectionRefused;
    case ECONNRESET:
    case EPIPE: return Status::kPeerLost;
    case ETIMEDOUT: return Status::kTimedOut;
    case ENOSYS:
    case EOPNOTSUPP: return Status::kUnsupported;
    default: return Status::kSystem;
  }
}

namespace {
const char* usual_fix(int system_errno) noexcept {
  switch (system_errno) {
    case ENOMEM: return "; free memory, or ask for less";
    case EMFILE: return "; raise the process's limit of open files (ulimit -n)";
    case ENFILE: return "; raise the system's limit of open files (sysctl fs.file-max)";
    case EPERM:
    case EACCES: return "; run as the user that owns it, or with the capability that it needs";
    case EADDRINUSE: return "; choose another port, or stop what listens there";
    case ENOSYS: return "; this kernel does not have the call, or seccomp denies it";
    default: return "";
  }
}
}  // namespace

Error system_error(const char* call, int system_errno, std::string_view what) noexcept {
  const char* description = strerrordesc_np(system_errno);
  return format_error(status_of_errno(system_errno), call, system_errno, "{}: {} failed: {}{}", what, call,
                      description != nullptr ? description : "unknown errno", usual_fix(system_errno));
}

void check_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "verbena: broken invariant: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

namespace {
std::uint64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

double measure_ticks_per_us() noexcept {
#if defined(__x86_64__)
  // The pair (clock, counter) is read three times at each end and the tightest reading kept: an interrupt
  // between the two reads would otherwise count as drift. 2 ms at 50 ns of uncertainty is 25 ppm.
  struct Reading {
    std::uint64_t ns, ticks, width;
  };
  const auto read = []() noexcept {
    Reading best{0, 0, ~std::uint64_t{0}};
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t before = ticks_now();
      const std::uint64_t ns = monotonic_ns();
      const std::uint64_t after = ticks_now();
      if (after - before < best.width) best = {ns, before + (after - before) / 2, after - before};
    }
    return best;
  };
  const Reading begin = read();
  while (monotonic_ns() - begin.ns < 2'000'000) {}
  const Reading end = read();
  return static_cast<double>(end.ticks - begin.ticks) * 1e3 / static_cast<double>(end.ns - begin.ns);
#else
  return 1e3;
#endif
}
}  // namespace

double ticks_per_us() noexcept {
  static const double measured = measure_ticks_per_us();
  return measured;
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
