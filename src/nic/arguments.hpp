// Checks of arguments that all NICs share, so that their errors are the same.
#pragma once

#include "base/error.hpp"
#include "nic/nic.hpp"

namespace verbena::nic {

inline constexpr int kRemoteWriters = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// kBusy while an object has users. `what` completes the sentence "3 ...": who they are, and that they still use it.
[[nodiscard]] inline Result<void> check_unused(const char* call, std::size_t users, const char* what) noexcept {
  if (users == 0) return {};
  return fail(Status::kBusy, call, EBUSY, "{} {}", users, what);
}
constexpr const char* kPdUsers = "queue pairs or memory regions still use the protection domain";
constexpr const char* kCqUsers = "queue pairs still use the completion queue";
constexpr const char* kSrqUsers = "queue pairs still use the shared receive queue";
constexpr const char* kChannelUsers = "completion queues still use the channel";

[[nodiscard]] inline Result<void> check_grant(const Grant& grant, host::Share share) noexcept {
  if (grant.to == Grant::To::kNobody || share != host::Share::kNone) return {};
  return fail(Status::kBadArgument, "attach", 0,
              "the arena was made with Share::kNone and can be granted to nobody; make it kReadOnly or kReadWrite");
}

[[nodiscard]] inline Result<void> check_arena(const host::Arena& arena, const Grant& grant) noexcept {
  if (arena.data() == nullptr) return fail(Status::kBadArgument, "attach", 0, "the arena is empty");
  return check_grant(grant, arena.share());
}

[[nodiscard]] inline Result<void> check_region_access(int access) noexcept {
  if ((access & kRemoteWriters) == 0 || (access & IBV_ACCESS_LOCAL_WRITE) != 0) return {};
  return fail(Status::kBadArgument, "reg_mr", EINVAL, "remote write and atomic access need IBV_ACCESS_LOCAL_WRITE too");
}

/// Subtracts one import of a window, counted by its key or index, from a queue pair's imports.
template <class Imports>
[[nodiscard]] Result<void> take_import(Imports& imports, std::uint32_t key) noexcept {
  const auto at = imports.find(key);
  if (at == imports.end())
    return fail(Status::kBadArgument, "release_window", EINVAL, "the window was not imported on this queue pair");
  if (--at->second == 0) imports.erase(at);
  return {};
}

[[nodiscard]] inline Result<void> check_cqe(std::uint32_t cqe, const Limits& limits) noexcept {
  if (cqe != 0 && cqe <= limits.max_cqe) return {};
  return fail(Status::kBadArgument, "create_cq", EINVAL, "{} completions: a queue holds 1 to {}", cqe, limits.max_cqe);
}

}  // namespace verbena::nic
