/// \file
/// Connections whose operations own the memory that they use. typed_memory.hpp has the types of that memory.
#pragma once

#include <verbena/typed_memory.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

// Awaits operations (verbena/coroutines.hpp); opaque here.
namespace verbena::coroutine::detail {
class OperationWait;
}

namespace verbena::typed {

class Link;

/// A message that arrived.
struct Received {
  rdma::Message::Kind kind = rdma::Message::Kind::kSent;  ///< Sent, or written into this side's window.
  std::optional<std::uint32_t> immediate{};               ///< The number that the sender gave with it.
  std::size_t first = 0;                                  ///< kWritten: its first element, from the window's front on.
  std::size_t count = 0;                                  ///< Elements; kSent: at the segment's front.
};

namespace detail {

class LinkState;
class StartedOperations;

/// Something besides claims that is kept until the NIC is done.
struct Kept {
  virtual ~Kept() = default;
};

/// How an operation ended.
struct End {
  std::uint64_t value = 0;      ///< Atomics: the value before. Receives: bytes, or a link's: elements.
  std::uint64_t first = 0;      ///< A link's receive, kWritten: the first element in the window.
  std::uint32_t immediate = 0;  ///< Receives.
  Status status = Status::kOk;
  enum class Arrived : std::uint8_t { kNothing, kSent, kSentWithImmediate, kWritten } arrived = Arrived::kNothing;
};

/// A started operation, until its completion is collected. Move-only; call `abandon` before destroying it earlier.
class Started {
 public:
  /// An operation that was refused.
  explicit Started(Status refused) noexcept : end_{.status = refused} {}
  Started(Started&& other) noexcept
      : operations_(std::exchange(other.operations_, nullptr)), end_(other.end_), slot_(other.slot_) {}
  Started& operator=(Started&& other) noexcept {
    operations_ = std::exchange(other.operations_, nullptr);
    end_ = other.end_;
    slot_ = other.slot_;
    return *this;
  }

  [[nodiscard]] bool is_under_way() const noexcept { return operations_ != nullptr; }
  [[nodiscard]] Status status() const noexcept { return end_.status; }
  [[nodiscard]] const End& end() const noexcept { return end_; }
  /// Collects completions without waiting. True if this operation is complete.
  [[nodiscard]] bool poll() noexcept;
  [[nodiscard]] Status wait(const std::optional<Deadline>& deadline) noexcept;
  /// Leaves memory to the link or queue pair until the NIC is done with it: first `keep` for each part, then `abandon`.
  void keep(std::size_t part, Claim&& claim) noexcept;
  void keep(std::unique_ptr<Kept> kept) noexcept;
  void abandon() noexcept;

 private:
  friend class StartedOperations;
  friend class coroutine::detail::OperationWait;
  Started(StartedOperations& operations, std::uint32_t slot) noexcept
      : operations_(&operations), end_{.status = Status::kAgain}, slot_(slot) {}
  [[nodiscard]] bool look() noexcept;

