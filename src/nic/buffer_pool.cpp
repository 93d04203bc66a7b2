#include "nic/buffer_pool.hpp"

#include "base/check.hpp"

#include <algorithm>

namespace verbena::nic {

void BufferReturner::operator()(const std::byte* data) const noexcept { pool->release(slab, data, bytes); }

BufferPool::~BufferPool() { VERBENA_CHECK(slabs_.empty()); }

// Returns a freed block of exactly that size, because connections with the same options need the same sizes; else fresh
// memory.
std::optional<BufferPool::Block> BufferPool::take_from(Slab& slab, std::size_t bytes) {
  const auto freed = std::ranges::find(slab.freed.rbegin(), slab.freed.rend(), bytes, &Block::bytes);
  if (freed != slab.freed.rend()) {
    const Block block = *freed;
    slab.freed.erase(std::next(freed).base());
    return block;
  }
  if (bytes > slab.bytes - slab.fresh) return std::nullopt;
  // Reserved now, because giving a block back must not allocate.
  slab.freed.reserve(slab.used + slab.freed.size() + 1);
  const Block block{.offset = slab.fresh, .bytes = bytes};
  slab.fresh += bytes;
  return block;
}

Result<Buffer> BufferPool::acquire(std::size_t bytes, std::optional<unsigned> node) {
  bytes = (std::max<std::size_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit;
  const std::lock_guard lock(mutex_);
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (Slab& slab : slabs_) {
      if (slab.node != node) continue;
      const auto block = take_from(slab, bytes);
      if (!block) continue;
      ++slab.used;
      slab.used_bytes += bytes;
      Buffer buffer;
      buffer.data_ = {slab.arena.data() + block->offset, {.pool = this, .slab = &slab, .bytes = bytes}};
      buffer.lkey_ = slab.arena.lkey();
      return buffer;
    }
    Slab& slab = slabs_.emplace_front();
    slab.node = node;
    slab.bytes = std::max(bytes, kSlabBytes);
    const auto opened = slab.arena.open(
        nic_, pd_, {.size_bytes = slab.bytes, .node = node, .populate = host::Populate::kAsUsed, .name = "buffers"}, {},
        IBV_ACCESS_LOCAL_WRITE);
    if (opened) continue;
    slabs_.pop_front();
    return std::unexpected(opened.error());
  }
  return fail(Status::kNoMemory, "BufferPool::acquire", 0, "a new slab of {} bytes has no room", bytes);
}

void BufferPool::release(const void* from, const std::byte* data, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto slab = std::ranges::find_if(slabs_, [&](const Slab& candidate) { return &candidate == from; });
  VERBENA_CHECK(slab != slabs_.end());
  slab->used_bytes -= bytes;
  if (--slab->used == 0) {
    slabs_.erase(slab);
    return;
  }
  slab->freed.push_back({.offset = static_cast<std::size_t>(data - slab->arena.data()), .bytes = bytes});
}

BufferPool::Usage BufferPool::usage() const {
  const std::lock_guard lock(mutex_);
  Usage sum{.slabs = slabs_.size()};
  for (const Slab& slab : slabs_) sum.bytes += slab.used_bytes;
  return sum;
}

}  // namespace verbena::nic
