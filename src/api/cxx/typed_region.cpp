// Regions of the typed API: registered memory of a node, and the holders of its ranges.
#include <verbena/typed_memory.hpp>

#include "api/cxx/guarded.hpp"
#include "base/limit.hpp"
#include "mesh/mesh.hpp"
#include "node/node.hpp"
#include "session/ranges.hpp"

#include <chrono>
#include <utility>

namespace verbena::typed::detail {

using session::Ranges;

/// Whose memory a region has, which lasts as long.
struct RegionHome {
  std::shared_ptr<const void> owner;
  session::Registrations* registrations;
  node::Node* node = nullptr;  ///< Null: it is a mesh's.

  [[nodiscard]] static RegionHome of(const std::shared_ptr<node::Node>& node) noexcept {
    return {.owner = node, .registrations = &node->device().registrations(), .node = node.get()};
  }
  [[nodiscard]] static RegionHome of(const std::shared_ptr<mesh::RegionOwner>& regions) noexcept {
    return {.owner = regions, .registrations = &regions->device->registrations()};
  }
};

/// Destroys itself: with its handle, or with the last claim after that.
class Region {
 public:
  Region(RegionHome home, const RegionShape& shape)
      : home_(std::move(home)),
        element_bytes_(shape.element_bytes),
        ranges_(shape.elements, shape.options.max_segments) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    if (memory_ == nullptr) return;
    const CancellationHeld held;
    (void)home_.registrations->remove(home_.owner.get(), memory_, Deadline::after(kDeregistration));
  }

  [[nodiscard]] Result<void> open(const RegionShape& shape) {
    session::Registrations& all = *home_.registrations;
    const session::Owner owner = home_.owner.get();
    VERBENA_ASSIGN(memory_, shape.own.empty() ? all.allocate(owner, shape.elements * shape.element_bytes,
                                                             {.to = nic::Grant::To::kAnyPeer})
                                              : all.add(owner, shape.own, shape.access));
    return {};
  }
  [[nodiscard]] std::expected<Claim, Status> take(Ranges::Span wanted) noexcept {
    std::uint32_t range = 0;
    const Status taken = ranges_.take(wanted, range);
    if (taken != Status::kOk) return std::unexpected(taken);
    return Claim(*this, range, memory_->lkey);
  }
  [[nodiscard]] Claim claim(std::uint32_t range) noexcept { return {*this, range, memory_->lkey}; }
  [[nodiscard]] Ranges& ranges() noexcept { return ranges_; }
  [[nodiscard]] std::uint32_t max_segments() const noexcept { return ranges_.capacity(); }
  [[nodiscard]] const session::RegisteredMemory& memory() const noexcept { return *memory_; }
  [[nodiscard]] node::Node* node() const noexcept { return home_.node; }
  [[nodiscard]] std::size_t bytes_of(std::uint64_t elements) const noexcept { return elements * element_bytes_; }
  /// In a forked child it belongs to the parent.
  static void end(Region* region) noexcept {
    if (!is_forked()) delete region;
  }

 private:
  static constexpr std::chrono::seconds kDeregistration{5};

  const RegionHome home_;
  const std::size_t element_bytes_;
  const session::RegisteredMemory* memory_ = nullptr;
  Ranges ranges_;
};

// --- claims -------------------------------------------------------------------------------------------------------

Claim Claim::share() const noexcept {
  if (region_ == nullptr) return {};
  region_->ranges().share(range_);
  return {*region_, range_, lkey_};
}

bool Claim::is_of(const node::Node& node) const noexcept { return region_ != nullptr && region_->node() == &node; }

bool Claim::is_sole() const noexcept { return region_ != nullptr && region_->ranges().is_sole(range_); }

std::expected<Claim, Status> Claim::split(std::size_t front) noexcept {
  std::uint32_t rest = 0;
  const Status status = region_->ranges().split(range_, front, rest);
  if (status == Status::kOk) [[likely]]
    return region_->claim(rest);
  return std::unexpected(note(status, "typed::Segment::split_at",
                              "{} segments of the region are held already: raise RegionOptions::max_segments",
                              region_->max_segments()));
}

Status Claim::join(Claim& next) noexcept {
  const bool is_one_region = region_ != nullptr && region_ == next.region_;
  if (!is_one_region || region_->ranges().join(range_, next.range_) != Status::kOk)
    return note(Status::kBadArgument, "typed::Segment::join", "next must begin where this segment ends");
  next.region_ = nullptr;
  return Status::kOk;
}

std::byte* Claim::data() const noexcept {
  return region_->memory().address + region_->bytes_of(region_->ranges().span(range_).begin);
}

std::size_t Claim::size() const noexcept {
  const Ranges::Span span = region_->ranges().span(range_);
  return span.end - span.begin;
}

void Claim::drop() noexcept {
  Region* const region = std::exchange(region_, nullptr);
  if (region->ranges().drop(range_)) Region::end(region);
}

// --- handles ------------------------------------------------------------------------------------------------------

RegionHandle::~RegionHandle() {
  if (region_ != nullptr && region_->ranges().close()) Region::end(region_);
}

