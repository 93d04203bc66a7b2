// Memory for a program's own items, in partitions that threads need not share.
#pragma once

#include <verbena/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#pragma GCC visibility push(default)

namespace verbena {

/// Blocks of up to `block_bytes`, and of more than half of that.
struct SlabClass {
  std::size_t block_bytes = 0;   ///< 64, 128, 256, ...
  std::uint64_t used = 0;        ///< Blocks handed out.
  std::uint64_t used_bytes = 0;  ///< Their bytes.
  std::uint64_t free = 0;        ///< Free blocks. They are split for smaller items, and merged again.
  std::uint64_t free_bytes = 0;  ///< Their bytes.
};

/// Hands out items of memory that the caller owns, such as registered memory of mesh::Mesh::allocate, so that peers
/// reach them. Item `key` is of partition `key % partitions`, and each partition has memory of its own: threads that
/// use keys of partitions of their own share nothing. A partition is a buddy system: a block that large items gave back
/// serves small ones, and the other way round. Its bookkeeping lies elsewhere, because peers may write the memory, and
/// is allocated when it is made; no item lies outside of the memory. \thread as Sharing says \alloc none, except create
class SlabManager {
 public:
  /// The smallest item, in bytes.
  static constexpr std::size_t kMinItemBytes = 64;
  /// Most partitions.
  static constexpr unsigned kMaxPartitions = 4096;

  /// Who may use a partition.
  enum class Sharing : std::uint8_t {
    kOneThread,  ///< One thread at a time for each partition, and the caller sees to that: no call locks.
    kAnyThread,  ///< Any thread: each call holds a lock of its partition, for the time that it takes itself.
  };
  /// Options of a manager.
  struct Options {
    unsigned partitions = 1;                ///< 1 to kMaxPartitions, each of 64 B at least.
    Sharing sharing = Sharing::kOneThread;  ///< Who may use a partition.
  };

  /// Divides memory that begins on a multiple of 64, and stays until the manager ends, into equal parts: in multiples
  /// of 4 KiB where they are as long, else of 64 B. Errors: kBadArgument, kNoMemory. \alloc setup
  [[nodiscard]] static Result<SlabManager> create(std::span<std::byte> memory, const Options& options);
  SlabManager(SlabManager&&) noexcept;
  SlabManager& operator=(SlabManager&&) noexcept;
  ~SlabManager();

  /// As `create` had it. \thread any
  [[nodiscard]] unsigned partitions() const noexcept;
  /// An item of at least `bytes`: up to 8128 of the next multiple of 64, above that of the next power of two. It begins
  /// at a multiple of 64, and of the power of two that holds it up to 4096, from the begin of its partition. Empty: the
  /// partition has none free, or `bytes` is 0. The time grows with the logarithm of the partition's size.
  [[nodiscard]] std::span<std::byte> allocate(std::uint64_t key, std::size_t bytes) noexcept;
  /// The same, of exactly 64 << `slab_class` bytes: an item of a class takes any other's place.
  [[nodiscard]] std::span<std::byte> allocate_class(std::uint64_t key, unsigned slab_class) noexcept;
  /// Takes an item back, by its first byte. kBadArgument: no item of that partition begins there; nothing has changed.
  [[nodiscard]] Status free(std::uint64_t key, const void* item) noexcept;
  /// Bytes of the item that begins there; 0: none does.
  [[nodiscard]] std::size_t item_bytes(std::uint64_t key, const void* item) const noexcept;

  /// The smallest class that holds so many bytes: 0 has 64. \thread any
  [[nodiscard]] static unsigned class_for(std::size_t bytes) noexcept;
  /// How many classes the key's partition has. \thread any
  [[nodiscard]] unsigned classes(std::uint64_t key) const noexcept;
  /// One of them, while the partition is in use: each number is one that was true lately. All 0 for one that it has
  /// not.
  /// \thread any
  [[nodiscard]] SlabClass class_of(std::uint64_t key, unsigned slab_class) const noexcept;
  /// Bytes of the key's partition, used and free. \thread any
  [[nodiscard]] std::size_t capacity_bytes(std::uint64_t key) const noexcept;
  /// Bytes of its items, as they were lately. \thread any
  [[nodiscard]] std::size_t used_bytes(std::uint64_t key) const noexcept;

 private:
  struct State;
  explicit SlabManager(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace verbena

#pragma GCC visibility pop
