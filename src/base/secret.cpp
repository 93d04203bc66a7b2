#include "base/secret.hpp"

#include "base/error.hpp"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace verbena {

Result<void> fill_random(std::span<std::byte> bytes) noexcept {
  // Every turn either adds bytes or returns, but for signals.
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_system("getrandom", errno, "making a number that nobody guesses");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

void wipe(std::span<std::byte> bytes) noexcept { explicit_bzero(bytes.data(), bytes.size()); }

}  // namespace verbena
