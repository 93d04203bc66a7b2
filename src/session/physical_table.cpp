#include "session/physical_table.hpp"

#include "base/error.hpp"
#include "base/hash.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace verbena::session {

namespace {

static_assert(std::endian::native == std::endian::little, "tables are copied without conversion");

struct Head {
  std::uint32_t magic = 0x59485056;  // "VPHY"
  std::uint16_t version = 1;
  std::uint16_t reserved = 0;
  std::uint32_t runs = 0;
  std::uint32_t access = 0;
  std::uint64_t memory_id = 0;
};
static_assert(sizeof(Head) == PhysicalTable::kHeadBytes);

static_assert(sizeof(PhysicalRun) == PhysicalTable::kRunBytes);

template <class T>
[[nodiscard]] T take(std::span<const std::byte> bytes, std::size_t offset) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(static_cast<void*>(&value), bytes.data() + offset, sizeof value);
  return value;
}

/// The fault that keeps sorted runs from being a table; nullptr: none.
[[nodiscard]] const char* fault_of(std::span<const PhysicalRun> runs, std::uint32_t access) noexcept {
  if (runs.empty()) return "no runs";
  if (runs.size() > PhysicalTable::kMaxRuns) return "more runs than a table holds";
  if ((access & ~PhysicalTable::kRights) != 0) return "unknown rights";
  std::uint64_t end = 0;  // End of the previous run.
  for (const PhysicalRun& run : runs) {
    if (run.length == 0) return "an empty run";
    if (run.length > ~run.address) return "a run that wraps around the address space";
    if (run.address < end) return "runs that overlap (a page mapped twice?) or are out of order";
    end = run.address + run.length;
  }
  return nullptr;
}

[[nodiscard]] std::unexpected<Error> broken(const char* what) noexcept {
  return fail(Status::kProtocol, "PhysicalTable::decode", 0,
              "the peer's table of physical addresses has {}; both sides must run the same version of Verbena", what);
}

}  // namespace

PhysicalTable::PhysicalTable(std::vector<PhysicalRun> runs, std::uint32_t access, std::uint64_t memory_id)
    : entries_(runs.size()), access_(access), memory_id_(memory_id) {
  for (std::size_t i = runs.size(); i-- > 0;) {
    const std::uint64_t end = runs[i].address + runs[i].length;
    const bool goes_on = i + 1 < runs.size() && runs[i + 1].address == end;
    entries_[i] = {.run = runs[i], .reach = goes_on ? entries_[i + 1].reach : end};
  }
}

Result<PhysicalTable> PhysicalTable::make(std::vector<PhysicalRun> runs, std::uint32_t access,
                                          std::uint64_t memory_id) {
  std::ranges::sort(runs, {}, &PhysicalRun::address);
  if (const char* fault = fault_of(runs, access); fault != nullptr)
    return fail(Status::kBadArgument, "PhysicalTable::make", 0, "a table of physical addresses cannot have {}", fault);
  return PhysicalTable(std::move(runs), access, memory_id);
}

Result<PhysicalTable> PhysicalTable::decode(std::span<const std::byte> bytes) {
  constexpr Head kWanted;
  if (bytes.size() < kHeadBytes + kRunBytes + kChecksumBytes) return broken("fewer bytes than one run needs");
  const auto head = take<Head>(bytes, 0);
  if (head.magic != kWanted.magic) return broken("another magic number");
  if (head.version != kWanted.version) return broken("another version");
  if (head.reserved != 0) return broken("something in its reserved bytes");
  // Checks the count before anything uses it.
  if (head.runs > kMaxRuns || bytes.size() != kHeadBytes + head.runs * kRunBytes + kChecksumBytes)
    return broken("another length than its runs need");
  const std::size_t checked = bytes.size() - kChecksumBytes;
  if (take<std::uint64_t>(bytes, checked) != hash64(bytes.first(checked))) return broken("a wrong checksum");
  std::vector<PhysicalRun> runs(head.runs);
  std::memcpy(static_cast<void*>(runs.data()), bytes.data() + kHeadBytes, head.runs * kRunBytes);
  if (std::ranges::any_of(runs, [](const PhysicalRun& run) { return run.reserved != 0; }))
    return broken("something in its reserved bytes");
  if (const char* fault = fault_of(runs, head.access); fault != nullptr) return broken(fault);
  return PhysicalTable(std::move(runs), head.access, head.memory_id);
}

std::vector<std::byte> PhysicalTable::encode() const {
  std::vector<std::byte> out(kHeadBytes + size() * kRunBytes + kChecksumBytes);
  std::byte* at = out.data();
  const auto put = [&at](const auto& value) {
    std::memcpy(at, &value, sizeof value);
    at += sizeof value;
  };
  put(Head{.runs = static_cast<std::uint32_t>(size()), .access = access_, .memory_id = memory_id_});
  for (const Entry& entry : entries_) put(entry.run);
  put(hash64(std::span(out).first(out.size() - kChecksumBytes)));
  return out;
}

std::size_t PhysicalTable::search(std::uint64_t address) const noexcept {
  const auto behind =
      std::ranges::upper_bound(entries_, address, {}, [](const Entry& entry) { return entry.run.address; });
  return behind == entries_.begin() ? 0 : static_cast<std::size_t>(behind - entries_.begin()) - 1;
}

}  // namespace verbena::session