  StartedOperations* operations_ = nullptr;  ///< Null once it is complete.
  End end_;
  std::uint32_t slot_ = 0;
};

/// Whether an operation takes it as one segment; else it is an array or tuple of segments.
template <class Part>
inline constexpr bool kIsSegment = requires(const Part& part) { part.unsafe_local(0, 0); };

/// Calls `body` with each segment of an operation.
template <class Part, class Body>
constexpr void for_each_segment(Part& part, Body&& body) {
  if constexpr (kIsSegment<Part>) {
    body(part);
  } else {
    std::apply([&body](auto&... each) { (body(each), ...); }, part);
  }
}

/// Notes why a link refused a call without doing anything, and returns the status.
[[gnu::cold]] Status refuse_call(const char* call, bool is_open, rdma::Access lacking) noexcept;

}  // namespace detail

/// How an operation ended, and its segment.
template <class Part>
struct [[nodiscard]] Outcome {
  Status status = Status::kOk;  ///< kOk or an error.
  Part segment{};               ///< The segment that the operation was started with; empty if it is not complete.
};

/// An operation that was started; it owns its segment, or an array or tuple of segments, until it is complete. If you
/// destroy it earlier, the operation goes on with its segment in quarantine: the region gets the range back once the
/// NIC has finished with it. Move-only. \thread one at a time, and one at a time for all operations of a link
template <class Part>
class [[nodiscard]] Operation {
 public:
  /// Leaves `other` complete, without a segment.
  Operation(Operation&& other) noexcept = default;
  /// First does what the destructor does.
  Operation& operator=(Operation&& other) noexcept {
    if (this == &other) return *this;
    leave();
    started_ = std::move(other.started_);
    segment_ = std::move(other.segment_);
    return *this;
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() { leave(); }  ///< Lets an operation that is under way go on, with its segment in quarantine.

  /// Whether its completion has not been collected yet.
  [[nodiscard]] bool is_under_way() const noexcept { return started_.is_under_way(); }
  /// kAgain while it is under way; then kOk or an error, also where it could not be started.
  [[nodiscard]] Status status() const noexcept { return started_.status(); }
  /// Collects completions without waiting. True if this operation is complete. \alloc none
  [[nodiscard]] bool poll() noexcept { return started_.poll(); }
  /// Waits for its completion, by default for Options::timeout, and returns its status. If it is still under way:
  /// kTimedOut (wait again, or leave it to the quarantine), kBusy (another thread uses operations of the link).
  [[nodiscard]] Status wait(std::optional<Deadline> deadline = {}) noexcept { return started_.wait(deadline); }
  /// Returns the segment of a completed operation, once. kBusy: it is under way.
  [[nodiscard]] std::expected<Part, Status> take() noexcept {
    if (is_under_way()) return std::unexpected(Status::kBusy);
    return std::move(segment_);
  }
  /// Waits, and takes the segment. If the deadline passes, the segment goes into quarantine, and the outcome has none.
  [[nodiscard]] Outcome<Part> finish(std::optional<Deadline> deadline = {}) && noexcept {
    const Status waited = started_.wait(deadline);
    if (is_under_way()) {
      leave();
      return {.status = waited};
    }
    return {.status = waited, .segment = std::move(segment_)};
  }

 protected:
  friend class Link;
  friend struct detail::Inside;
  /// For an operation that was started or refused.
  Operation(detail::Started&& started, Part&& segment) noexcept
      : started_(std::move(started)), segment_(std::move(segment)) {}
  /// How it has ended.
  [[nodiscard]] const detail::End& end() const noexcept { return started_.end(); }

 private:
  void leave() noexcept {
    if (!is_under_way()) return;
    std::size_t part = 0;
    detail::for_each_segment(segment_, [&](auto& each) { started_.keep(part++, detail::Inside::release(each)); });
    started_.abandon();
  }

  detail::Started started_;
  Part segment_;
};

/// How a receive of a link ended, its segment, and what is in it.
template <Element T>
struct [[nodiscard]] MessageOutcome {
  Status status = Status::kOk;  ///< kOk or an error.
  Segment<T> segment{};         ///< The segment that the receive was started with; empty if it is not complete.
  Received received{};          ///< The message, where the status is kOk.
};

/// A receive of a link that was started, and the segment that the message comes into. Destroyed before it is complete,
/// it takes no message: the next receive gets it, all of it. A message that is in the segment by then goes with it.
/// Move-only. \thread as Operation
template <Element T>
class [[nodiscard]] MessageOperation : public Operation<Segment<T>> {
 public:
  /// The message. kAgain: it is under way; or why there is none.
  [[nodiscard]] std::expected<Received, Status> received() const noexcept {
    if (this->status() != Status::kOk) return std::unexpected(this->status());
    return received_of(this->end());
  }
  /// As Operation's.
  [[nodiscard]] MessageOutcome<T> finish(std::optional<Deadline> deadline = {}) && noexcept {
    auto [status, segment] = std::move(static_cast<Operation<Segment<T>>&>(*this)).finish(deadline);
    return {.status = status, .segment = std::move(segment), .received = received_of(this->end())};
  }

