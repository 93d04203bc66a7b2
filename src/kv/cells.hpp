// Cells of one worker: words of 8 bytes that the clients' NICs change, and this process does not.
#pragma once

#include "kv/store.hpp"
#include "kv/wire.hpp"
#include "nic/registered_arena.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace verbena::kv {

/// On most NICs an atomic and a store of the CPU to the same word are not atomic against each other. So a word is
/// stored here once, before anyone has been told of it, and never looked at again: what clients make of it, a hostile
/// one included, means nothing to the server. The item of a cell's key says where the word is; it lies with the others
/// and is as they are but for its flag. Words are never free again: a client may change one as long as it is connected.
/// Immovable. \thread owner of the store  \alloc setup (open); none afterwards
class Cells {
 public:
  /// A cache line each: on the soft NIC two that are changed much would slow each other down within one.
  static constexpr std::size_t kBytesEach = 64;
  static_assert(kBytesEach % sizeof(std::uint64_t) == 0);

  /// Once, for a worker that has cells (1 and up). Errors: kUnsupported (the device has no atomics), and those of
  /// arenas and their registration. \thread setup
  [[nodiscard]] Result<void> open(nic::Nic& nic, ibv_pd* pd, std::size_t max_cells, std::optional<unsigned> node,
                                  const nic::Grant& grant);

  struct Found {
    Status status = Status::kOk;
    Quota quota = Quota::kNone;  ///< With kOverQuota.
    std::uint64_t version = 0;   ///< Of its item, which never changes.
    wire::CellPlace place;
  };
  /// The cell under `key`; where there is no such key, a new one with `initial` in it. kUnsupported: there are none on
  /// this server; kWrongKind: the key has a value; kLimit: all are made; and what the store says against a new item.
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
