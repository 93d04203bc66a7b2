// The table of exports by physical address that a process sends to its peers: its bytes, and look-ups in it.
//
//   offset  bytes  field              offset  bytes  field
//        0      4  magic "VPHY"           24     24  each run: physical address 8, length 8,
//        4      2  version                           rkey 4, reserved 4 (0)
//        6      2  reserved, 0          then      8  XXH3-64 of everything before it
//        8      4  runs
//       12      4  access (IBV_ACCESS_REMOTE_*)
//       16      8  memory id (soft NIC)
//
// All integers are little-endian. Runs are sorted by address and do not overlap, so that a table has one form.
#pragma once

#include "nic/nic.hpp"

#include <verbena/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace verbena::session {

/// Physically contiguous memory of a peer, under one key, as in the table.
struct PhysicalRun {
  std::uint64_t address = 0;  ///< Physical.
  std::uint64_t length = 0;   ///< Bytes, not 0.
  std::uint32_t rkey = 0;
  std::uint32_t reserved = 0;
};

/// An immutable value. \thread any
class PhysicalTable {
 public:
  /// 256 MiB of single small pages. With hugepages few runs hold much memory.
  static constexpr std::size_t kMaxRuns = 65536;
  static constexpr std::size_t kHeadBytes = 24;
  static constexpr std::size_t kRunBytes = 24;
  static constexpr std::size_t kChecksumBytes = 8;
  static constexpr std::size_t kMaxBytes = kHeadBytes + kMaxRuns * kRunBytes + kChecksumBytes;
  /// Rights that a table can hold.
  static constexpr std::uint32_t kRights = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

  /// Makes a table from runs in any order. Errors: kBadArgument (no runs, or too many; a run that is empty, wraps
  /// around or overlaps another; unknown rights). \alloc setup
  [[nodiscard]] static Result<PhysicalTable> make(std::vector<PhysicalRun> runs, std::uint32_t access,
                                                  std::uint64_t memory_id);
  /// Decodes any bytes. They must be private memory: a peer could change shared bytes while they are read. Errors:
  /// kProtocol, whose text names the fault. \alloc setup
  [[nodiscard]] static Result<PhysicalTable> decode(std::span<const std::byte> bytes);
  /// At most kMaxBytes; `decode` makes the same table from them. \alloc setup
  [[nodiscard]] std::vector<std::byte> encode() const;

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] const PhysicalRun& run(std::size_t index) const noexcept { return entries_[index].run; }
  [[nodiscard]] std::uint32_t access() const noexcept { return access_; }
  /// A run as the window that the NIC imports.
  [[nodiscard]] nic::Window window(std::size_t index) const noexcept {
    const PhysicalRun& of = entries_[index].run;
    return {.address = of.address, .length = of.length, .rkey = of.rkey, .access = access_, .memory_id = memory_id_};
  }

  /// Sets `index` to the run that holds `address`, if that run and the ones that follow without a gap hold `length`
  /// bytes from there on. Errors: kOutOfRange otherwise. A range without bytes may also start at the end of a run.
  /// `index` must name a run, which is tried first. \alloc none
  [[nodiscard]] Status find(std::uint64_t address, std::uint64_t length, std::size_t& index) const noexcept {
    if (address - entries_[index].run.address >= entries_[index].run.length) [[unlikely]]
      index = search(address);
    const Entry& entry = entries_[index];
    if (address < entry.run.address || address - entry.run.address > entry.run.length || length > entry.reach - address)
      return Status::kOutOfRange;
    return Status::kOk;
  }

 private:
  struct Entry {
    PhysicalRun run;
    std::uint64_t reach = 0;  ///< Where the gapless sequence of runs from here on ends.
  };
  static_assert(sizeof(Entry) == 32);

  PhysicalTable(std::vector<PhysicalRun> runs, std::uint32_t access, std::uint64_t memory_id);
  /// The last run that begins at or before `address`; the first run if there is none.
  [[nodiscard]] std::size_t search(std::uint64_t address) const noexcept;

  std::vector<Entry> entries_;
  std::uint32_t access_ = 0;
  std::uint64_t memory_id_ = 0;
};

}  // namespace verbena::session
