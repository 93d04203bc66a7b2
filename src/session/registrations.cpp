#include "session/registrations.hpp"

#include "base/error.hpp"
#include "base/limit.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace verbena::session {
namespace {

struct Right {
  rdma::Access ours;
  std::uint32_t verbs;
};
constexpr std::array<Right, 3> kRights{{{rdma::Access::kRead, IBV_ACCESS_REMOTE_READ},
                                        {rdma::Access::kWrite, IBV_ACCESS_REMOTE_WRITE},
                                        {rdma::Access::kAtomic, IBV_ACCESS_REMOTE_ATOMIC}}};

[[nodiscard]] std::unexpected<Error> not_registered(const char* call) {
  return fail(Status::kBadArgument, call, 0, "memory is not registered here, or not any more: register it first");
}

}  // namespace

std::uint32_t verbs_access_of(rdma::Access access) noexcept {
  std::uint32_t verbs = 0;
  for (const Right& right : kRights) verbs |= includes(access, right.ours) ? right.verbs : 0;
  return verbs;
}

rdma::Access access_of(std::uint32_t verbs_access) noexcept {
  rdma::Access access = rdma::Access::kLocal;
  for (const Right& right : kRights)
    if ((verbs_access & right.verbs) != 0) access = access | right.ours;
  return access;
}

template <class Fits>
Registrations::Region* Registrations::find(Fits&& fits) noexcept {
  const auto found = std::ranges::find_if(regions_, [&](const auto& region) { return fits(*region); });
  return found != regions_.end() ? found->get() : nullptr;
}

const RegisteredMemory* Registrations::keep(std::unique_ptr<Region> region, const ibv_mr* mr, std::size_t length,
                                            rdma::Access access) {
  region->told = {.address = static_cast<std::byte*>(mr->addr),
                  .length = length,
                  .lkey = mr->lkey,
                  .rkey = mr->rkey,
                  .access = access,
                  .memory_id = nic_.window_of(mr).memory_id};
  const std::lock_guard lock(mutex_);
  return &regions_.emplace_back(std::move(region))->told;
}

Result<const RegisteredMemory*> Registrations::allocate(Owner owner, std::size_t size, const nic::Grant& grant,
                                                        host::Populate populate) {
  VERBENA_TRY(check_limit("allocate", "the length in bytes", size, 1, kMaxBytes));
  const rdma::Access access =
      nic_.capabilities().has_atomics ? rdma::Access::kAll : rdma::Access::kRead | rdma::Access::kWrite;
  auto region = std::make_unique<Region>();
  region->owner = owner;
  VERBENA_TRY(region->arena.open(
      nic_, pd_, {.size_bytes = size, .share = host::Share::kReadWrite, .populate = populate, .name = "user"}, grant,
      static_cast<int>(IBV_ACCESS_LOCAL_WRITE | verbs_access_of(access))));
  const ibv_mr* const mr = region->arena.mr();
  return keep(std::move(region), mr, size, access);
}

Result<const RegisteredMemory*> Registrations::add(Owner owner, std::span<std::byte> memory, rdma::Access access) {
  constexpr const char* kCall = "register";
  VERBENA_TRY(check_limit(kCall, "the length in bytes", memory.size(), 1, kMaxBytes));
  VERBENA_TRY(check_limit(kCall, "the access rights", static_cast<std::uint64_t>(access), 0,
                          static_cast<std::uint64_t>(rdma::Access::kAll)));
  if (memory.data() == nullptr) return fail(Status::kBadArgument, kCall, 0, "the address is null");
  auto region = std::make_unique<Region>();
  region->owner = owner;
  const auto iova = reinterpret_cast<std::uintptr_t>(memory.data());
  VERBENA_ASSIGN(ibv_mr * mr, nic_.reg_mr(pd_, memory.data(), memory.size(), iova,
                                          static_cast<int>(IBV_ACCESS_LOCAL_WRITE | verbs_access_of(access))));
  region->own = nic::Mr(nic_, mr);
  return keep(std::move(region), mr, memory.size(), access);
}

Result<void> Registrations::remove(Owner owner, const RegisteredMemory* memory, Deadline deadline) {
  std::unique_ptr<Region> region;
  {
    const std::lock_guard lock(mutex_);
    const Region* const found =
        find([&](const Region& candidate) { return &candidate.told == memory && candidate.owner == owner; });
    if (found == nullptr) return not_registered("deregister");
    std::erase_if(names_, [&](const Name& name) { return name.region == found; });
    const auto at = std::ranges::find(regions_, found, &std::unique_ptr<Region>::get);
    region = std::move(*at);
    regions_.erase(at);
    generation_.fetch_add(1, std::memory_order_release);
  }
  Result<void> first;
  for (Export& each : region->exports)
    if (Result<void> closed = each.table.close(deadline); !closed && first) first = std::move(closed);
  Result<void> ended =
      region->own ? nic_.dereg_mr(region->own.release(), deadline) : region->arena.deregister(deadline);
  return ended ? first : ended;
}

