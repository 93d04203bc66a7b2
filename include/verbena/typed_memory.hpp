// Memory in elements: regions, segments that nobody else uses meanwhile, and parts of a peer's memory.
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

// The library's own; opaque here.
#pragma GCC visibility push(default)

namespace verbena::node {
class Node;
}

/// Memory-safe RDMA: ownership of memory is a value, and the compiler checks it. docs/safety.md says what the compiler
/// refuses, what is refused at run time, and what stays the user's duty.
///
/// Counts, offsets and lengths are in elements. Calls whose name begins with `unsafe_` skip checks, or hand out memory
/// that nothing guards.
namespace verbena::typed {

/// A type whose bytes another process can read: trivially copyable, and no pointer, for an address is worth nothing
/// there. No bool either: a byte from a peer that is neither 0 nor 1 would be undefined behaviour. The members of a
/// structure are the user's duty.
template <class T>
concept Element = std::is_object_v<T> && std::same_as<T, std::remove_cv_t<T>> && std::is_trivially_copyable_v<T> &&
                  !std::is_array_v<T> && !std::is_pointer_v<T> && !std::is_member_pointer_v<T> &&
                  !std::is_null_pointer_v<T> && !std::same_as<T, bool> && alignof(T) <= 4096;

/// Limits of a region.
struct RegionOptions {
  /// Segments at a time; of those that share a range, all count as one. 1 to 65536, 32 bytes each.
  std::uint32_t max_segments = 256;
};

/// What the parts of this API see of each other. Not for users.
namespace detail {

class Region;

/// One of the holders of a range of a region. The range is free again when the last of them is gone.
class Claim {
 public:
  /// Holds nothing.
  Claim() noexcept = default;
  /// Leaves one behind that holds nothing.
  Claim(Claim&& other) noexcept
      : region_(std::exchange(other.region_, nullptr)), range_(other.range_), lkey_(other.lkey_) {}
  /// Drops what this one held.
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
  /// Another holder of the same range.
  [[nodiscard]] Claim share() const noexcept;
  /// Whether it is the only holder.
  [[nodiscard]] bool is_sole() const noexcept;
  /// As session::Ranges::split and join.
  [[nodiscard]] std::expected<Claim, Status> split(std::size_t front) noexcept;
  [[nodiscard]] Status join(Claim& next) noexcept;
  /// All of the range: its first byte, and its number of elements.
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

/// What a region is made of.
struct RegionShape {
  const char* call;                          ///< The user's call, for errors.
  std::size_t elements;                      ///< 1 or more.
  std::size_t element_bytes;                 ///< sizeof(T)
  std::size_t alignment;                     ///< alignof(T)
  std::span<std::byte> own{};                ///< Memory of the user's; empty: allocates.
  rdma::Access access = rdma::Access::kAll;  ///< The peers' rights to memory of the user's.
  RegionOptions options{};                   ///< Limits.
};

/// Registered memory with the ranges of it that are held. It goes with its handle and its last claim.
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

/// Remembers for error_detail why elements were refused; the status.
[[gnu::cold]] Status refuse_part(const char* call, std::size_t first, std::size_t count, std::size_t size) noexcept;
/// The same for a peer's window that does not fit the elements, or a right that it lacks.
[[gnu::cold]] Status refuse_window(const char* call, const rdma::Window& window, std::size_t alignment) noexcept;
[[gnu::cold]] Status refuse_right(const char* call, rdma::Access lacking) noexcept;

/// Whether `first` and `count` are inside `size`; kRest becomes what is there.
[[nodiscard]] constexpr bool is_part(std::size_t first, std::size_t& count, std::size_t size) noexcept {
  if (first > size) return false;
  if (count == rdma::kRest) count = size - first;
  return count <= size - first;
}

/// A result by which memory would leave the function that may use it.
template <class Out>
inline constexpr bool kIsView = std::is_reference_v<Out> || std::is_pointer_v<Out> ||
                                std::input_or_output_iterator<Out> || std::ranges::view<std::remove_cvref_t<Out>>;

/// Where parts of this API reach into each other.
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
  [[nodiscard]] static session::Session* session(const rdma::Connection& connection) noexcept;
  [[nodiscard]] static const std::shared_ptr<node::Node>& node(const rdma::Node& node) noexcept;
};

}  // namespace detail

/// What Segment and ConstSegment have in common: reading.
template <Element T>
class Elements {
 public:
  /// Number of elements; 0 where the segment was moved from, or is with an operation.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether there are none.
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Element `at`. kOutOfRange.
  [[nodiscard]] std::expected<T, Status> get(std::size_t at) const noexcept {
    if (at >= size_) [[unlikely]]
      return std::unexpected(detail::refuse_part("typed::Segment::get", at, 1, size_));
    return data_[at];
  }
  /// The same for an element that is there.
  [[nodiscard]] const T& unsafe_get(std::size_t at) const noexcept { return data_[at]; }
  /// Copies to.size() elements, from the front. kOutOfRange: there are fewer; nothing is copied.
  [[nodiscard]] Status copy_to(std::span<T> to) const noexcept {
    if (to.size() > size_) return detail::refuse_part("typed::Segment::copy_to", 0, to.size(), size_);
    std::ranges::copy_n(data_, static_cast<std::ptrdiff_t>(to.size()), to.begin());
    return Status::kOk;
  }
  /// Calls `body` with all elements; its result, which must not be a view of them. An exception of `body` passes.
  template <std::invocable<std::span<const T>> Body>
  auto use(Body&& body) const -> std::invoke_result_t<Body, std::span<const T>> {
    static_assert(!detail::kIsView<std::invoke_result_t<Body, std::span<const T>>>,
                  "use: elements must not leave the function");
    return std::invoke(std::forward<Body>(body), std::span<const T>(data_, size_));
  }
  /// The elements, which nothing guards once this is moved or gone.
  [[nodiscard]] std::span<const T> unsafe_span() const noexcept { return {data_, size_}; }
  /// `count` elements from `first` on, which must be inside, for calls of rdma::Connection. Nothing keeps them.
  [[nodiscard]] rdma::Local unsafe_local(std::size_t first, std::size_t count) const noexcept {
    return local(first, count);
  }

