#include "remote/physical.hpp"

#include "base/error.hpp"
#include "host/memory_limits.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace verbena::remote {

namespace {

/// Times that pages which the kernel has taken away are asked for again. With a device's pin it takes none away.
constexpr int kAttempts = 4;

[[nodiscard]] std::size_t page_bytes() noexcept { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

/// The runs of `range`, which is faulted in: memory that nothing pins may be swapped out, or have lost its page table
/// entries to the making of a hugepage.
[[nodiscard]] Result<host::PhysicalRuns> runs_of(const host::PageMap& pages, std::span<std::byte> range) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  const std::uintptr_t page = begin / page_bytes() * page_bytes();
  for (int attempt = 1;; ++attempt) {
    // Advice: a kernel before 5.14 does not know it, and what is not there is then told by the page map.
    (void)madvise(reinterpret_cast<void*>(page), begin - page + range.size(), MADV_POPULATE_READ);
    auto found = pages.runs_of(range, PhysicalTable::kMaxRuns);
    if (found || found.error().status() != Status::kNotFound || attempt == kAttempts) return found;
  }
}

[[nodiscard]] std::uint32_t right_of(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
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
  if (nic.kind() == nic::Kind::kSoft) return {};
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
                "the rights {:#x} are not of IBV_ACCESS_REMOTE_READ, _WRITE and _ATOMIC", access);
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

Result<std::unique_ptr<PhysicalMap>> PhysicalMap::create(Link& link, PhysicalTable table, Deadline deadline) {
  if (link.queue_pair() == nullptr)
    return fail(Status::kClosed, "PhysicalMap::create", 0, "the link has failed: make a new one");
  std::unique_ptr<PhysicalMap> made(new PhysicalMap(link, std::move(table)));
  for (; made->imported_ < made->table_.size(); ++made->imported_)
    VERBENA_TRY(link.nic().import_window(link.queue_pair(), made->table_.window(made->imported_), deadline));
  return made;
}

PhysicalMap::~PhysicalMap() {
  link_.windows_.take_back();
  // Without its queue pair the NIC has released them.
  if (link_.queue_pair() == nullptr) return;
  while (imported_ > 0) (void)link_.nic().release_window(link_.queue_pair(), table_.window(--imported_));
}

// --- transfers: a walk through the runs -------------------------------------------------------------------------

Status PhysicalMap::begin(std::uint64_t address, std::uint64_t length, Walk& walk) noexcept {
  const Status found = table_.find(address, length, last_);
  walk = {.address = address, .left = length, .run = last_};
  return found;
}

RemoteSpan PhysicalMap::next(Walk& walk, std::uint64_t most) const noexcept {
  const PhysicalRun& run = table_.run(walk.run);
  const std::uint64_t in_run = run.address + run.length - walk.address;
  const std::uint64_t bytes = std::min({walk.left, in_run, most});
  const RemoteSpan part{.address = walk.address, .length = bytes, .rkey = run.rkey};
  walk.address += bytes;
  walk.left -= bytes;
  if (bytes == in_run) ++walk.run;
  return part;
}

std::uint64_t PhysicalMap::count(Walk walk) const noexcept {
  std::uint64_t parts = 1;
  for ((void)next(walk, most_); walk.left != 0; ++parts) (void)next(walk, most_);
  return parts;
}

Status PhysicalMap::check(const Walk& walk, std::uint32_t access) noexcept {
  const nic::Window window = table_.window(walk.run);
  link_.windows_.lend(window);
  return link_.check({.address = window.address, .length = 0, .rkey = window.rkey}, access);
}

template <class Part>
Status PhysicalMap::each_part(std::uint64_t address, std::uint64_t length, Part&& part) noexcept {
  Walk walk;
  if (const Status found = begin(address, length, walk); found != Status::kOk) [[unlikely]]
    return found;
  do {  // Nothing to transfer is a part too: the link may have something to say.
    link_.windows_.lend(table_.window(walk.run));
    const std::uint64_t done = length - walk.left;
    const Status status = part(next(walk, length), done);
    if (status != Status::kOk) [[unlikely]]
      return status;
  } while (walk.left != 0);
  return Status::kOk;
}

Status PhysicalMap::read(std::span<std::byte> to, std::uint64_t from, Deadline deadline) noexcept {
  return each_part(from, to.size(), [&](const RemoteSpan& part, std::uint64_t done) {
    return link_.read(to.subspan(done, part.length), part, deadline);
  });
}

Status PhysicalMap::write(std::span<const std::byte> from, std::uint64_t to, Deadline deadline) noexcept {
  return each_part(to, from.size(), [&](const RemoteSpan& part, std::uint64_t done) {
    return link_.write(from.subspan(done, part.length), part, deadline);
  });
}

Status PhysicalMap::read(LocalSpan to, std::uint64_t from, Deadline deadline) noexcept {
  return transfer(IBV_WR_RDMA_READ, to, from, deadline);
}

Status PhysicalMap::write(LocalSpan from, std::uint64_t to, Deadline deadline) noexcept {
  return transfer(IBV_WR_RDMA_WRITE, from, to, deadline);
}

Status PhysicalMap::transfer(ibv_wr_opcode opcode, LocalSpan local, std::uint64_t address, Deadline deadline) noexcept {
  Walk walk;
  if (const Status found = begin(address, local.length, walk); found != Status::kOk) [[unlikely]]
    return found;
  if (const Status checked = check(walk, right_of(opcode)); checked != Status::kOk) [[unlikely]]
    return checked;
  Walk rest = walk;
  const RemoteSpan first = next(rest, most_);
  if (rest.left != 0) return run_parts(opcode, local, walk, deadline);
  return link_.transfer(opcode, local, first, deadline);
}

bool PhysicalMap::post_next(ibv_wr_opcode opcode, const LocalSpan& local, Walk& walk, Link::Signal signal) noexcept {
  std::byte* const data = local.data + (local.length - walk.left);
  const RemoteSpan part = next(walk, most_);
  const auto bytes = static_cast<std::uint32_t>(part.length);
  const bool is_inline = opcode == IBV_WR_RDMA_WRITE && bytes <= link_.max_inline();
  ibv_send_wr& request = link_.transfer_;
  link_.sge_ = {.addr = reinterpret_cast<std::uintptr_t>(data), .length = bytes, .lkey = local.lkey};
  request.opcode = opcode;
  request.wr.rdma.remote_addr = part.address;
  request.wr.rdma.rkey = part.rkey;
  request.send_flags = is_inline ? IBV_SEND_INLINE : 0;
  if (is_inline) ++link_.count().inline_sends;
  link_.count().bytes += bytes;
  return link_.post(request, engine::wr::kNoTag, signal);
}

Status PhysicalMap::run_parts(ibv_wr_opcode opcode, LocalSpan local, Walk walk, Deadline deadline) noexcept {
  while (walk.left != 0) {
    if (const Status room = link_.wait_for_room(deadline); room != Status::kOk) return room;
    // The last of what is waited for at once is signaled: completions come in order, so its own says it of all.
    bool is_last = false;
    bool is_posted = true;
    while (!is_last && is_posted) {
      Walk behind = walk;
      (void)next(behind, most_);
      is_last = behind.left == 0 || link_.send_room() <= 1;
      is_posted = post_next(opcode, local, walk, is_last ? Link::Signal::kAlways : Link::Signal::kSometimes);
    }
    // Those before it are in the caller's memory, even if the last is inline itself.
    if (!is_posted) {
      link_.drain_now();
      return link_.reason();
    }
    const Status ended = link_.wait_for_position(link_.position(), Link::Memory::kCallers, deadline);
    if (ended != Status::kOk) return ended;
  }
  return Status::kOk;
}

Status PhysicalMap::start_read(LocalSpan to, std::uint64_t from, std::uint64_t token) noexcept {
  return start_transfer(IBV_WR_RDMA_READ, to, from, token);
}

Status PhysicalMap::start_write(LocalSpan from, std::uint64_t to, std::uint64_t token) noexcept {
  return start_transfer(IBV_WR_RDMA_WRITE, from, to, token);
}

Status PhysicalMap::start_transfer(ibv_wr_opcode opcode, LocalSpan local, std::uint64_t address,
                                   std::uint64_t token) noexcept {
  Walk walk;
  if (const Status found = begin(address, local.length, walk); found != Status::kOk) return found;
  if (const Status checked = check(walk, right_of(opcode)); checked != Status::kOk) return checked;
  const bool is_read = opcode == IBV_WR_RDMA_READ;
  if (const Status room = link_.room_for(count(walk), is_read); room != Status::kOk) return room;
  bool is_first = true;
  do {
    if (!post_next(opcode, local, walk, Link::Signal::kWithDoorbell)) {
      if (is_first) return link_.reason();
      break;  // It was started in part, and its completion says how that ended.
    }
    is_first = false;
  } while (walk.left != 0);
  link_.note_started(token, is_read, false);
  return Status::kOk;
}

// --- atomics ----------------------------------------------------------------------------------------------------

Status PhysicalMap::fetch_add(std::uint64_t word, std::uint64_t delta, std::uint64_t& old, Deadline deadline) noexcept {
  RemoteWord found;
  const Status status = check_word(word, found);
  return status == Status::kOk ? link_.fetch_add(found, delta, old, deadline) : status;
}

Status PhysicalMap::compare_swap(std::uint64_t word, std::uint64_t expected, std::uint64_t desired, std::uint64_t& old,
                                 Deadline deadline) noexcept {
  RemoteWord found;
  const Status status = check_word(word, found);
  return status == Status::kOk ? link_.compare_swap(found, expected, desired, old, deadline) : status;
}

Status PhysicalMap::start_fetch_add(std::uint64_t word, std::uint64_t delta, std::uint64_t token) noexcept {
  RemoteWord found;
  const Status status = check_word(word, found);
  return status == Status::kOk ? link_.start_fetch_add(found, delta, token) : status;
}

Status PhysicalMap::start_compare_swap(std::uint64_t word, std::uint64_t expected, std::uint64_t desired,
                                       std::uint64_t token) noexcept {
  RemoteWord found;
  const Status status = check_word(word, found);
  return status == Status::kOk ? link_.start_compare_swap(found, expected, desired, token) : status;
}

Status PhysicalMap::check_word(std::uint64_t address, RemoteWord& word) noexcept {
  if (address % sizeof(std::uint64_t) != 0) return Status::kBadArgument;
  if (const Status found = table_.find(address, sizeof(std::uint64_t), last_); found != Status::kOk) return found;
  const PhysicalRun& run = table_.run(last_);
  if (run.address + run.length - address < sizeof(std::uint64_t)) return Status::kBadArgument;
  link_.windows_.lend(table_.window(last_));
  word = {.address = address, .rkey = run.rkey};
  return Status::kOk;
}

}  // namespace verbena::remote
