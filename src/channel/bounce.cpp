#include "channel/bounce.hpp"

#include "base/check.hpp"

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
  if (first_ == nullptr) return;
  Waiter& oldest = *first_;
  forget(oldest);
  oldest.on_chunk();
}

void Bounce::wait(Waiter& waiter) noexcept {
  if (waiter.place.is_taken) return;
  waiter.place.is_taken = true;
  waiter.place.next = nullptr;
  (first_ == nullptr ? first_ : last_->place.next) = &waiter;
  last_ = &waiter;
}

void Bounce::forget(Waiter& waiter) noexcept {
  if (!waiter.place.is_taken) return;
  waiter.place.is_taken = false;
  Waiter* before = nullptr;
  for (Waiter* at = first_; at != nullptr; before = at, at = at->place.next) {
    if (at != &waiter) continue;
    (before == nullptr ? first_ : before->place.next) = at->place.next;
    if (last_ == at) last_ = before;
    return;
  }
}

}  // namespace verbena::channel