 protected:
  /// None.
  Elements() noexcept = default;
  /// Those of a claim.
  Elements(detail::Claim&& claim, T* data, std::size_t size) noexcept
      : claim_(std::move(claim)), data_(data), size_(size) {}
  /// Leaves none behind.
  Elements(Elements&& other) noexcept
      : claim_(std::move(other.claim_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  /// The same, and drops what this had.
  Elements& operator=(Elements&& other) noexcept {
    if (this == &other) return *this;
    claim_ = std::move(other.claim_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~Elements() = default;

  /// `count` elements from `first` on, as registered memory.
  [[nodiscard]] rdma::Local local(std::size_t first, std::size_t count) const noexcept {
    return detail::Inside::local(std::as_writable_bytes(std::span(data_ + first, count)), claim_.lkey());
  }
  /// Takes the claim out; what stays is empty.
  [[nodiscard]] detail::Claim release() noexcept {
    data_ = nullptr;
    size_ = 0;
    return std::move(claim_);
  }

  detail::Claim claim_;   ///< To the range that they are in.
  T* data_ = nullptr;     ///< The first.
  std::size_t size_ = 0;  ///< Their number.

 private:
  friend struct detail::Inside;
};

template <Element T>
class ConstSegment;
template <Element T>
class Chunks;

/// Elements of a region that nobody else has: move-only. They are the region's again when it goes. An operation takes
/// it, and gives it back when it is complete; what was moved from is empty, and refused by every call. \thread any, one
/// at a time
template <Element T>
class Segment : public Elements<T> {
 public:
  /// An empty one.
  Segment() noexcept = default;
  /// Leaves an empty one behind.
  Segment(Segment&&) noexcept = default;
  /// What this one had is the region's again.
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
  /// An element that is there.
  [[nodiscard]] T& unsafe_get(std::size_t at) noexcept { return this->data_[at]; }
  /// Copies all of `from` to the front. kOutOfRange: there is no room; nothing is copied.
  [[nodiscard]] Status copy_from(std::span<const T> from) noexcept {
    if (from.size() > this->size_) return detail::refuse_part("typed::Segment::copy_from", 0, from.size(), this->size_);
    std::ranges::copy(from, this->data_);
    return Status::kOk;
  }
  /// Makes all elements `value`.
  void fill(const T& value) noexcept { std::ranges::fill(unsafe_span(), value); }
  /// Calls `body` with all elements, to read and write; its result, which must not be a view of them. An exception of
  /// `body` passes.
  template <std::invocable<std::span<T>> Body>
  auto use(Body&& body) -> std::invoke_result_t<Body, std::span<T>> {
    static_assert(!detail::kIsView<std::invoke_result_t<Body, std::span<T>>>,
                  "use: elements must not leave the function");
    return std::invoke(std::forward<Body>(body), unsafe_span());
  }
  /// The elements, which nothing guards once this is moved or gone.
  [[nodiscard]] std::span<T> unsafe_span() noexcept { return {this->data_, this->size_}; }

  /// Keeps the first `front` elements, and returns the others. kOutOfRange: one side would be empty; kLimit:
  /// RegionOptions::max_segments are held. Nothing has changed then. \alloc none
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
  /// kBadArgument, and nothing has changed: it does not.
  [[nodiscard]] Status join(Segment&& next) noexcept {
    if (const Status joined = this->claim_.join(next.claim_); joined != Status::kOk) return joined;
    this->size_ += std::exchange(next.size_, 0);
    next.data_ = nullptr;
    return Status::kOk;
  }
  /// Pieces of `each` elements, one after the other; the last may be shorter.
  [[nodiscard]] Chunks<T> chunks(std::size_t each) && noexcept { return Chunks<T>(std::move(*this), each); }
  /// The same elements, to be shared, and changed by nobody.
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

/// Elements of a region that any number of holders read, and nobody writes: copyable. They are the region's again when
/// the last of them goes. \thread any, one at a time; copies are each their thread's
template <Element T>
class ConstSegment : public Elements<T> {
 public:
  /// An empty one.
  ConstSegment() noexcept = default;
  /// Leaves an empty one behind.
  ConstSegment(ConstSegment&&) noexcept = default;
  ConstSegment& operator=(ConstSegment&&) noexcept = default;
  /// Another reader. \alloc none
  ConstSegment(const ConstSegment& other) noexcept : Elements<T>(other.claim_.share(), other.data_, other.size_) {}
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
  /// The last reader gets all that was frozen, also where it had a part of it, and this is empty then. kBusy, and
  /// nothing has changed: there are other readers; kBadArgument: it is empty.
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

/// The rest of a segment that is handed out piece by piece. What was not handed out is the region's when this goes.
template <Element T>
class Chunks {
 public:
  /// Of `each` elements.
  Chunks(Segment<T>&& whole, std::size_t each) noexcept : rest_(std::move(whole)), each_(each) {}

  /// The next piece. kNotFound: there is none; kBadArgument: pieces of no elements; kLimit: see Segment::split_at, and
  /// the rest stays. \alloc none
  [[nodiscard]] std::expected<Segment<T>, Status> next() noexcept {
    if (each_ == 0) return std::unexpected(Status::kBadArgument);
    if (rest_.empty()) return std::unexpected(Status::kNotFound);
    if (rest_.size() <= each_) return std::move(rest_);
    auto behind = rest_.split_at(each_);
    if (!behind) return std::unexpected(behind.error());
    return std::exchange(rest_, std::move(*behind));
  }
  /// Elements that were not handed out.
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

 private:
  Segment<T> rest_;
  std::size_t each_;
};

/// Registered memory of a node, in elements. Every connection of the node (rdma::Options::node) can use it. Who takes a
/// segment has it to himself, on this side; peers that know its window are not kept from it. The memory lasts, and the
/// node with it, until this object and the last segment are gone; that may be in any thread, which then waits for what
/// rdma::Memory::deregister does. \thread any
template <Element T>
class MemoryRegion {
 public:
  /// An empty one, which has no elements.
  MemoryRegion() noexcept = default;

  /// `count` elements, zeroed, in at most 2^40 bytes, with all rights for the peers of the node. Errors: those of
  /// rdma::Node::allocate, kBadArgument (a limit). \thread setup  \alloc setup
  [[nodiscard]] static Result<MemoryRegion> allocate(rdma::Node& node, std::size_t count, RegionOptions options = {}) {
    return make(node, {.call = "typed::MemoryRegion::allocate",
                       .elements = count,
                       .element_bytes = sizeof(T),
                       .alignment = alignof(T),
                       .options = options});
  }
  /// Memory of the user's own, who keeps it mapped, and lets nobody else use it, until the region and its last segment
  /// are gone. Errors: those of rdma::Node::register_memory, kBadArgument (a limit). \thread setup  \alloc setup
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
  /// Ranges that segments and operations hold, those in quarantine among them.
  [[nodiscard]] std::size_t held() const noexcept { return region_.held(); }
  /// `count` elements from `first` on. kOutOfRange; kBusy: a part of them is a segment's, or an operation's; kLimit:
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
  /// Publishes `count` elements from `first` on under a name for peers to find. Errors: those of rdma::Node::publish.
  [[nodiscard]] Result<void> publish(std::string_view name, std::size_t first = 0, std::size_t count = rdma::kRest) {
    return region_.publish(name, first, count);
  }
  /// Takes the name back. kNotFound: it was not published.
  [[nodiscard]] Result<void> unpublish(std::string_view name) { return region_.unpublish(name); }

 private:
  [[nodiscard]] static Result<MemoryRegion> make(rdma::Node& node, const detail::RegionShape& shape) {
    auto made = detail::RegionHandle::make(node, shape);
    if (!made) return std::unexpected(made.error());
    MemoryRegion region;
    region.region_ = std::move(*made);
    return region;
  }

  detail::RegionHandle region_;
};

/// Elements of a peer's memory, with the rights that the peer gave: copyable, and good as long as the peer keeps the
/// window. Of `const T`: to read only, which the compiler checks.
template <class T>
  requires Element<std::remove_const_t<T>>
class RemoteSegment {
 public:
  /// An empty one, which every call refuses.
  RemoteSegment() noexcept = default;
  /// What may be written may be read, if the peer's rights allow it.
  template <class U>
    requires std::same_as<T, const U>
  // NOLINTNEXTLINE(google-explicit-constructor,hicpp-explicit-conversions): as a pointer becomes one to const.
  RemoteSegment(const RemoteSegment<U>& other) noexcept
      : address_(other.address_), size_(other.size_), rkey_(other.rkey_), access_(other.access_) {}

  /// `count` elements of a window, from `first` on; without a count as many as are whole. kOutOfRange: they are not
  /// inside; kBadArgument: the window is not aligned for them; kRemoteAccess: the peer may not be written to (T), or
  /// not be read (const T).
  [[nodiscard]] static std::expected<RemoteSegment, Status> of(const rdma::Window& window, std::size_t first = 0,
                                                               std::size_t count = rdma::kRest) noexcept {
    constexpr const char* kCall = "typed::RemoteSegment::of";
    constexpr rdma::Access kNeeded = std::is_const_v<T> ? rdma::Access::kRead : rdma::Access::kWrite;
    const std::size_t there = window.length / sizeof(T);
    if (window.address % alignof(T) != 0) return std::unexpected(detail::refuse_window(kCall, window, alignof(T)));
    if (!detail::is_part(first, count, there)) return std::unexpected(detail::refuse_part(kCall, first, count, there));
    if (!rdma::includes(window.access, kNeeded)) return std::unexpected(detail::refuse_right(kCall, kNeeded));
    return RemoteSegment(window.address + first * sizeof(T), count, window.rkey, window.access);
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
  /// The same for elements that are inside.
  [[nodiscard]] RemoteSegment unsafe_part(std::size_t first, std::size_t count) const noexcept {
    return RemoteSegment(address_ + first * sizeof(T), count, rkey_, access_);
  }
  /// In bytes, for calls of rdma::Connection.
  [[nodiscard]] rdma::Remote remote() const noexcept {
    return {.address = address_, .length = size_ * sizeof(T), .rkey = rkey_};
  }

 private:
  template <class U>
    requires Element<std::remove_const_t<U>>
  friend class RemoteSegment;
  RemoteSegment(std::uint64_t address, std::size_t size, std::uint32_t rkey, rdma::Access access) noexcept
      : address_(address), size_(size), rkey_(rkey), access_(access) {}

  std::uint64_t address_ = 0;
  std::size_t size_ = 0;
  std::uint32_t rkey_ = 0;
  rdma::Access access_ = rdma::Access::kLocal;
};

static_assert(sizeof(Segment<int>) == 32 && sizeof(ConstSegment<int>) == 32 && sizeof(RemoteSegment<int>) == 24);

}  // namespace verbena::typed

#pragma GCC visibility pop