 private:
  friend class Link;
  friend struct detail::Inside;
  using Operation<Segment<T>>::Operation;
  [[nodiscard]] static Received received_of(const detail::End& end) noexcept {
    using Arrived = detail::End::Arrived;
    Received received{.first = static_cast<std::size_t>(end.first), .count = static_cast<std::size_t>(end.value)};
    if (end.arrived == Arrived::kWritten) received.kind = rdma::Message::Kind::kWritten;
    if (end.arrived == Arrived::kWritten || end.arrived == Arrived::kSentWithImmediate)
      received.immediate = end.immediate;
    return received;
  }
};

/// An atomic that was started. If you destroy it before it is complete, it goes on. Move-only. \thread as Operation
class [[nodiscard]] AtomicOperation {
 public:
  /// Leaves `other` not under way.
  AtomicOperation(AtomicOperation&& other) noexcept = default;
  /// Lets the operation that this object had go on by itself.
  AtomicOperation& operator=(AtomicOperation&& other) noexcept {
    if (this == &other) return *this;
    leave();
    started_ = std::move(other.started_);
    return *this;
  }
  AtomicOperation(const AtomicOperation&) = delete;
  AtomicOperation& operator=(const AtomicOperation&) = delete;
  ~AtomicOperation() { leave(); }  ///< Lets an atomic that is under way go on.

  /// As Operation::is_under_way.
  [[nodiscard]] bool is_under_way() const noexcept { return started_.is_under_way(); }
  /// As Operation::status.
  [[nodiscard]] Status status() const noexcept { return started_.status(); }
  /// As Operation::poll.
  [[nodiscard]] bool poll() noexcept { return started_.poll(); }
  /// As Operation::wait.
  [[nodiscard]] Status wait(std::optional<Deadline> deadline = {}) noexcept { return started_.wait(deadline); }
  /// The value before. kAgain: it is under way; or why it failed.
  [[nodiscard]] std::expected<std::uint64_t, Status> old() const noexcept {
    if (status() != Status::kOk) return std::unexpected(status());
    return started_.end().value;
  }

 private:
  friend class Link;
  friend struct detail::Inside;
  explicit AtomicOperation(detail::Started&& started) noexcept : started_(std::move(started)) {}
  void leave() noexcept {
    if (is_under_way()) started_.abandon();
  }

  detail::Started started_;
};

/// A connection for operations on segments. Move-only. Its destructor ends the connection and completes the operations
/// under way with kClosed. You may destroy it before or after regions, segments, operations and the node.
///
/// Calls that wait are those of rdma::Connection, in elements, and return its statuses; also kRemoteAccess: the remote
/// segment lacks the right, and nothing was done. They use a segment only until they return, whatever they return. A
/// blocking read or write whose deadline passes ends the connection to get the memory back (see rdma::Connection); an
/// operation that you start and wait for does not.
///
/// \thread Blocking calls as rdma::Connection. One thread at a time starts, polls and waits for operations: a second
/// one gets kBusy. Any thread may destroy them.
class Link {
 public:
  /// Operations at a time, those in quarantine included.
  static constexpr std::size_t kMaxOperations = 63;

  /// No connection: every call is kClosed.
  Link() noexcept = default;
  /// Leaves `other` without a connection.
  Link(Link&& other) noexcept
      : connection_(std::exchange(other.connection_, nullptr)), state_(std::exchange(other.state_, nullptr)) {}
  /// First closes the connection that this object had.
  Link& operator=(Link&& other) noexcept {
    Link(std::move(other)).swap(*this);
    return *this;
  }
  ~Link();  ///< Closes the connection.

