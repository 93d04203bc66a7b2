#include "link/seal.hpp"

#include <array>

namespace verbena::link {

namespace {
/// First input of every MAC, so that a secret that a program also uses elsewhere makes no valid seal there. It ends
/// with the version of the seals.
constexpr std::array kLabel{'v', 'e', 'r', 'b', 'e', 'n', 'a', ' ', 'h', 'a', 'n', 'd', 's', 'h', 'a', 'k', 'e', '1'};
constexpr std::uint8_t kClaim = 0;  ///< Differs from all steps.
}  // namespace

// The label, the step number and a seal have fixed lengths, so no two lists of parts have the same bytes.
Seal::Seal(std::shared_ptr<const Key> key, std::span<const std::byte> claim) noexcept
    : key_(std::move(key)),
      chain_(mac_of(key_->secret(), {std::as_bytes(std::span(kLabel)), std::as_bytes(std::span(&kClaim, 1)), claim})) {}

Mac Seal::over(SealedStep step, std::span<const std::byte> covered) const noexcept {
  const auto number = static_cast<std::uint8_t>(step);
  return mac_of(key_->secret(),
                {std::as_bytes(std::span(kLabel)), std::as_bytes(std::span(&number, 1)), chain_, covered});
}

/// Both READYs cover the same earlier frames, because a server makes its own before it has the client's.
void Seal::agree_on(SealedStep step, const Mac& mac) noexcept {
  if (step < SealedStep::kClientReady) chain_ = mac;
}

Frame Seal::put(SealedStep step, const Frame& frame) noexcept {
  Frame sealed = with_room_for_seal(frame);
  const Mac mac = over(step, covered_by_seal(sealed.bytes()));
  set_seal(sealed, mac);
  agree_on(step, mac);
  return sealed;
}

bool Seal::check(SealedStep step, std::span<const std::byte> frame) noexcept {
  const Mac mac = over(step, covered_by_seal(frame));
  if (!is_same(mac, seal_of(frame))) return false;
  agree_on(step, mac);
  return true;
}

}  // namespace verbena::link
