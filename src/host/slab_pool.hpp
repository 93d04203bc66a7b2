// Slab pool: O(1) allocation of power-of-two-ish size classes over a range of memory, by offset.
#pragma once

#include <verbena/error.hpp>
#include <verbena/slab_manager.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace verbena::host {

struct SlabStatistics {
  std::size_t capacity_bytes = 0;
  std::size_t used_bytes = 0;  ///< Bytes of live blocks, at their class's size.
};

using verbena::SlabClass;

/// Blocks of 64 B to the largest power of two that fits, over memory that the caller owns; a buddy system, so that
/// memory freed by large blocks serves small ones and the other way round. Bookkeeping lives outside the range (a peer
/// may be able to write it), and is allocated once at construction. Offsets, not pointers, name blocks.
/// \thread owner (one at a time)  \alloc setup (constructor); none afterwards
class SlabPool {
 public:
  static constexpr std::size_t kMinBlockBytes = 64;

  /// Errors: kBadArgument (range under 64 B, or not 64-byte aligned), kNoMemory.
  [[nodiscard]] static Result<SlabPool> create(std::span<std::byte> range);

  /// Bytes that `create` allocates for a range of `range_bytes`. \thread any  \alloc none
  [[nodiscard]] static std::size_t bookkeeping_bytes(std::size_t range_bytes) noexcept;

  SlabPool(SlabPool&&) noexcept;
  SlabPool& operator=(SlabPool&&) noexcept;
  ~SlabPool();

  /// Allocates a block of at least `bytes` (1 to the range's size), aligned to 64 and to its class up to 4096, and
  /// returns its offset; kNoOffset if none is free. O(log(range)), no system call.
  static constexpr std::uint64_t kNoOffset = ~std::uint64_t{0};
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes) noexcept;
  /// The same without waste: up to 127 times 64 B the block has `bytes` rounded up to a multiple of 64, and the rest of
  /// the power of two stays free.
  [[nodiscard]] std::uint64_t allocate_exact(std::size_t bytes) noexcept;
  /// Frees the block at `offset`. kBadArgument if no live block starts there (double free, foreign); the pool stays
  /// unchanged.
  [[nodiscard]] Status free(std::uint64_t offset) noexcept;
  /// Bytes of the live block at `offset`, or 0 if there is none.
  [[nodiscard]] std::size_t block_bytes(std::uint64_t offset) const noexcept;
  [[nodiscard]] std::byte* at(std::uint64_t offset) const noexcept;
  [[nodiscard]] std::uint64_t offset_of(const void* address) const noexcept;
  [[nodiscard]] SlabStatistics statistics() const noexcept;
  /// Number of block sizes: 64 B, 128 B, ... \thread any  \alloc none
  [[nodiscard]] unsigned classes() const noexcept;
  /// Counts of class `index`, below `classes()`. While the owner uses the pool each number is a recent one.
  /// \thread any  \alloc none
  [[nodiscard]] SlabClass class_of(unsigned index) const noexcept;

 private:
  struct State;
  explicit SlabPool(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace verbena::host
