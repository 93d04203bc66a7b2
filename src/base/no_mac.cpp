// Replaces mac.cpp in a build without libsodium. Everything that uses a key file calls check_mac first.
#include "base/error.hpp"
#include "base/mac.hpp"

namespace verbena {

Result<void> check_mac() noexcept {
  return fail(Status::kUnsupported, "keys", 0,
              "this build of Verbena has no keys: install libsodium (libsodium-dev, libsodium-devel), and configure it "
              "with -Dkeys=enabled");
}

Mac mac_of(std::span<const std::byte>, std::initializer_list<std::span<const std::byte>>) noexcept { return {}; }

bool is_same(const Mac&, const Mac&) noexcept { return false; }

}  // namespace verbena
