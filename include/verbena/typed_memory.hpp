/// \file
/// Memory in elements: regions, segments that one owner uses at a time, and parts of a peer's memory.
#pragma once

#include <verbena/rdma.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <expected>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)

// Private to the library; opaque here.
namespace verbena::node {
class Node;
}
namespace verbena::coroutine::detail {
class Wait;
}
// Has memory for regions, too (verbena/mesh.hpp).
namespace verbena::mesh {
class Mesh;
}

/// Memory-safe RDMA: ownership of memory is a value, and the compiler checks it. docs/safety.md says which mistakes the
/// compiler refuses, which the library refuses at run time, and which remain the user's duty.
///
/// Counts, offsets and lengths are in elements. Calls whose name begins with `unsafe_` skip checks, or return unguarded
/// memory.
namespace verbena::typed {

/// A type whose bytes another process can read: trivially copyable, and no pointer, because an address means nothing
/// there. No bool either: a byte from a peer that is neither 0 nor 1 would be undefined behaviour. The user must check
/// the members of a structure.
template <class T>
concept Element = std::is_object_v<T> && std::same_as<T, std::remove_cv_t<T>> && std::is_trivially_copyable_v<T> &&
                  !std::is_array_v<T> && !std::is_pointer_v<T> && !std::is_member_pointer_v<T> &&
                  !std::is_null_pointer_v<T> && !std::same_as<T, bool> && alignof(T) <= 4096;

/// Limits of a region.
struct RegionOptions {
  /// Segments at a time; all that share a range count as one. 1 to 65536, 32 bytes each.
  std::uint32_t max_segments = 256;
};

/// Shared by the parts of this API. Not for users.
namespace detail {

class Region;

/// One holder of a range of a region. The range is free again when its last holder is gone.
class Claim {
 public:
  /// Holds nothing.
  Claim() noexcept = default;
  /// Leaves `other` holding nothing.
  Claim(Claim&& other) noexcept
      : region_(std::exchange(other.region_, nullptr)), range_(other.range_), lkey_(other.lkey_) {}
  /// First drops what this object held.
  Claim& operator=(Claim&& other) noexcept {
    if (this == &other) return *this;
    if (region_ != nullptr) drop();
    region_ = std::exchange(other.region_, nullptr);
    range_ = other.range_;
    lkey_ = other.lkey_;
    return *this;
  }
  ~Claim() {
    if (region_ != nullptr) drop();
  }

  /// Local key of the region.
  [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }
  /// Whether the region is of this node.
  [[nodiscard]] bool is_of(const node::Node& node) const noexcept;
  /// Another holder of the same range.
  [[nodiscard]] Claim share() const noexcept;
  /// Whether it is the only holder.
  [[nodiscard]] bool is_sole() const noexcept;
  /// As session::Ranges::split and join.
  [[nodiscard]] std::expected<Claim, Status> split(std::size_t front) noexcept;
  [[nodiscard]] Status join(Claim& next) noexcept;
  /// The whole range: its first byte, and its number of elements.
  [[nodiscard]] std::byte* data() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;

 private:
  friend class Region;
  Claim(Region& region, std::uint32_t range, std::uint32_t lkey) noexcept
      : region_(&region), range_(range), lkey_(lkey) {}
  void drop() noexcept;

  Region* region_ = nullptr;
  std::uint32_t range_ = 0;
  std::uint32_t lkey_ = 0;
};

/// Arguments of a region.
struct RegionShape {
  const char* call;                          ///< The user's call, for errors.
  std::size_t elements;                      ///< 1 or more.
  std::size_t element_bytes;                 ///< sizeof(T)
  std::size_t alignment;                     ///< alignof(T)
  std::span<std::byte> own{};                ///< The user's memory; empty: allocates.
  rdma::Access access = rdma::Access::kAll;  ///< The peers' rights to the user's memory.
  RegionOptions options{};                   ///< Limits.
};

/// Registered memory with its ranges that are held. It ends with its handle and its last claim.
class RegionHandle {
 public:
  /// No region.
  RegionHandle() noexcept = default;
  RegionHandle(RegionHandle&& other) noexcept : region_(std::exchange(other.region_, nullptr)) {}
  RegionHandle& operator=(RegionHandle&& other) noexcept {
    RegionHandle(std::move(other)).swap(*this);
    return *this;
  }
  ~RegionHandle();

