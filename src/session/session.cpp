#include "session/session.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/failure.hpp"
#include "base/log.hpp"
#include "base/threads.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

namespace verbena::session {
namespace {

/// For receipts, the goodbye, and the blocking call of the driving thread.
constexpr std::uint32_t kOwnOperations = 8;

constexpr wire::Head kGoodbye{.kind = wire::Kind::kGoodbye};

[[nodiscard]] nic::Window nic_window_of(const rdma::Window& window) noexcept {
  return {.address = window.address,
          .length = window.length,
          .rkey = window.rkey,
          .access = verbs_access_of(window.access),
          .memory_id = window.memory_id};
}

}  // namespace

channel::Options Session::connection_options() noexcept {
  channel::Options options;
  options.depth = 32;
  options.eager_bytes = 16 * 1024;
  options.max_operations = Transfers::kParts + kOwnOperations;
  options.max_larges = 0;
  return options;
}

Session::Session(std::shared_ptr<Home> home, const Settings& settings, const Delivery& delivery, Events& events,
                 Owner listener, Owner node)
    : timeout_ms(settings.timeout.count()),
      home_(std::move(home)),
      settings_(settings),
      delivery_(delivery),
      events_(events),
      scope_{.self = this, .listener = listener, .node = node},
      reception_(settings.inbox_bytes, settings.max_message_bytes) {
  arrival_.session = this;
}

Session::~Session() {
  connection_.reset();  // Goes before the memory that its peer uses.
  home_->registrations().remove_all(this);
}

// --- bring-up -----------------------------------------------------------------------------------------------------

std::span<std::byte> Session::window() const noexcept {
  if (window_ == nullptr) return {};
  // If the memory is somebody else's, only the given part.
  return settings_.window.empty() ? std::span(window_->address, window_->length) : settings_.window;
}

Result<void> Session::open_window() {
  if (!settings_.window.empty()) {
    // Memory of the listener or the node is already registered, and peers reach it directly.
    if (const auto around =
            home_->registrations().find_around(scope_, settings_.window, rdma::Access::kRead | rdma::Access::kWrite)) {
      shared_window_ = *around;
      window_ = &shared_window_;
      return {};
    }
    VERBENA_ASSIGN(window_, home_->registrations().add(this, settings_.window, rdma::Access::kAll));
  } else if (settings_.window_bytes != 0) {
    VERBENA_ASSIGN(window_, home_->registrations().allocate(this, settings_.window_bytes, {}, host::Populate::kAsUsed));
  }
  return {};
}

Result<void> Session::create() {
  VERBENA_TRY(open_window());
  reception_.set_window(window());
  if (delivery().receive == rdma::Receive::kHandler) VERBENA_TRY(reception_.reserve());
  VERBENA_ASSIGN(connection_, channel::Connection::create(home_->loop(), home_->memory(), connection_options(), *this));
  return {};
}

std::array<std::byte, wire::kHelloBytes> Session::hello() const noexcept {
  wire::Hello hello{.inbox_bytes = static_cast<std::uint32_t>(settings_.inbox_bytes), .window = {}};
  const std::span<std::byte> mine = window();
  if (window_ != nullptr)
    hello.window = {.address = reinterpret_cast<std::uintptr_t>(mine.data()),
                    .length = mine.size(),
                    .rkey = window_->rkey,
                    .access = 0,
                    .memory_id = window_->memory_id};
  return wire::encode(hello);
}

// Takes the peer's part of the handshake. The peer may use the window from then on.
Result<void> Session::meet() {
  VERBENA_ASSIGN(peer_, wire::decode(connection_->peer_data()));
  peer_nic_ = {.gid = connection_->peer_gid(), .number = nic::number_of(connection_->peer_gid())};
  if (peer_.window.length != 0) connection_->needs_window(peer_.window);
  if (window_ == nullptr || !settings_.window.empty()) return {};
  return home_->loop().nic().grant(window_->memory_id, {.to = nic::Grant::To::kOneGid, .gid = peer_nic_.gid});
}

void Session::become_live() noexcept {
  const nic::Capabilities& nic = home_->loop().nic().capabilities();
  const bool waits = home_->driver() == DrivenBy::kCaller && nic.sends_need_polls;
  life_.is_told_by_polls = home_->driver() == DrivenBy::kCaller && !nic.hears_of_peers;
  outbox_.meet(*connection_, peer_.inbox_bytes, waits);
  transfers_.set_delivery(delivery().reads, delivery().writes);
  life_.state.store(State::kLive, std::memory_order_release);
}

Result<void> Session::dial(link::Fabric& fabric, std::uint16_t port, Deadline deadline) {
  VERBENA_TRY(create());
  VERBENA_TRY(connection_->dial(fabric, port, hello(), deadline));
  VERBENA_TRY(meet());
  VERBENA_TRY(connection_->connect(deadline));
  is_kept_ = true;
  life_.is_set_up.store(true, std::memory_order_relaxed);
  become_live();
  return {};
}

Result<void> Session::answer(std::unique_ptr<link::Handshake>& handshake) {
  VERBENA_TRY(create());
  VERBENA_TRY(connection_->answer(std::move(handshake), hello()));
  return meet();
}

Result<void> Session::accept_step(Deadline deadline) {
  VERBENA_TRY(connection_->connect(deadline));
  become_live();
  return {};
}

void Session::refuse(const Error& why) noexcept {
  if (connection_ != nullptr) connection_->refuse(why);
}

// From now on the thread that drives the session reports what arrives.
void Session::begin() noexcept {
  life_.told = Told::kLive;
  if (home_->driver() == DrivenBy::kCaller) {
    // Posts the receives, so that what the peer sends before the first call arrives, even if it is only a goodbye. No
    // callbacks.
    home_->loop().poll();
    return;
  }
  if (life_.is_set_up.load(std::memory_order_relaxed)) return events_.on_connect(*this);
  events_.on_accept(*this);
  transfers_.set_delivery(delivery().reads, delivery().writes);
  life_.is_set_up.store(true, std::memory_order_relaxed);
  if (delivery().receive == rdma::Receive::kDiscard) reception_.discard();
  // The callback may have asked for a handler.
  if (delivery().receive == rdma::Receive::kHandler && !reception_.reserve()) leave(Status::kNoMemory);
  if (state() == State::kLive) events_.on_connect(*this);
}

// --- calls --------------------------------------------------------------------------------------------------------

bool Session::is_live() noexcept {
  if (is_forked()) [[unlikely]]
    return false;
  if (home_->driver() == DrivenBy::kCaller && state() == State::kLive) {
    // Takes what the peer has sent since the last call. If another thread is in a call, that thread does it.
    if (Exclusive::Mark* const mark = driver_.enter(); mark != nullptr) {
      look_for_end(Status::kOk);
      if (state() == State::kLive) {
        // The NIC's own report, a flushed receive, may take a moment longer.
        look_for_end(connection_->look_for_peer() ? Status::kPeerLost : Status::kOk);
      }
      Exclusive::leave(mark);
    }
  }
  return state() == State::kLive;
}

void Session::look_for_end(Status failure) noexcept {
  if (state() != State::kLive) return;
  if (!home_->loop().in_handler()) home_->loop().poll();
  progress();
  if (failure == Status::kPeerLost) lose_peer();
}

/// A call has found that the peer is gone, and the loop may not know it yet. Messages and a goodbye that arrived before
/// are in the completion queue, and go first. A handler cannot take them: the loop will get there.
void Session::lose_peer() noexcept {
  if (state() != State::kLive || home_->loop().in_handler()) return;
  home_->loop().take_arrived();
  progress();
  if (state() != State::kLive) return;
  connection_->fail(Status::kPeerLost);
  progress();
}

Status Session::after_failure(Status status, const Patience& patience) noexcept {
  if (status == Status::kBusy || status == Status::kForked) return status;
  const bool is_here = home_->is_driven_here();
  const auto look = [&] {
    if (is_here) {
      look_for_end(status);
    } else if (state() == State::kLive) {
      // The loop has polled before it runs this task, but a goodbye may have arrived in between. It says why the call
      // failed, such as where the peer has taken a permission back on leaving.
      if (!home_->loop().in_handler()) home_->loop().take_arrived();
      if (status == Status::kPeerLost) lose_peer();
      progress();
    }
  };
  if (state() == State::kLive) (void)run_task(look, patience);
  return state() == State::kLive ? status : reason();
}

template <class Task>
Status Session::drive(Task&& task) noexcept {
  return driver_.alone([&] {
    const Status status = state() == State::kLive ? task() : life_.reason;
    if (status != Status::kOk) [[unlikely]]
      look_for_end(status);
    return status == Status::kOk || state() == State::kLive ? status : life_.reason;
  });
}

template <class Task>
Status Session::run_task(Task&& task, const Patience& patience) noexcept {
  const Status handed = driver_.call_while_attached(task, patience);
  return handed == Status::kClosed ? reason() : handed;
}

template <class Queue, class Kind>
void Session::push(Queue& queue, Kind& call) noexcept {
  life_.reason == Status::kOk ? queue.push(call) : call.finish(life_.reason);
}

Status Session::run(SendCall& call, const Patience& patience) noexcept {
  return driver_.run(call, patience, [&] { push(outbox_, call); }, [&] { give_up(call); });
}

bool Session::send_now(std::span<const std::byte> data, std::optional<std::uint32_t> immediate) noexcept {
  if (!home_->is_driven_here()) return false;
  bool is_sent = false;
  (void)driver_.alone([&] {
    is_sent = state() == State::kLive && transfers_.empty() && outbox_.send_now(data, immediate);
    if (is_sent && home_->driver() == DrivenBy::kCaller && !home_->loop().in_handler()) connection_->look_if_due();
    return Status::kOk;
  });
  return is_sent;
}

Status Session::send(std::span<const std::byte> data, std::optional<std::uint32_t> immediate,
                     const Patience& patience) noexcept {
  if (send_now(data, immediate)) [[likely]]
    return Status::kOk;
  SendCall call;
  call.immediate = immediate;
  call.from = data.data();
  call.length = data.size();
  return run(call, patience);
}

Status Session::receive(std::span<std::byte> buffer, rdma::Message& message, std::size_t& needed,
                        const Patience& patience) noexcept {
  ReceiveCall call;
  call.to = buffer.data();
  call.length = buffer.size();
  const Status status = driver_.run(call, patience, [&] { reception_.push(call); }, [&] { give_up(call); });
  message = call.message;
  needed = call.needed;
  return status;
}

Status Session::write_with_immediate(std::span<const std::byte> data, std::uint32_t immediate, std::size_t offset,
                                     const Patience& patience) noexcept {
  Place place;
  if (const Status inside = in_window(offset, data.size(), place); inside != Status::kOk) return inside;
  TransferCall write({.kind = Transfer::Kind::kWrite, .local = LocalSpan::bounced(data), .place = place});
  SendCall note;
  note.kind = wire::Kind::kWritten;
  note.immediate = immediate;
  note.length = data.size();
  note.offset = offset;
  if (!data.empty()) note.after = &write;
  write.is_handed_over = !home_->is_driven_here();
  bool is_pushed = false;
  const auto start = [&] {
    if (life_.reason != Status::kOk) return note.finish(life_.reason);
    if (!data.empty()) transfers_.push(write);
    is_pushed = !data.empty();
    outbox_.push(note);
  };
  // The bytes go through bounce chunks, so the caller's memory is free in any case.
  const auto cancel = [&] {
    const bool is_sent = outbox_.cancel(note);
    if (!data.empty() && !write.done()) (void)transfers_.cancel(write, *connection_);
    note.finish(is_sent ? Status::kOk : Status::kTimedOut);
  };
  // The note may be over before the WRITE: when the session ends, or when it counts as sent once posted.
  const auto settle = [&] {
    if (is_pushed && !write.done() && connection_ != nullptr) (void)transfers_.cancel(write, *connection_);
  };
  const Status status = driver_.run(note, patience, start, cancel, settle);
  // A thread that is ending takes no more tasks, so it has not settled the WRITE. It ends the WRITE before it is gone.
  if (is_pushed) (void)write.wait(Deadline::never());
  return status;
}

Status Session::complete(rdma::Completion& completion, const Patience& patience) noexcept {
  TakeCall call;
  const Status status = driver_.run(call, patience, [&] { transfers_.push(call); }, [&] { give_up(call); });
  completion = call.completion;
  // A failed transfer may be reported before the connection's own end.
  if (status == Status::kOk && completion.status != Status::kOk) (void)after_failure(completion.status, patience);
  return status;
}

// --- calls in which nobody waits ----------------------------------------------------------------------------------

template <class Kind>
Status Session::take_back(Kind& call, Deadline deadline) noexcept {
  return driver_.take_back(call, deadline, [&] { give_up(call); });
}

template <class Kind>
bool Session::withdraw(Kind& call) noexcept {
  Status status = Status::kBusy;
  // Another thread in a call of this session leaves by its deadline.
  while ((status = take_back(call, Deadline::never())) == Status::kBusy) yield_thread();
  return status == Status::kOk;
}
template bool Session::withdraw(SendCall&) noexcept;
template bool Session::withdraw(ReceiveCall&) noexcept;

bool Session::try_withdraw(ReceiveCall& call) noexcept {
  return take_back(call, Deadline::after(kHandOver)) == Status::kOk;
}

void Session::give_up(SendCall& call) noexcept { call.finish(outbox_.cancel(call) ? Status::kOk : Status::kTimedOut); }

void Session::give_up(ReceiveCall& call) noexcept {
  if (!reception_.drop(call)) leave(Status::kNoMemory);
}

void Session::give_up(TakeCall& call) noexcept {
  transfers_.cancel(call);
  call.finish(Status::kTimedOut);
}

Status Session::begin(SendCall& call, Call::Tell tell) noexcept {
  return driver_.begin({{call, tell}}, [&] { push(outbox_, call); });
}

Status Session::begin(ReceiveCall& call, Call::Tell tell) noexcept {
  return driver_.begin({{call, tell}}, [&] {
    // What has arrived may not have been polled.
    if (home_->driver() == DrivenBy::kCaller && reception_.empty() && !home_->loop().in_handler()) home_->loop().poll();
    reception_.push(call);
  });
}

Status Session::begin(TransferCall& call, Call::Tell tell) noexcept {
  if (call.is_registered() && !is_registered(call.local)) return Status::kLocalAccess;
  const Patience patience = default_patience();
  const Place place = call.place;  // A call that fails keeps the part of it that was started.
  return with_key(place, patience, [&] {
    call.begin_again();
    call.place = place;
    const Status begun = driver_.begin({{call, tell}}, [&] { push(transfers_, call); });
    if (begun != Status::kOk || call.tell != nullptr) return begun;
    return call.status == Status::kOk ? Status::kOk : after_failure(call.status, patience);
  });
}

Status Session::begin(TransferCall& write, Call::Tell tell_of_write, SendCall& note, Call::Tell tell_of_note) noexcept {
  if (!is_registered(write.local)) return Status::kLocalAccess;
  note.after = &write;
  return driver_.begin({{write, tell_of_write}, {note, tell_of_note}}, [&] {
    push(transfers_, write);
    push(outbox_, note);
  });
}

void Session::wait(Deadline deadline) noexcept {
  if (home_->driver() != DrivenBy::kCaller || home_->loop().in_handler()) return;
  (void)driver_.alone([&] {
    home_->loop().wait(deadline);
    home_->sessions().progress();
    return Status::kOk;
  });
}

// --- one-sided access ---------------------------------------------------------------------------------------------

bool Session::find_local(LocalSpan local, KnownMemory& known) noexcept {
  const std::uint64_t generation = home_->registrations().generation();
  const std::optional<RegisteredMemory> found = home_->registrations().find_local(scope_, local.lkey);
  if (!found) return false;
  known = {.memory = *found, .generation = generation};
  return found->holds(local.data, local.length);
}

bool Session::is_registered(const LocalSpan& local) noexcept {
  KnownMemory known;
  return find_local(local, known);
}

Status Session::run(TransferCall& call, const Patience& patience) noexcept {
  const Status status = driver_.run(
      call, patience, [&] { push(transfers_, call); },
      [&] {
        if (transfers_.cancel(call, *connection_)) return;
        connection_->fail(Status::kTimedOut);
        end(Status::kTimedOut);
      });
  return status == Status::kOk ? status : after_failure(status, patience);
}

template <class Attempt>
Status Session::with_key(const Place& place, const Patience& patience, Attempt&& attempt) noexcept {
  const Status first = attempt();
  if (first != Status::kNotFound || place.space != Space::kKey) [[likely]]
    return first;
  const Status found = find_key(place.span.rkey, patience);
  return found == Status::kOk ? attempt() : found;
}

Status Session::move(Transfer::Kind kind, LocalSpan local, Place place, const Patience& patience) noexcept {
  const auto move_one = [&](const LocalSpan& here, const RemoteSpan& there) {
    return kind == Transfer::Kind::kRead ? connection_->read(here, there, patience)
                                         : connection_->write(here, there, patience);
  };
  if (place.space == Space::kKey) [[likely]]
    return move_one(local, place.span);
  RemoteSpan& rest = place.span;
  while (rest.length != 0) {
    RemoteSpan part;
    if (const Status found = transfers_.find(*connection_, place, part); found != Status::kOk) return found;
    local.length = static_cast<std::size_t>(part.length);
    if (const Status moved = move_one(local, part); moved != Status::kOk) return moved;
    local.data += part.length;
    rest.address += part.length;
    rest.length -= part.length;
  }
  return Status::kOk;
}

Status Session::transfer(Transfer::Kind kind, const LocalSpan& local, const Place& place,
                         const Patience& patience) noexcept {
  const bool is_here = home_->is_driven_here();
  if (!is_here && !local.is_bounced && !is_registered(local)) return Status::kLocalAccess;
  const auto here = [&] {
    return local.is_bounced || knows_local(local) ? move(kind, local, place, patience) : Status::kLocalAccess;
  };
  return with_key(place, patience, [&] {
    if (is_here) return drive(here);
    TransferCall call({.kind = kind, .local = local, .place = place});
    return run(call, patience);
  });
}

Status Session::find_key(std::uint32_t rkey, const Patience& patience) noexcept {
  try {
    const auto found = find(rkey, patience);
    return found ? Status::kOk : found.error().status();
  } catch (const std::bad_alloc&) {
    return Status::kNoMemory;
  }
}

Status Session::change(const Change& change, const Place& word, std::uint64_t& old, const Patience& patience) noexcept {
  const auto here = [&] {
    RemoteSpan part;
    const Status found = transfers_.find(*connection_, word, part);
    return found == Status::kOk ? connection_->change(change, part, old, patience) : found;
  };
  const bool is_here = home_->is_driven_here();
  return with_key(word, patience, [&] {
    if (is_here) [[likely]]
      return drive(here);
    TransferCall call({.kind = Transfer::Kind::kAtomic, .place = word, .change = change});
    const Status status = run(call, patience);
    if (status == Status::kOk) old = call.old;
    return status;
  });
}

Status Session::start(const Transfer& transfer) noexcept {
  if (transfer.is_registered() && !is_registered(transfer.local)) return Status::kLocalAccess;
  const Patience patience = default_patience();
  return with_key(transfer.place, patience, [&] {
    Status status = Status::kOk;
    const auto begin = [&] {
      status = state() == State::kLive ? transfers_.start(transfer, *connection_) : life_.reason;
    };
    const Status handed = run_task(begin, patience);
    if (handed == Status::kOk && status != Status::kOk) return after_failure(status, patience);
    return handed != Status::kOk ? handed : status;
  });
}

// --- windows and memory -------------------------------------------------------------------------------------------

std::unexpected<Error> Session::failed(const char* call, Status status) const noexcept {
  const Words words = words_of(*this, status);
  return fail(status, call, 0, "{}{}", words.front, words.sentence);
}

Result<rdma::Window> Session::find(std::string_view name, const Patience& patience) {
  if (name.empty() || name.size() > wire::kMaxNameBytes)
    return fail(Status::kBadArgument, "find", 0, "name must have 1 to {} bytes; got {}", wire::kMaxNameBytes,
                name.size());
  AskCall call;
  call.name = name;
  return ask(call, patience);
}

Result<rdma::Window> Session::find(std::uint32_t rkey, const Patience& patience) {
  AskCall call;
  call.rkey = rkey;
  return ask(call, patience);
}

Result<rdma::Window> Session::ask(AskCall& call, const Patience& patience) {
  const auto give_up = [&] {
    windows_.cancel(call);
    call.finish(call.is_absent ? Status::kNotFound : Status::kTimedOut);
  };
  const Status status = driver_.run(call, patience, [&] { push(windows_, call); }, give_up);
  if (status == Status::kNotFound)
    return call.name.empty()
               ? fail(status, "find", 0,
                      "no window of the peer has the rkey {:#x}: ask for its window by name, or let it publish one",
                      call.rkey)
               : fail(status, "find", 0,
                      "the peer has published nothing as \"{}\": check the spelling, and that it has", call.name);
  if (status == Status::kTimedOut)
    return fail(status, "find", 0,
                "the peer did not answer in time: a client without callbacks answers only during its calls");
  if (status != Status::kOk) return failed("find", status);
  VERBENA_TRY(import_window(call.found, patience));
  call.found.peer = peer_nic_.number;
  return call.found;
}

template <class Task>
Result<void> Session::run_while_live(const char* call, const Patience& patience, Task&& task) {
  Result<void> result;
  const Status handed =
      run_task([&] { result = state() == State::kLive ? task() : Result<void>(failed(call, life_.reason)); }, patience);
  return handed == Status::kOk ? result : failed(call, handed);
}

Result<void> Session::import_window(const rdma::Window& window, const Patience& patience) {
  if (!is_of_peer(window.peer)) return fail(Status::kBadArgument, "import", 0, "window is {}", kAnothersMemory);
  return run_while_live("import", patience, [&] {
    const nic::Window of = nic_window_of(window);
    return connection_->is_usable(of) ? Result<void>() : connection_->import_window(of, patience.begin());
  });
}

Result<void> Session::release_window(const rdma::Window& window, const Patience& patience) {
  return run_while_live("release", patience, [&] { return connection_->release_window(nic_window_of(window)); });
}

Result<const RegisteredMemory*> Session::allocate(std::size_t bytes) {
  return home_->registrations().allocate(this, bytes, {.to = nic::Grant::To::kOneGid, .gid = peer_nic_.gid});
}

Result<void> Session::publish(std::string_view name, const Part& part) {
  VERBENA_TRY(home_->registrations().publish(this, name, part));
  home_->sessions().wake_all();  // Answers peers that have already asked for it.
  return {};
}

Result<std::uint64_t> Session::export_physical(const RegisteredMemory* memory, const Patience& patience) {
  constexpr const char* kCall = "export_physical";
  // The limit is per lifetime: the peer keeps every table, because it is not told when an export is taken back.
  if (exports_.fetch_add(1, std::memory_order_relaxed) >= wire::kMaxTables) {
    exports_.fetch_sub(1, std::memory_order_relaxed);
    return fail(Status::kLimit, kCall, 0, "a connection exports {} times in its life: export more at once",
                wire::kMaxTables);
  }
  const Result<std::vector<std::byte>> table = home_->registrations().export_physical(scope_, memory);
  if (!table) {
    exports_.fetch_sub(1, std::memory_order_relaxed);
    return std::unexpected(table.error());
  }
  SendCall call;
  call.kind = wire::Kind::kTable;
  call.from = table->data();
  call.length = table->size();
  if (const Status told = run(call, patience); told != Status::kOk) return failed(kCall, told);
  return home_->registrations().physical_of(this, memory->address).value_or(0);
}

Words words_of(const Session& session, Status status) noexcept {
  if (status == Status::kBusy) return {"", "another thread is in a call of this connection: make one call at a time"};
  const bool is_end = session.reason() == status && damage_of(status) >= Damage::kConnection;
  return {is_end ? "the connection has ended: " : "", sentence_of(status)};
}

Result<std::uint64_t> physical_address_of(Session* session, const void* local) {
  if (session != nullptr)
    if (const auto exported = session->home().registrations().physical_of(session, local)) return *exported;
  VERBENA_ASSIGN(const host::PageMap pages, host::PageMap::open());
  return pages.address_of(local);
}

// --- what arrives -------------------------------------------------------------------------------------------------

// Everything in the head is the peer's claim.
void Session::on_message(channel::Connection& connection, std::span<const std::byte> body) noexcept {
  wire::Head head;
  if (body.size() < sizeof head) return connection.fail(Status::kProtocol);
  std::memcpy(&head, body.data(), sizeof head);
  // A goodbye is the same whoever sends it: it reports nothing consumed.
  const bool is_goodbye = head.kind == wire::Kind::kGoodbye;
  if (!is_goodbye && !outbox_.accept(head.consumed)) return connection.fail(Status::kProtocol);
  const auto piece = body.subspan(sizeof head);
  bool is_right = piece.empty();
  switch (head.kind) {
    case wire::Kind::kData:
    case wire::Kind::kWritten: is_right = reception_.accept(head, piece, life_.reason == Status::kOk); break;
    case wire::Kind::kConsumed: break;
    case wire::Kind::kTable: is_right = physical_.on_table(head, piece); break;
    case wire::Kind::kAsk: is_right = windows_.on_question(head, piece); break;
    case wire::Kind::kAnswer: is_right = windows_.on_answer(head, piece); break;
    case wire::Kind::kGoodbye:
      end(Status::kClosed);
      connection.peer_left();
      break;
    case wire::Kind::kGoodbyeSeen: break;
    default: is_right = false;
  }
  if (!is_right) return connection.fail(Status::kProtocol);
  home_->sessions().make_ready(*this);
  // Calls that bypass the queues look at nothing else that the peer waits for.
  if (home_->driver() == DrivenBy::kCaller && connection.alive()) {
    windows_.progress(home_->registrations(), scope_);
    if (reception_.is_telling_due()) (void)outbox_.say({.kind = wire::Kind::kConsumed}, {});
  }
}

void Session::on_complete(channel::Connection& /*connection*/, const channel::Completion& completion) noexcept {
  if ((completion.token & Transfers::kForeignToken) != 0) {
    outbox_.on_receipt(completion.token & ~Transfers::kForeignToken, completion.status);
  } else {
    transfers_.on_part(completion);
  }
  home_->sessions().make_ready(*this);
}

void Session::on_room(channel::Connection& /*connection*/) noexcept { home_->sessions().make_ready(*this); }

void Session::on_end(channel::Connection& /*connection*/, Status reason) noexcept {
  end(reason);
  home_->sessions().make_ready(*this);
}

// --- for Sessions -------------------------------------------------------------------------------------------------

void Session::progress() noexcept {
  if (!reception_.progress()) leave(Status::kNoMemory);
  if (state() == State::kLive && !connection_->alive()) end(connection_->failure());
  if (life_.reason != Status::kOk) reception_.end(life_.reason);
  transfers_.feed_takers();
  if (connection_ == nullptr) return;  // Detached: arrived messages can still be taken.
  if (life_.reason != Status::kOk) {
    // The NIC uses the user's memory until then.
    if (!transfers_.is_quiet() && connection_->has_left()) connection_->fail(life_.reason);
    return;
  }
  windows_.progress(home_->registrations(), scope_);
  if (reception_.is_telling_due()) (void)outbox_.say({.kind = wire::Kind::kConsumed}, {});
  transfers_.progress(*connection_);
  outbox_.progress();
  if (!outbox_.empty() || !transfers_.empty()) connection_->tell_of_room();
}

void Session::end(Status reason) noexcept {
  if (life_.reason != Status::kOk) return;
  life_.end(reason);
  log(reason == Status::kClosed ? VERBENA_LOG_INFO : VERBENA_LOG_WARNING, "a connection has ended: {}",
      sentence_of(reason));
  outbox_.end(reason);
  windows_.end(reason);
  transfers_.end(reason);
  (void)reception_.progress();
  reception_.end(reason);
}

void Session::leave(Status reason) noexcept {
  if (life_.reason != Status::kOk) return;
  end(reason);
  connection_->leave(std::as_bytes(std::span(&kGoodbye, 1)));
  home_->sessions().note_leaving(*this);
}

bool Session::is_quiet() const noexcept {
  return connection_ == nullptr || (connection_->has_left() && transfers_.is_quiet());
}

void Session::call_back() noexcept {
  if (life_.told == Told::kNothing) begin();
  const bool had_messages = handles_messages();
  while (handles_messages()) {
    rdma::Message message;
    const Status next = reception_.assemble(message);
    if (next != Status::kOk && next != Status::kAgain) leave(next);
    if (next != Status::kOk) break;
    events_.on_message(*this, message);
    reception_.release();
    if (!reception_.empty()) progress();
  }
  if (had_messages) progress();
  rdma::Completion completion;
  while (life_.told != Told::kEnd && transfers_.take_for_handler(completion)) {
    events_.on_complete(*this, completion);
    progress();
  }
  // Reports started operations first.
  if (life_.reason == Status::kOk || life_.told == Told::kEnd || !transfers_.is_quiet()) return;
  life_.told = Told::kEnd;
  events_.on_disconnect(*this, life_.reason);
}

void Session::detach() noexcept {
  connection_.reset();
  life_.state.store(State::kDetached, std::memory_order_release);
  life_.detached.store(1, std::memory_order_release);
  wake_waiters(life_.detached);
}

void Session::close_in_callback() noexcept {
  if (life_.told == Told::kEnd) return;
  life_.told = Told::kEnd;  // No event is reported any more.
  leave(Status::kClosed);
  progress();
  home_->sessions().make_ready(*this);
}

void Session::close() noexcept {
  if (state() == State::kNew || is_forked()) return;
  if (home_->driver() == DrivenBy::kThread) {
    const auto leave_here = [&] {
      if (state() != State::kDetached) close_in_callback();
    };
    (void)home_->loop().call(leave_here, Deadline::never());
    // Takes at most the linger; if the thread has ended or is ending, returns at once.
    (void)wait_while(life_.detached, 0, Deadline::never());
    return;
  }
  if (connection_ == nullptr) return;
  VERBENA_DCHECK(driver_.is_alone());  // A call of another thread would go on with a connection that is gone.
  close_in_callback();
  const auto is_gone = [this] {
    progress();
    return is_over();
  };
  home_->sessions().wait_for_goodbyes(is_gone);
  home_->sessions().forget(*this);
  detach();
}

}  // namespace verbena::session
