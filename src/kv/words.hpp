// The client's side of cells: opens them by message, and changes their words through this side's NIC.
#pragma once

#include "kv/links.hpp"
#include "kv/operation.hpp"

#include <cstdint>
#include <vector>

namespace verbena::kv {

/// \thread owner  \alloc none, unless it says otherwise
class Words {
 public:
  Words(Links& links, Requests& requests) noexcept : links_(links), requests_(requests) {}
  /// Call it once there is a connection. \alloc setup
  void open() { windows_.resize(links_.workers()); }

  /// \alloc setup
  [[nodiscard]] Result<Cell> open_cell(Key key, std::uint64_t initial, Deadline deadline) noexcept;
  [[nodiscard]] Status change(const Cell& cell, const channel::Change& change, std::uint64_t& old,
                              Deadline deadline) noexcept;
  [[nodiscard]] Status read(const Cell& cell, std::uint64_t& value, Deadline deadline) noexcept;
  /// Goes on with a reply to `open_cell`. False: it fits no such call.
  [[nodiscard]] bool take_reply(Operation& operation, const wire::Reply& reply) noexcept;

  // --- awaited
  /// As PollingClient::carry_out_now.
  [[nodiscard]] bool carry_out_now(AwaitedCall& call) noexcept;
  /// Posts what the call asks for.
  [[nodiscard]] Status start(const AwaitedCall& call, Operation& operation) noexcept;
  void on_word(Operation& operation, std::uint64_t old) noexcept;
  /// The status of something on a cell: the connection may have failed in a poll of this call, or of an earlier one.
  [[nodiscard]] Status end(Status status) noexcept;

 private:
  [[nodiscard]] Result<void> use_cells(Deadline deadline) noexcept;
  [[nodiscard]] Status check(const Cell& cell, const char* call) const noexcept;
  [[nodiscard]] channel::RemoteSpan span_of(const Cell& cell) const noexcept;

  Links& links_;
  Requests& requests_;
  std::vector<nic::Window> windows_;  ///< One per worker; length 0 until a cell of that worker is opened.
  wire::CellPlace place_;             ///< Place of the cell opened last,
  std::uint32_t worker_ = 0;          ///< and its worker.
};

}  // namespace verbena::kv
