#include "base/mac.hpp"

#include "base/error.hpp"

#include <sodium.h>

namespace verbena {

namespace {
const unsigned char* bytes_of(std::span<const std::byte> bytes) noexcept {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
}  // namespace

static_assert(kMacBytes == crypto_auth_hmacsha256_BYTES);

Result<void> check_mac() noexcept {
  // Returns 1 if it has started before. Several threads may call it at the same time.
  if (sodium_init() >= 0) return {};
  return fail(Status::kSystem, "sodium_init", 0,
              "libsodium does not start: see that this process may call getrandom, or open /dev/urandom");
}

Mac mac_of(std::span<const std::byte> secret, std::initializer_list<std::span<const std::byte>> parts) noexcept {
  Mac mac;
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes_of(secret), secret.size());
  for (const auto part : parts) crypto_auth_hmacsha256_update(&state, bytes_of(part), part.size());
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(mac.data()));
  sodium_memzero(&state, sizeof state);
  return mac;
}

bool is_same(const Mac& a, const Mac& b) noexcept { return sodium_memcmp(a.data(), b.data(), kMacBytes) == 0; }

}  // namespace verbena
