#include "channel/life.hpp"

#include "base/check.hpp"
#include "base/error.hpp"

#include <array>
#include <cstring>
#include <utility>

namespace verbena::channel {

Result<void> Life::describe(const wire::Handshake& mine, std::uint32_t receives, std::span<const std::byte> user_data) {
  constexpr std::size_t kMost = link::kMaxPrivateBytes - wire::kMaxHandshakeBytes;
  if (user_data.size() > kMost)
    return fail(Status::kTooLong, "connect", 0, "{} bytes of user data; {} fit", user_data.size(), kMost);
  // The packet number and generation are random, so describe only once.
  if (!local_) local_ = link::describe(pair_.nic(), pair_.get(), receives);
  const auto front = wire::encode(mine);
  std::array<std::byte, link::kMaxPrivateBytes> data;
  std::memcpy(data.data(), front.data.data(), front.size);
  if (!user_data.empty()) std::memcpy(data.data() + front.size, user_data.data(), user_data.size());
  const Status set = local_->set_user_data({data.data(), front.size + user_data.size()});
  VERBENA_CHECK(set == Status::kOk);
  return {};
}

Result<void> Life::meet(std::unique_ptr<link::Handshake> handshake, link::Role role) {
  handshake_ = std::move(handshake);
  has_handshake_ = true;
  is_server_ = role == link::Role::kServer;
  return meet(handshake_->remote());
}

Result<void> Life::meet(const link::Endpoint& remote) {
  VERBENA_CHECK(state_ == State::kNew);
  VERBENA_ASSIGN(peer_, wire::decode(remote.user_data()));
  if (remote.recv_depth != wire::receives_for(peer_.depth))
    return fail(Status::kProtocol, "connect", 0, "the peer says it posts {} receives, and its depth is {}",
                remote.recv_depth, peer_.depth);
  remote_ = remote;
  state_ = State::kMet;
  return {};
}

Result<void> Life::hear(Deadline deadline) {
  VERBENA_CHECK(state_ != State::kNew);
  if (state_ == State::kMet) {
    const link::BringUp how = handshake_ ? handshake_->how() : link::BringUp{};
    VERBENA_TRY(link::bring_up(pair_.nic(), pair_.get(), local(), remote_, how, deadline));
    state_ = State::kUp;
  }
  if (state_ == State::kUp) {
    if (is_server_) VERBENA_TRY(handshake_->answer(local(), deadline));
    state_ = State::kTold;
  }
  if (state_ == State::kTold) {
    if (handshake_) VERBENA_TRY(handshake_->hear(deadline));
    state_ = State::kHeard;
  }
  return {};
}

Result<void> Life::connect(Deadline deadline) {
  VERBENA_TRY(hear(deadline));
  if (state_ == State::kHeard) state_ = State::kReady;
  if (state_ != State::kReady) return {};
  if (handshake_) {
    VERBENA_ASSIGN(link::Lifeline lifeline, handshake_->finish(deadline));
    handshake_.reset();
    pair_.keep(std::move(lifeline));
  }
  state_ = State::kOpen;
  return {};
}

void Life::refuse(const Error& why) noexcept {
  if (const auto handshake = std::exchange(handshake_, nullptr)) handshake->reject(why.status(), why.text());
}

}  // namespace verbena::channel