namespace {

[[nodiscard]] Result<std::unique_ptr<Region>> make_region(RegionHome home, const RegionShape& shape) {
  const std::uint64_t most = session::Registrations::kMaxBytes / shape.element_bytes;
  VERBENA_TRY(check_limit(shape.call, "the number of elements", shape.elements, 1, most));
  VERBENA_TRY(check_limit(shape.call, "max_segments", shape.options.max_segments, 1, Ranges::kMaxRanges));
  if (reinterpret_cast<std::uintptr_t>(shape.own.data()) % shape.alignment != 0)
    return fail(Status::kBadArgument, shape.call, 0, "memory must be at a multiple of {}", shape.alignment);
  auto region = std::make_unique<Region>(std::move(home), shape);
  VERBENA_TRY(region->open(shape));
  return region;
}

}  // namespace

Result<RegionHandle> RegionHandle::make(rdma::Node& node, const RegionShape& shape) {
  return api::guarded(shape.call, [&]() -> Result<RegionHandle> {
    VERBENA_ASSIGN(auto region, make_region(RegionHome::of(Inside::node(node)), shape));
    RegionHandle handle;
    handle.region_ = region.release();
    return handle;
  });
}

Result<RegionHandle> RegionHandle::make(mesh::Mesh& mesh, const RegionShape& shape) {
  return api::guarded(shape.call, [&]() -> Result<RegionHandle> {
    // There are no other meshes.
    VERBENA_ASSIGN(auto region,
                   make_region(RegionHome::of(static_cast<mesh::MeshOfProcesses&>(mesh).regions()), shape));
    RegionHandle handle;
    handle.region_ = region.release();
    return handle;
  });
}

std::expected<Claim, Status> RegionHandle::take(std::size_t first, std::size_t count) noexcept {
  constexpr const char* kCall = "typed::MemoryRegion::take";
  const std::size_t there = size();
  if (!is_part(first, count, there)) return std::unexpected(refuse_part(kCall, first, count, there));
  if (count == 0) return std::unexpected(note(Status::kBadArgument, kCall, "count must be at least 1; got 0"));
  auto taken = region_->take({first, first + count});
  if (taken) return taken;
  if (taken.error() == Status::kBusy)
    return std::unexpected(
        note(Status::kBusy, kCall, "{} elements from {} on: a segment or operation has some of them", count, first));
  return std::unexpected(note(taken.error(), kCall, "{} segments are held already: raise RegionOptions::max_segments",
                              region_->max_segments()));
}

std::size_t RegionHandle::size() const noexcept { return region_ != nullptr ? region_->ranges().length() : 0; }
std::size_t RegionHandle::held() const noexcept { return region_ != nullptr ? region_->ranges().held() : 0; }

rdma::Window RegionHandle::window() const noexcept {
  const bool is_open = region_ != nullptr && region_->memory().access != rdma::Access::kLocal;
  return is_open ? region_->memory().window() : rdma::Window{};
}

Result<void> RegionHandle::publish(std::string_view name, std::size_t first, std::size_t count) {
  constexpr const char* kCall = "typed::MemoryRegion::publish";
  return api::guarded(kCall, [&]() -> Result<void> {
    const std::size_t there = size();
    if (!is_part(first, count, there) || count == 0)
      return fail(Status::kOutOfRange, kCall, 0, "{} elements from {} on are not inside the region of {}", count, first,
                  there);
    if (region_->node() == nullptr)
      return fail(Status::kUnsupported, kCall, 0, "the memory is a mesh's: publish it by typed::MeshLane::publish");
    return region_->node()->publish(name, {&region_->memory(), region_->bytes_of(first), region_->bytes_of(count)});
  });
}

Result<void> RegionHandle::unpublish(std::string_view name) {
  constexpr const char* kCall = "typed::MemoryRegion::unpublish";
  return api::guarded(kCall, [&]() -> Result<void> {
    if (region_ == nullptr) return fail(Status::kNotFound, kCall, 0, "an empty region has published nothing");
    if (region_->node() == nullptr) return fail(Status::kNotFound, kCall, 0, "a mesh keeps its names");
    return region_->node()->publish(name, {});
  });
}

// --- refusals -----------------------------------------------------------------------------------------------------

Status refuse_part(const char* call, std::size_t first, std::size_t count, std::size_t size) noexcept {
  return note(Status::kOutOfRange, call, "{} elements from {} on do not fit into {}", count, first, size);
}

Status refuse_window(const char* call, const rdma::Window& window, std::size_t alignment) noexcept {
  return note(Status::kBadArgument, call, "the window must be at a multiple of {}, as its elements are; got {:#x}",
              alignment, window.address);
}

Status refuse_right(const char* call, rdma::Access lacking) noexcept {
  const char* const what = lacking == rdma::Access::kRead    ? "reading"
                           : lacking == rdma::Access::kWrite ? "writing"
                                                             : "atomics";
  return note(Status::kRemoteAccess, call, "the peer's window does not allow {}: the peer registers it with that right",
              what);
}

}  // namespace verbena::typed::detail