  [[nodiscard]] static Result<RegionHandle> make(rdma::Node& node, const RegionShape& shape);
  [[nodiscard]] static Result<RegionHandle> make(mesh::Mesh& mesh, const RegionShape& shape);
  [[nodiscard]] explicit operator bool() const noexcept { return region_ != nullptr; }
  [[nodiscard]] std::expected<Claim, Status> take(std::size_t first, std::size_t count) noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] std::size_t held() const noexcept;
  [[nodiscard]] rdma::Window window() const noexcept;
  [[nodiscard]] Result<void> publish(std::string_view name, std::size_t first, std::size_t count);
  [[nodiscard]] Result<void> unpublish(std::string_view name);

 private:
  void swap(RegionHandle& other) noexcept { std::swap(region_, other.region_); }
  Region* region_ = nullptr;
};

/// Notes for error_detail why elements were refused, and returns the status.
[[gnu::cold]] Status refuse_part(const char* call, std::size_t first, std::size_t count, std::size_t size) noexcept;
/// The same for a peer's window that does not fit the elements, or a right that it lacks.
[[gnu::cold]] Status refuse_window(const char* call, const rdma::Window& window, std::size_t alignment) noexcept;
[[gnu::cold]] Status refuse_right(const char* call, rdma::Access lacking) noexcept;

/// Whether `first` and `count` are inside `size`; replaces kRest by the number of elements that follow.
[[nodiscard]] constexpr bool is_part(std::size_t first, std::size_t& count, std::size_t size) noexcept {
  if (first > size) return false;
  if (count == rdma::kRest) count = size - first;
  return count <= size - first;
}

/// A result that would let memory escape from the function that may use it.
template <class Out>
inline constexpr bool kIsView = std::is_reference_v<Out> || std::is_pointer_v<Out> ||
                                std::input_or_output_iterator<Out> || std::ranges::view<std::remove_cvref_t<Out>>;

/// Access of the parts of this API to each other.
struct Inside {
  [[nodiscard]] static rdma::Local local(std::span<std::byte> bytes, std::uint32_t lkey) noexcept {
    return {bytes, lkey};
  }
  template <class Part>
  [[nodiscard]] static rdma::Local local(const Part& part) noexcept {
    return part.local(0, part.size_);
  }
  template <class Part>
  [[nodiscard]] static Claim release(Part& part) noexcept {
    return part.release();
  }
  template <class Part>
  [[nodiscard]] static const Claim& claim(const Part& part) noexcept {
    return part.claim_;
  }
  template <class Operation, class... Parts>
  [[nodiscard]] static Operation operation(Parts&&... parts) noexcept {
    return Operation(std::forward<Parts>(parts)...);
  }
  template <class Operation>
  [[nodiscard]] static const auto& started(const Operation& operation) noexcept {
    return operation.started_;
  }
  [[nodiscard]] static session::Session* session(const rdma::Connection& connection) noexcept;
  /// What Connection::waiting_bytes returns from now on.
  static void set_waiting(rdma::Connection& connection, std::size_t bytes) noexcept;
  /// Has a coroutine told of the listener's next client, or of its end. kAgain: one is there, or it has ended; kBusy:
  /// another one is told.
  [[nodiscard]] static Status await_client(const rdma::Listener& listener, coroutine::detail::Wait& wait) noexcept;
  /// False: it was told.
  [[nodiscard]] static bool stop_awaiting(const rdma::Listener& listener, const coroutine::detail::Wait& wait) noexcept;
  // For links and their operations, for awaitables (verbena/coroutines.hpp).
  template <class Operation>
  [[nodiscard]] static auto& started(Operation& operation) noexcept {
    if constexpr (requires { operation.operation_; }) {
      return operation.operation_.started_;
    } else {
      return operation.started_;
    }
  }
  template <class Link>
  [[nodiscard]] static auto* state(const Link& link) noexcept {
    return link.state_;
  }
  template <bool kIsRead, class Link, class Part, class Remote>
  [[nodiscard]] static bool move_now(Link& link, const Part& part, const Remote& remote) noexcept {
    if (!link.may(remote.access(), kIsRead ? rdma::Access::kRead : rdma::Access::kWrite)) return false;
    return kIsRead ? link.read_now(local(part), remote.remote()) : link.write_now(local(part), remote.remote());
  }
  template <class Link, class Word>
  [[nodiscard]] static bool change_now(Link& link, const Word& word, std::uint64_t operand,
                                       const std::optional<std::uint64_t>& expected, std::uint64_t& old) noexcept {
    return link.may(word.access(), rdma::Access::kAtomic) &&
           link.change_now(link.first_of(word), operand, expected, old);
  }
  [[nodiscard]] static const std::shared_ptr<node::Node>& node(const rdma::Node& node) noexcept;
};

}  // namespace detail

