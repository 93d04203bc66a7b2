// Connections whose operations own the memory that they use. The memory is in typed_memory.hpp.
#pragma once

#include <verbena/typed_memory.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

namespace verbena::typed {

class Link;

namespace detail {

class LinkState;

/// Something that was started, until its end is taken. Move-only; who goes without that calls `abandon` first.
class Started {
 public:
  /// Was refused.
  explicit Started(Status refused) noexcept : status_(refused) {}
  Started(Started&& other) noexcept
      : link_(std::exchange(other.link_, nullptr)), old_(other.old_), slot_(other.slot_), status_(other.status_) {}
  Started& operator=(Started&& other) noexcept {
    link_ = std::exchange(other.link_, nullptr);
    old_ = other.old_;
    slot_ = other.slot_;
    status_ = other.status_;
    return *this;
  }

  [[nodiscard]] bool is_under_way() const noexcept { return link_ != nullptr; }
  [[nodiscard]] Status status() const noexcept { return status_; }
  [[nodiscard]] std::uint64_t old() const noexcept { return old_; }
  /// Takes in what is complete, without waiting. True: this is.
  [[nodiscard]] bool poll() noexcept;
  [[nodiscard]] Status wait(const std::optional<Deadline>& deadline) noexcept;
  /// Leaves the memory to the link until the NIC is done with it.
  void abandon(Claim&& claim) noexcept;

 private:
  friend class LinkState;
  Started(LinkState& link, std::uint32_t slot) noexcept : link_(&link), slot_(slot), status_(Status::kAgain) {}
  [[nodiscard]] bool look() noexcept;

  LinkState* link_ = nullptr;  ///< Null once it is complete.
  std::uint64_t old_ = 0;
  std::uint32_t slot_ = 0;
  Status status_;
};

/// Why a link's call was refused before anything was done.
[[gnu::cold]] Status refuse_call(const char* call, bool is_open, rdma::Access lacking) noexcept;

}  // namespace detail

/// How an operation ended, and its segment.
template <class Part>
struct [[nodiscard]] Outcome {
  Status status = Status::kOk;  ///< kOk or an error.
  Part segment{};               ///< What the operation was started with; empty where it is not complete.
};

/// A read or write that was started, and the segment that it has until it is complete. Destroyed before that, the
/// operation goes on, and its segment is in quarantine: the range is the region's again when the NIC is done with it,
/// and no sooner. Move-only. \thread one at a time, and one at a time of a link's
template <class Part>
class [[nodiscard]] Operation {
 public:
  /// Leaves one behind that is complete, without a segment.
  Operation(Operation&& other) noexcept = default;
  /// Does with the operation that this was what the destructor does.
  Operation& operator=(Operation&& other) noexcept {
    if (this == &other) return *this;
    leave();
    started_ = std::move(other.started_);
    segment_ = std::move(other.segment_);
    return *this;
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() { leave(); }

  /// Whether its end was not seen yet.
  [[nodiscard]] bool is_under_way() const noexcept { return started_.is_under_way(); }
  /// kAgain while it is under way; then kOk or an error, also where it could not be started.
  [[nodiscard]] Status status() const noexcept { return started_.status(); }
  /// Takes in what is complete, without waiting. True: this operation is. \alloc none
  [[nodiscard]] bool poll() noexcept { return started_.poll(); }
  /// Waits for its end, without a deadline for Options::timeout; returns its status. Or, and it is under way still:
  /// kTimedOut (wait again, or leave it to the quarantine), kBusy (another thread uses operations of the link).
  [[nodiscard]] Status wait(std::optional<Deadline> deadline = {}) noexcept { return started_.wait(deadline); }
  /// The segment of an operation that is complete, once. kBusy: it is under way.
  [[nodiscard]] std::expected<Part, Status> take() noexcept {
    if (is_under_way()) return std::unexpected(Status::kBusy);
    return std::move(segment_);
  }
  /// Waits and takes. Past the deadline the segment is in quarantine, and the outcome has none.
  [[nodiscard]] Outcome<Part> finish(std::optional<Deadline> deadline = {}) && noexcept {
    const Status waited = started_.wait(deadline);
    if (is_under_way()) {
      leave();
      return {.status = waited};
    }
    return {.status = waited, .segment = std::move(segment_)};
  }

 private:
  friend class Link;
  Operation(detail::Started&& started, Part&& segment) noexcept
      : started_(std::move(started)), segment_(std::move(segment)) {}
  void leave() noexcept {
    if (is_under_way()) started_.abandon(detail::Inside::release(segment_));
  }

  detail::Started started_;
  Part segment_;
};

/// An atomic that was started. Destroyed before its end, it goes on. Move-only. \thread as Operation
class [[nodiscard]] AtomicOperation {
 public:
  /// Leaves one behind that is not under way.
  AtomicOperation(AtomicOperation&& other) noexcept = default;
  /// Leaves the operation that this was to itself.
  AtomicOperation& operator=(AtomicOperation&& other) noexcept {
    if (this == &other) return *this;
    leave();
    started_ = std::move(other.started_);
    return *this;
  }
  AtomicOperation(const AtomicOperation&) = delete;
  AtomicOperation& operator=(const AtomicOperation&) = delete;
  ~AtomicOperation() { leave(); }

