// Chunks of registered memory that stage transfers of unregistered memory.
#pragma once

#include "engine/fifo.hpp"
#include "host/footprint.hpp"
#include "nic/buffer_pool.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace verbena::channel {

/// Shared by the connections of one loop. A chunk is in use from `take` to `give_back`, which follows the completion of
/// its work request even if nobody waits for that any more. \thread owner of the loop, except open (setup)
class Bounce {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
  static constexpr std::uint32_t kChunks = 8;
  static constexpr std::uint32_t kNone = 0x7fff;

  /// Somebody who found no chunk free.
  class Waiter {
   public:
    /// A chunk may be free now. Called once for each `wait`.
    virtual void on_chunk() noexcept = 0;
    // Used by Bounce.
    Waiter* next = nullptr;
    bool is_waiting = false;

   protected:
    ~Waiter() = default;
  };

  /// Errors: those of BufferPool::acquire.
  [[nodiscard]] Result<void> open(nic::BufferPool& pool, std::optional<unsigned> node);
  /// The memory that `open` allocates. \thread any
  [[nodiscard]] static host::Footprint footprint(std::optional<unsigned> node);

  /// Takes a chunk; kNone: none is free.
  [[nodiscard]] std::uint32_t take() noexcept {
    const std::uint32_t chunk = first_free_;
    if (chunk != kNone) first_free_ = chunks_[chunk].next;
    return chunk;
  }
  void give_back(std::uint32_t chunk) noexcept;
  void wait(Waiter& waiter) noexcept;
  void forget(Waiter& waiter) noexcept;

  [[nodiscard]] std::byte* data(std::uint32_t chunk) const noexcept { return memory_.data() + chunk * kChunkBytes; }
  [[nodiscard]] std::uint32_t lkey() const noexcept { return memory_.lkey(); }
  /// A chunk's entry for its user: the piece in it, and the next chunk of the user's list.
  struct Chunk {
    std::uint32_t next = kNone;
    std::uint32_t length = 0;
  };
  [[nodiscard]] Chunk& operator[](std::uint32_t chunk) noexcept { return chunks_[chunk]; }

 private:
  nic::Buffer memory_;
  std::vector<Chunk> chunks_;
  std::uint32_t first_free_ = kNone;
  engine::Fifo<Waiter> waiters_;
};

}  // namespace verbena::channel