/// The common part of Segment and ConstSegment: reading.
template <Element T>
class Elements {
 public:
  /// Number of elements; 0 if the segment was moved from, or an operation owns it.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether there are none.
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Element `at`. kOutOfRange.
  [[nodiscard]] std::expected<T, Status> get(std::size_t at) const noexcept {
    if (at >= size_) [[unlikely]]
      return std::unexpected(detail::refuse_part("typed::Segment::get", at, 1, size_));
    return data_[at];
  }
  /// The same without the check: `at` must be inside.
  [[nodiscard]] const T& unsafe_get(std::size_t at) const noexcept { return data_[at]; }
  /// Copies to.size() elements, from the front. kOutOfRange: there are fewer, and nothing is copied.
  [[nodiscard]] Status copy_to(std::span<T> to) const noexcept {
    if (to.size() > size_) return detail::refuse_part("typed::Segment::copy_to", 0, to.size(), size_);
    std::ranges::copy_n(data_, static_cast<std::ptrdiff_t>(to.size()), to.begin());
    return Status::kOk;
  }
  /// Calls `body` with all elements and returns its result, which must not be a view of them. Passes exceptions of
  /// `body` on.
  template <std::invocable<std::span<const T>> Body>
  auto use(Body&& body) const -> std::invoke_result_t<Body, std::span<const T>> {
    static_assert(!detail::kIsView<std::invoke_result_t<Body, std::span<const T>>>,
                  "use: elements must not leave the function");
    return std::invoke(std::forward<Body>(body), std::span<const T>(data_, size_));
  }
  /// The elements. Don't use them after this object has moved or is destroyed: nothing guards them then.
  [[nodiscard]] std::span<const T> unsafe_span() const noexcept { return {data_, size_}; }
  /// `count` elements from `first` on, which must be inside, for calls of rdma::Connection. Nothing keeps the elements
  /// alive.
  [[nodiscard]] rdma::Local unsafe_local(std::size_t first, std::size_t count) const noexcept {
    return local(first, count);
  }

