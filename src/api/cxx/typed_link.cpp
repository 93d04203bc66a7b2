// Links of the typed API: who has a segment from the start of an operation to its end.
#include <verbena/typed.hpp>

#include "api/cxx/guarded.hpp"
#include "api/cxx/link_state.hpp"
#include "api/session.hpp"
#include "base/check.hpp"
#include "base/relax.hpp"
#include "base/threads.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <utility>

namespace verbena::typed {
namespace detail {

template <class Begin>
Started LinkState::start(const char* call, Begin&& begin) noexcept {
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
  // Before it begins: its end may be told at once by the thread that drives the connection.
  used_.fetch_or(std::uint64_t{1} << number, std::memory_order_release);
  const Status begun = begin(*connection_, cookie_of(number));
  if (begun == Status::kOk) return {*this, number};
  slot.state.store(State::kComplete, std::memory_order_relaxed);
  free(number);
  return Started(begun);
}

bool LinkState::take(std::uint32_t slot, Status& status, std::uint64_t& old) noexcept {
  const Slot& of = slots_[slot];
  State state = of.state.load(std::memory_order_acquire);
  // Who was told may be here before the teller has stored that, which is his next instruction.
  for (; state == State::kTelling; state = of.state.load(std::memory_order_acquire)) yield_thread();
  if (state != State::kComplete) return false;
  status = of.status;
  old = of.old;
  free(slot);
  return true;
}

void LinkState::abandon(std::uint32_t slot, Claim&& claim) noexcept {
  Slot& of = slots_[slot];
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
  State before = of.state.load(std::memory_order_acquire);
  while (before != State::kAbandoned) {
    const State after = before == State::kAwaited ? State::kTelling : State::kComplete;
    if (!of.state.compare_exchange_weak(before, after, std::memory_order_acq_rel)) continue;
    if (after == State::kComplete) return;
    of.wait->tell();
    return of.state.store(State::kComplete, std::memory_order_release);
  }
  of.claim = {};
  quarantined_.fetch_sub(1, std::memory_order_release);
  free(slot);
}

void LinkState::on_completion(const rdma::Completion& completion) noexcept {
  const auto slot = static_cast<std::uint32_t>(completion.cookie);
  // The user's own, started past the link.
  if (slot >= slots_.size() || !is_used(slot) || cookie_of(slot) != completion.cookie) return;
  complete(slot, completion.status, completion.old);
}

std::size_t LinkState::collect_now() noexcept {
  if (is_watching_.load(std::memory_order_acquire)) {
    look();
    return 0;
  }
  std::array<rdma::Completion, 16> completions;
  const std::size_t count = connection_->poll(completions);
  std::ranges::for_each(std::span(completions).first(count),
                        [this](const rdma::Completion& each) { on_completion(each); });
  return count;
}

Status LinkState::collect(Deadline deadline, const char* call) noexcept {
  const Turn turn(is_in_turn_);
  if (!turn) return refuse_turn(call);
  if (deadline.passed()) return collect_now() != 0 ? Status::kOk : Status::kTimedOut;
  // Whoever takes completions first gets them: this thread, until it has one.
  stop_watch();
  const auto completion = connection_->complete(deadline);
  if (completion) on_completion(*completion);
  if (is_any_awaited()) (void)start_watch();
  return completion ? Status::kOk : completion.error();
}

Deadline LinkState::deadline_or_default(const std::optional<Deadline>& deadline) const noexcept {
  if (deadline) return *deadline;
  const session::Session* const session = Inside::session(*connection_);
  return session != nullptr ? session->default_patience().begin() : Deadline::now();
}

bool LinkState::is_any_under_way() const noexcept {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
    if (is_used(slot) && slots_[slot].state.load(std::memory_order_acquire) != State::kComplete) return true;
  return false;
}

// --- coroutines

LinkState::LinkState(std::unique_ptr<rdma::Connection> connection) noexcept
    : connection_(std::move(connection)),
      is_driven_by_callers_(session() != nullptr && session()->home().driver() == session::Driver::kCaller) {}

bool LinkState::is_any_awaited() const noexcept {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
    if (is_used(slot) && slots_[slot].state.load(std::memory_order_acquire) == State::kAwaited) return true;
  return false;
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
  if (watch_.session->withdraw(watch_)) is_watching_.store(false, std::memory_order_release);
}

Status LinkState::await(std::uint32_t slot, coroutine::detail::Wait& wait) noexcept {
  Slot& of = slots_[slot];
  of.wait = &wait;
  State expected = State::kUnderWay;
  if (!of.state.compare_exchange_strong(expected, State::kAwaited, std::memory_order_acq_rel)) return Status::kAgain;
  const Status watched = start_watch();
  if (watched == Status::kOk) return Status::kOk;
  return stop_awaiting(slot) ? watched : Status::kOk;
}

bool LinkState::stop_awaiting(std::uint32_t slot) noexcept {
  Slot& of = slots_[slot];
  State expected = State::kAwaited;
  if (of.state.compare_exchange_strong(expected, State::kUnderWay, std::memory_order_acq_rel)) return true;
  // The teller's next instruction stores that he has told.
  while (of.state.load(std::memory_order_acquire) == State::kTelling) yield_thread();
  return false;
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
    const Turn turn(is_in_turn_);
    // Another thread would go on with a connection that is gone.
    VERBENA_CHECK(static_cast<bool>(turn));
    stop_watch();
    session::Session* const session = Inside::session(*connection_);
    const bool is_in_callback = session != nullptr && api::is_in_callback(*session);
    if (is_in_callback && is_any_under_way()) {
      // There the connection's own end does not wait for the NIC.
      session->stop_in_callback();
      const Deadline limit = Deadline::after(kDrain);
      while (is_any_under_way()) {
        const auto completion = connection_->complete(limit);
        if (!completion) break;
        on_completion(*completion);
      }
    }
    connection_->close();
    for (std::uint32_t slot = 0; slot < slots_.size() && !is_in_callback; ++slot)
      if (is_used(slot) && slots_[slot].state.load(std::memory_order_acquire) != State::kComplete)
        complete(slot, Status::kClosed, 0);
    settle();  // Coroutines that waited are told, and this is polled no more.
  }
  let_go(kOpen);
}

// --- started ------------------------------------------------------------------------------------------------------

bool Started::look() noexcept {
  if (link_ != nullptr && link_->take(slot_, status_, old_)) link_ = nullptr;
  return link_ == nullptr;
}

bool Started::poll() noexcept {
  if (look()) return true;
  (void)link_->collect(Deadline::now(), "");
  return look();
}

Status Started::wait(const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "typed::Operation::wait";
  if (look()) return status_;
  const Deadline until = link_->deadline_or_default(deadline);
  while (true) {
    const Status collected = link_->collect(until, kCall);
    if (look()) return status_;
    if (collected == Status::kTimedOut)
      return note(collected, kCall, "the operation is under way still: wait again, or destroy it");
    if (collected != Status::kOk) return collected;
  }
}

void Started::abandon(Claim&& claim) noexcept { std::exchange(link_, nullptr)->abandon(slot_, std::move(claim)); }

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
  const auto offset = offset_in_window(to, from.size());
  return offset ? connection_->write_with_immediate(from.bytes(), immediate, *offset, deadline) : offset.error();
}

