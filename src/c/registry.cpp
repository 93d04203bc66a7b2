#include "c/registry.hpp"

#include "base/error.hpp"
#include "nic/verbs.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

namespace verbena::c {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 40;
struct Right {
  std::uint32_t ours;
  std::uint32_t verbs;
};
constexpr std::array<Right, 3> kRights{{{RDMA_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_READ},
                                        {RDMA_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE},
                                        {RDMA_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC}}};

[[nodiscard]] Result<void> check_size(const char* call, std::size_t size) {
  if (size != 0 && size <= kMaxBytes) return {};
  return fail(Status::kBadArgument, call, 0, "{}: the length must be 1 to 2^40 bytes; got {}", call, size);
}

[[nodiscard]] std::unexpected<Error> not_registered(const char* call) {
  return fail(Status::kBadArgument, call, 0, "{}: this is no memory that was registered here", call);
}

}  // namespace

std::uint32_t verbs_access_of(std::uint32_t access) noexcept {
  std::uint32_t verbs = 0;
  for (const Right& right : kRights) verbs |= (access & right.ours) != 0 ? right.verbs : 0;
  return verbs;
}

std::uint32_t access_of(std::uint32_t verbs_access) noexcept {
  std::uint32_t access = RDMA_ACCESS_LOCAL;
  for (const Right& right : kRights) access |= (verbs_access & right.verbs) != 0 ? right.ours : 0;
  return access;
}

const RdmaMemory* Registry::keep(std::unique_ptr<Region> region, const ibv_mr* mr, std::size_t length,
                                 std::uint32_t access) {
  const nic::Window window = nic_.window_of(mr);
  region->told = {.addr = mr->addr,
                  .length = length,
                  .lkey = mr->lkey,
                  .rkey = mr->rkey,
                  .access = access,
                  .memory_id = window.memory_id};
  const std::lock_guard lock(mutex_);
  return &regions_.emplace_back(std::move(region))->told;
}

Result<const RdmaMemory*> Registry::allocate(const Conn* owner, std::size_t size, const nic::Grant& grant) {
  VERBENA_TRY(check_size("rdmaConnRegMem", size));
  const nic::DeviceFacts* facts = nic::facts_of(nic_);
  const bool has_atomics = facts == nullptr || facts->atomics != IBV_ATOMIC_NONE;
  const std::uint32_t access = has_atomics ? std::uint32_t{RDMA_ACCESS_REMOTE_ALL}
                                           : std::uint32_t{RDMA_ACCESS_REMOTE_READ | RDMA_ACCESS_REMOTE_WRITE};
  auto region = std::make_unique<Region>();
  region->owner = owner;
  VERBENA_TRY(region->arena.open(nic_, pd_, {.size_bytes = size, .share = host::Share::kReadWrite, .name = "user"},
                                 grant, static_cast<int>(IBV_ACCESS_LOCAL_WRITE | verbs_access_of(access))));
  const ibv_mr* const mr = region->arena.mr();
  return keep(std::move(region), mr, size, access);
}

Result<const RdmaMemory*> Registry::add(const Conn* owner, void* address, std::size_t length, std::uint32_t access) {
  constexpr const char* kCall = "rdmaConnRegister";
  VERBENA_TRY(check_size(kCall, length));
  if (address == nullptr || (access & ~std::uint32_t{RDMA_ACCESS_REMOTE_ALL}) != 0)
    return fail(Status::kBadArgument, kCall, 0, "{}: a null address, or rights that RdmaAccess does not have", kCall);
  auto region = std::make_unique<Region>();
  region->owner = owner;
  VERBENA_ASSIGN(ibv_mr * mr, nic_.reg_mr(pd_, address, length, reinterpret_cast<std::uintptr_t>(address),
                                          static_cast<int>(IBV_ACCESS_LOCAL_WRITE | verbs_access_of(access))));
  region->own = nic::Mr(nic_, mr);
  return keep(std::move(region), mr, length, access);
}

Registry::Region* Registry::find(const Conn* owner, const RdmaMemory* memory) noexcept {
  const auto found =
      std::ranges::find_if(regions_, [&](const auto& of) { return &of->told == memory && of->owner == owner; });
  return found != regions_.end() ? found->get() : nullptr;
}

Result<void> Registry::remove(const Conn* owner, const RdmaMemory* memory, Deadline deadline) {
  std::unique_ptr<Region> region;
  {
    const std::lock_guard lock(mutex_);
    const Region* const found = find(owner, memory);
    if (found == nullptr) return not_registered("rdmaConnDeregMem");
    std::erase_if(names_, [&](const Name& name) { return name.region == found; });
    const auto at = std::ranges::find(regions_, found, &std::unique_ptr<Region>::get);
    region = std::move(*at);
    regions_.erase(at);
    generation_.fetch_add(1, std::memory_order_release);
  }
  Result<void> first;
  for (Export& each : region->exports)
    if (Result<void> closed = each.table.close(deadline); !closed && first) first = std::move(closed);
  // What was allocated waits no longer than its owner's destructor does.
  if (!region->own) return first;
  Result<void> ended = nic_.dereg_mr(region->own.release(), deadline);
  return ended ? first : ended;
}

