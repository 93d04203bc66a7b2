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

// --- operations ---------------------------------------------------------------------------------------------------

bool OperationWait::withdraw() noexcept { return started_->operations_->stop_awaiting(started_->slot_); }

bool OperationWait::await_operation(typed::detail::Started& started, std::coroutine_handle<> awaiting,
                                    const std::optional<Deadline>& deadline) noexcept {
  if (!started.is_under_way()) return false;
  typed::detail::StartedOperations& operations = *started.operations_;
  started_ = &started;
  park(context(), awaiting, deadline ? *deadline : operations.default_deadline(), operations.driven());
  const Status begun = operations.await(started.slot_, *this);
  if (begun == Status::kOk) return true;
  unpark();
  if (begun != Status::kAgain) status_ = begun;
  return false;
}

// --- messages -----------------------------------------------------------------------------------------------------

struct MessageWait::Sending : session::SendCall {
  MessageWait* wait = nullptr;
};
struct MessageWait::Receiving : session::ReceiveCall {
  MessageWait* wait = nullptr;
};

template <class Kind>
Kind& MessageWait::call() noexcept {
  static_assert(sizeof(Kind) <= sizeof call_ && alignof(Kind) <= 8 && std::is_trivially_destructible_v<Kind>);
  return *std::launder(reinterpret_cast<Kind*>(call_.data()));
}

bool MessageWait::withdraw() noexcept {
  return is_send_ ? session_->withdraw<session::SendCall>(call<Sending>())
                  : session_->withdraw<session::ReceiveCall>(call<Receiving>());
}

session::Session* MessageWait::begin(const typed::Link& link) noexcept {
  const auto* const state = typed::detail::Inside::state(link);
  session_ = state != nullptr ? state->session() : nullptr;
  if (session_ == nullptr) refuse(Status::kClosed);
  return session_;
}

// It waits before the call begins: the thread that drives the connection may tell it at once.
template <class Kind>
bool MessageWait::await_call(const typed::Link& link, std::coroutine_handle<> awaiting,
                             const std::optional<Deadline>& deadline) noexcept {
  typed::detail::LinkState& state = *typed::detail::Inside::state(link);
  Kind& mine = call<Kind>();
  mine.wait = this;
  park(context(), awaiting, deadline ? *deadline : state.default_deadline(), state.driven());
  const Status begun =
      session_->begin(mine, [](session::Call& ended) noexcept { static_cast<Kind&>(ended).wait->tell(); });
  if (begun == Status::kOk && mine.tell != nullptr) return true;
  unpark();
  refuse(begun);
  return false;
}

bool MessageWait::await_send(const typed::Link& link, std::span<const std::byte> bytes,
                             std::optional<std::uint32_t> immediate, std::coroutine_handle<> awaiting,
                             const std::optional<Deadline>& deadline) noexcept {
  if (begin(link) == nullptr) return false;
  if (bytes.empty()) {
    refuse(note(Status::kBadArgument, kCall, "a message must have at least one element; got none"));
    return false;
  }
  is_send_ = true;
  auto& mine = *new (call_.data()) Sending;
  mine.immediate = immediate;
  mine.from = bytes.data();
  mine.length = bytes.size();
  return await_call<Sending>(link, awaiting, deadline);
}

bool MessageWait::await_receive(const typed::Link& link, std::span<std::byte> to, std::coroutine_handle<> awaiting,
                                const std::optional<Deadline>& deadline) noexcept {
  if (begin(link) == nullptr) return false;
  if (!session_->receives()) {
    refuse(note(Status::kUnsupported, kCall, "messages of this connection go to its handler, or are dropped"));
    return false;
  }
  window_ = session_->window().data();
  auto& mine = *new (call_.data()) Receiving;
  mine.to = to.data();
  mine.length = to.size();
  return await_call<Receiving>(link, awaiting, deadline);
}

Status MessageWait::sent() noexcept {
  if (refused() != Status::kOk) return refused();
  const Status outcome = call<Sending>().status;
  // A message that was given up may have left, all of it.
  if (outcome == Status::kOk) return outcome;
  return note(ended() != Status::kOk ? ended() : outcome, kCall, "{}",
              sentence_of(ended() != Status::kOk ? ended() : outcome));
}

std::expected<typed::Received, Status> MessageWait::received(std::size_t element_bytes, std::size_t& waiting) noexcept {
  if (refused() != Status::kOk) return std::unexpected(refused());
  const auto& mine = call<Receiving>();
  const Status outcome = ended() != Status::kOk ? ended() : mine.status;
  if (outcome == Status::kBufferTooSmall) waiting = (mine.needed + element_bytes - 1) / element_bytes;
  if (outcome != Status::kOk) return std::unexpected(note(outcome, kCall, "{}", sentence_of(outcome)));
  return typed::detail::elements_of(kCall, mine.message, window_, element_bytes);
}

}  // namespace verbena::coroutine::detail
