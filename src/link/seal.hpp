// How two ends prove to each other that they have the same key, and that nobody has changed what they said.
#pragma once

#include "base/mac.hpp"
#include "link/frames.hpp"
#include "link/keys.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace verbena::link {

/// The frames of one handshake that have a seal, in their order. Each step is one side's, so that no seal of a side is
/// ever good as the other side's.
enum class SealedStep : std::uint8_t {
  kChallenge = 1,
  kClientHello = 2,
  kServerHello = 3,
  kClientReady = 4,
  kServerReady = 5,
};

/// One end's view of a handshake with a key. A frame's seal is a MAC, by the key, of its step, of the seal before it
/// and of the frame; the first one is over KEY. So each seal is over everything that was said before, both sides'
/// random numbers with it, and is good in this handshake and at this step only. \thread owner  \alloc none
class Seal {
 public:
  /// `claim` is the whole KEY frame.
  Seal(std::shared_ptr<const Key> key, std::span<const std::byte> claim) noexcept;
  [[nodiscard]] const std::string& key_name() const noexcept { return key_->name(); }
  /// A frame of this side, sealed. Once for each step.
  [[nodiscard]] Frame put(SealedStep step, const Frame& frame) noexcept;
  /// Whether the peer's frame, which decodes as a sealed one, has the seal that it should have. Nothing changes if not.
  [[nodiscard]] bool check(SealedStep step, std::span<const std::byte> frame) noexcept;

 private:
  [[nodiscard]] Mac over(SealedStep step, std::span<const std::byte> covered) const noexcept;
  void agree_on(SealedStep step, const Mac& mac) noexcept;

  std::shared_ptr<const Key> key_;
  Mac chain_;
};

}  // namespace verbena::link
