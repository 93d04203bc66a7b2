// Links of the typed API: who has a segment from the start of an operation to its end.
#include <verbena/typed.hpp>

#include "api/cxx/guarded.hpp"
#include "api/session.hpp"
#include "base/check.hpp"
#include "base/one_at_a_time.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <utility>
#include <variant>

namespace verbena::typed {
namespace detail {

/// The connection of a link, and a slot for each operation that was started and whose end nobody has taken. It lasts
/// until the link is closed and no slot is used: one word counts both.
class LinkState {
 public:
  explicit LinkState(std::unique_ptr<rdma::Connection> connection) noexcept
      : connection_(std::move(connection)), window_(connection_->window().data()) {}
  LinkState(const LinkState&) = delete;
  LinkState& operator=(const LinkState&) = delete;

  [[nodiscard]] rdma::Connection& connection() const noexcept { return *connection_; }

  /// Calls `begin(connection, cookie)`, and gives what that has started a slot.
  template <class Begin>
  [[nodiscard]] Started start(const char* call, Begin&& begin) noexcept {
    return start_in_slot(call, [&](Slot& slot, std::uint32_t number) {
      slot.message.emplace<std::monostate>();
      return begin(*connection_, cookie_of(number));
    });
  }
  /// The same for a message of kind `Call`, which `fill` makes ready.
  template <class Call, class Fill>
  [[nodiscard]] Started start_message(const char* call, std::size_t element_bytes, Fill&& fill) noexcept;
  /// Whether the operation of `slot` is complete: how then, and the slot is free.
  [[nodiscard]] bool take(std::uint32_t slot, End& end) noexcept;
  /// What a message says in elements. kBadArgument: they are not whole. \thread any
  [[nodiscard]] std::expected<Received, Status> received_of(const char* call, const rdma::Message& message,
                                                            std::size_t element_bytes) const noexcept;
  /// Whoever had the operation has gone: its claim stays until it is complete.
  void abandon(std::uint32_t slot, Claim&& claim) noexcept;
  /// Takes completions in, and waits for one that the operation of `slot` may have. kBusy: another thread does;
  /// kTimedOut: none came.
  [[nodiscard]] Status collect(std::uint32_t slot, Deadline deadline, const char* call) noexcept;
  /// The same for anything that is in quarantine.
  [[nodiscard]] Status collect_abandoned(Deadline deadline, const char* call) noexcept;
  [[nodiscard]] bool receives() const noexcept {
    const session::Session* const session = Inside::session(*connection_);
    return session == nullptr || session->receives();
  }
  [[nodiscard]] Deadline deadline_or_default(const std::optional<Deadline>& deadline) const noexcept;
  [[nodiscard]] std::uint32_t quarantined() const noexcept { return quarantined_.load(std::memory_order_acquire); }
  /// Ends the connection, and what is under way; this may be gone then.
  void close() noexcept;

 private:
  enum class State : std::uint8_t { kUnderWay, kComplete, kAbandoned };
  struct Slot {
    std::atomic<State> state{State::kComplete};
    Status status = Status::kOk;
    std::uint32_t generation = 0;
    std::uint64_t old = 0;
    Claim claim;  ///< kAbandoned: in quarantine.
    /// A message is the session's until it is done, whatever the state says: that becomes kComplete only where the
    /// link ends. Changed by `start` only.
    std::variant<std::monostate, session::SendCall, session::ReceiveCall> message;
    std::size_t element_bytes = 0;          ///< Receives.
    [[no_unique_address]] OneAtATime user;  ///< Of the operation.

    /// Null: it is no message.
    [[nodiscard]] session::Call* message_call() noexcept {
      if (auto* const send = std::get_if<session::SendCall>(&message)) return send;
      return std::get_if<session::ReceiveCall>(&message);
    }
    [[nodiscard]] bool is_complete() noexcept {
      const session::Call* const call = message_call();
      return call != nullptr ? call->done() : state.load(std::memory_order_acquire) == State::kComplete;
    }
  };
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << Link::kMaxOperations;
  static constexpr std::chrono::seconds kDrain{2};
  static_assert(Link::kMaxOperations == 63 && Link::kMaxOperations < rdma::Connection::kMaxStarted);

