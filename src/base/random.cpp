#include "base/random.hpp"

#include "base/error.hpp"
#include "base/hash.hpp"

#include <verbena/deadline.hpp>

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace verbena {

Result<void> fill_random(std::span<std::byte> bytes) noexcept {
  // Every turn adds bytes or returns, unless a signal interrupts it.
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_system("getrandom", errno, "making a random number");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

std::uint64_t random_word() noexcept {
  std::uint64_t word = 0;
  if (!fill_random(std::as_writable_bytes(std::span(&word, 1)))) {
    static std::atomic<std::uint64_t> calls{0};
    const std::array seed{ticks_now(), static_cast<std::uint64_t>(getpid()),
                          calls.fetch_add(1, std::memory_order_relaxed)};
    word = hash64(std::as_bytes(std::span(seed)), 0);
  }
  return word != 0 ? word : 1;
}

void wipe(std::span<std::byte> bytes) noexcept { explicit_bzero(bytes.data(), bytes.size()); }

}  // namespace verbena