void Registry::remove_all(const Conn* owner) noexcept {
  std::vector<std::unique_ptr<Region>> gone;  // Deregistered without the lock.
  const std::lock_guard lock(mutex_);
  std::erase_if(names_, [&](const Name& name) { return name.owner == owner; });
  for (const auto& region : regions_)
    std::erase_if(region->exports, [&](const Export& each) { return each.by == owner; });
  const auto theirs = std::ranges::partition(regions_, [&](const auto& of) { return of->owner != owner; });
  gone.assign(std::move_iterator(theirs.begin()), std::move_iterator(theirs.end()));
  regions_.erase(theirs.begin(), theirs.end());
  generation_.fetch_add(1, std::memory_order_release);
}

std::optional<LocalKey> Registry::find_local(const Conn* asker, std::uint32_t lkey) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& region : regions_) {
    const RdmaMemory& told = region->told;
    if (told.lkey == lkey && region->is_seen_by(asker))
      return LocalKey{.begin = reinterpret_cast<std::uintptr_t>(told.addr), .length = told.length, .lkey = lkey};
  }
  return std::nullopt;
}

Result<void> Registry::publish(const Conn* owner, std::string_view name, const RdmaMemory* memory) {
  constexpr const char* kCall = "rdmaConnPublish";
  if (name.empty() || name.size() > kMaxNameBytes)
    return fail(Status::kBadArgument, kCall, 0, "a name has 1 to {} bytes; got {}", kMaxNameBytes, name.size());
  const std::lock_guard lock(mutex_);
  const auto taken = std::ranges::find_if(names_, [&](const Name& of) { return of.name == name && of.owner == owner; });
  if (memory == nullptr) {
    if (taken == names_.end()) return fail(Status::kNotFound, kCall, 0, "nothing is published as \"{}\"", name);
    names_.erase(taken);
    generation_.fetch_add(1, std::memory_order_release);
    return {};
  }
  const Region* const region = find(owner, memory);
  if (region == nullptr) return not_registered(kCall);
  if (taken != names_.end()) return fail(Status::kBusy, kCall, 0, "\"{}\" is published already", name);
  names_.push_back({.owner = owner, .name = std::string(name), .region = region});
  generation_.fetch_add(1, std::memory_order_release);
  return {};
}

RdmaWindow Registry::window_of(const Region& region) noexcept {
  return {.addr = reinterpret_cast<std::uintptr_t>(region.told.addr),
          .length = region.told.length,
          .rkey = region.told.rkey,
          .access = region.told.access,
          .memory_id = region.told.memory_id};
}

std::optional<RdmaWindow> Registry::find_name(const Conn* asker, std::string_view name) noexcept {
  const std::lock_guard lock(mutex_);
  for (const Name& of : names_)
    if (of.name == name && (of.owner == nullptr || of.owner == asker)) return window_of(*of.region);
  return std::nullopt;
}

std::optional<RdmaWindow> Registry::find_key(const Conn* asker, std::uint32_t rkey) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& region : regions_)
    if (region->told.rkey == rkey && region->told.access != RDMA_ACCESS_LOCAL && region->is_seen_by(asker))
      return window_of(*region);
  return std::nullopt;
}

Result<std::vector<std::byte>> Registry::export_physical(const Conn* asker, const RdmaMemory* memory) {
  VERBENA_ASSIGN(const host::PageMap pages, host::PageMap::open());
  const std::lock_guard lock(mutex_);
  Region* region = find(asker, memory);
  if (region == nullptr) region = find(nullptr, memory);
  if (region == nullptr) return not_registered("rdmaPAExport");
  const ibv_mr* const mr = region->own ? region->own.get() : region->arena.mr();
  VERBENA_ASSIGN(remote::PhysicalExport made,
                 remote::PhysicalExport::create(nic_, mr, verbs_access_of(region->told.access), pages));
  std::vector<std::byte> table = made.table().encode();
  region->exports.push_back({.by = asker, .table = std::move(made)});
  return table;
}

std::optional<std::uint64_t> Registry::physical_of(const Conn* asker, const void* at) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& region : regions_)
    for (const Export& each : region->exports)
      if (each.by == asker)
        if (const auto physical = each.table.address_of(at)) return physical;
  return std::nullopt;
}

}  // namespace verbena::c
