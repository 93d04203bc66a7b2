// Physical addressing: exports memory under its physical addresses, and reaches a peer's memory by them. Works on stock
// drivers: each physically contiguous run is a memory region whose IO virtual addresses are its physical ones. See
// docs/physical-addressing.md.
#pragma once

#include "host/physical.hpp"
#include "nic/nic.hpp"
#include "session/physical_table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace verbena::session {

/// Registered memory that peers reach by physical address. The addresses are those at the time of the export: on a
/// device the registration pins the pages, so they stay true; on the soft NIC nothing pins them, and they are mere
/// names.
/// \thread any, one at a time  \alloc setup
class PhysicalExport {
 public:
  /// Exports all of `memory` with the rights `access` (IBV_ACCESS_REMOTE_*): one more region for each physically
  /// contiguous run, under the same protection domain. `memory` must stay registered until this returns. Errors: those
  /// of PageMap::runs_of, kBadArgument (rights; the same physical page twice), kLimit (too many runs for a table or for
  /// the device's regions, or RLIMIT_MEMLOCK: the text has the sum), and those of Nic::reg_mr.
  [[nodiscard]] static Result<PhysicalExport> create(nic::Nic& nic, const ibv_mr* memory, std::uint32_t access,
                                                     const host::PageMap& pages);

  /// The table to encode and send to peers.
  [[nodiscard]] const PhysicalTable& table() const noexcept { return table_; }
  /// The physical address under which `at` is exported; none outside the memory.
  [[nodiscard]] std::optional<std::uint64_t> address_of(const void* at) const noexcept;
  /// Takes the export back like Nic::dereg_mr; returns the first error. The destructor does the same, with 100 ms per
  /// run.
  [[nodiscard]] Result<void> close(Deadline deadline);

 private:
  PhysicalExport(nic::Nic& nic, std::vector<host::PhysicalRun> runs, std::vector<nic::Mr> regions,
                 PhysicalTable table) noexcept
      : nic_(&nic), runs_(std::move(runs)), regions_(std::move(regions)), table_(std::move(table)) {}

  nic::Nic* nic_;
  std::vector<host::PhysicalRun> runs_;  ///< Sorted by virtual address.
  std::vector<nic::Mr> regions_;
  PhysicalTable table_;
};

}  // namespace verbena::session
