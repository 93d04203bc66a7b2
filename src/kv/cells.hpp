// One worker's cells: words of 8 bytes that the clients' NICs change, and this process does not.
#pragma once

#include "kv/store.hpp"
#include "kv/wire.hpp"
#include "nic/registered_arena.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace verbena::kv {

/// On most NICs an atomic and a CPU store to the same word are not atomic against each other. So the server stores a
/// word once, before any client knows of it, and never looks at it again: its later contents, also a hostile client's,
/// mean nothing to the server. The item of a cell's key tells where the word is; but for its flag it is an item like
/// any other. Words are never freed: a client may change one as long as it is connected. Immovable. \thread owner of
/// the store  \alloc setup (open); none afterwards
class Cells {
 public:
  /// One cache line each: on the soft NIC two busy words in one line would slow each other down.
  static constexpr std::size_t kBytesEach = 64;
  static_assert(kBytesEach % sizeof(std::uint64_t) == 0);

  /// Call once, for a worker with cells (1 and up). Errors: kUnsupported (the device has no atomics), and those of
  /// arenas and their registration. \thread setup
  [[nodiscard]] Result<void> open(nic::Nic& nic, ibv_pd* pd, std::size_t max_cells, std::optional<unsigned> node,
                                  const nic::Grant& grant);

  struct Found {
    Status status = Status::kOk;
    Quota quota = Quota::kNone;  ///< With kOverQuota.
    std::uint64_t version = 0;   ///< The version of its item, which never changes.
    wire::CellPlace place;
  };
  /// The cell under `key`; if there is no such key, a new one that holds `initial`. Errors: kUnsupported (this server
  /// has no cells), kWrongKind (the key has a value), kLimit (no cell is left), and those of the store for a new item.
  [[nodiscard]] Found find_or_make(Store& store, Key key, std::uint64_t initial, Owner owner) noexcept;
  [[nodiscard]] std::uint64_t made() const noexcept { return made_; }

 private:
  [[nodiscard]] Found make(Store& store, Key key, std::uint64_t initial, Owner owner) noexcept;
  [[nodiscard]] wire::CellPlace place_of(std::uint64_t offset) const noexcept;

  nic::RegisteredArena region_;
  nic::Window window_;
  std::uint64_t made_ = 0;
  std::uint64_t max_cells_ = 0;
};

}  // namespace verbena::kv