  /// The thread that starts operations, or takes in their ends.
  class Turn {
   public:
    explicit Turn(std::atomic<bool>& flag) noexcept
        : flag_(flag), is_mine_(!flag.exchange(true, std::memory_order_acquire)) {}
    ~Turn() {
      if (is_mine_) flag_.store(false, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const noexcept { return is_mine_; }

   private:
    std::atomic<bool>& flag_;
    const bool is_mine_;
  };
  static Status refuse_turn(const char* call) noexcept {
    return note(Status::kBusy, call, "another thread uses operations of this link: let one do so at a time");
  }

  [[nodiscard]] std::uint64_t cookie_of(std::uint32_t slot) const noexcept {
    return std::uint64_t{slots_[slot].generation} << 32 | slot;
  }
  [[nodiscard]] bool is_used(std::uint32_t slot) const noexcept {
    return (used_.load(std::memory_order_acquire) >> slot & 1) != 0;
  }
  template <class Begin>
  [[nodiscard]] Started start_in_slot(const char* call, Begin&& begin) noexcept;
  void take_received(const Slot& slot, const session::ReceiveCall& receive, End& end) const noexcept;
  [[nodiscard]] bool is_any_under_way() noexcept;
  std::size_t collect_now() noexcept;
  [[nodiscard]] Status collect_transfer(Deadline deadline) noexcept;
  [[nodiscard]] Status collect_message(Slot& slot, Deadline deadline) noexcept;
  [[nodiscard]] bool is_abandoned_message(std::uint32_t slot) noexcept {
    Slot& of = slots_[slot];
    return is_used(slot) && of.state.load(std::memory_order_acquire) == State::kAbandoned &&
           of.message_call() != nullptr;
  }
  /// Ends the receives that nobody waits for, and frees the slots of what is done.
  std::size_t end_abandoned_messages() noexcept;
  void on_completion(const rdma::Completion& completion) noexcept;
  void complete(std::uint32_t slot, Status status, std::uint64_t old) noexcept;
  void free(std::uint32_t slot) noexcept { let_go(std::uint64_t{1} << slot); }
  /// Don't touch this object afterwards, unless something else is held.
  void let_go(std::uint64_t bit) noexcept {
    if (used_.fetch_and(~bit, std::memory_order_acq_rel) == bit) delete this;
  }

  const std::unique_ptr<rdma::Connection> connection_;
  const std::byte* const window_;           ///< This side's.
  std::atomic<std::uint64_t> used_{kOpen};  ///< A bit for each slot, and kOpen for the link.
  std::atomic<bool> is_in_turn_{false};
  std::atomic<std::uint32_t> quarantined_{0};
  std::array<Slot, Link::kMaxOperations> slots_;
};

template <class Begin>
Started LinkState::start_in_slot(const char* call, Begin&& begin) noexcept {
  const Turn turn(is_in_turn_);
  if (!turn) return Started(refuse_turn(call));
  if (quarantined() != 0) collect_now();
  const std::uint64_t used = used_.load(std::memory_order_acquire);
  if (~used == 0)
    return Started(note(Status::kAgain, call, "{} operations are under way: take one, or let the link settle",
                        Link::kMaxOperations));
  const auto number = static_cast<std::uint32_t>(std::countr_one(used));
  Slot& slot = slots_[number];
  ++slot.generation;
  slot.state.store(State::kUnderWay, std::memory_order_relaxed);
  if (const Status begun = begin(slot, number); begun != Status::kOk) return Started(begun);
  used_.fetch_or(std::uint64_t{1} << number, std::memory_order_release);
  return {*this, number};
}

template <class Call, class Fill>
Started LinkState::start_message(const char* call, std::size_t element_bytes, Fill&& fill) noexcept {
  Started started = start_in_slot(call, [&](Slot& slot, std::uint32_t) {
    session::Session* const session = Inside::session(*connection_);
    if (session == nullptr) return note(Status::kClosed, call, "the connection was closed");
    Call& message = slot.message.template emplace<Call>();
    slot.element_bytes = element_bytes;
    fill(message);
    Status begun = session->start(message);
    if (begun == Status::kOk && message.done() && damage_of(message.status) >= Damage::kConnection)
      begun = message.status;
    return begun == Status::kOk ? begun : api::note_general(*session, call, begun);
  });
  if (started.is_under_way()) (void)started.look();
  return started;
}

bool LinkState::take(std::uint32_t slot, End& end) noexcept {
  Slot& of = slots_[slot];
  of.user.check();
  if (!of.is_complete()) return false;
  if (const session::Call* const message = of.message_call(); message != nullptr) {
    end.status = message->status;
    if (const auto* const receive = std::get_if<session::ReceiveCall>(&of.message)) take_received(of, *receive, end);
  } else {
    end.status = of.status;
    end.old = of.old;
  }
  free(slot);
  return true;
}

void LinkState::take_received(const Slot& slot, const session::ReceiveCall& receive, End& end) const noexcept {
  constexpr const char* kCall = "typed::Link::start_receive";
  if (end.status == Status::kBufferTooSmall) {
    Inside::set_waiting(*connection_, receive.needed);
    note(end.status, kCall, "the segment must have {} bytes for the message that waits; got {}", receive.needed,
         receive.length);
  }
  if (end.status != Status::kOk) return;
  const auto received = received_of(kCall, receive.message, slot.element_bytes);
  end.status = received ? Status::kOk : received.error();
  if (received) end.received = *received;
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

void LinkState::abandon(std::uint32_t slot, Claim&& claim) noexcept {
  Slot& of = slots_[slot];
  of.user.check();
  if (auto* const receive = std::get_if<session::ReceiveCall>(&of.message))
    receive->is_dropped.store(true, std::memory_order_relaxed);
  of.claim = std::move(claim);
  quarantined_.fetch_add(1, std::memory_order_relaxed);
  State expected = State::kUnderWay;
  // Release: whoever completes it finds the claim. Acquire: the claim is dropped after the NIC is done.
  if (of.state.compare_exchange_strong(expected, State::kAbandoned, std::memory_order_acq_rel)) return;
  of.claim = {};
  quarantined_.fetch_sub(1, std::memory_order_release);
  free(slot);
}

void LinkState::complete(std::uint32_t slot, Status status, std::uint64_t old) noexcept {
  Slot& of = slots_[slot];
  of.status = status;
  of.old = old;
  State expected = State::kUnderWay;
  if (of.state.compare_exchange_strong(expected, State::kComplete, std::memory_order_acq_rel)) return;
  VERBENA_DCHECK(expected == State::kAbandoned);
  of.claim = {};
  quarantined_.fetch_sub(1, std::memory_order_release);
  free(slot);
}

void LinkState::on_completion(const rdma::Completion& completion) noexcept {
  const auto slot = static_cast<std::uint32_t>(completion.cookie);
  // The user's own, started past the link.
  if (slot >= slots_.size() || !is_used(slot) || cookie_of(slot) != completion.cookie) return;
  if (slots_[slot].message_call() != nullptr) return;
  complete(slot, completion.status, completion.old);
}

std::size_t LinkState::collect_now() noexcept {
  std::array<rdma::Completion, 16> completions;
  const std::size_t count = connection_->poll(completions);
  std::ranges::for_each(std::span(completions).first(count),
                        [this](const rdma::Completion& each) { on_completion(each); });
  return count + end_abandoned_messages();
}

std::size_t LinkState::end_abandoned_messages() noexcept {
  if (quarantined() == 0) return 0;
  std::size_t count = 0;
  session::Session* const session = Inside::session(*connection_);
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (!is_abandoned_message(slot)) continue;
    Slot& of = slots_[slot];
    // Until the thread that drives the session has let go of the segment.
    if (auto* const receive = std::get_if<session::ReceiveCall>(&of.message); receive != nullptr && !receive->done())
      if (session == nullptr || session->cancel(*receive) != Status::kOk) continue;
    if (!of.is_complete()) continue;
    complete(slot, Status::kOk, 0);
    ++count;
  }
  return count;
}

Status LinkState::collect_transfer(Deadline deadline) noexcept {
  if (deadline.passed()) return collect_now() != 0 ? Status::kOk : Status::kTimedOut;
  const auto completion = connection_->complete(deadline);
  if (!completion) return completion.error();
  on_completion(*completion);
  return Status::kOk;
}

Status LinkState::collect_message(Slot& slot, Deadline deadline) noexcept {
  session::Session* const session = Inside::session(*connection_);
  const Status waited = session != nullptr ? session->wait_for(*slot.message_call(), deadline) : Status::kClosed;
  return end_abandoned_messages() != 0 ? Status::kOk : waited;
}

Status LinkState::collect(std::uint32_t slot, Deadline deadline, const char* call) noexcept {
  const OneAtATime::Use use(slots_[slot].user);
  const Turn turn(is_in_turn_);
  if (!turn) return refuse_turn(call);
  return slots_[slot].message_call() != nullptr ? collect_message(slots_[slot], deadline) : collect_transfer(deadline);
}

Status LinkState::collect_abandoned(Deadline deadline, const char* call) noexcept {
  const Turn turn(is_in_turn_);
  if (!turn) return refuse_turn(call);
  if (collect_now() != 0) return Status::kOk;
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
    if (is_abandoned_message(slot)) return collect_message(slots_[slot], deadline);
  return collect_transfer(deadline);
}

Deadline LinkState::deadline_or_default(const std::optional<Deadline>& deadline) const noexcept {
  if (deadline) return *deadline;
  const session::Session* const session = Inside::session(*connection_);
  return session != nullptr ? session->default_patience().begin() : Deadline::now();
}

bool LinkState::is_any_under_way() noexcept {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
    if (is_used(slot) && !slots_[slot].is_complete()) return true;
  return false;
}

void LinkState::close() noexcept {
  {
    const Turn turn(is_in_turn_);
    // Another thread would go on with a connection that is gone.
    VERBENA_CHECK(static_cast<bool>(turn));
    session::Session* const session = Inside::session(*connection_);
    const bool is_in_callback = session != nullptr && api::is_in_callback(*session);
    if (is_in_callback && is_any_under_way()) {
      // There the connection's own end does not wait for the NIC.
      session->stop_in_callback();
      const Deadline limit = Deadline::after(kDrain);
      while (is_any_under_way()) {  // Messages are done.
        const auto completion = connection_->complete(limit);
        if (!completion) break;
        on_completion(*completion);
      }
    }
    connection_->close();
    // Messages have ended with the session. Their operations are told, for those that are destroyed meanwhile.
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
      if (is_used(slot) && (slots_[slot].message_call() != nullptr || !(is_in_callback || slots_[slot].is_complete())))
        complete(slot, Status::kClosed, 0);
  }
  let_go(kOpen);
}

// --- started ------------------------------------------------------------------------------------------------------

bool Started::look() noexcept {
  if (link_ != nullptr && link_->take(slot_, end_)) link_ = nullptr;
  return link_ == nullptr;
}

bool Started::poll() noexcept {
  if (look()) return true;
  (void)link_->collect(slot_, Deadline::now(), "");
  return look();
}

Status Started::wait(const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "typed::Operation::wait";
  if (look()) return end_.status;
  const Deadline until = link_->deadline_or_default(deadline);
  while (true) {
    const Status collected = link_->collect(slot_, until, kCall);
    if (look()) return end_.status;
    if (collected == Status::kTimedOut)
      return note(collected, kCall, "the operation is under way still: wait again, or destroy it");
    if (collected != Status::kOk) return collected;
  }
}

void Started::abandon(Claim&& claim) noexcept {
  link_->abandon(slot_, std::move(claim));
  link_ = nullptr;
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
  constexpr const char* kCall = "typed::Link::settle";
  while (quarantined() != 0) {
    const Status collected = state_->collect_abandoned(deadline, kCall);
    if (collected == Status::kTimedOut && quarantined() != 0)
      return note(collected, kCall, "{} operations are in quarantine still", quarantined());
    if (collected != Status::kOk && collected != Status::kTimedOut) return collected;
  }
  return Status::kOk;
}

}  // namespace verbena::typed
