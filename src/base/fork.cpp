#include "base/fork.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>

namespace verbena {

constinit std::atomic<bool> detail::is_forked{false};

namespace {

constinit std::atomic<unsigned> users{0};

constexpr std::size_t kBits = 64;
/// One bit for each descriptor that children close.
constinit std::array<std::atomic<std::uint64_t>, ClosedInChildren::kMost / kBits> closing{};

// Runs in the child, whose only thread is the one that forked. Other threads may have held any lock at that moment.
void on_child() noexcept {
  if (users.load(std::memory_order_relaxed) == 0) return;
  detail::is_forked.store(true, std::memory_order_relaxed);
  for (std::size_t i = 0; i < closing.size(); ++i) {
    std::uint64_t bits = closing[i].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) (void)::close(static_cast<int>(i * kBits) + std::countr_zero(bits));
  }
}

[[nodiscard]] std::uint64_t bit_of(int fd) noexcept { return std::uint64_t{1} << static_cast<unsigned>(fd) % kBits; }

}  // namespace

InUse::InUse() noexcept {
  // Registers once per process. If there is no memory for it, children are not marked as forked.
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &on_child);
  users.fetch_add(1, std::memory_order_relaxed);
}
InUse::~InUse() { users.fetch_sub(1, std::memory_order_relaxed); }

ClosedInChildren::ClosedInChildren(int fd) noexcept : fd_(fd >= 0 && fd < kMost ? fd : -1) {
  if (fd_ >= 0) closing[static_cast<std::size_t>(fd_) / kBits].fetch_or(bit_of(fd_), std::memory_order_relaxed);
}
ClosedInChildren::~ClosedInChildren() {
  if (fd_ >= 0) closing[static_cast<std::size_t>(fd_) / kBits].fetch_and(~bit_of(fd_), std::memory_order_relaxed);
}

}  // namespace verbena
