// Coroutines that wait for what links do.
#include <verbena/coroutines.hpp>

#include "api/cxx/link_state.hpp"
#include "base/failure.hpp"

#include <new>
#include <type_traits>

namespace verbena::coroutine::detail {

namespace {
constexpr const char* kCall = "coroutine";
}

struct LinkWait::Sending : session::SendCall {
  LinkWait* wait = nullptr;
};
struct LinkWait::Receiving : session::ReceiveCall {
  LinkWait* wait = nullptr;
};

template <class Kind>
Kind& LinkWait::call() noexcept {
  static_assert(sizeof(Kind) <= sizeof call_ && alignof(Kind) <= 8 && std::is_trivially_destructible_v<Kind>);
  return *std::launder(reinterpret_cast<Kind*>(call_.data()));
}

bool LinkWait::withdraw() noexcept {
  switch (what_) {
    case What::kNothing: return true;
    case What::kOperation: return started_->operations_->stop_awaiting(started_->slot_);
    case What::kSend: return session_->withdraw(call<Sending>());
    case What::kReceive: return session_->withdraw(call<Receiving>());
  }
  return true;
}

bool LinkWait::await_operation(typed::detail::Started& started, std::coroutine_handle<> awaiting,
                               const std::optional<Deadline>& deadline) noexcept {
  if (!started.is_under_way()) return false;
  typed::detail::StartedOperations& operations = *started.operations_;
  what_ = What::kOperation;
  started_ = &started;
  park(context(), awaiting, deadline ? *deadline : operations.default_deadline(), operations.driven());
  const Status begun = operations.await(started.slot_, *this);
  if (begun == Status::kOk) return true;
  unpark();
  if (begun != Status::kAgain) status_ = begun;
  return false;
}

// It waits before the call begins: the thread that drives the connection may tell it at once.
template <class Kind>
bool LinkWait::await_call(const typed::Link& link, What what, std::coroutine_handle<> awaiting,
                          const std::optional<Deadline>& deadline) noexcept {
  typed::detail::LinkState& state = *typed::detail::Inside::state(link);
  Kind& mine = call<Kind>();
  mine.wait = this;
  what_ = what;
  park(context(), awaiting, deadline ? *deadline : state.default_deadline(), state.driven());
  status_ = session_->begin(mine, [](session::Call& ended) noexcept { static_cast<Kind&>(ended).wait->tell(); });
  if (status_ == Status::kOk && mine.tell != nullptr) return true;
  unpark();
  return false;
}

bool LinkWait::await_send(const typed::Link& link, const Outgoing& message, std::coroutine_handle<> awaiting,
                          const std::optional<Deadline>& deadline) noexcept {
  auto* const state = typed::detail::Inside::state(link);
  session_ = state != nullptr ? state->session() : nullptr;
  if (session_ == nullptr) return status_ = Status::kClosed, false;
  if (message.bytes.empty() && !message.written_at)
    return status_ = note(Status::kBadArgument, kCall, "a message must have at least one element; got none"), false;
  auto& mine = *new (call_.data()) Sending;
  mine.immediate = message.immediate;
  mine.from = message.bytes.data();
  mine.length = message.bytes.size();
  if (message.written_at) {
    mine.kind = session::wire::Kind::kWritten;
    mine.offset = *message.written_at;
    mine.length = message.written_bytes;
  }
  return await_call<Sending>(link, What::kSend, awaiting, deadline);
}

bool LinkWait::await_receive(const typed::Link& link, std::span<std::byte> to, std::coroutine_handle<> awaiting,
                             const std::optional<Deadline>& deadline) noexcept {
  auto* const state = typed::detail::Inside::state(link);
  session_ = state != nullptr ? state->session() : nullptr;
  if (session_ == nullptr) return status_ = Status::kClosed, false;
  if (!session_->receives())
    return status_ = note(Status::kUnsupported, kCall, "messages of this connection go to its handler, or are dropped"),
           false;
  window_ = session_->window().data();
  auto& mine = *new (call_.data()) Receiving;
  mine.to = to.data();
  mine.length = to.size();
  return await_call<Receiving>(link, What::kReceive, awaiting, deadline);
}

Status LinkWait::sent() noexcept {
  if (status_ != Status::kOk) return status_;
  const Status outcome = call<Sending>().status;
  // A message that was given up may have left, all of it.
  if (outcome == Status::kOk) return outcome;
  return note(ended() != Status::kOk ? ended() : outcome, kCall, "{}",
              sentence_of(ended() != Status::kOk ? ended() : outcome));
}

std::expected<typed::Received, Status> LinkWait::received(std::size_t element_bytes, std::size_t& waiting) noexcept {
  if (status_ != Status::kOk) return std::unexpected(status_);
  const auto& mine = call<Receiving>();
  const Status outcome = ended() != Status::kOk ? ended() : mine.status;
  if (outcome == Status::kBufferTooSmall) waiting = (mine.needed + element_bytes - 1) / element_bytes;
  if (outcome != Status::kOk) return std::unexpected(note(outcome, kCall, "{}", sentence_of(outcome)));
  return typed::detail::elements_of(kCall, mine.message, window_, element_bytes);
}

}  // namespace verbena::coroutine::detail
