// The states of a handshake, over any bootstrap.
#include "base/error.hpp"
#include "link/frames.hpp"
#include "link/link.hpp"
#include "link/socket.hpp"

#include <poll.h>

#include <utility>

namespace verbena::link {

Handshake::Handshake(Role role, const Endpoint& remote, std::size_t max_answer_bytes,
                     std::unique_ptr<nic::Inquiry> inquiry) noexcept
    : state_(role == Role::kClient ? State::kMet
             : inquiry != nullptr  ? State::kClaimed
                                   : State::kAsked),
      role_(role),
      events_(POLLIN),
      remote_(remote),
      max_answer_bytes_(max_answer_bytes),
      inquiry_(std::move(inquiry)) {}

Error Handshake::not_now(const char* call) const noexcept {
  return format_error(Status::kBadArgument, call, 0, "{}",
                      is_over()                   ? "this handshake is over: each is finished, or rejected, once"
                      : role_ == Role::kClient    ? "a client's handshake has the server's answer: call finish"
                      : state_ == State::kMet     ? "the client has its answer: call finish"
                      : state_ == State::kClaimed ? "nobody has confirmed the client's HELLO: call confirm first"
                                                  : "the client waits for an answer: call answer first");
}

BringUp Handshake::how() const noexcept {
  BringUp options;
  if (!is_over()) options.route = route();
  return options;
}

void Handshake::reject(Status status, std::string_view text) noexcept {
  if (is_over()) return;
  // After half of a HELLO the client would take it for the rest of the HELLO.
  if (state_ != State::kAnswering) send_reject(status, text);
  state_ = State::kOver;
  close();
}

template <class Attempt>
Result<void> Handshake::drive(const char* call, State again, State next, Deadline deadline, const Attempt& attempt) {
  state_ = State::kOver;  // Set first, in case memory runs out in the attempt.
  const auto end = [this](const Error& error) {
    close();
    return std::unexpected(error);
  };
  for (;;) {
    const Result<bool> outcome = attempt();
    // A peer's REJECT may have kAgain, which would mean here that the handshake goes on.
    if (!outcome && outcome.error().status() == Status::kAgain)
      return end(Error(Status::kRejected, outcome.error().call(), 0, outcome.error().text()));
    if (!outcome) return end(outcome.error());
    if (*outcome) {
      state_ = next;
      return {};
    }
    if (is_attempt(deadline)) {
      state_ = again;
      return fail(Status::kAgain, call, 0,
                  "the peer has not done its part of the handshake yet: poll the descriptor, then call again");
    }
    const auto is_ready = wait_for(descriptor(), events_, deadline);
    if (!is_ready) return end(is_ready.error());
    if (!*is_ready) return end(late());
  }
}

short Handshake::events() const noexcept {
  return state_ == State::kClaimed || state_ == State::kAsked ? POLLRDHUP : events_;
}

std::optional<uid_t> Handshake::uid() const { return inquiry_ != nullptr ? inquiry_->uid() : uid_; }

Result<void> Handshake::confirm(Deadline deadline) {
  constexpr const char* kCall = "Handshake::confirm";
  if (state_ != State::kAsked && state_ != State::kClaimed) return std::unexpected(not_now(kCall));
  const auto end = [this](const Error& why) {
    reject(why.status(), why.text());
    return std::unexpected(why);
  };
  if (has_hung_up()) return end(Error(Status::kPeerLost, kCall, 0, "the client has hung up"));
  if (state_ == State::kAsked) return {};
  const auto client = inquiry_->answer(deadline);
  if (!client && client.error().status() == Status::kAgain) return std::unexpected(client.error());
  inquiry_.reset();
  state_ = State::kAsked;
  if (!client) return end(client.error());
  uid_ = client->uid;
  return {};
}

Result<void> Handshake::answer(const Endpoint& local, Deadline deadline) {
  constexpr const char* kCall = "Handshake::answer";
  if (state_ != State::kAsked && state_ != State::kAnswering) return std::unexpected(not_now(kCall));
  if (state_ == State::kAsked) VERBENA_TRY(check_local(local, max_answer_bytes_, kCall));
  return drive(kCall, State::kAnswering, State::kMet, deadline, [&] { return try_answer(local); });
}

Result<void> Handshake::hear(Deadline deadline) {
  constexpr const char* kCall = "Handshake::hear";
  if (state_ != State::kMet) return std::unexpected(not_now(kCall));
  return drive(kCall, State::kMet, State::kMet, deadline, [this] { return try_hear(); });
}

Result<Lifeline> Handshake::finish(Deadline deadline) {
  constexpr const char* kCall = "Handshake::finish";
  if (state_ != State::kMet) return std::unexpected(not_now(kCall));
  VERBENA_TRY(drive(kCall, State::kMet, State::kOver, deadline, [this] { return try_finish(); }));
  auto lifeline = take_lifeline();
  close();
  return lifeline;
}

}  // namespace verbena::link
