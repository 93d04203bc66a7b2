// Hot pool: blocks of memory for any thread in some nanoseconds, from caches of the threads over one slab pool.
#pragma once

#include "host/slab_pool.hpp"

#include <verbena/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace verbena::host {

struct HotPoolOptions {
  std::uint32_t max_threads = 16;  ///< Threads that have a cache at a time; others go through the lock. 1 to 1024.
  /// What a thread's cache holds of each size class at most, and no more than 64 blocks. Classes of which two blocks
  /// are more than this are not cached. 128 B to 1 MiB.
  std::uint32_t cache_bytes = 16 * 1024;
  /// Double frees, foreign offsets, writes past a block's end and into a block that is free end the process with a
  /// message that says which. Costs time and up to 272 bytes a block. Where it is off, what is told from a live block's
  /// start at no cost is kBadArgument, and an overrun is not seen.
  enum class Guards : std::uint8_t { kInDebugBuilds, kOn, kOff };
  Guards guards = Guards::kInDebugBuilds;
};

struct HotPoolStatistics {
  std::size_t capacity_bytes = 0;
  std::size_t used_bytes = 0;    ///< Blocks handed out, at their class's size. While other threads are at it, about.
  std::size_t cached_bytes = 0;  ///< Free blocks in caches and batches. Likewise.
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t failures = 0;  ///< Allocations that found no memory.
  std::uint64_t batches = 0;   ///< Between caches and the centre: each took the lock.
  std::uint64_t uncached = 0;  ///< Operations that took the lock for themselves: of large blocks, or without a cache.
  std::uint32_t caches = 0;    ///< Threads that have one.
};

class HotPoolCentre;

/// SlabPool's blocks, for all threads. A thread allocates from its own cache and frees into it, whoever allocated the
/// block; caches exchange blocks with the centre in batches, under a lock. O(1), no allocation after construction.
/// A cache is a thread's from its first operation to its end: then what it holds goes back. What caches hold is lost to
/// other threads meanwhile: at most `max_cached_bytes`. When memory is short, batches and the caller's own cache are
/// merged first.
///
/// Offsets, not pointers, name blocks; bookkeeping lies outside the range, which a peer may be able to write (its
/// writes into guards and free blocks count as overruns, where guards are on).
/// \thread any, except create, move and destruction (setup)  \alloc setup
class HotPool {
 public:
  static constexpr std::size_t kMinBlockBytes = SlabPool::kMinBlockBytes;
  static constexpr std::uint64_t kNoOffset = SlabPool::kNoOffset;
  static constexpr std::size_t kMaxRangeBytes = kMinBlockBytes << 32;

  /// Errors: kBadArgument (an option out of range; a range that no block fits, not aligned to 64, of more than 256 GiB,
  /// or of less than twice what the caches may hold: the text has the sum), kNoMemory, kLimit (thread keys).
  [[nodiscard]] static Result<HotPool> create(std::span<std::byte> range, const HotPoolOptions& options);
  /// Of all caches together.
  [[nodiscard]] static std::size_t max_cached_bytes(const HotPoolOptions& options) noexcept;

  HotPool(HotPool&&) noexcept;
  HotPool& operator=(HotPool&&) noexcept;
  ~HotPool();  ///< No other thread is in a call, or comes later.

  /// Offset of a block of at least `bytes`, aligned to 64 and to its class up to 4096; kNoOffset for no bytes, and when
  /// none is free. No system call, but for a lock that another thread holds, when the cache is empty.
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes) noexcept;
  /// kBadArgument for what is not the start of a live block; the pool stays as it was. Two frees of one block at the
  /// same time are told apart for sure only by guards.
  [[nodiscard]] Status free(std::uint64_t offset) noexcept;
  /// Bytes that may be used of the live block at `offset`: with guards, those asked for. 0 when there is none.
  [[nodiscard]] std::size_t block_bytes(std::uint64_t offset) const noexcept;
  [[nodiscard]] std::byte* at(std::uint64_t offset) const noexcept;
  /// kNoOffset for an address outside of the range.
  [[nodiscard]] std::uint64_t offset_of(const void* address) const noexcept;
  [[nodiscard]] HotPoolStatistics statistics() const noexcept;

 private:
  explicit HotPool(std::unique_ptr<HotPoolCentre> centre) noexcept;
  std::unique_ptr<HotPoolCentre> centre_;
};

}  // namespace verbena::host