 protected:
  /// No elements.
  Elements() noexcept = default;
  /// The elements of a claim.
  Elements(detail::Claim&& claim, T* data, std::size_t size) noexcept
      : claim_(std::move(claim)), data_(data), size_(size) {}
  /// Leaves `other` empty.
  Elements(Elements&& other) noexcept
      : claim_(std::move(other.claim_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  /// The same; first drops what this object had.
  Elements& operator=(Elements&& other) noexcept {
    if (this == &other) return *this;
    claim_ = std::move(other.claim_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~Elements() = default;  ///< Gives the elements back to the region.

  /// `count` elements from `first` on, as registered memory.
  [[nodiscard]] rdma::Local local(std::size_t first, std::size_t count) const noexcept {
    return detail::Inside::local(std::as_writable_bytes(std::span(data_ + first, count)), claim_.lkey());
  }
  /// Takes the claim out, and leaves this object empty.
  [[nodiscard]] detail::Claim release() noexcept {
    data_ = nullptr;
    size_ = 0;
    return std::move(claim_);
  }

  detail::Claim claim_;   ///< Holds the range that they are in.
  T* data_ = nullptr;     ///< The first.
  std::size_t size_ = 0;  ///< Their number.

 private:
  friend struct detail::Inside;
};

template <Element T>
class ConstSegment;
template <Element T>
class Chunks;

/// Elements of a region with one owner: move-only. The destructor gives them back to the region. An operation takes a
/// segment, and returns it when complete. A segment that was moved from is empty, and every call refuses it. \thread
/// any, one at a time
template <Element T>
class Segment : public Elements<T> {
 public:
  /// An empty one.
  Segment() noexcept = default;
  /// Leaves `other` empty.
  Segment(Segment&&) noexcept = default;
  /// First gives the elements that this object had back to the region.
  Segment& operator=(Segment&&) noexcept = default;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  using Elements<T>::use;
  using Elements<T>::unsafe_get;

  /// Changes element `at`. kOutOfRange.
  [[nodiscard]] Status set(std::size_t at, const T& value) noexcept {
    if (at >= this->size_) [[unlikely]]
      return detail::refuse_part("typed::Segment::set", at, 1, this->size_);
    this->data_[at] = value;
    return Status::kOk;
  }
  /// Element `at`, without the check: it must be inside.
  [[nodiscard]] T& unsafe_get(std::size_t at) noexcept { return this->data_[at]; }
  /// Copies all of `from` to the front. kOutOfRange: there is no room, and nothing is copied.
  [[nodiscard]] Status copy_from(std::span<const T> from) noexcept {
    if (from.size() > this->size_) return detail::refuse_part("typed::Segment::copy_from", 0, from.size(), this->size_);
    std::ranges::copy(from, this->data_);
    return Status::kOk;
  }
  /// Makes all elements `value`.
  void fill(const T& value) noexcept { std::ranges::fill(unsafe_span(), value); }
  /// Calls `body` with all elements, to read and write, and returns its result, which must not be a view of them.
  /// Passes exceptions of `body` on.
  template <std::invocable<std::span<T>> Body>
  auto use(Body&& body) -> std::invoke_result_t<Body, std::span<T>> {
    static_assert(!detail::kIsView<std::invoke_result_t<Body, std::span<T>>>,
                  "use: elements must not leave the function");
    return std::invoke(std::forward<Body>(body), unsafe_span());
  }
  /// The elements. Don't use them after this object has moved or is destroyed: nothing guards them then.
  [[nodiscard]] std::span<T> unsafe_span() noexcept { return {this->data_, this->size_}; }

  /// Keeps the first `front` elements, and returns the others. kOutOfRange: one side would be empty; kLimit:
  /// RegionOptions::max_segments are held. Errors change nothing. \alloc none
  [[nodiscard]] std::expected<Segment, Status> split_at(std::size_t front) noexcept {
    if (front == 0 || front >= this->size_) [[unlikely]]
      return std::unexpected(detail::refuse_part("typed::Segment::split_at", front, 0, this->size_));
    auto rest = this->claim_.split(front);
    if (!rest) [[unlikely]]
      return std::unexpected(rest.error());
    const std::size_t back = this->size_ - front;
    this->size_ = front;
    return Segment(std::move(*rest), this->data_ + front, back);
  }
  /// Takes the elements of `next`, which begins where this one ends in the same region, and leaves it empty.
  /// kBadArgument: it does not begin there, and nothing has changed.
  [[nodiscard]] Status join(Segment&& next) noexcept {
    if (const Status joined = this->claim_.join(next.claim_); joined != Status::kOk) return joined;
    this->size_ += std::exchange(next.size_, 0);
    next.data_ = nullptr;
    return Status::kOk;
  }
  /// Pieces of `each` elements, one after the other; the last may be shorter.
  [[nodiscard]] Chunks<T> chunks(std::size_t each) && noexcept { return Chunks<T>(std::move(*this), each); }
  /// The same elements, to share; this side cannot change them.
  [[nodiscard]] ConstSegment<T> freeze() && noexcept {
    T* const data = this->data_;
    const std::size_t size = this->size_;
    return ConstSegment<T>(this->release(), data, size);
  }

 private:
  template <Element U>
  friend class MemoryRegion;
  friend class ConstSegment<T>;
  Segment(detail::Claim&& claim, T* data, std::size_t size) noexcept : Elements<T>(std::move(claim), data, size) {}
};

/// Elements of a region that any number of holders read, and nobody writes: copyable. The destructor of the last holder
/// gives them back to the region. \thread any, one at a time for each copy
template <Element T>
class ConstSegment : public Elements<T> {
 public:
  /// An empty one.
  ConstSegment() noexcept = default;
  /// Leaves `other` empty.
  ConstSegment(ConstSegment&&) noexcept = default;
  /// The same; first drops what this object had.
  ConstSegment& operator=(ConstSegment&&) noexcept = default;
  /// Another reader. \alloc none
  ConstSegment(const ConstSegment& other) noexcept : Elements<T>(other.claim_.share(), other.data_, other.size_) {}
  /// The same; first drops what this object had.
  ConstSegment& operator=(const ConstSegment& other) noexcept {
    if (this != &other) *this = ConstSegment(other);
    return *this;
  }

  /// Another reader, of `count` elements from `first` on. kOutOfRange.
  [[nodiscard]] std::expected<ConstSegment, Status> part(std::size_t first,
                                                         std::size_t count = rdma::kRest) const noexcept {
    if (!detail::is_part(first, count, this->size_)) [[unlikely]]
      return std::unexpected(detail::refuse_part("typed::ConstSegment::part", first, count, this->size_));
    return ConstSegment(this->claim_.share(), this->data_ + first, count);
  }
  /// Gives the last reader all that was frozen, even if it had only a part of it, and leaves this object empty. kBusy:
  /// there are other readers, and nothing has changed; kBadArgument: it is empty.
  [[nodiscard]] std::expected<Segment<T>, Status> thaw() && noexcept {
    if (this->empty()) return std::unexpected(Status::kBadArgument);
    if (!this->claim_.is_sole()) return std::unexpected(Status::kBusy);
    T* const data = reinterpret_cast<T*>(this->claim_.data());
    const std::size_t size = this->claim_.size();
    return Segment<T>(this->release(), data, size);
  }

 private:
  friend class Segment<T>;
  ConstSegment(detail::Claim&& claim, T* data, std::size_t size) noexcept : Elements<T>(std::move(claim), data, size) {}
};

/// Hands out a segment piece by piece. The destructor gives the rest back to the region.
template <Element T>
class Chunks {
 public:
  /// Hands out pieces of `each` elements.
  Chunks(Segment<T>&& whole, std::size_t each) noexcept : rest_(std::move(whole)), each_(each) {}

  /// The next piece. kNotFound: there is none; kBadArgument: pieces of no elements; kLimit: see Segment::split_at; the
  /// rest stays. \alloc none
  [[nodiscard]] std::expected<Segment<T>, Status> next() noexcept {
    if (each_ == 0) return std::unexpected(Status::kBadArgument);
    if (rest_.empty()) return std::unexpected(Status::kNotFound);
    if (rest_.size() <= each_) return std::move(rest_);
    auto behind = rest_.split_at(each_);
    if (!behind) return std::unexpected(behind.error());
    return std::exchange(rest_, std::move(*behind));
  }
  /// Elements that have not been handed out.
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

 private:
  Segment<T> rest_;
  std::size_t each_;
};

/// Registered memory of a node, in elements. Every connection of the node (rdma::Options::node) can use it. A segment
/// has one owner on this side; it does not keep out peers that know its window. The memory, and the node with it, live
/// until this object and the last segment are gone. Any thread may destroy the last of them, and then waits as
/// rdma::Memory::deregister does. \thread any
template <Element T>
class MemoryRegion {
 public:
  /// An empty one, which has no elements.
  MemoryRegion() noexcept = default;

  /// `count` elements, zeroed, in at most 2^40 bytes, with all rights for the peers of the node. Errors: those of
  /// rdma::Node::allocate, kBadArgument (a limit). \thread setup  \alloc setup
  [[nodiscard]] static Result<MemoryRegion> allocate(rdma::Node& node, std::size_t count, RegionOptions options = {}) {
    return make(node, allocated(count, options));
  }
  /// The same for the lanes and peers of a mesh, which it may outlive; see typed::MeshLane::publish.
  [[nodiscard]] static Result<MemoryRegion> allocate(mesh::Mesh& mesh, std::size_t count, RegionOptions options = {}) {
    return make(mesh, allocated(count, options));
  }
  /// Registers your own memory. Keep it mapped, and let nobody else use it, until the region and its last segment are
  /// gone. Errors: those of rdma::Node::register_memory, kBadArgument (a limit). \thread setup  \alloc setup
  [[nodiscard]] static Result<MemoryRegion> unsafe_register(rdma::Node& node, std::span<T> memory,
                                                            rdma::Access access = rdma::Access::kLocal,
                                                            RegionOptions options = {}) {
    return make(node, {.call = "typed::MemoryRegion::unsafe_register",
                       .elements = memory.size(),
                       .element_bytes = sizeof(T),
                       .alignment = alignof(T),
                       .own = std::as_writable_bytes(memory),
                       .access = access,
                       .options = options});
  }

  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return region_.size(); }
  /// Ranges that segments and operations hold, those in quarantine included.
  [[nodiscard]] std::size_t held() const noexcept { return region_.held(); }
  /// Takes `count` elements from `first` on. kOutOfRange; kBusy: a segment or an operation has some of them; kLimit:
  /// RegionOptions::max_segments are held; kBadArgument: no elements. \alloc none
  [[nodiscard]] std::expected<Segment<T>, Status> take(std::size_t first = 0,
                                                       std::size_t count = rdma::kRest) noexcept {
    auto claim = region_.take(first, count);
    if (!claim) return std::unexpected(claim.error());
    T* const data = reinterpret_cast<T*>(claim->data());
    const std::size_t size = claim->size();
    return Segment<T>(std::move(*claim), data, size);
  }

  /// The window by which peers reach all of it; empty if their rights are Access::kLocal.
  [[nodiscard]] rdma::Window window() const noexcept { return region_.window(); }
  /// Publishes `count` elements from `first` on under a name for peers to find. Errors: those of rdma::Node::publish;
  /// kUnsupported: it is a mesh's, which publishes by typed::MeshLane.
  [[nodiscard]] Result<void> publish(std::string_view name, std::size_t first = 0, std::size_t count = rdma::kRest) {
    return region_.publish(name, first, count);
  }
  /// Removes the name. kNotFound: it was not published.
  [[nodiscard]] Result<void> unpublish(std::string_view name) { return region_.unpublish(name); }

 private:
  [[nodiscard]] static detail::RegionShape allocated(std::size_t count, const RegionOptions& options) noexcept {
    return {.call = "typed::MemoryRegion::allocate",
            .elements = count,
            .element_bytes = sizeof(T),
            .alignment = alignof(T),
            .options = options};
  }
  template <class Home>
  [[nodiscard]] static Result<MemoryRegion> make(Home& home, const detail::RegionShape& shape) {
    auto made = detail::RegionHandle::make(home, shape);
    if (!made) return std::unexpected(made.error());
    MemoryRegion region;
    region.region_ = std::move(*made);
    return region;
  }

  detail::RegionHandle region_;
};

/// Elements of a peer's memory, with the rights that the peer gave: copyable, and valid as long as the peer keeps the
/// window. With `const T` it is read-only, which the compiler checks.
template <class T>
  requires Element<std::remove_const_t<T>>
class RemoteSegment {
 public:
  /// An empty one, which every call refuses.
  RemoteSegment() noexcept = default;
  /// Converts to a read-only one; the peer's rights decide whether reading works.
  template <class U>
    requires std::same_as<T, const U>
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions): as a pointer converts to one to const.
  RemoteSegment(const RemoteSegment<U>& other) noexcept
      : address_(other.address_), size_(other.size_), rkey_(other.rkey_), access_(other.access_), peer_(other.peer_) {}

  /// `count` elements of a window, from `first` on; without a count all whole ones. kOutOfRange: they are not inside;
  /// kBadArgument: the window is not aligned for them; kRemoteAccess: the window lacks the right to write (T) or to
  /// read (const T).
  [[nodiscard]] static std::expected<RemoteSegment, Status> of(const rdma::Window& window, std::size_t first = 0,
                                                               std::size_t count = rdma::kRest) noexcept {
    constexpr const char* kCall = "typed::RemoteSegment::of";
    constexpr rdma::Access kNeeded = std::is_const_v<T> ? rdma::Access::kRead : rdma::Access::kWrite;
    const std::size_t there = window.length / sizeof(T);
    if (window.address % alignof(T) != 0) return std::unexpected(detail::refuse_window(kCall, window, alignof(T)));
    if (!detail::is_part(first, count, there)) return std::unexpected(detail::refuse_part(kCall, first, count, there));
    if (!rdma::includes(window.access, kNeeded)) return std::unexpected(detail::refuse_right(kCall, kNeeded));
    return RemoteSegment(window.address + first * sizeof(T), count, window.rkey, window.access, window.peer);
  }

  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether there are none.
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// The rights that the peer gave.
  [[nodiscard]] rdma::Access access() const noexcept { return access_; }
  /// `count` elements from `first` on. kOutOfRange.
  [[nodiscard]] std::expected<RemoteSegment, Status> part(std::size_t first,
                                                          std::size_t count = rdma::kRest) const noexcept {
    if (!detail::is_part(first, count, size_)) [[unlikely]]
      return std::unexpected(detail::refuse_part("typed::RemoteSegment::part", first, count, size_));
    return unsafe_part(first, count);
  }
  /// The same without the check: they must be inside.
  [[nodiscard]] RemoteSegment unsafe_part(std::size_t first, std::size_t count) const noexcept {
    return RemoteSegment(address_ + first * sizeof(T), count, rkey_, access_, peer_);
  }
  /// The same part in bytes, for calls of rdma::Connection.
  [[nodiscard]] rdma::Remote remote() const noexcept {
    return {.address = address_, .length = size_ * sizeof(T), .rkey = rkey_, .peer = peer_};
  }

 private:
  template <class U>
    requires Element<std::remove_const_t<U>>
  friend class RemoteSegment;
  RemoteSegment(std::uint64_t address, std::size_t size, std::uint32_t rkey, rdma::Access access,
                std::uint16_t peer) noexcept
      : address_(address), size_(size), rkey_(rkey), access_(access), peer_(peer) {}

  std::uint64_t address_ = 0;
  std::size_t size_ = 0;
  std::uint32_t rkey_ = 0;
  rdma::Access access_ = rdma::Access::kLocal;
  std::uint16_t peer_ = 0;  ///< Whose it is; 0: not known.
};

static_assert(sizeof(Segment<int>) == 32 && sizeof(ConstSegment<int>) == 32 && sizeof(RemoteSegment<int>) == 24);

}  // namespace verbena::typed

#pragma GCC visibility pop
