// Block pool: O(1) allocation in size classes over a range of memory, by offset. Memory of any item, with little waste.
#pragma once

#include "base/count.hpp"

#include <verbena/error.hpp>
#include <verbena/slab_manager.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace verbena::host {

/// Sizes of blocks, all in units of 64 B. A class has blocks of one size. Up to 1 KiB there is one for each multiple of
/// 64 B, and above it eight for each power of two, up to 28 KiB; longer blocks are spans of whole pages. So a block of
/// more than 512 B is at most an eighth longer than what it is for.
/// \thread any  \alloc none
struct BlockSizes {
  static constexpr std::uint64_t kUnit = 64;
  static constexpr std::uint64_t kPage = 4096;
  static constexpr std::uint64_t kPageUnits = kPage / kUnit;
  static constexpr std::uint64_t kMostSlabUnits = 448;  ///< From here on the page is less than an eighth.
  static constexpr unsigned kClasses = 54;

  [[nodiscard]] static constexpr std::uint64_t units_of(unsigned size_class) noexcept {
    if (size_class < 16) return size_class + 1;
    const unsigned above = size_class - 16;
    return std::uint64_t{9 + above % 8} << (1 + above / 8);
  }
  [[nodiscard]] static constexpr unsigned class_for_units(std::uint64_t units) noexcept {
    if (units <= 16) return static_cast<unsigned>(units) - 1;
    const unsigned shift = static_cast<unsigned>(std::bit_width(units - 1)) - 4;
    return 16 + (shift - 1) * 8 + static_cast<unsigned>((units - 1) >> shift) - 8;
  }
  /// What a block for so many bytes takes, from 1 on.
  [[nodiscard]] static constexpr std::uint64_t block_bytes_for(std::uint64_t bytes) noexcept {
    const std::uint64_t units = (bytes - 1) / kUnit + 1;
    if (units <= kMostSlabUnits) return units_of(class_for_units(units)) * kUnit;
    return ((bytes - 1) / kPage + 1) * kPage;
  }
};
static_assert(BlockSizes::units_of(BlockSizes::kClasses - 1) == BlockSizes::kMostSlabUnits);
static_assert(BlockSizes::class_for_units(BlockSizes::kMostSlabUnits) == BlockSizes::kClasses - 1);
static_assert(BlockSizes::units_of(BlockSizes::class_for_units(17)) == 18);

/// Blocks over memory that the caller owns, in pages of 4 KiB. A slab is some pages with blocks of one class; a slab
/// whose last block is freed is pages again, and neighbouring free pages are one span. Slabs begin at the front of the
/// memory and long blocks at its end, where there is a choice. An allocation takes the class's block that was freed
/// last, which is likely in the cache, else one of its fullest slab, so that slabs with few blocks become empty.
///
/// Blocks do not move by themselves: where a class has far more slabs than it needs, `begin_clearing` names one whose
/// blocks the owner may move into others of the class.
///
/// Bookkeeping lives outside the range (a peer may be able to write it), 1 % of it, and is allocated once.
/// \thread owner (one at a time)  \alloc setup (create); none afterwards
class BlockPool {
 public:
  static constexpr std::uint64_t kNoOffset = ~std::uint64_t{0};

  /// The range's last bytes are not used if they are less than a page. Errors: kBadArgument (a range below a page,
  /// above 8 TiB, or not at a multiple of 64), kNoMemory.
  [[nodiscard]] static Result<BlockPool> create(std::span<std::byte> range);
  /// What `create` allocates for a range of that many bytes. \thread any  \alloc none
  [[nodiscard]] static std::size_t bookkeeping_bytes(std::size_t range_bytes) noexcept;

  BlockPool(BlockPool&&) noexcept;
  BlockPool& operator=(BlockPool&&) noexcept;
  ~BlockPool();

  /// Offset of a block of BlockSizes::block_bytes_for(bytes), aligned to 64, and to a page from 28 KiB on; kNoOffset
  /// when there is none, or `bytes` is 0. O(1): a search for pages looks at no more than kMostLooks spans.
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes) noexcept;
  /// kBadArgument for an offset that is not the start of a live block (double free, foreign); the pool stays as it was.
  [[nodiscard]] Status free(std::uint64_t offset) noexcept;
  /// Bytes of the live block at `offset`, or 0 when there is none.
  [[nodiscard]] std::size_t block_bytes(std::uint64_t offset) const noexcept;
  [[nodiscard]] std::byte* at(std::uint64_t offset) const noexcept;
  [[nodiscard]] std::uint64_t offset_of(const void* address) const noexcept;

  [[nodiscard]] std::size_t capacity_bytes() const noexcept;
  [[nodiscard]] std::size_t used_bytes() const noexcept;  ///< For all live blocks.
  /// Powers of two that blocks and free spans are counted by: 64 B, 128 B, ... \thread any  \alloc none
  [[nodiscard]] unsigned classes() const noexcept;
  /// Blocks of more than half of 64 << index bytes, and free spans that hold so many, while the owner goes on: each
  /// number is one that was true lately. \thread any  \alloc none
  [[nodiscard]] SlabClass class_of(unsigned index) const noexcept;

  /// A slab that gives out no blocks until `end_clearing`.
  struct Clearing {
    std::uint64_t offset = 0;       ///< For its first block.
    std::uint64_t block_bytes = 0;  ///< For each.
    std::uint64_t live = 0;         ///< Bit i: block i is live.
  };
  /// The slab to be cleared with the least work, of blocks of up to `most_block_bytes`: as many blocks are free in the
  /// others of its class as it has live ones. Nothing: there is none. At most one slab is being cleared at a time.
  [[nodiscard]] std::optional<Clearing> begin_clearing(std::size_t most_block_bytes) noexcept;
  /// Whether its pages are free now; else it is a slab as before.
  bool end_clearing(const Clearing& clearing) noexcept;

  /// Spans of nearly the right size that a search looks at, for the shortest that is long enough.
  static constexpr unsigned kMostLooks = 16;

 private:
  struct State;
  explicit BlockPool(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace verbena::host
