// Seals: two ends prove to each other that they have the same key, and that nobody has changed their frames.
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

/// The frames of one handshake that have a seal, in their order. Each step belongs to one side, so a seal of one side
/// is never valid as the other side's.
enum class SealedStep : std::uint8_t {
  kChallenge = 1,
  kClientHello = 2,
  kServerHello = 3,
  kClientReady = 4,
  kServerReady = 5,
};

/// One end's view of a handshake with a key. A frame's seal is a MAC, by the key, of its step, the previous seal and
/// the frame; the first one covers KEY. So each seal covers all earlier frames, with both sides' random numbers, and is
/// valid only in this handshake and at this step. \thread owner  \alloc none
class Seal {
 public:
  /// `claim` is the whole KEY frame.
  Seal(std::shared_ptr<const Key> key, std::span<const std::byte> claim) noexcept;
  [[nodiscard]] const std::string& key_name() const noexcept { return key_->name(); }
  /// Seals a frame of this side. Call it once for each step.
  [[nodiscard]] Frame put(SealedStep step, const Frame& frame) noexcept;
  /// Whether the peer's frame, which must decode as a sealed one, has the right seal. Changes nothing if not.
  [[nodiscard]] bool check(SealedStep step, std::span<const std::byte> frame) noexcept;

 private:
  [[nodiscard]] Mac over(SealedStep step, std::span<const std::byte> covered) const noexcept;
  void agree_on(SealedStep step, const Mac& mac) noexcept;

  std::shared_ptr<const Key> key_;
  Mac chain_;
};

}  // namespace verbena::link
