#include "session/physical_export.hpp"

#include "base/error.hpp"
#include "host/memory_limits.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace verbena::session {

namespace {

/// Retries for pages that the kernel has taken away. With a device's pin it takes none.
constexpr int kAttempts = 4;

[[nodiscard]] std::size_t page_bytes() noexcept { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

/// The runs of `range`. Faults it in first: unpinned memory may be swapped out, or the making of a hugepage may have
/// removed its page table entries.
[[nodiscard]] Result<host::PhysicalRuns> runs_of(const host::PageMap& pages, std::span<std::byte> range) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  const std::uintptr_t page = begin / page_bytes() * page_bytes();
  for (int attempt = 1;; ++attempt) {
    // Advice only: kernels before 5.14 do not know it, and the page map then reports the missing pages.
    (void)madvise(reinterpret_cast<void*>(page), begin - page + range.size(), MADV_POPULATE_READ);
    auto found = pages.runs_of(range, PhysicalTable::kMaxRuns);
    if (found || found.error().status() != Status::kNotFound || attempt == kAttempts) return found;
  }
}

[[nodiscard]] Result<void> check_limits(nic::Nic& nic, const host::PhysicalRuns& found) {
  constexpr const char* kCall = "PhysicalExport::create";
  constexpr const char* kFix = "hugepages make few runs of much memory (docs/physical-addressing.md)";
  if (found.count > PhysicalTable::kMaxRuns) {
    return fail(Status::kLimit, kCall, 0,
                "the memory lies in {} pieces of physical memory, and a table has at most {}: {}", found.count,
                PhysicalTable::kMaxRuns, kFix);
  }
  const std::uint32_t used = nic.objects().mrs;
  if (found.count + used > nic.limits().max_mr) {
    return fail(Status::kLimit, kCall, 0,
                "the memory lies in {} pieces of physical memory, each a memory region, and {} regions are in use: {} "
                "has {} in all; {}",
                found.count, used, nic.name(), nic.limits().max_mr, kFix);
  }
  if (!nic.capabilities().pins_memory) return {};
  std::size_t pinned = 0;
  for (const host::PhysicalRun& run : found.runs)
    pinned += (run.physical % page_bytes() + run.length + page_bytes() - 1) / page_bytes() * page_bytes();
  return host::check_pinning(pinned);
}

}  // namespace

Result<PhysicalExport> PhysicalExport::create(nic::Nic& nic, const ibv_mr* memory, std::uint32_t access,
                                              const host::PageMap& pages) {
  if (access == 0 || (access & ~PhysicalTable::kRights) != 0) {
    return fail(Status::kBadArgument, "PhysicalExport::create", 0,
                "the rights {:#x} are not a combination of IBV_ACCESS_REMOTE_READ, _WRITE and _ATOMIC", access);
  }
  VERBENA_ASSIGN(host::PhysicalRuns found, runs_of(pages, {static_cast<std::byte*>(memory->addr), memory->length}));
  VERBENA_TRY(check_limits(nic, found));
  constexpr std::uint32_t kWriters = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  const std::uint32_t local = (access & kWriters) != 0 ? std::uint32_t{IBV_ACCESS_LOCAL_WRITE} : 0U;
  std::vector<nic::Mr> regions;
  std::vector<PhysicalRun> rows;
  regions.reserve(found.count);
  rows.reserve(found.count);
  for (const host::PhysicalRun& run : found.runs) {
    VERBENA_ASSIGN(ibv_mr * mr,
                   nic.reg_mr(memory->pd, run.data, run.length, run.physical, static_cast<int>(access | local)));
    regions.emplace_back(nic, mr);
    rows.push_back({.address = run.physical, .length = run.length, .rkey = mr->rkey});
  }
  const std::uint64_t memory_id = nic.window_of(regions.front().get()).memory_id;
  VERBENA_ASSIGN(PhysicalTable table, PhysicalTable::make(std::move(rows), access, memory_id));
  return PhysicalExport(nic, std::move(found.runs), std::move(regions), std::move(table));
}

std::optional<std::uint64_t> PhysicalExport::address_of(const void* at) const noexcept {
  const auto* byte = static_cast<const std::byte*>(at);
  const auto behind = std::ranges::upper_bound(runs_, byte, {}, &host::PhysicalRun::data);
  if (behind == runs_.begin()) return std::nullopt;
  const host::PhysicalRun& run = *(behind - 1);
  const auto offset = static_cast<std::size_t>(byte - run.data);
  if (offset >= run.length) return std::nullopt;
  return run.physical + offset;
}

Result<void> PhysicalExport::close(Deadline deadline) {
  Result<void> first;
  for (nic::Mr& region : regions_) {
    const Result<void> ended = nic_->dereg_mr(region.release(), deadline);
    if (!ended && first) first = ended;
  }
  regions_.clear();
  runs_.clear();
  return first;
}

}  // namespace verbena::session
