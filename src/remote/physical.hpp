// Physical addressing: memory exported under its physical addresses, and a peer's memory addressed by them. Works on
// stock drivers: each physically contiguous run is a memory region whose IO virtual addresses are its physical ones.
// See docs/physical-addressing.md.
#pragma once

#include "host/physical.hpp"
#include "remote/physical_table.hpp"
#include "remote/remote.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace verbena::remote {

/// Registered memory made reachable by physical address. What is exported are the addresses of the moment: on a device
/// the registration pins the pages, and they stay true; on the soft NIC nothing does, and they are names.
/// \thread any, one at a time  \alloc setup
class PhysicalExport {
 public:
  /// Exports all of `memory`, which stays registered at least until this returns, with the rights `access`
  /// (IBV_ACCESS_REMOTE_*): one more region for each physically contiguous run, under the same protection domain.
  /// Errors: those of PageMap::runs_of, kBadArgument (rights; a physical page that is there twice), kLimit (too many
  /// runs for a table or for the device's regions, or RLIMIT_MEMLOCK: the text has the sum), and those of Nic::reg_mr.
  [[nodiscard]] static Result<PhysicalExport> create(nic::Nic& nic, const ibv_mr* memory, std::uint32_t access,
                                                     const host::PageMap& pages);

  /// What peers are told, encoded.
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

/// A peer's exported memory by physical address, through a connected link. Every call is as the Link's of its name,
/// with its errors, and kOutOfRange for what the peer did not export, before anything is posted. What crosses from one
/// run into the next is a work request for each, and may have happened in part when it fails.
/// Destroyed before its link. \thread owner of the link's loop, except create (setup)  \alloc setup only
class PhysicalMap {
 public:
  /// Imports every run of the peer's table. Errors: those of Nic::import_window; kClosed when the link has no queue
  /// pair any more.
  [[nodiscard]] static Result<std::unique_ptr<PhysicalMap>> create(Link& link, PhysicalTable table, Deadline deadline);
  ~PhysicalMap();
  PhysicalMap(const PhysicalMap&) = delete;
  PhysicalMap& operator=(const PhysicalMap&) = delete;

  /// Reads to.length bytes from physical address `from` on.
  [[nodiscard]] Status read(LocalSpan to, std::uint64_t from, Deadline deadline) noexcept;
  /// Writes all of `from` to physical address `to`.
  [[nodiscard]] Status write(LocalSpan from, std::uint64_t to, Deadline deadline) noexcept;
  /// The same for memory that is not registered, through the link's bounce buffers.
  [[nodiscard]] Status read(std::span<std::byte> to, std::uint64_t from, Deadline deadline) noexcept;
  [[nodiscard]] Status write(std::span<const std::byte> from, std::uint64_t to, Deadline deadline) noexcept;
  /// kBadArgument for a word that is not aligned to 8 or lies across a border of runs.
  [[nodiscard]] Status fetch_add(std::uint64_t word, std::uint64_t delta, std::uint64_t& old,
                                 Deadline deadline) noexcept;
  [[nodiscard]] Status compare_swap(std::uint64_t word, std::uint64_t expected, std::uint64_t desired,
                                    std::uint64_t& old, Deadline deadline) noexcept;

  /// The same without waiting, with one Completion for all parts. kTooLong: more parts than the send queue takes.
  [[nodiscard]] Status start_read(LocalSpan to, std::uint64_t from, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_write(LocalSpan from, std::uint64_t to, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_fetch_add(std::uint64_t word, std::uint64_t delta, std::uint64_t token) noexcept;
  [[nodiscard]] Status start_compare_swap(std::uint64_t word, std::uint64_t expected, std::uint64_t desired,
                                          std::uint64_t token) noexcept;

  [[nodiscard]] const PhysicalTable& table() const noexcept { return table_; }

 private:
  PhysicalMap(Link& link, PhysicalTable table) noexcept
      : link_(link), most_(link.max_message_), table_(std::move(table)) {}
  /// A transfer on its way through the runs.
  struct Walk {
    std::uint64_t address = 0;
    std::uint64_t left = 0;  ///< Bytes.
    std::size_t run = 0;
  };
  /// Where a transfer begins: kOutOfRange when the runs do not hold all of it.
  [[nodiscard]] Status begin(std::uint64_t address, std::uint64_t length, Walk& walk) noexcept;
  /// The next part, in one run and of at most `most` bytes; no bytes when there were none from the beginning.
  [[nodiscard]] RemoteSpan next(Walk& walk, std::uint64_t most) const noexcept;
  /// Parts that are left, each no longer than the NIC takes at once.
  [[nodiscard]] std::uint64_t count(Walk walk) const noexcept;
  /// What the link says of a right to the first part.
  [[nodiscard]] Status check(const Walk& walk, std::uint32_t access) noexcept;
  [[nodiscard]] Status transfer(ibv_wr_opcode opcode, LocalSpan local, std::uint64_t address,
                                Deadline deadline) noexcept;
  /// Posts part after part, and waits for the last.
  [[nodiscard]] Status run_parts(ibv_wr_opcode opcode, LocalSpan local, Walk walk, Deadline deadline) noexcept;
  /// Posts the next part. False: the link has failed.
  bool post_next(ibv_wr_opcode opcode, const LocalSpan& local, Walk& walk, Link::Signal signal) noexcept;
  [[nodiscard]] Status start_transfer(ibv_wr_opcode opcode, LocalSpan local, std::uint64_t address,
                                      std::uint64_t token) noexcept;
  /// Calls `part(span, done)` for what lies in each run, in order, until one is not kOk.
  template <class Part>
  [[nodiscard]] Status each_part(std::uint64_t address, std::uint64_t length, Part&& part) noexcept;
  /// The word, if an atomic may be posted to it.
  [[nodiscard]] Status check_word(std::uint64_t address, RemoteWord& word) noexcept;

  Link& link_;
  const std::uint64_t most_;  ///< Bytes that the NIC takes at once.
  PhysicalTable table_;
  std::size_t imported_ = 0;  ///< Runs, from the first on.
  std::size_t last_ = 0;      ///< The run that was used last.
};

}  // namespace verbena::remote
