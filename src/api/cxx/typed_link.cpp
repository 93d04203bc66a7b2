// Links of the typed API: who has a segment from the start of an operation to its end.
#include <verbena/typed.hpp>

#include "api/cxx/guarded.hpp"
#include "api/cxx/started.hpp"
#include "api/session.hpp"
#include "base/check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <utility>
#include <variant>

namespace verbena::typed {
namespace detail {

/// The connection of a link, with what was started on it.
class LinkState final : public StartedOperations {
 public:
  explicit LinkState(std::unique_ptr<rdma::Connection> connection)
      : StartedOperations(Link::kMaxOperations, 1),
        connection_(std::move(connection)),
        window_(connection_->window().data()) {}

  /// Calls `begin(connection, cookie)`, and gives what that has started a slot.
  template <class Begin>
  [[nodiscard]] Started start(const char* call, Begin&& begin) noexcept {
    return StartedOperations::start(call, [&](std::uint64_t cookie) { return begin(*connection_, cookie); });
  }
  /// The same for a message of kind `Call`, which `fill` makes ready.
  template <class Call, class Fill>
  [[nodiscard]] Started start_message(const char* call, std::size_t element_bytes, Fill&& fill) noexcept;
  /// Where a message is, in elements. kBadArgument: they are not whole.
  [[nodiscard]] std::expected<Received, Status> received_of(const char* call, const rdma::Message& message,
                                                            std::size_t element_bytes) const noexcept;
  [[nodiscard]] bool receives() const noexcept {
    const session::Session* const session = Inside::session(*connection_);
    return session == nullptr || session->receives();
  }
  [[nodiscard]] Deadline default_deadline() const noexcept override;
  /// Ends the connection, and what is under way; this may be gone then.
  void close() noexcept;

 private:
  static constexpr std::chrono::seconds kDrain{2};
  static_assert(Link::kMaxOperations == kSlotsOfGroup && Link::kMaxOperations < rdma::Connection::kMaxStarted);

  /// A message that was started. The session has it until it is done.
  struct Message {
    std::variant<std::monostate, session::SendCall, session::ReceiveCall> call;
    std::size_t element_bytes = 0;  ///< Receives.

    [[nodiscard]] session::ReceiveCall* receive() noexcept { return std::get_if<session::ReceiveCall>(&call); }
    [[nodiscard]] session::Call& any() noexcept {
      auto* const send = std::get_if<session::SendCall>(&call);
      return send != nullptr ? static_cast<session::Call&>(*send) : *receive();
    }
  };

  ~LinkState() override = default;
  std::size_t collect_now() noexcept override;
  Status collect_until(std::uint32_t slot, Deadline deadline) noexcept override;
  void on_abandon(std::uint32_t slot) noexcept override;
  void on_completion(const rdma::Completion& completion) noexcept;
  [[nodiscard]] bool has_message(std::uint32_t slot) const noexcept { return (messages_started_ >> slot & 1) != 0; }
  [[nodiscard]] bool is_done(std::uint32_t slot) noexcept;
  /// Completes the slots of messages that are done.
  std::size_t take_in_messages() noexcept;
  [[nodiscard]] End end_of(Message& message) noexcept;

