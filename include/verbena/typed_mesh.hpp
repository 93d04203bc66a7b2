/// \file
/// Lanes of a mesh whose operations own the memory that they use: what typed.hpp is for connections.
#pragma once

#include <verbena/mesh.hpp>
#include <verbena/typed.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

namespace verbena::typed {

class MeshLane;

/// Elements in a window of another process, as mesh::Lane::find returns it: copyable, and valid as long as that window.
/// With `const T` it is read-only, which the compiler checks.
template <class T>
  requires Element<std::remove_const_t<T>>
class PeerSegment {
 public:
  /// An empty one, which every call refuses.
  PeerSegment() noexcept = default;
  /// Converts to a read-only one; the peer's rights decide whether reading works.
  template <class U>
    requires std::same_as<T, const U>
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions): as a pointer converts to one to const.
  PeerSegment(const PeerSegment<U>& other) noexcept : window_(other.window_), part_(other.part_) {}

  /// `count` elements of a window, from `first` on; without a count all whole ones. Errors: those of RemoteSegment::of.
  [[nodiscard]] static std::expected<PeerSegment, Status> of(const mesh::Window& window, std::size_t first = 0,
                                                             std::size_t count = rdma::kRest) noexcept {
    auto part = RemoteSegment<T>::of(window.memory, first, count);
    if (!part) return std::unexpected(part.error());
    return PeerSegment(window, *part);
  }

  /// The process whose memory it is.
  [[nodiscard]] unsigned peer() const noexcept { return window_.peer; }
  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return part_.size(); }
  /// Whether there are none.
  [[nodiscard]] bool empty() const noexcept { return part_.empty(); }
  /// The rights that the peer gave.
  [[nodiscard]] rdma::Access access() const noexcept { return part_.access(); }
  /// `count` elements from `first` on. kOutOfRange.
  [[nodiscard]] std::expected<PeerSegment, Status> part(std::size_t first,
                                                        std::size_t count = rdma::kRest) const noexcept {
    auto part = part_.part(first, count);
    if (!part) return std::unexpected(part.error());
    return PeerSegment(window_, *part);
  }

 private:
  friend class MeshLane;
  template <class U>
    requires Element<std::remove_const_t<U>>
  friend class PeerSegment;
  PeerSegment(const mesh::Window& window, const RemoteSegment<T>& part) noexcept : window_(window), part_(part) {}

  mesh::Window window_;
  RemoteSegment<T> part_;
};

/// Limits of a MeshLane.
struct MeshLaneOptions {
  /// Operations at a time with all peers, those that wait for credit and those in quarantine included. 1 to 65536.
  std::uint32_t operations = 252;
  std::chrono::milliseconds timeout{5000};  ///< Deadline of a wait without one. 1 ms to 12 days.
};

/// What the parts of this API see of each other. Not for users.
namespace detail {

class MeshLaneState;

/// A call of a lane.
struct MeshRequest {
  enum class Kind : std::uint8_t { kSend, kReceive, kWrite, kRead, kFetchAdd, kCompareSwap, kFlush };
  const char* call;
  Kind kind;
  unsigned peer = 0;
  std::span<std::byte> bytes{};  ///< This side's.
  std::optional<std::uint32_t> immediate{};
  std::size_t element_bytes = 1;         ///< Receives.
  const mesh::Window* window = nullptr;  ///< The peer's.
  rdma::Remote remote{};                 ///< In it.
  rdma::Access needs = rdma::Access::kLocal;
  std::uint64_t operand = 0;
  std::uint64_t swap = 0;
};

}  // namespace detail