  /// As Operation's.
  [[nodiscard]] bool is_under_way() const noexcept { return started_.is_under_way(); }
  [[nodiscard]] Status status() const noexcept { return started_.status(); }
  [[nodiscard]] bool poll() noexcept { return started_.poll(); }
  [[nodiscard]] Status wait(std::optional<Deadline> deadline = {}) noexcept { return started_.wait(deadline); }
  /// The value before. kAgain: it is under way; or why it failed.
  [[nodiscard]] std::expected<std::uint64_t, Status> old() const noexcept {
    if (status() != Status::kOk) return std::unexpected(status());
    return started_.old();
  }

 private:
  friend class Link;
  explicit AtomicOperation(detail::Started&& started) noexcept : started_(std::move(started)) {}
  void leave() noexcept {
    if (is_under_way()) started_.abandon({});
  }

  detail::Started started_;
};

/// A message that arrived.
struct Received {
  rdma::Message::Kind kind = rdma::Message::Kind::kSent;  ///< Sent, or written into this side's window.
  std::optional<std::uint32_t> immediate{};               ///< The number that the sender gave with it.
  std::size_t first = 0;                                  ///< kWritten: its first element, from the window's front on.
  std::size_t count = 0;                                  ///< Elements; kSent: at the segment's front.
};

/// A connection that operations on segments go over. Move-only. It ends the connection when it goes, in any order with
/// regions, segments, operations and the node: operations that are under way are complete then, with kClosed.
///
/// Calls that wait are those of rdma::Connection, in elements, and return its statuses; besides, kRemoteAccess: the
/// remote segment lacks the right, and nothing was done. They use a segment while they last, and it is the caller's
/// again when they return, whatever they return. Past its deadline a blocking read or write ends the connection, to
/// have the memory back (see rdma::Connection); an operation that is started and waited for leaves it alive.
///
/// \thread Blocking calls as rdma::Connection. Operations are started, polled and waited for by one thread at a time: a
/// second one gets kBusy. They may be destroyed by any.
class Link {
 public:
  /// Operations at a time, those in quarantine among them.
  static constexpr std::size_t kMaxOperations = 63;

  /// No connection: every call is kClosed.
  Link() noexcept = default;
  Link(Link&& other) noexcept
      : connection_(std::exchange(other.connection_, nullptr)), state_(std::exchange(other.state_, nullptr)) {}
  /// Closes the connection that this one had.
  Link& operator=(Link&& other) noexcept {
    Link(std::move(other)).swap(*this);
    return *this;
  }
  ~Link();

  /// Of a connection whose completions go to the queue (Complete::kQueue), and of which nothing is started. To use
  /// regions of a node, the connection is made with it (rdma::Options::node). kBadArgument: null. \thread setup
  /// \alloc setup
  [[nodiscard]] static Result<Link> over(std::unique_ptr<rdma::Connection> connection);

  /// Whether calls can work; see rdma::Connection.
  [[nodiscard]] bool is_connected() const noexcept { return connection_ != nullptr && connection_->is_connected(); }
  /// Why they cannot; kOk while they can.
  [[nodiscard]] Status failure() const noexcept {
    return connection_ != nullptr ? connection_->failure() : Status::kClosed;
  }
  /// Ends the connection: the NIC uses no memory of it any more, except in a handler of its own thread, where the
  /// ranges that are under way after two seconds stay in quarantine for good. No other call may be under way.
  void close() noexcept;
  /// The connection. What is started on it by other calls than the link's has its completions taken by the link.
  [[nodiscard]] rdma::Connection& unsafe_connection() const noexcept { return *connection_; }

  // --- memory of the peer

  /// The peer's window; see rdma::Connection.
  [[nodiscard]] rdma::Window peer_window() const noexcept {
    return connection_ != nullptr ? connection_->peer_window() : rdma::Window{};
  }
  /// All whole elements of the window that the peer has published under `name`. Errors: those of
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
  /// Atomics on the first element of `word`. They return the value before.
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] std::expected<std::uint64_t, Status> fetch_add(const RemoteSegment<T>& word, std::uint64_t delta,
                                                               std::optional<Deadline> deadline = {}) noexcept {
    if (!may(word.access(), rdma::Access::kAtomic)) [[unlikely]]
      return std::unexpected(refuse("typed::Link::fetch_add", rdma::Access::kAtomic));
    return connection_->fetch_add(first_of(word), delta, deadline);
  }
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] std::expected<std::uint64_t, Status> compare_swap(const RemoteSegment<T>& word, std::uint64_t expected,
                                                                  std::uint64_t desired,
                                                                  std::optional<Deadline> deadline = {}) noexcept {
    if (!may(word.access(), rdma::Access::kAtomic)) [[unlikely]]
      return std::unexpected(refuse("typed::Link::compare_swap", rdma::Access::kAtomic));
    return connection_->compare_swap(first_of(word), expected, desired, deadline);
  }

