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

 private:
  struct Table {
    PhysicalTable table;
    std::vector<bool> is_imported;  ///< One flag per run.
    std::size_t last = 0;
  };
  [[nodiscard]] static Status import(channel::Connection& connection, Table& of) noexcept;

  std::vector<Table> tables_;
  std::vector<std::byte> arriving_;  ///< Bytes of an incomplete table.
};

}  // namespace verbena::session
