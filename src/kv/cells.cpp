#include "kv/cells.hpp"

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/simulation.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>

namespace verbena::kv {

Result<void> Cells::open(nic::Nic& nic, ibv_pd* pd, std::size_t max_cells, std::optional<unsigned> node,
                         const nic::Grant& grant) {
  if (!nic.capabilities().has_atomics)
    return fail(Status::kUnsupported, "Server::start", 0,
                "max_cells is given, and {} has no atomics: set it to 0, or use another device", nic.name());
  // No right to WRITE. On the soft NIC, where a mapping gives the access, it gives more than this right: see
  // docs/kv.md.
  VERBENA_TRY(region_.open(
      nic, pd, {.size_bytes = max_cells * kBytesEach, .node = node, .share = host::Share::kReadWrite, .name = "cells"},
      grant, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
  window_ = region_.window();
  max_cells_ = max_cells;
  return {};
}

Cells::Found Cells::find_or_make(Store& store, Key key, std::uint64_t initial, Owner owner) noexcept {
  if (max_cells_ == 0) return {.status = Status::kUnsupported};
  const Store::Found there = store.find(key);
  if (there.status == Status::kNotFound) return make(store, key, initial, owner);
  // Other operations reject a cell with kWrongKind; this one looks for it.
  if (there.status != Status::kWrongKind)
    return {.status = there.status == Status::kOk ? Status::kWrongKind : there.status};
  std::uint64_t offset = 0;
  VERBENA_DCHECK(there.value.size() == sizeof offset);
  std::memcpy(&offset, there.value.data(), sizeof offset);
  return {.version = there.version, .place = place_of(offset)};
}

Cells::Found Cells::make(Store& store, Key key, std::uint64_t initial, Owner owner) noexcept {
  if (made_ == max_cells_) return {.status = Status::kLimit};
  const std::uint64_t offset = made_ * kBytesEach;
  // Stores before the item exists that names the cell. No NIC uses the word yet: nobody knows of a cell beyond made_.
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(region_.data() + offset)).store(initial, std::memory_order_release);
  simulation::step();
  const auto value = std::bit_cast<std::array<std::byte, sizeof offset>>(offset);
  const Store::Change change = store.put_cell(key, value, owner);
  if (change.status != Status::kOk) return {.status = change.status, .quota = change.quota};
  ++made_;
  Found made{.version = change.version, .place = place_of(offset)};
  made.place.is_new = 1;
  return made;
}

wire::CellPlace Cells::place_of(std::uint64_t offset) const noexcept {
  return {.window_address = window_.address,
          .window_length = window_.length,
          .window_memory = window_.memory_id,
          .window_rkey = window_.rkey,
          .window_access = window_.access,
          .offset = offset};
}

}  // namespace verbena::kv
