// Children that were forked, without exec, from a process that uses the library: they have neither its threads nor its
// connections, and must leave both alone.
#pragma once

#include "base/cancellation.hpp"
#include "base/failure.hpp"

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

namespace verbena {

namespace detail {
extern constinit std::atomic<bool> is_forked;
}

/// Whether this process was forked while its parent had a NIC open. Its objects then belong to the parent: do not send,
/// join, unlink or free anything. \thread any  \alloc none
[[nodiscard]] inline bool is_forked() noexcept { return detail::is_forked.load(std::memory_order_relaxed); }

/// kForked in a process for which `is_forked` is true. \thread any
[[nodiscard]] inline Result<void> check_process() noexcept {
  if (!is_forked()) [[likely]]
    return {};
  return fail(Status::kForked, "", 0, "{}", sentence_of(Status::kForked));
}

/// While one lives, forked children know that they are (see `is_forked`). \thread any
class InUse {
 public:
  InUse() noexcept;
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
};

/// While one lives, forked children close a descriptor. Others learn from its closing that this process has ended; a
/// child that kept it open would keep a connection or a claim alive. Descriptors from kMost on stay open in children.
/// Move-only; end it before the descriptor. \thread any
class ClosedInChildren {
 public:
  static constexpr int kMost = 65'536;
  ClosedInChildren() noexcept = default;
  explicit ClosedInChildren(int fd) noexcept;
  ClosedInChildren(ClosedInChildren&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ClosedInChildren& operator=(ClosedInChildren&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ClosedInChildren();

 private:
  int fd_ = -1;
};

/// For a destroying operator delete: destroys and frees an object, but leaves it alone in a forked child.
template <class T>
void delete_unless_forked(T* object) noexcept {
  if (is_forked()) return;
  const CancellationHeld held;
  object->~T();
  if constexpr (alignof(T) > __STDCPP_DEFAULT_NEW_ALIGNMENT__) {
    ::operator delete(object, std::align_val_t{alignof(T)});
  } else {
    ::operator delete(object);
  }
}

}  // namespace verbena
