#include "channel/bounce.hpp"

#include "base/check.hpp"

#include <utility>

namespace verbena::channel {

Result<void> Bounce::open(nic::BufferPool& pool, std::optional<unsigned> node) {
  VERBENA_ASSIGN(memory_, pool.acquire(kChunks * kChunkBytes, node));
  chunks_.resize(kChunks);
  for (std::uint32_t i = 0; i < kChunks; ++i) chunks_[i].next = i + 1 < kChunks ? i + 1 : kNone;
  first_free_ = 0;
  return {};
}

host::Footprint Bounce::footprint(std::optional<unsigned> node) {
  host::Footprint pools;
  pools.add({.name = "bounce buffers",
             .kind = host::PoolKind::kRegistered,
             .count = kChunks,
             .bytes_each = kChunkBytes,
             .node = node});
  return pools;
}

void Bounce::give_back(std::uint32_t chunk) noexcept {
  VERBENA_DCHECK(chunk < kChunks);
  chunks_[chunk].next = first_free_;
  first_free_ = chunk;
  if (waiters_.empty()) return;
  Waiter& oldest = *waiters_.first();
  forget(oldest);
  oldest.on_chunk();
}

void Bounce::wait(Waiter& waiter) noexcept {
  if (!std::exchange(waiter.is_waiting, true)) waiters_.push(waiter);
}

void Bounce::forget(Waiter& waiter) noexcept {
  if (std::exchange(waiter.is_waiting, false)) waiters_.remove(waiter);
}

}  // namespace verbena::channel
