// Links of the typed API: who has a segment from the start of an operation to its end.
#include <verbena/typed.hpp>

#include "api/cxx/guarded.hpp"
#include "api/cxx/link_state.hpp"
#include "api/session.hpp"
#include "base/check.hpp"
#include "base/threads.hpp"

#include <type_traits>
#include <utility>
#include <variant>

namespace verbena::typed {
namespace detail {

LinkState::LinkState(std::unique_ptr<rdma::Connection> connection)
    : StartedOperations(Link::kMaxOperations, 1),
      connection_(std::move(connection)),
      window_(connection_->window().data()),
      is_driven_by_callers_(session() != nullptr && session()->home().driver() == session::DrivenBy::kCaller) {
  for (std::uint32_t slot = 0; slot < calls_.size(); ++slot) {
    calls_[slot].link = this;
    calls_[slot].slot = slot;
  }
}

// --- calls --------------------------------------------------------------------------------------------------------

session::Call& LinkCalls::any() noexcept {
  return std::visit(
      [](auto& each) -> session::Call& {
        using Kind = std::remove_cvref_t<decltype(each)>;
        if constexpr (std::is_same_v<Kind, Writing>) {
          return each.note.done() ? static_cast<session::Call&>(each.write) : each.note;
        } else {
          return each;
        }
      },
      call);
}

bool LinkCalls::are_told() noexcept {
  const auto* const both = std::get_if<Writing>(&call);
  return both != nullptr ? both->write.tell != nullptr || both->note.tell != nullptr : any().tell != nullptr;
}

Status LinkCalls::status() noexcept {
  const auto* const both = std::get_if<Writing>(&call);
  return both != nullptr && both->write.status == Status::kOk ? both->note.status : any().status;
}

template <class Kind>
CallOf<Kind>& LinkCalls::emplace() noexcept {
  auto& made = call.emplace<CallOf<Kind>>();
  made.calls = this;
  return made;
}

template <class Kind>
void LinkState::on_call(session::Call& call) noexcept {
  Calls& calls = *static_cast<CallOf<Kind>&>(call).calls;
  if (calls.are_done()) calls.link->complete_calls(calls);
}

void LinkState::complete_calls(Calls& calls) noexcept {
  const session::TransferCall* const transfer = calls.transfer();
  complete(calls.slot, {.value = transfer != nullptr ? transfer->old : 0, .status = calls.status()});
}

namespace {

/// Puts into words why a message was not begun.
[[nodiscard]] Status worded(const session::Session& session, const char* call, Status begun) noexcept {
  return begun == Status::kOk ? begun : api::note_general(session, call, begun);
}

}  // namespace

template <class Begin>
Started LinkState::start(const char* call, Begin&& begin) noexcept {
  bool is_over = false;
  Started started = StartedOperations::start(call, [&](std::uint64_t cookie) {
    if (session() == nullptr) return note(Status::kClosed, call, "the connection was closed");
    Calls& calls = calls_[static_cast<std::uint32_t>(cookie)];
    const Status begun = begin(*session(), calls);
    if (begun != Status::kOk || calls.are_told()) return begun;
    if (damage_of(calls.status()) >= Damage::kConnection) return api::note_general(*session(), call, calls.status());
    is_over = true;
    complete_calls(calls);
    return Status::kOk;
  });
  if (is_over) (void)started.poll();
  return started;
}

Started LinkState::start_send(const char* call, std::span<const std::byte> from,
                              std::optional<std::uint32_t> immediate) noexcept {
  return start(call, [&](session::Session& session, Calls& calls) {
    auto& send = calls.emplace<session::SendCall>();
    send.immediate = immediate;
    send.from = from.data();
    send.length = from.size();
    return worded(session, call, session.begin(send, on_call<session::SendCall>));
  });
}

Started LinkState::start_receive(const char* call, std::span<std::byte> to, std::size_t element_bytes) noexcept {
  return start(call, [&](session::Session& session, Calls& calls) {
    auto& receive = calls.emplace<session::ReceiveCall>();
    receive.to = to.data();
    receive.length = to.size();
    calls.element_bytes = element_bytes;
    return worded(session, call, session.begin(receive, on_call<session::ReceiveCall>));
  });
}

Started LinkState::start_transfer(const char* call, session::Transfer::Kind kind, const rdma::Local& here,
                                  const rdma::Remote& there) noexcept {
  return start(call, [&](session::Session& session, Calls& calls) {
    auto& transfer = calls.emplace<session::TransferCall>();
    transfer.kind = kind;
    return begin_transfer(session, call, here, there, transfer, on_call<session::TransferCall>);
  });
}

Started LinkState::start_change(const char* call, const rdma::Remote& word, const session::Change& change) noexcept {
  return start(call, [&](session::Session& session, Calls& calls) {
    auto& transfer = calls.emplace<session::TransferCall>();
    transfer.kind = session::Transfer::Kind::kAtomic;
    transfer.change = change;
    return begin_transfer(session, call, {}, word, transfer, on_call<session::TransferCall>);
  });
}

Started LinkState::start_write_and_tell(const char* call, const rdma::Local& from, const rdma::Remote& to,
                                        std::size_t offset, std::uint32_t immediate) noexcept {
  return start(call, [&](session::Session& session, Calls& calls) {
    auto& [write, note] = calls.call.emplace<Writing>();
    write.calls = note.calls = &calls;
    write.kind = session::Transfer::Kind::kWrite;
    write.local = {.data = from.bytes().data(), .length = from.size(), .lkey = from.lkey()};
    write.place = api::key_place(to.address, to.rkey, from.size());
    note.kind = session::wire::Kind::kWritten;
    note.immediate = immediate;
    note.length = from.size();
    note.offset = offset;
    return worded(session, call,
                  session.begin(write, on_call<session::TransferCall>, note, on_call<session::SendCall>));
  });
}

// In the thread that has the operation: it says what was wrong.
void LinkState::on_take(std::uint32_t slot, End& end) noexcept {
  constexpr const char* kCall = "typed::Link::start_receive";
  Calls& calls = calls_[slot];
  const session::ReceiveCall* const receive = calls.receive();
  if (receive == nullptr) return;
  if (end.status == Status::kBufferTooSmall) {
    Inside::set_waiting(*connection_, receive->needed);
    note(end.status, kCall, "the segment must have {} bytes for the message that waits; got {}", receive->needed,
         receive->length);
  }
  if (end.status != Status::kOk) return;
  const auto received = elements_of(kCall, receive->message, window_, calls.element_bytes);
  if (!received) {
    end.status = received.error();
    return;
  }
  end.value = received->count;
  end.first = received->first;
  end.immediate = received->immediate.value_or(0);
  end.arrived = received->kind == rdma::Message::Kind::kWritten ? End::Arrived::kWritten
                : received->immediate                           ? End::Arrived::kSentWithImmediate
                                                                : End::Arrived::kSent;
}

// Whoever had the receive is about to let it go: a message that comes meanwhile is not for it.
void LinkState::on_abandon(std::uint32_t slot) noexcept {
  if (session::ReceiveCall* const receive = calls_[slot].receive(); receive != nullptr)
    receive->is_dropped.store(true, std::memory_order_relaxed);
}

void LinkState::withdraw_abandoned() noexcept {
  for_each_under_way([this](std::uint32_t slot) {
    session::ReceiveCall* const receive = is_abandoned(slot) ? calls_[slot].receive() : nullptr;
    // Its segment is free once the thread that drives the session has let go of it.
    if (receive != nullptr && !receive->done() && session()->try_withdraw(*receive)) complete_calls(calls_[slot]);
  });
}

void LinkState::collect_now() noexcept {
  if (session() == nullptr) return;
  if (quarantined() != 0) withdraw_abandoned();
  look();
}

Status LinkState::collect_until(std::uint32_t slot, Deadline deadline) noexcept {
  if (session() == nullptr) return Status::kClosed;
  Calls& calls = calls_[slot];
  const Status waited = session()->wait_for(calls.any(), deadline);
  // The thread that has ended the calls completes the slot by its next instructions.
  while (is_under_way(slot) && calls.are_done()) yield_thread();
  return waited;
}

Deadline LinkState::default_deadline() const noexcept {
  return session() != nullptr ? session()->default_patience().begin() : Deadline::now();
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
    const bool is_in_callback = session() != nullptr && api::is_in_callback(*session());
    if (is_in_callback) {
      // There the connection's own end does not wait for the NIC.
      session()->stop_in_callback();
      const Deadline limit = Deadline::after(kDrain);
      for_each_under_way([&](std::uint32_t slot) { (void)session()->wait_for(calls_[slot].any(), limit); });
    }
    connection_->close();
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
  if (!nic::may_be_of(to.peer, window.peer))
    return std::unexpected(note(Status::kBadArgument, call, "to is {}", session::kAnothersMemory));
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
  const auto length = static_cast<std::size_t>(session->reach_of(from));
  const session::LocalSpan local{to.bytes().data(), length, to.lkey()};
  return session->read_now(local, api::key_place(from.address, from.rkey, length));
}

bool Link::write_now(const rdma::Local& from, const rdma::Remote& to) noexcept {
  session::Session* const session = state_->session();
  if (session == nullptr || from.size() == 0 || session->reach_of(to) < from.size()) [[unlikely]]
    return false;
  const session::LocalSpan local{from.bytes().data(), from.size(), from.lkey()};
  return session->write_now(local, api::key_place(to.address, to.rkey, from.size()));
}

bool Link::change_now(const rdma::Remote& word, std::uint64_t operand, const std::optional<std::uint64_t>& expected,
                      std::uint64_t& old) noexcept {
  session::Session* const session = state_->session();
  if (session == nullptr || word.length != sizeof operand || word.address % sizeof operand != 0 ||
      !session->is_of_peer(word.peer))
    return false;
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
  return state_->start_transfer("typed::Link::start_read", session::Transfer::Kind::kRead, to, from);
}
Started Link::begin_write(const rdma::Local& from, const rdma::Remote& to) noexcept {
  return state_->start_transfer("typed::Link::start_write", session::Transfer::Kind::kWrite, from, to);
}
Started Link::begin_fetch_add(const rdma::Remote& word, std::uint64_t delta) noexcept {
  return state_->start_change("typed::Link::start_fetch_add", word, {.compare_add = delta});
}
Started Link::begin_compare_swap(const rdma::Remote& word, std::uint64_t expected, std::uint64_t desired) noexcept {
  return state_->start_change("typed::Link::start_compare_swap", word, api::swap_of(expected, desired));
}

std::size_t Link::quarantined() const noexcept { return state_ != nullptr ? state_->quarantined() : 0; }

Status Link::settle(Deadline deadline) noexcept {
  return state_ != nullptr ? state_->settle(deadline, "typed::Link::settle") : Status::kOk;
}

}  // namespace verbena::typed
