// Physical addressing: memory exported under its physical addresses, and a peer's memory addressed by them. Works on
// stock drivers: each physically contiguous run is a memory region whose IO virtual addresses are its physical ones.
// See docs/physical-addressing.md.
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

/// Registered memory that peers reach by physical address. It exports the addresses of the moment: on a device the
/// registration pins the pages, so they stay true; on the soft NIC nothing pins them, and they are mere names.
/// \thread any, one at a time  \alloc setup
class PhysicalExport {
 public:
  /// Exports all of `memory`, which stays registered at least until this returns, with the rights `access`
  /// (IBV_ACCESS_REMOTE_*): one more region for each physically contiguous run, under the same protection domain.
  /// Errors: those of PageMap::runs_of, kBadArgument (rights; a physical page that is there twice), kLimit (too many
  /// runs for a table or for the device's regions, or RLIMIT_MEMLOCK: the text has the sum), and those of Nic::reg_mr.
  [[nodiscard]] static Result<PhysicalExport> create(nic::Nic& nic, const ibv_mr* memory, std::uint32_t access,
                                                     const host::PageMap& pages);

  /// The table for peers; encode it.
  [[nodiscard]] const PhysicalTable& table() const noexcept { return table_; }
  /// The physical address under which `at` is exported; none outside the memory.
  [[nodiscard]] std::optional<std::uint64_t> address_of(const void* at) const noexcept;
  /// Takes the export back, as Nic::dereg_mr does with its errors; the first is returned. The destructor does the same
  /// within 100 ms a run.
  [[nodiscard]] Result<void> close(Deadline deadline);

 private:
  PhysicalExport(nic::Nic& nic, std::vector<host::PhysicalRun> runs, std::vector<nic::Mr> regions,
                 PhysicalTable table) noexcept
      : nic_(&nic), runs_(std::move(runs)), regions_(std::move(regions)), table_(std::move(table)) {}

  nic::Nic* nic_;
  std::vector<host::PhysicalRun> runs_;  ///< In the order of their virtual addresses.
  std::vector<nic::Mr> regions_;
  PhysicalTable table_;
};

}  // namespace verbena::session
