/// \file
/// Memory for a program's own items, in partitions that threads need not share.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#pragma GCC visibility push(default)

namespace verbena {

/// The blocks of at most `block_bytes` and more than half of that.
struct SlabClass {
  std::size_t block_bytes = 0;   ///< 64, 128, 256, ...
  std::uint64_t used = 0;        ///< Blocks handed out.
  std::uint64_t used_bytes = 0;  ///< Their bytes.
  std::uint64_t free = 0;        ///< Free blocks. They are split for smaller items, and merged again.
  std::uint64_t free_bytes = 0;  ///< Their bytes.
};

/// Hands out items of memory that the caller owns, such as registered memory of mesh::Mesh::allocate, so that peers
/// reach them. Item `key` belongs to partition `key % partitions`, and each partition has memory of its own: threads
/// that use different partitions share nothing. A partition is a buddy system: freed memory of large items serves small
/// ones, and the other way round. `create` allocates its bookkeeping elsewhere, because peers may write the memory; no
/// item lies outside of the memory. \thread as Sharing says \alloc none, except create
class SlabManager {
 public:
  /// The smallest item, in bytes.
  static constexpr std::size_t kMinItemBytes = 64;
  /// Most partitions.
  static constexpr unsigned kMaxPartitions = 4096;

  /// Threads that may use a partition.
  enum class Sharing : std::uint8_t {
    kOneThread,  ///< One thread at a time for each partition. The caller ensures it: no call locks.
    kAnyThread,  ///< Any thread: each call locks its partition while it runs.
  };
  /// Options of a manager.
  struct Options {
    unsigned partitions = 1;                ///< 1 to kMaxPartitions, each of 64 B at least.
    Sharing sharing = Sharing::kOneThread;  ///< Threads that may use a partition.
  };

  /// Divides `memory` into equal parts: multiples of 4 KiB if they are that long, else of 64 B. It must begin on a
  /// multiple of 64, and stay until the manager ends. Errors: kBadArgument, kNoMemory. \alloc setup
  [[nodiscard]] static Result<SlabManager> create(std::span<std::byte> memory, const Options& options);
  /// Takes the memory and the items of the other one.
  SlabManager(SlabManager&&) noexcept;
  /// The same; what this object had ends.
  SlabManager& operator=(SlabManager&&) noexcept;
  ~SlabManager();  ///< The memory stays the caller's.

  /// The number that `create` got. \thread any
  [[nodiscard]] unsigned partitions() const noexcept;
  /// Allocates an item of at least `bytes`: up to 8128 rounded up to a multiple of 64, above that to a power of two.
  /// Its offset in the partition is a multiple of 64, and of the power of two that holds it, up to 4096. Empty: the
  /// partition has none free, or `bytes` is 0. The time grows with the logarithm of the partition's size.
  [[nodiscard]] std::span<std::byte> allocate(std::uint64_t key, std::size_t bytes) noexcept;
  /// The same with exactly 64 << `slab_class` bytes, so that all items of a class are interchangeable.
  [[nodiscard]] std::span<std::byte> allocate_class(std::uint64_t key, unsigned slab_class) noexcept;
  /// Frees an item, by its first byte. kBadArgument: no item of that partition begins there; nothing has changed.
  [[nodiscard]] Status free(std::uint64_t key, const void* item) noexcept;
  /// Bytes of the item that begins there; 0 if none does.
  [[nodiscard]] std::size_t item_bytes(std::uint64_t key, const void* item) const noexcept;

  /// The smallest class whose items hold `bytes`; class 0 has 64. \thread any
  [[nodiscard]] static unsigned class_for(std::size_t bytes) noexcept;
  /// How many classes the key's partition has. \thread any
  [[nodiscard]] unsigned classes(std::uint64_t key) const noexcept;
  /// Counts of one class. While the partition is in use each number is a recent one. All 0 for a class that it does not
  /// have.
  /// \thread any
  [[nodiscard]] SlabClass class_of(std::uint64_t key, unsigned slab_class) const noexcept;
  /// Bytes of the key's partition, used and free. \thread any
  [[nodiscard]] std::size_t capacity_bytes(std::uint64_t key) const noexcept;
  /// Bytes of its items, recently. \thread any
  [[nodiscard]] std::size_t used_bytes(std::uint64_t key) const noexcept;

 private:
  struct State;
  explicit SlabManager(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace verbena

#pragma GCC visibility pop