/// A lane of a mesh for operations on segments. It polls the lane, so call nothing else of it but `find`, `gather` and
/// `barrier`, and these only with nothing under way. Move-only. The destructor waits up to two seconds for what is with
/// the NIC; what is not done then stays in quarantine for good. The mesh outlives this object; segments and operations
/// may outlive both.
///
/// Operations with a peer begin in the order of the calls. One for which there is no credit or room waits its turn, so
/// kAgain only says that MeshLaneOptions::operations are under way. One that is refused is complete at once, as
/// mesh::Lane says; also with kRemoteAccess (the window lacks the right), kBadArgument (a target that is shorter, no
/// elements). When a peer has gone, what is under way with it is complete with kClosed or kPeerLost.
///
/// Segments of MemoryRegion::allocate(mesh, ...) are not copied; those of other regions work, too.
///
/// \thread One at a time: the lane's owner. Any thread may destroy operations.  \alloc none, except where said
class MeshLane {
 public:
  /// No lane: every call is kClosed.
  MeshLane() noexcept = default;
  /// Leaves `other` without a lane.
  MeshLane(MeshLane&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  /// First closes what this object had.
  MeshLane& operator=(MeshLane&& other) noexcept {
    MeshLane(std::move(other)).swap(*this);
    return *this;
  }
  ~MeshLane() { close(); }  ///< Closes it.

  /// Over a lane for which there is no other one. Errors: kBusy (there is), kBadArgument (an option), kNoMemory.
  /// \thread setup  \alloc setup
  [[nodiscard]] static Result<MeshLane> over(mesh::Lane& lane, MeshLaneOptions options = {});
  /// As the destructor; what was not posted is complete with kClosed.
  void close() noexcept;
  /// Whether the peer is connected.
  [[nodiscard]] bool is_here(unsigned peer) const noexcept;
  /// Publishes `count` elements of a region of the mesh, from `first` on, to all peers. Errors: kOutOfRange; those of
  /// mesh::Mesh::publish. \thread setup  \alloc setup
  template <Element T>
  [[nodiscard]] Result<void> publish(std::string_view name, const MemoryRegion<T>& region, std::size_t first = 0,
                                     std::size_t count = rdma::kRest) {
    const bool is_inside = detail::is_part(first, count, region.size());
    return publish_window(name, region.window(), is_inside ? first * sizeof(T) : 0, is_inside ? count * sizeof(T) : 0);
  }

  // --- messages, of up to mesh::Options::message_bytes

  /// Sends all of `from`: complete when the peer's NIC has the message.
  template <Element T>
  [[nodiscard]] Operation<Segment<T>> start_send(unsigned peer, Segment<T>&& from,
                                                 std::optional<std::uint32_t> immediate = {}) noexcept {
    return send_from(peer, std::move(from), immediate);
  }
  /// The same of a ConstSegment.
  template <Element T>
  [[nodiscard]] Operation<ConstSegment<T>> start_send(unsigned peer, ConstSegment<T> from,
                                                      std::optional<std::uint32_t> immediate = {}) noexcept {
    return send_from(peer, std::move(from), immediate);
  }
  /// Takes the peer's next message that no receive before it takes, to the front of `to`. Messages that nobody takes
  /// wait, and keep their credit. Received::kWritten: the peer has written with an immediate, and `first` counts from
  /// the front of the memory that it has written into. kBufferTooSmall: the message stays; kBadArgument: it was not of
  /// whole elements, and is lost.
  template <Element T>
  [[nodiscard]] MessageOperation<T> start_receive(unsigned peer, Segment<T>&& to) noexcept {
    detail::Started started = start({.call = "typed::MeshLane::start_receive",
                                     .kind = detail::MeshRequest::Kind::kReceive,
                                     .peer = peer,
                                     .bytes = detail::Inside::local(to).bytes(),
                                     .element_bytes = sizeof(T)});
    return detail::Inside::operation<MessageOperation<T>>(std::move(started), std::move(to));
  }

  // --- one-sided

  /// Reads from.size() elements to the front of `to`.
  template <Element T>
  [[nodiscard]] Operation<Segment<T>> start_read(Segment<T>&& to,
                                                 const std::type_identity_t<PeerSegment<const T>>& from) noexcept {
    const auto bytes = detail::Inside::local(to).bytes();
    const std::size_t count = from.part_.remote().length;
    detail::Started started =
        start(request({.call = "typed::MeshLane::start_read",
                       .kind = detail::MeshRequest::Kind::kRead,
                       .bytes = count <= bytes.size() ? bytes.first(count) : std::span<std::byte>(),
                       .needs = rdma::Access::kRead},
                      from));
    return detail::Inside::operation<Operation<Segment<T>>>(std::move(started), std::move(to));
  }
  /// Writes all of `from` to the front of `to`. With an immediate the peer is told once the elements are there.
  template <Element T>
  [[nodiscard]] Operation<Segment<T>> start_write(Segment<T>&& from, const std::type_identity_t<PeerSegment<T>>& to,
                                                  std::optional<std::uint32_t> immediate = {}) noexcept {
    return write_from(std::move(from), to, immediate);
  }
  /// The same of a ConstSegment.
  template <Element T>
  [[nodiscard]] Operation<ConstSegment<T>> start_write(ConstSegment<T> from,
                                                       const std::type_identity_t<PeerSegment<T>>& to,
                                                       std::optional<std::uint32_t> immediate = {}) noexcept {
    return write_from(std::move(from), to, immediate);
  }
  /// Adds `delta` to the first element of `word`. kUnsupported where the NIC has none.
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] AtomicOperation start_fetch_add(const PeerSegment<T>& word, std::uint64_t delta) noexcept {
    return change({.call = "typed::MeshLane::start_fetch_add",
                   .kind = detail::MeshRequest::Kind::kFetchAdd,
                   .needs = rdma::Access::kAtomic,
                   .operand = delta},
                  word);
  }
  /// Sets the first element of `word` to `desired` if it is `expected`. kUnsupported where the NIC has none.
  template <std::same_as<std::uint64_t> T>
  [[nodiscard]] AtomicOperation start_compare_swap(const PeerSegment<T>& word, std::uint64_t expected,
                                                   std::uint64_t desired) noexcept {
    return change({.call = "typed::MeshLane::start_compare_swap",
                   .kind = detail::MeshRequest::Kind::kCompareSwap,
                   .needs = rdma::Access::kAtomic,
                   .operand = expected,
                   .swap = desired},
                  word);
  }
  /// Posts what mesh::Options::batch holds back for the peer; complete when all is that was started with it before but
  /// receives, whatever its status.
  [[nodiscard]] Operation<std::tuple<>> start_flush(unsigned peer) noexcept {
    detail::Started started =
        start({.call = "typed::MeshLane::start_flush", .kind = detail::MeshRequest::Kind::kFlush, .peer = peer});
    return detail::Inside::operation<Operation<std::tuple<>>>(std::move(started), std::tuple<>());
  }

