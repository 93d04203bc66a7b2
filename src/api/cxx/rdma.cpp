// The C++ API: checks arguments and puts failures into words; sessions, listeners and nodes do the rest.
#include <verbena/coroutine_loop.hpp>
#include <verbena/rdma.hpp>
#include <verbena/typed_memory.hpp>

#include "api/cxx/guarded.hpp"
#include "api/cxx/link_state.hpp"
#include "api/session.hpp"
#include "base/cancellation.hpp"
#include "base/failure.hpp"
#include "base/fork.hpp"
#include "base/limit.hpp"
#include "base/serving.hpp"
#include "base/threads.hpp"
#include "node/node.hpp"
#include "session/session.hpp"

#include <algorithm>
#include <deque>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

namespace verbena::rdma {

using api::guarded;
using session::LocalSpan;
using session::Patience;
using session::Place;
using session::Session;

namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);

[[nodiscard]] Result<session::Settings> settings_of(const Options& options) {
  const bool wants_handler = options.receive == Receive::kHandler || options.complete == Complete::kHandler;
  if (wants_handler && options.handler == nullptr)
    return fail(Status::kBadArgument, "options", 0,
                "handler must not be null where receive or complete is kHandler: give one, or choose kQueue");
  if (options.receive > Receive::kDiscard)
    return fail(Status::kBadArgument, "options", 0, "receive must be kQueue (0), kHandler (1) or kDiscard (2); got {}",
                std::to_underlying(options.receive));
  if (options.complete > Complete::kHandler)
    return fail(Status::kBadArgument, "options", 0, "complete must be kQueue (0) or kHandler (1); got {}",
                std::to_underlying(options.complete));
  return session::checked({.connect_timeout = options.connect_timeout,
                           .timeout = options.timeout,
                           .max_connections = options.max_connections,
                           .window = options.window,
                           .window_bytes = options.window_bytes,
                           .is_window_shared = options.shared_window,
                           .inbox_bytes = options.inbox_bytes,
                           .max_message_bytes = options.max_message_bytes});
}

[[nodiscard]] session::Delivery delivery_of(const Options& options) noexcept {
  return {.receive = options.receive, .reads = options.complete, .writes = options.complete};
}

[[nodiscard]] node::Endpoint endpoint_of(const Options& options, std::shared_ptr<node::Node> node) {
  return {.transport = options.transport,
          .address = options.address,
          .port = options.port,
          .allowed_uids = {options.allowed_uids.begin(), options.allowed_uids.end()},
          .key_file = options.key_file,
          .key_name = options.key_name,
          .node = std::move(node)};
}

[[nodiscard]] Place place_of(const Remote& remote, std::uint64_t length) noexcept {
  return api::key_place(remote.address, remote.rkey, length);
}
[[nodiscard]] Place place_of(Physical physical, std::uint64_t length) noexcept {
  return api::physical_place(physical.address, length);
}
[[nodiscard]] Patience patience_of(const Session& session, const std::optional<Deadline>& deadline) noexcept {
  return deadline ? Patience(*deadline) : session.default_patience();
}

}  // namespace

namespace {

[[nodiscard]] std::unexpected<Error> unregistered(const char* call) {
  return fail(Status::kBadArgument, call, 0, "memory is not registered, or not any more: register it first");
}

}  // namespace

// --- memory -------------------------------------------------------------------------------------------------------

/// The owner of registered memory, until it ends: a session, a listener or a node.
struct Memory::Owner : std::enable_shared_from_this<Owner> {
  /// Calls `body(owner)` with the session, listener or node, which cannot end meanwhile. Errors: kClosed if it has
  /// ended.
  template <class Body>
  [[nodiscard]] auto with(const char* call, Body&& body) {
    using Outcome = decltype(body(*session));
    return guarded(call, [&]() -> Outcome {
      const std::lock_guard lock(mutex);
      if (session != nullptr) return body(*session);
      if (listener != nullptr && listener->is_running()) return body(*listener);
      if (node != nullptr) return body(*node);
      return fail(Status::kClosed, call, 0, "the connection or listener is closed: make another one");
    });
  }
  void end() noexcept {
    if (is_forked()) return;
    const std::lock_guard lock(mutex);
    session = nullptr;
    listener = nullptr;
    node = nullptr;
  }

  [[nodiscard]] Result<Memory> allocate(const char* call, std::size_t bytes) {
    VERBENA_TRY(check_limit(call, "bytes", bytes, 1, session::Registrations::kMaxBytes));
    VERBENA_ASSIGN(const auto* const made, with(call, [&](auto& of) { return of.allocate(bytes); }));
    return Memory(shared_from_this(), *made);
  }
  [[nodiscard]] Result<Memory> add(const char* call, std::span<std::byte> bytes, Access access) {
    VERBENA_TRY(check_limit(call, "memory's size", bytes.size(), 1, session::Registrations::kMaxBytes));
    VERBENA_TRY(check_limit(call, "access", std::to_underlying(access), 0, std::to_underlying(Access::kAll)));
    VERBENA_ASSIGN(const auto* const made, with(call, [&](auto& of) { return api::add_to(of, bytes, access); }));
    return Memory(shared_from_this(), *made);
  }
  [[nodiscard]] Result<void> publish(const char* call, std::string_view name, const Memory& memory, std::size_t offset,
                                     std::size_t length) {
    if (!memory) return unregistered(call);
    if (length == 0) return fail(Status::kBadArgument, call, 0, "length must be at least 1; got 0");
    return with(call, [&](auto& of) { return of.publish(name, {memory.registered_, offset, length}); });
  }
  [[nodiscard]] Result<void> unpublish(const char* call, std::string_view name) {
    return with(call, [&](auto& of) { return of.publish(name, {}); });
  }
  Mutex mutex;
  Session* session = nullptr;
  node::Listener* listener = nullptr;
  node::Node* node = nullptr;
  std::chrono::milliseconds timeout{5000};  ///< Default time for a deregistration.
};

