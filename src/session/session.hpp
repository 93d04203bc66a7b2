// A session: one connection as its user sees it, with calls from any thread, messages of any length, windows and
// physical addresses.
#pragma once

#include "base/fork.hpp"
#include "channel/connection.hpp"
#include "session/calls.hpp"
#include "session/driver.hpp"
#include "session/home.hpp"
#include "session/outbox.hpp"
#include "session/physical_peer.hpp"
#include "session/reception.hpp"
#include "session/registrations.hpp"
#include "session/sessions.hpp"
#include "session/settings.hpp"
#include "session/transfers.hpp"
#include "session/windows.hpp"

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace verbena::session {

/// Calls may come from any thread, as far as the driver allows: with DrivenBy::kCaller one at a time, and a second one
/// gets kBusy. Calls on data return a Status and, once connected, allocate nothing. Any of them can return kTimedOut,
/// kBusy, kClosed or the reason of a dead session.
class Session final : private channel::Handler {
 public:
  /// Options of a session's connection.
  [[nodiscard]] static channel::Options connection_options() noexcept;

  /// `listener` and `node`, which may be null, own memory that this session uses too. `events` must outlive the
  /// session.
  Session(std::shared_ptr<Home> home, const Settings& settings, const Delivery& delivery, Events& events,
          Owner listener, Owner node);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // --- bring-up. \thread setup, one at a time
  /// Client: finds the server and connects. Errors: those of Fabric::dial and of Connection::connect.
  [[nodiscard]] Result<void> dial(link::Fabric& fabric, std::uint16_t port, Deadline deadline);
  /// Server: meets a client that has said hello; `accept_step` follows. On an error before that the handshake stays the
  /// caller's.
  [[nodiscard]] Result<void> answer(std::unique_ptr<link::Handshake>& handshake);
  /// One attempt, which may return kAgain, as Connection::connect. After kOk the session can be adopted.
  [[nodiscard]] Result<void> accept_step(Deadline deadline);
  /// The last step of `accept_step`, even if the peer's window is not usable yet. False: the peer is not connected.
  [[nodiscard]] bool accept_for_goodbye() noexcept {
    if (!connection_->alive()) return false;
    become_live();
    return true;
  }
  [[nodiscard]] const channel::Connection* connection() const noexcept { return connection_.get(); }
  void refuse(const Error& why) noexcept;
  /// From now on the thread that drives the session handles what arrives. The home destroys the session, unless
  /// somebody keeps it.
  void adopt() noexcept {
    home_->driver() == DrivenBy::kCaller ? home_->sessions().adopt_here(*this) : home_->sessions().adopt(*this);
  }

  // --- state. \thread any, except where said
  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  /// Whether set_delivery and keep may be called: before the session is adopted, and in Events::on_accept.
  [[nodiscard]] bool is_being_set_up() const noexcept { return !life_.is_set_up.load(std::memory_order_relaxed); }
  void set_delivery(const Delivery& delivery) noexcept { delivery_.store(delivery, std::memory_order_relaxed); }
  /// Makes an accepted session its caller's, who must then close and destroy it.
  void keep() noexcept { is_kept_ = true; }
  [[nodiscard]] bool is_kept() const noexcept { return is_kept_; }
  void give_back() noexcept { is_kept_ = false; }
  void* user = nullptr;  ///< For the receiver of the events.

  [[nodiscard]] Home& home() const noexcept { return *home_; }
  [[nodiscard]] Scope scope() const noexcept { return scope_; }
  /// Whether calls can work. With DrivenBy::kCaller it polls once, unless another thread is in a call.
  [[nodiscard]] bool is_live() noexcept;
  /// Why it is dead; kOk while it is alive.
  [[nodiscard]] Status reason() const noexcept {
    return is_forked() ? Status::kForked : life_.shown_reason.load(std::memory_order_acquire);
  }
  static void operator delete(Session* session, std::destroying_delete_t) noexcept { delete_unless_forked(session); }
  [[nodiscard]] std::span<std::byte> window() const noexcept;
  [[nodiscard]] const RegisteredMemory* window_memory() const noexcept { return window_; }
  [[nodiscard]] const nic::Window& peer_window() const noexcept { return peer_.window; }
  /// Tells this session's peer from others, by its NIC; once connected.
  [[nodiscard]] std::uint16_t peer_number() const noexcept { return peer_nic_.number; }
  /// Whether memory of the peer with this number may be this one's.
  [[nodiscard]] bool is_of_peer(std::uint16_t number) const noexcept {
    return nic::may_be_of(number, peer_nic_.number);
  }
  /// Its length; 0 where it is another peer's. Without a branch, for calls that are one function down to the NIC.
  [[nodiscard]] std::uint64_t reach_of(const rdma::Remote& remote) const noexcept {
    return remote.length * std::uint64_t{is_of_peer(remote.peer)};
  }
  [[nodiscard]] std::uint64_t discarded() const noexcept { return reception_.discarded(); }
  [[nodiscard]] bool receives() const noexcept {
    return delivery().receive != rdma::Receive::kHandler && !reception_.discards();
  }
  std::atomic<std::int64_t> timeout_ms;  ///< Default time of a call.
  [[nodiscard]] Patience default_patience() const noexcept {
    return Patience(std::chrono::milliseconds{timeout_ms.load(std::memory_order_relaxed)});
  }

  // --- messages
  [[nodiscard]] Status send(std::span<const std::byte> data, std::optional<std::uint32_t> immediate,
                            const Patience& patience) noexcept;
  /// kBufferTooSmall: `needed` is the length of the message, which stays queued.
  [[nodiscard]] Status receive(std::span<std::byte> buffer, rdma::Message& message, std::size_t& needed,
                               const Patience& patience) noexcept;
  /// Waits for a call that was begun (see `begin`). kTimedOut: it goes on.
  [[nodiscard]] Status wait_for(Call& call, const Patience& patience) noexcept {
    return driver_.wait_for(call, patience);
  }
  /// Writes into the peer's default window, and tells it. No bytes: only tells.
  [[nodiscard]] Status write_with_immediate(std::span<const std::byte> data, std::uint32_t immediate,
                                            std::size_t offset, const Patience& patience) noexcept;

  // --- one-sided access. Asks the peer, once, for a window whose key is not known.
  /// The part of the peer's default window at an offset. Errors: kOutOfRange (not inside).
  [[nodiscard]] Status in_window(std::size_t offset, std::size_t length, Place& place) const noexcept {
    const std::uint64_t window = peer_.window.length;
    if (offset > window || length > window - offset) [[unlikely]]
      return Status::kOutOfRange;
    place.span = {peer_.window.address + offset, length, peer_.window.rkey};
    return Status::kOk;
  }
  /// With any memory, or with registered memory (a LocalSpan), in the calling thread and past the queues. False, and
  /// nothing has happened: the NIC does not allow it now, or something is wrong. Then call the form that waits.
  template <class Local>
  [[nodiscard, gnu::always_inline]] bool write_now(const Local& from, const Place& to) noexcept {
    return at_once(from, to, [&](const RemoteSpan& there) { return connection_->write_now(bytes_of(from), there); });
  }
  template <class Local>
  [[nodiscard, gnu::always_inline]] bool read_now(const Local& to, const Place& from) noexcept {
    return at_once(to, from, [&](const RemoteSpan& there) { return connection_->read_now(bytes_of(to), there); });
  }
  [[nodiscard]] bool change_now(const Change& change, const Place& word, std::uint64_t& old) noexcept {
    return at_once(change, word, [&](const RemoteSpan& there) { return connection_->change_now(change, there, old); });
  }
  /// The same, and waits. kLocalAccess: memory given as a LocalSpan is not registered. Past the deadline a session dies
  /// if its registered memory is still in flight.
  template <class Local>
  [[nodiscard]] Status write(const Local& from, const Place& to, const Patience& patience) noexcept {
    return transfer(Transfer::Kind::kWrite, span_of(from), to, patience);
  }
  template <class Local>
  [[nodiscard]] Status read(const Local& to, const Place& from, const Patience& patience) noexcept {
    return transfer(Transfer::Kind::kRead, span_of(to), from, patience);
  }
  [[nodiscard]] Status change(const Change& change, const Place& word, std::uint64_t& old,
                              const Patience& patience) noexcept;
  /// Starts a write from registered memory without waiting; its completion has `cookie`. kAgain:
  /// Transfers::kMostStarted are in flight, or complete and not taken.
  [[nodiscard]] Status start_write(const LocalSpan& from, const Place& to, std::uint64_t cookie) noexcept {
    return start({.kind = Transfer::Kind::kWrite, .local = from, .place = to, .cookie = cookie});
  }
  [[nodiscard]] Status start_read(const LocalSpan& to, const Place& from, std::uint64_t cookie) noexcept {
    return start({.kind = Transfer::Kind::kRead, .local = to, .place = from, .cookie = cookie});
  }
  [[nodiscard]] Status start_change(const Change& change, const Place& word, std::uint64_t cookie) noexcept {
    return start({.kind = Transfer::Kind::kAtomic, .place = word, .change = change, .cookie = cookie});
  }
  /// kNotFound: nothing is in flight.
  [[nodiscard]] Status complete(rdma::Completion& completion, const Patience& patience) noexcept;

  // --- calls in which nobody waits: `tell` is called at their end, by the thread that drives the session
  /// Begins a call. kOk: it has begun, and is done, in which case nobody is told (`Call::tell` is null), or will tell.
  /// Else it has not begun: kBusy, or as CompletionLoop::call. It stays where it is until it is done or withdrawn.
  [[nodiscard]] Status begin(SendCall& call, Call::Tell tell) noexcept;
  [[nodiscard]] Status begin(ReceiveCall& call, Call::Tell tell) noexcept;
  /// Asks the peer, once, for a window whose key is not known. Fails, too, where the call has failed at once.
  /// kLocalAccess: its memory is not registered.
  [[nodiscard]] Status begin(TransferCall& call, Call::Tell tell) noexcept;
  /// A WRITE of registered memory into the peer's default window, and a note of it that leaves after it. Each has a
  /// tell of its own. kLocalAccess: the memory is not registered.
  [[nodiscard]] Status begin(TransferCall& write, Call::Tell tell_of_write, SendCall& note,
                             Call::Tell tell_of_note) noexcept;
  /// Takes a call back that was begun. False: it was done before, and has been told of.
  template <class Kind>
  [[nodiscard]] bool withdraw(Kind& call) noexcept;
  /// The same for a receive, but does not wait for a thread that is in a call: then false, too.
  [[nodiscard]] bool try_withdraw(ReceiveCall& call) noexcept;
  /// With DrivenBy::kCaller: takes in what has arrived; `wait` also sleeps until something has, or `Home`'s loop is
  /// woken.
  void look() noexcept { wait(Deadline::now()); }
  void wait(Deadline deadline) noexcept;

  // --- windows and memory
  /// Asks the peer for a window, by name or by key, and makes it usable. Errors: kNotFound (the peer has none).
  [[nodiscard]] Result<rdma::Window> find(std::string_view name, const Patience& patience);
  [[nodiscard]] Result<rdma::Window> find(std::uint32_t rkey, const Patience& patience);
  [[nodiscard]] Result<void> import_window(const rdma::Window& window, const Patience& patience);
  [[nodiscard]] Result<void> release_window(const rdma::Window& window, const Patience& patience);
  /// Memory for this session's peer.
  [[nodiscard]] Result<const RegisteredMemory*> allocate(std::size_t bytes);
  /// Publishes memory under a name for the peer, or takes the name back (null).
  [[nodiscard]] Result<void> publish(std::string_view name, const Part& part);
  /// Exports memory by physical address and tells the peer. Returns the address of the first byte.
  [[nodiscard]] Result<std::uint64_t> export_physical(const RegisteredMemory* memory, const Patience& patience);

  // --- the end
  /// Says goodbye, and waits until the home has let go of the session. Don't call it from the home's own thread.
  /// \thread any
  void close() noexcept;
  /// The same for a callback, where it does not wait: after the callback the home destroys the session, or leaves it to
  /// whoever keeps it.
  void close_in_callback() noexcept;
  /// The same, but also returns the user's memory in flight: its transfers complete within the time of a drain, even if
  /// the goodbye does not get through.
  void stop_in_callback() noexcept {
    close_in_callback();
    if (connection_ != nullptr && !transfers_.is_quiet()) connection_->fail(Status::kClosed);
  }
  /// Whether the home has let go of it.
  [[nodiscard]] bool is_detached() const noexcept { return state() == State::kDetached; }
  /// Whether a message has arrived that nobody has taken. Call in a callback.
  [[nodiscard]] bool has_messages() const noexcept { return !reception_.empty(); }

 private:
  friend class Sessions;
  friend class Driver<Session>;
  enum class State : std::uint8_t {
    kNew,      ///< Nothing is connected yet.
    kLive,     ///< Calls can work.
    kEnded,    ///< It is dead, for `Life::reason`; the connection may still hold resources.
    kDetached  ///< The home has let go of it.
  };
  /// The last event reported to the user.
  enum class Told : std::uint8_t { kNothing, kLive, kEnd };

  // channel::Handler
  void on_message(channel::Connection& connection, std::span<const std::byte> body) noexcept override;
  void on_complete(channel::Connection& connection, const channel::Completion& completion) noexcept override;
  void on_room(channel::Connection& connection) noexcept override;
  void on_end(channel::Connection& connection, Status reason) noexcept override;

  [[nodiscard]] Result<void> create();
  [[nodiscard]] Result<void> open_window();
  [[nodiscard]] std::array<std::byte, wire::kHelloBytes> hello() const noexcept;
  [[nodiscard]] Result<void> meet();
  void become_live() noexcept;

  [[nodiscard]] Delivery delivery() const noexcept { return delivery_.load(std::memory_order_relaxed); }
  [[nodiscard]] State state() const noexcept { return life_.state.load(std::memory_order_acquire); }
  /// Calls `task`, which returns a Status, on a live session that this thread drives.
  template <class Task>
  [[nodiscard]] Status drive(Task&& task) noexcept;
  /// Whether `attempt`, called with the place under its key, carried a transfer out. False: not executed, no side
  /// effect. Post it normally to get the precise error.
  template <class Local, class Attempt>
  [[nodiscard, gnu::always_inline]] bool at_once(const Local& local, const Place& place, Attempt&& attempt) noexcept;
  /// Puts a call into `queue`; on a session that has ended it finishes the call.
  template <class Queue, class Kind>
  void push(Queue& queue, Kind& call) noexcept;
  /// As Driver::take_back.
  template <class Kind>
  [[nodiscard]] Status take_back(Kind& call, Deadline deadline) noexcept;
  /// Sends a short message in the calling thread. False: nothing has happened; it goes the long way.
  [[nodiscard]] bool send_now(std::span<const std::byte> data, std::optional<std::uint32_t> immediate) noexcept;
  /// In the thread that drives the session: the call is done when this returns.
  void give_up(SendCall& call) noexcept;
  void give_up(ReceiveCall& call) noexcept;
  void give_up(TakeCall& call) noexcept;
  [[nodiscard]] Status run(SendCall& call, const Patience& patience) noexcept;
  [[nodiscard]] Status run(TransferCall& call, const Patience& patience) noexcept;
  /// Calls `task` in the thread that drives the session. Errors: kBusy, and those of CompletionLoop::call.
  template <class Task>
  [[nodiscard]] Status run_task(Task&& task, const Patience& patience) noexcept;
  /// The same for a task that returns a Result<void>, while the session is live.
  template <class Task>
  [[nodiscard]] Result<void> run_while_live(const char* call, const Patience& patience, Task&& task);
  [[nodiscard]] static LocalSpan span_of(const LocalSpan& registered) noexcept { return registered; }
  /// Once `knows_local` has found it registered, nothing else has to.
  [[nodiscard]] static std::span<std::byte> bytes_of(const LocalSpan& registered) noexcept {
    return {registered.data, registered.length};
  }
  template <class Byte>
  [[nodiscard]] static std::span<Byte> bytes_of(std::span<Byte> bytes) noexcept {
    return bytes;
  }
  [[nodiscard]] static LocalSpan span_of(std::span<const std::byte> bytes) noexcept {
    return LocalSpan::bounced(bytes);
  }
  [[nodiscard]] Status transfer(Transfer::Kind kind, const LocalSpan& local, const Place& place,
                                const Patience& patience) noexcept;
  /// READs or WRITEs, one part after the other where the memory is physical. \thread owner
  [[nodiscard]] Status move(Transfer::Kind kind, LocalSpan local, Place place, const Patience& patience) noexcept;
  [[nodiscard]] Status start(const Transfer& transfer) noexcept;
  /// Calls `attempt`; if the key of its window is not known, asks the peer and calls it once more.
  template <class Attempt>
  [[nodiscard]] Status with_key(const Place& place, const Patience& patience, Attempt&& attempt) noexcept;
  [[nodiscard]] Status find_key(std::uint32_t rkey, const Patience& patience) noexcept;
  [[nodiscard]] Result<rdma::Window> ask(AskCall& call, const Patience& patience);
  [[nodiscard]] std::unexpected<Error> failed(const char* call, Status status) const noexcept;
  struct KnownMemory {
    RegisteredMemory memory;
    std::uint64_t generation = 0;  ///< Generation of the registrations when it was found.
  };
  /// Whether `local` is registered; tries `local_` first. \thread owner
  [[nodiscard]] bool knows_local(const LocalSpan& local) noexcept {
    if (local_.generation == home_->registrations().generation() && local_.memory.lkey == local.lkey &&
        local_.memory.holds(local.data, local.length)) [[likely]]
      return true;
    return find_local(local, local_);
  }
  /// By value, so that the caller's span need not be in memory.
  [[nodiscard]] bool find_local(LocalSpan local, KnownMemory& known) noexcept;
  [[nodiscard]] bool is_registered(const LocalSpan& local) noexcept;

  /// After a failed call: checks what has arrived for a goodbye, which would be the reason. \thread owner
  void look_for_end(Status failure) noexcept;
  void lose_peer() noexcept;
  /// The same after a call from any thread. Returns `status`, or the reason of the end.
  [[nodiscard]] Status after_failure(Status status, const Patience& patience) noexcept;

  // For Sessions, and the driver. \thread owner
  void begin() noexcept;
  void progress() noexcept;
  void before_call() noexcept {
    if (life_.is_told_by_polls) look_for_end(Status::kOk);  // A send would be accepted once more.
  }
  /// Progresses, too, if it handles messages.
  void call_back() noexcept;
  /// Whether messages wait for the handler.
  [[nodiscard]] bool handles_messages() const noexcept {
    return !reception_.empty() && delivery().receive == rdma::Receive::kHandler && life_.told != Told::kEnd;
  }
  void end(Status reason) noexcept;
  /// The same, and tells the peer.
  void leave(Status reason) noexcept;
  [[nodiscard]] bool is_quiet() const noexcept;
  [[nodiscard]] bool is_over() const noexcept {
    return state() == State::kEnded && life_.told == Told::kEnd && is_quiet();
  }
  [[nodiscard]] bool is_lingering() const noexcept {
    return connection_ != nullptr && state() == State::kEnded && !connection_->has_left();
  }
  void detach() noexcept;

  const std::shared_ptr<Home> home_;
  Driver<Session> driver_{*home_, *this};
  const Settings settings_;
  /// Any thread that got the session in Events::on_accept may ask `receives`.
  std::atomic<Delivery> delivery_;
  Events& events_;
  const Scope scope_;
  std::unique_ptr<channel::Connection> connection_;
  const RegisteredMemory* window_ = nullptr;  ///< Owned by the registrations, or `shared_window_`.
  RegisteredMemory shared_window_;            ///< Memory of the listener or the node.
  wire::Hello peer_;
  struct {
    ibv_gid gid{};
    std::uint16_t number = 0;  ///< Tells it from others.
  } peer_nic_;
  Reception reception_;
  PhysicalPeer physical_;
  Transfers transfers_{physical_};
  Outbox outbox_{reception_, transfers_};
  Windows windows_{outbox_};
  KnownMemory local_;  ///< The registration used last.
  /// How far it has come. Atomics are for all threads, the rest for its home's.
  struct Life {
    bool is_told_by_polls = false;  ///< The NIC reports the peer's leave only to a thread that polls.
    Status reason = Status::kOk;    ///< Why it has ended.
    Told told = Told::kNothing;
    std::atomic<State> state{State::kNew};
    std::atomic<Status> shown_reason{Status::kOk};  ///< The same as `reason`.
    std::atomic<bool> is_set_up{false};
    std::atomic<std::uint32_t> detached{0};  ///< 1: State::kDetached, for threads that wait for that.
    void end(Status why) noexcept {
      reason = why;
      shown_reason.store(why, std::memory_order_release);
      state.store(State::kEnded, std::memory_order_release);
    }
  } life_;
  bool is_kept_ = false;
  bool is_listed_ = false;               ///< In Sessions' list of ready sessions,
  bool is_to_be_called_ = false;         ///< and in its list of sessions to call back.
  std::atomic<std::size_t> exports_{0};  ///< Exports by physical address since it was connected.
  struct Arrival : engine::Mailbox::Letter {
    Session* session = nullptr;
  } arrival_;
};

/// Ends a sentence about memory that a connection refuses because it is another peer's.
inline constexpr const char* kAnothersMemory =
    "memory of another peer than this connection's: use it on a connection to the one where it was found";

/// Why a call of a session failed: two parts of one sentence, in static storage. \thread any  \alloc none
struct Words {
  const char* front;
  const char* sentence;
};
[[nodiscard]] Words words_of(const Session& session, Status status) noexcept;

/// The physical address of a byte of this process: the one under which `session`, unless null, exported it, otherwise
/// the kernel's answer. \thread any
[[nodiscard]] Result<std::uint64_t> physical_address_of(Session* session, const void* local);

// In the header, with what it calls: each function call between the user's call and the NIC would cost ten instructions
// of a few hundred.
template <class Local, class Attempt>
inline bool Session::at_once(const Local& local, const Place& place, Attempt&& attempt) noexcept {
  if (home_->driver() != DrivenBy::kCaller || is_forked()) [[unlikely]]
    return false;
  Exclusive::Mark* const mark = driver_.enter();
  if (mark == nullptr) [[unlikely]]
    return false;
  bool is_known = state() == State::kLive;
  if constexpr (std::is_same_v<Local, LocalSpan>) is_known = is_known && knows_local(local);
  const auto go = [&] {
    if (place.space == Space::kKey) return attempt(place.span) == Status::kOk;
    RemoteSpan part;
    return physical_.find_whole(*connection_, place.span, part) && attempt(part) == Status::kOk;
  };
  const bool is_done = is_known && go();
  Exclusive::leave(mark);
  return is_done;
}

}  // namespace verbena::session