  const std::unique_ptr<rdma::Connection> connection_;
  const std::byte* const window_;       ///< This side's.
  std::uint64_t messages_started_ = 0;  ///< Slots of messages whose end was not taken in. In a turn.
  std::array<Message, Link::kMaxOperations> messages_;
};

template <class Call, class Fill>
Started LinkState::start_message(const char* call, std::size_t element_bytes, Fill&& fill) noexcept {
  Started started = StartedOperations::start(call, [&](std::uint64_t cookie) {
    session::Session* const session = Inside::session(*connection_);
    if (session == nullptr) return note(Status::kClosed, call, "the connection was closed");
    const auto slot = static_cast<std::uint32_t>(cookie);
    Message& message = messages_[slot];
    Call& made = message.call.template emplace<Call>();
    message.element_bytes = element_bytes;
    fill(made);
    Status begun = session->start(made);
    if (begun == Status::kOk && made.done() && damage_of(made.status) >= Damage::kConnection) begun = made.status;
    if (begun != Status::kOk) return api::note_general(*session, call, begun);
    messages_started_ |= std::uint64_t{1} << slot;
    return begun;
  });
  if (started.is_under_way()) (void)started.poll();
  return started;
}

bool LinkState::is_done(std::uint32_t slot) noexcept {
  session::Call& call = messages_[slot].any();
  session::ReceiveCall* const receive = messages_[slot].receive();
  // Nobody waits for it any more. Until the thread that drives the session has let go of the segment.
  if (receive != nullptr && !call.done() && is_abandoned(slot))
    if (session::Session* const session = Inside::session(*connection_); session != nullptr)
      if (session->cancel(*receive) != Status::kOk) return false;
  return call.done();
}

std::size_t LinkState::take_in_messages() noexcept {
  std::size_t count = 0;
  for (std::uint64_t left = messages_started_; left != 0; left &= left - 1) {
    const auto slot = static_cast<std::uint32_t>(std::countr_zero(left));
    if (!is_done(slot)) continue;
    messages_started_ &= ~(std::uint64_t{1} << slot);
    complete(slot, end_of(messages_[slot]));
    ++count;
  }
  return count;
}

End LinkState::end_of(Message& message) noexcept {
  constexpr const char* kCall = "typed::Link::start_receive";
  End end{.status = message.any().status};
  const session::ReceiveCall* const receive = message.receive();
  if (receive == nullptr) return end;
  if (end.status == Status::kBufferTooSmall) {
    Inside::set_waiting(*connection_, receive->needed);
    note(end.status, kCall, "the segment must have {} bytes for the message that waits; got {}", receive->needed,
         receive->length);
  }
  if (end.status != Status::kOk) return end;
  const auto received = received_of(kCall, receive->message, message.element_bytes);
  if (!received) return {.status = received.error()};
  end.value = received->count;
  end.first = received->first;
  end.immediate = received->immediate.value_or(0);
  end.arrived = received->kind == rdma::Message::Kind::kWritten ? End::Arrived::kWritten
                : received->immediate                           ? End::Arrived::kSentWithImmediate
                                                                : End::Arrived::kSent;
  return end;
}

std::expected<Received, Status> LinkState::received_of(const char* call, const rdma::Message& message,
                                                       std::size_t element_bytes) const noexcept {
  const std::size_t bytes = message.data.size();
  const bool is_in_window = message.kind == rdma::Message::Kind::kWritten && bytes != 0;
  const std::size_t offset = is_in_window ? static_cast<std::size_t>(message.data.data() - window_) : 0;
  if (bytes % element_bytes != 0 || offset % element_bytes != 0)
    return std::unexpected(note(Status::kBadArgument, call,
                                "the peer sent {} bytes, at offset {}, and elements have {} bytes: the message is gone",
                                bytes, offset, element_bytes));
  return Received{.kind = message.kind,
                  .immediate = message.immediate,
                  .first = offset / element_bytes,
                  .count = bytes / element_bytes};
}

void LinkState::on_abandon(std::uint32_t slot) noexcept {
  if (session::ReceiveCall* const receive = messages_[slot].receive(); receive != nullptr)
    receive->is_dropped.store(true, std::memory_order_relaxed);
}

void LinkState::on_completion(const rdma::Completion& completion) noexcept {
  const auto slot = static_cast<std::uint32_t>(completion.cookie);
  // Else it is the user's own, started past the link.
  if (is_current(completion.cookie) && !has_message(slot))
    complete(slot, {.value = completion.old, .status = completion.status});
}

std::size_t LinkState::collect_now() noexcept {
  std::array<rdma::Completion, 16> completions;
  const std::size_t count = connection_->poll(completions);
  std::ranges::for_each(std::span(completions).first(count),
                        [this](const rdma::Completion& each) { on_completion(each); });
  if (messages_started_ == 0) return count;
  // Where callers drive the session, messages go on in this: a poll looks at nothing but transfers.
  if (session::Session* const session = Inside::session(*connection_); session != nullptr)
    (void)session->wait_for(messages_[static_cast<std::size_t>(std::countr_zero(messages_started_))].any(),
                            Deadline::now());
  return count + take_in_messages();
}

Status LinkState::collect_until(std::uint32_t slot, Deadline deadline) noexcept {
  if (has_message(slot)) {
    session::Session* const session = Inside::session(*connection_);
    const Status waited = session != nullptr ? session->wait_for(messages_[slot].any(), deadline) : Status::kClosed;
    return take_in_messages() != 0 ? Status::kOk : waited;
  }
  const auto completion = connection_->complete(deadline);
  if (!completion) return completion.error();
  on_completion(*completion);
  return Status::kOk;
}

Deadline LinkState::default_deadline() const noexcept {
  const session::Session* const session = Inside::session(*connection_);
  return session != nullptr ? session->default_patience().begin() : Deadline::now();
}

void LinkState::close() noexcept {
  {
    const Turn turn(*this);
    // Another thread would go on with a connection that is gone.
    VERBENA_CHECK(static_cast<bool>(turn));
    session::Session* const session = Inside::session(*connection_);
    const bool is_in_callback = session != nullptr && api::is_in_callback(*session);
    if (is_in_callback && is_any_under_way()) {
      // There the connection's own end does not wait for the NIC.
      session->stop_in_callback();
      take_in_messages();
      const Deadline limit = Deadline::after(kDrain);
      while (is_any_under_way()) {
        const auto completion = connection_->complete(limit);
        if (!completion) break;
        on_completion(*completion);
      }
    }
    connection_->close();
    // Messages have ended with the session.
    take_in_messages();
    if (!is_in_callback) complete_all(Status::kClosed);
  }
  end();
}

Status refuse_call(const char* call, bool is_open, rdma::Access lacking) noexcept {
  return is_open ? refuse_right(call, lacking) : note(Status::kClosed, call, "the link has no connection");
}

}  // namespace detail

// --- links --------------------------------------------------------------------------------------------------------

using detail::Started;

Link::~Link() { close(); }

Result<Link> Link::over(std::unique_ptr<rdma::Connection> connection) {
  constexpr const char* kCall = "typed::Link::over";
  return api::guarded(kCall, [&]() -> Result<Link> {
    if (connection == nullptr) return fail(Status::kBadArgument, kCall, 0, "connection must not be null");
    Link link;
    link.connection_ = connection.get();
    link.state_ = new detail::LinkState(std::move(connection));
    return link;
  });
}

void Link::close() noexcept {
  const CancellationHeld held;
  connection_ = nullptr;
  if (detail::LinkState* const state = std::exchange(state_, nullptr); state != nullptr) state->close();
}

Result<rdma::Window> Link::find_window(std::string_view name, const std::optional<Deadline>& deadline) {
  if (connection_ == nullptr) return fail(Status::kClosed, "typed::Link::find", 0, "the link has no connection");
  return connection_->find(name, deadline);
}

Status Link::write_and_tell(const rdma::Local& from, const rdma::Remote& to, std::uint32_t immediate,
                            const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "typed::Link::write_with_immediate";
  if (connection_ == nullptr) return detail::refuse_call(kCall, false, rdma::Access::kWrite);
  if (from.size() == 0) return note(Status::kBadArgument, kCall, "from must have at least one element; got none");
  const rdma::Window window = connection_->peer_window();
  const std::uint64_t offset = to.address - window.address;  // Wraps around for what is in front of it.
  const bool is_inside = to.rkey == window.rkey && offset <= window.length && to.length <= window.length - offset;
  if (!is_inside || to.length < from.size())
    return note(Status::kOutOfRange, kCall, "{} bytes at {:#x} must be inside the peer's own window, and hold {} bytes",
                to.length, to.address, from.size());
  return connection_->write_with_immediate(from.bytes(), immediate, offset, deadline);
}

std::expected<Received, Status> Link::receive_bytes(std::span<std::byte> to, std::size_t element_bytes,
                                                    const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "typed::Link::receive";
  if (connection_ == nullptr) return std::unexpected(detail::refuse_call(kCall, false, rdma::Access::kLocal));
  const auto message = connection_->receive(to, deadline);
  if (!message) return std::unexpected(message.error());
  return state_->received_of(kCall, *message, element_bytes);
}

Started Link::begin_send(std::span<const std::byte> from, std::optional<std::uint32_t> immediate) noexcept {
  constexpr const char* kCall = "typed::Link::start_send";
  if (state_ == nullptr) return Started(detail::refuse_call(kCall, false, rdma::Access::kLocal));
  if (from.empty()) return Started(note(Status::kBadArgument, kCall, "from must have at least one element; got none"));
  return state_->start_message<session::SendCall>(kCall, 1, [&](session::SendCall& call) {
    call.immediate = immediate;
    call.from = from.data();
    call.length = from.size();
  });
}
Started Link::begin_receive(std::span<std::byte> to, std::size_t element_bytes) noexcept {
  constexpr const char* kCall = "typed::Link::start_receive";
  if (state_ == nullptr) return Started(detail::refuse_call(kCall, false, rdma::Access::kLocal));
  if (!state_->receives())
    return Started(
        note(Status::kUnsupported, kCall, "messages go to a handler or are discarded: set receive to kQueue"));
  return state_->start_message<session::ReceiveCall>(kCall, element_bytes, [&](session::ReceiveCall& call) {
    call.to = to.data();
    call.length = to.size();
  });
}

Started Link::begin_read(const rdma::Local& to, const rdma::Remote& from) noexcept {
  return state_->start("typed::Link::start_read", [&](rdma::Connection& connection, std::uint64_t cookie) {
    return connection.start_read(to, from, cookie);
  });
}
Started Link::begin_write(const rdma::Local& from, const rdma::Remote& to) noexcept {
  return state_->start("typed::Link::start_write", [&](rdma::Connection& connection, std::uint64_t cookie) {
    return connection.start_write(from, to, cookie);
  });
}
Started Link::begin_fetch_add(const rdma::Remote& word, std::uint64_t delta) noexcept {
  return state_->start("typed::Link::start_fetch_add", [&](rdma::Connection& connection, std::uint64_t cookie) {
    return connection.start_fetch_add(word, delta, cookie);
  });
}
Started Link::begin_compare_swap(const rdma::Remote& word, std::uint64_t expected, std::uint64_t desired) noexcept {
  return state_->start("typed::Link::start_compare_swap", [&](rdma::Connection& connection, std::uint64_t cookie) {
    return connection.start_compare_swap(word, expected, desired, cookie);
  });
}

std::size_t Link::quarantined() const noexcept { return state_ != nullptr ? state_->quarantined() : 0; }

Status Link::settle(Deadline deadline) noexcept {
  return state_ != nullptr ? state_->settle(deadline, "typed::Link::settle") : Status::kOk;
}

}  // namespace verbena::typed
