#include "session/physical_peer.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <ranges>
#include <utility>

namespace verbena::session {
namespace {

/// For one run.
constexpr std::chrono::milliseconds kImportTimeout{1000};

}  // namespace

bool PhysicalPeer::on_table(const wire::Head& head, std::span<const std::byte> piece) noexcept {
  if (head.offset == 0) arriving_.clear();
  const bool is_next = head.offset == arriving_.size() && !piece.empty() && head.offset + piece.size() <= head.total;
  if (!is_next || head.total > PhysicalTable::kMaxBytes || tables_.size() == wire::kMaxTables) return false;
  try {
    // Grows with what arrives, not with what the peer claims.
    arriving_.insert(arriving_.end(), piece.begin(), piece.end());
    if (arriving_.size() != head.total) return true;
    auto table = PhysicalTable::decode(std::exchange(arriving_, {}));
    if (!table) return false;
    const std::size_t runs = table->size();
    tables_.push_back({.table = std::move(*table), .is_imported = std::vector<bool>(runs)});
    used_ = {};
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

Status PhysicalPeer::import(channel::Connection& connection, Table& of) noexcept {
  ibv_qp* const qp = connection.queue_pair();
  if (qp == nullptr) return Status::kClosed;
  const auto imported =
      connection.loop().nic().import_window(qp, of.table.window(of.last), Deadline::after(kImportTimeout));
  if (!imported) return imported.error().status();
  of.is_imported[of.last] = true;
  return Status::kOk;
}

PhysicalPeer::Table* PhysicalPeer::table_of(const channel::RemoteSpan& range) noexcept {
  // Looks at the last table first: an address that was exported again is under its new key.
  for (Table& of : std::views::reverse(tables_))
    if (of.table.find(range.address, range.length, of.last) == Status::kOk) return &of;
  return nullptr;
}

Status PhysicalPeer::find(channel::Connection& connection, const channel::RemoteSpan& rest,
                          channel::RemoteSpan& part) noexcept {
  Table* const of = table_of(rest);
  if (of == nullptr) return tables_.empty() ? Status::kNotFound : Status::kOutOfRange;
  if (!of->is_imported[of->last])
    if (const Status imported = import(connection, *of); imported != Status::kOk) return imported;
  const nic::Window window = of->table.window(of->last);
  connection.lend_window(window);
  part = {rest.address, std::min(rest.length, window.address + window.length - rest.address), window.rkey};
  return Status::kOk;
}

nic::Window PhysicalPeer::imported_run(const channel::RemoteSpan& range) noexcept {
  Table* const of = table_of(range);
  if (of == nullptr || !of->is_imported[of->last]) return {};
  const nic::Window run = of->table.window(of->last);
  if (of == &tables_.back()) used_ = run;
  return run;
}

}  // namespace verbena::session