void Registrations::remove_all(Owner owner) noexcept {
  // Deregistered outside the lock.
  std::vector<std::unique_ptr<Region>> gone;
  std::vector<Export> ended;
  const std::lock_guard lock(mutex_);
  std::erase_if(names_, [&](const Name& name) { return name.owner == owner; });
  for (const auto& region : regions_) {
    const auto of_owner = std::ranges::partition(region->exports, [&](const Export& each) { return each.by != owner; });
    std::ranges::move(of_owner, std::back_inserter(ended));
    region->exports.erase(of_owner.begin(), of_owner.end());
  }
  const auto theirs = std::ranges::partition(regions_, [&](const auto& of) { return of->owner != owner; });
  gone.assign(std::move_iterator(theirs.begin()), std::move_iterator(theirs.end()));
  regions_.erase(theirs.begin(), theirs.end());
  generation_.fetch_add(1, std::memory_order_release);
}

template <class Fits>
std::optional<RegisteredMemory> Registrations::find_told(Fits&& fits) noexcept {
  const std::lock_guard lock(mutex_);
  const Region* const found = find(fits);
  return found != nullptr ? std::optional(found->told) : std::nullopt;
}

std::optional<RegisteredMemory> Registrations::find_local(const Scope& scope, std::uint32_t lkey) noexcept {
  return find_told([&](const Region& region) { return region.told.lkey == lkey && scope.sees(region.owner); });
}

std::optional<RegisteredMemory> Registrations::find_around(const Scope& scope, std::span<const std::byte> bytes,
                                                           rdma::Access rights) noexcept {
  return find_told([&](const Region& region) {
    return scope.sees(region.owner) && includes(region.told.access, rights) &&
           region.told.holds(bytes.data(), bytes.size());
  });
}

Result<void> Registrations::publish(Owner owner, std::string_view name, const Part& part) {
  constexpr const char* kCall = "publish";
  if (name.empty() || name.size() > kMaxNameBytes)
    return fail(Status::kBadArgument, kCall, 0, "name must have 1 to {} bytes; got {}", kMaxNameBytes, name.size());
  const std::lock_guard lock(mutex_);
  const auto taken = std::ranges::find_if(names_, [&](const Name& of) { return of.name == name && of.owner == owner; });
  if (part.memory == nullptr) {
    if (taken == names_.end())
      return fail(Status::kNotFound, kCall, 0, "nothing is published as \"{}\": check the spelling", name);
    names_.erase(taken);
    generation_.fetch_add(1, std::memory_order_release);
    return {};
  }
  const Region* const region =
      find([&](const Region& candidate) { return &candidate.told == part.memory && candidate.owner == owner; });
  if (region == nullptr) return not_registered(kCall);
  rdma::Window window = region->told.window();
  const rdma::Remote remote = window.at(part.offset, part.length);
  if (remote.length == 0)
    return part.length == rdma::kRest
               ? fail(Status::kOutOfRange, kCall, 0, "offset must be below {}, the memory's length in bytes; got {}",
                      window.length, part.offset)
               : fail(Status::kOutOfRange, kCall, 0, "offset {} and length {} are not inside the memory of {} bytes",
                      part.offset, part.length, window.length);
  window.address = remote.address;
  window.length = remote.length;
  if (taken != names_.end())
    return fail(Status::kBusy, kCall, 0, "\"{}\" is published already: take that back first, or choose another name",
                name);
  names_.push_back({.owner = owner, .name = std::string(name), .region = region, .window = window});
  generation_.fetch_add(1, std::memory_order_release);
  return {};
}

std::optional<rdma::Window> Registrations::find_name(const Scope& scope, std::string_view name) noexcept {
  const std::lock_guard lock(mutex_);
  for (const Name& of : names_)
    if (of.name == name && scope.sees(of.owner)) return of.window;
  return std::nullopt;
}

std::optional<rdma::Window> Registrations::find_key(const Scope& scope, std::uint32_t rkey) noexcept {
  const auto found = find_told([&](const Region& region) {
    return region.told.rkey == rkey && region.told.access != rdma::Access::kLocal && scope.sees(region.owner);
  });
  return found ? std::optional(found->window()) : std::nullopt;
}

Result<std::vector<std::byte>> Registrations::export_physical(const Scope& scope, const RegisteredMemory* memory) {
  VERBENA_ASSIGN(const host::PageMap pages, host::PageMap::open());
  const std::lock_guard lock(mutex_);
  Region* const region =
      find([&](const Region& candidate) { return &candidate.told == memory && scope.sees(candidate.owner); });
  if (region == nullptr) return not_registered("export_physical");
  const ibv_mr* const mr = region->own ? region->own.get() : region->arena.mr();
  VERBENA_ASSIGN(PhysicalExport made, PhysicalExport::create(nic_, mr, verbs_access_of(region->told.access), pages));
  std::vector<std::byte> table = made.table().encode();
  region->exports.push_back({.by = scope.self, .table = std::move(made)});
  return table;
}

std::optional<std::uint64_t> Registrations::physical_of(Owner self, const void* at) noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& region : regions_)
    for (const Export& each : region->exports)
      if (each.by == self)
        if (const auto physical = each.table.address_of(at)) return physical;
  return std::nullopt;
}

}  // namespace verbena::session
