// Registered memory for the buffers of many connections, in slabs that they share.
#pragma once

#include "base/threads.hpp"
#include "nic/registered_arena.hpp"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

namespace verbena::nic {

class BufferPool;

/// Gives a block back.
struct BufferReturner {
  BufferPool* pool = nullptr;
  const void* slab = nullptr;
  std::size_t bytes = 0;
  void operator()(const std::byte* data) const noexcept;
};

/// A block of a pool; its destructor gives it back. Move-only. The pool must outlive it. \thread any, one at a time
class Buffer {
 public:
  [[nodiscard]] explicit operator bool() const noexcept { return data_ != nullptr; }
  /// Aligned to 4 KiB. The bytes are zero, or those of an earlier owner.
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::uint32_t lkey() const noexcept { return lkey_; }

 private:
  friend class BufferPool;
  std::unique_ptr<std::byte, BufferReturner> data_;
  std::uint32_t lkey_ = 0;
};

/// Allocates blocks from registered arenas that only this process and its NIC use. On the soft NIC a page takes memory
/// from its first use on. The pool frees a slab that has no blocks. \thread any  \alloc setup
class BufferPool {
 public:
  /// Blocks begin at multiples of this, so that no two share a page.
  static constexpr std::size_t kUnit = 4096;
  static constexpr std::size_t kSlabBytes = std::size_t{4} << 20;

  BufferPool(Nic& nic, ibv_pd* pd) noexcept : nic_(nic), pd_(pd) {}
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  /// A block of at least `bytes`, on `node`. Errors: those of RegisteredArena::open.
  [[nodiscard]] Result<Buffer> acquire(std::size_t bytes, std::optional<unsigned> node = {});
  /// Current usage, for leak checks.
  struct Usage {
    std::size_t slabs = 0;
    std::size_t bytes = 0;  ///< Total size of the blocks in use.
  };
  [[nodiscard]] Usage usage() const;

 private:
  friend struct BufferReturner;
  struct Block {
    std::size_t offset;
    std::size_t bytes;
  };
  struct Slab {
    RegisteredArena arena;
    std::optional<unsigned> node;
    std::size_t bytes = 0;
    std::size_t fresh = 0;  ///< From here on no block was ever allocated.
    std::size_t used = 0;   ///< Blocks in use.
    std::size_t used_bytes = 0;
    std::vector<Block> freed;  ///< In the order they came back; the last one is reused first, while it is in caches.
  };
  void release(const void* slab, const std::byte* data, std::size_t bytes) noexcept;
  [[nodiscard]] static std::optional<Block> take_from(Slab& slab, std::size_t bytes);

  Nic& nic_;
  ibv_pd* const pd_;
  mutable Mutex mutex_;
  std::list<Slab> slabs_;
};

}  // namespace verbena::nic