  // --- messages. They go through memory of the library's: no operation has the segment after the call.

  /// Sends all of a Segment or ConstSegment. kBadArgument: it is empty.
  template <Element T>
  [[nodiscard]] Status send(const Elements<T>& from, std::optional<Deadline> deadline = {}) noexcept {
    return connection_ != nullptr ? connection_->send(std::as_bytes(from.unsafe_span()), deadline) : Status::kClosed;
  }
  template <Element T>
  [[nodiscard]] Status send_with_immediate(const Elements<T>& from, std::uint32_t immediate,
                                           std::optional<Deadline> deadline = {}) noexcept {
    return connection_ != nullptr
               ? connection_->send_with_immediate(std::as_bytes(from.unsafe_span()), immediate, deadline)
               : Status::kClosed;
  }
  /// Takes the next message, to the front of `to`. kBufferTooSmall: the message waits on, and `waiting` tells its
  /// length; kBadArgument: the peer sent what are no whole elements, and the message is gone.
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
  /// Writes all of `from` to the front of `to`. Nobody changes `from` meanwhile; copies of a ConstSegment are readable.
  template <Element T>
  [[nodiscard]] Operation<Segment<T>> start_write(Segment<T>&& from,
                                                  const std::type_identity_t<RemoteSegment<T>>& to) noexcept {
    return write_from(std::move(from), to);
  }
  template <Element T>
  [[nodiscard]] Operation<ConstSegment<T>> start_write(ConstSegment<T> from,
                                                       const std::type_identity_t<RemoteSegment<T>>& to) noexcept {
    return write_from(std::move(from), to);
  }
  /// Atomics on the first element of `word`.
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] AtomicOperation start_fetch_add(const RemoteSegment<T>& word, std::uint64_t delta) noexcept {
    if (!may(word.access(), rdma::Access::kAtomic)) [[unlikely]]
      return AtomicOperation(refused("typed::Link::start_fetch_add", rdma::Access::kAtomic));
    return AtomicOperation(begin_fetch_add(first_of(word), delta));
  }
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] AtomicOperation start_compare_swap(const RemoteSegment<T>& word, std::uint64_t expected,
                                                   std::uint64_t desired) noexcept {
    if (!may(word.access(), rdma::Access::kAtomic)) [[unlikely]]
      return AtomicOperation(refused("typed::Link::start_compare_swap", rdma::Access::kAtomic));
    return AtomicOperation(begin_compare_swap(first_of(word), expected, desired));
  }

  /// Operations that were destroyed before their end, and are not complete as far as was looked.
  [[nodiscard]] std::size_t quarantined() const noexcept;
  /// Takes in what is complete until nothing is in quarantine; Deadline::now() does not wait. kTimedOut: something is.
  /// Starting an operation does it too, without waiting. \alloc none
  [[nodiscard]] Status settle(Deadline deadline) noexcept;

 private:
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
  /// Its first element; nothing of an empty one.
  [[nodiscard]] static rdma::Remote first_of(const RemoteSegment<std::uint64_t>& word) noexcept {
    return word.unsafe_part(0, word.empty() ? 0 : 1).remote();
  }
  template <class Part, class Remote>
  [[nodiscard]] Operation<Part> write_from(Part&& from, const Remote& to) noexcept {
    if (!may(to.access(), rdma::Access::kWrite)) [[unlikely]]
      return {refused("typed::Link::start_write", rdma::Access::kWrite), std::move(from)};
    return {begin_write(detail::Inside::local(from), to.remote()), std::move(from)};
  }
  [[nodiscard]] Result<rdma::Window> find_window(std::string_view name, const std::optional<Deadline>& deadline);
  [[nodiscard]] Status write_and_tell(const rdma::Local& from, const rdma::Remote& to, std::uint32_t immediate,
                                      const std::optional<Deadline>& deadline) noexcept;
  [[nodiscard]] std::expected<Received, Status> receive_bytes(std::span<std::byte> to, std::size_t element_bytes,
                                                              const std::optional<Deadline>& deadline) noexcept;
  [[nodiscard]] detail::Started begin_read(const rdma::Local& to, const rdma::Remote& from) noexcept;
  [[nodiscard]] detail::Started begin_write(const rdma::Local& from, const rdma::Remote& to) noexcept;
  [[nodiscard]] detail::Started begin_fetch_add(const rdma::Remote& word, std::uint64_t delta) noexcept;
  [[nodiscard]] detail::Started begin_compare_swap(const rdma::Remote& word, std::uint64_t expected,
                                                   std::uint64_t desired) noexcept;

  rdma::Connection* connection_ = nullptr;  ///< The state's.
  detail::LinkState* state_ = nullptr;
};

}  // namespace verbena::typed

#pragma GCC visibility pop