  /// Makes a link of a connection whose completions go to the queue (Complete::kQueue), and which has no started
  /// operations. To use regions of a node, make the connection with that node (rdma::Options::node). kBadArgument:
  /// null. \thread setup  \alloc setup
  [[nodiscard]] static Result<Link> over(std::unique_ptr<rdma::Connection> connection);

  /// Whether calls can work; see rdma::Connection.
  [[nodiscard]] bool is_connected() const noexcept { return connection_ != nullptr && connection_->is_connected(); }
  /// Why they cannot; kOk while they can.
  [[nodiscard]] Status failure() const noexcept {
    return connection_ != nullptr ? connection_->failure() : Status::kClosed;
  }
  /// Ends the connection: afterwards the NIC uses no memory of it. In a handler of its own thread, ranges that are
  /// still in use after two seconds stay in quarantine for good. No other call may be under way.
  void close() noexcept;
  /// The connection. Don't start operations on it: the link would collect their completions.
  [[nodiscard]] rdma::Connection& unsafe_connection() const noexcept { return *connection_; }

  // --- memory of the peer

  /// The peer's window; see rdma::Connection.
  [[nodiscard]] rdma::Window peer_window() const noexcept {
    return connection_ != nullptr ? connection_->peer_window() : rdma::Window{};
  }
  /// Finds all whole elements of the window that the peer has published under `name`. Errors: those of
  /// rdma::Connection::find and of RemoteSegment::of.
  template <class T>
  [[nodiscard]] Result<RemoteSegment<T>> find(std::string_view name, std::optional<Deadline> deadline = {}) {
    auto window = find_window(name, deadline);
    if (!window) return std::unexpected(window.error());
    auto found = RemoteSegment<T>::of(*window);
    if (!found) return std::unexpected(Error(found.error(), "typed::Link::find", 0, error_detail()));
    return *found;
  }

  // --- one-sided access, blocking. No allocation.

  /// Reads from.size() elements to the front of `to`. kBadArgument: `to` is shorter, or one of them is empty.
  template <Element T>
  [[nodiscard]] Status read(Segment<T>& to, const std::type_identity_t<RemoteSegment<const T>>& from,
                            std::optional<Deadline> deadline = {}) noexcept {
    if (!may(from.access(), rdma::Access::kRead)) [[unlikely]]
      return refuse("typed::Link::read", rdma::Access::kRead);
    return connection_->read(detail::Inside::local(to), from.remote(), deadline);
  }
  /// Writes all of `from`, a Segment or ConstSegment, to the front of `to`. kBadArgument: `to` is shorter, or one of
  /// them is empty.
  template <Element T>
  [[nodiscard]] Status write(const Elements<T>& from, const std::type_identity_t<RemoteSegment<T>>& to,
                             std::optional<Deadline> deadline = {}) noexcept {
    if (!may(to.access(), rdma::Access::kWrite)) [[unlikely]]
      return refuse("typed::Link::write", rdma::Access::kWrite);
    return connection_->write(detail::Inside::local(from), to.remote(), deadline);
  }
  /// The same into the peer's own window (peer_window), which gets a message with `immediate` after it. It does not
  /// wait for the elements to be in place. kOutOfRange: `to` is not inside that window, or shorter.
  template <Element T>
  [[nodiscard]] Status write_with_immediate(const Elements<T>& from, const std::type_identity_t<RemoteSegment<T>>& to,
                                            std::uint32_t immediate, std::optional<Deadline> deadline = {}) noexcept {
    return write_and_tell(detail::Inside::local(from), to.remote(), immediate, deadline);
  }
  /// Adds `delta` to the first element of `word`. Returns the value before.
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] std::expected<std::uint64_t, Status> fetch_add(const RemoteSegment<T>& word, std::uint64_t delta,
                                                               std::optional<Deadline> deadline = {}) noexcept {
    if (!may(word.access(), rdma::Access::kAtomic)) [[unlikely]]
      return std::unexpected(refuse("typed::Link::fetch_add", rdma::Access::kAtomic));
    return connection_->fetch_add(first_of(word), delta, deadline);
  }
  /// Sets the first element of `word` to `desired` if it is `expected`. Returns the value before.
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] std::expected<std::uint64_t, Status> compare_swap(const RemoteSegment<T>& word, std::uint64_t expected,
                                                                  std::uint64_t desired,
                                                                  std::optional<Deadline> deadline = {}) noexcept {
    if (!may(word.access(), rdma::Access::kAtomic)) [[unlikely]]
      return std::unexpected(refuse("typed::Link::compare_swap", rdma::Access::kAtomic));
    return connection_->compare_swap(first_of(word), expected, desired, deadline);
  }