std::expected<std::size_t, Status> Link::offset_in_window(const rdma::Remote& to, std::size_t bytes) const noexcept {
  constexpr const char* kCall = "typed::Link::write_with_immediate";
  if (connection_ == nullptr) return std::unexpected(detail::refuse_call(kCall, false, rdma::Access::kWrite));
  if (bytes == 0)
    return std::unexpected(note(Status::kBadArgument, kCall, "from must have at least one element; got none"));
  const rdma::Window window = connection_->peer_window();
  const std::uint64_t offset = to.address - window.address;  // Wraps around for what is in front of it.
  const bool is_inside = to.rkey == window.rkey && offset <= window.length && to.length <= window.length - offset;
  if (is_inside && to.length >= bytes) return static_cast<std::size_t>(offset);
  return std::unexpected(note(Status::kOutOfRange, kCall,
                              "{} bytes at {:#x} must be inside the peer's own window, and hold {} bytes", to.length,
                              to.address, bytes));
}

Deadline Link::default_deadline() const noexcept {
  return state_ != nullptr ? state_->deadline_or_default({}) : Deadline::now();
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
    const Status collected = state_->collect(deadline, kCall);
    if (collected == Status::kTimedOut && quarantined() != 0)
      return note(collected, kCall, "{} operations are in quarantine still", quarantined());
    if (collected != Status::kOk && collected != Status::kTimedOut) return collected;
  }
  return Status::kOk;
}

}  // namespace verbena::typed