  /// Operations that were destroyed before their end, and are not complete as far as was looked.
  [[nodiscard]] std::size_t quarantined() const noexcept;
  /// Takes in what is complete until nothing is in quarantine; Deadline::now() does not wait. kTimedOut: something is.
  [[nodiscard]] Status settle(Deadline deadline) noexcept;

 private:
  void swap(MeshLane& other) noexcept { std::swap(state_, other.state_); }
  [[nodiscard]] detail::Started start(const detail::MeshRequest& request) noexcept;
  [[nodiscard]] Result<void> publish_window(std::string_view name, const rdma::Window& window, std::size_t offset,
                                            std::size_t bytes);
  template <class T>
  [[nodiscard]] static detail::MeshRequest request(detail::MeshRequest made, const PeerSegment<T>& there) noexcept {
    made.peer = there.window_.peer;
    made.window = &there.window_;
    made.remote = there.part_.remote();
    if (!rdma::includes(there.access(), made.needs)) made.window = nullptr;
    return made;
  }
  template <class Part>
  [[nodiscard]] Operation<Part> send_from(unsigned peer, Part&& from, std::optional<std::uint32_t> immediate) noexcept {
    detail::Started started = start({.call = "typed::MeshLane::start_send",
                                     .kind = detail::MeshRequest::Kind::kSend,
                                     .peer = peer,
                                     .bytes = detail::Inside::local(from).bytes(),
                                     .immediate = immediate});
    return detail::Inside::operation<Operation<Part>>(std::move(started), std::move(from));
  }
  template <class Part, class T>
  [[nodiscard]] Operation<Part> write_from(Part&& from, const PeerSegment<T>& to,
                                           std::optional<std::uint32_t> immediate) noexcept {
    detail::Started started = start(request({.call = "typed::MeshLane::start_write",
                                             .kind = detail::MeshRequest::Kind::kWrite,
                                             .bytes = detail::Inside::local(from).bytes(),
                                             .immediate = immediate,
                                             .needs = rdma::Access::kWrite},
                                            to));
    return detail::Inside::operation<Operation<Part>>(std::move(started), std::move(from));
  }
  [[nodiscard]] AtomicOperation change(const detail::MeshRequest& made,
                                       const PeerSegment<std::uint64_t>& word) noexcept {
    return detail::Inside::operation<AtomicOperation>(start(request(made, word)));
  }

  detail::MeshLaneState* state_ = nullptr;
};

}  // namespace verbena::typed

#pragma GCC visibility pop