  // --- messages, blocking. They go through memory of the library's: the segment is free when the call returns.

  /// Sends all of a Segment or ConstSegment. kBadArgument: it is empty.
  template <Element T>
  [[nodiscard]] Status send(const Elements<T>& from, std::optional<Deadline> deadline = {}) noexcept {
    return connection_ != nullptr ? connection_->send(std::as_bytes(from.unsafe_span()), deadline) : Status::kClosed;
  }
  /// The same, with a number for the receiver.
  template <Element T>
  [[nodiscard]] Status send_with_immediate(const Elements<T>& from, std::uint32_t immediate,
                                           std::optional<Deadline> deadline = {}) noexcept {
    return connection_ != nullptr
               ? connection_->send_with_immediate(std::as_bytes(from.unsafe_span()), immediate, deadline)
               : Status::kClosed;
  }
  /// Takes the next message to the front of `to`. kBufferTooSmall: the message stays queued, and `waiting` tells its
  /// length; kBadArgument: the message was not of whole elements, and is lost.
  template <Element T>
  [[nodiscard]] std::expected<Received, Status> receive(Segment<T>& to,
                                                        std::optional<Deadline> deadline = {}) noexcept {
    return receive_bytes(std::as_writable_bytes(to.unsafe_span()), sizeof(T), deadline);
  }
  /// Elements that a segment needs for the message that the last `receive` had no room for.
  template <Element T>
  [[nodiscard]] std::size_t waiting() const noexcept {
    return connection_ != nullptr ? (connection_->waiting_bytes() + sizeof(T) - 1) / sizeof(T) : 0;
  }

  // --- messages, started: the operation has the segment until the library has taken the message out of it, or put one
  // into it. Messages of a link leave, and are received, in the order of the calls, started and blocking ones together.
  // kAgain: kMaxOperations are under way.

  /// Sends all of `from`. Complete at once where the peer has room and the send queue too; else it
  /// leaves when they have. kBadArgument: it is empty.
  template <Element T>
  [[nodiscard]] Operation<Segment<T>> start_send(Segment<T>&& from) noexcept {
    return send_from(std::move(from), std::nullopt);
  }
  /// The same of a ConstSegment.
  template <Element T>
  [[nodiscard]] Operation<ConstSegment<T>> start_send(ConstSegment<T> from) noexcept {
    return send_from(std::move(from), std::nullopt);
  }
  /// As start_send, with a number for the receiver.
  template <Element T>
  [[nodiscard]] Operation<Segment<T>> start_send_with_immediate(Segment<T>&& from, std::uint32_t immediate) noexcept {
    return send_from(std::move(from), immediate);
  }
  /// The same of a ConstSegment.
  template <Element T>
  [[nodiscard]] Operation<ConstSegment<T>> start_send_with_immediate(ConstSegment<T> from,
                                                                     std::uint32_t immediate) noexcept {
    return send_from(std::move(from), immediate);
  }
  /// Takes the next message that no receive before it takes, to the front of `to`. It fails as `receive` does.
  template <Element T>
  [[nodiscard]] MessageOperation<T> start_receive(Segment<T>&& to) noexcept {
    return {begin_receive(std::as_writable_bytes(to.unsafe_span()), sizeof(T)), std::move(to)};
  }

