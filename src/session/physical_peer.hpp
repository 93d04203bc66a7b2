// The peer's exports by physical address.
#pragma once

#include "channel/connection.hpp"
#include "session/physical_table.hpp"
#include "session/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace verbena::session {

/// \thread owner of the session's loop
class PhysicalPeer {
 public:
  /// Takes a piece of a table that arrived. False: the peer broke the protocol.
  [[nodiscard]] bool on_table(const wire::Head& head, std::span<const std::byte> piece) noexcept;
  /// Finds the first part of `rest` that lies in one run, and makes that run's window usable. Errors: kNotFound (the
  /// peer exported nothing), kOutOfRange (not all of it), or the reason why the run cannot be reached.
  [[nodiscard]] Status find(channel::Connection& connection, const channel::RemoteSpan& rest,
                            channel::RemoteSpan& part) noexcept;
  /// Makes the run that holds all of `range` usable and sets `part` to the range under the run's key. False: several
  /// runs hold it, none does, or the run was never used; `find` imports it and knows the reason. \alloc none
  [[nodiscard]] bool find_whole(channel::Connection& connection, channel::RemoteSpan range,
                                channel::RemoteSpan& part) noexcept {
    if (is_in(used_, range)) [[likely]]
      return use(connection, used_, range, part);
    const nic::Window run = imported_run(range);
    return is_in(run, range) && use(connection, run, range, part);
  }

 private:
  struct Table {
    PhysicalTable table;
    std::vector<bool> is_imported;  ///< One flag per run.
    std::size_t last = 0;
  };
  [[nodiscard]] static bool is_in(const nic::Window& window, const channel::RemoteSpan& range) noexcept {
    const std::uint64_t offset = range.address - window.address;
    return offset < window.length && range.length <= window.length - offset;
  }
  static bool use(channel::Connection& connection, const nic::Window& run, const channel::RemoteSpan& range,
                  channel::RemoteSpan& part) noexcept {
    connection.lend_window(run);
    part = {range.address, range.length, run.rkey};
    return true;
  }
  /// The newest table that holds all of `range`, with `last` at the run where it begins; null: none.
  [[nodiscard]] Table* table_of(const channel::RemoteSpan& range) noexcept;
  /// The run where `range` begins, and remembers it; without bytes if the run is not imported or not there.
  [[nodiscard]] nic::Window imported_run(const channel::RemoteSpan& range) noexcept;
  [[nodiscard]] static Status import(channel::Connection& connection, Table& of) noexcept;

  std::vector<Table> tables_;
  /// The imported run used last, of the newest table only: a newer one could have its addresses under another key.
  nic::Window used_{};
  std::vector<std::byte> arriving_;  ///< Bytes of an incomplete table.
};

}  // namespace verbena::session
