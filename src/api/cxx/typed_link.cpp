// Links of the typed API: who has a segment from the start of an operation to its end.
#include <verbena/typed.hpp>

#include "api/cxx/guarded.hpp"
#include "api/cxx/link_state.hpp"
#include "api/session.hpp"
#include "base/check.hpp"
#include "base/threads.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace verbena::typed {
namespace detail {

LinkState::LinkState(std::unique_ptr<rdma::Connection> connection)
    : StartedOperations(Link::kMaxOperations, 1),
      connection_(std::move(connection)),
      window_(connection_->window().data()),
      is_driven_by_callers_(session() != nullptr && session()->home().driver() == session::Driver::kCaller) {
  for (std::uint32_t slot = 0; slot < messages_.size(); ++slot) {
    messages_[slot].link = this;
    messages_[slot].slot = slot;
  }
}

// --- messages -----------------------------------------------------------------------------------------------------

session::Call& LinkState::Message::any() noexcept {
  if (auto* const send = std::get_if<CallOf<session::SendCall>>(&call); send != nullptr) return *send;
  if (auto* const received = receive(); received != nullptr) return *received;
  auto& both = std::get<Writing>(call);
  return both.note.done() ? static_cast<session::Call&>(both.write) : both.note;
}

bool LinkState::Message::is_left() noexcept {
  if (!is_over()) return false;
  // Who is told is told by the next instructions of the thread that drives the session.
  if (any().tell != nullptr)
    while (stage.load(std::memory_order_acquire) != Stage::kTold) yield_thread();
  return true;
}

Status LinkState::Message::status() noexcept {
  const auto* const both = std::get_if<Writing>(&call);
  return both != nullptr && both->write.status == Status::kOk ? both->note.status : any().status;
}

template <class Kind>
void LinkState::on_call(session::Call& call) noexcept {
  Message& message = *static_cast<CallOf<Kind>&>(call).message;
  if (!message.is_over()) return;
  // Sequentially consistent, as what `await` does: it sees the stage, or this sees that it waits.
  message.stage.store(Message::Stage::kOver, std::memory_order_seq_cst);
  message.link->tell_awaiting(message.slot);
  message.stage.store(Message::Stage::kTold, std::memory_order_release);
}

template <class Begin>
Started LinkState::start_with_message(const char* call, Begin&& begin) noexcept {
  Started started = StartedOperations::start(call, [&](std::uint64_t cookie) {
    if (session() == nullptr) return note(Status::kClosed, call, "the connection was closed");
    const auto slot = static_cast<std::uint32_t>(cookie);
    Message& message = messages_[slot];
    message.stage.store(Message::Stage::kUnderWay, std::memory_order_relaxed);
    Status begun = begin(*session(), message);
    if (begun == Status::kOk && message.is_left() && damage_of(message.status()) >= Damage::kConnection)
      begun = message.status();
    if (begun != Status::kOk) return api::note_general(*session(), call, begun);
    messages_started_.fetch_or(std::uint64_t{1} << slot, std::memory_order_relaxed);
    return begun;
  });
  if (started.is_under_way()) (void)started.poll();
  return started;
}

Started LinkState::start_send(const char* call, std::span<const std::byte> from,
                              std::optional<std::uint32_t> immediate) noexcept {
  return start_with_message(call, [&](session::Session& session, Message& message) {
    auto& send = message.call.emplace<CallOf<session::SendCall>>();
    send.message = &message;
    send.immediate = immediate;
    send.from = from.data();
    send.length = from.size();
    return session.begin(send, on_call<session::SendCall>);
  });
}

Started LinkState::start_receive(const char* call, std::span<std::byte> to, std::size_t element_bytes) noexcept {
  return start_with_message(call, [&](session::Session& session, Message& message) {
    auto& receive = message.call.emplace<CallOf<session::ReceiveCall>>();
    receive.message = &message;
    receive.to = to.data();
    receive.length = to.size();
    message.element_bytes = element_bytes;
    return session.begin(receive, on_call<session::ReceiveCall>);
  });
}

Started LinkState::start_write_and_tell(const char* call, const rdma::Local& from, const rdma::Remote& to,
                                        std::size_t offset, std::uint32_t immediate) noexcept {
  return start_with_message(call, [&](session::Session& session, Message& message) {
    auto& [write, note] = message.call.emplace<Writing>();
    write.message = note.message = &message;
    write.kind = session::Transfer::Kind::kWrite;
    write.local = {.data = from.bytes().data(), .length = from.size(), .lkey = from.lkey()};
    write.place = api::key_place(to.address, to.rkey, from.size());
    note.kind = session::wire::Kind::kWritten;
    note.immediate = immediate;
    note.length = from.size();
    note.offset = offset;
    return session.begin(write, on_call<session::TransferCall>, note, on_call<session::SendCall>);
  });
}

bool LinkState::is_done(std::uint32_t slot) noexcept {
  Message& message = messages_[slot];
  session::ReceiveCall* const receive = message.receive();
  // Nobody waits for it any more. Until the thread that drives the session has let go of the segment.
  if (receive != nullptr && session() != nullptr && !receive->done() && is_abandoned(slot))
    session()->try_withdraw(*receive);
  return message.is_left();
}

std::size_t LinkState::take_in_messages() noexcept {
  std::size_t count = 0;
  for (std::uint64_t left = messages_started_.load(std::memory_order_relaxed); left != 0; left &= left - 1) {
    const auto slot = static_cast<std::uint32_t>(std::countr_zero(left));
    if (!is_done(slot)) continue;
    messages_started_.fetch_and(~(std::uint64_t{1} << slot), std::memory_order_relaxed);
    complete(slot, end_of(messages_[slot]));
    ++count;
  }
  return count;
}

End LinkState::end_of(Message& message) noexcept {
  constexpr const char* kCall = "typed::Link::start_receive";
  End end{.status = message.status()};
  const session::ReceiveCall* const receive = message.receive();
  if (receive == nullptr) return end;
  if (end.status == Status::kBufferTooSmall) {
    Inside::set_waiting(*connection_, receive->needed);
    note(end.status, kCall, "the segment must have {} bytes for the message that waits; got {}", receive->needed,
         receive->length);
  }
  if (end.status != Status::kOk) return end;
  const auto received = elements_of(kCall, receive->message, window_, message.element_bytes);
  if (!received) return {.status = received.error()};
  end.value = received->count;
  end.first = received->first;
  end.immediate = received->immediate.value_or(0);
  end.arrived = received->kind == rdma::Message::Kind::kWritten ? End::Arrived::kWritten
                : received->immediate                           ? End::Arrived::kSentWithImmediate
                                                                : End::Arrived::kSent;
  return end;
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

std::size_t LinkState::poll_transfers() noexcept {
  std::array<rdma::Completion, 16> completions;
  const std::size_t count = connection_->poll(completions);
  std::ranges::for_each(std::span(completions).first(count),
                        [this](const rdma::Completion& each) { on_completion(each); });
  return count;
}

std::size_t LinkState::collect_now() noexcept {
  std::size_t count = 0;
  if (is_watching_.load(std::memory_order_acquire)) {
    look();
  } else {
    count = poll_transfers();
  }
  const std::uint64_t messages = messages_started_.load(std::memory_order_relaxed);
  if (messages == 0) return count;
  // Where callers drive the session, messages go on in this: a poll looks at nothing but transfers.
  if (session() != nullptr)
    (void)session()->wait_for(messages_[static_cast<std::size_t>(std::countr_zero(messages))].any(), Deadline::now());
  return count + take_in_messages();
}

Status LinkState::collect_until(std::uint32_t slot, Deadline deadline) noexcept {
  if (has_message(slot)) {
    const Status waited = session() != nullptr ? session()->wait_for(messages_[slot].any(), deadline) : Status::kClosed;
    return take_in_messages() != 0 ? Status::kOk : waited;
  }
  // The one that takes completions first gets them: this thread, until it has one.
  stop_watch();
  const auto completion = connection_->complete(deadline);
  if (completion) on_completion(*completion);
  if (is_any_awaited()) (void)start_watch();
  return completion ? Status::kOk : completion.error();
}

Deadline LinkState::default_deadline() const noexcept {
  return session() != nullptr ? session()->default_patience().begin() : Deadline::now();
}

// In the thread that drives the connection. The last completion ends it: nothing is under way then.
void LinkState::on_watch(session::Call& call) noexcept {
  auto& watch = static_cast<Watch&>(static_cast<session::TakeCall&>(call));
  LinkState& link = *watch.link;
  if (call.status != Status::kOk) return link.is_watching_.store(false, std::memory_order_release);
  link.on_completion(watch.completion);
  watch.session->go_on(watch);
}

Status LinkState::start_watch() noexcept {
  if (is_watching_.exchange(true, std::memory_order_acq_rel)) return Status::kOk;
  watch_.link = this;
  watch_.session = session();
  watch_.is_done.store(0, std::memory_order_relaxed);
  const Status begun = watch_.session != nullptr ? watch_.session->begin(watch_, on_watch) : Status::kClosed;
  if (begun != Status::kOk) is_watching_.store(false, std::memory_order_release);
  return begun;
}

void LinkState::stop_watch() noexcept {
  if (!is_watching_.load(std::memory_order_acquire)) return;
  if (watch_.session->withdraw<session::TakeCall>(watch_)) is_watching_.store(false, std::memory_order_release);
}

Status LinkState::await(std::uint32_t slot, coroutine::detail::Wait& wait) noexcept {
  if (const Status begun = begin_awaiting(slot, wait); begun != Status::kOk) return begun;
  if (has_message(slot)) {
    const bool is_over =
        messages_[slot].is_over() || messages_[slot].stage.load(std::memory_order_seq_cst) != Message::Stage::kUnderWay;
    return is_over && stop_awaiting(slot) ? Status::kAgain : Status::kOk;
  }
  const Status watched = start_watch();
  if (watched == Status::kOk) return Status::kOk;
  return stop_awaiting(slot) ? watched : Status::kOk;
}

void LinkState::look() noexcept {
  if (session::Session* const of = session(); of != nullptr) of->look();
}

void LinkState::sleep(Deadline deadline) noexcept {
  if (session::Session* const of = session(); of != nullptr) of->wait(deadline);
}

void LinkState::wake() noexcept {
  if (session::Session* const of = session(); of != nullptr) of->home().loop().wake();
}

void LinkState::close() noexcept {
  {
    const Turn turn(*this);
    // Another thread would go on with a connection that is gone.
    VERBENA_CHECK(static_cast<bool>(turn));
    stop_watch();
    const bool is_in_callback = session() != nullptr && api::is_in_callback(*session());
    if (is_in_callback && is_any_under_way()) {
      // There the connection's own end does not wait for the NIC.
      session()->stop_in_callback();
      const Deadline limit = Deadline::after(kDrain);
      for (Message& message : messages_)
        if (has_message(message.slot)) (void)session()->wait_for(message.any(), limit);
      take_in_messages();
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
    Driven::settle();  // Coroutines that waited have been told, and this is polled no more.
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
  const auto offset = offset_in_window("typed::Link::write_with_immediate", to, from.size());
  return offset ? connection_->write_with_immediate(from.bytes(), immediate, *offset, deadline) : offset.error();
}

std::expected<std::size_t, Status> Link::offset_in_window(const char* call, const rdma::Remote& to,
                                                          std::size_t bytes) const noexcept {
  if (connection_ == nullptr) return std::unexpected(detail::refuse_call(call, false, rdma::Access::kWrite));
  if (bytes == 0)
    return std::unexpected(note(Status::kBadArgument, call, "from must have at least one element; got none"));
  const rdma::Window window = connection_->peer_window();
  const std::uint64_t offset = to.address - window.address;  // Wraps around for what is in front of it.
  const bool is_inside = to.rkey == window.rkey && offset <= window.length && to.length <= window.length - offset;
  if (is_inside && to.length >= bytes) return static_cast<std::size_t>(offset);
  return std::unexpected(note(Status::kOutOfRange, call,
                              "{} bytes at {:#x} must be inside the peer's own window, and hold {} bytes", to.length,
                              to.address, bytes));
}

bool Link::read_now(const rdma::Local& to, const rdma::Remote& from) noexcept {
  session::Session* const session = state_->session();
  if (session == nullptr || from.length == 0 || to.size() < from.length) [[unlikely]]
    return false;
  const session::LocalSpan local{to.bytes().data(), static_cast<std::size_t>(from.length), to.lkey()};
  return session->read_now(local, api::key_place(from.address, from.rkey, from.length));
}

bool Link::write_now(const rdma::Local& from, const rdma::Remote& to) noexcept {
  session::Session* const session = state_->session();
  if (session == nullptr || from.size() == 0 || to.length < from.size()) [[unlikely]]
    return false;
  const session::LocalSpan local{from.bytes().data(), from.size(), from.lkey()};
  return session->write_now(local, api::key_place(to.address, to.rkey, from.size()));
}

bool Link::change_now(const rdma::Remote& word, std::uint64_t operand, const std::optional<std::uint64_t>& expected,
                      std::uint64_t& old) noexcept {
  session::Session* const session = state_->session();
  if (session == nullptr || word.length != sizeof operand || word.address % sizeof operand != 0) return false;
  const session::Change change = expected ? api::swap_of(*expected, operand) : session::Change{.compare_add = operand};
  return session->change_now(change, api::key_place(word.address, word.rkey, word.length), old);
}

std::expected<Received, Status> Link::receive_bytes(std::span<std::byte> to, std::size_t element_bytes,
                                                    const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "typed::Link::receive";
  if (connection_ == nullptr) return std::unexpected(detail::refuse_call(kCall, false, rdma::Access::kLocal));
  const auto message = connection_->receive(to, deadline);
  if (!message) return std::unexpected(message.error());
  return detail::elements_of(kCall, *message, connection_->window().data(), element_bytes);
}

std::expected<Received, Status> detail::elements_of(const char* call, const rdma::Message& message,
                                                    const std::byte* window, std::size_t element_bytes) noexcept {
  Received received{.kind = message.kind, .immediate = message.immediate};
  const std::size_t bytes = message.data.size();
  const bool is_in_window = message.kind == rdma::Message::Kind::kWritten && bytes != 0;
  const std::size_t offset = is_in_window ? static_cast<std::size_t>(message.data.data() - window) : 0;
  if (bytes % element_bytes != 0 || offset % element_bytes != 0)
    return std::unexpected(note(Status::kBadArgument, call,
                                "the peer sent {} bytes, at offset {}, and elements have {} bytes: the message is gone",
                                bytes, offset, element_bytes));
  received.first = offset / element_bytes;
  received.count = bytes / element_bytes;
  return received;
}

Started Link::begin_send(std::span<const std::byte> from, std::optional<std::uint32_t> immediate) noexcept {
  constexpr const char* kCall = "typed::Link::start_send";
  if (state_ == nullptr) return Started(detail::refuse_call(kCall, false, rdma::Access::kLocal));
  if (from.empty()) return Started(note(Status::kBadArgument, kCall, "from must have at least one element; got none"));
  return state_->start_send(kCall, from, immediate);
}
Started Link::begin_receive(std::span<std::byte> to, std::size_t element_bytes) noexcept {
  constexpr const char* kCall = "typed::Link::start_receive";
  if (state_ == nullptr) return Started(detail::refuse_call(kCall, false, rdma::Access::kLocal));
  if (!state_->receives())
    return Started(
        note(Status::kUnsupported, kCall, "messages go to a handler or are discarded: set receive to kQueue"));
  return state_->start_receive(kCall, to, element_bytes);
}
Started Link::begin_write_and_tell(const rdma::Local& from, const rdma::Remote& to, std::uint32_t immediate) noexcept {
  constexpr const char* kCall = "typed::Link::start_write_with_immediate";
  const auto offset = offset_in_window(kCall, to, from.size());
  return offset ? state_->start_write_and_tell(kCall, from, to, *offset, immediate) : Started(offset.error());
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