  // --- one-sided access, started: as the blocking calls, and the operation has the segment meanwhile. One that is
  // refused is complete at once, with the reason. kAgain: kMaxOperations are under way.

  /// Reads from.size() elements to the front of `to`.
  template <Element T>
  [[nodiscard]] Operation<Segment<T>> start_read(Segment<T>&& to,
                                                 const std::type_identity_t<RemoteSegment<const T>>& from) noexcept {
    if (!may(from.access(), rdma::Access::kRead)) [[unlikely]]
      return {refused("typed::Link::start_read", rdma::Access::kRead), std::move(to)};
    return {begin_read(detail::Inside::local(to), from.remote()), std::move(to)};
  }
  /// Writes all of `from` to the front of `to`. This side cannot change `from` meanwhile.
  template <Element T>
  [[nodiscard]] Operation<Segment<T>> start_write(Segment<T>&& from,
                                                  const std::type_identity_t<RemoteSegment<T>>& to) noexcept {
    return write_from(std::move(from), to);
  }
  /// The same of a ConstSegment, whose copies stay readable.
  template <Element T>
  [[nodiscard]] Operation<ConstSegment<T>> start_write(ConstSegment<T> from,
                                                       const std::type_identity_t<RemoteSegment<T>>& to) noexcept {
    return write_from(std::move(from), to);
  }
  /// Writes into the peer's own window (peer_window), which gets a message with `immediate` once the elements are in
  /// place. It takes its turn among the started messages, and is complete when the elements are there and the message
  /// has left. kOutOfRange: `to` is not inside that window, or shorter.
  template <Element T>
  [[nodiscard]] Operation<Segment<T>> start_write_with_immediate(Segment<T>&& from,
                                                                 const std::type_identity_t<RemoteSegment<T>>& to,
                                                                 std::uint32_t immediate) noexcept {
    return {begin_write_and_tell(detail::Inside::local(from), to.remote(), immediate), std::move(from)};
  }
  /// The same of a ConstSegment.
  template <Element T>
  [[nodiscard]] Operation<ConstSegment<T>> start_write_with_immediate(ConstSegment<T> from,
                                                                      const std::type_identity_t<RemoteSegment<T>>& to,
                                                                      std::uint32_t immediate) noexcept {
    return {begin_write_and_tell(detail::Inside::local(from), to.remote(), immediate), std::move(from)};
  }
  /// Adds `delta` to the first element of `word`.
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] AtomicOperation start_fetch_add(const RemoteSegment<T>& word, std::uint64_t delta) noexcept {
    if (!may(word.access(), rdma::Access::kAtomic)) [[unlikely]]
      return AtomicOperation(refused("typed::Link::start_fetch_add", rdma::Access::kAtomic));
    return AtomicOperation(begin_fetch_add(first_of(word), delta));
  }
  /// Sets the first element of `word` to `desired` if it is `expected`.
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] AtomicOperation start_compare_swap(const RemoteSegment<T>& word, std::uint64_t expected,
                                                   std::uint64_t desired) noexcept {
    if (!may(word.access(), rdma::Access::kAtomic)) [[unlikely]]
      return AtomicOperation(refused("typed::Link::start_compare_swap", rdma::Access::kAtomic));
    return AtomicOperation(begin_compare_swap(first_of(word), expected, desired));
  }

  /// Operations that were destroyed before their completion, and whose completions have not been collected.
  [[nodiscard]] std::size_t quarantined() const noexcept;
  /// Collects completions until nothing is in quarantine; Deadline::now() does not wait. kTimedOut: something still is.
  /// Starting an operation also collects, without waiting. \alloc none
  [[nodiscard]] Status settle(Deadline deadline) noexcept;

 private:
  friend struct detail::Inside;
  void swap(Link& other) noexcept {
    std::swap(connection_, other.connection_);
    std::swap(state_, other.state_);
  }
  [[nodiscard]] bool may(rdma::Access has, rdma::Access needed) const noexcept {
    return connection_ != nullptr && rdma::includes(has, needed);
  }
  [[nodiscard]] Status refuse(const char* call, rdma::Access lacking) const noexcept {
    return detail::refuse_call(call, connection_ != nullptr, lacking);
  }
  [[nodiscard]] detail::Started refused(const char* call, rdma::Access lacking) const noexcept {
    return detail::Started(refuse(call, lacking));
  }
  /// Its first element; an empty part if it has none.
  [[nodiscard]] static rdma::Remote first_of(const RemoteSegment<std::uint64_t>& word) noexcept {
    return word.unsafe_part(0, word.empty() ? 0 : 1).remote();
  }
  template <class Part, class Remote>
  [[nodiscard]] Operation<Part> write_from(Part&& from, const Remote& to) noexcept {
    if (!may(to.access(), rdma::Access::kWrite)) [[unlikely]]
      return {refused("typed::Link::start_write", rdma::Access::kWrite), std::move(from)};
    return {begin_write(detail::Inside::local(from), to.remote()), std::move(from)};
  }
  template <class Part>
  [[nodiscard]] Operation<Part> send_from(Part&& from, std::optional<std::uint32_t> immediate) noexcept {
    return {begin_send(detail::Inside::local(from).bytes(), immediate), std::move(from)};
  }
  [[nodiscard]] Result<rdma::Window> find_window(std::string_view name, const std::optional<Deadline>& deadline);
  // In the calling thread and past the queues. False, and nothing has happened: start it, to learn what is wrong.
  [[nodiscard]] bool read_now(const rdma::Local& to, const rdma::Remote& from) noexcept;
  [[nodiscard]] bool write_now(const rdma::Local& from, const rdma::Remote& to) noexcept;
  [[nodiscard]] bool change_now(const rdma::Remote& word, std::uint64_t operand,
                                const std::optional<std::uint64_t>& expected, std::uint64_t& old) noexcept;
  /// The offset of what is written in the peer's own window.
  [[nodiscard]] std::expected<std::size_t, Status> offset_in_window(const char* call, const rdma::Remote& to,
                                                                    std::size_t bytes) const noexcept;
  [[nodiscard]] Status write_and_tell(const rdma::Local& from, const rdma::Remote& to, std::uint32_t immediate,
                                      const std::optional<Deadline>& deadline) noexcept;
  [[nodiscard]] std::expected<Received, Status> receive_bytes(std::span<std::byte> to, std::size_t element_bytes,
                                                              const std::optional<Deadline>& deadline) noexcept;
  [[nodiscard]] detail::Started begin_send(std::span<const std::byte> from,
                                           std::optional<std::uint32_t> immediate) noexcept;
  [[nodiscard]] detail::Started begin_receive(std::span<std::byte> to, std::size_t element_bytes) noexcept;
  [[nodiscard]] detail::Started begin_read(const rdma::Local& to, const rdma::Remote& from) noexcept;
  [[nodiscard]] detail::Started begin_write(const rdma::Local& from, const rdma::Remote& to) noexcept;
  [[nodiscard]] detail::Started begin_write_and_tell(const rdma::Local& from, const rdma::Remote& to,
                                                     std::uint32_t immediate) noexcept;
  [[nodiscard]] detail::Started begin_fetch_add(const rdma::Remote& word, std::uint64_t delta) noexcept;
  [[nodiscard]] detail::Started begin_compare_swap(const rdma::Remote& word, std::uint64_t expected,
                                                   std::uint64_t desired) noexcept;

  rdma::Connection* connection_ = nullptr;  ///< Owned by `state_`.
  detail::LinkState* state_ = nullptr;
};

}  // namespace verbena::typed

#pragma GCC visibility pop