Memory::Memory(std::shared_ptr<Owner> owner, const session::RegisteredMemory& memory) noexcept
    : owner_(std::move(owner)),
      registered_(&memory),
      local_({memory.address, memory.length}, memory.lkey),
      window_(memory.window()) {}

Memory::~Memory() { (void)deregister(); }

Result<void> Memory::deregister(std::optional<Deadline> deadline) {
  if (registered_ == nullptr) return {};
  VERBENA_TRY(check_process());
  const session::RegisteredMemory* const memory = std::exchange(registered_, nullptr);
  const std::shared_ptr<Owner> owner = std::move(owner_);
  local_ = {};
  window_ = {};
  const Deadline until = deadline ? *deadline : Deadline::after(owner->timeout);
  const Result<void> removed =
      owner->with("rdma::Memory::deregister", [&](auto& of) { return api::remove_from(of, memory, until); });
  // It already ended with its owner.
  return !removed && removed.error().status() == Status::kClosed ? Result<void>{} : removed;
}

// --- nodes --------------------------------------------------------------------------------------------------------

struct Node::Impl {
  std::shared_ptr<node::Node> node;
  const std::shared_ptr<Memory::Owner> memory = std::make_shared<Memory::Owner>();
};

Node::Node(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Node::~Node() {
  const CancellationHeld held;
  impl_->memory->end();
  is_forked() ? static_cast<void>(impl_.release()) : impl_.reset();
}

Result<std::unique_ptr<Node>> Node::open(const NodeOptions& options) {
  return guarded("rdma::Node::open", [&]() -> Result<std::unique_ptr<Node>> {
    auto impl = std::make_unique<Impl>();
    VERBENA_ASSIGN(impl->node,
                   node::Node::open({.transport = options.transport,
                                     .address = options.address,
                                     .shards = options.shards,
                                     .connections = options.connections,
                                     .cpus = options.cpus,
                                     .allowed_uids = {options.allowed_uids.begin(), options.allowed_uids.end()}}));
    impl->memory->node = impl->node.get();
    return std::unique_ptr<Node>(new Node(std::move(impl)));
  });
}

Result<Memory> Node::allocate(std::size_t bytes) { return impl_->memory->allocate("rdma::Node::allocate", bytes); }
Result<Memory> Node::register_memory(std::span<std::byte> memory, Access access) {
  return impl_->memory->add("rdma::Node::register_memory", memory, access);
}
Result<void> Node::publish(std::string_view name, const Memory& memory, std::size_t offset, std::size_t length) {
  return impl_->memory->publish("rdma::Node::publish", name, memory, offset, length);
}
Result<void> Node::unpublish(std::string_view name) { return impl_->memory->unpublish("rdma::Node::unpublish", name); }
const std::string& Node::description() const noexcept { return impl_->node->reason(); }

namespace {

constexpr const char* kClosedHere = "the connection was closed here: connect again";

/// Returns what `body(session)` returns, guarded. Errors: kClosed without a session.
template <class Body>
[[nodiscard]] auto with(Session* session, const char* call, Body&& body) noexcept {
  using Outcome = decltype(body(*session));
  return guarded(call, [&]() -> Outcome {
    return session != nullptr ? body(*session) : fail(Status::kClosed, call, 0, "{}", kClosedHere);
  });
}

}  // namespace

// --- connections --------------------------------------------------------------------------------------------------

/// Callbacks of a client's session.
struct Connection::Client final : session::Events {
  Connection* connection = nullptr;
  Handler* handler = nullptr;

  void on_connect(Session& /*of*/) noexcept override { handler->on_connect(*connection); }
  void on_message(Session& /*of*/, const Message& message) noexcept override {
    handler->on_message(*connection, message);
  }
  void on_complete(Session& /*of*/, const Completion& completion) noexcept override {
    handler->on_complete(*connection, completion);
  }
  void on_disconnect(Session& /*of*/, Status reason) noexcept override { handler->on_disconnect(*connection, reason); }
  void on_gone(Session& /*of*/) noexcept override { delete this; }
};

Connection::Connection(session::Session& session) : session_(&session), memory_(std::make_shared<Memory::Owner>()) {
  memory_->session = &session;
  memory_->timeout = std::chrono::milliseconds{session.timeout_ms.load(std::memory_order_relaxed)};
}

Result<std::unique_ptr<Connection>> Connection::connect(const Options& options) {
  constexpr const char* kCall = "rdma::Connection::connect";
  return guarded(kCall, [&]() -> Result<std::unique_ptr<Connection>> {
    VERBENA_ASSIGN(const session::Settings settings, settings_of(options));
    if (options.receive == Receive::kDiscard)
      return fail(Status::kBadArgument, kCall, 0,
                  "receive must be kQueue or kHandler; got kDiscard, which is for listeners only");
    if (options.port == 0) return fail(Status::kBadArgument, kCall, 0, "port must be 1 to 65535; got 0");
    auto client = std::make_unique<Client>();
    client->handler = options.handler;
    VERBENA_ASSIGN(auto session,
                   node::connect(endpoint_of(options, options.node != nullptr ? options.node->impl_->node : nullptr),
                                 settings, delivery_of(options), *client, options.handler != nullptr));
    std::unique_ptr<Connection> connection(new Connection(*session));
    client->connection = connection.get();
    connection->own_session_ = std::move(session);
    connection->client_ = std::move(client);
    connection->session_->adopt();
    return connection;
  });
}

Connection::~Connection() {
  const CancellationHeld held;
  memory_->end();  // Memory may outlive the connection.
  if (own_session_) close();
}

void Connection::close() noexcept {
  const CancellationHeld held;
  memory_->end();
  Session* const session = std::exchange(session_, nullptr);
  if (session == nullptr) return;
  if (!api::is_in_callback(*session)) {
    if (own_session_) session->close();
    own_session_.reset();
    return;
  }
  // The thread frees it after its callback, unless it has already let go of it.
  if (own_session_ && session->is_detached()) return own_session_.reset();
  if (own_session_) {
    session->give_back();
    session->user = nullptr;  // This object does not belong to the listener, which must not destroy it.
    (void)own_session_.release();
    (void)client_.release();  // Freed with the session.
  }
  session->close_in_callback();
}

bool Connection::is_connected() const noexcept { return session_ != nullptr && session_->is_live(); }
Status Connection::failure() const noexcept { return session_ != nullptr ? session_->reason() : Status::kClosed; }

void Connection::set_timeout(std::chrono::milliseconds timeout) noexcept {
  if (session_ != nullptr)
    session_->timeout_ms.store(std::max<std::int64_t>(timeout.count(), 1), std::memory_order_relaxed);
}

std::size_t Connection::waiting_bytes() const noexcept { return waiting_bytes_.load(std::memory_order_relaxed); }
std::uint64_t Connection::discarded() const noexcept { return session_ != nullptr ? session_->discarded() : 0; }
std::span<std::byte> Connection::window() const noexcept {
  return session_ != nullptr ? session_->window() : std::span<std::byte>{};
}
Local Connection::window_memory() const noexcept {
  const session::RegisteredMemory* const memory = session_ != nullptr ? session_->window_memory() : nullptr;
  return memory != nullptr ? Local(session_->window(), memory->lkey) : Local();
}
Window Connection::peer_window() const noexcept {
  return session_ != nullptr && session_->peer_window().length != 0 ? api::peer_window_of(*session_) : Window{};
}

Result<Memory> Connection::allocate(std::size_t bytes) {
  return memory_->allocate("rdma::Connection::allocate", bytes);
}
Result<Memory> Connection::register_memory(std::span<std::byte> memory, Access access) {
  return memory_->add("rdma::Connection::register_memory", memory, access);
}
Result<void> Connection::publish(std::string_view name, const Memory& memory, std::size_t offset, std::size_t length) {
  return memory_->publish("rdma::Connection::publish", name, memory, offset, length);
}
Result<void> Connection::unpublish(std::string_view name) {
  return memory_->unpublish("rdma::Connection::unpublish", name);
}

Result<Window> Connection::find(std::string_view name, std::optional<Deadline> deadline) {
  return with(session_, "rdma::Connection::find",
              [&](Session& session) { return session.find(name, patience_of(session, deadline)); });
}
Result<void> Connection::import(const Window& window, std::optional<Deadline> deadline) {
  return with(session_, "rdma::Connection::import",
              [&](Session& session) { return session.import_window(window, patience_of(session, deadline)); });
}
Result<void> Connection::release(const Window& window, std::optional<Deadline> deadline) {
  return with(session_, "rdma::Connection::release",
              [&](Session& session) { return session.release_window(window, patience_of(session, deadline)); });
}

// --- data: failures are put into words for error_detail

namespace {

/// The words of a failure that no argument explains.
[[gnu::cold]] Status told(const Session* session, const char* call, Status status) noexcept {
  return session != nullptr ? api::note_general(*session, call, status)
                            : note(Status::kClosed, call, "{}", kClosedHere);
}

/// Memory of this side, with its name in the call.
struct Bytes {
  const char* name;
  std::size_t length;
  std::uint32_t lkey = 0;
};

/// The names that this API's users know, for messages.
constexpr api::Terms kTerms{.address = "address",
                            .length_suffix = " bytes",
                            .find = "find",
                            .export_physical = "export_physical",
                            .complete = "complete"};

/// The same for one-sided access; names the wrong argument.
[[gnu::cold]] Status told(const Session* session, const char* call, Status status, const Bytes& local,
                          const Place& place) noexcept {
  if (session == nullptr || session->reason() != Status::kOk) return told(session, call, status);
  if (status == Status::kBadArgument && local.length == 0)
    return note(status, call, "{} must have at least 1 byte; got 0", local.name);
  if (status == Status::kLocalAccess)
    return note(status, call, "{} is not inside memory that is registered here under lkey {:#x}, or not any more",
                local.name, local.lkey);
  return api::note_transfer(*session, call, status, place, kTerms);
}

[[gnu::cold]] Status outside(const Session& session, const char* call, std::size_t offset,
                             std::size_t length) noexcept {
  return note(Status::kOutOfRange, call, "offset {} and {} bytes are not inside the peer's window of {} bytes", offset,
              length, session.peer_window().length);
}

[[gnu::cold]] Status misfit(const char* call, std::uint64_t remote, std::size_t local) noexcept {
  return note(Status::kBadArgument, call, "the peer's part has {} bytes, and the memory of this side {} bytes: give {}",
              remote, local, remote < local ? "fewer here" : "as many here");
}

/// Calls `attempt(session)` and puts a failure into words.
template <class Attempt>
inline Status access(Session* session, const char* call, const Bytes& local, const Place& place,
                     Attempt&& attempt) noexcept {
  const Status status = session == nullptr       ? Status::kClosed
                        : place.span.length == 0 ? Status::kBadArgument
                                                 : attempt(*session);
  if (status == Status::kOk) [[likely]]
    return status;
  return told(session, call, status, local, place);
}

[[gnu::cold]] Status of_another_peer(const char* call, const char* name) noexcept {
  return note(Status::kBadArgument, call, "{} is {}", name, session::kAnothersMemory);
}

// Forms of one-sided access: registered memory or any bytes on this side, a window or physical memory on the other.
[[nodiscard]] std::uint64_t length_of(const Remote& remote, std::size_t /*local*/) noexcept { return remote.length; }
[[nodiscard]] std::uint64_t length_of(Physical /*remote*/, std::size_t local) noexcept { return local; }
[[nodiscard]] bool is_foreign(const Session* session, const Remote& remote) noexcept {
  return session != nullptr && !session->is_of_peer(remote.peer);
}
[[nodiscard]] bool is_foreign(const Session* /*session*/, Physical /*remote*/) noexcept { return false; }
/// As length_of; 0 for what is foreign.
[[nodiscard]] std::uint64_t reach_of(const Session& session, const Remote& remote, std::size_t /*local*/) noexcept {
  return session.reach_of(remote);
}
[[nodiscard]] std::uint64_t reach_of(const Session& /*session*/, Physical /*remote*/, std::size_t local) noexcept {
  return local;
}
[[nodiscard]] Bytes named(const char* name, const Local& local) noexcept { return {name, local.size(), local.lkey()}; }
[[nodiscard]] Bytes named(const char* name, std::span<const std::byte> bytes) noexcept { return {name, bytes.size()}; }
[[nodiscard]] LocalSpan first_of(const Local& local, std::size_t length) noexcept {
  return {local.bytes().data(), length, local.lkey()};
}
template <class Byte>
[[nodiscard]] std::span<Byte> first_of(std::span<Byte> bytes, std::size_t length) noexcept {
  return bytes.first(length);
}

/// Calls `attempt(session, bytes, place)` for the part of `local` and `remote` that is read or written.
template <bool kIsRead, class Mine, class Theirs, class Attempt>
inline Status move(Session* session, const char* call, const Mine& local, const Theirs& remote,
                   Attempt&& attempt) noexcept {
  const std::uint64_t there = length_of(remote, local.size());
  if (kIsRead ? local.size() < there : there < local.size()) [[unlikely]]
    return misfit(call, there, local.size());
  if (is_foreign(session, remote)) [[unlikely]]
    return of_another_peer(call, kIsRead ? "from" : "to");
  const Place place = place_of(remote, kIsRead ? there : local.size());
  return access(session, call, named(kIsRead ? "to" : "from", local), place, [&](Session& of) {
    return attempt(of, first_of(local, static_cast<std::size_t>(place.span.length)), place);
  });
}
// The forms that wait are functions of their own: what they need in memory is not stored in vain.
template <class Mine, class Theirs>
[[gnu::noinline]] Status write_and_wait(Session* session, const Mine& from, const Theirs& to,
                                        const std::optional<Deadline>& deadline) noexcept {
  return move<false>(session, "rdma::Connection::write", from, to,
                     [&](Session& of, const auto& bytes, const Place& place) {
                       return of.write(bytes, place, patience_of(of, deadline));
                     });
}
template <class Mine, class Theirs>
[[gnu::noinline]] Status read_and_wait(Session* session, const Mine& to, const Theirs& from,
                                       const std::optional<Deadline>& deadline) noexcept {
  return move<true>(session, "rdma::Connection::read", to, from,
                    [&](Session& of, const auto& bytes, const Place& place) {
                      return of.read(bytes, place, patience_of(of, deadline));
                    });
}
template <class Mine, class Theirs>
inline Status write_all(Session* session, const Mine& from, const Theirs& to,
                        const std::optional<Deadline>& deadline) noexcept {
  if (session != nullptr && from.size() <= reach_of(*session, to, from.size()) &&
      session->write_now(first_of(from, from.size()), place_of(to, from.size()))) [[likely]]
    return Status::kOk;
  return write_and_wait(session, from, to, deadline);
}
template <class Mine, class Theirs>
inline Status read_all(Session* session, const Mine& to, const Theirs& from,
                       const std::optional<Deadline>& deadline) noexcept {
  const std::uint64_t length = session != nullptr ? reach_of(*session, from, to.size()) : 0;
  if (session != nullptr && length <= to.size() &&
      session->read_now(first_of(to, static_cast<std::size_t>(length)), place_of(from, length))) [[likely]]
    return Status::kOk;
  return read_and_wait(session, to, from, deadline);
}
[[gnu::noinline]] Status write_window_and_wait(Session* session, std::span<const std::byte> from, std::size_t offset,
                                               const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "rdma::Connection::write";
  Place place;
  if (session != nullptr && session->in_window(offset, from.size(), place) != Status::kOk)
    return outside(*session, kCall, offset, from.size());
  return access(session, kCall, {"from", from.size()}, place,
                [&](Session& of) { return of.write(from, place, patience_of(of, deadline)); });
}
[[gnu::noinline]] Status read_window_and_wait(Session* session, std::span<std::byte> to, std::size_t offset,
                                              const std::optional<Deadline>& deadline) noexcept {
  constexpr const char* kCall = "rdma::Connection::read";
  Place place;
  if (session != nullptr && session->in_window(offset, to.size(), place) != Status::kOk)
    return outside(*session, kCall, offset, to.size());
  return access(session, kCall, {"to", to.size()}, place,
                [&](Session& of) { return of.read(to, place, patience_of(of, deadline)); });
}
template <class Theirs>
Status start_write_all(Session* session, const Local& from, const Theirs& to, std::uint64_t cookie) noexcept {
  return move<false>(
      session, "rdma::Connection::start_write", from, to,
      [&](Session& of, const LocalSpan& bytes, const Place& place) { return of.start_write(bytes, place, cookie); });
}
template <class Theirs>
Status start_read_all(Session* session, const Local& to, const Theirs& from, std::uint64_t cookie) noexcept {
  return move<true>(
      session, "rdma::Connection::start_read", to, from,
      [&](Session& of, const LocalSpan& bytes, const Place& place) { return of.start_read(bytes, place, cookie); });
}

/// Sends a message, unless it is empty.
Status send_to(Session* session, const char* call, std::span<const std::byte> data,
               std::optional<std::uint32_t> immediate, const std::optional<Deadline>& deadline) noexcept {
  if (data.empty()) return note(Status::kBadArgument, call, "data must have at least 1 byte; got 0");
  const Status status =
      session != nullptr ? session->send(data, immediate, patience_of(*session, deadline)) : Status::kClosed;
  return status == Status::kOk ? status : told(session, call, status);
}

}  // namespace

Status Connection::send(std::span<const std::byte> data, std::optional<Deadline> deadline) noexcept {
  return send_to(session_, "rdma::Connection::send", data, std::nullopt, deadline);
}
Status Connection::send_with_immediate(std::span<const std::byte> data, std::uint32_t immediate,
                                       std::optional<Deadline> deadline) noexcept {
  return send_to(session_, "rdma::Connection::send_with_immediate", data, immediate, deadline);
}

std::expected<Message, Status> Connection::receive(std::span<std::byte> buffer,
                                                   std::optional<Deadline> deadline) noexcept {
  constexpr const char* kCall = "rdma::Connection::receive";
  if (session_ == nullptr) return std::unexpected(told(nullptr, kCall, Status::kClosed));
  if (!session_->receives())
    return std::unexpected(
        note(Status::kUnsupported, kCall, "messages go to a handler or are discarded: set receive to kQueue"));
  Message message;
  std::size_t needed = 0;
  const Status status = session_->receive(buffer, message, needed, patience_of(*session_, deadline));
  if (status == Status::kOk) return message;
  if (status != Status::kBufferTooSmall) return std::unexpected(told(session_, kCall, status));
  waiting_bytes_.store(needed, std::memory_order_relaxed);
  return std::unexpected(
      note(status, kCall, "buffer must have {} bytes for the message that waits; got {}", needed, buffer.size()));
}

Status Connection::write_with_immediate(std::span<const std::byte> from, std::uint32_t immediate, std::size_t offset,
                                        std::optional<Deadline> deadline) noexcept {
  constexpr const char* kCall = "rdma::Connection::write_with_immediate";
  if (session_ == nullptr) return told(nullptr, kCall, Status::kClosed);
  const Status status = session_->write_with_immediate(from, immediate, offset, patience_of(*session_, deadline));
  if (status == Status::kOutOfRange) return outside(*session_, kCall, offset, from.size());
  return status == Status::kOk ? status : told(session_, kCall, status);
}

// --- one-sided access

Status Connection::write(std::span<const std::byte> from, std::size_t offset,
                         std::optional<Deadline> deadline) noexcept {
  Place place;
  if (session_ != nullptr && session_->in_window(offset, from.size(), place) == Status::kOk &&
      session_->write_now(from, place)) [[likely]]
    return Status::kOk;
  return write_window_and_wait(session_, from, offset, deadline);
}
Status Connection::read(std::span<std::byte> to, std::size_t offset, std::optional<Deadline> deadline) noexcept {
  Place place;
  if (session_ != nullptr && session_->in_window(offset, to.size(), place) == Status::kOk &&
      session_->read_now(to, place)) [[likely]]
    return Status::kOk;
  return read_window_and_wait(session_, to, offset, deadline);
}
Status Connection::write(std::span<const std::byte> from, const Remote& to, std::optional<Deadline> deadline) noexcept {
  return write_all(session_, from, to, deadline);
}
Status Connection::read(std::span<std::byte> to, const Remote& from, std::optional<Deadline> deadline) noexcept {
  return read_all(session_, to, from, deadline);
}
Status Connection::write(std::span<const std::byte> from, Physical to, std::optional<Deadline> deadline) noexcept {
  return write_all(session_, from, to, deadline);
}
Status Connection::read(std::span<std::byte> to, Physical from, std::optional<Deadline> deadline) noexcept {
  return read_all(session_, to, from, deadline);
}
Status Connection::write(const Local& from, const Remote& to, std::optional<Deadline> deadline) noexcept {
  return write_all(session_, from, to, deadline);
}
Status Connection::read(const Local& to, const Remote& from, std::optional<Deadline> deadline) noexcept {
  return read_all(session_, to, from, deadline);
}
Status Connection::write(const Local& from, Physical to, std::optional<Deadline> deadline) noexcept {
  return write_all(session_, from, to, deadline);
}
Status Connection::read(const Local& to, Physical from, std::optional<Deadline> deadline) noexcept {
  return read_all(session_, to, from, deadline);
}

// --- atomics

namespace {

using Old = std::expected<std::uint64_t, Status>;

/// Calls `attempt(session, place)` for the word of an atomic.
template <class Word, class Attempt>
[[nodiscard]] Status on_word(Session* session, const char* call, const Word& word, Attempt&& attempt) noexcept {
  if (const std::uint64_t length = length_of(word, kWordBytes); length != kWordBytes) [[unlikely]]
    return note(Status::kBadArgument, call, "word must have at least 8 bytes; got {}", length);
  if (word.address % kWordBytes != 0) [[unlikely]]
    return note(Status::kBadArgument, call, "word must be at a multiple of 8; got {:#x}", word.address);
  if (is_foreign(session, word)) [[unlikely]]
    return of_another_peer(call, "word");
  const Place place = place_of(word, kWordBytes);
  return access(session, call, {"word", kWordBytes}, place, [&](Session& of) { return attempt(of, place); });
}

template <class Word>
[[nodiscard]] Old change(Session* session, const char* call, const Word& word, const session::Change& change,
                         const std::optional<Deadline>& deadline) noexcept {
  std::uint64_t old = 0;
  const Status status = on_word(session, call, word, [&](Session& of, const Place& place) {
    return of.change_now(change, place, old) ? Status::kOk : of.change(change, place, old, patience_of(of, deadline));
  });
  if (status != Status::kOk) return std::unexpected(status);
  return old;
}

[[nodiscard]] Status start_change(Session* session, const char* call, const Remote& word, const session::Change& change,
                                  std::uint64_t cookie) noexcept {
  return on_word(session, call, word,
                 [&](Session& of, const Place& place) { return of.start_change(change, place, cookie); });
}

}  // namespace

std::expected<std::uint64_t, Status> Connection::fetch_add(const Remote& word, std::uint64_t delta,
                                                           std::optional<Deadline> deadline) noexcept {
  return change(session_, "rdma::Connection::fetch_add", word, {.compare_add = delta}, deadline);
}
std::expected<std::uint64_t, Status> Connection::fetch_add(Physical word, std::uint64_t delta,
                                                           std::optional<Deadline> deadline) noexcept {
  return change(session_, "rdma::Connection::fetch_add", word, {.compare_add = delta}, deadline);
}
std::expected<std::uint64_t, Status> Connection::compare_swap(const Remote& word, std::uint64_t expected,
                                                              std::uint64_t desired,
                                                              std::optional<Deadline> deadline) noexcept {
  return change(session_, "rdma::Connection::compare_swap", word, api::swap_of(expected, desired), deadline);
}
std::expected<std::uint64_t, Status> Connection::compare_swap(Physical word, std::uint64_t expected,
                                                              std::uint64_t desired,
                                                              std::optional<Deadline> deadline) noexcept {
  return change(session_, "rdma::Connection::compare_swap", word, api::swap_of(expected, desired), deadline);
}

// --- without waiting

Status Connection::start_write(const Local& from, const Remote& to, std::uint64_t cookie) noexcept {
  return start_write_all(session_, from, to, cookie);
}
Status Connection::start_read(const Local& to, const Remote& from, std::uint64_t cookie) noexcept {
  return start_read_all(session_, to, from, cookie);
}
Status Connection::start_write(const Local& from, Physical to, std::uint64_t cookie) noexcept {
  return start_write_all(session_, from, to, cookie);
}
Status Connection::start_read(const Local& to, Physical from, std::uint64_t cookie) noexcept {
  return start_read_all(session_, to, from, cookie);
}
Status Connection::start_fetch_add(const Remote& word, std::uint64_t delta, std::uint64_t cookie) noexcept {
  return start_change(session_, "rdma::Connection::start_fetch_add", word, {.compare_add = delta}, cookie);
}
Status Connection::start_compare_swap(const Remote& word, std::uint64_t expected, std::uint64_t desired,
                                      std::uint64_t cookie) noexcept {
  return start_change(session_, "rdma::Connection::start_compare_swap", word, api::swap_of(expected, desired), cookie);
}

std::expected<Completion, Status> Connection::complete(std::optional<Deadline> deadline) noexcept {
  constexpr const char* kCall = "rdma::Connection::complete";
  if (session_ == nullptr) return std::unexpected(told(nullptr, kCall, Status::kClosed));
  Completion completion;
  const Status status = session_->complete(completion, patience_of(*session_, deadline));
  if (status == Status::kOk) return completion;
  if (status == Status::kNotFound)
    return std::unexpected(note(status, kCall, "nothing is in flight: start it first, with start_write or the like"));
  return std::unexpected(told(session_, kCall, status));
}

std::size_t Connection::poll(std::span<Completion> into) noexcept {
  std::size_t count = 0;
  for (Completion& each : into) {
    if (session_ == nullptr || session_->complete(each, Deadline::now()) != Status::kOk) break;
    ++count;
  }
  return count;
}

// --- physical addresses

Result<std::uint64_t> Connection::export_physical(const Memory& memory) {
  constexpr const char* kCall = "rdma::Connection::export_physical";
  if (!memory) return unregistered(kCall);
  return with(session_, kCall, [&](Session& session) {
    return session.export_physical(memory.registered_, session.default_patience());
  });
}

Result<std::uint64_t> Connection::physical_address_of(const void* local) const {
  constexpr const char* kCall = "rdma::Connection::physical_address_of";
  if (local == nullptr) return fail(Status::kBadArgument, kCall, 0, "local must not be null");
  return guarded(kCall, [&] { return session::physical_address_of(session_, local); });
}

// --- listeners ----------------------------------------------------------------------------------------------------

struct Listener::Impl final : session::Events {
  explicit Impl(Handler* given) : handler(given) {}

  void on_accept(Session& session) noexcept override;
  void on_message(Session& session, const Message& message) noexcept override {
    auto& connection = *static_cast<Connection*>(session.user);
    handler->on_message(connection, message);
  }
  void on_complete(Session& session, const Completion& completion) noexcept override {
    auto& connection = *static_cast<Connection*>(session.user);
    handler->on_complete(connection, completion);
  }
  void on_disconnect(Session& session, Status reason) noexcept override;
  void on_gone(Session& session) noexcept override { delete static_cast<Connection*>(session.user); }

  /// Takes the first waiting connection that `fits`, if there is one. Requires the mutex.
  template <class Fits>
  [[nodiscard]] std::unique_ptr<Connection> take(Fits&& fits) noexcept;
  /// An unaccepted connection has ended. If its client has sent messages, they can still be received, so it stays in
  /// the queue; if too many such connections wait, the oldest goes. Destroy the returned connection. Call in a
  /// callback.
  [[nodiscard]] std::unique_ptr<Connection> on_left(const Session& session) noexcept;
  static bool has_left(const std::unique_ptr<Connection>& connection) noexcept { return !connection->is_connected(); }
  static constexpr std::ptrdiff_t kMostLeft = 64;

  Handler* const handler;
  node::Listener listener;
  const std::shared_ptr<Memory::Owner> memory = std::make_shared<Memory::Owner>();
  Mutex mutex;  ///< Guards the members below.
  Condition changed;
  std::deque<std::unique_ptr<Connection>> waiting;  ///< For `accept`.
  bool is_stopped = false;
  coroutine::detail::Wait* awaiting = nullptr;  ///< To be told of the next client, or of the end.

  /// Under the mutex, which whoever takes himself out takes, too.
  void tell() noexcept {
    if (awaiting != nullptr) std::exchange(awaiting, nullptr)->tell();
  }
};

void Listener::Impl::on_accept(Session& session) noexcept {
  try {
    std::unique_ptr<Connection> connection(new Connection(session));
    if (handler != nullptr) {
      session.user = connection.get();
      return handler->on_accept(*connection.release());
    }
    session.keep();
    connection->own_session_.reset(&session);
    const std::lock_guard lock(mutex);
    waiting.push_back(std::move(connection));
    tell();
  } catch (const std::bad_alloc&) {
    return session.close_in_callback();
  }
  changed.notify_one();
}

void Listener::Impl::on_disconnect(Session& session, Status reason) noexcept {
  if (handler != nullptr) return handler->on_disconnect(*static_cast<Connection*>(session.user), reason);
  (void)on_left(session);
}

template <class Fits>
std::unique_ptr<Connection> Listener::Impl::take(Fits&& fits) noexcept {
  const auto found = std::ranges::find_if(waiting, fits);
  if (found == waiting.end()) return nullptr;
  std::unique_ptr<Connection> taken = std::move(*found);
  waiting.erase(found);
  return taken;
}

std::unique_ptr<Connection> Listener::Impl::on_left(const Session& session) noexcept {
  const std::lock_guard lock(mutex);
  if (!session.has_messages()) return take([&](const auto& connection) { return connection->session_ == &session; });
  if (!is_stopped && std::ranges::count_if(waiting, has_left) <= kMostLeft) return nullptr;
  return take(has_left);
}

std::unique_ptr<Connection> Connection::keep() noexcept {
  if (session_ == nullptr || own_session_ || !session_->is_being_set_up()) return nullptr;
  session_->keep();
  own_session_.reset(session_);
  return std::unique_ptr<Connection>(this);
}

Listener::Listener(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

Result<std::unique_ptr<Listener>> Listener::start(const Options& options) {
  return guarded("rdma::Listener::start", [&]() -> Result<std::unique_ptr<Listener>> {
    VERBENA_ASSIGN(const session::Settings settings, settings_of(options));
    auto impl = std::make_unique<Impl>(options.handler);
    impl->memory->timeout = settings.timeout;
    VERBENA_TRY(
        impl->listener.start(endpoint_of(options, options.node != nullptr ? options.node->impl_->node : nullptr),
                             settings, delivery_of(options), *impl));
    impl->memory->listener = &impl->listener;
    return std::unique_ptr<Listener>(new Listener(std::move(impl)));
  });
}

Listener::~Listener() {
  const CancellationHeld held;
  stop();
  is_forked() ? static_cast<void>(impl_.release()) : impl_.reset();
}

Result<Memory> Listener::allocate(std::size_t bytes) {
  return impl_->memory->allocate("rdma::Listener::allocate", bytes);
}
Result<Memory> Listener::register_memory(std::span<std::byte> memory, Access access) {
  return impl_->memory->add("rdma::Listener::register_memory", memory, access);
}
Result<void> Listener::publish(std::string_view name, const Memory& memory, std::size_t offset, std::size_t length) {
  return impl_->memory->publish("rdma::Listener::publish", name, memory, offset, length);
}
Result<void> Listener::unpublish(std::string_view name) {
  return impl_->memory->unpublish("rdma::Listener::unpublish", name);
}

std::uint16_t Listener::port() const noexcept { return impl_->listener.port(); }
std::string Listener::address() const { return impl_->listener.address_to_dial(); }
std::string Listener::description() const { return impl_->listener.description(); }
std::span<std::byte> Listener::window() const noexcept { return impl_->listener.window(); }

std::expected<std::unique_ptr<Connection>, Status> Listener::accept(Deadline deadline) noexcept {
  constexpr const char* kCall = "rdma::Listener::accept";
  if (const Result<void> in_parent = check_process(); !in_parent)
    return std::unexpected(note_as(kCall, in_parent.error()));
  if (impl_->handler != nullptr)
    return std::unexpected(note(Status::kUnsupported, kCall, "connections go to the handler's on_accept"));
  const CancellationHeld held;
  constexpr std::chrono::hours kLongest{24 * 365};
  std::unique_lock lock(impl_->mutex);
  const auto is_over = [&] { return impl_->is_stopped || !impl_->waiting.empty(); };
  if (Serving::is_due()) {
    lock.unlock();
    const auto is_over_now = [&] {
      const std::lock_guard now(impl_->mutex);
      return is_over();
    };
    (void)Serving::wait_until(is_over_now, deadline);
    lock.lock();
    deadline = Deadline::now();
  }
  if (!impl_->changed.wait_for(lock, std::min<std::chrono::nanoseconds>(deadline.left(), kLongest), is_over))
    return std::unexpected(note(Status::kTimedOut, kCall, "no client came before the deadline"));
  if (impl_->is_stopped) return std::unexpected(note(Status::kClosed, kCall, "the listener was stopped"));
  std::unique_ptr<Connection> connection = std::move(impl_->waiting.front());
  impl_->waiting.pop_front();
  return connection;
}

void Listener::wait() noexcept {
  if (!is_forked() && !impl_->listener.is_in_callback()) impl_->listener.wait();
}

void Listener::stop() noexcept {
  const CancellationHeld held;
  if (is_forked() || impl_->listener.is_in_callback()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->is_stopped = true;
    impl_->tell();
  }
  impl_->changed.notify_all();
  impl_->memory->end();
  impl_->listener.stop();
  // Drops unaccepted connections that had ended before. The others went when they were disconnected.
  const std::lock_guard lock(impl_->mutex);
  impl_->waiting.clear();
}

}  // namespace verbena::rdma

namespace verbena::typed::detail {

Status Inside::await_client(const rdma::Listener& listener, coroutine::detail::Wait& wait) noexcept {
  rdma::Listener::Impl& of = *listener.impl_;
  const std::lock_guard lock(of.mutex);
  if (of.is_stopped || !of.waiting.empty()) return Status::kAgain;
  if (of.awaiting != nullptr)
    return note(Status::kBusy, "coroutine::accept", "another coroutine awaits clients of this listener");
  of.awaiting = &wait;
  return Status::kOk;
}

bool Inside::stop_awaiting(const rdma::Listener& listener, const coroutine::detail::Wait& wait) noexcept {
  rdma::Listener::Impl& of = *listener.impl_;
  const std::lock_guard lock(of.mutex);
  const bool is_here = of.awaiting == &wait;
  if (is_here) of.awaiting = nullptr;
  return is_here;
}

Status begin_transfer(session::Session& session, const char* call, const rdma::Local& here, const rdma::Remote& there,
                      session::TransferCall& transfer, session::Call::Tell tell) noexcept {
  using Kind = session::Transfer::Kind;
  const auto begin = [&](session::Session& of, const session::LocalSpan& local, const session::Place& place) {
    transfer.local = local;
    transfer.place = place;
    return of.begin(transfer, tell);
  };
  if (transfer.kind == Kind::kRead) return rdma::move<true>(&session, call, here, there, begin);
  if (transfer.kind == Kind::kWrite) return rdma::move<false>(&session, call, here, there, begin);
  return rdma::on_word(&session, call, there,
                       [&](session::Session& of, const session::Place& place) { return begin(of, {}, place); });
}

session::Session* Inside::session(const rdma::Connection& connection) noexcept { return connection.session_; }
void Inside::set_waiting(rdma::Connection& connection, std::size_t bytes) noexcept {
  connection.waiting_bytes_.store(bytes, std::memory_order_relaxed);
}
const std::shared_ptr<node::Node>& Inside::node(const rdma::Node& node) noexcept { return node.impl_->node; }

}  // namespace verbena::typed::detail
